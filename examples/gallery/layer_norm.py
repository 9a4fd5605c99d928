"""Layer norm of rows in float32, float16 or bfloat16: a block for each row, mean and variance by Welford's method.

Differences from a running mean lose no digits where the mean is large beside the spread, as a sum of squares does.
`rawkern.layer_norm` has a backward and keeps rows in registers; this one is short, and a start for norms of your own.
"""

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Moments {  // of some numbers: how many, their mean, and the sum of squares of differences from it
    float number, mean, squares;
};

__device__ Moments joined(Moments a, Moments b) {
    float number = a.number + b.number, away = b.mean - a.mean, part = number > 0 ? b.number / number : 0;
    return {number, a.mean + away * part, a.squares + b.squares + away * away * a.number * part};
}

__device__ Moments over_warp(Moments m) {
    for (int d = 16; d > 0; d /= 2)
        m = joined(m, {__shfl_xor_sync(~0u, m.number, d), __shfl_xor_sync(~0u, m.mean, d),
                       __shfl_xor_sync(~0u, m.squares, d)});
    return m;
}

// y = (x - mean) / sqrt(variance + eps) * weight + bias, for each row of n elements. A block of 256 threads a row.
template <class T>
__global__ void layer_norm(const T* x, const T* weight, const T* bias, T* y, int n, float eps) {
    __shared__ Moments warps[8];
    x += (long long)blockIdx.x * n, y += (long long)blockIdx.x * n;
    Moments m = {0, 0, 0};
    for (int i = threadIdx.x; i < n; i += 256) {
        float v = (float)x[i], away = v - m.mean;
        m.number += 1, m.mean += away / m.number, m.squares += away * (v - m.mean);
    }
    m = over_warp(m);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = m;
    __syncthreads();
    m = warps[0];
    for (int i = 1; i < 8; i++) m = joined(m, warps[i]);
    float scale = rsqrtf(m.squares / n + eps);
    for (int i = threadIdx.x; i < n; i += 256)
        y[i] = (T)(((float)x[i] - m.mean) * scale * (float)weight[i] + (float)bias[i]);
}""")
TYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """The rows of a contiguous matrix; weight and bias have its dtype and the length of a row."""
    y = torch.empty_like(x)
    kernel = kernels.get_function(f"layer_norm<{TYPES[x.dtype]}>")
    kernel[x.shape[0], 256](x, weight, bias, y, x.shape[1], eps)
    return y


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, w, b = (torch.randn(*shape, device=device) for shape in ((50, 1003), (1003,), (1003,)))
    x += 1000
    expected = torch.nn.functional.layer_norm(x.double(), (1003,), w.double(), b.double())
    error = (layer_norm(x, w, b) - expected).abs().max().item()
    theirs = (torch.nn.functional.layer_norm(x, (1003,), w, b) - expected).abs().max().item()
    assert error < 0.01
    print(f"numbers around 1000 on {device}: error {error:.0e}, torch's {theirs:.0e}")
