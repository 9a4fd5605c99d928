"""Kernels of half precision, whose gradients are summed in float."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.gradients.cases import case

H, B = torch.float16, torch.bfloat16


@case("""
#include <cuda_fp16.h>
__global__ void swiglu(const half* __restrict__ gate, const half* __restrict__ up, half* __restrict__ out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n / 2) {
        half2 g2 = reinterpret_cast<const half2*>(gate)[i], u2 = reinterpret_cast<const half2*>(up)[i];
        float2 g = __half22float2(g2), u = __half22float2(u2);
        float2 r = make_float2(g.x / (1.0f + __expf(-g.x)) * u.x, g.y / (1.0f + __expf(-g.y)) * u.y);
        reinterpret_cast<half2*>(out)[i] = __float22half2_rn(r);
    }
}""", 32, 2, lambda r: (r(100).to(H), r(100).to(H), r(100).to(H), 100), tolerance=1e-2)  # fmt: skip
def swiglu(gate, up, out, n):
    return {"out": F.silu(gate) * up}


@case("""
#include <cuda_fp16.h>
#define HALF2(value) (reinterpret_cast<half2*>(&(value))[0])
#define LDST128BITS(value) (reinterpret_cast<float4*>(&(value))[0])
__global__ void multiply_f16x8_pack(half* a, half* b, half* c, int N) {
    int idx = 8 * (blockIdx.x * blockDim.x + threadIdx.x);
    half pack_a[8], pack_c[8];
    LDST128BITS(pack_a[0]) = LDST128BITS(a[idx]);
    float4 loaded;
    loaded = *reinterpret_cast<const float4*>(b + idx);
    const half2* pack_b = reinterpret_cast<const half2*>(&loaded);
    #pragma unroll
    for (int i = 0; i < 8; i += 2) HALF2(pack_c[i]) = __hmul2(HALF2(pack_a[i]), pack_b[i / 2]);
    if (idx + 7 < N) LDST128BITS(c[idx]) = LDST128BITS(pack_c[0]);
}""", 8, 2, lambda r: (r(128).to(H), r(128).to(H), r(128).to(H), 125), tolerance=1e-2)  # fmt: skip
def multiply_f16x8_pack(a, b, c, n):
    return {"c": torch.where(torch.arange(128) < 120, a * b, torch.zeros_like(a))}


@case("""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
__global__ void rms_bf16(const __nv_bfloat16* x, const __nv_bfloat16* residual, const float* w, __nv_bfloat16* out, __nv_bfloat16* sum, int n, float eps) {
    extern __shared__ float red[];
    const int row = blockIdx.x, tid = threadIdx.x;
    float ss = 0.f;
    for (int j = tid; j < n; j += blockDim.x) {
        __nv_bfloat16 h = __hadd(x[row * n + j], residual[row * n + j]);
        sum[row * n + j] = h;
        float f = __bfloat162float(h);
        ss += f * f;
    }
    red[tid] = ss;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (tid < s) red[tid] += red[tid + s];
        __syncthreads();
    }
    const float inv = rsqrtf(red[0] / n + eps);
    for (int j = tid; j < n; j += blockDim.x) {
        float f = (float)__hadd(x[row * n + j], residual[row * n + j]);
        out[row * n + j] = __float2bfloat16(f * inv * w[j]);
    }
}""", 32, 3, lambda r: (r(3, 40).to(B), r(3, 40).to(B), r(40), r(3, 40).to(B), r(3, 40).to(B), 40, 1e-5), shared_mem=128, tolerance=1e-2)  # fmt: skip
def rms_bf16(x, residual, w, out, sum, n, eps):
    h = x + residual
    return {"out": h * (h.square().mean(-1, keepdim=True) + eps).rsqrt() * w, "sum": h}


@case("""
#include <cuda_fp16.h>
__global__ void halves(const half* x, const half2* z, half* y, float* s) {
    __shared__ half tile[32];
    int t = threadIdx.x;
    half a = x[t], b = __hmul(a, a), zero = __float2half(0.f);
    half2 p = z[t], q = __hfma2(p, __half2half2(a), p * p);
    tile[t] = hexp(b) + __low2half(q);
    __syncthreads();
    half m = __hgt(a, zero) ? a : -b;
    half other = __shfl_xor_sync(0xffffffff, m, 1);
    for (int k = 0; k < 3; ++k) m = m * a + other;
    if (a > zero) m += __float2half(1.5f);
    y[t] = tile[31 - t] * m;
    atomicAdd(&s[0], __half2float(__hmax(a, b)) * __high2float(q));
}""", 32, 1, lambda r: (r(32).to(H), r(32, 2).to(H), r(32).to(H), torch.zeros(1)), tolerance=1e-2)  # fmt: skip
def halves(x, z, y, s):
    b, q = x * x, z * x[:, None] + z * z
    tile, m = b.exp() + q[:, 0], torch.where(x > 0, x, -b)
    other = m[torch.arange(32) ^ 1]
    for _ in range(3):
        m = m * x + other
    m = torch.where(x > 0, m + 1.5, m)
    return {"y": tile.flip(0) * m, "s": (torch.maximum(x, b) * q[:, 1]).sum()[None]}
