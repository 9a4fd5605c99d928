"""Parts of a shared array that have nothing to do with one another, as ``float* b = s + 64`` makes them.

Each access has a least and a most index, by the numbers that its thread and iterations can have and by the conditions
around. Where no access of one group comes as far as those of another, each group is an array of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.analysis import affine, loops
from rawkern.gradients.analysis.affine import Poly, add, poly
from rawkern.gradients.analysis.guards import facts
from rawkern.gradients.ir import Access, Array, Kernel, Loop, Place, Store, Value, index_of, place_of, walk

Range = tuple[float, float]
ANY: Range = (-math.inf, math.inf)


def with_regions(kernel: Kernel) -> Kernel:
    """The kernel with such parts as arrays; it is changed in place."""
    for array, accesses in shared_accesses(kernel).items():
        if len(array.sizes) != 1:
            continue
        ranges = [of_access(kernel, each) for each in accesses]
        starts = _starts(ranges)
        for item, (low, _) in zip(accesses, ranges, strict=True):
            move(item, replace(array, region=sum(start <= low for start in starts)))
    return kernel


def shared_accesses(kernel: Kernel) -> dict[Array, list[Access]]:
    """All loads and stores of each shared array."""
    found: dict[Array, list[Access]] = {}
    for item in walk(kernel.body):
        place = place_of(item)
        if place is not None and place.array.shared:
            found.setdefault(place.array, []).append(item)
    return found


def move(access: Access, array: Array, index: tuple[Value, ...] | None = None) -> None:
    """Let an access mean the same element of another array, or that with another index."""
    if isinstance(access, Store):
        access.place, access.index = Place(array, access.place.fields), access.index if index is None else index
    else:
        access.attr, access.args = Place(array, access.attr.fields), access.args if index is None else index


def _starts(ranges: Iterable[Range]) -> list[float]:
    """Where a range begins that none before comes as far as, except for the first."""
    found, most = [], math.inf
    for k, (low, high) in enumerate(sorted(ranges)):
        if k and low > most:
            found.append(low)
        most = max(most, high) if k else high
    return found


def of_access(kernel: Kernel, item: Access) -> Range:
    """The least and the most index of an access to an array of one dimension."""
    return _Bounds(kernel, facts(item.block, item.order).above).of(poly(index_of(item)[0]))


class _Bounds:
    """What integers can be, where these polynomials are at least 1."""

    def __init__(self, kernel: Kernel, above: list[Poly]) -> None:
        self.above = above
        self.known: dict[Any, Range] = {}
        self.sizes = affine.threads(kernel, False)
        self.one = [f"{of}.{a}" for of in ("threadIdx", "blockIdx") for a in "xyz" if f"{of}.{a}" not in self.sizes]

    def of(self, p: Poly) -> Range:
        """The least and the most that a polynomial can be."""
        low, high = self._alone(p)
        for fact in self.above:
            room = add(fact, {(): -1})
            low, high = max(low, self._alone(add(p, room, -1))[0]), min(high, self._alone(add(p, room))[1])
        return low, high

    def _alone(self, p: Poly) -> Range:
        low = high = 0.0
        for key, times in p.items():
            part = (1.0, 1.0)
            for symbol in key:
                part = _product(part, self._symbol(symbol))
            ends = sorted(times * end for end in part)
            low, high = low + ends[0], high + ends[1]
        return low, high

    def _symbol(self, symbol: Any) -> Range:
        if symbol not in self.known:
            self.known[symbol] = ANY  # while it is asked for: what is known of it may be in terms of itself
            self.known[symbol] = self._found(symbol)
            self.known[symbol] = self.of({(symbol,): 1})
        return self.known[symbol]

    def _found(self, symbol: Any) -> Range:
        if isinstance(symbol, Loop):
            count = loops.iterations(symbol) or loops.at_most(symbol)
            return 0, count - 1 if count else math.inf
        if isinstance(symbol, str):
            size = 1 if symbol in self.one else self.sizes.get(symbol)
            return (0, size - 1 if size else math.inf) if symbol.startswith(("threadIdx", "blockIdx")) else ANY
        return self._value(symbol)

    def _value(self, v: Value) -> Range:
        """Of the least of numbers, and of parts of one: a quotient, a rest, some bits."""
        if v.op == "call" and v.attr in ("min", "max") and not types.is_float(v.type) and "unsigned" not in v.type:
            lows, highs = zip(*(self.of(poly(a)) for a in v.args), strict=True)
            return (min(lows), min(highs)) if v.attr == "min" else (max(lows), max(highs))
        by = v.args[1].const if v.op == "binary" and v.attr in ("/", "%", "&", ">>") else None
        if by is None or by < 0 or (by == 0 and v.attr in "/%") or types.is_float(v.type):
            return ANY
        if v.attr == "&":
            return 0, by
        low, high = self.of(poly(v.args[0]))
        if low < 0:
            return ANY
        if v.attr == "%":
            return 0, min(high, by - 1)
        by = by if v.attr == "/" else 1 << min(by, 31)
        return low // by, high // by if high < math.inf else high


def _product(a: Range, b: Range) -> Range:
    if a == (1.0, 1.0):
        return b
    return (a[0] * b[0], a[1] * b[1] if 0 not in (a[1], b[1]) else 0) if a[0] >= 0 and b[0] >= 0 else ANY
