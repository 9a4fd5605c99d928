"""cross_entropy beside torch's in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import rawkern
from tests.library.common import DTYPES, compare, numbers, poison


def _targets(shape: tuple[int, ...], device: str) -> torch.Tensor:
    classes = shape[1] if len(shape) > 1 else shape[0]
    generator = torch.Generator().manual_seed(3)
    target = torch.randint(0, classes, shape[:1] + shape[2:] if len(shape) > 1 else (), generator=generator)
    if target.numel() > 2:
        target.view(-1)[1] = -100
    return target.to(device)


def _compare(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, **options) -> None:
    double = None if weight is None else weight.double()
    compare(
        lambda x: rawkern.cross_entropy(x, target, weight, **options),
        lambda x: F.cross_entropy(x, target, double, **options),
        x,
        factor=4,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    _compare(numbers((7, 1000), dtype, device), _targets((7, 1000), device))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_every_option(smoothing: float, weighted: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    for shape, reduction in itertools.product(((5, 44), (4, 33, 6), (9,)), ("mean", "sum", "none")):
        classes = shape[1] if len(shape) > 1 else shape[0]
        weight = numbers(classes, torch.float32, device, seed=1).abs() if weighted else None
        x = numbers(shape, torch.float32, device)
        _compare(x, _targets(shape, device), weight, reduction=reduction, label_smoothing=smoothing)


@pytest.mark.parametrize("classes", [1, 3, 1028, 4099, 33000, 140001])
def test_every_number_of_classes(classes: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    _compare(numbers((3, classes), torch.float32, device), _targets((3, classes), device), label_smoothing=0.1)
    _compare(numbers((3, classes), torch.float32, device), _targets((3, classes), device))


def test_ignored_targets_and_large_logits(device: str) -> None:
    x = (numbers((4, 9), torch.float32, device) * 1e4).requires_grad_()
    target = torch.tensor([3, 7, 7, 2], device=device)
    loss = rawkern.cross_entropy(x, target, ignore_index=7)
    torch.testing.assert_close(loss, F.cross_entropy(x, target, ignore_index=7))
    assert torch.equal(torch.autograd.grad(loss, x)[0][1:3], torch.zeros(2, 9, device=device))
    assert rawkern.cross_entropy(x, torch.full_like(target, 7), ignore_index=7).isnan()
    assert rawkern.cross_entropy(x[:0], target[:0]).isnan()
    assert rawkern.cross_entropy(x[:0], target[:0], reduction="sum") == 0
    assert rawkern.cross_entropy(x[:0], target[:0], reduction="none").shape == (0,)


def test_minus_infinity_is_a_class_that_cannot_be(device: str) -> None:
    x = numbers((3, 2000), torch.float32, device)
    x[:, 1::2] = -torch.inf
    target = torch.tensor([0, 2, 1], device=device)
    got = rawkern.cross_entropy(x, target, reduction="none")
    torch.testing.assert_close(got, F.cross_entropy(x, target, reduction="none"))
    assert got[2] == torch.inf


def test_layouts_and_unequal_gradients(device: str) -> None:
    x = numbers((6, 5, 8), torch.float32, device)
    _compare(x.transpose(1, 2), _targets((6, 8, 5), device), reduction="none")
    _compare(x[::2, 1:], _targets((3, 4, 8), device))


def test_gradcheck(device: str) -> None:
    x = numbers((4, 6), torch.float64, device).requires_grad_()
    target, weight = _targets((4, 6), device), numbers(6, torch.float64, device, seed=1).abs()
    assert torch.autograd.gradcheck(lambda x: rawkern.cross_entropy(x, target, weight, label_smoothing=0.3), (x,))


def test_rejections(device: str) -> None:
    x, target = torch.zeros(2, 3, device=device), torch.tensor([0, 1], device=device)
    for message, call in {
        r"input has shape \(2, 3\) and target \(1,\)": lambda: rawkern.cross_entropy(x, target[:1]),
        "target is torch.float32, it must be int64": lambda: rawkern.cross_entropy(x, x),
        r"weight has shape \(2,\), it must be \(3,\)": lambda: rawkern.cross_entropy(x, target, x[0, :2]),
        "reduction is 'avg', it must be one of none, mean, sum": lambda: rawkern.cross_entropy(
            x, target, reduction="avg"
        ),
        "label_smoothing is 2": lambda: rawkern.cross_entropy(x, target, label_smoothing=2),
        "weight gets no gradient": lambda: rawkern.cross_entropy(x, target, torch.ones(3, requires_grad=True)),
    }.items():
        with pytest.raises((TypeError, ValueError), match=message):
            call()


def test_a_target_that_is_no_class_is_reported() -> None:
    message = r"cross_entropy: target\[1\] is 3, and there are 3 classes; pass 0 to 2, or ignore_index, -100$"
    with pytest.raises(IndexError, match=message):
        rawkern.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3]))
    with pytest.raises(IndexError, match=r"target\[0, 1\] is -1, .*, or ignore_index, 2"):
        rawkern.cross_entropy(torch.zeros(2, 3, 2), torch.tensor([[0, -1], [2, 7]]), ignore_index=2)
