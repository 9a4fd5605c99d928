"""The instances of the kernels in `cuda_src/`, and what elementwise operators ask of their tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from rawkern.base.operator_state import in_fake_op
from rawkern.formulas.axes import PACK_BYTES
from rawkern.kernel import RawKernel
from rawkern.module import own_sources
from rawkern.operators.native import Map

__all__ = [
    "C_NAMES",
    "dense",
    "floating",
    "kernel",
    "mapped",
    "not_a_tensor",
    "vector_kernel",
]

# The dtypes there are, and what they are called in CUDA C.
C_NAMES = {
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
    torch.float32: "float",
    torch.float64: "double",
}


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


def mapped(file: str, template: str, inputs: int = 1, *, leader: int = 0, numbers: Sequence[int] = ()) -> Map:
    """Calls of the kernel ``template(inputs..., out, n)`` of ``cuda_src/file.cu``, into new tensors.

    They are laid out as the input `leader` is; `numbers` are the inputs that are no tensors.
    """

    def careful(*args: Any) -> torch.Tensor:
        lead = args[leader]
        run, width = vector_kernel(file, template, lead.dtype, lead.is_cuda)
        lead = dense(lead)
        given = [like(a, lead) if isinstance(a, torch.Tensor) and k != leader else a for k, a in enumerate(args)]
        given[leader] = lead
        out = torch.empty_like(lead)
        n = lead.numel()
        run.forall(-(-n // width))(*given, out, n)
        if not in_fake_op():
            found.learn(run, width, lead.dtype, lead.is_cuda)
        return out

    found = Map(careful, inputs, numbers=numbers)
    return found


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
