"""Kernels with breaks, switches, functions as template arguments, reads of what a thread has written itself."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.gradients.cases import case


@case("""
__global__ void kernel_composite_rays(const float* __restrict__ sigmas, const float* __restrict__ rgbs, const float* __restrict__ deltas, const int* __restrict__ rays,
    const uint32_t N, const float T_thresh, float* __restrict__ weights_sum, float* __restrict__ image) {
    const uint32_t n = threadIdx.x + blockIdx.x * blockDim.x;
    if (n >= N) return;
    uint32_t offset = rays[n * 2];
    uint32_t num_steps = rays[n * 2 + 1];
    sigmas += offset;
    rgbs += offset * 3;
    deltas += offset;
    uint32_t step = 0;
    float T = 1.0f;
    float r = 0, g = 0, b = 0, ws = 0;
    while (step < num_steps) {
        const float alpha = 1.0f - __expf(- sigmas[0] * deltas[0]);
        const float weight = alpha * T;
        r += weight * rgbs[0];
        g += weight * rgbs[1];
        b += weight * rgbs[2];
        ws += weight;
        T *= 1.0f - alpha;
        if (T < T_thresh) break;
        sigmas++;
        rgbs += 3;
        deltas++;
        step++;
    }
    weights_sum[n] = ws;
    image[n * 3] = r; image[n * 3 + 1] = g; image[n * 3 + 2] = b;
}""", 32, 1, lambda r: (3 * torch.sigmoid(r(80)), r(80, 3), torch.sigmoid(r(80)), torch.tensor([[8 * i, 8] for i in range(10)], dtype=torch.int32), 10, 0.2, r(10), r(10, 3)), name='kernel_composite_rays', max_iterations=8)  # fmt: skip
def composite(sigmas, rgbs, deltas, rays, N, T_thresh, weights_sum, image):
    alpha = 1 - (-sigmas * deltas).view(10, 8).exp()
    before = torch.cumprod(F.pad(1 - alpha, (1, 0), value=1.0), 1)[:, :-1]
    weight = alpha * before * (F.pad((before * (1 - alpha))[:, :-1], (1, 0), value=1.0) >= T_thresh)
    return {"weights_sum": weight.sum(1), "image": (weight[..., None] * rgbs.view(10, 8, 3)).sum(1)}


@case("""
template <typename scalar_t>
__device__ __forceinline__ scalar_t sigmoid(scalar_t z) {
  return 1.0 / (1.0 + exp(-z));
}
template <typename scalar_t>
__device__ __forceinline__ scalar_t elu(scalar_t z, scalar_t alpha = 1.0) {
  return fmaxf(0.0, z) + fminf(0.0, alpha * (exp(z) - 1.0));
}
template <typename scalar_t>
__global__ void lltm_cuda_forward_kernel(const scalar_t* __restrict__ gates, const scalar_t* __restrict__ old_cell, scalar_t* __restrict__ new_h,
    scalar_t* __restrict__ new_cell, scalar_t* __restrict__ input_gate, scalar_t* __restrict__ output_gate, scalar_t* __restrict__ candidate_cell, size_t state_size) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int index = blockIdx.y * state_size + column;
  const int gates_row = blockIdx.y * (state_size * 3);
  if (column < state_size) {
    input_gate[index] = sigmoid(gates[gates_row + column]);
    output_gate[index] = sigmoid(gates[gates_row + state_size + column]);
    candidate_cell[index] = elu(gates[gates_row + 2 * state_size + column]);
    new_cell[index] = old_cell[index] + candidate_cell[index] * input_gate[index];
    new_h[index] = tanh(new_cell[index]) * output_gate[index];
  }
}""", 32, (1, 3), lambda r: (r(3, 60), r(3, 20), *(r(3, 20) for _ in range(5)), 20), name='lltm_cuda_forward_kernel<float>')  # fmt: skip
def lltm(gates, old_cell, new_h, new_cell, input_gate, output_gate, candidate_cell, state_size):
    i, o, c = gates[:, :20].sigmoid(), gates[:, 20:40].sigmoid(), F.elu(gates[:, 40:])
    cell = old_cell + c * i
    return {"new_h": cell.tanh() * o, "new_cell": cell, "input_gate": i, "output_gate": o, "candidate_cell": c}


@case("""
enum Act { RELU = 0, TANH = 1, NONE };
__device__ float act(float x, int kind) {
    switch (kind) {
        case 0: return fmaxf(x, 0.f);
        case 1: { float t = tanhf(x); return t; }
        default: return x;
    }
}
__global__ void acts(const float* x, float* y, int n, int kind) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i >= n) return;
    float s = 0.f; int k = 0;
    do { s += act(x[i] * (k + 1), (kind + k) % 3); } while (++k < 3);
    y[i] = s;
}""", 32, 2, lambda r: (r(50), r(50), 50, 0))  # fmt: skip
def acts(x, y, n, kind):
    return {"y": x.clamp(min=0) + (2 * x).tanh() + 3 * x}


@case("""
__global__ void conv2d(const float *input, const float *weight, const float *bias, float *output, int N, int C, int H, int W, int K, int R, int S, int pad, int stride) {
    int P = (H + 2 * pad - R) / stride + 1, Q = (W + 2 * pad - S) / stride + 1;
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= N * K * P * Q) return;
    int q = idx % Q, p = (idx / Q) % P, k = (idx / (Q * P)) % K, n = idx / (Q * P * K);
    float acc = bias ? bias[k] : 0.0f;
    for (int c = 0; c < C; c++) {
        for (int r = 0; r < R; r++) {
            int h = p * stride - pad + r;
            if (h < 0 || h >= H) continue;
            for (int s = 0; s < S; s++) {
                int w = q * stride - pad + s;
                if (w < 0 || w >= W) continue;
                acc += input[((n * C + c) * H + h) * W + w] * weight[((k * C + c) * R + r) * S + s];
            }
        }
    }
    output[idx] = acc;
}""", 64, 3, lambda r: (r(2, 3, 6, 7), r(2, 3, 3, 3), r(2), r(2, 2, 6, 7), 2, 3, 6, 7, 2, 3, 3, 1, 1), name='conv2d')  # fmt: skip
def conv2d_channels(input, weight, bias, output, *sizes):
    return {"output": F.conv2d(input, weight, bias, padding=1)}


@case("""
template<typename T>
__device__ __forceinline__ T silu_kernel(const T& x) {
  // x * sigmoid(x)
  return (T) (((float) x) / (1.0f + expf((float) -x)));
}
template<typename scalar_t, scalar_t (*ACT_FN)(const scalar_t&)>
__global__ void act_and_mul_kernel(scalar_t* __restrict__ out, const scalar_t* __restrict__ input, const int d) {
  const int64_t token_idx = blockIdx.x;
  for (int64_t idx = threadIdx.x; idx < d; idx += blockDim.x) {
    const scalar_t x = __ldg(&input[token_idx * 2 * d + idx]);
    const scalar_t y = __ldg(&input[token_idx * 2 * d + d + idx]);
    out[token_idx * d + idx] = ACT_FN(x) * y;
  }
}""", 32, 3, lambda r: (r(3, 50), r(3, 100), 50), name='act_and_mul_kernel<float, silu_kernel<float>>')  # fmt: skip
def act_and_mul(out, input, d):
    return {"out": F.silu(input[:, :d]) * input[:, d:]}


@case("""
struct SoftmaxParams {
    float Scale;
    float Offset;
};
__device__ float warpReduceMax(float val) { for (int offset = 16; offset > 0; offset /= 2) { val = fmaxf(val, __shfl_xor_sync(0xFFFFFFFF, val, offset)); } return val; }
__device__ float warpReduceSum(float val) { for (int offset = 16; offset > 0; offset /= 2) { val += __shfl_xor_sync(0xFFFFFFFF, val, offset); } return val; }
using reduction_func_t = float (*) (float);
template<reduction_func_t warp_reduction>
__device__ inline float blockReduce(float val, bool final_sync=false, float out_of_bounds=0.0f) {
    __shared__ float shared_val[32];
    const int lane_id = threadIdx.x % 32;
    const int warp_id = threadIdx.x / 32;
    const int num_warps = blockDim.x / 32;
    float warp_val = warp_reduction(val);
    if (lane_id == 0) { shared_val[warp_id] = warp_val; }
    __syncthreads();
    warp_val = (lane_id < num_warps) ? shared_val[lane_id] : out_of_bounds;
    float block_val = warp_reduction(warp_val);
    if (final_sync) {
        __syncthreads();
    }
    return block_val;
}
__device__ SoftmaxParams prepare_softmax_blockwide(int64_t idx, const float* inp, int V, int P) {
    const float* x = inp + idx * P;
    float thread_maxval = -INFINITY;
    float thread_sumval = 0.0f;
    for (int i = threadIdx.x; i < V; i += blockDim.x) {
        float v = x[i];
        float old_maxval = thread_maxval;
        thread_maxval = fmaxf(thread_maxval, v);
        thread_sumval *= expf((old_maxval - thread_maxval));
        thread_sumval += expf(v - thread_maxval);
    }
    float block_maxval = blockReduce<warpReduceMax>(thread_maxval, false, -3.402823466e+38F);
    thread_sumval *= expf(thread_maxval - block_maxval);
    float block_sumval = blockReduce<warpReduceSum>(thread_sumval);
    return SoftmaxParams{1.f / block_sumval, block_maxval};
}
__global__ void fused_classifier(const float* logits, float* losses, const int* targets, int V, int P) {
    int64_t idx = blockIdx.x;
    int ix = targets[idx];
    SoftmaxParams sp = prepare_softmax_blockwide(idx, logits, V, P);
    if(threadIdx.x == 0) {
        float prob = expf(logits[idx * P + ix] - sp.Offset) * sp.Scale;
        losses[idx] = -logf(prob);
    }
}""", 64, 3, lambda r: (r(3, 128), r(3), torch.tensor([4, 99, 0], dtype=torch.int32), 100, 128), name='fused_classifier', max_iterations=4)  # fmt: skip
def classifier(logits, losses, targets, V, P):
    return {"losses": F.cross_entropy(logits[:, :V], targets.long(), reduction="none")}


@case("""
__device__ inline float cndGPU(float d) {
  const float A1 = 0.31938153f;
  const float A2 = -0.356563782f;
  const float A3 = 1.781477937f;
  const float A4 = -1.821255978f;
  const float A5 = 1.330274429f;
  const float RSQRT2PI = 0.39894228040143267793994605993438f;
  float K = __fdividef(1.0f, (1.0f + 0.2316419f * fabsf(d)));
  float cnd = RSQRT2PI * __expf(-0.5f * d * d) * (K * (A1 + K * (A2 + K * (A3 + K * (A4 + K * A5)))));
  if (d > 0) cnd = 1.0f - cnd;
  return cnd;
}
__device__ inline void BlackScholesBodyGPU(float &CallResult, float &PutResult, float S, float X, float T, float R, float V) {
  float sqrtT, expRT;
  float d1, d2, CNDD1, CNDD2;
  sqrtT = __fdividef(1.0F, rsqrtf(T));
  d1 = __fdividef(__logf(S / X) + (R + 0.5f * V * V) * T, V * sqrtT);
  d2 = d1 - V * sqrtT;
  CNDD1 = cndGPU(d1);
  CNDD2 = cndGPU(d2);
  expRT = __expf(-R * T);
  CallResult = S * CNDD1 - X * expRT * CNDD2;
  PutResult = X * expRT * (1.0f - CNDD2) - S * (1.0f - CNDD1);
}
__launch_bounds__(128) __global__ void BlackScholesGPU(float2 *__restrict d_CallResult, float2 *__restrict d_PutResult,
                    const float2 *__restrict d_StockPrice, const float2 *__restrict d_OptionStrike, const float2 *__restrict d_OptionYears,
                    float Riskfree, float Volatility, int optN) {
  const int opt = blockDim.x * blockIdx.x + threadIdx.x;
  float callResult1, callResult2;
  float putResult1, putResult2;
  if (opt < (optN / 2)) {
    BlackScholesBodyGPU(callResult1, putResult1, d_StockPrice[opt].x, d_OptionStrike[opt].x, d_OptionYears[opt].x, Riskfree, Volatility);
    BlackScholesBodyGPU(callResult2, putResult2, d_StockPrice[opt].y, d_OptionStrike[opt].y, d_OptionYears[opt].y, Riskfree, Volatility);
    d_CallResult[opt] = make_float2(callResult1, callResult2);
    d_PutResult[opt] = make_float2(putResult1, putResult2);
  }
}""", 128, 1, lambda r: (r(100), r(100), 18 + 12 * r(100), 50 + 40 * r(100), 5 + 4 * r(100), 0.02, 0.3, 100), name='BlackScholesGPU', tolerance=0.002)  # fmt: skip
def black_scholes(call, put, S, X, T, rate, V, n):
    k = torch.special.ndtr  # the kernel has a polynomial, good to 1e-7, of which the derivative is good to 1e-5
    d1 = ((S / X).log() + (rate + 0.5 * V * V) * T) / (V * T.sqrt())
    d2, bond = d1 - V * T.sqrt(), X * (-rate * T).exp()
    return {"d_CallResult": S * k(d1) - bond * k(d2), "d_PutResult": bond * (1 - k(d2)) - S * (1 - k(d1))}


@case("""
#define CUDA_KERNEL_LOOP(i, n) \
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += blockDim.x * gridDim.x)
static __forceinline__ __device__ bool within_bounds_2d(int h, int w, int H, int W) {
  return h >= 0 && h < H && w >= 0 && w < W;
}
template <typename scalar_t>
static __forceinline__ __device__ scalar_t grid_sampler_unnormalize(scalar_t coord, int size, bool align_corners) {
  if (align_corners) {
    return ((coord + 1.f) / 2) * (size - 1);
  } else {
    return ((coord + 1.f) * size - 1) / 2;
  }
}
template <typename scalar_t>
__global__ void grid_sampler_2d_kernel(const int nthreads, const scalar_t* __restrict__ input, const scalar_t* __restrict__ grid,
    scalar_t* __restrict__ output, const int C, const int inp_H, const int inp_W, const int out_H, const int out_W, bool align_corners) {
  CUDA_KERNEL_LOOP(index, nthreads) {
    const int w = index % out_W;
    const int h = (index / out_W) % out_H;
    const int n = index / (out_H * out_W);
    const int grid_offset = index * 2;
    scalar_t ix = grid_sampler_unnormalize(grid[grid_offset], inp_W, align_corners);
    scalar_t iy = grid_sampler_unnormalize(grid[grid_offset + 1], inp_H, align_corners);
    int ix_nw = static_cast<int>(::floor(ix));
    int iy_nw = static_cast<int>(::floor(iy));
    int ix_ne = ix_nw + 1;
    int iy_ne = iy_nw;
    int ix_sw = ix_nw;
    int iy_sw = iy_nw + 1;
    int ix_se = ix_nw + 1;
    int iy_se = iy_nw + 1;
    scalar_t nw = (ix_se - ix)    * (iy_se - iy);
    scalar_t ne = (ix    - ix_sw) * (iy_sw - iy);
    scalar_t sw = (ix_ne - ix)    * (iy    - iy_ne);
    scalar_t se = (ix    - ix_nw) * (iy    - iy_nw);
    auto inp_ptr_NC = input + n * C * inp_H * inp_W;
    auto out_ptr_NCHW = output + n * C * out_H * out_W + h * out_W + w;
    for (int c = 0; c < C; ++c, inp_ptr_NC += inp_H * inp_W, out_ptr_NCHW += out_H * out_W) {
      scalar_t v = static_cast<scalar_t>(0);
      if (within_bounds_2d(iy_nw, ix_nw, inp_H, inp_W)) {
        v += inp_ptr_NC[iy_nw * inp_W + ix_nw] * nw;
      }
      if (within_bounds_2d(iy_ne, ix_ne, inp_H, inp_W)) {
        v += inp_ptr_NC[iy_ne * inp_W + ix_ne] * ne;
      }
      if (within_bounds_2d(iy_sw, ix_sw, inp_H, inp_W)) {
        v += inp_ptr_NC[iy_sw * inp_W + ix_sw] * sw;
      }
      if (within_bounds_2d(iy_se, ix_se, inp_H, inp_W)) {
        v += inp_ptr_NC[iy_se * inp_W + ix_se] * se;
      }
      *out_ptr_NCHW = v;
    }
  }
}""", 32, 2, lambda r: (60, r(2, 3, 7, 8), 0.9 * r(2, 5, 6, 2), r(2, 3, 5, 6), 3, 7, 8, 5, 6, False), name='grid_sampler_2d_kernel<float>')  # fmt: skip
def grid_sampler(nthreads, input, grid, output, *sizes):
    return {"output": F.grid_sample(input, grid, align_corners=False)}


@case("""
__global__ void NmDistanceKernel(int n, const float* xyz, int m, const float* xyz2, float* result, int* result_i) {
    for (int j = threadIdx.x + blockIdx.x * blockDim.x; j < n; j += blockDim.x * gridDim.x) {
        float x1 = xyz[j * 3 + 0];
        float y1 = xyz[j * 3 + 1];
        float z1 = xyz[j * 3 + 2];
        int best_i = 0;
        float best = 0;
        for (int k = 0; k < m; k++) {
            float x2 = xyz2[k * 3 + 0] - x1;
            float y2 = xyz2[k * 3 + 1] - y1;
            float z2 = xyz2[k * 3 + 2] - z1;
            float d = x2 * x2 + y2 * y2 + z2 * z2;
            if (k == 0 || d < best) {
                best = d;
                best_i = k;
            }
        }
        result[j] = best;
        result_i[j] = best_i;
    }
}""", 32, 2, lambda r: (40, r(40, 3), 30, r(30, 3), r(40), torch.zeros(40, dtype=torch.int32)), name="NmDistanceKernel")  # fmt: skip
def chamfer(n, xyz, m, xyz2, result, result_i):
    return {"result": (xyz[:, None] - xyz2[None]).square().sum(-1).amin(1)}
