"""`rawkern run`: arguments, launches, what it shows, and its exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from rawkern.cli import main
from rawkern.launch import level
from tests.cli.command import rawkern

SOURCE = """\
#include <cstdio>
extern "C" __global__ void saxpy(int n, float a, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" __global__ void off_by_one(int n, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) out[i] = i;
}
extern "C" __global__ void shifted(int by, float* x) { x[(int)threadIdx.x + by] += 1; }
struct Rest { int* inner; };
struct Scaled { float factor; const float* in; Rest rest; };
extern "C" __global__ void scaled(Scaled s, float* out) { out[threadIdx.x] = s.factor * s.in[threadIdx.x]; }
extern "C" __global__ void shout(int n) { printf("thread %d of %d\\n", threadIdx.x, n); }
extern "C" __global__ void long_one(int n, float* x) {
    for (int i = 0; i < n; i++) x[0] = x[0] * 0.5f + i;
}
template <class T, int N> __global__ void fill(T* out, T value) { out[blockIdx.x * N + threadIdx.x] = value; }
struct Box { float low, high; };
extern "C" __global__ void clamp(Box box, float2 shift, float* x, bool really) {
    if (really) x[threadIdx.x] = fminf(fmaxf(x[threadIdx.x], box.low), box.high) + shift.x - shift.y;
}
extern "C" __global__ void gather(float* const* parts, int count, float* out) {
    for (int i = 0; i < count; i++) out[i] = parts[i][threadIdx.x];
}
extern "C" __global__ void tile(int* out) {
    extern __shared__ int s[];
    s[threadIdx.x] = threadIdx.x + 100 * threadIdx.y + 1000 * blockIdx.y;
    __syncthreads();
    if (!threadIdx.y) out[blockIdx.y * blockDim.x + threadIdx.x] = s[threadIdx.x];
}
extern "C" __global__ void raw(void* p, int* missing) { if (!missing) ((float*)p)[threadIdx.x] = 1.5f; }
extern "C" __global__ void add_scale(float* x) { x[threadIdx.x] += SCALE; }
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "kernels.cu"
    path.write_text(SOURCE)
    return path


def run(file: Path, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["run", str(file), "-DSCALE=2", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err and "\r" not in out + err
    return status, out, err


def tensors(file: Path, capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, dict]:
    status, out, err = run(file, capsys, "--json", *arguments)
    assert (status, err) == (0, "")
    return {tensor["name"]: tensor for tensor in json.loads(out)["tensors"]}


def test_what_it_prints(file: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(file, capsys, "saxpy", "x=full(n, 3)", "n=1000", "a=-0.5", "y=arange(n)", "--forall", "n", "--device", device)  # fmt: skip
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[0] == "void saxpy(int n, float a, const float *x, float *y)"
    assert lines[1].startswith(f"forall(1000) on {device}") and lines[2] == "n = 1000, a = -0.5"
    assert lines[4].split() == ["dtype", "shape", "changed", "min", "max", "mean", "NaN", "first"]
    assert lines[5].split() == ["x", "float32", "1000", "no", "3", "3", "3", "0", "3", "3", "3", "3", "..."]
    assert lines[6].split() == ["y", "float32", "1000", *["1000", "of", "1000"], "-1.5", "997.5", "498", "0",
                                "-1.5", "-0.5", "0.5", "1.5", "..."]  # fmt: skip
    assert lines[8].startswith("first launch: ") and len(lines) == 9


def test_arguments_by_position_and_name(file: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = tensors(file, capsys, "saxpy", 5, "2", "y=full(8,0.25)", "ones(8)", "--grid", 1, "--block", 8,
                    "--device", device)  # fmt: skip
    assert found["x"]["changed"] == 0
    assert (found["y"]["changed"], found["y"]["high"], found["y"]["low"]) == (5, 2.25, 0.25)


def test_options_may_stand_anywhere(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ("saxpy", "--forall", "n", "n=5", "2", "--seed", 3, "x=full(8, -1)", "ones(8)"),
        ("--forall", "n", "saxpy", 5, "2", "full(8, -1)", "--block", 32, "ones(8)"),
        ("saxpy", 5, 2, "full(8, -1)", "ones(8)", "--forall", "n"),
    ):
        assert tensors(file, capsys, *words)["y"]["first"] == [-1] * 4
    for words in (
        (5, "-2.5", "ones(8)", "zeros(8)", "--forall", 5), (5, "--forall", 5, "-2.5", "ones(8)", "zeros(8)"),
        ("--forall", 5, "--", 5, "-2.5", "ones(8)", "zeros(8)"),
    ):  # fmt: skip
        assert tensors(file, capsys, "saxpy", *words)["y"]["low"] == -2.5
    with pytest.raises(SystemExit):
        main(["run", str(file), "saxpy", "--forall", "5", "5", "--nothing"])


def test_what_is_not_written_shows(file: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = tensors(file, capsys, "fill<float, 4>", "empty(10)", "2.5", "--grid", 2, "--block", 4, "--device", device)
    assert (found["out"]["changed"], found["out"]["nans"], found["out"]["mean"]) == (8, 2, 2.5)
    assert found["out"]["first"] == [2.5] * 4


def test_template_instances_take_their_own_dtype(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for spelled, dtype in (("double", "float64"), ("unsigned char", "uint8"), ("long long", "int64")):
        found = tensors(file, capsys, f"fill<{spelled}, 4>", "empty(4)", "7", "--grid", 1, "--block", 4)
        assert (found["out"]["dtype"], found["out"]["first"]) == (dtype, [7] * 4)


def test_structs_vectors_bools_lists_void_and_null(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    block = ("--grid", 1, "--block", 4)
    found = tensors(file, capsys, "clamp", "{'low': -1, 'high': 1}", "(10, 2)", "arange(-2, 2)", "True", *block)
    assert found["x"]["first"] == [7, 7, 8, 9]
    found = tensors(file, capsys, "gather", "[zeros(4), full(4, 2)]", 2, "empty(2)", "--grid", 1, "--block", 1)
    assert found["out"]["first"] == [0, 2] and found["parts[1]"]["high"] == 2
    found = tensors(file, capsys, "raw", "zeros(4, dtype=float32)", "None", *block)
    assert found["p"]["first"] == [1.5] * 4 and set(found) == {"p"}


def test_grids_blocks_and_shared_memory(file: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = tensors(file, capsys, "tile", "empty(2 * 8)", "--grid", "(1, 2)", "--block", "8,1", "--shared", "8 * 4", "--device", device)  # fmt: skip
    assert (found["out"]["changed"], found["out"]["low"], found["out"]["high"]) == (16, 0, 1007)
    found = tensors(file, capsys, "saxpy", "n=300", 1.0, "ones(n)", "zeros(n)", "--grid", "(n + 255) // 256", "--block",
                    "64 * 4", "--device", device)  # fmt: skip
    assert found["y"]["changed"] == 300
    assert (
        tensors(file, capsys, "saxpy", 10, 1.0, "ones(10)", "zeros(10)", "--forall", 10, "--block", 32)["y"]["changed"]
        == 10
    )


def test_macros_and_seed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def firsts(*more: object) -> list[float]:
        return tensors(file, capsys, "add_scale", "randn(4)", "--grid", 1, "--block", 4, *more)["x"]["first"]

    assert firsts() == firsts("--seed", 0) != firsts("--seed", 1)
    assert np.allclose(np.subtract(firsts("-DSCALE=5"), firsts()), 3)


def test_check_shows_the_findings(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("off_by_one", "n=100", "empty(n)", "--grid", 1, "--block", 128, "--check")
    status, out, err = run(file, capsys, *arguments)
    assert status == 1 and "checks: 1 finding" in out
    assert err.startswith(f"{file}:8: thread (100,0,0) of block (0,0,0) writes out[100]; out has 100 elements")
    assert "if (i <= n) out[i] = i;" in err
    status, out, _ = run(file, capsys, *arguments, "--json")
    (finding,) = json.loads(out)["findings"]
    assert status == 1 and (finding["error"], finding["line"]) == ("OutOfBoundsError", 8)
    status, out, err = run(file, capsys, "off_by_one", 100, "empty(101)", "--grid", 1, "--block", 128, "--check")
    assert (status, err) == (0, "") and "checks: nothing found" in out


def test_check_and_the_launch_itself(file: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = tensors(file, capsys, "saxpy", 5, 1.0, "ones(5)", "zeros(5)", "--forall", 5, "--check", "--device", device)
    assert (found["y"]["changed"], found["y"]["mean"]) == (5, 1.0)


def test_time_leaves_the_result_of_one_launch(file: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(file, capsys, "saxpy", 1000, 1.0, "ones(1000)", "zeros(1000)", "--forall", 1000, "--time", 30,
                         "--json", "--device", device)  # fmt: skip
    shown = json.loads(out)
    assert status == 0 and shown["tensors"][1]["high"] == 1.0
    assert 0 < shown["seconds"]["median"] < 1 and shown["seconds"]["repeats"] == 30
    assert "; the median of 5: " in run(file, capsys, "add_scale", "ones(4)", "--grid", 1, "--block", 4, "--time", 5)[1]


def test_the_median_is_of_as_many_launches_as_there_were(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(file, capsys, "long_one", "10**8", "ones(1)", "--grid", 1, "--block", 1, "--time", 1000,
                         "--json", "--device", "cpu")  # fmt: skip
    assert status == 0 and 3 <= json.loads(out)["seconds"]["repeats"] < 1000


def test_numbers_may_be_named_before_they_are_given(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tensors(file, capsys, "saxpy", "n=int(a * 2)", "a=2.5", "ones(n)", "zeros(n)", "--forall", "n")
    assert found["y"]["shape"] == [5] and found["y"]["low"] == 2.5


def test_tensors_in_structs(file: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("scaled", "s={'factor': 0.5, 'in': tensor([1, 2, -3.5]), 'rest': {'inner': None}}", "empty(3)",
                 "--grid", 1, "--block", 3, "--device", device)  # fmt: skip
    found = tensors(file, capsys, *arguments)
    assert (found["s.in"]["dtype"], found["s.in"]["changed"]) == ("float32", 0)
    assert found["out"]["first"] == [0.5, 1, -1.75]
    assert "\ns = {'factor': 0.5, 'rest': {'inner': None}}\n" in run(file, capsys, *arguments)[1]


def test_json_is_strict(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def rejects(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    assert main(["run", str(file), "-DSCALE=2", "add_scale", "tensor([nan, inf, -inf, 1])", "--grid", "1", "--block", "4", "--json"]) == 0  # fmt: skip
    (x,) = json.loads(capfd.readouterr().out, parse_constant=rejects)["tensors"]
    assert x["first"] == ["nan", "inf", "-inf", 3] and (x["low"], x["high"], x["nans"]) == ("-inf", "inf", 1)


def test_json_alone_is_on_stdout(file: Path, device: str, capfd: pytest.CaptureFixture[str]) -> None:
    if device != "cpu":
        pytest.skip("shout has no tensor that selects the CPU")
    assert main(["run", str(file), "-DSCALE=2", "shout", "7", "--grid", "1", "--block", "2", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["kernel"] == "shout" and err.endswith("thread 0 of 7\nthread 1 of 7\n")


@pytest.mark.parametrize(("by", "index"), [(5, 10), (-3, -1), (1000, 1000)])
def test_writes_outside_of_a_tensor_are_found(
    by: int, index: int, file: Path, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a GPU, and on the CPU where launches are not kept inside their memory."""
    arguments = ("shifted", f"by={by}", "zeros(10)", "--grid", 1, "--block", 10, "--device", device)
    with level.scoped(level.OFF):
        _finds_writes(file, capsys, arguments, index)
    if device == "cpu":
        status, _, err = run(file, capsys, *arguments)
        first = by if by < 0 else max(by, 10)
        assert status == 1 and f"reads x[{first}]; x has 10 elements" in err


def _finds_writes(file: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], index: int) -> None:
    status, out, err = run(file, capsys, *arguments, "--time")
    assert status == 1 and "first launch:" in out and "median" not in out
    assert err == f"shifted writes x[{index}]; x has 10 elements; --check shows where\n"
    (finding,) = json.loads(run(file, capsys, *arguments, "--json")[1])["findings"]
    assert (finding["error"], finding["line"]) == ("OutOfBoundsError", None)
    assert run(file, capsys, "shifted", "by=0", *arguments[2:])[::2] == (0, "")


def test_a_kernel_that_kills_its_process_is_told(file: Path) -> None:
    done = rawkern("run", str(file), "-DSCALE=2", "add_scale", "None", "--grid", "1", "--block", "4",
                   python=("-u",), CUDA_VISIBLE_DEVICES="", RAWKERN_CHECK="off")  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "rawkern: add_scale ended its process (SIGSEGV): it accessed memory out of bounds; --check shows where\n"
    )


@pytest.mark.parametrize("option", ["--time=0", "--time=-5", "--time=many", "--seed=-1", "--seed=99999999999999999999"])
def test_numbers_that_mean_nothing_are_a_wrong_command_line(
    option: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", str(file), "add_scale", "ones(4)", option])
    assert stopped.value.code == 2 and f"argument {option.partition('=')[0]}: " in capsys.readouterr().err


def test_save_and_load(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "in.npy", np.arange(6, dtype=np.float32))
    folder = tmp_path / "results"
    found = tensors(file, capsys, "add_scale", f"@{tmp_path}/in.npy", "--grid", 1, "--block", 6, "--save", folder)
    assert found["x"]["first"] == [2, 3, 4, 5]
    assert np.array_equal(np.load(folder / "x.npy"), np.arange(2, 8, dtype=np.float32))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["saxpy", "1", "--forall", "1"], "no value for a, x, y; the kernel is void saxpy(int n, float a, const float *x"),
        (["saxpy", "1", "1", "ones(1)", "ones(1)", "5", "--forall", "1"], "'5' is one argument too many for the kernel void"),
        (["saxpy", "z=1", "--forall", "1"], "no parameter is named 'z'; the kernel is void saxpy(int n"),
        (["saxpy", "n=1", "n=2", "--forall", "1"], "'n' is given twice: '1' and '2'"),
        (["saxpy", "1", "1", "ones(1)", "sin(1)", "--forall", "1"], "argument y (float *y): unknown function sin() in 'sin(1)'"),
        (["saxpy", "1.5", "1", "ones(1)", "ones(1)", "--forall", "1"], "argument 1 'n' is the float 1.5, the kernel takes int"),
        (["saxpy", "1", "1", "3", "ones(1)", "--forall", "1"], "argument 3 'x' is "),
        (["saxpy", "1", "1", "ones(1)", "ones(1)"], "pass the number of threads to launch: --grid and --block, or --forall N"),
        (["saxpy", "1", "1", "ones(1)", "ones(1)", "--grid", "4"], "pass the number of threads to launch"),
        (["saxpy", "1", "1", "ones(1)", "ones(1)", "--grid", "4", "--forall", "4"], "--forall cannot be combined with --grid"),
        (["saxpy", "1", "1", "ones(1)", "ones(1)", "--grid", "0", "--block", "32"], "grid.x is 0, it must be positive"),
        (["saxpy", "1", "1", "ones(1)", "ones(1)", "--grid", "1.5", "--block", "32"], "grid is an int or a tuple"),
        (["saxpy", "1", "1", "ones(1)", "ones(1)", "--grid", "m", "--block", "32"], "unknown name m in 'm'; choose from"),
        (["missing", "--forall", "1"], "there is no kernel 'missing'"),
        (["fill", "--forall", "1"], "'fill' is a template, fill<class T, int N>; name an instance of it"),
        (["saxpy", "--device", "tpu"], "--device tpu: choose cpu, cuda"),
        (["saxpy", "a=n", "n=a", "ones(1)", "ones(1)", "--forall", "1"], "n=a, a=n: they depend on each other"),
        (["saxpy", "n=n", "1", "ones(1)", "ones(1)", "--forall", "1"], "n=n: they depend on each other"),
        (["saxpy", "1", "1", "ones(1)", "ones(1)", "--forall", "1", "--save", __file__], "test_run.py"),
        (["saxpy", "--device", "meta"], "rawkern runs on cpu and cuda, not on meta"),
        (["saxpy", "--device", "cuda:99"], "device cuda:99 does not exist: torch finds"),
    ],
)  # fmt: skip
def test_what_cannot_be_launched(
    arguments: list[str], message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(file, capsys, *arguments)
    assert (status, out) == (1, "") and message in err and "Traceback" not in err


def test_a_file_that_is_missing_or_does_not_compile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(tmp_path / "none.cu", capsys, "k")
    assert (status, out) == (1, "") and f"the file {tmp_path / 'none.cu'} does not exist" in err
    (tmp_path / "bad.cu").write_text("__global__ void k(int n) { m = n; }")
    status, out, err = run(tmp_path / "bad.cu", capsys, "k", 1, "--forall", 1)
    assert (status, out) == (1, "") and f"{tmp_path / 'bad.cu'}:1:" in err and 'identifier "m" is undefined' in err


@pytest.mark.gpu
def test_cpu_is_rejected_where_no_tensor_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k(int n) {}")
    status, _, err = run(tmp_path / "k.cu", capsys, "k", 1, "--forall", 1, "--device", "cpu")
    assert status == 1 and "k has no tensor that selects the CPU; hide the GPU with CUDA_VISIBLE_DEVICES=" in err
    assert run(tmp_path / "k.cu", capsys, "k", 1, "--forall", 1)[0] == 0
    assert torch.cuda.is_available()
