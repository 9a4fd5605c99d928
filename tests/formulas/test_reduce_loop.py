"""Reductions of tensors whose layouts a loop has met before."""

from __future__ import annotations

import random

import torch

import rawkern

DOT = rawkern.reduction("T x, T w", "T y", "x * w", "a + b", "y = a", "0", "test_reduce_loop_known")
TOP = rawkern.reduction("T x", "T y", "x", "a > b ? a : b", "y = a", "-1e30", "test_reduce_loop_top")


def test_reductions_of_known_layouts_are_those_of_new_ones(device) -> None:
    draw = torch.Generator().manual_seed(0)
    rand = lambda *shape: torch.randn(shape, generator=draw).to(device)  # noqa: E731
    flat = rand(3000)
    negative = torch.complex(rand(6, 8), rand(6, 8)).conj().imag
    large = rand(5000, 4) if device == "cuda" else rand(300, 4)  # in parts on a GPU
    whole = [rand(6, 8), rand(8, 6).t(), rand(12, 16)[::2, ::2], flat[1:49].view(6, 8), flat[4:52].view(6, 8), negative]
    every = [(x, w, axis) for x in whole for w in (rand(8), rand(6, 1), flat[:8], flat[3:11]) for axis in (0, 1, None)]
    every += [(large, rand(4), axis) for axis in (0, 1, None, (0, 1))]
    every *= 3
    random.Random(2).shuffle(every)
    for k, (x, w, axis) in enumerate(every):
        x, keepdims = x * 1 if k % 4 == 0 else x, k % 3 == 0
        dims = (0, 1) if axis is None else axis
        want = (x * w).sum(dims, keepdim=keepdims)
        torch.testing.assert_close(DOT(x, w, axis=axis, keepdims=keepdims), want, rtol=1e-4, atol=1e-4)
        assert torch.equal(TOP(x, axis=axis), x.amax(dims))
    assert DOT.loop.known and TOP.loop.known


def test_outputs_and_empty_tensors_where_a_layout_is_known(device) -> None:
    for k in range(3):
        x, w = torch.randn(6, 8, device=device), torch.randn(8, device=device)
        out = torch.empty(8, 6, device=device).t()[:, 0]
        assert DOT(x, w, axis=1, out=out) is out
        torch.testing.assert_close(out, (x * w).sum(1), rtol=1e-4, atol=1e-4)
        assert torch.equal(DOT(x[:0], w, axis=0), torch.zeros(8, device=device))
        assert DOT(x[:0], w, axis=1).shape == (0,)
        x.requires_grad_(k != 1)
        y = DOT(x, w, axis=0)
        assert y.requires_grad == (k != 1)
        if k != 1:
            torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], w.expand(6, 8))
