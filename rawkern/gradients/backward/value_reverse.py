"""The reverse of values: what the operands of an operator, a function or a shuffle get of its adjoint."""

from __future__ import annotations

from rawkern.gradients.backward.forward import Frame, shuffle
from rawkern.gradients.backward.memory_reverse import MemoryReverse
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Binary, Cast, Name, Node
from rawkern.gradients.code.tree import Declare, Run, Statement
from rawkern.gradients.index.scev import loops_around
from rawkern.gradients.index.uniform import uniform
from rawkern.gradients.ir import Block, Function, Value, inside
from rawkern.gradients.rules import derivative, gradient


class ValueReverse(MemoryReverse):
    """Values; `Reverse` has the rest."""

    def value(self, v: Value, d: Name, frame: Frame, out: list[Statement]) -> None:
        """What a value's operands get of its adjoint."""
        args = v.args
        if v.op == "binary":
            self._binary(v, d, frame, out)
        elif v.op == "unary":
            self.contribute(args[0], -d, out)
        elif v.op == "cast":
            self.contribute(args[0], d, out)
        elif v.op == "select":
            if v in self.special:
                self.contribute(args[1], self.set_now(v, d), out)
                return
            for k in (1, 2):
                if self.wants(args[k]):
                    pair = (d, self._zero(v)) if k == 1 else (self._zero(v), d)
                    self.contribute(args[k], expr.where(frame.express(args[0]), *pair), out)
        elif v.op == "call":
            self._call(v, d, frame, out)
        elif v.op == "shfl":
            self._shuffle(v, d, frame, out)
        elif v.op == "reduce":
            self._reduced(v, d, frame, out)
        elif v.op == "load":
            self.load(v, d, frame, out)
        else:
            raise AssertionError(v.op)

    def set_now(self, v: Value, d: Node) -> Node:
        """The adjoint of a running maximum for what this iteration has found, if it set it."""
        now = self.special[v]
        return d if now is None else expr.where(now, d, self._zero(v))

    def _zero(self, v: Value) -> Node:
        return expr.number(0.0, self.names.type(v.type))

    def _binary(self, v: Value, d: Node, frame: Frame, out: list[Statement]) -> None:
        a, b = v.args
        active = [self.wants(x) for x in v.args]
        if v.attr in "+-":
            if (v, a) not in self.passed:
                self.contribute(a, d, out)
            if (v, b) not in self.passed:
                self.contribute(b, d if v.attr == "+" else -d, out)
        elif v.attr == "*":
            for x, other in {a: b, b: a}.items():
                if self.wants(x) and (v, x) not in self.passed:
                    again = [v] if a is b else self._factors(other, x, v.block)
                    self.passed |= {(product, x) for product in again}
                    times = expr.number(1.0 + len(again), self.names.type(v.type)) * d if again else d
                    self.contribute(x, times * frame.use(other), out)
        else:
            self._quotient(v, active, d, frame, out)

    def _factors(self, value: Value, x: Value, block: Block) -> list[Value]:
        """Products that make up a value and have `x` as a factor, each as often: of x * value, x gets that of all.

        The adjoint of such a product has what the factors around it make; with that times what else the product has it
        is the adjoint of x * value, times value.
        """
        if value.op != "binary" or value.attr != "*" or value.block is not block:
            return []
        if self.uses[value] > 1 or not self.wants(value):
            return []
        return [value for a in value.args if a is x] + [p for a in value.args for p in self._factors(a, x, block)]

    def _quotient(self, v: Value, active: list[bool], d: Node, frame: Frame, out: list[Statement]) -> None:
        """Of a / b: d / b and -d / b * a / b; by a reciprocal where that saves a division, or a loop can share it."""
        a, b = v.args
        around = loops_around(v.block)
        if not all(active) and b.op != "const" and (not around or inside(b.block, around[0].body)):
            if active[0]:
                self.contribute(a, d / frame.use(b), out)
            else:
                self.contribute(b, -d * frame.use(v) / frame.use(b), out)
            return
        kind = self.names.type(v.type)
        if active[0] and (exact := _inverse(b, kind)) is not None:
            self.contribute(a, d * exact, out)
            return
        by = Name(self.names.fresh("inverse"))
        out.append(tree.constant(kind, by.name, expr.number(1.0, kind) / frame.use(b)))
        if active[0]:
            self.contribute(a, d * by, out)
        if active[1]:
            self.contribute(b, -d * by * (frame.use(a) * by), out)

    def _call(self, v: Value, d: Node, frame: Frame, out: list[Statement]) -> None:
        rule = v.attr[0]
        if isinstance(rule, Function):
            self._called(v, rule, d, frame, out)
            return
        active, alike = [self.wants(a) for a in v.args], [a in self.active.every for a in v.args]
        if v in self.special:
            which = (
                active.index(True)
                if sum(active) == 1
                else next(k for k, a in enumerate(v.args) if a.op != "phi" or a.attr is not self.maximum_of[v])
            )
            self.contribute(v.args[which], self.set_now(v, d), out)
            return
        of = {**dict(zip("abcd", v.args, strict=False)), "r": v}
        for k, arg in enumerate(v.args):
            slope = derivative(rule, k, alike) if active[k] else None
            if slope is not None:
                used = {name: frame.use(of[name]) for name in sorted({*expr.names(slope)} - {"g"})}
                self.contribute(arg, gradient(slope, self.names.type(v.type), used, d), out)

    def _called(self, v: Value, function: Function, d: Node, frame: Frame, out: list[Statement]) -> None:
        """Of a device function, whose backward is one, too."""
        args = [*map(frame.use, v.args), d]
        if len(function.floats) == 1:
            arg = next(a for a, (n, _) in zip(v.args, function.params, strict=True) if n in function.floats)
            self.contribute(arg, expr.call(f"{function.name}_backward", *args), out)
            return
        parts = {n: self.names.fresh(f"d_{n}") for n in function.floats}
        for kind in dict.fromkeys(self.names.type(dict(function.params)[n]) for n in parts):
            same = [d for n, d in parts.items() if self.names.type(dict(function.params)[n]) == kind]
            out.append(Declare(kind, same[0], also=tuple((name, None) for name in same[1:])))
        out.append(Run(expr.call(f"{function.name}_backward", *args, *parts.values())))
        for a, (n, _) in zip(v.args, function.params, strict=True):
            if n in parts:
                self.contribute(a, Name(parts[n]), out)

    def _shuffle(self, v: Value, d: Node, frame: Frame, out: list[Statement]) -> None:
        """The lanes that a value came from get its adjoint back."""
        by, kind, zero = frame.express(v.args[1]), self.names.type(v.type), self._zero(v)
        name = Name(self.names.fresh("d_lanes"))
        if not uniform(v.args[1]):
            self.helpers |= {"warp_given", "lane"}
            out.append(tree.constant(kind, name.name, expr.call("warp_given", d, _source(v.attr, by))))
            self.contribute(v.args[0], name, out)
            return
        if v.attr == "xor":
            out.append(tree.constant(kind, name.name, shuffle("xor", d, by)))
            self.contribute(v.args[0], name, out)
            return
        self.helpers.add("lane")
        lane = expr.call("lane")
        if v.attr == "idx":
            self.helpers.add("warp_sum")
            out.append(tree.constant(kind, name.name, expr.call("warp_sum", d)))
            given = Name(self.names.fresh("d_lanes"))
            out.append(tree.constant(kind, given.name, expr.where(expr.infix(lane, "==", by), name, zero)))
            self.contribute(v.args[0], given, out)
            return
        out.append(tree.constant(kind, name.name, shuffle("up" if v.attr == "down" else "down", d, by)))
        below, within = expr.infix(lane, "<", by), expr.infix(lane + by, "<", 32)
        if v.attr == "down":
            came, stayed = Binary(">=", below.left, below.right), Binary(">=", within.left, within.right)
        else:
            came, stayed = within, below
        self.contribute(v.args[0], expr.where(came, name, zero), out)
        self.contribute(v.args[0], expr.where(stayed, d, zero), out)

    def _reduced(self, v: Value, d: Name, frame: Frame, out: list[Statement]) -> None:
        """Of a reduction, which all of its threads have: of a maximum those that brought it share the sum."""
        (scope, _, sign), value, kind = v.attr.partition("_"), v.args[0], self.names.type(v.type)
        every = Name(self.names.fresh(f"{d.name}_all"))
        out.append(tree.constant(kind, every.name, expr.call(f"{scope}_sum", d)))
        if sign == "sum":
            self.contribute(value, every, out)
            return
        brought, ties = expr.infix(frame.use(value), "==", frame.use(v)), self.names.fresh("ties")
        count = expr.call("__syncthreads_count", brought)
        if scope == "warp":
            count = expr.call("__popc", expr.call("__ballot_sync", expr.literal("0xffffffff"), brought))
        out.append(tree.constant("int", ties, count))
        self.contribute(value, expr.where(brought, every / Cast(kind, Name(ties)), self._zero(v)), out)


def _inverse(v: Value, kind: str) -> Node | None:
    """The reciprocal of a small power of two, which is exact."""
    whole = {f"{n}.{zero}{f}": n for n in (1, 2, 4, 8, 16, 32, 64) for zero in ("0", "") for f in ("f", "F", "")}
    found = whole.get(v.attr) if v.op == "const" else None
    return expr.number(1.0 / found, kind) if found else None


def _source(which: str, by: Node) -> Node:
    """The lane that a shuffle reads, where lanes differ in how far that is."""
    lane, far = expr.call("lane"), expr.infix(by, "&", 31)
    if which == "idx":
        return by
    if which == "xor":
        return expr.infix(lane, "^", far)
    if which == "down":
        return expr.where(expr.infix(lane + far, "<", 32), lane + far, lane)
    return expr.where(expr.infix(lane, ">=", far), lane - far, lane)
