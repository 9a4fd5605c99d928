"""A kernel to structured SSA; device functions are put in where they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.base.tree import named
from rawkern.gradients import types
from rawkern.gradients.ir import Array, Block, Kernel, Loop, Value, renumber, substitute, walk
from rawkern.gradients.reading.accesses import Noted, Stored
from rawkern.gradients.reading.places import Struct, Var
from rawkern.gradients.reading.repeats import Repeats
from rawkern.gradients.reading.source import File
from rawkern.gradients.reading.syntax import Where, function_name, parameters_of, unclear
from rawkern.gradients.types import Aggregate, Type


class Lowering(Repeats):
    """One reading of a kernel."""

    def __init__(
        self,
        file: File,
        where: Where,
        block: tuple[int, int, int],
        grid: tuple[int | None, int | None, int | None],
        unroll: frozenset[int],
        shared_mem: int,
        retyped: dict[str, Type],
        starts: frozenset[tuple[int, str]],
        keep: bool = False,
        updated: frozenset[str] = frozenset(),
    ) -> None:
        self.file, self.where = file, where
        self.keep, self.own = keep, {}
        self.block_shape, self.grid_shape = block, grid
        self.unroll, self.shared_mem, self.retyped = unroll, shared_mem, retyped
        self.starts, self.updated = starts, updated
        self.views: dict[str, set[Aggregate | None]] = {}
        self.kept: dict[Any, Array] = {}
        self.body = self.block = Block()
        self.scopes: list[dict[str, Var]] = [{}]
        self.callers: list[list[dict[str, Var]]] = []
        self.called: list[str] = []
        self.type_names: dict[str, Any] = {}
        self.made: dict[str, Struct] = {}
        self.instances: dict[tuple[Any, ...], Struct] = {}
        self.struct: Struct | None = None
        self.sides: dict[int, Any] = {}
        self.path = ""
        self.asked = self.kind_alone = False
        self.noted: list[Noted] | None = None
        self.loops: list[int] = []
        self.stored: Stored = {}
        self.begun: dict[Any, Block] = {}
        self.breaking: list[Var | None] = []
        self.left: Var | None = None
        self.shared: list[Array] = []
        self.computed: dict[Block, dict[Any, Value]] = {}
        self.returned: Var | None = None
        self.structs: dict[str, tuple[Aggregate, str]] = {}
        self.params: list[tuple[str, Type, bool]] = []
        self.arrays: dict[str, Array] = {}

    def kernel(self, definition: Any, template: Any, arguments: Sequence[str]) -> Kernel:
        """Read a kernel, an instance of a template with these arguments."""
        if definition.has_error:
            part = unclear(definition)
            line = self.file.text.splitlines()[part.start_point[0]].strip()
            raise self.refuse(part, f"its text is not understood: {line[:80]!r}", "write that in simpler terms")
        given = self.template_arguments(", ".join(arguments))
        self.type_names, numbers = self.bind(definition, template, given)
        self.scopes += [numbers, {}]
        self.path = self.file.paths.get(function_name(definition), "")
        for node in parameters_of(definition):
            self.parameter(node)
        self.sequence(named(definition.child_by_field_name("body")), lambda: None)
        self._widen()
        renumber(self.body)
        read = {i.attr.array for i in walk(self.body) if isinstance(i, Value) and i.op == "load"}
        variables = {n: self.file.full(n) for n in self.file.variables if self.arrays.get(n) in read}
        self.params += [(n, self.arrays[n].type, True) for n in variables]
        for function in self.own.values():
            if function is not None:
                renumber(function.body)
        return Kernel(
            self.where.kernel, self.where.title, self.params, self.arrays, self.shared, self.body, self.structs,
            self.block_shape, self.grid_shape, functions={n: f for n, f in self.own.items() if f is not None},
            variables=variables,
        )  # fmt: skip

    def _widen(self) -> None:
        """Make values of half precision floats, which are rounded where that matters."""
        same: dict[Value, Value] = {}
        items = list(walk(self.body))
        for item in items:
            for value in (item, *_after(item)):
                if isinstance(value, Value) and value.type in types.HALVES:
                    value.type = "float"
        for item in items:
            if isinstance(item, Value) and item.op == "cast" and item.args[0].type == item.type:
                same[item] = item.args[0]
                item.block.items.remove(item)
        if same:
            substitute(items, same)


def _after(item: Any) -> tuple[Value, ...]:
    """The variables of a loop, which stand in no block."""
    return tuple(c.phi for c in item.carried) if isinstance(item, Loop) else ()
