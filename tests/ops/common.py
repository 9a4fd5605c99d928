"""Inputs that can tell right from wrong, and what results are compared with."""

from __future__ import annotations

import math

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
    empty, empty_like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: empty(*args, **kwargs).fill_(math.nan))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: empty_like(*args, **kwargs).fill_(math.nan))


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
