"""CUDA C as a tree of statements, whose expressions are trees as well, and questions about them.

Nothing assigns to a statement that has a hash, though none is frozen; `expressions` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code.expressions import Call, Cast, Given, Literal, Name, Node


@dataclass(unsafe_hash=True)
class Declare:
    """``const float d_x = value;``; without a value ``float d_x;``, with extents ``float tape[64];``.

    `also`: more names of the type, with their values. An extent of None is left open.
    """

    type: str
    name: str
    value: Node | None = None
    const: bool = False
    extents: tuple[int | None, ...] = ()
    also: tuple[tuple[str, Node | None], ...] = ()

    @property
    def pairs(self) -> tuple[tuple[str, Node | None], ...]:
        """All names with their values."""
        return ((self.name, self.value), *self.also)


@dataclass(unsafe_hash=True)
class Assign:
    """``target = value;``, or with another operator: ``+=``, ``>>=``."""

    target: Node
    value: Node
    sign: str = "="


@dataclass(unsafe_hash=True)
class Run:
    """An expression for its effect: ``atomicAdd(&x[i], d);``."""

    expression: Node


@dataclass(unsafe_hash=True)
class Barrier:
    """All threads of a block wait, or of a warp."""

    call: str = "__syncthreads()"


@dataclass(unsafe_hash=True)
class Jump:
    """``return value;``, ``continue;``, ``break;``."""

    word: str = "return"
    value: Node | None = None


@dataclass(unsafe_hash=True)
class Note:
    """A comment or a pragma: a line that is not a statement."""

    text: str


@dataclass
class If:
    """A branch. `inline`: its body is printed on the line of its condition, and on that of ``else``."""

    condition: Node
    body: list[Statement]
    other: list[Statement] = field(default_factory=list)
    inline: bool = False


@dataclass
class For:
    """A loop; `start` declares its variable, or is None where that was there before.

    `loop`: the loop of the kernel that it runs as, from the first iteration to the last.
    """

    start: Declare | None
    condition: Node
    step: Statement
    body: list[Statement]
    inline: bool = False
    loop: Any = None


@dataclass
class While:
    """A loop with a condition alone."""

    condition: Node
    body: list[Statement]


@dataclass
class Scope:
    """Statements whose names end with them."""

    body: list[Statement]


@dataclass(unsafe_hash=True)
class Parameter:
    """A parameter of a function: ``type name``, or ``type (* __restrict__ name)[4]`` of rows."""

    type: str
    name: str
    rows: tuple[int, ...] = ()


@dataclass
class Function:
    """A function or kernel: `before` and `kind` stand before its name, such as comments and the type."""

    kind: str
    name: str
    parameters: Sequence[Parameter]
    body: list[Statement]
    template: Sequence[tuple[str, str]] = ()  # types and names of its parameters
    comments: Sequence[str] = ()


Simple = Declare | Assign | Run | Barrier | Jump | Note
Compound = If | For | While | Scope
Statement = Simple | Compound
BARRIER = Barrier()

S = TypeVar("S")

# Building -------------------------------------------------------------------------------------------------------------


def assign(target: Given, value: Given, sign: str = "=") -> Assign:
    return Assign(expr.node(target), expr.node(value), sign)


def increment(name: str) -> Assign:
    return Assign(Name(name), Literal("1"), "+=")


def constant(kind: str, name: str, value: Given) -> Declare:
    return Declare(kind, name, expr.node(value), const=True)


def variable(kind: str, name: str, value: Given) -> Declare:
    return Declare(kind, name, expr.node(value))


def counting(start: Declare, end: Given, by: Given, body: list[Statement], *, inline: bool = False) -> For:
    """A loop that counts upwards, to what is below the end."""
    return For(start, expr.infix(start.name, "<", end), assign(start.name, by, "+="), body, inline)


# Asking and rewriting -------------------------------------------------------------------------------------------------


def bodies(s: Statement) -> tuple[list[Statement], ...]:
    """The lists of statements in a statement."""
    if isinstance(s, If):
        return s.body, s.other
    return (s.body,) if isinstance(s, For | While | Scope) else ()


def with_bodies(s: Statement, change: Callable[[list[Statement]], list[Statement]]) -> Statement:
    """A statement with other statements in it."""
    if isinstance(s, If):
        return If(s.condition, change(s.body), change(s.other), s.inline)
    if isinstance(s, For):
        return For(s.start, s.condition, s.step, change(s.body), s.inline, s.loop)
    return replace(s, body=change(s.body)) if isinstance(s, While | Scope) else s


def every(statements: Sequence[Statement]) -> Iterator[Statement]:
    """All statements, also those in others."""
    for s in statements:
        yield s
        for body in bodies(s):
            yield from every(body)


def expressions(s: Statement | None) -> tuple[Node, ...]:
    """The expressions of a statement itself, in the order of the source; what it declares is not one."""
    of = _EXPRESSIONS.get(type(s))
    return () if of is None else of(s)


_EXPRESSIONS: dict[type, Callable[[Any], tuple[Node, ...]]] = {
    Declare: lambda s: tuple(value for _, value in s.pairs if value is not None),
    Assign: lambda s: (s.target, s.value),
    If: lambda s: (s.condition,),
    While: lambda s: (s.condition,),
    For: lambda s: (*expressions(s.start), s.condition, *expressions(s.step)),
    Run: lambda s: (s.expression,),
    Jump: lambda s: () if s.value is None else (s.value,),
}


def all_expressions(statements: Sequence[Statement]) -> Iterator[Node]:
    """The expressions of all statements, also of those in others."""
    return (e for s in every(statements) for e in expressions(s))


def names(statements: Sequence[Statement]) -> set[str]:
    """The names in all expressions."""
    return {name for e in all_expressions(statements) for name in expr.names(e)}


def called(statements: Sequence[Statement]) -> set[str]:
    """The functions that are called."""
    return {name for e in all_expressions(statements) for name in expr.calls(e)}


def words(functions: Sequence[Function]) -> set[str]:
    """What the text of functions says beside variables: types, and the functions that are called."""
    found = {p.type for f in functions for p in f.parameters}
    for s in every([s for f in functions for s in f.body]):
        found |= {each.type for each in (s, getattr(s, "start", None)) if isinstance(each, Declare)}
        for e in expressions(s):
            found |= {
                each.type if isinstance(each, Cast) else each.function
                for each in expr.nodes(e)
                if isinstance(each, Cast | Call)
            }
    return found


def with_expressions(s: S, change: Callable[[Node], Node], name: Callable[[str], str] = str) -> S:
    """A statement with its expressions changed, and the names that it declares; not those in its bodies."""
    new: Any = s
    match s:
        case Declare():
            also = tuple((name(each), value and change(value)) for each, value in s.also)
            new = Declare(s.type, name(s.name), s.value and change(s.value), s.const, s.extents, also)
        case Assign():
            new = Assign(change(s.target), change(s.value), s.sign)
        case Run():
            new = Run(change(s.expression))
        case Jump():
            new = Jump(s.word, s.value and change(s.value))
        case If() | While():
            new = replace(s, condition=change(s.condition))
        case For():
            start, step = s.start and with_expressions(s.start, change, name), with_expressions(s.step, change, name)
            new = replace(s, start=start, condition=change(s.condition), step=step)
    return new


def length(statements: Sequence[Statement]) -> int:
    """How many lines statements take, each on one."""
    found = 0
    for s in statements:
        inline, other = getattr(s, "inline", False), bool(bodies(s)[1:] and bodies(s)[1])
        found += 1 + other
        if isinstance(s, Compound) and not inline:
            found += 1 + sum(map(length, bodies(s)))
    return found


def deep(statements: Sequence[Statement], change: Callable[[Node], Node]) -> list[Statement]:
    """Statements with all their expressions changed."""
    return [with_bodies(with_expressions(s, change), lambda body: deep(body, change)) for s in statements]


def continued(statements: Sequence[Statement]) -> list[Statement]:
    """Statements of a function as those of a loop: where they returned, the next iteration begins."""
    return [Jump("continue") if s == Jump() else with_bodies(s, continued) for s in statements]


def declared(s: Statement) -> list[str]:
    """The variables that a statement declares."""
    s = s.start if isinstance(s, For) and s.start else s
    return [name for name, _ in s.pairs] if isinstance(s, Declare) else []


def named(s: Statement) -> Iterator[str]:
    """The variables that a statement itself declares or names."""
    yield from declared(s)
    for e in expressions(s):
        yield from expr.names(e)


def mentions(s: Statement, name: str) -> bool:
    """Whether a statement, or one in it, names a variable."""
    return any(name in named(each) for each in every([s]))
