"""Kernels of rows: kept in shared memory, which threads set, read and overwrite; one for each warp of a launch."""

from __future__ import annotations

import math

import torch

from tests.gradients.cases import case


@case(r"""
extern "C" __global__ void softmax_smem(const float* __restrict__ in, float* __restrict__ out, int n) {
    extern __shared__ float row[];
    __shared__ float red[64];
    const int t = threadIdx.x;
    in += blockIdx.x * n;
    out += blockIdx.x * n;
    float m = -INFINITY;
    for (int i = t; i < n; i += blockDim.x) { row[i] = in[i]; m = fmaxf(m, row[i]); }
    red[t] = m;
    __syncthreads();
    for (int s = 32; s > 0; s >>= 1) { if (t < s) red[t] = fmaxf(red[t], red[t + s]); __syncthreads(); }
    m = red[0];
    __syncthreads();
    float sum = 0.f;
    for (int i = t; i < n; i += blockDim.x) { row[i] = __expf(row[i] - m); sum += row[i]; }
    red[t] = sum;
    __syncthreads();
    for (int s = 32; s > 0; s >>= 1) { if (t < s) red[t] += red[t + s]; __syncthreads(); }
    sum = red[0];
    for (int i = t; i < n; i += blockDim.x) out[i] = row[i] / sum;
}""", 64, 4, lambda r: (r(4, 150), r(4, 150), 150), name="softmax_smem", shared_mem=600, atomics=0)  # fmt: skip
def softmax_kept(x, out, n):
    return {"out": x.softmax(-1)}


@case(r"""
__global__ void alibi_attention(const float* q, const float* k, const float* v, const float* slopes, float* out, int T, int D) {
    extern __shared__ float scores[];
    int h = blockIdx.y, i = blockIdx.x, tid = threadIdx.x;
    const float* qh = q + (h * T + i) * D;
    const float* kh = k + h * T * D;
    const float* vh = v + h * T * D;
    float slope = slopes[h];
    float mx = -1e30f;
    for (int j = tid; j <= i; j += blockDim.x) {
        float s = 0.f;
        for (int d = 0; d < D; ++d) s += qh[d] * kh[j * D + d];
        s = s * rsqrtf((float)D) - slope * (i - j);
        scores[j] = s;
        mx = fmaxf(mx, s);
    }
    for (int o = 16; o; o >>= 1) mx = fmaxf(mx, __shfl_xor_sync(0xffffffff, mx, o));
    float sum = 0.f;
    for (int j = tid; j <= i; j += blockDim.x) {
        float e = expf(scores[j] - mx);
        scores[j] = e;
        sum += e;
    }
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, o);
    __syncthreads();
    for (int d = tid; d < D; d += blockDim.x) {
        float a = 0.f;
        for (int j = 0; j <= i; ++j) a += scores[j] * vh[j * D + d];
        out[(h * T + i) * D + d] = a / sum;
    }
}""", 32, (20, 2), lambda r: (r(2, 20, 8), r(2, 20, 8), r(2, 20, 8), r(2), r(2, 20, 8), 20, 8), name="alibi_attention", wrt=("q", "k", "v"), shared_mem=80)  # fmt: skip
def alibi_attention(q, k, v, slopes, out, T, D):
    at = torch.arange(T)
    scores = q @ k.transpose(-1, -2) / math.sqrt(D) - slopes[:, None, None] * (at[:, None] - at)
    return {"out": scores.masked_fill(at[:, None] < at, -torch.inf).softmax(-1) @ v}


@case(r"""
#define WARP_SIZE 32
template <typename T>
__device__ __forceinline__ T warpReduceMax(T val) {
  #pragma unroll
  for (int mask = WARP_SIZE >> 1; mask >= 1; mask >>= 1)
    val = max(val, __shfl_xor_sync(0xffffffff, val, mask));
  return val;
}
template <typename T>
__device__ __forceinline__ T warpReduceSum(T val) {
  #pragma unroll
  for (int mask = WARP_SIZE >> 1; mask >= 1; mask >>= 1)
    val += __shfl_xor_sync(0xffffffff, val, mask);
  return val;
}
__global__ void softmax_warp_per_row(const float* __restrict__ inp, float* __restrict__ out, int N, int C) {
    int warp = (blockIdx.x * blockDim.x + threadIdx.x) / WARP_SIZE;
    int lane = threadIdx.x % WARP_SIZE;
    if (warp >= N) return;
    const float* x = inp + warp * C;
    float* y = out + warp * C;
    float maxval = -INFINITY;
    for (int i = lane; i < C; i += WARP_SIZE) maxval = fmaxf(maxval, x[i]);
    maxval = warpReduceMax<float>(maxval);
    float sumval = 0.0f;
    for (int i = lane; i < C; i += WARP_SIZE) sumval += expf(x[i] - maxval);
    sumval = warpReduceSum<float>(sumval);
    float inv = 1.0f / sumval;
    for (int i = lane; i < C; i += WARP_SIZE) y[i] = expf(x[i] - maxval) * inv;
}""", 128, 2, lambda r: (r(7, 50), r(7, 50), 7, 50), name="softmax_warp_per_row", atomics=0)  # fmt: skip
def softmax_warp_per_row(inp, out, N, C):
    return {"out": inp.softmax(-1)}


@case(r"""
__global__ void normalize_rows(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
    const int gid = blockIdx.x * blockDim.x + threadIdx.x, lane = gid & 31;
    for (int row = gid >> 5; row < rows; row += (gridDim.x * blockDim.x) >> 5) {
        float s = 0.f;
        for (int i = lane; i < cols; i += 32) s += x[row * cols + i] * x[row * cols + i];
        for (int o = 16; o > 0; o >>= 1) s += __shfl_xor_sync(0xffffffff, s, o);
        for (int i = lane; i < cols; i += 32) y[row * cols + i] = x[row * cols + i] * rsqrtf(s);
    }
}""", 64, 2, lambda r: (r(13, 50), r(13, 50), 13, 50), name="normalize_rows", atomics=0)  # fmt: skip
def normalize_rows(x, y, rows, cols):
    return {"y": torch.nn.functional.normalize(x, dim=-1)}


@case(r"""
__global__ void softmax_2d(const float* x, float* y, int rows, int n) {
    __shared__ float buf[4][64];
    int w = threadIdx.y, lane = threadIdx.x, row = blockIdx.x * 4 + w;
    if (row >= rows) return;
    float m = -1e30f;
    for (int i = lane; i < n; i += 32) { buf[w][i] = x[row * n + i]; m = fmaxf(m, buf[w][i]); }
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, o));
    float s = 0.f;
    for (int i = lane; i < n; i += 32) { buf[w][i] = expf(buf[w][i] - m); s += buf[w][i]; }
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(0xffffffff, s, o);
    for (int i = lane; i < n; i += 32) y[row * n + i] = buf[w][i] / s;
}""", (32, 4), 2, lambda r: (r(7, 50), r(7, 50), 7, 50), name="softmax_2d", atomics=0)  # fmt: skip
def softmax_2d(x, y, rows, n):
    return {"y": x.softmax(-1)}


@case(r"""
template <int HEAD, int BLK>
__global__ void paged_attention(const float* __restrict__ q, const float* __restrict__ k_cache, const float* __restrict__ v_cache, const int* __restrict__ block_table, const int* __restrict__ ctx_len, float* __restrict__ out, float scale, int max_blocks) {
    extern __shared__ float logits[];
    __shared__ float q_s[HEAD];
    __shared__ float red[4];
    const int seq = blockIdx.x, t = threadIdx.x, lane = t % 32, warp = t / 32;
    const int ctx = ctx_len[seq];
    if (t < HEAD) q_s[t] = q[seq * HEAD + t];
    __syncthreads();
    float qk_max = -FLT_MAX;
    for (int i = t; i < ctx; i += blockDim.x) {
        const int phys = block_table[seq * max_blocks + i / BLK];
        const float* kp = k_cache + (phys * BLK + i % BLK) * HEAD;
        float qk = 0.f;
        #pragma unroll
        for (int d = 0; d < HEAD; ++d) qk += q_s[d] * kp[d];
        qk *= scale;
        logits[i] = qk;
        qk_max = fmaxf(qk_max, qk);
    }
    for (int m = 16; m >= 1; m /= 2) qk_max = fmaxf(qk_max, __shfl_xor_sync(0xffffffff, qk_max, m));
    if (lane == 0) red[warp] = qk_max;
    __syncthreads();
    qk_max = fmaxf(red[0], red[1]);
    float exp_sum = 0.f;
    for (int i = t; i < ctx; i += blockDim.x) {
        float val = __expf(logits[i] - qk_max);
        logits[i] = val;
        exp_sum += val;
    }
    for (int m = 16; m >= 1; m /= 2) exp_sum += __shfl_xor_sync(0xffffffff, exp_sum, m);
    __syncthreads();
    if (lane == 0) red[warp] = exp_sum;
    __syncthreads();
    exp_sum = red[0] + red[1];
    const float inv_sum = __fdividef(1.f, exp_sum + 1e-6f);
    for (int i = t; i < ctx; i += blockDim.x) logits[i] *= inv_sum;
    __syncthreads();
    if (t < HEAD) {
        float acc = 0.f;
        for (int i = 0; i < ctx; ++i) {
            const int phys = block_table[seq * max_blocks + i / BLK];
            acc += logits[i] * v_cache[(phys * BLK + i % BLK) * HEAD + t];
        }
        out[seq * HEAD + t] = acc;
    }
}""", 64, 3, lambda r: (r(3, 16), r(20, 4, 16), r(20, 4, 16), torch.arange(18, dtype=torch.int32).flip(0).view(3, 6), torch.tensor([24, 7, 13], dtype=torch.int32), r(3, 16), 0.25, 6), name="paged_attention<16, 4>", wrt=("q", "k_cache", "v_cache"), shared_mem=96)  # fmt: skip
def paged_attention(q, k, v, table, lengths, out, scale, most):
    rows = []
    for query, pages, length in zip(q, table.long().to(q.device), lengths.tolist(), strict=True):
        p = (scale * k[pages].reshape(-1, 16)[:length] @ query).softmax(0)
        rows.append(p @ v[pages].reshape(-1, 16)[:length])
    return {"out": torch.stack(rows)}


@case("""
template <typename scalar_t>
__global__ void pixel_shuffle_kernel(const scalar_t* __restrict__ input, const scalar_t* __restrict__ scale, scalar_t* __restrict__ output,
                                     int total, int C, int H, int W, int r) {
    for (int idx = blockIdx.x * blockDim.x + threadIdx.x; idx < total; idx += blockDim.x * gridDim.x) {
        const int w = idx % W;
        const int h = (idx / W) % H;
        const int c = (idx / (W * H)) % C;
        const int b = idx / (W * H * C);
        for (int k = 0; k < r; ++k) {
            output[((b * C + c) * H + h) * (W * r) + w * r + k] = input[(((b * r + k) * C + c) * H + h) * W + w] * scale[k];
        }
    }
}""", 32, 2, lambda r: (r(2, 3, 2, 4, 5), r(3), r(2, 2, 4, 15), 80, 2, 4, 5, 3), wrt=("input",), name="pixel_shuffle_kernel<float>", atomics=0)  # fmt: skip
def pixel_shuffle(input, scale, output, total, C, H, W, r):
    parts = input * scale.view(1, 3, 1, 1, 1)
    return {"output": parts.permute(0, 2, 3, 4, 1).reshape(2, 2, 4, 15)}
