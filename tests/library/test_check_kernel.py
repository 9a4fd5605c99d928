"""Every built-in operator in all the ways that `rawkern.testing.check_kernel` calls it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rawkern
from rawkern.testing import check_kernel

from .common import numbers

F = torch.nn.functional


def x(*shape: int, seed: int = 0) -> torch.Tensor:
    return numbers(shape, torch.float32, "cpu", seed)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def forces(positions: torch.Tensor, masses: torch.Tensor, G: float, softening: float) -> torch.Tensor:
    if positions.shape[0] != 3:
        raise ValueError("positions are in space")
    difference = positions[:, None] - positions[:, :, None]
    inverse = (difference.square().sum(0) + softening**2).pow(-1.5)
    return (G * masses[:, None] * masses * difference * inverse).sum(-1)


def summed_norm(norm: Any) -> Any:
    def reference(x: torch.Tensor, residual: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return norm(x + residual, *rest), x + residual

    return reference


def by_sign(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.sum() > 0, 2 * x, -2 * x)


CLASSES = torch.arange(9) % 7
ANGLES = x(9, 6)
POSITIONS = x(3, 9, seed=4)
# The operator, its arguments, a reference; and options of check_kernel.
CASES: dict[str, tuple[Any, tuple[Any, ...], Any, dict[str, Any]]] = {
    "square": (rawkern.square, (x(9, 70),), torch.square, {}),
    "mul": (rawkern.mul, (x(9, 70), x(70)), torch.mul, {}),
    "scale": (rawkern.scale, (x(9, 70), -0.75), torch.mul, {}),
    "relu": (rawkern.relu, (x(9, 70),), torch.relu, {}),
    "relu_": (rawkern.relu_, (x(9, 70),), torch.relu, {"mutates": ["x"]}),
    "silu": (rawkern.silu, (x(9, 70),), F.silu, {}),
    "gelu": (rawkern.gelu, (x(9, 70),), F.gelu, {}),
    "gelu tanh": (rawkern.gelu, (x(9, 70),), F.gelu, {"kwargs": {"approximate": "tanh"}}),
    "swiglu": (rawkern.swiglu, (x(9, 70), x(9, 70, seed=1)), lambda a, b: F.silu(a) * b, {}),
    "geglu": (rawkern.geglu, (x(9, 70), x(9, 70, seed=1)), lambda a, b: F.gelu(a) * b, {}),
    "add_sin_cos": (rawkern.add_sin_cos, (x(9, 70), x(70, seed=1)), lambda a, b: a + b + a.sin() * b.cos(), {}),
    "rotary_embedding": (
        rawkern.rotary_embedding,
        (x(2, 9, 12).requires_grad_(), ANGLES.cos(), ANGLES.sin()),
        rotated,
        {},
    ),
    "sum": (rawkern.sum, (x(9, 70), 0), torch.sum, {}),
    "mean": (rawkern.mean, (x(9, 70), (0, 1)), torch.mean, {}),
    "softmax": (rawkern.softmax, (x(9, 70), -1), torch.softmax, {}),
    "log_softmax": (rawkern.log_softmax, (x(9, 70), 0), torch.log_softmax, {}),
    "layer_norm": (rawkern.layer_norm, (x(9, 70), (70,), x(70, seed=1), x(70, seed=2)), F.layer_norm, {}),
    "rms_norm": (rawkern.rms_norm, (x(9, 70), (70,), x(70, seed=1), 1e-5), F.rms_norm, {}),
    "add_layer_norm": (
        rawkern.add_layer_norm,
        (x(9, 70), x(9, 70, seed=3), (70,), x(70, seed=1), x(70, seed=2)),
        summed_norm(F.layer_norm),
        {},
    ),
    "add_rms_norm": (
        rawkern.add_rms_norm,
        (x(9, 70), x(9, 70, seed=3), (70,), x(70, seed=1), 1e-5),
        summed_norm(F.rms_norm),
        {},
    ),
    "cross_entropy": (rawkern.cross_entropy, (x(9, 70), CLASSES), F.cross_entropy, {}),
    "embedding": (rawkern.embedding, (CLASSES, x(13, 70)), F.embedding, {}),
    "scale_by_sign_of_sum": (rawkern.scale_by_sign_of_sum, (x(9, 70),), by_sign, {}),
    "nbody_forces": (
        rawkern.nbody_forces,
        (POSITIONS, x(9, seed=5).abs() + 0.5),
        forces,
        {"kwargs": {"G": 0.5, "softening": 0.25}},
    ),
}
TORCH = ("opcheck", "compile")
LIKE_SILU = ("gelu", "gelu tanh", "swiglu", "geglu", "add_sin_cos")
MEETING = ("sum", "softmax", "layer_norm", "cross_entropy", "nbody_forces")  # one of each kind whose threads meet


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str, device: str) -> None:
    op, arguments, reference, options = CASES[name]
    # The operators' own tests compare every dtype; torch sees no difference between expressions.
    skip = () if name in MEETING else ("order", "dtype", *(TORCH if name in LIKE_SILU else ()))
    report = check_kernel(
        op, *arguments, reference=reference, devices=[device], deterministic=True, skip=skip, **options
    )
    assert not [each for each in report.rejected if not each.startswith("size")], report
    done = {each.split(" (")[0] for each in report.passed}
    always = {"reference", "unwritten", "guard", "input", "dtype", "layout", "empty", "repeat", *TORCH}
    assert always - set(skip) <= done, report
    assert {"gradient", "gradcheck"} <= done, report
