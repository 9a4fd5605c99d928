"""Kernels that overwrite in place what they read: ``y_before`` is what ``y`` was."""

from __future__ import annotations

import torch

from tests.gradients.cases import case


@case(r"""
__global__ void relu_inplace(float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && y[i] < 0.0f) y[i] = 0.0f;
}""", 64, 4, lambda r: (r(200), 200), name="relu_inplace", atomics=0)  # fmt: skip
def relu_inplace(y, n, y_before):
    return {"y": y_before.relu()}


@case(r"""
__global__ void softmax_inplace(float* x, int n) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= 9) return;
    float m = -1e30f, sum = 0.0f;
    for (int c = 0; c < n; ++c) m = fmaxf(m, x[row * n + c]);
    for (int c = 0; c < n; ++c) { x[row * n + c] = expf(x[row * n + c] - m); sum += x[row * n + c]; }
    for (int c = 0; c < n; ++c) x[row * n + c] /= sum;
}""", 4, 3, lambda r: (r(9, 13), 13), name="softmax_inplace", atomics=0)  # fmt: skip
def softmax_inplace(x, n, x_before):
    return {"x": x_before.softmax(1)}


@case(r"""
__global__ void rms_inplace(float* x, const float* w, int n) {
    __shared__ float part[64];
    float* row = x + blockIdx.x * n;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < n; c += 64) sum += row[c] * row[c];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int k = 32; k > 0; k >>= 1) {
        if (threadIdx.x < k) part[threadIdx.x] += part[threadIdx.x + k];
        __syncthreads();
    }
    float scale = rsqrtf(part[0] / n + 1e-3f);
    for (int c = threadIdx.x; c < n; c += 64) row[c] *= scale * w[c];
}""", 64, 5, lambda r: (r(5, 100), r(100), 100), name="rms_inplace")  # fmt: skip
def rms_inplace(x, w, n, x_before):
    return {"x": x_before * (x_before.square().mean(1, keepdim=True) + 1e-3).rsqrt() * w}


@case(r"""
__global__ void momentum(float* p, float* v, const float* g, float lr, float mu, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        v[i] = mu * v[i] + g[i];
        p[i] = p[i] - lr * v[i];
    }
}""", 32, 2, lambda r: (r(150), r(150), r(150), 0.1, 0.9, 150), name="momentum", wrt=("p_before", "v_before", "g", "lr"))  # fmt: skip
def momentum(p, v, g, lr, mu, n, p_before, v_before):
    now = mu * v_before + g
    return {"v": now, "p": p_before - lr * now}


@case(r"""
__global__ void rotate(float4* q, const float* angle, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 a = q[i];
    float c = cosf(angle[i]), s = sinf(angle[i]);
    q[i] = make_float4(a.x * c - a.y * s, a.x * s + a.y * c, a.z * c - a.w * s, a.z * s + a.w * c);
}""", 32, 2, lambda r: (r(50, 4), r(50), 40), name="rotate")  # fmt: skip
def rotate(q, angle, n, q_before):
    c, s = angle.cos()[:, None], angle.sin()[:, None]
    even, odd = q_before[:, ::2], q_before[:, 1::2]
    turned = torch.stack([even * c - odd * s, even * s + odd * c], -1).flatten(1)
    return {"q": torch.cat([turned[:40], q_before[40:]])}


@case(r"""
__global__ void rope(float* q, const float* freqs, int heads, int hd) {
    int h = blockIdx.x, t = blockIdx.y, i = threadIdx.x;
    if (i >= hd / 2) return;
    float* p = q + (t * heads + h) * hd;
    float c = cosf(t * freqs[i]), s = sinf(t * freqs[i]);
    float a = p[2 * i], b = p[2 * i + 1];
    p[2 * i] = a * c - b * s;
    p[2 * i + 1] = a * s + b * c;
}""", 8, (3, 5), lambda r: (r(5, 3, 12), r(6), 3, 12), name="rope")  # fmt: skip
def rope(q, freqs, heads, hd, q_before):
    angle = torch.arange(5)[:, None, None] * freqs
    a, b = q_before[..., ::2], q_before[..., 1::2]
    return {"q": torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).flatten(2)}


@case(r"""
__global__ void rope_halves(float* q, const float* angle, int hd) {
    int i = threadIdx.x;
    float* p = q + blockIdx.x * hd;
    float c = cosf(angle[i]), s = sinf(angle[i]), a = p[i], b = p[i + hd / 2];
    p[i] = a * c - b * s;
    p[i + hd / 2] = b * c + a * s;
}""", 8, 6, lambda r: (r(6, 16), r(8), 16), name="rope_halves")  # fmt: skip
def rope_halves(q, angle, hd, q_before):
    a, b = q_before[:, :8], q_before[:, 8:]
    return {"q": torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], 1)}


@case(r"""
__global__ void wrapped(const float* force, float* x, float* v, int n, float dt, float box) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    v[i] = v[i] + dt * force[i] * x[i];
    if (v[i] > 0.5f) v[i] = 0.5f + 0.1f * v[i];
    else if (v[i] < -0.5f) { v[i] = v[i] * v[i]; v[i] = -v[i]; }
    x[i] = x[i] + dt * v[i];
    if (x[i] >= box) x[i] = x[i] - box;
    if (x[i] < 0.0f) x[i] = 2.0f * x[i] + box;
}""", 64, 4, lambda r: (r(200), r(200), r(200), 200, 0.8, 0.6), name="wrapped", wrt=("force", "x_before", "v_before", "dt"))  # fmt: skip
def wrapped(force, x, v, n, dt, box, x_before, v_before):
    now = v_before + dt * force * x_before
    now = torch.where(now > 0.5, 0.5 + 0.1 * now, torch.where(now < -0.5, -now * now, now))
    at = x_before + dt * now
    at = torch.where(at >= box, at - box, at)
    return {"v": now, "x": torch.where(at < 0, 2 * at + box, at)}


@case(r"""
extern "C" __global__ void pic_push(const float* __restrict__ E, float* x, float* v, float qm, float dt, float L, int ng, int np) {
    int p = blockIdx.x * blockDim.x + threadIdx.x;
    if (p >= np) return;
    float xi = x[p] * ng / L;
    int i = (int)xi;
    float w = xi - i;
    v[p] += qm * (E[i % ng] * (1.0f - w) + E[(i + 1) % ng] * w) * dt;
    x[p] += v[p] * dt;
    if (x[p] >= L) x[p] -= L;
    if (x[p] < 0.0f) x[p] += L;
}""", 32, 3, lambda r: (r(16), r(80) * 2 + 2.2, r(80) * 3, -1.0, 0.5, 4.5, 16, 80), wrt=("E", "x_before", "v_before", "qm", "L"))  # fmt: skip
def pic_push(E, x, v, qm, dt, L, ng, np, x_before, v_before):
    at = x_before * ng / L
    i = at.detach().long()
    now = v_before + qm * (E[i % ng] * (1 - at + i) + E[(i + 1) % ng] * (at - i)) * dt
    to = x_before + now * dt
    to = torch.where(to >= L, to - L, to)
    return {"v": now, "x": torch.where(to < 0, to + L, to)}


@case(r"""
__global__ void relaxed(const float* x, float* y, float rate, int n, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    for (int step = 0; step < steps; ++step) y[i] += rate * (sinf(x[i]) - y[i] * y[i] * y[i]);
}""", 32, 2, lambda r: (r(50), r(50), 0.3, 50, 4), name="relaxed", wrt=("x", "y_before", "rate"))  # fmt: skip
def relaxed(x, y, rate, n, steps, y_before):
    for _ in range(steps):
        y_before = y_before + rate * (x.sin() - y_before**3)
    return {"y": y_before}


# Each thread solves L b = b for a right side of its own.
@case(r"""
__global__ void substituted(const float* L, float* b, int n, int sides) {
    int i = threadIdx.x;
    if (i >= sides) return;
    for (int j = 0; j < n; ++j) {
        for (int k = 0; k < j; ++k) b[j * sides + i] -= L[j * n + k] * b[k * sides + i];
        b[j * sides + i] /= 2.0f + L[j * n + j];
    }
}""", 32, 1, lambda r: (r(7, 7), r(7, 20), 7, 20), name="substituted", wrt=("L", "b_before"))  # fmt: skip
def substituted(L, b, n, sides, b_before):
    lower = torch.tril(L) + 2.0 * torch.eye(n, dtype=L.dtype)
    return {"b": torch.linalg.solve_triangular(lower, b_before, upper=False)}


# Values of half precision, in a loop of another one's iterations.
@case(r"""
#include <cuda_fp16.h>
__global__ void smoothed(const float* x, __half* y, int n, int rounds) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    for (int r = 0; r < rounds; ++r)
        for (int c = r; c < n; c += 3) {
            float old = __half2float(y[row * n + c]);
            if (old > 0.0f) y[row * n + c] = __float2half(old * cosf(x[c]) + 0.1f * r);
        }
}""", 8, 2, lambda r: (r(31), r(16, 31).half(), 31, 3), name="smoothed", wrt=("x", "y_before"), tolerance=4e-3)  # fmt: skip
def smoothed(x, y, n, rounds, y_before):
    y = y_before
    for r in range(rounds):
        c = torch.arange(r, n, 3)
        new = torch.where(y[:, c] > 0, y[:, c] * x[c].cos() + 0.1 * r, y[:, c])
        y = y.index_put((torch.arange(16)[:, None], c), new)
    return {"y": y}
