"""What integers of the IR are in one thread and iteration: as terms of z3, or as numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import z3

from rawkern.gradients import types
from rawkern.gradients.index.affine import Poly
from rawkern.gradients.index.scev import induction, loops_around
from rawkern.gradients.ir import Exit, If, Item, Kernel, Loop, Value


class Impossible(Exception):
    """A number that the C program does not have: of an overflow, a division by 0."""


def select(condition: Any, a: Any, b: Any) -> Any:
    return z3.If(condition, a, b) if isinstance(condition, z3.BoolRef) else a if condition else b


def both(a: Any, b: Any) -> Any:
    return z3.And(a, b) if isinstance(a, z3.BoolRef) or isinstance(b, z3.BoolRef) else a and b


def negated(a: Any) -> Any:
    return z3.Not(a) if isinstance(a, z3.BoolRef) else not a


class Machine:
    """One thread in one iteration of each loop; `symbols`: what threadIdx, parameters and such are.

    Signed integers and sums do not overflow, by `needs`; differences of unsigned ones wrap around.
    """

    def __init__(self, symbols: Callable[[Any], Any]) -> None:
        self.symbols = symbols
        self.needs: list[Any] = []  # what has to hold so that there is such a thread
        self.values: dict[Value, Any] = {}

    def need(self, condition: Any) -> None:
        if isinstance(condition, z3.BoolRef):
            self.needs.append(condition)
        elif not condition:
            raise Impossible

    def of(self, p: Poly) -> Any:
        """What a polynomial is."""
        total: Any = 0
        for key, value in p.items():
            term: Any = value
            for s in key:
                term = term * (self.value(s) if isinstance(s, Value) else self.symbols(s))
            total = total + term
        return total

    def value(self, v: Value) -> Any:
        if v not in self.values:
            self.values[v] = self._value(v)
        return self.values[v]

    def _value(self, v: Value) -> Any:
        if v.const is not None:
            return bool(v.const) if v.type == "bool" else v.const
        if v.op in ("special", "param"):
            return self.symbols(v.attr)
        if v.op == "cast":
            return self._cast(v)
        if v.op == "select":
            return select(*map(self.value, v.args))
        if v.op == "unary":
            a = self.value(v.args[0])
            return negated(a) if v.attr == "!" else self._fits(v, -a)
        if v.op == "binary":
            return self._binary(v)
        if v.op == "call" and v.attr in ("min", "max"):
            a, b = map(self.value, v.args)
            return select(a < b if v.attr == "min" else a > b, a, b)
        if v.op == "phi" and v in induction(v.attr):
            start, step = map(self.value, induction(v.attr)[v])
            return self._fits(v, start + step * self.symbols(v.attr))
        if v.op == "result" and isinstance(v.attr, If):
            a, b = next((a, b) for r, a, b in v.attr.results if r is v)
            return select(self.value(v.attr.condition), self.value(a), self.value(b))
        return self.symbols(v)

    def _fits(self, v: Value, found: Any) -> Any:
        """A sum or product, which does not overflow; a difference of unsigned integers wraps around."""
        bits, unsigned = types.bits(v.type), v.type.startswith("unsigned")
        if unsigned and v.attr == "-":
            return select(found < 0, found + (1 << bits), found)
        self.need(
            both(found >= 0, found < 1 << bits) if unsigned else both(found >= -(1 << bits - 1), found < 1 << bits - 1)
        )
        return found

    def _cast(self, v: Value) -> Any:
        a, of = self.value(v.args[0]), v.args[0].type
        if of == "bool" and v.type != "bool":
            return select(a, 1, 0)
        if v.type == "bool":
            return a if of == "bool" else a != 0
        bits = types.bits(v.type)
        if v.type.startswith("unsigned"):
            return select(a < 0, a + (1 << bits), a) if bits >= types.bits(of) else a % (1 << bits)
        if of.startswith("unsigned") and bits == types.bits(of):
            return select(a >= 1 << bits - 1, a - (1 << bits), a)
        return self._fits(v, a)

    def _binary(self, v: Value) -> Any:
        a, b = map(self.value, v.args)
        sign = v.attr
        if sign in ("&&", "||"):
            return both(a, b) if sign == "&&" else negated(both(negated(a), negated(b)))
        if sign in ("<", "<=", ">", ">=", "==", "!="):
            return {"<": lambda: a < b, "<=": lambda: a <= b, ">": lambda: a > b, ">=": lambda: a >= b,
                    "==": lambda: a == b, "!=": lambda: a != b}[sign]()  # fmt: skip
        if sign in "+-*":
            return self._fits(v, a + b if sign == "+" else a - b if sign == "-" else a * b)
        if sign in "/%":
            self.need(b != 0)
            quotient, rest = _divided(a, b)
            return quotient if sign == "/" else rest
        if sign in ("<<", ">>") and isinstance(b, int):
            return self._fits(v, a * (1 << b)) if sign == "<<" else a / (1 << b) if z3.is_expr(a) else a >> b
        if isinstance(a, int) and isinstance(b, int):
            return {"&": a & b, "|": a | b, "^": a ^ b}[sign]
        return self.symbols(v)

    def reaches(self, item: Item) -> Any:
        """Whether the thread comes to an item in these iterations."""
        block, order, found = item.block, item.order, True
        while True:
            for each in block.items:
                if isinstance(each, Exit) and each.order < order:
                    found = both(found, negated(self.value(each.condition)))
            parent = block.parent
            if parent is None:
                return found
            holds = self.value(parent.condition)
            found = both(found, holds if isinstance(parent, Loop) or block is parent.then else negated(holds))
            block, order = parent.block, parent.order


def _divided(a: Any, b: Any) -> tuple[Any, Any]:
    """The quotient and the rest, as C has them: rounded to 0."""
    if isinstance(a, int) and isinstance(b, int):
        quotient = int(math.copysign(1, a) * math.copysign(1, b)) * (abs(a) // abs(b))
        return quotient, a - quotient * b
    a, b = (z3.IntVal(x) if isinstance(x, int) else x for x in (a, b))
    up = z3.And(a < 0, a % b != 0)  # z3 rounds so that the rest is not negative
    quotient = z3.If(up, a / b + z3.If(b > 0, 1, -1), a / b)
    return quotient, a - quotient * b


def loops_of(item: Item) -> list[Loop]:
    return loops_around(item.block)


def parameters(kernel: Kernel) -> dict[str, str]:
    """The integers that a kernel takes, with their types."""
    return {n: kind for n, kind, pointer in kernel.params if not pointer and isinstance(kind, str)}
