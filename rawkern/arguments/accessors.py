"""Tensors for parameters that are accessors of PyTorch's C++ headers: address, sizes and strides in one struct."""

from __future__ import annotations

import struct
from typing import Any

import torch

from rawkern.arguments.rules import Call
from rawkern.arguments.scalars import Where, shown
from rawkern.base.ctype import ACCESSOR, CType, parse

_INDEX = {
    "int": "i", "unsigned int": "I", "long": "q", "long long": "q", "unsigned long": "Q", "unsigned long long": "Q",
}  # fmt: skip
_INFO_DIMS = 25  # places for sizes and strides in a TensorInfo, of any number of dimensions


def accessor_bytes(call: Call, ctype: CType, value: Any, where: Where) -> bytes:
    """The bytes of an accessor of a tensor, which may have any strides; TypeError or ValueError if it does not fit."""
    match = ACCESSOR.match(ctype.name)
    assert match is not None
    packed = match[2] is not None
    element, index = match[1], match[3]
    wanted = f"a tensor of {match[2]} dimensions" if packed else "a tensor"
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{where} is {shown(value)}, the kernel takes {ctype.name}; pass {wanted}")
    dims = int(match[2]) if packed else _INFO_DIMS
    if value.dim() != dims if packed else value.dim() > dims:
        most = "" if packed else f" (it has places for {dims})"
        raise ValueError(
            f"{where} has {value.dim()} dimensions (shape {tuple(value.shape)}), the kernel takes {ctype.name}{most}; "
            f"pass {wanted}"
        )
    strided, call.strided = call.strided, True  # the kernel goes by the strides that it is given
    try:
        address = call.value(parse(f"{element}*"), value, where)
    finally:
        call.strided = strided
    sizes, strides = tuple(value.shape), value.stride()
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True) if size)
    bits = 8 * struct.calcsize(_INDEX[index]) - (_INDEX[index].islower())
    if max(last, *sizes, *strides, 0) >> bits:
        raise ValueError(
            f"{where} has elements at index {last}, the kernel takes {ctype.name}, which counts in {index}; "
            "take PackedTensorAccessor64 in the kernel, or pass a smaller tensor"
        )
    pad = (0,) * (dims - len(sizes))
    numbers = struct.pack(f"<Q{2 * dims}{_INDEX[index]}", address, *sizes, *pad, *strides, *pad)
    numbers += b"" if packed else struct.pack("<i", len(sizes))
    return numbers.ljust(ctype.size, b"\0")
