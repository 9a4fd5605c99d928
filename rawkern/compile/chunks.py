"""The declarations at namespace scope of a CUDA source, found by brackets and words.

A syntax tree would need expanded macros: `PYBIND11_MODULE(...) {` and `CHECK_INPUT(x)` are not C++.
Brackets and the words before them tell where a declaration ends and what it is, in every branch of an ``#if``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass

from rawkern.compile.conditions import DEVICE, left_out
from rawkern.compile.declarations import Directive, blanked


@dataclass(frozen=True)
class Chunk:
    """One declaration at namespace scope, or in a class where one is asked for its members."""

    #: "function", "declaration" (of one), "type", "alias", "using", "variable", "macro" (a use) or "instantiation"
    kind: str
    name: str  # without namespaces; "" where it has none
    start: int  # in the text, at its first word
    end: int
    head: int  # where its body, initializer or end begins
    template: bool
    scopes: tuple[str, ...]  # the namespaces around it; "" for one without a name, '"C"' for extern "C"

    @property
    def full_name(self) -> str:
        return "::".join([*(scope for scope in self.scopes if scope and scope != '"C"'), self.name])


@dataclass(frozen=True)
class Parts:
    """A text with its declarations at namespace scope."""

    text: str
    code: str  # the text with spaces over comments, literals and directives
    directives: tuple[Directive, ...]
    dead: tuple[tuple[int, int], ...]  # what #if leaves out for the device
    chunks: tuple[Chunk, ...]

    def directives_in(self, start: int, end: int) -> tuple[Directive, ...]:
        """The directives that begin in a part of the text."""
        low = bisect_left(self.directives, start, key=lambda one: one.start)
        return self.directives[low : bisect_left(self.directives, end, key=lambda one: one.start)]


_TOKEN = re.compile(r"#(?:if|el|en)|[{}();]")
_SPACE = re.compile(r"(?:inline\s+)?\bnamespace\b([^;{=()]*)\Z|\bextern\s*\"C\"\s*\Z")
_ATTRIBUTE = re.compile(r"\[\[.*?\]\]|\binline\b", re.S)
_WORD = re.compile(r"[A-Za-z_]\w*")
_NEXT = re.compile(r"\s*(.)", re.S)
_CALL = re.compile(r"([A-Za-z_]\w*)\s*\Z")
_TYPE = re.compile(r"(?:typedef\s+|static\s+|const\s+|constexpr\s+|inline\s+)*\b(?:struct|class|union|enum)\b")
_TYPE_NAME = re.compile(r"(?:struct|union|enum\s+class|enum\s+struct|class|enum)\s+((?:\w+\s*::\s*)*\w+)")
_BRACKETS = re.compile(r"([A-Za-z_]\w*)\s*\(")
_ATTRIBUTES = {
    "__align__", "alignas", "__attribute__", "__declspec", "__launch_bounds__", "__cluster_dims__", "__maxnreg__",
    "noexcept", "requires", "decltype", "throw", "__block_size__", "explicit",
}  # fmt: skip
_OPERATOR = re.compile(r"\boperator\s*(\(\s*\)|[^\s\w(]+|\w[\w\s:*&<>]*?)\s*(?=\()")
_NOT_MACROS = {
    "static_assert", "decltype", "alignas", "asm", "__asm__", "typeof", "if", "for", "while", "switch", "return",
    "__launch_bounds__", "__attribute__", "__align__", "__declspec", "explicit", "noexcept", "requires", "operator",
}  # fmt: skip
_MEMBER_INIT = re.compile(r"\)\s*(?:noexcept\s*)?:(?!:).*[\w>]\s*\Z|\)\s*(?:noexcept\s*)?:(?!:).*,\s*\w+\s*\Z", re.S)


def parts(text: str) -> Parts:
    """Take a text apart."""
    code, directives = blanked(text)
    return Parts(text, code, directives, tuple(left_out(directives, DEVICE)), tuple(_Scan(code).chunks))


def members(code: str, start: int, end: int) -> tuple[Chunk, ...]:
    """The members of a class whose braces open at `start` and close before `end`."""
    return tuple(_Scan(code, start + 1, end - 1).chunks)


class _Scan:
    def __init__(self, code: str, at: int = 0, stop: int | None = None) -> None:
        self.code, self.stop = code, len(code) if stop is None else stop
        self.chunks: list[Chunk] = []
        self.scopes: list[str] = []
        self.start = at  # of what is not yet ended
        self.head: int | None = None  # where its body begins
        self.round = self.curly = 0
        branches: list[tuple[int, int, list[str], int | None]] = []
        for match in _TOKEN.finditer(code, at, self.stop):
            token = match[0]
            if token == "#if":
                branches.append((self.round, self.curly, list(self.scopes), self.head))
            elif token == "#el":
                if branches:
                    self.round, self.curly, scopes, self.head = branches[-1]
                    self.scopes = list(scopes)
            elif token == "#en":
                if branches:
                    branches.pop()
            elif token == "(":
                self.round += 1
            elif token == ")":
                self.round = max(self.round - 1, 0)
                if not self.round and not self.curly:
                    self._maybe_macro(match.end())
            elif token == "{":
                self._open(match.start())
            elif token == "}":
                self._close(match.start())
            elif not self.round and not self.curly:
                self._end(match.end())
        if not self.curly and self.code[self.start : self.stop].strip(" \t\n\r"):
            self._end(self.stop)

    def _first(self) -> int:
        """Where the words of what is not yet ended begin, after marks of ``#if``."""
        match = re.compile(r"(?:\s|#(?:if|el|en)|;)*").match(self.code, self.start, self.stop)
        return match.end() if match else self.start

    def _open(self, at: int) -> None:
        if not self.curly and not self.round:
            head = self.code[self._first() : at]
            if ("namespace" in head or '"C"' in head) and (space := _SPACE.search(head)):
                name = _ATTRIBUTE.sub("", space[1]).strip() if space[1] is not None else '"C"'
                self.scopes.append(name.replace(" ", ""))
                self.start, self.head = at + 1, None
                return
            if self.head is None and not _MEMBER_INIT.search(head):
                self.head = at
        self.curly += 1

    def _close(self, at: int) -> None:
        if self.curly:
            self.curly -= 1
            if not self.curly and not self.round and self.head is not None and self._is_function(self.head):
                self._end(at + 1)
        elif self.scopes:
            if self.code[self._first() : at].strip():
                self._end(at)
            self.scopes.pop()
            self.start, self.head = at + 1, None

    def _is_function(self, head: int) -> bool:
        return _kind(self.code[self._first() : head], True)[0] in ("function", "macro")

    def _maybe_macro(self, at: int) -> None:
        """End a macro's use that no semicolon ends: a single word with brackets, and another word on the next line."""
        first = self._first()
        match = _WORD.match(self.code, first)
        if match is None or match[0] in _NOT_MACROS or self.head is not None:
            return
        opened = _NEXT.match(self.code, match.end())
        if opened is None or opened[1] != "(" or _closed(self.code, opened.end() - 1) != at:
            return
        follows = _NEXT.match(self.code, at, self.stop)
        between = self.code[at : follows.end() - 1] if follows else "\n"
        if follows is None or follows[1] in "}#" or ("\n" in between and re.match(r"[A-Za-z_\[]", follows[1])):
            self._end(at)

    def _end(self, end: int) -> None:
        first = self._first()
        if first < end:
            stop = end if self.head is None else self.head
            kind, name, template = _kind(self.code[first:stop], self.head is not None)
            self.chunks.append(Chunk(kind, name, first, end, stop, template, tuple(self.scopes)))
        self.start, self.head = end, None


def _closed(code: str, at: int) -> int:
    """Where the round bracket that opens at a place is closed, and one past it."""
    depth = 0
    for match in re.compile(r"[()]").finditer(code, at):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return match.end()
    return len(code)


def without_template(head: str) -> tuple[str, bool]:
    """A declaration without its ``template <...>``, and whether that is ``template`` alone, an instantiation."""
    head = head.lstrip()
    while match := re.match(r"(?:extern\s+)?template\b\s*(<?)", head):
        if not match[1]:
            return head[match.end() :].lstrip(), True
        head = head[_angle(head, match.end() - 1) :].lstrip()
    return head, False


def _angle(text: str, at: int) -> int:
    """One past the ``>`` that closes the ``<`` at a place; comparisons inside must be in parentheses."""
    depth = rounds = 0
    for match in re.compile(r"[()<>]").finditer(text, at):
        c = match[0]
        if c in "()":
            rounds += 1 if c == "(" else -1
        elif not rounds:
            if c == ">" and text[match.start() - 1] == "-":
                continue
            depth += 1 if c == "<" else -1
            if not depth:
                return match.end()
    return len(text)


def _kind(head: str, body: bool) -> tuple[str, str, bool]:
    """What a declaration is by the words before its body, its name, and whether it is a template."""
    plain, instantiation = without_template(re.sub(r"#(?:if|el|en)", "   ", head))
    template = not instantiation and bool(re.match(r"\s*template\b", head))
    bare, at = plain, 0
    while match := _BRACKETS.search(bare, at):
        at = match.end()
        if match[1] in _ATTRIBUTES or "LAUNCH_BOUNDS" in match[1]:
            bare, at = bare[: match.start()] + " " + bare[_closed(bare, at - 1) :], match.start()
    bare = re.sub(r"\[\[.*?\]\]", " ", bare, flags=re.S)
    if instantiation:
        return "instantiation", _last_name(re.sub(r"[<(].*", "", bare, flags=re.S)), False
    if re.match(r"using\b|namespace\b", bare):
        match = re.match(r"(?:using|namespace)\s+(\w+)\s*=", bare)
        return ("alias", match[1], template) if match else ("using", _last_name(bare.rstrip("; \n")), False)
    if _TYPE.match(bare) and (body or re.fullmatch(r"[^(=]*?;?\s*", bare)):
        opened = _first_round(bare)
        if opened is None or ":" in bare[:opened].replace("::", ""):
            match = _TYPE_NAME.search(bare)
            typedef = bare.startswith("typedef")
            words = re.sub(r"<.*", "", bare, flags=re.S).rstrip("; \n").split()
            if body or typedef or len(words) <= 2 or (len(words) == 3 and words[1] in ("class", "struct")):
                return "type", match[1].rpartition("::")[2].strip() if match else "", template
    if re.match(r"typedef\b", bare):
        return "alias", _last_name(re.sub(r"\[[^\]]*\]", "", bare).rstrip("; \n")), template
    if match := _OPERATOR.search(bare):
        return ("function" if body else "declaration"), "operator" + match[1].strip(), template
    opened = _first_round(bare)
    equals = re.search(r"(?<![=!<>])=(?!=)", _no_angles(bare[:opened] if opened is not None else bare))
    if opened is None or equals:
        name = re.split(r"(?<![=!<>])=(?!=)|\[|;", _no_angles(bare), maxsplit=1)[0]
        return "variable", _last_name(name), template
    call = _CALL.search(_no_angles(bare[:opened]).rstrip())
    before = bare[: call.start()].strip() if call else ""
    if call and not before and not template:
        return "macro", call[1], False
    if call is None:  # void (*f)(int), or a name that a macro makes
        match = re.match(r"\(\s*[*&]\s*(\w+)", bare[opened:])
        return ("function" if body else "variable" if match else "declaration"), match[1] if match else "", template
    return ("function" if body else "declaration"), call[1], template


def _no_angles(text: str) -> str:
    """A text with spaces for template arguments."""
    out, at = text, 0
    while (at := out.find("<", at)) >= 0:
        end = _angle(out, at)
        out = out[:at] + " " * (end - at) + out[end:]
        at = end
    return out


def _first_round(text: str) -> int | None:
    """Where the first round bracket outside template arguments opens."""
    at = _no_angles(text).find("(")
    return at if at >= 0 else None


def _last_name(text: str) -> str:
    words = _WORD.findall(text)
    return words[-1] if words else ""
