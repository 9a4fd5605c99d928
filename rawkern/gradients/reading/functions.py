"""Device functions of the source, put in where they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.gradients.ir import Block, Value
from rawkern.gradients.reading.expressions import Expressions
from rawkern.gradients.reading.places import Callee, Local, Marker, Pointer, Var
from rawkern.gradients.reading.syntax import identifier, named, parameters_of, text_of, words
from rawkern.gradients.types import Aggregate, Type

DEEPEST = 32  # functions that call one another


class Functions(Expressions):
    """Calls of the source's own functions and operators."""

    callers: list[list[dict[str, Var]]]
    called: list[str]  # the functions that are being put in
    returned: Var | None
    breaking: list[Var | None]
    type_names: dict[str, Type]

    def inline(self, node: Any, name: str, arguments: list[Any], given: Sequence[Any]) -> Any:
        """The body of a device function, in place of its call."""
        definition, template = self._chosen(node, name, arguments)
        params = parameters_of(definition)
        given_here, arguments = len(arguments), [*arguments, *defaults(params)[len(arguments) :]]
        if len(params) != len(arguments) or definition.has_error:
            raise self.refuse(node, f"the call of {name} with {len(arguments)} arguments", "pass every argument")
        if len(self.callers) >= DEEPEST:
            raise self.refuse(node, f"{name} calls itself", "write a loop")
        values = [self._argument(p, a) for p, a in zip(params, arguments[:given_here], strict=False)]
        values += [self.within_top(lambda a=a: self.expression(a)) for a in arguments[given_here:]]
        types_before, returned_before = self.type_names, self.returned
        self.type_names = dict(self.type_names) if template is not None else {}
        self.callers.append(self.scopes)
        breaking, self.breaking = self.breaking, []
        self.called.append(f"{name} at {definition.start_byte}")
        self.scopes = [self.scopes[0], {}]
        if template is not None:
            instance = self._deduced(node, template, params, values[:given_here], given)
            bound = self.bind_template(definition, template, instance)
            self.called[-1] += f" of {bound}"  # which has shared arrays of its own
        for param, value in zip(params, values, strict=True):
            self._bind(node, param, value)
        kind_node = definition.child_by_field_name("type")
        kind = None if text_of(kind_node) == "void" else self.type_of(kind_node)
        self.returned = None if kind is None else self.fresh(f"{name}_", kind)
        self.scopes.append({})
        self.sequence(named(definition.child_by_field_name("body")), lambda: None)
        result = self.returned
        self.scopes, self.breaking = self.callers.pop(), breaking
        self.called.pop()
        self.type_names, self.returned = types_before, returned_before
        if result is None:
            return None
        return result if result.fields else self.read(node, result)

    def _chosen(self, node: Any, name: str, arguments: list[Any]) -> tuple[Any, Any]:
        """A function with its template parameters: of several the one for so many arguments, or of these types."""
        found = self.file.functions[name]
        fitting = []
        for each in found:
            params = parameters_of(each[0])
            fitting += [each] if least(params) <= len(arguments) <= len(params) else []
        if len(found) == 1 or len(fitting) == 1:
            return found[0] if len(found) == 1 else fitting[0]
        kinds = [self.kind(a) for a in arguments]
        exact = [
            each
            for each in fitting
            if each[1] is None and [self._takes(p) for p in parameters_of(each[0])[: len(kinds)]] == kinds
        ]
        if len(exact) != 1:
            raise self.refuse(
                node, f"{name} has several overloads, and none for just these types", "convert the arguments to those"
            )
        return exact[0]

    def _takes(self, param: Any) -> Any:
        declarator = param.child_by_field_name("declarator")
        kind = self.type_of(param.child_by_field_name("type"))
        pointer = declarator is not None and declarator.type in ("pointer_declarator", "array_declarator")
        return ("*", kind) if pointer else kind

    def kind(self, node: Any) -> Any:
        """The type of an expression, which is read for that alone."""
        leaves, block = self.leaves(), self.block
        before = [v.value for v in leaves]
        self.block = Block(parent=block.parent)
        try:
            found = self.expression(node)
        finally:
            self.block = block
            for leaf, value in zip(leaves, before, strict=True):
                leaf.value = value
        return ("*", found.type) if isinstance(found, Pointer) else getattr(found, "type", None)

    def operated(self, node: Any, sign: str, arguments: list[Any]) -> Any:
        """What an operator of the source's own returns; None where it is none."""
        name = f"operator{sign}"
        if name not in self.file.functions or not any(isinstance(self.kind(a), Aggregate) for a in arguments):
            return None
        return self.inline(node, name, arguments, [])

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
        team = value.value if isinstance(value, Var) else value
        if isinstance(team, Marker):
            self.scopes[-1][name] = Var(name, None, team)
            return
        if words(param) - {"const", "__restrict__", "="}:
            raise self.refuse(param, f"the parameter {text_of(param)!r}", "use numbers, pointers and references")
        if isinstance(value, Pointer | Local) and declarator.type in ("pointer_declarator", "array_declarator"):
            kind = self.type_of(param.child_by_field_name("type"))
            if (value.type if isinstance(value, Pointer) else value.view or value.leaves[0].type) != kind:
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

    def _deduced(
        self, node: Any, template: Any, params: list[Any], values: list[Any], given: Sequence[Any]
    ) -> list[str]:
        """The arguments of a function template, as texts: those given, and types that the call's arguments have."""
        found = [g if isinstance(g, str) else text_of(g) for g in given]
        for each in named(template)[len(found) :]:
            name = text_of(named(each)[0]) if each.type == "type_parameter_declaration" else None
            kinds = {
                v.type for p, v in zip(params, values, strict=False)
                if isinstance(v, Value) and text_of(p.child_by_field_name("type")) == name
            }  # fmt: skip
            if len(kinds) != 1:
                raise self.refuse(node, "template arguments that are not given", "name them in angle brackets")
            found.append(kinds.pop())
        return found

    def _callee(self, text: str) -> Callee | None:
        """The function that the argument of a template names."""
        base, _, rest = text.partition("<")
        known = next((s[text] for c in self.callers[-1:] for s in reversed(c) if text in s), None)
        if known is not None and isinstance(known.value, Callee):
            return known.value
        if base.strip() not in self.file.functions or base.strip() in self.file.unclear:
            return None
        given = [a.strip() for a in rest.rpartition(">")[0].split(",")] if rest else []
        return Callee(base.strip(), tuple(str(self.type_names.get(a, a)) for a in given))

    def bind_template(self, definition: Any, template: Any, arguments: Sequence[str]) -> list[Any]:
        """Give a template's parameters what an instance has for them, and return that."""
        bound: list[Any] = []
        params = named(template) if template is not None else []
        if len(params) != len(arguments):
            raise self.refuse(
                definition, f"{len(params)} template parameters and {len(arguments)} arguments", "name each"
            )
        for param, text in zip(params, arguments, strict=True):
            if param.type == "type_parameter_declaration":
                bound.append(self.type_named(definition, text))
                self.type_names[text_of(named(param)[0])] = bound[-1]
                continue
            name = identifier(param.child_by_field_name("declarator"))
            callee = self._callee(text)
            if callee is not None and name is not None:
                self.scopes[-1][name] = Var(name, None, callee)
                bound.append(callee)
                continue
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
            bound.append(value)
        return bound

    def leave(self, node: Any) -> None:
        given = named(node)
        if bool(given) != (self.returned is not None):
            raise self.refuse(node, f"{text_of(node)!r}", "return what the function declares")
        if given:
            self.assign(node, self.returned, self.expression(given[0]))

    # Of `Declarations`, `Calls` and `Lowering`.
    def type_named(self, node: Any, text: str) -> Type:
        raise NotImplementedError

    def type_of(self, node: Any) -> Type:
        raise NotImplementedError

    def fresh(self, name: str, kind: Type) -> Var:
        raise NotImplementedError

    def assign(self, node: Any, found: Any, right: Any) -> Any:
        raise NotImplementedError

    def sequence(self, nodes: Sequence[Any], then: Any) -> None:
        raise NotImplementedError


def defaults(params: Sequence[Any]) -> list[Any]:
    """The default of each parameter, as far as they have one."""
    found = [p.child_by_field_name("default_value") for p in params]
    return [] if None in found[least(params) :] else found


def least(params: Sequence[Any]) -> int:
    """How many arguments have to be given."""
    return sum(p.type != "optional_parameter_declaration" for p in params)
