"""CuTe's headers from NVIDIA's package: copy and MMA atoms for compute capability 8.0 and 9.0, on both engines."""

from __future__ import annotations

import time
from importlib.util import find_spec

import pytest
import torch

import rawkern

pytestmark = pytest.mark.skipif(find_spec("cutlass_library") is None, reason="needs pip install rawkern[cutlass]")

SM80 = r"""
#include <cute/tensor.hpp>
using namespace cute;
extern "C" __global__ void multiply(const half_t* a, const half_t* b, float* c) {  // 32 x 32 of one block, 64 of K
    __shared__ __align__(16) half_t sa[32 * 64], sb[32 * 64];
    auto tile = composition(Swizzle<3, 3, 3>{}, Layout<Shape<_32, _64>, Stride<_64, _1>>{});
    Tensor A = make_tensor(make_gmem_ptr(a), Layout<Shape<_32, _64>, Stride<_64, _1>>{});
    Tensor B = make_tensor(make_gmem_ptr(b), Layout<Shape<_32, _64>, Stride<_64, _1>>{});
    Tensor C = make_tensor(make_gmem_ptr(c), Layout<Shape<_32, _32>, Stride<_32, _1>>{});
    Tensor SA = make_tensor(make_smem_ptr(sa), tile);
    Tensor SB = make_tensor(make_smem_ptr(sb), tile);
    auto load = make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEALWAYS<uint128_t>, half_t>{},
                                Layout<Shape<_16, _8>, Stride<_8, _1>>{}, Layout<Shape<_1, _8>>{});
    auto mine = load.get_slice(threadIdx.x);
    copy(load, mine.partition_S(A), mine.partition_D(SA));
    copy(load, mine.partition_S(B), mine.partition_D(SB));
    cp_async_fence();
    cp_async_wait<0>();
    __syncthreads();
    auto mma = make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN{}, Layout<Shape<_2, _2>>{}, Tile<_32, _32, _16>{});
    auto part = mma.get_slice(threadIdx.x);
    Tensor RA = part.partition_fragment_A(SA);
    Tensor RB = part.partition_fragment_B(SB);
    Tensor D = part.partition_fragment_C(C);
    auto rows = make_tiled_copy_A(Copy_Atom<SM75_U32x4_LDSM_N, half_t>{}, mma);
    auto columns = make_tiled_copy_B(Copy_Atom<SM75_U32x4_LDSM_N, half_t>{}, mma);
    auto r = rows.get_slice(threadIdx.x);
    auto s = columns.get_slice(threadIdx.x);
    copy(rows, r.partition_S(SA), r.retile_D(RA));
    copy(columns, s.partition_S(SB), s.retile_D(RB));
    clear(D);
    gemm(mma, RA, RB, D);
    copy(D, part.partition_C(C));
}"""
SM90 = r"""
#include <cute/tensor.hpp>
using namespace cute;
extern "C" __global__ void multiply(const half_t* a, const half_t* b, float* c) {  // 64 x 32 of one block, 64 of K
    __shared__ __align__(128) half_t sa[64 * 64], sb[32 * 64];
    auto rows = tile_to_shape(GMMA::Layout_K_INTER_Atom<half_t>{}, Shape<_64, _64>{});
    auto columns = tile_to_shape(GMMA::Layout_K_INTER_Atom<half_t>{}, Shape<_32, _64>{});
    Tensor A = make_tensor(make_gmem_ptr(a), Layout<Shape<_64, _64>, Stride<_64, _1>>{});
    Tensor B = make_tensor(make_gmem_ptr(b), Layout<Shape<_32, _64>, Stride<_64, _1>>{});
    Tensor C = make_tensor(make_gmem_ptr(c), Layout<Shape<_64, _32>, Stride<_32, _1>>{});
    Tensor SA = make_tensor(make_smem_ptr(sa), rows);
    Tensor SB = make_tensor(make_smem_ptr(sb), columns);
    for (int i = threadIdx.x; i < 64 * 64; i += 128) SA(i / 64, i % 64) = A(i / 64, i % 64);
    for (int i = threadIdx.x; i < 32 * 64; i += 128) SB(i / 64, i % 64) = B(i / 64, i % 64);
    cutlass::arch::fence_view_async_shared();
    __syncthreads();
    auto mma = make_tiled_mma(SM90_64x32x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::K>{});
    auto part = mma.get_slice(threadIdx.x);
    Tensor FA = part.make_fragment_A(part.partition_A(SA));
    Tensor FB = part.make_fragment_B(part.partition_B(SB));
    Tensor D = part.partition_fragment_C(C);
    mma.accumulate_ = GMMA::ScaleOut::Zero;
    warpgroup_fence_operand(D);
    warpgroup_arrive();
    for (int k = 0; k < size<2>(FA); k++) {
        gemm(mma, FA(_, _, k), FB(_, _, k), D);
        mma.accumulate_ = GMMA::ScaleOut::One;
    }
    warpgroup_commit_batch();
    warpgroup_wait<0>();
    warpgroup_fence_operand(D);
    copy(D, part.partition_C(C));
}""".replace("<cute/tensor.hpp>", "<cute/tensor.hpp>\n#include <cutlass/arch/barrier.h>")


@pytest.mark.parametrize(("source", "m"), [(SM80, 32), (SM90, 64)], ids=["SM80", "SM90"])
def test_products(device: str, source: str, m: int) -> None:
    if device == "cuda" and m == 64 and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("this GPU has no wgmma")
    a, b = torch.randn(m, 64, device=device).half(), torch.randn(32, 64, device=device).half()
    c = torch.full((m, 32), float("nan"), device=device)
    rawkern.RawKernel(source)[1, 128](a, b, c)
    torch.testing.assert_close(c, a.float() @ b.float().T, rtol=1e-4, atol=1e-4)
    if device == "cpu":
        with rawkern.check():
            rawkern.RawKernel(source)[1, 128](a, b, c.fill_(float("nan")))
        torch.testing.assert_close(c, a.float() @ b.float().T, rtol=1e-4, atol=1e-4)


def test_headers_are_read_once() -> None:
    """Other sources that begin with the same headers compile without reading them again."""
    source = '#include <cute/tensor.hpp>\nextern "C" __global__ void f(float* x) { x[0] = cute::Int<%d>{}; }'
    times = []
    for k in range(4):
        start = time.process_time()
        rawkern.RawKernel(source % k).ptx()
        times.append(time.process_time() - start)
    assert times[3] < times[0] / 2 and times[3] < 2
