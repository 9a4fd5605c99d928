"""Loops by class: what a loop carries on decides whether its backward runs in the same order, or from the end.

A variable that a loop only adds to has the same adjoint in every iteration, so the iterations of the backward may run
in any order. A running maximum gives its adjoint to the iteration that set it. Whatever else is carried on asks for the
iterations from the last to the first, with the values that are needed kept on a tape.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.analysis import affine
from rawkern.gradients.ir import (
    COLLECTIVE,
    Array,
    Barrier,
    Block,
    Carried,
    If,
    Kernel,
    Loop,
    Store,
    Value,
    inside,
    operands,
    walk,
)

LONGEST_TAPE = 1024  # iterations with a tape


def totals(kernel: Kernel) -> Counter[Value]:
    """How often each value is used in the kernel."""
    return Counter(v for item in walk(kernel.body) for v in operands(item))


def is_sum(c: Carried, loop: Loop, uses: Counter[Value]) -> bool:
    """Whether an iteration only adds to the variable: its value is used for nothing else."""
    seen: Counter[Value] = Counter()

    def chain(v: Value) -> bool:
        seen[v] += 1
        if v is c.phi or seen[v] > 1:  # followed before, by the other side of a branch
            return True
        if not inside(v.block, loop.body):
            return False
        if v.op == "binary" and v.attr in ("+", "-"):
            which = 0 if v.attr == "-" or _reaches(v.args[0], c.phi, loop) else 1
            return chain(v.args[which])
        if v.op == "call" and not isinstance(v.attr, str) and v.attr[0].name == "fma":
            return chain(v.args[2])
        if v.op == "cast" and types.is_float(v.args[0].type):
            return chain(v.args[0])
        if v.op == "result" and isinstance(v.attr, If):
            pair = next((a, b) for r, a, b in v.attr.results if r is v)
            return all([chain(x) for x in pair])
        if v.op == "result":
            nested: Any = v.attr
            inner = next(x for x in nested.carried if x.result is v)
            return is_sum(inner, nested, uses) and chain(inner.init)
        return False

    return chain(c.next) and all(uses[v] == n for v, n in seen.items())


def _reaches(start: Value, phi: Value, loop: Loop) -> bool:
    seen, left = {start}, [start]
    while left:
        v = left.pop()
        if v is phi:
            return True
        if not inside(v.block, loop.body) or v.op == "phi":
            continue
        args = v.args
        if v.op == "result":
            inner = v.attr
            args = tuple(x for r, a, b in inner.results if r is v for x in (a, b)) if isinstance(inner, If) else tuple(
                x.init for x in inner.carried if x.result is v)  # fmt: skip
        left += [a for a in args if a not in seen]
        seen.update(args)
    return False


def check_condition(loop: Loop, refuse: Any) -> None:
    """A condition is computed again as it stands, so it may only compute and read arrays that stay as they are."""
    for item in loop.test.items:
        if (
            not isinstance(item, Value)
            or item.op in (*COLLECTIVE, "result")
            or (item.op == "load" and item.attr.array.shared)
        ):
            raise refuse(
                loop.line, "a loop whose condition does more than compute", "compute it into a variable before"
            )


def bounds(loop: Loop) -> tuple[Carried, Value, bool] | None:
    """The variable of ``i < bound`` (or ``<=``: True) that grows evenly, if that alone decides when the loop ends."""
    test = loop.condition
    steps = affine.induction(loop)
    if test.op != "binary" or test.attr not in ("<", "<=", ">", ">="):
        return None
    low, high = test.args if test.attr in ("<", "<=") else test.args[::-1]
    low = low.args[0] if low.op == "cast" and low.type == high.type else low
    found = next((c for c in loop.carried if c.phi is low and c.phi in steps), None)
    return (found, high, "=" in test.attr) if found is not None and affine.invariant(high, loop) else None


def iterations(loop: Loop) -> int | None:
    """How many iterations there are, where that is known when deriving: by running the variable of the condition."""
    return _counted(loop, loop.condition, None)


def at_most(loop: Loop) -> int | None:
    """How many iterations there are at most: of a loop that may also be left by a break."""
    test = loop.condition
    flag = next((c for c in loop.carried if test.op == "binary" and test.attr == "&&" and c.phi is test.args[0]), None)
    return iterations(loop) if flag is None else _counted(loop, test.args[1], flag.next)


def _counted(loop: Loop, test: Value, goes_on: Value | None) -> int | None:
    """As many as one comparison allows; its variable changes where the loop goes on."""
    if test.op != "binary" or test.attr not in ("<", "<=", ">", ">=", "!="):
        return None
    args = [affine.plain(a) for a in test.args]
    for c in loop.carried:
        change = affine.plain(c.next)
        around: Any = change.attr
        if goes_on is not None and isinstance(around, If) and around.condition is goes_on:
            change = affine.plain(next(a for r, a, _ in around.results if r is change))
        if c.phi not in args or c.init.const is None or change.op != "binary":
            continue
        inner = [affine.plain(a) for a in change.args]
        other, bound = inner[1 - inner.index(c.phi)] if c.phi in inner else None, test.args[1 - args.index(c.phi)].const
        if other is None or other.const is None or bound is None or (change.attr not in "+*" and inner[0] is not c.phi):
            continue
        if not (affine.invariant(other, loop) and affine.invariant(args[1 - args.index(c.phi)], loop)):
            continue
        now, first = c.init.const, args[0] is c.phi
        if now < 0 and any(a.type.startswith("unsigned") for a in (*test.args, c.phi)):
            return None
        for n in range(LONGEST_TAPE + 1):
            pair = (now, bound) if first else (bound, now)
            if not {"<": pair[0] < pair[1], "<=": pair[0] <= pair[1], ">": pair[0] > pair[1], ">=": pair[0] >= pair[1],
                    "!=": pair[0] != pair[1]}[test.attr]:  # fmt: skip
                return n
            after = _step(change.attr, now, other.const)
            if after is None or not 0 <= after < 2**31:
                return (
                    n + 1
                    if after == -1 and change.type == "int" and test.attr in (">", ">=") and bound == 0 and first
                    else None
                )
            now = after
    return None


def _step(sign: str, a: int, b: int) -> int | None:
    if sign in ("/", "<<", ">>") and b <= 0:
        return None
    found = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "/": lambda: a // b,
        "<<": lambda: a << b,
        ">>": lambda: a >> b,
    }
    return found[sign]() if sign in found else None


def shrinks(loop: Loop) -> bool:
    """Whether the loop halves (or doubles) an integer until a bound, so that it ends within 64 iterations."""
    test = loop.condition
    for c in loop.carried:
        v = c.next
        if (
            types.is_float(c.phi.type)
            or test.op != "binary"
            or c.phi not in test.args
            or v.op != "binary"
            or v.args[0] is not c.phi
        ):
            continue
        by = v.args[1].const
        if by and ((v.attr in ("<<", ">>") and by >= 1) or (v.attr in ("*", "/") and by >= 2)):
            return True
    return False


def shifts(c: Carried) -> tuple[str, int] | None:
    """How an iteration shifts a variable that starts at a constant: the operator and by how many bits."""
    v = affine.plain(c.next)
    by = v.args[1].const if v.op == "binary" and v.args[0] is c.phi else None
    if c.init.const is None or c.init.const < 0 or by is None or by < 1:
        return None
    if v.attr in ("<<", ">>"):
        return v.attr, by
    bits = by.bit_length() - 1
    return ({"*": "<<", "/": ">>"}[v.attr], bits) if v.attr in ("*", "/") and by == 1 << bits > 1 else None


# Shared memory -------------------------------------------------------------------------------------------------


def stores(block: Block, array: Array) -> list[Store]:
    return [i for i in walk(block) if isinstance(i, Store) and i.place.array == array]


def reads(block: Block, array: Array) -> list[Value]:
    return [i for i in walk(block) if isinstance(i, Value) and i.op == "load" and i.attr.array == array]


def open_end(loop: Loop) -> bool:
    """Whether an iteration that stores to shared memory has barriers, but not at its end."""
    acts = [i for i in loop.body.items if not isinstance(i, Value)]
    shared = any(isinstance(i, Store) and i.place.array.shared for i in walk(loop.body))
    return shared and any(isinstance(i, Barrier) for i in acts[:-1]) and not isinstance(acts[-1], Barrier)
