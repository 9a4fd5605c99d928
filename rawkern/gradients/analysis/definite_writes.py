"""Which elements of a gradient a backward sets for certain, so that only the others have to be zeros before.

An index is a sum of digits. They are dense if, sorted by their coefficients, each coefficient is just what the digits
before it count up to: then every number below the total occurs. A condition such as ``c < n`` cuts what the digits of
``c`` count up to. The numbers are known when the backward is called; any other condition leaves nothing certain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from rawkern.gradients import types
from rawkern.gradients.analysis import access_groups
from rawkern.gradients.analysis.affine import GROUP, LANE, Poly, add, grouped, induction, multiply, poly
from rawkern.gradients.analysis.guards import Comparison, facts
from rawkern.gradients.ir import Exit, Kernel, Loop, Value

MOST = 2**31 - 1  # numbers above may have been meant to wrap around
ENDLESS = 2**100


@dataclass(frozen=True)
class Cover:
    """The index of a read, the comparisons under which it is made, and the shape of the blocks.

    The digit "beside" of an index tells reads apart of which there are several; `group`: see `ownership.grouped`.
    """

    index: Poly
    below: tuple[Comparison, ...]
    block: tuple[int, int, int]
    beside: int = 1
    group: int = 0


class _Unknown(Exception):
    """Nothing is certain."""


def cover(kernel: Kernel, load: Value) -> Cover | None:
    """What decides which elements a read reaches; None if that is more than sizes."""
    known = facts(load.block, load.order)
    late = any(isinstance(i, Exit) and i.order > load.order for i in kernel.body.items)
    if late or not known.exact or any(_wraps(v) for c in known.below for v in c.operands) or _wraps(load.args[0]):
        return None
    below = [replace(c, low=grouped(c.low, kernel.group), high=grouped(c.high, kernel.group)) for c in known.below]
    found = Cover(grouped(poly(load.args[0]), kernel.group), tuple(below), kernel.block, group=kernel.group)
    return found if all(map(_plain, (found.index, *(p for c in found.below for p in (c.low, c.high))))) else None


@dataclass(frozen=True)
class Sets:
    """An array whose gradient is set where it is read: by each of these, a field of an element each."""

    covers: tuple[Cover, ...]  # none: nothing is certain
    fields: int

    def certain(self, numbers: Mapping[str, Any], grid: tuple[int, int, int]) -> tuple[int, int]:
        """The range of numbers that a backward with these arguments and this grid sets for certain."""
        ranges = [covered(c, numbers, grid) for c in self.covers]
        first, end = max((r[0] for r in ranges), default=0), min((r[1] for r in ranges), default=0)
        return first * self.fields, end * self.fields


def summed(dtype: torch.dtype) -> torch.dtype:
    """The dtype of gradients while they are added up."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def begin(value: torch.Tensor, certain: tuple[int, int] | None, unset: float = 0.0) -> torch.Tensor:
    """Memory for the gradient of a tensor: zeros; where it is set for certain, `unset`, or anything if that is 0."""
    like = {"dtype": summed(value.dtype), "memory_format": torch.contiguous_format}
    if certain is None:
        return torch.zeros_like(value, **like)
    grad = torch.empty_like(value, **like)
    flat = grad.view(-1)
    end = min(certain[1], flat.numel())
    first = min(certain[0], end)
    if first:
        flat[:first].zero_()
    if end < flat.numel():
        flat[end:].zero_()
    if unset:
        flat[first:end].fill_(unset)
    return grad


def set_by(kernel: Kernel, reads: Sequence[Value]) -> Sets:
    """What the gradients that these reads set cover."""
    kind = reads[0].attr.array.type
    fields = len(types.scalars(kind))
    found = [_together(kernel, [r for r in reads if r.attr == place]) for place in {r.attr: None for r in reads}]
    whole = len(found) == fields and all(c is not None for c in found)
    return Sets(tuple(c for c in found if c is not None) if whole else (), fields)


def _together(kernel: Kernel, reads: Sequence[Value]) -> Cover | None:
    """What reads of one place cover that differ by an offset."""
    covers = [cover(kernel, r) for r in reads]
    first = covers[0]
    if len(reads) == 1 or first is None:
        return first
    numbers = access_groups.which(kernel, reads, iterations=True) or {}
    by_number = {numbers[r]: grouped(poly(r.args[0]), kernel.group) for r in reads if r in numbers}
    same = all(c is not None and c.below == first.below for c in covers)
    if not same or sorted(by_number) != list(range(len(reads))):
        return None
    gap = add(by_number[1], by_number[0], -1)
    return replace(first, index=add(by_number[0], multiply(gap, {("beside",): 1})), beside=len(reads))


def _known(numbers: Mapping[str, Any]) -> dict[str, int]:
    """The integers among a launch's arguments, members of structs too."""
    structs = {name: value for name, value in numbers.items() if isinstance(value, Mapping)}
    found = {f"{name}.{n}": v for name, value in structs.items() for n, v in value.items() if isinstance(v, int)}
    return found | {n: v for n, v in numbers.items() if isinstance(v, int)}


def at_most(low: Poly, high: Poly, numbers: Mapping[str, Any], grid: tuple[int, int, int]) -> bool:
    """Whether one number of a launch is surely at most another."""
    a, b = (number_of(p, numbers, grid) for p in (low, high))
    return a is not None and b is not None and a <= b


def number_of(p: Poly, numbers: Mapping[str, Any], grid: tuple[int, int, int]) -> int | None:
    """A number of a launch; None where it may be computed with another result than in all integers."""
    known = _known(numbers) | {f"gridDim.{axis}": grid[k] for k, axis in enumerate("xyz")}
    try:
        return _number(p, known)
    except _Unknown:
        return None


def covered(found: Cover, numbers: Mapping[str, Any], grid: tuple[int, int, int]) -> tuple[int, int]:
    """The range of indices that are set for certain; it may be empty."""
    known = _known(numbers)
    extents: dict[Any, int] = {"beside": found.beside}
    for k, axis in enumerate("xyz"):
        known |= {f"gridDim.{axis}": grid[k], f"blockDim.{axis}": found.block[k]}
        extents |= {f"threadIdx.{axis}": found.block[k], f"blockIdx.{axis}": grid[k]}
    if found.group:
        extents |= {GROUP: found.block[0] // found.group, LANE: found.group}
    try:
        return _covered(found, known, extents)
    except _Unknown:
        return 0, 0


def _wraps(value: Value) -> bool:
    """Whether an integer may be computed modulo 2^32 with another result than in all integers."""
    unsigned = value.type.startswith("unsigned")
    if value.op in ("binary", "unary") and value.attr == "-" and unsigned:
        return True
    if value.op == "cast" and value.args[0].type == "unsigned int" and types.bits(value.type) == 64:
        return not _counts(value.args[0])
    if value.op == "phi":
        loop: Any = value.attr
        return any(map(_wraps, induction(loop).get(value, ())))
    return value.op in ("binary", "unary", "cast", "select") and any(map(_wraps, value.args))


def _counts(value: Value) -> bool:
    if value.op == "cast":
        return value.args[0].type == "unsigned int" and _counts(value.args[0])
    return value.op in ("const", "special") or (
        value.op == "binary" and value.attr in ("+", "*") and all(map(_counts, value.args))
    )


def _plain(p: Poly) -> bool:
    """Whether a polynomial has a value when the backward is called, once its digits have."""
    return all(not isinstance(s, Value) or _quotient(s) for key in p for s in key)


def _quotient(v: Value) -> bool:
    return v.op == "binary" and v.attr in ("/", ">>") and all(_plain(poly(a)) for a in v.args)


def _number(p: Poly, known: Mapping[str, int]) -> int:
    total = 0
    for key, value in p.items():
        for symbol in key:
            value *= _value(symbol, known)
        total += value
    if abs(total) > MOST:
        raise _Unknown
    return total


def _value(symbol: Any, known: Mapping[str, int]) -> int:
    if isinstance(symbol, Value):
        a, b = (_number(poly(x), known) for x in symbol.args)
        by = b if symbol.attr == "/" else 1 << b if 0 <= b < 31 else 0
        if a < 0 or by < 1:
            raise _Unknown
        return a // by
    if symbol not in known or abs(known[symbol]) > MOST:
        raise _Unknown
    return known[symbol]


def _by_digit(p: Poly, known: Mapping[str, int], extents: Mapping[Any, int]) -> tuple[dict[Any, int], int]:
    """A polynomial as coefficients of its digits and a number."""
    parts: dict[Any, Poly] = {}
    for key, value in p.items():
        digits = [s for s in key if isinstance(s, Loop) or s in extents]
        if len(digits) > 1:
            raise _Unknown
        rest = tuple(s for s in key if s not in digits)
        part = parts.setdefault(digits[0] if digits else None, {})
        part[rest] = part.get(rest, 0) + value
    found = {digit: _number(part, known) for digit, part in parts.items()}
    alone = {d for d, extent in extents.items() if extent == 1}
    start = found.pop(None, 0)
    return {d: c for d, c in found.items() if c and d not in alone}, start


def _room(c: Comparison, known: Mapping[str, int], extents: Mapping[Any, int]) -> tuple[dict[Any, int], int]:
    """A comparison as coefficients of digits whose sum is less than a number."""
    (low, least), (high, most) = (_by_digit(p, known, extents) for p in (c.low, c.high))
    if c.unsigned and (high or most < 0 or least < 0 or any(k < 0 for k in low.values())):
        raise _Unknown
    for digit, k in high.items():
        low[digit] = low.get(digit, 0) - k
    return {d: k for d, k in low.items() if k}, most - least


def _covered(found: Cover, known: Mapping[str, int], extents: Mapping[Any, int]) -> tuple[int, int]:
    index, start = _by_digit(found.index, known, extents)
    if any(c < 0 for c in index.values()):
        raise _Unknown
    digits = sorted(index, key=lambda d: index[d])
    cuts: dict[int, list[tuple[int, int]]] = {}  # by the last digit: coefficient of the first, and the number
    for each in found.below:
        terms, room = _room(each, known, extents)
        if sum(c * (extents.get(d, ENDLESS) - 1) for d, c in terms.items() if c > 0) < room:
            continue  # holds for all
        places = sorted(digits.index(d) for d in terms if d in index)
        if len(places) < len(terms) or not places or places != list(range(places[0], places[-1] + 1)):
            raise _Unknown
        scale = index[digits[places[0]]]
        if any(terms[digits[p]] * scale != index[digits[p]] for p in places):
            raise _Unknown
        cuts.setdefault(places[-1], []).append((scale, room))
    total = 1
    for place, digit in enumerate(digits):
        if index[digit] != total:
            raise _Unknown
        total *= extents.get(digit, ENDLESS)
        for scale, room in sorted(cuts.get(place, ()), reverse=True):
            if total % scale and total < ENDLESS:
                raise _Unknown
            total = min(total, scale * max(room, 0))
    if start < 0 or start + total > MOST:
        raise _Unknown
    return start, start + total
