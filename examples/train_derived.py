"""Train a small model whose layers are CUDA kernels with derived backwards, beside the same model in torch.

For example: ``python examples/train_derived.py --steps 40``
"""

import argparse

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
__device__ float silu(float v) { return v / (1.0f + expf(-v)); }

// out = silu(x w + b): a thread for each element.
extern "C" __global__ void dense(const float* x, const float* w, const float* b, float* out, int rows, int n, int m) {
    int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (col >= m) return;
    float sum = b[col];
    for (int k = 0; k < n; ++k) sum += x[row * n + k] * w[k * m + col];
    out[row * m + col] = silu(sum);
}

// The mean square of a row's distance from its target: a warp for each row.
extern "C" __global__ void distance(const float* y, const float* target, float* loss, int m) {
    float sum = 0.0f;
    for (int j = threadIdx.x; j < m; j += 32) {
        float d = y[blockIdx.x * m + j] - target[blockIdx.x * m + j];
        sum += d * d;
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
    if (threadIdx.x == 0) loss[blockIdx.x] = sum / m;
}
""")


@rawkern.op("train_derived::dense", backward="derive")
def dense(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    (rows, n), m = x.shape, w.shape[1]
    out = torch.empty(rows, m, dtype=x.dtype, device=x.device)
    kernels.dense[(-(-m // 32), rows), 32](x, w, b, out, rows, n, m)
    return out


@rawkern.op("train_derived::distance", backward="derive")
def distance(y: Tensor, target: Tensor) -> Tensor:
    loss = torch.empty(y.shape[0], dtype=y.dtype, device=y.device)
    kernels.distance[y.shape[0], 32](y, target, loss, y.shape[1])
    return loss


def train(layer, error, device: str, steps: int) -> list[float]:
    """The losses of training with these functions; always from the same start."""
    draw = torch.Generator().manual_seed(0)
    shapes = [(8, 32), (32,), (32, 4), (4,)]
    parameters = [(0.3 * torch.randn(*s, generator=draw)).to(device).requires_grad_() for s in shapes]
    x = torch.randn(64, 8, generator=draw).to(device)
    target = torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin(), x[:, 3].abs(), x.mean(-1)], -1).contiguous()
    optimizer, losses = torch.optim.Adam(parameters, lr=0.02), []
    for _ in range(steps):
        w1, b1, w2, b2 = parameters
        loss = error(layer(layer(x, w1, b1), w2, b2), target).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    ours = train(dense, distance, options.device, options.steps)
    theirs = train(
        lambda x, w, b: torch.nn.functional.silu(x @ w + b),
        lambda y, target: (y - target).square().mean(-1),
        options.device,
        options.steps,
    )
    for step in range(0, options.steps, max(1, options.steps // 5)):
        print(f"step {step:3}: loss {ours[step]:.6f}, torch's {theirs[step]:.6f}")
    furthest = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    print(f"step {options.steps - 1:3}: loss {ours[-1]:.6f}; never further than {furthest:.1e} from torch's")
    assert ours[-1] < ours[0] and furthest < 1e-3


if __name__ == "__main__":
    main()
