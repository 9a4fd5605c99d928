"""The reverse of loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.gradients import ir, types
from rawkern.gradients.analysis import extrema, loops, privatizable, tiles
from rawkern.gradients.backward.adjoints import Adjoints
from rawkern.gradients.backward.forward import Frame
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Cast, Literal, Name, Node
from rawkern.gradients.code.tree import BARRIER, Assign, Declare, For, If, Run, Scope, Statement
from rawkern.gradients.index import scev
from rawkern.gradients.index.ranges import most_iterations
from rawkern.gradients.ir import Array, Block, Carried, Loop, Store, Value, walk
from rawkern.gradients.reading.places import GOES_ON, Unroll

FEW, MOST_READS = 16, 8  # iterations that are rather written out; reads of an iteration that a tape keeps
ZERO, ONE = Literal("0"), Literal("1")
Maximum = tuple[Value, str, Value]  # see `extrema.maximum`


class LoopReverse(Adjoints):
    """Loops by their class; `Reverse` has the rest."""

    def loop(self, item: Loop, frame: Frame, out: list[Statement]) -> None:
        """The reverse of a loop, after what is there."""
        carried = [c for c in item.carried if c.phi in self.active.values]
        if not carried and not any(map(self._has_adjoint, walk(item.body))):
            if any(isinstance(i, ir.Barrier) for i in walk(item.body)):
                out.append(BARRIER)  # what it kept apart stays apart
            return
        loops.check_condition(item, self.where.refuse)
        maxima = self._maxima(item, carried)
        sums = [c for c in carried if c not in maxima and loops.is_sum(c, item, self.uses)]
        alike = len(sums) + len(maxima) == len(carried)
        moving = any(self._moves(a, item) for a in self.kernel.shared)
        if alike and not moving and privatizable.any_order(item, self.kernel, self.active.arrays, self.injective):
            self._same_order(item, sums, maxima, frame, out)
        else:
            self._from_the_end(item, carried, frame, out)

    def _maxima(self, item: Loop, carried: list[Carried]) -> dict[Carried, Maximum]:
        """The running maxima among a loop's variables."""
        maxima = {c: found for c in carried if (found := extrema.maximum(c, self.uses)) is not None}
        if len(carried) == 1 and not maxima and extrema.chooses(item, carried[0]):
            self.taking |= {c: v for c in carried if (v := extrema.changes(c, self.uses)) is not None}
            return {c: (c.next, "!=", c.next) for c in carried if c in self.taking}
        return maxima

    def _has_adjoint(self, i: Any) -> bool:
        stores = isinstance(i, Store) and (i.value in self.active.values or i.place.array in self.active.arrays)
        return stores or i in self.active.values

    def _same_order(
        self, item: Loop, sums: list[Carried], maxima: dict[Carried, Maximum], frame: Frame, out: list[Statement]
    ) -> None:
        inner = Frame(item.body, frame, self.names, loop=item)
        body: list[Statement] = []
        self.home[item.body] = body
        if loops.open_end(item):
            body.append(BARRIER)  # in this order, another iteration comes next than did in the forward
        adjoints = {c: self.adjoint(c.result, out) for c in [*sums, *maxima]}
        found = {c: d for c, d in adjoints.items() if d is not None}
        if len(found) == 1:
            c, d = next(iter(found.items()))
            if c in maxima and extrema.chooses(item, c):
                return self._chosen(item, c, maxima[c], d, frame, out)
        self.steady.add(item)
        transposed = [] if maxima else self.tiles(item)
        if transposed:
            self.dropped |= tiles.spare(item, transposed, self.active.values)
        set_by = {c: self._set_now(item, c, of, frame, out) for c, of in maxima.items() if c in found}
        self.dropped |= {c.phi for c in adjoints}  # the same in every iteration
        for c, d in found.items():
            self.contribute(c.next, d, body)
        self.block(item.body, inner, body)
        inner.settle_loop(item)
        out += self.restored(item, inner, frame)
        self.finished(inner)
        last = [tree.increment(now.name) for _, now in set_by.values()]
        lines = inner.loop_lines(item, last=[*body, *last]) if body else []
        out += lines if len(lines) < 2 else [Scope(lines)]  # its variables have names of the forward's
        if transposed:
            self.transpose(item, transposed, found, frame, out)
        for c, d in found.items():
            if c in maxima:
                self._never(c, d, set_by[c][0], out)
            else:
                self.contribute(c.init, d, out)
        return None

    def _set_now(self, item: Loop, c: Carried, of: Maximum, frame: Frame, out: list[Statement]) -> tuple[Node, Name]:
        """The iteration that set a running maximum, and a variable that counts to it."""
        at, now = self._set_by(item, c, of, frame, out), Name(self.names.fresh(f"{c.phi.name or 't'}_at"))
        out.append(tree.variable("int", now.name, 0))
        self.special[c.next] = expr.infix(now, "==", at)
        return at, now

    def _never(self, c: Carried, d: Node, at: Node, out: list[Statement]) -> None:
        """What a running maximum began with has the gradient if no iteration set it."""
        if c.init in self.active.values:
            name, kind = self.names.fresh("d_start"), self.names.type(c.phi.type)
            out.append(tree.constant(kind, name, expr.where(expr.infix(at, "<", 0), d, expr.number(0.0, kind))))
            self.contribute(c.init, Name(name), out)

    def _chosen(self, item: Loop, c: Carried, of: Maximum, d: Node, frame: Frame, out: list[Statement]) -> None:
        """The reverse of the one iteration that set a running maximum, where the others give nothing."""
        at = self._set_by(item, c, of, frame, out)
        self.special[self.taking.get(c, c.next)] = None
        self.maximum_of[self.taking.get(c, c.next)] = item
        self.dropped.add(c.phi)
        inner, body = Frame(item.body, frame, self.names, loop=item), []
        self.home[item.body] = body
        self.contribute(c.next, d, body)
        self.partial += 1
        self.block(item.body, inner, body)
        self.partial -= 1
        inner.settle()
        out += self.restored(item, inner, frame)
        self.finished(inner)
        begins = self._begins(item, [o for o in item.carried if o is not c and o.phi in inner.needed], at, inner, frame)
        if c.phi in inner.needed:
            begins.append(tree.constant(self.names.type(c.phi.type), inner.name(c.phi), self.before_change[c]))
        if body:
            condition = expr.infix(at, ">=", 0)
            reduced = (i for i in walk(self.kernel.body) if isinstance(i, Value) and i.op == "reduce")
            if any(c.result in i.args for i in reduced):  # most threads of a block or warp have nothing to add
                condition = expr.both(condition, expr.infix(d, "!=", expr.number(0.0, self.names.type(c.phi.type))))
            out.append(If(condition, [*begins, *inner.lines(item.body), *body]))
        self._never(c, d, at, out)

    def _set_by(self, item: Loop, c: Carried, of: Maximum, frame: Frame, out: list[Statement]) -> Node:
        """Find the iteration that set a running maximum: where the loop runs again, or in a run for that."""
        at, k = (self.names.fresh(f"{c.phi.name or 't'}_{x}") for x in ("set_by", "k"))
        here = item.block is frame.block
        again = frame if here else Frame(item.body, frame, self.names, loop=item)
        sets = expr.infix(again.use(of[0]), of[1], again.use(c.phi)) if of[1] != "if" else again.use(of[2])
        start: list[Statement] = [Declare("int", at, expr.literal("-1"), also=((k, ZERO),))]
        found: list[Statement] = [tree.assign(at, k)]
        if c in self.taking:  # a loop in the loop begins with what there was
            was, kind = self.names.fresh(f"{c.phi.name or 't'}_before"), self.names.type(c.phi.type)
            self.before_change[c] = was
            start.append(tree.variable(kind, was, expr.number(0.0, kind)))
            found.append(tree.assign(was, again.use(c.phi)))
        last = [If(sets, found, inline=True), tree.increment(k)]
        self.maximum_of[c.next] = item
        if here:
            frame.watch(item, start, last)
            frame.use(c.result)
            return Name(at)
        again.settle_loop(item)
        out += self.restored(item, again, frame)
        self.finished(again)
        out += [*start, Scope(again.loop_lines(item, last=last))]
        return Name(at)

    def _from_the_end(self, item: Loop, carried: list[Carried], frame: Frame, out: list[Statement]) -> None:
        inner = Frame(item.body, frame, self.names, loop=item)
        body: list[Statement] = []
        self.home[item.body] = body
        running: dict[Carried, Name] = {}
        for c in carried:
            d = self.adjoint(c.result, out)
            running[c] = Name(self.names.fresh(f"d_{c.phi.name or 't'}"))
            kind = self.names.type(c.phi.type)
            out.append(tree.variable(kind, running[c].name, d or expr.number(0.0, kind)))
        for c in carried:
            self.contribute(c.next, running[c], body)
        self.block(item.body, inner, body)
        new = [
            (running[c], self.adjoint(c.phi, body) or expr.number(0.0, self.names.type(c.phi.type)), c) for c in carried
        ]
        new = [each for each in new if each[0] != each[1]]
        if len(new) > 1:
            for k, (name, value, c) in enumerate(new):
                before = Name(self.names.fresh("d_before"))
                body.append(tree.constant(self.names.type(c.phi.type), before.name, value))
                new[k] = (name, before, c)
        body += [Assign(name, value) for name, value, _ in new]
        inner.settle()
        reads = self._only_on_tape(item, inner, frame)
        if reads:
            inner.take(reads)
        moving = [a for a in self.kernel.shared if a in inner.loads | inner.after and self._moves(a, item)]
        out += self.restored(item, inner, frame, moving)
        self.finished(inner, moving)
        self._counted(item, inner, reads, moving, frame, body, out)
        for c in carried:
            self.contribute(c.init, running[c], out)

    def _moves(self, array: Array, loop: Loop) -> bool:
        """Whether iterations of a loop read of a local array what those before them have written."""
        return array.private and privatizable.changes(array, loop, self.kernel)

    def _only_on_tape(self, item: Loop, inner: Frame, frame: Frame) -> list[Value]:
        """The reads of shared memory that a tape has to keep: what they read may be something else by then.

        Only where the loop runs anyway, in the forward part; loops of a few iterations are rather written out.
        """
        most = scev.iterations(item) or scev.at_most(item) or most_iterations(self.kernel, item) or 0
        if item.block is not frame.block or not 0 < most <= loops.LONGEST_TAPE:
            return []
        lost = {a for a in inner.loads if privatizable.late(a, item, self.kernel) is not None}
        lost = {a for a in lost if (a not in inner.after and self._moves(a, item) if a.private else most > FEW)}
        found = [v for v in inner.needed if v.op == "load" and v.attr.array in lost]
        apart = any(scev.loops_around(v.block)[0] is not item for v in found)
        return [] if apart or len(found) > MOST_READS else found

    def _counted(
        self, item: Loop, inner: Frame, reads: list[Value], moving: list[Array], frame: Frame, body: list[Statement],
        out: list[Statement],
    ) -> None:  # fmt: skip
        """The loop from its last iteration to its first; what iterations began with is computed, or from a tape.

        `reads`, `moving`: what else the tape has, reads and local arrays.
        """
        steps, found = scev.induction(item), scev.bounds(item)
        needed = [c for c in item.carried if c.phi in inner.needed]
        taped = [c for c in needed if c.phi not in steps and not self._shifts(item, c)]
        k = Name(self.names.fresh("k"))
        first = self._begins(item, [c for c in needed if c not in taped], k, inner, frame)
        restored: list[Statement] = []
        if (found is not None or scev.iterations(item) is not None) and not taped and not reads and not moving:
            count, kind = self.trips(item, found, frame, out)
        else:
            count, kind = self._tape(item, taped, reads, moving, frame, first, restored, k, out), "int"
        own = next((s for s in first if (s.type, s.value) == (kind, k)), None)
        if own is not None:  # the loop's own variable counts from 0
            new = {k.name: own.name}
            first = [tree.with_expressions(s, lambda e: expr.renamed(e, new)) for s in first if s is not own]
            restored = tree.deep(restored, lambda e: expr.renamed(e, new))
            k = Name(own.name)
        known = expr.integer(count)
        last = count - 1 if known is None else expr.node(known - 1)
        lines = [*first, *restored, *inner.lines(item.body), *body]
        out.append(For(tree.variable(kind, k.name, last), expr.infix(k, ">=", 0), Assign(k, ONE, "-="), lines))

    @staticmethod
    def _shifts(item: Loop, c: Carried) -> tuple[str, int] | None:
        return loops.shifts(c) if scev.iterations(item) is not None else None

    def _begins(self, item: Loop, needed: list[Carried], k: Node, inner: Frame, frame: Frame) -> list[Declare]:
        """What iteration `k` begins with, of variables that grow evenly or shift."""
        steps, first = scev.induction(item), []
        for c in needed:
            name = inner.name(c.phi)
            if by := self._shifts(item, c):
                times = k if by[1] == 1 else by[1] * k
                first.append(tree.constant(c.phi.type, name, expr.infix(c.init.const or 0, by[0], times)))
            else:
                start, step = (frame.outside(v, item) for v in (c.init, steps[c.phi][1]))
                down = expr.positive(step)
                far = k if ONE in (step, down) else k * (step if down is None else down)
                grown = far if down is None else -far
                value = grown if start == ZERO else expr.total([start, grown])
                first.append(tree.constant(c.phi.type, name, value))
        return first

    def trips(self, item: Loop, found: Any, frame: Frame, out: list[Statement]) -> tuple[Node, str]:
        """How many iterations there are, as an expression and its type; none if it is below 0."""
        known = scev.iterations(item)
        if known is not None:
            return Literal(str(known)), "int"
        c, high, equal = found
        step = frame.outside(scev.induction(item)[c.phi][1], item)
        whole = "long long" if types.bits(c.phi.type) == 64 or types.bits(high.type) == 64 else "int"
        kind = high.type if high.type.startswith("unsigned") else whole  # as unsigned numbers: -1 is not below 5u
        name = self.names.fresh("iterations")
        start, end = (self._as(kind, v, frame.outside(v, item)) for v in (c.init, high))
        end = end + 1 if equal else end
        if start == ZERO and step == ONE and kind == whole and not equal:
            return end, whole  # below 0 there are none, either
        length = end if start == ZERO else end - start
        if step != ONE:
            by = self._as(kind, scev.induction(item)[c.phi][1], step)
            length = (length + by - 1) / by
        out.append(tree.constant(whole, name, expr.where(expr.infix(end, ">", start), length, 0)))
        return Name(name), whole

    @staticmethod
    def _as(kind: str, v: Value, e: Node) -> Node:
        return e if v.type == kind and isinstance(e, Name | Literal) else Cast(kind, e)

    def _tape(
        self, item: Loop, taped: list[Carried], reads: list[Value], moving: list[Array], frame: Frame,
        first: list[Declare], restored: list[Statement], k: Node, out: list[Statement],
    ) -> Node:  # fmt: skip
        """Keep what iterations begin with, and these reads, where the loop runs anyway or in a run for it.

        Returns how many there are. `first`, `restored`: get the lines that an iteration of the backward begins with.
        """
        known = scev.iterations(item)
        most = known if known is not None and known <= loops.LONGEST_TAPE else scev.at_most(item)
        trap = known is None or most is None
        most = self._most(item, taped, moving) if most is None else most
        here = item.block is frame.block and bool(taped or reads or moving)
        again = frame if here else Frame(item.body, frame, self.names, loop=item)
        count = self.names.fresh("iterations")
        start: list[Statement] = []
        begin: list[Statement] = []
        save: list[Statement] = []
        if trap:
            full = If(expr.infix(count, "==", most), [Run(expr.call("__trap"))], inline=True)
            (begin if moving else save).append(full)
        for a in moving:
            tape = self.names.fresh(f"{a.name}_tape")
            start.append(frame.array(a, tape, max(most, 1)))
            begin.append(frame.copied(a, Name(tape)[count], Name(a.name)))
            restored.append(frame.copied(a, Name(a.name), Name(tape)[k]))
        for v in [*(c.phi for c in taped), *reads]:
            tape = self.names.fresh(f"{v.attr.array.name if v in reads else v.name or 't'}_tape")
            kind = self.names.type(v.type)
            start.append(Declare(kind, tape, extents=(max(most, 1),)))
            saves = Assign(Name(tape)[count], again.use(v))
            if v in reads:
                again.saved[v] = [saves]  # there may be none in an iteration
            else:
                save.append(saves)
            first.insert(0, tree.constant(kind, again.name(v), Name(tape)[k]))
        start.append(tree.variable("int", count, 0))
        save.append(tree.increment(count))
        if here:
            frame.watch(item, start, save, begin)
            frame.kept_each[item] = moving
            for c in taped[:1]:
                frame.use(c.result)
        else:
            again.after |= set(moving)
            again.settle_loop(item)
            out += self.restored(item, again, frame)
            self.finished(again)
            out += [*start, Scope(again.loop_lines(item, [*begin, *save] if moving else save))]
        return Name(count) if trap else Literal(str(known))

    def _most(self, item: Loop, taped: list[Carried], moving: list[Array]) -> int:
        """How many iterations of a loop a tape has room for, where it does not tell itself."""
        if loops.shrinks(item):
            return 64
        known = [n for n in (self.max_iterations, most_iterations(self.kernel, item)) if n is not None]
        if known:
            return min(known)
        own = [c for c in taped or item.carried if c.phi.name != GOES_ON] or item.carried
        own = [] if moving and not taped else own
        names = sorted({*(c.phi.name or "a variable" for c in own), *(a.name for a in moving)})
        carry = f"{', '.join(names)} {'carries' if len(names) == 1 else 'carry'}"
        error = self.where.refuse(
            item.line, f"{carry} a value from one iteration to the next other than as a sum",
            "make the number of iterations a constant, or give rawkern.op or derive their most as max_iterations",
        )  # fmt: skip
        self.unrolling.append(Unroll(_with_outer(item), error))
        return 1

    def restored(self, item: Loop, copy: Frame, frame: Frame, moving: Sequence[Array] = ()) -> list[Statement]:
        """Lines after which local arrays are as they were before a loop; shared memory has to be as it was.

        `copy`: what reads them. `moving`: those that a tape brings back.
        """
        found: list[Statement] = []
        for array in sorted(copy.loads | copy.after, key=lambda a: a.name):
            why = privatizable.late(array, item, self.kernel)
            if why is None or array in moving:
                continue
            if not array.private:
                self.unrolling.append(Unroll(_with_outer(item), self.where.refuse(item.line, *why)))
                continue
            kept = frame.kept_before.setdefault(item, {})
            if array not in kept:
                kept[array] = self.names.fresh(f"{array.name}_before")
            found.append(frame.copied(array, Name(array.name), Name(kept[array])))
        return found

    # Of `TileReverse` and `Reverse`.
    def tiles(self, item: Loop) -> list[tiles.Tile]: ...
    def transpose(
        self, item: Loop, found: list[tiles.Tile], sums: dict[Carried, Name], frame: Frame, out: list[Statement]
    ) -> None: ...
    def injective(self, s: Any) -> bool: ...
    def block(self, block: Block, frame: Frame, out: list[Statement]) -> None: ...


def _with_outer(loop: Loop) -> tuple[int, ...]:
    """A loop and those around it, whose iterations may say how many it has."""
    return tuple(dict.fromkeys([loop.node, *(outer.node for outer in scev.loops_around(loop.block))]))
