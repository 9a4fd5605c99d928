"""Arrays of which several blocks read the same elements in a loop over tiles: they can deal its iterations out.

In ``ta[ty][tx] = a[r * n + k + tx]`` (r of blockIdx.y) all blocks along x read the same elements in an iteration of k,
so each would add to their gradients. An iteration of a loop that carries on sums alone can be computed by itself, as
any block has it. So each block takes iterations of its own, computes them as every block along x has them, and adds up.
Other reads of the array, such as that of a thread's own element before the loop, are left to the rest of the backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rawkern.gradients.analysis import loops, privatizable
from rawkern.gradients.analysis.activity import Activity
from rawkern.gradients.analysis.recompute_slice import TRIVIAL
from rawkern.gradients.index import scev
from rawkern.gradients.index.uniform import uniform
from rawkern.gradients.ir import (
    COLLECTIVE,
    Array,
    Barrier,
    Exit,
    Kernel,
    Loop,
    Store,
    Value,
    children,
    computed_in,
    made_of,
    walk,
)

LEAST = 8  # iterations of a loop in the loop, for which it pays to load tiles once more


@dataclass(frozen=True)
class Redistribution:
    """Arrays, and the axis of the blocks; the loop and its reads by their order, which is that of any copy."""

    arrays: tuple[str, ...]
    axis: str
    loop: int
    reads: frozenset[int]


def redistributions(
    kernel: Kernel, active: Activity, wrt: tuple[str, ...], plain: Callable[[Store], bool]
) -> list[Redistribution]:
    """What blocks may be dealt. `plain`: whether the gradient of what a store sets can be read any number of times."""
    loop = _over_tiles(kernel)
    if loop is None or not _each_alone(kernel, loop, active, plain):
        return []
    several = [axis for axis, blocks in zip("xyz", kernel.grid, strict=True) if blocks != 1]
    axes = [axis for axis in several if _alike(loop, f"blockIdx.{axis}")]
    found: dict[str, list[tuple[Array, list[Value]]]] = {}
    for array in (kernel.arrays[n] for n in wrt if n in kernel.arrays):
        read = [r for r in loops.reads(kernel.body, array) if r in active.values]
        fits = {a: _same_along(a, loop, read) for a in axes}
        axis = max(axes, key=lambda a: len(fits[a]), default="")
        if axis and fits[axis]:
            found.setdefault(axis, []).append((array, fits[axis]))
    return [
        Redistribution(
            tuple(a.name for a, _ in each), axis, loop.order, frozenset(r.order for _, rs in each for r in rs)
        )
        for axis, each in found.items()
    ]


def _same_along(axis: str, loop: Loop, read: list[Value]) -> list[Value]:
    """The reads in a loop, and in none within it, of elements that are the same for all blocks along an axis."""
    inner = [r for r in read if scev.loops_around(r.block) == [loop]]
    return [r for r in inner if not any(_depends(i, f"blockIdx.{axis}") for i in r.args)]


def _over_tiles(kernel: Kernel) -> Loop | None:
    """The loop in which all happens that threads do together."""
    found = [
        i
        for i in kernel.body.items
        if isinstance(i, Exit) or any(map(_together, (i, *(x for block in children(i) for x in walk(block)))))
    ]
    loop = found[0] if len(found) == 1 else None
    if not isinstance(loop, Loop) or not kernel.shared or any(a.dynamic or a.private for a in kernel.shared):
        return None
    inner = [scev.iterations(i) or 0 for i in loop.body.items if isinstance(i, Loop)]
    synced = any(isinstance(i, Barrier) and i.text == "__syncthreads()" for i in loop.body.items)
    return loop if synced and max(inner, default=0) >= LEAST else None


def _together(item: Any) -> bool:
    if isinstance(item, Store):
        return item.place.array.shared
    return isinstance(item, Loop | Barrier) or (isinstance(item, Value) and (item.op in COLLECTIVE or _tile(item)))


def _tile(v: Value) -> bool:
    return v.op == "load" and v.attr.array.shared


def _each_alone(kernel: Kernel, loop: Loop, active: Activity, plain: Callable[[Store], bool]) -> bool:
    """Whether any iteration can be computed by itself, as any block has it."""
    items, uses = list(walk(kernel.body)), loops.totals(kernel)
    given = [i for i in items if isinstance(i, Store) and i.place.array in active.arrays and not i.place.array.shared]
    steps = [by for _, by in scev.induction(loop).values()]
    return (
        all(s.adds or plain(s) for s in given)
        and _tiles_are_fresh(kernel, loop, items)
        and privatizable.any_order(loop, kernel, active.arrays, plain)
        and all(loops.is_sum(c, loop, uses) for c in loop.carried if c.phi in active.values)
        and all(by.op in TRIVIAL or not computed_in(by, loop) for by in steps)
    )


def _tiles_are_fresh(kernel: Kernel, loop: Loop, items: list[Any]) -> bool:
    """Whether each iteration sets what it reads of shared memory."""
    tiles = {i.place.array for i in items if isinstance(i, Store) and i.place.array.shared}
    read = {i.attr.array for i in items if isinstance(i, Value) and _tile(i)}
    return read <= tiles and all(privatizable.fresh(a, loop, kernel) for a in tiles)


def _alike(loop: Loop, what: str) -> bool:
    """Whether blocks that differ in this alone run a loop equally often, all threads of a block together."""
    if scev.iterations(loop) is not None:
        return True
    found = scev.bounds(loop)
    if found is None:
        return False
    values = (found[1], *scev.induction(loop)[found[0].phi])
    return all(uniform(v) and not _depends(v, what) for v in values)


def _depends(value: Value, what: str) -> bool:
    """Whether a value may depend on a special one."""

    def ask(v: Value) -> bool | tuple[Value, ...]:
        return v.attr != what if v.op == "special" else v.op not in ("load", "result", *COLLECTIVE) and v.args

    return not made_of(value, ask)
