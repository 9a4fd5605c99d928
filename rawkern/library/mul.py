"""mul(a, b) = a * b, with torch's broadcasting and type promotion."""

from __future__ import annotations

from typing import Any

import torch

from rawkern.base.operator_state import in_fake_op
from rawkern.formulas.axes import PACK_BYTES, aligned_ways, strided_layout
from rawkern.library.instances import dense, kernel, not_a_tensor, vector_kernel
from rawkern.operators import op

__all__ = ["mul"]


def mul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the elementwise product a * b; differentiable any number of times.

    Shapes are broadcast and dtypes promoted as torch does. Half types are computed in float32 and rounded once.

    Parameters
    ----------
    a, b : torch.Tensor
        On one device, of any shapes that broadcast and any strides. At least one of them is float16, bfloat16,
        float32 or float64.

    Returns
    -------
    torch.Tensor
        Of the broadcast shape and the promoted dtype.

    Raises
    ------
    TypeError
        For a promoted dtype other than those four, or an argument that is no tensor (`rawkern.scale` takes a number).
    ValueError
        For tensors on two devices.
    RuntimeError
        For shapes that do not broadcast.
    """
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        not_a_tensor("mul", a, b)
    if a.get_device() != b.get_device():
        raise ValueError(f"mul: a is on {a.device}, b is on {b.device}; pass tensors on one device")
    if a.dtype is not b.dtype:
        dtype = torch.result_type(a, b)
        a, b = a.to(dtype), b.to(dtype)
    return _mul(a, b)


def _forward(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.is_neg() or b.is_neg():
        a, b = a.resolve_neg(), b.resolve_neg()
    if (
        a.dim() != b.dim()
        or a.shape != b.shape
        or not ((a.is_contiguous() and b.is_contiguous()) or (a.stride() == b.stride() and dense(a) is a))
    ):
        return _strided(a, b)
    times, width = vector_kernel("mul", "mul", a.dtype, a.is_cuda)
    out = torch.empty_like(a)
    n = a.numel()
    times.forall(-(-n // width))(a, b, out, n)
    return out


def _strided(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product of tensors of different shapes or layouts; contiguous."""
    if a.dim() != b.dim() or a.shape != b.shape:
        a, b = torch.broadcast_tensors(a, b)
    vector_kernel("mul", "mul", a.dtype, a.is_cuda)  # refuses dtypes there are no kernels for
    if in_fake_op():  # sizes may be symbols, of which there is no layout
        return torch.empty(a.shape, dtype=a.dtype, device=a.device)
    pack = PACK_BYTES // a.element_size() if a.is_cuda else 1
    layout, width, index, ways = strided_layout(a.shape, (a.stride(), b.stride()), None, pack)
    if layout is None:
        return _forward(a.contiguous(), b.contiguous())
    times = kernel("mul", "mul_strided", a.dtype, ", ".join([str(width), index, *aligned_ways(ways, (a, b), width)]))
    out = torch.empty(a.shape, dtype=a.dtype, device=a.device)
    packs = out.numel() // width
    times.forall(packs)(a, b, out, layout, packs)
    return out


def _backward(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both gradients of contiguous tensors of one shape."""
    backward, width = vector_kernel("mul", "mul_backward", a.dtype, a.is_cuda)
    grad_a, grad_b = torch.empty_like(a), torch.empty_like(b)
    n = a.numel()
    backward.forall(-(-n // width))(grad_out, a, b, grad_a, grad_b, n)
    return grad_a, grad_b


@op("rawkern::mul", save={"a": ("b",), "b": ("a",)}, elementwise=True, strided=True)
def _mul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _forward(a, b)


@_mul.backward
def _(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    a, b = ctx.saved_tensors
    shape_a, shape_b = ctx.shapes
    if (
        a is not None
        and b is not None
        and shape_a == shape_b
        and not torch.is_grad_enabled()
        and all(t.is_contiguous() for t in (a, b, grad_out))
    ):
        return _backward(grad_out, a, b)
    grad_a = None if b is None else _summed(_mul(grad_out, b), shape_a)
    grad_b = None if a is None else _summed(_mul(grad_out, a), shape_b)
    return grad_a, grad_b


@_mul.jvp
def _(ctx: Any, tangent_a: torch.Tensor | None, tangent_b: torch.Tensor | None) -> torch.Tensor:
    a, b = ctx.saved_tensors
    if tangent_a is None or tangent_b is None:
        return _mul(a, tangent_b) if tangent_a is None else _mul(tangent_a, b)
    return _mul(tangent_a, b) + _mul(a, tangent_b)


def _summed(grad: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Sum a gradient over the dimensions that broadcasting repeated."""
    return grad if grad.shape == shape else grad.sum_to_size(shape)
