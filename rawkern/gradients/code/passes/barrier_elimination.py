"""Which barriers of an iteration keep nothing apart."""

from __future__ import annotations

from collections.abc import Collection

from rawkern.gradients.code import tree
from rawkern.gradients.code.tree import BARRIER, Barrier, Statement


def without_redundant_barriers(statements: list[Statement], shared: Collection[str]) -> list[Statement]:
    """The statements of a loop that ends with a barrier, without those barriers that keep nothing apart.

    A barrier is of use if an array is touched between the one before and it, and between it and the one after; the
    loop's end is followed by its begin. Arrays of global memory are touched by one thread each, or atomically.
    """
    parts: list[tuple[list[Statement], set[str]]] = [([], set())]
    for s in [*statements, BARRIER]:
        if s == BARRIER:
            parts.append(([], set()))
            continue
        inner = list(tree.every([s]))
        waits = any(isinstance(each, Barrier) for each in inner)
        parts[-1][0].append(s)
        parts[-1][1].update(shared if waits else {name for each in inner for name in tree.named(each)} & set(shared))
    parts.pop()
    merged = [parts[0]]
    for more, touched in parts[1:]:
        if merged[-1][1] & touched:
            merged.append((more, touched))
        else:
            merged[-1] = [*merged[-1][0], *more], merged[-1][1] | touched
    ends = merged[-1][1] & merged[0][1]
    return [s for part, _ in merged for s in (*part, BARRIER)][: None if ends else -1]
