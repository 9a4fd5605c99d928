"""Digits of a number that tells threads apart: ``i / w`` and ``i % w`` of ``i = blockIdx.x * 256 + threadIdx.x``.

Quotients and remainders of one number, of quotients of it, and so on, are sums of digits that together say the number:
``i / (h * w)``, ``i / w % h`` and ``i % w``, if what divides, which is the same for all threads, is at least 1.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from rawkern.gradients.analysis.affine import Frozen, Poly, add, frozen, is_digit, multiply, plain, poly, settled
from rawkern.gradients.ir import Value

ONE: Poly = {(): 1}


@dataclass(frozen=True)
class Part:
    """A digit of a whole number: ``whole / by % of``; without `of` the first one, ``whole / by``."""

    whole: Frozen
    by: Frozen
    of: Frozen | None

    @property
    def divisors(self) -> set[Any]:
        """The numbers of a launch that it is divided by."""
        return {s for p in (self.by, self.of or ()) for key, _ in p for s in key}


def with_parts(p: Poly, same: Collection[Value]) -> Poly:
    """A polynomial in which quotients and remainders are sums of digits; as it is, where they are not known so."""
    found: dict[Value, Part] = {}
    for symbol in {s for key in p for s in key if isinstance(s, Value) and s not in same and not settled(s)}:
        part = _part(symbol)
        if not isinstance(part, Part):
            return p
        found[symbol] = part
    new: dict[Value, Poly] = {}
    for whole in {part.whole for part in found.values()}:
        own = {v: part for v, part in found.items() if part.whole == whole}
        steps = _steps(list(own.values()))
        if steps is None:
            return p
        for v, part in own.items():
            end = None if part.of is None else multiply(dict(part.by), dict(part.of))
            new[v] = _sum(whole, steps, dict(part.by), end)
        p = _without(p, whole, _sum(whole, steps, ONE, None))
    result: Poly = {}
    for key, value in p.items():
        term: Poly = {(): value}
        for s in key:
            term = multiply(term, new.get(s, {(s,): 1}) if isinstance(s, Value) else {(s,): 1})
        result = add(result, term)
    return result


def told_by(parts: Collection[Any]) -> list[Poly]:
    """The numbers of which all digits are there."""
    found = []
    for whole in {p.whole for p in parts if isinstance(p, Part)}:
        own, at = {p.by: p for p in parts if isinstance(p, Part) and p.whole == whole}, ONE
        while (part := own.get(frozen(at))) is not None and part.of is not None:
            at = multiply(at, dict(part.of))
        if part is not None:
            found.append(dict(whole))
    return found


def _part(value: Value) -> Part | Poly | None:
    """What an integer is of a whole number; or the whole number itself."""
    v = plain(value)
    by = _divisor(v)
    if by is None:
        p = poly(v)
        return p if _counts(p) else None
    part = _part(v.args[0])
    if isinstance(part, dict):
        part = Part(frozen(part), frozen(ONE), None)
    of = None if part is None else by if part.of is None else _divided(dict(part.of), by)
    if part is None or of is None:
        return None
    if v.attr in ("%", "&"):
        return Part(part.whole, part.by, frozen(by))
    return Part(part.whole, frozen(multiply(dict(part.by), by)), None if part.of is None else frozen(of))


def _divisor(v: Value) -> Poly | None:
    """By what a quotient or remainder is divided: a number of the launch, or a constant above 0."""
    if v.op != "binary" or v.attr not in ("/", "%", ">>", "&"):
        return None
    number = v.args[1].const
    if v.attr in (">>", "&"):
        number = None if number is None or not 0 <= number < 31 else 1 << number if v.attr == ">>" else number + 1
        return {(): number} if number is not None and not number & (number - 1) else None
    p = poly(v.args[1]) if settled(v.args[1]) else {}
    named = all(isinstance(s, str) and not is_digit(s) for key in p for s in key)
    return p if len(p) == 1 and named and all(k > 0 for k in p.values()) else None


def _counts(p: Poly) -> bool:
    """Whether a number is made of threads, blocks and iterations, and is never below 0."""
    known = all(is_digit(s) or (isinstance(s, str) and s.startswith("gridDim")) for key in p for s in key)
    return known and all(k > 0 for k in p.values()) and any(is_digit(s) for key in p for s in key)


def _divided(p: Poly, by: Poly) -> Poly | None:
    """One product by another, if that leaves no rest."""
    (key, value), (other, number) = next(iter(p.items())), next(iter(by.items()))
    left = list(key)
    for s in other:
        if s not in left:
            return None
        left.remove(s)
    return {tuple(left): value // number} if len(p) == 1 and value % number == 0 else None


def _steps(parts: list[Part]) -> list[Poly] | None:
    """Where digits begin, from 1 on, each a multiple of the one before."""
    ends = {p.by for p in parts} | {frozen(multiply(dict(p.by), dict(p.of))) for p in parts if p.of is not None}
    left, found = [dict(e) for e in ends - {frozen(ONE)}], [ONE]
    while left:
        after = [e for e in left if all(_divided(other, e) is not None for other in left)]
        if not after or _divided(after[0], found[-1]) is None:
            return None
        found.append(after[0])
        left.remove(after[0])
    return found


def _sum(whole: Frozen, steps: list[Poly], start: Poly, end: Poly | None) -> Poly:
    """The digits of a number from one step to another, or to the last."""
    total: Poly = {}
    for k, at in enumerate(steps):
        after = steps[k + 1] if k + 1 < len(steps) else None
        scale = _divided(at, start)
        if scale is None or (end is not None and (after is None or _divided(end, after) is None)):
            continue
        of = None if after is None else _divided(after, at)
        total = add(total, multiply(scale, {(Part(whole, frozen(at), None if of is None else frozen(of)),): 1}))
    return total


def _without(p: Poly, whole: Frozen, digits: Poly) -> Poly:
    """A polynomial with a number's digits in place of the number, where it has the number: ``i - i / w * w``."""
    key, value = whole[-1]
    for term, times in p.items():
        rest = [s for s in term if s not in key]
        if len(rest) + len(key) != len(term) or times % value:
            continue
        factor = {tuple(rest): times // value}
        less = add(p, multiply(factor, dict(whole)), -1)
        if not any(is_digit(s) for k in less for s in k if any(s in other for other, _ in whole)):
            return add(less, multiply(factor, digits))
    return p
