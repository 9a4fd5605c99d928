"""CUDA's functions of half precision: computed as float and rounded, so that the table of derivatives has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.memory import read
from rawkern.gradients.reading.order import of_values
from rawkern.gradients.reading.places import Var, aggregate
from rawkern.gradients.reading.values import binary, convert, math, rounded
from rawkern.gradients.types import VECTORS, Aggregate

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_TESTS = {"gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!="}
_NAMED = {"max": "fmaxf", "min": "fminf", "fma": "fmaf", "abs": "fabsf", "neg": "neg"}
#: After h and h2.
_FUNCTIONS = ("exp", "exp2", "exp10", "log", "log2", "log10", "sqrt", "rsqrt", "sin", "cos", "tanh", "floor", "ceil",
              "trunc", "rint")  # fmt: skip
#: Conversions, by name: to which type.
_TO = {"__half2float": "float", "__bfloat162float": "float"}
_OF_PAIR = {"__low2float": "float", "__high2float": "float"}
_PAIRS = {"__half22float2": "float2", "__bfloat1622float2": "float2",
          "__float22half2_rn": "__half2", "__float22bfloat162_rn": "__nv_bfloat162"}  # fmt: skip
_TO_PAIR: dict[str, str] = {}
_TO_EQUAL: dict[str, str] = {}
_KINDS = {"half": "__half", "bfloat16": "__nv_bfloat16"}
#: By name: what is computed with floats (an operator, "neg", "rcp" or a function), and whether of both parts of pairs.
_COMPUTED = {
    **{f"h{two}{f}": ("rcp" if f == "rcp" else f"{f}f", bool(two)) for f in (*_FUNCTIONS, "rcp") for two in ("", "2")},
    **{
        f"__h{f}{two}{rn}": (of, bool(two))
        for f, of in {**_SIGNS, **_TESTS, **_NAMED}.items()
        for two in ("", *("2" for _ in range(f not in _TESTS)))
        for rn in ("", "_rn")
    },
}


def _arguments(what: str) -> int:
    return {"fmaf": 3, "fmaxf": 2, "fminf": 2}.get(what) or (1 if what.isalnum() else 2)


for _name, _kind in _KINDS.items():
    _TO.update(dict.fromkeys((f"__{of}2{_name}{rn}" for of in ("float", "double") for rn in ("", "_rn")), _kind))
    _TO_PAIR.update(dict.fromkeys((f"__floats2{_name}2_rn", f"__halves2{_name}2"), _kind))
    _TO_EQUAL.update(dict.fromkeys((f"__float2{_name}2_rn", f"__{_name}2{_name}2"), _kind))
    _OF_PAIR.update(dict.fromkeys((f"__low2{_name}", f"__high2{_name}"), _kind))


@of_values(*_TO, arguments=1)
def converted(ctx: Context, node: Any, name: str, value: Any) -> Value:
    return convert(ctx, node, _one(ctx, node, value), _TO[name])


@of_values(*_PAIRS, arguments=1)
def converted_pair(ctx: Context, node: Any, name: str, value: Any) -> Var:
    return _pair(ctx, node, VECTORS[_PAIRS[name]], *_parts(ctx, node, value))


@of_values(*_TO_PAIR, arguments=2)
def pair(ctx: Context, node: Any, name: str, x: Any, y: Any) -> Var:
    return _pair(ctx, node, VECTORS[f"{_TO_PAIR[name]}2"], x, y)


@of_values(*_TO_EQUAL, arguments=1)
def pair_of_equals(ctx: Context, node: Any, name: str, value: Any) -> Var:
    return _pair(ctx, node, VECTORS[f"{_TO_EQUAL[name]}2"], value, value)


@of_values(*_OF_PAIR, arguments=1)
def one_of_pair(ctx: Context, node: Any, name: str, value: Any) -> Value:
    return convert(ctx, node, _parts(ctx, node, value)["high" in name], _OF_PAIR[name])


def _computed(ctx: Context, node: Any, name: str, *args: Any) -> Any:
    what, pairs = _COMPUTED[name]
    if what == "neg":
        return _each(ctx, node, pairs, lambda a: ctx.value(node, "float", "unary", (a,), "-"), args)
    if not what.isalnum():
        return _each(ctx, node, pairs, lambda a, b: binary(ctx, node, what, a, b), args)
    return _each(ctx, node, pairs, lambda *each: _by_name(ctx, node, what, list(each)), args)


for _name, (_what, _) in _COMPUTED.items():
    of_values(_name, arguments=_arguments(_what))(_computed)


def _by_name(ctx: Context, node: Any, name: str, args: list[Value]) -> Value:
    if name == "rcp":
        return binary(ctx, node, "/", ctx.value(node, "float", "const", attr="1.0f"), args[0])
    found = math(ctx, node, name, args)
    assert found is not None, name
    return found


def _each(ctx: Context, node: Any, pairs: bool, compute: Callable[..., Value], args: Sequence[Any]) -> Any:
    """Compute with numbers of half precision, or with both parts of pairs."""
    if not pairs:
        values = [_one(ctx, node, a) for a in args]
        kinds = {v.type for v in values}
        if len(kinds) != 1 or not kinds & set(types.HALVES):
            raise ctx.refuse(node, f"{text_of(node)!r} of {' and '.join(sorted(kinds))}", "convert the arguments")
        return rounded(ctx, node, kinds.pop(), compute, *values)
    kind = args[0].type if isinstance(args[0], Var) else None
    parts = [_parts(ctx, node, a) for a in args]
    if not isinstance(kind, Aggregate) or any(getattr(a, "type", None) != kind for a in args):
        raise ctx.refuse(node, f"{text_of(node)!r} of several types", "convert the arguments")
    half = parts[0][0].type
    return _pair(ctx, node, kind, *(rounded(ctx, node, half, compute, *each) for each in zip(*parts, strict=True)))


def of_pairs(ctx: Context, node: Any, sign: str, a: Any, b: Any) -> Any:
    """An operator on pairs of half precision; None for others."""
    if not (isinstance(a, Var) and isinstance(b, Var) and sign in _SIGNS.values()):
        return None
    pairs = {VECTORS["__half2"], VECTORS["__nv_bfloat162"]}
    if a.type != b.type or a.type not in pairs:
        return None
    return _each(ctx, node, True, lambda x, y: binary(ctx, node, sign, x, y), (a, b))


def _one(ctx: Context, node: Any, value: Any) -> Value:
    if not isinstance(value, Value):
        raise ctx.refuse(node, f"{text_of(node)!r} of what is not a number", "pass a number")
    return value


def _parts(ctx: Context, node: Any, value: Any) -> list[Value]:
    if not isinstance(value, Var) or set(value.fields) != {"x", "y"}:
        raise ctx.refuse(node, f"{text_of(node)!r} of what is not a pair", "pass a value of two numbers")
    return [read(ctx, node, part) for part in value.fields.values()]


def _pair(ctx: Context, node: Any, kind: Aggregate, x: Any, y: Any) -> Var:
    parts = {"x": _one(ctx, node, x), "y": _one(ctx, node, y)}
    return aggregate(kind.name, kind, lambda path, inner: convert(ctx, node, parts[path[0]], inner))
