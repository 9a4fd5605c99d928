"""The tile rule: whether what an iteration reads of a shared array was written in it, so that any order is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.gradients.analysis import value_numbering
from rawkern.gradients.analysis.loops import reads, stores
from rawkern.gradients.analysis.must_def import covered
from rawkern.gradients.index.answers import kept
from rawkern.gradients.index.injective import injective
from rawkern.gradients.index.scev import loops_around
from rawkern.gradients.index.uniform import uniform
from rawkern.gradients.ir import (
    Access,
    Array,
    Barrier,
    Block,
    If,
    Kernel,
    Loop,
    Store,
    children,
    inside,
    place_of,
    walk,
)


def _written(store: Store, loop: Loop | None, body: Block | None = None) -> Any:
    """The places that a store writes, as a key; None where they may change from one iteration to the next.

    `body`: the block of the loop in which whatever is done with the array is done, if anything is.
    """
    parts: list[Any] = [store.place.fields]
    for each in store.index:
        parts.append(value_numbering.key(each, loop))
    block: Block | None = store.block
    while block is not None and block is not body and block.parent is not None and block.parent is not loop:
        parent = block.parent
        if isinstance(parent, If):
            parts.append((block is parent.then, value_numbering.key(parent.condition, loop)))
            if parts[-1][1] is None:
                return None
        elif loop is not None and value_numbering.key_of_loop(parent, loop) is None:
            return None
        elif loop is None:
            break
        block = parent.block
    return None if None in parts or store.adds else tuple(parts)


@kept
def fresh(array: Array, loop: Loop, kernel: Kernel) -> bool:
    """The tile rule: whether what an iteration reads of a shared array was written in it, or never in the loop.

    All its stores write the same places in each iteration, or where its reads read; a barrier, which all threads
    reach, and then all reads follow them. No barrier is needed where each element is one thread's own.
    """
    inner, later = stores(loop.body, array), reads(loop.body, array)
    body = _together(loop, [*inner, *later])
    if any(_written(s, loop, body) is None for s in inner) and not all(covered(r, body, kernel) for r in later):
        return False
    last = max(s.order for s in inner)
    read = [r.order for r in later]
    between = [b for b in body.items if isinstance(b, Barrier) and b.text == "__syncthreads()" and b.order > last]
    if not read or any(b.order < min(read) for b in between):
        return True
    return last < min(read) and own(kernel, [*inner, *later])


def _together(loop: Loop, accesses: Sequence[Access]) -> Block:
    """The innermost block of an iteration, once in it at most, that holds all of these."""
    body = loop.body
    while True:
        inner = [s for i in body.items if isinstance(i, If) for s in children(i)]
        holds = [s for s in inner if all(inside(a.block, s) for a in accesses)]
        if not holds:
            return body
        body = holds[0]


def own(kernel: Kernel, accesses: Sequence[Access]) -> bool:
    """Whether of a shared array's elements each is read and written by one thread of a block alone."""
    if all(place.array.private for i in accesses if (place := place_of(i)) is not None):
        return True
    return injective(kernel, accesses, within_block=True) is not None


@kept
def same_places(array: Array, loop: Loop, kernel: Kernel) -> bool:
    """Whether all stores to a shared array write the same places; of each field, and the loop sets all of those."""
    found = {_written(s, next(iter(loops_around(s.block)), None)) for s in stores(kernel.body, array)}
    if not found or None in found:
        return False
    here = {s.place.fields for s in stores(loop.body, array)}
    return sorted(here) == sorted(fields for fields, *_ in found)


def any_order(loop: Loop, kernel: Kernel, active: set[Array], injective: Any) -> bool:
    """Whether what the loop does to memory lets the iterations of its backward run in any order."""
    for array in {i.place.array for i in walk(loop.body) if isinstance(i, Store) and i.place.array.shared} & active:
        if not fresh(array, loop, kernel):
            return False
        for read in reads(kernel.body, array):
            if inside(read.block, loop.body):
                continue
            around = next((each for each in loops_around(read.block) if stores(each.body, array)), None)
            if around is None or inside(loop.block, around.body) or not fresh(array, around, kernel):
                return False
    return all(
        i.place.array.name not in kernel.taped and (i.adds or injective(i))
        for i in walk(loop.body)
        if isinstance(i, Store) and not i.place.array.shared and i.place.array in active
    )


def _prefetched(inner: Sequence[Store], later: Sequence[Access]) -> bool:
    """Whether iterations set other places than they read, as those do that load the tile of the next one."""
    if not inner or not later:
        return False
    which = {i.index[0] if isinstance(i, Store) else i.args[0] for i in (*inner, *later)}
    parts = which if len(inner[0].place.array.sizes) > 1 and all(map(uniform, which)) else set()
    return min(s.order for s in inner) > max(r.order for r in later) or {s.index[0] for s in inner} < parts


@kept
def changes(array: Array, loop: Loop, kernel: Kernel) -> bool:
    """Whether iterations of a loop read of an array what those before them have written."""
    return bool(stores(loop.body, array)) and not fresh(array, loop, kernel)


@kept
def late(array: Array, loop: Loop, kernel: Kernel) -> tuple[str, str] | None:
    """Why a shared array cannot be read again in the loop's backward, and what to do; None where it can."""
    inner = stores(loop.body, array)
    way_out = "make the number of iterations a constant of at most 64, or use another array"
    if inner and not fresh(array, loop, kernel):
        later = reads(loop.body, array)
        body = _together(loop, [*inner, *later])
        if _prefetched(inner, later):
            way_out = (
                f"set {array.name} in the iteration that reads it, before a __syncthreads(), not in the one before; "
                f"or {way_out}"
            )
        elif any(s.block is not body and isinstance(s.block.parent, If) for s in inner):
            way_out = (
                f"set {array.name} in all threads: in place of an if, load from an index that is clamped, as "
                f"x[min(k, n - 1)]; or {way_out}"
            )
        return f"what iterations read of {array.name} may be of another iteration", way_out
    if any(s.order > loop.last for s in stores(kernel.body, array)) and not (
        inner and same_places(array, loop, kernel)
    ):
        return f"{array.name} is written again after the loop that reads it", way_out
    return None
