"""Which thread owns which element: indices as polynomials of thread, block and iteration, read as mixed-radix numbers.

An index ``c0*d0 + c1*d1 + ...`` of digits d (threadIdx, blockIdx, the count of a loop's iterations), where each
coefficient is at least one above the most that the digits before it add up to, says which digits it was made of: so two
threads never mean the same element. That a sum of digits is below the next coefficient is known from the block's shape
or from a condition that holds there, such as ``col < n``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.ir import Block, Exit, If, Kernel, Loop, Value, inside

Poly = dict[tuple[Any, ...], int]  # by symbols, each once for each power
LARGEST = 1 << 24  # coefficients above may be meant to wrap around


def add(a: Poly, b: Poly, times: int = 1) -> Poly:
    found = dict(a)
    for key, value in b.items():
        found[key] = found.get(key, 0) + times * value
    return {key: value for key, value in found.items() if value}


def multiply(a: Poly, b: Poly) -> Poly:
    found: Poly = {}
    for x, p in a.items():
        for y, q in b.items():
            key = tuple(sorted((*x, *y), key=repr))
            found[key] = found.get(key, 0) + p * q
    return {key: value for key, value in found.items() if value}


def induction(loop: Loop) -> dict[Value, tuple[Value, Value]]:
    """The loop's variables that grow by the same in each iteration: phi to what it starts with and its step."""
    found = {}
    for c in loop.carried:
        if types.is_float(c.phi.type) or types.bits(c.phi.type) < 32:
            continue
        step = plain(c.next)
        args = [plain(a) for a in step.args]
        if step.op == "binary" and step.attr == "+" and c.phi in args:
            by = step.args[1] if args[0] is c.phi else step.args[0]
            if invariant(by, loop):
                found[c.phi] = (c.init, by)
    return found


def plain(value: Value) -> Value:
    """An integer without conversions between integers of 32 and 64 bits."""
    while (
        value.op == "cast"
        and not types.is_float(value.args[0].type)
        and min(map(types.bits, (value.type, value.args[0].type))) >= 32
    ):
        value = value.args[0]
    return value


def invariant(value: Value, loop: Loop) -> bool:
    """Whether a value is the same in every iteration: defined before, or computed from such alone."""
    if not (inside(value.block, loop.body) or inside(value.block, loop.test)):
        return True
    return value.op in ("const", "param", "special", "cast", "unary", "binary", "select") and all(
        invariant(a, loop) for a in value.args
    )


def loops_around(block: Block) -> list[Loop]:
    """The loops that a block lies in, from the innermost."""
    found = []
    while block.parent is not None:
        if isinstance(block.parent, Loop):
            found.append(block.parent)
        block = block.parent.block
    return found


def poly(value: Value) -> Poly:
    """An integer as a polynomial; what is not seen through is a symbol of its own, the value itself."""
    if value.const is not None:
        return {(): value.const} if value.const else {}
    if value.op == "special" or value.op == "param":
        return {(value.attr,): 1}
    if value.op == "cast" and not types.is_float(value.args[0].type) and types.bits(value.type) >= 32:
        return poly(value.args[0])
    if value.op == "unary" and value.attr == "-":
        return add({}, poly(value.args[0]), -1)
    if value.op == "binary" and value.attr in ("+", "-", "*") and not types.is_float(value.type):
        a, b = (poly(x) for x in value.args)
        if value.attr == "*":
            found = multiply(a, b)
            return found if all(abs(v) < LARGEST for v in found.values()) else {(value,): 1}
        return add(a, b, 1 if value.attr == "+" else -1)
    if value.op == "binary" and value.attr == "<<" and value.args[1].const is not None and value.args[1].const < 24:
        return multiply(poly(value.args[0]), {(): 1 << value.args[1].const})
    if value.op == "phi":
        loop: Any = value.attr
        if value in (steps := induction(loop)):
            return add(poly(steps[value][0]), multiply(poly(steps[value][1]), {(loop,): 1}))
    return {(value,): 1}


@dataclass(frozen=True)
class Comparison:
    """``low < high``, of these values."""

    low: Poly
    high: Poly
    unsigned: bool
    operands: tuple[Value, ...]


@dataclass
class Facts:
    """What holds at a place: polynomials that are at least 1, and digits that have one value."""

    above: list[Poly]
    fixed: dict[Any, Poly]
    below: list[Comparison] = field(default_factory=list)
    exact: bool = True  # whether `below` is all that decides whether the place is reached


def facts(block: Block, order: int) -> Facts:
    """The conditions that hold in a block, before the item of this order."""
    found = Facts([], {})
    while True:
        for item in block.items:
            if isinstance(item, Exit) and item.order < order:
                _learn(found, item.condition, False)
        parent = block.parent
        if parent is None:
            return found
        if isinstance(parent, If):
            _learn(found, parent.condition, block is parent.then)
        elif isinstance(parent, Loop):
            _learn(found, parent.condition, True)
        block, order = parent.block, parent.order


def _learn(found: Facts, condition: Value, holds: bool) -> None:
    if condition.op == "cast" and condition.args[0].type == "bool":
        return _learn(found, condition.args[0], holds)
    if condition.op == "unary" and condition.attr == "!":
        return _learn(found, condition.args[0], not holds)
    if condition.op != "binary":
        found.exact = found.exact and condition.const is not None and bool(condition.const) == holds
        return None
    sign, args = condition.attr, condition.args
    if sign == ("&&" if holds else "||"):
        for each in args:
            _learn(found, each, holds)
        return None
    if sign in ("<", "<=", ">", ">=") and not types.is_float(args[0].type):
        sign = sign if holds else {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}[sign]
        low, high = args if sign in ("<", "<=") else args[::-1]
        end = add(poly(high), {(): 1} if "=" in sign else {})
        found.above += _and_least(add(end, poly(low), -1))
        unsigned = any("unsigned" in a.type for a in args)
        found.below.append(Comparison(poly(low), end, unsigned, (low, high)))
        return None
    found.exact = False
    if sign == ("==" if holds else "!=") and not types.is_float(args[0].type):
        rest = add(poly(args[0]), poly(args[1]), -1)
        for key in [k for k in rest if len(k) == 1 and _is_digit(k[0]) and abs(rest[k]) == 1]:
            others = {k: v for k, v in rest.items() if k != key}
            if not any(_is_digit(s) or isinstance(s, Value) for k in others for s in k):
                found.fixed[key[0]] = add({}, others, -rest[key])
    return None


def _and_least(p: Poly) -> list[Poly]:
    """What is at least 1, also without a common factor."""
    common = math.gcd(*(v for k, v in p.items() if k))
    if common < 2:
        return [p]
    least = -((p.get((), 0) - 1) // common)
    return [p, add({k: v // common for k, v in p.items() if k}, {(): 1 - least})]


def settled(value: Value) -> bool:
    """Whether an integer is the same for all threads of a launch: made of numbers that it is given."""
    if value.op == "special":
        return value.attr.startswith(("gridDim", "blockDim"))
    if value.op in ("binary", "unary", "cast", "select"):
        return not types.is_float(value.type) and all(map(settled, value.args))
    return value.op in ("const", "param")


def _is_digit(symbol: Any) -> bool:
    return isinstance(symbol, Loop) or (isinstance(symbol, str) and symbol.startswith(("threadIdx", "blockIdx")))


def threads(kernel: Kernel, within_block: bool) -> dict[str, int | None]:
    """The digits that tell threads apart, with their extents; None where the launch decides."""
    found: dict[str, int | None] = {f"threadIdx.{a}": e for a, e in zip("xyz", kernel.block, strict=True) if e != 1}
    if not within_block:
        found |= {f"blockIdx.{a}": e for a, e in zip("xyz", kernel.grid, strict=True) if e != 1}
    return found


@dataclass(frozen=True)
class Beside:
    """Of reads whose indices differ by multiples of a gap: the least offset, the gap, and the most multiples."""

    base: Poly
    gap: Poly
    most: int


def signature(kernel: Kernel, index: Value, block: Block, order: int, *, within_block: bool = False,
              loops: Iterable[Loop] = (), same: Collection[Value] = (), beside: Beside | None = None,
              assumed: list[tuple[Poly, Poly]] | None = None) -> tuple[Any, ...] | None:  # fmt: skip
    """How an index tells threads (and iterations of these loops) apart; None where that is not certain.

    Values in `same` are the same for all threads. With `assumed`, it may need that one number of the launch is at most
    another, which is added there.

    Two accesses with the same signature meet in an element only if they are of the same thread; `beside` others, only
    if their offsets are the same as well.
    """
    known, digits, found = facts(block, order), threads(kernel, within_block), parts(index, within_block, same)
    if found is None or {*digits, *loops} - set(found[0]) - set(known.fixed):
        return None
    coefficients, offset = found
    downwards = bool(coefficients) and all(v < 0 for c in coefficients.values() for v in c.values())
    if downwards:  # as in x[n - 1 - i]: what is below an end is read
        coefficients = {d: multiply(c, {(): -1}) for d, c in coefficients.items()}
    if beside is not None:
        offset = beside.base
        if not beside.most:
            beside = None
        elif downwards:
            return None
    common = math.gcd(*(v for c in coefficients.values() for v in c.values())) or 1
    sizes, order_found = dict(digits), None
    if beside is None or (set(beside.gap) == {()} and beside.most * beside.gap[()] < common):
        coefficients = {d: {k: v // common for k, v in c.items()} for d, c in coefficients.items()}
    else:
        common, sizes["beside"] = 1, beside.most + 1
        coefficients["beside"] = beside.gap
    order_found = _read_as_digits({}, {(): 1}, coefficients, sizes, known)
    if order_found is None and assumed is not None:
        needed: list[tuple[Poly, Poly]] = []
        order_found = _read_as_digits({}, {(): 1}, coefficients, sizes, known, needed)
        assumed += [each for each in needed if each not in assumed] if order_found is not None else []
    if order_found is None:
        return None
    fixed = tuple(
        sorted(((d, _frozen(p)) for d, p in known.fixed.items() if d in digits and d not in coefficients), key=repr)
    )
    return order_found, common, downwards, _frozen(offset), fixed


def parts(index: Value, within_block: bool = False, same: Collection[Value] = ()) -> Any:
    """An index as coefficients of its digits and the rest, its offset; None where it is not made of these alone."""
    coefficients: dict[Any, Poly] = {}
    offset: Poly = {}
    for key, value in poly(index).items():
        inner = [s for s in key if _is_digit(s)]
        if any(isinstance(s, Value) and s not in same and not settled(s) for s in key) or len(inner) > 1:
            return None
        if within_block and inner and isinstance(inner[0], str) and inner[0].startswith("blockIdx"):
            inner = []  # the same for all threads of the block
        rest = tuple(s for s in key if s not in inner)
        part = coefficients.setdefault(inner[0], {}) if inner else offset
        part[rest] = part.get(rest, 0) + value
    if any(_is_digit(s) for c in coefficients.values() for k in c for s in k):
        return None
    return coefficients, offset


def _read_as_digits(
    total: Poly, extent: Poly | None, left: dict[Any, Poly], digits: dict[str, int | None], known: Facts,
    assumed: list[tuple[Poly, Poly]] | None = None,
) -> tuple[Any, ...] | None:  # fmt: skip
    """An order of the digits in which each is above those before; None where none is certain to be one."""
    if not left:
        return ()
    for digit, c in left.items():
        more = []
        if not fits(total, extent, c, known):
            if assumed is None or assumed or extent is None or not _may_fit(extent, c):
                continue
            more = [(extent, c)]
        size = digits.get(digit) if isinstance(digit, str) else None
        if size is None and isinstance(digit, str) and digit.startswith("blockIdx"):
            above: Poly | None = multiply(c, {(f"gridDim.{digit[-1]}",): 1})
        else:
            above = None if size is None else multiply(c, {(): size})
        rest = {d: other for d, other in left.items() if d is not digit}
        after = None if assumed is None else [*assumed, *more]
        found = _read_as_digits(add(total, multiply(c, {(digit,): 1})), above, rest, digits, known, after)
        if found is not None:
            if assumed is not None and after is not None:
                assumed[:] = after
            return (("k" if isinstance(digit, Loop) else digit, _frozen(c)), *found)
    return None


def _multiplied(p: Poly) -> Poly | None:
    """What a positive multiple of a quotient is at most: ``2 * (n / 2)`` is at most n."""
    key, number = next(iter(p.items())) if len(p) == 1 else ((), 0)
    v = key[0] if len(key) == 1 else None
    if not isinstance(v, Value) or v.op != "binary" or v.attr not in ("/", ">>") or v.args[1].const is None:
        return None
    by = v.args[1].const if v.attr == "/" else 1 << min(v.args[1].const, 31)
    return poly(v.args[0]) if 0 < number <= by else None


def _may_fit(low: Poly, high: Poly) -> bool:
    """Whether a launch may tell that one is at most the other: they are made of parameters and the grid."""
    known = set(high) != {()} or 0 < sum(low.values()) <= high[()]
    symbols = [s for key in (*low, *high) for s in key]
    return known and bool(symbols) and all(isinstance(s, str) and not _is_digit(s) for s in symbols)


def _frozen(p: Poly) -> tuple[Any, ...]:
    return tuple(sorted(p.items(), key=repr))


def fits(total: Poly, extent: Poly | None, coefficient: Poly, known: Facts) -> bool:
    """Whether the digits so far add up to less than a coefficient, which is so positive."""
    if extent is not None:
        if _multiplied(extent) == coefficient:
            return True
        if extent == coefficient and (set(extent) != {()} or extent[()] > 0):
            return True
        if set(extent) == {()} and set(coefficient) == {()} and extent[()] <= coefficient[()]:
            return True
    room = add(coefficient, total, -1)
    for fact in known.above:
        rest = add(room, fact, -1)
        if not rest or (set(rest) == {()} and rest[()] > 0):
            return True
    return False
