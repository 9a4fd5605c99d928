"""CUDA C as a tree of statements, and its printing. Expressions are C text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

WIDTH, DEEPEST = 120, 15  # of lines, in columns and in steps to the right
_BREAKS = re.compile(r"[-+*/&|<>?:=,;](?= )")


@dataclass(frozen=True)
class Declare:
    """``const float d_x = value;``; without a value ``float d_x;``, with an extent ``float tape[64];``.

    `also`: more names of the type, with their values.
    """

    type: str
    name: str
    value: str = ""
    const: bool = False
    extent: str = ""
    also: tuple[tuple[str, str], ...] = ()

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All names with their values."""
        return ((self.name, self.value), *self.also)


@dataclass(frozen=True)
class Assign:
    """``target = value;``, or with another operator: ``+=``, ``>>=``."""

    target: str
    value: str
    sign: str = "="


@dataclass(frozen=True)
class Run:
    """An expression for its effect: ``atomicAdd(&x[i], d);``."""

    expression: str


@dataclass(frozen=True)
class Barrier:
    """All threads of a block wait, or of a warp."""

    call: str = "__syncthreads()"


@dataclass(frozen=True)
class Jump:
    """``return value;``, ``continue;``, ``break;``."""

    word: str = "return"
    value: str = ""


@dataclass(frozen=True)
class Note:
    """A comment or a pragma: a line that is not a statement."""

    text: str


@dataclass
class If:
    """A branch. `inline`: what it does stands on the line of its condition, and on that of ``else``."""

    condition: str
    body: list[Statement]
    other: list[Statement] = field(default_factory=list)
    inline: bool = False


@dataclass
class For:
    """A loop; `start` declares its variable, or is None where that was there before.

    `loop`: the loop of the kernel that it runs as, from the first iteration to the last.
    """

    start: Declare | None
    condition: str
    step: Statement
    body: list[Statement]
    inline: bool = False
    loop: Any = None


@dataclass
class While:
    """A loop with a condition alone."""

    condition: str
    body: list[Statement]


@dataclass
class Scope:
    """Statements whose names end with them."""

    body: list[Statement]


Simple = Declare | Assign | Run | Barrier | Jump | Note
Compound = If | For | While | Scope
Statement = Simple | Compound
BARRIER = Barrier()

S = TypeVar("S")


def bodies(s: Statement) -> tuple[list[Statement], ...]:
    """The lists of statements in a statement."""
    if isinstance(s, If):
        return s.body, s.other
    return (s.body,) if isinstance(s, For | While | Scope) else ()


def with_bodies(s: Statement, change: Callable[[list[Statement]], list[Statement]]) -> Statement:
    """A statement with other statements in it."""
    if isinstance(s, If):
        return replace(s, body=change(s.body), other=change(s.other))
    return replace(s, body=change(s.body)) if isinstance(s, For | While | Scope) else s


def every(statements: Sequence[Statement]) -> Iterator[Statement]:
    """All statements, also those in others."""
    for s in statements:
        yield s
        for body in bodies(s):
            yield from every(body)


def text(statements: Sequence[Statement]) -> str:
    """All expressions in statements, one a line."""
    return "\n".join(each for s in every(statements) for each in expressions(s))


def expressions(s: Statement) -> Iterator[str]:
    """The expressions of a statement itself, in the order of its text; what it declares is not one."""
    if isinstance(s, For):
        yield from expressions(s.start) if s.start else ()
        yield s.condition
        yield from expressions(s.step)
    elif isinstance(s, Declare):
        yield from (text for text in (s.extent, *(value for _, value in s.pairs)) if text)
    elif not isinstance(s, Scope | Note):
        for part in fields(s):
            text = getattr(s, part.name)
            if part.name in ("target", "value", "expression", "condition", "extent", "call") and text:
                yield text


def with_expressions(s: S, change: Callable[[str], str]) -> S:
    """A statement with its expressions, and the names that it declares, changed; not those in its bodies."""
    new: dict[str, Any] = {}
    for part in fields(s):  # type: ignore[arg-type]
        text = getattr(s, part.name)
        if part.name in ("target", "value", "expression", "condition", "extent", "name", "start", "step") and text:
            new[part.name] = change(text) if isinstance(text, str) else with_expressions(text, change)
        elif part.name == "also":
            new["also"] = tuple((change(name), value and change(value)) for name, value in text)
    return replace(s, **new)  # type: ignore[type-var]


def deep(statements: Sequence[Statement], change: Callable[[str], str]) -> list[Statement]:
    """Statements with all their expressions and names changed."""
    return [with_bodies(with_expressions(s, change), lambda body: deep(body, change)) for s in statements]


def continued(statements: Sequence[Statement]) -> list[Statement]:
    """Statements of a function as those of a loop: where they returned, the next iteration begins."""
    return [Jump("continue") if s == Jump() else with_bodies(s, continued) for s in statements]


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


# Printing -------------------------------------------------------------------------------------------------------------


def simple(s: Statement) -> str:
    """A statement on one line, without its body."""
    if isinstance(s, Declare):
        names = ", ".join(f"{name}{s.extent}{f' = {value}' if value else ''}" for name, value in s.pairs)
        return f"{'const ' if s.const else ''}{s.type} {names};"
    if isinstance(s, Assign):
        by_one = s.value == "1" and s.sign in ("+=", "-=")
        return f"{s.sign[0] * 2}{s.target};" if by_one else f"{s.target} {s.sign} {s.value};"
    if isinstance(s, Run):
        return f"{s.expression};"
    if isinstance(s, Barrier):
        return f"{s.call};"
    if isinstance(s, Jump):
        return f"{s.word} {s.value};" if s.value else f"{s.word};"
    if isinstance(s, Note):
        return s.text
    if isinstance(s, If):
        return f"if ({s.condition})"
    if isinstance(s, While):
        return f"while ({s.condition})"
    if isinstance(s, For):
        start = simple(s.start).removesuffix(";") if s.start else ""
        return f"for ({start}; {s.condition}; {simple(s.step).removesuffix(';')})"
    return ""


def rendered(statements: Sequence[Statement], depth: int = 1) -> list[str]:
    """Lines of text, indented."""
    return [part for line in _indented(statements, depth) for part in wrapped(line)]


def _indented(statements: Sequence[Statement], depth: int) -> list[str]:
    found: list[str] = []
    indent = "    " * min(depth, DEEPEST)  # of a loop with a break that is written out, each iteration is one deeper
    for s in statements:
        if isinstance(s, Barrier) and found and found[-1] == indent + simple(s):  # one does what two do
            continue
        if isinstance(s, Simple):
            found.append(indent + simple(s))
        elif isinstance(s, If | For) and s.inline:
            found += [indent + line for line in _inline(s)]
        else:
            head = simple(s)
            found += [f"{indent}{head} {{" if head else indent + "{", *_indented(bodies(s)[0], depth + 1)]
            if isinstance(s, If) and s.other:
                found += [indent + "} else {", *_indented(s.other, depth + 1)]
            found.append(indent + "}")
    return found


def _inline(s: Statement) -> list[str]:
    """A statement on a line of its own, with what it does there."""
    if not isinstance(s, If | For):
        return [simple(s)]
    does = ", ".join(simple(each).removesuffix(";") for each in s.body[:-1])
    found = [f"{simple(s)} {does}{', ' if does else ''}{_inline(s.body[-1])[0]}"]
    return [*found, *(f"else {_inline(each)[0]}" for each in s.other)] if isinstance(s, If) else found


def wrapped(line: str) -> list[str]:
    """A line of C in as many as the width asks for; broken behind && where there is one, else behind operators."""
    found, indent = [], " " * (len(line) - len(line.lstrip()) + 4)
    while len(line) > WIDTH and " " in line[len(indent) + 20 : WIDTH]:
        at = line.rfind("&& ", WIDTH // 2, WIDTH) + 2
        behind = [m.end() for m in _BREAKS.finditer(line[:WIDTH]) if m.end() > len(indent) + 20]
        at = at if at > 1 else behind[-1] if behind else line.rindex(" ", 0, WIDTH)
        found.append(line[:at])
        line = indent + line[at + 1 :]
    return [*found, line]


def commented(lines: Sequence[str]) -> list[str]:
    """Comments in as many lines as the width asks for."""
    return [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent="//   ")]
