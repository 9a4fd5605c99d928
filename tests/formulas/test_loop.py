"""Loops over tensors whose layouts a loop has met before: the second launch and later ones."""

from __future__ import annotations

import random

import pytest
import torch

import rawkern
from rawkern.base import known

MAP = rawkern.elementwise("T x, T b, float64 s", "T y, T z", "y = x * T(s) + b; z = x - b", "test_loop_known")


def layouts(device: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs that broadcast to (6, 8): rows, columns, one element, transposed, strided, misaligned, negative."""
    draw = torch.Generator().manual_seed(0)
    rand = lambda *shape: torch.randn(shape, generator=draw).to(device)  # noqa: E731
    flat = rand(200)
    whole = [rand(6, 8), rand(8, 6).t(), rand(12, 16)[::2, ::2], flat[1:49].view(6, 8), flat[4:52].view(6, 8)]
    parts = [rand(8), rand(6, 1), rand(1), rand(1, 1).expand(6, 8), flat[:8], flat[3:11], rand(6, 8)]
    numbers = torch.complex(rand(6, 8), rand(6, 8)).conj().imag
    assert numbers.is_neg()
    return [(a, b) for a in (*whole, numbers) for b in (*parts, numbers)]


def test_launches_of_known_layouts_are_those_of_new_ones(device) -> None:
    every = layouts(device) * 3
    random.Random(1).shuffle(every)
    for k, (x, b) in enumerate(every):
        x, b, s = x * 1 if k % 4 == 0 else x, b, float(k)
        for dtype in (torch.float32, torch.float64) if k % 5 == 0 else (torch.float32,):
            y, z = MAP(x.to(dtype), b.to(dtype), s)
            torch.testing.assert_close(y, x.to(dtype) * s + b.to(dtype))
            assert torch.equal(z, x.to(dtype) - b.to(dtype))
            assert y.stride() == torch.add(x.to(dtype), b.to(dtype)).stride()
    assert MAP.loop.known


def test_gradients_and_unwanted_outputs(device) -> None:
    for k in range(3):
        x = torch.randn(6, 8, device=device, requires_grad=k != 1)
        b = torch.randn(8, device=device, requires_grad=k != 2)
        y, z = MAP(x, b, 2.0)
        grads = torch.autograd.grad((y * z).sum(), [t for t in (x, b) if t.requires_grad])
        want = torch.autograd.grad(((x * 2 + b) * (x - b)).sum(), [t for t in (x, b) if t.requires_grad])
        torch.testing.assert_close(grads, want, rtol=1e-4, atol=1e-4)


def test_what_is_known_of_a_number_or_an_empty_tensor(device) -> None:
    x, b = torch.randn(6, 8, device=device), torch.randn(8, device=device)
    for s in (1, 2.5, True, 3):
        torch.testing.assert_close(MAP(x, b, s)[0], x * s + b)
    assert MAP(x[:0], b, 1.0)[0].shape == (0, 8)
    one = torch.tensor(3.0)  # on the CPU: its value is an argument
    for value in (3.0, 5.0):
        assert torch.equal(MAP(x, one.fill_(value).to(device), 1.0)[1], x - value)
        assert torch.equal(MAP(x, one.fill_(value), 1.0)[1], x - value)


def test_there_is_an_end_to_what_is_known(monkeypatch) -> None:
    monkeypatch.setattr(known, "MOST", 4)
    for n in range(2, 12):
        x, b = torch.randn(n, 3), torch.randn(3)
        assert torch.equal(MAP(x, b, 0.0)[1], x - b)
        assert len(MAP.loop.known) <= 4


def test_errors_of_launches_of_known_layouts() -> None:
    take = rawkern.elementwise("T x, int32 at", "T y", "assert(at < 3); y = x", "test_loop_asserts")
    x, at = torch.randn(4, 3), torch.tensor([0, 1, 2], dtype=torch.int32)
    assert torch.equal(take(x, at), x) and torch.equal(take(x, at), x)
    with pytest.raises(rawkern.LaunchError, match="at < 3"):
        take(x, at + 1)
