"""Uninitialized memory: what it holds, where, and that a forgotten barrier shows in each launch."""

from __future__ import annotations

import contextlib

import pytest
import torch

import rawkern
from rawkern.engines.cpu.checker.guard import FILLED
from rawkern.engines.cpu.checker.pattern import NEGATIVE, POSITIVE

N = 256


@pytest.mark.parametrize("pattern", [POSITIVE, NEGATIVE])
def test_the_pattern_is_a_nan_of_every_width(pattern: int) -> None:
    word = torch.tensor([pattern - (1 << 64) if pattern >> 63 else pattern])
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert word.view(dtype).isnan().all(), dtype
    assert pattern >> 51 & 1 == 0  # signaling, as a double
    assert (word.view(torch.int32).abs() > 1 << 19).all()  # an index far outside
    assert (word.view(torch.int8) != 0).all()
    assert pattern >> 47 not in (0, 0x1FFFF)  # no address of a process


KERNELS = rawkern.RawModule(r"""
extern "C" {
__global__ void fixed(unsigned* out) {
    __shared__ unsigned s[67];
    for (int i = threadIdx.x; i < 67; i += 32) { out[blockIdx.x * 67 + i] = s[i]; s[i] = 3; }
}
__global__ void dynamic(unsigned* out) {
    extern __shared__ unsigned s[];
    for (int i = threadIdx.x; i < 67; i += 32) { out[blockIdx.x * 67 + i] = s[i]; s[i] = 3; }
    __syncthreads();
}
__global__ void heap(unsigned* out, int n) {
    if (threadIdx.x) return;
    for (int turn = 0; turn < 2; turn++) {
        unsigned* p = (unsigned*)malloc(4 * n);
        for (int i = 0; i < n; i++) { out[i] = p[i]; p[i] = 3; }
        free(p);
    }
}
__global__ void local(unsigned* out, int n) {
    unsigned a[67];
    if (n > 67) for (int i = 0; i < n; i++) a[i] = out[i];
    for (int i = 0; i < n; i++) { out[i] = a[i]; a[i] = out[i] + 1; }
    out[0] = a[0] - 1;
}
}""")


def uninitialized(name: str, grid: int, size: int, *args: int, shared: int = 0) -> torch.Tensor:
    """What a kernel finds where nothing is set, as hexadecimal 32-bit words; uses of it may raise."""
    out = torch.zeros(grid * size, dtype=torch.int32)
    for _ in range(4):
        with contextlib.suppress(rawkern.UninitializedReadError):
            KERNELS.get_function(name)[grid, 32, shared](out, *args)
    return out.view(grid, size)


def low(pattern: int) -> int:
    word = pattern & 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


@pytest.mark.parametrize("level", ["bounds", "full"])
@pytest.mark.parametrize(("name", "shared"), [("fixed", 0), ("dynamic", 67 * 4)])
def test_shared_memory_of_each_block(level: str, name: str, shared: int) -> None:
    """Also of one that comes after another, in the memory of that."""
    with rawkern.check(level=level):
        found = uninitialized(name, 500, 67, shared=shared)
    assert (found[::2] == low(POSITIVE)).all() and (found[1::2] == low(NEGATIVE)).all()


@pytest.mark.parametrize("n", [1, 3, 16, 17, 1000])
def test_memory_from_malloc(n: int) -> None:
    with rawkern.check(level="full"):
        assert (uninitialized("heap", 1, n, n) == low(POSITIVE)).all()
    found = uninitialized("heap", 1, n, n)
    assert (found[0, : FILLED // 4] == low(POSITIVE)).all()


def test_local_memory() -> None:
    with rawkern.check(level="full"):
        assert (uninitialized("local", 1, 67, 67) == low(POSITIVE)).all()


def test_nothing_is_done_at_off() -> None:
    with rawkern.check(level="off"):
        assert (uninitialized("fixed", 500, 67) != low(POSITIVE)).all()


#: Kernels that forget a barrier: __syncthreads() belongs where BARRIER stands.
FORGOTTEN = r"""
extern "C" {
// What is left from the launch before is what this one writes.
__global__ void mirrored(const float* x, float* y) {
    __shared__ float s[256];
    s[threadIdx.x] = x[threadIdx.x];
    BARRIER
    y[threadIdx.x] = s[255 - threadIdx.x];
}
// The last warp comes when the others have been.
__global__ void summed(const float* x, float* y) {
    __shared__ float s[256];
    s[threadIdx.x] = x[threadIdx.x];
    BARRIER
    if (threadIdx.x < 224) return;
    float sum = 0;
    for (int i = 0; i < 256; i++) sum += s[i];
    y[threadIdx.x] = sum;
}
// The first warp sets what the others use.
__global__ void told(const float* x, float* y) {
    __shared__ float first;
    if (threadIdx.x == 0) first = x[0];
    BARRIER
    y[threadIdx.x] = x[threadIdx.x] - first;
}
// In global memory: each warp but the first takes what the one before has made.
__global__ void handed(const float* x, float* y) {
    if (threadIdx.x < 32) y[threadIdx.x] = x[threadIdx.x] + 1;
    BARRIER
    if (threadIdx.x >= 32 && threadIdx.x < 64) y[threadIdx.x] = y[threadIdx.x - 32] * 2;
    BARRIER
    if (threadIdx.x >= 64) y[threadIdx.x] = y[threadIdx.x % 32 + 32] + x[threadIdx.x];
}
// And between blocks, where no barrier would help: each takes what the one before has made.
__global__ void chained(const float* x, float* y) {
    y[blockIdx.x] = x[blockIdx.x] + (blockIdx.x ? y[blockIdx.x - 1] : 0);
}
}"""
FORGETS = rawkern.RawModule(FORGOTTEN, options=("-DBARRIER=",))
HAS = rawkern.RawModule(FORGOTTEN, options=("-DBARRIER=__syncthreads();",))
SEEDS = (0, 1, 2)


def results(module: rawkern.RawModule, name: str) -> list[torch.Tensor]:
    """What 20 launches give, each with an output of its own."""
    x, grid = torch.arange(256.0) + 1, (8, 1) if name == "chained" else (1, 256)
    kernel, found = module.get_function(name), []
    for _ in range(20):
        y = torch.full((256,), -1.0)
        kernel[grid](x, y)
        found.append(y)
    return found


def right(name: str) -> torch.Tensor:
    if name == "chained":
        return torch.cat([torch.arange(1.0, 9).cumsum(0), torch.full((248,), -1.0)])
    return results(HAS, name)[0]


def count_right(name: str, expected: torch.Tensor) -> int:
    return sum(torch.equal(y, expected) for y in results(FORGETS, name))


@pytest.mark.parametrize("name", ["mirrored", "summed", "told", "handed", "chained"])
def test_a_forgotten_barrier_shows_in_each_launch(name: str) -> None:
    expected = right(name)
    with rawkern.check(level="off"):
        assert count_right(name, expected) >= 19  # nothing looks at it
    shown = [count_right(name, expected)]
    for seed in SEEDS:
        with rawkern.order(seed):
            shown.append(count_right(name, expected))
            if name != "chained":
                assert all(torch.equal(y, expected) for y in results(HAS, name))
    assert set(shown) <= {0, 20}  # the same in each run
    assert shown[1] == 0 and shown.count(0) >= 3
    assert name != "mirrored" or shown == [0, 0, 0, 0]  # a pattern is enough
