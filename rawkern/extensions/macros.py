"""The preprocessor for code of the host: the file's own macros are expanded, torch's stay as they are.

An argument that is a lambda and occurs more than once in a macro's body, as in macros that choose a template instance,
is written once, before the statement: ``auto rk_body_1 = [&] {...};``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rawkern.extensions.untranslated import NotTranslated

_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^()\\ ]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*'
    r"|\.?\d(?:[eEpP][+-]|'?[\w.])*|\s+|##|<<<|>>>|.",
    re.S,
)
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_DEFINE = re.compile(r"[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)(\(([^)]*)\))?(.*)", re.S)
_LAMBDA = re.compile(r"\s*\(?\s*\[[&=\w,\s]*\]")
HOISTED = "rk_body_"
#: Macros of torch that are statements, which need no semicolon after them.
_STATEMENTS = re.compile(
    r"(?:TORCH_(?:CHECK|WARN|INTERNAL_ASSERT)|AT_(?:ASSERT|ERROR|CHECK|DISPATCH|CUDA_CHECK)|C10_CUDA_(?:CHECK|KERNEL))\w*\Z"
)
_HEADS = ("for", "if", "while", "else", "switch", "do", "struct", "class", "template")


@dataclass(frozen=True)
class Macro:
    """A macro of the source."""

    parameters: tuple[str, ...] | None  # None for one without parentheses
    body: tuple[str, ...]
    variadic: bool = False


@dataclass
class Expanded:
    """Code of the host with its macros expanded."""

    text: str = ""
    lines: list[int] = field(default_factory=list)  # the line of the source for each line of the text
    declared: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # hoisted: names that its macro declares


def tokens(text: str) -> list[str]:
    return [match[0] for match in _TOKEN.finditer(text)]


def define(directive: str) -> tuple[str, Macro] | None:
    """The macro that a ``#define`` makes."""
    match = _DEFINE.match(directive.replace("\\\n", " ").replace("\\\r\n", " "))
    if match is None:
        return None
    body = [token for token in tokens(match[4]) if not token.startswith(("//", "/*"))]
    while body and body[0].isspace():
        body.pop(0)
    while body and body[-1].isspace():
        body.pop()
    if match[2] is None:
        return match[1], Macro(None, tuple(body))
    names = [name.strip() for name in match[3].split(",")] if match[3].strip() else []
    variadic = bool(names) and names[-1].endswith("...")
    if variadic:
        names[-1] = names[-1][:-3].strip() or "__VA_ARGS__"
    return match[1], Macro(tuple(names), tuple(body), variadic)


Piece = tuple[str, int, frozenset[str]]  # a token, its line, and the macros it came from


def expand(text: str, line: int, macros: Mapping[str, Macro]) -> Expanded:
    """Expand a part of a source that begins in a line."""
    pieces: list[Piece] = []
    for token in tokens(text):
        shown = " " if token.startswith(("//", "/*")) and "\n" not in token else token
        shown = "\n" * token.count("\n") if token.startswith("/*") and "\n" in token else shown
        pieces.append((shown, line, frozenset()))
        line += token.count("\n")
    work = _Expansion(macros)
    out = _separated(work.run(pieces))
    found = Expanded(declared=work.declared)
    row, start = [], True
    for token, at, _ in out:
        if start and not token.isspace():
            found.lines.append(at)
            start = False
        for _ in range(token.count("\n")):
            if start:
                found.lines.append(at)
            start = True
        row.append(token)
    found.lines.append(line)
    found.text = "".join(row)
    return found


class _Expansion:
    def __init__(self, macros: Mapping[str, Macro]) -> None:
        self.macros = macros
        self.declared: dict[str, list[tuple[str, str]]] = {}

    def run(self, pieces: list[Piece], hoist: bool = True) -> list[Piece]:
        """Expand the macros in a list of tokens."""
        out: list[Piece] = []
        todo = pieces[::-1]
        while todo:
            token, line, come = todo.pop()
            macro = self.macros.get(token)
            if macro is None or token in come:
                out.append((token, line, come))
                continue
            if macro.parameters is None:
                body = [(each, line, come | {token}) for each in macro.body]
                todo += self._pasted(body)[::-1]
                continue
            arguments = self._arguments(todo)
            if arguments is None:
                out.append((token, line, come))
                continue
            place = self._place(out) if hoist else None
            body, before = self._called(token, macro, arguments, line, come, place is not None)
            if before:
                out[place:place] = before
            if _wants_end(body, todo):
                body.append((";", line, come))
            todo += body[::-1]
        return out

    def _arguments(self, todo: list[Piece]) -> list[list[Piece]] | None:
        """The arguments after a macro's name, taken off the tokens; None where no parenthesis is."""
        at = len(todo) - 1
        while at >= 0 and todo[at][0].isspace():
            at -= 1
        if at < 0 or todo[at][0] != "(":
            return None
        depth, arguments = 0, [[]]
        for end in range(at, -1, -1):
            token = todo[end][0]
            if token in ")]}":
                depth -= 1
            if depth == 0 and token == ")":
                del todo[end:]
                return [_stripped(one) for one in arguments]
            if token == "," and depth == 1:
                arguments.append([])
            elif depth:
                arguments[-1].append(todo[end])
            if token in "([{":  # C's rule knows round ones; an argument is code here
                depth += 1
        raise NotTranslated("a macro's call without its closing parenthesis")

    def _called(
        self, name: str, macro: Macro, given: list[list[Piece]], line: int, come: frozenset[str], hoist: bool
    ) -> tuple[list[Piece], list[Piece]]:
        names = macro.parameters or ()
        if len(given) == 1 and not given[0] and not names:
            given = []
        if macro.variadic and len(given) >= len(names) - 1:
            rest: list[Piece] = []
            for k, each in enumerate(given[len(names) - 1 :]):
                rest += ([(",", line, come), (" ", line, come)] if k else []) + each
            given = [*given[: len(names) - 1], rest]
        if len(given) != len(names):
            raise NotTranslated(f"the macro {name} takes {len(names)} arguments, it is called with {len(given)}")
        raw = dict(zip(names, given, strict=True))
        full = {one: self.run(list(pieces)) for one, pieces in raw.items()}
        before: list[Piece] = []
        hoisted: list[str] = []
        for one in names:
            uses = macro.body.count(one)
            if uses > 1 and hoist and _LAMBDA.match("".join(token for token, _, _ in full[one])):
                made = f"{HOISTED}{len(self.declared) + len(hoisted) + 1}"
                hoisted.append(made)
                at = full[one][0][1]
                before += [("auto ", at, come), (made, at, come), (" = ", at, come), *full[one], ("; ", at, come)]
                full[one] = [(made, line, come)]
        body: list[Piece] = []
        marks = come | {name}
        parts, pasting = list(macro.body), "##" in macro.body
        at = 0
        while at < len(parts):
            token = parts[at]
            if token == "#" and (after := _next(parts, at)) is not None and parts[after] in raw:
                body.append((_quoted(raw[parts[after]]), line, marks))
                at = after + 1
                continue
            if token in raw:
                pasted = pasting and _is_pasted(parts, at)
                body += raw[token] if pasted else full[token]
                if not raw[token] and pasted:
                    body.append(("", line, marks))
            elif token == "__VA_OPT__":
                raise NotTranslated(f"__VA_OPT__ in the macro {name}")
            else:
                body.append((token, line, marks))
            at += 1
        body = self._pasted(body) if pasting else body
        if hoisted:
            text = "".join(token for token, _, _ in _Expansion(self.macros).run(list(body)))
            self.declared |= dict.fromkeys(hoisted, _declared(text))
        return body, before

    def _pasted(self, body: list[Piece]) -> list[Piece]:
        """Join tokens around ``##``."""
        if not any(token == "##" for token, _, _ in body):
            return body
        out: list[Piece] = []
        at = 0
        while at < len(body):
            if body[at][0] == "##":
                while out and out[-1][0].isspace():
                    out.pop()
                at += 1
                while at < len(body) and body[at][0].isspace():
                    at += 1
                if out and at < len(body):
                    last = out.pop()
                    if last[0].strip() == "," and body[at][0].startswith(("[", '"', "(")):  # GNU's `, ##__VA_ARGS__`
                        out += [last, body[at]]
                    elif last[0].strip() == "," and not body[at][0]:
                        pass
                    else:
                        out.append((last[0] + body[at][0], last[1], last[2]))
                    at += 1
                continue
            out.append(body[at])
            at += 1
        return out

    def _place(self, out: list[Piece]) -> int | None:
        """Where a declaration fits before the statement that the tokens so far begin; None where none does."""
        at = len(out)
        while at and out[at - 1][0] not in (";", "{", "}", "; "):
            at -= 1
        said = [token for token, _, _ in out[at:] if not token.isspace()]
        if said in ([], ["return"]) or (said[-1] == "=" and not {"if", "for", "while"} & set(said)):
            return at
        return None


def _wants_end(body: list[Piece], todo: list[Piece]) -> bool:
    """Whether a macro's expansion is a statement to which no semicolon was given."""
    said = [token for token, _, _ in body if token and not token.isspace()]
    following = next((token for token, _, _ in reversed(todo) if not token.isspace()), "")
    statement = bool(said) and said[-1] == ")" and said[0] not in _HEADS
    return statement and (following == "}" or (_NAME.match(following) is not None and following not in _WORDS))


_WORDS = ("and", "or", "const", "noexcept", "override")


def _separated(pieces: list[Piece]) -> list[Piece]:
    """Put semicolons after torch's macros that are statements, and commas between the cases of AT_DISPATCH_SWITCH."""
    pieces = _with_sizes(pieces)
    if not any(_STATEMENTS.match(token) for token, _, _ in pieces):
        return pieces
    out: list[Piece] = []
    ends: list[int] = []  # the depth at which a macro's call ends
    depth, waiting, last = 0, False, ""
    for piece in pieces:
        token = piece[0]
        if waiting and token and not token.isspace():
            if token == "}" or (
                _NAME.match(token) and token not in ("and", "or") and not token.startswith("AT_DISPATCH_CASE")
            ):
                out.append((";", piece[1], piece[2]))
            waiting = False
        if token.startswith("AT_DISPATCH_CASE") and last == ")":
            out.append((",", piece[1], piece[2]))
        if _STATEMENTS.match(token) and not token.startswith("AT_DISPATCH_CASE"):
            ends.append(depth)
        if token and token in "([{":
            depth += 1
        elif token and token in ")]}":
            depth -= 1
            if ends and token == ")" and depth == ends[-1]:
                ends.pop()
                waiting = True
        elif ends and token == ";" and depth == ends[-1]:
            ends.pop()
        out.append(piece)
        if token and not token.isspace():
            last = token
    return out


def _with_sizes(pieces: list[Piece]) -> list[Piece]:
    """Write ``dim3(x, y)`` for ``{x, y}`` between ``<<<`` and ``>>>``, which is not read as an expression."""
    out: list[Piece] = []
    inside = False
    for piece in pieces:
        inside = piece[0] == "<<<" or (inside and piece[0] not in (">>>", ";"))
        if inside and piece[0] in ("{", "}"):
            piece = ("dim3(" if piece[0] == "{" else ")", piece[1], piece[2])
        out.append(piece)
    return out


def _stripped(pieces: list[Piece]) -> list[Piece]:
    start, end = 0, len(pieces)
    while start < end and pieces[start][0].isspace():
        start += 1
    while end > start and pieces[end - 1][0].isspace():
        end -= 1
    return pieces[start:end]


def _next(parts: list[str], at: int) -> int | None:
    """The place of the next token that is not a space."""
    at += 1
    while at < len(parts) and parts[at].isspace():
        at += 1
    return at if at < len(parts) else None


def _is_pasted(parts: list[str], at: int) -> bool:
    after = _next(parts, at)
    if after is not None and parts[after] == "##":
        return True
    at -= 1
    while at >= 0 and parts[at].isspace():
        at -= 1
    return at >= 0 and parts[at] == "##"


def _quoted(pieces: Iterable[Piece]) -> str:
    text = re.sub(r"\s+", " ", "".join(token for token, _, _ in pieces)).strip()
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_USING = re.compile(r"using\s+(\w+)(?:\s+\w+)?\s*=|typedef\s+[^;]*?(\w+)\s*;")
_CONST = re.compile(
    r"constexpr\s+(?:static\s+|const\s+)*([\w:]+)\s+(?:static\s+)?(\w+)\s*=|const\s+([\w:]+)\s+(\w+)\s*="
)


def _declared(text: str) -> list[tuple[str, str]]:
    """The names that the text of a macro declares around its lambda, with the types of constants."""
    found = [(match[1] or match[2], "typename") for match in _USING.finditer(text)]
    found += [((m[2] or m[4]), (m[1] or m[3])) for m in _CONST.finditer(text)]
    return list(dict.fromkeys(found))
