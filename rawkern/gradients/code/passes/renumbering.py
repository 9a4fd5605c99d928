"""Names as a person would number them; the last pass over a function."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Set
from functools import partial

from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Name
from rawkern.gradients.code.names import Names, numbered
from rawkern.gradients.code.tree import Assign, Compound, Statement

Scope = tuple[int, ...]  # a block, by the places of those around it among the statements


def finished(statements: list[Statement], names: Names, kept: Set[str], free: Set[str]) -> list[Statement]:
    """Statements of a function that no pass goes through any more, as they are printed; see `renumbered`."""
    return subtracted(renumbered(statements, names, kept, free))


def renumbered(statements: list[Statement], names: Names, kept: Set[str], free: Set[str]) -> list[Statement]:
    """Statements whose variables are numbered in the order of the text, the first of a name in a block without one.

    Variables whose blocks lie apart may have one name. `kept`: names that stay. `free`: names that were reserved for
    what the text might have needed.
    """
    found: dict[str, list[tuple[Scope, bool]]] = {}
    functions: set[str] = set()
    each_named: list[tuple[str, ...]] = []  # by statement
    for scope, s in _placed(statements, ()):
        own, every = tree.declared(s), tree.expressions(s)
        functions.update(name for e in every for name in expr.calls(e))
        each_named.append((*own[:1], *(name for e in every for name in expr.names(e)), *own[1:]))
        for name in each_named[-1]:
            found.setdefault(name, []).append((scope, name in own))
    given = [name for name in found if name in names.hints and name not in kept]
    taken = kept | functions | (found.keys() - given) | (names.reserved - free)
    new: dict[str, dict[Scope, str]] = {name: {} for name in given}
    used: dict[str, list[Scope]] = {}
    for old in given:
        for scope in _blocks(found[old]):
            hint, k = _hint(old, names.hints), 2
            name = hint
            while name in taken or any(map(partial(_nested, scope), used.get(name, ()))):
                name, k = numbered(hint, k), k + 1
            used.setdefault(name, []).append(scope)
            new[old][scope] = name

    numbered_anew = {old for old, names in new.items() if any(name != old for name in names.values())}
    left = iter(each_named)

    def called(name: str, scope: Scope) -> str:
        return next((n for block, n in new[name].items() if _holds(block, scope)), name)

    def changed(statements: list[Statement], scope: Scope) -> list[Statement]:
        found = []
        for k, s in enumerate(statements):
            here = _scope(s, scope, k)
            own = {old: name for old in numbered_anew.intersection(next(left)) if (name := called(old, here)) != old}
            if own:
                s = tree.with_expressions(s, partial(expr.renamed, new=own), lambda name, own=own: own.get(name, name))
            apart = here is not scope
            parts = iter([changed(body, (*here, side) if apart else here) for side, body in enumerate(tree.bodies(s))])
            found.append(tree.with_bodies(s, lambda _, parts=parts: next(parts)))
        return found

    return changed(statements, ()) if numbered_anew else statements


def _scope(s: Statement, scope: Scope, k: int) -> Scope:
    """The block that the names of a statement belong to."""
    return (*scope, k) if isinstance(s, Compound) and not getattr(s, "inline", False) else scope


def _blocks(found: list[tuple[Scope, bool]]) -> list[Scope]:
    """The blocks that a word is declared in, each a variable of its own; that around all its places, if in doubt."""
    blocks = list(dict.fromkeys(scope for scope, declares in found if declares))
    apart = not any(_nested(a, b) for k, a in enumerate(blocks) for b in blocks[:k])
    if blocks and apart and all(any(_holds(b, scope) for b in blocks) for scope, _ in found):
        return blocks
    alike = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*(scope for scope, _ in found), strict=False))
    return [tuple(parts[0] for parts in alike)]


def _placed(statements: list[Statement], scope: Scope) -> Iterator[tuple[Scope, Statement]]:
    """All statements with the blocks that they lie in, from the outermost."""
    for k, s in enumerate(statements):
        here = _scope(s, scope, k)
        yield here, s
        for side, body in enumerate(tree.bodies(s)):
            yield from _placed(body, here if here is scope else (*here, side))


def _holds(outer: Scope, inner: Scope) -> bool:
    return inner[: len(outer)] == outer


def _nested(a: Scope, b: Scope) -> bool:
    """Whether one of two blocks lies in the other, or they are one."""
    return _holds(a, b) or _holds(b, a)


def _hint(name: str, hints: Mapping[str, str]) -> str:
    """What a name is to be called, without numbers of a name that it was made of, as `d_x_2_all` is of `d_x_2`."""
    hint = hints[name]
    for cut in (*(k for k, c in enumerate(hint) if c == "_"), len(hint)):
        if hint[:cut] in hints and hints[hint[:cut]] != hint[:cut]:
            return hints[hint[:cut]] + hint[cut:]
    return hint


def subtracted(statements: list[Statement]) -> list[Statement]:
    """Statements in which what is added with a minus before it is subtracted, which gives the same."""
    found: list[Statement] = []
    for s in statements:
        if isinstance(s, Assign) and s.sign == "+=" and isinstance(s.target, Name):
            less = expr.positive(s.value)
            s = s if less is None else Assign(s.target, less, "-=")
        found.append(tree.with_bodies(s, subtracted))
    return found
