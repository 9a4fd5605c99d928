"""A matrix product of 8-bit integers: rows are scaled to -127 ... 127, products are exact, results are scaled back.

__dp4a multiplies four pairs of bytes and adds them to an int. A block's tiles hold 16 rows of 64 bytes, as words.
"""

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
// q = x / scale of the row, rounded; scales[row] = the largest magnitude of the row / 127. A warp for each row of
// `words` words of four bytes; what is beyond n is 0. Eight rows a block.
extern "C" __global__ void quantize(const float* x, int* q, float* scales, int rows, int n, int words) {
    int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    x += (long long)row * n, q += (long long)row * words;
    float most = 0;
    for (int i = lane; i < n; i += 32) most = fmaxf(most, fabsf(x[i]));
    for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, d));
    float back = most > 0 ? 127 / most : 0;
    for (int i = lane; i < words; i += 32) {
        int word = 0;
        for (int j = 0; j < 4; j++)
            if (4 * i + j < n) word |= (__float2int_rn(x[4 * i + j] * back) & 255) << 8 * j;
        q[i] = word;
    }
    if (lane == 0) scales[row] = most / 127;
}

// out[m][n] = a[m] . b[n] * scale of a[m] * scale of b[n], for rows of `words` words. Blocks of 16 x 16 threads.
extern "C" __global__ void multiply(const int* a, const int* b, const float* scales_a, const float* scales_b,
                                    float* out, int M, int N, int words) {
    __shared__ int left[16][17], right[16][17];
    int x = threadIdx.x, y = threadIdx.y, m = blockIdx.y * 16 + y, n = blockIdx.x * 16 + x, r = blockIdx.x * 16 + y;
    int sum = 0;
    for (int first = 0; first < words; first += 16) {
        left[y][x] = m < M && first + x < words ? a[(long long)m * words + first + x] : 0;
        right[y][x] = r < N && first + x < words ? b[(long long)r * words + first + x] : 0;
        __syncthreads();
        for (int k = 0; k < 16; k++) sum = __dp4a(left[y][k], right[x][k], sum);
        __syncthreads();
    }
    if (m < M && n < N) out[(long long)m * N + n] = sum * scales_a[m] * scales_b[n];
}""")


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of a contiguous float32 matrix as int8, zeros up to a multiple of 4 columns, and a scale for each row."""
    (rows, n), words = x.shape, -(-x.shape[1] // 4)
    q, scales = torch.empty(rows, 4 * words, dtype=torch.int8, device=x.device), x.new_empty(rows)
    kernels.quantize[-(-rows // 8), 256](x, q.view(torch.int32), scales, rows, n, words)
    return q, scales


def matmul(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
    """``a @ b.T`` of what `quantize` returns, as float32; exact up to 133,000 columns."""
    (qa, sa), (qb, sb) = a, b
    M, N, out = qa.shape[0], qb.shape[0], sa.new_empty(qa.shape[0], qb.shape[0])
    grid = -(-N // 16), -(-M // 16)
    kernels.multiply[grid, (16, 16)](qa.view(torch.int32), qb.view(torch.int32), sa, sb, out, M, N, qa.shape[1] // 4)
    return out


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, w = torch.randn(65, 301, device=device), torch.randn(130, 301, device=device)
    y, expected = matmul(quantize(x), quantize(w)), x @ w.T
    error = ((y - expected).norm() / expected.norm()).item()
    assert error < 0.02
    print(f"65 x 301 by 301 x 130 in 8 bits on {device}: {error:.1%} from the product in float32")
