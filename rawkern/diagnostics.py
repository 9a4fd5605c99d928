"""NVRTC's log turned into a CompileError: where, the lines around it, what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from rawkern.errors import CompileError
from rawkern.source import Source

__all__ = ["compile_error", "excerpt_of", "text_of", "unknown_instance"]

_ERROR = re.compile(
    r"^(?P<file>[^\n]+?)\((?P<line>\d+)\): (?:catastrophic |internal )?error(?: #[\w-]+)?: (?P<text>[^\n]*)\n?"
    r"(?P<rest>(?:  [^\n]*\n)*)",
    re.M,
)
_AT_END = re.compile(r"^At end of source: (?:catastrophic |internal )?error(?: #[\w-]+)?: (?P<text>[^\n]*)", re.M)
_NO_FILE = re.compile(r"(?:could not|cannot) open source file \"([^\"]+)\"")
_MORE_SHOWN = 3

# What the compiler's words mean for somebody who has just moved a file from nvcc to here: (pattern, hint).
_HINTS = (
    (r"is considered a host function|host functions? (?:is|are) not allowed|explicitly marked as a __host__ function",
     "only device code is compiled here: mark helpers __device__, and put main() and other host code between\n"
     "  #ifndef __CUDACC_RTC__ and #endif, so that nvcc still sees it"),
    (r"namespace scope variable without memory space annotations",
     "only device code is compiled here: mark the variable __device__, __constant__ or constexpr, or, if it is for\n"
     "  the host, put it between #ifndef __CUDACC_RTC__ and #endif"),
    (r'identifier "u?int(?:(?:_fast|_least)?(?:8|16|32|64)|ptr|max)_t" is undefined', "#include <cstdint>"),
    (r'identifier "(?:FLT|DBL)_\w+" is undefined', "#include <cfloat>"),
    (r'identifier "(?:U?(?:CHAR|SHRT|INT|LONG|LLONG|SCHAR)_(?:MIN|MAX)|CHAR_BIT)" is undefined', "#include <climits>"),
    (r'identifier "(?:INFINITY|NAN|M_\w+|HUGE_VALF?)" is undefined', "#include <cmath>"),
    (r'namespace "std" has no member',
     "include the standard header that declares it, such as <cmath>, <limits> or <algorithm>"),
    (r'identifier "(?:half2?|__half\w*|__float2half\w*|__hadd\w*)" is undefined', "#include <cuda_fp16.h>"),
    (r'identifier "(?:nv_bfloat16\w*|__nv_bfloat16\w*|__float2bfloat16\w*)" is undefined', "#include <cuda_bf16.h>"),
    (r'identifier "(?:cuda[A-Z]\w*|cudaError_t|std::cout)" is undefined',
     "calls to the CUDA runtime are host code; launch from Python and leave them out, or put them between\n"
     "  #ifndef __CUDACC_RTC__ and #endif"),
    (r'name followed by "::" must be a class or namespace name',
     "the header that declares that namespace is missing, or a name is misspelled"),
)  # fmt: skip
_HOST_HEADERS = frozenset(
    [
        "iostream",
        "fstream",
        "sstream",
        "string",
        "vector",
        "map",
        "set",
        "list",
        "deque",
        "unordered_map",
        "unordered_set",
        "memory",
        "thread",
        "mutex",
        "chrono",
        "iomanip",
        "random",
        "stdexcept",
        "exception",
        "filesystem",
        "torch/extension.h",
        "torch/torch.h",
        "torch/types.h",
        "ATen/ATen.h",
        "pybind11/pybind11.h",
    ]
)


def compile_error(source: Source, log: str, searched: Iterable[str] = ()) -> CompileError:
    """Make the error for the log with which NVRTC refused a source; `searched` are the include directories."""
    log = log.strip("\0\n ")
    match = _ERROR.search(log)
    end = _AT_END.search(log)
    if match is None or (end is not None and end.start() < match.start()):
        return _without_place(source, log, end["text"] if end else "")
    file, line = match["file"].strip(), int(match["line"])
    column = _column(match["rest"])
    excerpt = excerpt_of(text_of(file, source), line, column) or match["rest"].rstrip()
    headline = f"{file}:{line}:{column}: {match['text']}" if column else f"{file}:{line}: {match['text']}"
    hint = _replaced(file, match["rest"], source) or _hint(match["text"], log, source, searched)
    return CompileError(
        "\n".join(filter(None, [headline, excerpt, hint, _more(log, match)])),
        file=file,
        line=line,
        column=column,
        excerpt=excerpt,
        log=log,
    )


def unknown_instance(
    source: Source, names: Iterable[str], kernels: Iterable[str], templates: Iterable[str], log: str
) -> CompileError:
    """Make the error for a kernel or a template instance that the source does not have."""
    names = list(names)
    wanted = ", ".join(repr(name) for name in names)
    words = [text["text"] for text in _ERROR.finditer(log) if "lowered name lookup" not in text["text"]]
    ambiguous = any("cannot determine which instance of overloaded function" in word for word in words)
    if ambiguous and not any(name.endswith(")") for name in names):
        message = f"{source.name}: {wanted} is overloaded; add parameter types, such as 'v<float>(float*, int)'"
        return CompileError(message, file=source.name, log=log.strip("\0\n "))
    there = f"kernels: {', '.join(kernels) or 'none'}"
    if listed := ", ".join(templates):
        there += f"; templates: {listed} (name an instance, such as {listed.split(',')[0]}<float>)"
    says = f"\n  the compiler says: {words[0]}" if words else ""
    return CompileError(
        f"{source.name} has no kernel {wanted}; {there}{says}", file=source.name, log=log.strip("\0\n ")
    )


def _without_place(source: Source, log: str, text: str) -> CompileError:
    lines = source.text.splitlines()
    if text:
        line = max(len(lines), 1)
        excerpt = excerpt_of(source.text, line, None)
        note = re.search(r"^[^\n]*?\((\d+)\): note [^\n]*?: ([^\n]*)", log, re.M)
        opened = f"{note[2]} on line {note[1]}" if note else ""
        message = "\n".join(filter(None, [f"{source.name}:{line}: at the end: {text}", opened, excerpt]))
        return CompileError(message, file=source.name, line=line, excerpt=excerpt, log=log)
    first = log.splitlines()[0] if log else "the compiler gave no reason"
    if match := re.search(r"unrecognized option (\S+)", log):
        first = f"option {match[1]!r} is not one of NVRTC's (nvcc has more); leave it out"
    return CompileError(f"{source.name}: {first}", file=source.name, log=log)


def _column(rest: str) -> int | None:
    """Read the column off the caret line; NVRTC indents source lines by two."""
    for line in rest.splitlines():
        if line.strip() == "^":
            return max(line.index("^") - 1, 1)
    return None


def text_of(file: str, source: Source) -> str:
    """The text of a file, which may be the source itself; empty where it cannot be read."""
    if file == source.name:
        return source.text
    try:
        with open(file, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


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
    """Say which macro among the options stands in a line of a header."""
    for option in source.options if file != source.name else ():
        macro = re.match(r"(?:-D|--define-macro=)([A-Za-z_]\w*)", option)
        if macro and re.search(rf"\b{macro[1]}\b", line):
            return f"hint: {option} replaces {macro[1]} in that header, too; give the macro a longer name"
    return ""


def _hint(text: str, log: str, source: Source, searched: Iterable[str]) -> str:
    if match := _NO_FILE.search(text):
        name = match[1]
        if name in _HOST_HEADERS:
            guard = "put it between #ifndef __CUDACC_RTC__ and #endif"
            return f"hint: <{name}> is for host code, which is not compiled here: {guard}"
        looked = [os.path.dirname(source.path)] if source.path else []
        looked += searched
        where = (
            "".join(f"\n    {folder}" for folder in dict.fromkeys(looked)) or " nowhere: no include directory is known"
        )
        curand = name.startswith("curand")
        way = 'run: pip install "rawkern[curand]"' if curand else "add its directory with include_dirs=[...], or -I DIR"
        return f'hint: "{name}" was looked for in{where}\n  {way}'
    for scope in (text, log):
        for pattern, hint in _HINTS:
            if re.search(pattern, scope):
                return f"hint: {hint}"
    return ""


def _more(log: str, first: re.Match[str]) -> str:
    others = [
        f"{match['file'].strip()}:{match['line']}: {match['text']}" for match in _ERROR.finditer(log, first.end())
    ]
    shown = [f"also {other}" for other in others[:_MORE_SHOWN]]
    if len(others) > _MORE_SHOWN:
        shown.append(f"and {len(others) - _MORE_SHOWN} more; the whole log is the error's .log")
    return "\n".join(shown)
