"""Addresses given as numbers, as `x.data_ptr()` is: what lies there, and the tensors that Python knows."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rawkern.arguments.scalars import Where
from rawkern.base import torch_private as private

if TYPE_CHECKING:
    from rawkern.arguments.signature import Signature

HOLDERS = (torch.int64, torch.uint64, torch.uint8)  # dtypes of tensors in which addresses may stand
_LOWEST = 1 << 16  # smaller numbers are not addresses
_known: dict[int, weakref.ref[torch.Tensor]] = {}  # tensors that addresses were found in


@dataclass(frozen=True, slots=True)
class Address:
    """An address in place of a tensor."""

    value: int
    device: int  # CUDA index, -1 for the CPU
    tensor: torch.Tensor | None  # a live one that has its memory there; not searched on a GPU


def resolve(signature: Signature, args: Sequence[Any]) -> tuple[Any, ...] | None:
    """The arguments with an `Address` for each number given for a pointer; None where there are no such numbers.

    ValueError for an address of CPU memory that no live tensor has.
    """
    if len(args) != len(signature.params):
        return None
    found = [k for k, param in enumerate(signature.params) if param.ctype.kind == "pointer" and is_address(args[k])]
    if not found:
        return None
    device = _device(args, int(args[found[0]]))
    resolved = list(args)
    for k in found:
        resolved[k] = _resolve(int(args[k]), device, signature.wheres[k])
    return tuple(resolved)


def is_address(value: Any) -> bool:
    """Whether a number may be meant as an address."""
    number = type(value) is int or (isinstance(value, np.integer) and value.itemsize == 8)
    return bool(number and (value == 0 or _LOWEST <= value < 1 << 64))


def _device(args: Sequence[Any], address: int) -> int:
    """The CUDA index of the memory that a launch's arguments lead to, or -1 for the CPU."""
    if not torch.cuda.is_available():
        return -1
    arrays = [t for t in args if isinstance(t, torch.Tensor) and (t.dim() or t.is_cuda)]
    if arrays:  # tensors of the CPU may be pinned ones beside those of a GPU
        return max(t.get_device() for t in arrays)
    import cupy  # it is there: no kernel runs on a GPU without

    runtime: Any = cupy.cuda.runtime
    found = runtime.pointerGetAttributes(address)
    return found.device if found.type in (runtime.memoryTypeDevice, runtime.memoryTypeManaged) else -1


def _resolve(value: int, device: int, where: Where) -> Address | None:
    if not value:
        return None
    if device >= 0:
        return Address(value, device, None)
    tensor = _tensor_at(value)
    if tensor is None:
        raise ValueError(
            f"{where} is the address {value:#x}, where no live tensor on the CPU has its memory; "
            f"pass the tensor itself, {where.expr} and not {where.expr}.data_ptr()"
        ) from None
    return Address(value, -1, tensor)


def _tensor_at(address: int) -> torch.Tensor | None:
    """A tensor of the CPU whose storage holds an address."""
    known = _known.get(address)
    tensor = known() if known is not None else None
    if tensor is None or not _holds(tensor, address):
        tensor = next((t for start, size, t in live("cpu").values() if start <= address < start + size), None)
        if len(_known) > 10_000:
            _known.clear()
        if tensor is not None:
            _known[address] = weakref.ref(tensor)
    return tensor


def _holds(t: torch.Tensor, address: int) -> bool:
    start, size = storage(t)
    return start <= address < start + size


def storage(t: torch.Tensor) -> tuple[int, int]:
    """Where a tensor's storage starts, and its bytes."""
    untyped = t.untyped_storage()
    return untyped.data_ptr(), untyped.nbytes()


def _with_subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_with_subclasses, type.__subclasses__(kind)))


def live(device: str) -> dict[int, tuple[int, int, torch.Tensor]]:
    """All tensors that Python knows on a kind of device, by the start of their storage."""
    found: dict[int, tuple[int, int, torch.Tensor]] = {}
    kinds = _with_subclasses(torch.Tensor)
    with private.plain_tensors():  # modes would see what subclasses are asked
        for o in [o for o in gc.get_objects() if type(o) in kinds]:
            try:
                if o.device.type == device and o.layout is torch.strided and private.wrapper_kind(o) is None:
                    start, size = storage(o)
                    if start and size:
                        found.setdefault(start, (start, size, o))
            except (RuntimeError, NotImplementedError, ReferenceError):  # no memory: fake, functional, being made
                continue
    return found
