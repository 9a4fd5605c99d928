"""The reverse of a kernel: what was computed again, followed by its adjoint from the last item to the first."""

from __future__ import annotations

import re
from typing import Any

from rawkern.gradients import loops
from rawkern.gradients.activity import Activity
from rawkern.gradients.forward import Frame
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
    walk,
)
from rawkern.gradients.layout import Group, Names, bare
from rawkern.gradients.memory_reverse import MemoryReverse
from rawkern.gradients.phases import Phases
from rawkern.gradients.rules import derivative, number
from rawkern.gradients.syntax import Where


class Reverse(MemoryReverse):
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
        self.phases: Phases | None = None
        self.set_by: dict[Array, list[Value]] = {}  # reads whose elements' gradients are set, not added to
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
            self.declare(value, home, const=False)
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
        self.declare(value, out, const=True)
        return self.declared[value]

    def declare(self, value: Value, out: list[Any], const: bool) -> None:
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
        marks = ["{a}", "{b}", "{c}", "{d}"]
        for k, arg in enumerate(v.args):
            if not active[k] or rule.derivatives[k] is None:
                continue
            probe = derivative(rule, k, "double", marks, "{r}", active) or ""
            args = [frame.use(a) if mark in probe else "" for a, mark in zip(v.args, marks, strict=False)]
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
