"""What expressions mean as places: variables, elements, members; pointers to them."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.handlers import expressions, places
from rawkern.gradients.reading.memory import part, read, valued
from rawkern.gradients.reading.methods import operator
from rawkern.gradients.reading.parameters import listed
from rawkern.gradients.reading.places import Cell, Local, Pointer, PointerList, Var
from rawkern.gradients.reading.pointers import advance, cell, into, pointee, seen_as
from rawkern.gradients.reading.syntax import TYPES
from rawkern.gradients.reading.values import convert, test
from rawkern.gradients.types import Aggregate


@places("parenthesized_expression")
def parenthesized_place(ctx: Context, node: Any) -> Any:
    return ctx.place(named(node)[0])


@places("identifier")
def variable(ctx: Context, node: Any) -> Any:
    var = ctx.lookup(text_of(node))
    if var is None or text_of(node) in ctx.file.unclear:
        raise ctx.refuse(node, f"{text_of(node)} is not a variable of the kernel", "declare it in the kernel")
    return var.value if isinstance(var.value, Cell) else var


@places("field_expression")
def field(ctx: Context, node: Any) -> Any:
    name, of = text_of(node.child_by_field_name("field")), node.child_by_field_name("argument")
    arrow = text_of(node.child_by_field_name("operator")) == "->"
    found = pointee(ctx, node, of) if arrow else ctx.place(of)
    if isinstance(found, Var) and name in found.fields:
        return found.fields[name]
    kind = getattr(found, "type", None)
    inner = kind.of(name) if isinstance(kind, Aggregate) else None
    if isinstance(found, Cell) and inner is not None:
        return part(ctx, node, found, (name,), inner)
    within = f" in {kind.name}" if isinstance(kind, Aggregate) else ""
    raise ctx.refuse(
        node, f"{text_of(node)!r} has no field {name} that is known{within}", "use fields of structs and vectors"
    )


@places("subscript_expression")
def element(ctx: Context, node: Any) -> Any:
    index = named(node.child_by_field_name("indices"))
    if len(index) != 1:
        raise ctx.refuse(node, "an index of several parts", "write one index")
    of = node.child_by_field_name("argument")
    base = ctx.place(of) if ctx.is_place(of) else ctx.expression(of)
    if isinstance(base, (Var, Cell)) and isinstance(base.type, Aggregate) and not base.type.array:
        return operator(ctx, node, "operator[]", base, index)
    at = ctx.scalar(index[0])
    if isinstance(base, Var) and isinstance(base.value, PointerList):
        return listed(ctx, node, base.value, at)
    if isinstance(base, Cell):
        which = "0" if ctx.kind_alone else str(at.const)
        inner = base.type.of(which) if isinstance(base.type, Aggregate) else None
        if inner is None:
            raise ctx.unrollable(node, f"the index of {text_of(of)} is not known when deriving")
        return part(ctx, node, base, (which,), inner)
    return cell(ctx, node, read(ctx, node, base) if isinstance(base, Var) else base, (at,))


@expressions("subscript_expression")
def element_read(ctx: Context, node: Any) -> Any:
    found = ctx.place(node)
    return found if isinstance(found, Value) else read(ctx, node, found)  # an operator may give a number


@places("pointer_expression")
def pointed_at(ctx: Context, node: Any) -> Any:
    if text_of(node.child_by_field_name("operator")) != "*":
        raise ctx.no_place(node)
    return pointee(ctx, node, node.child_by_field_name("argument"))


@expressions("pointer_expression")
def pointer_expression(ctx: Context, node: Any) -> Any:
    """``*pointer`` or ``&variable``."""
    if text_of(node.child_by_field_name("operator")) == "&":
        return address(ctx, node, node.child_by_field_name("argument"))
    return read(ctx, node, ctx.place(node))


def address(ctx: Context, node: Any, of: Any) -> Any:
    """A pointer to what an expression means."""
    while of.type == "parenthesized_expression":
        of = named(of)[0]
    if of.type == "subscript_expression":
        index = named(of.child_by_field_name("indices"))
        base = ctx.expression(of.child_by_field_name("argument"))
        if isinstance(base, Pointer) and len(index) == 1 and len(base.inner) >= len(base.array.sizes) - 1:
            return advance(ctx, node, base, ctx.scalar(index[0]), "+")
    found = ctx.place(of)
    found = found.value if isinstance(found, Var) and isinstance(found.value, Cell) else found
    pointer = _address(ctx, found, of.type == "subscript_expression")
    if pointer is None:
        raise ctx.refuse(node, f"the address {text_of(of)}", "use the variable itself, or an index")
    return pointer


def _address(ctx: Context, found: Any, element: bool) -> Any:
    """A pointer to a place: to an object that is the object, whose members it has; None where there is none."""
    if isinstance(found, Cell) and not found.place.fields and found.index and not found.view:
        return Pointer(found.place.array, found.index[-1], found.index[:-1])
    if isinstance(found, Cell) and not found.place.fields and not found.index:
        return Pointer(found.place.array)
    if not isinstance(found, Var):
        return None
    if not found.whole and element:
        return into(ctx, found)
    if isinstance(found.type, Aggregate):
        return found
    if isinstance(found.type, str) and not isinstance(found.value, Pointer | Local):
        within = into(ctx, found)  # (&v.x)[1] is v.y
        return within if isinstance(within, Local) else Local((found,))
    return None


# What is computed -------------------------------------------------------------------------------------------------


@places("call_expression")
def called(ctx: Context, node: Any) -> Any:
    return _object(ctx, node, ctx.call(node))


@places("conditional_expression")
def one_of_two(ctx: Context, node: Any) -> Any:
    known = test(ctx, node.child_by_field_name("condition")).const
    if known is not None:
        return ctx.place(node.child_by_field_name("consequence" if known else "alternative"))
    return computed(ctx, node)


@places("compound_literal_expression", "binary_expression", "assignment_expression", "unary_expression")
def computed(ctx: Context, node: Any) -> Any:
    """An object that an expression makes, or refers to."""
    return _object(ctx, node, ctx.expression(node))


def _object(ctx: Context, node: Any, found: Any) -> Any:
    if not isinstance(found, (Var, Cell)):
        raise ctx.no_place(node)
    return found


# Casts ------------------------------------------------------------------------------------------------------------


@expressions("cast_expression")
def cast_expression(ctx: Context, node: Any) -> Any:
    return valued(ctx, node, _cast(ctx, node))


@places("cast_expression")
def cast_place(ctx: Context, node: Any) -> Any:
    """``(float4&)x[i]``"""
    return _object(ctx, node, _cast(ctx, node))


def _cast(ctx: Context, node: Any) -> Any:
    return cast(ctx, node, node.child_by_field_name("type"), node.child_by_field_name("value"))


def cast(ctx: Context, node: Any, kind: Any, value: Any) -> Any:
    """A cast, of any spelling, to the type that a node of the tree names; to a reference: a place."""
    declarator = None
    if kind.type == "type_descriptor":
        declarator, kind = kind.child_by_field_name("declarator"), kind.child_by_field_name("type")
    if declarator is None:
        return convert(ctx, node, ctx.scalar(value), ctx.scalar_type(kind))
    nested = declarator.type not in ("abstract_pointer_declarator", "abstract_reference_declarator")
    if nested or any(c.type.startswith("abstract") for c in named(declarator)):
        raise ctx.refuse(node, f"the cast {text_of(node)!r}", "cast to a pointer to numbers or vectors")
    if declarator.type == "abstract_pointer_declarator":
        return seen_as(ctx, node, ctx.expression(value), ctx.type_of(kind))
    return cell(ctx, node, seen_as(ctx, node, address(ctx, node, value), ctx.type_of(kind)), ())


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
