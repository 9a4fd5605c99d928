"""A histogram: each block counts in shared memory, and adds its counts to the result once."""

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
// counts[i] += the number of elements in bin i of `bins` equal ones between low and high; others and NaN are left out.
// Any grid. Dynamic shared memory: an int for each bin.
extern "C" __global__ void histogram(const float* x, int* counts, long long n, int bins, float low, float high) {
    extern __shared__ int own[];
    for (int i = threadIdx.x; i < bins; i += blockDim.x) own[i] = 0;
    __syncthreads();
    long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x, stride = (long long)gridDim.x * blockDim.x;
    for (long long i = first; i < n; i += stride) {
        float v = x[i];
        if (v >= low && v <= high) atomicAdd(&own[min(bins - 1, (int)((v - low) * bins / (high - low)))], 1);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < bins; i += blockDim.x)
        if (own[i]) atomicAdd(&counts[i], own[i]);
}""")


def histogram(x: Tensor, bins: int, low: float, high: float) -> Tensor:
    """How many elements of a contiguous float32 tensor lie in each bin, as int32; up to 12,288 bins."""
    if not (0 < bins <= 12288 and low < high):
        raise ValueError(f"{bins} bins from {low} to {high}: bins are 1 to 12288, and low is less than high")
    counts = torch.zeros(bins, dtype=torch.int32, device=x.device)
    blocks = max(1, min(-(-x.numel() // 2048), 1024))
    kernels.histogram[blocks, 256, 4 * bins](x, counts, x.numel(), bins, low, high)
    return counts


if __name__ == "__main__":
    x = torch.randn(1_000_003, device="cuda" if torch.cuda.is_available() else "cpu")
    counts = histogram(x, 64, -4.0, 4.0)
    away = (counts - torch.histc(x, 64, -4.0, 4.0)).abs().sum().item()
    assert counts.sum() == ((x >= -4) & (x <= 4)).sum() and away < 10  # edges are rounded
    print(f"64 bins of 1,000,003 floats on {x.device.type}: the counts are torch's, but for {away:.0f} at edges")
