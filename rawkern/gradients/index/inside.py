"""Whether the indices of an accessor's element are within its tensor's sizes, so that others mean another element.

Of a gradient, whose rows lie one after another, the first index may be anything: what is before or after all rows is
not in it. So it is of a tensor that is only read, as its gradient alone is written. Where the conditions of a place do
not say it of an index, the numbers of the launch may: ``x[r][c]`` under ``c < n`` where n is at most x.size(1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rawkern.gradients.index.affine import Poly, constant, is_digit, poly, symbol
from rawkern.gradients.index.answers import kept
from rawkern.gradients.index.guards import guards
from rawkern.gradients.index.ranges import Ranges, extents
from rawkern.gradients.index.scev import iterations
from rawkern.gradients.ir import Access, Kernel, Loop, Value, index_of, place_of

AtMost = tuple[Poly, Poly]  # of two numbers of a launch: the one is at most the other


@kept
def inside(kernel: Kernel, access: Access, assume: bool) -> tuple[AtMost, ...] | None:
    """What has to hold of a launch; None where it is not known. Nothing if it is certain, and nothing else without
    `assume`."""
    place, found = place_of(access), list[AtMost]()
    assert place is not None
    within, several = _Within(kernel, access), place.array.accessor and len(index_of(access)) > 1
    first = 1 if place.array.const else 0
    for k, index in list(enumerate(index_of(access)))[first:] if several else ():
        needed = within.needed(poly(index), symbol(f"{place.array.name}.size({k})"))
        if needed is None or (needed and not assume):
            return None
        found += needed
    return tuple(found)


class _Within:
    """What is known where an access is."""

    def __init__(self, kernel: Kernel, access: Access) -> None:
        self.kernel, self.facts = kernel, guards(access).above
        self.ranges = Ranges(extents(kernel), self.facts)

    def needed(self, index: Poly, size: Poly) -> list[AtMost] | None:
        """What has to be assumed so that an index is at least 0 and below a size; None where nothing would do."""
        found: list[AtMost] = []
        if self.ranges.of(index)[0] < 0 and not self.ranges.implies(index + 1):
            least = next(self._least(index), None)
            if least is None:
                return None
            found.append((Poly(), least))
        if not self.ranges.implies(size - index):
            most = next(self._most(index), None)
            if most is None:
                return None
            found.append((most + 1, size))
        return found

    def _least(self, index: Poly) -> Iterator[Poly]:
        """Numbers of the launch that an index is at least."""
        for fact in [None, *self.facts]:
            times = 0 if fact is None else _times(index, fact)
            low = index if fact is None else index - fact * times + times
            if fact is None or times:
                low = low.replaced(lambda s: Poly() if is_digit(s) else None) if _rises(low) else low
                if _of_launch(low):
                    yield low

    def _most(self, index: Poly) -> Iterator[Poly]:
        """Numbers of the launch that an index is at most."""
        for fact in [*self.facts, None]:
            times = 0 if fact is None else _times(-index, fact)
            high = index if fact is None else index + fact * times - times
            if fact is None or times:
                high = high.replaced(self._last) if _rises(high) else high
                if _of_launch(high):
                    yield high
        known = self.ranges.of(index)[1]
        if known < math.inf:
            yield constant(int(known))

    def _last(self, s: object) -> Poly | None:
        """The most that a digit is."""
        if isinstance(s, Loop):
            size = iterations(s)
            return None if size is None else constant(size - 1)
        if not isinstance(s, str) or not is_digit(s):
            return None
        size = self.ranges.extents.get(s)
        of_grid = s.startswith("blockIdx") and size is None
        return symbol(f"gridDim.{s[-1]}") - 1 if of_grid else constant(size - 1) if size else None


def _times(p: Poly, fact: Poly) -> int:
    """How often a fact is taken from a polynomial so that what is of threads cancels; 0 where it does not."""
    own = [(p[key], fact[key]) for key in fact if key in p and not _of_launch(Poly({key: 1}))]
    times = {a // b if a % b == 0 else 0 for a, b in own}
    return max(times.pop(), 0) if len(times) == 1 else 0


def _rises(p: Poly) -> bool:
    """Whether a polynomial grows with each of its digits."""
    return all(len(key) == 1 and value > 0 for key, value in p.items() if any(map(is_digit, key)))


def _of_launch(p: Poly) -> bool:
    """Whether a polynomial is of numbers that a launch is given."""
    return not any(is_digit(s) or isinstance(s, Value) for s in p.symbols)
