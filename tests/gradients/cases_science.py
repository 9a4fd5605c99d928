"""Kernels of physics, graphics and signals, as they are published."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.gradients.cases import case


@case("""
struct vec3 {
    float e[3];
    __device__ vec3() {}
    __device__ vec3(float a, float b, float c) { e[0] = a; e[1] = b; e[2] = c; }
    __device__ inline float operator[](int i) const { return e[i]; }
    __device__ inline float& operator[](int i) { return e[i]; }
};
__device__ inline float squared(const vec3& v) {
    float sum = 0.0f;
    for (int k = 0; k < 3; ++k) sum += v[k] * v[k];
    return sum;
}
__global__ void subscripts(const float* x, float* y, int half) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i >= half) return;
    vec3 v(x[2 * i], x[2 * i + 1], 2.0f);
    v[1] *= v[0];
    v[2] = v[0] + v[1];
    y[i] = squared(v) * v[2];
}""", 32, 2, lambda r: (r(100), r(50), 50), name="subscripts", atomics=0)  # fmt: skip
def subscripts(x, y, half):
    a, b = x.view(-1, 2).unbind(1)
    b = a * b
    return {"y": (a * a + b * b + (a + b) ** 2) * (a + b)}


@case("""
#define N 4
__global__ void oscillators(const float* q0, float* last, int n, float dt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float q[N], p[N] = {0.0f}, f[N];
    for (int k = 0; k < N; ++k) q[k] = q0[i * N + k];
    for (int step = 0; step < 12; ++step) {
        for (int k = 0; k < N; ++k) {
            float left = k > 0 ? q[k] - q[k - 1] : q[k];
            float right = k < N - 1 ? q[k + 1] - q[k] : -q[k];
            f[k] = right - left + 0.3f * (right * right - left * left);
        }
        for (int k = 0; k < N; ++k) { p[k] += dt * f[k]; q[k] += dt * p[k]; }
    }
    for (int k = 0; k < N; ++k) last[i * N + k] = q[k];
}""", 32, 2, lambda r: (r(40, 4), r(40, 4), 40, 0.1), name="oscillators", atomics=0)  # fmt: skip
def oscillators(q0, last, n, dt):
    q, p = q0, torch.zeros_like(q0)
    for _ in range(12):
        d = F.pad(q, (1, 1)).diff(dim=1)
        left, right = d[:, :-1], d[:, 1:]
        p = p + dt * (right - left + 0.3 * (right * right - left * left))
        q = q + dt * p
    return {"last": q}


@case("""
__global__ void im2col(const int n, const float* data_im, const int height, const int width, const int ksize, const int pad,
    const int stride, const int height_col, const int width_col, float* data_col) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  for (; index < n; index += blockDim.x * gridDim.x) {
    int w_out = index % width_col;
    int h_index = index / width_col;
    int h_out = h_index % height_col;
    int channel_in = h_index / height_col;
    int channel_out = channel_in * ksize * ksize;
    int h_in = h_out * stride - pad;
    int w_in = w_out * stride - pad;
    float* data_col_ptr = data_col;
    data_col_ptr += (channel_out * height_col + h_out) * width_col + w_out;
    const float* data_im_ptr = data_im;
    data_im_ptr += (channel_in * height + h_in) * width + w_in;
    for (int i = 0; i < ksize; ++i) {
      for (int j = 0; j < ksize; ++j) {
        int h = h_in + i;
        int w = w_in + j;
        *data_col_ptr = (h >= 0 && w >= 0 && h < height && w < width) ? data_im_ptr[i * width + j] : 0;
        data_col_ptr += height_col * width_col;
      }
    }
  }
}""", 32, 2, lambda r: (84, r(2, 6, 7), 6, 7, 3, 1, 1, 6, 7, r(18, 6, 7)), name="im2col", atomics=1)  # fmt: skip
def im2col(n, data_im, height, width, ksize, pad, stride, height_col, width_col, data_col):
    return {"data_col": F.unfold(data_im[None], ksize, padding=pad)[0].view(18, 6, 7)}


@case("""
__global__ void filter_bank(const float* x, const float* w, float* y, int n, int taps, int groups, int none) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float s = 0.0f;
    int k = 0, m = 0;
    for (int g = 0; g < groups; ++g) {
        for (int t = 1; t <= taps; t += 2) s = 0.9f * s + w[k++] * x[(i + t * (g + 1)) % n];
        for (int t = 0; t < none; ++t) m += 7;
        for (int t = 0; t < g; ++t) s = s * w[m++];
        k += 2;
    }
    y[i] = s * w[k - 8] * w[m];
}""", 32, 2, lambda r: (r(50), r(20), r(50), 50, 3, 3, -1), name="filter_bank", max_iterations=4)  # fmt: skip
def filter_bank(x, w, y, n, taps, groups, none):
    s, k, m = torch.zeros_like(x), 0, 0
    for g in range(groups):
        for t in (1, 3):
            s = 0.9 * s + w[k] * x.roll(-t * (g + 1))
            k += 1
        for _ in range(g):
            s = s * w[m]
            m += 1
        k += 2
    return {"y": s * w[k - 8] * w[m]}


@case("""
#define TILE 32
__global__ void nearest(const float3* __restrict__ a, const float3* __restrict__ b, float* __restrict__ dist, int* __restrict__ idx, int n, int m) {
    __shared__ float3 buf[TILE];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float3 p = i < n ? a[i] : make_float3(0.f, 0.f, 0.f);
    float best = 1e10f;
    int besti = 0;
    for (int k = 0; k < m; k += TILE) {
        int count = min(TILE, m - k);
        if (threadIdx.x < count) buf[threadIdx.x] = b[k + threadIdx.x];
        __syncthreads();
        for (int j = 0; j < count; ++j) {
            float dx = buf[j].x - p.x, dy = buf[j].y - p.y, dz = buf[j].z - p.z;
            float d = dx * dx + dy * dy + dz * dz;
            if (d < best) { best = d; besti = k + j; }
        }
        __syncthreads();
    }
    if (i < n) { dist[i] = best; idx[i] = besti; }
}""", 32, 2, lambda r: (r(50, 3), r(70, 3), r(50), torch.zeros(50, dtype=torch.int32), 50, 70), name="nearest", max_iterations=4)  # fmt: skip
def nearest(a, b, dist, idx, n, m):
    return {"dist": (a[:, None] - b).square().sum(-1).amin(1)}


@case("""
template <int BLOCK>
__global__ void direct_sum(const float4* __restrict__ bodies, float4* __restrict__ accel, int n, float soft) {
    __shared__ float4 tile[BLOCK];
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    const float4 me = bodies[i < n ? i : n - 1];
    float3 sum = {0.0f, 0.0f, 0.0f};
    for (int start = 0; start < n; start += BLOCK) {
        if (start + threadIdx.x < n) tile[threadIdx.x] = bodies[start + threadIdx.x];
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < BLOCK; ++k) {
            if (start + k >= n) break;
            const float4 other = tile[k];
            const float3 d = {other.x - me.x, other.y - me.y, other.z - me.z};
            const float inv = rsqrtf(d.x * d.x + d.y * d.y + d.z * d.z + soft);
            const float s = other.w * inv * inv * inv;
            sum.x += d.x * s;
            sum.y += d.y * s;
            sum.z += d.z * s;
        }
        __syncthreads();
    }
    if (i < n) accel[i] = make_float4(sum.x, sum.y, sum.z, 0.0f);
}""", 32, 2, lambda r: (r(50, 4), r(50, 4), 50, 0.05), name="direct_sum<32>")  # fmt: skip
def direct_sum(bodies, accel, n, soft):
    d = bodies[None, :, :3] - bodies[:, None, :3]
    s = bodies[None, :, 3] * (d.square().sum(-1) + soft) ** -1.5
    return {"accel": F.pad((s[..., None] * d).sum(1), (0, 1))}


@case("""
__global__ void haar(const float* x, float* y) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * 64 + t];
    __syncthreads();
    for (int half = 32; half > 0; half >>= 1) {
        float a = 0.f, d = 0.f;
        if (t < half) { a = (s[2 * t] + s[2 * t + 1]) * 0.70710678f; d = (s[2 * t] - s[2 * t + 1]) * 0.70710678f; }
        __syncthreads();
        if (t < half) { s[t] = a; s[t + half] = d; }
        __syncthreads();
    }
    y[blockIdx.x * 64 + t] = s[t];
}""", 64, 2, lambda r: (r(2, 64), r(2, 64)), name="haar", atomics=0)  # fmt: skip
def haar(x, y):
    details = []
    while x.shape[1] > 1:
        a, b = x[:, ::2], x[:, 1::2]
        x, details = (a + b) * 0.5**0.5, [(a - b) * 0.5**0.5, *details]
    return {"y": torch.cat([x, *details], 1)}


@case("""
#define STRIDE 9
__device__ void lifted(float* v, int step) {
    float a = v[0], b = v[step], c = v[2 * step], d = v[3 * step];
    b -= 0.5f * (a + c);
    d -= c;
    a += 0.25f * (b + d) * a;
    c += 0.25f * b * d;
    v[0] = a;
    v[step] = c;
    v[2 * step] = b;
    v[3 * step] = d;
}
__global__ void lifted2d(const float* image, float* bands, int width) {
    __shared__ float tile[4 * STRIDE];
    int x = blockIdx.x * 8 + threadIdx.x;
    for (int k = 0; k < 4; ++k) tile[k * STRIDE + threadIdx.x] = image[(blockIdx.y * 4 + k) * width + x];
    __syncthreads();
    lifted(tile + threadIdx.x, STRIDE);
    __syncthreads();
    lifted(tile + (threadIdx.x / 2) * STRIDE + (threadIdx.x % 2) * 4, 1);
    __syncthreads();
    for (int k = 0; k < 4; ++k) bands[(blockIdx.y * 4 + k) * width + x] = tile[k * STRIDE + threadIdx.x];
}""", 8, (2, 3), lambda r: (r(12, 16), r(12, 16), 16), name="lifted2d", atomics=0)  # fmt: skip
def lifted2d(image, bands, width):
    def lifted(v):
        a, b, c, d = v.unbind(-1)
        b, d = b - 0.5 * (a + c), d - c
        return torch.stack([a + 0.25 * (b + d) * a, c + 0.25 * b * d, b, d], -1)

    columns = lifted(image.view(3, 4, 16).transpose(1, 2)).transpose(1, 2).reshape(12, 16)
    return {"bands": lifted(columns.view(12, 4, 4)).view(12, 16)}
