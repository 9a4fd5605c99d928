"""Constant expressions of a source as Python numbers: the compiler computes them and spells them in a symbol."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from rawkern.base import cache, ctype
from rawkern.compile import diagnostics
from rawkern.compile.compile import PROBE, probe_of, probe_type
from rawkern.compile.names import demangle
from rawkern.compile.nvrtc import include_path, run_nvrtc
from rawkern.compile.source import Source

_TOOLS = PROBE + Path(__file__).with_name("constants.cuh").read_text()
_SPELLED = re.compile(r"__rawkern_constant<(.*), (\d+)ull, (\d+)ull>")


def value(source: Source, arch: str, expression: str, key: str) -> bool | int | float:
    """Compute a constant expression with the names and macros of a source, as if written at its end.

    `key` names the program in the cache. ValueError if it is not a constant expression or not a number; CompileError if
    the source does not compile.
    """
    name = f"constant-{key}-{cache.digest(expression)}"
    type_name, low, high = cache.kept(name, lambda: _ask(source, arch, expression))
    kind = ctype.parse(type_name)
    if kind.kind == "float":
        return struct.unpack(f"<{kind.code}", low.to_bytes(8, "little")[: kind.size])[0]
    number = (high << 64 | low) % (1 << 8 * kind.size)
    return bool(number) if kind.kind == "bool" else number - (1 << 8 * kind.size) * (number > kind.high)


def _ask(source: Source, arch: str, expression: str) -> tuple[str, int, int]:
    type_of = f"decltype(__rawkern_value({expression}))"
    plain = f"__rawkern_plain<{type_of}>::__rawkern_TYPE"
    asked = f"&__rawkern_constant<{plain}, __rawkern_low({expression}), __rawkern_high({expression})>"
    result = run_nvrtc(source, arch, [asked], append=_TOOLS)
    if not result.ok:
        raise _error(source, arch, expression, type_of, result.log)
    match = _SPELLED.search(demangle(dict(result.lowered)[asked]))
    if match is None or ctype.parse(match[1]).kind not in ("int", "bool", "float"):
        raise _no_number(source, expression, match[1] if match else "no value")
    return match[1], int(match[2]), int(match[3])


def _error(source: Source, arch: str, expression: str, type_of: str, log: str) -> Exception:
    """Find out what is wrong: the source, a name in the expression, its type, or that it is not constant."""
    plain = run_nvrtc(source, arch)
    if not plain.ok:
        return diagnostics.compile_error(source, plain.log, include_path(source))
    probe = probe_of(type_of)
    typed = run_nvrtc(source, arch, [probe], append=_TOOLS)
    if typed.ok:
        type_name = probe_type(dict(typed.lowered)[probe])
        if ctype.parse(type_name).kind not in ("int", "bool", "float"):
            return _no_number(source, expression, type_name)
    found = diagnostics.problems(log if typed.ok else typed.log)
    says = found[0].text if found else "it cannot be parsed"
    return ValueError(
        f"{expression!r} is not a constant expression of {source.title}; the compiler says: {says}\n"
        "  pass a constexpr value, an enumerator or a macro by its full name, such as 'ns::Traits<float, 4>::kSize'; "
        "get_global reads variables"
    )


def _no_number(source: Source, expression: str, type_name: str) -> ValueError:
    return ValueError(
        f"{expression!r} is of type {type_name} in {source.title}, a constant is a number; "
        "pass an expression for a number in it, such as an element or a member"
    )
