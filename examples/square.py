"""rawkern.square computes and trains in CUDA C, on the GPU if there is one and on the CPU if not.

The forward and the backward pass are kernels made from expressions. Here they fit the radius of a circle to noisy
points by gradient descent; values and gradients are compared with torch's own.

    python examples/square.py [--device cpu|cuda]
"""

import argparse
import time

import torch

import rawkern


def check(device: str) -> None:
    """Compare rawkern.square with x * x, forward and backward."""
    x = torch.randn(1_000_000, device=device, requires_grad=True)
    weights = torch.randn_like(x)

    start = time.perf_counter()
    y = rawkern.square(x)
    (grad,) = torch.autograd.grad(y, x, weights)
    seconds = time.perf_counter() - start

    torch.testing.assert_close(y, x.detach() * x.detach())
    torch.testing.assert_close(grad, 2 * x.detach() * weights)
    print(f"square of {x.numel():,} floats on {device}: value and gradient agree with torch")
    print(f"first use, compilation (or a look into the cache) included: {seconds:.2f} s")


def train(device: str) -> None:
    """Fit center and radius of a circle: every square in the loss is rawkern's kernel."""
    generator = torch.Generator().manual_seed(0)
    angle = torch.rand(500, generator=generator) * 6.2832
    noise = 0.02 * torch.randn(500, 2, generator=generator)
    points = torch.stack([3 + 2 * angle.cos(), -1 + 2 * angle.sin()], dim=1).add(noise).to(device)

    center = torch.zeros(2, device=device, requires_grad=True)
    radius = torch.ones((), device=device, requires_grad=True)
    optimizer = torch.optim.Adam([center, radius], lr=0.1)
    for step in range(201):
        optimizer.zero_grad()
        squared_distance = rawkern.square(points - center).sum(dim=1)
        loss = rawkern.square(squared_distance - rawkern.square(radius)).mean()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:3d}  loss {loss.item():10.4f}")
    x, y = center.tolist()
    print(f"center ({x:.2f}, {y:.2f}), radius {radius.item():.2f}; the points were made with (3, -1) and 2")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args().device
    check(chosen)
    train(chosen)
