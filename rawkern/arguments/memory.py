"""The memory of a pointer argument: tensors and arrays of every kind as one record, or an error that names them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rawkern.arguments.addresses import Address, storage
from rawkern.arguments.dlpack import check_gpu, take_dlpack
from rawkern.arguments.scalars import WRAPPERS, Where, shown, traced
from rawkern.base import pip
from rawkern.base import torch_private as private
from rawkern.base.allocator import used_on
from rawkern.base.overrides import is_stand_in
from rawkern.base.storage import tensor_over
from rawkern.errors import LaunchError, MissingDependencyError

ANY = "any"  # in place of a dtype


@dataclass(slots=True)
class Memory:
    """A block of memory as an argument gave it.

    `device` is the CUDA index, or -1 for the CPU. `dtype` is torch's name for the element type, or NumPy's where torch
    has none, or ANY. `fresh` says that the memory was made just now, on torch's current stream.
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

    def reach(self) -> tuple[int, int]:
        """From which to which byte around `pointer` the elements lie."""
        t = self.tensor
        if self.contiguous or self.count == 0:
            return 0, self.count * self.itemsize
        if t is not None:
            pairs, unit = zip(t.shape, t.stride(), strict=True), self.itemsize
        else:
            pairs, unit = zip(self.owner.shape, self.owner.strides, strict=True), 1
        steps = [(n - 1) * s * unit for n, s in pairs]
        return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + self.itemsize


@dataclass(frozen=True)
class Piece:
    """Memory that a launch may touch: an argument's or a variable's.

    `parameter` is the offset of its address among the kernel's parameters, where it stands there; `itemsize` the bytes
    of an element. Elements of a strided tensor lie in `size` bytes from the first to the last. `read_only`: the kernel
    may not write it here, and if it is `locked`, its owner forbids writes. `followed`: races are looked for. `mapped`:
    a tensor map leads to it. `given_as`: the parameter that it belongs to, if it is an argument; `part`: as an item of
    a list or a member of a struct.
    """

    name: str
    address: int
    size: int
    itemsize: int
    read_only: bool
    parameter: int | None = None
    followed: bool = True
    locked: bool = False
    mapped: bool = False
    given_as: str = ""
    part: bool = False

    @property
    def end(self) -> int:
        return self.address + self.size


def describe(value: Any, where: Where, need: str, writes: bool) -> Memory:
    """The memory of any accepted container; `need` is the pointer type in CUDA's spelling, for the errors."""
    if isinstance(value, torch.Tensor):
        return _of_tensor(value, where, need, writes)
    if isinstance(value, np.ndarray):
        return _of_numpy(value, where)
    if isinstance(value, Address):
        return _of_address(value)
    cupy = sys.modules.get("cupy")  # whoever passes a CuPy array has imported it
    if cupy is not None and isinstance(value, getattr(cupy, "ndarray", ())):
        return _of_cupy(value, cupy)
    if cupy is not None and isinstance(value, cupy.cuda.MemoryPointer):
        _order_after(cupy.cuda.get_current_stream(value.device_id).ptr, value.device_id)
        return _unknown(value.ptr, value.device_id, value)
    if is_stand_in(value):
        raise traced(where, f"is a {type(value).__name__}, which stands for a tensor")
    interface = getattr(type(value), "__cuda_array_interface__", None)
    if interface is not None and (found := getattr(value, "__cuda_array_interface__", None)) is not None:
        return _of_cuda_interface(value, found, where)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__") and not isinstance(value, type):
        tensor, readonly = take_dlpack(value, str(where))
        memory = _of_tensor(tensor, where, need, writes)
        memory.writable, memory.owner, memory.kind = not readonly, value, type(value).__name__
        return memory
    raise _not_memory(value, where, need)


def _of_address(address: Address) -> Memory:
    memory = _unknown(address.value, address.device, address)
    if address.tensor is not None:  # its bytes from there on
        start, size = storage(address.tensor)
        at = address.value - start
        memory.tensor = tensor_over(address.tensor.untyped_storage(), torch.uint8, at, (size - at,), (1,))
        memory.count = size - at
    return memory


def _unknown(pointer: int, device: int, owner: Any) -> Memory:
    """Memory of which nothing is known but its address: it may hold any type."""
    return Memory(pointer, ANY, device, 1, 1, True, True, False, owner, None, "address")


def _not_memory(value: Any, where: Where, need: str) -> TypeError:
    verb = "takes a reference to device memory" if need.endswith("&") else "takes a pointer"
    if isinstance(value, np.generic):
        fix = "pass a tensor or an array, not one element of it"
    elif isinstance(value, bool | int | float | complex):
        fix = (
            f"pass the tensor itself, {where.expr} and not {where.expr}.data_ptr()"
            if isinstance(value, int) and value > 0xFFFF
            else (f"pass a tensor, such as torch.tensor([{value!r}])")
        )
    elif isinstance(value, (list, tuple)):
        fix = f"pass torch.tensor({where.expr})"
    elif isinstance(value, (bytes, bytearray, memoryview)):
        fix = f"pass torch.frombuffer(bytearray({where.expr}), dtype=torch.uint8)"
    else:
        fix = "pass a torch tensor, a CuPy or NumPy array, or an object with __dlpack__"
    return TypeError(f"{where} is {shown(value)}, the kernel {verb} ({need}); {fix}")


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name for a dtype without the "torch.": "float32"."""
    return str(dtype).removeprefix("torch.")


def without_memory(t: torch.Tensor) -> Memory:
    """What is known of a tensor that has no memory, inside an operator's fake implementation."""
    return Memory(0, dtype_name(t.dtype), -1, 0, t.element_size(), True, True, False, t, t, "tensor")


def _of_tensor(t: torch.Tensor, where: Where, need: str, writes: bool) -> Memory:
    t = private.unwrap_if_dead(t)
    owner, fresh = t, False
    kind = private.wrapper_kind(t)
    if kind in WRAPPERS and kind != "zero":
        raise traced(where, f"is a {WRAPPERS[kind]}")
    if kind == "zero":
        if writes:
            raise TypeError(
                f"{where} is a zero tensor without memory, the kernel writes {need}; pass {where.expr}.clone()"
            )
        t, fresh = t.clone(), True
    check_class(t, where, f", the kernel takes {need}")
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
    check_bits(t, where, ", which the kernel would not see", "write into a tensor without it" if writes else "")
    return Memory(
        pointer=pointer,
        dtype=dtype_name(t.dtype),
        device=t.get_device(),
        count=t.numel(),
        itemsize=t.element_size(),
        contiguous=contiguous,
        writable=True,
        overlaps=not contiguous and _overlaps(t.shape, t.stride()),
        owner=owner,
        tensor=t,
        kind="tensor",
        fresh=fresh,
    )


def other_layout(t: torch.Tensor) -> tuple[str, str] | None:
    """What a tensor is whose elements are not strided memory, and the method that gives one; None for others."""
    if t.is_nested:
        return "is a nested tensor", "values()"
    if t.layout is not torch.strided:
        layout = dtype_name(t.layout)  # type: ignore[arg-type]  # torch.sparse_coo prints like a dtype
        return f"has layout {layout}", "to_dense()"
    return None


def reject_layout(op: str, name: str, t: torch.Tensor) -> None:
    """Raise TypeError for an operator's argument whose elements are not strided memory."""
    if t.layout is torch.strided and not t.is_nested:  # quickly
        return
    other = other_layout(t)
    if other is not None:
        raise TypeError(f"{op}: {name} {other[0]}; pass {name}.{other[1]}")


def check_class(t: torch.Tensor, where: Where, need: str = "") -> None:
    """Reject subclasses and layouts whose memory is not the tensor's elements in order."""
    other = other_layout(t)
    if other is not None:
        raise TypeError(f"{where} {other[0]}{need}; pass {where.expr}.{other[1]}")
    if type(t) in private.PLAIN or not private.has_dispatch(t):
        return
    name = type(t).__name__
    fix = {"DTensor": "to_local()", "AsyncCollectiveTensor": "wait()"}.get(name)
    rest = f"pass {where.expr}.{fix}" if fix else "pass the plain tensor inside it, or wrap this in rawkern.op"
    raise TypeError(f"{where} is a {name}, a tensor subclass that keeps its memory elsewhere; {rest}")


def check_bits(t: torch.Tensor, where: Where, why: str = "", fix: str = "") -> None:
    """Reject torch's lazy bits, with which the memory holds other values than the tensor."""
    for bit, lazy in (("conj", t.is_conj()), ("neg", t.is_neg())):
        if lazy:
            raise ValueError(f"{where} has torch's lazy {bit} bit{why}; {fix or f'pass {where.expr}.resolve_{bit}()'}")


def _numpy_dtype(dtype: np.dtype) -> str:
    return "structured" if dtype.fields else dtype.name


def _of_numpy(a: np.ndarray, where: Where) -> Memory:
    if not a.dtype.isnative:
        raise TypeError(
            f"{where} has a foreign byte order ({a.dtype.str}); "
            f"pass {where.expr}.astype({where.expr}.dtype.newbyteorder('='))"
        )
    if isinstance(a, np.ma.MaskedArray):
        raise TypeError(f"{where} is a masked array, whose mask the kernel would not see; pass {where.expr}.filled()")
    if a.dtype.hasobject:
        raise TypeError(f"{where} is a NumPy array of Python objects; give it a numeric dtype")
    return _of_array(a, a.__array_interface__["data"][0], -1, "NumPy array")


def _of_cupy(a: Any, cupy: Any) -> Memory:
    """A CuPy array; the same as through its `__cuda_array_interface__`, at a fraction of the time."""
    device = int(a.device.id)
    # Arrays carry no stream: their work is on CuPy's current one.
    _order_after(cupy.cuda.get_current_stream(device).ptr, device)
    used_on(getattr(a.data.mem, "_owner", None), private.raw_stream(device), device)
    return _of_array(a, a.data.ptr, device, "CuPy array")


def _of_array(a: Any, pointer: int, device: int, kind: str) -> Memory:
    flags = a.flags
    return Memory(
        pointer=pointer,
        dtype=_numpy_dtype(a.dtype),
        device=device,
        count=a.size,
        itemsize=a.itemsize,
        contiguous=flags.c_contiguous,
        writable=getattr(flags, "writeable", True),  # CuPy's arrays have no such flag
        overlaps=_overlaps(a.shape, a.strides),
        owner=a,
        tensor=None,
        kind=kind,
        fields=a.dtype.fields is not None,
    )


def _overlaps(shape: Iterable[int], strides: Iterable[int]) -> bool:
    """Whether several elements lie at one address."""
    return any(s == 0 and n > 1 for s, n in zip(strides, shape, strict=True))


def _of_cuda_interface(value: Any, face: dict[str, Any], where: Where) -> Memory:
    """Any object with `__cuda_array_interface__`; torch's current stream is made to wait for the stream it names."""
    if face.get("mask") is not None:
        raise TypeError(f"{where} is a masked array; pass it without the mask")
    shape, strides = tuple(face["shape"]), face.get("strides")
    pointer, readonly = face["data"]
    dtype = np.dtype(face["descr"] if face["typestr"][1] == "V" and len(face.get("descr", ())) > 1 else face["typestr"])
    own = getattr(value, "dtype", None)
    name = _numpy_dtype(own) if isinstance(own, np.dtype) else _numpy_dtype(dtype)
    count, contiguous, step = math.prod(shape), True, dtype.itemsize
    for n, stride in zip(reversed(shape), reversed(strides), strict=True) if strides is not None else ():
        contiguous &= n == 1 or stride == step
        step *= n
    device = _cuda_device(value, pointer, where)
    _order_after(face.get("stream"), device)
    return Memory(
        pointer=pointer,
        dtype=name,
        device=device,
        count=count,
        itemsize=dtype.itemsize,
        contiguous=contiguous or not count,
        writable=not readonly,
        overlaps=strides is not None and _overlaps(shape, strides),
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
    check_gpu(str(where))
    if pointer == 0:
        return torch.cuda.current_device()
    try:
        import cupy
    except ImportError:
        raise MissingDependencyError(
            f"{where} is GPU memory, and finding its device needs CuPy; run: {pip.command()}"
        ) from None
    return int(cupy.cuda.runtime.pointerGetAttributes(pointer).device)


def _order_after(stream: int | None, device: int) -> None:
    """Make torch's current stream wait for the producer's; 1 is the legacy default stream, which torch calls 0."""
    if stream is None or not torch.cuda.is_available():  # a launch says then that there is no GPU
        return
    stream = 0 if stream == 1 else stream
    # A capture must not wait for streams outside it; what it replays is ordered by whoever replays it.
    if stream != private.raw_stream(device) and not private.stream_capturing():
        default = torch.cuda.default_stream(device)
        other = default if stream == 0 else torch.cuda.ExternalStream(stream, device=device)
        torch.cuda.current_stream(device).wait_stream(other)


def capturing() -> LaunchError | None:
    """The error for making device memory while a CUDA graph is being captured, or None when none is."""
    if "torch.cuda" in sys.modules and private.stream_capturing():
        return LaunchError("a CUDA graph is being captured")
    return None
