"""``#if`` for code of the host: what the preprocessor leaves out, in the order of the text and of what it includes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rawkern.compile.declarations import Directive

_DIRECTIVE = re.compile(
    r"[ \t]*#[ \t]*(ifdef|ifndef|if|elifdef|elifndef|elif|else|endif|define|undef|include)\b(.*)", re.S
)
_COMMENT = re.compile(r"//.*|/\*.*?\*/|\\\r?\n", re.S)
_DEFINE = re.compile(r"\s*([A-Za-z_]\w*)(\()?(.*)", re.S)
_DEFINED = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))")
_SUFFIX = re.compile(r"(?<=[\da-fA-F])(?:[uU]?[lL]{1,2}|[lL]{0,2}[uU])\b")
_WORD = re.compile(r"[A-Za-z_]\w*")
_OPERATORS = {"&&": " and ", "||": " or ", "!": " not ", "/": "//"}
_PLAIN = re.compile(r"[\s\d()+\-*/%<>=!&|^~xXa-fA-F]*")
# Macros of torch's and CUDA's headers that sources ask for; what takes arguments has no value here.
_OF_HEADERS = re.compile(
    r"(?:TORCH_CHECK|TORCH_LIBRARY|TORCH_WARN|TORCH_INTERNAL_ASSERT|TORCH_EXTENSION_NAME|AT_DISPATCH|AT_CUDA_CHECK"
    r"|AT_ERROR|AT_ASSERT|C10_CUDA|C10_LAUNCH|PYBIND11_MODULE|PYBIND11_VERSION)\w*\Z"
)


@dataclass
class Outcome:
    """What the conditions of one file come to."""

    dead: list[tuple[int, int]] = field(default_factory=list)  # spans that are left out
    unknown: list[tuple[int, str]] = field(default_factory=list)  # conditions that are not understood: both sides stay


class Conditionals:
    """The macros that are defined so far, as conditions see them."""

    def __init__(self, known: Mapping[str, int | None], defined: Mapping[str, str]) -> None:
        self.macros: dict[str, str | None] = {
            **{name: "1" if value == -1 else str(value) for name, value in known.items() if value is not None},
            **defined,
        }
        self.undefined = {name for name, value in known.items() if value is None} - set(defined)

    def pass_through(self, directives: Iterable[Directive], include: Callable[[str], None]) -> Outcome:
        """Go through a file's directives; `include` is called with the name of each header that is included."""
        found = Outcome()
        # For each open #if: where its branch began, whether that is live (None: not known), whether one has been taken.
        opened: list[tuple[int, bool | None, bool | None]] = []
        for one in directives:
            match = _DIRECTIVE.match(_COMMENT.sub(" ", one.text))
            if match is None:
                continue
            word, rest = match[1], match[2].strip()
            live = all(state is not False for _, state, _ in opened)
            if word in ("if", "ifdef", "ifndef"):
                now = self._holds(word, rest) if live else False
                if now is None:
                    found.unknown.append((one.start, " ".join(one.text.split())))
                opened.append((one.end, now, None if now is None else now or not live))
            elif word in ("else", "endif") or word.startswith("elif"):
                if not opened:
                    continue
                start, state, taken = opened.pop()
                if state is False:
                    found.dead.append((start, one.start))
                if word == "endif":
                    continue
                now = True if word == "else" else self._holds(word[2:], rest)
                if taken:
                    now = False
                elif taken is None and now:
                    now = None
                opened.append((one.end, now, True if taken or now else None if now is None else taken))
            elif live:
                self._directive(word, rest, include)
        return found

    def _directive(self, word: str, rest: str, include: Callable[[str], None]) -> None:
        if word == "include":
            include(rest.strip('<>" \t'))
            return
        match = _DEFINE.match(rest)
        if match is None:
            return
        if word == "undef":
            self.macros.pop(match[1], None)
            self.undefined.add(match[1])
        else:
            self.macros[match[1]] = None if match[2] else match[3].strip()

    def _is_defined(self, name: str) -> bool:
        return name in self.macros or (name not in self.undefined and _OF_HEADERS.match(name) is not None)

    def _holds(self, word: str, text: str) -> bool | None:
        """Whether a condition holds; None for one that is not understood."""
        if word in ("ifdef", "ifndef"):
            return self._is_defined((text.split() or [""])[0]) == (word == "ifdef")
        text = _DEFINED.sub(lambda found: str(int(self._is_defined(found[1] or found[2]))), text)
        for _ in range(10):  # macros in macros
            names = [one for one in _WORD.findall(text) if one in self.macros]
            if any(self.macros[one] is None for one in names):
                return None
            if not names:
                break
            text = _WORD.sub(lambda found: f"({self.macros[found[0]]})" if found[0] in self.macros else found[0], text)
        if re.search(r"[A-Za-z_]\w*\s*\(|[?'\"]", text):
            return None
        text = re.sub(r"\b0[xX][\da-fA-F]+", lambda found: str(int(found[0], 16)), _SUFFIX.sub("", text))
        text = _WORD.sub(lambda found: "1" if found[0] == "true" else "0", text)
        text = re.sub(r"\b0+(?=\d)", "", text)
        if not _PLAIN.fullmatch(text) or "**" in text or "//" in text:
            return None
        text = re.sub(r"&&|\|\||!(?!=)|/", lambda found: _OPERATORS[found[0]], text)
        try:
            return bool(eval(text.strip(), {}))
        except (SyntaxError, ValueError, TypeError, ZeroDivisionError):
            return None
