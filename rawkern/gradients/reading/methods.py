"""Operators and methods of the source's structs, and lambdas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients.reading.functions import Functions
from rawkern.gradients.reading.places import Cell, Given, Lambda, Struct, Var
from rawkern.gradients.reading.syntax import contains, words
from rawkern.gradients.types import Aggregate


class Methods(Functions):
    """What belongs to structs."""

    def operated(self, node: Any, sign: str, args: Sequence[Given]) -> tuple[Any] | None:
        """What an operator of the source's own gives, in a tuple; None where there is none."""
        if not any(isinstance(a.type, Aggregate) for a in args):
            return None
        struct, name = self.struct_of(args[0].type), f"operator{sign}"
        found: list[tuple[Struct | None, tuple[Any, Any], Sequence[Given]]] = []
        if struct is not None:
            found += [(struct, f, args[1:]) for f in struct.methods.get(name, [])]
        for own in dict.fromkeys(s for a in args if (s := self.struct_of(a.type)) is not None):
            found += [(own, f, args) for f in own.friends.get(name, [])]
        found += [(None, f, args) for f in self.file.functions.get(name, [])]
        fitting = [(s, f, a) for s, f, a in found if self.named_in(s, lambda f=f, a=a: self.ranks(f, a)) is not None]
        kinds = {(s is None, len(a)) for s, _, a in fitting}
        if len(kinds) > 1:
            raise self.refuse(node, f"{name} is a method and a function for these types", "keep one of them")
        if not fitting:
            return None
        struct, _, given = fitting[0]
        function = self.named_in(struct, lambda: self.chosen(node, name, [f for _, f, _ in fitting], given))
        if len(given) < len(args) and struct is not None:
            return (self.method(node, struct, args[0], name, given, (), function),)
        return (self.put_in(node, name, function, args, (), None if struct is None else (struct, None)),)

    def method(
        self, node: Any, struct: Struct, this: Given | None, name: str, args: Sequence[Given],
        given: Sequence[Any] = (), function: tuple[Any, Any] | None = None,
    ) -> Any:  # fmt: skip
        """What a call of a method gives."""
        function = function or self.named_in(struct, lambda: self.chosen(node, name, struct.methods[name], args))
        assert function is not None
        static = "static" in words(function[0])
        if this is None and not static:
            raise self.refuse(node, f"{name} is called without an object", "call it as a method")
        found = None if static or this is None else this.found
        if found is not None and not isinstance(found, (Var, Cell)):
            raise self.refuse(node, f"{name} of {text_of(this.node)!r}", "give the object a name")  # type: ignore[union-attr]
        return self.put_in(node, name, function, args, given, (struct, found))

    def on_lambda_expression(self, node: Any) -> Lambda:
        """A lambda: what it captures by value keeps its value, the rest is what it is when the lambda is called."""
        captures = node.child_by_field_name("captures")
        default, referred, before = "", {}, ""
        for each in captures.children:
            if each.type == "lambda_default_capture":
                default = text_of(each).strip()
            elif each.type in ("identifier", "this"):
                referred[text_of(each)] = before == "&" or each.type == "this"
            elif each.is_named and each.type != "comment":
                raise self.refuse(each, f"the capture {text_of(each)!r}", "declare a variable and capture it")
            before = text_of(each)
        if contains(node.child_by_field_name("declarator") or captures, ("lambda_specifier", "mutable")):
            raise self.refuse(node, "a lambda that is mutable", "capture by reference")
        scopes = [dict(s) for s in self.scopes]
        for scope in scopes[1:]:
            for name, var in scope.items():
                if not referred.get(name, default == "&") and not isinstance(var.value, Cell):
                    scope[name] = var.copied()
        return Lambda(node, scopes, dict(self.type_names), self.struct)
