"""Structs by value: dicts of members, NumPy records, ctypes structures and bytes, each compared with the layout."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rawkern.arguments.accessors import accessor_bytes
from rawkern.arguments.records import check_ctypes, check_names, check_record, listed, size_of
from rawkern.arguments.rules import Call
from rawkern.arguments.scalars import Where, by_value, raw_bytes, shown, single
from rawkern.arguments.tensor_map import TensorMap
from rawkern.base.accessor import accessor_of
from rawkern.base.ctype import CType, Member, StructLayout, parse, with_layout


class Members(Mapping[str, Any]):
    """A struct whose members are the attributes of an object, as native code reads them."""


def struct_bytes(call: Call, ctype: CType, value: Any, where: Where) -> bytes:
    """A struct's bytes, or those of a vector given as a struct; tensors among its members are arguments of the call."""
    ctype = _as_struct(ctype) if ctype.kind == "vector" else call.sized(ctype)
    if isinstance(value, TensorMap):
        return call.mapped(ctype, value, where)
    if isinstance(value, Mapping):
        return _of_members(call, ctype, value, where)
    if accessor_of(ctype) is not None and not isinstance(value, (bytes, np.void, ctypes.Structure)):
        return accessor_bytes(call, ctype, value, where)
    value = single(value)
    if isinstance(value, np.void):
        if value.dtype.fields:
            check_record(ctype, value.dtype, where)
        data = value.tobytes()
    else:
        if isinstance(value, ctypes.Structure):
            check_ctypes(ctype, value, where)
        data = raw_bytes(value)
    if data is None:
        if isinstance(value, np.ndarray) and value.dtype.fields:
            raise TypeError(
                f"{where} has {value.size} records, the kernel takes one {ctype.name} by value; pass {where.expr}[0]"
            )
        raise TypeError(
            f"{where} is {shown(value)}, the kernel takes {ctype.name} by value; pass a dict of its members"
            f"{listed(ctype)}, a NumPy structured scalar, a ctypes.Structure or bytes"
        )
    if len(data) != ctype.size:
        raise TypeError(
            f"{where} has {len(data)} bytes, the kernel takes {ctype.name} by value, whose size is {ctype.size}; "
            "give it the kernel's members and padding"
        )
    return data


def is_struct(value: Any) -> bool:
    """Whether a value has members, so that a vector is filled as a struct of x, y, z and w."""
    return isinstance(value, (Mapping, ctypes.Structure)) or (
        isinstance(value, (np.void, np.ndarray)) and value.dtype.fields is not None
    )


def _as_struct(vector: CType) -> CType:
    element = vector.element
    assert element is not None
    members = [Member(name, element.name, k * element.size) for k, name in enumerate("xyzw"[: vector.lanes])]
    return with_layout(vector, StructLayout(vector.size, vector.align, tuple(members)))


def _of_members(call: Call, ctype: CType, value: Mapping[Any, Any], where: Where) -> bytes:
    layout = ctype.layout
    if layout is None or layout.unknown:
        why = layout.unknown if layout else "its members are not known"
        raise TypeError(
            f"{where} is a dict, which cannot fill {ctype.name}: {why}; "
            f"pass its {ctype.size} bytes, such as those of a ctypes.Structure"
        )
    check_names(ctype, value, where)
    members = _chosen(layout.members, value, where)
    missing = [m.name for m in members if m.name not in value]
    if missing:
        raise TypeError(f"{where} has no '{missing[0]}'; {ctype.name} has the members{listed(ctype)}")
    block = bytearray(ctype.size)
    for member in members:
        of, item, place = parse(member.type), value[member.name], where.member(member.name, member.offset)
        if member.bits is not None:
            _bit_field(block, of, member.bits, item, place)
            continue
        data = _member(call, of, item, place)
        block[member.offset : member.offset + len(data)] = data
    return bytes(block)


def _chosen(members: Sequence[Member], value: Mapping[Any, Any], where: Where) -> list[Member]:
    """The members without those of unions that the dict leaves aside, of which each has one of its members."""
    taken: dict[int, tuple[int, str]] = {}  # the member of each union, and what it was told by
    for member in members:
        for union, k in member.choices if member.name in value else ():
            other = taken.setdefault(union, (k, member.name))
            if other[0] != k:
                raise TypeError(f"{where} has '{other[1]}' and '{member.name}', which share memory; pass one of them")
    chosen = []
    for member in members:
        ways = [(union, taken.get(union, (k,))[0] == k) for union, k in member.choices]
        if not all(fits for _, fits in ways):
            continue
        if (left := next((union for union, _ in ways if union not in taken), None)) is not None:
            names = [f"'{m.name}'" for m in members if left in dict(m.choices)]
            raise TypeError(f"{where} has none of {', '.join(names)}, which share memory; pass one of them")
        chosen.append(member)
    return chosen


def _bit_field(block: bytearray, ctype: CType, bits: tuple[int, int], value: Any, where: Where) -> None:
    lowest, width = bits
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if ctype.low else (0, (1 << width) - 1)
    narrow = replace(ctype, name=f"{ctype.name} : {width}", low=low, high=high)
    number = int(by_value(narrow, value, where)) % (1 << width)
    whole = int.from_bytes(block, "little") | number << lowest
    block[:] = whole.to_bytes(len(block), "little")


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
    size = size_of(element, call.sized)
    return b"".join(_member(call, element, item, where.item(i, size)) for i, item in enumerate(value))
