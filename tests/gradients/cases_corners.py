"""Corners of the language: conditions of loops that change variables, unsigned guards, names that functions have."""

from __future__ import annotations

import torch

from tests.gradients.cases import case


@case("""extern "C" __global__ void counted_in_conditions(const float* x, const float* w, float* y, int m) {
        int i = threadIdx.x, k = 0, q = m;
        float h = x[i], s = 0.0f, g;
        while (k++ < 4) h = h * w[k];
        h *= w[k] * k;
        for (unsigned u = 3; u-- > 0;) h = h * w[u];
        while (q-- > 0) s += x[i] * w[q];
        s *= w[q + 1];
        while ((g = h * 0.5f) > 0.01f) { if (g > 0.4f) break; h = g + 0.001f * w[k--]; }
        y[i] = h * g + s;
    }""", 32, 1, lambda r: (r(32), r(9).abs() + 0.5, r(32), 6), max_iterations=16)  # fmt: skip
def counted_in_conditions(x, w, y, m):
    rows = []
    for v in x:
        h, k = v, 5
        for c in (1, 2, 3, 4):
            h = h * w[c]
        h = h * w[5] * 5 * w[0] * w[1] * w[2]
        s = v * w[:6].sum() * w[0]
        while (g := h * 0.5) > 0.01 and g <= 0.4:
            h, k = g + 0.001 * w[k], k - 1
        rows.append(h * g + s)
    return {"y": torch.stack(rows)}


@case("""extern "C" __global__ void unsigned_rows(const float* x, const float* w, float* z, int n) {
        int r = blockIdx.x, c = threadIdx.x;
        if (c < (unsigned)n) atomicAdd(&z[c % 3], x[100 + r * n + c] * w[c]);
    }""", 32, 2, lambda r: (r(200), r(32), torch.zeros(3), -10))  # fmt: skip
def unsigned_rows(x, w, z, n):
    """All threads are below what is negative, so rows overlap."""
    terms = torch.stack([x[100 + r * n :][:32] * w for r in (0, 1)]).sum(0)
    return {"z": torch.stack([terms[k::3].sum() for k in range(3)])}


@case("""extern "C" __global__ void rest_of_rows(const float* x, const float* w, float* y, int k, int n) {
        int r = blockIdx.x, c = threadIdx.x;
        if (c < k % n) y[r * 32 + c] = x[100 + r * n + c] * w[c];
    }""", 32, 2, lambda r: (r(200), r(32), torch.zeros(64), 27, -50))  # fmt: skip
def rest_of_rows(x, w, y, k, n):
    """A remainder is not below a divisor that is negative."""
    return {"y": torch.cat([p for r in (0, 1) for p in (x[100 + r * n :][:27] * w[:27], x.new_zeros(5))])}


@case("""extern "C" __global__ void sum_in_a_variable(const float* x, const float* w, float* y) {
        __shared__ float total;
        int t = threadIdx.x;
        if (t == 0) total = w[0];
        __syncthreads();
        if (x[t] > 0.1f) atomicAdd(&total, x[t] * x[t]);
        __syncthreads();
        y[t] = total * x[t];
    }""", 32, 1, lambda r: (r(32), r(1), r(32)))  # fmt: skip
def sum_in_a_variable(x, w, y):
    return {"y": (w + torch.where(x > 0.1, x * x, 0).sum()) * x}


@case("""__device__ float bent(float cosf) { return sinf(cosf); }
    extern "C" __global__ void named_as_functions(const float* x, float* y) {
        float cosf = x[threadIdx.x], atomicAdd = 2.0f;
        y[threadIdx.x] = sinf(cosf * x[0]) * atomicAdd + bent(cosf);
    }""", 32, 1, lambda r: (r(32), r(32)))  # fmt: skip
def named_as_functions(x, y):
    return {"y": (x * x[0]).sin() * 2 + x.sin()}


@case("""extern "C" __global__ void unsigned_bounds(const float* x, const float* w, float* y, unsigned u, int m) {
        int i = threadIdx.x;
        float h = w[i], g = w[i], f = w[i], e = w[i];
        for (int k = -3; k < u; ++k) h = 0.5f * h + x[k + 3];  // never: -3 is not below u
        for (int k = -1; k < 5u; ++k) h = 0.5f * h + x[k + 1];
        for (unsigned k = i - 3u; k < m; ++k) g = 0.5f * g + x[k];  // not in the first three threads
        for (int k = 0; k < u; k += 2) f = 0.5f * f + x[k] * w[i];
        for (long long k = -2; k < u; ++k) e = 0.5f * e + x[k + 2] * w[i];
        y[i] = h + g + f + e;
    }""", 32, 1, lambda r: (r(40), r(32), r(32), 6, 7))  # fmt: skip
def unsigned_bounds(x, w, y, u, m):
    g, f, e = list(w), w, w
    for i in range(3, 32):
        for k in range(i - 3, m):
            g[i] = 0.5 * g[i] + x[k]
    for k in range(0, u, 2):
        f = 0.5 * f + x[k] * w
    for k in range(-2, u):
        e = 0.5 * e + x[k + 2] * w
    return {"y": w + torch.stack(g) + f + e}


@case("""extern "C" __global__ void halves_of_unsigned(const float* x, const float* w, float* z, int n) {
        int r = blockIdx.x, c = threadIdx.x;
        if ((long long)c < (unsigned)n / 2u) atomicAdd(&z[c % 3], x[100 + r * n + c] * w[c]);
    }""", 32, 2, lambda r: (r(200), r(32), torch.zeros(3), -10))  # fmt: skip
def halves_of_unsigned(x, w, z, n):
    return unsigned_rows(x, w, z, n)


@case(
    """struct Pair { float a, b; };
    extern "C" __global__ void bound(const float* x, const float* w, float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        Pair s{x[i], w[i]};
        auto& [p, q] = s;
        const float t = p;
        p = q * q;
        if (t > 0.0f) q *= t;
        y[i] = s.a + s.b * sinf(p);
    }""",
    32, 4, lambda r: (r(100), r(100), r(100), 100), atomics=0,
)  # fmt: skip
def bound(x, w, y, n):
    q = torch.where(x > 0, w * x, w)
    return {"y": w * w + q * (w * w).sin()}


@case("""extern "C" __global__ void counted_by_empty_loops(const float* x, const float* w, float* y, int n, int m) {
        int i = threadIdx.x, k = 0, j = 0;
        while (k < i) k += m;  // nothing but k is left of it
        float a = 0.0f;
        for (int r = 0; r < n; ++r) for (; j < 5 * r; ++j) a += sinf(x[i + j] * w[j]);
        y[i] = x[k] * w[i] + a;
    }""", 32, 1, lambda r: (r(64), r(64), r(32), 4, 3))  # fmt: skip
def counted_by_empty_loops(x, w, y, n, m):
    rounded = (torch.arange(32, device=x.device) + m - 1) // m * m
    return {"y": x[rounded] * w[:32] + sum((x[j : j + 32] * w[j]).sin() for j in range(5 * (n - 1)))}


@case("""#define UNROLL _Pragma("unroll")
    extern "C" __global__ void from_both_ends(const float* x, const float* w, float* y, unsigned n) {
        register int i = threadIdx.x;
        register float s = 0.0f;
        for (unsigned a = 0, b = 7; a < b; a++, --b) s += x[(i + 3 * a) % n] * w[(i + 5 * b) % n];
        UNROLL for (int lo = 0, hi = 9; lo < hi; lo += 2, hi -= 1) s += x[i + lo] * w[hi];
        y[i] = s;
    }""", 32, 1, lambda r: (r(64), r(64), r(32), 31))  # fmt: skip
def from_both_ends(x, w, y, n):
    i = torch.arange(32, device=x.device)
    ends = ((a, 7 - a) for a in range(4))
    rows = ((0, 9), (2, 8), (4, 7))
    return {
        "y": sum(x[(i + 3 * a) % n] * w[(i + 5 * b) % n] for a, b in ends)
        + sum(x[lo : lo + 32] * w[hi] for lo, hi in rows)
    }
