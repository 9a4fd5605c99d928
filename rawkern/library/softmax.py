"""softmax and log_softmax over one dimension."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from rawkern.base.overrides import overridable
from rawkern.library.instances import not_a_tensor
from rawkern.library.rows import contiguous, plan, run, sizes, wrapped
from rawkern.operators import op
from rawkern.operators.batching import in_front


def softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return exp(x) / sum(exp(x)) over one dimension; differentiable twice.

    Half types are computed in float32 and rounded once.

    Parameters
    ----------
    input : torch.Tensor
        float16, bfloat16, float32 or float64, of any shape and strides, on the CPU or a GPU.
    dim : int
        The dimension whose elements add up to 1.
    dtype : torch.dtype, optional
        The dtype to which the input is converted first.

    Returns
    -------
    torch.Tensor
        Of the same shape and device, contiguous.

    Raises
    ------
    TypeError
        For another dtype, or something that is not a tensor.
    IndexError
        There is no such dimension.
    """
    if type(input) is Tensor and type(dim) is int and dtype is None and -(n := input.dim()) <= dim < n:  # quickly
        return _softmax(input, dim % n, False)
    return _any_softmax(input, dim, dtype)


def log_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return x - log(sum(exp(x))) over one dimension; differentiable twice.

    No exp(x) overflows. Half types are computed in float32 and rounded once.

    Parameters
    ----------
    input, dim, dtype
        As for `softmax`.

    Returns
    -------
    torch.Tensor
        Of the same shape and device, contiguous.

    Raises
    ------
    TypeError, IndexError
        As for `softmax`.
    """
    if type(input) is Tensor and type(dim) is int and dtype is None and -(n := input.dim()) <= dim < n:  # quickly
        return _softmax(input, dim % n, True)
    return _any_log_softmax(input, dim, dtype)


def _checked(name: str, log: bool, x: Any, dim: int, dtype: torch.dtype | None) -> Tensor:
    """Any call of a public function."""
    if not isinstance(x, Tensor):
        not_a_tensor(name, x)
    return _softmax(x if dtype is None else x.to(dtype), wrapped(name, dim, x.dim()), log)


_any_softmax = overridable(partial(_checked, "softmax", False), softmax)
_any_log_softmax = overridable(partial(_checked, "log_softmax", True), log_softmax)


@op("rawkern::softmax", save=("out",), autocast={"cuda": torch.float32})
def _softmax(x: Tensor, dim: int, log: bool) -> Tensor:
    x = contiguous(x)
    out = torch.empty_like(x)
    if x.numel():
        rows, n, inner = sizes(x, dim)
        run("softmax", "softmax", x, plan(rows, n, inner, x, out), log, x, out, rows, n, inner)
    return out


@_softmax.vmap
def _(info: Any, dims: Any, x: Tensor, dim: int, log: bool) -> tuple[Tensor, int]:
    x = in_front(x, dims[0], info.batch_size)
    return _softmax.overload(x if x.dim() > 1 else x.unsqueeze(1), dim + 1, log).view(x.shape), 0


@_softmax.backward
def _(ctx: Any, grad_out: Tensor) -> Tensor:
    (out,) = ctx.saved_tensors
    return _softmax_grad(grad_out, out, ctx.dim, ctx.log)


@op("rawkern::softmax_grad", save=("grad_out", "y"))
def _softmax_grad(grad_out: Tensor, y: Tensor, dim: int, log: bool) -> Tensor:
    """The gradient of x: y * (g - sum(g * y)), or g - exp(y) * sum(g) for the logarithm."""
    grad_out, y = contiguous(grad_out), contiguous(y)
    grad_x = torch.empty_like(y)
    if y.numel():
        rows, n, inner = sizes(y, dim)
        found = plan(rows, n, inner, y, grad_out, grad_x, held=2 if y.element_size() == 2 else 4)
        run("softmax", "softmax_backward", y, found, log, grad_out, y, grad_x, rows, n, inner)
    return grad_x


@_softmax_grad.vmap
def _(info: Any, dims: Any, grad_out: Tensor, y: Tensor, dim: int, log: bool) -> tuple[Tensor, int]:
    g, y = (in_front(t, d, info.batch_size) for t, d in zip((grad_out, y), dims, strict=False))
    both = (g, y) if y.dim() > 1 else (g.unsqueeze(1), y.unsqueeze(1))
    return _softmax_grad.overload(*both, dim + 1, log).view(y.shape), 0


@_softmax_grad.backward
def _(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor]:
    g, y = ctx.saved_tensors
    if ctx.log:
        return v - (v * y.exp()).sum(ctx.dim, keepdim=True), -v * y.exp() * g.sum(ctx.dim, keepdim=True)
    along = (v * y).sum(ctx.dim, keepdim=True)
    return y * (v - along), v * (g - (g * y).sum(ctx.dim, keepdim=True)) - g * along
