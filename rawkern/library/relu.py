"""relu(x) = max(x, 0), and relu_ in place."""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rawkern.library.instances import dense, mapped, not_a_tensor, vector_kernel
from rawkern.operators import op

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
    return _any(x) if is_dynamo_compiling() else _forward.call(x)


def _any(x: torch.Tensor) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        not_a_tensor("relu", x)
    return _relu(x)


_forward, _gradient = mapped("relu", "relu"), mapped("relu", "relu_backward", 2, leader=1)
_forward.for_users(_any)


def relu_(x: torch.Tensor) -> torch.Tensor:
    """Set the negative elements of x to 0 and return x; otherwise as `relu`.

    Parameters
    ----------
    x : torch.Tensor
        float16, bfloat16, float32 or float64, of any shape and strides, on the CPU or a GPU.

    Returns
    -------
    torch.Tensor
        x itself.

    Raises
    ------
    TypeError
        For another dtype, or something that is no tensor.
    RuntimeError
        For a leaf that requires grad, or a view of one, while gradients are recorded, as in torch.
    """
    if not isinstance(x, torch.Tensor):
        not_a_tensor("relu_", x)
    return _relu_(x)


@op("rawkern::relu", save=("out",), elementwise=True, strided=True)
def _relu(x: torch.Tensor) -> torch.Tensor:
    return _forward.run(x)


@op("rawkern::relu_", mutates_args=("x",), elementwise=True, strided=True)
def _relu_(x: torch.Tensor) -> None:
    if dense(x) is not x:
        x.copy_(_forward.run(x))
        return
    kernel, width = vector_kernel("relu", "relu", x.dtype, x.is_cuda)
    n = x.numel()
    kernel.forall(-(-n // width))(x, x, n)


@op("rawkern::relu_grad", save=("y",), elementwise=True, strided=True)
def _relu_grad(grad_out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return grad_out where the operator let x through, an operator of its own, so that the backward has a backward."""
    return _gradient.run(grad_out, y)


def _backward(ctx: Any, grad_out: torch.Tensor) -> torch.Tensor:
    (y,) = ctx.saved_tensors
    return _gradient.call(grad_out, y)


_gradient.for_users(_relu_grad)
_relu.backward(_backward)
_relu_.backward(_backward)


@_relu_grad.backward
def _(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    (y,) = ctx.saved_tensors
    return _relu_grad(grad, y), None
