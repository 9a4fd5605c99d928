"""Structs and enumerations of the source: read, and written as classes of Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.classes import WITHOUT_STATE, method_parts, read_methods
from rawkern.extensions.context import Context
from rawkern.extensions.functions import template_parameters
from rawkern.extensions.macros import Expanded
from rawkern.extensions.program import RESERVED, Function, Struct, Unit, python_field
from rawkern.extensions.spelling import declared_type, split_name, type_of
from rawkern.extensions.syntax import array_sizes
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
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
            except NotTranslated:
                return
        python = label + "_" if label in RESERVED or label in taken else label
        taken.add(python)
        value = Value(python, Type("int", "int32", spelled=bare), following, following)
        unit.definitions[python] = str(following)
        unit.constants[f"{bare}::{label}"] = value
        if not scoped:
            unit.constants.setdefault(label, value)
        following += 1


def read_members(
    unit: Unit, struct: Struct, node: Any, expanded: Expanded, path: str, nested: Callable[[Any], None]
) -> None:
    """Read the members of a struct, and those of its base that are types."""
    f = Context(unit, Function(struct.name, ""))
    if struct.template and node.parent is not None and node.parent.type == "template_declaration":
        struct.parameters = template_parameters(f, node.parent.child_by_field_name("parameters"))
    for one in named(node):
        if one.type == "base_class_clause":
            _bases(f, struct, [each for each in named(one) if each.type != "access_specifier"])
    base = unit.structs.get(struct.base)
    for name, type_ in (base.aliases if base is not None else {}).items():
        f.declare(name, type_, kind="type")
        struct.aliases[name] = type_
    body = node.child_by_field_name("body")
    for one in named(body):
        if one.type == "alias_declaration":
            try:
                type_ = type_of(f, one.child_by_field_name("type"))
            except NotTranslated:
                continue
            name = text_of(one.child_by_field_name("name"))
            f.declare(name, type_, kind="type")
            struct.aliases[name] = type_
            continue
        if one.type != "field_declaration" or method_parts(one) is not None:
            continue
        of = one.child_by_field_name("type")
        if of is not None and of.child_by_field_name("body") is not None:
            nested(of)
        if "static" in t.words(one):
            _static(struct, one)
            continue
        try:
            _fields(f, struct, one)
        except NotTranslated as error:
            struct.reason = error.what
    read_methods(unit, struct, body, expanded, path)


def _bases(f: Context, struct: Struct, nodes: list[Any]) -> None:
    """What a struct is derived from."""
    full, _ = split_name(nodes[0]) if nodes else ("", None)
    bare = full.rsplit("::", 1)[-1]
    if full.endswith("autograd::Function") or (full == "Function" and full not in f.unit.structs):
        struct.autograd = True
        return
    if bare in WITHOUT_STATE:
        return
    struct.base = bare
    if bare in f.unit.structs:
        struct.base_type = type_of(f, nodes[0])
    if len(nodes) > 1:
        struct.special = "has several bases"


def _static(struct: Struct, node: Any) -> None:
    """A static member that is constant."""
    name, value = node.child_by_field_name("declarator"), node.child_by_field_name("default_value")
    constant = {"const", "constexpr"} & set(t.words(node))
    if constant and name is not None and name.type == "field_identifier" and value is not None:
        struct.constants[text_of(name)] = (node.child_by_field_name("type"), value)


def _fields(f: Context, struct: Struct, node: Any) -> None:
    """The members that a declaration in a struct makes."""
    type_node = node.child_by_field_name("type")
    declarators = [child for k, child in enumerate(node.children) if node.field_name_for_child(k) == "declarator"]
    defaults = [child for k, child in enumerate(node.children) if node.field_name_for_child(k) == "default_value"]
    for one in declarators:
        inner, sizes = one, array_sizes(one)
        type_ = declared_type(f, type_node, inner, node)
        while type_.kind == "array":
            type_ = type_.item
        while inner.type not in ("field_identifier", "identifier"):
            deeper = inner.child_by_field_name("declarator") or (named(inner) or [None])[-1]
            if deeper is None:
                raise NotTranslated("a member of it", node)
            inner = deeper
        name = text_of(inner)
        if type_.kind == "opaque":
            raise NotTranslated(f"its member {name} of {type_}", node)
        if type_.reference:
            raise NotTranslated(f"its member {name}, which is a reference", node)
        for size in reversed(sizes):
            type_ = Type("array", of=(type_,), name=f.value(size).code)
        struct.fields[name] = t.plain(type_)
        given = _first(node, one, defaults, len(declarators) == 1)
        if given is not None:
            _default(f, struct, name, type_, given)


def _first(node: Any, declarator: Any, defaults: list[Any], alone: bool) -> Any:
    """The first value that a declaration gives a member; None where it gives none."""
    if alone:
        return defaults[0] if defaults else None
    behind = [one for one in defaults if one.start_byte >= declarator.end_byte]
    following = [one for one in node.children if one.start_byte >= declarator.end_byte and text_of(one) == ","]
    if behind and (not following or behind[0].start_byte < following[0].start_byte):
        return behind[0]
    return None


def _default(f: Context, struct: Struct, name: str, type_: Type, given: Any) -> None:
    """The first value of a member: of the class where it is constant, else made for each object."""
    if type_.kind == "array":
        values = [ast.literal_eval(f.of_type(one, type_.item).code) for one in named(given)]
        if not type_.name.isdigit() or type_.item.kind == "array" or given.type != "initializer_list":
            raise NotTranslated(f"its member {name}, whose values are listed", given)
        zero = ast.literal_eval(_zero(type_.item, {}))
        struct.defaults[name] = repr(values + [zero] * (int(type_.name) - len(values)))
        return
    if given.type == "initializer_list" and type_.kind in ("int", "float", "bool") and len(named(given)) == 1:
        given = named(given)[0]
    try:
        code = f.of_type(given, type_).code
        ast.literal_eval(code)
        struct.defaults[name] = code
    except (NotTranslated, ValueError, SyntaxError):
        struct.initial[name] = given


# Written ------------------------------------------------------------------------------------------------------------


def written(structs: Iterable[Struct], text: str, methods: dict[str, list[str]]) -> list[str]:
    """The classes of the structs that a text names, with their methods' code, those they are made of first."""
    by_class = {one.python: one for one in structs}
    by_name = {one.name.rsplit("::", 1)[-1]: one for one in by_class.values()}
    out: dict[str, str] = {}
    begun: set[str] = set()

    def write(struct: Struct) -> None:
        if struct.python in out or struct.python in begun:
            return
        begun.add(struct.python)
        base = by_name.get(struct.base)
        for inner in [base, *(by_class.get(one) for type_ in struct.fields.values() for one in _inside(type_))]:
            if inner is not None:
                write(inner)
        if struct.autograd:
            lines = [f"class {struct.python}(torch.autograd.Function):"]
        else:
            around = struct.base_type.name if struct.base_type is not None else base.python if base else "Struct"
            lines = [f"class {struct.python}({around}):"]
        for name, type_ in struct.fields.items():
            lines.append(f"    {python_field(name)} = {struct.defaults.get(name) or _zero(type_, by_class)}")
        shared = [python_field(name) for name, type_ in struct.fields.items() if refers(type_)]
        if shared:
            lines.append(f"    __pointers__ = {shared!r}")
        for method in methods.get(struct.python, ()):
            lines += [*([""] if len(lines) > 1 else []), *(f"    {line}" for line in method.splitlines())]
        lines = lines if len(lines) > 1 else [*lines, "    pass"]
        if struct.parameters:
            head = f"def {struct.python}({', '.join(one.python for one in struct.parameters)}):"
            special = []
            for condition, one in struct.specializations:
                made = f"({', '.join(one.standing)})" if one.parameters else ""
                special += [f"    if {condition}:", f"        return {one.python}{made}"]
            body = [f"    {line}" for line in lines]
            lines = ["@functools.cache", head, *special, *body, f"    return {struct.python}"]
        code = "\n".join(lines)
        try:
            ast.parse(code)
        except SyntaxError:  # it must not be the fault of the whole module
            reason = f"the struct {struct.name} is not translated"
            code = f"def {struct.python}(*arguments):\n    raise rawkern.errors.UnsupportedError({reason!r})"
        out[struct.python] = code

    words: set[str] = set(re.findall(r"\w+", text))
    size = -1
    while size != len(out):  # methods may name others
        size = len(out)
        for one in by_class.values():
            if one.python in words:
                write(one)
                words.update(re.findall(r"\w+", out.get(one.python, "")))
    return list(out.values())


def reached(structs: Iterable[Struct], words: set[str]) -> set[str]:
    """The classes that a text with these words uses: those it names, their bases, and what their members are."""
    by_class = {one.python: one for one in structs}
    by_name = {one.name.rsplit("::", 1)[-1]: one.python for one in by_class.values()}
    found: set[str] = set()
    waiting = [name for name in by_class if name in words]
    while waiting:
        name = waiting.pop()
        if name in found or name not in by_class:
            continue
        found.add(name)
        struct = by_class[name]
        waiting += [one.python for _, one in struct.specializations]
        waiting += [by_name.get(struct.base, ""), *(one for type_ in struct.fields.values() for one in _objects(type_))]
    return found


def _objects(type_: Type) -> set[str]:
    """The structs that a value of a type has, or points to."""
    if type_.kind == "struct":
        return {type_.struct}
    return {name for one in type_.of for name in _objects(one)}


def refers(type_: Type) -> bool:
    """Whether values of a type are pointers to objects, or have some."""
    if type_.kind == "pointer":
        return type_.item.kind in ("struct", "pointer")
    return any(map(refers, type_.of)) if type_.kind in ("vector", "array", "map", "tuple", "optional") else False


def _inside(type_: Type) -> set[str]:
    """The structs that a member is made of."""
    if type_.kind == "struct":
        return {type_.struct}
    return {name for one in type_.of for name in _inside(one)} if type_.kind == "array" else set()


def _zero(type_: Type, by_class: dict[str, Struct]) -> str:
    if type_.kind == "array":
        inner = _zero(type_.item, by_class)
        if type_.item.kind in ("array", "struct"):
            return f"[{inner} for _ in range({type_.name})]"
        return f"[{inner}] * {type_.name}"
    if type_.kind == "struct":
        made = by_class.get(type_.struct)
        return "None" if made is not None and made.constructors else f"{type_.name}()"
    if type_.kind == "cuda_vector":
        return f"Vector({', '.join(['0'] * int(type_.name[-1]))})"
    if type_.kind == "param":
        return f"convert({type_.name}, 0)"
    if type_.kind == "vector" and type_.name.isdigit():  # std::array
        inner = _zero(type_.item, by_class)
        return f"[{inner} for _ in range({type_.name})]"
    return t.ZEROS.get(type_.kind, "None")
