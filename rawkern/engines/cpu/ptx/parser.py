"""PTX text to plain data (`ptx`): the functions and variables of a module. Nothing is interpreted here.

What is not understood makes its function, or the names that it mentions, unusable (`variables.reached`); kernels that
do without them run.
"""

from __future__ import annotations

import re

from rawkern.engines.cpu.ptx.body import Body
from rawkern.engines.cpu.ptx.data import Function, Ptx
from rawkern.engines.cpu.ptx.declarations import cluster, parameters, thread_bound, variables
from rawkern.engines.cpu.ptx.tokens import END, MALFORMED, closing, is_name, line_of, semicolon, shown, tokens
from rawkern.errors import UnsupportedError

_LINKAGE = frozenset((".visible", ".weak", ".extern", ".common", ".hidden"))
_FUNCTIONS = (".entry", ".func")
_VARIABLES = (".global", ".const", ".shared")
_LINES = {".version": 1, ".address_size": 1, ".target": 1, ".file": 2}  # operands; further ones follow a comma
_KNOWN = frozenset((*_LINKAGE, *_FUNCTIONS, *_VARIABLES, *_LINES))
#: Directives of a function's header that change no result.
_HINTS = frozenset(
    (
        ".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".noreturn", ".pragma",
        ".abi_preserve", ".abi_preserve_control", ".reqnctapercluster", ".explicitcluster", ".maxclusterrank",
    )
)  # fmt: skip


def parse(text: str) -> Ptx:
    """Parse a PTX module.

    Raises
    ------
    UnsupportedError
        Where the text ends before a function does, or is not PTX.
    """
    stream, starts = tokens(text), [0]
    try:
        return _module(stream, starts)
    except MALFORMED as error:
        line, part = line_of(text, starts[-1]), shown(stream[starts[-1] : starts[-1] + 8])
        raise UnsupportedError(f"PTX not understood from line {line} on, {part[:80]!r}") from error


def _module(stream: list[str], starts: list[int]) -> Ptx:
    """A module; where each of its directives starts is added to a list."""
    files = _files(stream)
    ptx = Ptx({}, {}, [None], 0)
    pos = 0
    while stream[pos] != END:
        start = pos
        starts.append(start)
        while stream[pos] in _LINKAGE:
            pos += 1
        extern = ".extern" in stream[start:pos]
        word = stream[pos]
        if word in _FUNCTIONS:
            pos = _function(ptx, stream, pos, files)
        elif word in _VARIABLES:
            stop = semicolon(stream, pos)
            _declare(ptx, stream[pos:stop], extern)
            pos = stop + 1
        elif word in _LINES:
            if word == ".version":
                major, minor = stream[pos + 1].split(".")
                ptx.version = int(major) * 10 + int(minor)
            elif word == ".target" and (number := re.match(r"sm_(\d+)", stream[pos + 1])):
                ptx.target = int(number[1])
            pos += 1 + _LINES[word]
            while stream[pos] == ",":
                pos += 2
        elif word.startswith(".section") or word in (";", "}"):
            pos += 1
        elif word == ".pragma":
            pos = semicolon(stream, pos) + 1
        elif word == ".loc":
            pos += 4
        else:
            stop = _skipped(stream, pos)
            _unknown(ptx, stream[pos:stop], f"PTX directive not supported: {shown(stream[pos:stop])[:80]!r}")
            pos = stop
    return ptx


def _files(stream: list[str]) -> dict[int, str]:
    """Numbers of source files; some compilers write them at the end."""
    found, at = {}, -1
    for _ in range(stream.count(".file")):
        at = stream.index(".file", at + 1)
        found[int(stream[at + 1])] = stream[at + 2].strip('"')
    return found


def _declare(ptx: Ptx, statement: list[str], extern: bool) -> None:
    try:
        found = variables(statement, extern)
    except UnsupportedError as error:
        _unknown(ptx, statement, str(error))
        return
    for var in found:
        if extern and var.space != "shared":
            ptx.unknown[var.name] = (
                f"variable {var.name} is not defined here; device code of several modules cannot be linked"
            )
        else:
            ptx.variables[var.name] = var


def _unknown(ptx: Ptx, part: list[str], why: str) -> None:
    """Keep kernels away from all names in what was not understood."""
    for name in filter(is_name, part):
        ptx.unknown.setdefault(name, why)


def _function(ptx: Ptx, stream: list[str], pos: int, files: dict[int, str]) -> int:
    """A function from ``.entry`` or ``.func`` on; returns the place after it."""
    stop = pos
    while stream[stop] not in ("{", END) and not (stream[stop] == ";" and stream[stop - 2] != ".pragma"):
        stop += 1
    header = stream[pos:stop]
    defined = stream[stop] == "{"
    try:
        function = _header(header)
    except UnsupportedError as error:
        why = f"PTX function header not understood: {shown(header)[:80]!r} ({error})"
        _unknown(ptx, header, why)
        return (closing(stream, stop) if defined else stop) + 1
    function.locs, function.defined = ptx.locs, defined
    if defined or function.name not in ptx.functions:
        ptx.functions[function.name] = function
    return Body(ptx, function, files).parse(stream, stop + 1) if defined else stop + 1


def _header(part: list[str]) -> Function:
    """``.func (results) name (parameters) directives``."""
    at = 2 if part[1:2] == [".noreturn"] else 1
    returns, at = _list(part, at)
    name = "".join(part[at : at + 1])
    if not is_name(name):
        raise UnsupportedError("no name")
    params, at = _list(part, at + 1)
    function = Function(name, part[0] == ".entry", parameters(params), parameters(returns))
    function.max_threads, function.cluster = thread_bound(part[at:]), cluster(part[at:])
    for item in part[at:]:
        if item[0] == "." and item not in _HINTS:
            function.rejected = function.rejected or f"PTX directive not supported: {item}"
    return function


def _list(part: list[str], at: int) -> tuple[list[str], int]:
    """What is in the parentheses that may begin here, and the place after them."""
    if part[at : at + 1] != ["("]:
        return [], at
    stop = closing(part, at)
    return part[at + 1 : stop], stop + 1


def _skipped(stream: list[str], pos: int) -> int:
    """The place after an unknown directive: a statement, a block, or all up to the next that is known."""
    at = pos + 1
    while stream[at] != END and stream[at] not in _KNOWN:
        if stream[at] == ";":
            return at + 1
        if stream[at] == "{":
            return closing(stream, at) + 1
        at += 1
    return at
