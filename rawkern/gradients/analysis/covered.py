"""Reads of a tile whose places the same iteration has set, though its stores stand under conditions.

In ``if (k + t < n) s[t] = x[k + t];`` thread t sets place t where its condition holds. A read of place p reads what the
iteration has set if the condition holds with p for t, as one of ``j < n - k`` around the read says. All that the
condition knows besides t has to be the same for all threads, and thread p has to be there.
"""

from __future__ import annotations

from rawkern.gradients.analysis import ownership
from rawkern.gradients.analysis.ownership import Comparison, Facts, Poly, add, multiply, poly
from rawkern.gradients.analysis.uniform import together, uniform
from rawkern.gradients.ir import Block, If, Kernel, Loop, Store, Value


def covered(read: Value, loop: Loop, kernel: Kernel) -> bool:
    """Whether the stores of an iteration set what a read means, in all threads that set it before the next barrier."""
    return together(kernel, loop.body) and _sets(loop.body, read, kernel)


def _sets(block: Block, read: Value, kernel: Kernel, under: tuple[tuple[Value, bool], ...] = ()) -> bool:
    """Whether what is done in a block sets the place of a read, if the conditions around hold with it for a thread."""
    for item in block.items:
        if isinstance(item, Store) and _set_by(item, read, kernel, under):
            return True
        if isinstance(item, If):
            then, other = ((item.condition, side) for side in (True, False))
            here = _sets(item.then, read, kernel, (*under, then)), _sets(item.other, read, kernel, (*under, other))
            if any(here) or (_sets(item.then, read, kernel, under) and _sets(item.other, read, kernel, under)):
                return True
    return False


def _set_by(store: Store, read: Value, kernel: Kernel, under: tuple[tuple[Value, bool], ...]) -> bool:
    """Whether a store sets the place of a read: in the thread whose place it is, under conditions that hold for it."""
    array, at = store.place.array, {}
    if store.place != read.attr or store.adds or len(store.index) != len(read.args):
        return False
    known = ownership.facts(read.block, read.order)
    for k, (own, wanted) in enumerate(zip(store.index, read.args, strict=True)):
        index, extent = poly(own), array.sizes[k] if k < len(array.sizes) else 0
        if index == (other := poly(wanted)) and index.keys() <= {()}:
            continue
        axis = next(iter(index))[0] if len(index) == 1 and next(iter(index)) else None
        if index != {(axis,): 1} or axis not in _AXES or axis in at:
            return False
        threads = kernel.block[_AXES.index(axis)]
        if not 0 < extent <= threads and not _holds(other, {(): threads}, known):
            return False
        at[axis] = other
    conditions = Facts([], {})
    for condition, side in under:
        ownership.learn(conditions, condition, side)
    return conditions.exact and all(_for(each, at, known) for each in conditions.below)


_AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


def _for(condition: Comparison, at: dict[str, Poly], known: Facts) -> bool:
    """Whether a comparison holds in the threads of these numbers."""
    symbols = {s for p in (condition.low, condition.high) for key in p for s in key} - set(at)
    if not all(uniform(s) if isinstance(s, Value) else s not in _AXES for s in symbols):
        return False
    low, high = (_with(p, at) for p in (condition.low, condition.high))
    if condition.unsigned and not all(v >= 0 and _counted(key, at) for key, v in condition.low.items()):
        return False  # what is below 0 would be large
    return _holds(low, high, known, condition.unsigned)


def _counted(key: tuple[object, ...], at: dict[str, Poly]) -> bool:
    """Whether a product is at least 0: of numbers of threads and blocks, and of iterations."""
    return all(isinstance(s, Loop) or s in at or (isinstance(s, str) and "." in s) for s in key)


def _with(p: Poly, at: dict[str, Poly]) -> Poly:
    """A polynomial with others for numbers of threads."""
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
    found, least = [of.high], ownership.plain(of.operands[1])
    if least.op == "call" and least.attr == "min" and "unsigned" not in least.type:
        more = add(of.high, poly(of.operands[1]), -1)  # 1 where it may be equal
        found += [add(poly(a), more) for a in least.args]
    return found
