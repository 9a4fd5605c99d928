"""rotary_embedding against complex multiplication in float64."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import rawkern


def reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    half = x.shape[-1] // 2
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    turned = torch.complex(a.double(), b.double()) * torch.complex(cos.double(), sin.double())
    if interleaved:
        return torch.stack([turned.real, turned.imag], -1).flatten(-2)
    return torch.cat([turned.real, turned.imag], -1)


def angles(positions: int, half: int, device: str, dtype: torch.dtype = torch.float32):
    turn = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(half) / half)
    return turn.cos().to(device, dtype), turn.sin().to(device, dtype)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_against_complex_numbers(device, dtype, interleaved):
    for half in (1, 5, 16):
        x = torch.randn(2, 7, 3, 2 * half, dtype=torch.float64).to(device, dtype).transpose(1, 2)
        for kind in {dtype, torch.float32}:
            cos, sin = angles(7, half, device, kind)
            y = rawkern.rotary_embedding(x, cos, sin, interleaved=interleaved)
            assert y.dtype is dtype and y.shape == x.shape
            torch.testing.assert_close(y, reference(x, cos, sin, interleaved).to(dtype))


@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients(device, interleaved):
    cos, sin = angles(4, 3, device, torch.float64)
    x = torch.randn(2, 4, 6, dtype=torch.float64, device=device, requires_grad=True)
    op = lambda x: rawkern.rotary_embedding(x, cos, sin, interleaved=interleaved)  # noqa: E731
    assert gradcheck(op, (x,))
    assert gradgradcheck(op, (x,))
    torch.compile(lambda x: op(x).sum(), fullgraph=True, backend="aot_eager")(x).backward()
    (want,) = torch.autograd.grad(op(x).sum(), x)
    torch.testing.assert_close(x.grad, want)


def test_rejections(device):
    cos, sin = angles(4, 3, device)
    with pytest.raises(ValueError, match=r"x has shape \(4, 5\); the last dimension has to be even"):
        rawkern.rotary_embedding(torch.ones(4, 5, device=device), cos, sin)
    with pytest.raises(ValueError, match=r"cos has shape \(4, 3\), which does not broadcast to \(4, 2\)"):
        rawkern.rotary_embedding(torch.ones(4, 4, device=device), cos, sin)
    with pytest.raises(TypeError, match="x is int64"):
        rawkern.rotary_embedding(torch.ones(4, 6, dtype=torch.int64, device=device), cos, sin)
    with pytest.raises(RuntimeError, match=r"rotary_embedding: cos has no gradient; pass cos.detach\(\)"):
        rawkern.rotary_embedding(torch.ones(4, 6, device=device), cos.requires_grad_(), sin).sum().backward()
