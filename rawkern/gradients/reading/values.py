"""What is computed with numbers at hand: conversions, operators, functions of the table of rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Value
from rawkern.gradients.ir.folding import OPERATORS, folded
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.places import Pointer
from rawkern.gradients.rules import PAIRS, ROUNDINGS, TESTS, Rule, rule_of, spelled

LITERALS = {"int": "", "unsigned int": "u", "long long": "LL", "unsigned long long": "ULL"}
EXACT = range(2**24 + 1)  # what a float has, too
COMPARISONS = ("<", ">", "<=", ">=", "==", "!=")
_OF_FLOATS = ("+", "-", "*", "/", *COMPARISONS)


def convert(ctx: Context, node: Any, value: Value, kind: str) -> Value:
    """A value as another type; as C does it."""
    if value.type == kind:
        return value
    if kind in types.HALVES:
        value = convert(ctx, node, value, "float")
        return ctx.value(node, kind, "call", (value,), (ROUNDINGS[kind], ROUNDINGS[kind].name))
    if types.is_float(kind):
        if value.op == "const" and value.type in LITERALS and value.const in EXACT:
            return ctx.value(node, kind, "const", attr=f"{value.const}.0{'f' if kind == 'float' else ''}")
        return ctx.value(node, kind, "cast", (value,))
    const = None if value.const is None else _as_integer(value.const, kind)
    if const is not None and value.op == "const" and kind in LITERALS:
        return ctx.value(node, kind, "const", attr=f"{const}{LITERALS[kind]}", const=const)
    return ctx.value(node, kind, "cast", (value,), const=const)


def _as_integer(number: int, kind: str) -> int | None:
    """A known number as another integer type; None where it is not known there."""
    if kind == "bool":
        return int(bool(number))
    if kind == "unsigned int":
        return number & 0xFFFFFFFF
    if number < 0:
        return number if kind in ("int", "long long") and number > -(2**31) else None
    return number if number < 2**31 and types.bits(kind) >= 32 else None


def rounded(ctx: Context, node: Any, kind: str, compute: Callable[..., Value], *args: Value) -> Value:
    """What is computed with a half-precision type: as float, and rounded; tests are of type bool."""
    found = compute(*(convert(ctx, node, a, "float") for a in args))
    return convert(ctx, node, found, kind) if found.type == "float" else found


def binary(ctx: Context, node: Any, sign: str, a: Value, b: Value) -> Value:
    """An operator on two numbers, as C does it."""
    shift = sign in ("<<", ">>")
    kind = types.promoted(a.type) if shift else types.common(a.type, b.type)
    if types.is_float(kind) and sign not in _OF_FLOATS:
        raise ctx.refuse(node, f"the operator {sign} on {kind}", "write it in simpler terms")
    if sign not in OPERATORS:
        raise ctx.refuse(node, f"the operator {sign} is not known", "write it in simpler terms")
    if kind in types.HALVES:
        if any(re.match(r"__CUDA_NO_(HALF|BFLOAT16)_", name) for name in ctx.file.preprocessed.macros):
            raise ctx.refuse(node, f"{sign} of {kind} without operators of it", "convert to float")
        if a.type != b.type:
            raise ctx.refuse(node, f"{sign} of {a.type} and {b.type}", "convert one to the other's type")
        return rounded(ctx, node, kind, lambda x, y: binary(ctx, node, sign, x, y), a, b)
    a = convert(ctx, node, a, kind)
    b = convert(ctx, node, b, types.promoted(b.type) if shift else kind)
    made = "bool" if sign in COMPARISONS else kind
    if types.is_float(kind):
        return ctx.value(node, made, "binary", (a, b), sign)
    const = folded(sign, a.const, b.const, kind)
    if const is not None and made == kind and a.op == b.op == "const" and kind in LITERALS:
        return ctx.value(node, kind, "const", attr=f"{const}{LITERALS[kind]}", const=const)
    same = _unchanged(sign, a, b)
    return same if same is not None else ctx.value(node, made, "binary", (a, b), sign, const=const)


def _unchanged(sign: str, a: Value, b: Value) -> Value | None:
    """The operand that an operator on integers leaves as it is, with a literal 0 or 1 as the other: x + 0, x * 1."""
    left, right = (v.const if v.op == "const" else None for v in (a, b))
    if right == (1 if sign in ("*", "/") else 0) and sign in ("+", "-", "*", "/", "<<", ">>", "|", "^"):
        return a
    if left == (1 if sign == "*" else 0) and sign in ("+", "*", "|", "^"):
        return b
    return next((v for v, n in ((a, left), (b, right)) if n == 0 and sign in ("*", "&")), None)


def test(ctx: Context, node: Any) -> Value:
    """Whether an expression is true; a pointer parameter is where it is not null."""
    found = ctx.expression(node)
    if isinstance(found, Pointer):
        return null(ctx, node, found, "!=")
    return truth(ctx, ctx.number(node, found))


def truth(ctx: Context, value: Value) -> Value:
    """Whether a number is not 0."""
    if types.is_float(value.type) or value.type == "bool":
        return convert(ctx, value.line, value, "bool")
    return binary(ctx, value.line, "!=", value, ctx.integer(value.line, 0))


def null(ctx: Context, node: Any, found: Any, sign: str) -> Value:
    """Whether a pointer parameter is null."""
    if not isinstance(found, Pointer) or found.offset is not None or found.array.shared:
        raise ctx.refuse(node, f"the comparison {text_of(node)!r}", "compare a parameter with nullptr")
    return ctx.value(node, "bool", "special", attr=f"({found.array.name} {sign} nullptr)")


def special(ctx: Context, node: Any, name: str, axis: str) -> Value:
    """threadIdx, blockIdx, blockDim or gridDim along an axis."""
    if axis not in ("x", "y", "z"):
        raise ctx.refuse(node, f"{text_of(node)} is not known", "use x, y or z")
    shape = ctx.settings.block if name in ("threadIdx", "blockDim") else ctx.settings.grid
    extent = shape["xyz".index(axis)]
    const = extent if name in ("blockDim", "gridDim") else 0 if extent == 1 else None
    return ctx.value(node, "unsigned int", "special", attr=f"{name}.{axis}", const=const)


def is_builtin(name: str) -> bool:
    """Whether CUDA has a function of numbers by that name."""
    return rule_of(name) is not None or name in TESTS or name in PAIRS or name in ("min", "max", "abs")


def math(ctx: Context, node: Any, name: str, args: Sequence[Value]) -> Value | None:
    """A call of a function of the table; None for one that is not there."""
    if name in ("max", "min", "abs") and args and not any(types.is_float(a.type) for a in args):
        kind = args[0].type if len(args) == 1 else types.common(args[0].type, args[1].type)
        return ctx.value(node, kind, "call", tuple(convert(ctx, node, a, kind) for a in args), name)
    if len(args) == 2 and name in PAIRS:
        return ctx.value(node, PAIRS[name], "call", tuple(args), name)
    if len(args) == 1 and name in TESTS:
        return ctx.value(node, TESTS[name], "call", tuple(args), name)
    found = rule_of(name)
    if found is None:
        return None
    rule, kind = found
    if len(args) != len(rule.derivatives):
        raise ctx.refuse(node, f"{name} takes {len(rule.derivatives)} arguments", "see CUDA's manual")
    kind = kind or _overload(ctx, node, name, rule, args)
    given = tuple(convert(ctx, node, a, "int" if k == rule.whole else kind) for k, a in enumerate(args))
    text = name if kind == "float" and name.startswith("__") else spelled(rule, kind)
    return ctx.value(node, kind, "call", given, (rule, text))


def _overload(ctx: Context, node: Any, name: str, rule: Rule, args: Sequence[Value]) -> str:
    """The floating type that C++ takes a function for that has several."""
    kinds = {a.type for k, a in enumerate(args) if k != rule.whole}
    if kinds == {"float"} or "double" in kinds:
        return "float" if kinds == {"float"} else "double"
    way_out = "convert the arguments to float"
    if name in ("max", "min", "pow", "abs") or not kinds & {"float"}:
        way_out = "convert the arguments to one floating type"
    raise ctx.refuse(node, f"{name} of {' and '.join(sorted(kinds))}", way_out)
