"""What lies behind a pointer argument: tensors and arrays of every kind as one record, or an error that names them."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from rawkern import _torch_private as private
from rawkern.errors import LaunchError, MissingDependencyError
from rawkern.values import Where, shown, traced

__all__ = ["Memory", "describe", "dtype_name", "take_dlpack"]


@dataclass(slots=True)
class Memory:
    """A block of memory as an argument gave it.

    `device` is the CUDA index, or -1 for the CPU. `dtype` is torch's name for the element type, or NumPy's where torch
    has none. `fresh` says that the memory was made just now, on torch's current stream.
    """

    pointer: int
    dtype: str
    device: int
    count: int
    itemsize: int
    contiguous: bool
    writable: bool
    overlaps: bool
    owner: Any
    tensor: torch.Tensor | None
    kind: str
    fields: bool = False
    fresh: bool = False

    @property
    def place(self) -> str:
        return "cpu" if self.device < 0 else f"cuda:{self.device}"


def describe(value: Any, where: Where, need: str, writes: bool) -> Memory:
    """The memory of any accepted container; `need` is the pointer type in CUDA's spelling, for the errors."""
    if isinstance(value, torch.Tensor):
        return _of_tensor(value, where, need, writes)
    if isinstance(value, np.ndarray):
        return _of_numpy(value, where)
    interface = getattr(type(value), "__cuda_array_interface__", None)
    if interface is not None and (found := getattr(value, "__cuda_array_interface__", None)) is not None:
        return _of_cuda_interface(value, found, where)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        tensor, readonly = take_dlpack(value, str(where))
        memory = _of_tensor(tensor, where, need, writes)
        memory.writable, memory.owner, memory.kind = not readonly, value, type(value).__name__
        return memory
    raise _not_memory(value, where, need)


def _not_memory(value: Any, where: Where, need: str) -> TypeError:
    verb = "takes a reference to device memory" if need.endswith("&") else "takes a pointer"
    if isinstance(value, np.generic):
        mend = "pass a tensor or an array, not one element of it"
    elif isinstance(value, bool | int | float | complex):
        mend = (
            "pass the tensor itself, not its address"
            if isinstance(value, int) and value > 0xFFFF
            else (f"pass a tensor, such as torch.tensor([{value!r}])")
        )
    elif isinstance(value, (list, tuple)):
        mend = f"pass torch.tensor({where.expr})"
    elif isinstance(value, (bytes, bytearray, memoryview)):
        mend = f"pass torch.frombuffer(bytearray({where.expr}), dtype=torch.uint8)"
    else:
        mend = "pass a torch tensor, a CuPy or NumPy array, or an object with __dlpack__"
    return TypeError(f"{where} is {shown(value)}, the kernel {verb} ({need}); {mend}")


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name for a dtype without the "torch.": "float32"."""
    return str(dtype).removeprefix("torch.")


_NO_MEMORY = {
    "functional": "is a functional tensor",
    "vmap": "is a tensor under vmap",
    "grad": "is a tensor under torch.func.grad",
    "functorch": "is a tensor under a torch.func transform",
    "fake": "is a FakeTensor",
}


def _of_tensor(t: torch.Tensor, where: Where, need: str, writes: bool) -> Memory:
    owner, fresh = t, False
    kind = private.wrapper_kind(t)
    if kind in _NO_MEMORY:
        raise traced(where, _NO_MEMORY[kind])
    if kind == "zero":
        if writes:
            raise TypeError(
                f"{where} is a zero tensor without memory, the kernel writes {need}; pass {where.expr}.clone()"
            )
        t, fresh = t.clone(), True
    _check_class(t, where, need)
    if t.is_meta:
        raise traced(where, "is a meta tensor")
    if t.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{where} is on {t.device}; rawkern runs on cpu and cuda: pass {where.expr}.cpu()")
    try:
        pointer, contiguous = t.data_ptr(), t.is_contiguous()
    except (RuntimeError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise TypeError(f"{where} is a {type(t).__name__} without readable memory: {why}") from None
    if pointer == 0 and t.numel():
        raise TypeError(f"{where} is a {type(t).__name__} without memory of its own; pass the plain tensor inside it")
    for bit, lazy, call in (("conj", t.is_conj(), "resolve_conj"), ("neg", t.is_neg(), "resolve_neg")):
        if lazy:
            mend = "write into a tensor without it" if writes else f"pass {where.expr}.{call}()"
            raise ValueError(f"{where} has torch's lazy {bit} bit, which the kernel would not see; {mend}")
    return Memory(
        pointer=pointer,
        dtype=dtype_name(t.dtype),
        device=t.get_device(),
        count=t.numel(),
        itemsize=t.element_size(),
        contiguous=contiguous,
        writable=True,
        overlaps=any(s == 0 and n > 1 for s, n in zip(t.stride(), t.shape, strict=True)) if not contiguous else False,
        owner=owner,
        tensor=t,
        kind="tensor",
        fresh=fresh,
    )


def _check_class(t: torch.Tensor, where: Where, need: str) -> None:
    """Refuse subclasses and layouts whose memory is not the tensor's elements in order."""
    if t.layout is not torch.strided:
        layout = dtype_name(t.layout)  # type: ignore[arg-type]  # torch.sparse_coo prints like a dtype
        raise TypeError(f"{where} has layout {layout}, the kernel takes {need}; pass {where.expr}.to_dense()")
    if type(t) in private.PLAIN or not private.has_dispatch(t):
        return
    name = type(t).__name__
    mend = {"DTensor": "to_local()", "AsyncCollectiveTensor": "wait()"}.get(name)
    rest = f"pass {where.expr}.{mend}" if mend else "pass the plain tensor inside it, or wrap this in rawkern.op"
    raise TypeError(f"{where} is a {name}, a tensor subclass that keeps its memory elsewhere; {rest}")


def _numpy_dtype(dtype: np.dtype) -> str:
    return "structured" if dtype.fields else dtype.name


def _of_numpy(a: np.ndarray, where: Where) -> Memory:
    if not a.dtype.isnative:
        raise TypeError(
            f"{where} has the byte order of another machine ({a.dtype.str}); "
            f"pass {where.expr}.astype({where.expr}.dtype.newbyteorder('='))"
        )
    if a.dtype.hasobject:
        raise TypeError(f"{where} is a NumPy array of Python objects; give it a numeric dtype")
    return Memory(
        pointer=a.__array_interface__["data"][0],
        dtype=_numpy_dtype(a.dtype),
        device=-1,
        count=a.size,
        itemsize=a.itemsize,
        contiguous=a.flags.c_contiguous,
        writable=a.flags.writeable,
        overlaps=any(s == 0 and n > 1 for s, n in zip(a.strides, a.shape, strict=True)),
        owner=a,
        tensor=None,
        kind="NumPy array",
        fields=a.dtype.fields is not None,
    )


def _of_cuda_interface(value: Any, face: dict[str, Any], where: Where) -> Memory:
    """A CuPy array, or anything else with `__cuda_array_interface__`.

    CuPy arrays without a stream of their own are ordered by CuPy's current stream; when that is not torch's, torch's
    current stream is made to wait for it.
    """
    if face.get("mask") is not None:
        raise TypeError(f"{where} is a masked array; pass it without the mask")
    shape, strides = tuple(face["shape"]), face.get("strides")
    pointer, readonly = face["data"]
    dtype = np.dtype(face["descr"] if face["typestr"][1] == "V" and len(face.get("descr", ())) > 1 else face["typestr"])
    own = getattr(value, "dtype", None)
    name = _numpy_dtype(own) if isinstance(own, np.dtype) else _numpy_dtype(dtype)
    dense, step = [], dtype.itemsize
    for n in reversed(shape):
        dense.append(step)
        step *= n
    count = step // dtype.itemsize if dtype.itemsize else 0
    contiguous = (
        strides is None
        or count == 0
        or all(s == d or n == 1 for s, d, n in zip(strides, reversed(dense), shape, strict=True))
    )
    device = _cuda_device(value, pointer, where)
    _order_after(face.get("stream"), device)
    return Memory(
        pointer=pointer,
        dtype=name,
        device=device,
        count=count,
        itemsize=dtype.itemsize,
        contiguous=contiguous,
        writable=not readonly,
        overlaps=any(s == 0 and n > 1 for s, n in zip(strides or (), shape, strict=False)),
        owner=value,
        tensor=None,
        kind=f"{type(value).__module__.split('.')[0]} array",
        fields=dtype.fields is not None,
    )


def _cuda_device(value: Any, pointer: int, where: Where) -> int:
    """The device index of GPU memory."""
    device = getattr(value, "device", None)
    for name in ("id", "index", "ordinal"):  # CuPy, torch-like, JAX-like
        if isinstance(index := getattr(device, name, None), int):
            return index
    if hasattr(value, "__dlpack_device__"):
        return int(value.__dlpack_device__()[1])
    if pointer == 0:
        return torch.cuda.current_device()
    try:
        import cupy
    except ImportError:
        raise MissingDependencyError(
            f"{where} is GPU memory, and finding its device needs CuPy: pip install 'rawkern[cuda13]'"
        ) from None
    return int(cupy.cuda.runtime.pointerGetAttributes(pointer).device)


def _order_after(stream: int | None, device: int) -> None:
    """Make torch's current stream wait for the producer's; 1 is the legacy default stream, which torch calls 0."""
    if stream is None:
        return
    stream = 0 if stream == 1 else stream
    if stream != private.raw_stream(device):
        other = torch.cuda.ExternalStream(stream, device=device)
        torch.cuda.current_stream(device).wait_stream(other)


# --- DLPack ---------------------------------------------------------------------------------------------------------
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
        options["stream"] = private.raw_stream(index) or 1  # DLPack calls CUDA's default stream 1
    try:
        return value.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # a producer older than DLPack 1.0
        return value.__dlpack__(**options)


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
        raise TypeError(f"{where} cannot be exchanged through DLPack: {str(error).splitlines()[0]}") from error


def capturing() -> LaunchError | None:
    """The error for making device memory while a CUDA graph is being captured, or None when none is."""
    if "torch.cuda" in sys.modules and private.stream_capturing():
        return LaunchError("a CUDA graph is being captured")
    return None
