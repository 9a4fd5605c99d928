"""The instances of the kernels in `cuda_src/`, and what operators ask of their tensors."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch

from rawkern.base import ctype
from rawkern.kernel import RawKernel
from rawkern.module import own_sources

__all__ = [
    "C_NAMES",
    "floating",
    "kernel",
    "not_a_tensor",
    "shown",
]

# The dtypes there are, and what they are called in CUDA C.
C_NAMES = {getattr(torch, name): ctype.C_NAMES[name] for name in ("float16", "bfloat16", "float32", "float64")}


@functools.cache
def kernel(file: str, template: str, dtype: torch.dtype, argument: str) -> RawKernel:
    """Return ``template<dtype, argument>`` of ``cuda_src/file.cu``; it compiles at its first launch.

    Raises
    ------
    TypeError
        There is no kernel for that dtype.
    """
    name = C_NAMES.get(dtype)
    if name is None:
        raise TypeError(f"{file}: the tensor is {shown(dtype)}; there is {file} for {', '.join(map(shown, C_NAMES))}")
    return RawKernel(path=own_sources() / f"{file}.cu", name=f"{template}<{name}, {argument}>", strided=True)


def floating(op: str, name: str, x: Any) -> torch.Tensor:
    """Return an argument that is a tensor of one of the dtypes there are; TypeError for others."""
    if not isinstance(x, torch.Tensor) or x.dtype not in C_NAMES:
        what = shown(x.dtype) if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"
        raise TypeError(f"{op}: {name} is {what}; pass a tensor of {', '.join(map(shown, C_NAMES))}")
    return x


def not_a_tensor(name: str, *values: Any) -> NoReturn:
    """Raise for an argument that is no tensor."""
    wrong = next(value for value in values if not isinstance(value, torch.Tensor))
    raise TypeError(f"{name} takes torch tensors, got {type(wrong).__name__}")


def shown(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
