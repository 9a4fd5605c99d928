"""A matrix product whose tile sizes are chosen by timing them.

The kernel is a template: TILE columns and rows of shared memory, EACH rows of the result for a thread. Which numbers
are best depends on the device and on the sizes, so the first launch tries them, compares each result with torch's, and
keeps the fastest on disk: run this twice, and the second run measures nothing.

    python examples/autotune.py [--device cpu|cuda] [--size N] [--retune]
"""

import argparse
import time

import torch

import rawkern

matmul = rawkern.RawKernel(
    r"""
// c = a b, for a of m x k and b of k x n, row by row.
// Grid: a block for TILE x TILE elements of c. Block: TILE x (TILE / EACH).
template <int TILE, int EACH>
__global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float as[TILE][TILE], bs[TILE][TILE];
    const int column = blockIdx.x * TILE + threadIdx.x;
    float sums[EACH] = {};
    for (int start = 0; start < k; start += TILE) {
        for (int e = 0; e < EACH; e++) {
            const int y = threadIdx.y + e * (TILE / EACH), row = blockIdx.y * TILE + y;
            as[y][threadIdx.x] = row < m && start + threadIdx.x < k ? a[row * k + start + threadIdx.x] : 0.0f;
            bs[y][threadIdx.x] = start + y < k && column < n ? b[(start + y) * n + column] : 0.0f;
        }
        __syncthreads();
        for (int i = 0; i < TILE; i++) {
            const float right = bs[i][threadIdx.x];
            for (int e = 0; e < EACH; e++) sums[e] += as[threadIdx.y + e * (TILE / EACH)][i] * right;
        }
        __syncthreads();
    }
    for (int e = 0; e < EACH; e++) {
        const int row = blockIdx.y * TILE + threadIdx.y + e * (TILE / EACH);
        if (row < m && column < n) c[row * n + column] = sums[e];
    }
}
""",
    "matmul<{TILE}, {EACH}>",  # the names in braces are those of the configurations
)


def main(device: str, size: int, retune: bool) -> None:
    tuned = rawkern.autotune(
        matmul,
        {"TILE": [8, 16, 32], "EACH": [1, 4]},
        where=lambda c: c["TILE"] * c["TILE"] // c["EACH"] >= 32,  # a warp at least
        key=["m", "n", "k"],
        reference=lambda a, b, c, m, n, k: a @ b,
        rtol=1e-4,
        atol=1e-3,
        retune=retune,
    )
    m, n, k = size, size + 5, size - 3
    a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
    c = torch.full((m, n), float("nan"), device=device)

    def grid(config: dict) -> tuple[int, int]:
        return -(-n // config["TILE"]), -(-m // config["TILE"])

    def block(config: dict) -> tuple[int, int]:
        return config["TILE"], config["TILE"] // config["EACH"]

    start = time.perf_counter()
    tuned[grid, block](a, b, c, m, n, k)
    print(f"first launch: {time.perf_counter() - start:.2f} s")
    torch.testing.assert_close(c, a @ b, rtol=1e-4, atol=1e-3)
    print("agrees with torch")
    print(tuned.tunings[0])

    again = rawkern.autotune(matmul, [tuned.tunings[0].config])  # a single configuration is never timed
    c.fill_(float("nan"))
    again[grid, block](a, b, c, m, n, k)
    torch.testing.assert_close(c, a @ b, rtol=1e-4, atol=1e-3)
    print("and so does the kernel with this configuration given")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=int, default=192)
    parser.add_argument("--retune", action="store_true", help="measure even if the disk has a choice")
    options = parser.parse_args()
    main(options.device, options.size, options.retune)
