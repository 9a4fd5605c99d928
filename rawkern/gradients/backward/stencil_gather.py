"""The text that gathers a gradient, see `gather`: a copy of the reverse for each step, as the thread there has it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from rawkern.gradients import ir
from rawkern.gradients.analysis.activity import activity
from rawkern.gradients.analysis.definite_writes import Sets
from rawkern.gradients.analysis.gather import Gather, places
from rawkern.gradients.analysis.recompute_slice import OPPOSITES
from rawkern.gradients.backward.forward import Frame
from rawkern.gradients.backward.reverse import Reverse
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Binary, Cast, Literal, Name, Node
from rawkern.gradients.code.names import Names
from rawkern.gradients.code.tree import Assign, For, If, Run, Scope, Statement
from rawkern.gradients.index.affine import Poly
from rawkern.gradients.index.covers import Cover
from rawkern.gradients.index.guards import Comparison
from rawkern.gradients.ir import Block, Exit, Kernel, Store, Value, walk
from rawkern.gradients.reading.syntax import Where


class _Copy(Reverse):
    """The reverse of one step."""

    def injective(self, s: Store) -> bool:
        return True  # asked of the kernel before


@dataclass
class Gathering:
    """Makes the text; `again` reads the kernel once more."""

    gather: Gather
    again: Callable[[], Kernel]
    names: Names
    where: Where
    size: str  # the parameter with the number of elements
    helpers: set[str] = field(default_factory=set)
    made: list[Statement] = field(default_factory=list)
    strided: bool = False  # whether each thread has many places, a grid apart

    def lines(self, kernel: Kernel, most: float = math.inf) -> list[Statement]:
        """Statements that set the gradient of the array; none if they will load and call more than `most` times."""
        g = self.gather
        self.total, self.here = Name(self.names.fresh(f"d_{g.array.name}")), self._places(kernel)
        wide = "long long" if g.wide else "int"
        found: list[Statement] = [tree.constant(wide, self.here[a], expr.written(p)) for a, p in places(kernel).items()]
        kind = self.names.summed(g.array.type)  # type: ignore[arg-type]
        element = self._element()
        owns = [expr.infix(self.here[a.name], "<", expr.written(a.extent)) for a in g.axes if a.extent is not None]
        owns += [expr.infix(element, ">=", 0)] if g.offset and (set(g.offset) != {()} or g.offset[()] < 0) else []
        body: list[Statement] = [tree.variable(kind, self.total.name, expr.number(0.0, kind))]
        steps = sorted(set(g.steps.values()))
        for k, step in enumerate(steps, 1):
            body += self._gathered(step)
            if sum(_cost(e) for e in tree.all_expressions(body)) * len(steps) > most * k:
                return []
        body.append(Assign(Name(f"grad_{g.array.name}")[element], self.total))
        fits = expr.infix(element, "<", self.size)
        if self.strided:
            here, threads = self.here["x"], Literal(f"{kernel.block[0]}LL")
            start = tree.variable("long long", here, expr.special("blockIdx.x") * threads + expr.special("threadIdx.x"))
            return [For(start, fits, tree.assign(here, expr.special("gridDim.x") * threads, "+="), body)]
        return [*found, If(expr.both(*owns, fits), body), *self._left()]

    def sets(self, kernel: Kernel) -> Sets:
        """What is set: the elements of all owners."""
        if self.strided:
            return Sets((), 1)
        whole, index = places(kernel), Poly(self.gather.offset)
        below = []
        for a in self.gather.axes:
            for key, value in whole[a.name].items():
                index[tuple(sorted((*key, *next(iter(a.coefficient))), key=repr))] = value
            if a.extent is not None:
                below.append(Comparison(whole[a.name], a.extent, False, ()))
        return Sets((Cover(index, tuple(below), kernel.block),), 1)

    # Parts --------------------------------------------------------------------------------------------------------

    def _places(self, kernel: Kernel) -> dict[str, str]:
        """A name for the thread's place along each axis: the user's, where there is one."""
        hints = {a: f"thread_{a}" for a in places(kernel)}
        for item in walk(kernel.body):
            if isinstance(item, Value) and item.name:
                source = item.args[0] if item.op == "cast" else item
                hints[self.gather.coordinates.get(source.order, "")] = str(item.name)
        return {a: self.names.fresh(hints[a]) for a in places(kernel)}

    def _element(self) -> Node:
        axes = reversed(self.gather.axes)
        terms = [expr.chained("*", [self.here[a.name], *map(expr.special, next(iter(a.coefficient)))]) for a in axes]
        found, offset = expr.chained("+", terms), self.gather.offset
        return expr.added(found, expr.written(offset)) if offset else found

    def _gathered(self, step: tuple[int, ...]) -> list[Statement]:
        """What the thread `step` before this one gives to this one's element."""
        chosen = {order for order, s in self.gather.steps.items() if s == step}
        lines = self._copy(chosen, step, lambda v, d, frame: Assign(self.total, d, "+="))
        if not lines:
            return []
        pairs = zip(self.gather.axes, step, strict=True)
        tests = [self._inside(axis.name, -by) for axis, by in pairs if by > 0 or (by and not self.strided)]
        if tests:
            return [If(expr.both(*tests), lines)]
        return lines if len(lines) == 1 else [Scope(lines)]

    def _left(self) -> list[Statement]:
        """What this thread gives to elements whose owner the grid does not have."""
        g = self.gather
        chosen = {order for order, leads in g.outside.items() if leads}
        if not chosen:
            return []

        def give(v: Value, d: Node, frame: Frame) -> Statement:
            place = frame.used(v.attr, v.args, f"grad_{g.array.name}")
            tests = [self._out(g.axes[k].name, by) for k, by in g.outside[v.order]]
            return If(expr.chained("||", tests), [Run(expr.call("atomicAdd", expr.address(place), d))])

        lines = self._copy(chosen, (0,) * len(g.axes), give)
        outside = {(g.axes[k].name, by) for order in chosen for k, by in g.outside[order]}
        outside = sorted(outside, key=lambda out: (out[0], out[1] < 0, abs(out[1])))
        return [If(expr.chained("||", [self._out(axis, by) for axis, by in outside]), lines)]

    def _inside(self, axis: str, by: int) -> Binary:
        here = Name(self.here[axis])
        return expr.infix(here, ">=", -by) if by < 0 else expr.infix(here + by, "<", self._extent(axis))

    def _out(self, axis: str, by: int) -> Node:
        inside = self._inside(axis, by)
        return Binary(OPPOSITES[inside.sign], inside.left, inside.right)

    def _extent(self, axis: str) -> Node:
        kernel = self.again()
        threads, blocks = kernel.block["xyz".index(axis)], kernel.grid["xyz".index(axis)]
        if blocks == 1:
            return expr.node(threads)
        count = Cast("int", expr.special(f"gridDim.{axis}"))
        return count * threads if threads > 1 else count

    def _copy(
        self, chosen: set[int], step: tuple[int, ...], give: Callable[[Value, Node, Frame], Statement]
    ) -> list[Statement]:
        """The reverse of the kernel as the thread some steps before this one has it, for some of the reads."""
        kernel = self.again()
        reads = {i for i in walk(kernel.body) if isinstance(i, Value) and i.order in chosen}
        by = {axis.name: s for axis, s in zip(self.gather.axes, step, strict=True)}
        kind = "long long" if self.gather.wide else "int"
        for item in list(walk(kernel.body)):
            if isinstance(item, Value) and item.order in self.gather.coordinates:
                _shift(item, self.here[self.gather.coordinates[item.order]], by[self.gather.coordinates[item.order]])
            elif isinstance(item, Value) and item.op == "cast" and item.type == kind and _is_place(item.args[0]):
                item.op, item.args, item.attr, item.name = "special", (), item.args[0].attr, None
        _enclosed(kernel.body)
        found = activity(kernel, (self.gather.array.name,), reads)
        copy = _Copy(kernel, found, self.names, self.where, None)
        copy.give = give
        lines = copy.run()
        self.helpers |= copy.helpers
        return lines


def _cost(e: Node) -> int:
    """How many loads and calls an expression has."""
    return sum(1 for _ in expr.accesses(e)) + sum(1 for _ in expr.calls(e))


def _shift(v: Value, here: str, by: int) -> None:
    """Make a coordinate that of another thread."""
    own = Value(v.line, v.block, type=v.type, op="special", attr=here)
    if by == 0:
        v.op, v.args, v.attr, v.const = "special", (), here, None
        return
    amount = Value(v.line, v.block, type="int", op="const", attr=str(abs(by)), const=abs(by))
    v.op, v.args, v.attr, v.const = "binary", (own, amount), "-" if by > 0 else "+", None


def _is_place(v: Value) -> bool:
    """Whether a value is a coordinate of this thread itself, after `_shift`."""
    return v.op == "special" and "." not in v.attr


def _enclosed(body: Block) -> None:
    """Put what follows an early return into a branch, so that a thread goes on after the copy."""
    for at, item in enumerate(body.items):
        if isinstance(item, Exit):
            stays, more = item.condition.args[0] if item.condition.args else item.condition, []
            if item.condition.op != "unary" or item.condition.attr != "!":
                stays = Value(item.line, body, item.order, type="bool", op="unary", args=(item.condition,), attr="!")
                more = [stays]
            branch = ir.If(item.line, body, item.order, condition=stays, last=2**31)
            branch.then, branch.other = Block(body.items[at + 1 :], branch), Block([], branch)
            for inner in branch.then.items:
                inner.block = branch.then
            body.items[at:] = [*more, branch]
            _enclosed(branch.then)
            return
