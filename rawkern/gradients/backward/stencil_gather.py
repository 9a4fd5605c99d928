"""The text that gathers a gradient, see `gather`: a copy of the reverse for each step, as the thread there has it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from rawkern.gradients import ir
from rawkern.gradients.analysis.activity import activity
from rawkern.gradients.analysis.definite_writes import Sets
from rawkern.gradients.analysis.gather import Gather, places
from rawkern.gradients.backward.forward import Frame
from rawkern.gradients.backward.reverse import Reverse
from rawkern.gradients.code.expressions import written
from rawkern.gradients.code.names import Names
from rawkern.gradients.code.tree import Assign, Declare, For, If, Run, Scope, Statement, every, expressions
from rawkern.gradients.index.affine import Poly
from rawkern.gradients.index.covers import Cover
from rawkern.gradients.index.guards import Comparison
from rawkern.gradients.ir import Block, Exit, Kernel, Store, Value, walk
from rawkern.gradients.reading.syntax import Where
from rawkern.gradients.rules import number


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
        self.total, self.here = self.names.fresh(f"d_{g.array.name}"), self._places(kernel)
        wide = "long long" if g.wide else "int"
        found: list[Statement] = [
            Declare(wide, self.here[a], written(p), const=True) for a, p in places(kernel).items()
        ]
        kind = self.names.summed(g.array.type)  # type: ignore[arg-type]
        element = self._element()
        owns = [f"{self.here[a.name]} < {written(a.extent)}" for a in g.axes if a.extent is not None]
        owns += [f"{element} >= 0"] if g.offset and (set(g.offset) != {()} or g.offset[()] < 0) else []
        body: list[Statement] = [Declare(kind, self.total, number(0.0, kind))]
        steps = sorted(set(g.steps.values()))
        for k, step in enumerate(steps, 1):
            body += self._gathered(step)
            if (
                sum(len(re.findall(r"\w[\[(]", text)) for s in every(body) for text in expressions(s)) * len(steps)
                > most * k
            ):
                return []
        body.append(Assign(f"grad_{g.array.name}[{element}]", self.total))
        if self.strided:
            here, threads = self.here["x"], kernel.block[0]
            start = Declare("long long", here, f"blockIdx.x * {threads}LL + threadIdx.x")
            step = Assign(here, f"gridDim.x * {threads}LL", "+=")
            return [For(start, f"{element} < {self.size}", step, body)]
        return [*found, If(" && ".join([*owns, f"{element} < {self.size}"]), body), *self._left()]

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

    def _element(self) -> str:
        terms = [
            " * ".join([self.here[a.name], *map(str, next(iter(a.coefficient)))]) for a in reversed(self.gather.axes)
        ]
        rest = f" + {written(self.gather.offset)}".replace("+ -", "- ") if self.gather.offset else ""
        return " + ".join(terms) + rest

    def _gathered(self, step: tuple[int, ...]) -> list[Statement]:
        """What the thread `step` before this one gives to this one's element."""
        chosen = {order for order, s in self.gather.steps.items() if s == step}
        lines = self._copy(chosen, step, lambda v, d, frame: Assign(self.total, d, "+="))
        if not lines:
            return []
        pairs = zip(self.gather.axes, step, strict=True)
        tests = [self._inside(axis.name, -by) for axis, by in pairs if by > 0 or (by and not self.strided)]
        if tests:
            return [If(" && ".join(tests), lines)]
        return lines if len(lines) == 1 else [Scope(lines)]

    def _left(self) -> list[Statement]:
        """What this thread gives to elements whose owner the grid does not have."""
        g = self.gather
        chosen = {order for order, leads in g.outside.items() if leads}
        if not chosen:
            return []

        def give(v: Value, d: str, frame: Frame) -> Statement:
            place = frame.used(v.attr, v.args, f"grad_{g.array.name}")
            tests = [self._out(g.axes[k].name, by) for k, by in g.outside[v.order]]
            return If(" || ".join(tests), [Run(f"atomicAdd(&{place}, {d})")])

        lines = self._copy(chosen, (0,) * len(g.axes), give)
        tests = sorted({self._out(g.axes[k].name, by) for order in chosen for k, by in g.outside[order]})
        return [If(" || ".join(tests), lines)]

    def _inside(self, axis: str, by: int) -> str:
        return f"{self.here[axis]} >= {-by}" if by < 0 else f"{self.here[axis]} + {by} < {self._extent(axis)}"

    def _out(self, axis: str, by: int) -> str:
        return f"{self.here[axis]} < {-by}" if by < 0 else f"{self.here[axis]} + {by} >= {self._extent(axis)}"

    def _extent(self, axis: str) -> str:
        kernel = self.again()
        threads, blocks = kernel.block["xyz".index(axis)], kernel.grid["xyz".index(axis)]
        return str(threads) if blocks == 1 else f"(int)gridDim.{axis}" + (f" * {threads}" if threads > 1 else "")

    def _copy(
        self, chosen: set[int], step: tuple[int, ...], give: Callable[[Value, str, Frame], Statement]
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
