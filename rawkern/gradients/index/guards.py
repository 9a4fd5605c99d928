"""The guards of a place: what the conditions around it say of the polynomials that indices are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.index.affine import GROUP, LANE, Poly, constant, is_digit, part_of_thread, poly, seen_through
from rawkern.gradients.index.answers import kept
from rawkern.gradients.index.scev import plain
from rawkern.gradients.index.threads import grouped
from rawkern.gradients.ir import Exit, If, Item, Loop, Value

_NOT = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True)
class Comparison:
    """``low < high``, of these values."""

    low: Poly
    high: Poly
    unsigned: bool
    operands: tuple[Value, ...]


@dataclass
class Guards:
    """What holds at a place: polynomials that are at least 1, and digits that have one value."""

    above: list[Poly] = field(default_factory=list)
    fixed: dict[Any, Poly] = field(default_factory=dict)
    below: list[Comparison] = field(default_factory=list)
    exact: bool = True  # whether `below` is all that decides whether the place is reached
    likely: list[tuple[Poly, Poly]] = field(default_factory=list)  # at least 1, if the other is not negative

    def learn(self, condition: Value, holds: bool) -> None:
        """Add what is known where a condition holds, or does not."""
        if condition.op == "cast" and condition.args[0].type == "bool":
            return self.learn(condition.args[0], holds)
        if condition.op == "unary" and condition.attr == "!":
            return self.learn(condition.args[0], not holds)
        if condition.op == "binary" and condition.attr == ("&&" if holds else "||"):
            for each in condition.args:
                self.learn(each, holds)
        elif condition.op == "binary" and condition.attr in _NOT and not types.is_float(condition.args[0].type):
            sign, args = condition.attr if holds else _NOT[condition.attr], condition.args
            low, high = args if sign in ("<", "<=") else args[::-1]
            self._compared(low, high, "=" in sign)
        elif condition.const is None or bool(condition.const) != holds:
            self.exact = False
            if condition.op == "binary" and condition.attr == ("==" if holds else "!="):
                self._equal(*condition.args)
        return None

    def _compared(self, lower: Value, upper: Value, equal: bool) -> None:
        """One value is below another, or may be equal."""
        low, high = poly(lower), poly(upper)
        end, unsigned = high + equal, "unsigned" in lower.type or "unsigned" in upper.type
        told = _and_least(end - low)
        # As unsigned numbers, all are below what is negative.
        sure = not_negative(upper) or not (unsigned or modulo(upper))
        if sure:
            self.above += told
            self.above += [] if unsigned else [poly(a) + equal - low for a in least(upper) if not modulo(a)]
        else:
            self.likely += [(each, high) for each in told]
        if (of := quotient(end)) is not None and all(v > 0 and all(map(is_digit, k)) for k, v in low.items()):
            double = of[0] - low * of[1] + (1 - of[1])  # i < n / 2: 2 * i + 1 < n
            self.likely.append((double, of[0]))
            self.above += [double] if sure else []
        if (under := _under(end)) is not None:  # i < k % n: i < n, if n is positive
            self.likely.append((under[0] - low, under[1]))
        self.below.append(Comparison(low, end, unsigned, (lower, upper)))

    def _equal(self, a: Value, b: Value) -> None:
        """A digit has the value of numbers of the launch."""
        rest = Poly() if types.is_float(a.type) else poly(a) - poly(b)
        for key in [k for k in rest if len(k) == 1 and abs(rest[k]) == 1]:
            others = Poly({k: v for k, v in rest.items() if k != key})
            of_thread = is_digit(key[0]) or part_of_thread(key[0]) is not None
            if of_thread and not any(is_digit(s) or isinstance(s, Value) for s in others.symbols):
                self.fixed[key[0]] = others * -rest[key]

    def grouped(self, group: int) -> Guards:
        """In terms of groups of threads."""
        if not group:
            return self
        fixed: dict[Any, Poly] = {}
        for digit, p in self.fixed.items():
            part = part_of_thread(digit)
            if digit == "threadIdx.x":
                if p.number is not None:
                    fixed |= {GROUP: constant(p.number // group), LANE: constant(p.number % group)}
            elif part is None or part[1] == group:
                fixed[digit if part is None else part[0]] = grouped(p, group)
        likely = [(grouped(p, group), number) for p, number in self.likely]
        below = [replace(c, low=grouped(c.low, group), high=grouped(c.high, group)) for c in self.below]
        above = [*(grouped(p, group) for p in self.above), *self.above]  # numbers may be parted by others, too
        return Guards(above, fixed, below, self.exact, likely)


@kept
def guards(item: Item) -> Guards:
    """What holds where an item is reached."""
    found, block, order = Guards(), item.block, item.order
    while True:
        for each in block.items:
            if isinstance(each, Exit) and each.order < order:
                found.learn(each.condition, False)
        parent = block.parent
        if isinstance(parent, If):
            found.learn(parent.condition, block is parent.then)
        elif isinstance(parent, Loop) and block is parent.body:
            found.learn(parent.condition, True)
        elif parent is None:
            break
        block, order = parent.block, parent.order
    found.above += [fact for fact, number in found.likely if any(_reaches(number, each) for each in found.above)]
    return found


def _reaches(number: Poly, fact: Poly) -> bool:
    """Whether a number is at least 0 if another is at least 1."""
    rest = (number - fact).number
    return rest is not None and rest >= -1


def modulo(value: Value) -> bool:
    """Whether an integer may differ from what `poly` makes of it, by unsigned arithmetic in it."""
    if value.op not in ("cast", "unary", "binary") or types.is_float(value.args[0].type):
        return False
    return value.type.startswith("unsigned") or any(map(modulo, value.args))


def not_negative(value: Value) -> bool:
    """Whether an integer is certainly not negative, whatever the numbers of a launch are; as `poly` sees it."""
    seen, left = {value}, [value]
    while left:
        v = left.pop()
        rest = _summands(v)
        if rest is None:
            return False
        left += [a for a in rest if a not in seen]
        seen.update(rest)
    return True


def _summands(v: Value) -> tuple[Value, ...] | None:
    """The values that have to be at least 0 so that one is; None if it may be less anyway."""
    if v.const is not None:
        return () if v.const >= 0 else None
    if v.op == "phi":
        return next((c.init, c.next) for c in v.attr.carried if c.phi is v)
    if v.op == "result" and isinstance(v.attr, If):
        return next((a, b) for r, a, b in v.attr.results if r is v)
    if seen_through(v) or (v.op == "binary" and v.attr in ("+", "*", "/", "%", ">>", "&")):
        return v.args
    if v.op == "select":
        return v.args[1:]
    unsigned = v.op not in ("binary", "unary") and (v.type == "bool" or v.type.startswith("unsigned"))
    return () if v.op == "special" or unsigned else None


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
    rest = Poly({key: value for key, value in p.items() if key})
    v = next(iter(rest.symbols), None)
    if not isinstance(v, Value) or rest != {(v,): 1} or v.op != "binary" or v.attr != "%":
        return None
    by = poly(v.args[1])
    return by + (p.get((), 0) - 1), by


def least(value: Value) -> tuple[Value, ...]:
    """The numbers of which a value is the least."""
    v = plain(value)
    return v.args if v.op == "call" and v.attr == "min" and "unsigned" not in v.type else ()


def _and_least(p: Poly) -> list[Poly]:
    """What is at least 1, also without a common factor."""
    common = math.gcd(*(v for k, v in p.items() if k))
    if common < 2:
        return [p]
    least = -((p.get((), 0) - 1) // common)
    return [p, Poly({k: v // common for k, v in p.items() if k}) + (1 - least)]
