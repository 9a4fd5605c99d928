"""Coverage: which elements are accessed for certain.

By counting: an index is a sum of digits, which are dense if, sorted by their coefficients, each coefficient is just
what the digits before it count up to: then every number below the total occurs. A condition such as ``c < n`` cuts what
the digits of ``c`` count up to. By a witness: the thread, and the iterations of loops, whose store means the element of
a read, ``t = p`` of ``s[t]`` for ``s[p]``; they have to exist, and to meet the guards of the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rawkern.gradients.index.affine import GROUP, LANE, Poly, poly
from rawkern.gradients.index.guards import Comparison, Guards, guards
from rawkern.gradients.index.ranges import Ranges, extents
from rawkern.gradients.index.scev import iterations
from rawkern.gradients.index.uniform import uniform
from rawkern.gradients.index.values import MOST, Unknown, numbers_of, value_of
from rawkern.gradients.ir import Kernel, Loop, Store, Value, index_of, inside, place_of

ENDLESS = 2**100
BESIDE = "beside"


@dataclass(frozen=True)
class Cover:
    """The index of an access, the comparisons under which it is made, and the shape of the blocks.

    The digit "beside" of an index tells accesses apart of which there are several; `group`: see `threads.grouped`.
    """

    index: Poly
    below: tuple[Comparison, ...]
    block: tuple[int, int, int]
    beside: int = 1
    group: int = 0


def covered(cover: Cover, arguments: Mapping[str, Any], grid: tuple[int, int, int]) -> tuple[int, int]:
    """The range of indices that are accessed for certain in a launch; it may be empty."""
    known, sizes = numbers_of(arguments, grid), {BESIDE: cover.beside}
    for axis, threads, blocks in zip("xyz", cover.block, grid, strict=True):
        known[f"blockDim.{axis}"] = threads
        sizes |= {f"threadIdx.{axis}": threads, f"blockIdx.{axis}": blocks}
    if cover.group:
        sizes |= {GROUP: cover.block[0] // cover.group, LANE: cover.group}
    try:
        return _Dense(known, sizes).range(cover)
    except Unknown:
        return 0, 0


class _Dense:
    """Counts digits with these extents, where these numbers are known."""

    def __init__(self, known: Mapping[str, int], extents: Mapping[Any, int]) -> None:
        self.known, self.extents = known, extents

    def range(self, cover: Cover) -> tuple[int, int]:
        index, start = self._by_digit(cover.index)
        if any(c < 0 for c in index.values()):
            raise Unknown
        digits = sorted(index, key=lambda d: index[d])
        cuts = self._cuts(cover.below, index, digits)
        total = 1
        for place, digit in enumerate(digits):
            if index[digit] != total:
                raise Unknown
            total *= self.extents.get(digit, ENDLESS)
            for scale, room in sorted(cuts.get(place, ()), reverse=True):
                if total % scale and total < ENDLESS:
                    raise Unknown
                total = min(total, scale * max(room, 0))
        if start < 0 or start + total > MOST:
            raise Unknown
        return start, start + total

    def _cuts(
        self, below: Sequence[Comparison], index: Mapping[Any, int], digits: Sequence[Any]
    ) -> dict[int, list[tuple[int, int]]]:
        """By the last digit of what a comparison bounds: the coefficient of the first one, and the bound."""
        cuts: dict[int, list[tuple[int, int]]] = {}
        for each in below:
            terms, room = self._room(each)
            if sum(c * (self.extents.get(d, ENDLESS) - 1) for d, c in terms.items() if c > 0) < room:
                continue  # holds for all
            places = sorted(digits.index(d) for d in terms if d in index)
            if len(places) < len(terms) or not places or places != list(range(places[0], places[-1] + 1)):
                raise Unknown
            scale = index[digits[places[0]]]
            if any(terms[digits[p]] * scale != index[digits[p]] for p in places):
                raise Unknown
            cuts.setdefault(places[-1], []).append((scale, room))
        return cuts

    def _by_digit(self, p: Poly) -> tuple[dict[Any, int], int]:
        """A polynomial as coefficients of its digits and a number."""
        found = p.split(lambda s: isinstance(s, Loop) or s in self.extents)
        if found is None:
            raise Unknown
        numbers = {digit: value_of(c, self.known) for digit, c in found[0].items()}
        return {d: c for d, c in numbers.items() if c and self.extents.get(d) != 1}, value_of(found[1], self.known)

    def _room(self, c: Comparison) -> tuple[dict[Any, int], int]:
        """A comparison as coefficients of digits whose sum is less than a number."""
        (low, least), (high, most) = map(self._by_digit, (c.low, c.high))
        if c.unsigned and (high or most < 0 or least < 0 or any(k < 0 for k in low.values())):
            raise Unknown
        terms = {d: low.get(d, 0) - high.get(d, 0) for d in (*low, *high)}
        return {d: k for d, k in terms.items() if k}, most - least


# By a witness ---------------------------------------------------------------------------------------------------------

By = dict[Any, Poly]  # who stores to a place: the numbers of the thread, and of the iterations of loops
_AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


def setter(
    kernel: Kernel, store: Store, read: Value, under: Sequence[tuple[Value, bool]], within: Sequence[Loop]
) -> By | None:
    """Who sets the element of a read by a store in these loops, under these conditions; None if it is not certain."""
    if store.place != place_of(read) or store.adds or len(store.index) != len(index_of(read)):
        return None
    conditions = Guards()
    for condition, side in under:
        conditions.learn(condition, side)
    witness = _Witness(kernel, within, guards(read))
    sizes = [*store.place.array.sizes, *[0] * len(store.index)]
    for own, wanted, size in zip(map(poly, store.index), map(poly, index_of(read)), sizes, strict=False):
        if not witness.takes(own, wanted, size):
            return None
    met = conditions.exact and all(map(witness.meets, conditions.below))
    return witness.at if met and all(loop in witness.at for loop in within) else None


class _Witness:
    """The thread of a block, and the iterations of loops, with which an index is that of a read."""

    def __init__(self, kernel: Kernel, within: Sequence[Loop], known: Guards) -> None:
        self.kernel, self.within, self.known = kernel, within, known
        self.ranges = Ranges(extents(kernel), known.above)
        self.at: By = {}

    def takes(self, own: Poly, wanted: Poly, size: int) -> bool:
        """Whether there are digits with which an index is another, which is below a size, if that is known (else 0)."""
        found = own.split(lambda s: s in _AXES or s in self.within)
        if found is None or any((c.number or -1) < 0 for c in found[0].values()):
            return False
        digits, rest = {d: c[()] for d, c in found[0].items()}, found[1]
        if not all(map(_shared, rest.symbols)):
            return False
        left, size = wanted - rest, 0 if rest else size
        for digit, times in sorted(digits.items(), key=lambda each: -each[1]):
            number = _times(left, times)
            left -= number * times
            others = {d: t for d, t in digits.items() if d != digit}
            most = -(-size // times) if self._less(others, times) else 0
            if self.at.setdefault(digit, number) != number or not self._exists(digit, number, most):
                return False
        return not left

    def _less(self, digits: Mapping[Any, int], than: int) -> bool:
        """Whether digits, all of loops, add up to less than a number."""
        counts = {d: iterations(d) if isinstance(d, Loop) else None for d in digits}
        return all(counts.values()) and sum(t * ((counts[d] or 1) - 1) for d, t in digits.items()) < than

    def _exists(self, digit: Any, number: Poly, below: int) -> bool:
        """Whether there is a thread or iteration of a number; it is from 0 to `below` (exclusive), if that is known."""
        most = iterations(digit) if isinstance(digit, Loop) else self.kernel.block[_AXES.index(digit)]
        if not most or (not below and self.ranges.of(number)[0] < 0):
            return False
        return 0 < below <= most or self.ranges.implies(-number + most)

    def meets(self, condition: Comparison) -> bool:
        """Whether the thread and the iterations meet a comparison."""
        symbols = [s for s in {**condition.low.symbols, **condition.high.symbols} if s not in self.at]
        inner = [loop.body for loop in self.at if isinstance(loop, Loop)]  # what is known there is of another iteration
        if not all(
            _shared(s) and not (isinstance(s, Value) and any(inside(s.block, b) for b in inner)) for s in symbols
        ):
            return False
        low, high = condition.low.replaced(self.at.get), condition.high.replaced(self.at.get)
        if condition.unsigned and self.ranges.of(low)[0] < 0:
            return False  # what is below 0 would be large
        alike = (low, high, condition.unsigned)
        return any((c.low, c.high, c.unsigned) == alike for c in self.known.below) or self.ranges.implies(high - low)


def _times(p: Poly, times: int) -> Poly:
    """How many times a number is in a polynomial: in each of its products, if without a rest, and in its constant."""
    return Poly({key: v // times for key, v in p.items() if v // times and (not key or not v % times)})


def _shared(symbol: Any) -> bool:
    """Whether a number is the same for all threads of a block."""
    return uniform(symbol) if isinstance(symbol, Value) else symbol not in _AXES
