"""Loops over a tile in shared memory that can be transposed: one thread sums up what all threads give to an element.

In ``sum += a[ty][j] * b[j][tx]`` all threads with one tx read the same b[j][tx]: the gradient of that is a sum over ty.
The index is made of digits (j, tx) that can be read off it, so each element belongs to one choice of them, and what is
given to it comes from the others (ty): one thread takes the element and runs through those. What the sum takes of other
threads has to be had: integers that are computed from digits and from what all threads share, floats through shared
memory.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.analysis import loops, privatizable
from rawkern.gradients.analysis.recompute_slice import TRIVIAL
from rawkern.gradients.index import scev
from rawkern.gradients.index.affine import poly
from rawkern.gradients.index.injective import MixedRadix
from rawkern.gradients.index.threads import threads
from rawkern.gradients.index.uniform import uniform
from rawkern.gradients.ir import COLLECTIVE, Barrier, Exit, Kernel, Loop, Value, inside

SHARED_BYTES = 48 * 1024  # static shared memory of a block
MOST = 4  # times as many iterations as the loop has
BANKS = 32


@dataclass(frozen=True)
class Tile:
    """The reads of a loop that mean one element, by the digits that tell elements apart, and the others."""

    reads: tuple[Value, ...]
    used: tuple[Any, ...]  # as threads are dealt out to elements: that of the last changes from lane to lane
    free: tuple[Any, ...]
    extents: dict[Any, int]
    wanted: frozenset[Value]  # what of the loop the reads lead to
    skewed: bool = False  # whether threads begin their sums at different places, to read different banks

    @property
    def layout(self) -> tuple[str, ...]:
        """Thread digits as exchanged values lie in memory: next to each other for neighboring threads."""
        return tuple(d for d in (*self.free, *self.used) if isinstance(d, str))


def tiles(kernel: Kernel, loop: Loop, active: set[Value], conflicting: set[Value]) -> list[Tile]:
    """The tiles of a loop; `conflicting` are the reads whose gradients threads would add to at the same time."""
    if not _reached_by_all(kernel, loop):
        return []
    extents = {**threads(kernel, True), loop: scev.iterations(loop)}
    groups: dict[Any, list[Value]] = {}
    for r in loop.body.items:
        if r in conflicting:
            groups.setdefault((r.attr.array.name, tuple(poly(i).frozen for i in r.args)), []).append(r)
    found = [_tile(kernel, loop, tuple(reads), active, extents) for reads in groups.values()]  # type: ignore[arg-type]
    made = [t for t in found if t is not None]
    while made and not _room(kernel, loop, len(made)):
        made.pop()
    return made


def _reached_by_all(kernel: Kernel, loop: Loop) -> bool:
    """Whether all threads of a block come to the loop and run it as often, and it computes from what is known."""
    steps = scev.induction(loop)
    integers = [c for c in loop.carried if not types.is_float(c.phi.type)]
    return (
        bool(scev.iterations(loop))
        and not any(isinstance(i, Exit) for i in kernel.body.items)
        and any(isinstance(i, Barrier) and i.text == "__syncthreads()" for i in loop.block.items)
        and all(c.phi in steps for c in integers)
        and all(_known(v) for c in integers for v in (c.init, steps[c.phi][1]))
        and all(_computes(i, kernel, loop) for i in loop.body.items)
    )


def _computes(item: Any, kernel: Kernel, loop: Loop) -> bool:
    """Whether an item of a loop only computes, from what other threads can have, too."""
    if not isinstance(item, Value) or item.op in (*COLLECTIVE, "result"):
        return False
    array = item.attr.array if item.op == "load" else None
    if array and array.shared and (array.private or privatizable.late(array, loop, kernel) is not None):
        return False
    return all(_known(a) for a in item.args if not inside(a.block, loop.body))


def _known(v: Value) -> bool:
    """Whether another thread's value can be had."""
    if v.op in TRIVIAL or types.is_float(v.type) or uniform(v):
        return True
    return v.op in ("binary", "unary", "cast", "select") and all(map(_known, v.args))


def _tile(
    kernel: Kernel, loop: Loop, reads: tuple[Value, ...], active: set[Value], extents: dict[Any, int]
) -> Tile | None:
    used: list[Any] = []
    for index in reads[0].args:
        digits = _digits(index, loop, extents)
        if digits is None or set(digits) & set(used):
            return None
        used += digits
    free = tuple(d for d in extents if d not in used)
    own = [threads(kernel, True), used, free]
    all_threads, count, others = (math.prod(extents[d] for d in ds) for ds in own)
    if not used or not free or others * -(-count // all_threads) > MOST * extents[loop]:
        return None
    wanted = set(reads)
    for item in loop.body.items:
        if item in active and item.op != "load" and any(a in wanted for a in item.args):
            wanted.add(item)
    ways = [Tile(reads, order, free, extents, frozenset(wanted)) for order in itertools.permutations(used)]
    ways += [replace(way, skewed=True) for way in ways]
    return min(ways, key=lambda way: _conflicts(kernel, loop, way))


def _digits(index: Value, loop: Loop, extents: dict[Any, int]) -> list[Any] | None:
    """The digits that an index says, from the largest; None where that is not certain."""
    found = poly(index).split(lambda s: s in extents)
    if found is None or not all(_alike(s, loop) for s in found[1].symbols):
        return None
    known = all(c.number is not None for c in found[0].values())
    order = MixedRadix(extents).read(found[0]) if known else None
    return None if order is None else [digit for digit, _ in reversed(order)]


def _alike(symbol: Any, loop: Loop) -> bool:
    """Whether a symbol of an index is the same for all threads of a block, and in all iterations."""
    if isinstance(symbol, Value):
        return uniform(symbol) and not inside(symbol.block, loop.body)
    return isinstance(symbol, Loop) or not symbol.startswith("threadIdx")


def _conflicts(kernel: Kernel, loop: Loop, tile: Tile) -> int:
    """How often a warp waits for a bank of shared memory."""
    first, steps = tile.free[-1], math.prod(tile.extents[d] for d in tile.free)
    places, threads = [], []
    for lane in range(min(BANKS, math.prod(kernel.block))):
        places.append(_dealt(lane, tile.used, tile.extents) | {d: 0 for d in tile.free})
        places[-1][first] = lane % tile.extents[first] if tile.skewed else 0
        threads.append(_dealt(lane, tuple(f"threadIdx.{a}" for a in "zyx"), tile.extents))
    loads = [i for i in loop.body.items if i in tile.wanted or any(i in w.args for w in tile.wanted)]
    shared = [i for i in loads if i.op == "load" and i.attr.array.shared and i not in tile.reads]
    once = 2 * _waits(_address(tile.reads[0], place) for place in places)
    once += _waits(_exchanged(tile, place) for place in threads)
    often = _waits(_exchanged(tile, place) for place in places)
    often += sum(_waits(_address(i, place) for place in places) for i in shared)
    return once + steps * often


def _dealt(number: int, digits: tuple[Any, ...], extents: dict[Any, int]) -> dict[Any, int]:
    found = {}
    for d in reversed(digits):
        number, found[d] = divmod(number, extents.get(d, 1))
    return found


def _waits(addresses: Iterable[int]) -> int:
    banks = Counter(address % BANKS for address in set(addresses))
    return max(banks.values())


def _exchanged(tile: Tile, place: dict[Any, int]) -> int:
    found = 0
    for d in tile.layout:
        found = found * tile.extents[d] + place[d]
    return found


def _address(load: Value, place: dict[Any, int]) -> int:
    found = 0
    for size, index in zip(load.attr.array.sizes or (1,), load.args, strict=False):
        here = sum(v * math.prod(place.get(s, 0) for s in key) for key, v in poly(index).items())
        found = found * size + here
    return found


def _room(kernel: Kernel, loop: Loop, count: int) -> bool:
    """Whether shared memory surely has room: for each array twice, and for what is exchanged, in double."""
    outer = {a for i in loop.body.items for a in i.args if types.is_float(a.type) and not inside(a.block, loop.body)}
    each = 8 * (len(outer) + len(loop.carried)) * math.prod(kernel.block)
    total = each * count + sum(2 * math.prod(a.sizes) * 8 * types.count(a.type) for a in kernel.shared)
    return total <= SHARED_BYTES and not any(a.dynamic for a in kernel.shared)


def whole(kernel: Kernel, loop: Loop, tile: Tile, active: set[Value]) -> bool:
    """Whether a tile's gradients may be set each time: its reads are all there are, of all elements, stored before.

    A store in the block of the loop then takes what was set since the block began, of each of its places once.
    """
    array = tile.reads[0].attr.array
    stores = loops.stores(kernel.body, array)
    return (
        {r for r in loops.reads(kernel.body, array) if r in active} == set(tile.reads)
        and math.prod(tile.extents[d] for d in tile.used) == math.prod(array.sizes)
        and len({s.place for s in stores}) == len(stores)
        and {s.place for s in stores} <= {r.attr for r in tile.reads}
        and all(s.block is loop.block and s.order < loop.order and not s.adds for s in stores)
    )


def spare(loop: Loop, found: list[Tile], active: set[Value]) -> set[Value]:
    """What of a loop leads to reads of its tiles alone."""
    given = {r for t in found for r in t.reads}
    wanted: set[Value] = set()
    for item in loop.body.items:
        others = any(a in wanted or not inside(a.block, loop.body) for a in item.args if a in active)
        if item in active and item not in given and (item.op in ("load", "param") or others):
            wanted.add(item)
    return {i for i in loop.body.items if i in active and i not in wanted}
