"""square(x) = x * x."""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rawkern.library.instances import mapped, not_a_tensor
from rawkern.operators import op

__all__ = ["square"]


def square(x: torch.Tensor) -> torch.Tensor:
    """Return x * x, elementwise; differentiable any number of times.

    Half types are computed in float32 and rounded once.

    Parameters
    ----------
    x : torch.Tensor
        float16, bfloat16, float32 or float64, of any shape and strides, on the CPU or a GPU.

    Returns
    -------
    torch.Tensor
        Of the same shape, dtype and device.

    Raises
    ------
    TypeError
        For another dtype, or something that is no tensor.
    """
    return _any(x) if is_dynamo_compiling() else _forward.call(x)


def _any(x: torch.Tensor) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        not_a_tensor("square", x)
    return _square(x)


_forward, _gradient = mapped("square", "square"), mapped("square", "square_backward", 2, leader=1)
_forward.for_users(_any)


@op("rawkern::square", elementwise=True, strided=True)
def _square(x: torch.Tensor) -> torch.Tensor:
    return _forward.run(x)


@op("rawkern::square_grad", elementwise=True, strided=True)
def _square_grad(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return grad_out * 2x, an operator of its own, so that the backward has a backward."""
    return _gradient.run(grad_out, x)


_gradient.for_users(_square_grad)


@_square.backward
def _(ctx: Any, grad_out: torch.Tensor) -> torch.Tensor:
    (x,) = ctx.saved_tensors
    return _gradient.call(grad_out, x)


@_square_grad.backward
def _(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    # grad_out * 2x is symmetric: with respect to x it is grad * 2 grad_out.
    grad_out, x = ctx.saved_tensors
    need_grad_out, need_x = ctx.needs_input_grad
    return _square_grad(grad, x) if need_grad_out else None, _square_grad(grad, grad_out) if need_x else None
