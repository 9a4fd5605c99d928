"""Elementwise expressions that these tests share."""

from __future__ import annotations

import torch

import rawkern

silu = rawkern.elementwise(
    "T x",
    "T y",
    "y = x / (1 + exp(-x))",
    "silu",
    backward="T s = 1 / (1 + exp(-x)); grad_x = grad_y * s * (1 + x * (1 - s))",
)


fused = rawkern.elementwise("T a, T b", "T y", "y = (a + b) + sin(a) * cos(b)", "fused")


parts = rawkern.elementwise(
    "T x", "T whole, T rest, bool negative", "whole = trunc(x); rest = x - whole; negative = x < 0", "parts"
)


add = rawkern.elementwise("T a, T b", "T y", "y = a + b", "add")


def fused_reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a + b) + a.sin() * b.cos()


def values(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 3).to(device=device, dtype=dtype)
