"""Dead code: constants that nothing mentions, blocks that do nothing; and what is cleared only to be added to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from rawkern.gradients.code.tree import (
    Assign,
    Compound,
    Declare,
    For,
    Statement,
    bodies,
    every,
    mentions,
    names,
    with_bodies,
)

_EFFECTS = re.compile(r"\b(take|atomic\w+)\(")


def without_unused(statements: list[Statement]) -> list[Statement]:
    """Statements without empty blocks and constants that no other mentions, if they change nothing."""
    words = Counter(word for s in every(statements) for word in names(s))
    while True:
        before = words.total()
        statements = _used(statements, words)
        if words.total() == before:
            return statements


def _used(statements: list[Statement], words: Counter[str]) -> list[Statement]:
    found: list[Statement] = []
    for s in reversed(statements):
        if isinstance(s, Declare):
            unused = s.const and words[s.name] == 1 and not _EFFECTS.search(s.value)
        elif isinstance(s, Compound) and not getattr(s, "inline", False):
            s = with_bodies(s, lambda body, words=words: _used(body, words))
            counts = isinstance(s, For) and s.start is None  # a variable that was there before
            unused = not any(bodies(s)) and not counts
        else:
            unused = False
        if unused:
            words -= Counter(names(s))
        else:
            found.append(s)
    return found[::-1]


def set_at_once(statements: list[Statement], arrays: Collection[str]) -> list[Statement]:
    """Statements in which what is cleared and then first added to in the same block is set; where threads own it."""
    found: list[Statement] = []
    for s in statements:
        s = with_bodies(s, lambda body: set_at_once(body, arrays))
        array = s.target.partition("[")[0] if isinstance(s, Assign) and s.sign == "+=" else ""
        if isinstance(s, Assign) and array.removeprefix("grad_") in arrays and array.startswith("grad_"):
            before = [k for k, each in enumerate(found) if mentions(each, array)]
            if before and found[before[-1]] in (Assign(s.target, "0.0f"), Assign(s.target, "0.0")):
                del found[before[-1]]
                s = Assign(s.target, s.value)
        found.append(s)
    return found
