"""Calls, assignments and casts of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.expressions import FULL, SHUFFLES, Expressions
from rawkern.gradients.ir import Barrier, Value
from rawkern.gradients.places import Cell, Pointer, Var
from rawkern.gradients.syntax import TYPES, identifier, named, parameters_of, text_of, words
from rawkern.gradients.types import Aggregate, Type

DEEPEST = 32  # functions that call one another
_CASTS = ("static_cast", "reinterpret_cast", "const_cast")


class Calls(Expressions):
    """Calls of device functions and of CUDA's own, assignments, casts."""

    callers: list[list[dict[str, Var]]]
    returned: Var | None
    type_names: dict[str, Type]

    # Assignments --------------------------------------------------------------------------------------------------

    def on_assignment_expression(self, node: Any) -> Any:
        sign = text_of(node.child_by_field_name("operator"))
        found = self.target(node.child_by_field_name("left"))
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
                place = type(found.place)(found.place.array, (*found.place.fields, *path))
                self.write(node, Cell(place, found.index, leaf.type), self.read(node, leaf))  # type: ignore[arg-type]
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

    # Casts --------------------------------------------------------------------------------------------------------

    def on_cast_expression(self, node: Any) -> Any:
        return self._cast(node, node.child_by_field_name("type"), node.child_by_field_name("value"))

    def _cast(self, node: Any, kind: Any, value: Any) -> Any:
        if kind.type == "type_descriptor":
            if kind.child_by_field_name("declarator") is not None:
                raise self.refuse(node, f"the cast of a pointer {text_of(node)!r}", "use the array as it is")
            kind = kind.child_by_field_name("type")
        return self.converted(node, self.scalar(value), self.scalar_type(kind))

    def scalar_type(self, node: Any) -> str:
        raise NotImplementedError

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
            return self._cast(node, callee, arguments[0])
        given: list[Any] = []
        if callee.type == "template_function":
            given = named(callee.child_by_field_name("arguments"))
            callee = callee.child_by_field_name("name")
            if text_of(callee) == "static_cast" and len(given) == 1 and len(arguments) == 1:
                return self._cast(node, given[0], arguments[0])
            if text_of(callee) in _CASTS:
                raise self.refuse(node, f"the cast {text_of(node)!r}", "use the array as it is")
        name = text_of(callee)
        if callee.type != "identifier" or name in self.file.unclear:
            raise self.refuse(node, f"the call of {name}", "write it as a __device__ function here")
        if self.lookup(name) is not None:
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
            self.block.items.append(Barrier(node.start_point[0] + 1, self.block, text=f"{name}()"))
            return None
        if name in ("__threadfence", "__threadfence_block") and not arguments:
            return None
        if name == "atomicAdd" and len(arguments) == 2:
            cell = self.cell(node, self.expression(arguments[0]), ())
            value = self.converted(node, self.scalar(arguments[1]), cell.type)
            self.write(node, cell, value, "atomic")
            return None
        if name == "__ldg" and len(arguments) == 1:
            return self.read(node, self.cell(node, self.expression(arguments[0]), ()))
        if name in SHUFFLES and len(arguments) in (3, 4):
            return self._shuffle(node, name, arguments)
        if name.startswith("make_") and name[5:] in types.VECTORS:
            kind = types.VECTORS[name[5:]]
            values = [self.scalar(a) for a in arguments]
            if len(values) != len(kind.fields):
                raise self.refuse(node, f"{name} takes {len(kind.fields)} numbers", "give them all")
            left = iter(values)
            return self.aggregate(name[5:], kind, lambda _, inner: self.converted(node, next(left), inner))
        found = self.math(node, name, [self.scalar(a) for a in arguments])
        if found is None:
            raise self.refuse(node, f"{name} has no known derivative", "write it as a __device__ function here")
        return found

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

    # Device functions ---------------------------------------------------------------------------------------------

    def inline(self, node: Any, name: str, arguments: list[Any], given: list[Any]) -> Any:
        """The body of a device function, in place of its call."""
        found = self.file.functions[name]
        if len(found) > 1:
            raise self.refuse(node, f"{name} has several overloads", "give each a name of its own")
        definition, template = found[0]
        params = parameters_of(definition)
        if len(params) != len(arguments) or definition.has_error:
            raise self.refuse(node, f"the call of {name} with {len(arguments)} arguments", "pass every argument")
        if len(self.callers) >= DEEPEST:
            raise self.refuse(node, f"{name} calls itself", "write a loop")
        values = [self._argument(p, a) for p, a in zip(params, arguments, strict=True)]
        types_before, returned_before = self.type_names, self.returned
        self.type_names = dict(self.type_names) if template is not None else {}
        self.callers.append(self.scopes)
        self.scopes = [self.scopes[0], {}]
        if template is not None:
            self.bind_template(definition, template, self._deduced(node, template, params, values, given))
        for param, value in zip(params, values, strict=True):
            self._bind(node, param, value)
        kind_node = definition.child_by_field_name("type")
        kind = None if text_of(kind_node) == "void" else self.type_of(kind_node)
        self.returned = None if kind is None else self.fresh(f"{name}_", kind)
        self.scopes.append({})
        self.sequence(named(definition.child_by_field_name("body")), lambda: None)
        result = self.returned
        self.scopes = self.callers.pop()
        self.type_names, self.returned = types_before, returned_before
        if result is None:
            return None
        return result if result.fields else self.read(node, result)

    def _argument(self, param: Any, node: Any) -> Any:
        declarator = param.child_by_field_name("declarator")
        if declarator is not None and declarator.type == "reference_declarator" and "const" not in words(param):
            found = self.target(node)
            if not isinstance(found, Var):
                raise self.refuse(node, f"{text_of(node)!r} is passed by reference", "pass a variable")
            return found
        if node.type == "pointer_expression" and text_of(node.child_by_field_name("operator")) == "&":
            inner = self.target(node.child_by_field_name("argument"))
            if isinstance(inner, Var):
                raise self.refuse(node, f"the address {text_of(node)}", "pass the variable by reference")
        return self.expression(node)

    def _bind(self, node: Any, param: Any, value: Any) -> None:
        declarator = param.child_by_field_name("declarator")
        name = identifier(declarator)
        if name is None:
            return
        if words(param) - {"const", "__restrict__"}:
            raise self.refuse(param, f"the parameter {text_of(param)!r}", "use numbers, pointers and references")
        if isinstance(value, Pointer) and declarator.type in ("pointer_declarator", "array_declarator"):
            kind = self.type_of(param.child_by_field_name("type"))
            if value.array.type != kind:
                raise self.refuse(node, f"{name} points to another type", "use the type of the array")
            self.scopes[-1][name] = Var(name, None, value)
        elif isinstance(value, Var) and (value.type is None or declarator.type == "reference_declarator"):
            if declarator.type == "reference_declarator" and value.type != self.type_of(
                param.child_by_field_name("type")
            ):
                raise self.refuse(node, f"{name} refers to another type", "use the type of the variable")
            if declarator.type == "identifier":
                raise self.refuse(node, f"the parameter {name} of an array", "declare a pointer")
            self.scopes[-1][name] = value
        elif declarator.type in ("identifier", "reference_declarator"):
            var = self.fresh(name, self.type_of(param.child_by_field_name("type")))
            self.assign(node, var, value)
            self.scopes[-1][name] = var
        else:
            raise self.refuse(node, f"the parameter {text_of(param)!r}", "use numbers, pointers and references")

    def _deduced(self, node: Any, template: Any, params: list[Any], values: list[Any], given: list[Any]) -> list[str]:
        """The arguments of a function template, as texts: those given, and types that the call's arguments have."""
        found = [text_of(g) for g in given]
        for each in named(template)[len(found) :]:
            name = text_of(named(each)[0]) if each.type == "type_parameter_declaration" else None
            kinds = {
                v.type for p, v in zip(params, values, strict=True)
                if isinstance(v, Value) and text_of(p.child_by_field_name("type")) == name
            }  # fmt: skip
            if len(kinds) != 1:
                raise self.refuse(node, "template arguments that are not given", "name them in angle brackets")
            found.append(kinds.pop())
        return found

    def bind_template(self, definition: Any, template: Any, arguments: Sequence[str]) -> None:
        """Give a template's parameters what an instance has for them."""
        params = named(template) if template is not None else []
        if len(params) != len(arguments):
            raise self.refuse(
                definition, f"{len(params)} template parameters and {len(arguments)} arguments", "name each"
            )
        for param, text in zip(params, arguments, strict=True):
            if param.type == "type_parameter_declaration":
                self.type_names[text_of(named(param)[0])] = self.type_named(definition, text)
                continue
            name = identifier(param.child_by_field_name("declarator"))
            value = {"true": 1, "false": 0}.get(text)
            known = self.scopes[-1].get(text) or next(
                (s[text] for c in self.callers[-1:] for s in reversed(c) if text in s), None
            )
            if value is None and known is not None and known.value is not None:
                value = known.value.const
            if value is None and text.lstrip("-").isdigit():
                value = int(text)
            if value is None or param.type != "parameter_declaration" or name is None:
                raise self.refuse(definition, f"the template argument {text}", "use types and whole numbers")
            kind = self.scalar_type(param.child_by_field_name("type"))
            made = self.value(definition, kind, "const", attr=str(value), const=value)
            self.scopes[-1][name] = Var(name, kind, made)

    def leave(self, node: Any) -> None:
        given = named(node)
        if bool(given) != (self.returned is not None):
            raise self.refuse(node, f"{text_of(node)!r}", "return what the function declares")
        if given:
            self.assign(node, self.returned, self.expression(given[0]))

    def type_named(self, node: Any, text: str) -> Type:
        raise NotImplementedError

    def type_of(self, node: Any) -> Type:
        raise NotImplementedError

    def fresh(self, name: str, kind: Type) -> Var:
        raise NotImplementedError

    def sequence(self, nodes: Sequence[Any], then: Any) -> None:
        raise NotImplementedError


def _paths(var: Var, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Var]]:
    if not var.fields:
        return [(path, var)]
    return [each for name, inner in var.fields.items() for each in _paths(inner, (*path, name))]
