"""Indices as polynomials of thread, block and iteration, and what is known of these where an index is used."""

from __future__ import annotations

import functools
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
        and not types.is_float(value.type)
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
    if _seen_through(value):
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
    if value.op == "binary" and value.attr in _PARTS and (split := _split(value)) is not None:
        return split
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
    likely: list[tuple[Poly, Poly]] = field(default_factory=list)  # at least 1, if the other is not negative


def facts(block: Block, order: int) -> Facts:
    """The conditions that hold in a block, before the item of this order."""
    found = _facts(block, order)
    sure = [fact for fact, number in found.likely if any(_reaches(number, each) for each in found.above)]
    found.above += sure
    return found


def _reaches(number: Poly, fact: Poly) -> bool:
    """Whether a number is at least 0 if another is at least 1."""
    rest = add(number, fact, -1)
    return set(rest) <= {()} and rest.get((), 0) >= -1


def _facts(block: Block, order: int) -> Facts:
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
        unsigned = any("unsigned" in a.type for a in args)
        told = _and_least(add(end, poly(low), -1))
        # As unsigned numbers, all are below what is negative.
        sure = not_negative(high) or not (unsigned or _modulo(high))
        found.likely += [(each, poly(high)) for each in told if not sure]
        found.above += [each for each in told if sure]
        of = quotient(end)
        if of is not None and all(v > 0 and all(map(is_digit, key)) for key, v in poly(low).items()):
            double = add(add(of[0], poly(low), -of[1]), {(): 1 - of[1]})  # i < n / 2: 2 * i + 1 < n
            found.likely.append((double, of[0]))
            found.above += [double] if sure else []
        if (under := _under(end)) is not None:  # i < k % n: i < n, if n is positive
            found.likely.append((add(under[0], poly(low), -1), under[1]))
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


def _modulo(value: Value) -> bool:
    """Whether an integer may differ from what `poly` makes of it, by unsigned arithmetic in it."""
    if value.op not in ("cast", "unary", "binary") or types.is_float(value.args[0].type):
        return False
    return value.type.startswith("unsigned") or any(map(_modulo, value.args))


def not_negative(value: Value) -> bool:
    """Whether an integer is certainly not negative, whatever the numbers of a launch are; as `poly` sees it."""
    seen, left = {value}, [value]
    while left:
        v = left.pop()
        if v.const is not None:
            if v.const < 0:
                return False
            continue
        rest: tuple[Value, ...] = ()
        if v.op == "phi":
            rest = next((c.init, c.next) for c in v.attr.carried if c.phi is v)
        elif v.op == "result" and isinstance(v.attr, If):
            rest = next((a, b) for r, a, b in v.attr.results if r is v)
        elif _seen_through(v) or (v.op == "binary" and v.attr in ("+", "*", "/", "%", ">>", "&")):
            rest = v.args
        elif v.op == "select":
            rest = v.args[1:]
        elif v.op != "special" and (v.op in ("binary", "unary") or not _unsigned(v.type)):
            return False
        left += [a for a in rest if a not in seen]
        seen.update(rest)
    return True


def _seen_through(v: Value) -> bool:
    return v.op == "cast" and not types.is_float(v.args[0].type) and types.bits(v.type) >= 32


def _unsigned(kind: str) -> bool:
    return kind == "bool" or kind.startswith("unsigned")


def quotient(p: Poly) -> tuple[Poly, int] | None:
    """What is divided, and by which number, if a polynomial is a quotient, rounded: ``n / 2``."""
    key, number = next(iter(p.items())) if len(p) == 1 else ((), 0)
    v = key[0] if len(key) == 1 and number == 1 else None
    if not isinstance(v, Value) or v.op != "binary" or v.attr not in ("/", ">>") or v.args[1].const is None:
        return None
    by = v.args[1].const if v.attr == "/" else 1 << min(v.args[1].const, 31)
    return (poly(v.args[0]), by) if by > 0 else None


def _under(p: Poly) -> tuple[Poly, Poly] | None:
    """What a remainder, perhaps with a number added, is below: ``k % n`` is at most n - 1; and the divisor."""
    found = [key[0] for key, value in p.items() if len(key) == 1 and value == 1 and isinstance(key[0], Value)]
    if len(found) != 1 or set(p) - {(found[0],), ()} or found[0].op != "binary" or found[0].attr != "%":
        return None
    by = poly(found[0].args[1])
    return add(by, {(): p.get((), 0) - 1}), by


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
_PARTS = {"/": GROUP, ">>": GROUP, "%": LANE, "&": LANE}


def part_of_thread(value: Any) -> tuple[str, int] | None:
    """Of threadIdx.x divided by a constant: whether it is the quotient or the rest, and the constant."""
    v = plain(value) if isinstance(value, Value) and not types.is_float(value.type) else None
    found = None if v is None else _divided(v)
    if v is None or found is None:
        return None
    whole = plain(v.args[0])
    return found if whole.op == "special" and whole.attr == "threadIdx.x" else None


def _divided(v: Value) -> tuple[str, int] | None:
    """Of an integer divided by a constant: whether it is the quotient or the rest, and the constant."""
    if v.op != "binary" or v.attr not in _PARTS or v.args[1].const is None:
        return None
    by = v.args[1].const
    by = 1 << min(by, 31) if v.attr == ">>" else by + 1 if v.attr == "&" else by
    return (_PARTS[v.attr], by) if by > 1 and (v.attr != "&" or not by & (by - 1)) else None


def rows_of(v: Value) -> tuple[str, int, Poly] | None:
    """Of a thread's place in a launch divided by a constant that divides blocks evenly, where groups have a number.

    Whether it is the quotient or the rest, the constant, and what is divided but threadIdx.x: ``blockIdx.x * 128``.
    """
    found = _divided(v)
    p = {} if found is None else poly(v.args[0])
    if found is None or p.pop(("threadIdx.x",), 0) != 1 or not p:
        return None
    return (*found, p) if _evenly(p, found[1]) else None


def _evenly(p: Poly, by: int) -> bool:
    """Whether a number of blocks and threads, which is not below 0, can be divided without a rest."""
    known = all(isinstance(s, str) and s.startswith(("threadIdx", "blockIdx", "gridDim")) for key in p for s in key)
    return known and all(k % by == 0 and k > 0 and key for key, k in p.items())


def _split(v: Value) -> Poly | None:
    """A number of a group, or of a thread in it, by blocks and threads: ``blockIdx.x * 4 + threadIdx.x / 32``."""
    rows, found = rows_of(v), _divided(v)
    if rows is not None:
        part, by, whole = rows
        own: Poly = {(_own_part(part, by),): 1}
    elif found is not None and _evenly(poly(v.args[0]), found[1]):
        part, by, whole, own = *found, poly(v.args[0]), {}
    else:
        return None
    return own if part == LANE else add({key: k // by for key, k in whole.items()}, own)


@functools.cache
def _own_part(part: str, by: int) -> Value:
    """``threadIdx.x / by`` or ``threadIdx.x % by``, to be a symbol."""
    nowhere = Block()
    place = Value(0, nowhere, type="unsigned int", op="special", attr="threadIdx.x")
    number = Value(0, nowhere, type="unsigned int", op="const", attr=str(by), const=by)
    return Value(0, nowhere, type="unsigned int", op="binary", attr="/" if part == GROUP else "%", args=(place, number))


def group_of(body: Block, threads: int) -> int:
    """How many threads the groups have that a kernel splits a block into; 0 if it does not, or in several ways.

    They may be all of them: of a block that is one of the groups of a launch.
    """
    values = [item for item in walk(body) if isinstance(item, Value)]
    ways = [{part[1] for part in map(find, values) if part is not None} for find in (part_of_thread, rows_of)]
    for way in ways:
        found = {by for by in way if by < threads and threads % by == 0}
        if found:
            return found.pop() if len(found) == 1 else 0
    return threads if any(threads in way for way in ways) else 0


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
