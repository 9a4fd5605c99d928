"""Calls and assignments of a kernel."""

from __future__ import annotations

import re
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.philox import Philox
from rawkern.gradients.reading.places import Callee, Cell, Given, Lambda, Maker, Pointer, Var
from rawkern.gradients.reading.syntax import TYPES, instead
from rawkern.gradients.reading.views import CASTS
from rawkern.gradients.rules import BOTH, PAIRS, TESTS, rule_of
from rawkern.gradients.types import Aggregate

LOADS = ("__ldg", "__ldca", "__ldcs", "__ldcg", "__ldlu", "__ldcv")
STORES = ("__stwb", "__stcg", "__stcs", "__stwt")


class Calls(Philox):
    """Calls and assignments."""

    # Assignments --------------------------------------------------------------------------------------------------

    def on_assignment_expression(self, node: Any) -> Any:
        sign = text_of(node.child_by_field_name("operator"))
        left = node.child_by_field_name("left")
        value = node.child_by_field_name("right")
        given: Any = None
        if self.right_first(node, left, value):
            read, found = self.assigned_to(node, lambda: self.expression(value), lambda: self.target(left))
            given = Given(value, read)
        else:
            found = self.target(left)
        kind = None if isinstance(found, Var) and not found.whole else getattr(found, "type", None)
        if isinstance(kind, Aggregate) and (sign != "=" or self._assigns(kind)):
            args = [Given(left, found), given or self.given(value)]
            own = self.operated(node, sign, args)
            if own is not None:
                return own[0]
            if sign == "=":
                made = self.made_of(node, "value", kind, args[1])
                self.assign(node, found, made)
                return found
            raise self.refuse(node, f"{sign} of {kind.name}", "write an operator of it, or its fields one by one")
        if isinstance(kind, Aggregate):
            made = self.made_of(node, "value", kind, given or self.given(value))
            self.assign(node, found, made)
            return found
        if given is not None:
            return self._set(node, found, given.found, sign[:-1])
        right = self.expression(named(value)[0] if value.type == "initializer_list" else value)
        return self._set(node, found, right, sign[:-1])

    def on_update_expression(self, node: Any) -> Any:
        found = self.target(node.child_by_field_name("argument"))
        sign = text_of(node.child_by_field_name("operator"))[0]
        before = self.read(node, found) if not isinstance(found, Cell) else None
        after = self._set(node, found, self.integer(node, 1), sign)
        prefix = node.children[0].type in ("++", "--")
        return after if prefix else before

    def _assigns(self, kind: Aggregate) -> bool:
        """Whether a struct has an assignment of its own."""
        struct = self.struct_of(kind)
        return struct is not None and "operator=" in struct.methods

    def _set(self, node: Any, found: Any, right: Any, sign: str) -> Any:
        """Assign, or with an operator compute from what is there; returns the new value."""
        adds = isinstance(found, Cell) and not found.place.array.shared and sign in ("+", "-")
        if adds and found.place.array.name not in self.updated:
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
        if isinstance(found, Var) and found.whole:
            packed = types.of_packed(right.type, found.type) if isinstance(right, Var) else None
            if packed is not None:
                self.repack(found, packed)
            if not isinstance(right, Var) or found.type is None or right.type != found.type:
                raise self.refuse(node, f"{text_of(node)!r} assigns another type", "assign a value of the same type")
            self.note_variable(found, True)
            for (_, leaf), (_, value) in zip(_paths(found), _paths(right), strict=True):
                leaf.value = value.value
            return found
        if isinstance(right, Pointer) and isinstance(found, Var) and isinstance(found.value, Pointer):
            self.note(found, True)
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
        self.note(found, True)
        found.value = value
        return value

    # Calls --------------------------------------------------------------------------------------------------------

    def on_call_expression(self, node: Any) -> Any:
        found = self.valued(node, self.call(node))
        if found is None:
            raise self.refuse(node, f"the value of {text_of(node)!r}", "don't use it")
        return found

    def call(self, node: Any) -> Any:
        """What a call returns: a place where it is a reference, None for one that returns nothing."""
        callee, arguments = node.child_by_field_name("function"), named(node.child_by_field_name("arguments"))
        if callee.type in TYPES and len(arguments) == 1:
            return self.cast(node, callee, arguments[0])
        found = self.group_call(node, callee, arguments) or self.curand_call(node, text_of(callee), arguments)
        if found is not None:
            return found[0]
        if callee.type in ("call_expression", "compound_literal_expression", "lambda_expression"):
            return self.called_object(node, self.given(callee), arguments)
        inner = named(callee)[0] if callee.type == "parenthesized_expression" else None
        if inner is not None and inner.type == "lambda_expression":
            return self.called_object(node, self.given(inner), arguments)
        if inner is not None and len(arguments) == 1 and self.is_type(inner):  # (T) (x), which reads as a call
            return self.cast(node, inner, arguments[0])
        given: list[Any] = []
        if callee.type == "template_function":
            given = named(callee.child_by_field_name("arguments"))
            if text_of(callee.child_by_field_name("name")) in CASTS and len(given) == 1 and len(arguments) == 1:
                return self.cast(node, given[0], arguments[0])
        return self._named(node, callee, given, arguments)

    def _named(self, node: Any, callee: Any, given: list[Any], arguments: list[Any]) -> Any:
        """A call by a name: of a variable, a method, a type, a function of the source or of CUDA."""
        plain = callee.child_by_field_name("name") if callee.type == "template_function" else callee
        if callee.type == "qualified_identifier":
            return self._qualified_call(node, callee, arguments)
        name = text_of(plain)
        if plain.type != "identifier" or name in self.file.unclear:
            raise self.refuse(node, f"the call of {name}", "write it as a __device__ function here")
        variable = self.lookup(name)
        if variable is not None and isinstance(variable.value, Callee):
            return self.inline(node, variable.value.name, arguments, variable.value.given)
        if variable is not None and not given:
            return self.called_object(node, self.given(plain), arguments)
        if self.struct is not None and name in self.struct.methods and name != self.struct.base:
            this = self.lookup("this")
            object_ = Given(node, this.value) if this is not None else None
            args = self.apart(node, arguments, self.given)
            return self.method(node, self.struct, object_, name, args, self.bound(given))
        kind = self._type_called(plain, name, callee, given)
        if isinstance(kind, Aggregate):
            return self.construct(node, name, kind, arguments, False)
        if isinstance(kind, Lambda):
            raise self.refuse(node, f"the call of {name}", "call the variable")
        if kind is not None and len(arguments) <= 1:
            value = self.scalar(arguments[0]) if arguments else self.integer(node, 0)
            return self.converted(node, value, kind)
        if name in self.file.functions and self._means_own(node, name, arguments):
            return self._or_builtin(node, name, arguments, self.bound(given))
        if given:
            raise self.refuse(node, f"the call of {text_of(node)!r}", "write it as a __device__ function here")
        return self._own(node, name, arguments)

    def _type_called(self, node: Any, name: str, callee: Any, given: list[Any]) -> Any:
        """The type that a call makes an object of; None where it calls a function."""
        if given:
            maker = self.type_names.get(name)
            base = maker.name if isinstance(maker, Maker) else name
            return self.instance(callee, base, self.bound(given)) if base in self.file.structs else None
        if self.struct is not None and name == self.struct.base:
            return self.struct.type
        own = name in self.file.functions or not self.known_type(name)
        return None if own or types.VECTORS.get(name) is not None else self.type_named(node, name)

    def _qualified_call(self, node: Any, callee: Any, arguments: list[Any]) -> Any:
        """A call of a name with its namespace or struct."""
        last = callee
        while last.type == "qualified_identifier":
            scope, last = last.child_by_field_name("scope"), last.child_by_field_name("name")
        given = named(last.child_by_field_name("arguments")) if last.type == "template_function" else []
        name = text_of(last.child_by_field_name("name") if given else last)
        whole = text_of(callee)[: len(text_of(callee)) - len(text_of(last))] + name
        if self.file.plain(whole) is not None and name not in self.file.unclear:
            kind = self._type_called(last, name, last, given)
            if isinstance(kind, Aggregate):
                return self.construct(node, name, kind, arguments, False)
            if name in self.file.functions:
                return self.inline(node, name, arguments, self.bound(given))
        if not arguments and scope is not None and re.match(r"(cuda::)?(std::)?numeric_limits\s*<", whole):
            return self.limit(node, self.bound(named(scope.child_by_field_name("arguments")))[0], name)
        if scope is not None and (scope.type == "template_type" or self.known_type(text_of(scope))):
            struct = self.struct_of(self.scope_type(scope))
            if struct is not None and name in struct.methods:
                args = self.apart(node, arguments, self.given)
                return self.method(node, struct, None, name, args, self.bound(given))
        standard = whole.replace(" ", "") in (f"std::{name}", f"::{name}", f"cuda::std::{name}")
        if standard and not given and self._builtin(name):
            return self._own(node, name, arguments)
        raise self.refuse(node, f"the call of {text_of(callee)}", "write it as a __device__ function here")

    def _means_own(self, node: Any, name: str, arguments: list[Any]) -> bool:
        """Whether a name that stands alone means a function of the source."""
        if self.file.sees(name, self.path) or not self._builtin(name):
            return True
        return any(isinstance(self.kind(a), Aggregate) for a in arguments if a.type != "initializer_list")

    def _builtin(self, name: str) -> bool:
        return rule_of(name) is not None or name in TESTS or name in PAIRS or name in ("min", "max", "abs")

    def _or_builtin(self, node: Any, name: str, arguments: list[Any], given: list[Any]) -> Any:
        """A call of a function of the source, unless CUDA's of that name fits better."""
        args = self.apart(node, arguments, self.given)
        found = self.file.functions[name]
        if not given and self._builtin(name):
            ranked = [r for f in found if (r := self.ranks(f, args)) is not None]
            if not ranked:
                values = [self.number(a.node, self.taken(a)) for a in args]
                computed = self.math(node, name, values)
                if computed is not None:
                    return computed
            if len(ranked) == 1 and any(ranked[0]):
                raise self.refuse(node, f"{name} is also a function of CUDA's", "give yours another name")
        return self.called_own(node, name, args, given)

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
        exchanged = self.warp_call(node, name, arguments)
        if exchanged is not None:
            return exchanged
        if name.startswith("make_") and name[5:] in types.VECTORS:
            kind = types.VECTORS[name[5:]]
            values = self.apart(node, arguments, self.scalar)
            if len(values) != len(kind.fields):
                raise self.refuse(node, f"{name} takes {len(kind.fields)} numbers", "give them all")
            left = iter(values)
            return self.aggregate(name[5:], kind, lambda _, inner: self.converted(node, next(left), inner))
        given = self.apart(node, arguments, self.expression)
        found = self.half_call(node, name, given)
        if found is not None:
            return found
        if self._builtin(name):
            found = self.math(node, name, [self.number(n, v) for n, v in zip(arguments, given, strict=True)])
        if found is None:
            raise self.refuse(node, f"{name} has no known derivative", instead(name))
        return found

    def _pointed(self, node: Any) -> Any:
        """What a function writes to that is given a pointer."""
        if node.type == "pointer_expression" and text_of(node.child_by_field_name("operator")) == "&":
            return self.target(node.child_by_field_name("argument"))
        return self.cell(node, self.as_pointer(self.expression(node)), ())


def _paths(var: Var, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Var]]:
    if not var.fields:
        return [(path, var)]
    return [each for name, inner in var.fields.items() for each in _paths(inner, (*path, name))]
