"""Parts of a shared array that have nothing to do with one another, as ``float* b = s + 64`` makes them.

Each access has a least and a most index, by the numbers that its thread and iterations can have and by the conditions
around. Where no access of one group comes as far as those of another, each group is an array of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from rawkern.gradients.index.ranges import Range, bounds
from rawkern.gradients.ir import Access, Array, Kernel, Place, Store, Value, place_of, walk


def partitioned(kernel: Kernel) -> Kernel:
    """The kernel with such parts as arrays; it is changed in place."""
    for array, accesses in shared_accesses(kernel).items():
        if len(array.sizes) != 1:
            continue
        ranges = [bounds(kernel, each) for each in accesses]
        starts = _starts(ranges)
        for item, (low, _) in zip(accesses, ranges, strict=True):
            move(item, replace(array, region=sum(start <= low for start in starts)))
    return kernel


def shared_accesses(kernel: Kernel) -> dict[Array, list[Access]]:
    """All loads and stores of each shared array."""
    found: dict[Array, list[Access]] = {}
    for item in walk(kernel.body):
        place = place_of(item)
        if place is not None and place.array.shared:
            found.setdefault(place.array, []).append(item)
    return found


def move(access: Access, array: Array, index: tuple[Value, ...] | None = None) -> None:
    """Let an access mean the same element of another array, or that with another index."""
    if isinstance(access, Store):
        access.place, access.index = Place(array, access.place.fields), access.index if index is None else index
    else:
        access.attr, access.args = Place(array, access.attr.fields), access.args if index is None else index


def _starts(ranges: Iterable[Range]) -> list[float]:
    """Where a range begins that none before comes as far as, except for the first."""
    found, most = [], math.inf
    for k, (low, high) in enumerate(sorted(ranges)):
        if k and low > most:
            found.append(low)
        most = max(most, high) if k else high
    return found
