"""Arrays whose reads are one read shifted: then the thread that owns an element can gather its gradient.

The reads of a stencil mean ``x[p + d]``, with one index p in all threads and offsets d of their own. If p tells threads
apart, an offset is a step from thread to thread: what the thread at T gives to ``x[p(T) + d]`` belongs to the thread at
T + step, whose element that is. So each thread computes, for every step, what the thread that many steps before it
gives, under that thread's conditions, and sets the sum. In rows (``p = r * n + c``) threads with ``c < n`` own
elements; that a step never leads out of the row has to follow from the reading thread's conditions. Where a step leads
out of the grid, nobody owns the element, and the reading thread adds to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.analysis import affine, injectivity, loops
from rawkern.gradients.analysis.activity import Activity
from rawkern.gradients.analysis.affine import Poly, add, multiply, poly
from rawkern.gradients.analysis.guards import facts
from rawkern.gradients.ir import COLLECTIVE, Array, Barrier, Kernel, Loop, Store, Value, operands, walk

MOST = 27  # different steps


@dataclass(frozen=True)
class Axis:
    """An axis of the grid: the coefficient of the thread's place along it, and what owners' places are less than."""

    name: str
    coefficient: Poly
    extent: Poly | None


@dataclass(frozen=True)
class Gather:
    """How an array is gathered; reads and coordinates by their order, which is that of any copy of the kernel."""

    array: Array
    axes: tuple[Axis, ...]
    offset: Poly
    steps: dict[int, tuple[int, ...]]  # of each read, along each axis
    outside: dict[int, tuple[tuple[int, int], ...]]  # steps (axis, by) that may lead out of the grid
    coordinates: dict[int, str]
    wide: bool  # whether indices have 64 bits


def gathers(
    kernel: Kernel, active: Activity, wrt: tuple[str, ...], plain: Callable[[Store], bool], endless: bool = False
) -> list[Gather]:
    """The arrays to gather. `plain`: whether the gradient of what a store sets can be read any number of times.

    If a grid is `endless`, every element has an owner: nothing may lead to others.
    """
    for item in walk(kernel.body):
        if isinstance(item, Loop | Barrier) or getattr(item, "op", "") in COLLECTIVE:
            return []
        if isinstance(item, Store) and item.place.array in active.arrays and not (item.adds or plain(item)):
            return []
    if kernel.shared:
        return []
    coordinates = _coordinates(kernel)
    if coordinates is None:
        return []
    found = [_gather(kernel, kernel.arrays[n], active, coordinates, endless) for n in wrt if n in kernel.arrays]
    return [g for g in found if g is not None]


def short_loops(kernel: Kernel) -> frozenset[int]:
    """The loops to write out, so that what they read may be gathered: all, if each place in them runs a few times."""
    found = [i for i in walk(kernel.body) if isinstance(i, Loop)]
    for loop in found:
        runs = [loops.iterations(each) for each in (loop, *affine.loops_around(loop.block))]
        if None in runs or math.prod(n for n in runs if n is not None) > MOST:
            return frozenset()
    return frozenset() if kernel.shared else frozenset(loop.node for loop in found)


def places(kernel: Kernel) -> dict[str, Poly]:
    """The place of a thread along each axis that has several."""
    found: dict[str, Poly] = {}
    for axis, threads, blocks in zip("xyz", kernel.block, kernel.grid, strict=True):
        p: Poly = {} if threads == 1 else {(f"threadIdx.{axis}",): 1}
        if blocks != 1:
            p[f"blockIdx.{axis}",] = threads
        if p:
            found[axis] = p
    return found


def _coordinates(kernel: Kernel) -> dict[int, str] | None:
    """The values that are a thread's place along an axis; None if threads are told apart by anything else."""
    whole = places(kernel)
    found: dict[int, str] = {}
    raw: set[Value] = set()
    for item in walk(kernel.body):
        special = isinstance(item, Value) and item.op == "special" and item.const is None
        if not (special and item.attr.startswith(("threadIdx", "blockIdx"))) and not raw & set(operands(item)):
            continue
        if not isinstance(item, Value) or item.op not in ("special", "binary", "cast") or types.is_float(item.type):
            return None
        axis = next((a for a, p in whole.items() if poly(item) == p), None)
        if axis is None:
            raw.add(item)
        else:
            found[item.order] = axis
    return found


def _gather(
    kernel: Kernel, array: Array, active: Activity, coordinates: dict[int, str], endless: bool
) -> Gather | None:
    reads = [r for r in loops.reads(kernel.body, array) if r in active.values]
    if len(reads) < 2 or isinstance(array.type, types.Aggregate):
        return None
    indices = [poly(r.args[0]) for r in reads]
    base = min(indices, key=lambda p: sum(not any(map(_digit, key)) for key in p))
    if endless:
        base = {key: value for key, value in base.items() if key}
    axes = _axes(kernel, base)
    if axes is None:
        return None
    steps: dict[int, tuple[int, ...]] = {}
    outside: dict[int, tuple[tuple[int, int], ...]] = {}
    for read, index in zip(reads, indices, strict=True):
        step = _step(add(index, base, -1), axes)
        leads = None if step is None else _outside(kernel, read, axes, step)
        if step is None or leads is None:
            return None
        steps[read.order], outside[read.order] = step, leads
    if not 2 <= len(set(steps.values())) <= MOST:
        return None
    offset = {k: v for k, v in base.items() if not any(_digit(s) for s in k)}
    if endless and (offset or any(by < 0 for leads in outside.values() for _, by in leads)):
        return None
    wide = any(types.bits(r.args[0].type) == 64 for r in reads)
    return Gather(array, axes, offset, steps, outside, coordinates, wide)


def _digit(symbol: Any) -> bool:
    return isinstance(symbol, str) and symbol.startswith(("threadIdx", "blockIdx"))


def _axes(kernel: Kernel, index: Poly) -> tuple[Axis, ...] | None:
    """The index as places times coefficients, from the smallest to the largest: 1, a row, a layer of rows."""
    left = {k: v for k, v in index.items() if any(_digit(s) for s in k)}
    if any(isinstance(s, Value) for k in index for s in k):
        return None
    found: list[tuple[str, tuple[Any, ...]]] = []
    for axis, place in places(kernel).items():
        digit = f"threadIdx.{axis}" if (f"threadIdx.{axis}",) in place else f"blockIdx.{axis}"
        keys = [k for k in left if digit in k]
        if len(keys) != 1:
            return None
        monomial = tuple(s for s in keys[0] if s != digit)
        for key, value in multiply(place, {monomial: 1}).items():
            if left.pop(key, None) != value:
                return None
        found.append((axis, monomial))
    found.sort(key=lambda f: len(f[1]))
    if left or not found or found[0][1]:
        return None
    axes = []
    for k, (axis, monomial) in enumerate(found):
        extent = None
        if k + 1 < len(found):
            rest = list(found[k + 1][1])
            for s in monomial:
                if s not in rest:
                    return None
                rest.remove(s)
            if not rest:
                return None
            extent = {tuple(rest): 1}
        axes.append(Axis(axis, {monomial: 1}, extent))
    return tuple(axes)


def _step(offset: Poly, axes: tuple[Axis, ...]) -> tuple[int, ...] | None:
    """An offset of an index as steps along the axes."""
    left = dict(offset)
    step = tuple(left.pop(next(iter(a.coefficient)), 0) for a in axes)
    return None if left else step


def _outside(kernel: Kernel, read: Value, axes: tuple[Axis, ...], step: tuple[int, ...]) -> Any:
    """The steps that may lead out of the grid; None if one may lead into another row."""
    known, whole = facts(read.block, read.order), places(kernel)
    found = []
    for k, (axis, by) in enumerate(zip(axes, step, strict=True)):
        to = add(whole[axis.name], {(): by} if by else {})
        positive = by >= 0 or any(_at_least(add(to, {(): 1}), fact) for fact in known.above)
        if axis.extent is not None and not (positive and injectivity.fits(to, None, axis.extent, known)):
            return None
        if by > 0 or not positive:
            found.append((k, by))
    return tuple(found)


def _at_least(p: Poly, q: Poly) -> bool:
    rest = add(p, q, -1)
    return not rest or (set(rest) == {()} and rest[()] > 0)
