"""Transpose a matrix of any dtype: both sides in rows, through a tile of shared memory.

A warp reads 32 neighbors of a row and writes 32 neighbors of a row of the result. In between they lie in a tile whose
rows are one element longer than its columns, so that a column of it is spread over all banks.
"""

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
// y[c][r] = x[r][c]. Blocks of 32 x 8 threads, each for tiles of 32 x 32; any grid.
template <class T>
__global__ void transpose(const T* x, T* y, int rows, int columns) {
    __shared__ T tile[32][33];
    for (int top = blockIdx.y * 32; top < rows; top += gridDim.y * 32) {
        int left = blockIdx.x * 32, c = left + threadIdx.x;
        for (int i = threadIdx.y; i < 32; i += 8)
            if (top + i < rows && c < columns) tile[i][threadIdx.x] = x[(long long)(top + i) * columns + c];
        __syncthreads();
        int r = top + threadIdx.x;
        for (int i = threadIdx.y; i < 32; i += 8)
            if (left + i < columns && r < rows) y[(long long)(left + i) * rows + r] = tile[threadIdx.x][i];
        __syncthreads();
    }
}""")
WORDS = {
    1: ("unsigned char", torch.uint8),
    2: ("short", torch.int16),
    4: ("int", torch.int32),
    8: ("long long", torch.int64),
}


def transpose(x: Tensor) -> Tensor:
    """The transpose of a contiguous matrix, as a new contiguous one."""
    word, dtype = WORDS[x.element_size()]
    (rows, columns), y = x.shape, x.new_empty(x.shape[::-1])
    if x.numel():
        grid = -(-columns // 32), min(-(-rows // 32), 65535)
        kernels.get_function(f"transpose<{word}>")[grid, (32, 8)](x.view(dtype), y.view(dtype), rows, columns)
    return y


if __name__ == "__main__":
    x = torch.randn(1001, 703, device="cuda" if torch.cuda.is_available() else "cpu")
    assert torch.equal(transpose(x), x.T)
    print(f"the transpose of 1001 x 703 floats on {x.device.type} is torch's")
