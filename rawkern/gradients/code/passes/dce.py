"""Dead code: constants that nothing mentions, blocks that do nothing; and what is cleared only to be added to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Literal, Node
from rawkern.gradients.code.tree import Assign, Compound, Declare, For, Statement

ZEROS = Literal("0.0f"), Literal("0.0")


def without_unused(statements: list[Statement]) -> list[Statement]:
    """Statements without empty blocks and constants that no other mentions, if they change nothing."""
    times = Counter(name for s in tree.every(statements) for name in tree.named(s))
    while True:
        before = times.total()
        statements = _used(statements, times)
        if times.total() == before:
            return statements


def _used(statements: list[Statement], times: Counter[str]) -> list[Statement]:
    found: list[Statement] = []
    for s in reversed(statements):
        if isinstance(s, Declare):
            unused = s.const and times[s.name] == 1 and not (s.value and _has_effects(s.value))
        elif isinstance(s, Compound) and not getattr(s, "inline", False):
            s = tree.with_bodies(s, lambda body: _used(body, times))
            counts = isinstance(s, For) and s.start is None  # a variable that was there before
            unused = not any(tree.bodies(s)) and not counts
        else:
            unused = False
        if unused:
            times.subtract(tree.named(s))
        else:
            found.append(s)
    return found[::-1]


def _has_effects(e: Node) -> bool:
    return any(name == "take" or name.startswith("atomic") for name in expr.calls(e))


def set_at_once(statements: list[Statement], arrays: Collection[str]) -> list[Statement]:
    """Statements in which what is cleared and then first added to in the same block is set; where threads own it."""
    found: list[Statement] = []
    for s in statements:
        s = tree.with_bodies(s, lambda body: set_at_once(body, arrays))
        array = (expr.base(s.target) or "") if isinstance(s, Assign) and s.sign == "+=" else ""
        if isinstance(s, Assign) and array.removeprefix("grad_") in arrays and array.startswith("grad_"):
            before = [k for k, each in enumerate(found) if tree.mentions(each, array)]
            if before and found[before[-1]] in [Assign(s.target, zero) for zero in ZEROS]:
                del found[before[-1]]
                s = Assign(s.target, s.value)
        found.append(s)
    return found
