"""The reverse of values: what the operands of an operator, a function or a shuffle get of its adjoint."""

from __future__ import annotations

import re

from rawkern.gradients.backward.forward import Frame
from rawkern.gradients.backward.memory_reverse import MemoryReverse
from rawkern.gradients.code.expressions import bare
from rawkern.gradients.code.tree import Declare, Run, Statement
from rawkern.gradients.index.scev import loops_around
from rawkern.gradients.index.uniform import uniform
from rawkern.gradients.ir import Block, Function, Loop, Value, inside
from rawkern.gradients.rules import derivative, number


class ValueReverse(MemoryReverse):
    """Values; `Reverse` has the rest."""

    maximum_of: dict[Value, Loop]
    passed: set[tuple[Value, Value]]  # sums, and operands that have the adjoint already

    def value(self, v: Value, d: str, frame: Frame, out: list[Statement]) -> None:
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
                self.contribute(args[1], self.set_now(v, d), out)
                return
            for k in (1, 2):
                if self.wants(args[k]):
                    test = bare(frame.express(args[0]))
                    test = test if re.fullmatch(r"[\w.]+", test) else f"({test})"
                    pair = (d, self._zero(v)) if k == 1 else (self._zero(v), d)
                    self.contribute(args[k], f"({test} ? {pair[0]} : {pair[1]})", out)
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

    def set_now(self, v: Value, d: str) -> str:
        """The adjoint of a running maximum for what this iteration has found, if it set it."""
        return f"({self.special[v]} ? {d} : {self._zero(v)})" if self.special[v] else d

    def _zero(self, v: Value) -> str:
        return number(0.0, self.names.type(v.type))

    def _binary(self, v: Value, d: str, frame: Frame, out: list[Statement]) -> None:
        a, b = v.args
        active = [self.wants(x) for x in v.args]
        if v.attr in "+-":
            if (v, a) not in self.passed:
                self.contribute(a, d, out)
            if (v, b) not in self.passed:
                self.contribute(b, d if v.attr == "+" else f"-{d}", out)
        elif v.attr == "*":
            for x, other in {a: b, b: a}.items():
                if self.wants(x) and (v, x) not in self.passed:
                    again = [v] if a is b else self._factors(other, x, v.block)
                    self.passed |= {(product, x) for product in again}
                    times = f"{number(1.0 + len(again), self.names.type(v.type))} * " if again else ""
                    self.contribute(x, f"{times}{d} * {frame.use(other)}", out)
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

    def _quotient(self, v: Value, active: list[bool], d: str, frame: Frame, out: list[Statement]) -> None:
        """Of a / b: d / b and -d / b * a / b; by a reciprocal where that saves a division, or a loop can share it."""
        a, b = v.args
        around = loops_around(v.block)
        if not all(active) and b.op != "const" and (not around or inside(b.block, around[0].body)):
            if active[0]:
                self.contribute(a, f"{d} / {frame.use(b)}", out)
            else:
                self.contribute(b, f"-{d} * {frame.use(v)} / {frame.use(b)}", out)
            return
        kind = self.names.type(v.type)
        if active[0] and (exact := _inverse(b, kind)) is not None:
            self.contribute(a, f"{d} * {exact}", out)
            return
        by = self.names.fresh("inverse")
        out.append(Declare(kind, by, f"{number(1.0, kind)} / {frame.use(b)}", const=True))
        if active[0]:
            self.contribute(a, f"{d} * {by}", out)
        if active[1]:
            self.contribute(b, f"-{d} * {by} * ({frame.use(a)} * {by})", out)

    def _call(self, v: Value, d: str, frame: Frame, out: list[Statement]) -> None:
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
        marks = ["{a}", "{b}", "{c}", "{d}"]
        for k, arg in enumerate(v.args):
            if not active[k] or rule.derivatives[k] is None:
                continue
            probe = derivative(rule, k, "double", marks, "{r}", "{g}", alike) or ""
            args = [frame.use(a) if mark in probe else "" for a, mark in zip(v.args, marks, strict=False)]
            result = frame.use(v) if "{r}" in probe else ""
            self.contribute(arg, derivative(rule, k, self.names.type(v.type), args, result, d, alike) or "", out)

    def _called(self, v: Value, function: Function, d: str, frame: Frame, out: list[Statement]) -> None:
        """Of a device function, whose backward is one, too."""
        args = ", ".join([*(bare(frame.use(a)) for a in v.args), d])
        if len(function.floats) == 1:
            arg = next(a for a, (n, _) in zip(v.args, function.params, strict=True) if n in function.floats)
            self.contribute(arg, f"{function.name}_backward({args})", out)
            return
        parts = {n: self.names.fresh(f"d_{n}") for n in function.floats}
        for kind in dict.fromkeys(self.names.type(dict(function.params)[n]) for n in parts):
            same = [d for n, d in parts.items() if self.names.type(dict(function.params)[n]) == kind]
            out.append(Declare(kind, same[0], also=tuple((name, "") for name in same[1:])))
        out.append(Run(f"{function.name}_backward({args}, {', '.join(parts.values())})"))
        for a, (n, _) in zip(v.args, function.params, strict=True):
            if n in parts:
                self.contribute(a, parts[n], out)

    def _shuffle(self, v: Value, d: str, frame: Frame, out: list[Statement]) -> None:
        """The lanes that a value came from get its adjoint back."""
        by = frame.express(v.args[1])
        if not uniform(v.args[1]):
            self.helpers |= {"warp_given", "lane"}
            text = f"warp_given({d}, {bare(_source(v.attr, by))})"
        elif v.attr == "xor":
            text = f"__shfl_xor_sync(0xffffffff, {d}, {by})"
        elif v.attr == "idx":
            self.helpers |= {"warp_sum", "lane"}
            text = f"(lane() == {by} ? warp_sum({d}) : {self._zero(v)})"
            name = self.names.fresh("d_lanes")
            out.append(Declare(self.names.type(v.type), name, f"warp_sum({d})", const=True))
            text = f"(lane() == {by} ? {name} : {self._zero(v)})"
        else:
            self.helpers.add("lane")
            other = "up" if v.attr == "down" else "down"
            name = self.names.fresh("d_lanes")
            out.append(
                Declare(self.names.type(v.type), name, f"__shfl_{other}_sync(0xffffffff, {d}, {by})", const=True)
            )
            came, stayed = (
                ("lane() >= {0}", "lane() + {0} >= 32") if v.attr == "down" else ("lane() + {0} < 32", "lane() < {0}")
            )
            by = by if re.fullmatch(r"\w+", by) else f"({by})"
            zero = self._zero(v)
            self.contribute(v.args[0], f"({came.format(by)} ? {name} : {zero})", out)
            self.contribute(v.args[0], f"({stayed.format(by)} ? {d} : {zero})", out)
            return
        name = self.names.fresh("d_lanes")
        out.append(Declare(self.names.type(v.type), name, bare(text), const=True))
        self.contribute(v.args[0], name, out)

    def _reduced(self, v: Value, d: str, frame: Frame, out: list[Statement]) -> None:
        """Of a reduction, which all of its threads have: of a maximum those that brought it share the sum."""
        (scope, _, sign), value, kind = v.attr.partition("_"), v.args[0], self.names.type(v.type)
        every = self.names.fresh(f"{d}_all")
        out.append(Declare(kind, every, f"{scope}_sum({d})", const=True))
        if sign != "sum":
            brought, ties = f"{frame.use(value)} == {frame.use(v)}", self.names.fresh("ties")
            count = "__syncthreads_count({})" if scope == "block" else "__popc(__ballot_sync(0xffffffff, {}))"
            out.append(Declare("int", ties, count.format(brought), const=True))
            every = f"({brought} ? {every} / ({kind}){ties} : {self._zero(v)})"
        self.contribute(value, every, out)

    # Of `Reverse`.
    def wants(self, value: Value) -> bool: ...


def _inverse(v: Value, kind: str) -> str | None:
    """The reciprocal of a small power of two, which is exact."""
    whole = {f"{n}.{zero}{f}": n for n in (1, 2, 4, 8, 16, 32, 64) for zero in ("0", "") for f in ("f", "F", "")}
    found = whole.get(v.attr) if v.op == "const" else None
    return number(1.0 / found, kind) if found else None


def _source(which: str, by: str) -> str:
    """The lane that a shuffle reads, where lanes differ in how far that is."""
    if which == "idx":
        return by
    by = f"({by} & 31)"
    if which == "xor":
        return f"lane() ^ {by}"
    if which == "down":
        return f"lane() + {by} < 32 ? lane() + {by} : lane()"
    return f"lane() >= {by} ? lane() - {by} : lane()"
