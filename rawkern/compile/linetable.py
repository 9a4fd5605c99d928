"""Where profilers and debuggers find a source that came as a string: a file, which the code's line table names.

Compiled code names such a source `STRING_NAME`, whatever it holds and wherever it was compiled; the name of its file is
put in when code is loaded on a GPU, so that what is compiled and kept depends on no directory. Reference: DWARF
Debugging Information Format, version 2.0.0, section 6.2.4.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Collection

from rawkern.base import cache, environment
from rawkern.compile import elf
from rawkern.compile.program import Program
from rawkern.compile.source import STRING_NAME

_FIXED = 10  # bytes of a unit's header up to and with the length of the rest of it
_OPCODES = 14  # where the number of opcodes stands, after which come the operands of each but the first


def findable(program: Program) -> bytes:
    """Machine code of a program, whose source is a file of the cache directory if it came as a string.

    The same bytes with ``RAWKERN_SOURCES=off``, and where the cache takes no files.
    """
    if program.code[:4] != elf.MAGIC or environment.choice("RAWKERN_SOURCES", ("off",)):
        return program.code
    source = program.source
    if source.path is not None:
        return program.code
    text = source.text.encode()
    path = cache.put_file(f"source-{hashlib.sha256(text).hexdigest()[:32]}", text)
    return program.code if path is None else renamed(program.code, os.fsencode(path), dict(source.headers))


def renamed(cubin: bytes, path: bytes, others: Collection[str] = ()) -> bytes:
    """Machine code whose line table names a file in the place of `STRING_NAME`; `others` are files of their own."""
    for number, section in enumerate(elf.sections(cubin)):
        if section.name == ".debug_line":
            table = cubin[section.offset : section.offset + section.size]
            try:
                made = _renamed(table, path, others)
            except (IndexError, ValueError, struct.error):  # none that is known
                return cubin
            return elf.replaced(cubin, number, made, len(made) - len(table))
    return cubin


def _renamed(table: bytes, path: bytes, others: Collection[str]) -> bytes:
    if len(table) < _OPCODES:
        return table
    length, version, header = struct.unpack_from("<IHI", table)
    if version not in (2, 3) or length + 4 != len(table):  # none that is known
        return table
    at, folders = _OPCODES + table[_OPCODES], [b""]
    while table[at]:
        folders.append(_text(table, at))
        at += len(folders[-1]) + 1
    at += 1
    made = bytearray(table[:at])
    while table[at]:
        name = _text(table, at)
        rest = at + len(name) + 1
        folder, end = _number(table, rest)
        for _ in range(2):  # time and size
            _, end = _number(table, end)
        whole = os.path.normpath(os.fsdecode(os.path.join(folders[folder], name)))
        if name == STRING_NAME.encode() and whole not in others:
            made += path + b"\0\0" + table[_number(table, rest)[1] : end]  # in no folder, as it is absolute
        else:
            made += table[at:end]
        at = end
    made += table[at:]
    struct.pack_into("<I", made, 0, length + len(made) - len(table))
    struct.pack_into("<I", made, _FIXED - 4, header + len(made) - len(table))
    return bytes(made)


def _text(table: bytes, at: int) -> bytes:
    return table[at : table.index(b"\0", at)]


def _number(table: bytes, at: int) -> tuple[int, int]:
    """A number in LEB128, and where it ends."""
    value = shift = 0
    while True:
        byte = table[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
