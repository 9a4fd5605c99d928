"""Delinearization: the digits ``i / w`` and ``i % w`` of a number that tells threads apart.

Quotients and remainders of one number, of quotients of it, and so on, are sums of digits that together say the number:
``i / (h * w)``, ``i / w % h`` and ``i % w``, if what divides, which is the same for all threads, is at least 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from rawkern.gradients.index.affine import Frozen, Poly, constant, is_digit, poly, settled, symbol
from rawkern.gradients.index.scev import plain
from rawkern.gradients.ir import Value

ONE = constant(1)


@dataclass(frozen=True)
class Part:
    """A digit of a whole number: ``whole / by % of``; without `of` the first one, ``whole / by``."""

    whole: Frozen
    by: Frozen
    of: Frozen | None

    @property
    def size(self) -> Poly | None:
        """What it is below."""
        return None if self.of is None else Poly(self.of)

    @property
    def end(self) -> Poly | None:
        """Where the digit after it begins."""
        return None if self.size is None else Poly(self.by) * self.size

    @property
    def divisors(self) -> set[Any]:
        """The numbers of a launch that it is divided by."""
        return {s for p in (self.by, self.of or ()) for key, _ in p for s in key}


def with_parts(p: Poly, same: Callable[[Value], bool]) -> Poly:
    """A polynomial in which quotients and remainders are sums of digits; as it is, where they are not known so."""
    found: dict[Value, Part] = {}
    for s in p.symbols:
        if isinstance(s, Value) and not same(s) and not settled(s):
            part = _part(s)
            if not isinstance(part, Part):
                return p
            found[s] = part
    new: dict[Any, Poly] = {}
    for whole in {part.whole for part in found.values()}:
        own = {v: part for v, part in found.items() if part.whole == whole}
        steps = _steps(list(own.values()))
        if steps is None:
            return p
        new |= {v: _sum(whole, steps, Poly(part.by), part.end) for v, part in own.items()}
        p = _without(p, whole, _sum(whole, steps, ONE, None))
    return p.replaced(new.get)


def told_by(parts: Collection[Any]) -> list[Poly]:
    """The numbers of which all digits are there."""
    found = []
    for whole in {p.whole for p in parts if isinstance(p, Part)}:
        own, at = {p.by: p for p in parts if isinstance(p, Part) and p.whole == whole}, ONE
        while (part := own.get(at.frozen)) is not None and part.size is not None:
            at *= part.size
        if part is not None:
            found.append(Poly(whole))
    return found


def _part(value: Value) -> Part | Poly | None:
    """What an integer is of a whole number; or the whole number itself."""
    v = plain(value)
    by = _divisor(v)
    if by is None:
        p = poly(v)
        return p if _counts(p) else None
    part = _part(v.args[0])
    if isinstance(part, Poly):
        part = Part(part.frozen, ONE.frozen, None)
    of = None if part is None else by if part.size is None else part.size.over(by)
    if part is None or of is None:
        return None
    if v.attr in ("%", "&"):
        return Part(part.whole, part.by, by.frozen)
    return Part(part.whole, (Poly(part.by) * by).frozen, None if part.of is None else of.frozen)


def _divisor(v: Value) -> Poly | None:
    """By what a quotient or remainder is divided: a number of the launch, or a constant above 0."""
    if v.op != "binary" or v.attr not in ("/", "%", ">>", "&"):
        return None
    number = v.args[1].const
    if v.attr in (">>", "&"):
        number = None if number is None or not 0 <= number < 31 else 1 << number if v.attr == ">>" else number + 1
        return constant(number) if number is not None and not number & (number - 1) else None
    p = poly(v.args[1]) if settled(v.args[1]) else Poly()
    named = all(isinstance(s, str) and not is_digit(s) for s in p.symbols)
    return p if len(p) == 1 and named and all(k > 0 for k in p.values()) else None


def _counts(p: Poly) -> bool:
    """Whether a number is made of threads, blocks and iterations, and is never below 0."""
    known = all(is_digit(s) or (isinstance(s, str) and s.startswith("gridDim")) for s in p.symbols)
    return known and all(k > 0 for k in p.values()) and any(map(is_digit, p.symbols))


def _steps(parts: list[Part]) -> list[Poly] | None:
    """Where digits begin, from 1 on, each a multiple of the one before."""
    ends = {p.by for p in parts} | {p.end.frozen for p in parts if p.end is not None}
    left, found = [Poly(e) for e in ends - {ONE.frozen}], [ONE]
    while left:
        after = [e for e in left if all(other.over(e) is not None for other in left)]
        if not after or after[0].over(found[-1]) is None:
            return None
        found.append(after[0])
        left.remove(after[0])
    return found


def _sum(whole: Frozen, steps: list[Poly], start: Poly, end: Poly | None) -> Poly:
    """The digits of a number from one step to another, or to the last."""
    total = Poly()
    for at, after in zip(steps, [*steps[1:], None], strict=True):
        scale = at.over(start)
        if scale is None or (end is not None and (after is None or end.over(after) is None)):
            continue
        of = None if after is None else after.over(at)
        total += scale * symbol(Part(whole, at.frozen, None if of is None else of.frozen))
    return total


def _without(p: Poly, whole: Frozen, digits: Poly) -> Poly:
    """A polynomial with a number's digits in place of the number, where it has the number: ``i - i / w * w``."""
    key, value = whole[-1]
    for term, times in p.items():
        rest = [s for s in term if s not in key]
        if len(rest) + len(key) != len(term) or times % value:
            continue
        factor = Poly({tuple(rest): times // value})
        less = p - factor * Poly(whole)
        if not any(any(s in other for other, _ in whole) for s in less.symbols if is_digit(s)):
            return less + factor * digits
    return p
