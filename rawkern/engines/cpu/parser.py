"""PTX text to plain data (`ptx`): the functions and variables of a module. Nothing is interpreted here."""

from __future__ import annotations

import re

from rawkern.engines.cpu.body import Body
from rawkern.engines.cpu.declarations import parameters, variable
from rawkern.engines.cpu.ptx import Function, Ptx
from rawkern.errors import UnsupportedError

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_FUNC = re.compile(
    r"\.(entry|func)\s*(?:\.noreturn\s*)?(?:\(([^)]*)\)\s*)?([A-Za-z_$%][\w$]*)\s*(?:\(([^)]*)\))?([^{;]*)([{;])", re.S
)


def parse(text: str) -> Ptx:
    """Parse a PTX module.

    Raises
    ------
    UnsupportedError
        Where the text holds a construct that is not known, with the PTX line.
    """
    text = _COMMENT.sub("", text)
    files = {int(n): name for n, name in _FILE.findall(text)}
    result = Ptx({}, {}, [None], 0)
    pos, end = 0, len(text)
    skip = re.compile(r"\s*(?:\.(?:visible|weak|extern|common|hidden)\b\s*)*")
    while True:
        head = skip.match(text, pos)
        assert head is not None
        extern = ".extern" in head.group()
        pos = head.end()
        if pos >= end:
            return result
        if text.startswith((".entry", ".func"), pos):
            match = _FUNC.match(text, pos)
            if match is None:
                raise UnsupportedError(f"PTX function header not understood: {text[pos : pos + 80]!r}")
            function = _function_header(match)
            function.locs = result.locs
            pos = match.end()
            if match.group(6) == "{":
                close = _closing_brace(text, pos)
                Body(result, function, files).parse(text[pos:close])
                pos = close + 1
            else:
                function.defined = False
            if function.defined or function.name not in result.functions:
                result.functions[function.name] = function
        elif text.startswith((".global", ".const", ".shared"), pos):
            stop = text.index(";", pos)
            var = variable(text[pos:stop], extern)
            result.variables[var.name] = var
            pos = stop + 1
        elif text.startswith(".section", pos):
            pos = _closing_brace(text, text.index("{", pos) + 1) + 1
        elif text.startswith(".alias", pos):
            raise UnsupportedError(f"PTX directive not supported: {text[pos : text.index(';', pos)]}")
        else:  # a directive of one line
            stop = text.find("\n", pos)
            line = text[pos : stop if stop >= 0 else end]
            if line.startswith(".version"):
                major, minor = line.split()[1].split(".")
                result.version = int(major) * 10 + int(minor)
            elif not line.startswith((".target", ".address_size", ".file", ".pragma", ".loc", "}", ";")):
                raise UnsupportedError(f"PTX directive not supported: {line.strip()!r}")
            pos = stop + 1 if stop >= 0 else end


def _closing_brace(text: str, pos: int) -> int:
    depth = 1
    for match in re.compile(r'[{}]|"[^"]*"').finditer(text, pos):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    raise UnsupportedError("PTX ends inside a function")


def _function_header(match: re.Match) -> Function:
    kind, returns, name, params = match.groups()[:4]
    return Function(name, kind == "entry", parameters(params), parameters(returns))
