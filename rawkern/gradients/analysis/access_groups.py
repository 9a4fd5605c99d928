"""Reads that differ by an offset, as the fields ``x[3 * i + 1]`` and ``x[3 * i + 2]``, or the halves of a row.

The offsets are multiples of a gap: which of them it was is one more digit of the index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rawkern.gradients.analysis import affine, injectivity
from rawkern.gradients.analysis.affine import Poly, add
from rawkern.gradients.analysis.injectivity import Beside
from rawkern.gradients.ir import Access, Kernel, Value, index_of


def which(
    kernel: Kernel, reads: Sequence[Access], *, within_block: bool = False, iterations: bool = False,
    assumed: list[tuple[Poly, Poly]] | None = None, along: int = 0,
) -> dict[Access, int] | None:  # fmt: skip
    """A number for the offset of each read (or store); None unless an element says which thread made it, by which.

    With `iterations`, it also says in which iterations of the loops around; `assumed` as for `injectivity.signature`.
    Of several indices, `along` is the one that is asked.
    """
    if not all(map(index_of, reads)):  # a variable, which all threads mean
        return None
    found = [injectivity.parts(_index(r, along), within_block, group=kernel.group) for r in reads]
    spread = None if None in found else _spread([offset for _, offset in found])
    if spread is None:
        return None
    beside, numbers = spread
    needed: list[tuple[Poly, Poly]] | None = None if assumed is None else []
    signatures = {
        injectivity.signature(
            kernel, _index(r, along), r.block, r.order, within_block=within_block, beside=beside,
            loops=affine.loops_around(r.block) if iterations else (), assumed=needed,
        )
        for r in reads
    }  # fmt: skip
    if len(signatures) != 1 or None in signatures:
        return None
    if assumed is not None:
        assumed += [each for each in needed or () if each not in assumed]
    return dict(zip(reads, numbers, strict=True))


def _index(access: Access, along: int) -> Value:
    return index_of(access)[along]


def _spread(offsets: list[Poly]) -> tuple[Beside, list[int]] | None:
    """The least offset, and the others as multiples of a gap from there."""
    for base in offsets:
        far = [add(o, base, -1) for o in offsets]
        some = [f for f in far if f]
        if not some:
            return Beside(base, {}, 0), [0] * len(far)
        if all(set(f) == {()} for f in some):
            gap: Poly = {(): math.gcd(*(f[()] for f in some))}
        else:
            gap = min(some, key=lambda f: max(f.values()))
        numbers = [_times(f, gap) for f in far]
        if None not in numbers and all(v > 0 for v in gap.values()):
            known = [n for n in numbers if n is not None]
            return Beside(base, gap, max(known)), known
    return None


def _times(p: Poly, gap: Poly) -> int | None:
    """How many times a gap it is, if not less than 0."""
    if not p:
        return 0
    key = next(iter(gap))
    number = p.get(key, 0) // gap[key]
    return number if number > 0 and {k: v * number for k, v in gap.items()} == p else None
