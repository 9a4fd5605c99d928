"""A CUDA source of a PyTorch extension split into device code and host code.

Device code is what is marked (``__global__``, ``__device__`` ...) and what that reaches; the rest is for the host, and
is blanked with spaces, so that lines stay. Where it is not certain, the text stays and the compiler has the word.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from rawkern.compile.chunks import Chunk, Parts, parts
from rawkern.compile.declarations import Lexeme


@dataclass(frozen=True)
class HostPart:
    """A piece of a source that host code is made of; device code may use it, too, such as a struct of parameters."""

    kind: str  # "function", "template", "binding", "macro", "struct", "using", "variable", "declaration", "include"
    name: str  # with its namespaces, less those without a name: "ns::f"; "" where there is none
    start: int  # where it stands in the text, from its first word (``template`` among them) to its end
    end: int


@dataclass(frozen=True)
class Split:
    """A source in two: what the compiler sees, and what runs on the host."""

    device: str  # the text with as many lines, and spaces over host code
    host: tuple[HostPart, ...]  # in the order of the text


_MARK = re.compile(r"\b__(?:global|device|constant|shared|managed)__\b")
_BINDING = re.compile(r"PYBIND11_|TORCH_(?:LIBRARY|EXTENSION)|REGISTER|STABLE_TORCH_LIBRARY|PyInit_")


@functools.lru_cache(maxsize=64)
def split(text: str, path: str | None = None) -> Split:
    """Split a text; `path` is the file it stands in."""
    found = parts(text)
    device = list(text)
    host: list[HostPart] = []
    for one in found.directives:
        if part := _directive(one):
            host.append(part)
    for chunk in found.chunks:
        marked = _MARK.search(found.code, chunk.start, chunk.head) is not None
        if part := _host_part(found, chunk, marked):
            host.append(part)
        if not marked and part and part.kind in ("function", "template", "binding", "declaration"):
            _blank(device, found, chunk)
    return Split("".join(device), tuple(sorted(host, key=lambda part: part.start)))


def _directive(one: Lexeme) -> HostPart | None:
    if match := re.match(r"[ \t]*#[ \t]*define[ \t]+(\w+)", one.text):
        return HostPart("macro", match[1], one.start, one.end)
    if match := re.match(r'[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)', one.text):
        return HostPart("include", match[1], one.start, one.end)
    return None


_KINDS = {"type": "struct", "alias": "using", "using": "using", "variable": "variable", "declaration": "declaration"}


def _host_part(found: Parts, chunk: Chunk, marked: bool) -> HostPart | None:
    """The host's part in a declaration, None if that is for the device alone."""
    if marked and chunk.kind != "type" and not re.search(r"\b__host__\b", found.code[chunk.start : chunk.head]):
        return None
    if chunk.kind in ("macro", "function") and _BINDING.match(chunk.name):
        return HostPart("binding", chunk.name, chunk.start, chunk.end)
    if chunk.kind == "function":
        return HostPart("template" if chunk.template else "function", chunk.full_name, chunk.start, chunk.end)
    if chunk.kind in _KINDS:
        return HostPart(_KINDS[chunk.kind], chunk.full_name, chunk.start, chunk.end)
    return None


def _blank(device: list[str], found: Parts, chunk: Chunk) -> None:
    """Put spaces over a declaration; directives in it stay."""
    at = chunk.start
    for one in (*found.directives_in(chunk.start, chunk.end), None):
        end = one.start if one else chunk.end
        device[at:end] = re.sub(r"[^\n]", " ", "".join(device[at:end]))
        at = one.end if one else end
