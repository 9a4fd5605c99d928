"""Tensors for parameters that are accessors of PyTorch's C++ headers: address, sizes and strides in one struct."""

from __future__ import annotations

import struct
from typing import Any

import torch

from rawkern.arguments.rules import Call
from rawkern.arguments.scalars import Where, shown
from rawkern.base.accessor import Accessor, accessor_of
from rawkern.base.ctype import CType
from rawkern.base.emit import Emit


def accessor_bytes(call: Call, ctype: CType, value: Any, where: Where) -> bytes:
    """The bytes of an accessor of a tensor, which may have any strides; TypeError or ValueError if it does not fit."""
    accessor = accessor_of(ctype)
    assert accessor is not None
    dims, loose = accessor.dims, accessor.loose
    wanted = "a tensor" if loose else f"a tensor of {dims} dimensions"
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{where} is {shown(value)}, the kernel takes {ctype.name}; pass {wanted}")
    if value.dim() > dims if loose else value.dim() != dims:
        most = f" (it has places for {dims})" if loose else ""
        raise ValueError(
            f"{where} has {value.dim()} dimensions (shape {tuple(value.shape)}), the kernel takes {ctype.name}{most}; "
            f"pass {wanted}"
        )
    strided, call.strided = call.strided, True  # the kernel goes by the strides that it is given
    try:
        address = call.value(accessor.pointer, value, where)
    finally:
        call.strided = strided
    sizes, strides = tuple(value.shape), value.stride()
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True) if size)
    if max(last, *sizes, *strides, 0) > accessor.most:
        raise ValueError(
            f"{where} has elements at index {last}, the kernel takes {ctype.name}, which counts in {accessor.index}; "
            "take PackedTensorAccessor64 in the kernel, or pass a smaller tensor"
        )
    pad = (0,) * (dims - len(sizes))
    numbers = struct.pack(f"<Q{2 * dims}{accessor.code}", address, *sizes, *pad, *strides, *pad)
    numbers += struct.pack("<i", len(sizes)) if loose else b""
    return numbers.ljust(ctype.size, b"\0")


def native_accessor(e: Emit, ctype: CType, accessor: Accessor, tensor: str, at: str) -> None:
    """The same after the address, in native code: of the DLTensor of a tensor that has passed the rules."""
    e.ask(
        "rk_put_sizes", tensor, at, room=ctype.size, dims=accessor.dims, loose=int(accessor.loose),
        size=struct.calcsize(accessor.code), most=accessor.most if accessor.most < 1 << 63 else -1,
    )  # fmt: skip
