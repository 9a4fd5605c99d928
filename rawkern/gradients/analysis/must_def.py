"""Reads of a tile whose places the same iteration has set, though its stores stand under conditions.

In ``if (k + t < n) s[t] = x[k + t];`` thread t sets place t where its condition holds. A read of place p reads what the
iteration has set if the condition holds with p for t, as one of ``j < n - k`` around the read says. All that the
condition knows besides t has to be the same for all threads, and thread p has to be there. So it is with loops in which
a thread sets several places, as ``s[t * 8 + c]``: then a read says the iteration, too, and all threads come to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rawkern.gradients.analysis import affine, loops
from rawkern.gradients.analysis.affine import Poly, add, multiply, poly
from rawkern.gradients.analysis.guards import Comparison, Facts, facts, learn
from rawkern.gradients.analysis.uniform import together, uniform
from rawkern.gradients.ir import Block, If, Kernel, Loop, Store, Value, inside

By = dict[Any, Poly]  # who sets a place: the numbers of the thread, and of the iterations of loops


def covered(read: Value, body: Block, kernel: Kernel) -> bool:
    """Whether the stores of a block set what a read in it means, in all threads that set it before the next barrier."""
    return together(kernel, body) and bool(_sets(body, read, kernel))


def _sets(
    block: Block, read: Value, kernel: Kernel, under: tuple[tuple[Value, bool], ...] = (), within: tuple[Loop, ...] = ()
) -> list[By]:
    """Who sets the place of a read by what is done in a block, if the conditions around hold there."""
    found: list[By] = []
    for item in block.items:
        if isinstance(item, Store):
            by = _set_by(item, read, kernel, under, within)
            found += [] if by is None else [by]
        elif isinstance(item, If):
            sides = ((item.then, True), (item.other, False))
            for side, holds in sides:
                found += _sets(side, read, kernel, (*under, (item.condition, holds)), within)
            then, other = (_sets(side, read, kernel, under, within) for side, _ in sides)
            found += [by for by in then if by in other]
        elif isinstance(item, Loop):
            found += _sets(item.body, read, kernel, under, (*within, item))
    return found


def _set_by(
    store: Store, read: Value, kernel: Kernel, under: tuple[tuple[Value, bool], ...], within: tuple[Loop, ...]
) -> By | None:
    """Who sets the place of a read by a store, under conditions that hold for it; None if that is not certain."""
    array, at = store.place.array, {}
    if store.place != read.attr or store.adds or len(store.index) != len(read.args):
        return None
    known = facts(read.block, read.order)
    for k, (own, wanted) in enumerate(zip(store.index, read.args, strict=True)):
        extent = array.sizes[k] if k < len(array.sizes) else 0
        found = _numbers(poly(own), poly(wanted), within, extent)
        if found is None or any(at.get(each.of, each.number) != each.number for each in found):
            return None
        if not all(_is_there(each, kernel, known) for each in found):
            return None
        at |= {each.of: each.number for each in found}
    if any(loop not in at for loop in within):
        return None
    conditions = Facts([], {})
    for condition, side in under:
        learn(conditions, condition, side)
    return at if conditions.exact and all(_for(each, at, known) for each in conditions.below) else None


_AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


@dataclass(frozen=True)
class _Number:
    """Which number of a thread or iteration an index asks for."""

    of: Any
    number: Poly
    below: int | None  # that it is at least 0 and below this, because the array has no other elements


def _numbers(own: Poly, wanted: Poly, within: tuple[Loop, ...], extent: int) -> list[_Number] | None:
    """The numbers of thread and iterations with which an index is another; None where they are not seen."""
    free, rest = {}, {}
    for key, value in own.items():
        asked = [s for s in key if s in _AXES or s in within]
        if asked and (key != (asked[0],) or value < 0):
            return None
        (free if asked else rest)[key] = value
    if not all(_shared(s) for key in rest for s in key):
        return None
    left, found = add(wanted, rest, -1), []
    for (of,), times in sorted(free.items(), key=lambda each: -each[1]):
        number = {key: value // times for key, value in left.items() if value % times == 0 or not key}
        number = {key: value for key, value in number.items() if value}
        left = add(left, number, -times)
        others = [(other, t) for (other,), t in free.items() if other is not of]
        most = [loops.iterations(other) if isinstance(other, Loop) else None for other, _ in others]
        sure = (
            not rest and all(most) and sum(t * ((m or 1) - 1) for (_, t), m in zip(others, most, strict=True)) < times
        )
        found.append(_Number(of, number, -(-extent // times) if sure and extent else None))
    return None if left else found


def _is_there(each: _Number, kernel: Kernel, known: Facts) -> bool:
    """Whether there is a thread, or an iteration, of a number."""
    loop = isinstance(each.of, Loop)
    most = loops.iterations(each.of) if loop else kernel.block[_AXES.index(each.of)]
    if not most:
        return False
    if each.below is not None and each.below <= most:
        return True
    only = next(iter(next(iter(each.number), ())), None) if len(each.number) == 1 else None
    if isinstance(only, Loop) and each.number == {(only,): 1} and 0 < (loops.iterations(only) or 0) <= most:
        return True
    low = all(value >= 0 and _counted(key, {}) for key, value in each.number.items()) or each.below is not None
    return low and _holds(each.number, {(): most}, known)


def _shared(symbol: Any) -> bool:
    """Whether a number is the same for all threads of a block."""
    return uniform(symbol) if isinstance(symbol, Value) else symbol not in _AXES


def _for(condition: Comparison, at: By, known: Facts) -> bool:
    """Whether a comparison holds in the thread and iterations of these numbers."""
    symbols = {s for p in (condition.low, condition.high) for key in p for s in key} - set(at)
    inner = [loop.body for loop in at if isinstance(loop, Loop)]  # what is known there is of another iteration
    if not all(_shared(s) and not (isinstance(s, Value) and any(inside(s.block, b) for b in inner)) for s in symbols):
        return False
    low, high = (_with(p, at) for p in (condition.low, condition.high))
    if condition.unsigned and not all(v >= 0 and _counted(key, at) for key, v in condition.low.items()):
        return False  # what is below 0 would be large
    return _holds(low, high, known, condition.unsigned)


def _counted(key: tuple[Any, ...], at: By) -> bool:
    """Whether a product is at least 0: of numbers of threads and blocks, and of iterations."""
    return all(isinstance(s, Loop) or s in at or (isinstance(s, str) and "." in s) for s in key)


def _with(p: Poly, at: By) -> Poly:
    """A polynomial with others for numbers of threads and iterations."""
    found: Poly = {}
    for key, value in p.items():
        term: Poly = {(): value}
        for s in key:
            term = multiply(term, at.get(s, {(s,): 1}))
        found = add(found, term)
    return found


def _holds(low: Poly, high: Poly, known: Facts, unsigned: bool = False) -> bool:
    """Whether one is below the other, as a comparison says that is known."""
    room = add(high, low, -1)
    for each in known.below:
        if each.unsigned:  # its numbers may be below 0, and so large
            if unsigned and (each.low, each.high) == (low, high):
                return True
            continue
        for bound in _bounds(each):
            rest = add(room, add(bound, each.low, -1), -1)
            if rest.keys() <= {()} and rest.get((), 0) >= 0:
                return True
    return room.keys() <= {()} and room.get((), 0) >= 1


def _bounds(of: Comparison) -> list[Poly]:
    """What something is below; where that is the least of several numbers, each of them."""
    found, least = [of.high], affine.plain(of.operands[1])
    if least.op == "call" and least.attr == "min" and "unsigned" not in least.type:
        more = add(of.high, poly(of.operands[1]), -1)  # 1 where it may be equal
        found += [add(poly(a), more) for a in least.args]
    return found
