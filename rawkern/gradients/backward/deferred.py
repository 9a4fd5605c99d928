"""Gradients that several loops add to one after another, set once by the last of them.

Where loops go through a row alike and each adds to the elements' gradients, memory would be read and written for each.
What the earlier loops give is computed again in the last one instead, if that takes only what is still there (memory
that the backward only reads, and variables that nothing has changed since) and only sums, products and loads, quotients
that are the same in all iterations, and whatever else the last loop computes anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

from rawkern.gradients.layout import Group

MOST = 12  # lines that are computed again
_DEFINED = re.compile(r"const ([\w ]+) (\w+) = (.*);")
_COUNTED = re.compile(r"for \(int (\w+) = [^;]*; [^;]*; (\+\+\1|\1 \+= [^;]*)\) \{")
_NAMES = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?=(\s*\(|\[)?)")
_TYPES = {"float", "double", "int", "unsigned", "long", "short", "char", "bool", "const", "signed", "size_t"}


@dataclass(frozen=True)
class Added:
    """What a loop adds to an element: the place, and the value's name or expression."""

    place: str
    value: str

    def line(self, sign: str) -> str:
        """The line that does so."""
        return f"{self.place} {sign} {self.value};"


def defer(lines: list[Any], adds: Sequence[Added], readable: Set[str], fixed: Set[str],
          fresh: Callable[[str], str]) -> None:  # fmt: skip
    """Let the last of loops alike do what all of them do to elements that the first of `adds` sets.

    `readable`: arrays in memory that are only read; `fixed`: other names that mean no variable of a thread's own.
    """
    texts, flat = [add.line("+=" if k else "=") for k, add in enumerate(adds)], list(_flat(lines))
    if [x for x in flat if x in texts] != texts:  # each once, in this order
        return
    found = [_find(lines, text) for text in texts]
    run: list[tuple[list[Any], int]] = []
    for each in found:
        head = each[0][each[1]].head if each else ""
        if not each or not _COUNTED.fullmatch(head):
            break
        if run and (
            each[0] is not run[0][0] or each[1] <= run[-1][1] or not _same_head(run[0][0][run[0][1]].head, head)
        ):
            break
        run.append(each)
    if len(run) < 2:
        return
    where, last = run[-1]
    body, parts = where[last].body, []
    added: list[str] = []
    for (_, at), add in zip(run[:-1], adds, strict=False):
        part = _again(where, at, last, add, readable, fixed, fresh, [*body, *added])
        if part is None:
            return
        added += part[0]
        parts.append(part[1])
    end = body.index(texts[len(run) - 1])
    final = Added(adds[len(run) - 1].place, " + ".join([*parts, _product(adds[len(run) - 1].value)]))
    body[end : end + 1] = [*added, final.line("=")]
    for (_, at), text in zip(run[:-1], texts, strict=False):
        where[at].body.remove(text)
        _prune(where[at].body)


def _flat(lines: list[Any]) -> Iterator[str]:
    for line in lines:
        if isinstance(line, Group):
            yield from _flat(line.body)
            yield from _flat(line.other)
        else:
            yield line


def _find(lines: list[Any], line: str) -> tuple[list[Any], int] | None:
    """The loop that has a line at its top: the lines that it is among, and its place there."""
    for k, item in enumerate(lines):
        if isinstance(item, Group):
            if line in item.body:
                return lines, k
            for inner in (item.body, item.other):
                if at := _find(inner, line):
                    return at
    return None


def _same_head(a: str, b: str) -> bool:
    return _renamed(a, {_counter(a): _counter(b)}) == b


def _counter(head: str) -> str:
    return head.removeprefix("for (int ").partition(" ")[0]


def _renamed(text: str, new: dict[str, str]) -> str:
    return re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda m: new.get(m[0], m[0]), text)


def _again(where: list[Any], at: int, last: int, add: Added, readable: Set[str], fixed: Set[str],
           fresh: Callable[[str], str], there: list[Any]) -> tuple[list[str], str] | None:  # fmt: skip
    """Lines that compute in the last loop what one before it adds, and the value; None if that can't be had."""
    defined = {m[2]: m for x in where[at].body if isinstance(x, str) and (m := _DEFINED.fullmatch(x))}
    counter = _counter(where[at].head)
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
                    todo.append((name, defined[name][3]))
            elif not name.endswith("Idx") and not name.endswith("Dim") and _changes(where[at : last + 1], name):
                return None
    if len(wanted) > MOST or "" in costly:
        return None
    new = {counter: _counter(where[last].head)}
    known = {(m[1], m[3]): m[2] for x in there if isinstance(x, str) and (m := _DEFINED.fullmatch(x))}
    lines: list[str] = []
    for name, m in defined.items():
        if name in wanted:
            text = _renamed(m[3], new)
            if (m[1], text) not in known:
                if name in costly:
                    return None
                known[m[1], text] = fresh(name)
                lines.append(f"const {m[1]} {known[m[1], text]} = {text};")
            new[name] = known[m[1], text]
    return lines, _product(_renamed(add.value, new))


def _product(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def _changes(lines: list[Any], name: str) -> bool:
    """Whether lines give a variable another value."""
    for line in lines:
        if isinstance(line, Group):
            if _changes([line.head], name) or _changes(line.body, name) or _changes(line.other, name):
                return True
        elif re.search(rf"(?<![\w.]){name}\s*([-+*/%&|^]|<<|>>)?=(?!=)|(\+\+|--){name}\b|\b{name}(\+\+|--)", line):
            return True
    return False


def _prune(body: list[Any]) -> None:
    """Drop values that nothing reads."""
    for line in reversed([x for x in body if isinstance(x, str)]):
        m = _DEFINED.fullmatch(line)
        if m and not _reads([x for x in body if x is not line], m[2]):
            body.remove(line)


def _reads(lines: list[Any], name: str) -> bool:
    return any(
        _reads([x.head, *x.body, *x.other], name) if isinstance(x, Group) else re.search(rf"(?<![\w.]){name}\b", x)
        for x in lines
    )
