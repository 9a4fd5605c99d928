"""Gradients that several loops add to one after another, set once by the last of them.

Where loops go through a row alike and each adds to the elements' gradients, memory would be read and written for each.
What the earlier loops give is computed again in the last one instead, if that takes only what is still there (memory
that the backward only reads, and variables that nothing has changed since) and only sums, products and loads, quotients
that are the same in all iterations, and whatever else the last loop computes anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from rawkern.gradients.code.tree import (
    Assign,
    Declare,
    For,
    Statement,
    bodies,
    declared,
    every,
    mentions,
    with_expressions,
)

MOST = 12  # lines that are computed again
_NAMES = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?=(\s*\(|\[)?)")
_TYPES = {"float", "double", "int", "unsigned", "long", "short", "char", "bool", "const", "signed", "size_t"}


@dataclass(frozen=True)
class Added:
    """What a loop adds to an element: the place, and the value's name or expression."""

    place: str
    value: str

    def line(self, sign: str) -> Assign:
        """The statement that does so."""
        return Assign(self.place, self.value, sign)


def defer(
    statements: list[Statement], adds: Sequence[Added], readable: Set[str], fixed: Set[str],
    fresh: Callable[[str], str],
) -> None:  # fmt: skip
    """Let the last of loops alike do what all of them do to elements that the first of `adds` sets.

    `readable`: arrays in memory that are only read; `fixed`: other names that mean no variable of a thread's own.
    """
    lines = [add.line("+=" if k else "=") for k, add in enumerate(adds)]
    if [s for s in every(statements) if s in lines] != lines:  # each once, in this order
        return
    run: list[tuple[list[Statement], int]] = []
    for line in lines:
        found = _find(statements, line)
        if found is None or not _counter(found[0][found[1]]):
            break
        if run and (
            found[0] is not run[0][0] or found[1] <= run[-1][1] or not _alike(*(w[k] for w, k in (run[0], found)))
        ):
            break
        run.append(found)
    if len(run) < 2:
        return
    where, last = run[-1]
    body, parts = bodies(where[last])[0], []
    added: list[Declare] = []
    for (_, at), add in zip(run[:-1], adds, strict=False):
        part = _again(where, at, last, add, readable, fixed, fresh, [*body, *added])
        if part is None:
            return
        added += part[0]
        parts.append(part[1])
    end = body.index(lines[len(run) - 1])
    final = Added(adds[len(run) - 1].place, " + ".join([*parts, _product(adds[len(run) - 1].value)]))
    body[end : end + 1] = [*added, final.line("=")]
    for (_, at), line in zip(run[:-1], lines, strict=False):
        inner = bodies(where[at])[0]
        inner.remove(line)
        _prune(inner)


def _find(statements: list[Statement], line: Statement) -> tuple[list[Statement], int] | None:
    """The statement that has a line at its top: the statements that it is among, and its place there."""
    for k, s in enumerate(statements):
        for body in bodies(s):
            if line in body:
                return statements, k
            if at := _find(body, line):
                return at
    return None


def _counter(s: Statement) -> str:
    """The variable that a loop counts in, upwards; none for any other."""
    if not isinstance(s, For) or s.start is None or s.start.type != "int" or s.start.also:
        return ""
    up = isinstance(s.step, Assign) and s.step.sign == "+=" and s.step.target == s.start.name
    return s.start.name if up else ""


def _alike(a: Statement, b: Statement) -> bool:
    """Whether loops run alike."""
    new = {_counter(a): _counter(b)}
    a = with_expressions(a, lambda text: _renamed(text, new))
    if not isinstance(a, For) or not isinstance(b, For):
        return False
    return (a.start, a.condition, a.step) == (b.start, b.condition, b.step)


def _renamed(text: str, new: dict[str, str]) -> str:
    return re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda m: new.get(m[0], m[0]), text)


def _again(
    where: list[Statement], at: int, last: int, add: Added, readable: Set[str], fixed: Set[str],
    fresh: Callable[[str], str], there: Sequence[Statement],
) -> tuple[list[Declare], str] | None:  # fmt: skip
    """Statements that compute in the last loop what one before it adds, and the value; None if that can't be had."""
    defined = {s.name: s for s in bodies(where[at])[0] if isinstance(s, Declare) and s.const}
    counter = _counter(where[at])
    wanted, todo, costly = set(), [("", add.value)], set()
    while todo:
        own, text = todo.pop()
        steady = not any(m[0] == counter or m[0] in defined or m[1] for m in _NAMES.finditer(text))
        if re.search(rf"[^\w\s.+\-*()\[\]{'/' if steady else ''}]|\w\(", text):
            costly.add(own)
        if "&" in text:
            return None
        for m in _NAMES.finditer(text):
            name, follows = m[0], (m[1] or "").strip()
            called = follows == "(" and own in costly
            if name in _TYPES or name == counter or called or (follows == "[" and name in readable):
                continue
            if follows or name in fixed:
                return None
            if name in defined:
                if name not in wanted:
                    wanted.add(name)
                    todo.append((name, defined[name].value))
            elif not name.endswith("Idx") and not name.endswith("Dim") and _changes(where[at : last + 1], name):
                return None
    if len(wanted) > MOST or "" in costly:
        return None
    new = {counter: _counter(where[last])}
    known = {(s.type, s.value): s.name for s in there if isinstance(s, Declare) and s.const}
    found: list[Declare] = []
    for name, s in defined.items():
        if name in wanted:
            text = _renamed(s.value, new)
            if (s.type, text) not in known:
                if name in costly:
                    return None
                known[s.type, text] = fresh(name)
                found.append(Declare(s.type, known[s.type, text], text, const=True))
            new[name] = known[s.type, text]
    return found, _product(_renamed(add.value, new))


def _product(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def _changes(statements: Sequence[Statement], name: str) -> bool:
    """Whether statements give a variable another value."""
    for s in every(statements):
        step = s.step if isinstance(s, For) else s
        if name in declared(s) or (isinstance(step, Assign) and step.target == name):
            return True
    return False


def _prune(body: list[Statement]) -> None:
    """Drop values that nothing reads."""
    for s in reversed([s for s in body if isinstance(s, Declare) and s.const]):
        if not any(mentions(other, s.name) for other in body if other is not s):
            body.remove(s)
