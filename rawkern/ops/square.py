"""square(x) = x * x."""

from __future__ import annotations

from typing import Any

import torch

from rawkern.ops.instances import backward_of_one, forward_of_one, not_a_tensor, tracked

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
    if not isinstance(x, torch.Tensor):
        not_a_tensor("square", x)
    return _Square.apply(x) if tracked(x) else forward_of_one("square", x)  # type: ignore[return-value]


def _square_backward(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return grad_out * 2x, an operator of its own, so that the backward has a backward."""
    return _SquareBackward.apply(grad_out, x) if tracked(grad_out, x) else backward_of_one("square", grad_out, x)  # type: ignore[return-value]


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return forward_of_one("square", x)

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return _square_backward(grad_out, x)


class _SquareBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(grad_out, x)
        return backward_of_one("square", grad_out, x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        # grad_out * 2x is symmetric: with respect to x it is grad * 2 grad_out.
        grad_out, x = ctx.saved_tensors
        need_grad_out, need_x = ctx.needs_input_grad
        return (
            _square_backward(grad, x) if need_grad_out else None,
            _square_backward(grad, grad_out) if need_x else None,
        )
