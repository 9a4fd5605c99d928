"""Variables that a loop in a loop counts on: `k` in ``for (i ...) for (j ...) w[k++]``, the pointer of an im2col.

The inner loop adds its step as often as it runs. Where that is the same in each iteration of the outer one, this adds
the product, so that the variable grows evenly there as well: what its iterations begin with is known without a tape.

Derived induction variables, such as `i` in ``for (int i = at; at < n; at += step, i = at)``, are computed from the
variable that they follow.
"""

from __future__ import annotations

from typing import Any

from rawkern.gradients import types
from rawkern.gradients.index import scev
from rawkern.gradients.ir import Carried, Kernel, Loop, Value, children, inside, operands, renumber, substitute, walk


def with_induction_variables(kernel: Kernel) -> Kernel:
    """The kernel with such sums as products; it is changed in place."""
    changed = False
    for inner in [i for i in walk(kernel.body) if isinstance(i, Loop)][::-1]:  # the innermost come first
        changed = _follow(kernel, inner) or changed
        outer = inner.block.parent
        if isinstance(outer, Loop) and inner.block is outer.body:
            for c in outer.carried:
                changed = _even(c, outer, inner) or changed
    if changed:
        renumber(kernel.body)
    return kernel


def _follow(kernel: Kernel, loop: Loop) -> bool:
    """Compute derived induction variables, of which only the body knows, from others; whether there are any."""
    used = {v for i in (*walk(loop.test), loop) for v in (operands(i) if i is not loop else (loop.condition,))}
    used |= {v for i in walk(kernel.body) for v in operands(i) if v.op == "result"}
    followed = [
        (c, other)
        for c in loop.carried
        for other in loop.carried
        if c.phi not in used and c.result not in used and _converts(c, other)
    ]
    for c, other in followed[:1]:
        made = Value(c.phi.line, loop.body, type=c.phi.type, op="cast", args=(other.phi,), name=c.phi.name)
        loop.body.items.insert(0, made)
        loop.block.items.remove(c.result)
        loop.carried.remove(c)
        substitute([loop, *walk(loop.body)], {c.phi: made})
    return bool(followed)


def _converts(c: Carried, other: Carried) -> bool:
    """Whether a variable is another one, converted to its type, in every iteration."""
    pairs = (c.init, other.init), (c.next, other.next)
    return c is not other and all(v.op == "cast" and v.args[0] is of for v, of in pairs)


def _even(c: Carried, outer: Loop, inner: Loop) -> bool:
    """Whether a variable of the outer loop was made one that grows evenly, by what the inner one adds to it."""
    steps = scev.induction(inner)
    last, behind = _without_sums(c.next, outer)
    own = next((o for o in inner.carried if o.result is last and o.phi in steps), None)
    if own is None or types.is_float(c.phi.type) or types.bits(c.phi.type) < 32:
        return False
    first, before = _without_sums(own.init, outer)
    step = steps[own.phi][1]
    if first is not c.phi or not scev.invariant(step, outer):
        return False
    new = _New(inner, outer)
    often = new.trips()
    if often is None:
        return False
    total = new.binary("*", c.phi.type, often, step)
    for each in (*before, *behind):
        total = new.binary("+", c.phi.type, total, each)
    c.next = new.binary("+", c.phi.type, c.phi, total)
    new.put()
    return True


def _without_sums(value: Value, outer: Loop) -> tuple[Value, list[Value]]:
    """What a value is without what is the same in each iteration and added to it; and that."""
    added: list[Value] = []
    while True:
        value = scev.plain(value)
        same = [a for a in value.args if scev.invariant(a, outer)] if value.op == "binary" else []
        if value.attr != "+" or len(same) != 1:
            return value, added
        added += same
        value = next(a for a in value.args if a is not same[0])


class _New:
    """Values after the inner loop."""

    def __init__(self, inner: Loop, outer: Loop) -> None:
        self.inner, self.outer = inner, outer
        self.made: list[Value] = []

    def value(self, kind: str, op: str, args: tuple[Value, ...] = (), **more: Any) -> Value:
        self.made.append(Value(self.inner.line, self.outer.body, type=kind, op=op, args=args, **more))
        return self.made[-1]

    def integer(self, n: int, kind: str = "int") -> Value:
        return self.value(kind, "const", attr=str(n), const=n)

    def outside(self, v: Value) -> Value:
        """A value that the inner loop does not change, computed after it where it was computed in it."""
        if v.op in ("const", "param", "special") or not any(inside(v.block, b) for b in children(self.inner)):
            return v
        return self.value(v.type, v.op, tuple(map(self.outside, v.args)), attr=v.attr, name=v.name, const=v.const)

    def cast(self, kind: str, v: Value) -> Value:
        v = self.outside(v)
        return v if v.type == kind else self.value(kind, "cast", (v,), const=v.const)

    def binary(self, sign: str, kind: str, a: Value, b: Value) -> Value:
        args = self.cast(kind, a), self.cast(kind, b)
        one = next((k for k in (0, 1) if sign == "*" and args[k].const == 1), None)
        return self.value(kind, "binary", args, attr=sign) if one is None else args[1 - one]

    def trips(self) -> Value | None:
        """How often the inner loop runs; None where that is not known, or may differ between its runs."""
        known, found = scev.iterations(self.inner), scev.bounds(self.inner)
        if known is not None:
            return self.integer(known)
        if found is None:
            return None
        c, high, equal = found
        start, by = scev.induction(self.inner)[c.phi]
        if by.const is None or by.const < 1 or not all(scev.invariant(v, self.outer) for v in (start, high)):
            return None
        kind = "long long" if 64 in (types.bits(c.phi.type), types.bits(high.type)) else "int"
        start, high = self.cast(kind, start), self.cast(kind, high)
        if equal:
            high = self.binary("+", kind, high, self.integer(1))
        length = high if start.const == 0 else self.binary("-", kind, high, start)
        if by.const > 1:
            length = self.binary("+", kind, length, self.integer(by.const - 1))
            length = self.binary("/", kind, length, self.integer(by.const))
        return self.value(
            kind, "select", (self.value("bool", "binary", (high, start), attr=">"), length, self.integer(0, kind))
        )

    def put(self) -> None:
        """After the loop and its results."""
        items = self.outer.body.items
        results = {c.result for c in self.inner.carried}
        at = max(k for k, item in enumerate(items) if item is self.inner or item in results)
        items[at + 1 : at + 1] = self.made
