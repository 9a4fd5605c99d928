"""What names mean while a kernel is read: variables, pointers, places in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from rawkern.gradients.ir import Array, Place, Value
from rawkern.gradients.types import Aggregate, Type


@dataclass(eq=False)
class Var:
    """A variable: a scalar with its value now, an aggregate or local array with variables, or what never changes."""

    name: str
    type: Type | None
    value: Any = None  # Value, Pointer or None (not set yet)
    fields: dict[str, Var] = field(default_factory=dict)
    constant: bool = False

    def leaves(self) -> list[Var]:
        return [leaf for each in self.fields.values() for leaf in each.leaves()] if self.fields else [self]


@dataclass(frozen=True)
class Pointer:
    """An array with what is added to its start; `inner` are indices given already, where it has several dimensions."""

    array: Array
    offset: Value | None = None
    inner: tuple[Value, ...] = ()
    view: Aggregate | None = None  # cast to a pointer to vectors of the array's elements
    unit: int = 0  # what counts as one element, where that is not one: bytes

    @property
    def type(self) -> Type:
        return self.view or self.array.type

    def viewed(self, kind: Type | None) -> Pointer:
        return replace(self, view=kind)


class Marker:
    """What a variable may stand for that is no value: a group of threads."""


@dataclass(frozen=True)
class Callee:
    """A function of the source, as the argument of a template."""

    name: str
    given: tuple[str, ...]  # its own template arguments


@dataclass(frozen=True)
class Local:
    """A pointer into variables of one type: the elements of a local array, or the fields of a vector."""

    leaves: tuple[Var, ...]
    at: int = 0
    view: Aggregate | None = None

    def viewed(self, kind: Type | None) -> Local:
        return replace(self, view=kind)


@dataclass(frozen=True)
class Cell:
    """A place in memory, as the left side of an assignment; in a view the first of several elements."""

    place: Place
    index: tuple[Value, ...]
    type: Type
    view: bool = False


class NeedsType(Exception):
    """An array has to be read as one of another type."""

    def __init__(self, array: str, kind: Type) -> None:
        super().__init__(array)
        self.array, self.kind = array, kind


class NeedsUnrolling(Exception):
    """A loop has to be written out, for the reason given."""

    def __init__(self, node: int, reason: Exception) -> None:
        super().__init__(str(reason))
        self.node, self.reason = node, reason
