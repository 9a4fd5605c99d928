"""Names and offsets from the debug information that NVRTC writes into PTX under -G.

It is DWARF 2, as ``.b8`` lists in the text. Only what rawkern asks for is read: the parameters of kernels, the members
of structs. Reference: DWARF Debugging Information Format, version 2.0.0, sections 7.5.2 to 7.5.4.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_SUBPROGRAM, _PARAMETER, _MEMBER, _INHERITANCE = 0x2E, 0x05, 0x0D, 0x1C
_STRUCTURE, _CLASS, _UNION, _ENUMERATION, _TYPEDEF, _CONST, _VOLATILE = 0x13, 0x02, 0x17, 0x04, 0x16, 0x26, 0x35
_NAME, _LOCATION, _TYPE, _LINKAGE_NAME, _NEW_LINKAGE_NAME = 0x03, 0x38, 0x49, 0x2007, 0x6E
_BYTE_SIZE, _BIT_OFFSET, _BIT_SIZE = 0x0B, 0x0C, 0x0D
_PLUS_UCONST = 0x23  # the only operation in a member's location: add a constant to the struct's address


class DebugMember(NamedTuple):
    """One data member of a struct or of one of its bases."""

    name: str
    offset: int  # in bytes
    bits: tuple[int, int] | None  # of a bit field: its lowest bit, counted from the struct's first, and its width
    owner: str  # the class that declares it, without namespaces
    depth: int  # 0 for the struct's own, 1 for those of its bases, and so on
    choices: tuple[tuple[int, int], ...]  # the unions that it is in, and which of their members it is in


@dataclass
class Die:
    """One debugging information entry."""

    tag: int
    attributes: dict[int, int | str | bytes]
    children: list[Die] = field(default_factory=list)

    def text(self, attribute: int) -> str | None:
        value = self.attributes.get(attribute)
        return value if isinstance(value, str) else None


Debug = dict[int, Die]  # all entries of a program, by offset


def read(ptx: str) -> Debug:
    """Read the debug information of PTX; ValueError if it is not as expected."""
    try:
        table = _abbreviations(_section(ptx, ".debug_abbrev"))
        return _dies(_section(ptx, ".debug_info"), table, _section(ptx, ".debug_str"))
    except (IndexError, KeyError, struct.error) as error:
        raise ValueError(f"the debug information cannot be read: {error!r}") from error


def parameter_names(debug: Debug, symbol: str) -> tuple[str | None, ...] | None:
    """Return the names of a kernel's parameters, None for those that have none; None if there is no such kernel."""
    kernel = _kernel(debug, symbol)
    if kernel is None:
        return None
    names = [child.text(_NAME) for child in kernel.children if child.tag == _PARAMETER]
    # The compiler makes up __T12 and the like where the source gives no name.
    return tuple(None if name is None or re.match(r"__T\d+", name) else name for name in names)


def members(debug: Debug, symbol: str) -> tuple[DebugMember, ...]:
    """Return the members of the struct that a kernel takes first, those of its bases among them.

    ValueError if it has members that cannot be filled one by one; the message says which.
    """
    kernel = _kernel(debug, symbol)
    parameter = next((child for child in kernel.children if child.tag == _PARAMETER), None) if kernel else None
    record = _record(debug, parameter)
    if record is None:
        raise ValueError("its members are not known")
    return tuple(_members(debug, record, 0, 0, (), itertools.count()))


def _kernel(debug: Debug, symbol: str) -> Die | None:
    for die in debug.values():
        if die.tag == _SUBPROGRAM and symbol in (
            die.text(_LINKAGE_NAME) or die.text(_NEW_LINKAGE_NAME) or die.text(_NAME),
        ):
            return die
    return None


def _type(debug: Debug, die: Die | None) -> Die | None:
    """Follow typedefs and qualifiers to the type of a parameter or member."""
    while die is not None and die.tag in (_PARAMETER, _MEMBER, _INHERITANCE, _TYPEDEF, _CONST, _VOLATILE):
        target = die.attributes.get(_TYPE)
        die = debug.get(target) if isinstance(target, int) else None
    return die


def _record(debug: Debug, die: Die | None) -> Die | None:
    found = _type(debug, die)
    return found if found is not None and found.tag in (_STRUCTURE, _CLASS, _UNION) else None


def _members(
    debug: Debug, record: Die, base: int, depth: int, choices: tuple[tuple[int, int], ...], unions: Iterator[int]
) -> Iterator[DebugMember]:
    union = next(unions) if record.tag == _UNION else None
    for k, child in enumerate(record.children):
        if child.tag not in (_MEMBER, _INHERITANCE) or _LOCATION not in child.attributes:
            continue  # a static member has no place in the struct
        offset, name = base + _offset(child.attributes[_LOCATION]), child.text(_NAME)
        if name is None and _BIT_SIZE in child.attributes:
            continue  # padding between bit fields
        if name == "__vptr":
            raise ValueError("it has virtual functions or bases")
        within = choices if union is None else (*choices, (union, k))
        if name is None or name.startswith("__b_") or child.tag == _INHERITANCE:  # an anonymous one, or a base
            inner = _record(debug, child)
            if inner is None:
                raise ValueError("it has members without a name that are not known")
            inherited = name is not None or child.tag == _INHERITANCE  # compilers before 13.5 name a base's place
            yield from _members(debug, inner, offset, depth + inherited, within, unions)
        else:
            bits, of = _bits(child, offset), _type(debug, child)
            if bits and of is not None and of.tag == _ENUMERATION:  # whose sign is the compiler's choice
                raise ValueError(f"its member {name!r} is a bit field of an enumeration")
            yield DebugMember(name, offset, bits, record.text(_NAME) or "", depth, within)


def _bits(member: Die, offset: int) -> tuple[int, int] | None:
    """Where a bit field lies; the format counts from the highest bit of the integer that holds it."""
    held, above, width = (member.attributes.get(name) for name in (_BYTE_SIZE, _BIT_OFFSET, _BIT_SIZE))
    if not isinstance(held, int) or not isinstance(above, int) or not isinstance(width, int):
        return None
    return 8 * (offset + held) - above - width, width


def _offset(location: int | str | bytes) -> int:
    if isinstance(location, int):
        return location
    if isinstance(location, bytes) and location[:1] == bytes([_PLUS_UCONST]):
        return _uleb(location, 1)[0]
    raise ValueError("a member's location is not a constant")


# --- Decoding --------------------------------------------------------------------------------------------

_DIRECTIVE = re.compile(r"^\s*\.b(8|16|32|64)\s+(.*)$", re.M)


def _section(ptx: str, name: str) -> bytes:
    match = re.search(rf"^\s*\.section\s+{re.escape(name)}\s*\{{?(.*?)^\s*\}}", ptx, re.M | re.S)
    if match is None:
        return b""
    data = bytearray()
    for width, values in _DIRECTIVE.findall(match[1]):
        for value in values.split(","):
            text = value.strip()
            # A label says where code or another section is, which is not asked for here.
            number = int(text, 0) if re.match(r"-?\d", text) else 0
            data += (number % (1 << int(width))).to_bytes(int(width) // 8, "little")
    return bytes(data)


def _abbreviations(data: bytes) -> dict[int, tuple[int, bool, list[tuple[int, int]]]]:
    """Read the table: code -> (tag, has children, attributes and their forms)."""
    table = {}
    position = 0
    while position < len(data):
        code, position = _uleb(data, position)
        if code == 0:
            break
        tag, position = _uleb(data, position)
        children = bool(data[position])
        position += 1
        forms = []
        while True:
            attribute, position = _uleb(data, position)
            form, position = _uleb(data, position)
            if not attribute and not form:
                break
            forms.append((attribute, form))
        table[code] = (tag, children, forms)
    return table


def _dies(data: bytes, table: dict[int, tuple[int, bool, list[tuple[int, int]]]], strings: bytes) -> Debug:
    dies: Debug = {}
    unit = 0
    while unit + 11 <= len(data):
        (length,) = struct.unpack_from("<I", data, unit)
        end = unit + 4 + length
        position = unit + 11  # length, version, offset of the abbreviations, address size
        parents: list[Die] = []
        while position < min(end, len(data)):
            start = position
            code, position = _uleb(data, position)
            if code == 0:
                if parents:
                    parents.pop()
                continue
            tag, children, forms = table[code]
            die = Die(tag, {})
            for attribute, form in forms:
                die.attributes[attribute], position = _value(data, position, form, unit, strings)
            dies[start] = die
            if parents:
                parents[-1].children.append(die)
            if children:
                parents.append(die)
        unit = end
    return dies


# addr, data1 to data8, flag, ref_addr, sec_offset
_FIXED = {0x01: 8, 0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x0C: 1, 0x10: 8, 0x17: 4}
_REFERENCE = {0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8}
_BLOCK = {0x0A: 1, 0x03: 2, 0x04: 4}


def _value(data: bytes, position: int, form: int, unit: int, strings: bytes) -> tuple[int | str | bytes, int]:
    if form == 0x08:  # string
        end = data.index(0, position)
        return data[position:end].decode(errors="replace"), end + 1
    if form == 0x0E:  # strp
        (at,) = struct.unpack_from("<I", data, position)
        return strings[at : strings.index(0, at)].decode(errors="replace"), position + 4
    if size := _FIXED.get(form):
        return int.from_bytes(data[position : position + size], "little"), position + size
    if size := _REFERENCE.get(form):  # counted from the unit's first byte
        return unit + int.from_bytes(data[position : position + size], "little"), position + size
    if size := _BLOCK.get(form):
        length = int.from_bytes(data[position : position + size], "little")
        position += size
        return data[position : position + length], position + length
    if form == 0x09:  # block
        length, position = _uleb(data, position)
        return data[position : position + length], position + length
    if form in (0x0D, 0x0F):  # sdata, whose sign does not matter here, and udata
        return _uleb(data, position)
    if form == 0x19:  # flag_present
        return 1, position
    raise KeyError(f"form {form:#x}")


def _uleb(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
