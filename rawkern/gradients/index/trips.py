"""Trip counts: how often loops run at most, once the numbers of a launch are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rawkern.gradients.index.affine import Poly, constant, is_place, poly, symbol
from rawkern.gradients.index.guards import least
from rawkern.gradients.index.ranges import Range, Ranges
from rawkern.gradients.index.scev import induction, iterations, loops_around, plain
from rawkern.gradients.index.values import MOST, Unknown, is_quotient, numbers_of, value_of
from rawkern.gradients.ir import Loop, Value

ONE = constant(1)


@dataclass(frozen=True)
class Trips:
    """The iterations of a loop: at most as many as each of `lengths`, divided by its step and rounded up, allows."""

    loop: Loop
    lengths: tuple[tuple[Poly, Poly], ...]


def trips(loop: Loop) -> Trips | None:
    """How often a loop runs at most; None where its condition does not say."""
    known = iterations(loop)
    found = [(constant(known), ONE)] if known is not None else [*_lengths(loop.condition, loop)]
    return Trips(loop, tuple(found)) if found else None


def counted(
    loops: Sequence[Trips], arguments: Mapping[str, Any], grid: tuple[int, int, int], block: tuple[int, int, int]
) -> dict[Loop, int]:
    """How often each of these loops runs at most in a launch; one stands before those in it.

    Raises
    ------
    Unknown
        It is not certain.
    """
    known, sizes = numbers_of(arguments, grid), dict[Any, int]()
    for axis, threads, blocks in zip("xyz", block, grid, strict=True):
        known[f"blockDim.{axis}"] = threads
        sizes |= {f"threadIdx.{axis}": threads, f"blockIdx.{axis}": blocks}
    found: dict[Loop, int] = {}
    for trip in loops:
        every = [n for each in trip.lengths if (n := _divided(*each, known, sizes | found)) is not None]
        if not every:
            raise Unknown
        found[trip.loop] = min(every)
    return found


def _divided(length: Poly, step: Poly, known: Mapping[str, int], sizes: Mapping[Any, int]) -> int | None:
    """The most iterations of a length; None where that is not certain."""
    try:
        long, short = (_range(p, known, sizes) for p in (length, step))
    except Unknown:
        return None
    return max(0, -(-int(long[1]) // int(short[0]))) if short[0] >= 1 else None


def _range(p: Poly, known: Mapping[str, int], sizes: Mapping[Any, int]) -> Range:
    """The least and the most that a polynomial can be, over digits that are below these sizes."""
    ranges = Ranges({})

    def told(s: Any) -> Poly | None:
        if isinstance(s, Value):
            ranges.known[s] = _part(s, known, sizes)
        elif s in sizes:
            ranges.known[s] = 0, sizes[s] - 1
        else:
            return constant(value_of(symbol(s), known))
        return None

    left = p.replaced(told)
    if any(sizes.get(s, 1) < 1 for s in left.symbols):
        return 0, 0  # of a loop in one that does not run
    low, high = ranges.of(left)
    if max(-low, high) > MOST:
        raise Unknown
    return low, high


def _part(v: Value, known: Mapping[str, int], sizes: Mapping[Any, int]) -> Range:
    """The least and the most of a quotient, or of a rest by a constant."""
    low, high = _range(poly(v.args[0]), known, sizes)
    if v.attr in ("%", "&"):
        end = (v.args[1].const or 0) - (v.attr == "%")
        return (0, min(high, end)) if low >= 0 else (0 if v.attr == "&" else -end, end)
    least, most = _range(poly(v.args[1]), known, sizes)
    if v.attr == ">>":
        least, most = (2.0**n if 0 <= n < 31 else 0 for n in (least, most))
    if low < 0 or least < 1:
        raise Unknown
    return low // most, high // least


def _lengths(test: Value, loop: Loop) -> Iterator[tuple[Poly, Poly]]:
    """How far a loop's variable goes while this holds, and by which steps."""
    if test.op != "binary" or test.attr not in ("<", "<=", ">", ">=", "&&"):
        return
    if test.attr == "&&":
        for each in test.args:
            yield from _lengths(each, loop)
        return
    low, high = test.args if test.attr in ("<", "<=") else test.args[::-1]
    steps, equal = induction(loop), "=" in test.attr
    for of, bound, sign in ((low, high, 1), (high, low, -1)):
        if plain(of) not in steps:
            continue
        start, step = map(poly, steps[plain(of)])
        for end in (bound, *least(bound)) if sign > 0 else (bound,):
            pair = (poly(end) - start) * constant(sign) + equal, step * constant(sign)
            if all(_is_told(s, loop) for p in pair for s in p.symbols):
                yield pair


def _is_told(s: Any, loop: Loop) -> bool:
    """Whether a launch says what a symbol is, or how far it goes: so it is the same in all iterations of the loop."""
    if isinstance(s, Loop):
        return s in loops_around(loop.block) and trips(s) is not None
    if is_quotient(s):
        return all(_is_told(each, loop) for a in s.args for each in poly(a).symbols)
    return isinstance(s, str) or _is_rest(s)


def _is_rest(s: Any) -> bool:
    """Whether a constant bounds a symbol: a thread's number modulo 32."""
    rest = isinstance(s, Value) and s.op == "binary" and s.attr in ("%", "&") and (s.args[1].const or 0) > 0
    return rest and all(is_place(each) for each in poly(s.args[0]).symbols)
