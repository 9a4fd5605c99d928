"""Values, and reading and writing variables and memory, as they are put into a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from rawkern.base.tree import text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Array, Barrier, Block, Exit, If, Loop, Place, Store, Value, inside, made_of
from rawkern.gradients.reading.places import Cell, Local, NeedsStart, Pointer, Var
from rawkern.gradients.reading.source import File
from rawkern.gradients.reading.syntax import Where
from rawkern.gradients.rules import ROUNDINGS
from rawkern.gradients.types import Aggregate, Type

LITERALS = {"int": "", "unsigned int": "u", "long long": "LL", "unsigned long long": "ULL"}
EXACT = range(2**24 + 1)  # what a float has, too
SPECIAL = ("threadIdx", "blockIdx", "blockDim", "gridDim")


@dataclass
class Either:
    """What a place holds behind a branch whose sides have set it, or one of them."""

    branch: If
    then: Value | Either
    other: Value | Either
    value: Value | None = None


class Noted(NamedTuple):
    """A variable or array that an expression reads or changes."""

    what: Var | Array
    changed: bool
    depth: int  # of calls
    late: bool = False  # read when all operands have been


Stored = dict[Array, dict[Any, tuple[Value | Either, Block]]]  # by place and index; with where it was written


class Accesses:
    """Values and memory; `Expressions` has the rest."""

    file: File
    where: Where
    block: Block
    body: Block  # the kernel's
    scopes: list[dict[str, Var]]
    computed: dict[Block, dict[Any, Value]]  # what each block has computed, to compute it once
    block_shape: tuple[int, int, int]
    grid_shape: tuple[int | None, int | None, int | None]
    stored: Stored  # what a thread itself has written since the last barrier
    begun: dict[tuple[Place, tuple[Value, ...]], Block]  # where it has set a place since then
    starts: frozenset[tuple[int, str]]  # variables that begin with 0 before a loop
    views: dict[str, set[Aggregate | None]]  # what each array is accessed as; None: as it is
    updated: frozenset[str]  # arrays of which += reads what there is and sets the sum
    kind_alone: bool  # whether only the type of what is read is asked for
    callers: list[Any]
    noted: list[Noted] | None  # what the expression at hand reads and changes, while that is asked for

    # Values -------------------------------------------------------------------------------------------------------

    def value(
        self, node: Any, kind: str, op: str, args: tuple[Value, ...] = (), attr: Any = None, **more: Any
    ) -> Value:
        line = node if isinstance(node, int) else node.start_point[0] + 1
        pure = op in ("special", "param", "unary", "binary", "cast", "call", "select") or (
            op == "const" and not more.get("name")
        )
        if pure or (op == "load" and attr.array.const and not attr.array.shared):
            same = (kind, op, args, attr)
            found = self.known(same)
            if found is not None:
                return found
        made = Value(line, self.block, type=kind, op=op, args=args, attr=attr, **more)
        self.block.items.append(made)
        if pure or op == "load":
            self.computed.setdefault(self.block, {})[kind, op, args, attr] = made
        return made

    def known(self, same: Any) -> Value | None:
        """What has been computed alike, in this block or one around it."""
        block: Block | None = self.block
        while block is not None:
            if same in self.computed.get(block, {}):
                return self.computed[block][same]
            block = block.parent.block if block.parent is not None else None
        return None

    def integer(self, node: Any, value: int) -> Value:
        return self.value(node, "int", "const", attr=str(value), const=value)

    def converted(self, node: Any, value: Value, kind: str) -> Value:
        """A value as another type; as C does it."""
        if value.type == kind:
            return value
        if kind in types.HALVES:
            value = self.converted(node, value, "float")
            return self.value(node, kind, "call", (value,), (ROUNDINGS[kind], ROUNDINGS[kind].name))
        const = value.const if not types.is_float(kind) else None
        if const is not None and kind == "bool":
            const = int(bool(const))
        elif const is not None and kind == "unsigned int":
            const &= 0xFFFFFFFF
        elif const is not None and not (0 <= const < 2**31 and types.bits(kind) >= 32):
            const = const if kind in ("int", "long long") and -(2**31) < const < 0 else None
        if const is not None and value.op == "const" and kind in LITERALS:
            return self.value(node, kind, "const", attr=f"{const}{LITERALS[kind]}", const=const)
        if types.is_float(kind) and value.op == "const" and value.type in LITERALS and value.const in EXACT:
            return self.value(node, kind, "const", attr=f"{value.const}.0{'f' if kind == 'float' else ''}")
        return self.value(node, kind, "cast", (value,), const=const)

    def offset(self, node: Any, pointer: Pointer) -> Value:
        """How far a pointer is from the start of its array, in elements."""
        return self.converted(node, pointer.offset or self.integer(node, 0), "long long")

    def refuse(self, node: Any, reason: str, way_out: str) -> Exception:
        return self.where.refuse(node, reason, way_out)

    def lookup(self, name: str) -> Var | None:
        if name in self.file.dynamic and not any(name in scope for scope in self.scopes):
            scopes, self.scopes = self.scopes, self.scopes[:1]
            self.declare(self.file.dynamic[name])
            self.scopes = scopes
        if name in self.file.variables and not any(name in scope for scope in self.scopes):
            return self.variable(name)
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def variable(self, name: str) -> Var:
        """A variable of the device."""
        raise NotImplementedError

    # Memory --------------------------------------------------------------------------------------------------

    def read(self, node: Any, found: Any) -> Any:
        if isinstance(found, Pointer):
            return found
        if isinstance(found, Var):
            self.note_variable(found)
            if found.whole or isinstance(found.value, Pointer | Local):
                return found if found.whole else found.value
            if isinstance(found.value, Cell):
                return self.read(node, found.value)
            if found.value is None and found.lost >= 0 and (found.lost, found.name) not in self.starts:
                raise NeedsStart((found.lost, found.name))
            if found.value is None and found.apart:
                raise self.refuse(node, f"{found.name} points to one of several arrays",
                                  "declare it by a choice: = condition ? one : other")  # fmt: skip
            if found.value is None:
                raise self.refuse(node, f"{text_of(node)} has no value on some path to here",
                                  "give it a value where it is declared")  # fmt: skip
            return found.value
        if isinstance(found.type, Aggregate):
            return self.aggregate(
                text_of(node), found.type, lambda path, kind: self.read(node, self.part(node, found, path, kind))
            )
        return self.load(node, found.place, found.index, found.type)

    def note(self, what: Var | Array, changed: bool, late: bool = False) -> None:
        """A variable or array is read or changed."""
        if self.noted is not None:
            self.noted.append(Noted(what, changed, len(self.callers), late))

    def note_variable(self, var: Var, changed: bool = False, late: bool = False) -> None:
        """`note`, for each number of it."""
        for leaf in var.leaves() if self.noted is not None else ():
            self.note(leaf, changed, late)

    def load(self, node: Any, place: Place, index: tuple[Value, ...], kind: str) -> Value:
        self.note(place.array, False)
        value, block = self.stored.get(place.array, {}).get((place, index), (None, None))
        if value is not None and self._goes_through(block):
            return self._either(value)
        return self.value(node, kind, "load", index, place)

    def _either(self, found: Value | Either) -> Value:
        """The value of a place, of one side of a branch or the other; made where it is asked for."""
        if isinstance(found, Value):
            return found
        if found.value is not None:
            return found.value
        branch, a, b = found.branch, self._either(found.then), self._either(found.other)
        made = self.within(branch.block, lambda: self.value(branch.line, a.type, "result", attr=branch, name=a.name))
        branch.results.append((made, a, b))
        found.value = made
        return made

    def stored_on(self, side: Block) -> Stored:
        """What has been written when a side of a branch ends."""
        block, self.block = self.block, side
        found = {
            array: {key: each for key, each in places.items() if self._goes_through(each[1])}
            for array, places in self.stored.items()
        }
        self.block = block
        return found

    def merge_stored(self, branch: If, first: Stored, second: Stored) -> None:
        """What has been written behind a branch: on both sides, the same or each its own."""
        self.stored = {}
        for array, places in first.items():
            for key, (a, block) in places.items():
                b, other = second.get(array, {}).get(key, (None, block))
                if b is not None and a is b and block is other:
                    self.stored.setdefault(array, {})[key] = a, block
                elif b is not None:
                    self.stored.setdefault(array, {})[key] = Either(branch, a, b), self.block

    def _goes_through(self, block: Block | None) -> bool:
        """Whether whatever comes here came through a block, in the same iteration of each loop around."""
        here: Block | None = self.block
        while here is not None and here is not block:
            here = None if here.parent is None or isinstance(here.parent, Loop) else here.parent.block
        return here is not None

    def aggregate(self, name: str, kind: Aggregate, make: Any, path: tuple[str, ...] = ()) -> Var:
        """A variable of an aggregate, each scalar in it made by ``make(path, type)``."""
        var = Var(name, None if kind.array else kind)
        for each, inner in kind.fields:
            full = (*path, each)
            var.fields[each] = (
                self.aggregate(f"{name}_{each}", inner, make, full)
                if isinstance(inner, Aggregate)
                else Var(f"{name}_{each}", inner, make(full, inner))
            )
        return var

    def write(self, node: Any, cell: Cell, value: Value, adds: str = "") -> None:
        if cell.place.array.const:
            raise self.refuse(node, f"{cell.place.array.name} is const", "write to another array")
        self.note(cell.place.array, True)
        if cell.volatile:
            self._in_step(node, cell)
        made = Store(node.start_point[0] + 1, self.block, place=cell.place, index=cell.index, value=value, adds=adds)
        self.block.items.append(made)
        key = cell.place, cell.index
        if adds:
            made.begun = adds == "plain" and key in self.begun and inside(self.block, self.begun[key])
        else:
            self.begun[key] = self.block
        if not cell.place.array.shared:
            before = self.stored.get(cell.place.array, {})
            here = {} if adds else {k: v for k, v in before.items() if k[1] == cell.index}
            self.stored[cell.place.array] = here if adds else {**here, (cell.place, cell.index): (value, self.block)}

        if cell.volatile:
            self.barrier(node, "__syncwarp()")

    def _in_step(self, node: Any, cell: Cell) -> None:
        """The lanes of a warp have read what they store by, before one of them stores it; as volatile was meant."""
        block: Block | None = self.block
        together = cell.place.array.shared and not any(isinstance(i, Exit) for i in self.body.items)
        while together and block is not None and block.parent is not None:
            together = made_of(block.parent.condition, self._same_in_warps)
            block = block.parent.block
        if not together:
            raise self.refuse(node, f"{cell.place.array.name} is volatile where parts of a warp may write to it",
                              "use __syncwarp, or shuffles")  # fmt: skip
        self.barrier(node, "__syncwarp()")

    def _same_in_warps(self, v: Value) -> bool | tuple[Value, ...]:
        """Whether a value is the same for the lanes of a warp; or what that rests on."""
        if v.op == "special":
            return not v.attr.startswith("threadIdx")
        if v.op == "binary" and v.attr in ("<", ">=") and self.block_shape[1:] == (1, 1):
            first, last = v.args[0], v.args[1].const
            while first.op == "cast":
                first = first.args[0]
            if (first.op, first.attr) == ("special", "threadIdx.x") and last is not None and last % 32 == 0:
                return True
        return v.op in ("cast", "unary", "binary", "select") and v.args

    def barrier(self, node: Any, text: str) -> None:
        self.block.items.append(Barrier(node.start_point[0] + 1, self.block, text=text))
        self.stored, self.begun = {}, {}

    # Of `Arithmetic`, `Targets`.
    def within(self, block: Block, make: Any) -> Any:
        raise NotImplementedError

    def part(self, node: Any, cell: Cell, path: tuple[str, ...], kind: Type) -> Cell:
        raise NotImplementedError

    def declare(self, node: Any) -> None:
        raise NotImplementedError
