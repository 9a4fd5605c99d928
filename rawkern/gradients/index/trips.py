"""Trip counts: how often loops run at most, once the numbers of a launch are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rawkern.gradients.index.affine import Poly, constant, is_place, poly, symbol
from rawkern.gradients.index.guards import least
from rawkern.gradients.index.ranges import Ranges
from rawkern.gradients.index.scev import induction, iterations, loops_around, plain
from rawkern.gradients.index.values import Unknown, is_quotient, numbers_of, value_of
from rawkern.gradients.ir import Loop, Value

ONE = constant(1)


@dataclass(frozen=True)
class Trips:
    """The iterations of a loop, each number of which `name` stands for in those of the loops in it.

    There are at most as many as each of `lengths`, divided by its step and rounded up, allows.
    """

    name: str
    lengths: tuple[tuple[Poly, Poly], ...]


def trips(loop: Loop) -> Trips | None:
    """How often a loop runs at most; None where its condition does not say."""
    known = iterations(loop)
    found = [(constant(known), ONE)] if known is not None else [*_lengths(loop.condition, loop)]
    return Trips(_name(loop), tuple(found)) if found else None


def counted(
    loops: Sequence[Trips], arguments: Mapping[str, Any], grid: tuple[int, int, int], block: tuple[int, int, int]
) -> dict[str, int]:
    """How often each of these loops runs at most in a launch; one stands before those in it.

    Raises
    ------
    Unknown
        It is not certain.
    """
    known, sizes = numbers_of(arguments, grid), dict[str, int]()
    for axis, threads, blocks in zip("xyz", block, grid, strict=True):
        known[f"blockDim.{axis}"] = threads
        sizes |= {f"threadIdx.{axis}": threads, f"blockIdx.{axis}": blocks}
    found: dict[str, int] = {}
    for loop in loops:
        every = [n for each in loop.lengths if (n := _divided(*each, known, sizes | found)) is not None]
        if not every:
            raise Unknown
        found[loop.name] = min(every)
    return found


def _divided(length: Poly, step: Poly, known: Mapping[str, int], sizes: Mapping[str, int]) -> int | None:
    """The most iterations of a length; None where that is not certain."""
    try:
        long, short = (_range(p, known, sizes) for p in (length, step))
    except Unknown:
        return None
    return max(0, -(-int(long[1]) // int(short[0]))) if short[0] >= 1 else None


def _range(p: Poly, known: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[float, float]:
    """The least and the most that a polynomial can be, over digits that are below these sizes."""
    left = p.replaced(lambda s: None if s in sizes or _is_rest(s) else constant(value_of(symbol(s), known)))
    if any(sizes.get(s, 1) < 1 for s in left.symbols):
        return 0, 0  # of a loop in one that does not run
    return Ranges(sizes).of(left)


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
                yield pair[0].replaced(_named), pair[1].replaced(_named)


def _is_told(s: Any, loop: Loop) -> bool:
    """Whether a launch says what a symbol is, or how far it goes: so it is the same in all iterations of the loop."""
    if isinstance(s, Loop):
        return s in loops_around(loop.block) and trips(s) is not None
    return _is_rest(s) or is_quotient(s) if isinstance(s, Value) else isinstance(s, str)


def _is_rest(s: Any) -> bool:
    """Whether a constant bounds a symbol: a thread's number modulo 32."""
    rest = isinstance(s, Value) and s.op == "binary" and s.attr in ("%", "&") and s.args[1].const is not None
    return rest and all(is_place(each) for each in poly(s.args[0]).symbols)


def _named(s: Any) -> Poly | None:
    return symbol(_name(s)) if isinstance(s, Loop) else None


def _name(loop: Loop) -> str:
    return f"loop {loop.order}"
