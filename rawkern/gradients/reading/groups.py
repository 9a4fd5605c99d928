"""Cooperative groups, and reductions of groups and of cub: as shuffles and shared memory, whose reverse is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Value
from rawkern.gradients.reading import accessors
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.handlers import callees, cuda_functions
from rawkern.gradients.reading.kinds import type_named
from rawkern.gradients.reading.memory import barrier
from rawkern.gradients.reading.methods import of_object
from rawkern.gradients.reading.places import Given, Marker, Pointer, Var
from rawkern.gradients.reading.pointers import pointee
from rawkern.gradients.reading.syntax import BY_HAND
from rawkern.gradients.reading.values import binary, convert, math, special
from rawkern.gradients.reading.warps import exchange, part_of_warp, rank, threads

_OPERATORS = {
    "plus": "+", "Sum": "+", "greater": "fmax", "Max": "fmax", "maximum": "fmax", "less": "fmin", "Min": "fmin",
    "minimum": "fmin",
}  # fmt: skip
_INDICES = {"thread_index": "threadIdx", "group_index": "blockIdx", "group_dim": "blockDim"}
_TILE = re.compile(r"(?:const )?([\w:]*thread_block_tile)\s*<\s*(\w+)[^<>]*>\s*&?\Z")
_COLLECTIVE = re.compile(r"(?:typename )?cub\s*::\s*(\w+)\s*<(.*)>\Z", re.S)


@dataclass(frozen=True)
class Team(Marker):
    """A group of threads: the block, or a tile of so many lanes."""

    lanes: int = 0  # 0: the block


@dataclass(frozen=True)
class Collective(Marker):
    """A reduction of cub, for a type; `lanes` as those of a team."""

    name: str
    type: str
    team: Team


@dataclass(frozen=True)
class Storage(Marker):
    """Memory of such a reduction, which has its own."""


# What is declared -------------------------------------------------------------------------------------------------


def group_type(ctx: Context, text: str) -> Team | None:
    """The group that a type names; None for other types."""
    text = ctx.file.qualified(text.removeprefix("const ").strip())
    if text in ("cooperative_groups::thread_block", "cooperative_groups::thread_group"):
        return Team()
    tile = _TILE.match(text)
    if tile is None or ctx.file.qualified(tile[1]) != "cooperative_groups::thread_block_tile":
        return None
    return Team(_number_of(ctx, tile[2]) or -1)


def collective_type(ctx: Context, node: Any, text: str) -> Collective | None:
    """The reduction of cub that a type names; None for other types."""
    found = _COLLECTIVE.match(text)
    if found is None:
        return None
    given = [a.strip() for a in found[2].split(",")]
    kind = type_named(ctx, node, given[0])
    if found[1] not in ("BlockReduce", "WarpReduce") or not isinstance(kind, str) or kind in types.HALVES:
        way = BY_HAND
        if found[1] in ("BlockReduce", "WarpReduce"):
            way = "reduce floats or doubles, one by one"
        elif found[1] in ("BlockLoad", "BlockStore"):
            way = "read and write the elements by index"
        raise ctx.refuse(node, f"{text}", way)
    if found[1] == "BlockReduce":
        return Collective(found[1], kind, Team())
    lanes = _number_of(ctx, given[1]) if len(given) > 1 else 32
    return Collective(found[1], kind, Team(lanes or -1))


def _number_of(ctx: Context, text: str) -> int | None:
    if text.isdigit():
        return int(text)
    var = ctx.lookup(text)
    return var.value.const if var is not None and isinstance(var.value, Value) else None


def group_index(ctx: Context, node: Any, of: Any, axis: str) -> Value | None:
    """``block.thread_index().x`` and its like; None for other members."""
    called = of.child_by_field_name("function") if of.type == "call_expression" else None
    if called is None or called.type != "field_expression":
        return None
    name = _INDICES.get(text_of(called.child_by_field_name("field")))
    team = ctx.expression(called.child_by_field_name("argument")) if name is not None else None
    return special(ctx, node, name, axis) if isinstance(team, Team) and not team.lanes and name is not None else None


# Functions of groups ----------------------------------------------------------------------------------------------


@cuda_functions("cooperative_groups::this_thread_block", arguments=0)
def this_thread_block(ctx: Context, node: Any, name: str, arguments: list[Any]) -> Team:
    return Team()


@cuda_functions("cooperative_groups::tiled_partition", arguments=1)
def tiled_partition(ctx: Context, node: Any, name: str, arguments: list[Any]) -> Team:
    given = text_of(node.child_by_field_name("function")).partition("<")[2].rstrip("> ").strip()
    lanes, team = _number_of(ctx, given), _team(ctx, arguments[0])
    if lanes not in (1, 2, 4, 8, 16, 32) or threads(ctx) % lanes or (team.lanes and lanes > team.lanes):
        raise ctx.refuse(node, f"tiles of {given} threads", "use a power of two up to 32 that divides the block")
    return Team(lanes)


@cuda_functions("cooperative_groups::sync", arguments=1)
def sync(ctx: Context, node: Any, name: str, arguments: list[Any]) -> None:
    _sync(ctx, node, _team(ctx, arguments[0]))


@cuda_functions("cooperative_groups::thread_rank", arguments=1)
def thread_rank(ctx: Context, node: Any, name: str, arguments: list[Any]) -> Value:
    return _rank(ctx, node, _team(ctx, arguments[0]))


@cuda_functions("cooperative_groups::reduce", arguments=3)
def reduce(ctx: Context, node: Any, name: str, arguments: list[Any]) -> Value:
    value = ctx.scalar(arguments[1])
    return _reduced(ctx, node, _team(ctx, arguments[0]), value, _operator(ctx, arguments[2]))


def _team(ctx: Context, node: Any) -> Team:
    found = ctx.expression(node)
    if not isinstance(found, Team):
        raise ctx.refuse(node, f"{text_of(node)!r} is not a group that is known", "use the block or a tile of it")
    return found


def _operator(ctx: Context, node: Any) -> str:
    name = re.sub(r"<.*>", "", re.sub(r"(\(\)|\{\s*\})\s*\Z", "", text_of(node)), flags=re.S).rpartition("::")[2]
    if name.strip() not in _OPERATORS or node.type not in ("call_expression", "compound_literal_expression"):
        raise ctx.refuse(node, f"a reduction by {text_of(node)}", "use a sum, maximum or minimum of the library")
    return _OPERATORS[name.strip()]


# Methods ----------------------------------------------------------------------------------------------------------


@callees("field_expression")
def method_call(ctx: Context, node: Any, callee: Any, arguments: list[Any]) -> Any:
    """A call of a method: of a group, of a reduction of cub, of an accessor, or of an object."""
    member, of = callee.child_by_field_name("field"), callee.child_by_field_name("argument")
    collective = _instance(ctx, of)
    if collective is not None:
        return _collect(ctx, node, collective, text_of(member), arguments)
    arrow = text_of(callee.child_by_field_name("operator")) == "->"
    this = Given(of, pointee(ctx, node, of)) if arrow else ctx.given(of)
    team = this.found.value if isinstance(this.found, Var) and not this.found.whole else this.found
    if isinstance(team, Pointer) and team.array.accessor:
        return accessors.method(ctx, node, team, text_of(member), arguments)
    if isinstance(team, Team):
        return _of_team(ctx, node, team, text_of(member), arguments)
    return of_object(ctx, node, this, member, arguments)


def _of_team(ctx: Context, node: Any, team: Team, name: str, arguments: list[Any]) -> Value | None:
    if name == "sync" and not arguments:
        return _sync(ctx, node, team)
    if name in ("thread_rank", "size", "num_threads", "meta_group_rank", "meta_group_size") and not arguments:
        return _counted(ctx, node, team, name)
    if name.startswith("shfl") and len(arguments) == 2 and team.lanes:
        return _exchanged(ctx, node, team, name, arguments)
    raise ctx.refuse(node, f"{name} of a group", "use sync, thread_rank, size, shuffles or reduce")


def _sync(ctx: Context, node: Any, team: Team) -> None:
    barrier(ctx, node, "__syncwarp()" if team.lanes else "__syncthreads()")


def _counted(ctx: Context, node: Any, team: Team, name: str) -> Value:
    lanes = team.lanes or threads(ctx)
    if name == "thread_rank":
        return _rank(ctx, node, team)
    if name == "meta_group_rank":
        if not team.lanes:
            raise ctx.refuse(node, "meta_group_rank of a block", "use a tile")
        return binary(ctx, node, "/", _rank(ctx, node, Team()), ctx.unsigned(node, lanes))
    return ctx.unsigned(node, lanes if name != "meta_group_size" else threads(ctx) // lanes)


def _rank(ctx: Context, node: Any, team: Team) -> Value:
    """The number of the thread in its group."""
    whole = team.lanes in (0, threads(ctx))
    return rank(ctx, node) if whole else part_of_warp(ctx, node, team.lanes)


# Reductions -------------------------------------------------------------------------------------------------------


def _exchanged(ctx: Context, node: Any, team: Team, name: str, arguments: Sequence[Any]) -> Value:
    value, by = ctx.scalar(arguments[0]), convert(ctx, node, ctx.scalar(arguments[1]), "int")
    which = {"shfl": "idx", "shfl_down": "down", "shfl_up": "up", "shfl_xor": "xor"}.get(name)
    if which is None or threads(ctx) % 32:
        raise ctx.refuse(node, f"{name} of a tile of {team.lanes} threads", "use tiles in blocks of whole warps")
    return exchange(ctx, node, which, value, by, team.lanes)


def _reduced(ctx: Context, node: Any, team: Team, value: Value, sign: str) -> Value:
    """The sum or maximum over a group, in each of its threads."""
    if not types.is_float(value.type) or value.type in types.HALVES:
        raise ctx.refuse(node, f"a reduction of {value.type}", "reduce float or double")
    if threads(ctx) % 32 or team.lanes not in (0, 1, 2, 4, 8, 16, 32):
        raise ctx.refuse(node, "a reduction in a block of no whole warps", "use a multiple of 32 threads")
    combine: Callable[[Value, Value], Value] = lambda a, b: _combined(ctx, node, sign, a, b)  # noqa: E731
    if team.lanes in (0, 32):
        name = f"{'warp' if team.lanes else 'block'}_{'sum' if sign == '+' else sign.removeprefix('f')}"
        return ctx.value(node, value.type, "reduce", (value,), name)
    lanes = team.lanes
    while lanes > 1:
        lanes //= 2
        value = combine(value, ctx.value(node, value.type, "shfl", (value, ctx.integer(node, lanes)), "xor"))
    return value


def _combined(ctx: Context, node: Any, sign: str, a: Value, b: Value) -> Value:
    if sign == "+":
        return binary(ctx, node, "+", a, b)
    found = math(ctx, node, sign if a.type == "double" else f"{sign}f", [a, b])
    assert found is not None
    return found


# cub --------------------------------------------------------------------------------------------------------------


def _instance(ctx: Context, node: Any) -> Collective | None:
    """``BlockReduce(storage)``, of a name or in full."""
    if node.type != "call_expression":
        return None
    callee, arguments = node.child_by_field_name("function"), named(node.child_by_field_name("arguments"))
    var = ctx.lookup(text_of(callee)) if callee.type == "identifier" else None
    found = var.value if var is not None else collective_type(ctx, node, text_of(callee))
    if not isinstance(found, Collective):
        return None
    for each in arguments:
        base = each.child_by_field_name("argument") if each.type == "subscript_expression" else each
        storage = ctx.lookup(text_of(base))
        if storage is None or not isinstance(storage.value, Storage):
            raise ctx.refuse(node, f"{text_of(each)!r} is not a TempStorage", "declare it in the kernel")
    return found


def _collect(ctx: Context, node: Any, of: Collective, name: str, arguments: list[Any]) -> Value:
    if name not in ("Sum", "Reduce") or not arguments:
        raise ctx.refuse(node, f"{name} of cub::{of.name}", "use Sum or Reduce")
    sign, left = ("+", arguments[1:]) if name == "Sum" else (_operator(ctx, arguments[1]), arguments[2:])
    if left and (of.team.lanes or ctx.scalar(left[0]).const != threads(ctx)):
        raise ctx.refuse(node, f"{text_of(node)!r} of a part of the block", "reduce the whole block")
    value = convert(ctx, node, ctx.scalar(arguments[0]), of.type)
    return _reduced(ctx, node, of.team, value, sign)
