"""The reverse of loops."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from rawkern.gradients import ir, types
from rawkern.gradients.analysis import extrema, loops, privatizable, tiles
from rawkern.gradients.analysis.activity import Activity
from rawkern.gradients.backward.forward import Frame
from rawkern.gradients.code.names import Names
from rawkern.gradients.code.tree import BARRIER, Assign, Declare, For, If, Run, Scope, Statement
from rawkern.gradients.index import scev
from rawkern.gradients.ir import Block, Carried, Kernel, Loop, Value, walk
from rawkern.gradients.reading.places import GOES_ON, NeedsUnrolling
from rawkern.gradients.reading.syntax import Where
from rawkern.gradients.rules import number


class LoopReverse:
    """Loops by their class; `Reverse` has the rest."""

    kernel: Kernel
    active: Activity
    names: Names
    where: Where
    max_iterations: int | None
    uses: Any
    home: dict[Block, list[Statement]]
    special: dict[Value, str]
    maximum_of: dict[Value, Loop]
    dropped: set[Value]
    steady: set[Any]
    taking: dict[Carried, Value]  # of maxima that iterations change under conditions: what takes the new value
    before_change: dict[Carried, str]  # of those: the variable for what the last iteration that changed it began with
    partial: int  # above 0 in what not all iterations of a loop do

    def loop(self, item: Loop, frame: Frame, out: list[Statement]) -> None:
        """The reverse of a loop, behind what is there."""
        carried = [c for c in item.carried if c.phi in self.active.values]
        if (
            not carried
            and not any(
                i in self.active.values or getattr(i, "value", None) in self.active.values for i in walk(item.body)
            )
            and not any(
                getattr(i, "place", None) is not None and i.place.array in self.active.arrays for i in walk(item.body)
            )
        ):
            if any(isinstance(i, ir.Barrier) for i in walk(item.body)):
                out.append(BARRIER)  # what it kept apart stays apart
            return
        loops.check_condition(item, self.where.refuse)
        maxima = {c: found for c in carried if (found := extrema.maximum(c, self.uses)) is not None}
        if len(carried) == 1 and not maxima and extrema.chooses(item, carried[0]):
            self.taking |= {c: v for c in carried if (v := extrema.changes(c, self.uses)) is not None}
            maxima = {c: (c.next, "!=", c.next) for c in carried if c in self.taking}
        sums = [c for c in carried if c not in maxima and loops.is_sum(c, item, self.uses)]
        alike = len(sums) + len(maxima) == len(carried)
        if alike and privatizable.any_order(item, self.kernel, self.active.arrays, self.injective):
            self._same_order(item, sums, maxima, frame, out)
        else:
            self._from_the_end(item, carried, frame, out)

    def _same_order(
        self,
        item: Loop,
        sums: list[Carried],
        maxima: dict[Carried, tuple[Value, str, Value]],
        frame: Frame,
        out: list[Statement],
    ) -> None:
        inner = Frame(item.body, frame, self.names, loop=item)
        body: list[Statement] = []
        self.home[item.body] = body
        if loops.open_end(item):
            body.append(BARRIER)  # in this order, another iteration comes next than did in the forward
        found = {c: self.adjoint(c.result, out) for c in [*sums, *maxima]}
        given = [c for c, d in found.items() if d is not None]
        if len(given) == 1 and given[0] in maxima and extrema.chooses(item, given[0]):
            return self._chosen(item, given[0], maxima[given[0]], str(found[given[0]]), frame, out)
        self.steady.add(item)
        transposed = [] if maxima else self.tiles(item)
        if transposed:
            self.dropped |= tiles.spare(item, transposed, self.active.values)
        last: list[Statement] = []
        for c, of in maxima.items():
            if found[c] is not None:
                at, now = self._set_by(item, c, of, frame, out), self.names.fresh(f"{c.phi.name or 't'}_at")
                out.append(Declare("int", now, "0"))
                self.special[c.next] = f"{now} == {at}"
                last.append(Assign(now, "1", "+="))
        for c, d in found.items():
            self.dropped.add(c.phi)  # the same in every iteration
            if d is not None:
                self.contribute(c.next, d, body)
        self.block(item.body, inner, body)
        inner.settle_loop(item)
        self.check_late(item, inner)
        self.finished(inner)
        if body:
            lines = inner.loop_lines(item, last=[*body, *last])
            out += lines if len(lines) == 1 else [Scope(lines)]  # its variables have names of the forward's
        if transposed:
            self.transpose(item, transposed, {c: d for c, d in found.items() if d is not None}, frame, out)
        for c, d in found.items():
            if d is not None and c in maxima:
                self._never(c, d, self.special[c.next].partition(" == ")[2], out)
            elif d is not None:
                self.contribute(c.init, d, out)
        return None

    def _never(self, c: Carried, d: str, at: str, out: list[Statement]) -> None:
        """What a running maximum began with has the gradient if no iteration set it."""
        if c.init in self.active.values:
            name, kind = self.names.fresh("d_start"), self.names.type(c.phi.type)
            out.append(Declare(kind, name, f"{at} < 0 ? {d} : {number(0.0, kind)}", const=True))
            self.contribute(c.init, name, out)

    def _chosen(
        self, item: Loop, c: Carried, of: tuple[Value, str, Value], d: str, frame: Frame, out: list[Statement]
    ) -> None:
        """The reverse of the one iteration that set a running maximum, where the others give nothing."""
        at = self._set_by(item, c, of, frame, out)
        self.special[self.taking.get(c, c.next)] = ""
        self.maximum_of[self.taking.get(c, c.next)] = item
        self.dropped.add(c.phi)
        inner, body = Frame(item.body, frame, self.names, loop=item), []
        self.home[item.body] = body
        self.contribute(c.next, d, body)
        self.partial += 1
        self.block(item.body, inner, body)
        self.partial -= 1
        inner.settle()
        self.check_late(item, inner)
        self.finished(inner)
        begins = self._begins(item, [o for o in item.carried if o is not c and o.phi in inner.needed], at, inner, frame)
        if c.phi in inner.needed:
            begins.append(Declare(self.names.type(c.phi.type), inner.name(c.phi), self.before_change[c], const=True))
        if body:
            condition = f"{at} >= 0"
            reduced = (i for i in walk(self.kernel.body) if isinstance(i, Value) and i.op == "reduce")
            if any(c.result in i.args for i in reduced):  # most threads of a block or warp have nothing to add
                condition += f" && {d} != {number(0.0, self.names.type(c.phi.type))}"
            out.append(If(condition, [*begins, *inner.lines(item.body), *body]))
        self._never(c, d, at, out)

    def _set_by(self, item: Loop, c: Carried, of: tuple[Value, str, Value], frame: Frame, out: list[Statement]) -> str:
        """Find the iteration that set a running maximum: where the loop runs again, or in a run for that."""
        at, k = (self.names.fresh(f"{c.phi.name or 't'}_{x}") for x in ("set_by", "k"))
        here = item.block is frame.block
        again = frame if here else Frame(item.body, frame, self.names, loop=item)
        sets = f"{again.use(of[0])} {of[1]} {again.use(c.phi)}" if of[1] != "if" else again.use(of[2])
        start: list[Statement] = [Declare("int", at, "-1", also=((k, "0"),))]
        found: list[Statement] = [Assign(at, k)]
        if c in self.taking:  # a loop in the loop begins with what there was
            was, kind = self.names.fresh(f"{c.phi.name or 't'}_before"), self.names.type(c.phi.type)
            self.before_change[c] = was
            start.append(Declare(kind, was, number(0.0, kind)))
            found.append(Assign(was, again.use(c.phi)))
        last = [If(sets, found, inline=True), Assign(k, "1", "+=")]
        self.maximum_of[c.next] = item
        if here:
            frame.watch(item, start, last)
            frame.use(c.result)
            return at
        again.settle_loop(item)
        self.check_late(item, again)
        self.finished(again)
        out += [*start, Scope(again.loop_lines(item, last=last))]
        return at

    def _from_the_end(self, item: Loop, carried: list[Carried], frame: Frame, out: list[Statement]) -> None:
        inner = Frame(item.body, frame, self.names, loop=item)
        body: list[Statement] = []
        self.home[item.body] = body
        running: dict[Carried, str] = {}
        for c in carried:
            d = self.adjoint(c.result, out)
            running[c] = self.names.fresh(f"d_{c.phi.name or 't'}")
            kind = self.names.type(c.phi.type)
            out.append(Declare(kind, running[c], d or number(0.0, kind)))
        for c in carried:
            self.contribute(c.next, running[c], body)
        self.block(item.body, inner, body)
        new = [(running[c], self.adjoint(c.phi, body) or number(0.0, self.names.type(c.phi.type)), c) for c in carried]
        new = [each for each in new if each[0] != each[1]]
        if len(new) > 1:
            for k, (_, text, c) in enumerate(new):
                name = self.names.fresh("d_before")
                body.append(Declare(self.names.type(c.phi.type), name, text, const=True))
                new[k] = (new[k][0], name, c)
        body += [Assign(name, text) for name, text, _ in new]
        inner.settle()
        self.check_late(item, inner)
        self.finished(inner)
        self._counted(item, inner, frame, body, out)
        for c in carried:
            self.contribute(c.init, running[c], out)

    def _counted(self, item: Loop, inner: Frame, frame: Frame, body: list[Statement], out: list[Statement]) -> None:
        """The loop from its last iteration to its first; what iterations began with is computed, or from a tape."""
        steps, found = scev.induction(item), scev.bounds(item)
        needed = [c for c in item.carried if c.phi in inner.needed]
        taped = [c for c in needed if c.phi not in steps and not self._shifts(item, c)]
        k = self.names.fresh("k")
        first = self._begins(item, [c for c in needed if c not in taped], k, inner, frame)
        if (found is not None or scev.iterations(item) is not None) and not taped:
            count, kind = self.trips(item, found, frame, out)
        else:
            count, kind = self._tape(item, taped, frame, first, k, out), "int"
        own = next((s for s in first if (s.type, s.value) == (kind, k)), None)
        if own is not None:  # the loop's own variable counts from 0
            first = [replace(s, value=re.sub(rf"\b{k}\b", own.name, s.value)) for s in first if s is not own]
            k = own.name
        last = str(int(count) - 1) if count.isdigit() else f"{count} - 1"
        lines = [*first, *inner.lines(item.body), *body]
        out.append(For(Declare(kind, k, last), f"{k} >= 0", Assign(k, "1", "-="), lines))

    @staticmethod
    def _shifts(item: Loop, c: Carried) -> tuple[str, int] | None:
        return loops.shifts(c) if scev.iterations(item) is not None else None

    def _begins(self, item: Loop, needed: list[Carried], k: str, inner: Frame, frame: Frame) -> list[Declare]:
        """What iteration `k` begins with, of variables that grow evenly or shift."""
        steps, first = scev.induction(item), []
        for c in needed:
            name = inner.name(c.phi)
            if by := self._shifts(item, c):
                times = k if by[1] == 1 else f"({by[1]} * {k})"
                first.append(Declare(c.phi.type, name, f"{c.init.const} {by[0]} {times}", const=True))
            else:
                start, step = (frame.outside(v, item) for v in (c.init, steps[c.phi][1]))
                step = "" if step == "1" else f" * {_inner(step)}"
                start = "" if start == "0" else f"{_inner(start)} + "
                first.append(Declare(c.phi.type, name, f"{start}{k}{step}", const=True))
        return first

    def trips(self, item: Loop, found: Any, frame: Frame, out: list[Statement]) -> tuple[str, str]:
        """How many iterations there are, as an expression and its type; none if it is below 0."""
        known = scev.iterations(item)
        if known is not None:
            return str(known), "int"
        c, high, equal = found
        step = frame.outside(scev.induction(item)[c.phi][1], item)
        whole = "long long" if types.bits(c.phi.type) == 64 or types.bits(high.type) == 64 else "int"
        kind = high.type if high.type.startswith("unsigned") else whole  # as unsigned numbers: -1 is not below 5u
        name = self.names.fresh("iterations")
        start, end = (self._as(kind, v, frame.outside(v, item)) for v in (c.init, high))
        end += " + 1" if equal else ""
        if start == "0" and step == "1" and kind == whole and not equal:
            return end, whole  # below 0 there are none, either
        length = end if start == "0" else f"{end} - {start}"
        if step != "1":
            by = self._as(kind, scev.induction(item)[c.phi][1], step)
            length = f"({length} + {by} - 1) / {by}"
        out.append(Declare(whole, name, f"{end} > {start} ? {length} : 0", const=True))
        return name, whole

    @staticmethod
    def _as(kind: str, v: Value, text: str) -> str:
        return text if v.type == kind and re.fullmatch(r"\w+", text) else f"({kind})({text})"

    def _tape(
        self, item: Loop, taped: list[Carried], frame: Frame, first: list[Declare], k: str, out: list[Statement]
    ) -> str:
        """Keep what iterations begin with, where the loop runs anyway or in a run for it; returns their number."""
        known = scev.iterations(item)
        most = known if known is not None and known <= loops.LONGEST_TAPE else scev.at_most(item)
        trap = known is None or most is None
        if most is None:
            most = 64 if loops.shrinks(item) else self.max_iterations
        if most is None:
            own = [c for c in taped or item.carried if c.phi.name != GOES_ON] or item.carried
            names = sorted({c.phi.name or "a variable" for c in own})
            carry = f"{', '.join(names)} {'carries' if len(names) == 1 else 'carry'}"
            error = self.where.refuse(
                item.line, f"{carry} a value from one iteration to the next other than as a sum",
                "make the number of iterations a constant, or give rawkern.op or derive their most as max_iterations",
            )  # fmt: skip
            raise NeedsUnrolling(_with_outer(item), error)
        here = item.block is frame.block and bool(taped)
        again = frame if here else Frame(item.body, frame, self.names, loop=item)
        count = self.names.fresh("iterations")
        start: list[Statement] = []
        save: list[Statement] = []
        if trap:
            save.append(If(f"{count} == {most}", [Run("__trap()")], inline=True))
        for c in taped:
            tape = self.names.fresh(f"{c.phi.name or 't'}_tape")
            kind = self.names.type(c.phi.type)
            start.append(Declare(kind, tape, extent=f"[{max(most, 1)}]"))
            save.append(Assign(f"{tape}[{count}]", again.use(c.phi)))
            first.insert(0, Declare(kind, again.name(c.phi), f"{tape}[{k}]", const=True))
        start.append(Declare("int", count, "0"))
        save.append(Assign(count, "1", "+="))
        if here:
            frame.watch(item, start, save)
            frame.use(taped[0].result)
        else:
            again.settle_loop(item)
            self.check_late(item, again)
            self.finished(again)
            out += [*start, Scope(again.loop_lines(item, save))]
        return count if trap else str(known)

    def check_late(self, item: Loop, frame: Frame) -> None:
        """Refuse to read shared memory that may hold something else by now."""
        for array in frame.loads | frame.after:
            why = privatizable.late(array, item, self.kernel)
            if why is not None:
                raise NeedsUnrolling(_with_outer(item), self.where.refuse(item.line, *why))

    # Of `TileReverse` and `Reverse`.
    def tiles(self, item: Loop) -> list[tiles.Tile]: ...
    def transpose(
        self, item: Loop, found: list[tiles.Tile], sums: dict[Carried, str], frame: Frame, out: list[Statement]
    ) -> None: ...
    def injective(self, s: Any) -> bool: ...
    def adjoint(self, value: Value, out: list[Statement]) -> str | None: ...
    def contribute(self, value: Value, text: str, out: list[Statement]) -> None: ...
    def block(self, block: Block, frame: Frame, out: list[Statement]) -> None: ...
    def finished(self, frame: Frame) -> None: ...


def _inner(text: str) -> str:
    return text if re.fullmatch(r"[\w.]+", text) else f"({text})"


def _with_outer(loop: Loop) -> tuple[int, ...]:
    """A loop and those around it, whose iterations may say how many it has."""
    return tuple(dict.fromkeys([loop.node, *(outer.node for outer in scev.loops_around(loop.block))]))
