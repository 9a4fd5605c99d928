"""The parts of a cubin, which is an ELF file: sections, symbols and NVIDIA's records."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rawkern.errors import RawkernError

MAGIC = b"\x7fELF"
# Records of .nv.info: (format, attribute, ...). Format 4 has a size and bytes, the others a value in the same word.
_BYTE_FORMAT, _SIZED_FORMAT = 2, 4
_RELOCATIONS = (4, 9)  # types of sections that say where addresses are put into another one


def damaged(at: int, why: str) -> RawkernError:
    """The error for machine code that is not as it should be from a byte on."""
    return RawkernError(f"this machine code is damaged at byte {at}: {why}")


def unpack(layout: str, data: bytes, at: int) -> tuple[int, ...]:
    """Return the numbers at a place; RawkernError where the data has none."""
    end = at + struct.calcsize(layout)
    if end > len(data):
        raise damaged(at, f"the data there ends at byte {end}, the file at {len(data)}")
    return struct.unpack_from(layout, data, at)


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
        raise RawkernError("this is not a cubin: it is not a 64-bit little-endian ELF file")
    start, count, names = *unpack("<Q", cubin, 40), *unpack("<2H", cubin, 60)
    headers = [unpack("<IIQQQQIIQQ", cubin, start + 64 * i) for i in range(count)]
    if names >= count:
        raise damaged(62, f"it has {count} sections, and their names are in section {names}")
    strings = headers[names][4]
    return [Section(text(cubin, strings + h[0]), h[4], h[5], h[6], h[2]) for h in headers]


def text(cubin: bytes, at: int) -> str:
    """Return the string that starts at a place."""
    end = cubin.find(b"\0", at)
    if end < 0:
        raise damaged(at, "a name is not terminated")
    try:
        return cubin[at:end].decode()
    except UnicodeDecodeError:
        raise damaged(at, f"{cubin[at : min(end, at + 40)]!r} is not a name") from None


def symbol(cubin: bytes, of: list[Section], index: int) -> str:
    """Return the name of a symbol by its number."""
    table = next((section for section in of if section.name == ".symtab"), None)
    if table is None or table.link >= len(of):
        raise damaged(0, "it has no symbol table")
    (name,) = unpack("<I", cubin, table.offset + 24 * index)
    return text(cubin, of[table.link].offset + name)


_OBJECT = 1  # the type of a symbol that is a variable's
_GLOBAL, _CONSTANT = (".nv.global", ".nv.global.init"), ".nv.constant3"


def variables(cubin: bytes) -> dict[str, bool]:
    """Return the symbols of variables that do not start with an address, and whether each is ``__constant__``."""
    of = sections(cubin)
    table = next((section for section in of if section.name == ".symtab"), None)
    if table is None:
        return {}
    relocated: dict[str, list[int]] = {}
    for section in of:
        for kind, size in ((".rela", 24), (".rel", 16)):
            target = section.name.removeprefix(kind)
            if section.name.startswith(kind) and target in (*_GLOBAL, _CONSTANT):
                places = range(section.offset, section.offset + section.size, size)
                relocated[target] = [struct.unpack_from("<Q", cubin, at)[0] for at in places]
    found = {}
    for at in range(table.offset, table.offset + table.size, 24):
        name, info, _, number, start, size = struct.unpack_from("<IBBHQQ", cubin, at)
        section = of[number].name if number < len(of) else ""
        if info & 15 != _OBJECT or section not in (*_GLOBAL, _CONSTANT):
            continue
        if not any(start <= place < start + size for place in relocated.get(section, ())):
            found[text(cubin, of[table.link].offset + name)] = section == _CONSTANT
    return found


def records(cubin: bytes, section: Section) -> Iterator[tuple[int, bytes]]:
    """Yield attribute and bytes of each record of an information section."""
    at, end = section.offset, section.offset + section.size
    if end > len(cubin):
        raise damaged(at, f"section {section.name} ends at byte {end}, the file at {len(cubin)}")
    while at < end:
        form, attribute, value = unpack("<BBH", cubin, at)
        at += 4
        if form == _SIZED_FORMAT:
            if at + value > end:
                raise damaged(at, f"a record ends at byte {at + value}, and section {section.name} at {end}")
            yield attribute, cubin[at : at + value]
            at += value
        else:
            yield attribute, cubin[at - 2 : at - 1] if form == _BYTE_FORMAT else cubin[at - 2 : at]


def replaced(cubin: bytes, number: int, content: bytes, shift: int) -> bytes:
    """Return a cubin with other bytes in one of its sections; what is relocated there lies `shift` bytes further on.

    What follows moves by a multiple of all alignments.
    """
    programs, table = struct.unpack_from("<2Q", cubin, 32)
    size, of_programs, _, count = struct.unpack_from("<4H", cubin, 54)
    headers = [list(struct.unpack_from("<IIQQQQIIQQ", cubin, table + 64 * i)) for i in range(count)]
    start, end = headers[number][4], headers[number][4] + headers[number][5]
    aligned = max(header[8] for header in headers) or 1
    more = -(-max(len(content) - (end - start), 0) // aligned) * aligned

    def moved(at: int) -> int:
        return at + more if at >= end else at

    made = bytearray(cubin[:start] + content.ljust(end - start + more, b"\0") + cubin[end:])
    headers[number][5] = len(content)
    for k, header in enumerate(headers):
        header[4] = moved(header[4])
        struct.pack_into("<IIQQQQIIQQ", made, moved(table) + 64 * k, *header)
        if header[1] in _RELOCATIONS and header[7] == number:
            for at in range(header[4], header[4] + header[5], header[9]):
                struct.pack_into("<Q", made, at, struct.unpack_from("<Q", made, at)[0] + shift)
    for k in range(of_programs):  # their offsets are in bytes 8 to 15
        at = moved(programs) + size * k + 8
        struct.pack_into("<Q", made, at, moved(struct.unpack_from("<Q", made, at)[0]))
    struct.pack_into("<2Q", made, 32, moved(programs), moved(table))
    return bytes(made)
