"""The one printer of CUDA C: expressions with no more parentheses than people write, statements, functions."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Binary, Call, Cast, Index, Literal, Member, Name, Node, Ternary, Unary
from rawkern.gradients.code.tree import Assign, Barrier, Declare, For, If, Jump, Note, Run, Simple, Statement, While

WIDTH, DEEPEST = 120, 15  # of lines, in columns and in steps to the right
_BREAKS = re.compile(r"[-+*/&|<>?:=,;](?= )")

# Expressions ----------------------------------------------------------------------------------------------------------


def expression(e: Node) -> str:
    """The text of an expression."""
    match e:
        case Name(text) | Literal(text):
            return text
        case Unary(sign, of):
            return sign + _operand(of, isinstance(of, Binary | Ternary | Unary))
        case Binary():
            return _binary(e)
        case Ternary(test, yes, no):
            parts = [_operand(each, isinstance(each, Ternary)) for each in (test, yes)]
            return f"{parts[0]} ? {parts[1]} : {expression(no)}"
        case Call(function, args):
            return f"{function}({', '.join(map(expression, args))})"
        case Index(of, at):
            return f"{_postfix(of)}[{expression(at)}]"
        case Member(of, name):
            return f"{_postfix(of)}.{name}"
        case Cast(kind, of, bits=True):
            return f"reinterpret_cast<{kind}>({expression(of)})"
        case Cast(kind, of):
            return f"({kind})" + _operand(of, isinstance(of, Binary | Ternary | Unary))


def _operand(e: Node, inner: bool) -> str:
    return f"({expression(e)})" if inner else expression(e)


def _postfix(e: Node) -> str:
    return _operand(e, isinstance(e, Binary | Ternary | Unary) or (isinstance(e, Cast) and not e.bits))


def _binary(e: Binary) -> str:
    """By a loop to the left, not by recursion: sums may have thousands of terms."""
    behind: list[str] = []
    left: Node = e
    while isinstance(left, Binary) and (not behind or _joins(left.sign, e.sign) or _chains(left.sign, e.sign)):
        e = left
        minus = isinstance(e.right, Unary) and e.right.sign == "-" and e.sign in expr.SUMS
        apart = isinstance(e.right, Binary) and not _joins(e.right.sign, e.sign)
        behind.append(f" {e.sign} {_operand(e.right, minus or apart or isinstance(e.right, Ternary))}")
        left = e.left
    return _operand(left, isinstance(left, Binary | Ternary)) + "".join(reversed(behind))


def _joins(inner: str, outer: str) -> bool:
    """Whether an operand stands without parentheses: a product in a sum, either in a comparison, that in && and ||."""
    if outer in ("&&", "||"):
        return inner in expr.COMPARISONS
    if outer in expr.COMPARISONS:
        return inner in (*expr.SUMS, *expr.PRODUCTS)
    return inner in expr.PRODUCTS and outer in expr.SUMS


def _chains(inner: str, outer: str) -> bool:
    """Whether a left operand stands so, too: as a + b in a + b - c."""
    return any(inner in alike and outer in alike for alike in (expr.SUMS, expr.PRODUCTS, ("&&",), ("||",)))


# Statements -----------------------------------------------------------------------------------------------------------


def simple(s: Statement) -> str:
    """A statement on one line, without its body."""
    match s:
        case Declare():
            given = [f" = {expression(value)}" if value is not None else "" for _, value in s.pairs]
            names = ", ".join(f"{name}{_extents(s.extents)}{v}" for (name, _), v in zip(s.pairs, given, strict=True))
            return f"{'const ' if s.const else ''}{s.type} {names};"
        case Assign(target, Literal("1"), "+=" | "-=" as sign):
            return f"{sign[0] * 2}{expression(target)};"
        case Assign(target, value, sign):
            return f"{expression(target)} {sign} {expression(value)};"
        case Run(of):
            return f"{expression(of)};"
        case Barrier(call):
            return f"{call};"
        case Jump(word, value):
            return f"{word};" if value is None else f"{word} {expression(value)};"
        case Note(text):
            return text
        case If():
            return f"if ({expression(s.condition)})"
        case While():
            return f"while ({expression(s.condition)})"
        case For():
            start = simple(s.start).removesuffix(";") if s.start else ""
            return f"for ({start}; {expression(s.condition)}; {simple(s.step).removesuffix(';')})"
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
            found += [f"{indent}{head} {{" if head else indent + "{", *_indented(tree.bodies(s)[0], depth + 1)]
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


# Functions ------------------------------------------------------------------------------------------------------------


def function(f: tree.Function) -> str:
    """The text of a function or kernel."""
    chosen = f"template <{', '.join(f'{kind} {name}' for kind, name in f.template)}>\n" if f.template else ""
    head, given = f"{chosen}{f.kind} {f.name}(", [parameter(p) for p in f.parameters]
    line = f"{head}{', '.join(given)}) {{"
    if len(line) > WIDTH:
        line = f"{head}\n    " + ",\n    ".join(given) + ") {"
    return "\n".join([*commented(f.comments), line, *rendered(f.body), "}", ""])


def parameter(p: tree.Parameter) -> str:
    """A parameter as it is declared."""
    return f"{p.type} {p.name}" if not p.rows else f"{p.type} (* __restrict__ {p.name}){_extents(p.rows)}"


def _extents(sizes: Sequence[int | None]) -> str:
    return "".join(f"[{'' if n is None else n}]" for n in sizes)


def wrapped(line: str) -> list[str]:
    """A line of C in as many as the width asks for; broken after && where there is one, else after operators."""
    if len(line) <= WIDTH:
        return [line]
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
    return [
        part
        for line in lines
        for part in ([line] if len(line) <= WIDTH else textwrap.wrap(line, WIDTH, subsequent_indent="//   "))
    ]
