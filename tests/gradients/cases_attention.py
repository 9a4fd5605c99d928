"""Attention with online softmax, in the styles in which it is published: what owns a row, and where its tiles lie."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.gradients.cases import case


def attended(q: Any, k: Any, v: Any, scale: float | None = None, causal: bool = False) -> Any:
    s = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return s.softmax(-1) @ v


# A thread a row, tiles that all threads load, a break at the end.
@case(r"""
#define D 8
#define BC 16
extern "C" __global__ void flash_rows(const float* __restrict__ Q, const float* __restrict__ K, const float* __restrict__ V, float* __restrict__ O, int N, float scale) {
    __shared__ float Ks[BC][D];
    __shared__ float Vs[BC][D];
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    int head = blockIdx.y;
    const float* q = Q + head * N * D;
    const float* k = K + head * N * D;
    const float* v = V + head * N * D;
    float* o = O + head * N * D;
    float qr[D], acc[D];
    for (int d = 0; d < D; ++d) { qr[d] = row < N ? q[row * D + d] : 0.0f; acc[d] = 0.0f; }
    float m = -INFINITY, l = 0.0f;
    for (int start = 0; start < N; start += BC) {
        for (int idx = threadIdx.x; idx < BC * D; idx += blockDim.x) {
            int r = idx / D, c = idx % D;
            Ks[r][c] = start + r < N ? k[(start + r) * D + c] : 0.0f;
            Vs[r][c] = start + r < N ? v[(start + r) * D + c] : 0.0f;
        }
        __syncthreads();
        for (int j = 0; j < BC; ++j) {
            if (start + j >= N) break;
            float s = 0.0f;
            for (int d = 0; d < D; ++d) s += qr[d] * Ks[j][d];
            s *= scale;
            float m_new = fmaxf(m, s);
            float alpha = expf(m - m_new);
            float p = expf(s - m_new);
            l = l * alpha + p;
            for (int d = 0; d < D; ++d) acc[d] = acc[d] * alpha + p * Vs[j][d];
            m = m_new;
        }
        __syncthreads();
    }
    if (row < N) for (int d = 0; d < D; ++d) o[row * D + d] = acc[d] / l;
}""", 32, (2, 2), lambda r: (r(2, 45, 8), r(2, 45, 8), r(2, 45, 8), r(2, 45, 8), 45, 0.35), max_iterations=8)  # fmt: skip
def flash_rows(Q, K, V, O, N, scale):  # noqa: E741
    return {"O": attended(Q, K, V, scale)}


# A thread a row, keys in global memory, causal.
@case(r"""
template <int HEAD_DIM>
__global__ void online_causal(const float* q, const float* k, const float* v, float* out, int seq_len) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= seq_len) return;
    const float scale = rsqrtf((float)HEAD_DIM);
    float m = -1e20f, l = 0.f;
    float acc[HEAD_DIM] = {0.f};
    for (int j = 0; j <= i; j++) {
        float dot = 0.f;
        #pragma unroll
        for (int d = 0; d < HEAD_DIM; d++) dot += q[i * HEAD_DIM + d] * k[j * HEAD_DIM + d];
        dot *= scale;
        float m_prev = m;
        m = max(m, dot);
        float correction = __expf(m_prev - m);
        float p = __expf(dot - m);
        l = l * correction + p;
        #pragma unroll
        for (int d = 0; d < HEAD_DIM; d++) acc[d] = acc[d] * correction + p * v[j * HEAD_DIM + d];
    }
    for (int d = 0; d < HEAD_DIM; d++) out[i * HEAD_DIM + d] = acc[d] / l;
}""", 32, 2, lambda r: (r(40, 8), r(40, 8), r(40, 8), r(40, 8), 40), name="online_causal<8>", max_iterations=64)  # fmt: skip
def online_causal(q, k, v, out, n):
    return {"out": attended(q, k, v, causal=True)}


# A branch that rescales.
@case(r"""
#define HD 16
extern "C" __global__ void online_rescaled(const float* q, const float* k, const float* v, float* o, const int n, const float scale) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < n) {
        float acc[HD];
        float mx = -FLT_MAX, sum = 0.f;
        for (int d = 0; d < HD; ++d) acc[d] = 0.f;
        for (int j = 0; j < n; ++j) {
            float s = 0.f;
            for (int d = 0; d < HD; ++d) s += q[row * HD + d] * k[j * HD + d];
            s *= scale;
            if (s > mx) {
                float c = expf(mx - s);
                sum *= c;
                for (int d = 0; d < HD; ++d) acc[d] *= c;
                mx = s;
            }
            float e = expf(s - mx);
            sum += e;
            for (int d = 0; d < HD; ++d) acc[d] += e * v[j * HD + d];
        }
        float inv = 1.f / sum;
        for (int d = 0; d < HD; ++d) o[row * HD + d] = acc[d] * inv;
    }
}""", 32, 1, lambda r: (r(20, 16), r(20, 16), r(20, 16), r(20, 16), 20, 0.25), max_iterations=32)  # fmt: skip
def online_rescaled(q, k, v, o, n, scale):
    return {"o": attended(q, k, v, scale)}


# A warp a row: each lane has two numbers of it.
@case(r"""
#define WARP 32
__device__ float warp_sum(float v) {
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
    return v;
}
extern "C" __global__ void flash_warp(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, float* __restrict__ out, int T, float scale) {
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int row = blockIdx.x * (blockDim.x / WARP) + warp;
    int head = blockIdx.y;
    if (row >= T) return;
    const int D = 64;
    const float* qr = q + (head * T + row) * D;
    float q0 = qr[lane], q1 = qr[lane + 32];
    float m = -INFINITY, l = 0.f, a0 = 0.f, a1 = 0.f;
    for (int j = 0; j <= row; ++j) {
        const float* kr = k + (head * T + j) * D;
        const float* vr = v + (head * T + j) * D;
        float s = warp_sum(q0 * kr[lane] + q1 * kr[lane + 32]) * scale;
        float mn = fmaxf(m, s);
        float c = __expf(m - mn), p = __expf(s - mn);
        l = l * c + p;
        a0 = a0 * c + p * vr[lane];
        a1 = a1 * c + p * vr[lane + 32];
        m = mn;
    }
    out[(head * T + row) * D + lane] = a0 / l;
    out[(head * T + row) * D + lane + 32] = a1 / l;
}""", 64, (6, 2), lambda r: (r(2, 11, 64), r(2, 11, 64), r(2, 11, 64), r(2, 11, 64), 11, 0.125), max_iterations=16)  # fmt: skip
def flash_warp(q, k, v, out, T, scale):
    return {"out": attended(q, k, v, scale, True)}


# A block a row: its threads share a sum for each key.
@case(r"""
extern "C" __global__ void flash_block(const float* q, const float* k, const float* v, float* o, int n, float scale) {
    __shared__ float red[32];
    int row = blockIdx.x, d = threadIdx.x;
    float qd = q[row * 32 + d] * scale, acc = 0.f, m = -INFINITY, l = 0.f;
    for (int j = 0; j < n; ++j) {
        red[d] = qd * k[j * 32 + d];
        __syncthreads();
        for (int s = 16; s > 0; s >>= 1) { if (d < s) red[d] += red[d + s]; __syncthreads(); }
        float s = red[0];
        __syncthreads();
        float mn = fmaxf(m, s), a = expf(m - mn), p = expf(s - mn);
        l = l * a + p; acc = acc * a + p * v[j * 32 + d]; m = mn;
    }
    o[row * 32 + d] = acc / l;
}""", 32, 12, lambda r: (r(12, 32), r(12, 32), r(12, 32), r(12, 32), 12, 0.2), max_iterations=16)  # fmt: skip
def flash_block(q, k, v, o, n, scale):
    return {"o": attended(q, k, v, scale)}


# A thread a row, which also loads a row of each tile, if there is one.
@case(r"""
const int kD = 8, kTile = 32;
__global__ void attn(const float* Q, const float* K, const float* V, float* O, int seq) {
    __shared__ float Kt[kTile * kD];
    __shared__ float Vt[kTile][kD];
    const int t = threadIdx.x, i = blockIdx.x * kTile + t;
    float q[kD], acc[kD];
    if (i < seq) {
        for (int d = 0; d < kD; d++) q[d] = Q[i * kD + d] * 0.35f;
    }
    for (int d = 0; d < kD; d++) acc[d] = 0.f;
    float m = -1e30f, l = 0.f;
    for (int base = 0; base < seq; base += kTile) {
        if (base + t < seq) {
            for (int d = 0; d < kD; d++) {
                Kt[t * kD + d] = K[(base + t) * kD + d];
                Vt[t][d] = V[(base + t) * kD + d];
            }
        }
        __syncthreads();
        if (i < seq) {
            const int lim = min(kTile, seq - base);
            for (int j = 0; j < lim; j++) {
                float s = 0.f;
                for (int d = 0; d < kD; d++) s += q[d] * Kt[j * kD + d];
                float mn = fmaxf(m, s);
                float e0 = expf(m - mn), e1 = expf(s - mn);
                l = l * e0 + e1;
                for (int d = 0; d < kD; d++) acc[d] = acc[d] * e0 + e1 * Vt[j][d];
                m = mn;
            }
        }
        __syncthreads();
    }
    if (i < seq) for (int d = 0; d < kD; d++) O[i * kD + d] = acc[d] / l;
}""", 32, 2, lambda r: (r(45, 8), r(45, 8), r(45, 8), r(45, 8), 45), name="attn", max_iterations=32)  # fmt: skip
def own_rows(Q, K, V, O, seq):  # noqa: E741
    return {"O": attended(Q, K, V, 0.35)}


# Scores in registers, tiles in parts of dynamic shared memory.
@case(r"""
template <int Br, int Bc, int d>
__global__ void flash_scores(const float* Q, const float* K, const float* V, float* O, int N, int nh, float softmax_scale) {
    extern __shared__ float sram[];
    float* Kj = sram;
    float* Vj = sram + Bc * d;
    int tx = threadIdx.x;
    int bx = blockIdx.x, by = blockIdx.y;
    int qkv_offset = (bx * nh + by) * N * d;
    int i = blockIdx.z * Br + tx;
    float qi[d], o[d];
    float m = -INFINITY, l = 0.f;
    #pragma unroll
    for (int x = 0; x < d; x++) { qi[x] = Q[qkv_offset + i * d + x]; o[x] = 0.f; }
    int Tc = (N + Bc - 1) / Bc;
    for (int j = 0; j < Tc; j++) {
        for (int y = tx; y < Bc * d; y += blockDim.x) {
            Kj[y] = K[qkv_offset + j * Bc * d + y];
            Vj[y] = V[qkv_offset + j * Bc * d + y];
        }
        __syncthreads();
        float s[Bc];
        float mt = -INFINITY;
        #pragma unroll
        for (int y = 0; y < Bc; y++) {
            float sum = 0;
            #pragma unroll
            for (int x = 0; x < d; x++) sum += qi[x] * Kj[y * d + x];
            sum *= softmax_scale;
            if (j * Bc + y > i) sum = -INFINITY;
            s[y] = sum;
            mt = fmaxf(mt, sum);
        }
        float m_new = fmaxf(m, mt);
        float alpha = __expf(m - m_new);
        float lt = 0.f;
        #pragma unroll
        for (int y = 0; y < Bc; y++) { s[y] = __expf(s[y] - m_new); lt += s[y]; }
        l = l * alpha + lt;
        #pragma unroll
        for (int x = 0; x < d; x++) {
            float pv = 0.f;
            #pragma unroll
            for (int y = 0; y < Bc; y++) pv += s[y] * Vj[y * d + x];
            o[x] = o[x] * alpha + pv;
        }
        m = m_new;
        __syncthreads();
    }
    #pragma unroll
    for (int x = 0; x < d; x++) O[qkv_offset + i * d + x] = o[x] / l;
}""", 8, (1, 2, 2), lambda r: (r(1, 2, 16, 4), r(1, 2, 16, 4), r(1, 2, 16, 4), r(1, 2, 16, 4), 16, 2, 0.5), name="flash_scores<8, 4, 4>", shared_mem=128, max_iterations=4)  # fmt: skip
def flash_scores(Q, K, V, O, N, nh, scale):  # noqa: E741
    return {"O": attended(Q, K, V, scale, True)}


# All in parts of dynamic shared memory, each thread with a row of scores that it overwrites.
@case(r"""
#define D 8
#define BR 16
#define BC 8
extern "C" __global__ void flash_sram(const float* Q, const float* K, const float* V, float* O, int N, float scale) {
    extern __shared__ float sram[];
    float* Qi = sram;
    float* Kj = &sram[BR * D];
    float* Vj = Kj + BC * D;
    float* S = &Vj[BC * D];
    int tx = threadIdx.x, q0 = blockIdx.x * BR;
    Q += blockIdx.y * N * D; K += blockIdx.y * N * D; V += blockIdx.y * N * D; O += blockIdx.y * N * D;
    float m = -INFINITY, l = 0.f, acc[D];
    for (int x = 0; x < D; x++) { Qi[tx * D + x] = Q[(q0 + tx) * D + x]; acc[x] = 0.f; }
    for (int j = 0; j < N / BC; j++) {
        for (int e = tx; e < BC * D; e += blockDim.x) {
            int r = e / D, c = e % D;
            Kj[r * D + c] = K[(j * BC + r) * D + c];
            Vj[e] = V[j * BC * D + e];
        }
        __syncthreads();
        float row_m = -INFINITY;
        for (int y = 0; y < BC; y++) {
            float sum = 0.f;
            for (int x = 0; x < D; x++) sum += Qi[tx * D + x] * Kj[y * D + x];
            sum *= scale;
            S[tx * BC + y] = sum;
            row_m = fmaxf(row_m, sum);
        }
        float m_new = fmaxf(m, row_m), row_l = 0.f;
        for (int y = 0; y < BC; y++) {
            S[tx * BC + y] = __expf(S[tx * BC + y] - m_new);
            row_l += S[tx * BC + y];
        }
        float corr = __expf(m - m_new);
        l = corr * l + row_l;
        for (int x = 0; x < D; x++) {
            float pv = 0.f;
            for (int y = 0; y < BC; y++) pv += S[tx * BC + y] * Vj[y * D + x];
            acc[x] = corr * acc[x] + pv;
        }
        m = m_new;
        __syncthreads();
    }
    for (int x = 0; x < D; x++) O[(q0 + tx) * D + x] = acc[x] / l;
}""", 16, (2, 2), lambda r: (r(2, 32, 8), r(2, 32, 8), r(2, 32, 8), r(2, 32, 8), 32, 0.35), shared_mem=4 * (128 + 64 + 64 + 128), max_iterations=8)  # fmt: skip
def flash_sram(Q, K, V, O, N, scale):  # noqa: E741
    return {"O": attended(Q, K, V, scale)}


# The sums, the maxima and the output of each row in global memory, which each tile of keys reads and overwrites.
TILED = r"""
extern "C" __global__ void flash_global(
    const float* q, const float* k, const float* v, float* out, float* sums, float* maxima, float scale, int rows SIZES
) {
    extern __shared__ float tiles[];
    float *own = tiles, *keys = own + TILE * WIDTH, *values = keys + TILE * WIDTH, *scores = values + TILE * WIDTH;
    int t = threadIdx.x, head = blockIdx.x * rows;
    for (int j = 0; j < rows / TILE; ++j) {
        for (int c = 0; c < WIDTH; ++c) {
            keys[t * WIDTH + c] = k[(head + j * TILE + t) * WIDTH + c];
            values[t * WIDTH + c] = v[(head + j * TILE + t) * WIDTH + c];
        }
        __syncthreads();
        for (int i = 0; i < rows / TILE; ++i) {
            int row = head + i * TILE + t;
            for (int c = 0; c < WIDTH; ++c) own[t * WIDTH + c] = q[row * WIDTH + c];
            float before = maxima[row], most = before, sum = 0.0f;
            for (int y = 0; y < TILE; ++y) {
                float score = 0.0f;
                for (int c = 0; c < WIDTH; ++c) score += own[t * WIDTH + c] * keys[y * WIDTH + c];
                scores[t * TILE + y] = scale * score;
                most = fmaxf(most, scale * score);
            }
            for (int y = 0; y < TILE; ++y) {
                scores[t * TILE + y] = __expf(scores[t * TILE + y] - most);
                sum += scores[t * TILE + y];
            }
            float kept = sums[row] * __expf(before - most);
            for (int c = 0; c < WIDTH; ++c) {
                float more = 0.0f;
                for (int y = 0; y < TILE; ++y) more += scores[t * TILE + y] * values[y * WIDTH + c];
                out[row * WIDTH + c] = (kept * out[row * WIDTH + c] + more) / (kept + sum);
            }
            maxima[row] = most;
            sums[row] = kept + sum;
        }
        __syncthreads();
    }
}"""


def tiled(r: Any) -> tuple[Any, ...]:
    return r(3, 16, 4), r(3, 16, 4), r(3, 16, 4), r(3, 16, 4) * 0, r(3, 16) * 0, r(3, 16) * 0 - math.inf, 0.5, 16


@case("#define TILE 8\n#define WIDTH 4" + TILED.replace("SIZES", ""), 8, 3, tiled, shared_mem=4 * (3 * 32 + 64), wrt=("q", "k", "v"))  # fmt: skip
def flash_global(q, k, v, out, sums, maxima, scale, rows, *before):
    return {"out": attended(q, k, v, scale)}
