"""Kernels of many kinds: each counter is that of the addresses that plain Python finds their lanes to take."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import rawkern
from tests.engines.cpu.profiler.formulas import ARRAY, Request, summed, touched

CODE = r"""
#include <cuda_fp16.h>
#define K extern "C" __global__ void
K histogram(const unsigned char* x, unsigned* bins, int n) {
  __shared__ unsigned own[256];
  own[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&own[x[i]], 1u);
  __syncthreads();
  atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}
K scan(const float* x, float* y) {
  __shared__ float s[512];
  int t = threadIdx.x;
  s[2 * t] = x[blockIdx.x * 512 + 2 * t];
  s[2 * t + 1] = x[blockIdx.x * 512 + 2 * t + 1];
  int step = 1;
  for (int d = 256; d > 0; d >>= 1) {
    __syncthreads();
    if (t < d) {
      int a = step * (2 * t + 1) - 1, b = step * (2 * t + 2) - 1;
      s[b] += s[a];
    }
    step *= 2;
  }
  if (t == 0) s[511] = 0;
  for (int d = 1; d < 512; d *= 2) {
    step >>= 1;
    __syncthreads();
    if (t < d) {
      int a = step * (2 * t + 1) - 1, b = step * (2 * t + 2) - 1;
      float v = s[a];
      s[a] = s[b];
      s[b] += v;
    }
  }
  __syncthreads();
  y[blockIdx.x * 512 + 2 * t] = s[2 * t];
  y[blockIdx.x * 512 + 2 * t + 1] = s[2 * t + 1];
}
K bodies(const float4* p, float4* a, int n) {
  __shared__ float4 s[128];
  int i = blockIdx.x * 128 + threadIdx.x;
  float4 own = p[i], sum = {0, 0, 0, 0};
  for (int tile = 0; tile < n; tile += 128) {
    s[threadIdx.x] = p[tile + threadIdx.x];
    __syncthreads();
#pragma unroll 1
    for (int k = 0; k < 128; k++) {
      float dx = s[k].x - own.x, dy = s[k].y - own.y, dz = s[k].z - own.z;
      float d = dx * dx + dy * dy + dz * dz + 1e-3f, w = s[k].w * rsqrtf(d * d * d);
      sum.x += dx * w, sum.y += dy * w, sum.z += dz * w;
    }
    __syncthreads();
  }
  a[i] = sum;
}
K stencil(const float* x, float* y, int n) {
  __shared__ float s[10][34];
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;
  for (int j = threadIdx.y; j < 10; j += 8)
    for (int i = threadIdx.x; i < 34; i += 32) {
      int cc = min(max(int(blockIdx.x * 32) + i - 1, 0), n - 1), rr = min(max(int(blockIdx.y * 8) + j - 1, 0), n - 1);
      s[j][i] = x[rr * n + cc];
    }
  __syncthreads();
  int i = threadIdx.x + 1, j = threadIdx.y + 1;
  y[r * n + c] = 0.2f * (s[j][i] + s[j - 1][i] + s[j + 1][i] + s[j][i - 1] + s[j][i + 1]);
}
K topk(const float* x, float* y, int k) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = x[blockIdx.x * 256 + t];
  for (int size = 2; size <= 256; size *= 2)
    for (int step = size / 2; step; step /= 2) {
      __syncthreads();
      int o = t ^ step;
      if (o > t) {
        float a = s[t], b = s[o];
        bool up = !(t & size);
        if ((a < b) == up) s[t] = b, s[o] = a;
      }
    }
  __syncthreads();
  if (t < k) y[blockIdx.x * k + t] = s[t];
}
K special(const float4* x, float4* y, int rounds) {
  __shared__ float4 s[2][96];
  int w = threadIdx.x / 32, t = threadIdx.x - 32;
  for (int r = 0; r < rounds; r++) {
    int b = r & 1;
    if (w == 0) {
      for (int k = threadIdx.x; k < 96; k += 32) s[b][k] = x[(blockIdx.x * rounds + r) * 96 + k];
    }
    __syncthreads();
    if (w > 0) {
      float4 v = s[b][t];
      v.x *= 2, v.y *= 2, v.z *= 2, v.w *= 2;
      y[(blockIdx.x * rounds + r) * 96 + t] = v;
    }
  }
}
K axpy2(const __half2* x, __half2* y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __hfma2(__float2half2_rn(a), x[i], y[i]);
}
K dot8(const int* a, const int* b, int* out, int n) {
  int sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    sum = __dp4a(a[i], b[i], sum);
  for (int k = 16; k; k >>= 1) sum += __shfl_xor_sync(~0u, sum, k);
  if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}
K scatter(const int* at, const double* v, double* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&out[at[i]], v[i]);
}
__device__ __noinline__ float tree(int n) { return n < 2 ? n + 0.5f : tree(n - 1) * 1.5f + tree(n - 2); }
K recursion(float* y) { y[blockIdx.x * 32 + threadIdx.x] = tree(threadIdx.x % 4 + 3); }
"""
GENERATOR = torch.Generator().manual_seed(1)
Requests = Iterator[Request]


def warps(threads: int) -> Iterator[range]:
    """The threads of each warp of a block."""
    return (range(first, min(first + 32, threads)) for first in range(0, threads, 32))


def at(array: int, warp: range, elements: list[int | None], size: int) -> dict[int, int]:
    """The addresses of a warp's lanes, by the element that each takes; None for those that are idle."""
    taken = zip(warp, elements, strict=True)
    return {t % 32: array * ARRAY + size * element for t, element in taken if element is not None}


def histogram(x: torch.Tensor, bins: torch.Tensor, n: int) -> Requests:
    values = x.tolist()
    for block in range(16):
        for warp in warps(256):
            yield "st", "shared", 4, at(0, warp, [t for t in warp], 4)
            for first in range(block * 256, n, 16 * 256):
                yield "ld", "global", 1, at(0, warp, [first + t for t in warp], 1)
                yield "red", "shared", 4, at(0, warp, [values[first + t] for t in warp], 4)
            yield "ld", "shared", 4, at(0, warp, [t for t in warp], 4)
            yield "red", "global", 4, at(1, warp, [t for t in warp], 4)


def scan(x: torch.Tensor, y: torch.Tensor) -> Requests:
    def tree(warp: range, d: int, step: int) -> tuple[dict[int, int], ...]:
        return tuple(at(0, warp, [step * (2 * t + k) - 1 if t < d else None for t in warp], 4) for k in (1, 2))

    for block in range(8):
        for warp in warps(256):
            for k in range(2):
                for op, array in (("ld", 0), ("st", 1)):
                    yield op, "global", 4, at(array, warp, [block * 512 + 2 * t + k for t in warp], 4)
                    yield "st" if op == "ld" else "ld", "shared", 4, at(0, warp, [2 * t + k for t in warp], 4)
            yield "st", "shared", 4, at(0, warp, [511 if t == 0 else None for t in warp], 4)
            for level in range(9):
                a, b = tree(warp, 256 >> level, 1 << level)
                yield from (("ld", "shared", 4, a), ("ld", "shared", 4, b), ("st", "shared", 4, b))
                a, b = tree(warp, 1 << level, 256 >> level)
                yield from (("ld", "shared", 4, a), ("ld", "shared", 4, b))
                yield from (("st", "shared", 4, a), ("st", "shared", 4, b))


def bodies(p: torch.Tensor, a: torch.Tensor, n: int) -> Requests:
    for block in range(4):
        for warp in warps(128):
            yield "ld", "global", 16, at(0, warp, [block * 128 + t for t in warp], 16)
            for tile in range(0, n, 128):
                yield "ld", "global", 16, at(0, warp, [tile + t for t in warp], 16)
                yield "st", "shared", 16, at(0, warp, [t for t in warp], 16)
                for k in range(128):
                    yield "ld", "shared", 16, at(0, warp, [k for t in warp], 16)
            yield "st", "global", 16, at(1, warp, [block * 128 + t for t in warp], 16)


def stencil(x: torch.Tensor, y: torch.Tensor, n: int) -> Requests:
    for bx in range(4):
        for by in range(16):
            for row in range(8):
                warp = range(32)
                for j in range(row, 10, 8):
                    r = min(max(by * 8 + j - 1, 0), n - 1)
                    for i in (0, 32):
                        live = range(32) if i == 0 else range(2)
                        column = [min(max(bx * 32 + i + t - 1, 0), n - 1) for t in live]
                        yield "ld", "global", 4, at(0, live, [r * n + column[t] for t in live], 4)
                        yield "st", "shared", 4, at(0, live, [j * 34 + i + t for t in live], 4)
                for down, right in ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2)):
                    yield "ld", "shared", 4, at(0, warp, [(row + down) * 34 + t + right for t in warp], 4)
                yield "st", "global", 4, at(1, warp, [(by * 8 + row) * n + bx * 32 + t for t in warp], 4)


def topk(x: torch.Tensor, y: torch.Tensor, k: int) -> Requests:
    for block in range(8):
        s = x[block * 256 :][:256].tolist()
        for warp in warps(256):
            yield "ld", "global", 4, at(0, warp, [block * 256 + t for t in warp], 4)
            yield "st", "shared", 4, at(0, warp, [t for t in warp], 4)
            yield "ld", "shared", 4, at(0, warp, [t if t < k else None for t in warp], 4)
            yield "st", "global", 4, at(1, warp, [block * k + t if t < k else None for t in warp], 4)
        size = 2
        while size <= 256:
            step = size // 2
            while step:
                swap = {t for t in range(256) if t ^ step > t and (s[t] < s[t ^ step]) == (not t & size)}
                for warp in warps(256):
                    for other in (0, step):
                        yield "ld", "shared", 4, at(0, warp, [t ^ other if t ^ step > t else None for t in warp], 4)
                        yield "st", "shared", 4, at(0, warp, [t ^ other if t in swap else None for t in warp], 4)
                for t in swap:
                    s[t], s[t ^ step] = s[t ^ step], s[t]
                step //= 2
            size *= 2


def special(x: torch.Tensor, y: torch.Tensor, rounds: int) -> Requests:
    for row in range(4 * rounds):
        own = row % rounds % 2 * 96
        for k in range(0, 96, 32):
            yield "ld", "global", 16, at(0, range(32), [row * 96 + k + t for t in range(32)], 16)
            yield "st", "shared", 16, at(0, range(32), [own + k + t for t in range(32)], 16)
            yield "ld", "shared", 16, at(0, range(32), [own + k + t for t in range(32)], 16)
            yield "st", "global", 16, at(1, range(32), [row * 96 + k + t for t in range(32)], 16)


def axpy2(x: torch.Tensor, y: torch.Tensor, a: float, n: int) -> Requests:
    for warp in warps(n):
        yield "ld", "global", 4, at(0, warp, [t for t in warp], 4)
        yield "ld", "global", 4, at(1, warp, [t for t in warp], 4)
        yield "st", "global", 4, at(1, warp, [t for t in warp], 4)


def dot8(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, n: int) -> Requests:
    for warp in warps(n):
        yield "ld", "global", 4, at(0, warp, [t for t in warp], 4)
        yield "ld", "global", 4, at(1, warp, [t for t in warp], 4)
    for warp in warps(2048):
        yield "red", "global", 4, at(2, warp, [None if t % 32 else 0 for t in warp], 4)


def scatter(index: torch.Tensor, v: torch.Tensor, out: torch.Tensor, n: int) -> Requests:
    where = index.tolist()
    for warp in warps(n):
        yield "ld", "global", 4, at(0, warp, [t for t in warp], 4)
        yield "ld", "global", 8, at(1, warp, [t for t in warp], 8)
        yield "red", "global", 8, at(2, warp, [where[t] for t in warp], 8)


def recursion(y: torch.Tensor) -> Requests:
    for warp in warps(128):
        yield "st", "global", 4, at(0, warp, [t for t in warp], 4)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(dtype)


def integers(high: int, count: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.randint(0, high, (count,), dtype=dtype, generator=GENERATOR)


def sums(*names: int) -> dict[str, int]:
    """Lanes of floating-point operations."""
    kinds = ("fadd", "fmul", "ffma", "hfma")
    return {f"smsp__sass_thread_inst_executed_op_{k}_pred_on.sum": n for k, n in zip(kinds, names, strict=True)}


def leaves(n: int) -> int:
    return 1 if n < 2 else leaves(n - 1) + leaves(n - 2)


N, TREES = 1 << 14, sum(leaves(t % 4 + 3) for t in range(128))
LAUNCHES: dict[str, tuple[Callable[..., Requests], Any, Any, Any, tuple[int, ...]]] = {
    "histogram": (histogram, 16, 256, lambda: (integers(256, N, torch.uint8), torch.zeros(256).to(torch.uint32), N),
                  (0, 0, 0, 0)),
    "scan": (scan, 8, 256, lambda: (random(4096), torch.zeros(4096)), (2 * 8 * 511, 0, 0, 0)),
    "bodies": (bodies, 4, 128, lambda: (random(512, 4), torch.zeros(512, 4), 512),
               tuple(512 * 512 * n for n in (4, 4, 5, 0))),
    "stencil": (stencil, (4, 16), (32, 8), lambda: (random(128, 128), torch.zeros(128, 128), 128),
                (128 * 128 * 4, 128 * 128, 0, 0)),
    "topk": (topk, 8, 256, lambda: (random(2048), torch.zeros(80), 10), (0, 0, 0, 0)),
    "special": (special, 4, 128, lambda: (random(4 * 6 * 96, 4), torch.zeros(4 * 6 * 96, 4), 6),
                (4 * 4 * 6 * 96, 0, 0, 0)),  # v * 2 is v + v
    "axpy2": (axpy2, 8, 256, lambda: (random(2000, 2, dtype=torch.half), random(2000, 2, dtype=torch.half), 2.0, 2000),
              (0, 0, 0, 2000)),
    "dot8": (dot8, 8, 256, lambda: (integers(1 << 30, N), integers(1 << 30, N), torch.zeros(1).int(), N), (0, 0, 0, 0)),
    "scatter": (scatter, 8, 256, lambda: (integers(50, 2000), random(2000).double(), torch.zeros(50).double(), 2000),
                (0, 0, 0, 0)),
    "recursion": (recursion, 4, 32, lambda: (torch.zeros(128),), (TREES, 0, TREES - 128, 0)),
}  # fmt: skip


#: All that is to be said of them, and a part of it.
FINDINGS = {
    "histogram": {"bank_conflicts", "scalar_accesses"},
    "scan": {"bank_conflicts", "array_of_structs"},
    "stencil": {"misaligned"},  # of the halo
    "topk": {"divergent_branch"},
    "axpy2": {"scalar_accesses"},
    "dot8": {"scalar_accesses"},
    "recursion": {"divergent_branch"},
}
REMEDIES = {
    "histogram": "data-dependent addresses of lanes share banks",
    "scan": "load a lane's 8 bytes at once, for example as float2",
    "stencil": "loads of x touch 1,120 sectors where 640 would do: warps do not start at a multiple of 32 bytes",
}


@pytest.fixture(scope="module")
def module():
    return rawkern.RawModule(CODE)


@pytest.mark.parametrize("name", LAUNCHES)
def test_counters_are_those_of_the_addresses(module, name):
    requests, grid, block, arguments, floats = LAUNCHES[name]
    given = arguments()
    expected = list(requests(*given))
    with rawkern.profile() as report:
        module.get_function(name)[grid, block](*given)
    (launch,) = report.as_dict()["launches"]
    found = {k: v for k, v in launch["counters"].items() if re.search("global|shared|atomic_conflicts", k) and v}
    assert found == summed(expected)
    assert {k: launch["counters"][k] for k in sums(*floats)} == sums(*floats)
    assert sorted(launch["distinct_sectors"].values()) == sorted(touched(expected).values())
    assert {finding.kind for finding in report.findings} == FINDINGS.get(name, set())
    assert REMEDIES.get(name, "") in str(report)
