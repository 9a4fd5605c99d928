"""Kernels whose backward is derived, each with a launch and the same function in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

CASES: dict[str, Case] = {}

#: Device functions for blocks of any size, with shared memory for a number of each warp.
BLOCK_REDUCTIONS = r"""
__device__ float block_sum(float v, float* part) {
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    float total = 0;
    for (int k = 0; k < blockDim.x / 32; ++k) total += part[k];
    __syncthreads();
    return total;
}
__device__ float block_max(float v, float* part) {
    for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, o));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    float total = part[0];
    for (int k = 1; k < blockDim.x / 32; ++k) total = fmaxf(total, part[k]);
    __syncthreads();
    return total;
}
"""


@dataclass(frozen=True)
class Case:
    """``make(draw)`` returns the arguments; ``reference(*arguments)`` the outputs by name, in torch."""

    source: str
    name: str
    block: Any
    grid: Any
    make: Callable[[Callable[..., torch.Tensor]], tuple[Any, ...]]
    reference: Callable[..., dict[str, torch.Tensor]]
    wrt: tuple[str, ...] | None = None
    atomics: int | None = None  # the number of atomic additions, where it is worth a test
    shared_mem: int = 0
    tolerance: float = 2e-4
    max_iterations: int | None = None


def case(source: str, block: Any, grid: Any, make: Any, name: str | None = None, wrt: Any = None, **more: Any) -> Any:
    """Add a kernel; decorates its reference, which is called as the kernel is."""

    def add(reference: Any) -> Any:
        CASES[reference.__name__] = Case(source, name or reference.__name__, block, grid, make, reference, wrt, **more)
        return reference

    return add


@case(
    """extern "C" __global__ void saxpy(int n, float a, const float* x, const float* z, float* y) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = a * x[i] + expf(z[i]) * x[i];
    }""",
    64, 4, lambda r: (200, 1.5, r(200), r(200), r(200)), atomics=0,
)  # fmt: skip
def saxpy(n, a, x, z, y):
    return {"y": a * x + z.exp() * x}


@case(
    """extern "C" __global__ void scaled(float a, const float* x, float* y, int n) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = a * x[i] * x[i];
    }""",
    32, 2, lambda r: (0.7, r(300), r(300), 300), wrt=("a", "x"),
)  # fmt: skip
def scaled(a, x, y, n):
    return {"y": a * x * x}


@case(
    """__device__ __forceinline__ float squash(float v, float k) {
        if (v > 1.0f) return k * logf(v) + 1.0f;
        if (v < -1.0f) return -1.0f - k * logf(-v);
        return v;
    }
    __device__ void both(float v, float& s, float& c) { s = sinf(v); c = cosf(v); }
    extern "C" __global__ void piecewise(const float* x, const float* k, float* y, float* z, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        float s, c;
        both(x[i], s, c);
        y[i] = squash(x[i] * 2.0f, k[i]) * s;
        z[i] = x[i] > 0.0f ? c * k[i] : k[i] / (1.0f + s * s);
    }""",
    64, 4, lambda r: (r(200), r(200), r(200), r(200), 200), atomics=0,
)  # fmt: skip
def piecewise(x, k, y, z, n):
    v = 2 * x
    squashed = torch.where(
        v > 1, k * v.clamp(min=1).log() + 1, torch.where(v < -1, -1 - k * (-v).clamp(min=1).log(), v)
    )
    return {"y": squashed * x.sin(), "z": torch.where(x > 0, x.cos() * k, k / (1 + x.sin() ** 2))}


@case(
    """extern "C" __global__ void stencil(const float* x, float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x + 1;
        if (i < n - 1) y[i] = 0.25f * x[i - 1] + 0.5f * x[i] * x[i] + 0.25f * x[i + 1];
    }""",
    64, 4, lambda r: (r(200), r(200), 200), atomics=2,
)  # fmt: skip
def stencil(x, y, n):
    return {"y": F.pad(0.25 * x[:-2] + 0.5 * x[1:-1] ** 2 + 0.25 * x[2:], (1, 1))}


@case(
    """extern "C" __global__ void upwind(const float* u, const float* v, float* out, int h, int w) {
        int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
        if (r < 1 || r >= h - 1 || c < 1 || c >= w - 1) return;
        float here = u[r * w + c], dx = here - u[r * w + c - 1], dy = u[(r + 1) * w + c] - here;
        out[r * w + c] = v[r * w + c] > 0.0f ? here * dx : sinf(dy) * u[r * w + c + 1];
    }""",
    (8, 4), (3, 4), lambda r: (r(13, 21), r(13, 21), r(13, 21), 13, 21), wrt=("u",), atomics=2,
)  # fmt: skip
def upwind(u, v, out, h, w):
    here, left, right, below = u[1:-1, 1:-1], u[1:-1, :-2], u[1:-1, 2:], u[2:, 1:-1]
    return {
        "out": F.pad(torch.where(v[1:-1, 1:-1] > 0, here * (here - left), (below - here).sin() * right), (1, 1, 1, 1))
    }


@case(
    """
    __device__ float warp_max(float v) {
        for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, o));
        return v;
    }
    __device__ float warp_total(float v) {
        for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
        return __shfl_sync(0xffffffff, v, 0);
    }
    extern "C" __global__ void softmax(const float* __restrict__ x, float* y, int n) {
        __shared__ float part[32];
        int row = blockIdx.x, t = threadIdx.x;
        float m = -INFINITY;
        for (int j = t; j < n; j += blockDim.x) m = fmaxf(m, x[row * n + j]);
        m = warp_max(m);
        if (t % 32 == 0) part[t / 32] = m;
        __syncthreads();
        m = part[0];
        for (int w = 1; w < 4; ++w) m = fmaxf(m, part[w]);
        float s = 0.f;
        for (int j = t; j < n; j += blockDim.x) s += expf(x[row * n + j] - m);
        s = warp_total(s);
        __syncthreads();
        if (t % 32 == 0) part[t / 32] = s;
        __syncthreads();
        s = part[0] + part[1] + part[2] + part[3];
        for (int j = t; j < n; j += blockDim.x) y[row * n + j] = expf(x[row * n + j] - m) / s;
    }""",
    128, 5, lambda r: (r(5, 300), r(5, 300), 300),
)  # fmt: skip
def softmax(x, y, n):
    return {"y": x.softmax(-1)}


@case(
    """
    #define T 16
    extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K) {
        __shared__ float As[T][T];
        __shared__ float Bs[T][T];
        int tx = threadIdx.x, ty = threadIdx.y;
        int row = blockIdx.y * T + ty, col = blockIdx.x * T + tx;
        float acc = 0.0f;
        for (int k0 = 0; k0 < K; k0 += T) {
            As[ty][tx] = (row < M && k0 + tx < K) ? A[row * K + k0 + tx] : 0.0f;
            Bs[ty][tx] = (k0 + ty < K && col < N) ? B[(k0 + ty) * N + col] : 0.0f;
            __syncthreads();
            for (int k = 0; k < T; ++k) acc += As[ty][k] * Bs[k][tx];
            __syncthreads();
        }
        if (row < M && col < N) C[row * N + col] = acc;
    }""",
    (16, 16), (3, 2), lambda r: (r(30, 50), r(50, 40), r(30, 40), 30, 40, 50), atomics=2,
)  # fmt: skip
def matmul(A, B, C, M, N, K):
    return {"C": A @ B}


@case(
    """extern "C" __global__ void recurrence(const float* a, const float* x, float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        float h = 0.f;
        for (int t = 0; t < 20; ++t) { h = a[i] * h + tanhf(x[t * n + i]); y[t * n + i] = h * h; }
    }""",
    64, 2, lambda r: (r(100), r(20, 100), r(20, 100), 100), atomics=0,
)  # fmt: skip
def recurrence(a, x, y, n):
    h, rows = torch.zeros_like(a), []
    for row in x:
        h = a * h + row.tanh()
        rows.append(h * h)
    return {"y": torch.stack(rows)}


@case(
    """extern "C" __global__ void reduce(const float* x, float* y, int n) {
        __shared__ float sm[128];
        int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
        sm[t] = i < n ? x[i] * x[i] : 0.f;
        __syncthreads();
        for (int s = blockDim.x / 2; s > 0; s >>= 1) { if (t < s) sm[t] += sm[t + s]; __syncthreads(); }
        if (t == 0) y[blockIdx.x] = sqrtf(sm[0]);
    }""",
    128, 4, lambda r: (r(500), r(4), 500),
)  # fmt: skip
def reduce(x, y, n):
    return {"y": F.pad(x, (0, 12)).view(4, 128).square().sum(-1).sqrt()}


@case(
    """extern "C" __global__ void tree_max(const float* x, float* y) {
        __shared__ float sm[64];
        int t = threadIdx.x;
        sm[t] = x[blockIdx.x * 64 + t];
        __syncthreads();
        for (int s = 32; s > 0; s >>= 1) { if (t < s) sm[t] = fmaxf(sm[t], sm[t + s]); __syncthreads(); }
        y[blockIdx.x * 64 + t] = x[blockIdx.x * 64 + t] * sm[0];
    }""",
    64, 3, lambda r: (r(3, 64), r(3, 64)),
)  # fmt: skip
def tree_max(x, y):
    return {"y": x * x.amax(-1, keepdim=True)}


@case(
    """extern "C" __global__ void csr(const int* start, const int* column, const float* value, const float* x, float* y, int rows) {
        int row = blockIdx.x * blockDim.x + threadIdx.x;
        if (row >= rows) return;
        float total = 0.f;
        for (int k = start[row]; k < start[row + 1]; ++k) total += value[k] * x[column[k]];
        y[row] = total;
    }""",
    32, 2, lambda r: (torch.arange(0, 201, 5, dtype=torch.int32), torch.arange(200, dtype=torch.int32) * 7 % 30, r(200), r(30), r(40), 40),
)  # fmt: skip
def csr(start, column, value, x, y, rows):
    return {"y": (value * x[column.long()]).view(40, 5).sum(-1)}


@case(
    """
    template <typename T, int N> __global__ void moving(int n, const T* x, const T* w, T* y) {
        __shared__ T tile[64 + N];
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        for (int k = threadIdx.x; k < blockDim.x + N; k += blockDim.x) {
            int j = blockIdx.x * blockDim.x + k;
            tile[k] = j < n ? x[j] : T(0);
        }
        __syncthreads();
        T sum = 0;
        #pragma unroll
        for (int k = 0; k < N; k++) sum += tile[threadIdx.x + k] * w[k];
        if (i + N <= n) y[i] = sum;
    }""",
    64, 4, lambda r: (200, r(200), r(5), r(200)), name="moving<float, 5>",
)  # fmt: skip
def moving(n, x, w, y):
    return {"y": F.pad(F.conv1d(x[None, None], w[None, None])[0, 0], (0, 4))}


@case(
    """
    struct Body { float x, y, m; };
    __device__ float2 pull(Body a, Body b) {
        float dx = b.x - a.x, dy = b.y - a.y;
        float d = rsqrtf(dx * dx + dy * dy + 0.01f);
        float s = b.m * d * d * d;
        return make_float2(s * dx, s * dy);
    }
    extern "C" __global__ void bodies(const float4* p, float2* f, int n) {
        __shared__ Body tile[32];
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        Body own = {0.f, 0.f, 0.f};
        if (i < n) { float4 v = p[i]; own.x = v.x; own.y = v.y; own.m = v.w; }
        float fx = 0.f, fy = 0.f;
        for (int start = 0; start < n; start += 32) {
            Body other = {0.f, 0.f, 0.f};
            if (start + threadIdx.x < n) { float4 v = p[start + threadIdx.x]; other.x = v.x; other.y = v.y; other.m = v.w; }
            tile[threadIdx.x] = other;
            __syncthreads();
            for (int k = 0; k < 32; ++k) { float2 g = pull(own, tile[k]); fx += g.x; fy += g.y; }
            __syncthreads();
        }
        if (i < n) { f[i].x = fx; f[i].y = fy; }
    }""",
    32, 2, lambda r: (r(50, 4), r(50, 2), 50), atomics=5,
)  # fmt: skip
def bodies(p, f, n):
    d = p[None, :, :2] - p[:, None, :2]
    s = p[None, :, 3] * (d.square().sum(-1) + 0.01) ** -1.5
    return {"f": (s[..., None] * d).sum(1)}


@case(
    """extern "C" __global__ void histogram(const float* w, const int* bin, float* total, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) atomicAdd(&total[bin[i]], w[i] * w[i]);
    }""",
    64, 4, lambda r: (r(200), torch.arange(200, dtype=torch.int32) % 7, torch.zeros(7), 200), atomics=0,
)  # fmt: skip
def histogram(w, bin, total, n):
    return {"total": torch.zeros(7, dtype=w.dtype, device=w.device).index_add(0, bin.long(), w * w)}


@case(
    """extern "C" __global__ void extremes(const float* x, float* y, int n) {
        int row = blockIdx.x * blockDim.x + threadIdx.x;
        float low = x[row * n], high = -1e30f;
        for (int j = 1; j < n; ++j) low = fminf(x[row * n + j], low);
        for (int j = 0; j < n; ++j) if (x[row * n + j] > high) high = x[row * n + j];
        y[row] = low * high;
    }""",
    32, 1, lambda r: (r(32, 9), r(32), 9),
)  # fmt: skip
def extremes(x, y, n):
    return {"y": x.amin(-1) * x.amax(-1)}
