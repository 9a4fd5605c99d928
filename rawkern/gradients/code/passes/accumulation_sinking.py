"""Gradients that several loops add to one after another, set once by the last of them.

Where loops go through a row alike and each adds to the elements' gradients, memory would be read and written for each.
What the earlier loops give is computed again in the last one instead, if that takes only what is still there (memory
that the backward only reads, and variables that nothing has changed since) and only sums, products and loads, quotients
that are the same in all iterations, and whatever else the last loop computes anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Binary, Call, Index, Name, Node, Ternary, Unary
from rawkern.gradients.code.tree import Assign, Declare, For, Statement

MOST = 12  # lines that are computed again


@dataclass(frozen=True)
class Added:
    """What a loop adds to an element: the place, and the value."""

    place: Node
    value: Node

    def line(self, sign: str) -> Assign:
        """The statement that does so."""
        return Assign(self.place, self.value, sign)


def sink(
    statements: list[Statement], adds: Sequence[Added], readable: Set[str], fixed: Set[str],
    fresh: Callable[[str], str],
) -> None:  # fmt: skip
    """Let the last of loops alike do what all of them do to elements that the first of `adds` sets.

    `readable`: arrays in memory that are only read; `fixed`: other names that mean no variable of a thread's own.
    """
    if len(adds) < 2:
        return
    lines = [add.line("+=" if k else "=") for k, add in enumerate(adds)]
    if [s for s in tree.every(statements) if s in lines] != lines:  # each once, in this order
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
    body, parts = tree.bodies(where[last])[0], []
    added: list[Declare] = []
    for (_, at), add in zip(run[:-1], adds, strict=False):
        part = _again(where, at, last, add, readable, fixed, fresh, [*body, *added])
        if part is None:
            return
        added += part[0]
        parts.append(part[1])
    end = body.index(lines[len(run) - 1])
    final = Added(adds[len(run) - 1].place, expr.chained("+", [*parts, adds[len(run) - 1].value]))
    body[end : end + 1] = [*added, final.line("=")]
    for (_, at), line in zip(run[:-1], lines, strict=False):
        inner = tree.bodies(where[at])[0]
        inner.remove(line)
        _prune(inner)


def _find(statements: list[Statement], line: Statement) -> tuple[list[Statement], int] | None:
    """The statement that has a line at its top: the statements that it is among, and its place there."""
    for k, s in enumerate(statements):
        for body in tree.bodies(s):
            if line in body:
                return statements, k
            if at := _find(body, line):
                return at
    return None


def _counter(s: Statement) -> str:
    """The variable that a loop counts in, upwards; none for any other."""
    if not isinstance(s, For) or s.start is None or s.start.type != "int" or s.start.also:
        return ""
    up = isinstance(s.step, Assign) and s.step.sign == "+=" and s.step.target == Name(s.start.name)
    return s.start.name if up else ""


def _alike(a: Statement, b: Statement) -> bool:
    """Whether loops run alike."""
    new = {_counter(a): _counter(b)}
    a = tree.with_expressions(a, lambda e: expr.renamed(e, new), lambda name: new.get(name, name))
    if not isinstance(a, For) or not isinstance(b, For):
        return False
    return (a.start, a.condition, a.step) == (b.start, b.condition, b.step)


def _again(
    where: list[Statement], at: int, last: int, add: Added, readable: Set[str], fixed: Set[str],
    fresh: Callable[[str], str], there: Sequence[Statement],
) -> tuple[list[Declare], Node] | None:  # fmt: skip
    """Statements that compute in the last loop what one before it adds, and the value; None if that can't be had."""
    counter = _counter(where[at])
    defined = {s.name: s for s in tree.bodies(where[at])[0] if isinstance(s, Declare) and s.const}
    wanted = _wanted(add.value, defined, counter, readable, fixed, where[at : last + 1])
    if wanted is None or len(wanted) > MOST or _costly(add.value, defined, counter):
        return None
    new = {counter: _counter(where[last])}
    known = {(s.type, s.value): s.name for s in there if isinstance(s, Declare) and s.const}
    found: list[Declare] = []
    for name, s in defined.items():
        if name in wanted and s.value is not None:
            value = expr.renamed(s.value, new)
            if (s.type, value) not in known:
                if _costly(s.value, defined, counter):
                    return None
                known[s.type, value] = fresh(name)
                found.append(tree.constant(s.type, known[s.type, value], value))
            new[name] = known[s.type, value]
    return found, expr.renamed(add.value, new)


def _wanted(
    e: Node, defined: Mapping[str, Declare], counter: str, readable: Set[str], fixed: Set[str],
    run: Sequence[Statement],
) -> set[str] | None:  # fmt: skip
    """The constants of an iteration that a value is made of; None if it is made of what another loop does not have.

    `run`: the loops from that of the iteration to the last.
    """
    found: set[str] = set()
    todo = [e]
    while todo:
        e = todo.pop()
        if any(isinstance(each, Unary | Binary) and each.sign in ("&", "&&") for each in expr.nodes(e)):
            return None
        arrays = {each.of.name for each in expr.nodes(e) if isinstance(each, Index) and isinstance(each.of, Name)}
        if not arrays <= readable:
            return None
        for name in {*expr.names(e)} - arrays - {counter}:
            if name in fixed or (name not in defined and "." not in name and _changes(run, name)):
                return None
            if name in defined and name not in found:
                found.add(name)
                todo.append(defined[name].value or e)
    return found


def _costly(e: Node, defined: Mapping[str, Declare], counter: str) -> bool:
    """Whether it takes more than sums, products and loads, and quotients that are the same in all iterations."""
    steady = not any(
        isinstance(each, Call | Index) or (isinstance(each, Name) and (each.name == counter or each.name in defined))
        for each in expr.nodes(e)
    )
    cheap = ("+", "-", "*", "/") if steady else ("+", "-", "*")
    return any(
        isinstance(each, Call | Ternary) or (isinstance(each, Unary | Binary) and each.sign not in cheap)
        for each in expr.nodes(e)
    )


def _changes(statements: Sequence[Statement], name: str) -> bool:
    """Whether statements give a variable another value."""
    for s in tree.every(statements):
        step = s.step if isinstance(s, For) else s
        if name in tree.declared(s) or (isinstance(step, Assign) and step.target == Name(name)):
            return True
    return False


def _prune(body: list[Statement]) -> None:
    """Drop values that nothing reads."""
    for s in reversed([s for s in body if isinstance(s, Declare) and s.const]):
        if not any(tree.mentions(other, s.name) for other in body if other is not s):
            body.remove(s)
