"""The device heap of ``malloc`` and the stack of a thread: limits on the CPU, and what CUDA's runtime is told."""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import rawkern
from rawkern.engines import cuda
from rawkern.engines.cpu.runtime import limits
from rawkern.errors import LaunchError

LOOP = 'extern "C" __global__ void k(int* x) { for (int i = 0; i < 20 || x[0]; ++i) x[1] += i; }'
HEAP = r"""
extern "C" __global__ void take(unsigned long long size, int keep, int* got, char** kept) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    char* p = (char*)malloc(size);
    got[i] = p != nullptr;
    if (p) p[0] = p[size - 1] = 1;
    kept[i] = p;
    __syncthreads();
    if (!keep) free(p);
}
extern "C" __global__ void give(char** kept) { free(kept[blockIdx.x * blockDim.x + threadIdx.x]); }
"""
DEEP = r"""
__device__ __noinline__ int depth(int n, const int* one) { return n == 0 ? 0 : (depth(n - 1, one) ^ one[0]) + n % 2 * 2; }
extern "C" __global__ void deep(int n, const int* one, int* out) { out[threadIdx.x] = depth(n + threadIdx.x % 3, one); }
"""


def test_limits_of_time() -> None:
    """The context entered last holds, in all threads; contexts end in any order."""
    kernel, endless = rawkern.RawKernel(LOOP), torch.ones(2, dtype=torch.int32)

    def ends() -> bool:
        x = torch.zeros(2, dtype=torch.int32)
        kernel[1, 1](x)
        return bool(x[1] == 190)

    outer, inner = rawkern.time_limit(0.05), rawkern.time_limit(float("inf"))
    with inner, outer:
        for _ in range(4):  # native launches, too
            with pytest.raises(rawkern.LaunchTimeoutError, match=r"k: the launch takes longer than 0\.05 s"):
                kernel[1, 1](endless)
            assert ends()
        raised: list[BaseException] = []

        def launch() -> None:
            with contextlib.suppress(rawkern.LaunchTimeoutError):
                kernel[1, 1](endless)
                raised.append(AssertionError("it ended"))

        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
        assert not raised

    @rawkern.time_limit(0.02)
    def run() -> None:
        kernel[1, 1](endless)

    with pytest.raises(rawkern.LaunchTimeoutError, match=r"longer than 0\.02 s"):
        run()
    outer.__enter__()
    with inner:
        outer.__exit__(None, None, None)
        assert limits.time.current == float("inf") and ends()


def test_a_limit_of_time_is_a_number_of_seconds() -> None:
    for wrong in (0, -1, float("nan"), "soon"):
        with pytest.raises(ValueError, match=f"seconds is {wrong!r}"):
            rawkern.time_limit(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="seconds is None; a time limit is a number of seconds"):
        rawkern.time_limit(None)  # type: ignore[arg-type]


def _depth(n: int) -> int:
    value = 0
    for k in range(1, n + 1):
        value = (value ^ 1) + k % 2 * 2
    return value


@pytest.fixture(autouse=True)
def _limits_as_they_were() -> Iterator[None]:
    before = {name: rawkern.get_limit(name, "cpu") for name in ("malloc_heap_size", "stack_size")}
    yield
    for name, value in before.items():
        rawkern.set_limit(name, value, "cpu")


def _held() -> int:
    return limits.HEAP[0]


@pytest.mark.parametrize("checked", [False, True])
def test_the_heap_has_a_limit(checked: bool) -> None:
    module = rawkern.RawModule(HEAP)
    got = torch.full((64,), -1, dtype=torch.int32, device="cpu")
    kept = torch.zeros(64, dtype=torch.int64, device="cpu")
    before = _held()
    rawkern.set_limit("malloc_heap_size", before + (1 << 20), "cpu")
    with rawkern.check() if checked else contextlib.nullcontext():
        module.take[2, 32](100_000, 1, got, kept)
        assert got.sum().item() == 10 and (kept != 0).sum().item() == 10
        assert 10 * 100_000 <= _held() - before <= 1 << 20
        again = torch.zeros_like(kept)
        module.take[2, 32](100_000, 0, got, again)
        assert got.sum().item() == 0
        rawkern.set_limit("malloc_heap_size", before + (2 << 20), "cpu")  # the launches that follow may take more
        module.take[2, 32](100_000, 0, got, again)
        assert got.sum().item() in (10, 20)  # blocks may come one after the other
        module.give[2, 32](kept)
        assert _held() == before
        module.take[1, 1](1 << 40, 0, got, kept)
        assert got[0].item() == 0 and _held() == before
        module.take[2, 32](16, 0, got, kept)
        assert got.sum().item() == 64 and _held() == before


def test_many_threads_share_the_heap() -> None:
    module = rawkern.RawModule(HEAP)
    n = 64 * 128
    got, kept = torch.zeros(n, dtype=torch.int32, device="cpu"), torch.zeros(n, dtype=torch.int64, device="cpu")
    before = _held()
    rawkern.set_limit("malloc_heap_size", before + 1_000_000, "cpu")
    module.take[64, 128](1000, 1, got, kept)
    assert 0.9e6 <= _held() - before <= 1e6
    assert got.sum().item() == (kept != 0).sum().item() and 900 <= got.sum().item() <= 1000
    module.give[64, 128](kept)
    assert _held() == before


@pytest.mark.parametrize("checked", [False, True])
def test_the_stack_has_a_limit(checked: bool) -> None:
    kernel = rawkern.RawKernel(DEEP)
    one = torch.ones(1, dtype=torch.int32, device="cpu")
    out = torch.zeros(64, dtype=torch.int32, device="cpu")

    def runs(depth: int) -> bool:
        try:
            kernel[1, 64](depth, one, out)
        except LaunchError as error:
            size = rawkern.get_limit("stack_size", "cpu")
            assert f"functions call each other too deeply for the stack of a thread, {size} bytes" in str(error)
            assert "rawkern.set_limit('stack_size', nbytes, 'cpu') gives it more" in str(error)
            return False
        assert out.tolist() == [_depth(depth + i % 3) for i in range(64)]
        return True

    with rawkern.check() if checked else contextlib.nullcontext():
        assert runs(300) and not runs(100_000)
        rawkern.set_limit("stack_size", 4 << 10, "cpu")
        assert runs(10) and not runs(300)
        rawkern.set_limit("stack_size", 32 << 20, "cpu")
        assert runs(10) and runs(100_000)
        rawkern.set_limit("stack_size", 4 << 10, "cpu")
        assert not runs(300) and runs(10)


def test_other_threads_follow_a_new_limit() -> None:
    kernel = rawkern.RawKernel(DEEP)
    one, out = torch.ones(1, dtype=torch.int32, device="cpu"), torch.zeros(32, dtype=torch.int32, device="cpu")
    kernel[1, 32](3, one, out)
    rawkern.set_limit("stack_size", 1 << 10, "cpu")
    errors: list[Exception] = []

    def launch() -> None:
        try:
            kernel[1, 32](2000, one, out)
        except LaunchError as error:
            errors.append(error)

    for _ in range(2):
        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
    assert len(errors) == 2


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("heap", 1, ValueError, "'heap' is not a limit; choose 'malloc_heap_size' or 'stack_size'"),
        ("stack_size", 0, ValueError, "stack_size is 0, a limit is a positive number of bytes"),
        ("stack_size", -4096, ValueError, "a limit is a positive number of bytes"),
        ("stack_size", True, ValueError, "stack_size is True, a limit is a positive number of bytes"),
        ("stack_size", 4096.0, TypeError, "stack_size is 4096.0, a limit is an int, in bytes"),
        ("malloc_heap_size", "8M", TypeError, "malloc_heap_size is '8M', a limit is an int, in bytes"),
        ("malloc_heap_size", 1 << 40, ValueError, "the largest on the CPU is 17179869184; set it to that or less"),
        ("stack_size", 1 << 30, ValueError, "the largest on the CPU is 67108864"),
    ],
)
def test_rejected(name: str, value: Any, error: type[Exception], message: str) -> None:
    before = limits.get("stack_size"), limits.get("malloc_heap_size")
    with pytest.raises(error, match=message):
        rawkern.set_limit(name, value, "cpu")
    assert (limits.get("stack_size"), limits.get("malloc_heap_size")) == before
    with pytest.raises(ValueError, match="rawkern runs on cpu and cuda, not on meta"):
        rawkern.set_limit("stack_size", 4096, "meta")
    with pytest.raises(ValueError, match="is not a limit"):
        rawkern.get_limit("stack", "cpu")


def test_numbers_of_every_make() -> None:
    for value in (np.int64(1 << 16), torch.tensor(1 << 16, device="cpu")):
        rawkern.set_limit("stack_size", value, "cpu")  # type: ignore[arg-type]
        found = rawkern.get_limit("stack_size", torch.device("cpu"))
        assert type(found) is int and found == 1 << 16


class Runtime:
    """CUDA's runtime as far as limits go; notes who calls it for which device."""

    cudaLimitStackSize, cudaLimitMallocHeapSize = 0, 2

    def __init__(self) -> None:
        self.device = threading.local()
        self.values: dict[tuple[int, int], int] = {}
        self.error = ""

    def setDevice(self, index: int) -> None:
        self.device.index = index

    def deviceSetLimit(self, limit: int, value: int) -> None:
        if self.error:
            raise RuntimeError(self.error)
        self.values[self.device.index, limit] = value

    def deviceGetLimit(self, limit: int) -> int:
        return self.values[self.device.index, limit]


def test_what_cudas_runtime_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    runtime.setDevice(7)
    monkeypatch.setattr(cuda, "_cuda", lambda: types.SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    rawkern.set_limit("stack_size", 4096, "cuda:1")
    rawkern.set_limit("malloc_heap_size", 1 << 30, torch.device("cuda", 2))
    assert runtime.values == {(1, 0): 4096, (2, 2): 1 << 30}
    assert (
        rawkern.get_limit("stack_size", "cuda:1") == 4096 and rawkern.get_limit("malloc_heap_size", "cuda:2") == 1 << 30
    )
    assert runtime.device.index == 7  # the caller's own device stays
    assert rawkern.get_limit("stack_size", "cpu") != 4096
    runtime.error = "cudaErrorInvalidValue: invalid argument"
    with pytest.raises(
        LaunchError,
        match=r"cannot set malloc_heap_size of cuda:0 to 5 bytes: cudaErrorInvalidValue.*; set it before the",
    ):
        rawkern.set_limit("malloc_heap_size", 5, "cuda:0")
    with pytest.raises(
        LaunchError, match=r"cannot set stack_size of cuda:0 to 5 bytes: cudaErrorInvalidValue: invalid argument$"
    ):
        rawkern.set_limit("stack_size", 5, "cuda:0")


@pytest.mark.gpu
def test_limits_of_a_gpu() -> None:
    before = rawkern.get_limit("stack_size", "cuda")
    rawkern.set_limit("stack_size", 16 << 10, "cuda")
    assert rawkern.get_limit("stack_size", "cuda") >= 16 << 10
    one, out = torch.ones(1, dtype=torch.int32, device="cuda"), torch.zeros(64, dtype=torch.int32, device="cuda")
    rawkern.RawKernel(DEEP)[1, 64](100, one, out)
    assert out.tolist() == [_depth(100 + i % 3) for i in range(64)]
    rawkern.set_limit("stack_size", before, "cuda")
    assert rawkern.get_limit("malloc_heap_size", "cuda") >= 1 << 20
