"""CuPy's form of a launch: sizes of 0, addresses, memory of CuPy's pool, cooperative grids, parts left out."""

from __future__ import annotations

import gc
import re
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import rawkern
from rawkern import LaunchError, RawKernel, RawModule
from rawkern.engines.cpu.runtime import grid as cpu_grid

MODULE = RawModule(
    code="""
extern "C" {
__global__ void count(int* blocks, int* threads) {
    if (!threadIdx.x) atomicAdd(blocks, 1);
    atomicAdd(threads, 1);
}
__global__ void affine(const float* x, float* y, long long n) {
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = 3 * x[i] - 8;
}
__global__ void mark(int* x) { *x = 42; }
__global__ void nothing() {}
}"""
)
GRID_SYNC = """
#include <cooperative_groups.h>
extern "C" __global__ void reverse_add(const float* a, const float* b, float* y, int n) {
    int size = gridDim.x * blockDim.x, first = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = first; i < n; i += size) y[i] = a[i];
    cooperative_groups::this_grid().sync();
    for (int i = n - 1 - first; i >= 0; i -= size) y[i] += b[i];
}"""


def counted(device: str, *form: Any) -> tuple[int, int]:
    blocks, threads = torch.zeros(2, dtype=torch.int32, device=device).unbind()
    MODULE.count(*form, (blocks, threads))
    return int(blocks), int(threads)


@pytest.mark.parametrize(
    ("grid", "block", "expected"),
    [
        ((2,), (3,), (2, 6)),
        ([2, 1], [3], (2, 6)),
        (2, np.int64(3), (2, 6)),
        ((0,), (3,), (1, 3)),
        (0, 3, (1, 3)),
        ((2, 0, 3), (3, 0), (6, 18)),
        ((0, 0), (0,), (1, 1)),
        (np.int32(0), 1, (1, 1)),
    ],
)
def test_sizes(grid: Any, block: Any, expected: tuple[int, int], device: str) -> None:
    assert counted(device, grid, block) == expected


@pytest.mark.parametrize("grid", [(-1,), (1.5,), (False,), "x", (1, 1, 1, 1), None])
def test_sizes_rejected(grid: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        counted("cpu", grid, (1,))


def test_a_grid_of_0_stays_an_error_elsewhere() -> None:
    with pytest.raises(ValueError, match=r"grid.x is 0, it must be positive; forall\(n\) takes n = 0"):
        MODULE.nothing[0, 1]()


def test_addresses(device: str) -> None:
    x = torch.arange(10.0, device=device)
    y = torch.full((12,), torch.nan, device=device)
    expected = 3 * torch.arange(10.0) - 8
    MODULE.affine((1,), (32,), (x, y.data_ptr() + 4, 10))  # inside of a tensor
    assert y.isnan().tolist() == [True, *[False] * 10, True] and torch.equal(y[1:11].cpu(), expected)
    for _ in range(4):  # addresses alone tell the device, too; and again from what was learnt
        y.fill_(torch.nan)
        MODULE.affine((1,), (32,), (np.uint64(x.data_ptr()), y.data_ptr(), 10), stream=None)
        assert torch.equal(y[:10].cpu(), expected)


class Stream(NamedTuple):
    """What much code for torch and CuPy passes as a stream."""

    ptr: int


class Affine(torch.autograd.Function):
    """An operator in the idiom of public code: contiguous inputs, addresses, a stream by its handle."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y, n = torch.empty_like(x), x.numel()
        stream = Stream(torch.cuda.current_stream().cuda_stream if x.is_cuda else 0)
        MODULE.get_function("affine")(
            grid=((n + 511) // 512, 1, 1), block=(512, 1, 1), args=[x.contiguous().data_ptr(), y.data_ptr(), np.int32(n)],
            stream=stream,
        )  # fmt: skip
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return 3 * grads[0]


def test_the_idiom_of_public_code(device: str) -> None:
    x = torch.randn(1000, device=device, requires_grad=True)
    for _ in range(3):
        y = Affine.apply(x)
        torch.testing.assert_close(y, 3 * x - 8)
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3] * 1000


def test_an_address_counts_as_written() -> None:
    x, y = torch.arange(3.0), torch.zeros(3)
    before = x._version, y._version
    MODULE.affine((1,), (32,), (x.data_ptr(), y.data_ptr(), 3))
    assert (x._version, y._version) == (before[0], before[1] + 1)


def test_addresses_of_the_cpu_are_looked_up() -> None:
    x = torch.arange(3.0)
    gone = torch.zeros(1 << 16).data_ptr()
    gc.collect()
    outside = x.data_ptr() + x.untyped_storage().nbytes()
    for address in (gone, np.zeros(3, np.float32).ctypes.data, outside):
        message = (
            f"argument 2 'y' is the address {address:#x}, where no live tensor on the CPU has its memory; pass the"
        )
        with pytest.raises(ValueError, match=re.escape(message)):
            MODULE.affine((1,), (32,), (x, address, 3))
    with pytest.raises(TypeError, match=re.escape("is the int 7, the kernel takes a pointer (float*); pass a tensor")):
        MODULE.affine((1,), (32,), (x, 7, 3))
    with pytest.raises(ValueError, match="starts at an address that is not a multiple of 4 bytes"):
        MODULE.affine((1,), (32,), (x, x.data_ptr() + 1, 1))
    for launch in (MODULE.affine[1, 32], MODULE.affine.forall(3)):
        with pytest.raises(TypeError, match=re.escape("pass the tensor itself, y and not y.data_ptr()")):
            launch(x, x.data_ptr(), 3)


def test_checks_know_what_lies_at_an_address() -> None:
    x, y = torch.arange(4.0), torch.zeros(3)
    with rawkern.check():
        MODULE.affine((1,), (32,), (x.data_ptr(), y.data_ptr(), 3))
        with pytest.raises(rawkern.OutOfBoundsError, match=re.escape("writes y[")):
            MODULE.affine((1,), (32,), (x.data_ptr(), y.data_ptr(), 4))


@pytest.mark.gpu
def test_memory_of_cupy() -> None:
    import cupy

    x, y = cupy.arange(10, dtype=cupy.float32), cupy.cuda.alloc(40)
    MODULE.affine((1,), (32,), (x, y, 10))
    assert (cupy.ndarray((10,), cupy.float32, y) == 3 * x - 8).all()


@pytest.mark.gpu
def test_pinned_tensors_beside_cuda_ones() -> None:
    for k in range(2):
        x, y = torch.arange(10.0).pin_memory(), torch.empty(10, device="cuda")
        pair = (x, y) if k == 0 else (x.cuda(), torch.empty(10).pin_memory())
        MODULE.affine.forall(10)(*pair, 10)
        torch.cuda.synchronize()
        assert torch.equal(pair[1].cpu(), 3 * torch.arange(10.0) - 8)
    with pytest.raises(ValueError, match="a launch runs on one device"):
        MODULE.affine.forall(10)(torch.arange(10.0), y, 10)


def test_a_cooperative_grid_shrinks(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_grid, "MAX_WARPS", 8)
    kernel = RawKernel(GRID_SYNC, "reverse_add", (), "nvcc", enable_cooperative_groups=True)
    n = 1000
    a, b = torch.arange(1.0 * n, device=device), torch.rand(n, device=device)
    blocks = 5 if device == "cpu" else 1_000_000
    y = torch.full((n,), torch.nan, device=device)
    with pytest.warns(UserWarning, match=rf"reverse_add: the device holds \d+ of the {blocks} blocks") as caught:
        kernel((blocks,), (64,), (a, b, y, n))
    assert torch.equal(y, a + b) and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel((2,), (64,), (a, b, y, n))
        for launch in (kernel[blocks, 64], lambda *args: kernel((blocks // 5, 5), (64,), args)):
            with pytest.raises(LaunchError, match="a cooperative launch"):
                launch(a, b, y, n)


def test_parts_left_out(device: str) -> None:
    """As torch's kernels have them: one block of one thread, no arguments."""
    x = torch.zeros(1, dtype=torch.int32, device=device)
    MODULE.mark(args=[x])
    assert x.item() == 42
    blocks, threads = torch.zeros(2, dtype=torch.int32, device=device).unbind()
    MODULE.count(grid=(2, 1, 1), args=(blocks, threads))
    MODULE.count((1,), args=(blocks, threads), block=(3, 1, 1))
    MODULE.count(2, 2, [blocks, threads], 16, None)
    assert (int(blocks), int(threads)) == (5, 9)
    for launch in (MODULE.nothing, lambda: MODULE.nothing((2, 1, 1), (3, 1, 1)), lambda: MODULE.nothing(args=None)):
        launch()
    with pytest.raises(TypeError, match="count takes 2 arguments, 0 were given"):
        MODULE.count()
    for form, named in (
        ((x,), {}),
        ((1, 1, x), {}),
        ((1, 1, (x,), 0, None, 1), {}),
        ((1, 1, (x,), 8), {"shared_mem": 4}),
        ((1,), {"grid": 1}),
        ((), {"x": x}),
    ):
        with pytest.raises(TypeError, match="mark: a launch is kernel"):
            MODULE.mark(*form, **named)
