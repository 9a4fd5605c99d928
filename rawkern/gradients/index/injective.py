"""Injectivity: which thread owns which element, by indices read as mixed-radix numbers.

An index ``c0*d0 + c1*d1 + ...`` of digits d (threadIdx, blockIdx, the count of a loop's iterations), where each
coefficient is above the most that the digits before it add up to, says which digits it was made of: so two threads
never mean the same element. That a sum of digits is below the next coefficient is known from the block's shape or from
a guard, such as ``col < n``.

Accesses whose indices differ by an offset, as the fields ``x[3 * i + 1]`` and ``x[3 * i + 2]`` or the halves of a row,
are told apart together: which of the offsets it was is one more digit, if they are multiples of a gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rawkern.gradients.index.affine import (
    GROUP,
    LANE,
    Frozen,
    Poly,
    constant,
    is_digit,
    is_place,
    part_of_thread,
    poly,
    settled,
    symbol,
)
from rawkern.gradients.index.answers import kept
from rawkern.gradients.index.delinearize import ONE, Part, told_by, with_parts
from rawkern.gradients.index.guards import Guards, guards, quotient
from rawkern.gradients.index.inside import AtMost, inside
from rawkern.gradients.index.ranges import Ranges
from rawkern.gradients.index.scev import iterations, loops_around
from rawkern.gradients.index.threads import by_groups, grouped, threads
from rawkern.gradients.ir import Access, Kernel, Loop, Store, Value, index_of, walk

BESIDE = "beside"  # the digit that says which of several offsets
NOTHING, SIGNS, ONE_MORE = range(3)  # what may be assumed: that numbers are not negative, and one thing besides


def _none(_: Value) -> bool:
    return False


@dataclass(frozen=True)
class Question:
    """Who is to be told apart by the elements that accesses mean.

    `within_block`: only threads of one block. `same`: which values are the same for all threads. `assumed`: where it
    may be added that a number of the launch has to be at most another; None: nothing may be assumed.
    """

    kernel: Kernel
    within_block: bool = False
    same: Callable[[Value], bool] = _none
    assumed: list[AtMost] | None = None

    def assume(self, needed: Iterable[AtMost]) -> None:
        """Add what an answer needs; nothing where nothing may be assumed, as then nothing is needed."""
        if self.assumed is not None:
            self.assumed.extend(each for each in needed if each not in self.assumed)


def injective(
    kernel: Kernel, accesses: Sequence[Access], *, within_block: bool = False, iterations: bool = False,
    same: Callable[[Value], bool] | None = None, assumed: list[AtMost] | None = None,
) -> dict[Access, int] | None:  # fmt: skip
    """A number for the offset of each access; None unless an element says which thread accesses it, by which of them.

    With `iterations`, it also says in which iterations of the loops around; for the others see `Question`.
    """
    found, needed = _told_apart(kernel, tuple(accesses), within_block, iterations, same or _none, assumed is not None)
    if assumed is not None:
        assumed += [each for each in needed if each not in assumed]
    return found


@kept
def _told_apart(
    kernel: Kernel, accesses: tuple[Access, ...], within_block: bool, iterations: bool,
    same: Callable[[Value], bool], assume: bool,
) -> tuple[dict[Access, int] | None, list[AtMost]]:  # fmt: skip
    """The answer of `injective`, and what it assumes of a launch."""
    loops = {a: loops_around(a.block) if iterations else () for a in accesses}
    dimensions = {len(index_of(a)) for a in accesses}
    n = dimensions.pop() if len(dimensions) == 1 else None
    ways: list[Callable[..., dict[Access, int] | None]] = [] if n is None else [
        *(partial(_along, along=k) for k in range(n)), *([_together, _beside] if n != 1 else [])
    ]  # fmt: skip
    for way in ways:
        needed: list[AtMost] = []
        found = way(Question(kernel, within_block, same, needed if assume else None), loops)
        if found is not None:
            return found, needed
    return None, []


def sets_once(kernel: Kernel, store: Store, assumed: list[AtMost] | None) -> bool:
    """Whether a store's elements are each set once: by one store, by one thread in one iteration."""
    stores = [i for i in walk(kernel.body) if isinstance(i, Store) and i.place == store.place]
    numbers = injective(kernel, stores, iterations=True, assumed=assumed)
    return numbers is not None and len(set(numbers.values())) == len(stores)


def _together(asked: Question, accesses: Mapping[Access, Sequence[Loop]]) -> dict[Access, int] | None:
    """What several indices of each access, which are alike for all of them, tell together; or none, of a variable."""
    keys = {signature(asked, a, loops) for a, loops in accesses.items()}
    return dict.fromkeys(accesses, 0) if len(keys) == 1 and None not in keys else None


def _along(asked: Question, accesses: Mapping[Access, Sequence[Loop]], along: int) -> dict[Access, int] | None:
    """What one index of each access tells, with these loops; the accesses by their offsets."""
    found = [_split(asked, index_of(a)[along]) for a in accesses]
    spread = None if None in found else _spread([each[1] for each in found if each is not None])
    if spread is None:
        return None
    keys = {_key(asked, a, along, loops, beside=spread) for a, loops in accesses.items()}
    if len(keys) != 1 or None in keys or not all(_is_inside(asked, a) for a in accesses):
        return None
    return dict(zip(accesses, spread.numbers, strict=True))


def _beside(asked: Question, accesses: Mapping[Access, Sequence[Loop]]) -> dict[Access, int] | None:
    """What several indices of each access tell together, where some of them differ by offsets."""
    spreads: dict[int, _Spread] = {}
    for k, indices in enumerate(zip(*map(index_of, accesses), strict=True)):
        found = [_split(asked, i) for i in indices]
        spread = None if None in found else _spread([each[1] for each in found if each is not None])
        if spread is None:
            return None
        spreads |= {k: spread} if spread.gap else {}
    keys = {signature(asked, a, loops, spreads) for a, loops in accesses.items()}
    numbers = [0] * len(accesses)
    for spread in spreads.values():
        numbers = [a * (max(spread.numbers) + 1) + b for a, b in zip(numbers, spread.numbers, strict=True)]
    return dict(zip(accesses, numbers, strict=True)) if len(keys) == 1 and None not in keys else None


def _is_inside(asked: Question, access: Access) -> bool:
    """Whether the indices of an access tell elements apart, as those of an accessor do within its sizes."""
    needed = inside(asked.kernel, access, asked.assumed is not None)
    asked.assume(needed or ())
    return needed is not None


def signature(
    asked: Question, access: Access, loops: Collection[Loop] = (), beside: Mapping[int, _Spread] | None = None
) -> tuple[Any, ...] | None:
    """How the indices of an access tell threads (and iterations of these loops) apart; None if that is not certain.

    Two accesses with the same signature meet in an element only if they are of the same thread. `beside`: of indices
    by which several accesses are told apart, too.
    """
    digits = [set(found[0]) if (found := _split(asked, i)) is not None else set() for i in index_of(access)]
    keys = []
    for k in range(len(digits)):
        others = set().union(*(own for j, own in enumerate(digits) if j != k))
        keys.append(_key(asked, access, k, loops, told=others, beside=(beside or {}).get(k)))
    if not digits:  # a variable, which all threads mean that come there
        kernel, known = asked.kernel, guards(access).grouped(asked.kernel.group)
        own = by_groups(kernel, threads(kernel, asked.within_block))
        keys = [_fixed(known, own) if _all_told(asked, (), known, loops) else None]
    return None if None in keys or not _is_inside(asked, access) else tuple(keys)


@dataclass(frozen=True)
class _Spread:
    """Of indices that differ by multiples of a gap: the least offset, the gap, and each one's multiple."""

    base: Poly
    gap: Poly
    numbers: list[int]

    def less_than(self, common: int) -> bool:
        """Whether the offsets differ by less than a number."""
        return not self.gap or (self.gap.number is not None and self.gap.number * max(self.numbers) < common)


def _spread(offsets: Sequence[Poly]) -> _Spread | None:
    for base in offsets:
        far = [offset - base for offset in offsets]
        some = [f for f in far if f]
        if not some:
            return _Spread(base, Poly(), [0] * len(far))
        if all(f.number is not None for f in some):
            gap = constant(math.gcd(*(f[()] for f in some)))
        else:
            gap = min(some, key=lambda f: max(f.values()))
        numbers = [_times(f, gap) for f in far]
        known = [n for n in numbers if n is not None]
        if len(known) == len(far) and all(v > 0 for v in gap.values()):
            return _Spread(base, gap, known)
    return None


def _times(p: Poly, gap: Poly) -> int | None:
    """How many times a gap it is, if not less than 0."""
    if not p:
        return 0
    key = next(iter(gap))
    number = p.get(key, 0) // gap[key]
    return number if number > 0 and gap * number == p else None


def _split(asked: Question, index: Value) -> tuple[dict[Any, Poly], Poly] | None:
    """An index as coefficients of its digits and the rest, its offset; None where it is not made of these alone."""
    return _parted(index, asked.kernel.group, asked.within_block, asked.same)


@kept
def _parted(
    index: Value, group: int, within_block: bool, same: Callable[[Value], bool]
) -> tuple[dict[Any, Poly], Poly] | None:
    parts = with_parts(poly(index), lambda s: same(s) or (part_of_thread(s) or (0, 0))[1] == group > 0)
    p = grouped(parts, group)
    if any(isinstance(s, Value) and not same(s) and not settled(s) for s in p.symbols):
        return None
    blocks = ("blockIdx",) if within_block else ()  # they are the same for all threads then
    found = p.split(lambda s: isinstance(s, Part) or (is_digit(s) and not (is_place(s) and s.startswith(blocks))))
    return None if found is None or any(map(is_digit, (s for c in found[0].values() for s in c.symbols))) else found


def _key(
    asked: Question, access: Access, along: int, loops: Collection[Loop], *, told: Collection[Any] = (),
    beside: _Spread | None = None,
) -> tuple[Any, ...] | None:  # fmt: skip
    """How one index of an access tells threads apart; digits in `told` are told by the others."""
    kernel, found = asked.kernel, _split(asked, index_of(access)[along])
    known = guards(access).grouped(kernel.group)
    if found is None or not _all_told(asked, {*found[0], *told}, known, loops):
        return None
    (coefficients, offset), plain = found, threads(kernel, asked.within_block)
    digits = {**plain, **by_groups(kernel, plain)}
    fixed = _fixed(known, digits.keys() - coefficients.keys())
    downwards = bool(coefficients) and all(v < 0 for c in coefficients.values() for v in c.values())
    if downwards:  # as in x[n - 1 - i]: what is below an end is read
        coefficients = {d: -c for d, c in coefficients.items()}
    if beside is not None:
        offset, digits = beside.base, {**digits, BESIDE: max(beside.numbers) + 1}
        if beside.gap and downwards:
            return None
    coefficients, common = _without_factor(coefficients, beside)
    if any(isinstance(d, Part) for d in coefficients):
        known = replace(known, above=[with_parts(p, asked.same) for p in known.above])
    order, needed = _order_of(
        tuple((d, _terms(c)) for d, c in coefficients.items()), tuple(digits.items()), tuple(map(_terms, known.above)),
        tuple((_terms(p), _terms(number)) for p, number in known.likely), asked.assumed is not None,
    )  # fmt: skip
    if order is None:
        return None
    asked.assume(needed)
    alike = tuple(("k" if isinstance(d, Loop) else d, c) for d, c in order)
    return alike, common, downwards, offset.frozen, fixed


def _terms(p: Poly) -> Frozen:
    return tuple(p.items())


@kept
def _order_of(
    coefficients: tuple[tuple[Any, Frozen], ...], sizes: tuple[tuple[Any, int | None], ...], above: tuple[Frozen, ...],
    likely: tuple[tuple[Frozen, Frozen], ...], assume: bool,
) -> tuple[tuple[Any, ...] | None, list[AtMost]]:  # fmt: skip
    """The order of digits with these coefficients, and what it assumes; asked once for accesses under alike guards."""
    known = Guards([Poly(p) for p in above], likely=[(Poly(p), Poly(number)) for p, number in likely])
    needed: list[AtMost] = []
    reading = MixedRadix(dict(sizes), known)
    return reading.read({d: Poly(c) for d, c in coefficients}, needed if assume else None), needed


def _fixed(known: Guards, digits: Collection[Any]) -> tuple[Any, ...]:
    """Which values guards say that digits have, as a key."""
    return tuple(sorted(((d, p.frozen) for d, p in known.fixed.items() if d in digits), key=repr))


def _without_factor(coefficients: dict[Any, Poly], beside: _Spread | None) -> tuple[dict[Any, Poly], int]:
    """Coefficients without their common factor, if offsets differ by less than that; else with a digit for these."""
    common = math.gcd(*(v for c in coefficients.values() for v in c.values())) or 1
    if beside is not None and not beside.less_than(common):
        return {**coefficients, BESIDE: beside.gap}, 1
    return {d: Poly({k: v // common for k, v in c.items()}) for d, c in coefficients.items()}, common


def _all_told(asked: Question, told: Collection[Any], known: Guards, loops: Collection[Loop]) -> bool:
    """Whether nothing else tells threads and iterations apart but these digits, and those that guards fix."""
    kernel, plain = asked.kernel, threads(asked.kernel, asked.within_block)
    wanted = {*loops, *(d for d, size in by_groups(kernel, plain).items() if size != 1)} - {*told, *known.fixed}
    return not wanted - _by_parts(told, plain, kernel.group)


def _by_parts(given: Collection[Any], sizes: dict[str, int | None], group: int) -> set[Any]:
    """The digits that quotients and remainders of a number tell, which is made of these."""
    found: set[Any] = set()
    for whole in told_by(given):
        split = whole.split(is_digit)
        if split is not None and MixedRadix(sizes).read(split[0]) is not None:
            found |= {GROUP, LANE, *split[0]} if group else {*split[0]}
    return found


class MixedRadix:
    """Reads sums of digits as numbers whose digits have these sizes, under these guards."""

    def __init__(self, sizes: Mapping[Any, int | None], known: Guards | None = None) -> None:
        self.sizes, self.known = sizes, known or Guards()
        self.ranges = Ranges(sizes, self.known.above)

    def read(self, coefficients: Mapping[Any, Poly], assumed: list[AtMost] | None = None) -> tuple[Any, ...] | None:
        """An order of the digits in which each is above those before; None where none is certain to be one."""
        divisors = {s for digit in coefficients if isinstance(digit, Part) for s in digit.divisors}
        divided = [(ONE, symbol(s)) for s in sorted(divisors)]
        every = (NOTHING, SIGNS, ONE_MORE) if self.known.likely else (NOTHING, ONE_MORE)
        ways = ((SIGNS,) if divided else every) if assumed is not None else (NOTHING,)
        for most in ways if assumed is not None or not divided else ():
            found = self._order(Poly(), [ONE], coefficients, most)
            if found is not None:
                if assumed is not None:
                    assumed += [each for each in (*divided, *found[1]) if each not in assumed]
                return found[0]
        return None

    def _order(
        self, total: Poly, ends: list[Poly], left: Mapping[Any, Poly], most: int
    ) -> tuple[tuple[Any, ...], tuple[AtMost, ...]] | None:
        """The order of what is left above digits that add up to a total, below each of these ends; what it assumes."""
        if not left:
            return (), ()
        for digit, c in left.items():
            for assumes in self._above(total, ends, c, most):
                so_far = total + c * symbol(digit)
                rest = {d: other for d, other in left.items() if d is not digit}
                may = min(most, SIGNS) if assumes and assumes[0] else most
                found = self._order(so_far, [*self._ends(digit, c, ends), *self._below(so_far)], rest, may)
                if found is not None:
                    return ((digit, c.frozen), *found[0]), (*([assumes] if assumes else []), *found[1])
        return None

    def _above(self, total: Poly, ends: list[Poly], c: Poly, most: int) -> Iterator[AtMost | None]:
        """What has to be assumed so that a total is below a coefficient, which is so positive; None: nothing."""
        if any(self._at_most(end, c) for end in ends) or self.ranges.implies(c - total):
            yield None
            return
        for fact, number in self.known.likely if most >= SIGNS else ():
            if _may_fit(Poly(), number) and Ranges(self.sizes, [fact]).implies(c - total):
                yield Poly(), number
        for end in ends if most >= ONE_MORE else ():
            if _may_fit(end, c):
                yield end, c

    def _at_most(self, end: Poly, c: Poly) -> bool:
        """Whether what is above a sum of digits is surely at most a coefficient."""
        low, high = end.number, c.number
        if low is not None and high is not None:
            return low <= high
        number = next(iter(end.values())) if len(end) == 1 else 0
        of = quotient(Poly(dict.fromkeys(end, 1)))  # 2 * (n / 2) is at most n
        return self.ranges.implies(c - end + 1) or (of is not None and 0 < number <= of[1] and of[0] == c)

    def _ends(self, digit: Any, c: Poly, ends: list[Poly]) -> list[Poly]:
        """What a total is below with one more digit, of whose coefficient these are at most one."""
        size = self._size(digit)
        if size is None:
            return []
        least = [end + c * size - c for end in ends if None not in (end.number, c.number, size.number)]
        return [c * size, *least]

    def _size(self, digit: Any) -> Poly | None:
        """What a digit is below; None if that is not known."""
        if isinstance(digit, Part):
            return digit.size or self._size_of_first(digit)
        size = iterations(digit) if isinstance(digit, Loop) else self.sizes.get(digit)
        if size is None and str(digit).startswith("blockIdx"):
            return symbol(f"gridDim.{str(digit)[-1]}")
        return next(iter(self._below(symbol(digit))), None) if size is None else constant(size)

    def _size_of_first(self, part: Part) -> Poly | None:
        """What a quotient is below, ``h`` of ``i / w`` where i is below ``w * h``."""
        high = self.ranges.of(symbol(part))[1]
        if high < math.inf:
            return constant(int(high) + 1)
        ends = (end.over(Poly(part.by)) for end in self._below(Poly(part.whole)))
        return next((size for size in ends if size is not None), None)

    def _below(self, total: Poly) -> list[Poly]:
        """What digits add up to less than, in terms of a launch's numbers, as guards say."""
        common = math.gcd(*total.values())
        ends = [fact + Poly({key: value // common for key, value in total.items()}) for fact in self.known.above]
        return [end * common for end in ends if not any(map(_is_own, end.symbols))]


def _is_own(symbol: Any) -> bool:
    """Whether it may differ between threads."""
    return is_digit(symbol) or isinstance(symbol, Value | Part)


def _may_fit(low: Poly, high: Poly) -> bool:
    """Whether a launch may tell that one is at most the other: they are made of parameters, the grid and quotients."""
    known = high.number is None or 0 < sum(low.values()) < high.number  # more than 1 of each
    symbols = [*low.symbols, *high.symbols]
    symbols += [s for q in symbols if (of := quotient(symbol(q))) is not None for s in of[0].symbols]
    plain = all(isinstance(s, str) or quotient(symbol(s)) is not None for s in symbols)
    return known and bool(symbols) and plain and not any(map(is_digit, symbols))
