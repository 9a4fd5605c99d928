"""Templates: what their parameters are in an instance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.expressions import Expressions
from rawkern.gradients.reading.places import Callee, Maker, Var
from rawkern.gradients.reading.syntax import TYPES, identifier
from rawkern.gradients.types import Type


class Templates(Expressions):
    """Templates of functions and structs."""

    type_names: dict[str, Any]  # types, and templates of them, by the names that functions and templates give them

    def bound(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments of a template: types, numbers, functions, templates of structs."""
        return [self._argument_of(node) for node in arguments]

    def _argument_of(self, node: Any) -> Any:
        text = text_of(node).strip()
        base = text.partition("<")[0].strip()
        inner = node.child_by_field_name("type") if node.type == "type_descriptor" else node
        var = self.lookup(text)
        if var is not None and isinstance(var.value, Callee):
            return var.value
        if var is not None and isinstance(var.value, Value) and var.value.const is not None:
            return var.value.const
        name = self.file.plain(base) if "::" in base else base
        if name is not None and name in self.file.functions and name not in self.file.unclear:
            given = text[len(base) :].strip()[1:-1]
            return Callee(name, tuple(self.bound(self._listed(given))) if given else ())
        maker = self.type_names.get(text) or (Maker(text) if self._is_template(text) else None)
        if isinstance(maker, Maker):
            return maker
        if node.type == "type_descriptor" and (inner.type != "type_identifier" or self.known_type(text)):
            return self.type_of(node)
        if inner.type in (*TYPES, "template_type") and self.known_type(base):
            return self.type_of(inner)
        made = self.scalar(parse(f"int x = {text};").children[0].child_by_field_name("declarator").named_children[-1])
        if made.const is None:
            raise self.refuse(node, f"the template argument {text}", "use types and whole numbers")
        return made.const

    def _listed(self, text: str) -> list[Any]:
        found = parse(f"x<{text}> y;").children[0].child_by_field_name("type")
        return named(found.child_by_field_name("arguments"))

    def template_arguments(self, text: str) -> list[Any]:
        """The arguments of a template that a text names, as ``float, 4``."""
        return self.bound(self._listed(text)) if text.strip() else []

    def _is_template(self, name: str) -> bool:
        return name not in self.file.unclear and self.file.structs.get(name, (None, None))[1] is not None

    def bind(self, definition: Any, template: Any, arguments: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Var]]:
        """What a template's parameters are in an instance: types, and numbers and functions."""
        params, given = named(template) if template is not None else [], list(arguments)
        names: dict[str, Any] = {}
        numbers: dict[str, Var] = {}
        if len(given) > len(params):
            raise self.refuse(
                definition, f"{len(params)} template parameters and {len(given)} arguments", "give one for each"
            )
        for k, param in enumerate(params):
            value = given[k] if k < len(given) else self._by_default(definition, param, names, numbers)
            if "type_parameter" in param.type or "template_template" in param.type:
                if isinstance(value, int | Callee):
                    raise self.refuse(definition, f"{value} for {text_of(param)}", "give a type")
                names[template_name(param)] = value
                continue
            if isinstance(value, Callee):
                numbers[template_name(param)] = Var(template_name(param), None, value)
            elif isinstance(value, int) and param.type.endswith("parameter_declaration"):
                kind = self.within_template(
                    names, numbers, lambda p=param: self.scalar_type(p.child_by_field_name("type"))
                )
                text = ("false", "true")[value] if kind == "bool" and value in (0, 1) else str(value)
                made = self.value(definition, kind, "const", attr=text, const=value)
                numbers[template_name(param)] = Var(template_name(param), kind, made)
            else:
                raise self.refuse(definition, f"the template argument {value}", "use types and whole numbers")
        return names, numbers

    def _by_default(self, definition: Any, param: Any, names: dict[str, Any], numbers: dict[str, Var]) -> Any:
        found = param.child_by_field_name("default_value") or param.child_by_field_name("default_type")
        if found is None:
            raise self.refuse(
                definition, f"the template argument {template_name(param)} is not given", "name it in angle brackets"
            )
        return self.within_template(names, numbers, lambda: self._argument_of(found))

    def within_template(self, names: dict[str, Any], numbers: dict[str, Var], make: Any) -> Any:
        """Call with the names of a template, and those of the file's top."""
        before, scopes = self.type_names, self.scopes
        self.type_names, self.scopes = {**before, **names}, [self.scopes[0], numbers]
        try:
            return make()
        finally:
            self.type_names, self.scopes = before, scopes

    # Of `Kinds`.
    def type_of(self, node: Any) -> Type:
        """The type that a node of the tree names."""
        raise NotImplementedError

    def scalar_type(self, node: Any) -> str:
        raise NotImplementedError

    def known_type(self, name: str) -> bool:
        """Whether a name is that of a type."""
        raise NotImplementedError


def template_name(param: Any) -> str:
    """The name of a template's parameter."""
    found = [c for c in named(param) if c.type in ("type_identifier", "type_parameter_declaration")]
    if "type_parameter" in param.type or "template_template" in param.type:
        last = found[0] if "type_parameter" in param.type and "template_template" not in param.type else found[-1]
        return text_of(named(last)[0] if last.type == "type_parameter_declaration" else last) if last else ""
    return identifier(param.child_by_field_name("declarator")) or ""
