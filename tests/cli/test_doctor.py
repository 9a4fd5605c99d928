"""`rawkern doctor` on a machine that has everything, and on broken ones."""

from __future__ import annotations

import json
import os
import signal
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import rawkern as package
from rawkern.base import pip
from rawkern.cli import examine, main
from rawkern.cli import probe as engine_probe
from rawkern.cli.driver import Driver, Gpu, driver
from rawkern.cli.probe import probe
from rawkern.compile import toolchain
from tests import forked
from tests.cli.command import ROOT, rawkern

NO_DRIVER = Driver("", (0, 0), (), "no NVIDIA driver: the system has no libcuda.so.1")
HOPPER = Gpu("NVIDIA H100", (9, 0), 85 * 10**9, 132)


def _by_part(shown: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["part"]: finding for finding in shown["findings"]}


def test_all_is_well_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    found = _by_part(shown)
    assert shown["ok"] is True and shown["rawkern"] == package.__version__
    assert {finding["state"] for finding in shown["findings"]} <= {"ok", "note"}
    assert found["torch"]["version"] == sys.modules["torch"].__version__
    assert found["nvrtc"]["version"].split(".")[0] == str(toolchain.toolchain().version[0])
    assert 90 in found["nvrtc"]["architectures"]
    assert found["cache"]["directory"] == os.environ["RAWKERN_CACHE_DIR"] and found["cache"]["writable"] is True
    assert 0 < found["cpu engine"]["launch"] < found["cpu engine"]["first"]
    headers = {f["header"]: f["path"] for f in shown["findings"] if f["part"] == "headers" and f["state"] == "ok"}
    assert Path(headers["cuda_fp16.h"]).is_file()


def test_environment_variables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RAWKERN_CHEKC", "full")
    monkeypatch.setenv("RAWKERN_ARCH", "h100")
    monkeypatch.setattr(engine_probe, "PYTHON", forked.python())
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "RAWKERN_CHEKC is set, which rawkern does not read; did you mean 'RAWKERN_CHECK'?" in out
    assert "cpu engine: remove RAWKERN_ARCH from the environment, or set it to a valid value" in out


@pytest.mark.gpu
def test_gpu_is_seen_and_its_engine_runs(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    assert main(["doctor", "--json"]) == 0
    found = _by_part(json.loads(capsys.readouterr().out))
    properties = torch.cuda.get_device_properties(0)
    assert found["cuda:0"]["name"] == properties.name
    assert found["cuda:0"]["capability"] == f"{properties.major}.{properties.minor}"
    assert found["cuda:0"]["multiprocessors"] == properties.multi_processor_count
    assert found["driver"]["release"] and int(found["driver"]["cuda"].split(".")[0]) >= 12
    assert 0 < found["cuda:0 engine"]["launch"] < found["cuda:0 engine"]["first"]


def test_an_interpreter_without_any_library() -> None:
    done = rawkern("doctor", python=("-S",))  # no site-packages
    assert done.returncode == 1 and done.stderr == ""
    for line in ("torch             not installed; needed for tensors", "llvmlite          not installed; needed for kernels on the",
                 "note   cupy              not installed; needed for kernels on a GPU",
                 "nvrtc             MissingDependencyError: compiling CUDA",
                 'torch: pip install "torch>=2.10"', 'llvmlite: pip install "llvmlite>=0.50,<0.51"',
                 f'nvrtc: {pip.command("cpu")}'):  # fmt: skip
        assert line in done.stdout
    assert "\x1b" not in done.stdout and "\r" not in done.stdout


# A stand-in for a wheel that is there and does not load, in front of the real one.
BROKEN = {
    "torch": ("torch.py", "raise OSError('libtorch_cpu.so: cannot open shared object file')"),
    "llvmlite": ("llvmlite/__init__.py", "raise ImportError('libLLVM.so')"),
    "cupy": ("cupy/__init__.py", "raise ImportError('CuPy is not correctly installed')"),
}


@pytest.mark.parametrize("module", BROKEN)
def test_a_library_that_does_not_load(module: str, tmp_path: Path) -> None:
    file, text = BROKEN[module]
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    places = {"PYTHONPATH": str(tmp_path), "RAWKERN_CACHE_DIR": str(tmp_path / "cache")}
    done = rawkern("doctor", "--json", new=module == "torch", **places)
    shown = json.loads(done.stdout)
    found = _by_part(shown)
    assert "is installed but cannot be imported" in found[module]["text"] and done.stderr == ""
    assert found[module]["fix"].startswith("pip install ")
    faults = {part for part, finding in found.items() if finding["state"] == "fault"}
    if module == "cupy" and not driver().gpus:  # only a GPU needs it
        assert (done.returncode, shown["ok"], found[module]["state"], faults) == (0, True, "note", set())
        return
    assert (done.returncode, shown["ok"]) == (1, False)
    if module != "cupy":
        assert faults == {module, "cpu engine"}
        assert {"torch": "libtorch_cpu", "llvmlite": "llvmlite"}[module] in found["cpu engine"]["text"]


def test_no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_libraries", lambda: ["libnvrtc.so.0"])
    toolchain.nvrtc.cache_clear()
    try:
        (finding,) = examine.toolchain(NO_DRIVER)
    finally:
        toolchain.nvrtc.cache_clear()
    assert finding.state == "fault" and "compiling CUDA needs NVIDIA's NVRTC, which is not installed" in finding.text
    assert finding.fix == pip.command("cpu")


def test_missing_headers_and_their_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cuda_fp16.h").write_text("")
    known = toolchain.Toolchain((13, 0), "/lib/libnvrtc.so.13", (str(tmp_path),), ())
    monkeypatch.setattr(toolchain, "toolchain", lambda: known)
    found = examine.toolchain(NO_DRIVER)
    assert [f.state for f in found] == ["ok", "ok", "note", "note", "note", "note", "note"]
    assert found[1].details["path"] == str(tmp_path / "cuda_fp16.h")
    assert {f.fix for f in found[2:-1]} == {pip.command("cpu")} and found[-1].fix == pip.command("curand")
    (tmp_path / "cuda_fp16.h").unlink()
    assert examine.toolchain(NO_DRIVER)[1].state == "fault"
    (nvrtc, *_) = examine.toolchain(Driver("570.1", (12, 8), (HOPPER,)))
    assert (
        nvrtc.state == "fault"
        and "this driver supports CUDA only up to 12.8 and cannot load its machine code" in nvrtc.text
    )


@pytest.mark.parametrize(
    ("driver", "states", "words"),
    [
        (NO_DRIVER, ["note"], "no libcuda.so.1; kernels run on the CPU"),
        (Driver("580.1", (13, 0), (), "the driver finds no GPU"), ["note"], "the driver finds no GPU"),
        (
            Driver("", (13, 0), (), "the driver does not start: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
            ["fault"],
            "MISMATCH",
        ),
    ],
)
def test_drivers_without_gpus(driver: Driver, states: list[str], words: str) -> None:
    found = examine.driver_and_gpus(driver)
    assert [finding.state for finding in found] == states and words in found[0].text


class Torch:
    class version:
        cuda: str | None = "13.0"


class Cupy:
    class cuda:
        @staticmethod
        def get_local_runtime_version() -> int:
            return 13000


@pytest.mark.parametrize(
    ("cuda", "built", "faults"),
    [
        ((13, 0), "13.0", []),
        ((13, 1), "12.8", []),
        (
            (12, 8),
            "13.0",
            [f"built for CUDA {made}; the driver supports CUDA only up to 12.8" for made in ("13.0", "13")],
        ),
        ((12, 8), "12.8", ["built for CUDA 13; the driver supports CUDA only up to 12.8"]),
        ((13, 0), None, ["built without CUDA, though there is a GPU"]),
    ],
)
def test_libraries_that_do_not_fit_the_driver(
    cuda: tuple[int, int], built: str | None, faults: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch)
    monkeypatch.setitem(sys.modules, "cupy", Cupy)
    monkeypatch.setattr(Torch.version, "cuda", built)
    driver = Driver("570.1", cuda, (HOPPER,))
    found = examine.driver_and_gpus(driver)
    assert [f.text for f in found if f.state == "fault"] == faults
    assert found[-1].part == "cuda:0" and "NVIDIA H100, compute capability 9.0, 85.0 GB, 132 " in found[-1].text
    assert examine.extra(driver) == ("cuda12" if (built or f"{cuda[0]}").startswith("12") else "cuda13")
    if cuda == (12, 8):
        mends = [f.fix for f in found if f.part == "cupy"]
        assert mends == [f"install a newer driver, or: pip uninstall cupy-cuda13x; {pip.command('cuda12')}"]


def test_versions_are_compared_as_numbers() -> None:
    fits = examine._fits
    assert fits("2.10.0+cu130", "torch>=2.10") and fits("2.13", "torch>=2.10") and not fits("2.9.1", "torch>=2.10")
    assert fits("0.50.1", "llvmlite>=0.50,<0.51") and not fits("0.51.0", "llvmlite>=0.50,<0.51")
    assert fits("2.0.0rc1", "numpy>=2") and not fits("1.26.4", "numpy>=2")


def test_a_library_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llvmlite.__version__", "0.43.0")
    found = {finding.part: finding for finding in examine.libraries(NO_DRIVER)}
    assert found["llvmlite"].state == "fault" and found["llvmlite"].text == "0.43.0, rawkern needs llvmlite>=0.50,<0.51"
    assert found["llvmlite"].fix == 'pip install "llvmlite>=0.50,<0.51"'


def test_requirements_are_those_of_the_project() -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    assert {requirement for _, requirement, _ in examine.LIBRARIES} == set(project["dependencies"])
    assert project["requires-python"] == ">=" + ".".join(map(str, examine._PYTHON))


def test_cache_that_others_can_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("RAWKERN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        examine, "engine", lambda device: examine.Finding("cpu engine", "ok", os.environ["RAWKERN_CACHE_DIR"])
    )
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert f"others can write to the cache directory {tmp_path} (mode 0777)" in out
    assert "1 fault. To fix:\n  cache: chmod go-w it, or set RAWKERN_CACHE_DIR" in out
    assert "rawkern-doctor-" in out  # the engines were examined all the same, with another cache
    assert os.environ["RAWKERN_CACHE_DIR"] == str(tmp_path)


def test_cache_that_takes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWKERN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    (tmp_path / "file").write_text("")  # a file where a folder has to be: no directory can be made, even by root
    (finding,) = examine.cache()
    assert (finding.state, finding.details["writable"]) == ("note", False)
    assert "is not writable: each process compiles again" in finding.text and "RAWKERN_CACHE_DIR" in finding.fix


def test_an_engine_that_crashes_or_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    module = engine_probe
    monkeypatch.setattr(module, "_CHILD", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert probe("cpu") == {"error": "the process died of SIGILL"}
    monkeypatch.setattr(module, "_CHILD", "raise SystemError('out of luck')")
    assert probe("cpu") == {"error": "the process ended with 1: SystemError: out of luck"}
    monkeypatch.setattr(module, "_CHILD", "import time; time.sleep(60)")
    monkeypatch.setattr(module, "_PATIENCE", 0.2)
    assert probe("cpu") == {"error": "not done after 0 s"}
    monkeypatch.setattr(module, "_SOURCE", module._SOURCE.replace("+ y[i]", "- y[i]"))
    with pytest.raises(ArithmeticError, match="1000 of 1000 elements are wrong"):
        module._run("cpu")


def test_an_engine_that_raises_is_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    engine_probe.main("meta")
    answer = json.loads(capsys.readouterr().out.removeprefix(engine_probe._ANSWER))
    assert answer["error"]


def test_ctrl_c_while_a_library_is_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("""
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt:  # as CuPy does
    raise ImportError("torch is not correctly installed")
""")
    done = rawkern("doctor", new=True, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
