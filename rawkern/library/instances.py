"""The instances of the kernels in `cuda_src/`, and what elementwise operators ask of their tensors."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch

from rawkern.base import ctype
from rawkern.formulas.axes import PACK_BYTES
from rawkern.kernel import RawKernel
from rawkern.module import own_sources

__all__ = [
    "C_NAMES",
    "backward_of_one",
    "dense",
    "floating",
    "forward_of_one",
    "kernel",
    "not_a_tensor",
    "vector_kernel",
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
        raise TypeError(f"{file}: the tensor is {_shown(dtype)}; there is {file} for {', '.join(map(_shown, C_NAMES))}")
    return RawKernel(path=own_sources() / f"{file}.cu", name=f"{template}<{name}, {argument}>", strided=True)


@functools.cache
def vector_kernel(file: str, template: str, dtype: torch.dtype, on_gpu: bool) -> tuple[RawKernel, int]:
    """Return the instance of a ``template<T, V>`` for a device, and V, the elements that a thread does.

    A GPU thread loads 16 bytes at a time. The CPU engine turns neighbouring threads into vectors by itself, so there
    a thread does one element.
    """
    width = PACK_BYTES // dtype.itemsize if on_gpu and dtype in C_NAMES else 1
    return kernel(file, template, dtype, str(width)), width


def dense(x: torch.Tensor) -> torch.Tensor:
    """Return `x` if a kernel can take its memory as one run of elements, in whatever order; else a copy."""
    if x.is_neg():
        x = x.resolve_neg()
    if x.is_contiguous():
        return x
    copy = torch.empty_like(x)
    return x if copy.stride() == x.stride() else copy.copy_(x)


def like(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return `t`, or a copy of it where its elements do not lie in memory as those of the dense `x` do."""
    if t.is_neg():
        t = t.resolve_neg()
    if (t.is_contiguous() and x.is_contiguous()) or t.stride() == x.stride():
        return t
    return torch.empty_like(x).copy_(t)


def forward_of_one(name: str, x: torch.Tensor, *numbers: float) -> torch.Tensor:
    """Run the kernel ``name(x, *numbers, out, n)`` of ``cuda_src/name.cu`` into a new tensor like x."""
    run, width = vector_kernel(name, name, x.dtype, x.is_cuda)
    x = dense(x)
    out = torch.empty_like(x)
    n = x.numel()
    run.forall(-(-n // width))(x, *numbers, out, n)
    return out


def backward_of_one(name: str, grad_out: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
    """Run the kernel ``name_backward(grad_out, saved, grad_x, n)`` of the same file into a new tensor like saved."""
    run, width = vector_kernel(name, f"{name}_backward", saved.dtype, saved.is_cuda)
    saved = dense(saved)
    grad_x = torch.empty_like(saved)
    n = saved.numel()
    run.forall(-(-n // width))(like(grad_out, saved), saved, grad_x, n)
    return grad_x


def floating(op: str, name: str, x: Any) -> torch.Tensor:
    """Return an argument that is a tensor of one of the dtypes there are; TypeError for others."""
    if not isinstance(x, torch.Tensor) or x.dtype not in C_NAMES:
        what = _shown(x.dtype) if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"
        raise TypeError(f"{op}: {name} is {what}; pass a tensor of {', '.join(map(_shown, C_NAMES))}")
    return x


def not_a_tensor(name: str, *values: Any) -> NoReturn:
    """Raise for an argument that is no tensor."""
    wrong = next(value for value in values if not isinstance(value, torch.Tensor))
    raise TypeError(f"{name} takes torch tensors, got {type(wrong).__name__}")


def _shown(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
