"""Assignments, also with an operator, and ``++`` and ``--``."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.handlers import expressions
from rawkern.gradients.reading.memory import assign, computed, read, write
from rawkern.gradients.reading.methods import operated
from rawkern.gradients.reading.objects import made_of
from rawkern.gradients.reading.order import assigned_to, right_first
from rawkern.gradients.reading.places import Cell, Given, Pointer, Var
from rawkern.gradients.reading.pointers import advance
from rawkern.gradients.reading.values import binary, convert
from rawkern.gradients.types import Aggregate


@expressions("assignment_expression")
def assignment_expression(ctx: Context, node: Any) -> Any:
    sign = text_of(node.child_by_field_name("operator"))[:-1]
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    given: Given | None = None
    if right_first(ctx, left, right):
        value, found = assigned_to(ctx, node, lambda: ctx.expression(right), lambda: ctx.place(left))
        given = Given(right, value)
    else:
        found = ctx.place(left)
    kind = None if isinstance(found, Var) and not found.whole else getattr(found, "type", None)
    if isinstance(kind, Aggregate):
        return _set_object(ctx, node, found, kind, given or ctx.given(right), sign)
    if given is not None:
        return _set(ctx, node, found, given.found, sign)
    return _set(ctx, node, found, ctx.expression(named(right)[0] if right.type == "initializer_list" else right), sign)


@expressions("update_expression")
def update_expression(ctx: Context, node: Any) -> Any:
    found = ctx.place(node.child_by_field_name("argument"))
    sign = text_of(node.child_by_field_name("operator"))[0]
    before = read(ctx, node, found) if not isinstance(found, Cell) else None
    after = _set(ctx, node, found, ctx.integer(node, 1), sign)
    return after if node.children[0].type in ("++", "--") else before


def _set_object(ctx: Context, node: Any, found: Var | Cell, kind: Aggregate, right: Given, sign: str) -> Any:
    """Assign an object, by an operator of its struct where it has one; returns what that gives, or the object."""
    struct = ctx.struct_of(kind)
    if sign or (struct is not None and "operator=" in struct.methods):
        own = operated(ctx, node, f"{sign}=", [Given(node.child_by_field_name("left"), found), right])
        if own is not None:
            return own[0]
    if sign:
        raise ctx.refuse(node, f"{sign}= of {kind.name}", "write an operator of it, or its fields one by one")
    assign(ctx, node, found, made_of(ctx, node, "value", kind, right))
    return found


def _set(ctx: Context, node: Any, found: Any, right: Any, sign: str) -> Any:
    """Assign, or with an operator compute from what is there; returns the new value."""
    adds = isinstance(found, Cell) and not found.place.array.shared and sign in ("+", "-")
    if adds and found.place.array.name not in ctx.settings.updated:
        value = computed(ctx, node, right)
        if not isinstance(found.type, str):
            raise ctx.refuse(node, "this sum of structs", "add its fields one by one")
        value = convert(ctx, node, value, found.type)
        if sign == "-":
            value = ctx.value(node, found.type, "unary", (value,), "-")
        write(ctx, node, found, value, "plain")
        return None
    if sign:
        left = read(ctx, node, found)
        if isinstance(left, Pointer) and sign in ("+", "-"):
            right = advance(ctx, node, left, computed(ctx, node, right), sign)
        else:
            right = binary(ctx, node, sign, computed(ctx, node, left), computed(ctx, node, right))
    if isinstance(found, Pointer):
        raise ctx.refuse(node, f"{text_of(node)!r} assigns to an array", "assign to an element")
    return assign(ctx, node, found, right)
