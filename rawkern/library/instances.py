"""The instances of the kernels in `cuda_src/`, and what operators ask of their tensors."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch

from rawkern.arguments.memory import dtype_name
from rawkern.base import ctype
from rawkern.kernel import RawKernel
from rawkern.module import own_sources

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
def kernel(file: str, template: str, dtype: torch.dtype, *arguments: str) -> RawKernel:
    """Return ``template<dtype, arguments>`` of ``cuda_src/file.cu``; it compiles at its first launch."""
    instance = f"{template}<{', '.join((c_name(file, dtype), *arguments))}>"
    return RawKernel(path=own_sources() / f"{file}.cu", name=instance, strided=True)


def floating(op: str, name: str, x: Any) -> torch.Tensor:
    """Return an argument that is a tensor of one of the dtypes there are; TypeError for others."""
    if not isinstance(x, torch.Tensor) or x.dtype not in C_NAMES:
        what = dtype_name(x.dtype) if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"
        raise TypeError(f"{op}: {name} is {what}; pass a tensor of {', '.join(map(dtype_name, C_NAMES))}")
    return x


def not_a_tensor(name: str, *values: Any) -> NoReturn:
    """Raise for an argument that is no tensor."""
    wrong = next(value for value in values if not isinstance(value, torch.Tensor))
    raise TypeError(f"{name} takes torch tensors, got {type(wrong).__name__}")
