"""The shape and layout of what torch's elementwise operators return.

Torch itself imports SymPy or Dynamo to tell, which takes a second, and is slower than a kernel afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch

Layout = tuple[torch.Size, tuple[int, ...]]  # shape and strides
_CHANNELS_LAST = (1, 3, 2, 0)  # of four dimensions, the innermost first


@functools.lru_cache(maxsize=1024)
def broadcast(*shapes: torch.Size) -> torch.Size:
    """Return the shape that shapes broadcast to; RuntimeError if they do not."""
    rank, found = max(map(len, shapes)), []
    for sizes in zip(*((*[1] * (rank - len(shape)), *shape) for shape in shapes), strict=True):
        wide = {n for n in sizes if n != 1} or {1}
        if len(wide) > 1:
            raise RuntimeError(f"sizes {sizes}")
        found += wide
    return torch.Size(found)


@functools.lru_cache(maxsize=1024)
def joint_strides(layouts: tuple[Layout, ...]) -> tuple[int, ...]:
    """Return the strides of what torch's elementwise operators make of tensors of these layouts, two at a time."""
    return _joined(_joint, layouts)[1]


def torch_strides(layouts: tuple[Layout, ...]) -> tuple[int, ...]:
    """The same from torch, which may be asked about sizes that stand for any number."""
    metas = [torch.empty_strided(shape, strides, device="meta") for shape, strides in layouts]
    return _joined(torch.add, metas).stride()


def _joined(join: Callable[[Any, Any], Any], items: Sequence[Any]) -> Any:
    """All items joined; one alone with itself, as a tensor that is expanded has no layout."""
    first, *rest = items
    return functools.reduce(join, rest or [first], first)


def _joint(one: Layout, other: Layout) -> Layout:
    """The layout that torch's ``TensorIterator`` finds for two."""
    shape = broadcast(one[0], other[0])
    usual = tuple(reversed(range(len(shape))))
    if one[0] == other[0]:
        for order in (usual, *[_CHANNELS_LAST] * (len(shape) == 4)):
            if _is_run(one, order) and _is_run(other, order):
                return shape, _run(shape, order)
        if one[1] == other[1] and _is_run(one, sorted(usual, key=one[1].__getitem__)):
            return one
    columns = [_expanded(layout, shape) for layout in (one, other)]
    order = list(usual)
    for end in range(1, len(order)):  # an insertion sort, as pairs of dimensions may have no order
        at = end
        for before in reversed(range(end)):
            swap = _compare(order[before], order[at], shape, columns)
            if swap < 0:
                break
            if swap > 0:
                order[before], order[at] = order[at], order[before]
                at = before
    return shape, _run(shape, order)


def _is_run(layout: Layout, order: Sequence[int]) -> bool:
    """Whether elements are one run of memory, with the dimensions in this order."""
    shape, strides = layout
    wide = [d for d in order if shape[d] != 1]
    steps = accumulate((shape[d] for d in wide), int.__mul__, initial=1)
    return 0 in shape or all(strides[d] == step for d, step in zip(wide, steps, strict=False))


def _run(shape: torch.Size, order: Sequence[int]) -> tuple[int, ...]:
    """The strides with which elements are one run; torch's own for none, too."""
    least = 1 if all(a > b for a, b in pairwise(order)) else 0
    steps = accumulate((max(shape[d], least) for d in order), int.__mul__, initial=1)
    found = dict(zip(order, steps, strict=False))
    return tuple(found[d] for d in range(len(shape)))


def _expanded(layout: Layout, shape: torch.Size) -> list[int]:
    """Strides in a shape that a tensor is broadcast to."""
    own, strides = layout
    new = len(shape) - len(own)
    kept = (0 if a != b else step for a, b, step in zip(own, shape[new:], strides, strict=True))
    return [*[0] * new, *kept]


def _compare(one: int, other: int, shape: torch.Size, columns: Sequence[list[int]]) -> int:
    """Whether a dimension belongs outside of another one, 1, or inside, -1: by the first tensor that tells."""
    for steps in columns:
        if steps[one] and steps[other]:
            if steps[one] != steps[other]:
                return 1 if steps[one] > steps[other] else -1
            if shape[one] > shape[other]:
                return 1
    return 0
