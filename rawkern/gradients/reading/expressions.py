"""Expressions of a kernel to values; whatever is not on the lists here is refused."""

from __future__ import annotations

import re
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.ir import Block, If, Value
from rawkern.gradients.reading.arithmetic import Arithmetic
from rawkern.gradients.reading.places import Local, Pointer
from rawkern.gradients.reading.syntax import named, text_of

FULL = re.compile(r"-1|~0[uU]?|0[xX][fF]{8}[uUlL]*")
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
SHUFFLES = {"__shfl_xor_sync": "xor", "__shfl_down_sync": "down", "__shfl_up_sync": "up", "__shfl_sync": "idx"}


class Expressions(Arithmetic):
    """Values of expressions, put into the block at hand."""

    # Expressions --------------------------------------------------------------------------------------------------

    def expression(self, node: Any) -> Any:
        """The value of an expression: a `Value`, a `Pointer`, or a `Var` for an aggregate."""
        handler = getattr(self, f"on_{node.type}", None)
        if handler is None:
            raise self.refuse(node, f"{text_of(node)!r} ({node.type.replace('_', ' ')}) is not known here",
                              "write it in simpler terms")  # fmt: skip
        return handler(node)

    def on_parenthesized_expression(self, node: Any) -> Any:
        return self.expression(named(node)[0])

    def on_number_literal(self, node: Any) -> Value:
        text = text_of(node)
        plain = text.replace("'", "").lstrip("+-")  # the grammar takes a sign for a part of the number
        sign = -1 if text.startswith("-") else 1
        if re.fullmatch(r"(0[xX][\da-fA-F]+|\d+)([uUlL]*)", plain):
            digits = re.sub(r"[uUlL]*\Z", "", plain)
            number = int(digits, 16) if digits[:2] in ("0x", "0X") else int(digits, 8 if digits[0] == "0" else 10)
            suffix = plain[len(digits) :].lower()
            wide = "ll" in suffix or suffix.count("l") == 1 or number > (0xFFFFFFFF if "u" in suffix else 0x7FFFFFFF)
            unsigned = "u" in suffix or (digits[:2] in ("0x", "0X") and 0x7FFFFFFF < number <= 0xFFFFFFFF)
            wide = wide and not (unsigned and number <= 0xFFFFFFFF and "l" not in suffix)
            kind = ("unsigned " if unsigned else "") + ("long long" if wide else "int")
            known = None if sign < 0 and unsigned else sign * number
            return self.value(node, kind, "const", attr=text, const=known)
        if re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fF]?", plain):
            return self.value(node, "float" if plain[-1] in "fF" else "double", "const", attr=text)
        raise self.refuse(node, f"the number {text} is not known", "write it in decimal")

    def on_true(self, node: Any) -> Value:
        return self.value(node, "bool", "const", attr="true", const=1)

    def on_false(self, node: Any) -> Value:
        return self.value(node, "bool", "const", attr="false", const=0)

    def on_identifier(self, node: Any) -> Any:
        name = text_of(node)
        if name in self.file.unclear:
            raise self.refuse(node, f"{name} is defined more than once, or within something that is not followed",
                              "give it a name of its own")  # fmt: skip
        var = self.lookup(name)
        if var is not None:
            return self.read(node, var)
        if name in self.file.constants:
            kind, value = self.file.constants[name]
            return self.within_top(lambda: self.converted(node, self.scalar(value), self.scalar_type(kind)))
        if name in self.file.enumerators:
            number = self.file.enumerators[name]
            return self.value(node, "int", "const", attr=str(number), const=number)
        if name == "warpSize":
            return self.value(node, "int", "const", attr="32", const=32)
        if name in CONSTANTS:
            text = CONSTANTS[name]
            single = text.endswith(("f", "INFINITY"))
            return self.value(node, "float" if single else "double", "const", attr=text)
        raise self.refuse(node, f"{name} is not known", "declare it in the kernel, or as a macro or const beside it")

    def on_unary_expression(self, node: Any) -> Any:
        sign = text_of(node.child_by_field_name("operator"))
        own = self.operated(node, sign, [node.child_by_field_name("argument")])
        if own is not None:
            return own
        found = self.expression(node.child_by_field_name("argument"))
        if sign == "!" and isinstance(found, Pointer):
            return self.null(node, found, "==")
        value = self.number(node, found)
        if sign == "!":
            return self.value(
                node, "bool", "unary", (value,), "!", const=None if value.const is None else int(not value.const)
            )
        kind = types.promoted(value.type)
        if sign not in ("-", "+", "~") or (sign == "~" and types.is_float(kind)):
            raise self.refuse(node, f"the operator {sign} is not known", "write it in simpler terms")
        if kind in types.HALVES:
            return self.halves(node, kind, lambda x: self.value(node, "float", "unary", (x,), sign), value)
        value = self.converted(node, value, kind)
        const = -value.const if sign == "-" and value.const is not None and not kind.startswith("unsigned") else None
        return value if sign == "+" else self.value(node, kind, "unary", (value,), sign, const=const)

    def on_binary_expression(self, node: Any) -> Any:
        sign = text_of(node.child_by_field_name("operator"))
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if sign in ("&&", "||"):
            return self.logical(node, sign, left, right)
        own = self.operated(node, sign, [left, right])
        if own is not None:
            return own
        if sign in ("==", "!=") and "null" in (left.type, right.type):
            return self.null(node, self.expression(right if left.type == "null" else left), sign)
        a, b = self.expression(left), self.expression(right)
        a, b = self.as_pointer(a), self.as_pointer(b)
        if isinstance(b, Pointer | Local) and isinstance(a, Value) and sign == "+":
            a, b = b, a
        if isinstance(a, Pointer | Local) and isinstance(b, Value) and sign in "+-":
            return self.moved(node, a, b, sign)
        pairs = self.operate(node, sign, a, b)
        if pairs is not None:
            return pairs
        if not isinstance(a, Value) or not isinstance(b, Value):
            raise self.refuse(
                node, f"{text_of(node)!r} computes with what is no number", "write its elements one by one"
            )
        return self.binary(node, sign, a, b)

    def logical(self, node: Any, sign: str, left: Any, right: Any) -> Value:
        """``&&`` and ``||``: the right side is a branch of its own where it does more than compute."""
        a = self.test(left)
        inner = Block()
        made = If(node.start_point[0] + 1, self.block, condition=a)
        b = self.alone(right, inner, lambda: self.test(right))
        if all(isinstance(i, Value) and i.op not in ("load", "shfl", "result") for i in inner.items):
            for item in inner.items:
                item.block = self.block
            self.block.items += inner.items
            const = (
                None
                if a.const is None or b.const is None
                else int(bool(a.const and b.const if sign == "&&" else a.const or b.const))
            )
            return self.value(node, "bool", "binary", (a, b), sign, const=const)
        inner.parent = made
        empty = Block(parent=made)
        fixed = self.within(empty, lambda: self.value(node, "bool", "const", attr="false" if sign == "&&" else "true"))
        made.then, made.other = (inner, empty) if sign == "&&" else (empty, inner)
        self.block.items.append(made)
        result = self.value(node, "bool", "result", attr=made)
        made.results.append((result, b, fixed) if sign == "&&" else (result, fixed, b))
        return result

    def on_conditional_expression(self, node: Any) -> Any:
        parts = [node.child_by_field_name(f) for f in ("condition", "consequence", "alternative")]
        condition = self.test(parts[0])
        made = If(node.start_point[0] + 1, self.block, condition=condition)
        then, other = Block(parent=made), Block(parent=made)
        a = self.alone(node, then, lambda: self.scalar(parts[1]))
        b = self.alone(node, other, lambda: self.scalar(parts[2]))
        kind = types.common(a.type, b.type) if a.type != b.type else a.type
        a = self.within(then, lambda: self.converted(node, a, kind))
        b = self.within(other, lambda: self.converted(node, b, kind))
        items = [*then.items, *other.items]
        if all(isinstance(i, Value) and i.op not in ("load", "shfl", "result", "call") for i in items):
            for item in items:
                item.block = self.block
            self.block.items += items
            const = None if condition.const is None else (a if condition.const else b).const
            return self.value(node, kind, "select", (condition, a, b), const=const)
        made.then, made.other = then, other
        self.block.items.append(made)
        result = self.value(node, kind, "result", attr=made)
        made.results.append((result, a, b))
        return result

    # Calls that compute -------------------------------------------------------------------------------------------
