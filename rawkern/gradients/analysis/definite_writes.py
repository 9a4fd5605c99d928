"""Definite writes: which elements of a gradient a backward sets for certain, so that only the others begin as zeros.

The numbers of a launch are known when the backward is called; any condition but comparisons of these with digits leaves
nothing certain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.index.affine import Poly, poly, symbol
from rawkern.gradients.index.covers import BESIDE, Cover, covered
from rawkern.gradients.index.guards import guards
from rawkern.gradients.index.injective import injective
from rawkern.gradients.index.scev import induction
from rawkern.gradients.index.threads import grouped
from rawkern.gradients.index.values import has_value
from rawkern.gradients.ir import Exit, Kernel, Value


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


def set_by(kernel: Kernel, reads: Sequence[Value]) -> Sets:
    """What the gradients that these reads set cover."""
    fields = len(types.scalars(reads[0].attr.array.type))
    found = [_together(kernel, [r for r in reads if r.attr == place]) for place in {r.attr: None for r in reads}]
    whole = len(found) == fields and all(c is not None for c in found)
    return Sets(tuple(c for c in found if c is not None) if whole else (), fields)


def _together(kernel: Kernel, reads: Sequence[Value]) -> Cover | None:
    """What reads of one place cover that differ by an offset."""
    covers = [cover(kernel, r) for r in reads]
    first = covers[0]
    if len(reads) == 1 or first is None:
        return first
    numbers = injective(kernel, reads, iterations=True, assumed=[]) or {}  # no matter what: they only have an order
    by_number: dict[int, Poly] = {numbers[r]: grouped(_flat(r), kernel.group) for r in reads if r in numbers}
    same = all(c is not None and c.below == first.below for c in covers)
    if not same or sorted(by_number) != list(range(len(reads))):
        return None
    gap = by_number[1] - by_number[0]
    if any(by_number[k] - by_number[0] != gap * k for k in by_number):
        return None
    return replace(first, index=by_number[0] + gap * symbol(BESIDE), beside=len(reads))


def cover(kernel: Kernel, load: Value) -> Cover | None:
    """What decides which elements a read reaches; None if that is more than sizes."""
    known = guards(load).grouped(kernel.group)
    late = any(isinstance(i, Exit) and i.order > load.order for i in kernel.body.items)
    if late or not known.exact or any(map(_wraps, (*load.args, *(v for c in known.below for v in c.operands)))):
        return None
    index = grouped(_flat(load), kernel.group)
    found = Cover(index, tuple(known.below), kernel.block, group=kernel.group)
    return found if all(map(has_value, (index, *(p for c in known.below for p in (c.low, c.high))))) else None


def _flat(load: Value) -> Poly:
    """The number of an element that is read, in the memory of a gradient."""
    first, *others = map(poly, load.args)
    for k, index in enumerate(others, 1):
        first = first * symbol(f"{load.attr.array.name}.size({k})") + index
    return first


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
