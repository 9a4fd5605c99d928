"""What names mean while a kernel is read: variables, pointers, places in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rawkern.gradients.ir import Array, Place, Value
from rawkern.gradients.types import Accessor, Aggregate, PointerTo, Type

#: What a reference may refer to.
PLACES = (
    "identifier", "subscript_expression", "field_expression", "pointer_expression", "parenthesized_expression", "this",
)  # fmt: skip
GOES_ON = "goes_on"  # what the variable is called that says whether a loop with a break goes on


@dataclass(eq=False)
class Var:
    """A variable: a scalar with its value now, an aggregate or local array with variables, or what never changes."""

    name: str
    type: Type | None
    value: Any = None  # Value, Pointer or None (not set yet)
    fields: dict[str, Var] = field(default_factory=dict)
    constant: bool = False
    lost: int = -1  # the loop that gave it a value, and before which it had none
    apart: bool = False  # whether it is a pointer to one of several arrays

    def leaves(self) -> list[Var]:
        if self.fields or isinstance(self.type, Aggregate):
            return [leaf for each in self.fields.values() for leaf in each.leaves()]
        return [self]

    @property
    def whole(self) -> bool:
        """Whether it is an aggregate or a local array."""
        return bool(self.fields) or isinstance(self.type, Aggregate)

    def copied(self) -> Var:
        return Var(self.name, self.type, self.value, {n: v.copied() for n, v in self.fields.items()}, self.constant)


@dataclass(frozen=True)
class Pointer:
    """An array with what is added to its start; `inner` are indices given already, where it has several dimensions."""

    array: Array
    offset: Value | None = None
    inner: tuple[Value, ...] = ()
    view: Aggregate | None = None  # cast to a pointer to vectors of the array's elements
    unit: int = 0  # what counts as one element, where that is not one: bytes
    volatile: bool = False

    @property
    def type(self) -> Type:
        return self.view or self.array.type

    @property
    def accesses(self) -> Accessor | None:
        """What it is as an accessor, or as a row of one; None for a pointer."""
        array = self.array
        if not array.accessor or self.offset is not None or not isinstance(array.type, str):
            return None
        return Accessor(array.type, len(array.sizes) - len(self.inner), array.accessor, array.const)

    def viewed(self, kind: Type | None) -> Pointer:
        return replace(self, view=kind)


class Marker:
    """What a variable may stand for that is not a value: a group of threads."""


@dataclass(frozen=True, eq=False)
class PointerList(Marker):
    """A list of pointers, a parameter; of those that the kernel uses, the arrays, by their place in it."""

    node: Any
    name: str
    kind: Type
    const: bool
    used: dict[int, Pointer] = field(default_factory=dict)


@dataclass(frozen=True)
class Maker(Marker):
    """A template of structs, as the argument of a template."""

    name: str


@dataclass(frozen=True, eq=False)
class Lambda(Marker):
    """A lambda with what the names in it mean."""

    node: Any
    scopes: list[dict[str, Var]]
    names: dict[str, Any]  # types
    struct: Struct | None


@dataclass(eq=False)
class Struct:
    """A struct of the source, or an instance of a template of them: its type and what belongs to it."""

    type: Aggregate
    base: str  # the name without the template's arguments
    node: Any
    arguments: tuple[Any, ...]
    names: dict[str, Any]  # types within
    numbers: dict[str, Var]  # of its template
    constants: dict[str, tuple[Any, Any, Any]] = field(default_factory=dict)  # as those of a source
    initial: dict[str, Any] = field(default_factory=dict)  # what members begin with
    methods: dict[str, list[tuple[Any, Any]]] = field(default_factory=dict)  # constructors by the struct's name
    friends: dict[str, list[tuple[Any, Any]]] = field(default_factory=dict)
    aligned: int = 1  # as its text says


@dataclass(frozen=True, eq=False)
class Given:
    """An argument of a call, read once: a place or a value; None for a list in braces."""

    node: Any
    found: Any

    @property
    def type(self) -> Any:
        """Its type, ``("*", type)`` for pointers and arrays; None where it has none by itself."""
        found = self.found.value if isinstance(self.found, Var) and not self.found.whole else self.found
        if found is None and isinstance(self.found, Var):
            return self.found.type
        if isinstance(found, Pointer) and found.accesses:
            return found.accesses
        if isinstance(found, Pointer):
            return "*", found.type
        if isinstance(found, Local):
            return "*", found.view or found.leaves[0].type
        if isinstance(found, Var) and found.type is None:
            while found.type is None and found.fields:
                found = next(iter(found.fields.values()))
            return "*", found.type
        return found if isinstance(found, Marker) else getattr(found, "type", None)


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
    volatile: bool = False  # the lanes of a warp see each store before they go on


def aggregate(name: str, kind: Aggregate, make: Any, path: tuple[str, ...] = ()) -> Var:
    """A variable of an aggregate, each scalar in it made by ``make(path, type)``."""
    var = Var(name, None if kind.array else kind)
    for each, inner in kind.fields:
        full = (*path, each)
        var.fields[each] = (
            aggregate(f"{name}_{each}", inner, make, full)
            if isinstance(inner, Aggregate)
            else Var(f"{name}_{each}", None if isinstance(inner, PointerTo) else inner, make(full, inner))
        )
    return var


def fresh(name: str, kind: Type) -> Var:
    """A variable without a value."""
    return aggregate(name, kind, lambda *_: None) if isinstance(kind, Aggregate) else Var(name, kind)


def overlaid(name: str, kind: Aggregate, leaves: Iterator[Var]) -> Var:
    """A variable of an aggregate whose numbers are variables at hand."""
    fields = {
        n: overlaid(f"{name}_{n}", inner, leaves) if isinstance(inner, Aggregate) else next(leaves)
        for n, inner in kind.fields
    }
    return Var(name, None if kind.array else kind, fields=fields)


def one_array(a: Any, b: Any) -> bool:
    """Whether two values are pointers into one array, in one way."""
    return isinstance(a, Pointer) and isinstance(b, Pointer) and replace(a, offset=None) == replace(b, offset=None)


def as_pointer(found: Any) -> Any:
    """A local array as a pointer to its first element."""
    return Local(tuple(found.leaves())) if isinstance(found, Var) and found.fields and found.type is None else found


class ReadAgain(Exception):
    """The kernel has to be read again, in another way."""


class NeedsType(ReadAgain):
    """An array has to be read as one of another type."""

    def __init__(self, array: str, kind: Type) -> None:
        super().__init__(array)
        self.array, self.kind = array, kind


class NeedsStart(ReadAgain):
    """A variable has to have a value before a loop, as it is read after it."""

    def __init__(self, start: tuple[int, str]) -> None:
        super().__init__(start)
        self.start = start


@dataclass(frozen=True)
class Unroll:
    """One of these loops has to be written out, for the reason given; the innermost is the first.

    `array`: or a local array has to lie in memory; where it is declared.
    """

    nodes: tuple[int, ...]
    reason: Exception
    array: int | None = None


class NeedsUnrolling(ReadAgain):
    """The reading needs loops written out."""

    def __init__(self, asked: Unroll) -> None:
        super().__init__(str(asked.reason))
        self.asked = asked


class OfLoop(ReadAgain):
    """Why a loop cannot be written out."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason
