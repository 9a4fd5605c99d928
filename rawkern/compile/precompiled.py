"""Programs that were compiled elsewhere, as PTX, cubins and fatbins, and what those tell of their kernels' parameters.

A kernel's mangled name has its types. An ``extern "C"`` one has sizes alone, and PTX tells which are floating-point
numbers; the rest is spelled "8 bytes" or "16 bytes, aligned to 4", and takes what fits, as CuPy does.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from rawkern.base import ctype
from rawkern.compile import elf
from rawkern.compile.compile import ENTRY
from rawkern.compile.names import demangle, split_function, strip_anonymous
from rawkern.compile.program import Entry, Program
from rawkern.compile.source import FATBIN, Source
from rawkern.errors import RawkernError, UnsupportedError


@dataclass(frozen=True)
class _Param:
    """What the code tells of a parameter."""

    size: int
    align: int
    known: str = ""  # the type, where the code has it

    @property
    def type(self) -> str:
        natural = self.size in (1, 2, 4, 8) and self.align == self.size
        return self.known or (f"{self.size} bytes" if natural else f"{self.size} bytes, aligned to {self.align}")


def program(source: Source, arch: str, key: str) -> Program:
    """Make a program of a source that is compiled already; an architecture has no say in it."""
    assert source.binary is not None
    if source.kind == "PTX":
        found = _of_ptx(source.text)
    else:
        try:
            found = _of_cubin(_cubin_in(source) if source.kind == "fatbin" else source.binary)
        except UnsupportedError:
            raise
        except RawkernError as error:
            raise RawkernError(f"{source.path}: {error}") from None
    entries = tuple(_entry(symbol, params) for symbol, params in found.items())
    return Program(source, arch, source.binary, entries, (), "", key)


def _entry(symbol: str, params: Sequence[_Param]) -> Entry:
    """The kernel, in the types of its mangled name as far as those are known and fit the code."""
    if not symbol.startswith("_Z"):
        return Entry(symbol, symbol, tuple(param.type for param in params))
    name, types, _ = split_function(demangle(symbol))
    if len(types) != len(params):
        types = ("",) * len(params)
    spelled = [text if _fits(text, param) else param.type for text, param in zip(types, params, strict=True)]
    return Entry(symbol, strip_anonymous(name), tuple(spelled))


def _fits(text: str, param: _Param) -> bool:
    return bool(text) and ctype.parse(text).size == param.size


# PTX ------------------------------------------------------------------------------------------------------------------

_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<kind>[a-z]+)(?P<bits>\d+)\s+"
    r"(?P<pointer>\.ptr\s+(?:\.[a-z]+\s+(?:\d+\s+)?)*)?[\w$%]+\s*(?:\[\s*(?P<count>\d+)\s*\])?"
)
_FLOATS = {"16": "__half", "32": "float", "64": "double"}


def _of_ptx(text: str) -> dict[str, list[_Param]]:
    found = {}
    for match in ENTRY.finditer(text):
        rest = re.compile(r"\s*\(([^)]*)\)").match(text, match.end())
        found[match[1]] = [_ptx_param(each) for each in _PARAM.finditer(rest[1])] if rest else []
    return found


def _ptx_param(match: re.Match[str]) -> _Param:
    size = int(match["bits"]) // 8
    align = int(match["align"] or size)
    if match["count"] is not None:
        return _Param(size * int(match["count"]), align)
    if match["pointer"]:
        return _Param(size, align, "void*")
    return _Param(size, align, _FLOATS[match["bits"]] if match["kind"] == "f" else "")


# Machine code ---------------------------------------------------------------------------------------------------------

_INFO, _KPARAM_INFO = ".nv.info.", 0x17
_KPARAM_SIZE = 12  # bytes of such a record: index, ordinal, offset, and the size in bits 18 to 31


def _of_cubin(cubin: bytes) -> dict[str, list[_Param]]:
    found = {}
    for section in elf.sections(cubin):
        if section.name.startswith(_INFO):
            data = [each for attribute, each in elf.records(cubin, section) if attribute == _KPARAM_INFO]
            if any(len(each) != _KPARAM_SIZE for each in data):
                raise elf.damaged(section.offset, f"section {section.name} has unknown data of a parameter")
            read = (struct.unpack("<4xHHI", each) for each in data)
            places = sorted((ordinal, offset, word >> 18) for ordinal, offset, word in read)
            if [place[0] for place in places] != list(range(len(places))):
                raise elf.damaged(
                    section.offset, f"section {section.name} does not describe each parameter exactly once"
                )
            found[section.name.removeprefix(_INFO)] = _aligned([place[1:] for place in places], section)
    return found


def _aligned(places: Sequence[tuple[int, int]], section: elf.Section) -> list[_Param]:
    """Parameters by offset and size; the alignment is one that puts each at its offset."""
    at, found = 0, []
    for offset, size in places:
        natural = size if size in (1, 2, 4, 8) else 1
        fitting = [align for align in (natural, 1, 2, 4, 8, 16, 32, 64, 128) if at + -at % align == offset]
        if not fitting:
            raise elf.damaged(
                section.offset, f"section {section.name} has a parameter at {offset} after one that ends at {at}"
            )
        found.append(_Param(size, fitting[0]))
        at = offset + size
    return found


def _cubin_in(source: Source) -> bytes:
    """The first cubin of a fatbin: its kernels are those of all. UnsupportedError where none can be read."""
    data = source.binary or b""
    (at,) = elf.unpack("<H", data, 6)
    while data[:4] == FATBIN and at + 64 <= len(data):
        header, size = elf.unpack("<4xIQ", data, at)
        if not header:
            raise elf.damaged(at, "an entry of the fatbin has a size of 0")
        part = data[at + header : at + header + size]
        if part[:4] == elf.MAGIC:
            return part
        at += header + size
    raise UnsupportedError(
        f"{source.path} has no readable cubin: its code is compressed, or it has only PTX; "
        "make it with nvcc's --no-compress, or pass a .cubin or .ptx"
    )
