"""A kernel as data: structured SSA, whose loops and branches are those of the text.

A `Block` lists values and what happens to memory, in the order of the text. `order` counts them, so that the item with
the larger number stands later in the text; a loop or branch ends before whatever has a number above its `last`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rawkern.gradients.types import Aggregate, Type


@dataclass(eq=False, repr=False)
class Block:
    """Items in order; `parent` is the branch or loop that the block belongs to, None for a kernel's own."""

    items: list[Any] = field(default_factory=list)
    parent: Any = None


@dataclass(eq=False, repr=False)
class Item:
    line: int
    block: Block
    order: int = -1


@dataclass(eq=False, repr=False)
class Value(Item):
    """A scalar with its C type. `op` says what it is:

    const (attr: its text), param (attr: the parameter), special (attr: such as threadIdx.x), unary and binary (attr:
    the operator), cast, call (attr: the function), select, load (attr: `Place`; args: indices), shfl (attr: which),
    reduce (attr: block_sum, warp_max and such), phi (of a loop) and result (of a loop or branch).
    """

    type: str = "int"
    op: str = "const"
    args: tuple[Value, ...] = ()
    attr: Any = None
    name: str | None = None  # the user's variable
    const: int | None = None  # the integer that it is known to be, in the launch at hand
    #: Of a load that reads what was overwritten since: the numbers of the iterations around, of the outermost first.
    tape: tuple[Value, ...] | None = None


@dataclass(frozen=True)
class Array:
    """Memory: a pointer parameter, or a shared array with its extents (0: as many as the launch brings).

    A pointer has extents where it points to an array of several dimensions; so has an accessor, those of its tensor.
    """

    name: str
    type: Type
    shared: bool = False
    sizes: tuple[int, ...] = ()
    const: bool = False
    dynamic: bool = False  # of the bytes that a launch gives each block
    raw: bool = False  # bytes, whose type a cast tells
    #: A local array: each thread has one. In the IR all of a block's are one array, whose first index is the thread.
    private: bool = False
    accessor: str = ""  # of a parameter that is an accessor of PyTorch's: the type of its sizes
    region: int = 0  # which part of a shared array it is, where its parts have nothing to do with one another

    def __hash__(self) -> int:
        return hash((self.name, self.region))

    @property
    def whole(self) -> Array:
        """The array that is declared."""
        return replace(self, region=0)

    @property
    def extents(self) -> tuple[int, ...]:
        """Those of its declaration in C."""
        return self.sizes[1:] if self.private else self.sizes


@dataclass(frozen=True)
class Place:
    """What is accessed of an array: the elements themselves, or a field of each."""

    array: Array
    fields: tuple[str, ...] = ()

    @property
    def type(self) -> Type:
        """The type of what is accessed."""
        kind: Type = self.array.type
        for name in self.fields:
            kind = kind.of(name) or kind if isinstance(kind, Aggregate) else kind
        return kind

    @property
    def suffix(self) -> str:
        return suffix(self.fields)


def spelled_index(place: Place, index: tuple[Value, ...]) -> tuple[Value, ...]:
    """The indices of an element as C has them."""
    return index[1:] if place.array.private else index


def suffix(path: tuple[str, ...]) -> str:
    """How C spells members within members: those that are numbers are elements of arrays."""
    return "".join(f"[{name}]" if name.isdigit() else f".{name}" for name in path)


@dataclass(eq=False, repr=False)
class Store(Item):
    place: Place = None  # type: ignore[assignment]
    index: tuple[Value, ...] = ()
    value: Value = None  # type: ignore[assignment]
    adds: str = ""  # "plain" or "atomic": the value is added to what is there
    reads_own_store: bool = False  # adds to what the thread itself has set before


Access = Value | Store  # of memory: a load or a store


def place_of(item: Any) -> Place | None:
    """What an item loads or stores; None for any other."""
    return item.place if isinstance(item, Store) else item.attr if getattr(item, "op", "") == "load" else None


def index_of(access: Access) -> tuple[Value, ...]:
    """The indices of a load or store."""
    return access.index if isinstance(access, Store) else access.args


@dataclass(eq=False, repr=False)
class Barrier(Item):
    text: str = "__syncthreads()"


@dataclass(eq=False, repr=False)
class Exit(Item):
    """Ends the threads for which the condition holds; in a kernel's own block only."""

    condition: Value = None  # type: ignore[assignment]


@dataclass(eq=False, repr=False)
class If(Item):
    condition: Value = None  # type: ignore[assignment]
    then: Block = field(default_factory=Block)
    other: Block = field(default_factory=Block)
    results: list[tuple[Value, Value, Value]] = field(default_factory=list)  # after it, of `then`, of `other`
    last: int = -1


@dataclass(eq=False, repr=False)
class Carried:
    """A variable that a loop changes: its value at the start of an iteration, before the loop, at the end, after."""

    phi: Value
    init: Value
    next: Value
    result: Value


@dataclass(eq=False, repr=False)
class Loop(Item):
    test: Block = field(default_factory=Block)  # the values that the condition is made of
    condition: Value = None  # type: ignore[assignment]
    body: Block = field(default_factory=Block)
    carried: list[Carried] = field(default_factory=list)
    node: int = 0  # which loop of the text
    last: int = -1


@dataclass(eq=False, repr=False)
class Function:
    """A device function that computes a number from numbers, and stays a function; its body ends with a store of it."""

    name: str
    type: str
    params: tuple[tuple[str, str], ...]  # name, type
    body: Block
    result: Value

    @property
    def floats(self) -> tuple[str, ...]:
        """The parameters that can have a gradient."""
        return tuple(n for n, kind in self.params if kind in ("float", "double"))

    @property
    def derivatives(self) -> tuple[str | None, ...]:
        """As those of a `Rule`: None for an argument that has none."""
        return tuple("" if n in self.floats else None for n, _ in self.params)


@dataclass(eq=False)
class Kernel:
    """A kernel that was read: its parameters in order (name, C type as it is written), arrays, shared arrays, body."""

    name: str
    title: str
    params: list[tuple[str, Type, bool]]  # name, type (of elements for pointers), whether it is a pointer
    arrays: dict[str, Array]
    shared: list[Array]
    body: Block
    structs: dict[str, tuple[Aggregate, str]]  # with the text of each that the kernel uses
    block: tuple[int, int, int]
    grid: tuple[int | None, int | None, int | None]
    group: int = 0  # threads of the groups that it splits its block into by threadIdx.x / group; 0: into none
    before: dict[str, str] = field(default_factory=dict)  # arrays as they were before: of which, see `in_place`
    taped: tuple[str, ...] = ()  # arrays of which a tape keeps what is read, see `taping`
    functions: dict[str, Function] = field(default_factory=dict)  # that stay functions, after those that they call
    variables: dict[str, str] = field(default_factory=dict)  # of the device, parameters here: with namespaces
    constants: dict[str, int] = field(default_factory=dict)  # parameters that have these values
    assumed: list[Any] = field(default_factory=list)  # numbers of a launch that have to be at most others
    #: Parameters here that are members of one of the forward's, a struct or list: of which, and where in it.
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)


COLLECTIVE = ("shfl", "reduce")  # what threads make together
PURE = ("const", "special", "param", "cast", "unary", "binary", "select", "call")  # what depends on operands alone
FIXED = ("load", *COLLECTIVE, "result")  # what stays where it is


def children(item: Any) -> tuple[Block, ...]:
    """The blocks in an item."""
    if isinstance(item, If):
        return item.then, item.other
    return (item.test, item.body) if isinstance(item, Loop) else ()


def walk(block: Block) -> Iterator[Any]:
    """Every item of a block and of those in it."""
    for item in block.items:
        yield item
        if not isinstance(item, Value):  # most are
            for inner in children(item):
                yield from walk(inner)


def operands(item: Any) -> tuple[Value, ...]:
    """The values that an item itself uses; for a loop or branch also what they yield."""
    if isinstance(item, Value):
        return item.args + (item.tape or ())
    if isinstance(item, Store):
        return (*item.index, item.value)
    if isinstance(item, If):
        return (item.condition, *(v for _, a, b in item.results for v in (a, b)))
    if isinstance(item, Loop):
        return (item.condition, *(v for c in item.carried for v in (c.init, c.next)))
    return (item.condition,) if isinstance(item, Exit) else ()


def made_of(value: Value, ask: Callable[[Value], bool | tuple[Value, ...]]) -> bool:
    """Whether all that a value is computed from, through loops, is right: `ask` says so, or what has to be in turn."""
    seen, left = {value}, [value]
    while left:
        v = left.pop()
        if v.op in ("const", "param"):
            continue
        if v.op == "phi":
            c = next(c for c in v.attr.carried if c.phi is v)
            found: bool | tuple[Value, ...] = (c.init, c.next)
        else:
            found = ask(v)
        if found is False:
            return False
        rest = () if found is True else [a for a in found if a not in seen]
        left += rest
        seen.update(rest)
    return True


def computed_in(value: Value, loop: Loop) -> bool:
    """Whether a value is computed in each iteration of a loop."""
    return inside(value.block, loop.body) or inside(value.block, loop.test)


def inside(block: Block | None, outer: Block) -> bool:
    """Whether a block is another or lies in it."""
    while block is not None and block is not outer:
        block = block.parent.block if block.parent is not None else None
    return block is outer
