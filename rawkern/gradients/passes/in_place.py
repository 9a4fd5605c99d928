"""Arrays that a kernel overwrites in place: what it read of one before counts as another array, ``y_before`` of ``y``.

That is right where an element is touched by one thread alone, which reads it before it first sets it: then no read sees
what has been set. What the thread reads afterwards is left, for `forwarding` to follow.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rawkern.gradients.analysis import loops
from rawkern.gradients.index.injective import injective
from rawkern.gradients.index.scev import loops_around
from rawkern.gradients.ir import Array, Kernel, Place, Store, Value, substitute, walk


def unaliased(kernel: Kernel, assume: bool) -> Kernel:
    """The kernel with such arrays as two; it is changed in place. With `assume`, it may be right for some launches."""
    taken = {n for n, *_ in kernel.params} | {a.name for a in kernel.shared}
    for name, kind, pointer in list(kernel.params):
        if not pointer or f"{name}_before" in taken or name in kernel.taped:
            continue
        before = replace(kernel.arrays[name], name=f"{name}_before", const=True)
        reads = reads_before(kernel, kernel.arrays[name], assume)
        if reads:
            _renamed(kernel, reads, before)
            kernel.arrays[before.name] = before
            kernel.params.append((before.name, kind, True))
            kernel.before[before.name] = name
    return kernel


def reads_before(kernel: Kernel, array: Array, assume: bool) -> list[Value]:
    """The reads of what an array was before; none if it is not certain that nothing has been set then."""
    stores = loops.stores(kernel.body, array)
    first = min((s.order for s in stores), default=0)
    reads = [r for r in loops.reads(kernel.body, array) if r.order < first]
    return reads if reads and _alone(kernel, reads, stores, assume) else []


def _renamed(kernel: Kernel, reads: list[Value], before: Array) -> None:
    """Let reads be of another array; those that are alike become one."""
    alike: dict[Any, Value] = {}
    drop: dict[Value, Value] = {}
    for r in reads:
        r.attr = Place(before, r.attr.fields)
        one = alike.setdefault((r.attr, r.args, r.block), r)
        if one is not r:
            r.block.items.remove(r)
            drop[r] = one
    substitute(list(walk(kernel.body)), drop)


def mixed(kernel: Kernel, before: str) -> bool:
    """Whether some of what an array was before is computed with again after stores to it.

    Then the gradient of an element has parts already when the reverse comes to a store, which must not clear it.
    """
    if kernel.before[before] in kernel.taped:
        return True
    first = min(s.order for s in loops.stores(kernel.body, kernel.arrays[kernel.before[before]]))
    return any(r.order > first for r in loops.reads(kernel.body, kernel.arrays[before]))


def _alone(kernel: Kernel, reads: list[Value], stores: list[Store], assume: bool) -> bool:
    """Whether each element is of one thread; and in a loop with reads and stores, of one iteration."""
    every, assumed = [*reads, *stores], kernel.assumed if assume else None
    if any(s.adds for s in stores) or injective(kernel, every, assumed=assumed) is None:
        return False
    shared = {loop for r in reads for loop in loops_around(r.block)} & {
        loop for s in stores for loop in loops_around(s.block)
    }
    within = [[i for i in every if loop in loops_around(i.block)] for loop in shared]
    return all(injective(kernel, each, iterations=True, assumed=assumed) is not None for each in within)
