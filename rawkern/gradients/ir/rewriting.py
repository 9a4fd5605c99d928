"""What passes do to the IR: copy it, replace uses of values, renumber the items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rawkern.gradients.ir.nodes import Block, Carried, Exit, Function, If, Item, Kernel, Loop, Value, children

_CHANGED = {*Item.__subclasses__(), Block, Carried, Function}  # what passes change
_SHARED = {str, int, type(None)}  # most of what there is


def clone(kernel: Kernel) -> Kernel:
    """A deep copy, which passes may change; what is frozen (types, arrays, places) is shared."""
    copies: dict[Any, Any] = {}
    left: list[Any] = []

    def copied(x: Any) -> Any:
        kind = type(x)
        if kind in _CHANGED:
            if x not in copies:
                copies[x] = object.__new__(kind)
                left.append(x)
            return copies[x]
        if kind in (tuple, list):
            return kind(map(copied, x))
        return {copied(k): copied(v) for k, v in x.items()} if kind is dict else x

    made = replace(kernel, **{name: copied(x) for name, x in vars(kernel).items()})
    while left:  # not by recursion: values may be made of one another thousands of times over
        x = left.pop()
        found = vars(copies[x])
        for name, v in vars(x).items():
            found[name] = v if type(v) in _SHARED else copied(v)
    return made


def substitute(items: Sequence[Any], drop: dict[Value, Value]) -> None:
    """Replace uses of values by other values, in these items."""

    def new(value: Value) -> Value:
        while value in drop:
            value = drop[value]
        return value

    for item in items:
        if isinstance(item, Value):
            item.args = tuple(map(new, item.args))
            item.tape = item.tape and tuple(map(new, item.tape))
        elif isinstance(item, Loop):
            for c in item.carried:
                c.init, c.next = new(c.init), new(c.next)
        elif isinstance(item, If):
            item.results = [(r, new(a), new(b)) for r, a, b in item.results]
        elif hasattr(item, "index"):
            item.index, item.value = tuple(map(new, item.index)), new(item.value)
        if isinstance(item, If | Loop | Exit):
            item.condition = new(item.condition)


def renumber(block: Block, start: int = 0) -> int:
    """Set `order` and `last` of all items by where they stand."""
    for item in block.items:
        item.order = start = start + 1
        for inner in children(item):
            start = renumber(inner, start)
        if isinstance(item, If | Loop):
            item.last = start
    return start
