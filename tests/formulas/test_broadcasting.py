"""Shapes and layouts of results, compared with torch's."""

from __future__ import annotations

import random

import pytest
import torch

from rawkern.formulas.broadcasting import Layout, broadcast, joint_strides


def _layout(r: random.Random, sizes: list[int]) -> Layout:
    """One that broadcasts to a shape: some dimensions missing or of one element, permuted, apart, expanded."""
    missing = 0 if r.random() < 0.7 else r.randint(0, len(sizes))
    shape = [1 if r.random() < 0.1 else n for n in sizes[missing:]]
    strides, step, order = [0] * len(shape), 1, list(range(len(shape)))
    if r.random() < 0.6:
        r.shuffle(order)
    for d in reversed(order):
        expanded, alone = r.random() < 0.08, shape[d] == 1 and r.random() < 0.2
        strides[d] = 0 if expanded else r.choice((0, 1, 5, 77)) if alone else step
        step *= max(shape[d], 1) * (2 if r.random() < 0.1 else 1)
    return torch.Size(shape), tuple(strides)


def _tensor(layout: Layout) -> torch.Tensor:
    last = sum((n - 1) * step for n, step in zip(*layout, strict=True) if n)
    return torch.zeros(max(last + 1, 1)).as_strided(*layout)


def test_layouts_are_those_of_torch() -> None:
    r = random.Random(7)
    for _ in range(3000):
        sizes = [r.choice((1, 2, 3, 4)) if r.random() < 0.97 else 0 for _ in range(r.randint(0, 5))]
        one = _layout(r, sizes)
        other = _layout(r, sizes) if r.random() < 0.8 else one
        expected = torch.add(_tensor(one), _tensor(other))
        assert broadcast(one[0], other[0]) == expected.shape, (one, other)
        assert joint_strides((one, other)) == expected.stride(), (one, other)
        assert joint_strides((one,)) == torch.add(_tensor(one), _tensor(one)).stride(), one
    with pytest.raises(RuntimeError):
        broadcast(torch.Size([2, 3]), torch.Size([2]))
    with pytest.raises(RuntimeError):
        broadcast(torch.Size([0]), torch.Size([2]))
