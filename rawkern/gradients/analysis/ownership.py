"""Indices as polynomials of thread, block and iteration, and what is known of these where an index is used."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.ir import Block, Exit, If, Kernel, Loop, Value, inside, walk

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
                learn(found, item.condition, False)
        parent = block.parent
        if parent is None:
            return found
        if isinstance(parent, If):
            learn(found, parent.condition, block is parent.then)
        elif isinstance(parent, Loop):
            learn(found, parent.condition, True)
        block, order = parent.block, parent.order


def learn(found: Facts, condition: Value, holds: bool) -> None:
    """Add what is known where a condition holds, or does not."""
    if condition.op == "cast" and condition.args[0].type == "bool":
        return learn(found, condition.args[0], holds)
    if condition.op == "unary" and condition.attr == "!":
        return learn(found, condition.args[0], not holds)
    if condition.op != "binary":
        found.exact = found.exact and condition.const is not None and bool(condition.const) == holds
        return None
    sign, args = condition.attr, condition.args
    if sign == ("&&" if holds else "||"):
        for each in args:
            learn(found, each, holds)
        return None
    if sign in ("<", "<=", ">", ">=") and not types.is_float(args[0].type):
        sign = sign if holds else {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}[sign]
        low, high = args if sign in ("<", "<=") else args[::-1]
        end = add(poly(high), {(): 1} if "=" in sign else {})
        found.above += _and_least(add(end, poly(low), -1))
        of = quotient(end)
        if of is not None and all(v > 0 and all(map(is_digit, key)) for key, v in poly(low).items()):
            found.above.append(add(add(of[0], poly(low), -of[1]), {(): 1 - of[1]}))  # i < n / 2: 2 * i + 1 < n
        if (least := _under(end)) is not None:  # i < k % n: i < n
            found.above.append(add(least, poly(low), -1))
        unsigned = any("unsigned" in a.type for a in args)
        found.below.append(Comparison(poly(low), end, unsigned, (low, high)))
        return None
    found.exact = False
    if sign == ("==" if holds else "!=") and not types.is_float(args[0].type):
        rest = add(poly(args[0]), poly(args[1]), -1)
        for key in [k for k in rest if len(k) == 1 and abs(rest[k]) == 1]:
            others = {k: v for k, v in rest.items() if k != key}
            if not is_digit(key[0]) and part_of_thread(key[0]) is None:
                continue
            if not any(is_digit(s) or isinstance(s, Value) for k in others for s in k):
                found.fixed[key[0]] = add({}, others, -rest[key])
    return None


def quotient(p: Poly) -> tuple[Poly, int] | None:
    """What is divided, and by which number, if a polynomial is a quotient, rounded: ``n / 2``."""
    key, number = next(iter(p.items())) if len(p) == 1 else ((), 0)
    v = key[0] if len(key) == 1 and number == 1 else None
    if not isinstance(v, Value) or v.op != "binary" or v.attr not in ("/", ">>") or v.args[1].const is None:
        return None
    by = v.args[1].const if v.attr == "/" else 1 << min(v.args[1].const, 31)
    return (poly(v.args[0]), by) if by > 0 else None


def _under(p: Poly) -> Poly | None:
    """What a remainder, perhaps with a number added, is below: ``k % n`` is at most n - 1."""
    found = [key[0] for key, value in p.items() if len(key) == 1 and value == 1 and isinstance(key[0], Value)]
    if len(found) != 1 or set(p) - {(found[0],), ()} or found[0].op != "binary" or found[0].attr != "%":
        return None
    return add(poly(found[0].args[1]), {(): p.get((), 0) - 1})


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


def is_digit(symbol: Any) -> bool:
    """Whether it is of a thread, a block or an iteration."""
    return isinstance(symbol, Loop) or (isinstance(symbol, str) and symbol.startswith(("threadIdx", "blockIdx")))


#: The number of a thread's group along x, and its number there.
GROUP, LANE = "threadIdx.x / group", "threadIdx.x % group"


def part_of_thread(value: Any) -> tuple[str, int] | None:
    """Of threadIdx.x divided by a constant: whether it is the quotient or the rest, and the constant."""
    v = plain(value) if isinstance(value, Value) and not types.is_float(value.type) else None
    if v is None or v.op != "binary" or v.attr not in ("/", ">>", "%", "&") or v.args[1].const is None:
        return None
    whole, by = plain(v.args[0]), v.args[1].const
    by = 1 << min(by, 31) if v.attr == ">>" else by + 1 if v.attr == "&" else by
    fits = whole.op == "special" and whole.attr == "threadIdx.x" and by > 1 and (v.attr != "&" or not by & (by - 1))
    return (GROUP if v.attr in ("/", ">>") else LANE, by) if fits else None


def group_of(body: Block, threads: int) -> int:
    """How many threads the groups have that a kernel splits a block into; 0 if it does not, or in several ways."""
    parts = [part_of_thread(item) for item in walk(body)]
    found = {part[1] for part in parts if part is not None and part[1] < threads and threads % part[1] == 0}
    return found.pop() if len(found) == 1 else 0


def grouped(p: Poly, group: int) -> Poly:
    """A polynomial in which a thread is told by its group and its number there."""
    if not group:
        return p
    found: Poly = {}
    for key, value in p.items():
        term: Poly = {(): value}
        for s in key:
            part = part_of_thread(s)
            if s == "threadIdx.x":
                term = multiply(term, {(GROUP,): group, (LANE,): 1})
            else:
                term = multiply(term, {(part[0] if part is not None and part[1] == group else s,): 1})
        found = add(found, term)
    return found


def threads(kernel: Kernel, within_block: bool) -> dict[str, int | None]:
    """The digits that tell threads apart, with their extents; None where the launch decides."""
    found: dict[str, int | None] = {f"threadIdx.{a}": e for a, e in zip("xyz", kernel.block, strict=True) if e != 1}
    if not within_block:
        found |= {f"blockIdx.{a}": e for a, e in zip("xyz", kernel.grid, strict=True) if e != 1}
    return found
