"""Shared memory: squares that go through it, and a sum over each block.

The first kernel copies a tile of x into shared memory, waits for its neighbors, and lets each thread square what
another one loaded. The second adds up a block by halving, in dynamic shared memory whose size the launch gives.

    python examples/shared_memory.py [--device cpu|cuda]
"""

import argparse

import torch

import rawkern

module = rawkern.RawModule(r"""
// y = x * x, each block's tile by way of shared memory. Grid: 1-D, blocks of TILE threads that cover n.
constexpr int TILE = 128;
extern "C" __global__ void square_shared(const float* x, float* y, int n) {
    __shared__ float tile[TILE];
    const int first = blockIdx.x * TILE;
    const int length = min(TILE, n - first);
    if (threadIdx.x < length) tile[threadIdx.x] = x[first + threadIdx.x];
    __syncthreads();
    const int mirrored = length - 1 - (int)threadIdx.x;  // loaded by another thread
    if (mirrored >= 0) y[first + mirrored] = tile[mirrored] * tile[mirrored];
}

// sums[b] = the sum over block b of x * x. Grid: 1-D, covers n; a block is a power of two threads, each of which has a
// float of shared memory.
extern "C" __global__ void sum_of_squares(const float* x, float* sums, int n) {
    extern __shared__ float partial[];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    partial[threadIdx.x] = i < n ? x[i] * x[i] : 0.0f;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}
""")


def main(device: str) -> None:
    n = 100_003
    x = torch.randn(n, device=device)

    y = torch.full_like(x, float("nan"))
    module.square_shared[(n + 127) // 128, 128](x, y, n)
    torch.testing.assert_close(y, x * x)
    static = module.square_shared.attributes["shared_size_bytes"]
    print(f"square through {static} bytes of static shared memory a block: agrees with torch on {device}")

    threads = 256
    blocks = (n + threads - 1) // threads
    sums = torch.full((blocks,), float("nan"), device=device)
    module.sum_of_squares[blocks, threads, 4 * threads](x, sums, n)  # grid, block, bytes of dynamic shared memory
    total, expected = sums.double().sum().item(), x.double().square().sum().item()
    assert abs(total - expected) < 1e-5 * expected
    print(f"sum of squares over {blocks} blocks: {total:.2f}, torch in float64: {expected:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    main(parser.parse_args().device)
