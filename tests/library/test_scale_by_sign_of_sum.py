"""scale_by_sign_of_sum: a branch on a sum, taken on the device."""

from __future__ import annotations

import pytest
import torch

import rawkern
from tests.library.common import DTYPES, LAYOUTS, layouts, numbers, poison, same_bits


def _expected(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.double().sum() > 0 else x * -2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_size(dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    for size in (0, 1, 5, 257, 8192, 100_001, 300_000):
        for shift in (0.5, -0.5):
            x = numbers(size, dtype, device) + shift
            assert same_bits(rawkern.scale_by_sign_of_sum(x), _expected(x))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str, device: str) -> None:
    x = layouts(torch.float32, device)[layout]
    assert same_bits(rawkern.scale_by_sign_of_sum(x), _expected(x))


def test_a_sum_of_zero_or_nan_is_not_positive(device: str) -> None:
    for values in ([1.0, -1.0], [0.0], [torch.nan, 1.0], [torch.inf, -torch.inf]):
        x = torch.tensor(values, device=device)
        assert same_bits(rawkern.scale_by_sign_of_sum(x), x * -2)


def test_gradients(device: str) -> None:
    for shift in (0.7, -0.7):
        x = (numbers((3, 4), torch.float64, device) + shift).requires_grad_()
        assert torch.autograd.gradcheck(rawkern.scale_by_sign_of_sum, (x,))
        assert torch.autograd.gradgradcheck(rawkern.scale_by_sign_of_sum, (x,))


def test_compiles_into_one_graph_where_an_if_does_not(device: str) -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x * -2

    x = numbers((3, 4), torch.float32, device) + 1
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(branches, fullgraph=True, backend="aot_eager")(x)
    compiled = torch.compile(lambda x: rawkern.scale_by_sign_of_sum(x) + 1, fullgraph=True, backend="aot_eager")
    for each in (x, -x):
        assert torch.equal(compiled(each), _expected(each) + 1)
