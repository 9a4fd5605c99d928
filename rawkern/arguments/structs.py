"""Structs by value: dicts of members, NumPy records, ctypes structures and bytes, each compared with the layout."""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rawkern.ctype import CType, Member, parse
from rawkern.values import Where, raw_bytes, shown

if TYPE_CHECKING:
    from rawkern.arguments.careful import Call

__all__ = ["check_record", "struct_bytes"]


def struct_bytes(call: Call, ctype: CType, value: Any, where: Where) -> bytes:
    """A struct's bytes; tensors among its members are arguments of the call."""
    ctype = call.sized(ctype)
    if isinstance(value, Mapping):
        return _of_members(call, ctype, value, where)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.void):
        if value.dtype.fields:
            check_record(ctype, value.dtype, where)
        data = value.tobytes()
    elif isinstance(value, (ctypes.Structure, ctypes.Union)):
        if isinstance(value, ctypes.Structure):
            _check_ctypes(ctype, value, where)
        data = raw_bytes(value)
    else:
        data = raw_bytes(value)
    if data is None:
        raise TypeError(
            f"{where} is {shown(value)}, the kernel takes {ctype.name} by value; pass a dict of its members"
            f"{_listed(ctype)}, a NumPy structured scalar, a ctypes.Structure or bytes"
        )
    if len(data) != ctype.size:
        raise TypeError(
            f"{where} has {len(data)} bytes, the kernel takes {ctype.name} by value, whose size is {ctype.size}; "
            "give it the kernel's members and padding"
        )
    return data


def _of_members(call: Call, ctype: CType, value: Mapping[Any, Any], where: Where) -> bytes:
    members = ctype.layout.members if ctype.layout is not None else ()
    if not members:
        raise TypeError(f"{where} is a dict, and the members of {ctype.name} are not known; pass {ctype.size} bytes")
    _check_names(ctype, value, where)
    missing = [m.name for m in members if m.name not in value]
    if missing:
        raise TypeError(f"{where} has no '{missing[0]}'; {ctype.name} has the members{_listed(ctype)}")
    block = bytearray(ctype.size)
    for member in members:
        data = _member(call, parse(member.type), value[member.name], where.member(member.name))
        block[member.offset : member.offset + len(data)] = data
    return bytes(block)


def _member(call: Call, ctype: CType, value: Any, where: Where) -> bytes:
    if ctype.kind == "struct":
        return struct_bytes(call, ctype, value, where)
    if ctype.kind == "array":
        return _array(call, ctype, value, where)
    return struct.pack("<" + ctype.code, call.value(ctype, value, where))


def _array(call: Call, ctype: CType, value: Any, where: Where) -> bytes:
    element = ctype.element
    assert element is not None
    if isinstance(value, bytes) and element.size == 1 and len(value) <= ctype.lanes:
        return value.ljust(ctype.lanes, b"\0")
    if isinstance(value, (torch.Tensor, np.ndarray)):
        value = list(value.tolist())
    if not isinstance(value, (list, tuple)) or len(value) != ctype.lanes:
        raise TypeError(f"{where} is {shown(value)}, the kernel takes {ctype.name}; pass a list of {ctype.lanes}")
    return b"".join(_member(call, element, item, where.item(i)) for i, item in enumerate(value))


def _listed(ctype: CType) -> str:
    members: tuple[Member, ...] = ctype.layout.members if ctype.layout is not None else ()
    return f" ({', '.join(m.name for m in members)})" if members else ""


_FLOATS = ("float", "half", "bfloat16", "float8")


def check_record(ctype: CType, dtype: np.dtype, where: Where) -> None:
    """A NumPy record's members against the compiler's: names, places, sizes, and numbers that are read as others."""
    if not dtype.isnative:
        raise TypeError(f"{where} has the byte order of another machine; make it in this one's")
    fields = {name: entry for name, entry in (dtype.fields or {}).items() if name in (dtype.names or ())}
    _check_fields(ctype, {name: int(entry[1]) for name, entry in fields.items()}, where)
    for member in ctype.layout.members if ctype.layout is not None else ():
        want = parse(member.type)
        while want.kind == "array" and want.element is not None:
            want = want.element
        if member.name not in fields or want.kind not in (*_FLOATS, "int", "bool", "pointer"):
            continue
        have = fields[member.name][0].base
        # Bits of a half type may come as an integer: NumPy has no bfloat16.
        other = (have.kind == "f" and want.kind not in _FLOATS) or (have.kind in "iub" and want.kind == "float")
        if have.kind != "V" and (have.itemsize != want.size or other):
            raise TypeError(
                f"{where} has member '{member.name}' as {have.name}, {ctype.name} has it as {want.spell()}; "
                "give its dtype the kernel's members"
            )


def _check_ctypes(ctype: CType, value: ctypes.Structure, where: Where) -> None:
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


def _check_names(ctype: CType, names: Mapping[Any, Any], where: Where) -> None:
    members = {m.name for m in ctype.layout.members} if ctype.layout is not None else set()
    for name in names:
        # A name with a leading underscore is taken for padding.
        if members and name not in members and not str(name).startswith("_"):
            raise TypeError(f"{where} has a member {name!r} that {ctype.name} has not; its members are{_listed(ctype)}")


def _check_fields(ctype: CType, fields: dict[str, int], where: Where) -> None:
    """Names and offsets of a NumPy or ctypes struct against the compiler's."""
    if ctype.layout is None or not ctype.layout.members:
        return
    _check_names(ctype, fields, where)
    offsets = {m.name: m.offset for m in ctype.layout.members}
    for name, offset in fields.items():
        if offsets.get(name, offset) != offset:
            raise TypeError(
                f"{where} has member '{name}' at byte {offset}, {ctype.name} has it at byte {offsets[name]}; "
                "align it as C does (numpy.dtype(..., align=True))"
            )
