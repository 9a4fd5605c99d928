"""What a backward has no use for, taken out of a kernel: what only goes to outputs that have no gradient."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from rawkern.gradients.ir import Barrier, Block, Exit, If, Kernel, Loop, Store, Value, children, operands, walk


def without_dead_values(kernel: Kernel, outputs: Set[str]) -> Kernel:
    """The kernel with only what these outputs depend on, and the barriers; it is changed in place."""
    stores: dict[Any, list[Store]] = {}
    left: list[Any] = []
    for item in walk(kernel.body):
        if isinstance(item, Store):
            stores.setdefault(item.place.array, []).append(item)
        if isinstance(item, Exit | Barrier) or (isinstance(item, Store) and item.place.array.name in outputs):
            left.append(item)
    live: set[Any] = set()
    while left:
        item = left.pop()
        if item not in live:
            live.add(item)
            left += _needs(item)
            if isinstance(item, Value) and item.op == "load":
                left += stores.get(item.attr.array, ())
    _keep(kernel.body, live)
    return kernel


def _needs(item: Any) -> list[Any]:
    """What an item cannot do without: what it uses, and the loop or branch it is in."""
    found = [item.block.parent] if item.block is not None and item.block.parent is not None else []
    if isinstance(item, If | Loop):
        return [*found, item.condition]
    if isinstance(item, Value) and item.op in ("phi", "result"):
        around: Any = item.attr
        if isinstance(around, If):
            return [*found, around, *next((a, b) for r, a, b in around.results if r is item)]
        carried = next(c for c in around.carried if item in (c.phi, c.result))
        return [*found, around, carried.phi, carried.result, carried.init, carried.next]
    return [*found, *operands(item)]


def _keep(block: Block, live: Set[Any]) -> None:
    block.items[:] = [item for item in block.items if item in live]
    for item in block.items:
        if isinstance(item, If):
            item.results = [each for each in item.results if each[0] in live]
        elif isinstance(item, Loop):
            item.carried = [c for c in item.carried if c.phi in live]
        for inner in children(item):
            _keep(inner, live)
