"""Cooperative groups, and reductions of groups and of cub: as shuffles and shared memory, whose reverse is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Array, Value
from rawkern.gradients.reading.places import Given, Marker, Var
from rawkern.gradients.reading.syntax import BY_HAND
from rawkern.gradients.reading.warps import Warps

_OPERATORS = {
    "plus": "+", "Sum": "+", "greater": "fmax", "Max": "fmax", "maximum": "fmax", "less": "fmin", "Min": "fmin",
    "minimum": "fmin",
}  # fmt: skip
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


class Groups(Warps):
    """Groups and reductions."""

    kept: dict[Any, Array]
    shared: list[Array]

    # What is declared ---------------------------------------------------------------------------------------------

    def group_type(self, text: str) -> Team | None:
        """The group that a type names; None for other types."""
        text = self.file.qualified(text.removeprefix("const ").strip())
        if text in ("cooperative_groups::thread_block", "cooperative_groups::thread_group"):
            return Team()
        tile = _TILE.match(text)
        if tile is None or self.file.qualified(tile[1]) != "cooperative_groups::thread_block_tile":
            return None
        return Team(self._number_of(tile[2]) or -1)

    def collective_type(self, node: Any, text: str) -> Collective | None:
        """The reduction of cub that a type names; None for other types."""
        found = _COLLECTIVE.match(text)
        if found is None:
            return None
        given = [a.strip() for a in found[2].split(",")]
        kind = self.type_named(node, given[0])
        if found[1] not in ("BlockReduce", "WarpReduce") or not isinstance(kind, str) or kind in types.HALVES:
            way = BY_HAND
            if found[1] in ("BlockReduce", "WarpReduce"):
                way = "reduce floats or doubles, one by one"
            elif found[1] in ("BlockLoad", "BlockStore"):
                way = "read and write the elements by index"
            raise self.refuse(node, f"{text}", way)
        if found[1] == "BlockReduce":
            return Collective(found[1], kind, Team())
        lanes = self._number_of(given[1]) if len(given) > 1 else 32
        return Collective(found[1], kind, Team(lanes or -1))

    def _number_of(self, text: str) -> int | None:
        if text.isdigit():
            return int(text)
        var = self.lookup(text)
        return var.value.const if var is not None and isinstance(var.value, Value) else None

    def on_field_expression(self, node: Any) -> Any:
        """Also ``block.thread_index().x`` and its like."""
        of = node.child_by_field_name("argument")
        called = of.child_by_field_name("function") if of.type == "call_expression" else None
        if called is not None and called.type == "field_expression":
            name = {"thread_index": "threadIdx", "group_index": "blockIdx", "group_dim": "blockDim"}.get(
                text_of(called.child_by_field_name("field"))
            )
            team = self.expression(called.child_by_field_name("argument")) if name is not None else None
            if isinstance(team, Team) and not team.lanes and name is not None:
                return self.special(node, name, text_of(node.child_by_field_name("field")))
        return super().on_field_expression(node)

    # Calls --------------------------------------------------------------------------------------------------------

    def group_call(self, node: Any, callee: Any, arguments: list[Any]) -> tuple[Any] | None:
        """What a call of groups or of cub returns, in a tuple; None for other calls."""
        if callee.type == "field_expression":
            return self._method(node, callee, arguments)
        text = self.file.qualified(text_of(callee))
        space, _, name = text.rpartition("::")
        if space != "cooperative_groups":
            return None
        name, _, given = name.partition("<")
        if name == "this_thread_block" and not arguments:
            return (Team(),)
        if name == "tiled_partition" and len(arguments) == 1 and given:
            return (self._tile(node, self._team(arguments[0]), given.rstrip("> ")),)
        if name == "sync" and len(arguments) == 1:
            return (self._sync(node, self._team(arguments[0])),)
        if name == "thread_rank" and len(arguments) == 1:
            return (self._rank(node, self._team(arguments[0])),)
        if name == "reduce" and len(arguments) == 3:
            value = self.scalar(arguments[1])
            return (self._reduced(node, self._team(arguments[0]), value, self._operator(arguments[2])),)
        raise self.refuse(node, f"the call of {text}", "use __syncthreads, shuffles or shared memory")

    def _tile(self, node: Any, team: Team, given: str) -> Team:
        lanes = self._number_of(given.strip())
        if lanes not in (1, 2, 4, 8, 16, 32) or self.threads() % lanes or (team.lanes and lanes > team.lanes):
            raise self.refuse(node, f"tiles of {given} threads", "use a power of two up to 32 that divides the block")
        return Team(lanes)

    def _team(self, node: Any) -> Team:
        found = self.expression(node)
        if not isinstance(found, Team):
            raise self.refuse(node, f"{text_of(node)!r} is no group that is known", "use the block or a tile of it")
        return found

    def _operator(self, node: Any) -> str:
        name = re.sub(r"<.*>", "", re.sub(r"(\(\)|\{\s*\})\s*\Z", "", text_of(node)), flags=re.S).rpartition("::")[2]
        if name.strip() not in _OPERATORS or node.type not in ("call_expression", "compound_literal_expression"):
            raise self.refuse(node, f"a reduction by {text_of(node)}", "use a sum, maximum or minimum of the library")
        return _OPERATORS[name.strip()]

    def _method(self, node: Any, callee: Any, arguments: list[Any]) -> tuple[Any] | None:
        name, of = text_of(callee.child_by_field_name("field")), callee.child_by_field_name("argument")
        collective = self._instance(of)
        if collective is not None:
            return (self._collect(node, collective, name, arguments),)
        arrow = text_of(callee.child_by_field_name("operator")) == "->"
        this = Given(of, self.pointee(node, of)) if arrow else self.given(of)
        team = this.found.value if isinstance(this.found, Var) and not this.found.whole else this.found
        if not isinstance(team, Team):
            return (self.of_object(node, this, callee.child_by_field_name("field"), arguments),)
        if name == "sync" and not arguments:
            return (self._sync(node, team),)
        if name in ("thread_rank", "size", "num_threads", "meta_group_rank", "meta_group_size") and not arguments:
            return (self._counted(node, team, name),)
        if name.startswith("shfl") and len(arguments) == 2 and team.lanes:
            return (self._exchanged(node, team, name, arguments),)
        raise self.refuse(node, f"{name} of a group", "use sync, thread_rank, size, shuffles or reduce")

    def _sync(self, node: Any, team: Team) -> None:
        self.barrier(node, "__syncwarp()" if team.lanes else "__syncthreads()")

    def _counted(self, node: Any, team: Team, name: str) -> Value:
        lanes = team.lanes or self.threads()
        if name == "thread_rank":
            return self._rank(node, team)
        if name == "meta_group_rank":
            if not team.lanes:
                raise self.refuse(node, "meta_group_rank of a block", "use a tile")
            return self.binary(node, "/", self._rank(node, Team()), self.unsigned(node, lanes))
        return self.unsigned(node, lanes if name != "meta_group_size" else self.threads() // lanes)

    def _rank(self, node: Any, team: Team) -> Value:
        """The number of the thread in its group."""
        whole = team.lanes in (0, self.threads())
        return self.rank(node) if whole else self.part_of_warp(node, team.lanes)

    # Reductions ---------------------------------------------------------------------------------------------------

    def _exchanged(self, node: Any, team: Team, name: str, arguments: Sequence[Any]) -> Value:
        value, by = self.scalar(arguments[0]), self.converted(node, self.scalar(arguments[1]), "int")
        which = {"shfl": "idx", "shfl_down": "down", "shfl_up": "up", "shfl_xor": "xor"}.get(name)
        if which is None or self.threads() % 32:
            raise self.refuse(node, f"{name} of a tile of {team.lanes} threads", "use tiles in blocks of whole warps")
        return self.exchanged(node, which, value, by, team.lanes)

    def _reduced(self, node: Any, team: Team, value: Value, sign: str) -> Value:
        """The sum or maximum over a group, in each of its threads."""
        if not types.is_float(value.type) or value.type in types.HALVES:
            raise self.refuse(node, f"a reduction of {value.type}", "reduce float or double")
        if self.threads() % 32 or team.lanes not in (0, 1, 2, 4, 8, 16, 32):
            raise self.refuse(node, "a reduction in a block of no whole warps", "use a multiple of 32 threads")
        combine: Callable[[Value, Value], Value] = lambda a, b: self._combined(node, sign, a, b)  # noqa: E731
        if team.lanes in (0, 32):
            name = f"{'warp' if team.lanes else 'block'}_{'sum' if sign == '+' else sign.removeprefix('f')}"
            return self.value(node, value.type, "reduce", (value,), name)
        lanes = team.lanes
        while lanes > 1:
            lanes //= 2
            value = combine(value, self.value(node, value.type, "shfl", (value, self.integer(node, lanes)), "xor"))
        return value

    def _combined(self, node: Any, sign: str, a: Value, b: Value) -> Value:
        if sign == "+":
            return self.binary(node, "+", a, b)
        found = self.math(node, sign if a.type == "double" else f"{sign}f", [a, b])
        assert found is not None
        return found

    # cub ----------------------------------------------------------------------------------------------------------

    def _instance(self, node: Any) -> Collective | None:
        """``BlockReduce(storage)``, of a name or in full."""
        if node.type != "call_expression":
            return None
        callee, arguments = node.child_by_field_name("function"), named(node.child_by_field_name("arguments"))
        var = self.lookup(text_of(callee)) if callee.type == "identifier" else None
        found = var.value if var is not None else self.collective_type(node, text_of(callee))
        if not isinstance(found, Collective):
            return None
        for each in arguments:
            base = each.child_by_field_name("argument") if each.type == "subscript_expression" else each
            storage = self.lookup(text_of(base))
            if storage is None or not isinstance(storage.value, Storage):
                raise self.refuse(node, f"{text_of(each)!r} is no TempStorage", "declare it in the kernel")
        return found

    def _collect(self, node: Any, of: Collective, name: str, arguments: list[Any]) -> Value:
        if name not in ("Sum", "Reduce") or not arguments:
            raise self.refuse(node, f"{name} of cub::{of.name}", "use Sum or Reduce")
        sign, left = ("+", arguments[1:]) if name == "Sum" else (self._operator(arguments[1]), arguments[2:])
        if left and (of.team.lanes or self.scalar(left[0]).const != self.threads()):
            raise self.refuse(node, f"{text_of(node)!r} of a part of the block", "reduce the whole block")
        value = self.converted(node, self.scalar(arguments[0]), of.type)
        return self._reduced(node, of.team, value, sign)
