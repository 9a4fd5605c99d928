"""Which function a call means: arguments read once, overloads ranked as C++ does, templates deduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.reading.kinds import Kinds
from rawkern.gradients.reading.places import Cell, Given, Lambda, Marker, Var
from rawkern.gradients.reading.syntax import BY_HAND, identifier, parameters_of, words
from rawkern.gradients.reading.templates import template_name
from rawkern.gradients.types import Aggregate

#: What a reference may refer to.
PLACES = (
    "identifier", "subscript_expression", "field_expression", "pointer_expression", "parenthesized_expression", "this",
)  # fmt: skip


class Overloads(Kinds):
    """The choice of functions."""

    def given(self, node: Any) -> Given:
        """An argument, read once: as the place that it is, where it is one."""
        if isinstance(node, Given):
            return node
        while node.type == "parenthesized_expression":
            node = named(node)[0]
        if node.type == "initializer_list":
            return Given(node, None)
        if node.type == "call_expression":
            found = self.call(node)
            if found is None:
                raise self.refuse(node, f"the value of {text_of(node)!r}", BY_HAND)
            return Given(node, found)
        if node.type in PLACES and self.is_place(node):
            return Given(node, self.target(node))
        return Given(node, self.expression(node))

    def is_place(self, node: Any) -> bool:
        """Whether an expression is rooted in a variable of the kernel."""
        root = node
        while root.type in PLACES and root.type not in ("identifier", "this"):
            if root.type == "pointer_expression" and text_of(root.child_by_field_name("operator")) == "&":
                return False
            root = root.child_by_field_name("argument") or named(root)[0]
        if root.type == "identifier":
            return self.lookup(text_of(root)) is not None
        return root.type == "this"

    def taken(self, given: Given) -> Any:
        """The value of an argument."""
        return self.read(given.node, given.found) if isinstance(given.found, (Var, Cell)) else given.found

    # Ranks --------------------------------------------------------------------------------------------------------

    def chosen(self, node: Any, name: str, found: Sequence[Any], args: Sequence[Given]) -> tuple[Any, Any]:
        """The function of several that C++ takes for these arguments, where that is certain."""
        if len(found) == 1:
            return found[0]
        ranked = [(each, ranks) for each in found if (ranks := self.ranks(each, args)) is not None]
        if len(ranked) == 1:
            return ranked[0][0]
        best = [
            (each, ranks)
            for each, ranks in ranked
            if all(ranks is r or all(a <= b for a, b in zip(ranks, r, strict=True)) for _, r in ranked)
        ]
        if len(best) > 1 and len({tuple(r) for _, r in best}) == 1:
            plain = [b for b in best if b[0][1] is None] or best
            alike = {
                tuple(map(text_of, (f.child_by_field_name("type"), f.child_by_field_name("body"), *parameters_of(f))))
                for (f, _), _ in plain
            }
            # One of them const.
            best = sorted(plain, key=lambda b: not _refers(b[0][0]))[:1] if len(alike) == 1 else plain
        if len(best) != 1:
            raise self.refuse(
                node, f"{name} has several overloads, and none for just these types", "convert the arguments to those"
            )
        return best[0][0]

    def ranks(self, function: tuple[Any, Any], args: Sequence[Given]) -> list[int] | None:
        """How well a function takes each argument (0: exactly, 1: promoted, 2: converted); None if it does not."""
        params, template = parameters_of(function[0]), function[1]
        if not least(params) <= len(args) <= len(params):
            return None
        names = {template_name(p) for p in named(template)} if template is not None else set()
        found: list[int] = []
        for param, arg in zip(params, args, strict=False):
            rank = self._fit(param, arg, names)
            if rank is None:
                return None
            found.append(rank)
        return found

    def _fit(self, param: Any, arg: Given, names: set[str]) -> int | None:
        node, declarator = param.child_by_field_name("type"), param.child_by_field_name("declarator")
        kind, pointer = arg.type, is_pointer(declarator)
        if isinstance(kind, Marker) or (arg.found is None):
            return 0 if not pointer else None
        if pointer != isinstance(kind, tuple):
            own = isinstance(arg.found, Var) and isinstance(arg.found.type, Aggregate)
            return 0 if pointer and own and self.type_of(node) == kind else None
        if node.type == "placeholder_type_specifier" or text_of(node) in names:
            return 0
        if node.type == "template_type":
            struct = self.struct_of(kind)
            same = struct is not None and struct.base == text_of(node.child_by_field_name("name"))
            return 0 if same else None
        wanted = self.type_of(node)
        kind = kind[1] if isinstance(kind, tuple) else kind
        if wanted == kind:
            return 0
        bound = declarator is not None and "reference" in declarator.type and "const" not in words(param)
        if pointer or bound or not isinstance(wanted, str) or not isinstance(kind, str):
            return None
        return 1 if (kind, wanted) == ("float", "double") or (wanted == types.promoted(kind) != kind) else 2

    # Templates ----------------------------------------------------------------------------------------------------

    def deduced(
        self, node: Any, template: Any, params: Sequence[Any], args: Sequence[Given], given: Sequence[Any]
    ) -> list[Any]:
        """The arguments of a function template: those given, and what the call's arguments tell."""
        found = list(given)
        for each in named(template)[len(found) :]:
            name = template_name(each)
            seen: list[Any] = []
            for param, arg in zip(params, args, strict=False):
                seen += [s for s in self._tells(param, arg, name) if s not in seen]
            if len(seen) > 1 or (not seen and "optional" not in each.type):
                raise self.refuse(node, "template arguments that are not given", "name them in angle brackets")
            if not seen:
                break
            found += seen
        return found

    def _tells(self, param: Any, arg: Given, name: str) -> list[Any]:
        """What an argument says that a template's parameter is."""
        node, kind = param.child_by_field_name("type"), arg.type
        if node is None or kind is None:
            return []
        kind = kind[1] if isinstance(kind, tuple) and is_pointer(param.child_by_field_name("declarator")) else kind
        if text_of(node) == name:
            return [kind] if isinstance(kind, (str, Aggregate, Lambda)) else []
        struct = self.struct_of(kind)
        if node.type != "template_type" or struct is None or struct.base != text_of(node.child_by_field_name("name")):
            return []
        inner = [text_of(a) for a in named(node.child_by_field_name("arguments"))]
        return [given for text, given in zip(inner, struct.arguments, strict=False) if text == name]


def _refers(function: Any) -> bool:
    """Whether a function gives a reference: through that its result can be read and written."""
    return "reference" in function.child_by_field_name("declarator").type


def is_pointer(declarator: Any) -> bool:
    while declarator is not None and declarator.type == "parenthesized_declarator":
        declarator = named(declarator)[0]
    return declarator is not None and declarator.type.removeprefix("abstract_") in (
        "pointer_declarator",
        "array_declarator",
    )


def name_of(param: Any) -> str | None:
    """The name of a parameter; None where it has none."""
    declarator = param.child_by_field_name("declarator")
    return identifier(declarator) if declarator is not None else None


def defaults(params: Sequence[Any]) -> list[Any]:
    """The default of each parameter, as far as they have one."""
    found = [p.child_by_field_name("default_value") for p in params]
    return [] if None in found[least(params) :] else found


def least(params: Sequence[Any]) -> int:
    """How many arguments have to be given."""
    return sum(p.type != "optional_parameter_declaration" for p in params)
