"""The reverse of a kernel: what was computed again, followed by its adjoint from the last item to the first."""

from __future__ import annotations

from typing import Any

from rawkern.gradients import ir
from rawkern.gradients.backward.forward import Frame
from rawkern.gradients.backward.value_reverse import ValueReverse
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Name, Node
from rawkern.gradients.code.passes.accumulation_sinking import sink
from rawkern.gradients.code.tree import BARRIER, Assign, Barrier, If, Run, Scope, Statement
from rawkern.gradients.index import scev
from rawkern.gradients.index.answers import unchanged
from rawkern.gradients.ir import (
    COLLECTIVE,
    Block,
    Loop,
    Store,
    Value,
    children,
    inside,
    walk,
)


class Reverse(ValueReverse):
    """Makes the text of one backward; `adjoint` of a value is the sum of what its uses `contribute`."""

    def another(self) -> Reverse:
        """For another text, as another thread has it."""
        return Reverse(self.kernel, self.active, self.names, self.where, None)

    def run(self) -> list[Statement]:
        """The lines of the backward's body."""
        with unchanged():
            return self._made()

    def _made(self) -> list[Statement]:
        frame = Frame(self.kernel.body, None, self.names)
        out: list[Statement] = []
        self.block(self.kernel.body, frame, out)
        for item in self.kernel.body.items:
            if isinstance(item, Value) and item.op == "param" and item in self.active.values:
                d = self.adjoint(item, out)
                if d is not None:
                    place, sums = Name(self.grad(item.attr))[0], self.block_sum(item.attr, item.type)

                    def adds(line: Any, place: Node = place, sums: Any = sums) -> Statement:
                        return sums.adding(place, 0, (), line) if sums else line(place)

                    if self.warps_together(self.kernel.body):
                        self.add_once(adds, item.type, d, out, out)
                        continue
                    self.helpers.add("warp_add")
                    out.append(adds(lambda p, d=d: Run(expr.call("warp_add", expr.address(p), d))))
        frame.settle()
        self.finished(frame)
        lines = _joined(frame.printed(), out)
        readable = {self.grad(a.name) for a in self.active.outputs if a not in self.exchanged} | set(self.kernel.arrays)
        shared = {n for a in self.kernel.shared for n in (a.name, self.grad(a.name))}
        for set_here in self.set_lines.values():
            sink(lines, set_here, readable, shared, self.names.fresh)
        return [*self._replayed(lines), *lines]

    def _replayed(self, lines: list[Statement]) -> list[Statement]:
        """The kernel once more, with what it overwrites, to put on tapes what these lines read there."""
        every = [i for i in walk(self.kernel.body) if isinstance(i, Value) and i.tape is not None]
        named = tree.names(lines) if every else set()
        self.tapes = [load for load in every if self.names.tape(load) in named]
        if not self.tapes:
            return []
        frame = Frame(self.kernel.body, None, self.names, replays=True)
        for load in self.tapes:
            value, numbers = frame.use(load), list(map(frame.use, load.tape or ()))
            bounds = zip(numbers, reversed(scev.loops_around(load.block)), strict=True)
            beyond = [
                If(expr.infix(number, ">=", self.names.most(loop)), [Run(expr.call("__trap"))], inline=True)
                for number, loop in bounds
                if scev.iterations(loop) is None
            ]
            frame.saved[load] = [*beyond, Assign(frame.taped(load), value)]
        frame.settle()
        self.finished(frame)
        thread, threads = expr.thread_of_launch(self.kernel.block, self.kernel.grid)
        return [
            tree.constant("long long", self.names.of("threads", "threads"), threads),
            tree.constant("long long", self.names.of("thread", "thread"), thread),
            Scope(frame.printed()),
            *([BARRIER] if frame.syncs else []),
        ]

    # Items --------------------------------------------------------------------------------------------------------

    def block(self, block: Block, frame: Frame, out: list[Statement]) -> None:
        """Append the reverse of a block."""
        self.home[block] = out
        for item in reversed(block.items):
            if isinstance(item, Value):
                if item in self.active.values and item.op not in ("phi", "result", "param"):
                    d = self.adjoint(item, out)
                    if d is not None:
                        self.value(item, d, frame, out)
            elif isinstance(item, Store):
                self.store(item, frame, out)
            elif isinstance(item, ir.Barrier) and self.kernel.shared:
                out.append(Barrier(item.text))
            elif isinstance(item, ir.If):
                self.branch(item, frame, out)
            elif isinstance(item, Loop):
                self.loop(item, frame, out)
                for value, load, around in self.after_loop.pop(item, []):
                    d = self.adjoint(value, out)
                    if d is not None:
                        some = If(expr.infix(d, "!=", expr.number(0.0, self.names.type(value.type))), [])
                        self.add(load, d, around, some.body, some=True)
                        out.append(some)

    # Branches -----------------------------------------------------------------------------------------------------

    def branch(self, item: ir.If, frame: Frame, out: list[Statement]) -> None:
        """The reverse of an if: of the side that was taken."""
        adjoints = [(r, a, b, self.adjoint(r, out)) for r, a, b in item.results if r in self.active.values]
        found = [(r, (a, b), d) for r, a, b, d in adjoints if d is not None]
        for r, (a, b), d in found:
            for kept, other in ((a, b), (b, a)):
                if r not in self.special and (link := self._added_to(kept, other, item)) is not None:
                    self.contribute(kept, d, out)  # on either side
                    self.passed |= {link, (r, kept)}
        sides: list[list[Statement]] = []
        late = self._late(item)
        if late and self._final(item):
            frame.skip.add(item)
        for which, block in enumerate(children(item)):
            inner = Frame(block, frame, self.names) if late else frame
            lines = self._side(block, [(r, values[which], d) for r, values, d in found], which == 0, inner, out)
            if late:
                inner.settle()
                self.finished(inner)
                lines = _joined(inner.printed(), lines) if lines else []
            sides.append(lines)
        if sides[0]:
            out.append(If(frame.express(item.condition), sides[0], sides[1]))
        elif sides[1]:
            out.append(If(frame.negated(item.condition, frame.express), sides[1]))

    def _side(
        self, block: Block, found: list[tuple[Value, Value, Name]], then: bool, frame: Frame, out: list[Statement]
    ) -> list[Statement]:
        """The reverse of one side of a branch; `found`: results, what they are on this side, adjoints."""
        lines: list[Statement] = []
        self.home[block] = lines
        for r, v, d in found:
            if r in self.special and then:
                self.contribute(v, self.set_now(r, d), lines if inside(v.block, block) else out)
            elif r not in self.special and (r, v) not in self.passed:
                self.contribute(v, d, lines)
        self.block(block, frame, lines)
        return lines

    def _added_to(self, kept: Value, other: Value, item: ir.If) -> tuple[Value, Value] | None:
        """Where one side of a branch only adds to a value that the other keeps: the sum with it as an operand."""
        around = children(item)
        if kept is other or any(inside(kept.block, block) for block in around) or kept not in self.active.values:
            return None
        v = other
        while any(inside(v.block, block) for block in around) and self.uses[v] == 1 and v.op == "binary":
            if v.attr not in "+-":
                return None
            firsts = v.args if v.attr == "+" else v.args[:1]
            if kept in firsts:
                return (v, kept) if v.args[0] is not v.args[1] else None
            v = next((a for a in firsts if a.op == "binary" and a.attr in "+-"), kept)
            if v.block is not other.block:
                return None
        return None

    def _late(self, item: ir.If) -> bool:
        """Whether a branch is computed again together with its reverse, not where it stood."""
        return self._final(item) or not any(
            isinstance(i, ir.Barrier) or getattr(i, "op", "") in COLLECTIVE
            or (isinstance(i, Value) and i.op == "load" and i.attr.array.shared)
            or (isinstance(i, Store) and i.place.array.shared)
            for block in children(item) for i in walk(block)
        )  # fmt: skip

    def _final(self, item: ir.If) -> bool:
        """Whether nothing comes after a branch, so that its reverse follows it at once."""
        block = item.block
        if not all(
            isinstance(i, Value) and i.op not in ("load", *COLLECTIVE)
            for i in block.items[block.items.index(item) + 1 :]
        ):
            return False
        return block.parent is None or (isinstance(block.parent, ir.If) and self._final(block.parent))


def _joined(first: list[Statement], second: list[Statement]) -> list[Statement]:
    """Two lists of lines, without barriers that follow one another."""
    found: list[Statement] = []
    for line in [*first, *second]:
        if not (found and line == BARRIER and found[-1] == line):
            found.append(line)
    return found
