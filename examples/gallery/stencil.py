"""A stencil: heat that spreads in a plate whose edges keep their temperature, step by step.

Each element is read by five threads, mostly of one block, so the cache serves all but the first.
"""

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
// y = x after one step: each inner element moves by alpha towards its four neighbors. Blocks that cover the matrix.
extern "C" __global__ void step(const float* x, float* y, int rows, int columns, float alpha) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r >= rows || c >= columns) return;
    x += (long long)r * columns + c;
    float v = *x;
    if (r > 0 && r < rows - 1 && c > 0 && c < columns - 1)
        v += alpha * (x[-columns] + x[columns] + x[-1] + x[1] - 4 * v);
    y[(long long)r * columns + c] = v;
}""")


def heat(x: Tensor, steps: int, alpha: float = 0.2) -> Tensor:
    """A contiguous float32 matrix after some steps; it is stable for alpha up to 0.25."""
    (rows, columns), x, y = x.shape, x.clone(), torch.empty_like(x)
    step = kernels.step[(-(-columns // 32), -(-rows // 8)), (32, 8)]
    for _ in range(steps):
        step(x, y, rows, columns, alpha)
        x, y = y, x
    return x


def reference(x: Tensor, steps: int, alpha: float = 0.2) -> Tensor:
    for _ in range(steps):
        near = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
        x = x.clone()
        x[1:-1, 1:-1] += alpha * (near - 4 * x[1:-1, 1:-1])
    return x


if __name__ == "__main__":
    x = torch.rand(203, 301, device="cuda" if torch.cuda.is_available() else "cpu")
    torch.testing.assert_close(heat(x, 50), reference(x, 50))
    print(f"50 steps of 203 x 301 elements on {x.device.type} are those of torch's slices")
