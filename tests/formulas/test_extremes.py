"""Maximum and minimum reductions: their derived backward, compared with torch's amax and amin."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import rawkern

INFINITY = "#define INFINITY __int_as_float(0x7f800000)\n"
amax = rawkern.reduction("T x", "T y", "x", "max(a, b)", "y = a", "-INFINITY", "amax_of", preamble=INFINITY)
amin = rawkern.reduction("T x, T w", "T y", "x * w + w", "a < b ? a : b", "y = a * a", "1e30", "amin_of")
norm = rawkern.reduction("T x", "T y, T z", "abs(x)", "fmax(b, a)", "y = a; z = log(a + count)", "0", "norm_inf")
placed = rawkern.reduction("T x", "T y", "x * (_J + 1)", "(b >= a) ? b : a", "y = a / count", "-1e30", "placed_max")


def values(*shape: int, dtype: torch.dtype = torch.float64, device: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device=device, dtype=dtype).requires_grad_()


CASES = {
    "maximum": (lambda x, w, axis: amax(x, axis=axis), lambda x, w, axis: x.amax(axis)),
    "minimum": (lambda x, w, axis: amin(x, w, axis=axis), lambda x, w, axis: (x * w + w).amin(axis) ** 2),
    "two outputs": (
        lambda x, w, axis: sum(norm(x, axis=axis)),
        lambda x, w, axis: (m := x.abs().amax(axis)) + (m + x.numel() // m.numel()).log(),
    ),
}


@pytest.mark.parametrize(
    ("case", "axes"),
    [("maximum", ((0,), (0, 1, 2))), ("minimum", ((1,), (0, 2))), ("two outputs", ((1,), (0, 1, 2)))],
    ids=CASES,
)
def test_gradients(case, axes, device):
    """Each way to reduce with one of them; the second derivative with that of two inputs."""
    ours, theirs = CASES[case]
    x, w = values(3, 5, 4, device=device), values(4, device=device, seed=1)
    for axis in axes:
        y, expected = ours(x, w, axis), theirs(x, w, axis)
        torch.testing.assert_close(y, expected)
        g = values(*expected.shape, device=device, seed=2).detach()
        found, wanted = (torch.autograd.grad(t, (x, w), g, allow_unused=True) for t in (y, expected))
        torch.testing.assert_close(found, wanted)
    assert gradcheck(lambda x: ours(x, w, axes[0]), x)
    assert case != "minimum" or gradgradcheck(lambda x: ours(x, w, axes[0]), x)


def test_elements_that_tie_share_the_gradient(device):
    x = torch.tensor([[1.0, 3, 3], [2, 2, 2]], device=device, requires_grad=True)
    compiled = torch.compile(lambda x: amax(x, axis=1), backend="aot_eager", fullgraph=True)
    for call in (lambda x: amax(x, axis=1), lambda x: x.amax(1), compiled, torch.func.vmap(amax)):
        (found,) = torch.autograd.grad(call(x).sum(), x)
        torch.testing.assert_close(found, torch.tensor([[0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]], device=device))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_one_element_gets_it_in_every_dtype(dtype, device):
    """An element is found again whatever its mapping is rounded to."""
    x, w = (values(*shape, dtype=dtype, device=device, seed=k) for k, shape in enumerate([(64, 33), (33,)]))
    (found,) = torch.autograd.grad(amin(x, w, axis=1).sum(), x)
    assert (found != 0).sum(1).ge(1).all()
    (found,) = torch.autograd.grad(amax(x, axis=0).float().sum(), x)
    torch.testing.assert_close(found.float().sum(0), torch.ones(33, device=device), rtol=0.01, atol=0.01)


def test_the_index_and_edges(device):
    x = values(3, 5, device=device)
    assert gradcheck(lambda x: placed(x, axis=1), x)
    torch.library.opcheck(placed.operator.overload, (x, [1], False))
    number = torch.tensor(3.0, device=device, requires_grad=True)
    assert torch.autograd.grad(amax(number), number)[0] == 1
    nothing = torch.empty(0, 3, device=device, requires_grad=True)
    assert torch.autograd.grad(amax(nothing, axis=0).sum(), nothing)[0].shape == (0, 3)
    missing = torch.tensor([1.0, torch.nan], device=device, requires_grad=True)
    assert torch.autograd.grad(amax(missing), missing)[0].tolist() == [1, 0]  # CUDA's max passes over NaN
    assert "== a ? grad_a" in amax.backward_source


def test_others_are_not_derived():
    for joined in ("a * b", "a > b ? a : 0", "a > a ? a : b", "max(a, b) + 0"):
        other = rawkern.reduction("T x", "T y", "x", joined, "y = a", "0", "no_extreme")
        with pytest.raises(rawkern.NotDifferentiable, match=r"a sum \(a \+ b\), a maximum or a minimum, not of"):
            _ = other.backward_source
