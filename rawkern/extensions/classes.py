"""Methods and constructors of structs and classes, as they are declared and defined."""

from __future__ import annotations

import re
from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.extensions import cpp
from rawkern.extensions import types as t
from rawkern.extensions.context import bases
from rawkern.extensions.functions import read_signature
from rawkern.extensions.macros import Expanded
from rawkern.extensions.program import RESERVED, Function, Struct, Unit
from rawkern.extensions.syntax import nodes_in
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated

CONSTRUCTOR = "init"
#: Bases that objects need nothing of.
WITHOUT_STATE = ("CustomClassHolder", "enable_shared_from_this", "noncopyable")
_OPERATORS = {
    "()": "call", "[]": "item", "+": "add", "-": "sub", "*": "mul", "/": "div", "%": "mod", "==": "eq", "!=": "ne",
    "<": "lt", ">": "gt", "<=": "le", ">=": "ge", "+=": "iadd", "-=": "isub", "*=": "imul", "/=": "idiv", "&": "and",
    "|": "or", "^": "xor", "<<": "shl", ">>": "shr",
}  # fmt: skip
#: What destructors may call: memory is freed by itself here.
_FREEING = re.compile(r"cudaFree\w*|free|delete|cuda(?:Stream|Event)Destroy|\w*CHECK\w*|\w*checkCudaErrors")


def operator_name(name: str) -> str:
    """The Python name of ``operator+``; "" for an operator that is not translated."""
    found = _OPERATORS.get(name.removeprefix("operator").strip())
    return f"op_{found}" if found is not None else ""


def method_parts(node: Any) -> tuple[Any, Any, str] | None:
    """The definition or declaration of a method, its declarator and its name; None for another member."""
    inner = named(node)[-1] if node.type == "template_declaration" and named(node) else node
    if inner.type not in ("function_definition", "declaration", "field_declaration"):
        return None
    declarator = inner.child_by_field_name("declarator")
    while declarator is not None and declarator.type in ("pointer_declarator", "reference_declarator"):
        declarator = declarator.child_by_field_name("declarator") or (named(declarator) or [None])[-1]
    if declarator is None or declarator.type != "function_declarator":
        return None
    name = declarator.child_by_field_name("declarator")
    while name is not None and name.type == "qualified_identifier":
        name = name.child_by_field_name("name")
    if name is None or name.type not in ("identifier", "field_identifier", "operator_name", "destructor_name"):
        return None
    return inner, declarator, re.sub(r"^operator\s+(?=\W)", "operator", text_of(name))


def read_methods(unit: Unit, struct: Struct, body: Any, expanded: Expanded, path: str) -> None:
    """Read the methods that are defined in a struct."""
    for one in named(body):
        parts = method_parts(one)
        if parts is not None:
            _read(unit, struct, parts, expanded, path)


def define_method(unit: Unit, struct: Struct, expanded: Expanded, path: str) -> bool:
    """Read the definition of a method outside of its struct; False where the text is not one."""
    for one in named(parse(expanded.text)):
        parts = method_parts(one)
        if parts is not None:
            _read(unit, struct, parts, expanded, path)
            return True
    return False


def _read(unit: Unit, struct: Struct, parts: tuple[Any, Any, str], expanded: Expanded, path: str) -> None:
    node, declarator, name = parts
    bare = struct.name.partition("<")[0].rsplit("::", 1)[-1]
    body = node.child_by_field_name("body")
    said = {child.type: text_of(child) for child in node.children}
    if name.startswith("~"):
        if body is not None and _works(body):
            struct.special = struct.special or "has a destructor that does something"
        return
    constructor = name == bare and node.child_by_field_name("type") is None
    function = Function(f"{struct.name}::{name}", "", path=path, lines=expanded.lines, declared=expanded.declared)
    function.unit, function.owner, function.constructor = unit, struct, constructor
    function.static = "static" in t.words(node)
    function.const = any(child.type == "type_qualifier" and text_of(child) == "const" for child in declarator.children)
    function.virtual = any(
        text_of(child) in ("virtual", "override") for child in (*node.children, *declarator.children)
    )
    try:
        read_signature(unit, function, node)
        function.static = "static" in t.words(node)
    except NotTranslated as error:
        function.reason, function.variadic = error.what, True
    if constructor or name == "operator=":
        copies = len(function.parameters) == 1 and _is(function.parameters[0].type, struct)
        if "delete_method_clause" in said:
            return
        if copies or name == "operator=":
            moves = "&&" in text_of(declarator.child_by_field_name("parameters"))
            if "default_method_clause" not in said and not moves:
                struct.special = struct.special or "says itself how it is copied"
            return
        if "default_method_clause" in said:
            function.node = None
    default = node.child_by_field_name("default_value")
    function.pure = body is None and default is not None and text_of(default) == "0"
    found = struct.constructors if constructor else struct.methods.setdefault(name, [])
    known = next((one for one in found if _same(one, function)), None)
    if known is not None:  # its declaration, which has the default values
        if body is not None:
            for old, new in zip(known.parameters, function.parameters, strict=True):
                new.default = new.default if new.default is not None else old.default
            function.static, function.virtual = known.static, known.virtual
            function.python = known.python
            found[found.index(known)] = function
        return
    function.python = _python(unit, struct, function, name)
    found.append(function)


def _works(body: Any) -> bool:
    """Whether a destructor does more than to free memory."""
    calls = [one.child_by_field_name("function") for one in nodes_in(body) if one.type == "call_expression"]
    return any(not _FREEING.fullmatch(text_of(one).rsplit("::", 1)[-1]) for one in calls) or any(
        one.type in ("update_expression", "for_statement")
        or (one.type == "assignment_expression" and text_of(one.child_by_field_name("right")) not in ("nullptr", "0"))
        for one in nodes_in(body)
    )


def _is(type_: Type, struct: Struct) -> bool:
    return type_.kind == "struct" and type_.struct == struct.python


def _same(a: Function, b: Function) -> bool:
    return (
        a.const == b.const
        and len(a.template) == len(b.template)
        and [str(t.plain(one.type)) for one in a.parameters] == [str(t.plain(one.type)) for one in b.parameters]
    )


def _python(unit: Unit, struct: Struct, function: Function, name: str) -> str:
    """A name of Python for a method, which is that of a virtual one that it overrides, and of no other."""
    for around in bases(unit, struct)[1:]:
        for one in around.methods.get(name, ()):
            if one.virtual and len(one.parameters) == len(function.parameters):
                function.virtual = True
                return one.python
    base = CONSTRUCTOR if function.constructor else operator_name(name) if name.startswith("operator") else name
    base = base + "_" if base in RESERVED or hasattr(cpp.Struct, base) else base
    every = bases(unit, struct)
    taken = {one.python for each in every for one in each.functions} | {name for each in every for name in each.fields}
    made, k = base, 1
    while made in taken:
        k += 1
        made = f"{base}_{k}"
    return made


def settle(unit: Unit) -> None:
    """Give structs whose members are made for each object a constructor, and list the methods of all."""
    for struct in unit.structs.values():
        if not struct.constructors and _needed(unit, struct):
            one = Function(struct.name, CONSTRUCTOR, path=struct.path, lines=[struct.line], unit=unit, owner=struct)
            one.constructor = True
            struct.constructors.append(one)
    unit.methods = {}
    for struct in unit.structs.values():
        for name, found in struct.methods.items():
            unit.methods.setdefault(name, []).extend(found)


def same_functions(some: list[Function], others: list[Function]) -> bool:
    """Whether functions have the same names in Python, parameters and results, but for those of templates."""
    return len(some) == len(others) and all(
        (a.python, a.static, len(a.template), a.rebinds) == (b.python, b.static, len(b.template), b.rebinds)
        and len(a.parameters) == len(b.parameters)
        and _alike(a.returns, b.returns)
        and all(_alike(p.type, q.type) for p, q in zip(a.parameters, b.parameters, strict=True))
        for a, b in zip(some, others, strict=True)
    )


def _alike(a: Type, b: Type) -> bool:
    """Whether types mean the same to a translation: lengths of arrays do not matter, nor which parameter is meant."""
    if a.kind != b.kind or (a.reference, a.const) != (b.reference, b.const) or len(a.of) != len(b.of):
        return False
    if a.kind == "struct":
        return a.struct == b.struct
    return (a.kind in ("array", "param") or a.name == b.name) and all(map(_alike, a.of, b.of))


def alike(template: Struct, one: Struct) -> bool:
    """Whether objects of a specialization are used as those of its template are: by the same members."""
    return (
        not (one.reason or one.special or one.base or template.base)
        and list(template.fields) == list(one.fields)
        and all(_alike(template.fields[name], one.fields[name]) for name in one.fields)
        and template.aliases.keys() == one.aliases.keys()
        and not (template.aliases or template.constants or one.constants)
        and same_functions(template.constructors, one.constructors)
    )


def _needed(unit: Unit, struct: Struct, seen: tuple[str, ...] = ()) -> bool:
    """Whether an object without a constructor of its own has members that are made for each object."""
    if struct.constructors or struct.initial:
        return True
    if struct.python in seen:
        return False
    by_class = {one.python: one for one in unit.structs.values()}
    inside = [type_ for type_ in struct.fields.values()]
    while any(one.kind in ("array", "vector") for one in inside):
        inside = [one.item if one.kind in ("array", "vector") else one for one in inside]
    parts = [by_class.get(one.struct) for one in inside if one.kind == "struct"]
    parts += bases(unit, struct)[1:2]
    return any(one is not None and _needed(unit, one, (*seen, struct.python)) for one in parts)
