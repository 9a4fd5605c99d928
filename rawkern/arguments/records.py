"""Structs as Python has them, NumPy's records and ctypes' structures, against the compiler's layout of the same."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rawkern.arguments.scalars import Where
from rawkern.base.ctype import CType, Member, parse
from rawkern.base.nearest import did_you_mean

_FLOATS = ("float", "half", "bfloat16", "float8")


def check_record(ctype: CType, dtype: np.dtype, where: Where) -> None:
    """A NumPy record's members against the compiler's: names, places, sizes, and numbers that are read as others."""
    if not dtype.isnative:
        raise TypeError(f"{where} has a foreign byte order; convert it to the native one")
    fields = {name: entry for name, entry in (dtype.fields or {}).items() if name in (dtype.names or ())}
    members = ctype.layout.members if ctype.layout is not None else ()
    if len(fields) == 1 and not fields.keys() & {m.name for m in members}:
        (of,) = (entry[0] for entry in fields.values())
        if of.subdtype is not None:  # all numbers in one array, as CuPy's guide has it
            fields = {m.name: (of, m.offset) for m in members}
    _check_fields(ctype, {name: int(entry[1]) for name, entry in fields.items()}, where)
    for member in members:
        if member.bits or member.name not in fields:
            continue
        have, want = fields[member.name][0].base, parse(member.type)
        while (want.kind == "array" or (want.kind == "vector" and have.kind != "c")) and want.element is not None:
            want = want.element
        if want.kind not in (*_FLOATS, "int", "bool", "pointer"):
            continue
        # Bits of a half type may come as an integer: NumPy has no bfloat16.
        other = (have.kind in "fc" and want.kind not in _FLOATS) or (have.kind in "iubc" and want.kind == "float")
        if have.kind != "V" and (have.itemsize != want.size or other):
            raise TypeError(
                f"{where} has member '{member.name}' as {have.name}, {ctype.name} has it as {want.spell()}; "
                "give its dtype the kernel's members"
            )


def check_ctypes(ctype: CType, value: ctypes.Structure, where: Where) -> None:
    """The members of a ctypes structure against the compiler's, as `check_record` does it."""
    kind = type(value)
    fields = list(_ctypes_fields(kind, 0))
    offsets = {name: offset for name, _, offset, _ in fields}
    _check_fields(ctype, offsets, where)
    known = {}
    for name, of, _, bits in fields:
        with contextlib.suppress(TypeError):  # NumPy has no typed pointers
            known |= {} if bits else {name: np.dtype(of)}
    record = {"names": list(known), "formats": list(known.values()), "offsets": [offsets[name] for name in known]}
    check_record(ctype, np.dtype(record), where)  # type: ignore[call-overload]


def _ctypes_fields(kind: Any, at: int) -> Iterator[tuple[str, Any, int, bool]]:
    """Name, type, offset and whether it is a bit field of each field; those of anonymous ones count as its own."""
    for base in reversed(kind.__mro__):
        anonymous = base.__dict__.get("_anonymous_", ())
        for name, of, *bits in base.__dict__.get("_fields_", ()):
            offset = at + getattr(kind, name).offset
            if name in anonymous:
                yield from _ctypes_fields(of, offset)
            else:
                yield name, of, offset, bool(bits)


def check_names(ctype: CType, names: Mapping[Any, Any], where: Where) -> None:
    """Reject names that are not members of the struct, if its members are known."""
    if ctype.layout is None or ctype.layout.unknown:
        return
    members = {m.name for m in ctype.layout.members}
    for name in names:
        # A name with a leading underscore is taken for padding.
        if name not in members and not str(name).startswith("_"):
            there = f"its members are{listed(ctype)}" if members else "it has no members"
            raise TypeError(
                f"{where} has a member {name!r} that {ctype.name} does not have; {there}{did_you_mean(name, members)}"
            )


def _check_fields(ctype: CType, fields: dict[str, int], where: Where) -> None:
    """Names and offsets of a NumPy or ctypes struct against the compiler's."""
    if ctype.layout is None:
        return
    # Others may have the integers that hold bit fields, and the bytes of unions, under names of their own.
    offsets = {m.name: m.offset for m in ctype.layout.members if not m.bits and not m.choices}
    if len(offsets) == len(ctype.layout.members):
        check_names(ctype, fields, where)
    for name, offset in fields.items():
        if offsets.get(name, offset) != offset:
            raise TypeError(
                f"{where} has member '{name}' at byte {offset}, {ctype.name} has it at byte {offsets[name]}; "
                "align it as C does (numpy.dtype(..., align=True))"
            )


def scalar_of(ctype: CType, sized: Callable[[CType], CType]) -> CType | None:
    """The type of numbers that fill a type without a gap, with the dtypes that stand for it; None if there is none.

    A struct of floats, or of vectors and arrays of them, is the floats one after another; members may share memory.
    """
    if ctype.kind in (*_FLOATS, "int", "bool"):
        return ctype
    if ctype.element is not None:
        element = sized(ctype.element)
        whole = ctype.size in (0, element.size * ctype.lanes)  # an array of structs has no size of its own
        return scalar_of(element, sized) if whole else None
    layout = sized(ctype).layout
    if layout is None or not layout.members:
        return None
    found, end = None, 0
    for member in sorted(layout.members, key=lambda m: m.offset):
        of = parse(member.type)
        scalar = None if member.bits else scalar_of(of, sized)
        if scalar is None or member.offset > end:
            return None
        found = found or scalar
        found = replace(found, dtypes=tuple(dtype for dtype in found.dtypes if dtype in scalar.dtypes))
        if not found.dtypes:
            return None
        end = max(end, member.offset + size_of(of, sized))
    return found if end == layout.size else None


def size_of(ctype: CType, sized: Callable[[CType], CType]) -> int:
    """The bytes of a type, which an array of structs does not tell by itself."""
    if ctype.kind == "array" and ctype.element is not None:
        return size_of(ctype.element, sized) * ctype.lanes
    return sized(ctype).size


def listed(ctype: CType) -> str:
    """The names of a struct's members in brackets, for an error; "" where there are none."""
    members: tuple[Member, ...] = ctype.layout.members if ctype.layout is not None else ()
    return f" ({', '.join(m.name for m in members)})" if members else ""
