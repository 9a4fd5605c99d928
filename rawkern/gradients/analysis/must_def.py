"""Must-def: reads of a tile whose places the same iteration has set, though its stores stand under conditions.

In ``if (k + t < n) s[t] = x[k + t];`` thread t sets place t where its condition holds. A read of place p reads what the
iteration has set if the condition holds with p for t, as one of ``j < n - k`` around the read says. All that the
condition knows besides t has to be the same for all threads, and thread p has to be there. So it is with loops in which
a thread sets several places, as ``s[t * 8 + c]``: then a read says the iteration, too, and all threads come to it.
"""

from __future__ import annotations

from rawkern.gradients.index.covers import By, setter
from rawkern.gradients.index.uniform import together
from rawkern.gradients.ir import Block, If, Kernel, Loop, Store, Value


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
            by = setter(kernel, item, read, under, within)
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
