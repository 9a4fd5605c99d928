"""Kernels of models, in the style in which they are published, with the same functions in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.gradients.cases import case

REDUCE = """
__device__ __forceinline__ float block_sum(float v, float* part) {
    #pragma unroll
    for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(0xffffffff, v, o);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    float total = 0.f;
    for (int w = 0; w < 2; ++w) total += part[w];
    return total;
}
"""


@case(
    REDUCE + """extern "C" __global__ void layer_norm(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b, float* __restrict__ y, int n, float eps) {
        __shared__ float part[32];
        const float* row = x + blockIdx.x * n;
        float s = 0.f;
        for (int j = threadIdx.x; j < n; j += blockDim.x) s += row[j];
        float mean = block_sum(s, part) / n;
        float v = 0.f;
        for (int j = threadIdx.x; j < n; j += blockDim.x) { float d = row[j] - mean; v += d * d; }
        float r = rsqrtf(block_sum(v, part) / n + eps);
        for (int j = threadIdx.x; j < n; j += blockDim.x) y[blockIdx.x * n + j] = (row[j] - mean) * r * w[j] + b[j];
    }""",
    64, 4, lambda r: (r(4, 100), r(100), r(100), r(4, 100), 100, 1e-5),
)  # fmt: skip
def layer_norm(x, w, b, y, n, eps):
    return {"y": F.layer_norm(x, (n,), w, b, eps)}


@case(
    REDUCE + """extern "C" __global__ void add_rms_norm(const float* x, const float* res, const float* w, float* y, float* sum, int n) {
        __shared__ float part[32];
        int row = blockIdx.x;
        float s = 0.f;
        for (int j = threadIdx.x; j < n; j += blockDim.x) { float h = x[row * n + j] + res[row * n + j]; s += h * h; sum[row * n + j] = h; }
        float r = rsqrtf(block_sum(s, part) / (float)n + 1e-6f);
        for (int j = threadIdx.x; j < n; j += blockDim.x) y[row * n + j] = (x[row * n + j] + res[row * n + j]) * r * w[j];
    }""",
    64, 4, lambda r: (r(4, 100), r(4, 100), r(100), r(4, 100), r(4, 100), 100),
)  # fmt: skip
def add_rms_norm(x, res, w, y, sum, n):
    h = x + res
    return {"y": h * (h.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w, "sum": h}


@case(
    """extern "C" __global__ void rope(const float* q, const float* cosine, const float* sine, float* out, int heads, int d) {
        int pos = blockIdx.x, head = blockIdx.y, k = threadIdx.x;
        if (k >= d / 2) return;
        int at = (pos * heads + head) * d;
        float a = q[at + k], b = q[at + k + d / 2], c = cosine[pos * (d / 2) + k], s = sine[pos * (d / 2) + k];
        out[at + k] = a * c - b * s;
        out[at + k + d / 2] = b * c + a * s;
    }""",
    32, (5, 3), lambda r: (r(5, 3, 16), r(5, 8), r(5, 8), r(5, 3, 16), 3, 16),
)  # fmt: skip
def rope(q, cosine, sine, out, heads, d):
    a, b = q.chunk(2, -1)
    c, s = cosine[:, None], sine[:, None]
    return {"out": torch.cat([a * c - b * s, b * c + a * s], -1)}


@case(
    """
    #define SQRT_2_OVER_PI 0.7978845608f
    __device__ float gelu(float v) { return 0.5f * v * (1.0f + tanhf(SQRT_2_OVER_PI * (v + 0.044715f * v * v * v))); }
    __device__ float silu(float v) { return v / (1.0f + __expf(-v)); }
    extern "C" __global__ void gated(const float2* x, float* y, float* z, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) { float2 v = x[i]; y[i] = silu(v.x) * v.y; z[i] = gelu(v.x) * v.y; }
    }""",
    64, 2, lambda r: (r(100, 2), r(100), r(100), 100), atomics=0,
)  # fmt: skip
def gated(x, y, z, n):
    a, b = x.unbind(-1)
    return {"y": F.silu(a) * b, "z": F.gelu(a, approximate="tanh") * b}


@case(
    REDUCE + """extern "C" __global__ void cross_entropy(const float* logits, const int* target, float* loss, int n) {
        __shared__ float part[32];
        const float* row = logits + blockIdx.x * n;
        float m = -1e30f;
        for (int j = 0; j < n; ++j) m = fmaxf(m, row[j]);
        float s = 0.f;
        for (int j = threadIdx.x; j < n; j += blockDim.x) s += expf(row[j] - m);
        s = block_sum(s, part);
        if (threadIdx.x == 0) loss[blockIdx.x] = logf(s) + m - row[target[blockIdx.x]];
    }""",
    64, 6, lambda r: (r(6, 90), torch.tensor([0, 5, 89, 7, 3, 3], dtype=torch.int32), r(6), 90),
)  # fmt: skip
def cross_entropy(logits, target, loss, n):
    return {"loss": F.cross_entropy(logits, target.long(), reduction="none")}


@case(
    """extern "C" __global__ void conv2d(const float* x, const float* w, float* y, int h, int wd) {
        int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
        if (r >= h || c >= wd) return;
        float s = 0.f;
        for (int i = -1; i <= 1; ++i)
            for (int j = -1; j <= 1; ++j) {
                int rr = r + i, cc = c + j;
                if (rr < 0 || rr >= h || cc < 0 || cc >= wd) continue;
                s += x[rr * wd + cc] * w[(i + 1) * 3 + j + 1];
            }
        y[r * wd + c] = s;
    }""",
    (8, 4), (3, 4), lambda r: (r(13, 21), r(3, 3), r(13, 21), 13, 21),
)  # fmt: skip
def conv2d(x, w, y, h, wd):
    return {"y": F.conv2d(x[None, None], w[None, None], padding=1)[0, 0]}


@case(
    """extern "C" __global__ void bilinear(const float* img, const float2* at, float* y, int h, int w, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        float u = at[i].x, v = at[i].y;
        int x0 = (int)floorf(u), y0 = (int)floorf(v);
        float fx = u - x0, fy = v - y0;
        float a = img[y0 * w + x0], b = img[y0 * w + x0 + 1], c = img[(y0 + 1) * w + x0], d = img[(y0 + 1) * w + x0 + 1];
        float top = a + fx * (b - a), bottom = c + fx * (d - c);
        y[i] = top + fy * (bottom - top);
    }""",
    64, 2, lambda r: (r(9, 9), r(70, 2) * 3 + 4, r(70), 9, 9, 70),
)  # fmt: skip
def bilinear(img, at, y, h, w, n):
    grid = at / 4 - 1
    return {"y": F.grid_sample(img[None, None], grid[None, None], align_corners=True)[0, 0, 0]}


@case(
    """extern "C" __global__ void attention(const float* q, const float* k, const float* v, float* out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        float m = -1e30f;
        for (int j = 0; j < n; ++j) {
            float s = 0.f;
            for (int d = 0; d < 4; ++d) s += q[i * 4 + d] * k[j * 4 + d];
            m = fmaxf(m, 0.5f * s);
        }
        float l = 0.f, acc[4] = {0.f, 0.f, 0.f, 0.f};
        for (int j = 0; j < n; ++j) {
            float s = 0.f;
            for (int d = 0; d < 4; ++d) s += q[i * 4 + d] * k[j * 4 + d];
            float p = expf(0.5f * s - m);
            l += p;
            #pragma unroll
            for (int d = 0; d < 4; ++d) acc[d] += p * v[j * 4 + d];
        }
        for (int d = 0; d < 4; ++d) out[i * 4 + d] = acc[d] / l;
    }""",
    32, 1, lambda r: (r(20, 4), r(20, 4), r(20, 4), r(20, 4), 20),
)  # fmt: skip
def attention(q, k, v, out, n):
    return {"out": (0.5 * q @ k.T).softmax(-1) @ v}


@case(
    """extern "C" __global__ void online(const float* x, const float* v, float* y) {
        int row = threadIdx.x;
        float m = -1e30f, l = 0.f, acc = 0.f;
        for (int j = 0; j < 12; ++j) {
            float s = x[row * 12 + j], next = fmaxf(m, s), scale = expf(m - next), p = expf(s - next);
            l = l * scale + p;
            acc = acc * scale + p * v[j];
            m = next;
        }
        y[row] = acc / l;
    }""",
    32, 1, lambda r: (r(32, 12), r(12), r(32)),
)  # fmt: skip
def online(x, v, y):
    return {"y": x.softmax(-1) @ v}


@case(
    """extern "C" __global__ void selective_scan(const float* u, const float* delta, const float* A, const float* B, const float* C, float* y, int n) {
        int i = threadIdx.x;
        if (i >= n) return;
        float h0 = 0.f, h1 = 0.f;
        for (int t = 0; t < 16; ++t) {
            float d = log1pf(expf(delta[t * n + i]));
            h0 = expf(d * A[i * 2]) * h0 + d * B[t * 2] * u[t * n + i];
            h1 = expf(d * A[i * 2 + 1]) * h1 + d * B[t * 2 + 1] * u[t * n + i];
            y[t * n + i] = h0 * C[t * 2] + h1 * C[t * 2 + 1];
        }
    }""",
    32, 1, lambda r: (r(16, 20), r(16, 20), r(20, 2), r(16, 2), r(16, 2), r(16, 20), 20),
)  # fmt: skip
def selective_scan(u, delta, A, B, C, y, n):
    h, rows = torch.zeros_like(A), []
    for t in range(16):
        d = F.softplus(delta[t])[:, None]
        h = (d * A).exp() * h + d * B[t] * u[t][:, None]
        rows.append((h * C[t]).sum(-1))
    return {"y": torch.stack(rows)}


@case(
    """
    struct Ray { float ox, oy, oz, dx, dy, dz; };
    __device__ float hit(const Ray& r, float cx, float cy, float cz, float radius) {
        float x = r.ox - cx, y = r.oy - cy, z = r.oz - cz;
        float b = x * r.dx + y * r.dy + z * r.dz, c = x * x + y * y + z * z - radius * radius;
        float disc = b * b - c;
        if (disc < 0.f) return 0.f;
        return -b - sqrtf(disc);
    }
    extern "C" __global__ void sphere(const float4* rays, const float4* ball, float* t, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        float4 v = rays[i], s = ball[0];
        float inv = rsqrtf(v.x * v.x + v.y * v.y + 1.f);
        Ray r;
        r.ox = 0.f; r.oy = 0.f; r.oz = -3.f;
        r.dx = v.x * inv; r.dy = v.y * inv; r.dz = inv;
        t[i] = hit(r, s.x, s.y, s.z, s.w) * v.w;
    }""",
    32, 2, lambda r: (r(50, 4) * 0.5, torch.tensor([[0.1, -0.1, 0.2, 1.0]]), r(50), 50),
)  # fmt: skip
def sphere(rays, ball, t, n):
    inv = (rays[:, :2].square().sum(-1) + 1).rsqrt()
    d = torch.stack([rays[:, 0] * inv, rays[:, 1] * inv, inv], -1)
    o = torch.tensor([0, 0, -3.0], dtype=rays.dtype, device=rays.device) - ball[0, :3]
    b, c = d @ o, o @ o - ball[0, 3] ** 2
    disc = b * b - c
    return {"t": torch.where(disc < 0, 0.0, -b - disc.clamp(min=1e-30).sqrt()) * rays[:, 3]}
