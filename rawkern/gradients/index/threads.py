"""The digits that tell threads apart, with their extents: threadIdx and blockIdx, or a thread's group and lane."""

from __future__ import annotations

from typing import Any

from rawkern.gradients.index.affine import GROUP, LANE, Poly, part_of_thread, symbol
from rawkern.gradients.ir import Block, Kernel, Value, walk


def threads(kernel: Kernel, within_block: bool) -> dict[str, int | None]:
    """The digits that tell threads apart, with their extents; None where the launch decides."""
    found: dict[str, int | None] = {f"threadIdx.{a}": e for a, e in zip("xyz", kernel.block, strict=True) if e != 1}
    if not within_block:
        found |= {f"blockIdx.{a}": e for a, e in zip("xyz", kernel.grid, strict=True) if e != 1}
    return found


def by_groups(kernel: Kernel, digits: dict[str, int | None]) -> dict[str, int | None]:
    """With a thread's group and its lane for its place along x, where the kernel has groups."""
    if not kernel.group:
        return digits
    found = {d: extent for d, extent in digits.items() if d != "threadIdx.x"}
    return found | {GROUP: kernel.block[0] // kernel.group, LANE: kernel.group}


def group_of(body: Block, threads: int) -> int:
    """How many threads the groups have that a kernel splits a block into; 0 if it does not, or in several ways.

    They may be all of them: of a block that is one of the groups of a launch.
    """
    parts = [part for item in walk(body) if isinstance(item, Value) and (part := part_of_thread(item)) is not None]
    ways = [{by for _, by, others in parts if bool(others) == of_launch} for of_launch in (False, True)]
    for way in ways:
        found = {by for by in way if by < threads and threads % by == 0}
        if found:
            return found.pop() if len(found) == 1 else 0
    return threads if any(threads in way for way in ways) else 0


def grouped(p: Poly, group: int) -> Poly:
    """A polynomial in which a thread is told by its group and its number there."""
    if not group:
        return p

    def new(s: Any) -> Poly | None:
        if s == "threadIdx.x":
            return symbol(GROUP) * group + symbol(LANE)
        part = part_of_thread(s)
        return symbol(part[0]) if part is not None and part[1] == group else None

    return p.replaced(new)
