"""Arrays whose reads are one read shifted: then the thread that owns an element can gather its gradient.

The reads of a stencil mean ``x[p + d]``, with one index p in all threads and offsets d of their own. If p tells threads
apart, an offset is a step from thread to thread: what the thread at T gives to ``x[p(T) + d]`` belongs to the thread at
T + step, whose element that is. So each thread computes, for every step, what the thread that many steps before it
gives, under that thread's conditions, and sets the sum. In rows (``p = r * n + c``) threads with ``c < n`` own
elements; that a step never leads out of the row has to follow from the reading thread's conditions. Where a step leads
out of the grid, no thread owns the element, and the reading thread adds to it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from rawkern.gradients import types
from rawkern.gradients.analysis import loops
from rawkern.gradients.analysis.activity import Activity
from rawkern.gradients.index import scev
from rawkern.gradients.index.affine import Poly, is_place, poly, symbol
from rawkern.gradients.index.guards import guards
from rawkern.gradients.index.ranges import Ranges, extents
from rawkern.gradients.ir import COLLECTIVE, Array, Barrier, Kernel, Loop, Store, Value, operands, walk

MOST = 27  # different steps
Shift = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]


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
        runs = [scev.iterations(each) for each in (loop, *scev.loops_around(loop.block))]
        if None in runs or math.prod(n for n in runs if n is not None) > MOST:
            return frozenset()
    return frozenset() if kernel.shared else frozenset(loop.node for loop in found)


def places(kernel: Kernel) -> dict[str, Poly]:
    """The place of a thread along each axis that has several."""
    found: dict[str, Poly] = {}
    for axis, threads, blocks in zip("xyz", kernel.block, kernel.grid, strict=True):
        p = Poly() if threads == 1 else symbol(f"threadIdx.{axis}")
        p += symbol(f"blockIdx.{axis}") * threads if blocks != 1 else 0
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
        if not (special and is_place(item.attr)) and not raw & set(operands(item)):
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
    if len(reads) < 2 or isinstance(array.type, types.Aggregate) or len(array.sizes) > 1:
        return None
    indices = {r: poly(r.args[0]) for r in reads}
    base = min(indices.values(), key=lambda p: len(_offset(p)))
    base -= base.get((), 0) if endless else 0
    axes = _axes(kernel, base)
    found = None if axes is None else _shifts(kernel, indices, base, axes)
    offset = _offset(base)
    if axes is None or found is None or (endless and offset):
        return None
    leads = {r: outside for r, (_, outside) in found.items()}
    if endless and any(by < 0 for outside in leads.values() for _, by in outside):
        return None
    wide = any(types.bits(r.args[0].type) == 64 for r in reads)
    return Gather(array, axes, offset, {r: step for r, (step, _) in found.items()}, leads, coordinates, wide)


def _offset(p: Poly) -> Poly:
    """What of an index is the same for all threads."""
    return Poly({k: v for k, v in p.items() if not any(map(is_place, k))})


def _shifts(kernel: Kernel, indices: dict[Value, Poly], base: Poly, axes: tuple[Axis, ...]) -> dict[int, Shift] | None:
    """How each read is shifted, by its order; None if one is not, or they have too many steps, or one alone."""
    found: dict[int, Shift] = {}
    for read, index in indices.items():
        shift = _shifted(kernel, read, index - base, axes)
        if shift is None:
            return None
        found[read.order] = shift
    return found if 2 <= len({step for step, _ in found.values()}) <= MOST else None


def _axes(kernel: Kernel, index: Poly) -> tuple[Axis, ...] | None:
    """The index as places times coefficients, from the smallest to the largest: 1, a row, a layer of rows."""
    left, found = index, []
    for axis, place in places(kernel).items():
        digit = next(iter(place.symbols))
        products = [tuple(s for s in key if s != digit) for key in left if digit in key]
        if len(products) != 1:
            return None
        found.append((axis, Poly({products[0]: 1})))
        left -= place * found[-1][1]
    found.sort(key=lambda f: len(f[1].symbols))
    made_of_more = any(map(is_place, left.symbols)) or any(isinstance(s, Value) for s in index.symbols)
    if made_of_more or not found or found[0][1].number is None:
        return None
    extents = [after.over(c) for (_, c), (_, after) in itertools.pairwise(found)]
    if any(extent is None or extent.number is not None for extent in extents):
        return None
    return tuple(Axis(axis, c, extent) for (axis, c), extent in zip(found, [*extents, None], strict=True))


def _shifted(kernel: Kernel, read: Value, offset: Poly, axes: tuple[Axis, ...]) -> Shift | None:
    """An offset of an index as steps along the axes, and those that may lead out; None if one may leave its row."""
    step = tuple(offset.pop(next(iter(a.coefficient)), 0) for a in axes)
    ranges, whole = Ranges(extents(kernel), guards(read).above), places(kernel)
    outside = []
    for k, (axis, by) in enumerate(zip(axes, step, strict=True)):
        to = whole[axis.name] + by
        positive = by >= 0 or ranges.implies(to + 1)
        if axis.extent is not None and not (positive and ranges.implies(axis.extent - to)):
            return None
        if by > 0 or not positive:
            outside.append((k, by))
    return None if offset else (step, tuple(outside))
