"""Structs as Python has them, NumPy's records and ctypes' structures, against the compiler's layout of the same."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from rawkern.arguments.scalars import Where
from rawkern.base.ctype import CType, Member, parse
from rawkern.base.nearest import did_you_mean

_FLOATS = ("float", "half", "bfloat16", "float8")


def check_record(ctype: CType, dtype: np.dtype, where: Where) -> None:
    """A NumPy record's members against the compiler's: names, places, sizes, and numbers that are read as others."""
    if not dtype.isnative:
        raise TypeError(f"{where} has the byte order of another machine; make it in this one's")
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
    fields = [entry for base in reversed(kind.__mro__) for entry in base.__dict__.get("_fields_", ())]
    offsets = {entry[0]: getattr(kind, entry[0]).offset for entry in fields}
    _check_fields(ctype, offsets, where)
    known = {}
    for name, of, *bits in fields:
        with contextlib.suppress(TypeError):  # NumPy has no typed pointers
            known |= {} if bits else {name: np.dtype(of)}
    record = {"names": list(known), "formats": list(known.values()), "offsets": [offsets[name] for name in known]}
    check_record(ctype, np.dtype(record), where)  # type: ignore[call-overload]


def check_names(ctype: CType, names: Mapping[Any, Any], where: Where) -> None:
    """Refuse names that the struct has no members of, where its members are known."""
    if ctype.layout is None or ctype.layout.unknown:
        return
    members = {m.name for m in ctype.layout.members}
    for name in names:
        # A name with a leading underscore is taken for padding.
        if name not in members and not str(name).startswith("_"):
            there = f"its members are{listed(ctype)}" if members else "it has no members"
            raise TypeError(
                f"{where} has a member {name!r} that {ctype.name} has not; {there}{did_you_mean(name, members)}"
            )


def _check_fields(ctype: CType, fields: dict[str, int], where: Where) -> None:
    """Names and offsets of a NumPy or ctypes struct against the compiler's."""
    if ctype.layout is None:
        return
    # Others may have the integers that hold bit fields, under names of their own.
    offsets = {m.name: m.offset for m in ctype.layout.members if not m.bits}
    if len(offsets) == len(ctype.layout.members):
        check_names(ctype, fields, where)
    for name, offset in fields.items():
        if offsets.get(name, offset) != offset:
            raise TypeError(
                f"{where} has member '{name}' at byte {offset}, {ctype.name} has it at byte {offsets[name]}; "
                "align it as C does (numpy.dtype(..., align=True))"
            )


def listed(ctype: CType) -> str:
    """The names of a struct's members in brackets, for an error; "" where there are none."""
    members: tuple[Member, ...] = ctype.layout.members if ctype.layout is not None else ()
    return f" ({', '.join(m.name for m in members)})" if members else ""
