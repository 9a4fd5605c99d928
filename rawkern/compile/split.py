"""A CUDA source of a PyTorch extension split into device code and host code.

Device code is what is marked (``__global__``, ``__device__`` ...) and what that reaches; the rest is for the host, and
is blanked with spaces, so that lines stay. Where it is not certain, the text stays and the compiler has the word. A
text that has no sign of host code is device code as it is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rawkern.compile import reach
from rawkern.compile.chunks import Chunk, Parts, parts
from rawkern.compile.conditions import HOST, left_out
from rawkern.compile.declarations import Directive
from rawkern.compile.signs import MARK, SIGN, is_host_header


@dataclass(frozen=True)
class HostPart:
    """A piece of a source that host code is made of; device code may use it, too, such as a struct of parameters."""

    kind: str  # "function", "template", "binding", "macro", "struct", "using", "variable", "declaration", "include"
    name: str  # with its namespaces, less those without a name: "ns::f"; "" where there is none
    start: int  # its place in the text, from its first word (``template`` among them) to its end
    end: int


@dataclass(frozen=True)
class Include:
    """One ``#include`` directive."""

    spelled: str  # with its quotes or angles
    start: int  # in the text, and in the device code, which has the same length
    end: int


@dataclass(frozen=True)
class Split:
    """A source in two: what the compiler sees, and what runs on the host."""

    device: str  # the text with as many lines, and spaces over host code
    host: tuple[HostPart, ...]  # in the order of the text, less what #if leaves out for the host
    includes: tuple[Include, ...] = ()
    extension: bool = False  # there are signs of host code in it, or in what is compiled with it
    std: tuple[str, ...] = ()  # names of the C++ library in the device code: "std::min"
    unmarked: bool = False  # the device code has functions without a mark
    uses_std: bool = False  # it says `using namespace std`


_INCLUDE = re.compile(r'[ \t]*#[ \t]*include[ \t]*("[^"\n]+"|<[^>\n]+>)')
_DEFINE = re.compile(r"[ \t]*#[ \t]*define[ \t]+(\w+)")
_STD = re.compile(r"\bstd\s*::\s*(\w+)")
_USES_STD = re.compile(r"\busing\s+namespace\s+(?:cuda\s*::\s*)?std\b")
_WORD = re.compile(r"[A-Za-z_]\w*")
_HOST_MARK = re.compile(r"\b__host__\b")
_END = re.compile(r"[;{}]|\Z")


def split(text: str, path: str | None = None, around: Iterable[str] = ()) -> Split:
    """Split a text; `path` is its file, `around` the texts that are compiled with it."""
    name = path or ""
    return _split(((name, text), *((f"{name}#{k}", other) for k, other in enumerate(around))))[name]


def split_files(files: Mapping[str, str]) -> dict[str, Split]:
    """Split the texts of files that are compiled together: what one marks, another may declare."""
    return _split(tuple(files.items()))


@functools.lru_cache(maxsize=64)
def _split(files: tuple[tuple[str, str], ...]) -> dict[str, Split]:
    found = {name: parts(text) for name, text in files}
    if not any(map(has_host_code, found.values())):
        return {name: Split(one.text, _host(one), _includes(one)) for name, one in found.items()}
    words = reach.macros(tuple(found.values()))
    units = {name: reach.units(one, words) for name, one in found.items()}
    reach.settle([unit for those in units.values() for unit in those])
    names = {unit.chunk.name for those in units.values() for unit in those if not unit.kept}
    names -= {unit.chunk.name for those in units.values() for unit in those if unit.kept}
    return {name: _device(one, units[name], words, names) for name, one in found.items()}


def has_host_code(found: Parts) -> bool:
    """Whether a text has signs of code for the host, where `#if` does not leave it out for the device."""
    alive = lambda at: not any(a <= at < b for a, b in found.dead)  # noqa: E731
    includes = ((one.start, _INCLUDE.match(one.text)) for one in found.directives)
    return (
        any(match and is_host_header(match[1][1:-1]) and alive(at) for at, match in includes)
        or any(alive(match.start()) for match in SIGN.finditer(found.code))
        or any(alive(start) for start, _ in _host_marks(found.code))
    )


def _host_marks(code: str) -> list[tuple[int, int]]:
    """The marks of the host in heads that have none of the device, as places in a text; NVRTC takes none of them."""
    found = []
    for mark in _HOST_MARK.finditer(code):
        before = max(code.rfind(end, 0, mark.start()) for end in ";{}")
        after = _END.search(code, mark.end())
        if not MARK.search(code, before + 1, after.start() if after else len(code)):
            found.append(mark.span())
    return found


def _device(found: Parts, units: list[reach.Unit], words: reach.Words, gone: set[str]) -> Split:
    spans: list[tuple[int, int]] = []
    for unit in units:
        start, end = unit.chunk.start, unit.chunk.end
        if not unit.kept:
            spans.append((start, end))
        elif unit.host or not unit.marked or unit.chunk.kind == "type":
            members = reach.host_members(unit, words, gone)
            marks = [(a, b) for a, b in _host_marks(unit.code) if not any(c <= a < d for c, d in members)]
            spans += [(start + a, start + b) for a, b in sorted((*members, *marks))]
    text = _blanked(found, spans)
    kept = [unit for unit in units if unit.kept]
    std = {f"std::{name}" for unit in kept for name in _STD.findall(unit.code)}
    std |= {
        f"std::{name}"
        for unit in kept
        for word in unit.words & words.bodies.keys()
        for name in _STD.findall(words.bodies[word])
    }
    unmarked = any((not unit.marked and unit.chunk.kind != "alias") or unit.chunk.kind == "type" for unit in kept)
    return Split(
        text,
        _host(found),
        _includes(found),
        True,
        tuple(sorted(std)),
        unmarked,
        _USES_STD.search(found.code) is not None,
    )


def _includes(found: Parts) -> tuple[Include, ...]:
    matches = ((one, _INCLUDE.match(one.text)) for one in found.directives)
    return tuple(Include(match[1], one.start, one.start + match.end()) for one, match in matches if match)


def _blanked(found: Parts, spans: list[tuple[int, int]]) -> str:
    """The text with spaces over spans; directives in them stay, but for pragmas."""
    pieces, at = [], 0
    for start, end in spans:
        pieces.append(found.text[at:start])
        at = start
        for one in (*found.directives_in(start, end), None):
            stop = one.start if one else end
            pieces.append(_spaces(found.text[at:stop]))
            at = stop
            if one:
                pragma = re.match(r"[ \t]*#[ \t]*pragma", one.text)
                pieces.append(_spaces(one.text) if pragma else one.text)
                at = one.end
    pieces.append(found.text[at:])
    return "".join(pieces)


def _spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


_KINDS = {"type": "struct", "alias": "using", "using": "using", "variable": "variable", "declaration": "declaration"}
_BINDING = re.compile(r"PYBIND11_|TORCH_(?:LIBRARY|EXTENSION)|STABLE_TORCH_LIBRARY|PyInit_")


def _host(found: Parts) -> tuple[HostPart, ...]:
    dead = left_out(found.directives, HOST)
    made = [_directive(one) for one in found.directives] + [_host_part(found, chunk) for chunk in found.chunks]
    live = [part for part in made if part and not any(a <= part.start < b for a, b in dead)]
    return tuple(sorted(live, key=lambda part: part.start))


def _directive(one: Directive) -> HostPart | None:
    if match := _DEFINE.match(one.text):
        return HostPart("macro", match[1], one.start, one.end)
    if match := _INCLUDE.match(one.text):
        return HostPart("include", match[1][1:-1], one.start, one.end)
    return None


def _host_part(found: Parts, chunk: Chunk) -> HostPart | None:
    """The host's part in a declaration, None if that is for the device alone."""
    head = found.code[chunk.start : chunk.head]
    if chunk.kind != "type" and MARK.search(head) and not re.search(r"\b__host__\b|HOST", head):
        return None
    if chunk.kind in ("macro", "function") and _BINDING.match(chunk.name):
        return HostPart("binding", chunk.name, chunk.start, chunk.end)
    if chunk.kind == "function":
        return HostPart("template" if chunk.template else "function", chunk.full_name, chunk.start, chunk.end)
    if chunk.kind in _KINDS:
        return HostPart(_KINDS[chunk.kind], chunk.full_name, chunk.start, chunk.end)
    return None
