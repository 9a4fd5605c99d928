"""softmax and log_softmax beside torch's in float64."""

from __future__ import annotations

import math

import pytest
import torch

import rawkern
from tests.library.common import DTYPES, LAYOUTS, compare, layouts, numbers, poison

BOTH = pytest.mark.parametrize("name", ["softmax", "log_softmax"])


def _pair(name: str, dim: int):
    return (lambda x: getattr(rawkern, name)(x, dim)), (lambda x: getattr(torch, name)(x, dim))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    compare(*_pair("softmax", 1), numbers((5, 1000), dtype, device))


# Rows of a warp and of a block, in packs and not, kept in registers and not; along other dimensions; nothing at all.
SHAPES = [
    ((7, 3), 1),
    ((3, 1), 0),
    ((2, 1028), 1),
    ((3, 4099), -1),
    ((2, 33000), 1),
    ((1, 140001), 1),
    ((2, 70, 5), 1),
    ((40, 3, 2), 0),
    ((2, 3, 4, 5), -2),
    ((), 0),
    ((3, 0), 1),
    ((0, 3), 1),
]


@BOTH
def test_every_shape(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    for shape, dim in SHAPES:
        compare(*_pair(name, dim), numbers(shape, torch.float32, device))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str, device: str) -> None:
    x = layouts(torch.float32, device)[layout]
    compare(*_pair("softmax", -1), x)
    compare(*_pair("softmax", 0), x)


@BOTH
def test_infinities_nan_and_large_numbers(name: str, device: str) -> None:
    inf, nan = math.inf, math.nan
    rows = [[1, 2, nan], [-inf, 0, 1], [-inf, -inf, -inf], [inf, 0, 1], [3e38, 3e38, -3e38], [-1e4, -1e4, -1e4]]
    for n in (3, 4, 1500):  # in one thread's reach, in packs, and in more than one pass
        for row in rows:
            x = torch.full((n,), row[2], dtype=torch.float32, device=device)
            x[:3] = torch.tensor(row)
            got = getattr(rawkern, name)(x, 0)
            torch.testing.assert_close(got, getattr(torch, name)(x, 0), equal_nan=True)


@BOTH
def test_gradients_of_gradients(name: str, device: str) -> None:
    x = numbers((3, 5, 2), torch.float64, device).requires_grad_()
    assert torch.autograd.gradcheck(_pair(name, 1)[0], (x,))
    assert torch.autograd.gradgradcheck(_pair(name, 1)[0], (x,))


def test_dtype_and_rejections(device: str) -> None:
    x = numbers((3, 5), torch.float16, device)
    assert rawkern.softmax(x, 1, dtype=torch.float32).dtype is torch.float32
    assert rawkern.softmax(torch.arange(3, device=device), 0, dtype=torch.float32).is_floating_point()
    with pytest.raises(IndexError, match="dim is 2, the tensor has 2 dimensions; pass one of -2 to 1"):
        rawkern.softmax(x, 2)
    with pytest.raises(TypeError, match=r"int64; there is softmax for float16, bfloat16, float32, float64"):
        rawkern.softmax(torch.arange(3, device=device), 0)
    with pytest.raises(TypeError, match="softmax takes torch tensors, got list"):
        rawkern.softmax([1.0], 0)
