"""Expressions of a kernel to values; whatever is not on the lists here is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import FIXED, Block, If, Value
from rawkern.gradients.reading.arithmetic import Arithmetic
from rawkern.gradients.reading.places import Cell, Local, Pointer, Struct, Var
from rawkern.gradients.reading.syntax import WAYS_OUT
from rawkern.gradients.types import Aggregate

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

COMPARISONS = ("<", ">", "<=", ">=", "==", "!=")


class Expressions(Arithmetic):
    """Values of expressions, put into the block at hand."""

    struct: Struct | None  # whose method is read
    sides: dict[int, Any]  # of choices between arrays, by where they begin: the side that is read

    # Expressions --------------------------------------------------------------------------------------------------

    def expression(self, node: Any) -> Any:
        """The value of an expression: a `Value`, a `Pointer`, or a `Var` for an aggregate."""
        handler = getattr(self, f"on_{node.type}", None)
        if handler is None:
            raise self.refuse(node, f"{text_of(node)!r} ({node.type.replace('_', ' ')}) is not known here",
                              WAYS_OUT.get(node.type, "write it in simpler terms"))  # fmt: skip
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
        if self.struct is not None and name in self.struct.constants:
            return self.member_constant(node, self.struct, name)
        if name in self.file.constants:
            return self.within_top(lambda: self.constant(node, *self.file.constants[name]))
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
        given = self.given(node.child_by_field_name("argument"))
        own = self.operated(node, sign, [given])
        if own is not None:
            return self.valued(node, own[0])
        found = self.taken(given)
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
        const = None
        if value.const is not None and sign == "-" and not kind.startswith("unsigned"):
            const = -value.const
        elif value.const is not None and sign == "~" and kind in ("int", "unsigned int"):
            const = ~value.const if kind == "int" else ~value.const & 0xFFFFFFFF
        return value if sign == "+" else self.value(node, kind, "unary", (value,), sign, const=const)

    def on_binary_expression(self, node: Any) -> Any:
        sign = text_of(node.child_by_field_name("operator"))
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if sign in ("&&", "||"):
            return self.logical(node, sign, left, right)
        if sign in ("==", "!=") and "null" in (left.type, right.type):
            return self.null(node, self.expression(right if left.type == "null" else left), sign)
        args = self.apart(node, (left, right), self.given)
        own = self.operated(node, sign, args)
        if own is not None:
            return self.valued(node, own[0])
        a, b = (self.as_pointer(self.taken(each)) for each in args)
        if isinstance(b, Pointer | Local) and isinstance(a, Value) and sign == "+":
            a, b = b, a
        if isinstance(a, Pointer | Local) and isinstance(b, Value) and sign in "+-":
            return self.moved(node, a, b, sign)
        if isinstance(a, Pointer) and isinstance(b, Pointer) and sign in COMPARISONS and self._one_array(a, b):
            return self.binary(node, sign, self.offset(node, a), self.offset(node, b))
        pairs = self.operate(node, sign, a, b)
        if pairs is not None:
            return pairs
        if not isinstance(a, Value) or not isinstance(b, Value):
            raise self.refuse(
                node, f"{text_of(node)!r} computes with what is no number", "write its elements one by one"
            )
        return self.binary(node, sign, a, b)

    @staticmethod
    def _one_array(a: Pointer, b: Pointer) -> bool:
        return replace(a, offset=None) == replace(b, offset=None)

    def logical(self, node: Any, sign: str, left: Any, right: Any) -> Value:
        """``&&`` and ``||``: the right side is a branch of its own where it does more than compute."""
        a = self.test(left)
        if a.const is not None:
            return a if bool(a.const) == (sign == "||") else self.test(right)
        inner = Block()
        made = If(node.start_point[0] + 1, self.block, condition=a)
        b, changed = self.alone(inner, lambda: self.test(right))
        if not changed and all(isinstance(i, Value) and i.op not in FIXED for i in inner.items):
            for item in inner.items:
                item.block = self.block
            self.block.items += inner.items
            decided = b.const is not None and bool(b.const) == (sign == "||")
            return self.value(node, "bool", "binary", (a, b), sign, const=int(sign == "||") if decided else None)
        inner.parent = made
        empty = Block(parent=made)
        fixed = self.within(empty, lambda: self.value(node, "bool", "const", attr="false" if sign == "&&" else "true"))
        made.then, made.other = (inner, empty) if sign == "&&" else (empty, inner)
        self.block.items.append(made)
        result = self.value(node, "bool", "result", attr=made)
        made.results.append((result, b, fixed) if sign == "&&" else (result, fixed, b))
        self.change(node, made, *((changed, {}) if sign == "&&" else ({}, changed)))
        return result

    def on_conditional_expression(self, node: Any) -> Any:
        if node.start_byte in self.sides:
            return self.as_pointer(self.expression(self.sides[node.start_byte]))
        parts = [node.child_by_field_name(f) for f in ("condition", "consequence", "alternative")]
        if None in parts:
            raise self.refuse(node, f"{text_of(node)!r} without the value if it holds", "write it between ? and :")
        condition = self.test(parts[0])
        if condition.const is not None:
            return self._known(node, parts[1 if condition.const else 2], parts[2 if condition.const else 1])
        if self._carried(parts[1]) and parts[2].type != "number_literal":
            # "If not, take the other": so maxima are known.
            condition = self.value(node, "bool", "unary", (condition,), "!")
            parts[1:] = parts[:0:-1]
        made = If(node.start_point[0] + 1, self.block, condition=condition)
        then, other = Block(parent=made), Block(parent=made)
        a, first = self.alone(then, lambda: self.as_pointer(self.expression(parts[1])))
        b, second = self.alone(other, lambda: self.as_pointer(self.expression(parts[2])))
        if isinstance(a, Value) and isinstance(b, Value):
            kind = types.common(a.type, b.type) if a.type != b.type else a.type
            a = self.within(then, lambda: self.converted(node, a, kind))
            b = self.within(other, lambda: self.converted(node, b, kind))
        simple = not (first or second) and all(_safe(i) for i in (*then.items, *other.items))
        if simple:
            for item in (*then.items, *other.items):
                item.block = self.block
            self.block.items += [*then.items, *other.items]
        else:
            made.then, made.other = then, other
            self.block.items.append(made)
            self.change(node, made, first, second)

        def either(x: Value, y: Value) -> Value:
            if simple:
                return self.value(node, x.type, "select", (condition, x, y))
            result = self.value(node, x.type, "result", attr=made)
            made.results.append((result, x, y))
            return result

        return self.merged(node, a, b, either, lambda side, make: self.within(then if side else other, make))

    def _carried(self, node: Any) -> bool:
        """Whether an expression is a variable that a loop carries on, as it was before this iteration."""
        found = self.lookup(text_of(node)) if node.type == "identifier" else None
        value = found.value if found is not None else None
        return isinstance(value, Value) and value.op == "phi" and types.is_float(value.type)

    def _known(self, node: Any, chosen: Any, other: Any) -> Any:
        """A choice that is known when deriving; its type is that of both sides."""
        kind, found = self.kind(other), self.expression(chosen)
        if isinstance(kind, str) and isinstance(found, Value):
            return self.converted(node, found, kind if kind == found.type else types.common(found.type, kind))
        return found

    def kind(self, node: Any) -> Any:
        raise NotImplementedError

    def merged(self, node: Any, a: Any, b: Any, either: Any, within: Any) -> Any:
        """One of two values, pointers or aggregates."""
        if isinstance(a, Value) and isinstance(b, Value):
            return either(a, b)
        if isinstance(a, Pointer) and isinstance(b, Pointer) and replace(a, offset=None) == replace(b, offset=None):
            ends = [within(side, lambda p=p: self.offset(node, p)) for side, p in ((True, a), (False, b))]
            return replace(a, offset=either(*ends))
        if isinstance(a, Var) and isinstance(b, Var) and isinstance(a.type, Aggregate) and a.type == b.type:
            pairs = zip(a.leaves(), b.leaves(), strict=True)
            parts = iter([either(self.read(node, x), self.read(node, y)) for x, y in pairs])
            return self.aggregate("either", a.type, lambda *_: next(parts))
        raise self.refuse(node, f"{text_of(node)!r} chooses between what is no number", "write an if")

    def member_constant(self, node: Any, struct: Struct, name: str) -> Any:
        raise NotImplementedError

    def constant(self, node: Any, kind: Any, declarator: Any, value: Any) -> Any:
        """A constant of the source or of a struct."""
        raise NotImplementedError

    def valued(self, node: Any, found: Any) -> Any:
        """What a call gives, as a value: a reference is read."""
        return self.read(node, found) if isinstance(found, (Var, Cell)) else found


def _safe(item: Any) -> bool:
    """Whether a side that is not taken may be computed, and get 0: not where its slope could be infinite."""
    if not isinstance(item, Value) or item.op in (*FIXED, "call"):
        return False
    if item.op != "binary" or not types.is_float(item.type) or item.attr not in ("*", "/"):
        return True
    return item.args[1].op == "const" or (item.attr == "*" and item.args[0].op == "const")
