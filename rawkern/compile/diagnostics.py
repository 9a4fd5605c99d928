"""NVRTC's log turned into a CompileError: where, the lines around it, what to do."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rawkern.base.nearest import did_you_mean
from rawkern.compile import declarations
from rawkern.compile.declarations import Declaration
from rawkern.compile.files import read_text
from rawkern.compile.hints import hint
from rawkern.compile.names import readable
from rawkern.compile.source import Source
from rawkern.errors import CompileError

_ERROR = re.compile(
    r"^(?P<file>[^\n]+?)\((?P<line>\d+)\): (?:catastrophic |internal )?error(?: #[\w-]+)?: (?P<text>[^\n]*)\n?"
    r"(?P<rest>(?:  [^\n]*\n)*)",
    re.M,
)
_AT_END = re.compile(r"^At end of source: (?:catastrophic |internal )?error(?: #[\w-]+)?: (?P<text>[^\n]*)", re.M)
_UNDECLARED = re.compile(
    r'(?:identifier "(?P<name>\w+)" is undefined|the global scope has no "(?P<global>\w+)"'
    r'|namespace "(?P<space>std|cub)" has no member "(?P<member>\w+)")'
)
_AMBIGUOUS = re.compile(r'more than one instance of overloaded function "(?:std::)?(\w+)" matches the argument list')
_MAY_BE_CONSTEXPR = ("A function without execution space annotations", "The execution space for the lambda closure")
# What stands before the parameters of a lambda; its marks, which are not allowed, have an error of their own.
_CAPTURE = re.compile(r"\]\s*(?:<[^;{}]*>\s*)?(?:__(?:host|device)__\s*)*\Z")
_OFFER = re.compile(r" Consider using -default-device\b.*")  # which takes host code for device code
# What comes of a name that the compiler does not know, beside the error that says so.
_FOLLOWS = re.compile(
    r'attribute "\w+" does not apply here|type name is not allowed|incomplete type "void" is not allowed|expected an? '
    r"|A namespace scope variable without memory space annotations|explicit type is missing"
)
_NO_SCOPE = re.compile(r'name (?:followed by "::" )?must be a (?:class or )?namespace name')
_LINE = re.compile(r'^[ \t]*#[ \t]*(?:line[ \t]+)?(\d+)(?:[ \t]+"([^"]*)")?', re.M)
_ASSEMBLER = re.compile(r"^\s*(ptxas .*?\berror\b.*)", re.M)
_OPTIONS = (
    "--use_fast_math", "--fmad=false", "--ftz=true", "--prec-div=false", "--prec-sqrt=false", "--maxrregcount=64",
    "--std=c++17", "-lineinfo", "--device-debug", "--extra-device-vectorization", "--restrict", "--device-int128",
    "--define-macro", "--include-path", "--pre-include", "--ptxas-options", "--disable-warnings",
)  # fmt: skip
_MORE_SHOWN = 3
_blank = functools.lru_cache(maxsize=8)(declarations.blank)  # many errors may be in one file


@dataclass(frozen=True)
class Problem:
    """One error of a log that has a place."""

    file: str
    line: int
    column: int | None  # from 1; NVRTC reports none for some errors
    text: str  # the compiler's words
    shown: str  # the lines below them: the source line and a caret
    start: int  # where in the log

    @property
    def undeclared(self) -> str:
        """The name that is not declared, such as "uint" or "std::min", if that is what is wrong."""
        match = _UNDECLARED.match(self.text)
        if match is None:
            return ""
        return match["name"] or match["global"] or f"{match['space']}::{match['member']}"

    @property
    def unknown(self) -> str:
        """The identifier at the place that the compiler does not know, a namespace or class among them; "" for none."""
        match = re.match(r'(?:identifier|namespace|namespace or class) "(\w+)" is undefined', self.text)
        return match[1] if match else self.undeclared

    @property
    def ambiguous(self) -> str:
        """The function, without std::, of which several overloads fit a call equally well, if that is what is wrong."""
        match = _AMBIGUOUS.match(self.text)
        return match[1] if match else ""

    @property
    def is_host_code(self) -> bool:
        """Whether it is about a function or variable that is taken for the host's."""
        return "not allowed in JIT mode" in self.text


def problems(log: str) -> list[Problem]:
    """Read the errors that have a place off NVRTC's log, in its order."""
    return [
        Problem(
            m["file"].strip(), int(m["line"]), _column(m["rest"]), _words(m["text"], m["rest"]), m["rest"], m.start()
        )
        for m in _ERROR.finditer(log)
    ]


def _words(text: str, shown: str) -> str:
    """The compiler's words, with the name that they leave out where it knows no namespace of that name."""
    column = _column(shown)
    if column is None or not _NO_SCOPE.match(text):
        return _OFFER.sub("", text)
    name = re.match(r"(\w+)(?:\s*::\s*\w+)*", shown.split("\n")[0][column + 1 :])
    if name is None:
        return text
    kind = "namespace or class" if "class" in text else "namespace"
    return f'{kind} "{name[1]}" is undefined' + (f", in {name[0]}" if name[0] != name[1] else "")


def is_for_device(problem: Problem, source: Source) -> bool:
    """Whether nvcc takes for the device what a problem calls the host's, as far as the text at its place tells.

    Those are constexpr functions and lambdas, and generic lambdas in device code.
    """
    if problem.column is None or not problem.text.startswith(_MAY_BE_CONSTEXPR):
        return False
    lines = _blank(text_of(problem.file, source)).split("\n")[: problem.line]
    lines[-1], at = lines[-1][: problem.column - 1], lines[-1][problem.column - 1 :]
    if at.startswith("(") and _CAPTURE.search("\n".join(lines)) and problem.text.startswith(_MAY_BE_CONSTEXPR[0]):
        return True  # one at namespace scope has another error as well
    declared = re.split(r"[;{}]", "\n".join(lines))[-1]
    return re.search(r"\b(?:constexpr|consteval)\b", declared) is not None


def compile_error(source: Source, log: str, searched: Iterable[str] = ()) -> CompileError:
    """Make the error for the log with which NVRTC rejected a source; `searched` are the include directories."""
    log = log.strip("\0\n ")
    found = problems(log)
    end = _AT_END.search(log)
    if not found or (end is not None and end.start() < found[0].start):
        return _without_place(source, log, end["text"] if end else "")
    first, *others = _from_the_cause(found, source)
    file, line, column = first.file, first.line, first.column
    text = text_of(file, source)
    excerpt = excerpt_of(text, line, column) or first.shown.rstrip()
    headline = f"{source.place(file, line, column, _kernel(text, line, file, source))}: {first.text}"
    what_to_do = _replaced(file, first.shown, source) or hint(first.text, file, source, searched)
    return CompileError(
        "\n".join(filter(None, [headline, excerpt, what_to_do, _more(others, source)])),
        file=source.called(file),
        line=line,
        column=column,
        excerpt=excerpt,
        log=log,
    )


def _from_the_cause(found: list[Problem], source: Source) -> list[Problem]:
    """Leave out errors that bring a reader off the track.

    A type that is unknown in a kernel's parameters brings others up, some before it; what nvcc takes for the
    device would compile but for the others.
    """
    found = [problem for problem in found if not is_for_device(problem, source)] or found
    if _FOLLOWS.match(found[0].text):
        found = found[next((i for i, problem in enumerate(found) if problem.unknown), 0) :]
    kept: list[Problem] = []
    for problem in found:
        told = problem.unknown and any(problem.text == other.text for other in kept)
        if not told and not any(_comes_of(problem, cause) for cause in found if cause.unknown):
            kept.append(problem)
    return kept


def _comes_of(other: Problem, cause: Problem) -> bool:
    """Whether an error comes of a name on the same line, or in the same list, that the compiler does not know."""
    if other is cause or other.file != cause.file or abs(other.line - cause.line) > 2:
        return False
    if not other.unknown:
        return _FOLLOWS.match(other.text) is not None
    # Parameters and variables from the unknown type on are unknown, too.
    declared = rf"[({{,;]\s*(?:const\s+)?[\w:<>]+(?:\s+|\s*[*&]+\s*)(?:(?:const|__restrict__)\s+)*{other.unknown}\b"
    return cause.start < other.start and re.search(declared, other.shown.split("\n")[0]) is not None


def _kernel(text: str, line: int, file: str, source: Source) -> str:
    """The kernel that a line of a file is in; in a string, the only one there is."""
    inline = source.origin is not None and file == source.name
    names = {kernel.name for kernel in declarations.declarations(text)} if inline else set()
    return declarations.kernel_at(text, line) or (names.pop() if len(names) == 1 else "")


def unknown_instance(
    source: Source, names: Iterable[str], kernels: Iterable[str], templates: Sequence[Declaration], log: str
) -> CompileError:
    """Make the error for a kernel or a template instance that the source does not have."""
    names = list(names)
    wanted = ", ".join(repr(name) for name in names)
    words = [problem.text for problem in problems(log) if "lowered name lookup" not in problem.text]
    ambiguous = any("cannot determine which instance of overloaded function" in word for word in words)
    if ambiguous and not any(name.endswith(")") for name in names):
        message = f"{source.title}: {wanted} is overloaded; add parameter types, such as 'v<float>(float*, int)'"
        return CompileError(message, file=source.title, log=log.strip("\0\n "))
    kernels = list(kernels)
    there = f"kernels: {', '.join(kernels) or 'none'}"
    if listed := ", ".join(dict.fromkeys(one.form for one in templates)):
        example = next((f" (name an instance, such as {found})" for one in templates if (found := one.instance())), "")
        there += f"; templates: {listed}{example}"
    full = [*(re.split("[<(]", kernel)[0] for kernel in kernels), *(one.name for one in templates)]
    known = dict.fromkeys([*full, *(name.rpartition("::")[2] for name in full)])
    bare = [re.split("[<(]", name)[0].strip() for name in names]
    there += next((did_you_mean(name, known) for name in bare if name not in known), "")
    says = f"\n  the compiler says: {words[0]}" if words else ""
    if words and not any(f'identifier "{name}"' in words[0] for name in bare):  # of an argument's type
        says += f"\n  {found}" if (found := hint(words[0], source.name, source, ())) else ""
    return CompileError(
        f"{source.title} has no kernel {wanted}; {there}{says}", file=source.title, log=log.strip("\0\n ")
    )


def _without_place(source: Source, log: str, text: str) -> CompileError:
    lines = source.text.splitlines()
    if text:
        line = max(len(lines), 1)
        excerpt = excerpt_of(source.text, line, None)
        note = re.search(r"^[^\n]*?\((\d+)\): note [^\n]*?: ([^\n]*)", log, re.M)
        opened = f"{note[2]} on line {note[1]}" if note else ""
        place = source.place(source.name, line)
        message = "\n".join(filter(None, [f"{place}: at the end: {text}", opened, excerpt]))
        return CompileError(message, file=source.title, line=line, excerpt=excerpt, log=log)
    lines = _ASSEMBLER.findall(log) or log.splitlines()[:1] or ["the compiler gave no reason"]
    if match := re.search(r"unrecognized option (\S+)", log):
        meant = did_you_mean(match[1], _OPTIONS)
        lines = [f"option {match[1]!r} is not one of NVRTC's (nvcc has more); leave it out{meant}"]
    lines = [readable(line) for line in lines]
    what_to_do = hint(lines[0], source.name, source, ())
    return CompileError(
        "\n".join(filter(None, [f"{source.title}: {lines[0]}", what_to_do, *lines[1 : 1 + _MORE_SHOWN]])),
        file=source.title,
        log=log,
    )


def _column(rest: str) -> int | None:
    """Read the column off the caret line; NVRTC indents source lines by two."""
    for line in rest.splitlines():
        if line.strip() == "^":
            return max(line.index("^") - 1, 1)
    return None


def text_of(file: str, source: Source) -> str:
    """The text of a file, which may be the source itself; empty where it cannot be read."""
    if source.kind == "manifest":  # its files are named from a folder of the machine that built it
        return ""
    if _LINE.search(source.text) and (lines := _by_directives(file, source)):
        return lines
    return source.text if file == source.name else read_text(file)


def _by_directives(file: str, source: Source) -> str:
    """The lines that ``#line`` directives of a source say are of a file, each with its number there.

    The compiler puts the folder it ran in before names without one.
    """
    lines: dict[int, str] = {}
    number, current = 1, source.name
    for line in source.text.split("\n"):
        if directive := _LINE.match(line):
            number, current = int(directive[1]), directive[2] or current
            continue
        if current == file or file.endswith(f"/{current}"):
            lines[number] = line
        number += 1
    return "\n".join(lines.get(k, "") for k in range(1, max(lines, default=0) + 1))


def excerpt_of(text: str, line: int, column: int | None) -> str:
    """Show the line, the one before and the one after, and a caret."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return ""
    width = len(str(line + 1))
    shown = []
    for number in range(max(line - 1, 1), min(line + 1, len(lines)) + 1):
        content = lines[number - 1].rstrip()
        if content or number == line:
            shown.append(f"  {number:>{width}} | {content}".rstrip())
        if number == line and column:
            # Tabs stay tabs, so that the caret stands right whatever their width.
            lead = re.sub(r"[^\t]", " ", content[: column - 1].ljust(column - 1))
            shown.append(f"  {'':>{width}} | {lead}^")
    return "\n".join(shown)


def _replaced(file: str, line: str, source: Source) -> str:
    """Say which macro among the options occurs in a line of a header."""
    for option in source.options if file != source.name else ():
        macro = re.match(r"(?:-D|--define-macro=)([A-Za-z_]\w*)", option)
        if macro and re.search(rf"\b{macro[1]}\b", line):
            return f"hint: {option} replaces {macro[1]} in that header, too; give the macro a longer name"
    return ""


def _more(others: list[Problem], source: Source) -> str:
    shown = [f"also {source.place(other.file, other.line)}: {other.text}" for other in others[:_MORE_SHOWN]]
    if len(others) > _MORE_SHOWN:
        shown.append(f"and {len(others) - _MORE_SHOWN} more; the whole log is the error's .log")
    return "\n".join(shown)
