"""Lines of CUDA C: their nesting, their width, and names for values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Set
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


WIDTH = 120


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


def rendered(lines: list[Any], depth: int = 1) -> list[str]:
    """Lines of text, indented."""
    return [part for line in _indented(lines, depth) for part in wrapped(line)]


def _indented(lines: list[Any], depth: int) -> list[str]:
    found: list[str] = []
    for line in lines:
        if isinstance(line, str):
            text = "    " * depth + line
            if not (line.startswith("__sync") and found and found[-1] == text):  # one barrier does what two do
                found.append(text)
            continue
        found += ["    " * depth + line.head, *_indented(line.body, depth + 1)]
        if line.other:
            found += ["    " * depth + "} else {", *_indented(line.other, depth + 1)]
        found.append("    " * depth + "}")
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
        self.loops: dict[str, Any] = {}  # by their heads in the text
        self.double = double  # whether every float is a double

    def fresh(self, hint: str) -> str:
        name, k = hint, 2
        while name in self._taken:
            name, k = f"{hint}_{k}", k + 1
        self._taken.add(name)
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


def step_text(name: str, step: str) -> str:
    return f"++{name}" if step == "1" else f"{name} += {step}"


_WHOLE = re.compile(r"\d[\w.]*(e[-+]\d+f?)?|[\w.]+|[\w.]+\([^()]*\)|[\w.]+(\[[^\[\]]*\])+[\w.]*")
_SUMS, _PRODUCTS, _COMPARISONS = ("+", "-"), ("*", "/"), ("<", "<=", ">", ">=", "==", "!=")


def operand(text: str, inner: str | None, operator: str | None = None, last: bool = True) -> str:
    """An operand, which the operator `inner` computes: in parentheses where C would read it otherwise."""
    looser = (inner in _PRODUCTS and operator in _SUMS) or (inner in (*_SUMS, *_PRODUCTS) and operator in _COMPARISONS)
    looser |= inner in _COMPARISONS and operator in ("&&", "||")
    same = any(inner in each and operator in each for each in (_SUMS, _PRODUCTS, ("&&",), ("||",))) and not last
    return text if looser or same or _WHOLE.fullmatch(text) else f"({text})"


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
    terms = []
    for key, value in p.items():
        parts = [s if isinstance(s, str) else _settled(s) for s in key]
        terms.append(" * ".join([*parts, *([str(value)] if value != 1 or not parts else [])]))
    return " + ".join(terms).replace("+ -", "- ") or "0"


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
