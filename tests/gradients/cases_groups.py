"""Kernels with cooperative groups, reductions of cub, random numbers of curand."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.gradients.cases import case


@case("""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void layernorm_forward_kernel3(float* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd,
    const float*  __restrict__ inp, const float*  __restrict__ weight, const float* __restrict__ bias, int N, int C) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    int idx = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if(idx >= N) {
        return;
    }
    // the row of input that this group of threads is responsible for
    const float* x = inp + idx * C;
    // mean
    float sum = 0.0f;
    for (int i = warp.thread_rank(); i < C; i += warp.size()) {
        sum += x[i];
    }
    sum = cg::reduce(warp, sum, cg::plus<float>{});
    float m = sum / C;
    if(warp.thread_rank() == 0 && mean != nullptr) {
        __stcs(mean + idx, m);
    }
    // rstd
    sum = 0.0f;
    for (int i = warp.thread_rank(); i < C; i += warp.size()) {
        float diff = x[i] - m;
        sum += diff * diff;
    }
    sum = cg::reduce(warp, sum, cg::plus<float>{});
    float s = rsqrtf(sum / C + 1e-5f);
    if(warp.thread_rank() == 0 && rstd != nullptr) {
        __stcs(rstd + idx, s);
    }
    float* o = out + idx * C;
    for (int c = warp.thread_rank(); c < C; c += warp.size()) {
        float n = s * (__ldcs(x+c) - m);
        __stcs(o+c, n * weight[c] + bias[c]);
    }
}""", 64, 3, lambda r: (r(5, 40), r(5), r(5), r(5, 40), r(40), r(40), 5, 40), name='layernorm_forward_kernel3')  # fmt: skip
def layernorm_groups(out, mean, rstd, inp, weight, bias, N, C):
    m, s = inp.mean(-1), (inp.var(-1, correction=0) + 1e-5).rsqrt()
    return {"out": F.layer_norm(inp, (C,), weight, bias), "mean": m, "rstd": s}


@case("""
#include <cub/cub.cuh>
template <typename scalar_t>
__global__ void rms_norm_kernel(scalar_t* __restrict__ out, const scalar_t* __restrict__ input, const scalar_t* __restrict__ weight,
    const float epsilon, const int num_tokens, const int hidden_size) {
  __shared__ float s_variance;
  float variance = 0.0f;
  for (int idx = threadIdx.x; idx < hidden_size; idx += blockDim.x) {
    const float x = (float)input[blockIdx.x * hidden_size + idx];
    variance += x * x;
  }
  using BlockReduce = cub::BlockReduce<float, 64>;
  __shared__ typename BlockReduce::TempStorage reduceStore;
  variance = BlockReduce(reduceStore).Sum(variance);
  if (threadIdx.x == 0) {
    s_variance = rsqrtf(variance / hidden_size + epsilon);
  }
  __syncthreads();
  for (int idx = threadIdx.x; idx < hidden_size; idx += blockDim.x) {
    float x = (float)input[blockIdx.x * hidden_size + idx];
    out[blockIdx.x * hidden_size + idx] = ((scalar_t)(x * s_variance)) * weight[idx];
  }
}""", 64, 3, lambda r: (r(3, 100), r(3, 100), r(100), 1e-5, 3, 100), name='rms_norm_kernel<float>')  # fmt: skip
def rms_norm_cub(out, input, weight, epsilon, num_tokens, hidden_size):
    return {"out": input * (input.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight}


@case("""
#include <cooperative_groups.h>
#include <cub/cub.cuh>
using namespace cooperative_groups;
__device__ float most(thread_block_tile<32> tile, float v) {
    for (int i = tile.size() / 2; i > 0; i /= 2) v = fmaxf(v, tile.shfl_xor(v, i));
    return v;
}
__global__ void ranks(const float* x, float* y, float* z) {
    thread_block block = this_thread_block();
    auto tile = tiled_partition<32>(block);
    typedef cub::WarpReduce<float, 8> Eight;
    __shared__ typename Eight::TempStorage temp[8];
    __shared__ float s[64];
    int t = block.thread_rank(), b = block.group_index().x;
    float v = x[b * block.size() + t];
    s[t] = v * v;
    block.sync();
    float other = s[block.size() - 1 - t], top = most(tile, v * other);
    float eight = Eight(temp[t / 8]).Reduce(v, cub::Max());
    if (tile.thread_rank() == 0) z[b * 2 + tile.meta_group_rank()] = top;
    float third = tile.shfl(v, 3);
    if (t % 8 == 0) y[b * 8 + t / 8] = eight * third;
    sync(block);
}""",
    (32, 2), 2, lambda r: (r(2, 64), r(2, 8), r(2, 2)))  # fmt: skip
def ranks(x, y, z):
    warps, other = x.view(2, 2, 32), x.square().flip(1)
    return {
        "y": x.view(2, 8, 8).amax(-1) * warps[..., 3:4].expand(2, 2, 4).reshape(2, 8),
        "z": (x * other).view(2, 2, 32).amax(-1),
    }


@case(r"""
__device__ void last_warp(volatile float* s, int t) {
    s[t] += s[t + 32]; s[t] += s[t + 16]; s[t] += s[t + 8]; s[t] += s[t + 4]; s[t] += s[t + 2]; s[t] += s[t + 1];
}
__global__ void volatile_sums(const float* x, float* sums, float* largest, int n) {
    __shared__ float s[128];
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    s[t] = i < n ? x[i] * x[i] : 0.0f;
    __syncthreads();
    if (t < 64) s[t] += s[t + 64];
    __syncthreads();
    if (t < 32) last_warp(s, t);
    if (t == 0) sums[blockIdx.x] = s[0];
    __syncthreads();
    s[t] = i < n ? x[i] : -9.0f;
    __syncthreads();
    if (t < 64) {
        volatile float* v = s;
        v[t] = fmaxf(v[t], v[t + 64]);
    }
    __syncthreads();
    for (int k = 32; k > 0; k >>= 1) {
        if (t < k) s[t] = fmaxf(s[t], s[t + k]);
        __syncthreads();
    }
    if (t == 0) largest[blockIdx.x] = s[0];
}""", 128, 2, lambda r: (r(200), r(2), r(2), 200), name="volatile_sums")  # fmt: skip
def volatile_sums(x, sums, largest, n):
    rows = F.pad(x, (0, 56)).view(2, 128)
    return {"sums": rows.square().sum(1), "largest": torch.stack([x[:128].amax(), x[128:].amax()])}
