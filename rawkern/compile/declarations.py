"""The kernels that a CUDA source declares, found by a scan without the compiler.

The compiler has the last word on types; this scan finds what it does not tell: templates that are not instantiated yet,
and the names of parameters. It does not run the preprocessor, so a kernel may be found that ``#if`` leaves out, and
one may be missed that a macro makes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rawkern.compile.names import closing, outside, split_arguments


@dataclass(frozen=True)
class Declaration:
    """One ``__global__`` function in the text."""

    name: str  # with its namespaces: "ns::axpy"
    params: tuple[str | None, ...]  # parameter names, None where the text gives none
    template: bool  # a template, so that only its instances are kernels
    extern_c: bool
    definition: bool
    opaque: bool  # a parameter without a name might have one that only the compiler sees
    line: int
    types: tuple[str, ...] = ()  # the text of each parameter, with its name
    template_params: tuple[str, ...] = ()  # "typename T", "int V = 4"

    def instance(self, found: Sequence[str] = ()) -> str | None:
        """An instance as an example, ``axpy<float, 4>``: arguments that are known first, defaults left out.

        None where the type of an argument is not one that can be made up, such as an enumeration or a template.
        """
        words = list(found)
        for text in self.template_params[len(found) :]:
            if "=" in text:
                break
            word = _example(text, self.template_params)
            if word is None:
                return None
            words.append(word)
        return f"{self.name}<{', '.join(words)}>"

    @property
    def form(self) -> str:
        """The template's name with its parameters, ``axpy<typename T, int V = 4>``."""
        return f"{self.name}<{', '.join(self.template_params)}>"


# Comments, literals and directives; the order of the alternatives is the order in which C++ would see them at one
# place.
_LEXEME = re.compile(
    r"""
      (?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))
    | (?P<raw>\b(?:u8|[uUL])?R"(?P<delim>[^()\\\s]{0,16})\(.*?\)(?P=delim)")
    | (?P<string>"(?:\\.|[^"\\\n])*")
    | (?P<char>(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+')
    | (?P<directive>^[ \t]*\#(?:\\\r?\n|/\*.*?\*/|(?!//|/\*)[^\n])*)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_CANDIDATE = re.compile("[/\"'#]")
_RAW = re.compile(r"\b(?:u8|[uUL])?R\Z")
_CONDITIONAL = re.compile(r"[ \t]*#[ \t]*(if|el|endif)")
_TOKEN = re.compile(
    r'#(?P<if>if|el|en)|extern\s*"C"\s*\{|(?:inline\s+)?\bnamespace\b(?P<ns>[^;{=()]*)\{|(?P<brace>[{}])|(?P<kernel>\b__global__\b)'
)
_NAMESPACE_ATTRIBUTE = re.compile(r"\[\[.*?\]\]|\binline\b", re.S)
_MARK = re.compile(r"#(?:if|el|en)")
_ATTRIBUTES = {
    "__launch_bounds__", "__attribute__", "__cluster_dims__", "__maxnreg__", "__block_size__", "__declspec", "alignas",
    "__align__", "decltype", "noexcept", "requires",
}  # fmt: skip
_WORD = re.compile(r"[A-Za-z_]\w*")
_QUALIFIERS = (
    "const", "volatile", "__restrict__", "__restrict", "__grid_constant__", "typename", "struct", "class", "union",
    "enum", "register",
)  # fmt: skip
_NOT_NAMES = {
    *_QUALIFIERS, "restrict", "unsigned", "signed", "int", "long", "short", "char", "bool", "float", "double", "void",
    "auto", "wchar_t", "char8_t", "char16_t", "char32_t", "__int128", "size_t",
}  # fmt: skip
_QUALIFIER = re.compile(rf"\b(?:{'|'.join(_QUALIFIERS)})\b")
_POINTER_TO = re.compile(
    r"\(\s*(?:\w+\s*::\s*)*[*&]+\s*(?:(?:const|volatile|__restrict__|__restrict)\b\s*)*(\w+)?\s*(?:\[[^\]]*\]\s*)*\)\s*[(\[]"
)
_PARAM_ATTRIBUTE = re.compile(r"\[\[.*?\]\]|\b(?:__attribute__|__align__|alignas)\s*\((?:[^()]|\([^()]*\))*\)")


_TYPE = re.compile(r"(?:typename|class)\b(?:\s*\.\.\.)?\s*(\w*)")
_NUMBER = re.compile(
    r"(?:(?:const|unsigned|signed|long|short|int|char|auto|size_t|u?int(?:_fast|_least)?\d+_t)\b\s*|(?:std|cuda)?\s*::\s*)+"
)


def _example(text: str, params: Sequence[str]) -> str | None:
    """An argument for a template parameter."""
    if match := _TYPE.match(text):
        holds_numbers = match[1] and any(one.startswith(f"{match[1]} ") for one in params)  # <typename T, T value>
        return "int" if holds_numbers else "float"
    text = text.replace("...", " ").strip()
    kinds = (text, text.rpartition(" ")[0].strip())  # a parameter need not have a name
    if "bool" in kinds:
        return "true"
    types = {match[1] for one in params if (match := _TYPE.match(one))}
    return "4" if any(kind in types or _NUMBER.fullmatch(kind) for kind in kinds) else None


@dataclass(frozen=True)
class Directive:
    """One directive of the preprocessor, with the lines that it goes on in."""

    start: int
    end: int
    text: str


def blank(text: str) -> str:
    """Put spaces over comments, literals and directives; line breaks, ``extern "C"`` and marks of ``#if`` stay."""
    return blanked(text)[0]


def blanked(text: str) -> tuple[str, tuple[Directive, ...]]:
    """What `blank` returns, and the directives."""
    pieces, directives, at = [], [], 0
    for match in _lexemes(text):
        lexeme, start = match[0], match.start()
        if lexeme == '"C"':
            continue
        spaces = re.sub(r"[^\n]", " ", lexeme) if "\n" in lexeme else " " * len(lexeme)
        if match.lastgroup == "directive":
            directives.append(Directive(start, match.end(), lexeme))
            if conditional := _CONDITIONAL.match(lexeme):
                # "#if", "#el" or "#en" stays as a mark, at the same length.
                spaces = f"#{conditional[1][:2]}" + spaces[3:]
        pieces += [text[at:start], spaces]
        at = match.end()
    return "".join([*pieces, text[at:]]), tuple(directives)


def _lexemes(text: str) -> Iterator[re.Match[str]]:
    """The matches of `_LEXEME`, which is tried only where one may be: that is several times as fast."""
    at = 0
    while candidate := _CANDIDATE.search(text, at):
        start = candidate.start()
        if text[start] == "#":
            line = text.rfind("\n", 0, start) + 1
            start = line if line >= at and not text[line:start].strip(" \t") else start
        elif text[start] == '"' and (raw := _RAW.search(text, max(at, start - 3), start)):
            start = raw.start()
        match = _LEXEME.match(text, start)
        if match is not None:
            yield match
        at = match.end() if match else candidate.end()


@functools.lru_cache(maxsize=256)
def declarations(text: str) -> tuple[Declaration, ...]:
    """Return every ``__global__`` function declared in a text, in its order."""
    if "__global__" not in text:
        return ()
    code = blank(text)
    found: list[Declaration] = []
    scopes: list[str | None] = []  # one for each open brace: a namespace's name, '"C"', or None for any other
    branches: list[list[str | None]] = []  # the scopes at each open #if: every branch starts from them
    for match in _TOKEN.finditer(code):
        if match["if"]:
            scopes = _branch(match["if"], scopes, branches)
        elif match["kernel"]:
            declaration = _declaration(code, match.start(), match.end(), scopes)
            if declaration is not None:
                found.append(declaration)
        elif match["brace"] == "}":
            if scopes:
                scopes.pop()
        elif match["brace"]:
            scopes.append(None)
        elif match["ns"] is not None:
            scopes.append(_NAMESPACE_ATTRIBUTE.sub("", match["ns"]).strip())
        else:
            scopes.append('"C"')
    return tuple(found)


def kernel_at(text: str, line: int) -> str:
    """Return the name of the kernel whose declaration or body a line of a text is in; "" if it is in none."""
    kernel = next((one for one in reversed(declarations(text)) if one.line <= line), None)
    if kernel is None:
        return ""
    before = "\n".join(blank(text).split("\n")[kernel.line - 1 : line - 1])
    before = before[before.find("__global__") :]
    return "" if "{" in before and before.count("{") <= before.count("}") else kernel.name


def _branch(directive: str, scopes: list[str | None], branches: list[list[str | None]]) -> list[str | None]:
    if directive == "if":
        branches.append(list(scopes))
    elif directive == "el" and branches:
        return list(branches[-1])
    elif directive == "en" and branches:
        branches.pop()
    return scopes


def _declaration(code: str, start: int, end: int, scopes: list[str | None]) -> Declaration | None:
    groups, stop = _groups(code, end)
    names = [(name, inner) for name, inner in groups if name not in _ATTRIBUTES]
    if not names or None in scopes:
        return None
    name, inner = names[-1]
    head = code[max(code.rfind(c, 0, start) for c in ";{}") + 1 : start]
    template = re.search(r"\btemplate\b", head)
    if template and not re.search(r"\btemplate\s*<\s*[^>\s]", head):
        return None  # an explicit specialization or instantiation: the compiler lists those itself
    namespaces = [part for scope in scopes if scope and scope != '"C"' for part in scope.replace(" ", "").split("::")]
    conditional = "#" in inner  # then the text does not tell which parameters there are
    parts = split_arguments(_MARK.sub("", inner))
    return Declaration(
        "::".join([*namespaces, name]),
        () if parts == ["void"] else tuple(None if conditional else _parameter_name(part) for part in parts),
        bool(template),
        '"C"' in scopes or bool(re.search(r'\bextern\s*"C"', head)),
        code[stop : stop + 1] == "{",
        conditional or bool(re.search(r"\w\s*\(", inner)),
        code.count("\n", 0, start) + 1,
        () if parts == ["void"] else tuple(" ".join(part.split()) for part in parts),
        _template_params(head[template.start() :]) if template else (),
    )


def _template_params(head: str) -> tuple[str, ...]:
    at = head.index("<")
    return tuple(" ".join(part.split()) for part in split_arguments(head[at + 1 : closing(head, at)]))


def _groups(code: str, position: int) -> tuple[list[tuple[str, str]], int]:
    """Return every ``name(...)`` up to the declaration's ``{`` or ``;``, and where that stands."""
    groups: list[tuple[str, str]] = []
    word = ""
    while position < len(code):
        c = code[position]
        if c in "{;}":
            break
        if c == "(":
            close = closing(code, position)
            groups.append((word, code[position + 1 : close]))
            word, position = "", close + 1
        elif match := _WORD.match(code, position):
            word, position = match[0], match.end()
        else:
            position += 1
    return groups, position


def _parameter_name(text: str) -> str | None:
    """Return the name that a parameter's text declares, or None."""
    text = _PARAM_ATTRIBUTE.sub(" ", text[: next((at for at, c in outside(text) if c == "="), None)])
    if match := _POINTER_TO.search(text):
        return match[1]
    text = re.sub(r"(?:\[[^\]]*\]\s*)+$", "", text.strip()).rstrip()
    match = re.search(r"([A-Za-z_]\w*)$", text)
    if match is None or match[1] in _NOT_NAMES:
        return None
    before = _QUALIFIER.sub(" ", text[: match.start()]).strip()
    return None if not before or before.endswith("::") else match[1]
