"""``nvcuda::wmma``: every element type, shape, layout and memory space, and matrix products built on it; against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern

HEAD = """
#include <mma.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
using namespace nvcuda;
template <class L> struct Is { static constexpr bool row = false; };
template <> struct Is<wmma::row_major> { static constexpr bool row = true; };
"""
# One product: C loaded and D stored by rows or columns, all strides longer than the rows.
ONE = """
template <int M, int N, int K, class A, class LA, class LB, class C, class T>
__device__ void one(const T* a, const T* b, const C* c, C* d, bool columns) {
    wmma::fragment<wmma::matrix_a, M, N, K, A, LA> fa;
    wmma::fragment<wmma::matrix_b, M, N, K, A, LB> fb;
    wmma::fragment<wmma::accumulator, M, N, K, C> fc, fd;
    wmma::load_matrix_sync(fa, a, (Is<LA>::row ? K : M) + PAD);
    wmma::load_matrix_sync(fb, b, (Is<LB>::row ? N : K) + PAD);
    wmma::load_matrix_sync(fc, c, (columns ? M : N) + PAD, columns ? wmma::mem_col_major : wmma::mem_row_major);
    CHANGE
    wmma::mma_sync(fd, fa, fb, fc);
    for (int i = 0; i < fd.num_elements; i++) fd.x[i] = fd.x[i] + fd.x[i];
    wmma::store_matrix_sync(d, fd, (columns ? M : N) + PAD, columns ? wmma::mem_col_major : wmma::mem_row_major);
}
"""
SHAPES = [(16, 16, 16), (32, 8, 16), (8, 32, 16)]
LAYOUTS = [(a, b) for a in ("row", "col") for b in ("row", "col")]
#: element type in CUDA and memory, accumulator in CUDA and memory, shapes, change to A's elements, factor, tolerance
TYPES = {
    "f16": ("half", "half", torch.float16, "float", torch.float32, SHAPES, "fa.x[i] = __hneg(fa.x[i]);", -1, 1e-6),
    "f16 sums": ("half", "half", torch.float16, "half", torch.float16, SHAPES, "fa.x[i] = __hneg(fa.x[i]);", -1, 2e-3),
    "bf16": ("__nv_bfloat16", "__nv_bfloat16", torch.bfloat16, "float", torch.float32, SHAPES,
             "fa.x[i] = __float2bfloat16(2.0f * __bfloat162float(fa.x[i]));", 2, 1e-6),
    "tf32": ("wmma::precision::tf32", "float", torch.float32, "float", torch.float32, [(16, 16, 8)],
             "fa.x[i] = wmma::__float_to_tf32(3.0f * fa.x[i]);", 3, 2e-3),
    "f64": ("double", "double", torch.float64, "double", torch.float64, [(8, 8, 4)], "fa.x[i] *= -0.25;", -0.25, 1e-15),
    "s8": ("signed char", "signed char", torch.int8, "int", torch.int32, SHAPES, "fa.x[i] /= 2;", 0.5, 0),
    "u8": ("unsigned char", "unsigned char", torch.uint8, "int", torch.int32, SHAPES, "fa.x[i] /= 2;", 0.5, 0),
}  # fmt: skip


def matrix(rows: int, columns: int, dtype: torch.dtype, rng: np.random.Generator) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.from_numpy(rng.standard_normal((rows, columns))).to(dtype)
    info = torch.iinfo(dtype)
    x = torch.from_numpy(rng.integers(info.min, info.max, (rows, columns), endpoint=True)).to(dtype)
    return x // 2 * 2 if info.bits == 8 else x // 4


def padded(x: torch.Tensor, pad: int) -> torch.Tensor:
    """In rows that are `pad` elements longer; what lies between must not be read as elements."""
    out = torch.full((x.shape[0], x.shape[1] + pad), 101, dtype=x.dtype)
    out[:, : x.shape[1]] = x
    return out


@pytest.mark.parametrize("name", TYPES)
def test_every_shape_and_layout(device, name):
    ctype, memory, dtype, sum_type, sum_dtype, shapes, change, factor, tolerance = TYPES[name]
    pad = 32 // torch.empty(0, dtype=dtype).element_size()
    code = HEAD + f"#define PAD {pad}\n" + ONE.replace("CHANGE", f"for (int i = 0; i < fa.num_elements; i++) {change}")
    params = f"const {memory}* a, const {memory}* b, const {sum_type}* c, {sum_type}* d"
    rng, runs = np.random.default_rng(5), []
    for m, n, k in shapes:
        calls = ""
        for la, lb in LAYOUTS:
            args = f"<{m}, {n}, {k}, {ctype}, wmma::{la}_major, wmma::{lb}_major, {sum_type}>"
            x, y, z = matrix(m, k, dtype, rng), matrix(k, n, dtype, rng), matrix(m, n, sum_dtype, rng)
            columns = la != lb
            offsets = [sum(r[i].numel() for r in runs) for i in range(3)]
            calls += f"one{args}(a + {offsets[0]}, b + {offsets[1]}, c + {offsets[2]}, d + {offsets[2]}, {str(columns).lower()});\n"
            runs.append((
                padded(x if la == "row" else x.T, pad), padded(y if lb == "row" else y.T, pad),
                padded(z.T if columns else z, pad), (x, y, z, columns),
            ))  # fmt: skip
        code += f'extern "C" __global__ void k{m}({params}) {{\n{calls}}}\n'
    module = rawkern.RawModule(code=code)
    a, b, c = (torch.cat([r[i].reshape(-1) for r in runs]).to(device) for i in range(3))
    d = torch.full_like(c, 77)
    for m, _, _ in shapes:
        module.get_function(f"k{m}")[1, 32](a, b, c, d)
    at = 0
    for _, _, stored, (x, y, z, columns) in runs:
        got = d.cpu()[at : at + stored.numel()].view(stored.shape)
        at += stored.numel()
        width = stored.shape[1] - pad
        assert (got[:, width:] == 77).all()
        got = got[:, :width].T if columns else got[:, :width]
        want = 2 * (factor * x.double() @ y.double() + z.double())
        scale = 2 * (abs(factor) * x.double().abs() @ y.double().abs() + z.double().abs())
        assert ((got.double() - want).abs() <= tolerance * scale).all()


def test_small_integers_and_bits(device):
    """Elements of 4 bits and 1 bit: A by rows, B by columns, packed into words."""
    code = (
        HEAD
        + r"""
    namespace ex = wmma::experimental;
    #define ONE(T, K, MULTIPLY) { \
        wmma::fragment<wmma::matrix_a, 8, 8, K, ex::precision::T, wmma::row_major> fa; \
        wmma::fragment<wmma::matrix_b, 8, 8, K, ex::precision::T, wmma::col_major> fb; \
        wmma::fragment<wmma::accumulator, 8, 8, K, int> fc; \
        wmma::load_matrix_sync(fa, a, K); \
        wmma::load_matrix_sync(fb, b, K); \
        wmma::load_matrix_sync(fc, c, 8, wmma::mem_row_major); \
        MULTIPLY; \
        wmma::store_matrix_sync(d, fc, 8, wmma::mem_row_major); \
        d += 64; \
    }
    extern "C" __global__ void k(const int* a, const int* b, const int* c, int* d) {
        ONE(s4, 32, wmma::mma_sync(fc, fa, fb, fc))
        ONE(u4, 32, wmma::mma_sync(fc, fa, fb, fc))
        ONE(b1, 128, wmma::bmma_sync(fc, fa, fb, fc, ex::bmmaBitOpXOR, ex::bmmaAccumulateOpPOPC))
        ONE(b1, 128, wmma::bmma_sync(fc, fa, fb, fc, ex::bmmaBitOpAND, ex::bmmaAccumulateOpPOPC))
    }"""
    )
    rng = np.random.default_rng(11)
    a, b = (rng.integers(0, 2**32, (8, 4)).astype(np.uint32) for _ in "ab")
    c = rng.integers(-1000, 1000, (8, 8)).astype(np.int32)
    out = torch.full((4, 8, 8), -77777, dtype=torch.int32, device=device)
    given = [torch.from_numpy(x.view(np.int32).reshape(-1)).to(device) for x in (a, b, c)]
    rawkern.RawKernel(code, "k")[1, 32](*given, out)

    def fields(x: np.ndarray, bits: int) -> np.ndarray:
        return (x[:, :, None] >> np.arange(0, 32, bits, dtype=np.uint32) & ((1 << bits) - 1)).reshape(8, -1).astype(int)

    x, y = fields(a, 4), fields(b, 4)
    signed = [np.where(v > 7, v - 16, v) for v in (x, y)]
    p, q = fields(a, 1), fields(b, 1)
    want = [signed[0] @ signed[1].T, x @ y.T, (p[:, None] ^ q[None]).sum(2), (p[:, None] & q[None]).sum(2)]
    np.testing.assert_array_equal(out.cpu().numpy(), np.array(want) + c)


def test_blocks_of_a_product_through_shared_memory(device):
    """C = A B for half matrices of ragged multiples of 16: 4 warps a block, tiles in shared memory, float sums."""
    code = (
        HEAD
        + r"""
    extern "C" __global__ void gemm(const half* a, const half* b, float* c, int m, int n, int k) {
        __shared__ half sa[32][32 + 8], sb[32][32 + 8];
        int row = blockIdx.y * 32, col = blockIdx.x * 32, warp = threadIdx.x / 32;
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
        wmma::fill_fragment(sum, 0.0f);
        for (int at = 0; at < k; at += 32) {
            for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
                int r = i / 32, s = i % 32;
                sa[r][s] = row + r < m && at + s < k ? a[(row + r) * k + at + s] : __float2half(0.0f);
                sb[r][s] = at + r < k && col + s < n ? b[(at + r) * n + col + s] : __float2half(0.0f);
            }
            __syncthreads();
            for (int s = 0; s < 32; s += 16) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
                wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
                wmma::load_matrix_sync(fa, &sa[warp / 2 * 16][s], 40);
                wmma::load_matrix_sync(fb, &sb[s][warp % 2 * 16], 40);
                wmma::mma_sync(sum, fa, fb, sum);
            }
            __syncthreads();
        }
        row += warp / 2 * 16;
        col += warp % 2 * 16;
        if (row < m && col < n) wmma::store_matrix_sync(c + row * n + col, sum, n, wmma::mem_row_major);
    }"""
    )
    m, n, k = 80, 48, 112
    gen = torch.Generator().manual_seed(1)
    a, b = torch.randn(m, k, generator=gen).half(), torch.randn(k, n, generator=gen).half()
    c = torch.full((m, n), float("nan"), device=device)
    rawkern.RawKernel(code, "gemm")[(2, 3), 128](a.to(device), b.to(device), c, m, n, k)
    torch.testing.assert_close(c.cpu().double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


def test_fragments_in_a_device_function_and_a_divergent_block(device):
    """Whole warps take different ways; a fragment passes through a function that is called."""
    code = (
        HEAD
        + r"""
    using A = wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major>;
    __device__ __noinline__ void scale(A* a, float by) { for (int i = 0; i < a->num_elements; i++) a->x[i] *= by; }
    extern "C" __global__ void k(const float* x, const float* y, float* z) {
        int warp = threadIdx.y;
        A a;
        wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> b;
        wmma::fragment<wmma::accumulator, 16, 16, 8, float> c;
        wmma::fill_fragment(c, warp % 2 ? 1.0f : 0.0f);
        wmma::load_matrix_sync(a, x, 8);
        wmma::load_matrix_sync(b, y, 8);
        if (warp) {
            scale(&a, warp);
            wmma::mma_sync(c, a, b, c);
        }
        wmma::store_matrix_sync(z + 256 * warp, c, 16, wmma::mem_row_major);
    }"""
    )
    rng = np.random.default_rng(2)
    x, y = (torch.from_numpy(rng.integers(-8, 8, (16, 8)).astype(np.float32)) for _ in "xy")
    z = torch.full((3, 16, 16), float("nan"), device=device)
    rawkern.RawKernel(code, "k")[1, (32, 3)](x.to(device), y.to(device), z)
    product = x @ y.T
    for warp in range(3):
        torch.testing.assert_close(z[warp].cpu(), product * warp + warp % 2, rtol=0, atol=0)


def test_products_of_every_type(device):
    """C = A B with one warp for each tile of C, for all element types in one module."""
    code = (
        HEAD
        + r"""
    template <int M, int N, int K, class A, class C, class T>
    __device__ void gemm(const T* a, const T* b, C* c, int n, int k) {
        wmma::fragment<wmma::matrix_a, M, N, K, A, wmma::row_major> fa;
        wmma::fragment<wmma::matrix_b, M, N, K, A, wmma::col_major> fb;
        wmma::fragment<wmma::accumulator, M, N, K, C> fc;
        wmma::fill_fragment(fc, (C)0);
        int row = blockIdx.y * M, col = (blockIdx.x * blockDim.y + threadIdx.y) * N;
        if (col >= n) return;
        for (int at = 0; at < k; at += K) {
            wmma::load_matrix_sync(fa, a + row * k + at, k);
            wmma::load_matrix_sync(fb, b + col * k + at, k);
            wmma::mma_sync(fc, fa, fb, fc);
        }
        wmma::store_matrix_sync(c + row * n + col, fc, n, wmma::mem_row_major);
    }
    #define KERNEL(name, M, N, K, A, C, T) \
        extern "C" __global__ void name(const T* a, const T* b, C* c, int n, int k) { gemm<M, N, K, A, C>(a, b, c, n, k); }
    KERNEL(f16, 16, 16, 16, half, float, half)
    KERNEL(bf16, 16, 16, 16, __nv_bfloat16, float, __nv_bfloat16)
    KERNEL(tf32, 16, 16, 8, wmma::precision::tf32, float, float)
    KERNEL(f64, 8, 8, 4, double, double, double)
    KERNEL(s8, 16, 16, 16, signed char, int, signed char)
    """
    )
    module, rng = rawkern.RawModule(code=code), np.random.default_rng(8)
    m, n, k = 48, 80, 64
    for name, tile in (("f16", 16), ("bf16", 16), ("tf32", 16), ("f64", 8), ("s8", 16)):
        _, _, dtype, _, sums, *_ = TYPES[name]
        a, b = matrix(m, k, dtype, rng), matrix(n, k, dtype, rng)
        c = torch.full((m, n), 77, dtype=sums, device=device)
        grid, block = (-(-n // tile // 2), m // tile), (32, 2)  # two warps a block; the last may have nothing to do
        module.get_function(name)[grid, block](a.to(device), b.to(device), c, n, k)
        want, scale = a.double() @ b.double().T, a.double().abs() @ b.double().abs().T
        tolerance = {"tf32": 2e-3, "f64": 1e-15, "s8": 0}.get(name, 1e-6)
        assert ((c.cpu().double() - want).abs() <= tolerance * scale).all(), name


ALIGNED = """
#include <mma.h>
#include <cuda_bf16.h>
using namespace nvcuda;
template <class A, class M, int K> __device__ void get(const char* a, int offset, int ldm, float* c) {
    wmma::fragment<wmma::matrix_a, 16, 16, K, A, wmma::row_major> f;
    wmma::load_matrix_sync(f, (const M*)(a + offset), ldm);
    c[threadIdx.x] = (float)f.x[0];
}
extern "C" __global__ void f16(const char* a, int offset, int ldm, float* c) { get<half, half, 16>(a, offset, ldm, c); }
extern "C" __global__ void bf16(const char* a, int offset, int ldm, float* c) { get<__nv_bfloat16, __nv_bfloat16, 16>(a, offset, ldm, c); }
extern "C" __global__ void tf32(const char* a, int offset, int ldm, float* c) { get<wmma::precision::tf32, float, 8>(a, offset, ldm, c); }
extern "C" __global__ void s8(const char* a, int offset, int ldm, float* c) { get<signed char, signed char, 16>(a, offset, ldm, c); }
extern "C" __global__ void f64(const char* a, int offset, int ldm, float* c) {
    wmma::fragment<wmma::matrix_a, 8, 8, 4, double, wmma::row_major> f;
    wmma::load_matrix_sync(f, (const double*)(a + offset), ldm);
    c[threadIdx.x] = f.x[0];
}
extern "C" __global__ void stored(const char* a, int offset, int ldm, float* c) {
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> f;
    wmma::fill_fragment(f, 1);
    wmma::store_matrix_sync((float*)((char*)c + offset), f, ldm, wmma::mem_row_major);
}
extern "C" __global__ void unaligned(const char* a, int offset, int ldm, float* c) {  // declared for halves, no more
    __shared__ int flag; __shared__ half s[16 * 24];
    for (int k = threadIdx.x; k < 16 * 24; k += 32) s[k] = (half)k;
    flag = 0; __syncthreads();
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> f;
    wmma::load_matrix_sync(f, s, 24);
    c[threadIdx.x] = (float)f.x[0] + flag;
}"""
#: Kernel, offset in bytes, leading dimension in elements, and what the error says.
ALIGNMENTS = [
    ("f16", 32, 24, ""), ("f16", 2, 16, "not a multiple of 32 bytes, 2 bytes past one"),
    ("f16", 16, 16, "not a multiple of 32 bytes"), ("f16", 0, 17, "leading dimension of 34 bytes, which is not a multiple of 16"),
    ("bf16", 32, 24, ""), ("bf16", 8, 16, "not a multiple of 16 bytes"), ("bf16", 0, 20, "leading dimension of 40 bytes"),
    ("tf32", 32, 12, ""), ("tf32", 4, 8, "not a multiple of 16 bytes"), ("tf32", 0, 9, "leading dimension of 36 bytes"),
    ("s8", 16, 32, ""), ("s8", 4, 16, "not a multiple of 8 bytes"), ("s8", 0, 20, "leading dimension of 20 bytes"),
    ("f64", 32, 6, ""), ("f64", 4, 4, "not a multiple of 8 bytes"), ("stored", 32, 20, ""),
    ("stored", 16, 16, "not a multiple of 32 bytes"), ("stored", 0, 18, "leading dimension of 72 bytes"),
    ("unaligned", 0, 0, ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def aligned():
    return rawkern.RawModule(ALIGNED)


@pytest.mark.parametrize(("name", "offset", "ldm", "says"), ALIGNMENTS)
def test_addresses_and_leading_dimensions_have_to_be_aligned(aligned, name, offset, ldm, says):
    a, c = torch.zeros(2048, dtype=torch.int8), torch.zeros(512)
    launch = aligned.get_function(name)[1, 32]
    if not says:
        launch(a, offset, ldm, c)
        return
    with pytest.raises(rawkern.LaunchError, match=rf"line \d+: .*{says}"):
        launch(a, offset, ldm, c)
