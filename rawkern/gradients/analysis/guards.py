"""What conditions say of the polynomials that indices are, where an index is used."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.analysis.affine import Poly, add, is_digit, part_of_thread, poly, seen_through
from rawkern.gradients.ir import Block, Exit, If, Loop, Value


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
        elif seen_through(v) or (v.op == "binary" and v.attr in ("+", "*", "/", "%", ">>", "&")):
            rest = v.args
        elif v.op == "select":
            rest = v.args[1:]
        elif v.op != "special" and (v.op in ("binary", "unary") or not _unsigned(v.type)):
            return False
        left += [a for a in rest if a not in seen]
        seen.update(rest)
    return True


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
