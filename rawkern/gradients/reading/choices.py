"""Statements that become branches: a pointer to one of two arrays, and conditions that read memory behind &&."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.declarations import Declarations
from rawkern.gradients.reading.places import Pointer
from rawkern.gradients.reading.syntax import contains


class Choices(Declarations):
    """Such statements; `Branches` has the others."""

    sides: dict[int, Any]

    def choice(self, node: Any) -> Any:
        """In a declaration of a pointer to one of two arrays, what chooses between them."""
        single = [c for c in named(node) if c.type == "init_declarator"] if node.type == "declaration" else []
        value = single[0].child_by_field_name("value") if len(single) == 1 else None
        while value is not None and value.type == "parenthesized_expression":
            value = named(value)[0]
        if value is None or value.type != "conditional_expression" or value.start_byte in self.sides:
            return None
        sides = [value.child_by_field_name(f) for f in ("consequence", "alternative")]
        if None in sides:
            return None
        found = [self.asked_for_kind(lambda s=s: self.as_pointer(self.expression(s))) for s in sides if not _plain(s)]
        several = len(found) == 2 and all(isinstance(p, Pointer) for p in found) and found[0].array != found[1].array
        return value if several else None

    def choosing(self, node: Any, choice: Any, rest: Sequence[Any], then: Callable[[], None]) -> None:
        """What follows such a declaration, for each of the arrays."""

        def go(side: str) -> Callable[[], None]:
            def run() -> None:
                outer, sides = self.scopes, self.sides
                self.scopes = [dict(scope) for scope in outer]
                self.sides = {**sides, choice.start_byte: choice.child_by_field_name(side)}
                self.statement(node)
                self.sides = sides
                self.sequence(rest, then)
                self.scopes = outer

            return run

        self.branch(node, self.test(choice.child_by_field_name("condition")), go("consequence"), go("alternative"))

    def asked_behind(self, node: Any, condition: Any, then: Callable[[], None]) -> None:
        """An if whose condition reads memory behind &&: one if in another, so that the last one decides alone."""
        if not reads_behind(condition):
            return self.branch(node, self.test(condition), then, lambda: None)
        left, right = (condition.child_by_field_name(f) for f in ("left", "right"))
        return self.asked_behind(node, left, lambda: self.asked_behind(node, right, then))

    # Of `Branches`.
    def statement(self, node: Any) -> None:
        raise NotImplementedError

    def sequence(self, nodes: Sequence[Any], then: Callable[[], None]) -> None:
        raise NotImplementedError

    def branch(self, node: Any, condition: Value, then: Callable[[], None], other: Callable[[], None]) -> None:
        raise NotImplementedError


def reads_behind(node: Any) -> bool:
    """Whether a condition is an && whose right side reads memory."""
    both = node.type == "binary_expression" and text_of(node.child_by_field_name("operator")) == "&&"
    return both and contains(node.child_by_field_name("right"), ("subscript_expression",))


def _plain(node: Any) -> bool:
    return node.type in ("number_literal", "true", "false", "char_literal")
