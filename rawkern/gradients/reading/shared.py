"""Shared memory: the arrays of a block, of a size of their own or of the bytes that a launch gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.ir import Array, Place
from rawkern.gradients.reading.context import MOST_LOCAL, Context
from rawkern.gradients.reading.kinds import in_memory
from rawkern.gradients.reading.places import Cell, Pointer, Var
from rawkern.gradients.reading.warps import rank, threads
from rawkern.gradients.types import Type


def share(ctx: Context, node: Any, name: str, kind: Type, sizes: tuple[int, ...]) -> Var:
    """A variable for a shared array; 0 extents: of dynamic shared memory."""
    in_memory(ctx, node, kind)
    function = ctx.called[-1] if ctx.called else ""
    if 0 in sizes:
        array, unit = _dynamic(ctx, node, name, kind)
    else:
        # A function's own array is one, however often it is called.
        array, unit = ctx.shared_arrays.get((function, name, kind, sizes)), 0
        if array is None:
            array = ctx.shared_arrays[function, name, kind, sizes] = Array(_unused(ctx, name), kind, True, sizes)
    if array not in ctx.shared:
        ctx.shared.append(array)
    at = Pointer(array, unit=unit) if array.sizes else Cell(Place(array), (), kind)
    return Var(name, None, at)


def _unused(ctx: Context, name: str) -> str:
    taken = {a.name for a in ctx.shared} | {n for n, *_ in ctx.params}
    return next(each for each in (name, *map(f"{name}_{{}}".format, range(2, 999))) if each not in taken)


def fits(kind: Type, sizes: Sequence[int]) -> bool:
    """Whether a local array, and its gradient, can be one of the derived text."""
    scalars = set(types.scalars(kind))
    plain = len(scalars) == 1 and not scalars & {*types.HALVES} and not types.pointers(kind)
    return plain and 2 * math.prod(sizes) * types.size(kind) <= MOST_LOCAL


def private(ctx: Context, node: Any, name: str, kind: Type, sizes: Sequence[int]) -> Pointer:
    """An array of each thread's own, where an index need not be known."""
    in_memory(ctx, node, kind)
    array = Array(_unused(ctx, name), kind, True, (threads(ctx), *sizes), private=True)
    ctx.shared.append(array)
    return Pointer(array, inner=(rank(ctx, node),))


def _dynamic(ctx: Context, node: Any, name: str, kind: Type) -> tuple[Array, int]:
    """The array of the bytes that a launch gives; all such declarations mean the same."""
    if not ctx.settings.shared_mem:
        raise ctx.refuse(node, f"{name} is dynamic shared memory, and shared_mem is 0",
                         "give the bytes of the launch as shared_mem")  # fmt: skip
    raw = isinstance(kind, str) and not types.is_float(kind) and types.bits(kind) == 8
    read = ctx.retyped.get(name, kind)
    extents = (ctx.settings.shared_mem // types.size(read),)
    array = Array(name, read, True, extents, dynamic=True, raw=raw and read == kind)
    before = next((a for a in ctx.shared if a.dynamic), array)
    if before.type != array.type or before.raw != array.raw:
        raise ctx.refuse(node, f"{name} shares its memory with {before.name}, of another type", "use one of them")
    return before, types.size(read) // types.size(kind) if read != kind else 0
