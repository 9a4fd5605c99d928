"""Taping: arrays in global memory of which a thread overwrites what it has read, in a loop or on several paths.

What such a load reads is gone when the reverse needs it. So the backward first runs the kernel again on a copy of the
array as it was before, and keeps what each execution of the load reads on a tape. The numbers of the iterations around
say which execution it is, so the reverse may read the tape as often as it likes and in any order.

The gradients need one array alone, if an element is of one thread: the reverse of a store takes what its element has
and clears it, that of a load adds to it, from the last to the first of what the thread did.
"""

from __future__ import annotations

from dataclasses import replace

from rawkern.gradients import types
from rawkern.gradients.analysis import loops
from rawkern.gradients.index.injective import injective
from rawkern.gradients.index.scev import induction, loops_around
from rawkern.gradients.index.trips import trips
from rawkern.gradients.ir import Array, Carried, Kernel, Loop, Value, renumber
from rawkern.gradients.passes.in_place import reads_before


def taped(kernel: Kernel, assume: bool) -> Kernel:
    """The kernel with such loads on a tape; it is changed in place. `assume`: for some launches alone."""
    taken = {n for n, *_ in kernel.params} | {a.name for a in kernel.shared}
    for name, kind, pointer in list(kernel.params):
        before = f"{name}_before"
        reads = _reads(kernel, kernel.arrays[name], assume) if pointer and before not in taken else []
        for load in reads:
            load.tape = tuple(map(_number, reversed(loops_around(load.block))))
        if reads:
            kernel.arrays[before] = replace(kernel.arrays[name], name=before, const=True)
            kernel.params.append((before, kind, True))
            kernel.before[before] = name
            kernel.taped += (name,)
    renumber(kernel.body)
    return kernel


def _reads(kernel: Kernel, array: Array, assume: bool) -> list[Value]:
    """The loads of an array that a tape has to keep and can; none if all read what was there before the kernel."""
    stores, reads = loops.stores(kernel.body, array), loops.reads(kernel.body, array)
    if not stores or not reads or array.accessor or not all(map(_counts, reads)):
        return []
    if len(reads_before(kernel, array, assume)) == len(reads):
        return []
    own = injective(kernel, [*reads, *stores], assumed=kernel.assumed if assume else None)
    return reads if own is not None else []


def _counts(load: Value) -> bool:
    """Whether a number is read, and it is known how often at most."""
    around = loops_around(load.block)
    again = any(load.block is loop.test for loop in around)  # a condition is computed once more in the reverse
    return types.is_float(load.type) and not again and all(trips(loop) is not None for loop in around)


def _number(loop: Loop) -> Value:
    """The number of an iteration: a variable that counts from 0 by 1, which the loop gets if it has none."""
    steps = induction(loop).items()
    found = next((phi for phi, (start, step) in steps if (start.const, step.const) == (0, 1)), None)
    return _counter(loop) if found is None else found


def _counter(loop: Loop) -> Value:
    """A new variable that counts the iterations of a loop."""
    start, one = (Value(loop.line, block, attr=str(n), const=n) for n, block in ((0, loop.block), (1, loop.body)))
    phi = Value(loop.line, loop.body, op="phi", attr=loop, name="k")
    after = Value(loop.line, loop.body, op="binary", args=(phi, one), attr="+", name="k")
    result = Value(loop.line, loop.block, op="result", attr=loop, name="k")
    loop.carried.append(Carried(phi, start, after, result))
    loop.body.items += [one, after]
    at = next(k for k, item in enumerate(loop.block.items) if item is loop)
    loop.block.items[at + 1 : at + 1] = [result]
    loop.block.items.insert(at, start)
    return phi
