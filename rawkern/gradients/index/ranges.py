"""Range and implication: what polynomials can be at a place, by the extents of their symbols and the guards there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.index.affine import Poly, add, is_digit, poly, symbol
from rawkern.gradients.index.delinearize import Part
from rawkern.gradients.index.guards import guards
from rawkern.gradients.index.scev import at_most, induction, iterations, plain
from rawkern.gradients.index.scev import bounds as bounds_of
from rawkern.gradients.index.threads import by_groups, threads
from rawkern.gradients.ir import Access, If, Kernel, Loop, Value, index_of, place_of

Range = tuple[float, float]
ANY: Range = (-math.inf, math.inf)


def bounds(kernel: Kernel, access: Access) -> Range:
    """The least and the most index of an access to an array of one dimension."""
    return Ranges(extents(kernel), guards(access).above).of(poly(index_of(access)[0]))


def extents(kernel: Kernel) -> dict[Any, int | None]:
    """What each digit of threads is below: 1 along an axis with one thread or block, None where the launch decides."""
    found: dict[Any, int | None] = {f"{of}.{a}": 1 for of in ("threadIdx", "blockIdx") for a in "xyz"}
    return {**found, **by_groups(kernel, threads(kernel, False)), **threads(kernel, False)}


def most_iterations(kernel: Kernel, loop: Loop) -> int | None:
    """How many iterations a loop has at most, by what its bound can be, or by the arrays that it indexes in each."""
    found, ranges = bounds_of(loop), Ranges(extents(kernel))
    most = math.inf
    if found is not None:
        c, end, equal = found
        start, step = induction(loop)[c.phi]
        if step.const and step.const > 0:
            most = -(-ranges.of(poly(end) - poly(start) + int(equal))[1] // step.const)
    for item in loop.body.items:
        place = place_of(item)
        if place is not None and place.array.private:
            for index, size in zip(index_of(item), place.array.sizes, strict=True):
                most = min(most, _within(poly(index), loop, size, ranges))
    return max(0, int(most)) if most < math.inf else None


def _within(index: Poly, loop: Loop, size: int, ranges: Ranges) -> float:
    """For how many iterations an index that grows in each is below a size."""
    by = symbol(loop)
    step = index.get(next(iter(by)), 0)
    low = ranges.of(index - by * step)[0] if step > 0 else -math.inf
    return (size - 1 - low) // step + 1 if low > -math.inf else math.inf


class Ranges:
    """What integers can be, where these polynomials are at least 1, and digits are below their extents."""

    def __init__(self, extents: Mapping[Any, int | None], above: Iterable[Poly] = ()) -> None:
        self.extents, self.above = extents, list(above)
        self.known: dict[Any, Range] = {}

    def of(self, p: Poly) -> Range:
        """The least and the most that a polynomial can be."""
        low, high = self._alone(p)
        for fact in self.above:
            for times in _scales(p, fact):
                low = max(low, self._alone(add(p, fact, -times))[0] + times)
            for times in _scales(p, fact, -1):
                high = min(high, self._alone(add(p, fact, times))[1] - times)
        return low, high

    def implies(self, p: Poly) -> bool:
        """Whether a polynomial is at least 1."""
        if self._alone(p)[0] >= 1:
            return True
        return p.number is None and any(
            self._alone(add(p, f, -times))[0] + times >= 1 for f in self.above for times in _scales(p, f)
        )

    def _alone(self, p: Poly) -> Range:
        low = high = 0.0
        for key, times in p.items():
            part = (1.0, 1.0)
            for s in key:
                part = _product(part, self._symbol(s))
            ends = sorted(times * end for end in part)
            low, high = low + ends[0], high + ends[1]
        return low, high

    def _symbol(self, s: Any) -> Range:
        if s not in self.known:
            self.known[s] = ANY  # while it is asked for: what is known of it may be in terms of itself
            self.known[s] = self._found(s)
            self.known[s] = self.of(symbol(s))
        return self.known[s]

    def _found(self, s: Any) -> Range:
        if isinstance(s, Value):
            return self._value(s)
        if isinstance(s, Part):
            return self._digit(s)
        if isinstance(s, Loop):
            size = iterations(s) or at_most(s)
        elif s in self.extents or is_digit(s):
            size = self.extents.get(s)
        else:
            return (1, math.inf) if s.startswith("gridDim") else ANY
        return 0, size - 1 if size else math.inf

    def _digit(self, part: Part) -> Range:
        by, high = Poly(part.by).number or 1, self.of(Poly(part.whole))[1]
        size = None if part.size is None else part.size.number
        return 0, min(high // by if high < math.inf else high, size - 1 if size else math.inf)

    def _value(self, v: Value) -> Range:
        """Of the least of numbers, and of parts of one: a quotient, a rest, some bits."""
        if types.is_float(v.type):
            return ANY
        if v.op == "call" and v.attr in ("min", "max") and "unsigned" not in v.type:
            lows, highs = zip(*(self.of(poly(a)) for a in v.args), strict=True)
            return (min(lows), min(highs)) if v.attr == "min" else (max(lows), max(highs))
        if v.op == "binary" and v.attr in ("/", "%", "&", ">>"):
            return self._part(v, v.args[1].const)
        if v.op == "result" and isinstance(v.attr, If):
            sides = next((self.of(poly(a)), self.of(poly(b))) for r, a, b in v.attr.results if r is v)
            return min(a for a, _ in sides), max(b for _, b in sides)
        return self._carried(v.attr, v) if isinstance(v.attr, Loop) else ANY

    def _carried(self, loop: Loop, v: Value) -> Range:
        """Of a variable that each iteration changes by some of what is between two numbers."""
        c = next(c for c in loop.carried if v in (c.phi, c.result))
        times, (low, high), by = iterations(loop) or at_most(loop), self.of(poly(c.init)), _growth(c.next, c.phi)
        if by is None:
            return ANY
        less, more = (times * k if times is not None else math.inf * k if k else 0 for k in by)
        return low + min(less, 0), high + max(more, 0)

    def _part(self, v: Value, by: int | None) -> Range:
        if v.attr == "&":
            return (0, by) if by is not None and by >= 0 else ANY
        low, high = self.of(poly(v.args[0]))
        if v.attr == "%" and by and by > 0 and low < 0:
            return 1 - by, by - 1
        if low < 0 or (by is not None and by < (v.attr in "/%")):
            return ANY
        if v.attr == "%":
            return 0, high if by is None else min(high, by - 1)
        if by is None:
            return ANY
        by = by if v.attr == "/" else 1 << min(by, 31)
        return low // by, high // by if high < math.inf else high


def _growth(v: Value, phi: Value) -> Range | None:
    """By how much a value is more than a loop's variable, at least and at most; None where that is not certain."""
    v = plain(v)
    if v is phi:
        return 0, 0
    if v.op == "binary" and v.attr in "+-" and v.args[1].const is not None:
        by, before = v.args[1].const * (1 if v.attr == "+" else -1), _growth(v.args[0], phi)
        return before and (before[0] + by, before[1] + by)
    if v.op == "result" and isinstance(v.attr, If):
        sides = next((_growth(a, phi), _growth(b, phi)) for r, a, b in v.attr.results if r is v)
        return None if None in sides else (min(s[0] for s in sides if s), max(s[1] for s in sides if s))
    if v.op == "result":
        inner = next(c for c in v.attr.carried if c.result is v)
        times, before = iterations(v.attr) or at_most(v.attr), _growth(inner.init, phi)
        by = _growth(inner.next, inner.phi)
        if times is None or before is None or by is None:
            return None
        return before[0] + min(times * by[0], 0), before[1] + max(times * by[1], 0)
    return None


def _scales(p: Poly, fact: Poly, sign: int = 1) -> set[int]:
    """How often a fact may be taken from a polynomial (or be added: -1) so that symbols cancel."""
    pairs = [(sign * p[key], value) for key, value in fact.items() if key and key in p]
    return {max(1, a // b) for a, b in pairs if a * b > 0}


def _product(a: Range, b: Range) -> Range:
    if a == (1.0, 1.0):
        return b
    return (a[0] * b[0], a[1] * b[1] if 0 not in (a[1], b[1]) else 0) if a[0] >= 0 and b[0] >= 0 else ANY
