"""The instances of the kernels in `cuda_src/`, and what operators ask of their tensors."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch

from rawkern.arguments.memory import dtype_name
from rawkern.base import ctype
from rawkern.compile.files import own_sources
from rawkern.kernel import RawKernel

# The dtypes there are, and what they are called in CUDA C.
C_NAMES = {getattr(torch, name): ctype.C_NAMES[name] for name in ("float16", "bfloat16", "float32", "float64")}


def c_name(op: str, dtype: torch.dtype) -> str:
    """Return what a dtype is in CUDA C; TypeError where there is no kernel of an operator for it."""
    name = C_NAMES.get(dtype)
    if name is None:
        given, known = dtype_name(dtype), ", ".join(map(dtype_name, C_NAMES))
        raise TypeError(f"{op}: the tensor is {given}; there is {op} for {known}")
    return name


@functools.cache
def kernel(file: str, template: str, dtype: torch.dtype, *arguments: str, programmatic: bool = False) -> RawKernel:
    """Return ``template<dtype, arguments>`` of ``cuda_src/file.cu``; it compiles at its first launch.

    One that begins with ``wait_for_previous()`` may be `programmatic`.
    """
    if programmatic:
        return kernel(file, template, dtype, *arguments).configured(programmatic=True)
    instance = f"{template}<{', '.join((c_name(file, dtype), *arguments))}>"
    return RawKernel(path=own_sources() / f"{file}.cu", name=instance, strided=True)


def floating(op: str, name: str, x: Any) -> torch.Tensor:
    """Return an argument that is a tensor of one of the dtypes there are; TypeError for others."""
    if not isinstance(x, torch.Tensor) or x.dtype not in C_NAMES:
        what = dtype_name(x.dtype) if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"
        raise TypeError(f"{op}: {name} is {what}; pass a tensor of {', '.join(map(dtype_name, C_NAMES))}")
    return x


def check_index(op: str, name: str, index: torch.Tensor, size: int, what: str, skipped: int | None = None) -> None:
    """Name the index that is wrong, after an assertion of a kernel's has failed on the CPU.

    A GPU tells of its assertion too late for that.

    Raises
    ------
    IndexError
        An element of `index` is not from 0 to `size` - 1, nor `skipped`.
    """
    wrong = (index < 0) | (index >= size)
    if skipped is not None:
        wrong &= index != skipped
    if index.is_cuda or not wrong.any():
        return
    at = torch.nonzero(wrong)[0].tolist()
    place, also = ", ".join(map(str, at)), "" if skipped is None else f", or ignore_index, {skipped}"
    raise IndexError(
        f"{op}: {name}{f'[{place}]' if at else ''} is {index[tuple(at)].item()}, and there are {size} {what}; "
        f"pass 0 to {size - 1}{also}"
    ) from None


def not_a_tensor(name: str, *values: Any) -> NoReturn:
    """Raise for an argument that is not a tensor."""
    wrong = next(value for value in values if not isinstance(value, torch.Tensor))
    raise TypeError(f"{name} takes torch tensors, got {type(wrong).__name__}")
