"""Which barriers of an iteration keep nothing apart."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from rawkern.gradients.layout import rendered

BARRIER = "__syncthreads();"


def sparse(lines: list[Any], shared: Collection[str]) -> list[Any]:
    """The lines of a loop that ends with a barrier, without those barriers that keep nothing apart.

    A barrier is of use if an array is touched between the one before and it, and between it and the one behind; the
    loop's end is followed by its begin. Arrays of global memory are touched by one thread each, or atomically.
    """
    parts: list[tuple[list[Any], set[str]]] = [([], set())]
    for line in [*lines, BARRIER]:
        if line == BARRIER:
            parts.append(([], set()))
            continue
        text = "\n".join(rendered([line]))
        parts[-1][0].append(line)
        parts[-1][1].update(shared if "__sync" in text else set(re.findall(r"\w+", text)) & set(shared))
    parts.pop()
    merged = [parts[0]]
    for more, touched in parts[1:]:
        if merged[-1][1] & touched:
            merged.append((more, touched))
        else:
            merged[-1] = [*merged[-1][0], *more], merged[-1][1] | touched
    ends = merged[-1][1] & merged[0][1]
    return [line for part, _ in merged for line in (*part, BARRIER)][: None if ends else -1]
