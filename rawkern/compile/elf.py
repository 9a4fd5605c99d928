"""The parts of a cubin, which is an ELF file: sections, symbols and NVIDIA's records."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rawkern.errors import RawkernError

MAGIC = b"\x7fELF"
# Records of .nv.info: (format, attribute, ...). Format 4 has a size and bytes, the others a value in the same word.
_BYTE_FORMAT, _SIZED_FORMAT = 2, 4


@dataclass(frozen=True)
class Section:
    name: str
    offset: int
    size: int
    link: int
    flags: int


def sections(cubin: bytes) -> list[Section]:
    """Return all sections; RawkernError if these are not the bytes of a cubin."""
    if cubin[:4] != MAGIC or cubin[4:6] != b"\x02\x01":
        raise RawkernError("this is no cubin: it is not a 64-bit little-endian ELF file")
    start, count, names = *struct.unpack_from("<Q", cubin, 40), *struct.unpack_from("<2H", cubin, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + 64 * i) for i in range(count)]
    strings = headers[names][4]
    return [Section(text(cubin, strings + h[0]), h[4], h[5], h[6], h[2]) for h in headers]


def text(cubin: bytes, at: int) -> str:
    """Return the string that starts at a place."""
    return cubin[at : cubin.index(b"\0", at)].decode()


def symbol(cubin: bytes, of: list[Section], index: int) -> str:
    """Return the name of a symbol by its number."""
    table = next(section for section in of if section.name == ".symtab")
    (name,) = struct.unpack_from("<I", cubin, table.offset + 24 * index)
    return text(cubin, of[table.link].offset + name)


def records(cubin: bytes, section: Section) -> Iterator[tuple[int, bytes]]:
    """Yield attribute and bytes of each record of an information section."""
    at, end = section.offset, section.offset + section.size
    while at < end:
        form, attribute, value = struct.unpack_from("<BBH", cubin, at)
        at += 4
        if form == _SIZED_FORMAT:
            yield attribute, cubin[at : at + value]
            at += value
        else:
            yield attribute, cubin[at - 2 : at - 1] if form == _BYTE_FORMAT else cubin[at - 2 : at]
