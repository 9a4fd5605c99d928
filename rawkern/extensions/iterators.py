"""Iterators: a container and a place in it."""

from __future__ import annotations

from typing import Any

from rawkern.extensions import types as t
from rawkern.extensions.context import Context, short
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value


def part_of(begin: Value, end: Value) -> str:
    """The part of a container between two iterators."""
    if begin.code != end.code:
        raise NotTranslated("iterators of two containers")
    start = "" if begin.extra == "0" else begin.extra
    stop = "" if end.extra == f"len({end.code})" else end.extra
    return f"{begin.code}[{start}:{stop}]"


def inserted(place: Value, values: str) -> str:
    """The call of a list that inserts values before an iterator."""
    if place.extra == f"len({place.code})":
        return f"extend({values})"
    return f"__setitem__(slice({place.extra}, {place.extra}), {values})"


def between(f: Context, node: Any, operator: str, a: Value, b: Value) -> Value:
    """Arithmetic and comparisons of iterators."""
    if a.type.kind == b.type.kind and a.code == b.code:
        if operator in ("==", "!=", "<", ">", "<=", ">="):
            return Value(f"({a.extra} {operator} {b.extra})", t.BOOL)
        if operator == "-":
            return Value(f"({a.extra} - {b.extra})", t.INT64)
    if operator in "+-" and a.type.kind == "iterator" and b.type.integral:
        place = f"{b.code}" if a.extra == "0" and operator == "+" else f"({a.extra} {operator} {b.code})"
        return Value(a.code, a.type, extra=place)
    raise NotTranslated(f"`{short(node)}` of iterators", node)
