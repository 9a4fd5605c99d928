"""Lines of CUDA C: their nesting, their width, and names for values."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.types import HALVES, Aggregate


@dataclass
class Group:
    """Lines between a head and the brace that closes it."""

    head: str
    body: list[Any] = field(default_factory=list)
    other: list[Any] = field(default_factory=list)  # behind "} else {"


Scope = tuple[int, ...]  # a block, by the places of those around it among the lines
WIDTH, DEEPEST = 120, 15  # of lines, in columns and in steps to the right
_DECLARES = re.compile(r"(for \()?(const )?(unsigned )?[a-z]\w*( long)?\*? \Z")  # what stands before a name
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def wrapped(line: str) -> list[str]:
    """A line of C in as many as the width asks for; broken behind && where there is one, else behind operators."""
    found, indent = [], " " * (len(line) - len(line.lstrip()) + 4)
    while len(line) > WIDTH and " " in line[len(indent) + 20 : WIDTH]:
        at = line.rfind("&& ", WIDTH // 2, WIDTH) + 2
        behind = [m.end() for m in re.finditer(r"[-+*/&|<>?:=,;](?= )", line[:WIDTH]) if m.end() > len(indent) + 20]
        at = at if at > 1 else behind[-1] if behind else line.rindex(" ", 0, WIDTH)
        found.append(line[:at])
        line = indent + line[at + 1 :]
    return [*found, line]


def commented(lines: Sequence[str]) -> list[str]:
    """Comments in as many lines as the width asks for."""
    return [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent="//   ")]


def rendered(lines: list[Any], depth: int = 1) -> list[str]:
    """Lines of text, indented."""
    return [part for line in _indented(lines, depth) for part in wrapped(line)]


def _indented(lines: list[Any], depth: int) -> list[str]:
    found: list[str] = []
    indent = "    " * min(depth, DEEPEST)  # of a loop with a break that is written out, each iteration is one deeper
    for line in lines:
        if isinstance(line, str):
            text = indent + line
            if not (line.startswith("__sync") and found and found[-1] == text):  # one barrier does what two do
                found.append(text)
            continue
        found += [indent + line.head, *_indented(line.body, depth + 1)]
        if line.other:
            found += [indent + "} else {", *_indented(line.other, depth + 1)]
        found.append(indent + "}")
    return found


def without_unused(lines: list[Any]) -> list[Any]:
    """Lines without empty blocks and constants that no other line mentions, if they change nothing."""
    words = Counter(re.findall(r"\w+", "\n".join(rendered(lines))))
    while True:
        before = words.total()
        lines = _used(lines, words)
        if words.total() == before:
            return lines


def _used(lines: list[Any], words: Counter[str]) -> list[Any]:
    found: list[Any] = []
    for line in reversed(lines):
        if isinstance(line, Group):
            line = Group(line.head, _used(line.body, words), _used(line.other, words))
            counts = line.head.startswith("for (;")  # a variable that was there before
            unused = not line.body and not line.other and not counts
        else:
            constant = re.match(r"const [\w ]+ (\w+) = (?!.*\b(take|atomic\w+)\()", line)
            unused = constant is not None and words[constant[1]] == 1
        if unused:
            words -= Counter(re.findall(r"\w+", line.head if isinstance(line, Group) else line))
        else:
            found.append(line)
    return found[::-1]


def set_at_once(lines: list[Any], arrays: Collection[str]) -> list[Any]:
    """Lines in which what is cleared and then first added to in the same block is set; of arrays that threads own."""
    found: list[Any] = []
    for line in lines:
        if isinstance(line, Group):
            found.append(Group(line.head, *(set_at_once(each, arrays) for each in (line.body, line.other))))
            continue
        added = re.fullmatch(r"(grad_(\w+)\[.*\]\S*) \+= (.*;)", line)
        own = added is not None and added[2] in arrays
        array = rf"\bgrad_{added[2]}\b" if added else ""
        before = [k for k, each in enumerate(found) if own and re.search(array, "\n".join(rendered([each])))]
        if added and before and re.fullmatch(re.escape(added[1]) + r" = 0\.0f?;", str(found[before[-1]])):
            del found[before[-1]]
            line = f"{added[1]} = {added[3]}"
        found.append(line)
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
        self.loops: dict[str, Any] = {}  # by their heads in the text
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


def finished(lines: list[Any], names: Names, head: str, free: Set[str]) -> list[Any]:
    """Lines of a function that no pass goes through any more, as they are printed; see `renumbered`."""
    return subtracted(renumbered(lines, names, head, free))


def renumbered(lines: list[Any], names: Names, head: str, free: Set[str]) -> list[Any]:
    """Lines whose variables are numbered in the order of the text, the first of a name in a block without a number.

    Variables whose blocks lie apart may have one name. Words of the head stay. `free`: names that were reserved for
    what the text might have needed.
    """
    words: dict[str, list[tuple[Scope, bool]]] = {}
    for scope, line in _placed(lines, ()):
        for m in _WORD.finditer(line):
            declares = _DECLARES.match(line[: m.start()]) is not None
            words.setdefault(m[0], []).append((scope, declares))
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

    def change(line: str, scope: Scope) -> str:
        def name(m: re.Match[str]) -> str:
            return next((n for block, n in new.get(m[0], {}).items() if _common(block, scope) == block), m[0])

        return _WORD.sub(name, line)

    return _each(lines, change)


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


def _placed(lines: list[Any], scope: Scope) -> Iterator[tuple[Scope, str]]:
    """All lines with the blocks that they lie in, from the outermost."""
    for k, line in enumerate(lines):
        if isinstance(line, Group):
            yield (*scope, k), line.head
            yield from _placed(line.body, (*scope, k, 0))
            yield from _placed(line.other, (*scope, k, 1))
        else:
            yield scope, line


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


def _each(lines: list[Any], change: Callable[[str, Scope], str], scope: Scope = ()) -> list[Any]:
    return [
        Group(
            change(line.head, (*scope, k)),
            _each(line.body, change, (*scope, k, 0)),
            _each(line.other, change, (*scope, k, 1)),
        )
        if isinstance(line, Group)
        else change(line, scope)
        for k, line in enumerate(lines)
    ]


def subtracted(lines: list[Any]) -> list[Any]:
    """Lines in which what is added with a minus before it is subtracted, which gives the same."""

    def change(line: str, _: Scope) -> str:
        found = re.fullmatch(r"(\w+) \+= -(.*);", line)
        return f"{found[1]} -= {found[2]};" if found and is_product(found[2]) else line

    return _each(lines, change)


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


def step_text(name: str, step: str) -> str:
    return f"++{name}" if step == "1" else f"{name} += {step}"


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
