"""The text of iterations that blocks deal out among themselves, see `blocks`: one of them as every block has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rawkern.gradients.analysis.activity import activity
from rawkern.gradients.analysis.blocks import Redistribution
from rawkern.gradients.backward.forward import Frame
from rawkern.gradients.backward.reverse import Reverse
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Cast, Name
from rawkern.gradients.code.names import Names
from rawkern.gradients.code.passes.barrier_elimination import without_redundant_barriers
from rawkern.gradients.code.tree import BARRIER, Assign, If, Note, Run, Statement
from rawkern.gradients.index import scev
from rawkern.gradients.index.answers import changing
from rawkern.gradients.ir import Block, Kernel, Loop, Store, Value, operands, walk
from rawkern.gradients.reading.syntax import Where

UNKNOWN = "of_all_iterations"  # in place of what one iteration does not know


class _Copy(Reverse):
    """The reverse of one iteration; what the reads are given is added up."""

    totals: dict[int, Name]

    def injective(self, s: Store) -> bool:
        return True  # asked of the kernel before

    def load(self, v: Value, d: Name, frame: Frame, out: list[Statement]) -> None:
        if v.order not in self.totals:
            return super().load(v, d, frame, out)
        out.append(Assign(self.totals[v.order], d, "+="))
        return None


@dataclass
class Redistributing:
    """Makes the text; `again` reads the kernel once more."""

    deal: Redistribution
    again: Callable[[], Kernel]
    names: Names
    where: Where
    copy: Reverse = field(init=False)
    found: list[Statement] = field(init=False)

    def lines(self) -> list[Statement] | None:
        """Lines that add to the gradients of the arrays; None if an iteration needs more than is known of it."""
        names, axis = self.names, self.deal.axis
        at, block, turn, parts = (names.fresh(n) for n in ("iteration", f"b{axis}", "turn", "parts"))
        out: list[Statement] = []
        kernel = self.again()
        head = Frame(kernel.body, None, names)
        loop = _loop(kernel, self.deal.loop)
        count, kind = Reverse(kernel, activity(kernel, self.deal.arrays), names, self.where, None).trips(
            loop, scev.bounds(loop), head, out
        )
        head.settle()
        begin, totals, ends = self._elements(at, kind)
        inner = self._iteration(at, kind, block, totals)
        blocks = Cast(kind, expr.special(f"gridDim.{axis}"))
        few = expr.infix(blocks, ">", count)
        few = few if expr.integer(count) is not None else expr.both(expr.infix(count, ">", 0), few)
        shared = {a.name for a in kernel.shared} | {f"grad_{a.name}" for a in kernel.shared}
        shared |= {name for s in self.copy.exchanges for name in tree.declared(s)}
        before = [*head.printed(), *out]
        own = expr.special(f"blockIdx.{axis}"), Name(UNKNOWN)  # what other blocks, or one iteration, do not know
        every = tree.all_expressions([*before, *begin, *inner, *ends])
        if self.copy.unrolling or any(each in own for e in every for each in expr.nodes(e)):
            return None
        grid = expr.special(f"gridDim.{axis}")
        each = tree.counting(
            tree.variable("unsigned int", block, Name(turn) / count),
            grid,
            parts,
            without_redundant_barriers(inner, shared),
        )
        turns = tree.counting(
            tree.variable(kind, turn, own[0]),
            count * Name(parts),
            grid,
            [tree.constant(kind, at, Name(turn) % count), *begin, each, *ends],
        )
        return [
            Note("// Blocks that read the same elements deal the iterations out: each adds up what all of them give."),
            *before,
            tree.constant(kind, parts, expr.where(few, blocks / count, 1)),
            turns,
            BARRIER,
        ]

    def _elements(self, at: str, kind: str) -> tuple[list[Statement], dict[int, Name], list[Statement]]:
        """Lines before, the name of the sum for each read, and lines that add the sums to the gradients."""
        kernel = self.again()
        reads = self._alone(kernel, at, kind, UNKNOWN)
        frame = Frame(kernel.body, None, self.names)
        begin: list[Statement] = []
        ends: list[Statement] = []
        totals: dict[int, Name] = {}
        for r in reads:
            place = frame.used(r.attr, r.args, f"grad_{r.attr.array.name}")
            total, of = Name(self.names.fresh(f"d_{r.attr.array.name}")), self.names.type(r.type)
            zero = expr.number(0.0, of)
            begin.append(tree.variable(of, total.name, zero))
            adds = Run(expr.call("atomicAdd", expr.address(place), total))
            ends.append(If(expr.infix(total, "!=", zero), [adds], inline=True))
            totals[r.order] = total
        frame.settle()
        return [*frame.printed(), *begin], totals, ends

    def _iteration(self, at: str, kind: str, block: str, totals: dict[int, Name]) -> list[Statement]:
        kernel = self.again()
        reads = self._alone(kernel, at, kind, block)
        self.copy = copy = _Copy(kernel, activity(kernel, self.deal.arrays, set(reads)), self.names, self.where, None)
        copy.totals = totals
        return copy.run()

    def _alone(self, kernel: Kernel, at: str, kind: str, block: str) -> list[Value]:
        """Make a kernel one that runs a single iteration, as a certain block; the reads of it."""
        for v in _values(kernel):
            if v.op == "special" and v.attr == f"blockIdx.{self.deal.axis}":
                v.attr = block
        with changing():
            _single(kernel.body, _loop(kernel, self.deal.loop), at, kind)
        return [i for i in walk(kernel.body) if isinstance(i, Value) and i.order in self.deal.reads and i.op == "load"]


def _loop(kernel: Kernel, order: int) -> Loop:
    return next(i for i in kernel.body.items if isinstance(i, Loop) and i.order == order)


def _values(kernel: Kernel) -> set[Value]:
    left = [v for i in walk(kernel.body) for v in (*operands(i), *([i] if isinstance(i, Value) else []))]
    found = set(left)
    while left:
        left = [a for v in left for a in v.args if a not in found]
        found.update(left)
    return found


def _single(body: Block, loop: Loop, at: str, kind: str) -> None:
    """Put one iteration of a loop in its place. What the others leave is unknown; what it adds to a sum is known."""
    before: list[Value] = []
    after = [c.result for c in loop.carried]
    steps = scev.induction(loop)
    for c in loop.carried:
        c.phi.block = body
        c.phi.order = c.result.order = loop.order
        if c.phi in steps:
            start, by = steps[c.phi]
            count = Value(loop.line, body, loop.order, type=kind, op="special", attr=at)
            c.phi.op, c.phi.args, c.phi.attr = "binary", (count, by), "*"
            if start.const != 0:
                grown = Value(loop.line, body, loop.order, type=c.phi.type, op="binary", args=(count, by), attr="*")
                before.append(grown)
                c.phi.args, c.phi.attr = (start, grown), "+"
            before.append(c.phi)
        else:
            c.phi.op, c.phi.args, c.phi.attr = "special", (), UNKNOWN
        if c.result.type == c.phi.type and c.phi not in steps:
            c.result.op, c.result.args, c.result.attr = "cast", (c.next,), None
        else:
            c.result.op, c.result.args, c.result.attr = "special", (), UNKNOWN
    inner = [*loop.test.items, *loop.body.items]
    for item in inner:
        item.block = body
    where = body.items.index(loop)
    rest = [i for i in body.items[where + 1 :] if i not in after]
    body.items[where:] = [*before, *inner, *after, *rest]


def redistributed(
    found: list[Redistribution], again: Callable[[], Kernel], names: Names, where: Where
) -> list[Redistributing]:
    """Those of the redistributions that can be made."""
    made: list[Redistributing] = []
    for deal in found:
        part = Redistributing(deal, again, names, where)
        lines = part.lines()
        if lines is not None:
            part.found = lines
            made.append(part)
    return made
