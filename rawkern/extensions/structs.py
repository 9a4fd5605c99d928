"""Structs and enumerations of the source: read, and written as classes of Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.context import Context
from rawkern.extensions.elements import python_field
from rawkern.extensions.functions import template_parameters
from rawkern.extensions.program import RESERVED, Function, Struct, Unit
from rawkern.extensions.refusal import Refused
from rawkern.extensions.spelling import declared_type, type_of
from rawkern.extensions.syntax import array_sizes
from rawkern.extensions.types import Type
from rawkern.extensions.values import Value


def read_enum(unit: Unit, node: Any, taken: set[str]) -> None:
    """Read an enumeration: its enumerators are constants."""
    name = node.child_by_field_name("name")
    bare = text_of(name) if name is not None else ""
    if bare:
        unit.enums.add(bare)
    scoped = any(text_of(child) in ("class", "struct") for child in node.children)
    following = 0
    f = Context(unit, Function("", ""))
    for one in named(node.child_by_field_name("body")):
        label, given = text_of(one.child_by_field_name("name")), one.child_by_field_name("value")
        if given is not None:
            try:
                following = f.value(given).constant or 0
            except Refused:
                return
        python = label + "_" if label in RESERVED or label in taken else label
        value = Value(python, Type("int", "int32", spelled=bare), following, following)
        unit.definitions[python] = str(following)
        unit.constants[f"{bare}::{label}"] = value
        if not scoped:
            unit.constants.setdefault(label, value)
        following += 1


def read_members(unit: Unit, struct: Struct, node: Any) -> None:
    """Read the members of a struct, and those of its base that are types."""
    f = Context(unit, Function(struct.name, ""))
    if struct.template and node.parent is not None and node.parent.type == "template_declaration":
        struct.parameters = template_parameters(f, node.parent.child_by_field_name("parameters"))
    for one in named(node):
        if one.type == "base_class_clause":
            bases = [text_of(each) for each in named(one) if each.type != "access_specifier"]
            struct.base = bases[0].split("<")[0].rsplit("::", 1)[-1] if bases else ""
    base = unit.structs.get(struct.base)
    for name, type_ in (base.aliases if base is not None else {}).items():
        f.declare(name, type_, kind="type")
        struct.aliases[name] = type_
    for one in named(node.child_by_field_name("body")):
        if one.type == "alias_declaration":
            try:
                type_ = type_of(f, one.child_by_field_name("type"))
            except Refused:
                continue
            name = text_of(one.child_by_field_name("name"))
            f.declare(name, type_, kind="type")
            struct.aliases[name] = type_
            continue
        if one.type in ("type_definition", "comment", "access_specifier", "using_declaration"):
            continue
        if "static" in t.words(one) or one.type != "field_declaration":
            if one.type not in ("field_declaration", "static_assert_declaration", "preproc_if"):
                struct.refused = struct.refused or "it has functions"
            continue
        try:
            _fields(f, struct, one)
        except Refused as error:
            struct.refused = error.what


def _fields(f: Context, struct: Struct, node: Any) -> None:
    """The members that a declaration in a struct makes."""
    type_node = node.child_by_field_name("type")
    declarators = [child for k, child in enumerate(node.children) if node.field_name_for_child(k) == "declarator"]
    defaults = [child for k, child in enumerate(node.children) if node.field_name_for_child(k) == "default_value"]
    for k, one in enumerate(declarators):
        inner, sizes = one, array_sizes(one)
        if inner.type == "function_declarator":
            struct.refused = struct.refused or "it has functions"
            return
        type_ = declared_type(f, type_node, inner, node)
        while type_.kind == "array":
            type_ = type_.item
        while inner.type not in ("field_identifier", "identifier"):
            deeper = inner.child_by_field_name("declarator") or (named(inner) or [None])[-1]
            if deeper is None:
                raise Refused("a member of it", node)
            inner = deeper
        name = text_of(inner)
        if type_.kind == "opaque":
            raise Refused(f"its member {name} of {type_}", node)
        for size in reversed(sizes):
            type_ = Type("array", of=(type_,), name=f.value(size).code)
        struct.fields[name] = t.plain(type_)
        if k < len(defaults) and len(declarators) == len(defaults):
            struct.defaults[name] = f.of_type(defaults[k], type_).code


# Written ------------------------------------------------------------------------------------------------------------


def written(structs: Iterable[Struct]) -> list[str]:
    """The classes of the structs that functions use, those they are made of first."""
    by_class = {one.python: one for one in structs}
    by_name = {one.name.rsplit("::", 1)[-1]: one for one in by_class.values()}
    out: dict[str, str] = {}

    def write(struct: Struct) -> None:
        if struct.python in out:
            return
        base = by_name.get(struct.base)
        for inner in [base, *(by_class.get(one) for type_ in struct.fields.values() for one in _inside(type_))]:
            if inner is not None:
                write(inner)
        lines = [f"class {struct.python}({base.python if base is not None else 'Struct'}):"]
        for name, type_ in struct.fields.items():
            lines.append(f"    {python_field(name)} = {struct.defaults.get(name) or _zero(type_)}")
        lines = lines if len(lines) > 1 else [*lines, "    pass"]
        if struct.parameters:
            head = f"def {struct.python}({', '.join(one.python for one in struct.parameters)}):"
            lines = ["@functools.cache", head, *(f"    {line}" for line in lines), f"    return {struct.python}"]
        out[struct.python] = "\n".join(lines)

    for one in by_class.values():
        if one.used:
            write(one)
    return list(out.values())


def _inside(type_: Type) -> set[str]:
    """The structs that a member is made of."""
    if type_.kind == "struct":
        return {type_.name.partition("(")[0]}
    return {name for one in type_.of for name in _inside(one)} if type_.kind == "array" else set()


def _zero(type_: Type) -> str:
    if type_.kind == "array":
        inner = _zero(type_.item)
        if type_.item.kind in ("array", "struct"):
            return f"[{inner} for _ in range({type_.name})]"
        return f"[{inner}] * {type_.name}"
    if type_.kind == "struct":
        return f"{type_.name}()"
    if type_.kind == "cuda_vector":
        return f"Vector({', '.join(['0'] * int(type_.name[-1]))})"
    if type_.kind == "param":
        return f"convert({type_.name}, 0)"
    return {"int": "0", "float": "0.0", "bool": "False"}.get(type_.kind, "None")
