"""Zero-copy exchange of torch tensors with CuPy and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rawkern.arguments.dlpack import take_dlpack
from rawkern.arguments.memory import check_bits, check_class, dtype_name, other_layout
from rawkern.arguments.scalars import Where
from rawkern.base import pip
from rawkern.base import torch_private as private
from rawkern.base.api_boundary import api_boundary
from rawkern.errors import MissingDependencyError

# Dtypes that DLPack, NumPy or CuPy do not carry between them: they travel as integers of the same width and are
# viewed as what they are on arrival. The names are the same in torch and in ml_dtypes.
_AS_INTEGER = {
    "bool": "uint8",
    "bfloat16": "int16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
}


@api_boundary
def from_torch(t: torch.Tensor) -> Any:
    """The same memory as a NumPy array (CPU tensors) or a CuPy array (CUDA tensors); nothing is copied.

    The array is detached: gradients do not flow through it, and autograd does not see writes to it. bfloat16 and
    the float8 types arrive as the dtypes of ml_dtypes; CuPy has no float8, so on a GPU those arrive as uint8 bytes.
    Strides are kept. CUDA arrays are ordered after torch's current stream, by DLPack's protocol.

    Parameters
    ----------
    t : torch.Tensor
        Any shape, strided layout, on "cpu" or "cuda".

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        On the tensor's memory.

    Raises
    ------
    TypeError
        For a dtype that NumPy does not have, or for tensors without memory (sparse, fake, meta, subclasses).
    ValueError
        For a tensor with torch's lazy conj or neg bit: ``t.resolve_conj()`` and ``t.resolve_neg()`` make a plain one.
    MissingDependencyError
        For a CUDA tensor without CuPy, or an ml_dtypes dtype without ml_dtypes.
    """
    _check_plain(t)
    t = t.detach()
    name = dtype_name(t.dtype)
    if name in ("complex32", "float4_e2m1fn_x2") or name.startswith("q"):
        raise TypeError(f"from_torch: NumPy has no dtype for {name}; pass t.view(torch.uint8)")
    carrier = _AS_INTEGER.get(name)
    target = _numpy_dtype("uint8" if t.is_cuda and name.startswith("float8") else name)
    if carrier is not None:
        t = t.view(getattr(torch, carrier))
    if t.device.type == "cpu":
        a = t.numpy()
    elif t.device.type == "cuda":
        a = _cupy().from_dlpack(t)
    else:
        raise ValueError(f"from_torch: the tensor is on {t.device}; rawkern runs on cpu and cuda: pass t.cpu()")
    return a.view(target) if carrier is not None else a


@api_boundary
def to_torch(a: Any) -> torch.Tensor:
    """The same memory as a torch tensor; nothing is copied.

    Strides are kept. CUDA memory is exchanged on torch's current stream.

    Parameters
    ----------
    a : numpy.ndarray, cupy.ndarray or object with ``__dlpack__``
        A torch tensor is returned as it is.

    Returns
    -------
    torch.Tensor
        Arrays of ml_dtypes become torch's bfloat16 and float8 types.

    Raises
    ------
    ValueError
        For read-only memory (torch would allow writing to it), for negative strides, and for strides that are not
        multiples of the element size (fields of structured arrays).
    TypeError
        For foreign byte order, structured and object arrays, and dtypes that torch does not have.
    """
    if isinstance(a, torch.Tensor):
        return a
    if not hasattr(a, "__dlpack__"):
        raise TypeError(f"to_torch: got {type(a).__name__}; pass a NumPy or CuPy array, or an object with __dlpack__")
    dtype = getattr(a, "dtype", None)
    if not isinstance(dtype, np.dtype) or not hasattr(a, "strides"):
        tensor, readonly = take_dlpack(a, "to_torch: the array")
        if readonly:
            raise ValueError("to_torch: the array is read-only, and torch would allow writing to it; pass a copy of it")
        return tensor
    _check_array(a, dtype)
    carrier = _AS_INTEGER.get(dtype.name)
    if carrier is not None:
        a = a.view(np.dtype(carrier))
    t = torch.from_numpy(a) if isinstance(a, np.ndarray) else take_dlpack(a, "to_torch: the array")[0]
    return t.view(getattr(torch, dtype.name)) if carrier is not None else t


class _Given(Where):
    """What the errors of `from_torch` are about."""

    def __str__(self) -> str:
        return "from_torch: the tensor"


_GIVEN = _Given("from_torch", 1, "t")


def _check_plain(t: torch.Tensor) -> None:
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"from_torch: got {type(t).__name__}; pass a torch tensor")
    other = other_layout(t)
    if other is not None:
        raise TypeError(f"from_torch: the tensor {other[0]}; pass t.{other[1]}")
    kind = private.wrapper_kind(t)
    if kind not in (None, "zero") or t.is_meta:
        raise TypeError(f"from_torch: a {kind or 'meta'} tensor has no memory; wrap this in rawkern.op")
    check_class(t, _GIVEN)
    if kind == "zero" or (t.numel() and not t.data_ptr()):
        raise TypeError(f"{_GIVEN} has no memory of its own; pass t.clone()")
    check_bits(t, _GIVEN)


def _check_array(a: Any, dtype: np.dtype) -> None:
    """What an array of NumPy's kind must not be, so that torch can hold it."""
    if not dtype.isnative:
        raise TypeError(
            f"to_torch: the array has a foreign byte order ({dtype.str}); pass a.astype(a.dtype.newbyteorder('='))"
        )
    if not isinstance(getattr(torch, dtype.name, None), torch.dtype):
        what = "structured" if dtype.fields else dtype.name
        raise TypeError(f"to_torch: torch has no dtype for {what}; pass a.view(numpy.uint8) for the bytes")
    if isinstance(a, np.ndarray) and not a.flags.writeable:
        raise ValueError("to_torch: the array is read-only, and torch would allow writing to it; pass a.copy()")
    if any(s < 0 for s in a.strides):
        raise ValueError("to_torch: the array has a negative stride, which torch cannot hold; pass a.copy()")
    if dtype.itemsize and any(s % dtype.itemsize for s, n in zip(a.strides, a.shape, strict=True) if n > 1):
        raise ValueError("to_torch: a stride is not a multiple of the element size; pass a.copy()")


def _numpy_dtype(name: str) -> np.dtype:
    if name == "bool":
        return np.dtype(np.bool_)
    if name not in _AS_INTEGER:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise MissingDependencyError(
            f"from_torch: {name} needs ml_dtypes: pip install ml_dtypes (or pass t.view(torch.uint8) for the bytes)"
        ) from None
    return np.dtype(getattr(ml_dtypes, name))


def _cupy() -> Any:
    try:
        import cupy
    except ImportError:
        raise MissingDependencyError(
            f"from_torch: a CUDA tensor becomes a CuPy array, and CuPy is not installed; run: {pip.command()}"
        ) from None
    return cupy
