"""What the summary of a tensor says."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from rawkern.cli.summary import changed_elements, shown
from rawkern.cli.summary import summary as told


def summary(name: str, before: torch.Tensor, after: torch.Tensor) -> SimpleNamespace:
    return SimpleNamespace(**told(name, before, after))


def test_numbers_of_a_tensor() -> None:
    before = torch.tensor([[1.0, math.nan, 3.0], [-2.0, 0.5, math.inf]])
    after = torch.tensor([[1.0, math.nan, -3.0], [-2.0, math.nan, math.inf]])
    found = summary("x", before, after)
    assert (found.name, found.dtype, found.shape, found.changed, found.nans) == ("x", "float32", (2, 3), 2, 2)
    assert (found.low, found.high, found.mean) == (-3.0, math.inf, math.inf)
    assert found.first[0] == 1.0 and math.isnan(found.first[1]) and found.first[2:] == (-3.0, -2.0)


def test_ints_stay_exact() -> None:
    big = torch.tensor([2**62 + 1, -(2**62) - 1])
    found = summary("x", torch.zeros_like(big), big)
    assert (found.low, found.high, found.changed, found.nans) == (-(2**62) - 1, 2**62 + 1, 2, 0)
    unsigned = torch.tensor([-1], dtype=torch.int64).view(torch.uint64)
    assert summary("x", unsigned, unsigned).high == 2**64 - 1


def test_a_change_is_one_of_bits() -> None:
    zero = torch.zeros(3, dtype=torch.float64)
    assert changed_elements(zero, -zero) == 3 and changed_elements(zero, zero.clone()) == 0
    nan = torch.full((3,), math.nan)
    assert changed_elements(nan, nan.clone()) == 0
    assert changed_elements(torch.zeros(2, 2), torch.eye(2)) == 2
    assert changed_elements(torch.zeros(()), torch.ones(())) == 1


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    found = summary("x", torch.zeros(shape), torch.zeros(shape))
    assert (found.changed, found.low, found.mean, found.nans, found.first) == (0, None, None, 0, ())


def test_only_nan_and_complex() -> None:
    found = summary("x", torch.zeros(2), torch.full((2,), math.nan))
    assert (found.low, found.high, found.mean, found.nans) == (None, None, None, 2)
    found = summary("x", torch.zeros(1, dtype=torch.complex64), torch.tensor([1 - 2j]))
    assert (found.low, found.changed, found.first) == (None, 1, (1 - 2j,))


def test_shown() -> None:
    assert [shown(v) for v in (None, 1.0, -1 / 3, math.nan, 7, True, 1 + 2j)] == [
        "-", "1", "-0.33333", "nan", "7", "True", "1+2j"
    ]  # fmt: skip
