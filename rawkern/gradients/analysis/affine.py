"""Indices as polynomials of thread, block and iteration."""

from __future__ import annotations

import functools
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.ir import Block, Kernel, Loop, Value, inside, walk

Poly = dict[tuple[Any, ...], int]  # by symbols, each once for each power
Frozen = tuple[tuple[tuple[Any, ...], int], ...]
LARGEST = 1 << 24  # coefficients above may be meant to wrap around


def add(a: Poly, b: Poly, times: int = 1) -> Poly:
    found = dict(a)
    for key, value in b.items():
        found[key] = found.get(key, 0) + times * value
    return {key: value for key, value in found.items() if value}


def multiply(a: Poly, b: Poly) -> Poly:
    found: Poly = {}
    for x, p in a.items():
        for y, q in b.items():
            key = tuple(sorted((*x, *y), key=repr))
            found[key] = found.get(key, 0) + p * q
    return {key: value for key, value in found.items() if value}


def frozen(p: Poly) -> Frozen:
    """A polynomial as a key."""
    return tuple(sorted(p.items(), key=repr))


def induction(loop: Loop) -> dict[Value, tuple[Value, Value]]:
    """The loop's variables that grow by the same in each iteration: phi to what it starts with and its step."""
    found = {}
    for c in loop.carried:
        if types.is_float(c.phi.type) or types.bits(c.phi.type) < 32:
            continue
        step = plain(c.next)
        args = [plain(a) for a in step.args]
        if step.op == "binary" and step.attr == "+" and c.phi in args:
            by = step.args[1] if args[0] is c.phi else step.args[0]
            if invariant(by, loop):
                found[c.phi] = (c.init, by)
    return found


def plain(value: Value) -> Value:
    """An integer without conversions between integers of 32 and 64 bits."""
    while (
        value.op == "cast"
        and not types.is_float(value.type)
        and not types.is_float(value.args[0].type)
        and min(map(types.bits, (value.type, value.args[0].type))) >= 32
    ):
        value = value.args[0]
    return value


def invariant(value: Value, loop: Loop) -> bool:
    """Whether a value is the same in every iteration: defined before, or computed from such alone."""
    if not (inside(value.block, loop.body) or inside(value.block, loop.test)):
        return True
    return value.op in ("const", "param", "special", "cast", "unary", "binary", "select") and all(
        invariant(a, loop) for a in value.args
    )


def loops_around(block: Block) -> list[Loop]:
    """The loops that a block lies in, from the innermost."""
    found = []
    while block.parent is not None:
        if isinstance(block.parent, Loop):
            found.append(block.parent)
        block = block.parent.block
    return found


def poly(value: Value) -> Poly:
    """An integer as a polynomial; what is not seen through is a symbol of its own, the value itself."""
    if value.const is not None:
        return {(): value.const} if value.const else {}
    if value.op == "special" or value.op == "param":
        return {(value.attr,): 1}
    if seen_through(value):
        return poly(value.args[0])
    if value.op == "unary" and value.attr == "-":
        return add({}, poly(value.args[0]), -1)
    if value.op == "binary" and value.attr in ("+", "-", "*") and not types.is_float(value.type):
        a, b = (poly(x) for x in value.args)
        if value.attr == "*":
            found = multiply(a, b)
            return found if all(abs(v) < LARGEST for v in found.values()) else {(value,): 1}
        return add(a, b, 1 if value.attr == "+" else -1)
    if value.op == "binary" and value.attr == "<<" and value.args[1].const is not None and value.args[1].const < 24:
        return multiply(poly(value.args[0]), {(): 1 << value.args[1].const})
    if value.op == "binary" and value.attr in _PARTS and (split := _split(value)) is not None:
        return split
    if value.op == "phi":
        loop: Any = value.attr
        if value in (steps := induction(loop)):
            return add(poly(steps[value][0]), multiply(poly(steps[value][1]), {(loop,): 1}))
    return {(value,): 1}


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


def is_digit(symbol: Any) -> bool:
    """Whether it is of a thread, a block or an iteration."""
    return isinstance(symbol, Loop) or (isinstance(symbol, str) and symbol.startswith(("threadIdx", "blockIdx")))


#: The number of a thread's group along x, and its number there.
GROUP, LANE = "threadIdx.x / group", "threadIdx.x % group"
_PARTS = {"/": GROUP, ">>": GROUP, "%": LANE, "&": LANE}


def part_of_thread(value: Any) -> tuple[str, int] | None:
    """Of threadIdx.x divided by a constant: whether it is the quotient or the rest, and the constant."""
    v = plain(value) if isinstance(value, Value) and not types.is_float(value.type) else None
    found = None if v is None else _divided(v)
    if v is None or found is None:
        return None
    whole = plain(v.args[0])
    return found if whole.op == "special" and whole.attr == "threadIdx.x" else None


def _divided(v: Value) -> tuple[str, int] | None:
    """Of an integer divided by a constant: whether it is the quotient or the rest, and the constant."""
    if v.op != "binary" or v.attr not in _PARTS or v.args[1].const is None:
        return None
    by = v.args[1].const
    by = 1 << min(by, 31) if v.attr == ">>" else by + 1 if v.attr == "&" else by
    return (_PARTS[v.attr], by) if by > 1 and (v.attr != "&" or not by & (by - 1)) else None


def rows_of(v: Value) -> tuple[str, int, Poly] | None:
    """Of a thread's place in a launch divided by a constant that divides blocks evenly, where groups have a number.

    Whether it is the quotient or the rest, the constant, and what is divided but threadIdx.x: ``blockIdx.x * 128``.
    """
    found = _divided(v)
    p = {} if found is None else poly(v.args[0])
    if found is None or p.pop(("threadIdx.x",), 0) != 1 or not p:
        return None
    return (*found, p) if _evenly(p, found[1]) else None


def _evenly(p: Poly, by: int) -> bool:
    """Whether a number of blocks and threads, which is not below 0, can be divided without a rest."""
    known = all(isinstance(s, str) and s.startswith(("threadIdx", "blockIdx", "gridDim")) for key in p for s in key)
    return known and all(k % by == 0 and k > 0 and key for key, k in p.items())


def _split(v: Value) -> Poly | None:
    """A number of a group, or of a thread in it, by blocks and threads: ``blockIdx.x * 4 + threadIdx.x / 32``."""
    rows, found = rows_of(v), _divided(v)
    if rows is not None:
        part, by, whole = rows
        own: Poly = {(_own_part(part, by),): 1}
    elif found is not None and _evenly(poly(v.args[0]), found[1]):
        part, by, whole, own = *found, poly(v.args[0]), {}
    else:
        return None
    return own if part == LANE else add({key: k // by for key, k in whole.items()}, own)


@functools.cache
def _own_part(part: str, by: int) -> Value:
    """``threadIdx.x / by`` or ``threadIdx.x % by``, to be a symbol."""
    nowhere = Block()
    place = Value(0, nowhere, type="unsigned int", op="special", attr="threadIdx.x")
    number = Value(0, nowhere, type="unsigned int", op="const", attr=str(by), const=by)
    return Value(0, nowhere, type="unsigned int", op="binary", attr="/" if part == GROUP else "%", args=(place, number))


def group_of(body: Block, threads: int) -> int:
    """How many threads the groups have that a kernel splits a block into; 0 if it does not, or in several ways.

    They may be all of them: of a block that is one of the groups of a launch.
    """
    values = [item for item in walk(body) if isinstance(item, Value)]
    ways = [{part[1] for part in map(find, values) if part is not None} for find in (part_of_thread, rows_of)]
    for way in ways:
        found = {by for by in way if by < threads and threads % by == 0}
        if found:
            return found.pop() if len(found) == 1 else 0
    return threads if any(threads in way for way in ways) else 0


def grouped(p: Poly, group: int) -> Poly:
    """A polynomial in which a thread is told by its group and its number there."""
    if not group:
        return p
    found: Poly = {}
    for key, value in p.items():
        term: Poly = {(): value}
        for s in key:
            part = part_of_thread(s)
            if s == "threadIdx.x":
                term = multiply(term, {(GROUP,): group, (LANE,): 1})
            else:
                term = multiply(term, {(part[0] if part is not None and part[1] == group else s,): 1})
        found = add(found, term)
    return found


def threads(kernel: Kernel, within_block: bool) -> dict[str, int | None]:
    """The digits that tell threads apart, with their extents; None where the launch decides."""
    found: dict[str, int | None] = {f"threadIdx.{a}": e for a, e in zip("xyz", kernel.block, strict=True) if e != 1}
    if not within_block:
        found |= {f"blockIdx.{a}": e for a, e in zip("xyz", kernel.grid, strict=True) if e != 1}
    return found
