"""Inputs that can tell right from wrong, and what results are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
# Sizes around a pack (2, 4 or 8 elements), a warp and a block, none of which divides them all.
SIZES = [0, 1, 3, 7, 8, 31, 33, 257, 1000, 4099]
SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 1.5, -2.25, 3e-8, 6e-5, -1e-6, 1e4, -6e4]


def numbers(shape: int | tuple[int, ...], dtype: torch.dtype, device: str, seed: int = 0) -> torch.Tensor:
    """Fractions of both signs, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 2).to(dtype).to(device)


def special(dtype: torch.dtype, device: str) -> torch.Tensor:
    """NaN, infinities, both zeros, the smallest subnormal, the smallest normal and the largest number, repeated."""
    info = torch.finfo(dtype)
    values = [*SPECIAL, info.tiny, -info.tiny, info.smallest_normal * info.eps, info.max, info.min]
    return torch.tensor(values * 5, dtype=dtype, device=device)


def poison(monkeypatch) -> None:
    """Let new tensors start as NaN, so that an element that no thread wrote shows."""

    def poisoned(make):
        def made(*args, **kwargs) -> torch.Tensor:
            t = make(*args, **kwargs)
            return t.fill_(math.nan if t.is_floating_point() else -1)

        return made

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))


def layouts(dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    """Tensors of every kind of layout, none of them plain and contiguous."""
    flat = numbers(2 * 3 * 4 * 5 + 1, dtype, device, seed=1)
    whole = flat[1:].view(2, 3, 4, 5)
    return {
        "misaligned": flat[1:],
        "transposed": whole.transpose(1, 3),
        "channels_last": whole.contiguous(memory_format=torch.channels_last),
        "every other": flat[::2],
        "columns": whole[..., 1::2],
        "expanded": whole[:, :1].expand(2, 6, 4, 5),
        "0-d": flat[5],
        "0-d, expanded": flat[5].expand(9, 4),
        "a column": whole[0, 0, :, 2:3],
        "empty": whole[:, :0],
    }


LAYOUTS = list(layouts(torch.float32, "cpu"))


def assert_rounded(got: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    """`got` is the float64 result `exact`, rounded to dtype once (in float32, for half types: at most one step off)."""
    assert got.dtype == dtype
    assert got.shape == exact.shape
    expected = exact.to(dtype)
    if dtype in (torch.float32, torch.float64):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    else:
        torch.testing.assert_close(got, expected, rtol=torch.finfo(dtype).eps, atol=2.0**-24, equal_nan=True)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same numbers, -0.0 and 0.0 told apart and all NaNs alike."""
    nan = a.isnan()
    signs = torch.equal(torch.signbit(a)[~nan], torch.signbit(b)[~nan])
    return signs and torch.equal(a[~nan], b[~nan]) and torch.equal(nan, b.isnan())


# Relative to the largest element: torch's own tolerances of the half types; a few roundings of the others.
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-6, torch.float64: 1e-14}


def assert_near(got: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype, factor: float = 1.0) -> None:
    """`got` is the float64 result `exact` but for roundings of sums, relative to the largest element."""
    assert got.dtype == dtype
    assert got.shape == exact.shape
    largest = max(exact.abs().nan_to_num(0, 0, 0).max().item(), 1e-2) if exact.numel() else 0.0
    tolerance = TOLERANCE[dtype] * factor
    torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=tolerance * largest, equal_nan=True)


def compare(
    ours: Callable[..., Any], theirs: Callable[..., Any], *inputs: torch.Tensor, factor: float = 1.0, seed: int = 9
) -> None:
    """Results and gradients of `ours` are those of `theirs` in float64."""
    dtype = inputs[0].dtype
    mine = [t.detach().requires_grad_() for t in inputs]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    got, wanted = ours(*mine), theirs(*exact)
    if isinstance(got, torch.Tensor):
        got, wanted = (got,), (wanted,)
    for a, b in zip(got, wanted, strict=True):
        assert_near(a.detach(), b.detach(), dtype, factor)
    grads = [numbers(tuple(t.shape), dtype, t.device.type, seed=seed + i) for i, t in enumerate(wanted)]
    found = torch.autograd.grad(got, mine, grads)
    for a, b in zip(found, torch.autograd.grad(wanted, exact, [g.double() for g in grads]), strict=True):
        assert_near(a, b, dtype, factor * 4)
