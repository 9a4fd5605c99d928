"""The context of a reading: what is known at the point that is read, and the way to the handlers of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import PURE, Array, Block, Function, If, Place, Value
from rawkern.gradients.reading.handlers import (
    bodies,
    callees,
    expressions,
    globals_,
    leaving,
    places,
    statements,
    type_nodes,
)
from rawkern.gradients.reading.places import PLACES, Given, NeedsUnrolling, PointerList, Struct, Unroll, Var
from rawkern.gradients.reading.source import File
from rawkern.gradients.reading.syntax import BY_HAND, TYPES, WAYS_OUT, Where
from rawkern.gradients.types import Accessor, Aggregate, Type

MOST_VARIABLES = 256  # elements of a local array that are variables, in each dimension
MOST_LOCAL = 16 * 1024  # bytes that a local array in memory may take, with the gradient


@dataclass
class Either:
    """What a place holds after a branch whose sides have set it, or one of them."""

    branch: If
    then: Value | Either
    other: Value | Either
    value: Value | None = None


class Noted(NamedTuple):
    """A variable or array that an expression reads or changes."""

    what: Var | Array
    changed: bool
    depth: int  # of calls
    late: bool = False  # read when all operands have been


Stored = dict[Array, dict[Any, tuple[Value | Either, Block]]]  # by place and index; with where it was written


@dataclass(frozen=True)
class Settings:
    """How a kernel is read: the launches that it is for, and what has to be decided before."""

    block: tuple[int, int, int]
    grid: tuple[int | None, int | None, int | None]
    shared_mem: int = 0  # bytes of dynamic shared memory
    constants: frozenset[tuple[str, int]] = frozenset()  # parameters that have these values
    unroll: frozenset[int] = frozenset()  # the loops that are written out
    retyped: frozenset[tuple[str, Type]] = frozenset()  # arrays that are read as ones of another type
    starts: frozenset[tuple[int, str]] = frozenset()  # variables that begin with 0, each before a loop
    in_memory: frozenset[int] = frozenset()  # local arrays that lie in memory, by where they are declared
    outline: bool = False  # whether device functions that compute a number from numbers stay functions
    updated: frozenset[str] = frozenset()  # arrays of which += reads what there is and sets the sum


@dataclass(eq=False)
class Context:
    """One reading of a kernel: its scopes, types and the IR under construction.

    What is read of a part goes through `expression`, `place`, `given`, `call`, `statement`, `sequence`, `type_of` and
    `invoke`, which ask the handlers.
    """

    file: File
    where: Where
    settings: Settings
    # The IR
    body: Block = field(default_factory=Block)  # the kernel's
    params: list[tuple[str, Type, bool]] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)  # see `Kernel.members`
    lists: dict[str, PointerList] = field(default_factory=dict)  # parameters that are lists of pointers
    shared: list[Array] = field(default_factory=list)
    structs: dict[str, tuple[Aggregate, str]] = field(default_factory=dict)  # those that the derived text declares
    outlined: dict[str, Function | None] = field(default_factory=dict)  # by name; None: put in where they are called
    views: dict[str, set[Aggregate | None]] = field(default_factory=dict)  # what each array is accessed as; None: as is
    local_arrays: dict[Var, int] = field(default_factory=dict)  # of those in variables, each part: where it is declared
    shared_arrays: dict[Any, Array] = field(default_factory=dict)  # by function, name, type and extents
    # The point that is read
    scopes: list[dict[str, Var]] = field(default_factory=lambda: [{}])
    callers: list[list[dict[str, Var]]] = field(default_factory=list)  # the scopes of the functions that call
    called: list[str] = field(default_factory=list)  # the functions that are being put in
    path: str = ""  # the namespace of the function that is read
    struct: Struct | None = None  # whose method is read
    returned: Var | None = None  # what the function returns
    left: Var | None = None  # whether the function has returned, in a loop with a return
    loops: list[int] = field(default_factory=list)  # those around
    breaking: list[Var | None] = field(default_factory=list)  # of those: whether they go on, where they have a break
    sides: dict[int, Any] = field(default_factory=dict)  # of choices between arrays, by where they begin: what is read
    # What is known there
    computed: dict[Block, dict[Any, Value]] = field(default_factory=dict)  # what each block has, to compute it once
    stored: Stored = field(default_factory=dict)  # what a thread itself has written since the last barrier
    own_stores: dict[tuple[Place, tuple[Value, ...]], Block] = field(default_factory=dict)  # where it has set a place
    noted: list[Noted] | None = None  # what the expression at hand reads and changes, while that is asked for
    kind_alone: bool = False  # whether only the type of what is read is asked for
    return_asked: bool = False  # whether only the type of what is returned is asked for
    # Types
    type_names: dict[str, Any] = field(default_factory=dict)  # types, and templates of them, by local names
    made: dict[str, Struct] = field(default_factory=dict)  # structs by the name of their type
    instances: dict[tuple[Any, ...], Struct] = field(default_factory=dict)  # by name and arguments of the template

    def __post_init__(self) -> None:
        self.block = self.body
        self.retyped = dict(self.settings.retyped)

    # To the handlers of parts -------------------------------------------------------------------------------------

    def expression(self, node: Any) -> Any:
        """The value of an expression: a `Value`, a `Pointer`, or a `Var` for an aggregate."""
        handler = expressions.of(node.type)
        if handler is None:
            raise self.refuse(node, f"{text_of(node)!r} ({node.type.replace('_', ' ')}) is not known here",
                              WAYS_OUT.get(node.type, "write it in simpler terms"))  # fmt: skip
        return handler(self, node)

    def scalar(self, node: Any) -> Value:
        """An expression that has to be a number."""
        return self.number(node, self.expression(node))

    def number(self, node: Any, found: Any) -> Value:
        """What an expression gave, if that is a number."""
        if not isinstance(found, Value):
            raise self.refuse(node, f"{text_of(node)!r} is used as a number", "write its elements one by one")
        return found

    def place(self, node: Any) -> Any:
        """What an expression that can be assigned to means: a `Var` or a `Cell`; what is computed is a `Var`, too."""
        handler = places.of(node.type)
        if handler is None:
            raise self.no_place(node)
        return handler(self, node)

    def no_place(self, node: Any) -> Exception:
        """The error for what is computed where a variable or an element has to stand, to raise."""
        reason = f"{text_of(node)!r} is computed, and not a variable or an element, as it has to be here"
        return self.refuse(node, reason, "declare a variable for it; to assign to one of two, write an if")

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
        return Given(node, self.place(node) if self.is_place(node) else self.expression(node))

    def call(self, node: Any) -> Any:
        """What a call returns: a place where it is a reference, None for one that returns nothing."""
        callee, arguments = node.child_by_field_name("function"), named(node.child_by_field_name("arguments"))
        handler = callees.of(callee.type)
        if handler is None:
            raise self.refuse(node, f"the call of {text_of(callee)}", "write it as a __device__ function here")
        return handler(self, node, callee, arguments)

    def invoke(self, node: Any, name: str, function: tuple[Any, Any], args: Sequence[Given], **more: Any) -> Any:
        """What a call of a function (its definition and template) or lambda gives; see `functions.put_in`."""
        return bodies.of(function[0].type)(self, node, name, function, args, **more)

    def statement(self, node: Any) -> None:
        handler = statements.of(node.type)
        if handler is None:
            way_out = WAYS_OUT.get(node.type, "write it in simpler terms")
            raise self.refuse(node, f"{text_of(node).splitlines()[0]!r} ({node.type.replace('_', ' ')})", way_out)
        handler(self, node)

    def sequence(self, nodes: Sequence[Any], then: Callable[[], None] = lambda: None) -> None:
        """Read statements, and what comes then on every path that does not leave."""
        for at, node in enumerate(nodes):
            handler = leaving.of(node.type)
            if handler is not None and handler(self, node, nodes[at + 1 :], then):
                return
            self.statement(node)
        then()

    def type_of(self, node: Any) -> Type:
        """The type that a node of the tree names."""
        kind = self.parameter_type(node)
        if isinstance(kind, Accessor):
            raise self.refuse(node, f"an accessor, {text_of(node)}, in this place",
                              "take accessors as parameters, and call a row of one auto")  # fmt: skip
        return kind

    def parameter_type(self, node: Any) -> Type | Accessor:
        """The same, of a parameter, which may be an accessor."""
        return (type_nodes.of(node.type) or type_nodes.of("type_identifier"))(self, node)

    def scalar_type(self, node: Any) -> str:
        kind = self.type_of(node)
        if isinstance(kind, Aggregate):
            raise self.refuse(node, f"{kind.name} where a number is expected", "use its fields")
        return kind

    # Values -------------------------------------------------------------------------------------------------------

    def value(
        self, node: Any, kind: str, op: str, args: tuple[Value, ...] = (), attr: Any = None, **more: Any
    ) -> Value:
        """A value in the block at hand; what has been computed before is there already."""
        line = node if isinstance(node, int) else node.start_point[0] + 1
        pure = op in PURE and not (op == "const" and more.get("name"))
        if pure or (op == "load" and attr.array.const and not attr.array.shared):
            found = self._computed((kind, op, args, attr))
            if found is not None:
                return found
        made = Value(line, self.block, type=kind, op=op, args=args, attr=attr, **more)
        self.block.items.append(made)
        if pure or op == "load":
            self.computed.setdefault(self.block, {})[kind, op, args, attr] = made
        return made

    def _computed(self, same: Any) -> Value | None:
        """What has been computed alike, in this block or one around it."""
        block: Block | None = self.block
        while block is not None:
            if same in self.computed.get(block, {}):
                return self.computed[block][same]
            block = block.parent.block if block.parent is not None else None
        return None

    def integer(self, node: Any, value: int) -> Value:
        return self.value(node, "int", "const", attr=str(value), const=value)

    def boolean(self, node: Any, value: bool) -> Value:
        return self.value(node, "bool", "const", attr="true" if value else "false", const=int(value))

    def unsigned(self, node: Any, value: int) -> Value:
        return self.value(node, "unsigned int", "const", attr=f"{value}u", const=value)

    # Rejections ---------------------------------------------------------------------------------------------------

    def refuse(self, node: Any, reason: str, way_out: str) -> Exception:
        """The error for what is not understood, to raise."""
        return self.where.refuse(node, reason, way_out)

    def unrollable(
        self,
        node: Any,
        reason: str,
        way_out: str = "make the bounds of the loops around it constants",
        array: int | None = None,
    ) -> Exception:
        """The error for what is understood if one of the loops around is written out, to raise.

        `array`: or if a local array lies in memory; where that is declared.
        """
        error = self.refuse(node, reason, way_out)
        left = [each for each in self.loops if each not in self.settings.unroll]
        if not left and array is None:
            return error
        return NeedsUnrolling(Unroll(tuple(left[::-1]), error, array))

    # Names --------------------------------------------------------------------------------------------------------

    def lookup(self, name: str) -> Var | None:
        """The variable of a name; None for other names."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        kind = "dynamic" if name in self.file.dynamic else "variable" if name in self.file.variables else ""
        return globals_.of(kind)(self, name) if kind else None

    def is_place(self, node: Any) -> bool:
        """Whether an expression is rooted in a variable of the kernel."""
        root = node
        if root.type == "cast_expression":
            kind = root.child_by_field_name("type").child_by_field_name("declarator")
            return kind is not None and kind.type == "abstract_reference_declarator"
        if root.type not in PLACES:
            return False
        while root.type in PLACES and root.type not in ("identifier", "this"):
            if root.type == "pointer_expression" and text_of(root.child_by_field_name("operator")) == "&":
                return False
            root = root.child_by_field_name("argument") or named(root)[0]
        return root.type == "this" or (root.type == "identifier" and self.lookup(text_of(root)) is not None)

    def known_type(self, name: str) -> bool:
        """Whether a name is that of a type."""
        plain = self.file.plain(name) if "::" in name else name
        return plain is not None and plain not in self.file.unclear and (
            isinstance(self.type_names.get(plain), (str, Aggregate, Accessor))
            or plain in self.file.aliases or plain in self.file.structs or plain in self.file.enums
            or types.scalar(plain) is not None or plain in types.VECTORS
        )  # fmt: skip

    def is_type(self, node: Any) -> bool:
        """Whether a name is that of a type, and of nothing else."""
        name = text_of(node)
        return node.type in ("identifier", *TYPES) and self.known_type(name) and self.lookup(name) is None

    def struct_of(self, kind: Any) -> Struct | None:
        """What belongs to a type; None for types that are none of the source's structs."""
        return self.made.get(kind.name) if isinstance(kind, Aggregate) else None

    def leaves(self) -> list[Var]:
        """Every scalar variable in sight, of callers too."""
        scopes = [*self.scopes, *(s for each in self.callers for s in each)]
        found = [leaf for scope in scopes for var in scope.values() for leaf in var.leaves()]
        found += self.returned.leaves() if self.returned else []
        return list(dict.fromkeys(found))

    # Elsewhere ----------------------------------------------------------------------------------------------------

    @contextmanager
    def using(self, **state: Any) -> Iterator[None]:
        """Read something with other scopes, names or such; afterwards they are as before."""
        before = {name: getattr(self, name) for name in state}
        for name, value in state.items():
            setattr(self, name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def within(self, block: Block, make: Any) -> Any:
        """Call with another block at hand."""
        with self.using(block=block):
            return make()

    def within_top(self, make: Any) -> Any:
        """Call with the names of the file's top only."""
        with self.using(scopes=self.scopes[:1]):
            return make()

    def scoped(self, make: Callable[[], None]) -> None:
        """Call with a scope of its own."""
        with self.using(scopes=[*self.scopes, {}]):
            make()

    def tried(self, make: Any) -> Any:
        """Call, and take back all that it put into the kernel."""
        leaves = self.leaves()
        before = [v.value for v in leaves]
        try:
            with self.using(
                block=Block(parent=self.block.parent), scopes=[dict(s) for s in self.scopes],
                stored=dict(self.stored), own_stores=dict(self.own_stores), returned=self.returned,
                loops=list(self.loops), breaking=list(self.breaking), left=self.left,
            ):  # fmt: skip
                return make()
        finally:
            for leaf, value in zip(leaves, before, strict=True):
                leaf.value = value

    def kind(self, node: Any) -> Any:
        """The type of an expression, which is read for that alone."""
        return self.asked_for_kind(lambda: self.given(node).type)

    def asked_for_kind(self, make: Any) -> Any:
        """Call for the type of what is found: there an element that an array does not have is like all others."""
        with self.using(kind_alone=True):
            return self.tried(make)

    def note(self, what: Var | Array, changed: bool, late: bool = False) -> None:
        """A variable or array is read or changed."""
        if self.noted is not None:
            self.noted.append(Noted(what, changed, len(self.callers), late))

    def note_variable(self, var: Var, changed: bool = False, late: bool = False) -> None:
        """`note`, for each number of it."""
        for leaf in var.leaves() if self.noted is not None else ():
            self.note(leaf, changed, late)
