"""DLPack from any producer to a torch tensor, with what the capsule says that torch would not."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from rawkern.base import torch_private as private
from rawkern.errors import LaunchError

#: DLPack's numbers of dtypes: kind, bits, and elements in one.
DTYPES = {
    **{f"int{n}": (0, n, 1) for n in (8, 16, 32, 64)},
    **{f"uint{n}": (1, n, 1) for n in (8, 16, 32, 64)},
    **{f"float{n}": (2, n, 1) for n in (16, 32, 64)},
    **{f"complex{n}": (5, n, 1) for n in (32, 64, 128)},
    "bfloat16": (4, 16, 1),
    "bool": (6, 8, 1),
    "float8_e4m3fn": (10, 8, 1),
    "float8_e4m3fnuz": (11, 8, 1),
    "float8_e5m2": (12, 8, 1),
    "float8_e5m2fnuz": (13, 8, 1),
    "float8_e8m0fnu": (14, 8, 1),
    "float4_e2m1fn_x2": (17, 4, 2),
}


@cache
def dtype_word(dtype: str | torch.dtype) -> int:
    """A dtype's numbers as they lie in a DLTensor, a word of 32 bits."""
    kind, bits, lanes = DTYPES[str(dtype).removeprefix("torch.")]
    return kind | bits << 8 | lanes << 16


# torch.from_dlpack ignores the read-only flag, and a negative stride ends the process in torch 2.13 (an exception
# thrown through a noexcept function), so the capsule is read before torch sees it.


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_READ_ONLY = 1

_capsule_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_valid.argtypes, _capsule_valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


def _capsule(value: Any, where: str) -> Any:
    """A DLPack capsule of `value`, exchanged on torch's current stream."""
    kind, index = (int(part) for part in value.__dlpack_device__())
    if kind not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
        raise ValueError(f"{where} is on DLPack device type {kind}; rawkern runs on cpu and cuda")
    options: dict[str, Any] = {}
    if kind in (_CUDA, _CUDA_MANAGED):
        check_gpu(where)
        options["stream"] = private.raw_stream(index) or 1  # DLPack calls CUDA's default stream 1
    try:
        return value.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # a producer older than DLPack 1.0
        return value.__dlpack__(**options)


def check_gpu(where: str) -> None:
    """Reject GPU memory if torch, and so rawkern, has no GPU."""
    if not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch sees no GPU"
        raise LaunchError(f"{where} is GPU memory, and {why}; `rawkern doctor` shows details; pass an array on the CPU")


def take_dlpack(value: Any, where: str) -> tuple[torch.Tensor, bool]:
    """A tensor on the memory of any `__dlpack__` object, and whether its producer calls that memory read-only."""
    try:
        capsule = _capsule(value, where)
    except BufferError as error:
        raise TypeError(f"{where} cannot be exchanged through DLPack: {error}") from error
    readonly = False
    if _capsule_valid(capsule, b"dltensor_versioned"):
        managed = _DLManagedTensorVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        readonly, tensor = bool(managed.flags & _READ_ONLY), managed.tensor
    elif _capsule_valid(capsule, b"dltensor"):
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    else:
        raise TypeError(f"{where}: {type(value).__name__}.__dlpack__() returned no DLPack capsule")
    if tensor.strides and any(tensor.strides[i] < 0 for i in range(tensor.ndim)):
        raise ValueError(f"{where} has a negative stride, which torch cannot hold; pass a copy of it")
    try:
        return from_dlpack(capsule), readonly
    except (RuntimeError, BufferError) as error:
        raise TypeError(f"{where} cannot be exchanged through DLPack: {str(error).splitlines()[0]}") from None
