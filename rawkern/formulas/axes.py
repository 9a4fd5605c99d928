"""Arrays of any strides as kernels get them: neighboring dimensions joined, in a struct of sizes and steps."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from typing import Any

import torch

from rawkern.base.ctype import Member, StructLayout
from rawkern.base.torch_private import has_memory

MAX_DIMS = 8  # of a struct, after dimensions have been joined; reduce.cuh has the same number
PACK_BYTES = 16  # what one thread loads at a time on a GPU


def joined(
    shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...], dims: Sequence[int]
) -> tuple[list[int], list[tuple[int, ...]]]:
    """Sizes of some dimensions, innermost first, and each array's steps; contiguous dimensions are joined."""
    sizes: list[int] = []
    steps: list[tuple[int, ...]] = []
    for d in dims:
        size, step = shape[d], tuple(own[d] for own in strides)
        if size == 1:
            continue
        if steps and all(outer == inner * sizes[-1] for outer, inner in zip(step, steps[-1], strict=True)):
            sizes[-1] *= size
        else:
            sizes.append(size)
            steps.append(step)
    return (sizes, steps) if sizes else ([1], [(0,) * len(strides)])


def structs(columns: int, extents: int = 0) -> dict[str, StructLayout]:
    """The layouts of structs by name, as the compiler has them: what `packed` fills for so many arrays, and extents."""
    members = (
        Member("dims", "long long", 0),
        Member("size", f"long long [{MAX_DIMS}]", 8),
        Member("step", f"long long [{columns}][{MAX_DIMS}]", 8 + 8 * MAX_DIMS),
    )
    layout = StructLayout(8 + 8 * MAX_DIMS * (1 + columns), 8, members)
    at = StructLayout(8 * extents, 8, (Member("at", f"long long [{extents}]", 0),))
    return {"Layout": layout, f"Axes<{columns}>": layout} | ({"Extents": at} if extents else {})


def packed(sizes: list[int], steps: list[tuple[int, ...]]) -> bytes:
    """An ``Axes`` of reduce.cuh, a ``Layout`` of an elementwise loop."""
    rest = [0] * (MAX_DIMS - len(sizes))
    columns = [*sizes, *rest]
    for array in zip(*steps, strict=True):
        columns += [*array, *rest]
    return struct.pack(f"{1 + len(columns)}q", len(sizes), *columns)


def many_extents(ranks: Sequence[int]) -> int:
    """How many extents there are of arrays and a loop of so many dimensions; 0 without any."""
    return max(2 * sum(ranks[:-1]) + ranks[-1], 1) if ranks else 0


def extents(arrays: Sequence[torch.Tensor], shape: Sequence[int]) -> tuple[tuple[int, ...], bytes]:
    """How many dimensions arrays and a loop have, and ``Extents``: sizes and strides of each array, the loop's sizes.

    The strides are in bytes.
    """
    ranks = (*(t.dim() for t in arrays), len(shape))
    found = [n for t in arrays for n in (*t.shape, *(step * t.element_size() for step in t.stride()))]
    found += [*shape, *[0] * (many_extents(ranks) - len(found) - len(shape))]
    return ranks, struct.pack(f"{len(found)}q", *found)


def index_type(count: int, shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...]) -> str:
    """The type that fits a number of elements and the offsets of all of them."""
    spans = [sum((size - 1) * step for size, step in zip(shape, own, strict=True)) for own in strides]
    return "unsigned int" if max(count, *spans) < 2**31 else "long long"


def pack_ways(width: int, inner: tuple[int, ...], outer: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
    """How the elements of a pack lie in each array, by its steps in the dimension of the packs and in the others.

    A ``Way`` of pack.cuh; NEXT holds if the array itself begins where a pack may.
    """

    def way(a: int) -> str:
        if width == 1 or inner[a] not in (0, 1):
            return "Way::ANY"
        if inner[a] == 0:
            return "Way::SAME"
        return "Way::ANY" if any(step[a] % width for step in outer) else "Way::NEXT"

    return tuple(map(way, range(len(inner))))


def aligned_ways(ways: Sequence[str], arrays: Sequence[torch.Tensor], width: int) -> list[str]:
    """Return the ways of `pack_ways`, now that the arrays are known."""
    return [
        "Way::ANY" if way == "Way::NEXT" and t.data_ptr() % (width * t.element_size()) else way
        for way, t in zip(ways, arrays, strict=True)
    ]


@functools.lru_cache(maxsize=1024)
def strided_layout(
    shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...], order: tuple[int, ...] | None, pack: int
) -> tuple[bytes | None, int, str, tuple[str, ...]]:
    """Return the ``Layout`` of the kernel (None with too many dimensions), its V, its Index and the arrays' ways.

    The dimensions stand as `order`, the strides of an output, has them in memory, or else as they are.
    """
    dims = sorted(range(len(shape)), key=(lambda d: (order[d], -d)) if order else (lambda d: -d))
    sizes, steps = joined(shape, strides, dims)
    index = index_type(math.prod(shape), shape, strides)
    if len(sizes) > MAX_DIMS:
        return None, 1, index, ()
    width = pack if sizes[0] % pack == 0 else 1
    sizes[0] //= width
    return packed(sizes, steps), width, index, pack_ways(width, steps[0], steps[1:])


def layouts(arguments: Sequence[Any]) -> tuple[Any, ...] | None:
    """What decides how arguments are launched, besides their values; None where tensors have to be changed before.

    Of tensors their shapes, strides, dtypes, devices and alignment, of numbers their types.
    """
    found: list[Any] = []
    for t in arguments:
        if not isinstance(t, torch.Tensor):
            found.append(type(t))
        elif has_memory(t) and not t.is_neg() and not t.is_conj():
            found.append((t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % (2 * PACK_BYTES)))
        else:
            return None
    return tuple(found)
