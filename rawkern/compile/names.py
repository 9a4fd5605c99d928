"""C++ names: symbols demangled, types spelled one way.

The C++ runtime that PyTorch itself links demangles; this module only reads its output, which has one spelling per type.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from rawkern.errors import RawkernError

_ARCHITECTURE = re.compile(r"\b(?:THRUST|CUB)_\d+_SM_\w+_NS::")  # inline namespaces of CUDA's headers
_ANONYMOUS = "(anonymous namespace)::"
_CV = re.compile(r"\s*\b(const|volatile)\b")
_TYPE_WORD = re.compile(r"(?:unsigned|signed|long|short|int|char|__int128)\b")


@functools.cache
def _runtime() -> tuple[Any, Any]:
    """``__cxa_demangle``, and ``free`` for what it returns."""
    # The process's own, which an allocator that is preloaded (jemalloc, tcmalloc) replaces; a library's may be libc's.
    free = ctypes.CDLL(None).free
    free.argtypes, free.restype = [ctypes.c_void_p], None
    for name in ("libstdc++.so.6", "libc++abi.so.1"):
        try:
            found = ctypes.CDLL(name).__cxa_demangle
        except (OSError, AttributeError):
            continue
        found.restype = pointer = ctypes.c_void_p
        found.argtypes = [ctypes.c_char_p, pointer, pointer, ctypes.POINTER(ctypes.c_int)]
        return found, free
    raise RawkernError("no C++ runtime library found (libstdc++.so.6); it comes with PyTorch's own requirements")


def demangle(symbol: str) -> str:
    """Return the C++ name of a symbol, or the symbol itself if it is not mangled (``extern "C"``)."""
    if not symbol.startswith("_Z"):
        return symbol
    cxa_demangle, free = _runtime()
    status = ctypes.c_int()
    pointer = cxa_demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not pointer:
        return symbol
    try:
        return ctypes.string_at(pointer).decode()
    finally:
        free(pointer)


def readable(text: str) -> str:
    """A message with the C++ names of the symbols in it, less anonymous namespaces."""
    return re.sub(r"\b_Z\w+", lambda symbol: strip_anonymous(demangle(symbol[0])), text)


def for_any_architecture(name: str) -> str:
    """A type's name without the namespaces that tell for which architectures it was compiled."""
    return _ARCHITECTURE.sub("", name)


def split_function(text: str) -> tuple[str, tuple[str, ...], bool]:
    """Split a demangled function into name, parameter types and whether it is a template instance.

    ``"void axpy<float, 4>(float, float const*)"`` gives ``("axpy<float, 4>", ("float", "const float*"), True)``.
    """
    start = _parameter_list(text)
    name = text[:start]
    # Only template instances are mangled with their return type; a kernel's is void.
    instance = name.startswith("void ")
    name = name.removeprefix("void ")
    return name.strip(), _parameters(text[start + 1 : closing(text, start)]), instance


def function_parameters(text: str) -> tuple[str, ...]:
    """Return the parameter types of a function type such as ``"void (int, float const*)"``."""
    start = _parameter_list(text)
    return _parameters(text[start + 1 : closing(text, start)])


def outside(text: str, start: int = 0) -> Iterator[tuple[int, str]]:
    """Yield place and character of what stands outside every bracket; opening brackets there, but no closing ones.

    A ``<`` that nothing closes is a comparison. Anonymous namespaces, whose name has brackets, are left out.
    """
    opened: list[str] = []
    at = start
    while at < len(text):
        if not opened and text.startswith(_ANONYMOUS, at):
            at += len(_ANONYMOUS)
            continue
        c = text[at]
        if not opened and c not in ")]}":
            yield at, c
        if c in "([{<":
            opened.append(c)
        elif c == ">" and opened and opened[-1] == "<" and text[at - 1] != "-":
            opened.pop()
        elif c in ")]}":
            while opened and opened.pop() == "<":
                pass
        at += 1


def closing(text: str, start: int) -> int:
    """Return where the bracket that opens at a place closes; the last place if it does not."""
    places = outside(text, start)
    next(places)
    return next(places, (len(text), ""))[0] - 1


def split_arguments(text: str) -> list[str]:
    """Split at the commas that stand outside every bracket."""
    commas = [at for at, c in outside(text) if c == ","]
    parts = [text[a + 1 : b].strip() for a, b in pairwise([-1, *commas, len(text)])]
    return parts if parts[-1] or commas else []


def canonical_type(text: str) -> str:
    """Spell a demangled type as people write it: ``float const*`` becomes ``const float*``."""
    text = text.strip()
    end = _base_end(text)
    base, rest = text[:end].strip(), text[end:]
    qualifiers = []
    while match := _CV.match(rest):
        qualifiers.append(match[1])
        rest = rest[match.end() :]
    return " ".join([*qualifiers, base]) + (rest if rest[:1] in ("", "*", "&") else " " + rest.strip())


def strip_anonymous(name: str) -> str:
    """Drop anonymous namespaces from a name: they cannot be written."""
    return name.replace(_ANONYMOUS, "")


def _parameters(text: str) -> tuple[str, ...]:
    return tuple(canonical_type(part) for part in split_arguments(text) if part != "void")


def _base_end(text: str) -> int:
    """Return where the base type ends: before its qualifiers, ``*``, ``&``, ``(`` or ``[``."""
    ends = (at for at, c in outside(text) if c in "*&([" or (c == " " and not _TYPE_WORD.match(text, at + 1)))
    return next(ends, len(text))


def _parameter_list(text: str) -> int:
    """Return the position of the parenthesis that opens the parameter list."""
    start = next((at for at, c in outside(text) if c == "("), None)
    if start is None:
        raise RawkernError(f"{text!r} has no parameter list")
    return start
