"""Branches of the IR: both sides read from one state, and what differs after them merged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients.ir import Block, If, Value
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.memory import merge_stored, read, stored_on
from rawkern.gradients.reading.places import Pointer, Var, aggregate, one_array
from rawkern.gradients.reading.pointers import offset
from rawkern.gradients.reading.values import convert
from rawkern.gradients.types import Aggregate


def branch(ctx: Context, node: Any, condition: Value, then: Callable[[], None], other: Callable[[], None]) -> None:
    """An if: both sides from the same state, variables that differ after them merged."""
    if condition.const is not None:
        return then() if condition.const else other()
    made = If(node.start_point[0] + 1, ctx.block, condition=condition)
    made.then.parent = made.other.parent = made
    leaves = ctx.leaves()
    before, stored = [v.value for v in leaves], ctx.stored
    ctx.stored = dict(stored)
    ctx.within(made.then, then)
    first, first_stored = [v.value for v in leaves], stored_on(ctx, made.then)
    for var, value in zip(leaves, before, strict=True):
        var.value = value
    ctx.stored = dict(stored)
    ctx.within(made.other, other)
    ctx.block.items.append(made)
    merge_stored(ctx, made, first_stored, stored_on(ctx, made.other))
    for var, value in zip(leaves, first, strict=True):
        if not _same(value, var.value):
            _join(ctx, node, made, var, value)
    return None


def _same(a: Any, b: Any) -> bool:
    return a is b or a == b


def _join(ctx: Context, node: Any, made: If, var: Var, first: Any) -> None:
    """Give a variable the value of the side that was taken; none, where it has one on one side alone."""
    second = var.value
    a = _instead(ctx, made.then, first, second)
    b = _instead(ctx, made.other, second, first)
    var.value, var.apart = None, isinstance(a, Pointer) and isinstance(b, Pointer)
    if one_array(a, b):
        ends = [ctx.within(side, lambda p=p: offset(ctx, node, p)) for side, p in ((made.then, a), (made.other, b))]
        at = ctx.value(node, "long long", "result", attr=made)
        made.results.append((at, *ends))
        var.value = replace(a, offset=at)
    elif isinstance(a, Value) and isinstance(b, Value):
        var.value = ctx.value(node, a.type, "result", attr=made, name=var.name)
        made.results.append((var.value, a, b))


def _instead(ctx: Context, side: Block, value: Any, other: Any) -> Any:
    """What a variable without a value has on one side of a branch: nothing may read it there."""
    if value is not None or not isinstance(other, Value):
        return value
    return ctx.within(side, lambda: convert(ctx, other.line, ctx.integer(other.line, 0), other.type))


# Expressions ------------------------------------------------------------------------------------------------------


def alone(ctx: Context, block: Block, make: Any) -> tuple[Any, dict[Var, Any]]:
    """`within` for what may be left out when the kernel runs: also the variables that it gives new values."""
    leaves = ctx.leaves()
    before = [v.value for v in leaves]
    found = ctx.within(block, make)
    changed = {v: v.value for v, old in zip(leaves, before, strict=True) if v.value is not old}
    for var, old in zip(leaves, before, strict=True):
        var.value = old
    return found, changed


def change(ctx: Context, node: Any, made: If, then: dict[Var, Any], other: dict[Var, Any]) -> None:
    """Give variables that a side of a branch changes the value of the side that is taken."""
    for var in {**then, **other}:
        a, b = then.get(var, var.value), other.get(var, var.value)
        if _same(a, b):
            var.value = a
            continue
        if not isinstance(a, Value) or not isinstance(b, Value):
            raise ctx.refuse(node, f"{var.name} changes within ?:, && or ||", "write an if")
        var.value = ctx.value(node, a.type, "result", attr=made, name=var.name)
        made.results.append((var.value, a, b))


def merged(ctx: Context, node: Any, a: Any, b: Any, either: Any, within: Any) -> Any:
    """One of two values, pointers or aggregates; `either` makes one of two numbers, `within` calls on a side."""
    if isinstance(a, Value) and isinstance(b, Value):
        return either(a, b)
    if one_array(a, b):
        ends = [within(side, lambda p=p: offset(ctx, node, p)) for side, p in ((True, a), (False, b))]
        return replace(a, offset=either(*ends))
    if isinstance(a, Var) and isinstance(b, Var) and isinstance(a.type, Aggregate) and a.type == b.type:
        pairs = zip(a.leaves(), b.leaves(), strict=True)
        parts = iter([either(read(ctx, node, x), read(ctx, node, y)) for x, y in pairs])
        return aggregate("either", a.type, lambda *_: next(parts))
    raise ctx.refuse(node, f"{text_of(node)!r} chooses between what is not a number", "write an if")
