"""What the lanes of a warp exchange: shuffles, also of parts of a warp, and votes; all as shuffles of whole warps."""

from __future__ import annotations

import re
from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.handlers import cuda_functions
from rawkern.gradients.reading.memory import barrier
from rawkern.gradients.reading.values import binary, convert, special, test

FULL = re.compile(r"-1|~0[uU]?|0[xX][fF]{8}[uUlL]*")
SHUFFLES = {"__shfl_xor_sync": "xor", "__shfl_down_sync": "down", "__shfl_up_sync": "up", "__shfl_sync": "idx"}
BLOCK_VOTES = ("__syncthreads_count", "__syncthreads_or", "__syncthreads_and")
VOTES = {"__ballot_sync": "|", "__any_sync": "|", "__all_sync": "&"}


def threads(ctx: Context) -> int:
    """The threads of a block."""
    x, y, z = ctx.settings.block
    return x * y * z


def rank(ctx: Context, node: Any) -> Value:
    """The number of the thread in its block."""
    rank, before = None, 1
    for axis, extent in zip("xyz", ctx.settings.block, strict=True):
        if extent == 1:
            continue
        own = special(ctx, node, "threadIdx", axis)
        own = binary(ctx, node, "*", own, ctx.unsigned(node, before)) if before > 1 else own
        rank = own if rank is None else binary(ctx, node, "+", rank, own)
        before *= extent
    return ctx.unsigned(node, 0) if rank is None else rank


def part_of_warp(ctx: Context, node: Any, width: int) -> Value:
    """The number of the thread in a part of so many lanes."""
    return binary(ctx, node, "%", rank(ctx, node), ctx.unsigned(node, width))


@cuda_functions(*SHUFFLES, arguments=3)
@cuda_functions(*SHUFFLES, arguments=4)
def shuffle(ctx: Context, node: Any, name: str, arguments: list[Any]) -> Value:
    width = ctx.scalar(arguments[3]).const if len(arguments) == 4 else 32
    _whole(ctx, node, name, arguments[0])
    if width not in (1, 2, 4, 8, 16, 32):
        raise ctx.refuse(node, f"{name} of a width that is not known", "use a constant power of two up to 32")
    value, by = ctx.scalar(arguments[1]), convert(ctx, node, ctx.scalar(arguments[2]), "int")
    return exchange(ctx, node, SHUFFLES[name], value, by, width)


@cuda_functions(*VOTES, arguments=2)
def vote(ctx: Context, node: Any, name: str, arguments: list[Any]) -> Value:
    _whole(ctx, node, name, arguments[0])
    return _vote(ctx, node, name, test(ctx, arguments[1]))


@cuda_functions(*BLOCK_VOTES, arguments=1)
def block_vote(ctx: Context, node: Any, name: str, arguments: list[Any]) -> Value:
    """A barrier, and in how many threads of the block something holds, or whether in any or all."""
    holds = convert(ctx, node, test(ctx, arguments[0]), "int")
    barrier(ctx, node, "__syncthreads()")
    return ctx.value(node, "int", "reduce", (holds,), name)


def _whole(ctx: Context, node: Any, name: str, mask: Any) -> None:
    found = ctx.scalar(mask)
    if found.const not in (-1, 0xFFFFFFFF) and FULL.fullmatch(text_of(mask)) is None:
        raise ctx.refuse(node, f"{name} with a mask that is not that of a whole warp", "use 0xffffffff")


def exchange(ctx: Context, node: Any, which: str, value: Value, by: Value, width: int) -> Value:
    """A shuffle; of parts of a warp by one of the warp and a choice."""
    if by.const is not None and not 0 <= by.const < width:
        raise ctx.refuse(node, f"a shuffle by {by.const} in {width} lanes", f"use 0 to {width - 1}")
    if by.const is None and (which == "idx" or (which == "xor" and width < 32)):
        return ctx.value(node, value.type, "shfl", (value, _source(ctx, node, which, by, width)), "idx")
    whole = ctx.value(node, value.type, "shfl", (value, by), which)
    if width == 32 or which == "xor":
        return whole
    lane = part_of_warp(ctx, node, width)
    if which == "idx":
        here = binary(ctx, node, "==", lane, ctx.unsigned(node, by.const or 0))
        kind = types.promoted(value.type)
        none = convert(ctx, node, ctx.integer(node, 0), kind)
        own = ctx.value(node, kind, "select", (here, convert(ctx, node, value, kind), none))
        return convert(ctx, node, _over(ctx, node, own, "+", width), value.type)
    lane = convert(ctx, node, lane, "int")
    if which == "down":
        end = binary(ctx, node, "+", lane, by)
        within = binary(ctx, node, "<", end, ctx.integer(node, width))
    else:
        within = binary(ctx, node, ">=", lane, by)
    return ctx.value(node, value.type, "select", (within, whole, value))


def _source(ctx: Context, node: Any, which: str, by: Value, width: int) -> Value:
    """The lane of the warp that another is read from, as the hardware finds it: modulo the width."""

    def combine(sign: str, a: Value, b: Value | int) -> Value:
        return binary(ctx, node, sign, a, b if isinstance(b, Value) else ctx.integer(node, b))

    within = combine("&", by, width - 1)
    if width == 32:
        return within
    lane = convert(ctx, node, part_of_warp(ctx, node, 32), "int")
    if which == "idx":
        return combine("+", combine("-", lane, combine("&", lane, width - 1)), within)
    other = combine("^", lane, combine("&", by, 31))
    return ctx.value(node, "int", "select", (combine("<=", other, combine("|", lane, width - 1)), other, lane))


def _vote(ctx: Context, node: Any, name: str, holds: Value) -> Value:
    if threads(ctx) % 32:
        raise ctx.refuse(node, f"{name} in a block of no whole warps", "use a multiple of 32 threads")
    if name == "__ballot_sync":
        lane = part_of_warp(ctx, node, 32)
        bit = binary(ctx, node, "<<", ctx.unsigned(node, 1), lane)
        own = ctx.value(node, "unsigned int", "select", (holds, bit, ctx.unsigned(node, 0)))
    else:
        own = convert(ctx, node, holds, "int")
    return _over(ctx, node, own, VOTES[name], 32)


def _over(ctx: Context, node: Any, value: Value, sign: str, width: int) -> Value:
    """An operator over so many lanes, for each of them."""
    while width > 1:
        width //= 2
        other = ctx.value(node, value.type, "shfl", (value, ctx.integer(node, width)), "xor")
        value = binary(ctx, node, sign, value, other)
    return value
