"""The recompute slice of a kernel, and its printing as CUDA C.

A `Frame` is one copy of a block: the kernel's own, an iteration of a backward loop, a branch. What the copy's reverse
asks for by `use` is printed, with all that it is computed from, in the order of the text; nothing else is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.gradients import ir, types
from rawkern.gradients.analysis.recompute_slice import TRIVIAL, Copy
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import PRODUCTS, SUMS, Binary, Cast, Name, Node, Unary
from rawkern.gradients.code.names import spelling
from rawkern.gradients.code.tree import BARRIER, Assign, Barrier, Declare, For, If, Jump, Run, Statement, While
from rawkern.gradients.index.scev import induction, iterations, loops_around, plain
from rawkern.gradients.ir import (
    COLLECTIVE,
    Array,
    Block,
    Carried,
    Exit,
    Loop,
    Place,
    Store,
    Value,
    children,
    computed_in,
    inside,
    operands,
    spelled_index,
    walk,
)  # fmt: skip
from rawkern.gradients.rules import spelled

CONVERSIONS = {"__half": "__half2float", "__nv_bfloat16": "__bfloat162float"}


class Frame(Copy):
    """A copy of a block, printed."""

    # Printing -----------------------------------------------------------------------------------------------------

    def text(self, value: Value) -> Node:
        """An expression for a value."""
        if value.op == "const":
            single = value.type == "float" and self.names.double
            return expr.literal(value.attr.rstrip("fF") if single else value.attr)
        if value.op in ("param", "special"):
            return expr.special(value.attr)
        return Name(self.name(value)) if self._is_named(value) else self.right(value)

    def _is_named(self, value: Value) -> bool:
        if value.op in (*COLLECTIVE, "phi", "result"):
            return True
        if isinstance(value.block.parent, Loop) and value.block is value.block.parent.test:
            return False  # a condition is computed again each time
        if value.op == "cast" and value.args[0].op in TRIVIAL and value.name is None:
            return False
        owner = self.owner(value)
        return value.op == "load" or value in owner.named or owner.uses[value] > 1 or owner is not self

    def right(self, value: Value) -> Node:
        """What a value is computed by."""
        if value.op == "binary":
            return self.joined(value, self.without_implied(value, self._is_named), self.text)
        if value.op == "unary" and value.attr == "!":
            return self.negated(value.args[0], self.text)
        if value.tape is not None and not self.replays:
            return self.taped(value)
        args = [self.text(a) for a in self.inputs(value)]
        if value.op == "unary":
            return Unary(value.attr, args[0])
        if value.op == "cast":
            return self.cast(value, args[0])
        if value.op == "select":
            return expr.where(*args)
        if value.op == "call":
            return self.called(value, args)
        if value.op == "shfl":
            return shuffle(value.attr, *args)
        if value.op == "reduce":
            return expr.call(value.attr, *args)
        assert value.op == "load", value.op
        found, kind = expr.element(value.attr.array.name, args, value.attr.fields), value.attr.type
        return expr.call(CONVERSIONS[kind], found) if kind in types.HALVES and not self.names.double else found

    def taped(self, load: Value) -> Node:
        """The place on its tape where what a load reads is: one for each iteration around, and each thread."""
        index: Node | None = None
        for number, loop in zip(load.tape or (), reversed(loops_around(load.block)), strict=True):
            wide = Cast("long long", self.text(number))
            most = iterations(loop) or self.names.most(loop)
            index = wide if index is None else index * most + wide
        thread, threads = map(Name, (self.names.of("thread", "thread"), self.names.of("threads", "threads")))
        return Name(self.names.tape(load))[thread if index is None else index * threads + thread]

    def called(self, value: Value, args: Sequence[Node]) -> Node:
        """A call of a function."""
        if isinstance(value.attr, str):
            return expr.call(value.attr, *args)
        rule, name = value.attr
        return expr.call(spelled(rule, "double") if self.names.double and value.type == "float" else name, *args)

    def cast(self, value: Value, arg: Node) -> Node:
        kind = self.names.type(value.type)
        source = value.args[0]
        return arg if self.names.type(source.type) == kind else Cast(kind, arg)

    def used(self, place: Place, index: tuple[Value, ...], name: str) -> Node:
        """An element, for the reverse."""
        return expr.element(name, [self.express(i) for i in spelled_index(place, index)], place.fields)

    def printed(self) -> list[Statement]:
        """The statements of the copy; after `settle`."""
        return self.lines(self.block)

    def _converted(self, value: Value) -> Node:
        """What a declaration begins with, without the conversion that it makes by itself."""
        once = value.op == "cast" and not self._is_named(value) and not types.is_float(value.args[0].type)
        return self.text(value.args[0] if once else value)

    def lines(self, block: Block) -> list[Statement]:
        out: list[Statement] = []
        if block is self.block:
            out += [self.array(a, name) for each in self.kept_before.values() for a, name in each.items()]
        for item in block.items:
            if item in self.skip:
                continue
            out += [self.copied(a, Name(name), Name(a.name)) for a, name in self.kept_before.get(item, {}).items()]
            if isinstance(item, Value):
                out += self._value(item)
            elif isinstance(item, Exit):
                out.append(If(self.text(item.condition), [Jump("return")], inline=True))
            elif item in self.kept:
                out += self._kept(item)
            elif self.syncs and isinstance(item, ir.Barrier):
                out.append(Barrier(item.text))
            elif self.syncs and any(isinstance(i, ir.Barrier) for b in children(item) for i in walk(b)):
                out.append(BARRIER)
        return out

    def _value(self, item: Value) -> list[Statement]:
        if item not in self.needed or item.op in (*TRIVIAL, "phi", "result") or not self._is_named(item):
            return []
        if item in self.given:
            return []
        right = self.text(item.args[0]) if item.op == "cast" else self.right(item)  # a declaration converts by itself
        return [self._set(item, self.name(item), right, const=True), *self.saved.get(item, ())]

    def _kept(self, item: Any) -> list[Statement]:
        if isinstance(item, Store):
            return [self._stored(item)]
        return self._if(item) if isinstance(item, ir.If) else self._watched(item)

    def array(self, array: Array, name: str, *more: int) -> Statement:
        """The declaration of a copy of a local array, or of so many."""
        return Declare(spelling(array.type, self.names), name, extents=(*more, *array.extents))

    def copied(self, array: Array, to: Node, source: Node) -> Statement:
        """A line that copies a local array."""
        index = [self.names.fresh("i") for _ in array.extents]
        target, value = (expr.element(each, list(map(Name, index))) for each in (to, source))
        line: Statement = Assign(target, value)
        for name, extent in reversed([*zip(index, array.extents, strict=True)]):
            line = tree.counting(tree.variable("int", name, 0), extent, 1, [line], inline=True)
        return line

    def _stored(self, item: Store) -> Statement:
        index = [self.text(i) for i in spelled_index(item.place, item.index)]
        target = expr.element(item.place.array.name, index, item.place.fields)
        value, kind = self.text(item.value), item.place.type
        if item.adds == "atomic":
            if isinstance(kind, str) and kind in types.HALVES and not self.names.double:
                value = Cast(kind, value)
            return Run(expr.call("atomicAdd", expr.address(target), value))
        return Assign(target, value, "+=" if item.adds else "=")

    def _set(self, value: Value, name: str, right: Node, const: bool = False) -> Statement:
        """The declaration of a value; its assignment where it was declared before."""
        return (
            tree.assign(name, right)
            if value in self.hoisted
            else Declare(self.names.type(value.type), name, right, const)
        )

    def _if(self, item: ir.If) -> list[Statement]:
        out: list[Statement] = []
        for block in children(item):
            for each in walk(block):
                wanted = (
                    isinstance(each, Value) and each in self.named - self.given and each.op not in ("phi", *TRIVIAL)
                )
                if wanted and each not in self.hoisted and not _in_loop(each.block, block):
                    self.hoisted.add(each)
                    out.append(Declare(self.names.type(each.type), self.name(each)))
        condition = self.text(item.condition)
        then, other = self.lines(item.then), self.lines(item.other)
        for r, a, b in item.results:
            if r not in self.needed:
                continue
            name = self.name(r)
            if not inside(b.block, item.other) and not inside(b.block, item.then):
                out.append(self._set(r, name, self.text(b)))
            else:
                out += [] if r in self.hoisted else [Declare(self.names.type(r.type), name)]
                other.append(tree.assign(name, self.text(b)))
            then.append(tree.assign(name, self.text(a)))
        if not then and other:
            return [*out, If(self.negated(item.condition, self.text), other)]
        return [*out, If(condition, then, other)] if then or other else out

    def _watched(self, item: Loop) -> list[Statement]:
        before, first, last = self.watched.get(item, ([], [], []))
        return [*before, *self.loop_lines(item, first, last)]

    def loop_lines(
        self, item: Loop, first: list[Statement] | None = None, last: list[Statement] | None = None
    ) -> list[Statement]:
        """A loop as it was, with what is kept of its body, and lines before and after that in each iteration."""
        out: list[Statement] = []
        steps = induction(item)
        carried = [c for c in item.carried if c.phi in self.needed]
        header = header_of(item, carried, steps) or self._stepping(item, carried)
        for c in carried:
            if c is not header or c.result in self.needed:
                name, start = self.name(c.phi), self._converted(c.init)
                new = tree.variable(self.names.type(c.phi.type), name, start)
                out.append(tree.assign(name, start) if c.result in self.hoisted else new)
        body = [*(first or []), *self.lines(item.body), *(last or [])]
        condition = self.text(item.condition)
        advance = self._advance([c for c in carried if c is not header])
        if header is None:
            return [*out, While(condition, [*body, *advance])]
        name = self.name(header.phi)
        start = None if header.result in self.needed else Declare(header.phi.type, name, self._converted(header.init))
        by = self.outside(steps[header.phi][1], item) if header.phi in steps else None
        step = _update(name, expr.total([Name(name), by]) if by is not None else self._next(header))
        return [*out, For(start, condition, step, [*body, *advance], loop=item)]

    def _stepping(self, item: Loop, carried: list[Carried]) -> Carried | None:
        """A variable that the condition compares, whose next value is made of it alone and used for nothing else."""

        def own(v: Value, c: Carried) -> bool:
            if v is c.phi or v.op in TRIVIAL or not computed_in(v, item):
                return True
            return v.op in ("binary", "unary", "cast") and not self._is_named(v) and all(own(a, c) for a in v.args)

        compared = [plain(a) for a in item.condition.args]
        return next((c for c in carried if c.phi in compared and c.next.args and own(c.next, c)), None)

    def _next(self, c: Carried) -> Node:
        steps = induction(c.phi.attr)
        if c.phi in steps:
            return expr.total([Name(self.name(c.phi)), self.outside(steps[c.phi][1], c.phi.attr)])
        return self.text(c.next)

    def _advance(self, carried: list[Carried]) -> list[Statement]:
        """Assignments at the end of an iteration; through temporaries where one would overwrite what another reads."""
        pairs = [(self.name(c.phi), self._next(c), c.phi.type) for c in carried]
        pairs = [p for p in pairs if Name(p[0]) != p[1]]
        lines: list[Statement] = []
        while ready := [a for a in pairs if not any(a[0] in expr.names(b[1]) for b in pairs if b is not a)]:
            lines += [_update(name, right) for name, right, _ in ready[:1]]
            pairs.remove(ready[0])
        temporary = [(name, self.names.fresh(f"{name}_next"), right, kind) for name, right, kind in pairs]
        lines += [tree.constant(self.names.type(k), t, r) for _, t, r, k in temporary]
        return [*lines, *(tree.assign(n, t) for n, t, _, _ in temporary)]


def shuffle(how: str, *args: Node) -> Node:
    """What lanes of a warp have of others; `how`: by xor, up or down, or idx."""
    return expr.call(f"__shfl{'' if how == 'idx' else f'_{how}'}_sync", expr.literal("0xffffffff"), *args)


def _update(name: str, right: Node) -> Statement:
    if isinstance(right, Binary) and right.left == Name(name) and right.sign in (*SUMS, *PRODUCTS, "<<", ">>"):
        return tree.assign(name, right.right, f"{right.sign}=")
    return tree.assign(name, right)


def header_of(loop: Loop, carried: list[Carried], steps: dict[Value, Any]) -> Carried | None:
    """The variable of a for: one that the condition compares, and that grows evenly."""
    used = {plain(v) for i in loop.test.items for v in operands(i)} | {loop.condition, *map(plain, loop.condition.args)}
    return next((c for c in carried if c.phi in steps and c.phi in used), None)


def _in_loop(block: Block | None, outer: Block) -> bool:
    """Whether a block lies in a loop within another."""
    while block is not None and block is not outer:
        if isinstance(block.parent, Loop):
            return True
        block = block.parent.block if block.parent is not None else None
    return False
