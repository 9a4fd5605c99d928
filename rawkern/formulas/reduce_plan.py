"""How the work of a reduction is laid out over blocks and threads."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from rawkern.formulas.axes import MAX_DIMS, index_type, joined, pack_ways, packed

THREADS = 256  # REDUCE_THREADS of reduce.cuh
BLOCKS = 6  # that a multiprocessor has room for
STEPS = 4  # that a thread makes along a row on a GPU, if the row is that long, so that its loads overlap


@dataclass(frozen=True, slots=True)
class Plan:
    """How the work is laid out; see the kernel's comment in `_source`."""

    arguments: tuple[str, ...]
    ways: tuple[str, ...]
    kept_axes: bytes
    reduced_axes: bytes
    kept: int
    kept_packs: int
    reduced_packs: int
    count: int
    block: tuple[int, int]
    blocks: int
    parts: int
    chunk: int


@functools.lru_cache(maxsize=1024)
def make_plan(
    shape: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    kept: tuple[int, ...],
    axis: tuple[int, ...],
    pack: int,
    processors: int,
    ordered: bool,
) -> Plan | None:
    """Return how to reduce arrays of a shape along `axis`; None with too many dimensions.

    `processors` is the number of multiprocessors, 0 on the CPU.
    """
    lead = max(strides, key=lambda s: sum(x != 0 for x in s))
    if not ordered:
        axis = tuple(sorted(axis, key=lambda d: (-lead[d], d)))
    kept_sizes, kept_steps = joined(shape, strides, kept[::-1])
    reduced_sizes, reduced_steps = joined(shape, strides, axis[::-1])
    if max(len(kept_sizes), len(reduced_sizes)) > MAX_DIMS:
        return None
    n_kept, count = math.prod(kept_sizes), math.prod(reduced_sizes)
    which = strides.index(lead)
    rows = n_kept == 1 or (count > 1 and reduced_steps[0][which] <= kept_steps[0][which])
    vector = reduced_sizes if rows else kept_sizes
    width = pack if vector[0] % pack == 0 and vector[0] else 1
    vector[0] //= width
    kept_packs, reduced_packs = math.prod(kept_sizes), math.prod(reduced_sizes)
    along = reduced_packs if rows else kept_packs
    most = -(-along // STEPS) if rows and processors else along
    x = min(THREADS if rows else 32, 1 << max(0, most - 1).bit_length())
    y = THREADS // x
    per_block, per_step = (y, x) if rows else (x, y)
    blocks = -(-kept_packs // per_block)
    steps = -(-reduced_packs // per_step)  # that the threads of one block would make
    goal = BLOCKS * processors if processors else 16
    parts = max(1, min(goal // blocks, steps // (4 if processors else 64), 1024))
    chunk = max(1, -(-reduced_packs // parts))
    parts = max(1, -(-reduced_packs // chunk))
    index = index_type(max(n_kept, count), shape, strides)
    inner, *outer = (*reduced_steps, *kept_steps) if rows else (*kept_steps, *reduced_steps)
    flat = "true" if processors and len(reduced_sizes) == 1 else "false"
    packs = ("1", str(width), "true") if rows else (str(width), "1", "false")
    return Plan(
        (*packs, flat, index), pack_ways(width, inner, outer), packed(kept_sizes, kept_steps),
        packed(reduced_sizes, reduced_steps), n_kept, kept_packs, reduced_packs, count, (x, y), blocks, parts, chunk,
    )  # fmt: skip
