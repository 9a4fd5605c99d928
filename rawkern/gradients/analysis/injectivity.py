"""Which thread owns which element: indices read as mixed-radix numbers.

An index ``c0*d0 + c1*d1 + ...`` of digits d (threadIdx, blockIdx, the count of a loop's iterations), where each
coefficient is at least one above the most that the digits before it add up to, says which digits it was made of: so two
threads never mean the same element. That a sum of digits is below the next coefficient is known from the block's shape
or from a condition that holds there, such as ``col < n``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rawkern.gradients.analysis.affine import (
    GROUP,
    LANE,
    Poly,
    add,
    frozen,
    grouped,
    is_digit,
    multiply,
    part_of_thread,
    poly,
    settled,
    threads,
)
from rawkern.gradients.analysis.delinearize import ONE, Part, told_by, with_parts
from rawkern.gradients.analysis.guards import Facts, facts, quotient
from rawkern.gradients.analysis.loops import iterations
from rawkern.gradients.ir import Block, Kernel, Loop, Value


@dataclass(frozen=True)
class Beside:
    """Of reads whose indices differ by multiples of a gap: the least offset, the gap, and the most multiples."""

    base: Poly
    gap: Poly
    most: int


def signature(kernel: Kernel, index: Value, block: Block, order: int, *, within_block: bool = False,
              loops: Iterable[Loop] = (), same: Collection[Value] = (), beside: Beside | None = None,
              assumed: list[tuple[Poly, Poly]] | None = None,
              told: Collection[Any] = ()) -> tuple[Any, ...] | None:  # fmt: skip
    """How an index tells threads (and iterations of these loops) apart; None where that is not certain.

    Values in `same` are the same for all threads; digits in `told` are told by other indices. With `assumed`, it may
    need that one number of the launch is at most another, which is added there.

    Two accesses with the same signature meet in an element only if they are of the same thread; `beside` others, only
    if their offsets are the same as well.
    """
    known, digits = facts(block, order), threads(kernel, within_block)
    found = parts(index, within_block, same, kernel.group)
    if kernel.group:
        known = _grouped(known, kernel.group)
        del digits["threadIdx.x"]
        digits |= {GROUP: kernel.block[0] // kernel.group, LANE: kernel.group}
    if found is None:
        return None
    coefficients, offset = found
    if any(isinstance(d, Part) for d in coefficients):
        known = replace(known, above=[with_parts(p, same) for p in known.above])
    needed_digits = {*loops, *(d for d, size in digits.items() if size != 1)} - {*told, *known.fixed, *coefficients}
    if needed_digits - _by_parts({*coefficients, *told}, threads(kernel, within_block), kernel.group):
        return None
    downwards = bool(coefficients) and all(v < 0 for c in coefficients.values() for v in c.values())
    if downwards:  # as in x[n - 1 - i]: what is below an end is read
        coefficients = {d: multiply(c, {(): -1}) for d, c in coefficients.items()}
    if beside is not None:
        offset = beside.base
        if not beside.most:
            beside = None
        elif downwards:
            return None
    common = math.gcd(*(v for c in coefficients.values() for v in c.values())) or 1
    sizes, order_found = dict(digits), None
    if beside is None or (set(beside.gap) == {()} and beside.most * beside.gap[()] < common):
        coefficients = {d: {k: v // common for k, v in c.items()} for d, c in coefficients.items()}
    else:
        common, sizes["beside"] = 1, beside.most + 1
        coefficients["beside"] = beside.gap
    divided = [(ONE, {(s,): 1}) for s in sorted({s for p in coefficients if isinstance(p, Part) for s in p.divisors})]
    order_found = None if divided else _read_as_digits({}, {(): 1}, coefficients, sizes, known)
    if order_found is None and assumed is not None:
        needed: list[tuple[Poly, Poly]] = list(divided)
        order_found = _read_as_digits({}, {(): 1}, coefficients, sizes, known, needed)
        assumed += [each for each in needed if each not in assumed] if order_found is not None else []
    if order_found is None:
        return None
    fixed = tuple(
        sorted(((d, frozen(p)) for d, p in known.fixed.items() if d in digits and d not in coefficients), key=repr)
    )
    return order_found, common, downwards, frozen(offset), fixed


def signatures(kernel: Kernel, indices: Sequence[Value], block: Block, order: int, **more: Any) -> Any:
    """The same of several indices, which tell threads and iterations apart together; None where that is not certain."""
    within = more.get("within_block", False)
    digits = [set(found[0]) if (found := parts(i, within, (), kernel.group)) is not None else set() for i in indices]
    every = [
        signature(kernel, index, block, order, told=set().union(*(d for j, d in enumerate(digits) if j != k)), **more)
        for k, index in enumerate(indices)
    ]
    return None if not every or None in every else tuple(every)


def _by_parts(given: Collection[Any], sizes: dict[str, int | None], group: int) -> set[Any]:
    """The digits that quotients and remainders of a number tell, which is made of these."""
    found: set[Any] = set()
    for whole in told_by(given):
        coefficients = _coefficients(whole, is_digit)
        if coefficients is not None and _read_as_digits({}, ONE, coefficients[0], sizes, Facts([], {})) is not None:
            found |= {GROUP, LANE, *coefficients[0]} if group else {*coefficients[0]}
    return found


def _grouped(known: Facts, group: int) -> Facts:
    """What holds, in terms of groups of threads."""
    fixed: dict[Any, Poly] = {}
    for digit, p in known.fixed.items():
        part = part_of_thread(digit)
        if digit == "threadIdx.x":
            if set(p) <= {()}:
                number = p.get((), 0)
                fixed |= {GROUP: add({}, {(): number // group}), LANE: add({}, {(): number % group})}
        elif part is None or part[1] == group:
            fixed[digit if part is None else part[0]] = grouped(p, group)
    likely = [(grouped(p, group), number) for p, number in known.likely]
    return Facts([grouped(p, group) for p in known.above], fixed, likely=likely)


def parts(index: Value, within_block: bool = False, same: Collection[Value] = (), group: int = 0) -> Any:
    """An index as coefficients of its digits and the rest, its offset; None where it is not made of these alone."""
    p = poly(index)
    own = {s for key in p for s in key if (part := part_of_thread(s)) is not None and part[1] == group}
    p = grouped(p if within_block else with_parts(p, {*same, *own}), group)
    if any(isinstance(s, Value) and s not in same and not settled(s) for key in p for s in key):
        return None
    if within_block:  # blocks are the same for all threads
        return _coefficients(p, lambda s: is_digit(s) and not (isinstance(s, str) and s.startswith("blockIdx")))
    return _coefficients(p, lambda s: is_digit(s) or isinstance(s, Part))


def _coefficients(p: Poly, digit: Callable[[Any], bool]) -> tuple[dict[Any, Poly], Poly] | None:
    """A sum of digits as their coefficients, and what is left; None where digits are multiplied."""
    coefficients: dict[Any, Poly] = {}
    offset: Poly = {}
    for key, value in p.items():
        inner = [s for s in key if digit(s)]
        rest = tuple(s for s in key if s not in inner)
        if len(inner) > 1 or (inner and any(map(is_digit, rest))):
            return None
        part = coefficients.setdefault(inner[0], {}) if inner else offset
        part[rest] = part.get(rest, 0) + value
    return coefficients, offset


def _read_as_digits(
    total: Poly, extent: Poly | None, left: dict[Any, Poly], digits: dict[str, int | None], known: Facts,
    assumed: list[tuple[Poly, Poly]] | None = None,
) -> tuple[Any, ...] | None:  # fmt: skip
    """An order of the digits in which each is above those before; None where none is certain to be one."""
    if not left:
        return ()
    for digit, c in left.items():
        more = []
        if not fits(total, extent, c, known, digits):
            if assumed is None:
                continue
            told = (number for fact, number in known.likely if fits(total, None, c, Facts([fact], {}), digits))
            number = next((number for number in told if _may_fit({}, number)), None)
            if number is None and (extent is None or any(low for low, _ in assumed) or not _may_fit(extent, c)):
                continue
            more = [({}, number)] if number is not None else [(extent or {}, c)]
        rest, so_far = {d: other for d, other in left.items() if d is not digit}, add(total, multiply(c, {(digit,): 1}))
        size = _size(digit, digits, known)
        sizes = [None if size is None else multiply(c, size), *_below(so_far, known)]
        for above in sizes if rest else sizes[:1]:
            after = None if assumed is None else [*assumed, *more]
            found = _read_as_digits(so_far, above, rest, digits, known, after)
            if found is not None:
                if assumed is not None and after is not None:
                    assumed[:] = after
                return (("k" if isinstance(digit, Loop) else digit, frozen(c)), *found)
    return None


def _size(digit: Any, digits: Mapping[str, int | None], known: Facts) -> Poly | None:
    """What a digit is below; None if that is not known."""
    if isinstance(digit, Part):
        return None if digit.of is None else dict(digit.of)
    size = digits.get(digit) if isinstance(digit, str) else iterations(digit)
    if size is None and isinstance(digit, str) and digit.startswith("blockIdx"):
        return {(f"gridDim.{digit[-1]}",): 1}
    return next(iter(_below({(digit,): 1}, known)), None) if size is None else {(): size}


def _below(total: Poly, known: Facts) -> list[Poly]:
    """What digits add up to less than, in terms of a launch's numbers, as conditions say."""
    common = math.gcd(*total.values())
    found = []
    for fact in known.above:
        end = add(fact, {key: value // common for key, value in total.items()})
        if not any(is_digit(s) or isinstance(s, Value | Part) for key in end for s in key):
            found.append(multiply(end, {(): common}))
    return found


def _multiplied(p: Poly) -> Poly | None:
    """What a positive multiple of a quotient is at most: ``2 * (n / 2)`` is at most n."""
    number = next(iter(p.values())) if len(p) == 1 else 0
    of = quotient({key: 1 for key in p})
    return of[0] if of is not None and 0 < number <= of[1] else None


def _may_fit(low: Poly, high: Poly) -> bool:
    """Whether a launch may tell that one is at most the other: they are made of parameters, the grid and quotients."""
    known = set(high) != {()} or 0 < sum(low.values()) < high[()]  # more than 1 of each
    symbols = [s for key in (*low, *high) for s in key]
    symbols += [s for q in symbols if (of := quotient({(q,): 1})) for key in of[0] for s in key]
    plain = all(isinstance(s, str) or quotient({(s,): 1}) for s in symbols)
    return known and bool(symbols) and plain and not any(map(is_digit, symbols))


def fits(
    total: Poly, extent: Poly | None, coefficient: Poly, known: Facts, sizes: Mapping[str, int | None] | None = None
) -> bool:
    """Whether the digits so far add up to less than a coefficient, which is so positive."""
    if extent is not None:
        if _multiplied(extent) == coefficient:
            return True
        if extent == coefficient and (set(extent) != {()} or extent[()] > 0):
            return True
        if set(extent) == {()} and set(coefficient) == {()} and extent[()] <= coefficient[()]:
            return True
    room = add(coefficient, total, -1)
    for fact in known.above:
        rest = _least(add(room, fact, -1), sizes or {})
        if not rest or (set(rest) == {()} and rest[()] > 0):
            return True
    return False


def _least(p: Poly, sizes: Mapping[str, int | None]) -> Poly:
    """A polynomial with the least that its digits of known size make of it."""
    least: Poly = {}
    for key, value in p.items():
        size = sizes.get(key[0]) if len(key) == 1 and isinstance(key[0], str) else None
        least = add(least, {key: value} if size is None else {(): min(value, 0) * (size - 1)})
    return least
