"""The order in which C++17 evaluates what has side effects; where it leaves that open, the text is refused.

An assignment evaluates its right side first. Operands and arguments come in any order, so none may change what another
needs; only calls among them may, because they do not overlap with others, and are compiled from left to right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients.ir import Array
from rawkern.gradients.reading.accesses import Accesses, Noted
from rawkern.gradients.reading.places import Cell, Given, Var
from rawkern.gradients.reading.syntax import calls, contains

CHANGES = ("update_expression", "assignment_expression")


class Order(Accesses):
    """Expressions with side effects beside others."""

    def apart(self, node: Any, operands: Sequence[Any], read: Callable[[Any], Any]) -> list[Any]:
        """Read operands that come in any order."""
        if not any(contains(getattr(o, "node", o), (*CHANGES, "call_expression")) for o in operands):
            return [read(each) for each in operands]
        pairs = [self._noting(lambda each=each: read(each)) for each in operands]
        for (_, first), (_, second) in combinations(pairs, 2):
            self._refuse_clash(node, first, second)
        return [found for found, _ in pairs]

    def right_first(self, node: Any, left: Any, right: Any) -> bool:
        """Whether it makes a difference that the right side of an assignment comes first."""
        if right.type == "initializer_list" or left.type == "identifier":
            return False
        own = calls(right) - {name for name in calls(right) if name not in self.file.functions}
        return (
            bool(own)
            or contains(left, (*CHANGES, "call_expression"))
            or contains(right, (*CHANGES, "lambda_expression"))
        )

    def assigned_to(self, node: Any, right: Callable[[], Any], left: Callable[[], Any]) -> tuple[Any, Any]:
        """Right and left side of an assignment, read in this order."""
        value, first = self._noting(right)
        found, second = self._noting(left)
        self._refuse_clash(node, [each for each in first if each.late], [b._replace(depth=-1) for b in second])
        return value, found

    def _noting(self, make: Callable[[], Any]) -> tuple[Any, list[Noted]]:
        """Call, and tell what that reads and changes."""
        outer, self.noted = self.noted, []
        try:
            found = make()
            place = found.found if isinstance(found, Given) else found
            if isinstance(place, Var):  # read later, by whom it is given to
                self.note_variable(place, late=True)
            elif isinstance(place, Cell):
                self.note(place.place.array, False, late=True)
            return found, self.noted
        finally:
            if outer is not None:
                outer += [each._replace(late=False) for each in self.noted]
            self.noted = outer

    def _refuse_clash(self, node: Any, first: Sequence[Noted], second: Sequence[Noted]) -> None:
        """Refuse two operands one of which changes what the other needs, unless a call does and they come in order."""
        here = len(self.callers)
        for a in first:
            for b in second:
                alike = a.what == b.what if isinstance(a.what, Array) else a.what is b.what
                own = any(each.changed and each.depth == here for each in (a, b))
                if alike and (own or (b.changed and a.late)):
                    raise self.refuse(
                        node, f"{text_of(node)!r} changes {a.what.name} and uses it, in an order that C++ leaves open",
                        "write two statements",
                    )  # fmt: skip
