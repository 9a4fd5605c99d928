"""C++ names: symbols demangled, types spelled one way.

The C++ runtime that PyTorch itself links demangles; this module only reads its output, which has one spelling per type.
"""

from __future__ import annotations

import ctypes
import functools
import re

from rawkern.errors import RawkernError

__all__ = ["canonical_type", "demangle", "split_arguments", "split_function", "strip_anonymous"]

_ANONYMOUS = "(anonymous namespace)::"
_CV = re.compile(r"\s*\b(const|volatile)\b")
_TYPE_WORD = re.compile(r"(?:unsigned|signed|long|short|int|char|__int128)\b")


@functools.cache
def _runtime() -> ctypes.CDLL:
    for name in ("libstdc++.so.6", "libc++abi.so.1"):
        try:
            library = ctypes.CDLL(name)
            library.__cxa_demangle.restype = ctypes.c_void_p
            library.__cxa_demangle.argtypes = [
                ctypes.c_char_p,
                ctypes.c_void_p,
                ctypes.c_void_p,
                ctypes.POINTER(ctypes.c_int),
            ]
            library.free.argtypes = [ctypes.c_void_p]  # found in libc, which every process has
        except (OSError, AttributeError):
            continue
        return library
    raise RawkernError("no C++ runtime library found (libstdc++.so.6); it comes with PyTorch's own requirements")


def demangle(symbol: str) -> str:
    """Return the C++ name behind a symbol, or the symbol itself if it is not mangled (``extern "C"``)."""
    if not symbol.startswith("_Z"):
        return symbol
    library = _runtime()
    status = ctypes.c_int()
    pointer = library.__cxa_demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not pointer:
        return symbol
    try:
        return ctypes.string_at(pointer).decode()
    finally:
        library.free(pointer)


def split_function(text: str) -> tuple[str, tuple[str, ...], bool]:
    """Split a demangled function into name, parameter types and whether it is a template instance.

    ``"void axpy<float, 4>(float, float const*)"`` gives ``("axpy<float, 4>", ("float", "const float*"), True)``.
    """
    start = _parameter_list(text)
    name = text[:start]
    # Only template instances are mangled with their return type; a kernel's is void.
    instance = name.startswith("void ")
    name = name.removeprefix("void ")
    return name.strip(), _parameters(text[start + 1 : _matching(text, start)]), instance


def function_parameters(text: str) -> tuple[str, ...]:
    """Return the parameter types of a function type such as ``"void (int, float const*)"``."""
    start = _parameter_list(text)
    return _parameters(text[start + 1 : _matching(text, start)])


def split_arguments(text: str) -> list[str]:
    """Split at the commas that stand outside every bracket; a ``<`` that nothing closes is a comparison."""
    parts, begin = [], 0
    opened: list[str] = []
    for i, c in enumerate(text):
        if c in "([{<":
            opened.append(c)
        elif c == ">" and opened and opened[-1] == "<" and text[i - 1 : i] != "-":
            opened.pop()
        elif c in ")]}":
            while opened and opened.pop() == "<":
                pass
        elif c == "," and not opened:
            parts.append(text[begin:i].strip())
            begin = i + 1
    last = text[begin:].strip()
    return [*parts, last] if last or parts else []


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
    """Drop anonymous namespaces from a name: nobody writes them."""
    return name.replace(_ANONYMOUS, "")


def _parameters(text: str) -> tuple[str, ...]:
    return tuple(canonical_type(part) for part in split_arguments(text) if part != "void")


def _base_end(text: str) -> int:
    """Return where the base type ends: before its qualifiers, ``*``, ``&``, ``(`` or ``[``."""
    i = depth = 0
    while i < len(text):
        if depth == 0 and text.startswith(_ANONYMOUS, i):
            i += len(_ANONYMOUS)
            continue
        c = text[i]
        if c in "<({" and (c != "(" or depth):
            depth += 1
        elif c in ">)}" and depth:
            depth -= 1
        elif depth == 0 and (c in "*&([" or (c == " " and not _TYPE_WORD.match(text, i + 1))):
            return i
        i += 1
    return i


def _parameter_list(text: str) -> int:
    """Return the position of the parenthesis that opens the parameter list."""
    i = depth = 0
    while i < len(text):
        if depth == 0 and text.startswith(_ANONYMOUS, i):
            i += len(_ANONYMOUS)
            continue
        c = text[i]
        if c == "(" and depth == 0:
            return i
        depth += (c in "<({") - (c in ">)}")
        i += 1
    raise RawkernError(f"{text!r} has no parameter list")


def _matching(text: str, start: int) -> int:
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return len(text)
