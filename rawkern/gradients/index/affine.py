"""The affine form: an integer as a polynomial of thread, block and iteration, and of what is not seen through."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.index.answers import kept
from rawkern.gradients.index.scev import induction, plain
from rawkern.gradients.ir import Block, Loop, Value

Terms = Mapping[tuple[Any, ...], int]
Frozen = tuple[tuple[tuple[Any, ...], int], ...]
LARGEST = 1 << 24  # coefficients above may be meant to wrap around


class Poly(dict[tuple[Any, ...], int]):
    """The coefficient of each product of symbols, in which a symbol stands once for each power; of (), the constant."""

    def __add__(self, other: Terms | int) -> Poly:
        return add(self, _of(other))

    def __sub__(self, other: Terms | int) -> Poly:
        return add(self, _of(other), -1)

    def __mul__(self, other: Terms | int) -> Poly:
        return multiply(self, _of(other))

    def __neg__(self) -> Poly:
        return Poly({key: -value for key, value in self.items()})

    @property
    def frozen(self) -> Frozen:
        """The polynomial as a key."""
        return tuple(sorted(self.items(), key=repr))

    @property
    def number(self) -> int | None:
        """The number that it is; None if there are symbols in it."""
        return self.get((), 0) if len(self) == (() in self) else None

    @property
    def symbols(self) -> dict[Any, None]:
        """The symbols, in order."""
        return {s: None for key in self for s in key}

    def replaced(self, new: Callable[[Any], Terms | None]) -> Poly:
        """With other polynomials for symbols; None leaves one as it is."""
        found = Poly()
        for key, value in self.items():
            term = constant(value)
            for s in key:
                by = new(s)
                term *= symbol(s) if by is None else by
            found += term
        return found

    def over(self, by: Poly) -> Poly | None:
        """One product by another, if that leaves no rest."""
        (key, value), (other, number) = next(iter(self.items())), next(iter(by.items()))
        left = list(key)
        for s in other:
            if s not in left:
                return None
            left.remove(s)
        return Poly({tuple(left): value // number}) if len(self) == 1 and value % number == 0 else None

    def split(self, digit: Callable[[Any], bool]) -> tuple[dict[Any, Poly], Poly] | None:
        """A sum of digits as their coefficients, and the rest; None where digits are multiplied."""
        coefficients: dict[Any, Poly] = {}
        offset = Poly()
        for key, value in self.items():
            inner = [s for s in key if digit(s)]
            if len(inner) > 1:
                return None
            part = coefficients.setdefault(inner[0], Poly()) if inner else offset
            part[tuple(s for s in key if s not in inner)] = value
        return coefficients, offset


def _of(p: Terms | int) -> Terms:
    return constant(p) if isinstance(p, int) else p


def constant(n: int) -> Poly:
    return Poly({(): n} if n else {})


def symbol(s: Any) -> Poly:
    return Poly({(s,): 1})


def add(a: Terms, b: Terms, times: int = 1) -> Poly:
    found = dict(a)
    for key, value in b.items():
        found[key] = found.get(key, 0) + times * value
    return Poly({key: value for key, value in found.items() if value})


def multiply(a: Terms, b: Terms) -> Poly:
    found: dict[tuple[Any, ...], int] = {}
    for x, p in a.items():
        for y, q in b.items():
            key = tuple(sorted((*x, *y), key=repr))
            found[key] = found.get(key, 0) + p * q
    return Poly({key: value for key, value in found.items() if value})


@kept
def poly(value: Value) -> Poly:
    """An integer as a polynomial; what is not seen through is a symbol of its own, the value itself."""
    if value.const is not None:
        return constant(value.const)
    if value.op in ("special", "param"):
        return symbol(value.attr)
    if seen_through(value):
        return poly(value.args[0])
    if value.op == "unary" and value.attr == "-":
        return -poly(value.args[0])
    if value.op == "binary":
        found = _binary(value)
        return symbol(value) if found is None else found
    if value.op == "phi" and (steps := induction(value.attr).get(value)) is not None:
        start, step = map(poly, steps)
        return start + step * symbol(value.attr)
    return symbol(value)


def _binary(v: Value) -> Poly | None:
    if types.is_float(v.type):
        return None
    if v.attr in ("+", "-"):
        a, b = map(poly, v.args)
        return a + b if v.attr == "+" else a - b
    if v.attr == "*":
        a, b = map(poly, v.args)
        found = a * b
        return found if all(abs(k) < LARGEST for k in found.values()) else None
    if v.attr == "<<" and v.args[1].const is not None and v.args[1].const < 24:
        return poly(v.args[0]) * (1 << v.args[1].const)
    return _split(v) if v.attr in PARTS else None


def seen_through(v: Value) -> bool:
    """Whether it is a conversion to an integer of at least 32 bits."""
    return v.op == "cast" and not types.is_float(v.args[0].type) and types.bits(v.type) >= 32


def settled(value: Value) -> bool:
    """Whether an integer is the same for all threads of a launch: made of numbers that it is given."""
    if value.op == "special":
        return value.attr.startswith(("gridDim", "blockDim"))
    if value.op in ("binary", "unary", "cast", "select"):
        return not types.is_float(value.type) and all(map(settled, value.args))
    return value.op in ("const", "param")


def is_place(symbol: Any) -> bool:
    """Whether it is of a thread or a block."""
    return isinstance(symbol, str) and symbol.startswith(("threadIdx", "blockIdx"))


def is_digit(symbol: Any) -> bool:
    """Whether it is of a thread, a block or an iteration."""
    return isinstance(symbol, Loop) or is_place(symbol)


# Parts of a number ----------------------------------------------------------------------------------------------------

#: The number of a thread's group along x, and its number there.
GROUP, LANE = "threadIdx.x / group", "threadIdx.x % group"
PARTS = {"/": GROUP, ">>": GROUP, "%": LANE, "&": LANE}


def divided(v: Value) -> tuple[str, int] | None:
    """Of an integer divided by a constant: whether it is the quotient or the rest, and the constant."""
    if v.op != "binary" or v.attr not in PARTS or v.args[1].const is None:
        return None
    by = v.args[1].const
    by = 1 << min(by, 31) if v.attr == ">>" else by + 1 if v.attr == "&" else by
    return (PARTS[v.attr], by) if by > 1 and (v.attr != "&" or not by & (by - 1)) else None


@kept
def part_of_thread(value: Any) -> tuple[str, int, Poly] | None:
    """Of a thread's place in a block or launch divided by a constant: whether it is the quotient or the rest; by what.

    And what is divided besides threadIdx.x, which leaves no rest: ``blockIdx.x * 128``.
    """
    v = plain(value) if isinstance(value, Value) and not types.is_float(value.type) else None
    found = None if v is None else divided(v)
    p = Poly() if v is None or found is None else Poly(poly(v.args[0]))
    if found is None or p.pop(("threadIdx.x",), 0) != 1:
        return None
    return (*found, p) if _evenly(p, found[1]) else None


def _evenly(p: Poly, by: int) -> bool:
    """Whether a number of blocks and threads, which is not below 0, can be divided without a rest."""
    known = all(is_place(s) or (isinstance(s, str) and s.startswith("gridDim")) for s in p.symbols)
    return known and all(k % by == 0 and k > 0 and key for key, k in p.items())


def _split(v: Value) -> Poly | None:
    """A number of a group, or of a thread in it, by blocks and threads: ``blockIdx.x * 4 + threadIdx.x / 32``."""
    of_thread, found = part_of_thread(v), divided(v)
    if of_thread is not None and of_thread[2]:
        part, by, whole = of_thread
        own = symbol(_own_part(part, by))
    elif of_thread is None and found is not None and _evenly(poly(v.args[0]), found[1]):
        part, by, whole, own = *found, poly(v.args[0]), Poly()
    else:
        return None
    return own if part == LANE else Poly({key: k // by for key, k in whole.items()}) + own


@functools.cache
def _own_part(part: str, by: int) -> Value:
    """``threadIdx.x / by`` or ``threadIdx.x % by``, to be a symbol."""
    nowhere = Block()
    place = Value(0, nowhere, type="unsigned int", op="special", attr="threadIdx.x")
    number = Value(0, nowhere, type="unsigned int", op="const", attr=str(by), const=by)
    return Value(0, nowhere, type="unsigned int", op="binary", attr="/" if part == GROUP else "%", args=(place, number))
