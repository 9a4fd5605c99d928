"""layer_norm and rms_norm, alone and of a sum with a residual, beside torch's in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import rawkern
from tests.library.common import DTYPES, assert_near, compare, layouts, numbers, poison

EPS = 0.1


def _layer(shape):
    return (
        lambda x, w, b: rawkern.layer_norm(x, shape, w, b, EPS),
        lambda x, w, b: F.layer_norm(x, shape, w, b, EPS),
    )


def _rms(shape):
    return lambda x, w: rawkern.rms_norm(x, shape, w, EPS), lambda x, w: F.rms_norm(x, shape, w, EPS)


def _inputs(shape, dims, dtype, device, seed=0):
    x = numbers(shape, dtype, device, seed) + 1.5
    return x, *(numbers(shape[len(shape) - dims :], dtype, device, seed + i) for i in (1, 2))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    x, w, b = _inputs((70, 1000), 1, dtype, device)
    compare(*_layer((1000,)), x, w, b, factor=4)
    compare(*_rms((1000,)), x, w, factor=4)


@pytest.mark.parametrize(
    ("shape", "dims"),
    [((37, 3), 1), ((3, 4099), 1), ((20, 2048), 1), ((2, 33000), 1), ((2, 6, 7, 5), 2), ((5,), 1), ((9, 1), 1)],
    ids=str,
)
def test_every_shape(shape: tuple[int, ...], dims: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    x, w, b = _inputs(shape, dims, torch.float32, device)
    size = tuple(shape[len(shape) - dims :])
    compare(*_layer(size), x, w, b, factor=8)
    compare(*_rms(size), x, w, factor=8)


def test_residual(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    for shape in ((6, 1000), (5, 1003), (4, 3, 8)):
        x, w, b = _inputs(shape, 1, torch.float32, device)
        r = numbers(shape, torch.float32, device, seed=7)
        size = shape[-1:]
        compare(
            lambda x, r, w, b, size=size: rawkern.add_layer_norm(x, r, size, w, b, EPS),
            lambda x, r, w, b, size=size: (F.layer_norm(x + r, size, w, b, EPS), x + r),
            *(x, r, w, b),
            factor=8,
        )
        compare(
            lambda x, r, w, size=size: rawkern.add_rms_norm(x, r, size, w, EPS),
            lambda x, r, w, size=size: (F.rms_norm(x + r, size, w, EPS), x + r),
            *(x, r, w),
            factor=8,
        )


def test_residual_with_one_result_unused(device: str) -> None:
    x, r = (numbers((3, 8), torch.float32, device, seed).requires_grad_() for seed in (1, 2))
    out, summed = rawkern.add_rms_norm(x, r, 8)
    a, b = torch.autograd.grad(summed.square().sum(), (x, r), retain_graph=True)
    assert torch.equal(a, 2 * (x + r)) and torch.equal(a, b)
    a, b = torch.autograd.grad(out.sum(), (x, r))
    s = (x + r).detach().requires_grad_()
    torch.testing.assert_close(a, torch.autograd.grad(F.rms_norm(s, (8,)).sum(), s)[0])
    assert torch.equal(a, b)


def test_without_weights_and_with_some_gradients(device: str) -> None:
    x, w, b = _inputs((5, 40), 1, torch.float32, device)
    compare(lambda x: rawkern.layer_norm(x, 40), lambda x: F.layer_norm(x, (40,)), x, factor=8)
    compare(lambda x: rawkern.rms_norm(x, [40]), lambda x: F.rms_norm(x, (40,), eps=2.0**-23), x, factor=8)
    compare(lambda b: rawkern.layer_norm(x, 40, w, b), lambda b: F.layer_norm(x.double(), (40,), w.double(), b), b)
    compare(lambda w: rawkern.layer_norm(x, 40, w, b), lambda w: F.layer_norm(x.double(), (40,), w, b.double()), w)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_default_eps_of_rms_norm(dtype: torch.dtype, device: str) -> None:
    x = numbers((3, 8), dtype, device) * 1e-3  # squares of the order of float32's eps, far under bfloat16's
    exact = F.rms_norm(x.double(), (8,), eps=2.0**-23)
    assert_near(rawkern.rms_norm(x, 8), exact, dtype, 4)
    assert_near(rawkern.add_rms_norm(x, torch.zeros_like(x), 8)[0], exact, dtype, 4)


def test_layouts_and_empty(device: str) -> None:
    for x in layouts(torch.float32, device).values():
        if x.dim() and x.shape[-1]:
            w = torch.ones(x.shape[-1], device=device)
            compare(*_layer(x.shape[-1:]), x, w, w.clone(), factor=8)
    w = torch.ones(3, device=device, requires_grad=True)
    x = torch.zeros(0, 3, device=device, requires_grad=True)
    grads = torch.autograd.grad(rawkern.layer_norm(x, 3, w, w).sum(), (x, w))
    assert grads[0].shape == (0, 3) and torch.equal(grads[1], torch.zeros_like(w))


def test_variance_of_numbers_far_from_zero(device: str) -> None:
    x = numbers((4, 1000), torch.float32, device) + 4096
    exact = F.layer_norm(x.double(), (1000,))
    torch.testing.assert_close(rawkern.layer_norm(x, 1000).double(), exact, rtol=1e-3, atol=1e-3)


def test_gradcheck(device: str) -> None:
    x, w, b = (t.requires_grad_() for t in _inputs((4, 5), 1, torch.float64, device))
    r = numbers((4, 5), torch.float64, device, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w, b: rawkern.layer_norm(x, 5, w, b, EPS), (x, w, b))
    assert torch.autograd.gradcheck(lambda x, r, w: rawkern.add_rms_norm(x, r, 5, w, EPS), (x, r, w))


def test_gradients_are_the_same_in_every_run(device: str) -> None:
    x, w, b = (t.requires_grad_() for t in _inputs((3000, 257), 1, torch.float32, device))
    g = numbers((3000, 257), torch.float32, device, seed=5)
    runs = [torch.autograd.grad(rawkern.layer_norm(x, 257, w, b), (x, w, b), g) for _ in range(3)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def test_rejections(device: str) -> None:
    x, w = torch.ones(2, 3, device=device), torch.ones(3, device=device)
    with pytest.raises(ValueError, match=r"normalized_shape is \(2,\), which are not the last sizes of \(2, 3\)"):
        rawkern.layer_norm(x, 2)
    with pytest.raises(ValueError, match=r"weight has shape \(2,\), it must be \(3,\)"):
        rawkern.rms_norm(x, 3, w[:2])
    with pytest.raises(TypeError, match=r"bias is torch.float64, the input is torch.float32; pass bias\.to"):
        rawkern.layer_norm(x, 3, w, w.double())
    with pytest.raises(ValueError, match=r"residual has shape \(1, 3\), it must be \(2, 3\)"):
        rawkern.add_rms_norm(x, x[:1], 3)
    with pytest.raises(TypeError, match="int64; there is norm for"):
        rawkern.layer_norm(x.long(), 3)
