"""The plugin in test runs of its own: devices, markers, checked runs, and that it is found without being named."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import sys
from pathlib import Path

import pytest
import torch

import rawkern
from rawkern.checked import launches
from rawkern.engines.cpu.runtime import limits
from rawkern.launch import level
from rawkern.testing import plugin

ROOT = Path(__file__).resolve().parents[2]
NAME = "rawkern.testing.plugin"


@pytest.fixture(scope="module", autouse=True)
def _all_is_imported() -> None:
    """Import what launches import: a module first imported in a run within this process is forgotten at its end."""
    for module in pkgutil.walk_packages(rawkern.__path__, "rawkern."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    kernel = rawkern.RawKernel('extern "C" __global__ void k(int* x) { x[threadIdx.x] = 1; }')
    with rawkern.check(), pytest.raises(rawkern.OutOfBoundsError):
        kernel[1, 2](torch.zeros(1, dtype=torch.int32))
    with level.scoped(level.BOUNDS):
        kernel[1, 1](torch.zeros(1, dtype=torch.int32))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch):
    """Let the plugin find that many GPUs."""
    return lambda n: monkeypatch.setattr(plugin, "_gpus", lambda: (n, "" if n else "torch finds no GPU"))


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    without = ("cacheprovider", "hypothesispytest", "xdist", "timeout")  # a fifth of the time
    args = [arg for name in without for arg in ("-p", f"no:{name}")]
    return pytester.runpytest_inprocess("-p", NAME, *args, "--strict-markers", "-v", "-rs", *options)


DEVICES = """
import pytest

def test_of_device(device):
    assert type(device) is str and device in ("cpu", "cuda")

@pytest.mark.parametrize("n", [1, 2])
def test_of_more(n, device): ...

@pytest.mark.gpu
def test_of_gpu(): ...

@pytest.mark.multigpu
def test_of_two(): ...

def test_of_none(): ...
"""


# Devices and markers -------------------------------------------------------------------------------------------------


def test_without_a_gpu_its_tests_are_skipped_with_the_reason(pytester, gpus) -> None:
    gpus(0)
    pytester.makepyfile(DEVICES)
    result = run(pytester)
    result.assert_outcomes(passed=4, skipped=5)
    out = result.stdout
    out.fnmatch_lines(["*test_of_device?cpu? PASSED*", "*test_of_device?cuda? SKIPPED*", "*test_of_none PASSED*"])
    out.fnmatch_lines(
        ["SKIPPED ?4?*needs 1 NVIDIA GPU: torch finds no GPU", "*needs 2 NVIDIA GPUs: torch finds no GPU"]
    )
    assert "rawkern:" not in str(out)


def test_with_gpus_they_run(pytester, gpus) -> None:
    pytester.makepyfile(DEVICES)
    gpus(2)
    run(pytester).assert_outcomes(passed=9)
    gpus(1)
    result = run(pytester)
    result.assert_outcomes(passed=8, skipped=1)
    result.stdout.fnmatch_lines(["*needs 2 NVIDIA GPUs: found 1"])


def test_gpu_selects_what_needs_one(pytester, gpus) -> None:
    gpus(2)
    pytester.makepyfile(DEVICES)
    result = run(pytester, "-m", "gpu")
    result.assert_outcomes(passed=5, deselected=4)
    result.stdout.fnmatch_lines(["*test_of_device?cuda? PASSED*", "*test_of_gpu PASSED*", "*test_of_two PASSED*"])
    run(pytester, "-m", "not gpu").assert_outcomes(passed=4, deselected=5)
    run(pytester, "-m", "multigpu").assert_outcomes(passed=1, deselected=8)


def test_chosen_devices(pytester, gpus) -> None:
    pytester.makepyfile(DEVICES)
    gpus(0)
    result = run(pytester, "--rawkern-device=cpu")
    result.assert_outcomes(passed=4, skipped=2, deselected=3)
    result.stdout.fnmatch_lines(["rawkern: on cpu", "*--rawkern-device=cpu excludes GPUs"])
    gpus(1)
    result = run(pytester, "--rawkern-device=cpu")  # chosen, so the GPU there is stays alone
    result.assert_outcomes(passed=4, skipped=2, deselected=3)
    result = run(pytester, "--rawkern-device=cuda")  # of what was asked for nothing is skipped
    result.assert_outcomes(passed=5, errors=1, deselected=3)
    result.stdout.fnmatch_lines(["*--rawkern-device=cuda, but the test needs 2 NVIDIA GPUs: found 1"])
    result = run(pytester, "--rawkern-device=cpu, cuda,cpu", "-m", "not multigpu")
    result.assert_outcomes(passed=8, deselected=1)
    result.stdout.fnmatch_lines(["rawkern: on cpu, cuda"])


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ("cuda", "--rawkern-device=cuda: no GPU to test on: torch finds no GPU"),
        ("cpu,cuda", "--rawkern-device=cpu,cuda: no GPU to test on: torch finds no GPU"),
        ("tpu", "unknown device 'tpu'; choose cpu, cuda or cpu,cuda"),
        ("", "unknown device ''; choose cpu, cuda or cpu,cuda"),
        ("cuda:1", "unknown device 'cuda:1'; choose cpu, cuda or cpu,cuda"),
    ],
    ids=lambda text: text[:8],
)
def test_what_is_not_there_is_a_usage_error(pytester, gpus, chosen: str, says: str) -> None:
    gpus(0)
    pytester.makepyfile("def test_of_none(): ...")
    result = run(pytester, f"--rawkern-device={chosen}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert says in str(result.stderr) and "Traceback" not in str(result.stderr)


def test_device_of_the_user_comes_first(pytester, gpus) -> None:
    gpus(0)
    pytester.makeconftest("""
import pytest

@pytest.fixture(params=["cuda", "meta"])
def device(request):
    return "my " + request.param
""")
    pytester.makepyfile(
        test_conftest='def test(device): assert device in ("my cuda", "my meta")',
        test_own="""
import pytest

@pytest.fixture
def device():
    return 5

def test(device): assert device == 5
""",
        test_argument="""
import pytest

@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test(device): ...
""",
    )
    run(pytester).assert_outcomes(passed=5)
    run(pytester, "--rawkern-device=cpu").assert_outcomes(passed=5)


def test_device_made_of_ours(pytester, gpus) -> None:
    gpus(1)
    pytester.makepyfile("""
import pytest, torch

@pytest.fixture
def device(device):
    return torch.device(device)

def test(device): assert isinstance(device, torch.device)
""")
    run(pytester).assert_outcomes(passed=2)
    run(pytester, "--rawkern-device=cuda").assert_outcomes(passed=1, deselected=1)


def test_markers_are_registered_and_no_others(pytester, gpus) -> None:
    gpus(0)
    pytester.makepyfile("import pytest\n@pytest.mark.gpus\ndef test(): ...")
    run(pytester).assert_outcomes(errors=1)
    out = run(pytester, "--markers").stdout
    out.fnmatch_lines(
        ["*@pytest.mark.gpu: *", "*@pytest.mark.multigpu: *", "*mark.rawkern_finding(*errors, match='')*"]
    )


def test_a_marker_that_the_project_registers_keeps_its_meaning(pytester, gpus) -> None:
    gpus(0)
    pytester.makeini("[pytest]\nmarkers =\n    gpu: needs a GPU of another kind\n")
    pytester.makepyfile(DEVICES)
    result = run(pytester)
    result.assert_outcomes(passed=5, skipped=4)
    result.stdout.fnmatch_lines(["*test_of_gpu PASSED*"])


# How it is found -----------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with the entry point that an installed rawkern has, and the source tree after it."""
    site = pytester.mkdir("site")
    about = site / "rawkern_as_installed-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rawkern-as-installed\nVersion: 0\n")
    (about / "entry_points.txt").write_text(f"[pytest11]\n{NAME} = {NAME}\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return site


@pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="the tests run apart from the source tree")
def test_entry_point() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {NAME: NAME}


@pytest.mark.parametrize("named", ["nowhere", "conftest", "option", "conftest, not installed"])
def test_found_where_installed_and_registered_once(pytester, installed: Path, monkeypatch, named: str) -> None:
    if "not installed" in named:
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(f"""
import sys
{f'pytest_plugins = ["{NAME}"]' if "conftest" in named else ""}

def pytest_unconfigure(config):
    ours = [name for name, plugin in config.pluginmanager.list_name_plugin() if "rawkern" in name and plugin]
    print("\\nregistered", *ours)
    print("imported", *sorted({{"torch", "cupy", "numpy", "llvmlite", "rawkern"}} & set(sys.modules)))
""")
    pytester.makepyfile("import pytest\n@pytest.mark.multigpu\ndef test_b(): ...\ndef test_a(device): ...")
    options = ("-p", "no:hypothesispytest", *(("-p", NAME) if named == "option" else ()))
    result = pytester.runpytest_subprocess("-s", "--collect-only", "-q", "--strict-markers", *options)
    result.stdout.fnmatch_lines(["*test_a?cpu?", "*test_a?cuda?", f"registered {NAME}", "imported rawkern"])


def test_workers(pytester, installed: Path) -> None:
    """The options reach xdist's workers, which collect the same tests."""
    pytest.importorskip("xdist")
    pytester.makepyfile(DEVICES + CHECKED)
    without = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    args = ("-p", NAME, "-n", "1", "-q", *without, "-k", "of_none or of_device or wrong or right")
    result = pytester.runpytest_inprocess(*args, "--rawkern-device=cpu", "--rawkern-check")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*reads s?32?, which no thread of the block*"])
    if plugin._gpus()[0] == 0:
        result = pytester.runpytest_inprocess(*args, "--rawkern-device=cuda")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*no GPU to test on: torch finds no GPU*"])


# Checked runs --------------------------------------------------------------------------------------------------------

CHECKED = '''
import os, subprocess, sys, threading
import pytest, torch, rawkern

kernel = rawkern.RawKernel(r"""
extern "C" __global__ void shift(const float* x, float* out, int by) {
    __shared__ float s[33]; s[threadIdx.x] = x[threadIdx.x]; __syncwarp(); out[threadIdx.x] = s[threadIdx.x + by];
}""")

def launch(by):
    kernel[1, 32](torch.randn(32), torch.empty(32), by)

def test_right():
    launch(0)

def test_wrong():
    launch(1)
'''
MORE = """
def test_caught():
    with pytest.raises(RuntimeError):
        launch(1)
    rawkern.check().__enter__().__exit__(None, None, None)

def test_caught_and_failed():
    with pytest.raises(RuntimeError):
        launch(1)
    assert 1 + 1 == 3

def test_caught_and_skipped():
    try:
        launch(1)
    except RuntimeError:
        pytest.skip("no such thing")

def test_on_a_thread():
    def work():
        try:
            launch(1)
        except RuntimeError:
            pass
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

@pytest.fixture
def launched():
    launch(1)

def test_in_a_fixture(launched): ...

def test_own_contexts_are_its_own():
    with rawkern.check(), pytest.raises(rawkern.UninitializedReadError):
        launch(1)

@pytest.mark.rawkern_finding("UninitializedReadError", match="which no thread of the block")
def test_found():
    launch(1)

@pytest.mark.rawkern_finding("RaceError", "UninitializedReadError")
def test_found_and_caught():
    with pytest.raises(RuntimeError):
        launch(1)

@pytest.mark.rawkern_finding("RaceError")
def test_found_another():
    launch(1)

@pytest.mark.rawkern_finding("UninitializedReadError", match="y has")
def test_found_other_words():
    launch(1)

@pytest.mark.rawkern_finding("RaceError")
def test_found_nothing():
    launch(0)

@pytest.mark.rawkern_finding("ValueError")
def test_no_finding_at_all():
    launch(0)

@pytest.mark.rawkern_unchecked("reads past the end on purpose")
def test_unchecked():
    launch(1)
    assert os.environ["RAWKERN_CHECK"] == "bounds"
    with rawkern.check(), pytest.raises(rawkern.UninitializedReadError):
        launch(1)
    launch(1)

def test_wrong_after_unchecked():
    launch(1)

def test_other_programs():
    code = "from rawkern.launch import level; print(level.current())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "full"
"""


def test_checked_run(pytester) -> None:
    pytester.makepyfile(CHECKED + MORE)
    before = os.environ.get("RAWKERN_CHECK"), level.depth()
    result = run(pytester, "--rawkern-check")
    assert (os.environ.get("RAWKERN_CHECK"), level.depth()) == before and not launches.listeners[len(LISTENERS) :]
    out = str(result.stdout)
    said = dict(
        line.split("::")[1].split()[:2] for line in out.splitlines() if line.startswith("test_") and "::" in line
    )
    right = {"right", "own_contexts_are_its_own", "found", "found_and_caught", "unchecked", "other_programs"}
    assert {name.removeprefix("test_") for name, how in said.items() if how == "PASSED"} == right
    assert said["test_in_a_fixture"] == "ERROR" and said["test_caught_and_skipped"] == "FAILED"
    assert len(said) == len(right) + 11
    result.stdout.fnmatch_lines(
        [
            "rawkern: level of checks: full",
            "*.py:*, line 3: thread (31,0,0) of block (0,0,0) reads s?32?, which no thread of the block*",
            "*had findings that the test did not raise:",
            "UninitializedReadError: shift: *.py:*, line 3: *",
            "*no launch of the test had the finding that its marker expects: RaceError",
        ]
    )
    assert "takes names of rawkern's CheckErrors, got 'ValueError'" in out
    assert "assert (1 + 1) == 3" in out


LISTENERS = list(launches.listeners)


ON_A_GPU = """
import pytest, torch, rawkern
from rawkern.checked import launches as checking

kernel = rawkern.RawKernel(
    'extern "C" __global__ void add(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] += 1.5f; }'
)

def test_launches_follow(device, monkeypatch):
    PRETEND
    x = torch.zeros(32, device=device)
    for i in range(3):
        kernel[1, 64](x, 32)
        assert torch.equal(x.cpu(), torch.full((32,), 1.5 * TIMES * (i + 1)))
    kernel((1,), (64,), (x, 32), stream=STREAM)
    with pytest.raises(rawkern.OutOfBoundsError):
        kernel[1, 64](x[:31], 32)
"""


def test_launches_on_a_gpu_follow_their_check(pytester, device: str) -> None:
    """On the CPU with a check that says the tensors are on a GPU: then the launch is made twice."""
    pretend = """
    check = checking.launch
    monkeypatch.setattr(checking, "launch", lambda *args: check(*args) and torch.device("cuda", 0))
    """
    real = device == "cuda"
    text = ON_A_GPU.replace("PRETEND", "pass" if real else pretend).replace("TIMES", "1" if real else "2")
    pytester.makepyfile(text.replace("STREAM", "torch.cuda.Stream()" if real else "None"))
    result = run(pytester, "--rawkern-check", f"--rawkern-device={device}")
    result.assert_outcomes(failed=1, deselected=1)  # by the finding that it catches
    result.stdout.fnmatch_lines(["*had findings that the test did not raise:", "OutOfBoundsError: add*"])
    assert "Error" not in str(result.stdout).replace("OutOfBoundsError", "")


def test_the_markers_do_nothing_in_usual_runs(pytester) -> None:
    pytester.makepyfile(
        CHECKED
        + """
@pytest.mark.rawkern_finding("RaceError")
@pytest.mark.rawkern_unchecked("no reason")
def test_marked():
    launch(1)
"""
    )
    with level.scoped(level.BOUNDS):
        run(pytester).assert_outcomes(passed=3)


def test_loading_costs_next_to_nothing() -> None:
    """The plugin's modules import nothing but the standard library and pytest."""
    import subprocess

    code = f"import pytest, sys; before = set(sys.modules); import {NAME}; print(*sorted(set(sys.modules) - before))"
    found = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).split()
    foreign = {name.split(".")[0] for name in found} - set(sys.stdlib_module_names) - {"rawkern"}
    assert not foreign
    assert {name for name in found if name.startswith("rawkern")} == {
        "rawkern",
        "rawkern._version",
        "rawkern.testing",
        NAME,
    }
    assert rawkern.__name__ in found


FAILING = """
import pytest
import torch

import rawkern

kernel = rawkern.RawKernel('extern "C" __global__ void k(float* x) { x[0] = 1; }')


def test_grid():
    kernel[0, 1](torch.ones(1))


def test_module():
    rawkern.nn.LayerNorm(4)(torch.ones(3))
"""


def test_frames_of_rawkern_are_hidden(pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(FAILING)
    for full in ("", "1"):
        monkeypatch.setenv("RAWKERN_FULL_TRACEBACK", full)
        out = str(run(pytester, "--tb=short").stdout)
        assert "grid.x is 0" in out and "E   ValueError: layer_norm: normalized_shape is" in out
        shown = [line for line in out.splitlines() if re.match(r"\S*rawkern/\S+\.py:\d+: in ", line)]
        assert bool(shown) == bool(full), shown


SLOW = """
import os
import subprocess
import sys
import rawkern
import torch

def test_endless():
    rawkern.RawKernel('extern "C" __global__ void spin(int* x) { while (*(volatile int*)x == 0) { } }')[1, 32](
        torch.zeros(1, dtype=torch.int32))

def test_other_programs():
    assert os.environ["RAWKERN_TIME_LIMIT"] == "0.1"
"""


def test_time_limit(pytester) -> None:
    pytester.makepyfile(SLOW)
    result = run(pytester, "--rawkern-time-limit=0.1")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["rawkern: launches may take 0.1 s", "*LaunchTimeoutError: spin: the launch takes longer than 0.1 s *"]
    )
    assert "RAWKERN_TIME_LIMIT" not in os.environ and limits.time.depth == 1
    result = run(pytester, "--rawkern-time-limit=soon")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--rawkern-time-limit is 'soon'; a time limit is a number of seconds*"])
