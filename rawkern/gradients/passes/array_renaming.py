"""Shared memory whose threads overwrite what each of them has there, as ``s[t * 8 + k] = expf(s[t * 8 + k] - m)`` does.

A backward needs what was there before. Where each element is one thread's own until the last store, and all stores go
through the same elements one after another, what each of them leaves is an array of its own: as if the kernel had
stored to another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rawkern.gradients.analysis.privatizable import own
from rawkern.gradients.analysis.value_numbering import reach
from rawkern.gradients.index.affine import poly
from rawkern.gradients.index.ranges import bounds
from rawkern.gradients.ir import (
    Access,
    Array,
    Block,
    Kernel,
    Loop,
    Store,
    Value,
    index_of,
    inside,
    place_of,
    renumber,
)
from rawkern.gradients.passes.memory_partition import move, shared_accesses


def with_renamed_arrays(kernel: Kernel) -> Kernel:
    """The kernel with an array for each time that such elements are set; it is changed in place."""
    found = shared_accesses(kernel)
    for array, accesses in found.items():
        stores = [i for i in accesses if isinstance(i, Store)]
        versions = _versions(kernel, accesses, stores) if len(stores) > 1 else None
        room = _room(kernel, array, accesses, sum(a.whole == array.whole for a in found) == 1)
        if versions is not None and room is not None:
            for k in range(len(stores) - 1):  # the last stays as it is, for reads after it
                _moved(kernel, array, [i for i in accesses if versions[i] == k], *room)
    renumber(kernel.body)
    return kernel


def _versions(kernel: Kernel, accesses: Sequence[Access], stores: Sequence[Store]) -> dict[Access, int] | None:
    """Which of the stores each access means; None where that is not certain."""
    block, places = _common(stores), {reach(s) for s in stores}
    fields = {place.fields for i in accesses if (place := place_of(i)) is not None}
    sweeps = [_within(s, block) for s in stores]
    if len(places) != 1 or None in places or len(fields) != 1 or not all(map(_swept, stores, sweeps)):
        return None
    found: dict[Access, int] = {s: k for k, s in enumerate(stores)}
    for load in (i for i in accesses if i not in found):
        version = _version(load, stores, block, sweeps, reach(load) in places)
        if version is None:
            return None
        found[load] = version
    # What the last store leaves is what there was after it anyway, so others may read that.
    before = [i for i, k in found.items() if k < len(stores) - 1]
    return found if own(kernel, [*before, stores[-1]]) else None


def _version(load: Access, stores: Sequence[Store], block: Block, sweeps: Sequence[Any], same: bool) -> int | None:
    """Which of the stores a load means; `same`: it is of the thread's own elements."""
    version, within = sum(s.order < load.order for s in stores) - 1, inside(load.block, block)
    if version == len(stores) - 1:
        return version if same or not (within and _within(load, block) in sweeps) else None
    return version if version >= 0 and same and within else None


def _swept(store: Store, around: Any) -> bool:
    """Whether a store sets, and is alone or sets an element of its own in each iteration of a loop."""
    loop = isinstance(around, Loop) and store.block is around.body and _once(store, around)
    return not store.adds and (store is around or loop)


def _common(stores: Sequence[Store]) -> Block:
    """The innermost block around all of them."""
    block = stores[0].block
    while not all(inside(s.block, block) for s in stores) or (
        isinstance(block.parent, Loop) and all(s.block is block and _once(s, block.parent) for s in stores)
    ):
        assert block.parent is not None
        block = block.parent.block
    return block


def _once(store: Store, loop: Loop) -> bool:
    """Whether no two iterations store to the same element."""
    return any((loop,) in p and not any(loop in key for key in p if key != (loop,)) for p in map(poly, store.index))


def _within(item: Any, block: Block) -> Any:
    """The item of a block that an item lies in."""
    while item.block is not block:
        item = item.block.parent
    return item


def _room(kernel: Kernel, array: Array, accesses: Sequence[Access], alone: bool) -> tuple[int, int] | None:
    """Where a part of shared memory begins, and its size; 0 where it is an array by itself; None if not known."""
    if alone and not array.dynamic:
        return 0, 0
    lows, highs = zip(*(bounds(kernel, each) for each in accesses), strict=True)
    low, high = min(lows), max(highs)
    return (int(low), int(high - low) + 1) if -math.inf < low and high < math.inf else None


def _moved(kernel: Kernel, array: Array, chosen: Sequence[Access], start: int, size: int) -> None:
    """Let these accesses mean an array of their own."""
    taken = {a.name for a in kernel.shared} | {n for n, *_ in kernel.params} | {*kernel.functions, *kernel.structs}
    names = (f"{array.name}_before{f'_{k}' if k else ''}" for k in itertools.chain((0,), itertools.count(2)))
    name = next(n for n in names if n not in taken)
    apart = size > 0
    new = replace(array, name=name, region=0, **({"sizes": (size,), "dynamic": False} if apart else {}))
    kernel.shared.append(new)
    for item in chosen:
        move(item, new, (_behind(item, index_of(item)[0], start),) if apart else None)


def _behind(item: Access, index: Value, start: int) -> Value:
    """An index less a number."""
    if start == 0 or (index.op == "binary" and index.attr == "+" and index.args[0].const == start):
        return index.args[1] if start else index
    number = Value(item.line, item.block, type="int", op="const", attr=str(start), const=start)
    found = Value(item.line, item.block, type=index.type, op="binary", args=(index, number), attr="-")
    item.block.items[item.block.items.index(item) : 0] = [found]
    return found
