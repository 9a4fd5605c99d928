"""Types of a kernel's text: names, and instances of templates."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.gradients import types
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.handlers import type_nodes
from rawkern.gradients.reading.places import Maker
from rawkern.gradients.reading.structs import instance
from rawkern.gradients.reading.syntax import BY_HAND, TENSOR_CORES
from rawkern.gradients.reading.templates import bound
from rawkern.gradients.types import Aggregate, Type


@type_nodes("type_descriptor", "dependent_type")
def described(ctx: Context, node: Any) -> Type:
    if node.child_by_field_name("declarator") is not None:
        raise ctx.refuse(node, f"the type {text_of(node)!r}", "use numbers and plain structs")
    return ctx.type_of(node.child_by_field_name("type") or named(node)[0])


@type_nodes("template_type")
def template_type(ctx: Context, node: Any) -> Type:
    arguments, name = named(node.child_by_field_name("arguments")), text_of(node.child_by_field_name("name"))
    maker = ctx.type_names.get(name)
    return instance(ctx, node, maker.name if isinstance(maker, Maker) else name, bound(ctx, arguments))


@type_nodes("type_identifier")
def plain_type(ctx: Context, node: Any) -> Type:
    return type_named(ctx, node, text_of(node))


def type_named(ctx: Context, node: Any, text: str) -> Type:
    """The type that a text names."""
    text = text.removeprefix("struct ").removeprefix("const ").removeprefix("typename ").strip()
    if text in ctx.file.unclear:
        raise ctx.refuse(node, f"{text} is defined more than once, or in something that is not followed",
                         "give it a name of its own")  # fmt: skip
    if isinstance(ctx.type_names.get(text), (str, Aggregate)):
        return ctx.type_names[text]
    if text in ctx.file.aliases:
        return ctx.within_top(lambda: ctx.type_of(ctx.file.aliases[text]))
    if text in ctx.file.structs:
        return instance(ctx, node, text, ())
    if text in ctx.file.enums:
        return "int"
    if "<" in text or "::" in text:
        found = parse(f"{text} x;").children[0].child_by_field_name("type")
        if found is not None and found.type in ("template_type", "qualified_identifier"):
            return ctx.type_of(found)
    kind = types.PHILOX if text in types.GENERATORS else types.scalar(text) or types.VECTORS.get(text)
    if kind is None:
        way_out = "use float, double, integers, their vectors or plain structs of them"
        if text.startswith("curandState"):
            way_out = "use curandStatePhilox4_32_10_t"
        raise ctx.refuse(node, f"the type {text} is not known", way_out)
    return kind


@type_nodes("qualified_identifier")
def qualified_type(ctx: Context, node: Any) -> Type:
    """A type of a namespace, or one that a struct names."""
    scope, name = node.child_by_field_name("scope"), node.child_by_field_name("name")
    plain = ctx.file.plain(text_of(node).partition("<")[0])
    if plain is not None:
        return ctx.type_of(name) if name.type != "type_identifier" else type_named(ctx, node, plain)
    if scope is None or text_of(scope) in ("std", "cuda::std"):
        kind = types.scalar(text_of(name))
        if kind is not None:
            return kind
    elif scope.type == "template_type" or ctx.known_type(text_of(scope)):
        struct = ctx.made.get(getattr(ctx.type_of(scope), "name", ""))
        if struct is not None and text_of(name) in struct.names:
            return struct.names[text_of(name)]
    if "wmma::" in text_of(node).replace(" ", ""):
        raise ctx.refuse(node, TENSOR_CORES, BY_HAND)
    raise ctx.refuse(node, f"the type {text_of(node)} is not known", "use numbers and structs of this source")


def scope_type(ctx: Context, scope: Any) -> Type:
    """The type that stands before ``::``."""
    return ctx.type_of(scope) if scope.type == "template_type" else type_named(ctx, scope, text_of(scope))
