"""Disjointness: whether two threads of a block can mean the same element by two accesses."""

from __future__ import annotations

from collections.abc import Callable

from rawkern.gradients.index.affine import Poly, poly
from rawkern.gradients.index.guards import guards
from rawkern.gradients.index.injective import injective
from rawkern.gradients.index.ranges import Ranges, extents
from rawkern.gradients.index.threads import threads
from rawkern.gradients.ir import Access, Kernel, Loop, Value, index_of


def disjoint(kernel: Kernel, a: Access, b: Access, same: Callable[[Value], bool] | None) -> bool:
    """Whether no thread means by an access what another thread of its block means by the other.

    `same`: which values the threads have in common, if both are in the same iterations of all loops around; None if
    they may be in different ones.
    """
    if injective(kernel, (a, b), within_block=True, same=same) is not None:
        return True
    return same is not None and (_below(kernel, a, b, same) or _below(kernel, b, a, same))


def _below(kernel: Kernel, a: Access, b: Access, same: Callable[[Value], bool]) -> bool:
    """Whether every index of `a` is less than each of `b`, by a bound that all threads share."""
    if len(index_of(a)) != 1 or len(index_of(b)) != 1:
        return False
    low, high, digits = poly(index_of(a)[0]), poly(index_of(b)[0]), threads(kernel, True)
    own = {(d,) for d in digits}
    bound = Poly({key: value for key, value in high.items() if key not in own or value < 0})
    if any(isinstance(s, Loop) or s in digits for s in bound.symbols):
        return False
    if not all(same(s) for s in {**low.symbols, **bound.symbols} if isinstance(s, Value)):
        return False
    return Ranges(extents(kernel), guards(a).above).implies(bound - low)
