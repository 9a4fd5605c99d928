"""Range and implication: what polynomials can be at a place, by the extents of their symbols and the guards there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.index.affine import Poly, add, is_digit, poly, symbol
from rawkern.gradients.index.delinearize import Part
from rawkern.gradients.index.guards import guards
from rawkern.gradients.index.scev import at_most, iterations
from rawkern.gradients.index.threads import by_groups, threads
from rawkern.gradients.ir import Access, Kernel, Loop, Value, index_of

Range = tuple[float, float]
ANY: Range = (-math.inf, math.inf)


def bounds(kernel: Kernel, access: Access) -> Range:
    """The least and the most index of an access to an array of one dimension."""
    return Ranges(extents(kernel), guards(access).above).of(poly(index_of(access)[0]))


def extents(kernel: Kernel) -> dict[Any, int | None]:
    """What each digit of threads is below: 1 along an axis with one thread or block, None where the launch decides."""
    found: dict[Any, int | None] = {f"{of}.{a}": 1 for of in ("threadIdx", "blockIdx") for a in "xyz"}
    return {**found, **by_groups(kernel, threads(kernel, False)), **threads(kernel, False)}


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
        return ANY

    def _part(self, v: Value, by: int | None) -> Range:
        if v.attr == "&":
            return (0, by) if by is not None and by >= 0 else ANY
        low, high = self.of(poly(v.args[0]))
        if low < 0 or (by is not None and by < (v.attr in "/%")):
            return ANY
        if v.attr == "%":
            return 0, high if by is None else min(high, by - 1)
        if by is None:
            return ANY
        by = by if v.attr == "/" else 1 << min(by, 31)
        return low // by, high // by if high < math.inf else high


def _scales(p: Poly, fact: Poly, sign: int = 1) -> set[int]:
    """How often a fact may be taken from a polynomial (or be added: -1) so that symbols cancel."""
    pairs = [(sign * p[key], value) for key, value in fact.items() if key and key in p]
    return {max(1, a // b) for a, b in pairs if a * b > 0}


def _product(a: Range, b: Range) -> Range:
    if a == (1.0, 1.0):
        return b
    return (a[0] * b[0], a[1] * b[1] if 0 not in (a[1], b[1]) else 0) if a[0] >= 0 and b[0] >= 0 else ANY
