"""Each example runs in a process of its own, and says what it should."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

import rawkern
from tests import forked

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
TESTED = [
    "square",
    "edit_and_rerun",
    "saxpy",
    "shared_memory",
    "elementwise_mult",
    "cupy_interop",
    "nbody",
    "train",
    "train_ddp",
    "train_derived",
    "autotune",
    "kernelbench",
    "hopper_gemm",
]


TIMEOUT = 240  # seconds


def environment() -> dict[str, str]:
    package = str(Path(rawkern.__file__).resolve().parent.parent)
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))}


def python(*arguments: str, **variables: str) -> str:
    """Run a program, with more environment variables, and return what it printed; a warning or an error is a failure."""
    done = subprocess.run(
        [*forked.python(), *arguments], env=environment() | variables, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def run(name: str, device: str, *options: str) -> str:
    """The same for an example, or another program by its path."""
    return python(str(EXAMPLES / f"{name}.py"), "--device", device, *options)


def test_every_example_has_a_test() -> None:
    assert sorted(TESTED) == sorted(file.stem for file in EXAMPLES.glob("*.py"))


def test_square(device: str) -> None:
    output = run("square", device)
    assert f"square of 1,000,000 floats on {device}: value and gradient agree with torch" in output
    losses = [float(loss) for loss in re.findall(r"loss +([\d.]+)", output)]
    assert len(losses) == 5 and losses == sorted(losses, reverse=True)
    assert losses[0] > 100 and losses[-1] < 0.05
    assert "center (3.00, -1.00), radius 2.00" in output


def test_edit_and_rerun(device: str) -> None:
    output = run("edit_and_rerun", device)
    assert re.search(r"^x \+ 1 +\[1\.0, 2\.0, 3\.0, 4\.0\]$", output, re.M)
    assert re.search(r"^edited to FACTOR \* x +\[0\.0, 2\.0, 4\.0, 6\.0\]", output, re.M)
    assert re.search(r"^header: FACTOR is 10 +\[0\.0, 10\.0, 20\.0, 30\.0\]", output, re.M)
    assert re.search(r'f\.cu:6:\d+: in \w+: identifier "z" is undefined', output)
    assert re.search(r"^fixed: x \* x \* x +\[0\.0, 1\.0, 8\.0, 27\.0\]", output, re.M)
    seconds = [float(s) for s in re.findall(r"([\d.]+) s from edit to result", output)]
    assert len(seconds) == 3 and all(0.1 <= s < 5 for s in seconds)


def test_saxpy(device: str) -> None:
    output = run("saxpy", device)
    assert f"void saxpy(int n, float a, const float *x, float *y)   on {device}" in output
    assert output.count("agrees with torch") == 4
    assert "rejected: saxpy: argument 3 'x' is float64, the kernel reads const float*; pass x.float()" in output


def test_autotune(device: str) -> None:
    output = run("autotune", device, "--size", "96", "--retune")
    table = re.findall(r"^([* ]) TILE=\d+ EACH=\d +(\d+\.\d) us$", output, re.M)
    assert len(table) == 5 and [star for star, _ in table] == ["*", " ", " ", " ", " "]
    assert float(table[0][1]) == min(float(time) for _, time in table)
    assert "agrees with torch" in output and "with this configuration given" in output


def test_shared_memory(device: str) -> None:
    output = run("shared_memory", device)
    assert f"square through 512 bytes of static shared memory a block: agrees with torch on {device}" in output
    sums = re.search(r"over 391 blocks: ([\d.]+), torch in float64: ([\d.]+)", output)
    assert sums and float(sums[1]) == pytest.approx(float(sums[2]), rel=1e-5)


def test_elementwise_mult(device: str) -> None:
    output = run("elementwise_mult", device)
    assert f"agree with torch on {device}" in output
    assert "gradcheck in float64" in output


def test_cupy_interop(device: str) -> None:
    output = run("cupy_interop", device)
    assert f"from_torch: {'numpy' if device == 'cpu' else 'cupy'}.ndarray (2, 3)" in output
    assert ("torch to NumPy" if device == "cpu" else "torch to CuPy and back") in output
    assert "[[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]]" in output
    assert "[[100.0, 400.0, 900.0], [1600.0, 2500.0, 3600.0]]" in output
    assert "data pointers unchanged" in output


def test_nbody(device: str, tmp_path: Path) -> None:
    """A table with a row for each size, and plots where matplotlib is installed."""
    output = run("nbody", device, "--sizes", "33", "100", "--rivals", "eager", "--images", str(tmp_path))
    error = re.search(rf"1,000 planets on {device}: relative error (\S+) against torch in float64", output)
    assert error and float(error[1]) < 1e-5
    times = re.findall(r"^ +(33|100) +([\d.]+) +([\d.]+) +\(([\d.]+)x\)$", output, re.M)
    assert [n for n, *_ in times] == ["33", "100"] and all(float(t) > 0 for _, *ts in times for t in ts)
    plots = sorted(file.name for file in tmp_path.glob("*.png"))
    assert plots == (
        [] if "no plots: matplotlib is not installed" in output else ["nbody_forces.png", "nbody_times.png"]
    )


def test_nbody_without_matplotlib_memory_and_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is said, and the rest runs."""
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    program = f"""
import argparse, pathlib, sys
from torch._inductor import config
config.cpp.cxx, config.cpp.vec_isa_ok = (None, "no-such-compiler"), None  # instruction sets are tried, as for users
sys.path.insert(0, {str(EXAMPLES)!r})
import nbody
nbody.free_memory = lambda device: 100_000
images = pathlib.Path({str(tmp_path)!r})
nbody.main(argparse.Namespace(device="cpu", sizes=[90], rivals=["eager", "compile"], images=images))
"""
    output = python("-c", program)
    assert "no plots: matplotlib is not installed" in output and not list(tmp_path.glob("*.png"))
    assert re.search(r"^ +90 +[\d.]+ +- +-$", output, re.M)
    assert "torch eager at N = 90: needs about 0.00023 GB, 0.0001 GB are free" in output
    assert re.search(r"^torch.compile at N = 90: \w+: .*compiler", output, re.M)


def test_train(device: str, tmp_path: Path) -> None:
    """A few steps lower the loss, the same way with rawkern's operators and with torch's."""
    file = tmp_path / "curves" / "training.png"
    options = ("--steps", "8", "--batch", "4", "--plot", str(file))
    # Two simultaneous runs of the tests have two cores; OpenMP's threads would wait for each other.
    output = python(str(EXAMPLES / "train.py"), "--device", device, *options, OMP_NUM_THREADS="1")
    losses = re.findall(r"^(?:rawkern|torch) +loss ([\d.]+) -> ([\d.]+), [\d.]+ ms a step$", output, re.M)
    assert len(losses) == 2
    for first, last in losses:  # at first about that of a guess, log(69 characters)
        assert float(first) == pytest.approx(4.23, abs=0.3) and float(last) < float(first) - 0.5
    apart = re.search(r"the curves are at most ([\d.e+-]+) apart", output)
    assert apart and float(apart[1]) < 1e-4
    if f"plot: {file}" in output:
        assert file.read_bytes().startswith(b"\x89PNG")
    else:
        assert "no plot: matplotlib is not installed" in output and not file.exists()
    assert len(output.partition("ROSALIND\t")[2]) > 150


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.multigpu)])
def test_train_ddp(device: str) -> None:
    """Two processes have the gradients of one, with replicated parameters and with sharded ones."""
    if not torch.distributed.is_available():
        pytest.skip("this torch is built without torch.distributed")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")
    launch += (*forked.python(), str(EXAMPLES / "train_ddp.py"))
    ends = []
    for options, way in (((), "DistributedDataParallel"), (("--fsdp",), "FSDP2")):
        arguments = (*launch, "--device", device, "--steps", "2", "--batch", "4", *options)
        try:
            output = python(*arguments, OMP_NUM_THREADS="1")
        except AssertionError as error:  # rarely: a thread of gloo's lets go of a tensor while the interpreter ends
            if "terminate called without an active exception" not in str(error):
                raise
            output = python(*arguments, OMP_NUM_THREADS="1")
        assert f"{way} on 2 x {device} through {'gloo' if device == 'cpu' else 'nccl'}" in output
        assert "gradients equal those of a single process" in output
        losses = re.search(r"^loss ([\d.]+) -> ([\d.]+)$", output, re.M)
        assert losses and float(losses[2]) < float(losses[1])
        ends.append(float(losses[2]))
    assert ends[0] == pytest.approx(ends[1], abs=2e-4)  # the optimizer's step is the same on shards


def test_kernelbench(device: str) -> None:
    """The right candidate is right; the others are named for what they do."""
    verdicts = json.loads(run("kernelbench", device, "--json"))
    assert {name: v["ok"] for name, v in verdicts.items()} == {
        "kept_results.py": False, "one_kernel.py": True, "torch_alone.py": False,
    }  # fmt: skip
    named = {name: [each["kind"] for each in v["tampering"]] for name, v in verdicts.items()}
    assert named["kept_results.py"] == ["cached output"] and named["torch_alone.py"] == ["unused launches"]
    assert verdicts["one_kernel.py"]["launches"] == {"linear_relu": 1}


def test_readme(device: str, tmp_path: Path) -> None:
    """The code of the first screen and each form of launch run as they stand, on either device."""
    first, _, launches = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[:3]
    assert len(first.splitlines()) <= 15
    code = first.replace("requires_grad=True", f"requires_grad=True, device={device!r}")
    check = """
torch.testing.assert_close(x.grad, 2 * x.detach())
torch.testing.assert_close(y, 2 * x.detach())
blocks = (n + 255) // 256
"""
    (tmp_path / "readme.py").write_text(code + check + launches)
    assert "void saxpy(int n, float a, const float *x, float *y)" in run(str(tmp_path / "readme"), device)


def test_train_derived(device: str) -> None:
    output = run("train_derived", device, "--steps", "10")
    assert re.search(r"step +9: loss [\d.]+; never further than \d\.\de-\d+ from torch's", output)


def test_hopper_gemm(device: str) -> None:
    if device == "cuda" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("this GPU has no wgmma")
    size = "2048" if device == "cuda" else "256"
    assert "agrees with torch" in run("hopper_gemm", device, "--size", size)
