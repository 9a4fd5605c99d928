"""What of a kernel a copy needs, from what its reverse asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code.expressions import Binary, Literal, Name, Node, Unary
from rawkern.gradients.code.names import Names, identifier
from rawkern.gradients.index.scev import induction
from rawkern.gradients.ir import (
    COLLECTIVE,
    Array,
    Block,
    Carried,
    Exit,
    If,
    Loop,
    Store,
    Value,
    children,
    computed_in,
    inside,
    operands,
    spelled_index,
    walk,
)  # fmt: skip

OPPOSITES = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}  # those of an order: of no NaN
TRIVIAL = ("const", "param", "special")


@dataclass(eq=False)
class Copy:
    """One copy of a block."""

    block: Block
    outer: Copy | None
    names: Names
    after: set[Array] = field(default_factory=set)  # shared arrays that are read after the copy, by others in it
    needed: dict[Value, None] = field(default_factory=dict)
    named: set[Value] = field(default_factory=set)
    uses: Counter[Value] = field(default_factory=Counter)
    loads: set[Array] = field(default_factory=set)  # shared arrays whose values the copy reads itself
    stores_all: bool = False  # whether what is written to global memory is kept
    replays: bool = False  # whether it reads what a tape keeps as the forward did
    skip: set[Any] = field(default_factory=set)  # branches that are copied elsewhere as a whole
    kept: set[Any] = field(default_factory=set)
    syncs: bool = False
    loop: Loop | None = None  # the loop of which this is an iteration
    hoisted: set[Value] = field(default_factory=set)
    #: Lines before a loop, at the start of its iterations, and at the end, where its variables are as they began.
    watched: dict[Loop, tuple[list[Any], list[Any], list[Any]]] = field(default_factory=dict)
    saved: dict[Value, list[Any]] = field(default_factory=dict)  # by value: the lines after it that put it on a tape
    given: set[Value] = field(default_factory=set)  # values from a tape, which are not computed
    kept_before: dict[Loop, dict[Array, str]] = field(default_factory=dict)  # copies of local arrays before a loop
    kept_each: dict[Loop, list[Array]] = field(default_factory=dict)  # those that its lines copy in each iteration

    def owner(self, value: Value) -> Copy:
        frame: Copy | None = self
        while frame is not None and not frame.covers(value.block):
            frame = frame.outer
        assert frame is not None, f"line {value.line}: {value.op} is used outside of its block"
        return frame

    def covers(self, block: Block) -> bool:
        return inside(block, self.block) or (self.loop is not None and inside(block, self.loop.test))

    # What is needed -----------------------------------------------------------------------------------------------

    def use(self, value: Value) -> Node:
        """The value's name, for the reverse or a copy within this one."""
        if value.op in TRIVIAL or (value.op == "cast" and value.args[0].op in TRIVIAL and value.name is None):
            return self.cast(value, self.text(value.args[0])) if value.op == "cast" else self.text(value)
        owner = self.owner(value)
        owner.needed[value] = None
        owner.named.add(value)
        return Name(self.name(value))

    def watch(self, loop: Loop, before: list[Any], last: list[Any], first: Sequence[Any] = ()) -> None:
        """Let a loop of this block be printed with these lines; a result of it has to be used."""
        given = self.watched.get(loop, ([], [], []))
        self.watched[loop] = [*given[0], *before], [*given[1], *first], [*given[2], *last]

    def name(self, value: Value) -> str:
        if value.op == "result" and isinstance(value.attr, Loop):  # one variable before, in and after the loop
            value = next(c.phi for c in value.attr.carried if c.result is value)
        hint = value.name or (value.attr.array.name + "_value" if value.op == "load" else "t")
        return self.names.of(value, identifier(hint))

    def inputs(self, value: Value) -> tuple[Value, ...]:
        """The values that the copy computes one from: of a load that reads a tape the place there."""
        if value.tape is not None and not self.replays:
            return value.tape
        return spelled_index(value.attr, value.args) if value.op == "load" else value.args

    def _demand(self, value: Value) -> None:
        if value.op in TRIVIAL:
            return
        owner = self.owner(value)
        owner.needed[value] = None
        if owner is not self:
            owner.named.add(value)

    def settle(self) -> None:
        """Find all that is needed, from what has been asked for."""
        self._mark_all()
        self.uses = Counter(v for item in walk(self.block) for v in self._read(item))

    def _mark_all(self) -> None:
        before = -1
        while before != len(self.needed) + len(self.kept):
            before = len(self.needed) + len(self.kept)
            live = set(self.after)
            self._mark(self.block, live)
            self._mark(self.block, live)  # what an iteration reads may be written at the end of the one before
        self.syncs = any(_shared(i) for i in self.kept)

    def take(self, given: Sequence[Value]) -> None:
        """`settle` once more, with values from a tape."""
        self.given.update(given)
        self.needed = {v: None for v in self.needed if v in self.named}  # what was asked for
        self.loads, self.kept = set(), set()
        self.settle()

    def settle_loop(self, loop: Loop) -> None:
        """`settle` for a copy that runs as the loop did, with the variables that are needed carried on."""
        steps, before = induction(loop), -1
        while before != len(self.needed):
            before = len(self.needed)
            for each in (loop.condition, *loop.test.items):
                self._demand(each)
            self._mark(loop.test, set())
            for c in loop.carried:
                if c.phi in self.needed:
                    self._demand(c.init)
                    self._step(c, steps, loop)
            self._mark_all()
        self.uses = Counter(v for item in walk(self.block) for v in self._read(item))
        self.uses.update(v for item in loop.test.items for v in item.args)
        self.uses.update(c.next for c in loop.carried if c.phi in self.needed and c.phi not in steps)

    def express(self, value: Value, depth: int = 0) -> Node:
        """The value as an expression of what has a name, for the reverse."""
        if value.op in TRIVIAL or value.name or value.op not in ("binary", "unary", "cast") or depth > 6:
            return self.use(value)
        if value.op == "unary" and value.attr == "!":
            return self.negated(value.args[0], lambda a: self.express(a, depth + 1))
        if value.op == "binary":
            given = self.without_implied(value, lambda a: bool(a.name) or depth > 5)
            return self.joined(value, given, lambda a: self.express(a, depth + 1))
        arg = self.express(value.args[0], depth + 1)
        return Unary(value.attr, arg) if value.op == "unary" else self.cast(value, arg)

    def outside(self, value: Value, loop: Loop) -> Node:
        """What is the same in all iterations, in terms of what is there before the loop."""
        if not computed_in(value, loop):
            return self.express(value)
        if value.op in TRIVIAL:
            return self.text(value)
        if value.op == "binary":
            return self.joined(value, value.args, lambda a: self.outside(a, loop))
        args = [self.outside(a, loop) for a in value.args]
        if value.op == "select":
            return expr.where(*args)
        if value.op == "call":
            return self.called(value, args)
        return Unary(value.attr, args[0]) if value.op == "unary" else self.cast(value, args[0])

    def without_implied(self, value: Value, named: Callable[[Value], bool]) -> list[Value]:
        """The operands of a binary operator, without conversions that C makes by itself."""
        found = list(value.args)
        if value.attr not in ("<<", ">>"):
            for k, a in enumerate(value.args):
                implied = a.op == "cast" and not named(a) and types.common(a.args[0].type, a.type) == a.type
                if implied and (k == 1 or value.args[1].op != "cast") and found[0] is value.args[0]:
                    found[k] = a.args[0]  # the other keeps its type
        return found

    def negated(self, condition: Value, spelled: Callable[[Value], Node]) -> Node:
        """That a condition does not hold, as an expression."""
        found = spelled(condition)
        if isinstance(found, Name | Literal):
            return Unary("!", found)
        if condition.op == "unary" and condition.attr == "!" and condition.args[0].type == "bool":
            return spelled(condition.args[0])
        exact = not any(types.is_float(a.type) for a in condition.args) or condition.attr in ("==", "!=")
        if exact and isinstance(found, Binary) and found.sign in OPPOSITES:
            return Binary(OPPOSITES[found.sign], found.left, found.right)
        return Unary("!", found)

    @staticmethod
    def joined(value: Value, args: Sequence[Value], spelled: Callable[[Value], Node]) -> Node:
        """A binary operation of these operands."""
        left, right = spelled(args[0]), args[1]
        if value.attr == "+" and right.op == "const" and right.attr[0] == "-" and -(2**31) < (right.const or 0) < 0:
            return left - expr.literal(right.attr[1:])
        return Binary(value.attr, left, spelled(right))

    def _read(self, item: Any) -> tuple[Value, ...]:
        """The values that the printed text of an item reads."""
        if isinstance(item, Value):
            computed = item in self.needed and item.op not in ("phi", "result") and item not in self.given
            return self.inputs(item) if computed else ()
        if isinstance(item, If) and item in self.kept:
            return (item.condition, *(v for r, a, b in item.results if r in self.needed for v in (a, b)))
        if isinstance(item, Loop) and item in self.kept:
            steps = induction(item)
            kept = [c for c in item.carried if c.phi in self.needed]
            return (item.condition, *(v for c in kept for v in (c.init, *(() if c.phi in steps else (c.next,)))))
        if isinstance(item, Store) and item in self.kept:
            return (*spelled_index(item.place, item.index), item.value)
        return operands(item) if isinstance(item, Exit) else ()

    def _mark(self, block: Block, live: set[Array]) -> None:
        for item in reversed(block.items):
            if item in self.skip:
                continue
            if isinstance(item, Value):
                self._mark_value(item, live)
            elif isinstance(item, Store):
                if item.place.array in live or (self.stores_all and not item.place.array.shared):
                    self.kept.add(item)
                    for each in (*spelled_index(item.place, item.index), item.value):
                        self._demand(each)
            elif isinstance(item, Exit):
                self._demand(item.condition)
            elif isinstance(item, If):
                self._mark_if(item, live)
            elif isinstance(item, Loop):
                self._mark_loop(item, live)

    def _step(self, c: Carried, steps: dict[Value, Any], loop: Loop) -> None:
        """What the next value of a variable is computed from."""
        if c.phi in steps:
            self.outside(steps[c.phi][1], loop)
            return
        self._demand(c.next)

    def _mark_value(self, item: Value, live: set[Array]) -> None:
        if item not in self.needed or item.op in ("phi", "result") or item in self.given:
            return
        for each in self.inputs(item):
            self._demand(each)
        if item.op in COLLECTIVE:
            self.kept.add(item)
        if item.op == "load" and self.replays and item.tape is not None:
            live.add(item.attr.array)
        if item.op == "load" and item.attr.array.shared:
            live.add(item.attr.array)
            self.loads.add(item.attr.array)
            self.kept.add(item)

    def _mark_if(self, item: If, live: set[Array]) -> None:
        wanted = [(a, b) for r, a, b in item.results if r in self.needed]
        for a, b in wanted:
            self._demand(a)
            self._demand(b)
        before = set(live)
        self._mark(item.then, live)
        self._mark(item.other, before)
        live |= before
        every = [i for block in children(item) for i in walk(block)]
        if wanted or any(i in self.needed or i in self.kept or i in self.kept_before for i in every):
            self.kept.add(item)
            self._demand(item.condition)

    def _mark_loop(self, item: Loop, live: set[Array]) -> None:
        self._mark_copied(item, live)
        stores = any(
            isinstance(i, Store) and (i.place.array in live or (self.stores_all and not i.place.array.shared))
            for i in walk(item.body)
        )
        carries = any(c.result in self.needed or c.phi in self.needed for c in item.carried)
        saves = any(i in self.saved for i in walk(item.body))
        if not stores and not carries and not saves and item not in self.watched:
            return
        self.kept.add(item)
        steps = induction(item)
        before = -1
        while before != len(self.needed):
            before = len(self.needed)
            for c in item.carried:
                if c.result in self.needed:
                    self.needed[c.phi] = None
                if c.phi in self.needed:
                    self._demand(c.init)
                    self._step(c, steps, item)
            self._mark(item.body, live)
            self._demand(item.condition)
            self._mark(item.test, live)

    def _mark_copied(self, loop: Loop, live: set[Array]) -> None:
        """What copies before a loop, or its iterations, read."""
        copied = {*self.kept_before.get(loop, ()), *self.kept_each.get(loop, ())}
        self.loads |= copied
        live |= copied

    # Of `Frame`.
    def text(self, value: Value) -> Node:
        """An expression for a value."""
        raise NotImplementedError

    def cast(self, value: Value, arg: Node) -> Node:
        """A conversion."""
        raise NotImplementedError

    def called(self, value: Value, args: Sequence[Node]) -> Node:
        """A call of a function."""
        raise NotImplementedError


def _shared(item: Any) -> bool:
    return (isinstance(item, Store) and item.place.array.shared) or (isinstance(item, Value) and item.op == "load")
