"""Expressions of a kernel to values."""

from __future__ import annotations

import re
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import FIXED, Block, If, Value
from rawkern.gradients.reading.branching import alone, change, merged
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.groups import group_index
from rawkern.gradients.reading.halves import of_pairs
from rawkern.gradients.reading.handlers import expressions
from rawkern.gradients.reading.memory import read, taken, valued
from rawkern.gradients.reading.methods import operated
from rawkern.gradients.reading.objects import constant, member_constant
from rawkern.gradients.reading.order import apart
from rawkern.gradients.reading.places import Local, Pointer, as_pointer, one_array
from rawkern.gradients.reading.pointers import advance, offset
from rawkern.gradients.reading.values import COMPARISONS, binary, convert, null, rounded, special, test

#: Macros of C's and CUDA's headers.
CONSTANTS = {
    "INFINITY": "INFINITY", "HUGE_VALF": "INFINITY", "CUDART_INF_F": "INFINITY", "FLT_MAX": "3.402823466e+38f",
    "FLT_MIN": "1.175494351e-38f", "FLT_EPSILON": "1.192092896e-07f", "DBL_MAX": "1.7976931348623157e+308",
    "DBL_MIN": "2.2250738585072014e-308", "DBL_EPSILON": "2.2204460492503131e-16",
    "M_PI": "3.14159265358979323846", "M_PI_2": "1.57079632679489661923", "M_PI_4": "0.78539816339744830962",
    "M_1_PI": "0.31830988618379067154", "M_2_PI": "0.63661977236758134308", "M_2_SQRTPI": "1.12837916709551257390",
    "M_SQRT2": "1.41421356237309504880", "M_SQRT1_2": "0.70710678118654752440", "M_E": "2.7182818284590452354",
    "M_LN2": "0.69314718055994530942", "M_LN10": "2.30258509299404568402", "M_LOG2E": "1.4426950408889634074",
    "M_LOG10E": "0.43429448190325182765", "CUDART_PI_F": "3.141592654f", "CUDART_PI": "3.1415926535897931e+0",
}  # fmt: skip
SPECIAL = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_INTEGER = re.compile(r"(0[xX][\da-fA-F]+|\d+)([uUlL]*)")
_FLOAT = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fF]?")

# Literals and names -----------------------------------------------------------------------------------------------


@expressions("parenthesized_expression")
def parenthesized_expression(ctx: Context, node: Any) -> Any:
    return ctx.expression(named(node)[0])


@expressions("number_literal")
def number_literal(ctx: Context, node: Any) -> Value:
    text = text_of(node)
    plain = text.replace("'", "").lstrip("+-")  # the grammar takes a sign for a part of the number
    found = _INTEGER.fullmatch(plain)
    if found is not None:
        number, kind = _integer(found[1], found[2].lower())
        negative = text.startswith("-")
        known = None if negative and kind.startswith("unsigned") else -number if negative else number
        return ctx.value(node, kind, "const", attr=text, const=known)
    if _FLOAT.fullmatch(plain):
        return ctx.value(node, "float" if plain[-1] in "fF" else "double", "const", attr=text)
    raise ctx.refuse(node, f"the number {text} is not known", "write it in decimal")


def _integer(digits: str, suffix: str) -> tuple[int, str]:
    """A literal's number and type."""
    hexadecimal = digits[:2] in ("0x", "0X")
    number = int(digits, 16 if hexadecimal else 8 if digits[0] == "0" else 10)
    unsigned = "u" in suffix or (hexadecimal and 0x7FFFFFFF < number <= 0xFFFFFFFF)
    wide = "l" in suffix or number > (0xFFFFFFFF if unsigned else 0x7FFFFFFF)
    return number, ("unsigned " if unsigned else "") + ("long long" if wide else "int")


@expressions("true", "false")
def boolean_literal(ctx: Context, node: Any) -> Value:
    return ctx.boolean(node, node.type == "true")


@expressions("identifier")
def identifier(ctx: Context, node: Any) -> Any:
    name, file = text_of(node), ctx.file
    if name in file.unclear:
        raise ctx.refuse(node, f"{name} is defined more than once, or within something that is not followed",
                         "give it a name of its own")  # fmt: skip
    var = ctx.lookup(name)
    if var is not None:
        return read(ctx, node, var)
    if ctx.struct is not None and name in ctx.struct.constants:
        return member_constant(ctx, node, ctx.struct, name)
    if name in file.constants:
        return ctx.within_top(lambda: constant(ctx, node, *file.constants[name]))
    if name in file.enumerators or name == "warpSize":
        return ctx.integer(node, file.enumerators.get(name, 32))
    if name in CONSTANTS:
        text = CONSTANTS[name]
        single = text.endswith(("f", "INFINITY"))
        return ctx.value(node, "float" if single else "double", "const", attr=text)
    raise ctx.refuse(node, f"{name} is not known", "declare it in the kernel, or as a macro or const beside it")


@expressions("field_expression")
def field_expression(ctx: Context, node: Any) -> Any:
    argument, name = node.child_by_field_name("argument"), text_of(node.child_by_field_name("field"))
    index = group_index(ctx, node, argument, name)
    if index is not None:
        return index
    if {text_of(argument), name} & ctx.file.unclear:
        raise ctx.refuse(node, f"{text_of(node)} has a part that is a macro", "give the macro another name")
    if argument.type == "identifier" and text_of(argument) in SPECIAL and ctx.lookup(text_of(argument)) is None:
        return special(ctx, node, text_of(argument), name)
    return read(ctx, node, ctx.place(node))


# Operators --------------------------------------------------------------------------------------------------------


@expressions("unary_expression")
def unary_expression(ctx: Context, node: Any) -> Any:
    sign = text_of(node.child_by_field_name("operator"))
    given = ctx.given(node.child_by_field_name("argument"))
    own = operated(ctx, node, sign, [given])
    if own is not None:
        return valued(ctx, node, own[0])
    found = taken(ctx, given)
    if sign == "!" and isinstance(found, Pointer):
        return null(ctx, node, found, "==")
    return _unary(ctx, node, sign, ctx.number(node, found))


def _unary(ctx: Context, node: Any, sign: str, value: Value) -> Value:
    if sign == "!":
        known = None if value.const is None else int(not value.const)
        return ctx.value(node, "bool", "unary", (value,), "!", const=known)
    kind = types.promoted(value.type)
    if sign not in ("-", "+", "~") or (sign == "~" and types.is_float(kind)):
        raise ctx.refuse(node, f"the operator {sign} is not known", "write it in simpler terms")
    if kind in types.HALVES:
        return rounded(ctx, node, kind, lambda x: ctx.value(node, "float", "unary", (x,), sign), value)
    value = convert(ctx, node, value, kind)
    const = None
    if value.const is not None and sign == "-" and not kind.startswith("unsigned"):
        const = -value.const
    elif value.const is not None and sign == "~" and kind in ("int", "unsigned int"):
        const = ~value.const if kind == "int" else ~value.const & 0xFFFFFFFF
    return value if sign == "+" else ctx.value(node, kind, "unary", (value,), sign, const=const)


@expressions("binary_expression")
def binary_expression(ctx: Context, node: Any) -> Any:
    sign = text_of(node.child_by_field_name("operator"))
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if sign in ("&&", "||"):
        return _logical(ctx, node, sign, left, right)
    if sign in ("==", "!=") and "null" in (left.type, right.type):
        return null(ctx, node, ctx.expression(right if left.type == "null" else left), sign)
    args = apart(ctx, node, (left, right), ctx.given)
    own = operated(ctx, node, sign, args)
    if own is not None:
        return valued(ctx, node, own[0])
    a, b = (as_pointer(taken(ctx, each)) for each in args)
    if isinstance(a, Value) and isinstance(b, Value):
        return binary(ctx, node, sign, a, b)
    if isinstance(b, Pointer | Local) and isinstance(a, Value) and sign == "+":
        a, b = b, a
    if isinstance(a, Pointer | Local) and isinstance(b, Value) and sign in "+-":
        return advance(ctx, node, a, b, sign)
    if one_array(a, b) and sign in COMPARISONS:
        return binary(ctx, node, sign, offset(ctx, node, a), offset(ctx, node, b))
    pairs = of_pairs(ctx, node, sign, a, b)
    if pairs is None:
        raise ctx.refuse(node, f"{text_of(node)!r} computes with what is not a number", "write its elements one by one")
    return pairs


def _logical(ctx: Context, node: Any, sign: str, left: Any, right: Any) -> Value:
    """``&&`` and ``||``: the right side is a branch of its own where it does more than compute."""
    a, decides = test(ctx, left), sign == "||"
    if a.const is not None:
        return a if bool(a.const) == decides else test(ctx, right)
    inner = Block()
    made = If(node.start_point[0] + 1, ctx.block, condition=a)
    b, changed = alone(ctx, inner, lambda: test(ctx, right))
    if not changed and all(isinstance(i, Value) and i.op not in FIXED for i in inner.items):
        _hoist(ctx, inner)
        known = b.const is not None and bool(b.const) == decides
        return ctx.value(node, "bool", "binary", (a, b), sign, const=int(decides) if known else None)
    inner.parent = made
    empty = Block(parent=made)
    fixed = ctx.within(empty, lambda: ctx.boolean(node, decides))
    made.then, made.other = (empty, inner) if decides else (inner, empty)
    ctx.block.items.append(made)
    result = ctx.value(node, "bool", "result", attr=made)
    made.results.append((result, fixed, b) if decides else (result, b, fixed))
    change(ctx, node, made, *(({}, changed) if decides else (changed, {})))
    return result


def _hoist(ctx: Context, *blocks: Block) -> None:
    """Compute here what is in these blocks."""
    for block in blocks:
        for item in block.items:
            item.block = ctx.block
        ctx.block.items += block.items


# ?: ---------------------------------------------------------------------------------------------------------------


@expressions("conditional_expression")
def conditional_expression(ctx: Context, node: Any) -> Any:
    if node.start_byte in ctx.sides:
        return as_pointer(ctx.expression(ctx.sides[node.start_byte]))
    parts = [node.child_by_field_name(f) for f in ("condition", "consequence", "alternative")]
    if None in parts:
        raise ctx.refuse(node, f"{text_of(node)!r} without the value if it holds", "write it between ? and :")
    condition = test(ctx, parts[0])
    if condition.const is not None:
        return _known(ctx, node, parts[1 if condition.const else 2], parts[2 if condition.const else 1])
    if _is_carried(ctx, parts[1]) and parts[2].type != "number_literal":
        # "If not, take the other": so maxima are known.
        condition = ctx.value(node, "bool", "unary", (condition,), "!")
        parts[1:] = parts[:0:-1]
    return _one_of_two(ctx, node, condition, parts[1], parts[2])


def _one_of_two(ctx: Context, node: Any, condition: Value, consequence: Any, alternative: Any) -> Any:
    """A choice: a select where both sides may be computed, else a branch."""
    made = If(node.start_point[0] + 1, ctx.block, condition=condition)
    then, other = Block(parent=made), Block(parent=made)
    a, first = alone(ctx, then, lambda: as_pointer(ctx.expression(consequence)))
    b, second = alone(ctx, other, lambda: as_pointer(ctx.expression(alternative)))
    if isinstance(a, Value) and isinstance(b, Value):
        kind = types.common(a.type, b.type) if a.type != b.type else a.type
        a = ctx.within(then, lambda: convert(ctx, node, a, kind))
        b = ctx.within(other, lambda: convert(ctx, node, b, kind))
    simple = not (first or second) and all(_safe(i) for i in (*then.items, *other.items))
    if simple:
        _hoist(ctx, then, other)
    else:
        made.then, made.other = then, other
        ctx.block.items.append(made)
        change(ctx, node, made, first, second)

    def either(x: Value, y: Value) -> Value:
        if simple:
            return ctx.value(node, x.type, "select", (condition, x, y))
        result = ctx.value(node, x.type, "result", attr=made)
        made.results.append((result, x, y))
        return result

    return merged(ctx, node, a, b, either, lambda side, make: ctx.within(then if side else other, make))


def _is_carried(ctx: Context, node: Any) -> bool:
    """Whether an expression is a variable that a loop carries on, as it was before this iteration."""
    found = ctx.lookup(text_of(node)) if node.type == "identifier" else None
    value = found.value if found is not None else None
    return isinstance(value, Value) and value.op == "phi" and types.is_float(value.type)


def _known(ctx: Context, node: Any, chosen: Any, other: Any) -> Any:
    """A choice that is known when deriving; its type is that of both sides."""
    kind, found = ctx.kind(other), ctx.expression(chosen)
    if isinstance(kind, str) and isinstance(found, Value):
        return convert(ctx, node, found, kind if kind == found.type else types.common(found.type, kind))
    return found


def _safe(item: Any) -> bool:
    """Whether a side that is not taken may be computed, and get 0: not where its slope could be infinite."""
    if not isinstance(item, Value) or item.op in (*FIXED, "call"):
        return False
    if item.op != "binary" or not types.is_float(item.type) or item.attr not in ("*", "/"):
        return True
    return item.args[1].op == "const" or (item.attr == "*" and item.args[0].op == "const")
