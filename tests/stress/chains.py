"""What the stress tests run: a chain of operators with its backward, and a kernel that waits before it writes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import rawkern

# y = a * y + b, after a while: `turns` rounds of arithmetic that the compiler can't leave out.
AXPB = r"""
extern "C" __global__ void axpb(int n, float a, float b, int turns, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float wait = a;
    for (int k = 0; k < turns; k++) wait = __fmaf_rn(wait, 0.5f, 1.0f);
    if (i < n) y[i] = a * y[i] + b + (wait == -1.0f ? 1.0f : 0.0f);
}"""
CLASSES = 77


def inputs(seed: int, device: str, rows: int = 61) -> tuple[Tensor, ...]:
    """x, weight, bias and target of `chain`."""
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (torch.randn(s, generator=generator) for s in ((rows, CLASSES), (CLASSES,), (CLASSES,)))
    target = torch.randint(0, CLASSES, (rows,), generator=generator)
    return *(t.to(device).requires_grad_() for t in (x, weight, bias)), target.to(device)


def chain(x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    """A loss that goes through kernels over rows and over elements."""
    hidden = rawkern.layer_norm(x, CLASSES, weight, bias)
    hidden = rawkern.mul(rawkern.gelu(hidden), rawkern.softmax(x, -1)) + rawkern.square(x)
    return rawkern.cross_entropy(rawkern.rms_norm(hidden, CLASSES, weight), target)


def reference(x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    """The same by torch."""
    hidden = F.layer_norm(x, (CLASSES,), weight, bias)
    hidden = F.gelu(hidden) * F.softmax(x, -1) + x.square()
    eps = torch.finfo(torch.float32).eps
    return F.cross_entropy(F.rms_norm(hidden, (CLASSES,), weight, eps), target)


def step(f: Callable[..., Tensor], given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The loss and the gradients."""
    loss = f(*given)
    return loss.detach(), *torch.autograd.grad(loss, given[:3])


def expected(seed: int, device: str) -> tuple[Tensor, ...]:
    """What `step` gives, by torch in float64 on the CPU."""
    *real, target = inputs(seed, "cpu")
    found = step(reference, (*(t.detach().double().requires_grad_() for t in real), target))
    return tuple(t.float().to(device) for t in found)


def close(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run work(0), work(1) ... at the same time; raise what one of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(k: int) -> None:
        try:
            start.wait(60)
            work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
