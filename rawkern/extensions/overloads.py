"""Which of several functions of one name a call means."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import text_of
from rawkern.extensions.context import short
from rawkern.extensions.program import Function
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value


def chosen(node: Any, functions: list[Function], given: list[Any], values: list[Value]) -> Function:
    """The overload that a call means."""
    fitting = [
        one
        for one in functions
        if not one.specializes  # its template tells
        if sum(p.default is None for p in one.parameters) <= len(values)
        if len(values) <= len(one.parameters) or one.variadic or one.pack
        if len(given) <= len(one.template) or not given
        if not given or one.template
    ]
    if not fitting:
        raise NotTranslated(f"`{short(node)}`: no {functions[0].name} with these parameters", node)
    if len(fitting) > 1:
        scored = [
            (sum(_fit(p.type, v.type) for p, v in zip(one.parameters, values, strict=False)), one) for one in fitting
        ]
        best = max(score for score, _ in scored)
        fitting = [one for score, one in scored if score == best]
    if len(fitting) > 1 and len({_body(one) for one in fitting}) == 1:  # for constant objects and for others
        return fitting[0]
    if len(fitting) > 1 and len({(one.path, one.line, one.python) for one in fitting}) > 1:
        raise NotTranslated(f"`{short(node)}`: several functions {functions[0].name} fit", node)
    return fitting[0]


def _canonical(type_: Type) -> str:
    """One name for each type of numbers."""
    return type_.name.removeprefix("nv_").removeprefix("__nv_").removeprefix("__").lower()


def _body(one: Function) -> str:
    body = one.node.child_by_field_name("body") if one.node is not None else None
    return text_of(body) if body is not None else ""


def _fit(parameter: Type, value: Type) -> int:
    if parameter.kind == value.kind == "struct":
        return 3 if parameter.struct == value.struct else 1
    if parameter.kind == value.kind == "pointer":
        a, b = parameter.item, value.item
        if a.number and b.number and "param" not in (a.kind, b.kind):
            return 3 if _canonical(a) == _canonical(b) else -5
        return 1 if a.kind in ("void", "param", "any", "opaque") and a != b else 2
    if parameter.kind == value.kind:
        return 3 if parameter.name == value.name or not parameter.name else 2
    if parameter.kind in ("param", "auto", "any", "opaque"):
        return 1
    if parameter.number and value.number:
        return 1
    if parameter.kind == "optional" and value.kind in ("nothing", parameter.item.kind):
        return 1
    if parameter.kind in ("vector", "sizes", "tuple") and value.kind in ("list", "vector", "sizes"):
        return 1
    if parameter.kind == "pointer" and value.kind in ("null", "kernel"):
        return 1
    return -5
