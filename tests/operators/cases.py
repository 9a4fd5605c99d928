"""Operators beside the same in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from .kernels import affine, mul, relu_, scale, smooth_mul, square_and_cube, unit, weighted_sum


def numbers(*shape: int, device: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype, device="cpu").to(device)


def leaves(device: str, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [numbers(*shape, device=device, seed=i).requires_grad_() for i, shape in enumerate(shapes)]


def unit_reference(x: torch.Tensor) -> torch.Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt()


def affine_reference(x: torch.Tensor, w: torch.Tensor | None = None, b: torch.Tensor | None = None) -> torch.Tensor:
    return x * (1 if w is None else w) + (0 if b is None else b)


def relu_after(x: torch.Tensor) -> torch.Tensor:
    return relu_(x * 1.5)


# Each operator beside the same in torch, and the shapes of its inputs.
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "mul": (mul, torch.mul, ((3, 7), (3, 7))),
    "smooth_mul": (smooth_mul, torch.mul, ((3, 7), (3, 7))),
    "scale": (lambda x: scale(x, -0.75, shift=3), lambda x: x * -0.75 + 3, ((3, 7),)),
    "scale by default": (lambda x: scale(s=2.5, x=x), lambda x: x * 2.5, ((3, 7),)),
    "two outputs": (square_and_cube, lambda x: (x * x, x * x * x), ((3, 7),)),
    "first output": (lambda x: square_and_cube(x)[0], lambda x: x * x, ((3, 7),)),
    "last output": (lambda x: square_and_cube(x)[1], lambda x: x * x * x, ((3, 7),)),
    "hidden output": (unit, unit_reference, ((5, 7),)),
    "in place": (relu_after, lambda x: torch.relu(x * 1.5), ((3, 7),)),
    "no optional": (affine, affine_reference, ((2, 3, 7),)),
    "one optional": (lambda x, b: affine(x, None, b), lambda x, b: x + b, ((2, 3, 7), (7,))),
    "all optional": (affine, affine_reference, ((2, 3, 7), (7,), (7,))),
    "list": (
        lambda a, b, w: weighted_sum([a, b, a], w, 0.5),
        lambda a, b, w: 0.5 * (a * w[0] + b * w[1] + a * w[2]),
        ((3, 7), (3, 7), (3,)),
    ),
}
cases = pytest.mark.parametrize("case", CASES)


def outputs(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)
