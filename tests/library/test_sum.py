"""sum and mean beside torch's in float64."""

from __future__ import annotations

import pytest
import torch

import rawkern
from tests.library.common import DTYPES, compare, layouts, numbers, poison

BOTH = pytest.mark.parametrize("name", ["sum", "mean"])


def _pair(name: str, dim, keepdim: bool = False):
    return (lambda x: getattr(rawkern, name)(x, dim, keepdim)), (lambda x: getattr(torch, name)(x, dim, keepdim))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    x = numbers((40, 1000), dtype, device) + 0.5
    for dim in (0, 1, None):
        compare(*_pair("mean", dim), x)


CASES = [
    ((300, 77), 0),
    ((300, 77), 1),
    ((6, 7, 8), (0, 2)),
    ((6, 7, 8), (2, 0)),
    ((6, 7, 8), 1),
    ((6, 7, 8), -1),
    ((2, 3, 4, 5), (1, 2)),
    ((), None),
    ((), 0),
    ((3, 0), 1),
    ((3, 0), 0),
    ((0, 3), None),
    ((200_003,), 0),
    ((3, 70_000), 1),
    ((9000, 5), 0),
    ((5, 40, 33), ()),
]


@BOTH
def test_every_shape(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    for shape, dim in CASES:
        for keepdim in (False, True):
            x = numbers(shape, torch.float32, device) + 0.5
            compare(*_pair(name, dim, keepdim), x, factor=4)


@BOTH
def test_layouts(name: str, device: str) -> None:
    for x in layouts(torch.float32, device).values():
        compare(*_pair(name, -1), x, factor=20)
        compare(*_pair(name, None), x, factor=20)


def test_dtype_gradients_and_rejections(device: str) -> None:
    x = torch.full((3000,), 30.0, dtype=torch.float16, device=device)
    assert rawkern.sum(x, dtype=torch.float32) == 90_000
    assert rawkern.sum(x).isinf()
    assert rawkern.mean(x) == 30
    y = numbers((3, 4, 2), torch.float64, device).requires_grad_()
    for dim in (1, (0, 2)):
        assert torch.autograd.gradcheck(lambda y, dim=dim: rawkern.mean(y, dim).square(), (y,))
        assert torch.autograd.gradgradcheck(lambda y, dim=dim: rawkern.mean(y, dim).square(), (y,))
    with pytest.raises(IndexError, match="sum: dim is 1, the tensor has 1 dimensions"):
        rawkern.sum(x, 1)
    with pytest.raises(ValueError, match="names a dimension twice"):
        rawkern.sum(y, (0, -3))
    with pytest.raises(TypeError, match="int64; there is sum for"):
        rawkern.sum(torch.arange(3, device=device))


def test_sums_are_the_same_in_every_run(device: str) -> None:
    x = numbers((1000, 300), torch.float32, device)
    for dim in (0, 1, None):
        first = rawkern.sum(x, dim)
        assert all(torch.equal(first, rawkern.sum(x, dim)) for _ in range(3))


def test_kernels_that_begin_early_wait_for_the_one_before(device: str) -> None:
    """Each operator reads at once what the one before it writes, also in a CUDA graph."""
    n = 1 << 18
    x = torch.zeros(n, device=device)

    def run(k: int) -> torch.Tensor:
        x.fill_(k)
        return rawkern.sum(rawkern.scale_by_sign_of_sum(rawkern.square(x)))

    out = [run(k) for k in range(1, 20)]
    assert [t.item() for t in out] == [2.0 * k * k * n for k in range(1, 20)]
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = run(3)
        x.zero_()
        graph.replay()
        assert recorded.item() == 18.0 * n
