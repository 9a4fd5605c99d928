"""Scalar evolution: the induction variables of loops, and how often loops run."""

from __future__ import annotations

import operator
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.index.answers import kept
from rawkern.gradients.ir import PURE, Block, Carried, If, Loop, Value, computed_in

MOST = 1024  # iterations that are counted
_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "!=": operator.ne}
_STEP = {"+": operator.add, "-": operator.sub, "*": operator.mul,
         "/": operator.floordiv, "<<": operator.lshift, ">>": operator.rshift}  # fmt: skip


def plain(value: Value) -> Value:
    """An integer without conversions between integers of 32 and 64 bits."""
    while (
        value.op == "cast"
        and not types.is_float(value.type)
        and not types.is_float(value.args[0].type)
        and min(map(types.bits, (value.type, value.args[0].type))) >= 32
    ):
        value = value.args[0]
    return value


@kept
def induction(loop: Loop) -> dict[Value, tuple[Value, Value]]:
    """The loop's variables that grow by the same in each iteration: phi to what it starts with and its step."""
    found = {}
    for c in loop.carried:
        if types.is_float(c.phi.type) or types.bits(c.phi.type) < 32:
            continue
        step = plain(c.next)
        args = [plain(a) for a in step.args]
        if step.op == "binary" and step.attr == "+" and c.phi in args:
            by = step.args[1] if args[0] is c.phi else step.args[0]
            if invariant(by, loop):
                found[c.phi] = (c.init, by)
        elif step.op == "binary" and step.attr == "-" and args[0] is c.phi and args[1].const:
            by = -args[1].const
            found[c.phi] = (c.init, Value(step.line, step.block, type=step.type, attr=str(by), const=by))
    return found


def invariant(value: Value, loop: Loop) -> bool:
    """Whether a value is the same in every iteration: defined before, or computed from such alone."""
    if not computed_in(value, loop):
        return True
    return value.op in PURE and all(invariant(a, loop) for a in value.args)


def loops_around(block: Block) -> list[Loop]:
    """The loops that a block lies in, from the innermost."""
    found = []
    while block.parent is not None:
        if isinstance(block.parent, Loop):
            found.append(block.parent)
        block = block.parent.block
    return found


# Trip counts ----------------------------------------------------------------------------------------------------------


def bounds(loop: Loop) -> tuple[Carried, Value, bool] | None:
    """The variable of ``i < bound`` (or ``<=``: True) that grows evenly, if that alone decides when the loop ends."""
    test = loop.condition
    steps = induction(loop)
    if test.op != "binary" or test.attr not in ("<", "<=", ">", ">="):
        return None
    low, high = test.args if test.attr in ("<", "<=") else test.args[::-1]
    low = low.args[0] if low.op == "cast" and low.type == high.type else low
    found = next((c for c in loop.carried if c.phi is low and c.phi in steps), None)
    return (found, high, "=" in test.attr) if found is not None and invariant(high, loop) else None


@kept
def iterations(loop: Loop) -> int | None:
    """How many iterations there are, where that is known when deriving: by running the variable of the condition."""
    return _counted(loop, loop.condition, None)


@kept
def at_most(loop: Loop) -> int | None:
    """How many iterations there are at most: of a loop that may also be left by a break."""
    test = loop.condition
    flag = next((c for c in loop.carried if test.op == "binary" and test.attr == "&&" and c.phi is test.args[0]), None)
    return iterations(loop) if flag is None else _counted(loop, test.args[1], flag.next)


def _counted(loop: Loop, test: Value, goes_on: Value | None) -> int | None:
    """As many as one comparison allows; its variable changes where the loop goes on."""
    if test.op != "binary" or test.attr not in _COMPARE:
        return None
    args = [plain(a) for a in test.args]
    for c in loop.carried:
        if c.phi not in args or c.init.const is None:
            continue
        first = args[0] is c.phi
        bound, change = args[first], _change(c, loop, goes_on)
        if change is None or test.args[first].const is None or not invariant(bound, loop):
            continue
        unsigned = any(a.type.startswith("unsigned") for a in (*test.args, c.phi))
        return None if unsigned and c.init.const < 0 else _run(c.init.const, test, first, *change)
    return None


def _change(c: Carried, loop: Loop, goes_on: Value | None) -> tuple[Value, int] | None:
    """The operation that makes a variable's next value, and its constant."""
    change = plain(c.next)
    around: Any = change.attr
    if goes_on is not None and isinstance(around, If) and around.condition is goes_on:
        change = plain(next(a for r, a, _ in around.results if r is change))
    inner = [plain(a) for a in change.args]
    if change.op != "binary" or c.phi not in inner:
        return None
    by = inner[1 - inner.index(c.phi)]
    turned = inner[0] is not c.phi and change.attr not in "+*"
    return (change, by.const) if by.const is not None and not turned and invariant(by, loop) else None


def _run(now: int, test: Value, first: bool, change: Value, by: int) -> int | None:
    """How often a test holds of a variable that begins with a number and changes by a constant."""
    bound = test.args[first].const
    for n in range(MOST + 1):
        if not _COMPARE[test.attr](*((now, bound) if first else (bound, now))):
            return n
        after = _after(change.attr, now, by)
        if after is None or not 0 <= after < 2**31:
            down = after == -1 and change.type == "int" and test.attr in (">", ">=") and bound == 0 and first
            return n + 1 if down else None
        now = after
    return None


def _after(sign: str, a: int, b: int) -> int | None:
    return None if sign not in _STEP or (sign in ("/", "<<", ">>") and b <= 0) else _STEP[sign](a, b)
