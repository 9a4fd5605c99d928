"""Records that Python and native code share: C structs by their fields, and IR text that names the fields."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rawkern.base.forking import cached_property

_SIZES = {"i32": 4, "i64": 8, "ptr": 8, "double": 8}
_CODES = {"i32": "i", "i64": "q", "ptr": "Q", "double": "d"}
_known: dict[str, Record] = {}  # for arrays of records


@dataclass(frozen=True)
class Record:
    """A C struct by its fields; a field's type may be an array ``[n x T]`` of a scalar or another record.

    Padding is written out as a field: what LLVM aligns an i64 to depends on the module's data layout.
    """

    name: str
    fields: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        _known[self.name] = self

    def index(self, field: str) -> int:
        return [f for f, _ in self.fields].index(field)

    @property
    def llvm(self) -> str:
        return f"%{self.name} = type {{ {', '.join(t for _, t in self.fields)} }}"

    def layout(self) -> tuple[dict[str, int], int]:
        """Offsets by field, and the size."""
        return self._layout

    @cached_property
    def _layout(self) -> tuple[dict[str, int], int]:
        offsets, at = {}, 0
        for field, ty in self.fields:
            size, align = _extent(ty)
            if at % align:
                raise ValueError(f"{self.name}.{field} needs a field for padding before it")
            offsets[field] = at
            at += size
        if at % 8:
            raise ValueError(f"{self.name} needs a field for padding at its end")
        return offsets, at

    def offset(self, field: str) -> int:
        return self._layout[0][field]

    @cached_property
    def size(self) -> int:
        return self._layout[1]

    @cached_property
    def scalars(self) -> dict[str, tuple[str, int]]:
        """`struct` format and offset of each field that is a scalar."""
        return {field: (f"={_CODES[ty]}", self.offset(field)) for field, ty in self.fields if ty in _CODES}

    def format(self, first: str, last: str) -> str:
        """`struct` format of the scalar fields from `first` to `last`."""
        return "=" + "".join(_CODES[ty] for _, ty in self.fields[self.index(first) : self.index(last) + 1])


def start_of(memory: bytearray | array[int]) -> int:
    """Where bytes or words lie, for as long as they are there and none is added.

    A buffer of ctypes has a class of its own for each size, which takes longer to make than all that is done with it.
    """
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def exported(library: ctypes.CDLL, name: str) -> int:
    """The address of what a library exports by a name; ValueError where it does not.

    Nothing that could be called is made of it.
    """
    return ctypes.addressof(ctypes.c_char.in_dll(library, name))


class Filled:
    """Memory of one record, with its fields by name."""

    def __init__(self, record: Record, **fields: float) -> None:
        self._record = record
        self._memory = bytearray(record.size)
        self.address = start_of(self._memory)
        self.set(**fields)

    def set(self, **fields: float) -> None:
        """Store values."""
        for name, value in fields.items():
            code, offset = self._record.scalars[name]
            struct.pack_into(code, self._memory, offset, value)

    def __getitem__(self, name: str) -> Any:
        code, offset = self._record.scalars[name]
        return struct.unpack_from(code, self._memory, offset)[0]


def _extent(ty: str) -> tuple[int, int]:
    if ty in _SIZES:
        return _SIZES[ty], _SIZES[ty]
    if ty.startswith("%"):
        return _known[ty[1:]].size, 8
    count, _, element = ty.removeprefix("[").removesuffix("]").partition(" x ")
    size, align = _extent(element)
    return size * int(count), align


def filled(text: str, records: Iterable[Record] = (), values: Mapping[str, object] = MappingProxyType({})) -> str:
    """Fill fields of records (``&Record.field %pointer``, ``{Record.field}``) and values (``{name}``) into IR text.

    A pointer ends its line. A name that is not known stays, and LLVM does not take it.
    """
    # Without patterns: compiling one takes longer than this.
    known = {r.name: {field: k for k, (field, _) in enumerate(r.fields)} for r in records}
    text, *parts = text.split("&")
    for part in parts:
        line, end, rest = part.partition("\n")
        name, _, pointer = line.partition(" ")
        record, _, field = name.partition(".")
        if record in known and field in known[record]:
            line = f"getelementptr %{record}, ptr {pointer}, i32 0, i32 {known[record][field]}"
        else:
            line = f"&{line}"
        text += f"{line}{end}{rest}"
    text, *parts = text.split("{")
    found = [text]
    for part in parts:
        name, _, rest = part.partition("}")
        record, _, field = name.partition(".")
        if name in values:
            found.append(f"{values[name]}{rest}")
        elif record in known and field in known[record]:
            found.append(f"{known[record][field]}{rest}")
        else:
            found.append(f"{{{part}")
    return "".join(found)


#: How every engine's record of a kernel on a device begins: the device as DLPack counts them, kind and index; the next
#: device's record; the function that launches, ``i32 (target, grid x, y, z, parameters, pointers to each)``; threads of
#: a block, and which multiples of blocks there may be, for grids that cover a number of elements.
TARGET = Record("Target", (("device", "i64"), ("next", "ptr"), ("go", "ptr"), ("block", "i64"), ("multiple", "i64")))
#: What that function returns: the launch is done; nothing has happened; workers are missing; the rest is Python's.
DONE, DECLINED, ROOM, UNFINISHED = range(4)
CPU, CUDA = 1, 2  # DLPack's kinds of devices


def extents_at(size: int, offset: int = 0) -> int:
    """Where after `size` bytes of parameters the extents are of an address at a multiple of 8 in them.

    Each word of 64 bits has two: how many bytes from that address on may be read, and how many be written. Those of
    numbers, and of addresses of which nothing else is known, are 0."""
    return -(-size // 8) * 8 + 2 * offset


def listed_at(size: int) -> int:
    """Where the address of a `LISTED`, or 0, lies after `size` bytes of parameters and the extents of all words."""
    return 3 * extents_at(size)


def block_size(size: int) -> int:
    """`size` bytes of parameters with what follows them."""
    return listed_at(size) + 8


#: Memory that a launch's lists of tensors lead to: `count` ranges in order, each a start and a length, that may be
#: read, and as many that may be written. Before each of both tables there is an empty range.
LISTED = Record("Listed", (("count", "i64"), ("readable", "ptr"), ("writable", "ptr")))
