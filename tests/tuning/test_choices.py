"""Keys of choices, the disk, and what overrides them; where nothing may be timed."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rawkern
from rawkern.compile import programs
from rawkern.launch import launcher
from rawkern.tuning import record, timing
from tests import forked
from tests.tuning.kit import SLOW, SOURCE, chosen, inputs, tuned_saxpy


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times that were measured."""
    times: list[float] = []
    usual = timing.seconds

    def seconds(*args: Any, **kwargs: Any) -> float:
        times.append(usual(*args, **kwargs))
        return times[-1]

    monkeypatch.setattr(timing, "seconds", seconds)
    return times


def test_another_key_is_measured_anew(device: str, timed: list[float]) -> None:
    tuned = tuned_saxpy("keys", {"block": [64, 128]}, key=(name for name in "nx"))
    for n, count in ((1003, 2), (1003, 2), (500, 4), (1003, 4)):
        x, y, expected = inputs(device, n)
        for _ in range(3):
            tuned.forall(n)(n, 2.5, x, y)
        torch.testing.assert_close(y, expected + 5 * x)
        assert len(timed) == count
    x, y, expected = inputs(device, 1003)
    tuned.forall(1003)(np.int64(1003), 2.5, x=x, y=y)
    tuned.forall(1003)(1003, 2.5, rawkern.from_torch(x), y)
    assert len(timed) == 4
    tuned.forall(1003)(1003, 2.5, torch.cat([x, x]), y)
    assert len(timed) == 6
    assert [tuning.key for tuning in tuned.tunings] == [
        (1003, "float32", [1003]),
        (500, "float32", [500]),
        (1003, "float32", [2006]),
    ]


def test_a_configuration_that_does_not_compile_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, _ = inputs("cpu")
    tuned = tuned_saxpy("compiled once", {"ADDED": ["not C", 0, 1]})
    tuned.forall(1003)(n=1003, a=2.5, x=x, y=y)
    compiled: list[str] = []
    monkeypatch.setattr(programs, "compile_program", lambda source, *_: compiled.append(source.text))
    tuned.forall(1003)(n=1003, a=2.5, x=x, y=y)
    assert not compiled


def test_launches_of_all_kinds_become_fast(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors and parameters, at other places, and null pointers: none of them is examined again each time."""
    from rawkern.tuning.launches import TunedLauncher

    slow: list[int] = []
    usual = TunedLauncher._any
    monkeypatch.setattr(TunedLauncher, "_any", lambda self, *args: (slow.append(1), usual(self, *args)))
    kernel = rawkern.RawKernel(
        'extern "C" __global__ void k(const float* x, const float* w, float* y, int n) '
        "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = (x ? x[i] : 1) * (w ? w[i] : 2); }"
    )
    tuned = rawkern.autotune(kernel, {"block": [32, 64]}, key=["n"])
    x, w, y = (torch.rand(100, device=device) for _ in range(3))
    for left, right in ((x, w), (None, w), (torch.nn.Parameter(x), None), (None, torch.nn.Parameter(w))):
        for _ in range(6):
            tuned.forall(100)(left, right, y, 100)
        before = len(slow)
        for _ in range(4):
            tuned.forall(100)(left, right, y, 100)
        assert len(slow) == before
        torch.testing.assert_close(y, (1 if left is None else left) * (2 if right is None else right))


def test_launches_with_tensor_maps_alone_become_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    from rawkern.tuning.launches import TunedLauncher

    kernel = rawkern.RawKernel(
        "struct alignas(64) Map { unsigned long long words[16]; };"
        'extern "C" __global__ void k(const __grid_constant__ Map map, int n) { if (n < BLOCKS) __trap(); }'
    )
    tuned = rawkern.autotune(kernel, {"BLOCKS": [1, 2]}, key=["n"])
    map_ = rawkern.tensor_map(torch.zeros(8, 64), (8, 32))
    tuned[1, 32](map_, 3)
    monkeypatch.setattr(TunedLauncher, "_any", lambda self, *args: pytest.fail("examined again"))
    tuned[1, 32](map_, 3)


def test_a_function_as_key(device: str, timed: list[float]) -> None:
    tuned = tuned_saxpy("function", {"block": [64, 128]}, key=lambda n, a, x, y: (n.bit_length(), x.dtype))
    for n, count in ((1003, 2), (1000, 2), (513, 2), (500, 4)):
        x, y, expected = inputs(device, n)
        for _ in range(3):
            tuned.forall(n)(n, 2.5, x, y)
        torch.testing.assert_close(y, expected + 5 * x)
        assert len(timed) == count


def test_the_choice_is_found_on_disk(device: str, timed: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, expected = inputs(device)
    first = tuned_saxpy("disk", key=["n"])
    first.forall(1003)(1003, 2.5, x, y)
    measured = len(timed)
    again = tuned_saxpy("disk", key=["n"])
    again.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected + 2.5 * x)
    assert len(timed) == measured == 4
    assert again.tunings == first.tunings
    turned = tuned_saxpy("disk", [dict(reversed(config.items())) for config in first.configs], key=["n"])
    turned.forall(1003)(1003, 2.5, x, y)
    assert len(timed) == measured
    for other in (
        tuned_saxpy("disk", {"WORK": [SLOW, 0], "block": [64, 512]}, key=["n"]),
        tuned_saxpy("disk, edited", key=["n"]),
        tuned_saxpy("disk", key=["n"], reference=lambda n, a, x, y: y + a * x),
        tuned_saxpy("disk", key=["n"], retune=True),
        "another version of rawkern",
    ):
        if isinstance(other, str):
            monkeypatch.setattr(record, "__version__", other)
            other = tuned_saxpy("disk", key=["n"])
        other.forall(1003)(1003, 2.5, x, y)
        assert len(timed) == measured + 4
        measured = len(timed)


SCRIPT = """
import sys, torch, rawkern
from rawkern.tuning import record, timing
torch.set_num_threads(1)
count, usual = 0, timing.seconds
def seconds(*args, **kwargs):
    global count
    count += 1
    return usual(*args, **kwargs)
timing.seconds = seconds
device = sys.argv[1]
kernel = rawkern.RawKernel(open(sys.argv[2]).read())
tuned = rawkern.autotune(kernel, {"WORK": [3000, 0], "block": [64]}, key=["n"])
x, y = torch.ones(1003, device=device), torch.zeros(1003, device=device)
tuned.forall(1003)(1003, 2.5, x, y)
assert y.tolist() == [2.5] * 1003
print(count, tuned.tunings[0].config["WORK"])
"""


def test_processes_measure_once(device: str, tmp_path: Path) -> None:
    """Of two that start together one measures, and the other reads what that one has chosen."""
    (tmp_path / "kernel.cu").write_text(f"// {tmp_path}\n{SOURCE}")
    package = str(Path(rawkern.__file__).resolve().parent.parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))}

    def start() -> Any:
        command = [*forked.python(), "-c", SCRIPT, device, str(tmp_path / "kernel.cu")]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    together = [start(), start()]
    found = [process.communicate(timeout=120)[0].split() for process in together]
    assert sorted(found) == [["0", "0"], ["2", "0"]]


def test_a_damaged_or_foreign_record_is_not_used(timed: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    from rawkern.base import cache

    x, y, _ = inputs("cpu")
    usual = cache.get_record
    for damaged in ({"config": {"block": 3}, "trials": []}, {"config": {"WORK": 0, "block": 64}}, [], None):

        def get_record(key: str, damaged: Any = damaged) -> Any:
            return (damaged, b"") if key.startswith("tuning-") else usual(key)

        monkeypatch.setattr(cache, "get_record", get_record)
        before = len(timed)
        tuned_saxpy("damaged").forall(1003)(1003, 2.5, x, y)
        assert len(timed) == before + 4


def test_using(device: str, timed: list[float]) -> None:
    x, y, expected = inputs(device)
    tuned = tuned_saxpy("using", {"ADDED": [0, 1], "block": [64]})
    seen = []
    with tuned.using({"ADDED": 7, "block": 32}):
        for _ in range(3):
            tuned.forall(1003)(1003, 2.5, x, y)
        thread = threading.Thread(target=lambda: seen.append(tuned.forall(1003)(1003, 0.0, x, torch.zeros_like(x))))
        thread.start()
        thread.join()
        assert seen and len(timed) == 2  # the other thread has its own choice
    torch.testing.assert_close(y, expected + 21 + 5 * x)
    with pytest.raises(ValueError, match="has no block"), tuned.using({"ADDED": 1}):
        pass


def test_the_environment(device: str, timed: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, _ = inputs(device)
    monkeypatch.setenv("RAWKERN_AUTOTUNE", "off")
    tuned = tuned_saxpy("environment")
    for _ in range(3):
        tuned.forall(1003)(1003, 2.5, x, y)
    assert not timed and not tuned.tunings
    monkeypatch.setenv("RAWKERN_AUTOTUNE", "retune")
    for _ in range(2):
        tuned = tuned_saxpy("environment")
        for _ in range(2):
            tuned.forall(1003)(1003, 2.5, x, y)
    assert len(timed) == 8
    monkeypatch.setenv("RAWKERN_AUTOTUNE", "off")  # takes what is on disk
    tuned = tuned_saxpy("environment")
    tuned.forall(1003)(1003, 2.5, x, y)
    assert len(timed) == 8 and chosen(tuned).config["WORK"] == 0
    monkeypatch.setenv("RAWKERN_AUTOTUNE", "no")
    with pytest.raises(ValueError, match="RAWKERN_AUTOTUNE is 'no'"):
        tuned_saxpy("environment", key=["n"]).forall(1003)(1003, 2.5, x, y)


@pytest.mark.parametrize("setting", ["off", "checked"])
def test_the_first_that_works_is_taken_unmeasured(
    timed: list[float], monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    x, y, expected = inputs("cpu")
    tuned = tuned_saxpy(f"first {setting}", [{"ADDED": "not C", "block": 64}, {"block": 4096}, {"block": 32}])
    if setting == "off":
        monkeypatch.setenv("RAWKERN_AUTOTUNE", "off")
    with rawkern.check() if setting == "checked" else contextlib.nullcontext():
        tuned.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert not timed


def test_one_configuration_is_not_measured(device: str, timed: list[float]) -> None:
    x, y, expected = inputs(device)
    tuned_saxpy("one", [{"block": 64}]).forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert not timed
    wrong = tuned_saxpy("one", [{"ADDED": 1}], reference=lambda n, a, x, y: y + a * x)
    with pytest.raises(rawkern.LaunchError, match="no configuration works"):
        wrong.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)


def test_nothing_to_launch(device: str, timed: list[float]) -> None:
    x, y, expected = inputs(device)
    tuned = tuned_saxpy("nothing", {"block": [2048, 64, 256], "WORK": [0, 1]})
    before = y.clone()
    tuned.forall(0)(0, 2.5, x, y)
    tuned.forall(lambda c: 0)(0, 2.5, x, y)
    assert torch.equal(y, before) and not timed
    tuned.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert len(timed) == 4  # a block of 2048 is rejected
    with pytest.raises(TypeError, match="argument 3 'x' is float64"):
        tuned.forall(0)(0, 2.5, x.double(), y)


def test_an_edited_file_is_tuned_anew(device: str, tmp_path: Path, timed: list[float]) -> None:
    path = tmp_path / "saxpy.cu"
    path.write_text(f"// edited {device}\n{SOURCE}")
    tuned = rawkern.autotune(rawkern.RawKernel(path=path), {"WORK": [SLOW, 0], "ADDED": [0, 1]},
                             reference=lambda n, a, x, y: y + a * x)  # fmt: skip
    launch = tuned.forall(1003)
    x, y, expected = inputs(device)
    for _ in range(4):
        launch(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected + 7.5 * x)
    assert len(timed) == 2 and chosen(tuned).config == {"WORK": 0, "ADDED": 0}
    path.write_text(f"// edited {device}\n{SOURCE.replace('+ ADDED', '+ (1 - ADDED)')}")
    os.utime(path, ns=(1, 1))
    tuned._choices.changed.__self__.next_look = 0  # type: ignore[union-attr]  # the disk is looked at every 0.1 s
    y.copy_(expected - 2.5 * x)
    launch(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert len(timed) == 4 and chosen(tuned).config == {"WORK": 0, "ADDED": 1}


def test_checked_launches_are_not_timed(timed: list[float]) -> None:
    x, y, expected = inputs("cpu", 100)
    tuned = tuned_saxpy("checked", {"block": [64, 32], "WORK": [0, 1]})
    with rawkern.check():
        tuned.forall(100)(100, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert not timed
    tuned.forall(100)(100, 2.5, x, y)
    with rawkern.check():
        tuned.forall(100)(100, 2.5, x, y)
        torch.testing.assert_close(y, expected + 5 * x)
        with pytest.raises(rawkern.OutOfBoundsError):
            tuned.forall(200)(200, 2.5, x, y)
    assert len(timed) == 4


def test_inside_an_operator(device: str, timed: list[float]) -> None:
    tuned = tuned_saxpy(f"operator {device}", {"block": [64, 32]}, key=["n"])

    @rawkern.op(f"rawkern_tests::tuned_{device}")
    def scaled(x: torch.Tensor, a: float) -> torch.Tensor:
        y = torch.zeros_like(x)
        tuned[lambda c: -(-x.numel() // c["block"])](x.numel(), a, x, y)
        return y

    x = torch.randn(1003, device=device)
    compiled = torch.compile(scaled, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, 2.5), 2.5 * x)
    torch.testing.assert_close(compiled(x[:500].clone(), 2.5), 2.5 * x[:500])
    assert len(timed) == 4
    with torch._subclasses.FakeTensorMode() as mode:
        assert scaled(mode.from_tensor(x), 2.0).shape == (1003,)

    @rawkern.op(f"rawkern_tests::tuned_forall_{device}")
    def covered(x: torch.Tensor, a: float) -> torch.Tensor:
        y = torch.zeros_like(x)
        tuned.forall(x.numel())(x.numel(), a, x, y)
        return y

    compiled = torch.compile(covered, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (1003, 500):
        torch.testing.assert_close(compiled(x[:n].clone(), 2.5), 2.5 * x[:n])
    assert len(timed) == 4


def test_torch_compile_breaks_the_graph(device: str) -> None:
    tuned = tuned_saxpy("compile")

    @torch.compile(backend="eager")
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = y + 1
        tuned.forall(1003)(1003, 2.5, x, y)
        return y * 2

    x, y, expected = inputs(device)
    for _ in range(3):
        torch.testing.assert_close(run(x, y), (expected + 1) * 2)


def test_tracing_raises_as_for_a_kernel(timed: list[float]) -> None:
    tuned = tuned_saxpy("traced")
    x, y, _ = inputs("cpu")
    with torch._subclasses.FakeTensorMode() as mode, pytest.raises(rawkern.LaunchError, match=r"rawkern\.op"):
        tuned.forall(1003)(1003, 2.5, mode.from_tensor(x), mode.from_tensor(y))
    assert not timed


def test_threads_measure_once(device: str, timed: list[float]) -> None:
    tuned = tuned_saxpy("threads", key=["n"])
    ready, wrong = threading.Barrier(6), []

    def work() -> None:
        x, y, expected = inputs(device)
        if device == "cuda":
            torch.cuda.synchronize()
        ready.wait()
        for _ in range(5):
            tuned.forall(1003)(1003, 2.5, x, y)
        try:
            torch.testing.assert_close(y, expected + 10 * x)
        except AssertionError as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(timed) == 4


def test_a_reference_may_be_tuned_itself(device: str, timed: list[float]) -> None:
    inner = tuned_saxpy("inner", {"block": [64, 32]})

    def reference(n: int, a: float, x: torch.Tensor, y: torch.Tensor) -> None:
        inner.forall(n)(n, a, x, y)

    x, y, expected = inputs(device)
    tuned_saxpy("outer", {"block": [64, 32]}, reference=reference).forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert len(timed) == 4


def test_copies_and_pickles(device: str) -> None:
    x, y, expected = inputs(device)
    tuned = tuned_saxpy("copies", [{"block": 64}, {"block": 32}])
    assert copy.deepcopy(tuned) is tuned and copy.copy(tuned) is tuned
    pickle.loads(pickle.dumps(tuned)).forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert "2 configurations" in repr(tuned)


def test_copies_and_pickles_of_launchers(device: str) -> None:
    tuned, given = tuned_saxpy("copied", [{"block": 64}, {"block": 32}]), tuned_saxpy("given", {"WORK": [1, 2]})
    for launch in (tuned.forall(1003), tuned[32], given[16, 64], given.forall(1003, block=64)):
        x, y, expected = inputs(device)
        assert copy.deepcopy([launch])[0] is launch
        pickle.loads(pickle.dumps(launch))(1003, 2.5, x, y)
        torch.testing.assert_close(y, expected)


@pytest.mark.gpu
def test_capture(timed: list[float]) -> None:
    tuned = tuned_saxpy("capture", key=["n"])
    x, y, expected = inputs("cuda")
    with pytest.raises(rawkern.LaunchError, match="launch it once before the capture"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tuned.forall(1003)(1003, 2.5, x, y)
    assert not timed
    torch.cuda.synchronize()
    tuned.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tuned.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    graph.replay()
    torch.testing.assert_close(y, expected + 2.5 * x)
    assert len(timed) == 4


@pytest.mark.gpu
def test_streams(timed: list[float]) -> None:
    """Tuning and launch are in order on the stream that is current, and on one that is given."""
    tuned = tuned_saxpy("streams", {"WORK": [SLOW, 0]})
    n = 1 << 22
    for given in (False, True):
        stream = torch.cuda.Stream()
        x, y = torch.ones(n, device="cuda"), torch.zeros(n, device="cuda")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            y.fill_(1)
            if not given:
                tuned[n // 256, 256](n, 2.5, x, y)
            tuned_now = torch.cuda.current_stream()
        if given:
            tuned(n // 256, 256, (n, 2.5, x, y), stream=stream)
        assert tuned_now == stream
        stream.synchronize()
        assert torch.equal(y, torch.full_like(y, 3.5))
    with tuned.using({"ADDED": 1}):
        tuned(n // 256, 256, (n, 2.5, x, y), stream=stream)
    stream.synchronize()
    assert torch.equal(y, torch.full_like(y, 7.0))
    assert len(timed) == 2


@pytest.mark.gpu
def test_a_stream_for_arrays_that_are_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch that follows a tuning is on the stream, too, and its arguments are recorded there."""
    cupy = pytest.importorskip("cupy")
    tuned = tuned_saxpy("stream of arrays", {"WORK": [SLOW, 0]})
    stream, n = torch.cuda.Stream(), 1 << 20
    seen: list[Any] = []
    usual = launcher.Launcher.make

    def make(self: Any, args: Any, kwargs: Any, stream: Any = None) -> None:
        seen.extend([] if stream is None else [stream])
        usual(self, args, kwargs, stream)

    monkeypatch.setattr(launcher.Launcher, "make", make)
    x, y = cupy.ones(n, dtype=np.float32), cupy.zeros(n, dtype=np.float32)
    cupy.cuda.get_current_stream().synchronize()
    for count in (1, 2):
        tuned(n // 256, 256, (n, 2.5, x, y), stream=stream)
        stream.synchronize()
        assert float(y.min()) == float(y.max()) == 2.5 * count
    assert seen == [stream, stream]


@pytest.mark.multigpu
def test_two_devices_of_one_model_share_a_choice(timed: list[float]) -> None:
    tuned = tuned_saxpy("two devices")
    for index in range(2):
        x, y, expected = inputs(f"cuda:{index}")
        for _ in range(3):
            tuned.forall(1003)(1003, 2.5, x, y)
        torch.testing.assert_close(y, expected + 5 * x)
    assert len(timed) == 4
