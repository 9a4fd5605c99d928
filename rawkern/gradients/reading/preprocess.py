"""C's preprocessor, as far as sources that are derived may ask for it: macros, conditions, local headers."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rawkern.compile import macros
from rawkern.compile.source import Source
from rawkern.compile.toolchain import nvrtc, toolchain

_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|'?[\w.])*|\s+|##|.",
    re.S,
)
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_OPERATORS: list[dict[str, Callable[[int, int], int]]] = [
    {"||": lambda a, b: int(bool(a or b))}, {"&&": lambda a, b: int(bool(a and b))}, {"|": operator.or_},
    {"^": operator.xor}, {"&": operator.and_}, {"==": operator.eq, "!=": operator.ne},
    {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt},
    {"<<": operator.lshift, ">>": operator.rshift}, {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": lambda a, b: int(a / b), "%": lambda a, b: a - b * int(a / b)},
]  # fmt: skip
# What the compiler defines: there with any architecture and version, or never.
_COMPILERS = {
    "__CUDACC__": True, "__CUDACC_RTC__": True, "__CUDA_ARCH__": True, "__cplusplus": True,
    "__NVCC__": False, "__HIPCC__": False, "__HIP_PLATFORM_AMD__": False, "__HIP_DEVICE_COMPILE__": False,
}  # fmt: skip
#: Folders of CUDA's and PyTorch's headers, wherever they are: what they declare is known by name.
_KNOWN = ("cuda/", "cub/", "cooperative_groups/", "nv/", "thrust/", "torch/", "ATen/", "c10/")
_DEEPEST = 100  # headers within headers

_Token = tuple[str, frozenset[str]]  # with the macros that it came from, which are not replaced in it again


class Unclear(Exception):
    """A directive that cannot be followed; `line` is where, in `lines`."""

    lines: Sequence[tuple[str | None, int]] = ()

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(frozen=True)
class Headers:
    """The texts of local headers by path, where an include looks for them, and the source as it is compiled."""

    texts: Mapping[str, str]
    own: str | None  # the folder of the source
    folders: Sequence[str]
    source: Source | None = None  # None: what the compiler defines is not known

    def find(self, spelled: str, within: str | None) -> str | None:
        """The path of one as it is spelled, included by a header or the source (None); None for others."""
        name, quoted = spelled[1:-1], spelled.startswith('"')
        own = self.own if within is None else os.path.dirname(within)
        folders = [own, *self.folders] if quoted and own else self.folders
        paths = (os.path.normpath(os.path.join(folder, name)) for folder in folders)
        return None if _is_known(name) else next((path for path in paths if path in self.texts), None)


def _is_known(name: str) -> bool:
    return name.startswith(_KNOWN) or any(os.path.isfile(os.path.join(each, name)) for each in toolchain().include_dirs)


@dataclass(frozen=True)
class Macro:
    parameters: tuple[str, ...] | None  # None for one without parentheses
    body: tuple[str, ...]


@dataclass
class Preprocessed:
    """A text without directives but includes and pragmas; macros that are left as they are.

    It has as many lines as the source, and those of local headers after the lines that include them.
    """

    text: str = ""
    lines: list[tuple[str | None, int]] = field(default_factory=list)  # of each: which of a header's, or the source's
    macros: dict[str, Macro] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)  # of #, ## or ..., which are not followed

    def expanded(self, text: str) -> str:
        """A text with the macros as they are at the end of the source."""
        return "".join(_expand(tokens(text), self.macros))


def tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def defined_by(options: Sequence[str]) -> dict[str, str]:
    """The macros that options define."""
    found, pending = {}, ""
    for option in options:
        said = pending + option
        pending = option if option in ("-D", "--define-macro", "-U", "--undefine-macro") else ""
        if given := re.match(r"(?:-D|--define-macro=?)(\w+)(?:=(.*))?\Z", said, re.S):
            found[given[1]] = "1" if given[2] is None else given[2]
        elif given := re.match(r"(?:-U|--undefine-macro=?)(\w+)\Z", said):
            found.pop(given[1], None)
    return found


def preprocess(text: str, options: Sequence[str] = (), headers: Headers | None = None) -> Preprocessed:
    """Expand a source with its local headers; `Unclear` for what this does not follow."""
    reading = _Reading(headers or Headers({}, None, ()))
    for name, value in defined_by(options).items():
        reading.found.macros[name] = Macro(None, tuple(tokens(value)))
    reading.found.macros["__align__"] = Macro(None, ("alignas",))
    reading.found.macros["_Pragma"] = Macro(("text",), ())  # changes no value
    try:
        reading.read(text, None)
    except Unclear as error:
        error.lines = reading.found.lines
        raise
    reading.flush()
    reading.found.text = "".join(reading.out)
    return reading.found


class _Reading:
    """A source as far as it has been read."""

    def __init__(self, headers: Headers) -> None:
        self.found, self.headers = Preprocessed(), headers
        self.files: list[str | None] = []  # what is read: the source, a header that it includes, one that this does
        self.once: set[str | None] = set()  # headers that are read once only, as they say, and have been
        self.out: list[str] = []
        self.plain: list[str] = []  # lines since the last change of macros
        self.directives: list[str] = []  # those followed so far, without conditions and local headers
        self.includes: list[str] = []  # headers that are not read
        self.taken: list[list[bool]] = []  # for each open #if: whether this part is compiled, and whether one was

    def read(self, text: str, file: str | None) -> None:
        """Read the source, or a header where it is included."""
        self.files.append(file)
        open_before, lines = len(self.taken), self.found.lines
        for line, each in _lines(text):
            at, count = len(lines) + 1, each.count("\n")
            lines += [(file, line + k) for k in range(max(count, 1))]
            directive = re.match(r"\s*#\s*(\w*)(.*)", _spaced(each), re.S)
            word, rest = (directive[1], directive[2].strip()) if directive else ("", "")
            header = self._header(at, rest) if word == "include" else None
            kept = self.on if directive is None else not self.directive(at, word, rest) and header is None
            self.plain.append(each if kept else "\n" * count)
            if header is not None and header not in self.once:
                if len(self.files) > _DEEPEST:
                    raise Unclear(at, f"{header} includes itself")
                self.read(self.headers.texts[header].rstrip("\n") + "\n", header)
        if len(self.taken) > open_before:
            raise Unclear(len(lines), "an #if without #endif")
        self.files.pop()

    def _header(self, at: int, said: str) -> str | None:
        """The path of the local header that a directive includes; None for others."""
        if not self.on:
            return None
        if said[:1] not in ('"', "<"):
            said = "".join(_expand(tokens(said), self.found.macros)).strip()
        if not re.fullmatch(r'"[^"]+"|<[^>]+>', said):
            raise Unclear(at, f"#include {said}")
        found = self.headers.find(said, self.files[-1])
        if found is None:
            self.includes.append(said[1:-1])
            self.directives.append(f"#include {said}")
            self.flush()
            for each in macros.of_torch(said[1:-1]):
                if re.split(r"\W", each)[1] not in self.found.macros:
                    _define("define", each.removeprefix("define "), self.found, at)
        return found

    @property
    def on(self) -> bool:
        return all(here for here, _ in self.taken)

    def flush(self) -> None:
        self.out.append("".join(_expand(tokens("".join(self.plain)), self.found.macros)))
        self.plain.clear()

    def directive(self, line: int, word: str, rest: str) -> bool:
        """Follow a directive; False for one that stays in the text."""
        if word in ("if", "ifdef", "ifndef"):
            self.flush()
            on = self.on
            here = on and self._holds(word, rest, line)
            self.taken.append([here, here or not on])
        elif word in ("elif", "else", "endif"):
            self._branch(line, word, rest)
        elif self.on and word in ("define", "undef"):
            self.flush()
            self.directives.append(f"#{word} {rest}")
            _define(word, rest, self.found, line)
        elif self.on and word in ("include", "pragma"):
            if rest == "once":
                self.once.add(self.files[-1])
            if re.match(r"(push|pop)_macro\b", rest):
                raise Unclear(line, f"#pragma {rest}")
            # An #unroll between a loop's head and its body would be no C.
            return word == "pragma" and re.match(r"(unroll|nounroll|once)\b", rest) is not None
        elif self.on and word:
            raise Unclear(line, f"#{word}")
        return True

    def _branch(self, line: int, word: str, rest: str) -> None:
        if not self.taken:
            raise Unclear(line, f"#{word} without #if")
        if word == "endif":
            self.taken.pop()
            return
        self.flush()
        around, before = all(here for here, _ in self.taken[:-1]), self.taken[-1][1]
        here = around and not before and (word == "else" or self._holds("if", rest, line))
        self.taken[-1] = [here, before or here]

    def _holds(self, word: str, rest: str, line: int) -> bool:
        """Whether a condition holds: by the macros read, or else as the compiler says."""
        asked = rest if word == "if" else f"{'!' if word == 'ifndef' else ''}defined({rest.split()[0] if rest else ''})"
        said = f"#{word} {rest}"
        try:
            answers = _answers(asked, self._known, Unclear(line, said), self.found)
        except Unclear:
            if self.headers.source is None:
                raise
            directives, every = "\n".join(self.directives), [f"{n}" for n in nvrtc().architectures]
            every += [f"{n}a" for n in nvrtc().architectures if n >= 90]
            answers = {n: macros.holds(self.headers.source, directives, asked, f"compute_{n}") for n in every}
            if None in answers.values():
                raise
        if len(set(answers.values())) == 1:
            return bool(next(iter(answers.values())))
        some, others = (next(n for n, answer in answers.items() if answer is which) for which in (True, False))
        raise Unclear(
            line, f"{said} holds for compute capability {_dotted(some)} and not for {_dotted(others)}, "
            "and a backward is for all that the compiler knows"
        )  # fmt: skip

    def _known(self, name: str) -> bool:
        """Whether a macro is defined; `_Asked` where only the compiler can tell."""
        if name in self.found.macros or name in self.found.left:
            return True
        if name in _COMPILERS:
            return _COMPILERS[name]
        if macros.may_define(name, self.includes):
            raise _Asked(name)
        return False


def _lines(text: str) -> list[tuple[int, str]]:
    """Lines with their numbers; those of a comment, or joined by a backslash, are one."""
    found, line = [], 1
    for each in re.findall(r"(?:/\*.*?\*/|//(?:\\\n|[^\n])*|\"(?:\\.|[^\"\\\n])*\"|\\\n|[^\n])*(?:\n|\Z)", text, re.S):
        if each:
            found.append((line, each))
        line += each.count("\n")
    return found


def _spaced(line: str) -> str:
    """A line without comments and joints."""
    line = re.sub(r"\\\n", " ", line)
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", line, flags=re.S)


def _define(word: str, rest: str, found: Preprocessed, line: int) -> None:
    given = re.match(r"(\w+)(\([^)]*\))?\s*(.*)\Z", rest, re.S)
    if given is None or not _NAME.match(given[1]):
        raise Unclear(line, f"#{word} {rest}")
    name = given[1]
    found.macros.pop(name, None)
    found.left.discard(name)
    if word == "undef":
        return
    parameters = None if given[2] is None else tuple(p.strip() for p in given[2][1:-1].split(",") if p.strip())
    body = tuple(tokens(given[3].strip()))
    if "#" in body or "##" in body or (parameters and any(not _NAME.match(p) for p in parameters)):
        found.left.add(name)
    else:
        found.macros[name] = Macro(parameters, body)


def _expand(text: Iterable[str], macros: dict[str, Macro]) -> list[str]:
    """Tokens with their macros replaced."""
    every = list(text)
    if macros.keys().isdisjoint(every):
        return every
    return [token for token, _ in _replaced([(t, frozenset()) for t in every], macros)]


def _replaced(given: Iterable[_Token], macros: dict[str, Macro]) -> list[_Token]:
    """As C does it: arguments first, then what comes of it together with what follows."""
    out: list[_Token] = []
    left = list(given)[::-1]
    while left:
        token, hidden = left.pop()
        macro = macros.get(token) if token not in hidden else None
        call = _arguments(left) if macro is not None and macro.parameters is not None else None
        if macro is None or (macro.parameters is not None and call is None):
            out.append((token, hidden))
            continue
        if call is None:
            body, newlines = [(t, frozenset()) for t in macro.body], ""
        else:
            given_there, end, lines = call
            if len(given_there) != max(len(macro.parameters or ()), 1):  # which the compiler rejects
                out.append((token, hidden))
                continue
            del left[end:]
            space = (" ", frozenset())  # -N is not to become --1
            full = {
                p: [space, *_replaced(a, macros), space]
                for p, a in zip(macro.parameters or (), given_there, strict=False)
            }
            body, newlines = [part for t in macro.body for part in full.get(t, [(t, frozenset())])], "\n" * lines
        put = [(" ", frozenset()), *((t, h | hidden | {token}) for t, h in body), (f" {newlines}", frozenset())]
        left += put[::-1]
    return out


def _arguments(left: list[_Token]) -> tuple[list[list[_Token]], int, int] | None:
    """The arguments in parentheses that come next (from the end of the list), what is left then, and their lines."""
    at = len(left) - 1
    while at >= 0 and left[at][0].isspace():
        at -= 1
    if at < 0 or left[at][0] != "(":
        return None
    found: list[list[_Token]] = [[]]
    depth, at = 0, at - 1
    while at >= 0:
        token, hidden = left[at]
        if token == ")" and depth == 0:
            return found, at, sum(t.count("\n") for t, _ in left[at:])
        depth += (token == "(") - (token == ")")
        at -= 1
        if token == "," and depth == 0:
            found.append([])
        else:
            found[-1].append((" " if token.isspace() or token.startswith(("//", "/*")) else token, hidden))
    return None


# Conditions -----------------------------------------------------------------------------------------------------


class _Asked(Exception):
    """A condition needs a macro that the compiler defines, or a header that is not read."""


def _answers(asked: str, known: Callable[[str], bool], error: Unclear, found: Preprocessed) -> dict[str, bool | None]:
    """Whether a condition holds, for each architecture where it names them; `Unclear` where that is not known."""
    try:
        asked = re.sub(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))", lambda m: str(int(known(m[1] or m[2]))), asked)
        parts = [t for t in _expand(tokens(asked), found.macros) if not t.isspace()]
        parts = re.findall(r"\|\||&&|[=!<>]=|<<|>>|\w+|\S", " ".join(parts).replace("& &", "&&").replace("| |", "||"))
        joined = re.sub(r"([=!<>]) =", r"\1=", " ".join(parts)).replace("< <", "<<").replace("> >", ">>").split()
        if "__CUDA_ARCH__" not in joined:
            return {"": bool(_Condition(joined, known, error).whole())}
        return {
            f"{n}": bool(_Condition([f"{n}0" if p == "__CUDA_ARCH__" else p for p in joined], known, error).whole())
            for n in nvrtc().architectures
        }
    except _Asked as macro:
        raise Unclear(error.line, f"{error}: {macro} may be the compiler's, or of a header that is not read") from None


def _dotted(architecture: str) -> str:
    return re.sub(r"(\d[af]?)$", r".\1", architecture)


class _Condition:
    """An integer expression, read by precedence."""

    def __init__(self, parts: list[str], known: Callable[[str], bool], error: Unclear) -> None:
        self.parts, self.known, self.error = parts, known, error

    def whole(self) -> int:
        found = self.level(0)
        if self.parts:
            raise self.error
        return found

    def level(self, depth: int) -> int:
        if depth == len(_OPERATORS):
            return self.single()
        found = self.level(depth + 1)
        while self.parts and self.parts[0] in _OPERATORS[depth]:
            sign = self.parts.pop(0)
            right = self.level(depth + 1)
            if sign in "/%" and right == 0:
                raise self.error
            found = int(_OPERATORS[depth][sign](found, right))
        return found

    def single(self) -> int:
        if not self.parts:
            raise self.error
        token = self.parts.pop(0)
        if token in ("!", "-", "+"):
            value = self.single()
            return int(not value) if token == "!" else -value if token == "-" else value
        if token == "(":
            value = self.level(0)
            if not self.parts or self.parts.pop(0) != ")":
                raise self.error
            return value
        if number := re.fullmatch(r"(0[xX][\da-fA-F]+|\d+)[uUlL]*", token):
            text = number[1]
            return int(text, 16 if text[:2] in ("0x", "0X") else 8 if text[0] == "0" else 10)
        if token in ("true", "false"):
            return int(token == "true")
        if _NAME.match(token) and not self.known(token):
            return 0
        raise self.error
