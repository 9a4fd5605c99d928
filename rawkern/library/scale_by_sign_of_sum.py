"""scale_by_sign_of_sum(x): a branch on the result of a reduction that never leaves the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rawkern.base.overrides import overridable
from rawkern.engines.devices import overlaps
from rawkern.library.instances import kernel, not_a_tensor
from rawkern.library.rows import accumulator, contiguous, pack_width, symbolic
from rawkern.library.sum import row_sums
from rawkern.operators import op


@overridable
def scale_by_sign_of_sum(x: Tensor) -> Tensor:
    """Return 2 * x if the sum of x is positive, else -2 * x; differentiable any number of times.

    The sum is computed in float32 (float64 for float64) and stays on the device: no synchronization is needed, and
    ``torch.compile(fullgraph=True)`` accepts the operator, but not an ``if`` on a sum. A sum that is zero or NaN
    is not positive.

    Parameters
    ----------
    x : torch.Tensor
        float16, bfloat16, float32 or float64, of any shape and strides, on the CPU or a GPU.

    Returns
    -------
    torch.Tensor
        Of the same shape and dtype, contiguous.

    Raises
    ------
    TypeError
        For another dtype, or something that is not a tensor.
    """
    if not isinstance(x, Tensor):
        not_a_tensor("scale_by_sign_of_sum", x)
    return _scale(x)


@op("rawkern::scale_by_sign_of_sum", save=("total",), hidden=("total",))
def _scale(x: Tensor) -> tuple[Tensor, Tensor]:
    x = contiguous(x)
    n = x.numel()
    if not symbolic(n) and not n:
        return torch.empty_like(x), x.new_zeros(1, dtype=accumulator(x.dtype))
    total = row_sums(x, 1, n, accumulator(x.dtype))
    return _scaled(x, total), total


_scale.vmap(_scale.operator.one_by_one)


@_scale.backward
def _(ctx: Any, grad_out: Tensor) -> Tensor:
    (total,) = ctx.saved_tensors
    return _scale_like(grad_out, total.detach())  # its sign is a constant, but where it changes


@op("rawkern::scale_by_sign_of_sum_like", save=("total",))
def _scale_like(x: Tensor, total: Tensor) -> Tensor:
    """2 * x if `total` is positive, else -2 * x."""
    x = contiguous(x)
    return _scaled(x, total) if symbolic(x.numel()) or x.numel() else torch.empty_like(x)


_scale_like.vmap(_scale_like.operator.one_by_one)


@_scale_like.backward
def _(ctx: Any, v: Tensor) -> tuple[Tensor, None]:
    return _scale_like(v, *ctx.saved_tensors), None


def _scaled(x: Tensor, total: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    width = pack_width(n, x, out, cpu=1)
    programmatic = overlaps(x.device)
    scale = kernel("scale_by_sign_of_sum", "scale_by_sign", x.dtype, str(width), programmatic=programmatic)
    scale.forall(n // width)(x, total, out, n // width)
    return out
