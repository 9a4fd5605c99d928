"""Values, and reading and writing variables and memory, as they are put into a block."""

from __future__ import annotations

from typing import Any

from rawkern.gradients import types
from rawkern.gradients.ir import Array, Barrier, Block, Loop, Place, Store, Value
from rawkern.gradients.reading.places import Cell, Local, Pointer, Var
from rawkern.gradients.reading.syntax import File, Where, named, text_of
from rawkern.gradients.rules import ROUNDINGS
from rawkern.gradients.types import Aggregate, Type

LITERALS = {"int": "", "unsigned int": "u", "long long": "LL", "unsigned long long": "ULL"}
SPECIAL = ("threadIdx", "blockIdx", "blockDim", "gridDim")


class Accesses:
    """Values and memory; `Expressions` has the rest."""

    file: File
    where: Where
    block: Block
    scopes: list[dict[str, Var]]
    computed: dict[Block, dict[Any, Value]]  # what each block has computed, to compute it once
    block_shape: tuple[int, int, int]
    grid_shape: tuple[int | None, int | None, int | None]
    stored: dict[Array, dict[Any, tuple[Value, Block]]]  # what a thread itself has written since the last barrier
    views: dict[str, set[Aggregate | None]]  # what each array is accessed as; None: as it is

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
        elif const is not None and not (0 <= const < 2**31 and types.bits(kind) >= 32):
            const = const if kind in ("int", "long long") and -(2**31) < const < 0 else None
        if const is not None and value.op == "const" and kind in LITERALS:
            return self.value(node, kind, "const", attr=f"{const}{LITERALS[kind]}", const=const)
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
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    # Memory and fields --------------------------------------------------------------------------------------------

    def on_subscript_expression(self, node: Any) -> Any:
        return self.read(node, self.target(node))

    def on_field_expression(self, node: Any) -> Any:
        argument = node.child_by_field_name("argument")
        names = {text_of(argument), text_of(node.child_by_field_name("field"))}
        if names & self.file.unclear:
            raise self.refuse(node, f"{text_of(node)} has a part that is a macro", "give the macro another name")
        if argument.type == "identifier" and text_of(argument) in SPECIAL and self.lookup(text_of(argument)) is None:
            return self.special(node, text_of(argument), text_of(node.child_by_field_name("field")))
        return self.read(node, self.target(node))

    def special(self, node: Any, name: str, axis: str) -> Value:
        """threadIdx, blockIdx, blockDim or gridDim along an axis."""
        if axis not in ("x", "y", "z"):
            raise self.refuse(node, f"{text_of(node)} is not known", "use x, y or z")
        shape = {"blockDim": self.block_shape, "gridDim": self.grid_shape}.get(name, (None,) * 3)
        extent = {"threadIdx": self.block_shape, "blockIdx": self.grid_shape}.get(name)
        const = 0 if extent is not None and extent["xyz".index(axis)] == 1 else shape["xyz".index(axis)]
        return self.value(node, "unsigned int", "special", attr=f"{name}.{axis}", const=const)

    def on_pointer_expression(self, node: Any) -> Any:
        sign = text_of(node.child_by_field_name("operator"))
        argument = node.child_by_field_name("argument")
        while argument.type == "parenthesized_expression":
            argument = named(argument)[0]
        if sign == "&" and argument.type == "subscript_expression":
            index = named(argument.child_by_field_name("indices"))
            base = self.expression(argument.child_by_field_name("argument"))
            if isinstance(base, Pointer) and len(index) == 1 and len(base.inner) >= len(base.array.sizes) - 1:
                return self.moved(node, base, self.scalar(index[0]), "+")
        if sign == "&":
            found = self.target(argument)
            if isinstance(found, Cell) and not found.place.fields and found.index and not found.view:
                return Pointer(found.place.array, found.index[-1], found.index[:-1])
            if isinstance(found, Var) and not found.fields and argument.type == "subscript_expression":
                return self.into(found)
            if isinstance(found, Var) and isinstance(found.type, Aggregate):
                return found
            raise self.refuse(node, f"the address {text_of(node)}", "use the variable itself, or an index")
        return self.read(node, self.target(node))

    def target(self, node: Any) -> Any:
        """What an expression that can be assigned to means: a `Var` or a `Cell`."""
        if node.type == "parenthesized_expression":
            return self.target(named(node)[0])
        if node.type == "identifier":
            var = self.lookup(text_of(node))
            if var is None or text_of(node) in self.file.unclear:
                raise self.refuse(node, f"{text_of(node)} is no variable of the kernel", "declare it in the kernel")
            return var.value if isinstance(var.value, Cell) else var
        if node.type == "field_expression":
            return self.field(node)
        if node.type == "pointer_expression" and text_of(node.child_by_field_name("operator")) == "*":
            return self.cell(node, self.expression(node.child_by_field_name("argument")), ())
        if node.type == "subscript_expression":
            index = named(node.child_by_field_name("indices"))
            if len(index) != 1:
                raise self.refuse(node, "an index of several parts", "write one index")
            base = self.expression(node.child_by_field_name("argument"))
            return self.cell(node, base, (self.scalar(index[0]),))
        raise self.refuse(node, f"{text_of(node)!r} is no place to read or write", "use a variable or an element")

    def field(self, node: Any) -> Any:
        name = text_of(node.child_by_field_name("field"))
        found = self.target(node.child_by_field_name("argument"))
        if text_of(node.child_by_field_name("operator")) != ".":
            raise self.refuse(node, "-> is not known", "index the array, then take the field")
        if isinstance(found, Var) and name in found.fields:
            return found.fields[name]
        if isinstance(found, Cell) and isinstance(found.type, Aggregate) and found.type.of(name) is not None:
            return self.part(node, found, (name,), found.type.of(name))  # type: ignore[arg-type]
        raise self.refuse(
            node, f"{text_of(node)!r} has no field {name} that is known", "use fields of structs and vectors"
        )

    def cell(self, node: Any, base: Any, index: tuple[Value, ...]) -> Any:
        if isinstance(base, Local):
            return self.element(node, base, index)
        if isinstance(base, Var) and base.fields and index and base.type is None:
            if index[0].const is None or str(index[0].const) not in base.fields:
                raise self.unrollable(node, f"the index of the local array {base.name} is not known when deriving")
            return base.fields[str(index[0].const)]
        if not isinstance(base, Pointer):
            raise self.refuse(node, f"{text_of(node)!r} indexes what is no array", "index a pointer or array")
        array = base.array
        if any(types.is_float(i.type) for i in index):
            raise self.refuse(node, "an index that is no integer", "convert it first")
        if array.raw or base.unit:
            raise self.refuse(node, f"{array.name} is of bytes", "cast it to a pointer to what it holds")
        rows = max(len(array.sizes) - 1, 0)
        if len(base.inner) < rows:
            if not index:
                raise self.refuse(node, f"{text_of(node)!r} is a row", "index an element")
            return Pointer(array, None, (*base.inner, *index))
        last = index[0] if index else None
        if base.view is not None and last is not None:
            last = self.binary(node, "*", last, self.integer(node, len(base.view.fields)))
        if base.offset is not None:
            last = base.offset if last is None or last.const == 0 else self.binary(node, "+", base.offset, last)
        even = base.view and (base.offset is None or self.quotient(node, base.offset, len(base.view.fields)))
        self.views.setdefault(array.name, set()).add(base.view if even else None)
        full = (*base.inner, self.integer(node, 0) if last is None else last)
        return Cell(Place(array), full, base.type, base.view is not None)

    def into(self, element: Var) -> Any:
        """A pointer to an element of a local array."""
        for scope in reversed(self.scopes):
            for var in scope.values():
                leaves = var.leaves()
                if var.fields and var.type is None and element in leaves:
                    return Local(tuple(leaves), leaves.index(element))
        return element

    def element(self, node: Any, base: Local, index: tuple[Value, ...]) -> Var:
        """What a pointer into local variables points to; a vector of them has them for its fields."""
        at = index[0].const if index else 0
        if at is None:
            raise self.unrollable(node, "the index into a local array is not known when deriving")
        width = 1 if base.view is None else len(base.view.fields)
        found = base.leaves[base.at + at * width : base.at + (at + 1) * width]
        if at < 0 or len(found) != width:
            raise self.refuse(node, f"{text_of(node)!r} is outside of the local array", "index an element of it")
        if base.view is None:
            return found[0]
        return Var(found[0].name, base.view, fields=dict(zip("xyzw", found, strict=False)))

    def part(self, node: Any, cell: Cell, path: tuple[str, ...], kind: Type) -> Cell:
        """A field of a vector or struct in memory."""
        if not cell.view:
            return Cell(Place(cell.place.array, (*cell.place.fields, *path)), cell.index, kind)
        at = [name for name, _ in cell.type.fields].index(path[0])  # type: ignore[union-attr]
        last = cell.index[-1] if at == 0 else self.binary(node, "+", cell.index[-1], self.integer(node, at))
        return Cell(cell.place, (*cell.index[:-1], last), kind)

    def read(self, node: Any, found: Any) -> Any:
        if isinstance(found, Pointer):
            return found
        if isinstance(found, Var):
            if found.fields or isinstance(found.value, Pointer):
                return found if found.fields else found.value
            if isinstance(found.value, Cell):
                return self.read(node, found.value)
            if found.value is None:
                raise self.refuse(node, f"{text_of(node)} has no value on some path to here",
                                  "give it a value where it is declared")  # fmt: skip
            return found.value
        if isinstance(found.type, Aggregate):
            return self.aggregate(
                text_of(node), found.type, lambda path, kind: self.read(node, self.part(node, found, path, kind))
            )
        return self.load(node, found.place, found.index, found.type)

    def load(self, node: Any, place: Place, index: tuple[Value, ...], kind: str) -> Value:
        value, block = self.stored.get(place.array, {}).get((place, index), (None, None))
        if value is not None and self._goes_through(block):
            return value
        return self.value(node, kind, "load", index, place)

    def _goes_through(self, block: Block | None) -> bool:
        """Whether whatever comes here came through a block, in the same iteration of each loop around."""
        here: Block | None = self.block
        while here is not None and here is not block:
            here = None if here.parent is None or isinstance(here.parent, Loop) else here.parent.block
        return here is not None

    def aggregate(self, name: str, kind: Aggregate, make: Any, path: tuple[str, ...] = ()) -> Var:
        """A variable of an aggregate, each scalar in it made by ``make(path, type)``."""
        var = Var(name, kind)
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
        self.block.items.append(
            Store(node.start_point[0] + 1, self.block, place=cell.place, index=cell.index, value=value, adds=adds)
        )
        if not cell.place.array.shared:
            before = self.stored.get(cell.place.array, {})
            here = {} if adds else {k: v for k, v in before.items() if k[1] == cell.index}
            self.stored[cell.place.array] = here if adds else {**here, (cell.place, cell.index): (value, self.block)}

    def barrier(self, node: Any, text: str) -> None:
        self.block.items.append(Barrier(node.start_point[0] + 1, self.block, text=text))
        self.stored = {}

    def unrollable(self, node: Any, reason: str) -> Exception:
        raise NotImplementedError

    def scalar_type(self, node: Any) -> str:
        raise NotImplementedError

    # Of `Expressions`.
    def expression(self, node: Any) -> Any:
        """The value of an expression: a `Value`, a `Pointer`, or a `Var` for an aggregate."""
        raise NotImplementedError

    def scalar(self, node: Any) -> Value:
        """An expression that has to be a number."""
        raise NotImplementedError

    def binary(self, node: Any, sign: str, a: Value, b: Value) -> Value:
        """An operator on two numbers."""
        raise NotImplementedError

    def moved(self, node: Any, pointer: Any, by: Value, sign: str) -> Any:
        """A pointer plus or minus a number."""
        raise NotImplementedError

    def quotient(self, node: Any, value: Value, by: int) -> Value | None:
        """A number divided, where it is seen to be a multiple."""
        raise NotImplementedError

    def declare(self, node: Any) -> None:
        raise NotImplementedError
