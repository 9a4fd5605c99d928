"""CuPy's arrays in torch's pool: counted there, safe across streams, and gone with their process."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import rawkern
from tests import forked

MIB = 1 << 20


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(rawkern.UnsupportedError, match="torch finds no GPU"):
        rawkern.use_torch_allocator()


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    from rawkern.base import allocator

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "cupy", None)
    allocator._cupy.cache_clear()
    with pytest.raises(rawkern.MissingDependencyError, match=r"needs CuPy .*: pip install"):
        rawkern.use_torch_allocator()


@pytest.fixture
def cupy() -> Iterator[Any]:
    """CuPy with torch's pool."""
    module = pytest.importorskip("cupy")
    gc.collect()  # what other tests have left, so that it is not freed while memory is counted
    with rawkern.use_torch_allocator():
        yield module
    torch.cuda.synchronize()


gpu = pytest.mark.gpu


@gpu
def test_arrays_are_in_torchs_pool(cupy: Any) -> None:
    torch.cuda.empty_cache()
    pool = cupy.get_default_memory_pool()
    allocated, own = torch.cuda.memory_allocated(), pool.used_bytes()
    a = cupy.arange(3 * MIB, dtype=cupy.float32)
    assert torch.cuda.memory_allocated() - allocated == 12 * MIB and pool.used_bytes() == own
    view, other = a[5:].reshape(-1), rawkern.to_torch(a)
    del a
    assert torch.cuda.memory_allocated() - allocated == 12 * MIB
    assert view[0] == 5 and other[-1].item() == 3 * MIB - 1
    del view
    assert torch.cuda.memory_allocated() - allocated >= 12 * MIB
    del other
    assert torch.cuda.memory_allocated() == allocated
    reserved = torch.cuda.memory_reserved()
    for _ in range(20):  # torch's free blocks are CuPy's, and the other way round
        a = cupy.ones(3 * MIB, dtype=cupy.float32)
        del a
        t = torch.ones(3 * MIB, device="cuda")
        del t
    assert torch.cuda.memory_reserved() == reserved


@gpu
def test_arrays_compute(cupy: Any) -> None:
    a = cupy.random.rand(1000, 100)
    assert float(abs((a @ a.T).trace() - (a * a).sum())) < 1e-6
    assert cupy.sort(a.ravel())[0] == a.min() and cupy.zeros((0, 3)).sum() == 0 and cupy.empty(0).data.ptr == 0
    with torch._subclasses.FakeTensorMode():  # the mode is about tensors
        assert cupy.ones(10).sum() == 10


@gpu
def test_context_and_undo() -> None:
    cupy = pytest.importorskip("cupy")
    before = cupy.cuda.get_allocator()
    with rawkern.use_torch_allocator() as outer:
        inside = cupy.cuda.get_allocator()
        assert inside != before
        with rawkern.use_torch_allocator():
            array = cupy.ones(100)
        assert cupy.cuda.get_allocator() == inside
        with cupy.cuda.using_allocator(None), pytest.raises(ValueError, match="using_allocator"):
            rawkern.use_torch_allocator()
    assert cupy.cuda.get_allocator() == before
    outer.undo()
    assert array.sum() == 100
    switch = rawkern.use_torch_allocator()
    assert cupy.cuda.get_allocator() == inside
    switch.undo()
    assert cupy.cuda.get_allocator() == before


@gpu
def test_too_much(cupy: Any) -> None:
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="Out of memory allocating"):
        cupy.empty(1 << 45, dtype=cupy.uint8)
    assert cupy.ones(10).sum() == 10


@gpu
def test_memory_of_a_stream_stays_its_own(cupy: Any) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        a = cupy.ones(5 * MIB, dtype=cupy.uint8)
        address = a.data.ptr
        del a
    tensors = [torch.empty(5 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    assert address not in [t.data_ptr() for t in tensors]
    with stream:
        assert cupy.empty(5 * MIB, dtype=cupy.uint8).data.ptr == address


spin = rawkern.RawKernel(r"""
extern "C" __global__ void spin(long long cycles, int value, int* x, int n) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = value;
}""")


@gpu
@pytest.mark.parametrize("given", [False, True])
def test_a_launch_on_another_stream_is_waited_for(cupy: Any, given: bool) -> None:
    """An array is freed while a kernel still writes to it: whoever gets the memory next must not see that."""
    n = 3 * MIB
    spin.forall(n)(0, 1, cupy.full(n, 3, dtype=cupy.int32), n)  # what compiles does so now
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    a = cupy.empty(n, dtype=cupy.int32)
    address = a.data.ptr
    torch.cuda.synchronize()
    if given:
        spin(-(-n // 256), 256, (20_000_000, 7, a, n), stream=side)
    else:
        with torch.cuda.stream(side):
            spin.forall(n)(20_000_000, 7, a, n)
    del a
    again = [cupy.full(n, 3, dtype=cupy.int32) for _ in range(3)]
    assert not side.query(), "the kernel was over too soon for this test"
    assert address not in [b.data.ptr for b in again]
    torch.cuda.synchronize()
    assert all(int(b.min()) == int(b.max()) == 3 for b in again)
    del again
    torch.cuda.empty_cache()


@gpu
def test_graph_capture(cupy: Any) -> None:
    x = cupy.arange(MIB, dtype=cupy.float32)
    cupy.square(x) + 1  # what compiles does so now
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
        squares = cupy.square(x)
        result = squares + 1
        del squares
    others = [torch.full((MIB,), -1.0, device="cuda") for _ in range(8)]
    addresses = {t.data_ptr() for t in others}
    assert result.data.ptr not in addresses
    for factor in (1, 3):
        x[...] = cupy.arange(MIB, dtype=cupy.float32) * factor
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        assert result[5] == 25 * factor**2 + 1
    assert all(bool((t == -1).all()) for t in others)


@gpu
def test_threads(cupy: Any) -> None:
    wrong = []

    def work(number: int) -> None:
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for _ in range(50):
                arrays = [cupy.full(1000 + number, number, dtype=cupy.int32) for _ in range(5)]
                stream.synchronize()
                wrong.extend(a for a in arrays if int(a.min()) != number or int(a.max()) != number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@gpu
def test_arrays_that_outlive_everything() -> None:
    pytest.importorskip("cupy")
    program = "import rawkern, cupy; rawkern.use_torch_allocator(); a = cupy.ones(1000); kept = [a]; kept.append(kept)"
    done = subprocess.run([*forked.python(), "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr


@pytest.mark.multigpu
def test_the_current_device(cupy: Any) -> None:
    before = torch.cuda.memory_allocated(1)
    with cupy.cuda.Device(1):
        a = cupy.ones(MIB, dtype=cupy.uint8)
        assert a.device.id == 1 and int(a.sum()) == MIB
    assert torch.cuda.memory_allocated(1) - before == MIB
