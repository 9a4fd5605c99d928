"""Kernels of physics, graphics and signals, as they are published."""

from __future__ import annotations

import torch

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
        d = torch.nn.functional.pad(q, (1, 1)).diff(dim=1)
        left, right = d[:, :-1], d[:, 1:]
        p = p + dt * (right - left + 0.3 * (right * right - left * left))
        q = q + dt * p
    return {"last": q}
