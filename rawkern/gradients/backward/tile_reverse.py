"""The text of transposed loops, see `tiles`: the thread of an element computes what other threads give to it."""

from __future__ import annotations

import math
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.analysis import tiles
from rawkern.gradients.analysis.recompute_slice import TRIVIAL
from rawkern.gradients.analysis.tiles import Tile
from rawkern.gradients.backward.forward import Frame
from rawkern.gradients.backward.loop_reverse import LoopReverse
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Name, Node
from rawkern.gradients.code.tree import BARRIER, Assign, Declare, For, Scope, Statement
from rawkern.gradients.index import scev
from rawkern.gradients.index.uniform import uniform
from rawkern.gradients.ir import Array, Block, Carried, Loop, Place, Value, inside


class Elsewhere(Frame):
    """A copy of a loop's body as another thread has it."""

    def prepare(self, digits: dict[Any, str], thread: Node, exchanged: dict[Any, str], layout: tuple[str, ...]) -> None:
        """What its digits and its number are called, and where all threads put the floats that are taken of them."""
        self.digits, self.thread, self.exchanged, self.layout = digits, thread, exchanged, layout

    def exchange(self, value: Any, hint: str) -> Node:
        """What another thread has; `value`: a value, or the variable of a sum for its adjoint."""
        if (value, self.layout) not in self.exchanged:
            self.exchanged[value, self.layout] = self.names.fresh(f"all_{hint}")
        return Name(self.exchanged[value, self.layout])[self.thread]

    def use(self, value: Value) -> Node:
        if self._how(value) == "own":
            return super().use(value)
        self._demand(value)
        return self.text(value)

    def text(self, value: Value) -> Node:
        if value.op == "special":
            return expr.special(str(self.digits.get(value.attr, value.attr)))
        how = self._how(value)
        if how == "exchanged":
            return self.exchange(value, value.name or "t")
        return self.right(value) if how == "again" else super().text(value)

    def outside(self, value: Value, loop: Loop) -> Node:
        return self.use(value) if value.op == "phi" else super().outside(value, loop)

    def _is_named(self, value: Value) -> bool:
        how = self._how(value)
        return super()._is_named(value) if how == "own" else how != "again"

    def _demand(self, value: Value) -> None:
        how = self._how(value)
        if how == "exchanged":
            self.exchange(value, value.name or "t")
        elif how == "again":
            for each in value.args:
                self._demand(each)
        elif how in ("own", "alike"):
            super()._demand(value)

    def _how(self, value: Value) -> str:
        """How a value of that thread is had."""
        if value.op in TRIVIAL or self.covers(value.block):
            return "own"
        if value.op == "cast" and value.args[0].op in TRIVIAL and value.name is None:
            return "again"
        if types.is_float(value.type):
            return "exchanged"
        return "alike" if uniform(value) else "again"


class TileReverse(LoopReverse):
    """Loops over tiles; `Reverse` has the rest."""

    def tiles(self, item: Loop) -> list[Tile]:
        """What of a loop is transposed."""
        found = [i for i in item.body.items if isinstance(i, Value) and i.op == "load" and i in self.active.values]
        reads = {r for r in found if r.attr.array.shared and not self.owns(r.attr.array) and not self.alone(r)}
        return (
            tiles.tiles(self.kernel, item, self.active.values, reads)
            if reads and self.give is None and not self.kernel.taped
            else []
        )

    def transpose(
        self, item: Loop, found: list[Tile], sums: dict[Carried, Name], frame: Frame, out: list[Statement]
    ) -> None:
        """Lines that add to the elements of tiles what all threads give to them; `sums` with their adjoints."""
        exchanged: dict[Any, str] = {}
        groups: list[Statement] = []
        for k, tile in enumerate(found):
            if any(tile.reads[0].attr.array == t.reads[0].attr.array for t in found[:k]):
                groups.append(BARRIER)  # another thread may take the element next
            groups.append(self._elements(item, tile, sums, exchanged, frame))
        for (value, layout), name in exchanged.items():
            kind, own = (value.type, frame.use(value)) if isinstance(value, Value) else (value.phi.type, sums[value])
            extents = (math.prod(self.kernel.block),)
            self.exchanges.append(Declare(f"__shared__ {self.names.type(kind)}", name, extents=extents))
            at = self.outer_of(item.block, own, out)
            if isinstance(value, Value) and inside(value.block, item.block):
                at = out
            at.append(Assign(Name(name)[_number(self.kernel.block, layout)], own))
        out += [BARRIER, *groups, BARRIER]

    def _elements(
        self, item: Loop, tile: Tile, sums: dict[Carried, Name], exchanged: dict[Any, str], frame: Frame
    ) -> Statement:
        array = tile.reads[0].attr.array
        self.shadows.add(array.whole)
        copy = Elsewhere(item.body, frame, self.names, loop=item)
        steps = scev.induction(item)
        plain = next((p for p, (start, by) in steps.items() if (start.const, by.const, p.type) == (0, 1, "int")), None)
        digits = {d: copy.name(plain) if d is item and plain else self.names.fresh(_hint(d)) for d in tile.extents}
        copy.prepare(digits, _number(self.kernel.block, tile.layout, digits), exchanged, tile.layout)
        loop, lines = self._owner(tile, digits)
        totals: dict[Place, Name] = {}
        for r in tile.reads:
            if r.attr not in totals:
                totals[r.attr] = Name(self.names.fresh(f"d_{array.name}"))
                kind = self.names.type(r.type)
                lines.append(tree.variable(kind, totals[r.attr].name, expr.number(0.0, kind)))
        body = self._given(item, tile, sums, copy, totals)
        index = [copy.outside(i, item) for i in tile.reads[0].args]
        copy.settle()
        self.finished(copy)
        begins = [
            tree.constant(p.type, copy.name(p), copy.outside(a, item) + Name(digits[item]) * copy.outside(by, item))
            for p, (a, by) in steps.items()
            if p in copy.needed and p is not plain
        ]
        inner = [*copy.lines(item.body), *body]
        if item in tile.free:
            inner = [*begins, *inner]
        else:
            lines[:] = [*lines, *begins]
        lines += self._others(tile, digits, inner)
        sign = "+="
        if tiles.whole(self.kernel, item, tile, self.active.values):
            self.set_whole.add(array)
            sign = "="
        grad = self.grad(array.name)
        lines += [Assign(expr.element(grad, index, place.fields), name, sign) for place, name in totals.items()]
        loop.body = lines
        return loop

    def _given(
        self, item: Loop, tile: Tile, sums: dict[Carried, Name], copy: Elsewhere, totals: dict[Place, Name]
    ) -> list[Statement]:
        """The reverse of an iteration as another thread has it, of what leads to the tile."""
        inner, body = self.another(), []
        inner.dropped = self.active.values - tile.wanted
        inner.give = lambda v, d, frame: Assign(totals[v.attr], d, "+=")
        inner.home[item.body] = body
        for c, d in sums.items():
            if c.next in tile.wanted:
                inner.contribute(c.next, copy.exchange(c, d.name), body)
        inner.block(item.body, copy, body)
        self.helpers |= inner.helpers
        self.unrolling += inner.unrolling
        return body

    def _owner(self, tile: Tile, digits: dict[Any, str]) -> tuple[Scope | For, list[Statement]]:
        """How a thread takes its element, or one after another; and with which statements that begins."""
        kinds = {d: "int" if isinstance(d, Loop) else "unsigned int" for d in tile.used}
        axes = [(a, e) for a, e in zip("zyx", reversed(self.kernel.block), strict=True) if e > 1]
        if [tile.extents[d] for d in tile.used] == [e for _, e in axes]:
            return Scope([]), [
                tree.constant(kinds[d], digits[d], expr.special(f"threadIdx.{a}"))
                for d, (a, _) in zip(tile.used, axes, strict=True)
            ]
        e, stride, lines = self.names.fresh("e"), 1, []
        for d in reversed(tile.used):
            digit = Name(e) / stride if stride > 1 else Name(e)
            rest = digit if d is tile.used[0] else digit % tile.extents[d]
            lines.append(tree.constant(kinds[d], digits[d], rest))
            stride *= tile.extents[d]
        start = tree.variable("int", e, expr.thread_number(self.kernel.block))
        return tree.counting(start, stride, math.prod(self.kernel.block), []), lines

    def _others(self, tile: Tile, digits: dict[Any, str], lines: list[Statement]) -> list[Statement]:
        """Loops over the digits that all give to one element."""
        for d in reversed(tile.free):
            kind = "int" if isinstance(d, Loop) else "unsigned int"
            name, extent = digits[d], tile.extents[d]
            if d is tile.free[-1] and tile.skewed:
                step = self.names.fresh("step")
                other = expr.added(Name(step), expr.thread_number(self.kernel.block)) % extent
                lines.insert(0, tree.constant(kind, name, other))
                name, kind = step, "unsigned int"
            lines = [tree.counting(tree.variable(kind, name, 0), extent, 1, lines)]
        return lines

    # Of `Reverse`.
    def another(self) -> TileReverse: ...
    def outer_of(self, block: Block, d: Node, out: list[Statement]) -> list[Statement]: ...
    def owns(self, array: Array) -> bool: ...
    def alone(self, v: Value) -> bool: ...


def _hint(digit: Any) -> str:
    return "k" if isinstance(digit, Loop) else f"t{digit[-1]}"


def _number(block: tuple[int, int, int], layout: tuple[str, ...], digits: dict[Any, str] | None = None) -> Node:
    """A thread's number in the block, its digits in an order from the slowest."""
    found, stride = list[Node](), 1
    for d in reversed(layout):
        digit = expr.special((digits or {}).get(d, d))
        found.append(digit if stride == 1 else stride * digit)
        stride *= block["xyz".index(d[-1])]
    return expr.chained("+", found) if found else expr.node(0)
