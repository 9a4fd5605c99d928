"""Arguments checked one by one: pointers, tables of pointers, references and structs, with the errors for each."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rawkern import tensors
from rawkern.ctype import CType, StructLayout, parse, with_layout
from rawkern.errors import UnsupportedError
from rawkern.memory import Memory, capturing, describe
from rawkern.records import check_ctypes, check_names, check_record, listed
from rawkern.values import Where, by_value, raw_bytes, shown

__all__ = ["Call"]

# The method that converts a tensor to a dtype; other dtypes are spelled .to(torch.NAME).
_METHOD = {
    "float32": "float()",
    "float64": "double()",
    "float16": "half()",
    "bfloat16": "bfloat16()",
    "int16": "short()",
    "int32": "int()",
    "int64": "long()",
    "bool": "bool()",
}
_REAL_OF = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}


class Call:
    """The arguments of one launch on their way to C values; collects what `Bound` reports."""

    __slots__ = ("device", "first", "fresh", "keep", "layout_of", "strided", "tensors", "written")

    def __init__(self, strided: bool, layout_of: Callable[[str], StructLayout] | None) -> None:
        self.strided = strided
        self.layout_of = layout_of
        self.device: int | None = None
        self.first: Where | None = None
        self.written: list[torch.Tensor] = []
        self.keep: list[Any] = []
        self.tensors: list[torch.Tensor] = []
        self.fresh = False

    def value(self, ctype: CType, value: Any, where: Where) -> Any:
        """`value` as `struct.pack` wants it for `ctype.code`."""
        if ctype.kind in ("pointer", "reference"):
            return self._address(ctype, value, where)
        if ctype.kind == "struct":
            return self._struct(ctype, value, where)
        return by_value(ctype, value, where)

    # --- pointers ---------------------------------------------------------------------------------------------------

    def _address(self, ctype: CType, value: Any, where: Where) -> int:
        target = ctype.target
        assert target is not None
        if value is None:
            if ctype.kind == "reference":
                raise TypeError(f"{where} is None, and {ctype.spell()} is a reference; pass a one-element tensor")
            return 0
        if target.kind == "pointer" and isinstance(value, (list, tuple)):
            return self._table(target, value, where)
        memory = describe(value, where, ctype.spell(), not ctype.const)
        self._check(ctype, target, memory, where)
        self._take(memory, not ctype.const)
        return memory.pointer

    def _check(self, ctype: CType, target: CType, memory: Memory, where: Where) -> None:
        need, writes = ctype.spell(), not ctype.const
        does = f"the kernel {'writes' if writes else 'reads'} {need}"
        self._check_dtype(target, memory, where, does, writes)
        self._check_device(memory, where)
        if ctype.kind == "reference" and memory.count != 1:
            raise ValueError(f"{where} has {memory.count} elements, {does}, a reference; pass a one-element tensor")
        if not memory.contiguous and not self.strided:
            if writes:
                mend = "write into a contiguous tensor and copy it back, or make the kernel with strided=True"
            else:
                call = "contiguous()" if memory.tensor is not None else "copy()"
                mend = f"pass {where.expr}.{call}, or make the kernel with strided=True"
            raise ValueError(f"{where} is not contiguous{_strides(memory)}, {does}; {mend}")
        if writes:
            self._check_write(memory, where, does)
        align = target.align
        if align > 1 and memory.pointer % align:
            mend = "give it memory of its own" if writes else f"pass {where.expr}.{_copy_call(memory)}"
            raise ValueError(f"{where} starts at an address that is no multiple of {align} bytes, {does}; {mend}")

    def _check_dtype(self, target: CType, memory: Memory, where: Where, does: str, writes: bool) -> None:
        if target.kind in ("void", "function"):
            return
        if target.kind == "pointer":
            if memory.dtype not in ("int64", "uint64"):
                mend = "pass an int64 tensor of addresses or a list of tensors"
                raise TypeError(f"{where} is {memory.dtype}, {does}; {mend}")
            return
        if target.dtypes:
            if memory.dtype not in target.dtypes:
                raise TypeError(f"{where} is {memory.dtype}, {does}; {_convert(target, memory, where, writes)}")
            return
        target = self._sized(target)
        if memory.fields:
            if target.size and memory.itemsize != target.size:
                raise TypeError(
                    f"{where} has elements of {memory.itemsize} bytes, {does}, whose size is {target.size}; "
                    "give its dtype the kernel's members and padding (numpy.dtype(..., align=True))"
                )
            check_record(target, memory.owner.dtype, where)
        elif memory.dtype != "uint8":
            raise TypeError(
                f"{where} is {memory.dtype}, {does}; pass {where.expr}.view(torch.uint8) or a structured array"
            )
        elif target.size and memory.count % target.size:
            raise ValueError(
                f"{where} has {memory.count} bytes, {does}, whose size is {target.size}; pass a multiple of that"
            )
        if target.align > 1 and memory.pointer % target.align:
            raise ValueError(f"{where} starts at an address that is no multiple of {target.align} bytes, {does}")

    def _check_device(self, memory: Memory, where: Where) -> None:
        if self.device is None:
            self.device, self.first = memory.device, where
        elif memory.device != self.device:
            assert self.first is not None
            there = "cpu" if self.device < 0 else f"cuda:{self.device}"
            call = f"to({there!r})" if memory.tensor is not None else f"a copy of it on {there}"
            mend = f"pass {where.expr}.{call}" if memory.tensor is not None else f"pass {call}"
            raise ValueError(
                f"{where} is on {memory.place}, argument {self.first.position} '{self.first.expr}' is on {there}; "
                f"a launch runs on one device: {mend}"
            )

    def _check_write(self, memory: Memory, where: Where, does: str) -> None:
        if not memory.writable:
            raise ValueError(f"{where} is a read-only {memory.kind}, {does}; pass a writable copy, {where.expr}.copy()")
        if memory.overlaps:
            mend = f"pass {where.expr}.{_copy_call(memory)}"
            raise ValueError(f"{where} has several elements at one address (stride 0), {does}; {mend}")
        t = memory.tensor
        if t is not None and t.requires_grad and torch.is_grad_enabled() and tensors.state.level == 0:
            raise tensors.not_inside_op(f"{where} requires grad, {does} and autograd would not know")

    def _take(self, memory: Memory, writes: bool) -> None:
        if memory.tensor is None:
            return
        self.tensors.append(memory.tensor)
        if memory.owner is not memory.tensor:
            self.keep.append(memory.tensor)
            self.fresh |= memory.fresh
        if writes:
            self.written.append(memory.tensor)

    def _table(self, target: CType, items: list[Any] | tuple[Any, ...], where: Where) -> int:
        """The address of a table of the items' addresses, made where the items are."""
        if not items:
            return 0
        addresses = [self._address(target, item, where.item(i)) for i, item in enumerate(items)]
        if self.device is None or self.device < 0:
            table = torch.tensor(addresses, dtype=torch.int64, device="cpu")
        else:
            if (error := capturing()) is not None:
                raise type(error)(
                    f"{where} is a list of tensors, and {error}, which would not keep the table made of it; "
                    "pass an int64 tensor of addresses made before"
                )
            # From pinned memory the copy needs no synchronisation, and torch keeps the page until it is done.
            host = torch.tensor(addresses, dtype=torch.int64, device="cpu", pin_memory=True)
            table = host.to(torch.device("cuda", self.device), non_blocking=True)
            self.tensors.append(table)
            self.fresh = True
        self.keep.append(table)
        return table.data_ptr()

    # --- structs ----------------------------------------------------------------------------------------------------

    def _sized(self, ctype: CType) -> CType:
        """A struct type with its layout; a type that is only declared in the source stays without."""
        if ctype.kind != "struct" or ctype.layout is not None or ctype.size or self.layout_of is None:
            return ctype
        try:
            return with_layout(ctype, self.layout_of(ctype.name))
        except UnsupportedError:
            return ctype

    def _struct(self, ctype: CType, value: Any, where: Where) -> bytes:
        ctype = self._sized(ctype)
        if isinstance(value, Mapping):
            return self._struct_of_members(ctype, value, where)
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if isinstance(value, np.void):
            if value.dtype.fields:
                check_record(ctype, value.dtype, where)
            data = value.tobytes()
        elif isinstance(value, (ctypes.Structure, ctypes.Union)):
            if isinstance(value, ctypes.Structure):
                check_ctypes(ctype, value, where)
            data = raw_bytes(value)
        else:
            data = raw_bytes(value)
        if data is None:
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

    def _struct_of_members(self, ctype: CType, value: Mapping[Any, Any], where: Where) -> bytes:
        layout = ctype.layout
        if layout is None or layout.unknown:
            why = layout.unknown if layout else "its members are not known"
            raise TypeError(
                f"{where} is a dict, which cannot fill {ctype.name}: {why}; "
                f"pass its {ctype.size} bytes, such as those of a ctypes.Structure"
            )
        check_names(ctype, value, where)
        missing = [m.name for m in layout.members if m.name not in value]
        if missing:
            raise TypeError(f"{where} has no '{missing[0]}'; {ctype.name} has the members{listed(ctype)}")
        block = bytearray(ctype.size)
        for member in layout.members:
            of, item, place = parse(member.type), value[member.name], where.member(member.name)
            if member.bits is not None:
                self._bit_field(block, of, member.bits, item, place)
                continue
            data = self._member(of, item, place)
            block[member.offset : member.offset + len(data)] = data
        return bytes(block)

    def _bit_field(self, block: bytearray, ctype: CType, bits: tuple[int, int], value: Any, where: Where) -> None:
        lowest, width = bits
        low, high = (-(1 << width - 1), (1 << width - 1) - 1) if ctype.low else (0, (1 << width) - 1)
        narrow = replace(ctype, name=f"{ctype.name} : {width}", low=low, high=high)
        number = int(by_value(narrow, value, where)) % (1 << width)
        whole = int.from_bytes(block, "little") | number << lowest
        block[:] = whole.to_bytes(len(block), "little")

    def _member(self, ctype: CType, value: Any, where: Where) -> bytes:
        if ctype.kind == "struct":
            return self._struct(ctype, value, where)
        if ctype.kind == "array":
            return self._array(ctype, value, where)
        return struct.pack("<" + ctype.code, self.value(ctype, value, where))

    def _array(self, ctype: CType, value: Any, where: Where) -> bytes:
        element = ctype.element
        assert element is not None
        if isinstance(value, bytes) and element.size == 1 and len(value) <= ctype.lanes:
            return value.ljust(ctype.lanes, b"\0")
        if isinstance(value, (torch.Tensor, np.ndarray)):
            value = list(value.tolist())
        if not isinstance(value, (list, tuple)) or len(value) != ctype.lanes:
            raise TypeError(f"{where} is {shown(value)}, the kernel takes {ctype.name}; pass a list of {ctype.lanes}")
        return b"".join(self._member(element, item, where.item(i)) for i, item in enumerate(value))


# --- words for the errors -------------------------------------------------------------------------------------------


def _convert(target: CType, memory: Memory, where: Where, writes: bool) -> str:
    """The call that makes the dtype right; two where the kernel may mean numbers or their bytes."""
    complex_, real = memory.dtype.startswith("complex"), _REAL_OF.get(memory.dtype)
    want = next((dtype for dtype in target.dtypes if complex_ and dtype.startswith("complex")), target.dtypes[0])
    module = "torch" if memory.tensor is not None else "numpy"
    if target.name == "unsigned char":
        return f"pass {where.expr}.view({module}.uint8) if bytes are meant"
    if memory.tensor is not None and complex_ and not want.startswith("complex") and not (writes and real != want):
        call = "" if real == want else f".{_METHOD.get(want, f'to(torch.{want})')}"
        return f"pass torch.view_as_real({where.expr}){call}"
    if memory.tensor is not None and want.startswith("float4") and not writes:
        return f"pass {where.expr}.view(torch.{want})"
    numbers = _numbers(want, memory, where, writes)
    return f"pass {view} if bytes are meant, else {numbers}" if (view := _bytes(target, memory, where)) else numbers


def _numbers(want: str, memory: Memory, where: Where, writes: bool) -> str:
    if memory.tensor is not None:
        if writes:
            return f"make it with dtype=torch.{want}"
        return f"pass {where.expr}.{_METHOD.get(want, f'to(torch.{want})')}"
    module = "ml_dtypes" if want.startswith(("bfloat16", "float8")) else "numpy"
    want = "bool_" if want == "bool" else want
    return f"make it with dtype={module}.{want}" if writes else f"pass {where.expr}.astype({module}.{want})"


def _bytes(target: CType, memory: Memory, where: Where) -> str:
    """The view in which the same bytes have the type that the kernel reads, "" where it can only mean numbers.

    Kernels load 16 bytes of halves as a float4, or four int8 as an int.
    """
    element = target.element or target
    integer = memory.dtype.startswith(("int", "uint", "bool"))
    narrower = memory.itemsize < element.size
    if target.kind == "vector":
        fits = element.kind in ("int", "float") and (narrower or integer != (element.kind == "int"))
    else:
        fits = target.kind == "int" and narrower and memory.dtype != "bool"
    if not fits or not memory.contiguous or memory.count * memory.itemsize % element.size:
        return ""
    shape = getattr(memory.owner if memory.tensor is None else memory.tensor, "shape", ())
    whole = len(shape) > 0 and shape[-1] * memory.itemsize % element.size == 0
    module = "torch" if memory.tensor is not None else "numpy"
    return f"{where.expr}.{'' if whole else 'reshape(-1).'}view({module}.{target.dtypes[0]})"


def _copy_call(memory: Memory) -> str:
    return "clone()" if memory.tensor is not None else "copy()"


def _strides(memory: Memory) -> str:
    if memory.tensor is None:
        return ""
    return f" (shape {tuple(memory.tensor.shape)}, strides {memory.tensor.stride()})"
