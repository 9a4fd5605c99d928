"""What a reverse knows: the adjoint of a value is the sum of what its uses contribute, and where that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from rawkern.gradients.analysis import loops, privatizable
from rawkern.gradients.analysis.activity import Activity
from rawkern.gradients.analysis.barrier_intervals import Phases
from rawkern.gradients.backward.forward import Frame
from rawkern.gradients.backward.privatized_sums import BlockSum
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Name, Node
from rawkern.gradients.code.names import Names
from rawkern.gradients.code.passes.accumulation_sinking import Added
from rawkern.gradients.code.tree import Declare, Statement
from rawkern.gradients.index.injective import AtMost
from rawkern.gradients.ir import Array, Block, Carried, Kernel, Loop, Value
from rawkern.gradients.reading.places import Unroll
from rawkern.gradients.reading.syntax import Where


@dataclass(eq=False)
class Adjoints:
    """The adjoints of one backward, and what its statements need."""

    kernel: Kernel
    active: Activity
    names: Names
    where: Where
    max_iterations: int | None = None
    assumed: list[AtMost] | None = None  # of numbers of the launch: at most; None: nothing
    uses: Counter[Value] = field(init=False)
    tapes: list[Value] = field(default_factory=list)  # the loads that it reads from tapes
    home: dict[Block, list[Statement]] = field(default_factory=dict)
    pending: dict[Value, list[Node]] = field(default_factory=dict)
    declared: dict[Value, Name] = field(default_factory=dict)
    after_loop: dict[Loop, list[tuple[Value, Value, Frame]]] = field(default_factory=dict)
    special: dict[Value, Node | None] = field(default_factory=dict)  # maxima: that this iteration set it; None: it did
    maximum_of: dict[Value, Loop] = field(default_factory=dict)
    #: Of maxima that iterations change under conditions: what takes the new value.
    taking: dict[Carried, Value] = field(default_factory=dict)
    #: Of those: the variable for what the last iteration that changed it began with.
    before_change: dict[Carried, str] = field(default_factory=dict)
    dropped: set[Value] = field(default_factory=set)
    passed: set[tuple[Value, Value]] = field(default_factory=set)  # sums, and operands that have the adjoint already
    partial: int = 0  # above 0 in what not all iterations of a loop do
    steady: set[Any] = field(default_factory=set)  # loops in which adjoints of what lies outside stay as they are
    helpers: set[str] = field(default_factory=set)
    exchanged: set[Array] = field(default_factory=set)  # outputs whose gradient is taken out of memory
    beside: frozenset[str] = frozenset()  # arrays to whose gradients other lines add, too
    owned: dict[Array, bool] = field(default_factory=dict)
    set_alone: dict[Array, bool] = field(default_factory=dict)
    shadows: set[Array] = field(default_factory=set)
    phases: Phases | None = None
    set_by: dict[Array, list[Value]] = field(default_factory=dict)  # reads whose gradients are set, not added to
    read: set[Array] = field(default_factory=set)
    give: Callable[[Value, Name, Frame], Statement] | None = None  # where what reads get goes, if not to gradients
    exchanges: list[Statement] = field(default_factory=list)  # declarations of arrays through which threads exchange
    set_whole: set[Array] = field(default_factory=set)  # shared: gradients are set each time before they are taken
    block_sums: dict[str, BlockSum | None] = field(default_factory=dict)
    set_lines: dict[Any, list[Added]] = field(default_factory=dict)  # by place and index
    #: What has to be written out, as its lines would be wrong; the first is what is done.
    unrolling: list[Unroll] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.uses = loops.totals(self.kernel)

    def include(self, other: Adjoints) -> None:
        """Include what the lines of another need to be declared."""
        self.shadows |= other.shadows
        self.set_whole |= other.set_whole
        self.read |= other.read
        self.helpers |= other.helpers
        self.unrolling += other.unrolling
        self.exchanges += other.exchanges

    def wants(self, value: Value) -> bool:
        """Whether an adjoint is of use."""
        return value in self.active.values and value not in self.dropped

    def grad(self, name: str) -> str:
        return f"grad_{name}"

    def finished(self, frame: Frame, brought: Iterable[Array] = ()) -> None:
        """Note what a copy reads; those around it have to have written it, but what a tape has `brought` back."""
        self.read |= {a.whole for a in frame.loads}
        if frame.outer is not None:
            found = frame.loads | frame.after
            if frame.loop is not None:  # what an iteration itself writes before it reads it
                body = frame.loop.body
                own = {a for a in found if loops.stores(body, a) and privatizable.fresh(a, frame.loop, self.kernel)}
                found = {a for a in found if a not in own or not privatizable.same_places(a, frame.loop, self.kernel)}
                found -= {*brought, *frame.outer.kept_before.get(frame.loop, ())}
            frame.outer.after |= found

    def contribute(self, value: Value, term: Node, out: list[Statement]) -> None:
        """Add to the adjoint of a value."""
        if not self.wants(value):
            return
        home = self.home[value.block]
        if value not in self.declared and out is home:
            self.pending.setdefault(value, []).append(term)
            return
        if value not in self.declared:
            self.declare(value, home, const=False)
        out.append(tree.assign(self.declared[value], term, "+="))

    def adjoint(self, value: Value, out: list[Statement]) -> Name | None:
        """A name for the adjoint, complete; None if it is 0."""
        if value in self.declared:
            return self.declared[value]
        found = self.pending.get(value)
        if not found:
            return None
        if len(found) == 1 and isinstance(found[0], Name):
            return found[0]
        self.declare(value, out, const=True)
        return self.declared[value]

    def declare(self, value: Value, out: list[Statement], const: bool) -> None:
        terms = self.pending.pop(value, [])
        name = self.names.fresh("d_" + (value.name or (value.attr.array.name if value.op == "load" else "t")))
        start = expr.total(terms) if terms else expr.number(0.0, self.names.type(value.type))
        out.append(Declare(self.names.type(value.type), name, start, const))
        self.declared[value] = Name(name)
