"""Lines of CUDA C: their nesting, their width, and names for values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.code import (
    Assign,
    Compound,
    Declare,
    For,
    Statement,
    bodies,
    every,
    expressions,
    with_bodies,
    with_expressions,
)
from rawkern.gradients.types import HALVES, Aggregate

Scope = tuple[int, ...]  # a block, by the places of those around it among the lines
_EFFECTS = re.compile(r"\b(take|atomic\w+)\(")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


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


def names(s: Statement) -> Iterator[str]:
    """The names in a statement itself, and other words."""
    yield from declared(s)
    for text in expressions(s):
        yield from re.findall(r"\w+", text)


def declared(s: Statement) -> list[str]:
    """The variables that a statement declares."""
    s = s.start if isinstance(s, For) and s.start else s
    return [name for name, _ in s.pairs] if isinstance(s, Declare) else []


def mentions(s: Statement, name: str) -> bool:
    """Whether a statement, or one in it, names something."""
    return any(name in names(each) for each in every([s]))


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


def thread_number(block: tuple[int, int, int]) -> str:
    """The number of a thread in its block."""
    thread = "threadIdx.x" if block[1] == block[2] == 1 else f"threadIdx.x + {block[0]} * threadIdx.y"
    return thread + (f" + {block[0] * block[1]} * threadIdx.z" if block[2] != 1 else "")


class Names:
    """Names for values: the user's own where they have one, each once in a kernel."""

    def __init__(self, taken: Set[str], double: bool) -> None:
        self.reserved = frozenset(taken)
        self._taken = set(taken)
        self._of: dict[Any, str] = {}
        self.hints: dict[str, str] = {}  # what each was to be called
        self.double = double  # whether every float is a double

    def fresh(self, hint: str) -> str:
        name, k = hint, 2
        while name in self._taken:
            name, k = _numbered(hint, k), k + 1
        self._taken.add(name)
        self.hints[name] = hint
        return name

    def of(self, value: Any, hint: str = "t") -> str:
        if value not in self._of:
            self._of[value] = self.fresh(hint)
        return self._of[value]

    def type(self, kind: str) -> str:
        return "double" if self.double and kind in ("float", *HALVES) else kind

    def summed(self, kind: str) -> str:
        """The type of gradients, which is float for half precision."""
        return "float" if kind in HALVES and not self.double else self.type(kind)


def _numbered(hint: str, k: int) -> str:
    return f"{hint}{k}" if hint.endswith("_") else f"{hint}_{k}"


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
                name, k = _numbered(hint, k), k + 1
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


def is_product(text: str) -> bool:
    """Whether a text is a product or quotient, or a single operand: nothing in it binds less than that."""
    return re.fullmatch(r"[\w.]+( [*/] [\w.]+)*", masked(text)) is not None


def masked(text: str) -> str:
    """A text with as many underscores for what stands in parentheses and brackets, and for those."""
    before = ""
    while before != text:
        before, text = text, re.sub(r"\([^()]*\)|\[[^\[\]]*\]", lambda m: "_" * len(m[0]), text)
    return text


def total(terms: Sequence[str]) -> str:
    """The sum of terms, as an expression."""
    text = ""
    for term in terms:
        minus = term.startswith("-") and is_product(term[1:])
        plain = minus or bare(term) != term or (not term.startswith("-") and not re.search(r"[?<>=&|^%]", term))
        part = term if plain else f"({term})"
        text = part if not text else f"{text} - {part[1:]}" if minus else f"{text} + {part}"
    return text


_WHOLE = re.compile(r"\d[\w.]*e[-+]\d+f?|[\w.]+")  # a number, a name, a call, an element, what is converted
_SUMS, _PRODUCTS, _COMPARISONS = ("+", "-"), ("*", "/"), ("<", "<=", ">", ">=", "==", "!=")


def operand(text: str, inner: str | None, operator: str | None = None, last: bool = True) -> str:
    """An operand, which the operator `inner` computes: in parentheses where C would read it otherwise."""
    looser = (inner in _PRODUCTS and operator in _SUMS) or (inner in (*_SUMS, *_PRODUCTS) and operator in _COMPARISONS)
    looser |= inner in _COMPARISONS and operator in ("&&", "||")
    same = any(inner in each and operator in each for each in (_SUMS, _PRODUCTS, ("&&",), ("||",))) and not last
    return text if looser or same or _WHOLE.fullmatch(masked(text)) else f"({text})"


def bare(text: str) -> str:
    """Without the parentheses around the whole."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and k < len(text) - 1:
            return text
    return text[1:-1]


def written(p: Mapping[tuple[Any, ...], int]) -> str:
    """A polynomial of parameters and digits as C."""
    text = ""
    for key, value in p.items():
        parts = [s if isinstance(s, str) else _settled(s) for s in key]
        times = abs(value) if text else value  # no minus before the first, which may be unsigned and is then converted
        term = " * ".join([*parts, *([str(times)] if times != 1 or not parts else [])])
        text = f"{text} {'-' if value < 0 else '+'} {term}" if text else term
    return text or "0"


def _settled(v: Any) -> str:
    """A number of a launch as C."""
    if v.op == "binary":
        return f"({_settled(v.args[0])} {v.attr} {_settled(v.args[1])})"
    return _settled(v.args[0]) if v.op == "cast" else str(v.attr)


def spelling(kind: types.Type, names: Names) -> str:
    if not isinstance(kind, Aggregate):
        return names.type(kind)
    if not names.double or kind not in types.VECTORS.values():
        return kind.name
    return "double2" if kind.fields[0][1] in types.HALVES else kind.name.replace("float", "double")


def summed_spelling(kind: types.Type, names: Names) -> str:
    """The type of gradients, which is float for half precision."""
    if isinstance(kind, Aggregate):
        return "float2" if kind.fields[0][1] in types.HALVES and not names.double else spelling(kind, names)
    return names.summed(kind)
