"""Loops by class: what a loop carries on decides whether its backward runs in the same order, or from the end.

A variable that a loop only adds to has the same adjoint in every iteration, so the iterations of the backward may run
in any order. A running maximum gives its adjoint to the iteration that set it. Whatever else is carried on asks for the
iterations from the last to the first, with the values that are needed kept on a tape.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.index.answers import kept
from rawkern.gradients.index.scev import plain
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


@kept
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
            which = 0 if v.attr == "-" or rests_on(v.args[0], c.phi) else 1
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


def rests_on(value: Value, phi: Value) -> bool:
    """Whether a value may be computed from a loop's variable."""
    seen, left = {value}, [value]
    while left:
        v = left.pop()
        if v is phi:
            return True
        args = v.args
        if v.op == "phi":
            args = next((c.init, c.next) for c in v.attr.carried if c.phi is v)
        elif v.op == "result" and isinstance(v.attr, If):
            args = (v.attr.condition, *next((a, b) for r, a, b in v.attr.results if r is v))
        elif v.op == "result":
            args = next((c.init, c.next) for c in v.attr.carried if c.result is v)
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
    v = plain(c.next)
    by = v.args[1].const if v.op == "binary" and v.args[0] is c.phi else None
    if c.init.const is None or c.init.const < 0 or by is None or by < 1:
        return None
    if v.attr in ("<<", ">>"):
        return v.attr, by
    bits = by.bit_length() - 1
    return ({"*": "<<", "/": ">>"}[v.attr], bits) if v.attr in ("*", "/") and by == 1 << bits > 1 else None


# Shared memory -------------------------------------------------------------------------------------------------


def stores(block: Block, array: Array) -> list[Store]:
    return _accesses(block).get(array, ([], []))[0]


def reads(block: Block, array: Array) -> list[Value]:
    return _accesses(block).get(array, ([], []))[1]


@kept
def _accesses(block: Block) -> dict[Array, tuple[list[Store], list[Value]]]:
    """The stores and loads of each array."""
    found: dict[Array, tuple[list[Store], list[Value]]] = {}
    for item in walk(block):
        if isinstance(item, Store):
            found.setdefault(item.place.array, ([], []))[0].append(item)
        elif isinstance(item, Value) and item.op == "load":
            found.setdefault(item.attr.array, ([], []))[1].append(item)
    return found


def open_end(loop: Loop) -> bool:
    """Whether an iteration that stores to shared memory has barriers, but not at its end."""
    acts = [i for i in loop.body.items if not isinstance(i, Value)]
    shared = any(isinstance(i, Store) and i.place.array.shared for i in walk(loop.body))
    return shared and any(isinstance(i, Barrier) for i in acts[:-1]) and not isinstance(acts[-1], Barrier)
