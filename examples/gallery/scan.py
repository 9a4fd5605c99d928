"""Prefix sums of any length: warps scan by shuffles, blocks scan their warps, then the sums of blocks are scanned."""

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
// The sum of v over the lanes up to this one.
template <class T>
__device__ T scan_warp(T v) {
    for (int d = 1; d < 32; d *= 2) {
        T left = __shfl_up_sync(0xffffffff, v, d);
        if (threadIdx.x % 32 >= d) v += left;
    }
    return v;
}

// y = prefix sums of each 1024 elements of x, totals = their sums. Blocks of 256 threads, four elements each.
template <class T>
__global__ void scan_blocks(const T* x, T* y, T* totals, long long n) {
    __shared__ T warps[8];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    long long first = blockIdx.x * 1024LL + threadIdx.x * 4;
    T v[4];
    for (int i = 0; i < 4; i++) v[i] = (first + i < n ? x[first + i] : T(0)) + (i ? v[i - 1] : T(0));
    T sum = scan_warp(v[3]);
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    T before = __shfl_up_sync(0xffffffff, sum, 1);
    if (lane == 0) before = T(0);
    for (int i = 0; i < warp; i++) before += warps[i];
    for (int i = 0; i < 4; i++)
        if (first + i < n) y[first + i] = before + v[i];
    if (threadIdx.x == 255) totals[blockIdx.x] = before + v[3];
}

// Adds to each 1024 elements of y the sum of what comes before them. Blocks of 256 threads.
template <class T>
__global__ void add_totals(T* y, const T* totals, long long n) {
    if (blockIdx.x == 0) return;
    T before = totals[blockIdx.x - 1];
    for (int i = threadIdx.x; i < 1024; i += 256)
        if (blockIdx.x * 1024LL + i < n) y[blockIdx.x * 1024LL + i] += before;
}""")
TYPES = {torch.float32: "float", torch.float64: "double", torch.int32: "int", torch.int64: "long long"}


def scan(x: Tensor) -> Tensor:
    """The prefix sums of a contiguous vector, ``x.cumsum(0)`` in the dtype of ``x``."""
    T, n, y = TYPES[x.dtype], x.numel(), torch.empty_like(x)
    blocks = -(-n // 1024)
    totals = x.new_empty(blocks)
    if n:
        kernels.get_function(f"scan_blocks<{T}>")[blocks, 256](x, y, totals, n)
    if blocks > 1:
        kernels.get_function(f"add_totals<{T}>")[blocks, 256](y, scan(totals), n)
    return y


if __name__ == "__main__":
    x = torch.randint(-9, 9, (1_100_000,), device="cuda" if torch.cuda.is_available() else "cpu")
    assert torch.equal(scan(x), x.cumsum(0))
    print(f"prefix sums of 1,100,000 integers on {x.device.type} are torch's")
