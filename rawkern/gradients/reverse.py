"""The reverse of a kernel: what was computed again, followed by its adjoint from the last item to the first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rawkern.gradients import loops, ownership, types
from rawkern.gradients.activity import Activity
from rawkern.gradients.forward import Frame, Group, Names, bare
from rawkern.gradients.ir import (
    Array,
    Barrier,
    Block,
    If,
    Kernel,
    Loop,
    Store,
    Value,
    children,
    inside,
    walk,
)
from rawkern.gradients.loop_reverse import LoopReverse
from rawkern.gradients.rules import derivative, number
from rawkern.gradients.syntax import Where


class Reverse(LoopReverse):
    """Makes the text of one backward; `adjoint` of a value is the sum of what its uses `contribute`."""

    def __init__(
        self, kernel: Kernel, active: Activity, names: Names, where: Where, max_iterations: int | None
    ) -> None:
        self.kernel, self.active, self.names, self.where = kernel, active, names, where
        self.max_iterations = max_iterations
        self.uses = loops.totals(kernel)
        self.home: dict[Block, list[Any]] = {}
        self.pending: dict[Value, list[str]] = {}
        self.declared: dict[Value, str] = {}
        self.after_loop: dict[Loop, list[tuple[Value, Value, Frame]]] = {}
        self.special: dict[Value, str] = {}  # values of a running maximum: what says that this iteration set it
        self.maximum_of: dict[Value, Loop] = {}
        self.dropped: set[Value] = set()
        self.helpers: set[str] = set()
        self.exchanged: set[Array] = set()  # outputs whose gradient is taken out of memory
        self.owned: dict[Array, bool] = {}
        self.shadows: set[Array] = set()
        self.read: set[Array] = set()

    def run(self) -> list[Any]:
        """The lines of the backward's body."""
        frame = Frame(self.kernel.body, None, self.names)
        out: list[Any] = []
        self.block(self.kernel.body, frame, out)
        for item in self.kernel.body.items:
            if isinstance(item, Value) and item.op == "param" and item in self.active.values:
                d = self.adjoint(item, out)
                if d is not None:
                    self.helpers.add("warp_add")
                    out.append(f"warp_add(&{self.grad(item.attr)}[0], {d});")
        frame.settle()
        self.finished(frame)
        return _joined(frame.printed(), out)

    def grad(self, name: str) -> str:
        return f"grad_{name}"

    def finished(self, frame: Frame) -> None:
        """Note what a copy reads; those around it have to have written it."""
        self.read |= frame.loads
        if frame.outer is not None:
            found = frame.loads | frame.after
            if frame.loop is not None:  # what an iteration itself writes before it reads it
                body = frame.loop.body
                found = {
                    a
                    for a in found
                    if not (loops.stores(body, a) and loops.fresh(a, frame.loop) and loops.same_places(a, self.kernel))
                }
            frame.outer.after |= found

    # Adjoints -----------------------------------------------------------------------------------------------------

    def contribute(self, value: Value, text: str, out: list[Any]) -> None:
        """Add to the adjoint of a value."""
        if value not in self.active.values or value in self.dropped:
            return
        home = self.home[value.block]
        if value not in self.declared and out is home:
            self.pending.setdefault(value, []).append(text)
            return
        if value not in self.declared:
            self._declare(value, home, const=False)
        out.append(f"{self.declared[value]} += {bare(text)};")

    def adjoint(self, value: Value, out: list[Any]) -> str | None:
        """A name for the adjoint, complete; None if it is 0."""
        if value in self.declared:
            return self.declared[value]
        found = self.pending.get(value)
        if not found:
            return None
        if len(found) == 1 and re.fullmatch(r"d_\w+", found[0]):
            return found[0]
        self._declare(value, out, const=True)
        return self.declared[value]

    def _declare(self, value: Value, out: list[Any], const: bool) -> None:
        terms = self.pending.pop(value, [])
        name = self.names.fresh("d_" + (value.name or (value.attr.array.name if value.op == "load" else "t")))
        text = (
            bare(terms[0])
            if len(terms) == 1
            else " + ".join(
                t if re.fullmatch(r"[\w.]+|[^?<>=]*", t) and not t.startswith("-") else f"({t})" for t in terms
            )
        )
        start = text or number(0.0, self.names.type(value.type))
        out.append(f"{'const ' if const else ''}{self.names.type(value.type)} {name} = {start};")
        self.declared[value] = name

    # Items --------------------------------------------------------------------------------------------------------

    def block(self, block: Block, frame: Frame, out: list[Any]) -> None:
        """Put the reverse of a block behind what is there."""
        self.home[block] = out
        for item in reversed(block.items):
            if isinstance(item, Value):
                if item in self.active.values and item.op not in ("phi", "result", "param"):
                    d = self.adjoint(item, out)
                    if d is not None:
                        self.value(item, d, frame, out)
            elif isinstance(item, Store):
                self.store(item, frame, out)
            elif isinstance(item, Barrier) and self.kernel.shared:
                out.append(f"{item.text};")
            elif isinstance(item, If):
                self.branch(item, frame, out)
            elif isinstance(item, Loop):
                self.loop(item, frame, out)
                for total, load, around in self.after_loop.pop(item, []):
                    d = self.adjoint(total, out)
                    if d is not None:
                        group = Group(f"if ({d} != {number(0.0, self.names.type(total.type))}) {{")
                        self.add(load, d, around, group.body)
                        out.append(group)

    def value(self, v: Value, d: str, frame: Frame, out: list[Any]) -> None:
        """What a value's operands get of its adjoint."""
        args = v.args
        if v.op == "binary":
            self._binary(v, d, frame, out)
        elif v.op == "unary":
            self.contribute(args[0], f"-{d}", out)
        elif v.op == "cast":
            self.contribute(args[0], d, out)
        elif v.op == "select":
            if v in self.special:
                self.contribute(args[1], f"({self.special[v]} ? {d} : {self._zero(v)})", out)
                return
            for k in (1, 2):
                if args[k] in self.active.values:
                    test = bare(frame.express(args[0]))
                    test = test if re.fullmatch(r"[\w.]+", test) else f"({test})"
                    pair = (d, self._zero(v)) if k == 1 else (self._zero(v), d)
                    self.contribute(args[k], f"({test} ? {pair[0]} : {pair[1]})", out)
        elif v.op == "call":
            self._call(v, d, frame, out)
        elif v.op == "shfl":
            self._shuffle(v, d, frame, out)
        elif v.op == "load":
            self.load(v, d, frame, out)
        else:
            raise AssertionError(v.op)

    def _zero(self, v: Value) -> str:
        return number(0.0, self.names.type(v.type))

    def _binary(self, v: Value, d: str, frame: Frame, out: list[Any]) -> None:
        a, b = v.args
        active = [x in self.active.values for x in v.args]
        if v.attr in "+-":
            self.contribute(a, d, out)
            self.contribute(b, d if v.attr == "+" else f"-{d}", out)
        elif v.attr == "*":
            if active[0]:
                self.contribute(a, f"{d} * {frame.use(b)}", out)
            if active[1]:
                self.contribute(b, f"{d} * {frame.use(a)}", out)
        else:
            if active[0]:
                self.contribute(a, f"{d} / {frame.use(b)}", out)
            if active[1]:
                self.contribute(b, f"-{d} * {frame.use(v)} / {frame.use(b)}", out)

    def _call(self, v: Value, d: str, frame: Frame, out: list[Any]) -> None:
        rule = v.attr[0]
        active = [a in self.active.values for a in v.args]
        if v in self.special:
            which = (
                active.index(True)
                if sum(active) == 1
                else next(k for k, a in enumerate(v.args) if a.op != "phi" or a.attr is not self.maximum_of[v])
            )
            self.contribute(v.args[which], f"({self.special[v]} ? {d} : {self._zero(v)})", out)
            return
        for k, arg in enumerate(v.args):
            if not active[k] or rule.derivatives[k] is None:
                continue
            probe = derivative(rule, k, "double", ["{a}", "{b}", "{c}"], "{r}", active) or ""
            args = [
                frame.use(a) if mark in probe else "" for a, mark in zip(v.args, ("{a}", "{b}", "{c}"), strict=False)
            ]
            result = frame.use(v) if "{r}" in probe else ""
            text = derivative(rule, k, self.names.type(v.type), args, result, active)
            one = number(1.0, self.names.type(v.type))
            self.contribute(
                arg,
                d
                if text == one
                else f"{d} * {text}"
                if not (text or "").startswith(f"{one} / ")
                else f"{d} / {(text or '').removeprefix(one + ' / ')}",
                out,
            )

    def _shuffle(self, v: Value, d: str, frame: Frame, out: list[Any]) -> None:
        """The lanes that a value came from get its adjoint back."""
        by = frame.express(v.args[1])
        if v.attr == "xor":
            text = f"__shfl_xor_sync(0xffffffff, {d}, {by})"
        elif v.attr == "idx":
            self.helpers |= {"warp_sum", "lane"}
            text = f"(lane() == {by} ? warp_sum({d}) : {self._zero(v)})"
            name = self.names.fresh("d_lanes")
            out.append(f"const {self.names.type(v.type)} {name} = warp_sum({d});")
            text = f"(lane() == {by} ? {name} : {self._zero(v)})"
        else:
            self.helpers.add("lane")
            other = "up" if v.attr == "down" else "down"
            name = self.names.fresh("d_lanes")
            out.append(f"const {self.names.type(v.type)} {name} = __shfl_{other}_sync(0xffffffff, {d}, {by});")
            came, stayed = (
                ("lane() >= {0}", "lane() + {0} >= 32") if v.attr == "down" else ("lane() + {0} < 32", "lane() < {0}")
            )
            by = by if re.fullmatch(r"\w+", by) else f"({by})"
            zero = self._zero(v)
            self.contribute(v.args[0], f"({came.format(by)} ? {name} : {zero})", out)
            self.contribute(v.args[0], f"({stayed.format(by)} ? {d} : {zero})", out)
            return
        name = self.names.fresh("d_lanes")
        out.append(f"const {self.names.type(v.type)} {name} = {bare(text)};")
        self.contribute(v.args[0], name, out)

    # Memory -------------------------------------------------------------------------------------------------------

    def store(self, s: Store, frame: Frame, out: list[Any]) -> None:
        """What was stored gets the gradient of its place; a place that was set has none before."""
        array = s.place.array
        if array not in self.active.arrays:
            return
        if array.shared:
            self.shadows.add(array)
        if s.value not in self.active.values and (s.adds or not array.shared):
            return
        place = frame.used(s.place, s.index, self.grad(array.name))
        kind = self.names.type(s.value.type)
        if s.adds:
            text, clear = place, False
        elif array.shared:
            if any(self._meets(s, "threadIdx")):
                self.helpers.add("take")
                text, clear = f"take(&{place})", False
            else:
                text, clear = place, True
        elif self.injective(s):
            text, clear = place, False
        else:
            self.helpers.add("take")
            self.exchanged.add(array)
            text, clear = f"take(&{place})", False
        if s.value in self.active.values:
            name = self.names.fresh(f"d_{array.name}")
            out.append(f"const {kind} {name} = {text};")
            self.contribute(s.value, name, out)
        elif not clear:
            out.append(f"{text};")
        if clear:
            out.append(f"{place} = {number(0.0, kind)};")

    def _meets(self, s: Store, _: str) -> list[bool]:
        """Whether several threads of a block may store to one place."""
        return [
            (len(s.index) == 0 and self._several(s))
            or (len(s.index) > 0 and self._signature(s.place.array, s.index, s.block, s.order) is None)
        ]

    def _several(self, s: Store) -> bool:
        known = ownership.facts(s.block, s.order)
        return bool(set(ownership.threads(self.kernel, True)) - set(known.fixed))

    def injective(self, s: Store) -> bool:
        """Whether an output's elements are each set once: by this store alone, by one thread in one iteration."""
        if len([i for i in walk(self.kernel.body) if isinstance(i, Store) and i.place == s.place]) > 1:
            return False
        around, block = [], s.block
        while block.parent is not None:
            if isinstance(block.parent, Loop):
                around.append(block.parent)
            block = block.parent.block
        return ownership.signature(self.kernel, s.index[0], s.block, s.order, loops=around) is not None

    def _signature(self, array: Array, index: Sequence[Value], block: Block, order: int) -> Any:
        if len(index) > 1:  # row-major, if each index stays within its extent
            return self._rows(array, index, block, order)
        return ownership.signature(self.kernel, index[0], block, order, within_block=array.shared)

    def _rows(self, array: Array, index: Sequence[Value], block: Block, order: int) -> Any:
        """Several indices, each a digit of threadIdx with a constant: together they tell threads apart."""
        digits = ownership.threads(self.kernel, True)
        known = ownership.facts(block, order)
        found = [ownership.poly(i) for i in index]
        alone = [{k: v for k, v in p.items() if k != ()} for p in found]
        seen = {k[0] for p in alone if len(p) == 1 for k, v in p.items() if len(k) == 1 and v == 1 and k[0] in digits}
        if set(digits) - seen - set(known.fixed):
            return None
        return tuple(tuple(sorted(p.items(), key=repr)) for p in found), tuple(
            sorted((str(d), repr(p)) for d, p in known.fixed.items())
        )

    def owns(self, array: Array) -> bool:
        """Whether the elements that threads read of an array are their own: all reads have one signature."""
        if array not in self.owned:
            read = [r for r in loops.reads(self.kernel.body, array) if r in self.active.values]
            found = {self._signature(array, r.args, r.block, r.order) if r.args else None for r in read}
            self.owned[array] = len(found) == 1 and None not in found
        return self.owned[array]

    def load(self, v: Value, d: str, frame: Frame, out: list[Any]) -> None:
        """What was read gets the adjoint; of places that stay the same in a loop, once behind it."""
        array = v.attr.array
        if array.shared:
            self.shadows.add(array)
            return self.add(v, d, frame, out)
        outermost, around = None, frame
        block, level = v.block, frame
        while block.parent is not None:
            parent = block.parent
            if isinstance(parent, Loop):
                if any(inside(i.block, parent.body) for i in v.args):
                    break
                while level.outer is not None and level.covers(parent.body):
                    level = level.outer
                outermost, around = parent, level
            elif not isinstance(parent, If):
                break
            block = parent.block
        if outermost is None or any(inside(i.block, outermost.body) for i in v.args):
            return self.add(v, d, frame, out)
        total = Value(v.line, outermost.block, type=v.type, op="sum", name=array.name)
        self.active.values.add(total)
        self.after_loop.setdefault(outermost, []).append((total, v, around))
        self.contribute(total, d, out)
        if total in self.pending:
            self._declare(total, self.home[outermost.block], const=False)
        return None

    def add(self, v: Value, d: str, frame: Frame, out: list[Any]) -> None:
        """Add to the gradient of a place."""
        array = v.attr.array
        place = frame.used(v.attr, v.args, self.grad(array.name))
        if self.owns(array):
            out.append(f"{place} += {d};")
        elif not any(self._by_lane(i) for i in v.args):
            self.helpers.add("warp_add")
            out.append(f"warp_add(&{place}, {d});")
        else:
            out.append(f"atomicAdd(&{place}, {d});")

    def _by_lane(self, index: Value) -> bool:
        """Whether the lanes of a warp are likely to read different places."""
        for key in ownership.poly(index):
            for s in key:
                if (isinstance(s, str) and s == "threadIdx.x") or isinstance(s, Value):
                    return True
                if isinstance(s, Loop) and any(
                    self._by_lane(c.init) for c in s.carried if not types.is_float(c.phi.type)
                ):
                    return True
        return False

    # Branches -----------------------------------------------------------------------------------------------------

    def branch(self, item: If, frame: Frame, out: list[Any]) -> None:
        """The reverse of an if: of the side that was taken."""
        found = [(r, a, b, self.adjoint(r, out)) for r, a, b in item.results if r in self.active.values]
        sides: list[list[Any]] = []
        late = self._late(item, frame)
        if late and self._final(item):
            frame.skip.add(item)
        for which, block in enumerate(children(item)):
            lines: list[Any] = []
            self.home[block] = lines
            inner = Frame(block, frame, self.names) if late else frame
            for r, a, b, d in found:
                if d is None:
                    continue
                if r in self.special:
                    if which == 0:
                        self.contribute(a, f"({self.special[r]} ? {d} : {self._zero(r)})", out)
                    continue
                self.contribute((a, b)[which], d, lines)
            self.block_lines(block, inner, lines)
            if late:
                inner.settle()
                self.finished(inner)
                lines = _joined(inner.printed(), lines) if lines else []
            sides.append(lines)
        if sides[0] or sides[1]:
            condition = bare(frame.express(item.condition))
            if sides[0]:
                out.append(Group(f"if ({condition}) {{", sides[0], sides[1]))
            else:
                out.append(Group(f"if (!({condition})) {{", sides[1]))

    def block_lines(self, block: Block, frame: Frame, out: list[Any]) -> None:
        self.block(block, frame, out)

    def _late(self, item: If, frame: Frame) -> bool:
        """Whether a branch is computed again together with its reverse, not where it stood."""
        return self._final(item) or not any(
            isinstance(i, Barrier) or getattr(i, "op", "") == "shfl"
            or (isinstance(i, Value) and i.op == "load" and i.attr.array.shared)
            or (isinstance(i, Store) and i.place.array.shared)
            for block in children(item) for i in walk(block)
        )  # fmt: skip

    def _final(self, item: If) -> bool:
        """Whether nothing comes after a branch, so that its reverse follows it at once."""
        block = item.block
        if not all(
            isinstance(i, Value) and i.op not in ("load", "shfl") for i in block.items[block.items.index(item) + 1 :]
        ):
            return False
        return block.parent is None or (isinstance(block.parent, If) and self._final(block.parent))


def _joined(first: list[Any], second: list[Any]) -> list[Any]:
    """Two lists of lines, without barriers that follow one another."""
    found: list[Any] = []
    for line in [*first, *second]:
        if not (found and line == "__syncthreads();" and found[-1] == line):
            found.append(line)
    return found
