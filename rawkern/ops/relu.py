"""relu(x) = max(x, 0), and relu_ in place."""

from __future__ import annotations

from typing import Any

import torch

from rawkern.ops.instances import backward_of_one, dense, forward_of_one, not_a_tensor, tracked, vector_kernel

__all__ = ["relu", "relu_"]


def relu(x: torch.Tensor) -> torch.Tensor:
    """Return x where it is not negative, else 0; differentiable any number of times.

    As in torch, NaN stays NaN and the derivative at 0 is 0.

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
        not_a_tensor("relu", x)
    return _Relu.apply(x) if tracked(x) else forward_of_one("relu", x)  # type: ignore[return-value]


def relu_(x: torch.Tensor) -> torch.Tensor:
    """Set the negative elements of x to 0 and return x; otherwise as `relu`.

    Raises
    ------
    TypeError
        For another dtype, or something that is no tensor.
    RuntimeError
        For a leaf that requires grad, or a view of one, while gradients are recorded, as in torch.
    """
    if not isinstance(x, torch.Tensor):
        not_a_tensor("relu_", x)
    if not tracked(x):
        return _in_place(x)
    _refuse_leaf(x)  # autograd itself says so only after the data has been overwritten
    return _ReluInPlace.apply(x)  # type: ignore[return-value]


def _refuse_leaf(x: torch.Tensor) -> None:
    leaf = "a leaf" if x.is_leaf else "a view of a leaf"
    base = x if x.is_leaf else x._base
    if base is not None and base.is_leaf and base.requires_grad:
        raise RuntimeError(f"relu_: {leaf} that requires grad cannot be changed in place; use relu or torch.no_grad()")


def _relu_backward(grad_out: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return grad_out where the operator let x through, an operator of its own, so that the backward has a backward."""
    return _ReluBackward.apply(grad_out, out) if tracked(grad_out) else backward_of_one("relu", grad_out, out)  # type: ignore[return-value]


def _in_place(x: torch.Tensor) -> torch.Tensor:
    if dense(x) is not x:
        return x.copy_(forward_of_one("relu", x))
    kernel, width = vector_kernel("relu", "relu", x.dtype, x.is_cuda)
    n = x.numel()
    kernel.forall(-(-n // width))(x, x, n)
    return x


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        out = forward_of_one("relu", x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> torch.Tensor:
        (out,) = ctx.saved_tensors
        return _relu_backward(grad_out, out)


class _ReluInPlace(_Relu):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        _in_place(x)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x


class _ReluBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grad_out: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(out)
        return backward_of_one("relu", grad_out, out)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (out,) = ctx.saved_tensors
        return _relu_backward(grad, out), None
