"""Loops whose warps take turns along memory: which they are, and that every warp still does all of its own."""

from __future__ import annotations

import itertools
import re

import pytest
import torch

import rawkern
from rawkern.base import llvm
from rawkern.compile.programs import compile_program
from rawkern.compile.source import CPU_ARCH, from_text
from rawkern.engines.cpu.analysis import control_flow
from rawkern.engines.cpu.analysis.row_loops import SHORT, TURN_EVERY, row_loops
from rawkern.engines.cpu.checker.instrument import Checker
from rawkern.engines.cpu.emit.instrument import Instrument
from rawkern.engines.cpu.ptx import parser
from rawkern.engines.cpu.runtime import jit

CODE = r"""
#define REDUCE __shared__ double part[32]; for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d); \
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s; __syncthreads(); \
    if (threadIdx.x == 0) { for (int w = 1; w < blockDim.x / 32; w++) s += part[w]; out[blockIdx.x] = s; }
extern "C" __global__ void stretch(int n, const float* x, double* out) {
    double s = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[i] * (1 + i % 3);
    REDUCE
}
extern "C" __global__ void grid_stride(int n, const float* x, double* out) {
    double s = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i] * (1 + i % 3);
    REDUCE
}
extern "C" __global__ void uneven(int n, const float* x, double* out) {   // each warp has its own number of turns
    double s = 0;
    int warp = threadIdx.x / 32;
    if (warp != 1)
        for (int i = threadIdx.x; i < n / (warp + 1); i += blockDim.x) {
            if (x[i] > 1.5f && warp == 2) break;
            s += x[i] * (1 + i % 3);
        }
    REDUCE
}
extern "C" __global__ void own_rows(int n, const float* x, double* out) {   // a row for each warp: nothing to share
    double s = 0;
    for (int i = threadIdx.x % 32; i < n; i += 32) s += x[threadIdx.x / 32 * n + i];
    REDUCE
}
extern "C" __global__ void in_shared(int n, const float* x, double* out) {
    __shared__ float tile[256];
    double s = 0;
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) s += tile[i];
    REDUCE
}
extern "C" __global__ void with_barrier(int n, const float* x, double* out) {
    double s = 0;
    for (int i = 0; i < n; i += blockDim.x) { s += x[i + threadIdx.x]; __syncthreads(); }
    REDUCE
}
"""
TWICE = r"""
extern "C" __global__ void centered(int n, const float* x, float* y) {   // x is read once more, and y for the first time
    __shared__ float part[8];
    x += (size_t)blockIdx.x * n, y += (size_t)blockIdx.x * n;
    float s = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[i];
    for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
    __syncthreads();
    s = 0;
    for (int w = 0; w < blockDim.x / 32; w++) s += part[w];
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] - s / n;
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] *= 2;
}
extern "C" __global__ void pairs(int n, const double2* x, double* y) {
    __shared__ double part[8];
    double s = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i].x * x[i].y;
    for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x == 0) for (int w = y[blockIdx.x] = 0; w < blockDim.x / 32; w++) y[blockIdx.x] += part[w];
}
"""
PLAIN = r"""
extern "C" __global__ void once(int n, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * 2;
}
extern "C" __global__ void halves(int n, const short* x, short* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * 2;
}
extern "C" __global__ void block_sums(int n, const short* x, int* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int sum = __syncthreads_count(i < n && x[i]);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
extern "C" __global__ void strided(int n, const float* x, float* y) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i] * 2;
}
extern "C" __global__ void inner(int n, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float s = 0;
    #pragma unroll 1
    for (int k = 0; k < n; k++) s += x[k * 64 + i];
    y[i] = s;
}
"""
MODULE = rawkern.RawModule(code=CODE)


@pytest.mark.parametrize(
    ("kernel", "found"),
    [("stretch", 1), ("grid_stride", 1), ("uneven", 1), ("own_rows", 0), ("in_shared", 0), ("with_barrier", 0)],
)
def test_which_loops_go_along_rows(kernel, found):
    ptx = parser.parse(compile_program(from_text(CODE), CPU_ARCH).ptx)
    assert len(row_loops(control_flow.build(ptx.functions[kernel]))) == found


@pytest.mark.parametrize("kernel", ["stretch", "grid_stride", "uneven"])
@pytest.mark.parametrize(("n", "blocks", "threads"), [(50_000, 3, 256), (4099, 2, 96), (700, 1, 32), (33, 1, 128)])
def test_every_warp_reads_its_part(device, kernel, n, blocks, threads):
    x = torch.rand(n, generator=torch.Generator().manual_seed(n)) + (torch.arange(n) > n * 0.9)
    out = torch.full((blocks,), float("nan"), dtype=torch.float64, device=device)
    MODULE.get_function(kernel)[blocks, threads](n, x.to(device), out)
    i = torch.arange(n)
    values = (x * (1 + i % 3)).double()
    if kernel == "grid_stride":
        want = torch.stack([values[i // threads % blocks == b].sum() for b in range(blocks)])
    elif kernel == "stretch":
        want = values.sum().expand(blocks)
    else:
        want = torch.zeros((), dtype=torch.float64)
        for thread in range(threads):
            warp = thread // 32
            mine = torch.arange(thread, max(thread, n // (warp + 1)), threads)
            if warp == 2 and (x[mine] > 1.5).any():
                mine = mine[: int((x[mine] > 1.5).int().argmax())]
            want += values[mine].sum() if warp != 1 else 0
        want = want.expand(blocks)
    torch.testing.assert_close(out.cpu(), want, rtol=1e-12, atol=0)


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("waits", ["if (__syncthreads_or(s < 0))", "__syncthreads(); if (s < 0)"])
def test_warps_take_turns_after_a_while(waits: str) -> None:
    """Each goes on alone for a short loop, and then for a few rounds at a time: on stacks of their own, or in rounds."""
    code = r"""extern "C" __global__ void turns(int n, const float* x, int* ticket, int* who) {
        float s = 0;
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            s += x[i];
            if (threadIdx.x % 32 == 0) who[atomicAdd(ticket, 1)] = threadIdx.x / 32;
        }
        WAITS ticket[0] = -1;
    }""".replace("WAITS", waits)
    rounds = SHORT + 3 * TURN_EVERY
    who = torch.full((2 * rounds,), -7, dtype=torch.int32)
    rawkern.RawKernel(code)[1, 64](64 * rounds, torch.rand(64 * rounds), torch.zeros(1, dtype=torch.int32), who)
    runs = [(warp, len(list(same))) for warp, same in itertools.groupby(who.tolist())]
    assert runs == [(warp, many) for many in (SHORT, *[TURN_EVERY] * 3) for warp in (0, 1)]


def prefetches(code: str, kernel: str, instrument: type[Instrument] = Instrument) -> tuple[int, int]:
    """How many lines of memory a kernel asks for ahead, to read and to write."""
    translation = jit.Translation(compile_program(from_text(code), CPU_ARCH).ptx)
    text = translation.lower(kernel, translation.globals(), "line", jit.host(), instrument).text
    calls = [line.rsplit(", i32 ", 3)[1] for line in text.splitlines() if "call void @llvm.prefetch" in line]
    copies = 2 if re.search(r"label %w\d", text) else 1  # small kernels are there for whole warps as well
    return calls.count("0") // copies, calls.count("1") // copies


@pytest.mark.parametrize(
    ("code", "kernel", "lines"),
    [
        (CODE, "stretch", (2, 0)),
        (CODE, "grid_stride", (2, 0)),
        (CODE, "own_rows", (0, 0)),
        (CODE, "in_shared", (2, 0)),
        (TWICE, "centered", (2, 2)),
        (TWICE, "pairs", (8, 0)),
        (PLAIN, "once", (0, 0)),
        (PLAIN, "block_sums", (1, 0)),
        (PLAIN, "strided", (2, 2)),
        (PLAIN, "inner", (0, 0)),
    ],
)
def test_memory_is_asked_for_ahead_once(code, kernel, lines):
    """A warp's 32 elements take so many lines; what an earlier loop has touched is in the cache."""
    for effort in (llvm.QUICK, llvm.FULL):
        with llvm.optimization.scoped(effort):
            assert prefetches(code, kernel) == lines
            assert prefetches(code, kernel, Checker) == (0, 0)


@pytest.mark.parametrize(("n", "blocks", "threads"), [(1000, 40, 256), (33, 3, 64), (31, 2, 32), (4100, 5, 96)])
def test_results_beside_what_is_asked_for(device, n, blocks, threads):
    """The last blocks ask for memory past the end of the tensors."""
    module = rawkern.RawModule(code=TWICE)
    x = torch.randn(blocks, n, generator=torch.Generator().manual_seed(n))
    y = torch.full((blocks, n), float("nan"), device=device)
    module.centered[blocks, threads](n, x.to(device), y)
    mean = x.double().mean(1, keepdim=True)
    torch.testing.assert_close(y.cpu().double(), 2 * (x - mean), rtol=1e-5, atol=1e-5)
    pairs = torch.rand(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(n + 1))
    out = torch.full((blocks,), float("nan"), dtype=torch.float64, device=device)
    module.pairs[blocks, threads](n, pairs.to(device), out)
    block = torch.arange(n) // threads % blocks
    want = torch.zeros(blocks, dtype=torch.float64).index_add_(0, block, pairs.prod(1))
    torch.testing.assert_close(out.cpu(), want, rtol=1e-12, atol=0)


def test_lines_are_stored_upwards():
    """What a warp stores takes two lines of the cache here, the first of them first; an access that is none stays whole."""
    translation = jit.Translation(compile_program(from_text(PLAIN), CPU_ARCH).ptx)
    lines = translation.lower("once", translation.globals(), "line", jit.host()).text.splitlines()
    stores = [k for k, line in enumerate(lines) if "store <16 x i32>" in line]
    assert stores and len(stores) % 2 == 0
    for first, second in zip(stores[::2], stores[1::2], strict=True):
        assert "inttoptr" in lines[first - 1] and lines[second - 1].endswith("i64 64")
    short = translation.lower("halves", translation.globals(), "line", jit.host()).text
    assert "store <32 x i16>" in short and "store <16 x i16>" not in short
