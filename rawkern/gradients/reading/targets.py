"""What expressions mean as places: variables, elements, members; pointers to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Place, Value
from rawkern.gradients.reading.accesses import SPECIAL
from rawkern.gradients.reading.order import Order
from rawkern.gradients.reading.places import Cell, Local, Pointer, Var
from rawkern.gradients.types import Aggregate, Type

#: Expressions that may make an object, or refer to one.
COMPUTED = (
    "compound_literal_expression", "binary_expression", "conditional_expression", "assignment_expression",
    "unary_expression",
)  # fmt: skip


class Targets(Order):
    """Places; `Accesses` reads and writes them."""

    def on_subscript_expression(self, node: Any) -> Any:
        found = self.target(node)
        return found if isinstance(found, Value) else self.read(node, found)  # an operator may give a number

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
            found = found.value if isinstance(found, Var) and isinstance(found.value, Cell) else found
            if isinstance(found, Cell) and not found.place.fields and found.index and not found.view:
                return Pointer(found.place.array, found.index[-1], found.index[:-1])
            if isinstance(found, Cell) and not found.place.fields and not found.index:
                return Pointer(found.place.array)
            if isinstance(found, Var) and not found.whole and argument.type == "subscript_expression":
                return self.into(found)
            if isinstance(found, Var) and isinstance(found.type, Aggregate):
                return found
            if isinstance(found, Var) and isinstance(found.type, str) and not isinstance(found.value, Pointer | Local):
                within = self.into(found)  # (&v.x)[1] is v.y
                return within if isinstance(within, Local) else Local((found,))
            raise self.refuse(node, f"the address {text_of(node)}", "use the variable itself, or an index")
        return self.read(node, self.target(node))

    def target(self, node: Any) -> Any:
        """What an expression that can be assigned to means: a `Var` or a `Cell`; what is computed is a `Var`, too."""
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
            return self.pointee(node, node.child_by_field_name("argument"))
        if node.type == "subscript_expression":
            return self._subscripted(node)
        found = self.call(node) if node.type == "call_expression" else None
        if node.type == "conditional_expression":
            known = self.test(node.child_by_field_name("condition")).const
            if known is not None:
                return self.target(node.child_by_field_name("consequence" if known else "alternative"))
        if node.type in COMPUTED:
            found = self.expression(node)
        if not isinstance(found, (Var, Cell)):
            raise self.refuse(node, f"{text_of(node)!r} is no place to read or write", "use a variable or an element")
        return found

    def _subscripted(self, node: Any) -> Any:
        index = named(node.child_by_field_name("indices"))
        if len(index) != 1:
            raise self.refuse(node, "an index of several parts", "write one index")
        of = node.child_by_field_name("argument")
        base = self.target(of) if self.is_place(of) else self.expression(of)
        if isinstance(base, (Var, Cell)) and isinstance(base.type, Aggregate) and not base.type.array:
            return self.operator(node, "operator[]", base, index)
        at = self.scalar(index[0])
        if isinstance(base, Cell):
            which = "0" if self.kind_alone else str(at.const)
            if not isinstance(base.type, Aggregate) or base.type.of(which) is None:
                raise self.unrollable(node, f"the index of {text_of(of)} is not known when deriving")
            return self.part(node, base, (which,), base.type.of(which))  # type: ignore[arg-type]
        return self.cell(node, self.read(node, base) if isinstance(base, Var) else base, (at,))

    def pointee(self, node: Any, pointer: Any) -> Any:
        """What a pointer points to."""
        if pointer.type == "this":
            var = self.lookup("this")
            if var is None:
                raise self.refuse(node, "this outside of a method", "use a variable")
            return var.value
        found = self.expression(pointer)
        return found if isinstance(found, Var) and isinstance(found.type, Aggregate) else self.cell(node, found, ())

    def field(self, node: Any) -> Any:
        name, of = text_of(node.child_by_field_name("field")), node.child_by_field_name("argument")
        arrow = text_of(node.child_by_field_name("operator")) == "->"
        found = self.pointee(node, of) if arrow else self.target(of)
        if isinstance(found, Var) and name in found.fields:
            return found.fields[name]
        if isinstance(found, Cell) and isinstance(found.type, Aggregate) and found.type.of(name) is not None:
            return self.part(node, found, (name,), found.type.of(name))  # type: ignore[arg-type]
        known = getattr(found, "type", None)
        within = f" in {known.name}" if isinstance(known, Aggregate) else ""
        raise self.refuse(
            node, f"{text_of(node)!r} has no field {name} that is known{within}", "use fields of structs and vectors"
        )

    def cell(self, node: Any, base: Any, index: tuple[Value, ...]) -> Any:
        if isinstance(base, Local):
            return self.element(node, base, index)
        if isinstance(base, Var) and base.fields and index and base.type is None:
            if index[0].const is None or str(index[0].const) not in base.fields:
                if self.kind_alone:
                    return base.fields["0"]
                raise self.unrollable(node, f"the index of the local array {base.name} is not known when deriving")
            return base.fields[str(index[0].const)]
        if not isinstance(base, Pointer):
            raise self.refuse(node, f"{text_of(node)!r} indexes what is no array", "index a pointer or array")
        array = base.array
        if any(types.is_float(i.type) for i in index):
            raise self.refuse(node, "an index that is no integer", "convert it first")
        if array.raw or base.unit:
            raise self.refuse(node, f"{array.name} is of bytes", "cast it to a pointer to what it holds")
        if array.shared and not array.sizes:  # the address of a variable
            if base.offset is not None or (index and index[0].const != 0):
                raise self.refuse(node, f"{text_of(node)!r} is outside of {array.name}", "use the variable itself")
            return Cell(Place(array), (), base.type)
        rows = max(len(array.sizes) - 1, 0)
        if len(base.inner) < rows:
            if not index:
                raise self.refuse(node, f"{text_of(node)!r} is a row", "index an element")
            return replace(base, offset=None, inner=(*base.inner, *index))
        last = index[0] if index else None
        if base.view is not None and last is not None:
            last = self.binary(node, "*", last, self.integer(node, types.count(base.view)))
        if base.offset is not None:
            last = base.offset if last is None or last.const == 0 else self.binary(node, "+", base.offset, last)
        even = base.view and (base.offset is None or self.quotient(node, base.offset, types.count(base.view)))
        even = even and base.view in types.VECTORS.values()
        self.views.setdefault(array.name, set()).add(base.view if even else None)
        full = (*base.inner, self.integer(node, 0) if last is None else last)
        return Cell(Place(array), full, base.type, base.view is not None, base.volatile)

    def into(self, element: Var) -> Any:
        """A pointer to an element of a local array, or to a number in an object of such alone."""
        for scope in reversed(self.scopes):
            for var in scope.values():
                leaves = var.leaves()
                alike = var.type is None or len({v.type for v in leaves}) == 1
                if var.fields and alike and element in leaves:
                    return Local(tuple(leaves), leaves.index(element))
        return element

    def element(self, node: Any, base: Local, index: tuple[Value, ...]) -> Var:
        """What a pointer into local variables points to; a vector of them has them for its fields."""
        at = index[0].const if index else 0
        if self.kind_alone:
            base, at = replace(base, at=0), 0
        if at is None:
            raise self.unrollable(node, "the index into a local array is not known when deriving")
        width = 1 if base.view is None else types.count(base.view)
        found = base.leaves[base.at + at * width : base.at + (at + 1) * width]
        if at < 0 or len(found) != width:
            raise self.refuse(node, f"{text_of(node)!r} is outside of the local array", "index an element of it")
        if base.view is None:
            return found[0]
        return self.overlaid(found[0].name, base.view, iter(found))

    def overlaid(self, name: str, kind: Aggregate, leaves: Iterator[Var]) -> Var:
        """A variable of an aggregate whose numbers are variables at hand."""
        fields = {
            n: self.overlaid(f"{name}_{n}", inner, leaves) if isinstance(inner, Aggregate) else next(leaves)
            for n, inner in kind.fields
        }
        return Var(name, None if kind.array else kind, fields=fields)

    def part(self, node: Any, cell: Cell, path: tuple[str, ...], kind: Type) -> Cell:
        """A field of a vector or struct in memory."""
        if not cell.view:
            return Cell(Place(cell.place.array, (*cell.place.fields, *path)), cell.index, kind)
        at, inner = 0, cell.type
        for step in path:
            fields = inner.fields  # type: ignore[union-attr]
            place = [name for name, _ in fields].index(step)
            at, inner = at + sum(types.count(t) for _, t in fields[:place]), fields[place][1]
        last = cell.index[-1] if at == 0 else self.binary(node, "+", cell.index[-1], self.integer(node, at))
        return Cell(cell.place, (*cell.index[:-1], last), kind, isinstance(kind, Aggregate))

    def unrollable(self, node: Any, reason: str, way_out: str = "") -> Exception:
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

    def test(self, node: Any) -> Value:
        raise NotImplementedError

    # Of `Overloads`, `Structs` and `Calls`.
    def is_place(self, node: Any) -> bool:
        """Whether an expression is rooted in a variable of the kernel."""
        raise NotImplementedError

    def operator(self, node: Any, name: str, found: Any, arguments: list[Any]) -> Any:
        """What an operator that is a method gives."""
        raise NotImplementedError

    def call(self, node: Any) -> Any:
        raise NotImplementedError
