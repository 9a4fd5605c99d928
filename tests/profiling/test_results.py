"""Kernels of all kinds give under a profile what they give without."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import rawkern
from tests.checked import test_correct

CODE = r"""
#include <mma.h>
#include <cooperative_groups.h>
#include <cuda_pipeline.h>
using namespace nvcuda;
#define K extern "C" __global__ void
K tensor_cores(const half* a, const half* b, float* c) {
  __shared__ __align__(32) half s[256];
  for (int i = threadIdx.x; i < 256; i += 32) s[i] = a[i];
  __syncwarp();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> y;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> z;
  wmma::fill_fragment(z, 0.f);
  wmma::load_matrix_sync(x, s, 16);
  wmma::load_matrix_sync(y, b, 16);
  wmma::mma_sync(z, x, y, z);
  wmma::store_matrix_sync(c, z, 16, wmma::mem_row_major);
}
K rows(const half* a, unsigned* out) {
  __shared__ __align__(16) half s[256];
  for (int i = threadIdx.x; i < 256; i += 32) s[i] = a[i];
  __syncwarp();
  unsigned r[4], at = __cvta_generic_to_shared(s + threadIdx.x % 16 * 16 + threadIdx.x / 16 * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
  for (int k = 0; k < 4; k++) out[k * 32 + threadIdx.x] = r[k];
}
K copies(const float4* x, float4* y) {
  __shared__ float4 s[64];
  __pipeline_memcpy_async(&s[threadIdx.x], &x[threadIdx.x], 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  y[threadIdx.x] = s[63 - threadIdx.x];
}
K choices(const int* x, int* y) {
  int i = threadIdx.x, v = x[i];
  switch (x[i] % 7) {
    case 0: v *= 3; break; case 1: v = -v; break; case 2: v ^= 9; break; case 3: v += x[v % 64]; break;
    case 4: return; case 5: v = v << 2; break; default: v = 1;
  }
  y[i] = v;
}
__device__ __noinline__ int fact(int n) { return n < 2 ? 1 : n * fact(n - 1); }
K recursive(int* y) { y[threadIdx.x] = fact(threadIdx.x % 9); }
K grids(int* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = i;
  cooperative_groups::this_grid().sync();
  int v = y[n - 1 - i];
  cooperative_groups::this_grid().sync();
  y[i] = v * 2;
}
K heap(int* y) {
  int* p = (int*)malloc(8);
  p[0] = threadIdx.x; p[1] = 3;
  y[threadIdx.x] = p[0] * p[1];
  free(p);
}
"""
HALVES = (torch.randint(-4, 5, (256,), generator=torch.Generator().manual_seed(5)) / 2).half()
INTS = torch.randint(0, 1000, (64,), generator=torch.Generator().manual_seed(6), dtype=torch.int32)
LAUNCHES = {
    "tensor_cores": (1, 32, lambda: (HALVES, HALVES.flip(0), torch.zeros(256))),
    "rows": (1, 32, lambda: (HALVES, torch.zeros(128, dtype=torch.int32))),
    "copies": (1, 64, lambda: (torch.arange(256.0).view(64, 4), torch.zeros(64, 4))),
    "choices": (1, 64, lambda: (INTS, INTS * 0)),
    "recursive": (1, 64, lambda: (INTS * 0,)),
    "grids": (2, 32, lambda: (INTS * 0, 64)),
    "heap": (1, 64, lambda: (INTS * 0,)),
}


@pytest.fixture(scope="module")
def module():
    return rawkern.RawModule(CODE, enable_cooperative_groups=True)


def _same(kernel, grid, block, arguments):
    usual, profiled = arguments(), arguments()
    kernel[grid, block](*usual)
    with rawkern.profile() as report:
        kernel[grid, block](*profiled)
    for a, b in zip(usual, profiled, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    (launch,) = report.as_dict()["launches"]
    assert launch["counters"]["smsp__inst_executed.sum"] >= 4
    assert str(report)
    return launch


@pytest.mark.parametrize("name", LAUNCHES)
def test_instructions_of_all_kinds(module, name):
    launch = _same(module.get_function(name), *LAUNCHES[name])
    counters = launch["counters"]
    if name == "rows":  # each matrix in a row of banks, but rows of 32 bytes: two wavefronts for eight of them
        assert counters["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] == 8
    if name == "copies":
        assert counters["l1tex__t_requests_pipe_lsu_mem_global_op_ldgsts.sum"] == 2
        assert counters["l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts.sum"] == 32
        assert counters["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"] == 0
        assert counters["memory_l1_wavefronts_shared"] == 2 * (4 + 4)
    if name == "choices":
        assert counters["smsp__sass_branch_targets_threads_divergent.sum"] >= 2
    if name == "tensor_cores":
        assert launch["distinct_sectors"]["c"] == 32


@pytest.fixture(scope="module")
def correct():
    spec = importlib.util.spec_from_file_location("correct", Path(test_correct.__file__).with_name("correct.py"))
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return rawkern.RawModule(code=found.CODE, options=("-default-device",))


@pytest.mark.parametrize("name", ["last_block", "flags", "named", "groups", "stages", "counted_copies"])
def test_waiting_kernels(correct, name):
    _same(getattr(correct, name), *test_correct.LAUNCHES[name])
