"""Casts, of any spelling, and sizes of types."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.handlers import expressions
from rawkern.gradients.reading.pointers import seen_as
from rawkern.gradients.reading.syntax import TYPES
from rawkern.gradients.reading.values import convert


@expressions("cast_expression")
def cast_expression(ctx: Context, node: Any) -> Any:
    return cast(ctx, node, node.child_by_field_name("type"), node.child_by_field_name("value"))


def cast(ctx: Context, node: Any, kind: Any, value: Any) -> Any:
    """A cast, of any spelling, to the type that a node of the tree names."""
    declarator = None
    if kind.type == "type_descriptor":
        declarator, kind = kind.child_by_field_name("declarator"), kind.child_by_field_name("type")
    if declarator is None:
        return convert(ctx, node, ctx.scalar(value), ctx.scalar_type(kind))
    if declarator.type != "abstract_pointer_declarator" or declarator.child_by_field_name("declarator") is not None:
        raise ctx.refuse(node, f"the cast {text_of(node)!r}", "cast to a pointer to numbers or vectors")
    return seen_as(ctx, node, ctx.expression(value), ctx.type_of(kind))


@expressions("sizeof_expression")
def sizeof_expression(ctx: Context, node: Any) -> Value:
    kind, value = node.child_by_field_name("type"), node.child_by_field_name("value")
    if kind is not None and kind.child_by_field_name("declarator") is not None:
        raise ctx.refuse(node, text_of(node), "write the number of bytes")
    if kind is None and value is not None and value.type == "parenthesized_expression":
        inner = value.named_children[0]
        known = inner.type == "identifier" and ctx.lookup(text_of(inner)) is None
        kind = inner if known or inner.type in TYPES else None
    found = ctx.type_of(kind) if kind is not None else ctx.kind(value)
    if isinstance(found, tuple) or found is None:
        raise ctx.refuse(node, text_of(node), "write the number of bytes")
    size = types.size(found)
    return ctx.value(node, "unsigned long long", "const", attr=f"{size}ULL", const=size)
