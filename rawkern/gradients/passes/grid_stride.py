"""Kernels whose threads go through an array in strides of the whole grid: as if each place had a thread of its own."""

from __future__ import annotations

from typing import Any

from rawkern.gradients.analysis.gather import places
from rawkern.gradients.index import scev
from rawkern.gradients.index.affine import constant, poly, settled, symbol
from rawkern.gradients.ir import Block, Carried, If, Kernel, Loop, Value, operands, renumber, walk


def in_strides(kernel: Kernel) -> Carried | None:
    """The variable of ``for (i = place; i < n; i += threads of the grid)``, if that is all that a kernel does.

    A place runs through all numbers from 0, each in one iteration of one thread.
    """
    found = [i for i in kernel.body.items if not isinstance(i, Value)]
    if len(found) != 1 or not isinstance(found[0], Loop) or set(places(kernel)) != {"x"}:
        return None
    loop, place = found[0], places(kernel)["x"]
    bound, steps = scev.bounds(loop), scev.induction(loop)
    threads = (constant(1) if kernel.grid[0] == 1 else symbol("gridDim.x")) * kernel.block[0]
    if bound is None or len(loop.carried) != 1 or not settled(bound[1]):
        return None
    c = bound[0]
    start, by = map(poly, steps[c.phi])
    more = _uses_threads(loop, c.phi) or c.result in _used(kernel.body)
    return c if (start, by) == (place, threads) and not more else None


def without_grid_stride(kernel: Kernel) -> Kernel:
    """A kernel `in_strides` with an ``if (i < n)`` for each place instead; it is changed in place."""
    c = in_strides(kernel)
    assert c is not None
    loop: Any = c.phi.attr
    c.phi.op, c.phi.args, c.phi.attr, c.phi.block, c.phi.order = "cast", (c.init,), None, kernel.body, loop.order
    branch = If(loop.line, kernel.body, loop.order, condition=loop.condition, last=loop.last)
    branch.then, branch.other = loop.body, Block([], branch)
    branch.then.parent = branch
    for item in loop.test.items:
        item.block = kernel.body
    at = kernel.body.items.index(loop)
    kernel.body.items[at : at + 1] = [c.phi, *loop.test.items, branch]
    kernel.body.items.remove(c.result)
    renumber(kernel.body)
    return kernel


def _used(block: Block) -> set[Value]:
    return {v for item in walk(block) for v in operands(item)}


def _uses_threads(loop: Loop, phi: Value) -> bool:
    """Whether an iteration knows more of its thread than its place."""
    left = list(_used(loop.body) | _used(loop.test) | {loop.condition})
    seen = {phi, *left}
    while left:
        v = left.pop()
        if v is phi:
            continue
        if v.op == "special" and v.attr.startswith(("threadIdx", "blockIdx")):
            return True
        left += [a for a in v.args if a not in seen]
        seen.update(v.args)
    return False
