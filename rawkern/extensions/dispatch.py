"""Dispatch macros: AT_DISPATCH_* as a choice of the type that instances are named with."""

from __future__ import annotations

import re
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.context import Context, short
from rawkern.extensions.lambdas import call_lambda, define_lambda, in_place
from rawkern.extensions.syntax import lambda_of
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value

_FLOATING, _INTEGRAL = ["float64", "float32"], ["uint8", "int8", "int32", "int64", "int16"]
_COMPLEX = ["complex128", "complex64"]
_SETS = {
    "FLOATING_TYPES": _FLOATING, "INTEGRAL_TYPES": _INTEGRAL, "ALL_TYPES": _INTEGRAL + _FLOATING,
    "COMPLEX_TYPES": _COMPLEX, "FLOATING_AND_COMPLEX_TYPES": _FLOATING + _COMPLEX,
    "ALL_TYPES_AND_COMPLEX": _INTEGRAL + _FLOATING + _COMPLEX, "INDEX_TYPES": ["int32", "int64"],
    "REDUCED_FLOATING_TYPES": ["float16", "bfloat16"], "FLOAT8_TYPES": ["float8_e5m2", "float8_e4m3fn"],
}  # fmt: skip
_NAME = re.compile(r"AT_DISPATCH_(CASE_)?(\w+?)(?:_AND(\d?)|_AND_HALF)?\Z")


def is_dispatch(name: str) -> bool:
    return name.startswith("AT_DISPATCH_") and not name.startswith("AT_DISPATCH_CASE")


def _types(f: Context, node: Any, name: str, arguments: list[Any]) -> tuple[list[str], list[Any]]:
    """The dtypes of a macro by its name, and its arguments after the additional ones."""
    match = _NAME.match(name)
    assert match is not None
    base, count = match[2], match[3]
    found: list[str] = []
    if name.endswith("_AND_HALF"):
        found = ["float16"]
    elif count is not None:
        extra = int(count or 1)
        for one in arguments[:extra]:
            value = f.value(one)
            if value.type.kind != "dtype":
                raise NotTranslated(f"`{short(one)}`: a type of {name}", node)
            found.append(value.code.removeprefix("torch."))
        arguments = arguments[extra:]
    if base not in _SETS:
        raise NotTranslated(f"the macro {name}", node)
    return [f"torch.{one}" for one in [*_SETS[base], *found]], arguments


def dispatched(f: Context, node: Any, name: str, how: str) -> Value | None:
    """A dispatch macro; None where it has been written as statements.

    `how` is "place" for a statement, "function" where its value is returned, "value" elsewhere.
    """
    arguments = named(node.child_by_field_name("arguments"))
    if name in ("AT_DISPATCH_SWITCH", "AT_DISPATCH_V2"):
        return _switch(f, node, name, arguments, how)
    types, rest = _types(f, node, name, arguments)
    if len(rest) != 3:
        raise NotTranslated(f"`{short(node)}`: {name} with {len(rest)} arguments after its types", node)
    variable = "index_t" if name == "AT_DISPATCH_INDEX_TYPES" else "scalar_t"
    subject, text = f.value(rest[0]), f.value(rest[1])
    chosen = f"dispatch({text.code}, {subject.code}, {', '.join(types)})"
    return _run(f, node, [(None, rest[2])], chosen, variable, how)


def _switch(f: Context, node: Any, name: str, arguments: list[Any], how: str) -> Value | None:
    if name == "AT_DISPATCH_V2":
        raise NotTranslated("the macro AT_DISPATCH_V2", node)
    subject, text = f.value(arguments[0]), f.value(arguments[1])
    cases: list[tuple[list[str] | None, Any]] = []
    for one in arguments[2:]:
        called = text_of(one.child_by_field_name("function")) if one.type == "call_expression" else ""
        inner = named(one.child_by_field_name("arguments")) if called else []
        if called == "AT_DISPATCH_CASE":
            cases.append(([f.value(inner[0]).code], inner[1]))
        elif called.startswith("AT_DISPATCH_CASE_"):
            types, rest = _types(f, node, called, inner)
            cases.append((types, rest[-1]))
        else:
            raise NotTranslated(f"`{short(one)}` in AT_DISPATCH_SWITCH", one)
    every = [code for codes, _ in cases for code in codes or ()]
    chosen = f"dispatch({text.code}, {subject.code}, {', '.join(every)})"
    bodies = {text_of(one) for _, one in cases}
    if len(bodies) == 1:
        return _run(f, node, [(None, cases[0][1])], chosen, "scalar_t", how)
    return _run(f, node, cases, chosen, "scalar_t", how)


def _run(
    f: Context, node: Any, cases: list[tuple[list[str] | None, Any]], chosen: str, variable: str, how: str
) -> Value | None:
    with f.scope():
        made = f.declare(variable, t.ANY, kind="type")
        made.type = Type("param", made.python)
        if len(cases) == 1 and how != "value":
            body = lambda_of(cases[0][1])
            if body is not None:
                at, temporaries = len(f.out), f.temporaries
                f.emit(f"{made.python} = {chosen}")
                if in_place(f, body, how):
                    return None
                del f.out[at:]
                f.temporaries = temporaries
        f.emit(f"{made.python} = {chosen}")
        found = Value("None", t.VOID)
        for k, (codes, one) in enumerate(cases):
            if codes is None:
                return _call(f, node, one)
            word = "if" if k == 0 else "elif"
            test = " or ".join(f"dtype_of({made.python}) == {code}" for code in codes)
            with f.block(f"{word} {test}:"):
                body = lambda_of(one)
                if how == "value":
                    raise NotTranslated(f"`{short(node)}` as a value", node)
                if body is not None and in_place(f, body, how):
                    continue
                found = _call(f, node, one)
                f.emit(found.code if how == "place" else f"return {found.code}")
        return None


def _call(f: Context, node: Any, one: Any) -> Value:
    """A call of the lambda of a dispatch."""
    body = lambda_of(one)
    if body is not None:
        variable = define_lambda(f, f.temporary("body"), body)
    else:
        found = f.find(text_of(one)) if one.type == "identifier" else None
        if found is None or found.kind != "function":
            raise NotTranslated(f"`{short(one)}` as the body of a dispatch", node)
        variable = found
    return call_lambda(f, node, variable, [])
