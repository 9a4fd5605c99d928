"""The snake activation, x + sin(a x)^2 / a: a differentiable operator whose kernels come compiled with the package."""

from pathlib import Path
from typing import Any

import torch

import rawkern

kernels = rawkern.load_package(Path(__file__).with_name("kernels"))


@rawkern.op("snake_activation::snake", save=("x",))
def snake(x: torch.Tensor, a: float = 1.0) -> torch.Tensor:
    """Return x + sin(a x)^2 / a, in the shape and dtype of x: float32 or float16."""
    y = torch.empty_like(x)
    kernels.snake.forall(x.numel())(x, y, a, x.numel())
    return y


@snake.backward
def _(ctx: Any, grad_y: torch.Tensor) -> tuple[torch.Tensor, None]:
    (x,) = ctx.saved_tensors
    grad_x = torch.empty_like(x)
    kernels.snake_backward.forall(x.numel())(x, grad_y, grad_x, ctx.a, x.numel())
    return grad_x, None
