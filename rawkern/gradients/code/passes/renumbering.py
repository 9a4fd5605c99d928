"""Names as a person would number them; the last pass over a function."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set

from rawkern.gradients.code.expressions import is_product
from rawkern.gradients.code.names import Names, numbered
from rawkern.gradients.code.tree import (
    Assign,
    Compound,
    Statement,
    bodies,
    declared,
    expressions,
    with_bodies,
    with_expressions,
)

Scope = tuple[int, ...]  # a block, by the places of those around it among the statements
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def finished(statements: list[Statement], names: Names, head: str, free: Set[str]) -> list[Statement]:
    """Statements of a function that no pass goes through any more, as they are printed; see `renumbered`."""
    return subtracted(renumbered(statements, names, head, free))


def renumbered(statements: list[Statement], names: Names, head: str, free: Set[str]) -> list[Statement]:
    """Statements whose variables are numbered in the order of the text, the first of a name in a block without one.

    Variables whose blocks lie apart may have one name. Words of the head stay. `free`: names that were reserved for
    what the text might have needed.
    """
    words: dict[str, list[tuple[Scope, bool]]] = {}
    for scope, s in _placed(statements, ()):
        own = set(declared(s))
        for text in (*declared(s)[:1], *expressions(s), *declared(s)[1:]):
            for m in _WORD.finditer(text):
                words.setdefault(m[0], []).append((scope, m[0] in own))
    kept = set(_WORD.findall(head))
    given = [word for word in words if word in names.hints and word not in kept]
    taken = (kept | words.keys() | (names.reserved - free)) - set(given)
    new: dict[str, dict[Scope, str]] = {word: {} for word in given}
    used: dict[str, list[Scope]] = {}
    for word in given:
        for scope in _blocks(words[word]):
            hint, k = _hint(word, names.hints), 2
            name = hint
            while name in taken or any(_common(scope, other) in (scope, other) for other in used.get(name, ())):
                name, k = numbered(hint, k), k + 1
            used.setdefault(name, []).append(scope)
            new[word][scope] = name

    def change(text: str, scope: Scope) -> str:
        def name(m: re.Match[str]) -> str:
            return next((n for block, n in new.get(m[0], {}).items() if _common(block, scope) == block), m[0])

        return _WORD.sub(name, text)

    def changed(statements: list[Statement], scope: Scope) -> list[Statement]:
        found = []
        for k, s in enumerate(statements):
            here = _scope(s, scope, k)
            s = with_expressions(s, lambda text, here=here: change(text, here))
            apart = here is not scope
            parts = iter([changed(body, (*here, side) if apart else here) for side, body in enumerate(bodies(s))])
            found.append(with_bodies(s, lambda _, parts=parts: next(parts)))
        return found

    return changed(statements, ())


def _scope(s: Statement, scope: Scope, k: int) -> Scope:
    """The block that the names of a statement belong to."""
    return (*scope, k) if isinstance(s, Compound) and not getattr(s, "inline", False) else scope


def _blocks(found: list[tuple[Scope, bool]]) -> list[Scope]:
    """The blocks that a word is declared in, each a variable of its own; that around all its places, if in doubt."""
    blocks = list(dict.fromkeys(scope for scope, declares in found if declares))
    apart = not any(_common(a, b) in (a, b) for k, a in enumerate(blocks) for b in blocks[:k])
    if blocks and apart and all(any(_common(b, scope) == b for b in blocks) for scope, _ in found):
        return blocks
    around = found[0][0]
    for scope, _ in found:
        around = _common(around, scope)
    return [around]


def _placed(statements: list[Statement], scope: Scope) -> Iterator[tuple[Scope, Statement]]:
    """All statements with the blocks that they lie in, from the outermost."""
    for k, s in enumerate(statements):
        here = _scope(s, scope, k)
        yield here, s
        for side, body in enumerate(bodies(s)):
            yield from _placed(body, here if here is scope else (*here, side))


def _common(a: Scope, b: Scope) -> Scope:
    """The innermost block around two."""
    return a[: next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))]


def _hint(name: str, hints: Mapping[str, str]) -> str:
    """What a name is to be called, without numbers of a name that it was made of, as `d_x_2_all` is of `d_x_2`."""
    hint = hints[name]
    for cut in (*(m.start() for m in re.finditer("_", hint)), len(hint)):
        if hint[:cut] in hints and hints[hint[:cut]] != hint[:cut]:
            return hints[hint[:cut]] + hint[cut:]
    return hint


def subtracted(statements: list[Statement]) -> list[Statement]:
    """Statements in which what is added with a minus before it is subtracted, which gives the same."""
    found: list[Statement] = []
    for s in statements:
        if isinstance(s, Assign) and s.sign == "+=" and re.fullmatch(r"\w+", s.target) and s.value.startswith("-"):
            s = Assign(s.target, s.value[1:], "-=") if is_product(s.value[1:]) else s
        found.append(with_bodies(s, subtracted))
    return found
