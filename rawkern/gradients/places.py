"""Variables, pointers and places in memory, and how values are put into a block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.ir import Array, Block, Place, Store, Value
from rawkern.gradients.syntax import File, Where, named, text_of
from rawkern.gradients.types import Aggregate, Type

SPECIAL = ("threadIdx", "blockIdx", "blockDim", "gridDim")


@dataclass(eq=False)
class Var:
    """A variable: a scalar with its value now, an aggregate or local array with variables, or what never changes."""

    name: str
    type: Type | None
    value: Any = None  # Value, Pointer or None (not set yet)
    fields: dict[str, Var] = field(default_factory=dict)
    constant: bool = False

    def leaves(self) -> list[Var]:
        return [leaf for each in self.fields.values() for leaf in each.leaves()] if self.fields else [self]


@dataclass(frozen=True)
class Pointer:
    """An array with what is added to its start; `inner` are indices given already, where it has several dimensions."""

    array: Array
    offset: Value | None = None
    inner: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Cell:
    """A place in memory, as the left side of an assignment."""

    place: Place
    index: tuple[Value, ...]
    type: Type


class NeedsUnrolling(Exception):
    """A loop has to be written out, for the reason given."""

    def __init__(self, node: int, reason: Exception) -> None:
        super().__init__(str(reason))
        self.node, self.reason = node, reason


class Places:
    """Values and memory; `Expressions` has the rest."""

    file: File
    where: Where
    block: Block
    scopes: list[dict[str, Var]]
    computed: dict[Block, dict[Any, Value]]  # what each block has computed, to compute it once
    block_shape: tuple[int, int, int]
    grid_shape: tuple[int | None, int | None, int | None]

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
        const = value.const if not types.is_float(kind) else None
        if const is not None and kind == "bool":
            const = int(bool(const))
        elif const is not None and not (0 <= const < 2**31 and types.bits(kind) >= 32):
            const = const if kind in ("int", "long long") and -(2**31) <= const < 0 else None
        return self.value(node, kind, "cast", (value,), const=const)

    def refuse(self, node: Any, reason: str, way_out: str) -> Exception:
        return self.where.refuse(node, reason, way_out)

    def lookup(self, name: str) -> Var | None:
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
            axis = text_of(node.child_by_field_name("field"))
            shape = {"blockDim": self.block_shape, "gridDim": self.grid_shape}.get(text_of(argument), (None,) * 3)
            if axis not in ("x", "y", "z"):
                raise self.refuse(node, f"{text_of(node)} is not known", "use x, y or z")
            const = shape["xyz".index(axis)]
            extent = {"threadIdx": self.block_shape, "blockIdx": self.grid_shape}.get(text_of(argument))
            const = 0 if extent is not None and extent["xyz".index(axis)] == 1 else const
            return self.value(node, "unsigned int", "special", attr=text_of(node), const=const)
        return self.read(node, self.target(node))

    def on_pointer_expression(self, node: Any) -> Any:
        sign = text_of(node.child_by_field_name("operator"))
        argument = node.child_by_field_name("argument")
        if sign == "&":
            found = self.target(argument)
            if isinstance(found, Cell) and not found.place.fields and len(found.index) == 1:
                return Pointer(found.place.array, found.index[0])
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
            inner = found.type.of(name)
            return Cell(Place(found.place.array, (*found.place.fields, name)), found.index, inner)  # type: ignore[arg-type]
        raise self.refuse(
            node, f"{text_of(node)!r} has no field {name} that is known", "use fields of structs and vectors"
        )

    def cell(self, node: Any, base: Any, index: tuple[Value, ...]) -> Any:
        if isinstance(base, Var) and base.fields and index:
            if index[0].const is None or str(index[0].const) not in base.fields:
                raise self.unrollable(node, f"the index of the local array {base.name} is not known when deriving")
            return base.fields[str(index[0].const)]
        if not isinstance(base, Pointer):
            raise self.refuse(node, f"{text_of(node)!r} indexes what is no array", "index a pointer or array")
        array = base.array
        if any(types.is_float(i.type) for i in index):
            raise self.refuse(node, "an index that is no integer", "convert it first")
        if len(array.sizes) > 1:
            if not index:
                raise self.refuse(node, f"{text_of(node)!r} is a row", "index an element")
            index = (*base.inner, *index)
            return (
                Cell(Place(array), index, array.type) if len(index) == len(array.sizes) else Pointer(array, None, index)
            )
        if base.offset is not None:
            index = (base.offset if not index else self.binary(node, "+", base.offset, index[0]),)
        return Cell(Place(array), index or (self.integer(node, 0),), array.type)

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
                text_of(node),
                found.type,
                lambda path, kind: self.load(
                    node, Place(found.place.array, (*found.place.fields, *path)), found.index, kind
                ),
            )
        return self.load(node, found.place, found.index, found.type)

    def load(self, node: Any, place: Place, index: tuple[Value, ...], kind: str) -> Value:
        return self.value(node, kind, "load", index, place)

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
