"""`judge`: right candidates pass, wrong ones fail the check that fits, and nothing is left of any of them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import rawkern
from rawkern.testing import Verdict, Worker, judge
from rawkern.testing.judging import judge as judging
from tests import forked
from tests.testing.judging import candidates

X = torch.randn(1000, generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))  # which no other judge uses
        environment.setenv("HUB_TOKEN_OF_THIS_TEST", "secret")
        with Worker() as made:
            yield made


def of_kernel(worker: Worker, source: str, device: str, **options) -> Verdict:
    options = {"sizes": (257,), "special": ("nan",), "seconds": 60, **options}
    return judge(
        source, lambda n, x: x * x, (1000, X, torch.empty(1000)),
        outputs=(2,), forall=lambda n, x, y: n, worker=worker, device=device, **options,
    )  # fmt: skip


def of_function(worker: Worker, source: str, device: str, **options) -> Verdict:
    options = {"sizes": (), "special": (), **options}
    return judge(source, torch.square, (X,), worker=worker, device=device, **options)


@pytest.mark.parametrize("where", ["kernel", "function", "file"])
def test_a_source_that_is_not_unicode(worker: Worker, tmp_path: Path, where: str) -> None:
    if where == "kernel":
        verdict = of_kernel(worker, f"{candidates.SQUARE}// \ud800", "cpu")
    else:
        (tmp_path / "c.py").write_bytes(candidates.FUNCTION.encode() + b"# \xff")
        source = tmp_path / "c.py" if where == "file" else f"{candidates.FUNCTION}# \udcff"
        verdict = of_function(worker, source, "cpu")  # type: ignore[arg-type]
    assert verdict.failed == ["compiles"] and "not Unicode text" in verdict.checks["compiles"].text
    assert verdict.checks["runs"].state == "not run"


def test_what_a_candidate_says_can_be_printed(worker: Worker) -> None:
    verdict = of_function(worker, "def square(x):\n    raise ValueError('half: \\ud800')\n", "cpu")
    assert not verdict.ok and "half: \\ud800" in str(verdict).encode().decode()


def test_right_ones(worker: Worker, device: str) -> None:
    for verdict in (
        of_kernel(worker, candidates.SQUARE, device, sizes=(1, 257), special=("zeros", "nan", "inf", "large")),
        of_function(worker, candidates.FUNCTION, device, sizes=(1, 257), special=("zeros", "nan", "inf", "large")),
    ):
        assert verdict.ok, str(verdict)
        not_run = [name for name, check in verdict.checks.items() if check.state != "passed"]
        assert not_run == ([] if device == "cpu" else ["order"])
        assert verdict.launches == {"square": 1} and verdict.device.startswith(device)
        assert (verdict.gpu_seconds is None) == (device == "cpu")
        data = json.loads(json.dumps(verdict.as_dict()))
        assert data["ok"] and data["checks"]["right"] == {"state": "passed", "text": ""}
        assert pickle.loads(pickle.dumps(verdict)) == verdict


@pytest.mark.parametrize(
    "name, failed, says",
    [
        ("slightly wrong", {"right", "sizes", "special"}, "it should be"),
        ("does not compile", {"compiles"}, 'candidate.cu:3:5: in square: identifier "intt" is undefined'),
        ("other parameters", {"signature"}, "argument 2 'x' is float32, the kernel reads const double*"),
        ("two kernels", {"signature"}, "square, other"),
        ("adds to its output", {"right", "sizes", "special", "output"}, "depends on uninitialized memory"),
        ("forgets the last", {"right", "sizes", "special", "output"}, "1 of 1000 elements of output 0 are never"),
        ("forgets it all", {"right", "sizes", "special", "output"}, "1000 of 1000 elements of output 0 are never"),
        ("drops NaN", {"special"}, "nan: output[0] is 0, it should be nan"),
        ("changes its input", {"honest"}, "changed input"),
        ("a race", {"findings"}, "RaceError"),
    ],
)
def test_wrong_kernels(worker: Worker, device: str, name: str, failed: set[str], says: str) -> None:
    verdict = of_kernel(worker, candidates.KERNELS[name], device)
    assert set(verdict.failed) == failed and not verdict.ok, str(verdict)
    assert says in str(verdict)
    assert tempfile.gettempdir() + "/rawkern-judge" not in str(verdict.as_dict())


def test_a_kernel_out_of_bounds(worker: Worker, device: str) -> None:
    verdict = of_kernel(worker, candidates.KERNELS["out of bounds"], device)
    assert "findings" in verdict.failed
    (finding,) = {(f["error"], f["file"], f["line"]) for f in verdict.findings[:1]}
    assert finding == ("OutOfBoundsError", "candidate.cu", 4)


def test_a_kernel_that_counts_on_the_order(worker: Worker) -> None:
    verdict = of_kernel(worker, candidates.KERNELS["in the order of warps"], "cpu", block=1024, sizes=(), special=())
    assert verdict.failed == ["order"] and verdict.checks["order"].text.startswith("order 0: output["), str(verdict)


def test_a_kernel_made_for_one_size(worker: Worker, device: str) -> None:
    verdict = of_kernel(worker, candidates.KERNELS["made for one size"], device, sizes=(257, 1025), special=())
    assert verdict.failed == ["sizes", "output"] or verdict.failed == ["sizes"]
    assert "1025 in place of 1000: output[1000] is never written" in str(verdict)


def test_a_kernel_that_keeps_its_results(worker: Worker) -> None:
    verdict = of_kernel(worker, candidates.KERNELS["kept in a variable"], "cpu", sizes=(), special=())
    assert [each.kind for each in verdict.tampering] == ["cached output"] and "right" in verdict.failed


def test_a_kernel_that_never_ends(worker: Worker, device: str) -> None:
    verdict = of_kernel(worker, candidates.KERNELS["never ends"], device, seconds=15 if device == "cuda" else 6)
    assert "runs" in verdict.failed and verdict.checks["right"].state != "passed"
    says = "candidate.cu:4" if device == "cpu" else "the sample: it did not finish within"
    assert says in verdict.checks["runs"].text, str(verdict)
    assert verdict.checks["compiles"].state == "passed" and verdict.seconds < 30


@pytest.mark.parametrize("name", candidates.TAMPERING)
def test_tampering(worker: Worker, device: str, name: str) -> None:
    source, kinds = candidates.TAMPERING[name]
    verdict = of_function(worker, source, device)
    assert {each.kind for each in verdict.tampering} == kinds and "honest" in verdict.failed, str(verdict)


@pytest.mark.parametrize("name", candidates.ENDS)
def test_processes_that_end(worker: Worker, device: str, name: str) -> None:
    source, says = candidates.ENDS[name]
    seconds = (30 if "memory" in name else 3) if device == "cpu" else 20
    if device == "cuda" and "memory" in name:
        pytest.skip("the limit is one of the host's memory")
    verdict = of_function(worker, source, device, seconds=seconds, memory=500_000_000 if device == "cpu" else 8 << 30)
    assert verdict.failed == ["runs"] and not verdict.ok
    assert says.replace("3 s", f"{seconds} s") in verdict.checks["runs"].text


def test_what_a_candidate_starts_is_ended(worker: Worker) -> None:
    """Also in a session of its own, twice forked, and with what it prints kept apart."""
    source = candidates.beginning(
        "import os, subprocess\n"
        "    subprocess.Popen(['sleep', '987654'], start_new_session=True)\n"
        "    if os.fork() == 0:\n        os.setsid()\n        if os.fork(): os._exit(0)\n"
        "        import time; time.sleep(1000)\n"
        "    open('file', 'w').write('left'); os.mkdir('sub'); os.chmod('sub', 0)\n    print('hello')"
    ).replace("print('hello')", "print('hello', flush=True)", 1)
    before = set(os.listdir(tempfile.gettempdir()))
    verdict = of_function(worker, source.replace("os.mkdir('sub')", "os.makedirs('sub', exist_ok=True)"), "cpu")
    assert verdict.left >= 2 and verdict.printed.startswith("hello"), str(verdict)
    assert "987654" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert not [name for name in set(os.listdir(tempfile.gettempdir())) - before if name.startswith("rawkern-judge")]


def test_the_reference_is_not_there(worker: Worker) -> None:
    """A candidate that looks for it in modules, frames, objects and the folder it runs in finds nothing."""
    source = """
import gc, os, sys

def square(x):
    found = [name for name in list(sys.modules) if "test_judge" in name or name == "reference_of_this_test"]
    found += [o for o in gc.get_objects() if getattr(o, "__name__", "") == "reference_of_this_test"]
    frame = sys._getframe()
    while frame:
        found += [v for v in frame.f_locals.values() if getattr(v, "__name__", "") == "reference_of_this_test"]
        frame = frame.f_back
    found += [each for each in sys.path if os.path.exists(os.path.join(each, "test_judge.py"))]
    handles = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{n}")]
    handles = [h for h in handles if "socket" in h]
    raise RuntimeError(f"found {found}, {len(handles)} sockets, cwd {os.listdir('.')}")
"""

    def reference_of_this_test(x):
        return x * x

    verdict = judge(source, reference_of_this_test, (X,), worker=worker, device="cpu", special=())
    assert "found [], 1 sockets, cwd" in verdict.checks["right"].text, str(verdict)


def test_a_model(worker: Worker, device: str) -> None:
    """A class made after the same seed has the reference's weights; what it gives is compared in float64."""

    class Model(torch.nn.Module):
        def __init__(self, features, out):
            super().__init__()
            self.linear = torch.nn.Linear(features, out)

        def forward(self, x):
            return torch.relu(self.linear(x))

    def inputs():
        return [torch.randn(33, 20)]

    options = {"init_inputs": (20, 17), "worker": worker, "device": device, "special": (), "seed": 42}
    verdict = judge(candidates.MODEL, Model, inputs, sizes=(64,), **options)
    assert verdict.ok and verdict.entry == "ModelNew" and verdict.checks["sizes"].state == "passed", str(verdict)
    wrong = candidates.changed("float sum = b[i % out]", "float sum = 0", candidates.MODEL)
    assert judge(wrong, Model, inputs, sizes=(), **options).failed == ["right"]
    before = torch.get_rng_state()
    judge(candidates.MODEL, Model, inputs, sizes=(), **options)
    assert torch.equal(before, torch.get_rng_state())
    other = candidates.changed("(self, features, out)", "(self, features)", candidates.MODEL)
    verdict = judge(other, Model, inputs, **options)
    assert verdict.failed == ["signature"] and "cannot be called with 2 arguments" in str(verdict)


def test_in_place(worker: Worker, device: str) -> None:
    axpy = """__global__ void axpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}"""

    def reference(a, x, y, n):
        y.add_(a * x)

    options = {"mutates": (2,), "worker": worker, "device": device, "sizes": (257,), "special": ()}
    verdict = judge(axpy, reference, (1.5, X, X.flip(0), 1000), forall=lambda a, x, y, n: n, **options)
    assert verdict.ok, str(verdict)
    fixed = judge(axpy, reference, (1.5, X, X.flip(0), 1000), grid=4, block=256, **options)
    assert fixed.ok and fixed.checks["sizes"].state == "not run"


def test_sums_by_atomics(worker: Worker, device: str) -> None:
    """Bits may differ from call to call and from order to order; values are right all the same."""
    total = """__global__ void total(int n, const float* x, float* y) {
    __shared__ float all;
    if (threadIdx.x == 0) all = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&all, x[i]);
    __syncthreads();
    if (threadIdx.x == 0) *y = all;
}"""
    verdict = judge(
        total, lambda n, x: x.sum(0, keepdim=True), (1000, X, torch.empty(1)), outputs=(2,), grid=1, block=256,
        sizes=(), special=(), device=device, worker=worker, skip=("deterministic", "output"),
    )  # fmt: skip
    assert verdict.ok and (verdict.checks["order"].state == "passed") == (device == "cpu"), str(verdict)
    assert verdict.checks["deterministic"].text == "skipped by request"


def test_rejections(worker: Worker) -> None:
    kernel, inputs = candidates.SQUARE, (1000, X, torch.empty(1000))
    for error, says, options in (
        (ValueError, "a kernel needs outputs=", {}),
        (ValueError, "outputs names argument 0, which is not a tensor of the inputs", {"outputs": (0,)}),
        (ValueError, "special names 'odd'; choose from zeros", {"outputs": (2,), "special": ("odd",)}),
        (ValueError, "skip names 'right'", {"outputs": (2,), "skip": ("right",)}),
        (ValueError, "seeds is 1", {"outputs": (2,), "seeds": 1}),
        (ValueError, r"pass grid and block \(optionally shared_mem\)", {"outputs": (2,), "shared_mem": 99}),
        (ValueError, "pass grid and block", {"outputs": (2,), "grid": 4}),
        (ValueError, r"or forall \(optionally block", {"outputs": (2,), "grid": 4, "block": 256, "forall": 1000}),
    ):
        with pytest.raises(error, match=says):
            judge(kernel, lambda n, x: x * x, inputs, worker=worker, device="cpu", **options)
    with pytest.raises(ValueError, match="the reference rejects the inputs: "):
        judge(kernel, lambda n, x: x @ torch.ones(3, 3), inputs, outputs=(2,), worker=worker, device="cpu")
    with pytest.raises(ValueError, match="two calls of the reference with the same inputs differ"):
        judge(candidates.FUNCTION, lambda x: x * torch.rand_like(x), (X,), worker=worker, device="cpu", sizes=())
    with pytest.raises(ValueError, match="outputs= is for kernels"):
        judge(candidates.FUNCTION, torch.square, (X,), outputs=(0,), worker=worker)
    with pytest.raises(TypeError, match="the argument is of type object; a candidate's process takes tensors"):
        judge(candidates.FUNCTION, lambda x, o: x, (X, object()), worker=worker, sizes=(), device="cpu")


def test_files_and_their_headers(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "op.h").write_text("#define OP(v) ((v) * (v))\n")
    file = tmp_path / "square.cu"
    file.write_text('#include "op.h"\n' + candidates.SQUARE.replace("x[i] * x[i]", "OP(x[i])"))
    for source in (file, str(file)):
        assert of_kernel(worker, source, "cpu", sizes=(), special=()).ok
    with pytest.raises(FileNotFoundError):
        judge(tmp_path / "none.py", torch.square, (X,), worker=worker)
    with pytest.raises(ValueError, match=r"neither a \.cu nor a \.py file"):
        judge(tmp_path / "op.h", torch.square, (X,), worker=worker)


def test_many_in_a_row_leave_nothing(worker: Worker) -> None:
    """What the command of the benchmark does a thousand times, a few times."""

    def state() -> tuple[int, int, list[str]]:
        folder = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("rawkern-judge")]
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(worker.pid)], capture_output=True, text=True)
        return (
            len(os.listdir("/proc/self/fd")),
            len(os.listdir(f"/proc/{worker.pid}/fd")),
            folder + children.stdout.split(),
        )

    assert of_kernel(worker, candidates.SQUARE, "cpu", sizes=(), special=()).ok
    before = state()
    for name in ("right", "does not compile", "out of bounds"):
        of_kernel(worker, candidates.KERNELS[name], "cpu", sizes=(), special=())
    of_function(worker, candidates.ENDS["exits"][0], "cpu")
    assert state() == before and before[2] == []


def test_no_process_is_left_behind(tmp_path: Path) -> None:
    """A call of judge without a worker starts one and ends it; a worker ends with its program, however that ends."""
    program = f"""
import os, torch
from rawkern.testing import Worker, judge
verdict = judge({candidates.SQUARE!r}, lambda n, x: x * x, (3, torch.ones(3), torch.empty(3)), outputs=(2,),
                sizes=(), special=(), device="cpu")
assert verdict.ok, str(verdict)
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    pass
worker = Worker().__enter__()
with worker.candidate({{"device": "cpu", "seconds": 60, "memory": 1 << 30}}) as candidate:
    os.makedirs(os.path.join(candidate.folder, "cache"), exist_ok=True)
    print(worker.pid, candidate.folder, flush=True)
    os.kill(os.getpid(), 9)
"""
    root = str(Path(rawkern.__file__).parents[1])
    done = subprocess.run(
        [*forked.python(), "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=200,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.returncode == -9, done.stderr
    pid, folder = done.stdout.split()
    for _ in range(200):
        if not os.path.exists(f"/proc/{pid}"):
            assert not os.path.exists(folder)
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} still runs")


def test_inputs_of_a_size(worker: Worker, device: str) -> None:
    """A function of a size makes arguments that no other change of the sample gives."""
    twice = """__global__ void twice(int m, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < m) y[i] = x[i / 2];
}"""

    def inputs(n):
        return 2 * n, torch.randn(n), torch.empty(2 * n)

    def reference(m, x):
        return x.repeat_interleave(2)

    options = {"outputs": (2,), "sizes": (1, 33, 500), "special": (), "device": device, "worker": worker}
    verdict = judge(twice, reference, inputs, **options)
    assert verdict.ok and verdict.checks["sizes"].state == "passed", str(verdict)
    verdict = judge(twice.replace("i < m", "i < m && i < 40"), reference, inputs, **options)
    assert "size 33: output[40] is never written" in verdict.checks["sizes"].text
    with pytest.raises(ValueError, match="inputs is a function of a size, but sizes is empty"):
        judge(twice, reference, inputs, **{**options, "sizes": ()})


def test_a_function_that_adds_to_new_memory(worker: Worker, device: str) -> None:
    source = candidates.changed("y[i] =", "y[i] +=")
    verdict = of_function(worker, source, device)
    assert verdict.checks["output"].text == "output 0 depends on uninitialized memory", str(verdict)
    source = candidates.changed("i < n", "i < n - 1")
    assert (
        of_function(worker, source, device).checks["output"].text == "1 of 1000 elements of output 0 are never written"
    )


def test_values_that_the_reference_does_not_take(worker: Worker, device: str) -> None:
    """What it raises for is not asked of candidates; an error in a function is not an unfit signature."""

    def positive(x):
        if bool((x == 0).all()):
            raise ValueError("zeros")
        return x * x

    source = candidates.beginning("assert bool((x != 0).any())")
    verdict = judge(source, positive, (X,), sizes=(), special=("zeros",), worker=worker, device=device)
    assert verdict.ok and verdict.checks["special"].state == "not run", str(verdict)
    verdict = of_function(worker, candidates.beginning("x = x + 'text'"), device)
    assert verdict.failed == ["right"] and "TypeError" in verdict.checks["right"].text, str(verdict)


def test_booleans(worker: Worker, device: str) -> None:
    """Unwritten elements are found, whatever they should be."""
    positive = """__global__ void positive(int n, const float* x, bool* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] > 0;
}"""
    options = {"outputs": (2,), "sizes": (), "special": (), "device": device, "worker": worker}
    arguments = (1000, X, torch.empty(1000, dtype=torch.bool))
    assert judge(positive, lambda n, x: x > 0, arguments, **options).ok
    verdict = judge(positive.replace("i < n", "i < n - 1"), lambda n, x: x > 0, arguments, **options)
    assert "output" in verdict.failed, str(verdict)


def test_secrets_are_not_there(worker: Worker) -> None:
    source = candidates.beginning("import os; raise RuntimeError(sorted(n for n in os.environ if 'TOKEN' in n))")
    assert os.environ["HUB_TOKEN_OF_THIS_TEST"]
    assert "RuntimeError: []" in of_function(worker, source, "cpu").checks["right"].text


@pytest.mark.parametrize(("slow", "accused"), [((), False), ((0,), False), ((0, 1), False), ((0, 1, 2), True)])
def test_calls_that_are_slow_by_one_clock_alone_are_timed_again(slow: tuple[int, ...], accused: bool) -> None:
    """Other processes on the GPU take time as well; a candidate that misreports its own is slow each time."""

    class Stub:
        measured = -1

        def ask(self, request, tensors):
            self.measured += request["events"]
            time.sleep(request["repeats"] * 1e-5 * (50 if self.measured in slow and not request["events"] else 1))
            return {"times": [1e-5] * request["repeats"]}, None

    verdict = Verdict()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "HOST", 1e-4)
        judging.time_calls(verdict, Stub(), ({}, ()))
    assert [found.kind for found in verdict.tampering] == ["timer"] * accused
