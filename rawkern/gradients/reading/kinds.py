"""Types of a kernel's source: names, instances of templates, structs with what belongs to them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.accessors import accessor_type, is_accessor
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.handlers import type_nodes
from rawkern.gradients.reading.places import Maker, Struct
from rawkern.gradients.reading.syntax import (
    BY_HAND,
    INSTEAD_OF_UNIONS,
    TENSOR_CORES,
    extents_of,
    function_name,
    identifier,
    parameters_of,
    words,
)
from rawkern.gradients.reading.templates import bind, bound, within_template
from rawkern.gradients.types import Accessor, Aggregate, PointerTo, Type

#: What the members of a struct may be called besides their types.
MEMBERS = {"inline", "static", "constexpr", "const", ";", ",", "explicit", "__forceinline__", "=", "__device__"}


@type_nodes("type_descriptor", "dependent_type")
def described(ctx: Context, node: Any) -> Type | Accessor:
    if node.child_by_field_name("declarator") is not None:
        raise ctx.refuse(node, f"the type {text_of(node)!r}", "use numbers and plain structs")
    return ctx.parameter_type(node.child_by_field_name("type") or named(node)[0])


@type_nodes("template_type")
def template_type(ctx: Context, node: Any) -> Type | Accessor:
    if is_accessor(ctx, node.child_by_field_name("name")):
        return accessor_type(ctx, node)
    arguments, name = named(node.child_by_field_name("arguments")), text_of(node.child_by_field_name("name"))
    maker = ctx.type_names.get(name)
    return instance(ctx, node, maker.name if isinstance(maker, Maker) else name, bound(ctx, arguments))


@type_nodes("type_identifier")
def plain_type(ctx: Context, node: Any) -> Type | Accessor:
    return type_named(ctx, node, text_of(node))


def type_named(ctx: Context, node: Any, text: str) -> Any:
    """The type that a text names."""
    text = text.removeprefix("struct ").removeprefix("const ").removeprefix("typename ").strip()
    if text in ctx.file.unions:
        raise ctx.refuse(node, f"{text} is a union", INSTEAD_OF_UNIONS)
    if text in ctx.file.unclear:
        raise ctx.refuse(node, f"{text} is defined more than once, or in something that is not followed",
                         "give it a name of its own")  # fmt: skip
    if isinstance(ctx.type_names.get(text), (str, Aggregate, Accessor)):
        return ctx.type_names[text]
    if text in ctx.file.aliases:
        return ctx.within_top(lambda: ctx.parameter_type(ctx.file.aliases[text]))
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
def qualified_type(ctx: Context, node: Any) -> Type | Accessor:
    """A type of a namespace, or one that a struct names."""
    scope, name = node.child_by_field_name("scope"), node.child_by_field_name("name")
    plain = ctx.file.plain(text_of(node).partition("<")[0])
    if plain is not None:
        return ctx.parameter_type(name) if name.type != "type_identifier" else type_named(ctx, node, plain)
    if name.type == "template_type" and is_accessor(ctx, name.child_by_field_name("name"), scope):
        return accessor_type(ctx, name)
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


# Structs ----------------------------------------------------------------------------------------------------------


def instance(ctx: Context, node: Any, base: str, arguments: Sequence[Any]) -> Aggregate:
    """A struct of the source, or an instance of a template of them."""
    plain = ctx.file.plain(base) if "::" in base else base
    if plain is None or plain not in ctx.file.structs or plain in ctx.file.unclear:
        raise ctx.refuse(node, f"the type {base} is not known", "use numbers and structs of this source")
    definition, template = ctx.file.structs[plain]
    names, numbers = bind(ctx, definition, template, arguments)
    given = [*names.values(), *(v.value.const if isinstance(v.value, Value) else v.value for v in numbers.values())]
    key = plain, *given
    if key not in ctx.instances:
        spelled = "_".join([plain, *(getattr(g, "name", str(g)) for g in given)])
        name = re.sub(r"\W+", "_", spelled).strip("_")
        while name in ctx.made:
            name += "_"
        made = Struct(Aggregate(name, ()), plain, definition, tuple(given), dict(names), numbers)
        with within_template(ctx, names, numbers), ctx.using(struct=made):
            _members(ctx, made)
        made.names[plain] = made.type
        ctx.instances[key] = ctx.made[name] = made
    return ctx.instances[key].type


def _members(ctx: Context, made: Struct) -> None:
    """Read what a struct consists of."""
    node, fields, name = made.node, [], made.type.name
    if any(c.type == "base_class_clause" for c in node.children):
        raise ctx.refuse(node, f"struct {name} has a base", "put the base's members into it")
    for each in named(node.child_by_field_name("body")):
        inner = named(each)[-1] if each.type in ("template_declaration", "friend_declaration") else each
        if inner.type == "function_definition":
            _method(ctx, made, each, inner)
        elif inner.type == "alias_declaration":
            called = text_of(inner.child_by_field_name("name"))
            made.names[called] = ctx.type_names[called] = ctx.type_of(inner.child_by_field_name("type"))
        elif inner.type == "field_declaration":
            fields += _fields(ctx, made, inner)
        elif inner.type not in ("access_specifier", "static_assert_declaration"):
            raise ctx.refuse(each, f"struct {name} has {text_of(each)!r}", "use structs of plain numbers")
    made.type = Aggregate(name, tuple(fields))
    aligned = next((ctx.scalar(named(c)[0]).const for c in node.children if c.type == "alignas_qualifier"), 1)
    if not aligned or types.size(made.type) % aligned:
        raise ctx.refuse(node, f"struct {name} is aligned to {aligned}", "give it a size that is a multiple of that")
    made.aligned = aligned


def _method(ctx: Context, made: Struct, member: Any, definition: Any) -> None:
    called, table = function_name(definition), made.friends if member.type == "friend_declaration" else made.methods
    if called.startswith("~") or "virtual" in words(definition) or not called or not copies(made.base, definition):
        raise ctx.refuse(definition, f"struct {made.type.name} has {text_of(definition)[:40]!r}", "leave it out")
    template = None if member is definition else member.child_by_field_name("parameters")
    entries = table.setdefault(called, [])
    if (definition, template) not in entries and definition.child_by_field_name("body") is not None:
        entries.append((definition, template))


def _fields(ctx: Context, made: Struct, node: Any) -> list[tuple[str, Type]]:
    """The members of one declaration; what is static and constant is none."""
    found, said = [], words(node)
    declared = node.children_by_field_name("declarator")
    if {"static"} & said and {"const", "constexpr"} & said:
        value = node.child_by_field_name("default_value")
        made.constants[identifier(declared[0]) or ""] = node.child_by_field_name("type"), declared[0], value
        return []
    if node.child_by_field_name("type").type == "union_specifier":
        raise ctx.refuse(node, f"struct {made.type.name} has a union", INSTEAD_OF_UNIONS)
    no_number = ctx.refuse(node, f"struct {made.type.name} has {text_of(node)!r}", "use structs of plain numbers")
    if said - MEMBERS or "static" in said or not declared:
        raise no_number
    given = node.child_by_field_name("type")
    kind = "void" if all(of_nothing(given, each) for each in declared) else ctx.type_of(given)
    for each in declared:
        pointer = each.type == "pointer_declarator"
        sizes, inner = extents_of(named(each)[-1] if pointer else each)
        own = _array_of(ctx, each, PointerTo(kind, "const" in said) if pointer else kind, sizes)
        if inner.type == "function_declarator":  # declared here, defined elsewhere or not at all
            raise ctx.refuse(node, f"{text_of(node)!r} is defined elsewhere", "define it in the struct")
        if inner.type != "field_identifier":
            raise no_number
        found.append((text_of(inner), own))
        after = each.next_sibling
        if after is not None and after.type in ("=", "initializer_list"):
            made.initial[text_of(inner)] = after if after.type == "initializer_list" else after.next_sibling
    return found


def _array_of(ctx: Context, node: Any, kind: Any, sizes: Sequence[Any]) -> Any:
    """The type of a member with these extents, if any."""
    for extent in reversed(sizes):
        size = ctx.scalar(extent).const if extent is not None else None
        if size is None or not 0 < size <= 256:
            raise ctx.refuse(node, f"the extent of {text_of(node)}", "make it a constant up to 256")
        kind = types.array(kind, size)
    return kind


def of_nothing(kind: Any, declarator: Any) -> bool:
    """Whether a pointer is declared to void, to which only casts say what it points to."""
    return text_of(kind) == "void" and declarator.type == "pointer_declarator"


def copies(base: str, definition: Any) -> bool:
    """Whether a constructor or assignment, if it is from an object of the same struct, copies its members alone."""
    params, body = parameters_of(definition), definition.child_by_field_name("body")
    called = function_name(definition)
    if called not in (base, "operator=") or len(params) != 1 or body is None:
        return True
    if text_of(params[0].child_by_field_name("type")).partition("<")[0].strip() != base:
        return True
    name = identifier(params[0].child_by_field_name("declarator"))
    listed = [each for c in named(definition) if c.type == "field_initializer_list" for each in named(c)]
    done = [re.sub(r"\s", "", text_of(each)) for each in (*listed, *named(body))]
    member = rf"(this->)?(\w+)(\({name}\.\2\)|\{{{name}\.\2\}}|={name}\.\2;)|return\*this;"
    found = [re.fullmatch(member, each) for each in done]
    fields = [c for c in named(definition.parent) if c.type == "field_declaration" and "static" not in words(c)]
    count = sum(len(c.children_by_field_name("declarator")) for c in fields)
    return None not in found and len({m[2] for m in found if m is not None and m[2]}) == count


def names_of(ctx: Context, struct: Struct | None) -> dict[str, Any]:
    """What types are called within a struct; outside of one as here."""
    return ctx.type_names if struct is None else dict(struct.names)


def in_memory(ctx: Context, node: Any, kind: Any) -> None:
    """Note a struct that the derived text has to declare, as it lies in memory."""
    if not isinstance(kind, Aggregate) or kind in types.VECTORS.values() or kind.name in ctx.structs:
        return
    if types.pointers(kind):
        raise ctx.refuse(node, f"{kind.name} has pointers, and lies in memory", "pass it as a parameter by value")
    lines = []
    for name, inner in kind.fields:
        extents = ""
        while isinstance(inner, Aggregate) and inner.array:
            extents, inner = f"{extents}[{len(inner.fields)}]", inner.fields[0][1]
        in_memory(ctx, node, inner)
        lines.append(f"{inner.name if isinstance(inner, Aggregate) else inner} {name}{extents};")
    if not lines:
        raise ctx.refuse(node, f"{kind.name} has no members", "give it one")
    aligned = ctx.made[kind.name].aligned if kind.name in ctx.made else 1
    head = f"struct alignas({aligned}) {kind.name}" if aligned > 1 else f"struct {kind.name}"
    ctx.structs[kind.name] = kind, f"{head} {{ {' '.join(lines)} }};"
