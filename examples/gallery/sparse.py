"""A sparse matrix in CSR by a vector and by a matrix: a warp for each row.

By a vector, the lanes take neighboring entries of the row and add up by shuffles. By a matrix, they take neighboring
columns, and go through the entries together: each entry is read once for 32 columns, and rows of the matrix are read in
whole sectors.
"""

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
// y = A x. Eight rows a block, a warp each.
extern "C" __global__ void by_vector(const long long* starts, const long long* columns, const float* values,
                                     const float* x, float* y, int rows) {
    int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0;
    for (long long i = starts[row] + lane; i < starts[row + 1]; i += 32) sum += values[i] * x[columns[i]];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffff, sum, d);
    if (lane == 0) y[row] = sum;
}

// Y = A X, X and Y have n columns. Eight rows a block; grid.y: groups of 32 columns.
extern "C" __global__ void by_matrix(const long long* starts, const long long* columns, const float* values,
                                     const float* X, float* Y, int rows, int n) {
    int row = blockIdx.x * 8 + threadIdx.x / 32, column = blockIdx.y * 32 + threadIdx.x % 32;
    if (row >= rows || column >= n) return;
    float sum = 0;
    for (long long i = starts[row]; i < starts[row + 1]; i++) sum += values[i] * X[columns[i] * n + column];
    Y[(long long)row * n + column] = sum;
}""")


def multiply(A: Tensor, x: Tensor) -> Tensor:
    """``A @ x`` of a float32 tensor in CSR (``to_sparse_csr()``) and a contiguous vector or matrix."""
    rows = A.shape[0]
    if x.shape[0] != A.shape[1]:
        raise ValueError(f"A is {tuple(A.shape)}, x has {x.shape[0]} rows")
    parts = A.crow_indices(), A.col_indices(), A.values()
    y = x.new_empty(rows, *x.shape[1:])
    if x.ndim == 1:
        kernels.by_vector[-(-rows // 8), 256](*parts, x, y, rows)
    else:
        kernels.by_matrix[(-(-rows // 8), -(-x.shape[1] // 32)), 256](*parts, x, y, rows, x.shape[1])
    return y


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dense = torch.randn(303, 501, device=device) * (torch.rand(303, 501, device=device) < 0.05)
    x = torch.randn(501, 45, device=device)
    A = dense.to_sparse_csr()
    torch.testing.assert_close(multiply(A, x), dense @ x, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(multiply(A, x[:, 0].contiguous()), dense @ x[:, 0], rtol=1e-4, atol=1e-5)
    print(f"{A.values().numel()} entries by a vector and by 45 columns on {device}: the products are torch's")
