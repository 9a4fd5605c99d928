"""A 2-D convolution as networks have it: images with channels, filters in shared memory, zeros beyond the edges.

A block makes 16 x 16 pixels of four output channels. It goes through the input channels; of each it loads the pixels
with their border once, and each pixel then serves all taps of all four filters.
"""

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
// out[n][o] = the sum over c of x[n][c] (C x H x W) convolved with w[o][c] (K x K, K odd), as torch's conv2d with
// padding K / 2. Blocks of 16 x 16 threads; grid: tiles of the width and height, n times groups of 4 channels.
template <int K>
__global__ void convolve(const float* x, const float* w, float* out, int C, int O, int H, int W) {
    __shared__ float tile[15 + K][15 + K], filters[4][K][K];
    int groups = (O + 3) / 4, n = blockIdx.z / groups, o = blockIdx.z % groups * 4;
    int tx = threadIdx.x, ty = threadIdx.y, t = ty * 16 + tx, left = blockIdx.x * 16, top = blockIdx.y * 16;
    float sum[4] = {};
    for (int c = 0; c < C; c++) {
        for (int i = t; i < (15 + K) * (15 + K); i += 256) {
            int r = top + i / (15 + K) - K / 2, s = left + i % (15 + K) - K / 2;
            bool inside = r >= 0 && r < H && s >= 0 && s < W;
            tile[i / (15 + K)][i % (15 + K)] = inside ? x[((long long)(n * C + c) * H + r) * W + s] : 0;
        }
        for (int i = t; i < 4 * K * K; i += 256) {
            int f = i / (K * K);
            filters[f][i / K % K][i % K] = o + f < O ? w[((o + f) * C + c) * K * K + i % (K * K)] : 0;
        }
        __syncthreads();
        for (int i = 0; i < K; i++)
            for (int j = 0; j < K; j++)
                for (int f = 0; f < 4; f++) sum[f] += tile[ty + i][tx + j] * filters[f][i][j];
        __syncthreads();
    }
    if (top + ty < H && left + tx < W)
        for (int f = 0; f < 4 && o + f < O; f++)
            out[((long long)(n * O + o + f) * H + top + ty) * W + left + tx] = sum[f];
}""")


def convolve(x: Tensor, w: Tensor) -> Tensor:
    """``conv2d(x, w, padding="same")`` of contiguous float32: x is N x C x H x W, w is filters x C x K x K."""
    (N, C, H, W), (filters, _, K, _) = x.shape, w.shape
    if w.shape != (filters, C, K, K) or K not in (1, 3, 5, 7):
        raise ValueError(f"w is {tuple(w.shape)}; it is filters x {C} x K x K, with K = 1, 3, 5 or 7")
    out = x.new_empty(N, filters, H, W)
    grid = -(-W // 16), -(-H // 16), N * -(-filters // 4)
    kernels.get_function(f"convolve<{K}>")[grid, (16, 16)](x, w, out, C, filters, H, W)
    return out


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, w = torch.randn(2, 3, 45, 61, device=device), torch.randn(6, 3, 5, 5, device=device)
    expected = torch.nn.functional.conv2d(x.double(), w.double(), padding="same").float()
    torch.testing.assert_close(convolve(x, w), expected, rtol=1e-4, atol=1e-4)
    print(f"6 filters of 5 x 5 on two images of 3 x 45 x 61 on {device}: the result is torch's")
