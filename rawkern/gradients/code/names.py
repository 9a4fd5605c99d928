"""Names for values, and how their types are spelled."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.types import HALVES, Aggregate


class Names:
    """Names for values: the user's own where they have one, each once in a kernel."""

    def __init__(self, taken: Set[str], double: bool) -> None:
        self.reserved = frozenset(taken)
        self._taken = set(taken)
        self._of: dict[Any, str] = {}
        self.hints: dict[str, str] = {}  # what each was to be called
        self.double = double  # whether every float is a double

    def fresh(self, hint: str) -> str:
        name, k = hint, 2
        while name in self._taken:
            name, k = numbered(hint, k), k + 1
        self._taken.add(name)
        self.hints[name] = hint
        return name

    def of(self, value: Any, hint: str = "t") -> str:
        if value not in self._of:
            self._of[value] = self.fresh(hint)
        return self._of[value]

    def tape(self, load: Any) -> str:
        """The parameter with what a load has read."""
        return self.of(("tape", load), f"{load.attr.array.name}_tape")

    def most(self, loop: Any) -> str:
        """The parameter that says how often a loop runs at most."""
        return self.of(("most", loop), "most")

    def type(self, kind: str) -> str:
        return "double" if self.double and kind in ("float", *HALVES) else kind

    def summed(self, kind: str) -> str:
        """The type of gradients, which is float for half precision."""
        return "float" if kind in HALVES and not self.double else self.type(kind)


def identifier(hint: str) -> str:
    """A hint as a name of C."""
    return "".join(c if c.isalnum() else "_" for c in hint)


def numbered(hint: str, k: int) -> str:
    return f"{hint}{k}" if hint.endswith("_") else f"{hint}_{k}"


def spelling(kind: types.Type, names: Names) -> str:
    if not isinstance(kind, Aggregate):
        return names.type(kind)
    if not names.double or kind not in types.VECTORS.values():
        return kind.name
    return "double2" if kind.fields[0][1] in types.HALVES else kind.name.replace("float", "double")


def summed_spelling(kind: types.Type, names: Names) -> str:
    """The type of gradients, which is float for half precision."""
    if isinstance(kind, Aggregate):
        return "float2" if kind.fields[0][1] in types.HALVES and not names.double else spelling(kind, names)
    return names.summed(kind)
