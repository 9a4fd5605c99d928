"""The reverse of loads and stores: what is taken from and added to gradients in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rawkern.gradients import ir, types
from rawkern.gradients.analysis import loops, value_numbering
from rawkern.gradients.analysis.barrier_intervals import Phases
from rawkern.gradients.backward import privatized_sums
from rawkern.gradients.backward.forward import Frame
from rawkern.gradients.backward.privatized_sums import BlockSum
from rawkern.gradients.backward.tile_reverse import TileReverse
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Call, Name, Node
from rawkern.gradients.code.passes.accumulation_sinking import Added
from rawkern.gradients.code.tree import Assign, If, Run, Statement
from rawkern.gradients.index import scev
from rawkern.gradients.index.affine import poly
from rawkern.gradients.index.injective import injective, sets_once
from rawkern.gradients.index.uniform import together, uniform
from rawkern.gradients.ir import Array, Block, Loop, Store, Value, inside
from rawkern.gradients.passes import in_place


class MemoryReverse(TileReverse):
    """Loads and stores; `Reverse` has the rest."""

    def store(self, s: Store, frame: Frame, out: list[Statement]) -> None:
        """What was stored gets the gradient of its place; a place that was set has none before."""
        array = s.place.array
        if array not in self.active.arrays or not types.is_float(s.place.type):
            return
        if array.shared:
            self.shadows.add(array.whole)
        before = self._before(array)
        needed = array.shared or before is not None or self.on_tape(array) or self._overwrites(s)
        if s.value not in self.active.values and (s.adds or not needed):
            return
        place = frame.used(s.place, s.index, self.grad(array.name))
        kind = self.names.type(s.value.type)
        given, clear = self._taken(s, place, before)
        if s.value in self.active.values:
            name = Name(self.names.fresh(f"d_{array.name}"))
            out += [tree.constant(kind, name.name, given), *self._lost(s, before, frame)]
            kept = self._kept(s) if clear else None
            if kept is not None:
                self.dropped.add(kept[0])  # its part stays where it is
                self.contribute(kept[1], -name if kept[2] else name, out)
                return
            self.contribute(s.value, name, out)
        elif not clear:
            out += [Run(given)] if isinstance(given, Call) else []
            out += self._lost(s, before, frame)
        if clear:
            out.append(Assign(place, expr.number(0.0, kind)))

    def _taken(self, s: Store, place: Node, before: Array | None) -> tuple[Node, bool]:
        """What a store's place is given, read or taken; and whether it has to be cleared afterwards."""
        array = s.place.array
        if s.adds:
            return place, False
        if self.on_tape(array):
            self.exchanged.add(array)
            return place, True
        if array.shared:
            if array.private or injective(self.kernel, [s], within_block=True) is not None:
                return place, array not in self.set_whole
        elif self.injective(s) and not (before is not None and in_place.mixed(self.kernel, before.name)):
            return place, False
        else:
            self.exchanged.add(array)
        self.helpers.add("take")
        return expr.call("take", expr.address(place)), False

    def _before(self, array: Array) -> Array | None:
        """An array as it was before, if that has a gradient."""
        found = next((self.kernel.arrays[n] for n, of in self.kernel.before.items() if of == array.name), None)
        return found if found in self.active.arrays else None

    def _lost(self, s: Store, before: Array | None, frame: Frame) -> list[Statement]:
        """What was in an element before it was set has no part in it."""
        if before is None or in_place.mixed(self.kernel, before.name):
            return []
        place = frame.used(s.place, s.index, self.grad(before.name))
        return [Assign(place, expr.number(0.0, self.names.type(s.value.type)))]

    def _overwrites(self, s: Store) -> bool:
        """Whether a store may come after one of a value that has a gradient, which is lost then."""
        around = set(scev.loops_around(s.block))
        return any(
            i.value in self.active.values and i.place == s.place
            and (i.order < s.order or around & set(scev.loops_around(i.block)))
            for i in loops.stores(self.kernel.body, s.place.array)
        )  # fmt: skip

    def _kept(self, s: Store) -> tuple[Value, Value, bool] | None:
        """Of ``s[i] = s[i] + v``: the load, v, whether it is subtracted.

        What the place had as gradient is that of its old value.
        """
        v = s.value
        for k, r in enumerate(v.args if v.op == "binary" and v.attr in ("+", "-") and self.uses[v] == 1 else ()):
            same = r.op == "load" and (r.attr, r.args, r.block) == (s.place, s.index, s.block) and self.uses[r] == 1
            between = [i for i in loops.stores(self.kernel.body, s.place.array) if r.order < i.order < s.order]
            if same and not between and (k == 0 or v.attr == "+"):
                return r, v.args[1 - k], v.attr == "-"
        return None

    def injective(self, s: Store) -> bool:
        """Whether an output's elements are each set once: by one store, by one thread in one iteration."""
        return sets_once(self.kernel, s, self.assumed)

    def on_tape(self, array: Array) -> bool:
        """Whether a tape keeps what is read of an array, whose elements are of one thread each."""
        return array.name in self.kernel.taped

    def owns(self, array: Array) -> bool:
        """Whether the elements that threads read of an array are their own: all reads have one signature."""
        if array.name in self.beside or self.on_tape(array):
            return self.on_tape(array)
        if array not in self.owned:
            read = [r for r in loops.reads(self.kernel.body, array) if r in self.active.values]
            found = injective(self.kernel, read, within_block=array.shared, assumed=self.assumed)
            self.owned[array] = found is not None
        return self.owned[array]

    def alone(self, v: Value, but_itself: bool = False) -> bool:
        """Whether no other thread reads, between the same barriers, what a thread reads of a shared array here.

        `but_itself`: by another of the text's reads.
        """
        if self.phases is None:
            self.phases = Phases(self.kernel)
        read = [r for r in loops.reads(self.kernel.body, v.attr.array) if r in self.active.values]
        return self.phases.apart(v, [r for r in read if not (but_itself and r is v)])

    def sets(self, array: Array) -> bool:
        """Whether each element (or field) in global memory is given its gradient by one thread, by each read once.

        Where several reads mean the same, all mean the same elements in every thread: so the first sets them all.
        """
        if array.shared or array.name in self.beside or array.name in self.kernel.before or self.on_tape(array):
            return False
        if array not in self.set_alone:
            read = [r for r in loops.reads(self.kernel.body, array) if r in self.active.values]
            places = [[r for r in read if r.attr == place] for place in {r.attr for r in read}]
            self.set_alone[array] = all(map(self._told_apart, places))
        return self.set_alone[array]

    def _told_apart(self, read: list[Value]) -> bool:
        """Whether reads of one place mean each element once; or the same, all of them, if their indices are alike."""
        alike: dict[Any, list[Value]] = {}
        for r in read:
            alike.setdefault(self._index(r), []).append(r)
        if len(read) > 1 and (
            None in alike or any(len(set(map(value_numbering.reach, a))) > 1 for a in alike.values())
        ):
            return False
        if len(alike) == 1:
            return all(map(self.once, read))
        numbers = injective(self.kernel, read, iterations=True, assumed=self.assumed)
        return numbers is not None and len({numbers[a[0]] for a in alike.values()}) == len(alike)

    def _index(self, r: Value) -> Any:
        found = value_numbering.reach(r)
        return None if found is None else found[: len(r.args)]

    def once(self, r: Value) -> bool:
        """Whether no two executions of a read, in any threads and iterations, mean the same element."""
        return injective(self.kernel, [r], iterations=True, assumed=self.assumed) is not None

    def load(self, v: Value, d: Name, frame: Frame, out: list[Statement]) -> None:
        """What was read gets the adjoint; of places that stay the same in a loop, once after it."""
        array = v.attr.array
        if self.give is not None:
            out.append(self.give(v, d, frame))
            return None
        if array.shared:
            self.shadows.add(array.whole)
        if self.on_tape(array):
            self.exchanged.add(array)
        if array.shared or self.on_tape(array):  # the store before takes it
            return self.add(v, d, frame, out)
        outermost: Loop | None = None
        around: Any = frame
        block, level = v.block, frame
        while block.parent is not None:
            parent = block.parent
            if isinstance(parent, Loop):
                if any(inside(i.block, parent.body) for i in v.args):
                    break
                while level.outer is not None and level.covers(parent.body):
                    level = level.outer
                outermost, around = parent, level
            elif not isinstance(parent, ir.If):
                break
            block = parent.block
        if outermost is None or any(inside(i.block, outermost.body) for i in v.args):
            return self.add(v, d, frame, out)
        total = Value(v.line, outermost.block, type=v.type, op="sum", name=array.name)
        self.active.values.add(total)
        self.after_loop.setdefault(outermost, []).append((total, v, around))
        self.contribute(total, d, out)
        if total in self.pending:
            self.declare(total, self.home[outermost.block], const=False)
        return None

    def add(self, v: Value, d: Name, frame: Frame, out: list[Statement], some: bool = False) -> None:
        """Add to the gradient of a place; `some`: under a condition of the backward's own."""
        array = v.attr.array
        place = frame.used(v.attr, v.args, self.grad(array.name))
        first = (v.attr, self._index(v)) not in {(r.attr, self._index(r)) for r in self.set_by.get(array, ())}
        if first and (some or self.partial):
            self.set_alone[array] = False  # not each element is set here, and the first has to set it
        if self.sets(array):
            if first:
                self.set_by.setdefault(array, []).append(v)
            added = Added(place, d)
            self.set_lines.setdefault((v.attr, self._index(v)), []).append(added)
            out.append(added.line("=" if first else "+="))
        elif self.owns(array) or (array.shared and (array.private or self.alone(v))):
            out.append(Assign(place, d, "+="))
        else:
            self._add_atomically(v, d, place, frame, out, some)

    def _add_atomically(self, v: Value, d: Name, place: Node, frame: Frame, out: list[Statement], some: bool) -> None:
        """Add to the gradient of a place that other threads add to; first to sums of the block or the warp."""
        shared = v.attr.array.shared
        sums = None if shared else self.block_sum(v.attr.array.name, v.attr.type)
        index = frame.express(v.args[0]) if sums else 0

        def adds(line: Callable[[Node], Statement]) -> Statement:
            return sums.adding(place, index, v.attr.fields, line) if sums else line(place)

        if sums is not None and sums.own:
            out.append(adds(lambda p: Assign(p, d, "+=") if p != place else _atomic(p, d)))
        elif not (some or self.partial) and all(map(uniform, v.args)) and self.warps_together(v.block):
            first = shared and math.prod(self.kernel.block) > 32 and self.alone(v, but_itself=True)
            self.add_once(adds, v.type, d, out, self.outer_of(v.block, d, out), alone=first)
        elif not any(self._by_lane(i) for i in v.args):
            self.helpers.add("warp_add")
            out.append(adds(lambda p: Run(expr.call("warp_add", expr.address(p), d))))
        else:
            out.append(adds(lambda p: _atomic(p, d)))

    def block_sum(self, name: str, kind: types.Type) -> BlockSum | None:
        """Sums of a block's own for the gradient of an array or a number, if all blocks add to the same elements."""
        if name not in self.block_sums:
            array = self.kernel.arrays.get(name)
            found = [] if array is None else loops.reads(self.kernel.body, array)
            reads = [r for r in found if r in self.active.values]
            of = kind if array is None else array.type
            self.block_sums[name] = privatized_sums.block_sum(self.kernel, name, of, reads, self.names)
        return self.block_sums[name]

    def warps_together(self, block: Block) -> bool:
        """Whether whole warps come to a block."""
        return math.prod(self.kernel.block) % 32 == 0 and together(self.kernel, block)

    def outer_of(self, block: Block, d: Node, out: list[Statement]) -> list[Statement]:
        """Where the sum over a warp of an adjoint is made: before a loop that leaves it as it is."""
        name = d.name if isinstance(d, Name) else None
        changes = any(name in tree.declared(s) or (isinstance(s, Assign) and s.target == d) for s in out)
        if block.parent not in self.steady or changes:
            return out
        return self.home[block.parent.block]

    def add_once(
        self, adds: Callable[..., Statement], kind: str, d: Name, out: list[Statement], sum_at: list[Statement],
        alone: bool = False,
    ) -> None:  # fmt: skip
        """Add to a place that all threads mean, once for each block; `adds` makes lines of one for a place.

        `alone`: only this line of the text adds to the place between two barriers.
        """
        block = self.kernel.block
        whole, first = (
            ("warp_sum", expr.call("lane")) if math.prod(block) == 32 else ("block_sum", expr.thread_number(block))
        )
        self.helpers |= {whole, "lane"}
        name = Name(self.names.fresh(f"{d.name}_all"))
        sum_at.append(tree.constant(self.names.type(kind), name.name, expr.call(whole, d)))
        does = adds(lambda p: Assign(p, name, "+=") if alone else _atomic(p, name))
        out.append(If(expr.infix(first, "==", 0), [does], inline=not isinstance(does, If)))

    def _by_lane(self, index: Value) -> bool:
        """Whether the lanes of a warp are likely to read different places."""
        for key in poly(index):
            for s in key:
                if (isinstance(s, str) and s == "threadIdx.x") or isinstance(s, Value):
                    return True
                if isinstance(s, Loop) and any(
                    self._by_lane(c.init) for c in s.carried if not types.is_float(c.phi.type)
                ):
                    return True
        return False


def _atomic(place: Node, d: Node) -> Statement:
    return Run(expr.call("atomicAdd", expr.address(place), d))
