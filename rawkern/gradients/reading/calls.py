"""Calls and assignments of a kernel."""

from __future__ import annotations

from typing import Any

from rawkern.gradients import types
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.expressions import FULL, SHUFFLES
from rawkern.gradients.reading.philox import Philox
from rawkern.gradients.reading.places import Callee, Cell, Pointer, Var
from rawkern.gradients.reading.syntax import TYPES, named, text_of
from rawkern.gradients.reading.views import CASTS
from rawkern.gradients.rules import BOTH, rule_of
from rawkern.gradients.types import Aggregate

LOADS = ("__ldg", "__ldca", "__ldcs", "__ldcg", "__ldlu", "__ldcv")
STORES = ("__stwb", "__stcg", "__stcs", "__stwt")


class Calls(Philox):
    """Calls and assignments."""

    # Assignments --------------------------------------------------------------------------------------------------

    def on_assignment_expression(self, node: Any) -> Any:
        sign = text_of(node.child_by_field_name("operator"))
        left = node.child_by_field_name("left")
        if sign != "=" and f"operator{sign}" in self.file.functions and isinstance(self.kind(left), Aggregate):
            return self.inline(node, f"operator{sign}", [left, node.child_by_field_name("right")], [])
        found = self.target(left)
        right = self.expression(node.child_by_field_name("right"))
        return self._set(node, found, right, sign[:-1])

    def on_update_expression(self, node: Any) -> Any:
        found = self.target(node.child_by_field_name("argument"))
        sign = text_of(node.child_by_field_name("operator"))[0]
        before = self.read(node, found) if not isinstance(found, Cell) else None
        after = self._set(node, found, self.integer(node, 1), sign)
        prefix = node.children[0].type in ("++", "--")
        return after if prefix else before

    def _set(self, node: Any, found: Any, right: Any, sign: str) -> Any:
        """Assign, or with an operator compute from what is there; returns the new value."""
        if isinstance(found, Cell) and not found.place.array.shared and sign in ("+", "-"):
            value = self._number(node, right)
            if not isinstance(found.type, str):
                raise self.refuse(node, "this sum of structs", "add its fields one by one")
            value = self.converted(node, value, found.type)
            if sign == "-":
                value = self.value(node, found.type, "unary", (value,), "-")
            self.write(node, found, value, "plain")
            return None
        if sign:
            left = self.read(node, found)
            if isinstance(left, Pointer) and sign in ("+", "-"):
                right = self.moved(node, left, self._number(node, right), sign)
            else:
                right = self.binary(node, sign, self._number(node, left), self._number(node, right))
        if isinstance(found, Pointer):
            raise self.refuse(node, f"{text_of(node)!r} assigns to an array", "assign to an element")
        return self.assign(node, found, right)

    def _number(self, node: Any, value: Any) -> Value:
        if not isinstance(value, Value):
            raise self.refuse(node, f"{text_of(node)!r} computes with what is no number", "use numbers")
        return value

    def assign(self, node: Any, found: Any, right: Any) -> Any:
        """Give a variable or a place in memory its value; an aggregate field by field."""
        if isinstance(found, Cell) and isinstance(found.type, Aggregate):
            if not isinstance(right, Var) or right.type != found.type:
                raise self.refuse(node, f"{text_of(node)!r} assigns another type", "assign a value of the same type")
            for path, leaf in _paths(right):
                self.write(node, self.part(node, found, path, leaf.type), self.read(node, leaf))  # type: ignore[arg-type]
            return right
        if isinstance(found, Var) and found.fields:
            if not isinstance(right, Var) or found.type is None or right.type != found.type:
                raise self.refuse(node, f"{text_of(node)!r} assigns another type", "assign a value of the same type")
            for (_, leaf), (_, value) in zip(_paths(found), _paths(right), strict=True):
                leaf.value = value.value
            return found
        if isinstance(right, Pointer) and isinstance(found, Var) and isinstance(found.value, Pointer):
            found.value = right
            return right
        value = self._number(node, right)
        kind = found.type
        if not isinstance(kind, str):
            raise self.refuse(
                node, f"{text_of(node)!r} assigns a number to what is none", "assign an element or a field"
            )
        value = self.converted(node, value, kind)
        if isinstance(found, Cell):
            self.write(node, found, value)
            return value
        if value.name is None and value.op not in ("const", "param", "special"):
            value.name = found.name
        found.value = value
        return value

    # Calls --------------------------------------------------------------------------------------------------------

    def on_call_expression(self, node: Any) -> Any:
        found = self.call(node)
        if found is None:
            raise self.refuse(node, f"the value of {text_of(node)!r}", "don't use it")
        return found

    def call(self, node: Any) -> Any:
        """What a call returns; None for one that returns nothing."""
        callee, arguments = node.child_by_field_name("function"), named(node.child_by_field_name("arguments"))
        if callee.type in TYPES and len(arguments) == 1:
            return self.cast(node, callee, arguments[0])
        found = self.group_call(node, callee, arguments) or self.curand_call(node, text_of(callee), arguments)
        if found is not None:
            return found[0]
        inner = named(callee)[0] if callee.type == "parenthesized_expression" else None
        if inner is not None and len(arguments) == 1 and self.is_type(inner):  # (T) (x), which reads as a call
            return self.cast(node, inner, arguments[0])
        given: list[Any] = []
        if callee.type == "template_function":
            given = named(callee.child_by_field_name("arguments"))
            callee = callee.child_by_field_name("name")
            if text_of(callee) in CASTS and len(given) == 1 and len(arguments) == 1:
                return self.cast(node, given[0], arguments[0])
        name = text_of(callee).removeprefix("std::").removeprefix("::")
        if callee.type == "qualified_identifier" and name not in self.file.functions and rule_of(name) is not None:
            return self._own(node, name, arguments)
        name = text_of(callee)
        if callee.type != "identifier" or name in self.file.unclear:
            raise self.refuse(node, f"the call of {name}", "write it as a __device__ function here")
        variable = self.lookup(name)
        if variable is not None and isinstance(variable.value, Callee):
            return self.inline(node, variable.value.name, arguments, variable.value.given)
        if variable is not None:
            raise self.refuse(node, f"the call of the variable {name}", "write a __device__ function")
        if name in self.file.functions:
            return self.inline(node, name, arguments, given)
        if name in self.type_names and len(arguments) == 1:
            return self.converted(node, self.scalar(arguments[0]), self.scalar_type(callee))
        if given:
            raise self.refuse(node, f"the call of {text_of(node)!r}", "write it as a __device__ function here")
        return self._own(node, name, arguments)

    def _own(self, node: Any, name: str, arguments: list[Any]) -> Any:
        """CUDA's own functions."""
        if name in ("__syncthreads", "__syncwarp") and not arguments:
            self.barrier(node, f"{name}()")
            return None
        if name in ("__threadfence", "__threadfence_block") and not arguments:
            self.stored = {}
            return None
        if name in ("assert", "printf"):  # which a gradient does not see
            for each in arguments:
                if each.type not in ("string_literal", "concatenated_string"):
                    self.scalar(each)
            return None
        if name == "atomicAdd" and len(arguments) == 2:
            cell = self.cell(node, self.expression(arguments[0]), ())
            value = self.converted(node, self.scalar(arguments[1]), cell.type)
            self.write(node, cell, value, "atomic")
            return None
        if name in LOADS and len(arguments) == 1:
            return self.read(node, self.cell(node, self.expression(arguments[0]), ()))
        if name in STORES and len(arguments) == 2:
            self.assign(node, self.cell(node, self.expression(arguments[0]), ()), self.expression(arguments[1]))
            return None
        if name in BOTH and len(arguments) == 3:
            value = self.scalar(arguments[0])
            for of, each in zip(BOTH[name], arguments[1:], strict=True):
                self.assign(node, self._pointed(each), self.math(node, of, [value]))
            return None
        if name in SHUFFLES and len(arguments) in (3, 4):
            return self._shuffle(node, name, arguments)
        if name.startswith("make_") and name[5:] in types.VECTORS:
            kind = types.VECTORS[name[5:]]
            values = [self.scalar(a) for a in arguments]
            if len(values) != len(kind.fields):
                raise self.refuse(node, f"{name} takes {len(kind.fields)} numbers", "give them all")
            left = iter(values)
            return self.aggregate(name[5:], kind, lambda _, inner: self.converted(node, next(left), inner))
        given = [self.expression(a) for a in arguments]
        found = self.half_call(node, name, given)
        if found is not None:
            return found
        found = self.math(node, name, [self.number(n, v) for n, v in zip(arguments, given, strict=True)])
        if found is None:
            raise self.refuse(node, f"{name} has no known derivative", "write it as a __device__ function here")
        return found

    def _pointed(self, node: Any) -> Any:
        """What a function writes to that is given a pointer."""
        if node.type == "pointer_expression" and text_of(node.child_by_field_name("operator")) == "&":
            return self.target(node.child_by_field_name("argument"))
        return self.cell(node, self.as_pointer(self.expression(node)), ())

    def _shuffle(self, node: Any, name: str, arguments: list[Any]) -> Value:
        mask = self.scalar(arguments[0])
        full = mask.const in (-1, 0xFFFFFFFF) or FULL.fullmatch(text_of(arguments[0])) is not None
        width = self.scalar(arguments[3]).const if len(arguments) == 4 else 32
        if not full or width != 32:
            raise self.refuse(
                node, f"{name} with a mask or width that is not that of a whole warp", "use 0xffffffff, 32 lanes"
            )
        value, by = self.scalar(arguments[1]), self.scalar(arguments[2])
        if SHUFFLES[name] == "idx" and by.const is None:
            raise self.refuse(node, f"{name} from a lane that is not constant", "take a constant lane")
        if by.const is not None and not 0 <= by.const < 32:
            raise self.refuse(node, f"{name} by {by.const}", "use 0 to 31")
        by = self.converted(node, by, "int")
        return self.value(node, value.type, "shfl", (value, by), SHUFFLES[name])


def _paths(var: Var, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Var]]:
    if not var.fields:
        return [(path, var)]
    return [each for name, inner in var.fields.items() for each in _paths(inner, (*path, name))]
