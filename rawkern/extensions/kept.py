"""Variables that keep their values between calls: those of a file, and static ones of a function."""

from __future__ import annotations

from typing import Any

from rawkern.extensions import types as t
from rawkern.extensions.construction import construct, default_of, fitting
from rawkern.extensions.context import OF_MODULE, Context, Variable, short
from rawkern.extensions.program import Function, Unit
from rawkern.extensions.spelling import declared_type
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value

_KINDS = {"int", "float", "bool", "string", "tensor", "vector", "map", "struct", "pointer", "optional", "properties"}


def _first(f: Context, node: Any, type_: Type, value: Any) -> tuple[Type, Value]:
    """The type and the first value of a variable."""
    if value is None:
        found = default_of(f, node, type_)
    elif value.type in ("argument_list", "initializer_list") and type_.kind != "auto":
        values = [f.value(one) for one in value.named_children if one.type != "comment"]
        found = construct(f, node, type_, values, braces=value.type == "initializer_list")
    else:
        found = f.value(value)
    type_ = t.plain(found.type if type_.kind == "auto" else type_)
    if type_.kind not in _KINDS:
        raise NotTranslated(f"`{short(node)}`: a variable of {type_} that keeps its value", node)
    return type_, fitting(f, node, found, type_)


def declare_static(f: Context, name: str, type_: Type, value: Any, node: Any) -> None:
    """Declare a static variable of a function: it gets its first value when the function comes there first."""
    if f.depth or f.function.template:
        raise NotTranslated(f"`{short(node)}`: a static variable of a lambda or template", node)
    python = f"{f.function.python}_{name}".lstrip("_")
    if python in f.unit.definitions or python in f.globals:
        raise NotTranslated(f"`{short(node)}`: a second static variable of this name", node)
    f.unit.definitions[python] = "None"
    variable = Variable(python, type_, depth=OF_MODULE)
    f.writes(variable)
    with f.block(f"if {python} is None:"):
        variable.type, first = _first(f, node, type_, value)
        f.emit(f"{python} = {first.code}")
    f.scopes[-1][name] = variable


def read_variable(unit: Unit, name: str, python: str, node: Any, declarator: Any, value: Any) -> None:
    """Read a variable of a file."""
    f = Context(unit, Function(name, ""))
    type_, first = _first(f, node, declared_type(f, node.child_by_field_name("type"), declarator, node), value)
    if f.out:
        raise NotTranslated(f"`{short(node)}`: its initial value", node)
    unit.variables[name] = Variable(python, type_, depth=OF_MODULE)
    unit.late[python] = first.code
