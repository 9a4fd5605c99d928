"""What holds of every kernel between two passes; a pass that breaks it has a bug."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rawkern.gradients.ir.nodes import (
    Array,
    Barrier,
    Block,
    Exit,
    If,
    Kernel,
    Loop,
    Place,
    Store,
    Value,
    children,
    index_of,
    operands,
    place_of,
)

#: How many operands a value has, by what it is; None: any number.
OPERANDS = {
    "const": 0, "param": 0, "special": 0, "unary": 1, "binary": 2, "cast": 1, "call": None, "select": 3, "load": None,
    "shfl": None, "reduce": 1, "phi": 0, "result": 0,
}  # fmt: skip


class MalformedError(AssertionError):
    """A kernel that is not well formed."""


def verify(kernel: Kernel) -> None:
    """Check that a kernel is well formed.

    Each item knows its block, each block its parent; `order` grows along the text; each value that is used was
    computed before, in the block of its use or one around it (it dominates the use); phis belong to the loop around;
    loads and stores name arrays of the kernel with as many indices as these have dimensions.

    Raises
    ------
    MalformedError
        With what is wrong, and the line of the kernel's source.
    """
    for problem in _Check(kernel).problems():
        raise MalformedError(f"{kernel.name}: {problem}")


class _Check:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.arrays = {*kernel.arrays.values(), *(a.whole for a in kernel.shared)}
        self.seen: set[Any] = set()
        self.defined: set[Value] = set()
        self.order = -1

    def problems(self) -> Iterator[str]:
        yield from self._block(self.kernel.body, None)

    def _block(self, block: Block, parent: Any) -> Iterator[str]:
        if block.parent is not parent:
            yield f"a block in {_where(parent)} has another parent"
        for item in block.items:
            if item in self.seen:
                yield f"{_where(item)} is in two places"
            self.seen.add(item)
            if item.block is not block:
                yield f"{_where(item)} names another block than the one it is in"
            if item.order <= self.order:
                yield f"{_where(item)} has the order {item.order}, after {self.order}"
            self.order = item.order
            yield from self._item(item)

    def _item(self, item: Any) -> Iterator[str]:
        if isinstance(item, Value):
            yield from self._value(item)
        elif isinstance(item, Store):
            yield from self._uses(item, operands(item))
            yield from self._access(item, item.place)
        elif isinstance(item, Exit):
            if item.block.parent is not None:
                yield f"{_where(item)} is not at the top of the kernel"
            yield from self._uses(item, (item.condition,))
        elif isinstance(item, If):
            yield from self._if(item)
        elif isinstance(item, Loop):
            yield from self._loop(item)
        elif not isinstance(item, Barrier):
            yield f"{_where(item)} is not an item of the IR"
        if isinstance(item, If | Loop) and item.last < max((each.order for each in _inner(item)), default=item.order):
            yield f"{_where(item)} ends at {item.last}, before its last item"

    def _value(self, v: Value) -> Iterator[str]:
        if v.op not in OPERANDS:
            yield f"{_where(v)} is a {v.op!r}, which the IR does not have"
        elif OPERANDS[v.op] not in (None, len(v.args)):
            yield f"{_where(v)} has {len(v.args)} operands, not {OPERANDS[v.op]}"
        if v.op == "result":
            pairs = v.attr.results if isinstance(v.attr, If) else [(c.result,) for c in v.attr.carried]
            if v.attr not in self.seen or not any(each[0] is v for each in pairs):
                yield f"{_where(v)} is not a result of what it names"
        yield from self._uses(v, operands(v))
        if v.op == "load":
            yield from self._access(v, v.attr)
        self.defined.add(v)

    def _if(self, item: If) -> Iterator[str]:
        yield from self._uses(item, (item.condition,))
        outer = set(self.defined)
        for side, block in enumerate(children(item), 1):
            self.defined = set(outer)
            yield from self._block(block, item)
            yield from self._uses(item, tuple(each[side] for each in item.results))
        self.defined = outer

    def _loop(self, item: Loop) -> Iterator[str]:
        yield from self._uses(item, tuple(c.init for c in item.carried))
        outer = set(self.defined)
        for c in item.carried:
            if c.phi.op != "phi" or c.phi.attr is not item:
                yield f"{_where(c.phi)} is carried by a loop, and not a phi of it"
            self.defined.add(c.phi)
        yield from self._block(item.test, item)
        yield from self._uses(item, (item.condition,))
        yield from self._block(item.body, item)
        yield from self._uses(item, tuple(c.next for c in item.carried))
        self.defined = outer

    def _uses(self, item: Any, values: tuple[Value, ...]) -> Iterator[str]:
        for v in values:
            if v not in self.defined and v.op not in ("const", "param", "special"):
                yield f"{_where(item)} uses {_where(v)}, which was not computed before"

    def _access(self, item: Any, place: Any) -> Iterator[str]:
        if not isinstance(place, Place):
            yield f"{_where(item)} names no place"
            return
        array: Array = place.array
        if array.whole not in self.arrays:
            yield f"{_where(item)} is of {array.name}, which the kernel does not have"
        if len(index_of(item)) != max(1, len(array.sizes)) and array.sizes:
            yield f"{_where(item)} has {len(index_of(item))} indices, and {array.name} {len(array.sizes)} dimensions"


def _inner(item: If | Loop) -> Iterator[Any]:
    for block in children(item):
        yield from block.items


def _where(item: Any) -> str:
    kind = getattr(item, "op", type(item).__name__.lower())
    place = place_of(item)
    of = f" of {place.array.name}" if place is not None else f" {item.name}" if getattr(item, "name", None) else ""
    return f"the {kind}{of} of line {getattr(item, 'line', '?')}"
