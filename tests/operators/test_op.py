"""rawkern.op: what one declaration gives."""

from __future__ import annotations

import pytest
import torch

from .kernels import mul


def two(device: str, shape: tuple[int, ...] = (3, 7), dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, dtype=dtype).to(device).requires_grad_() for _ in range(2)]


def test_forward_and_backward(device: str) -> None:
    a, b = two(device)
    out = mul(a, b)
    assert torch.equal(out, a * b) and out.requires_grad
    grad = torch.randn_like(out)
    grad_a, grad_b = torch.autograd.grad(out, (a, b), grad)
    assert torch.equal(grad_a, grad * b) and torch.equal(grad_b, grad * a)
    with torch.no_grad():
        assert not mul(a, b).requires_grad


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiles_without_graph_break(backend: str, device: str) -> None:
    a, b = two(device)
    compiled = torch.compile(lambda a, b: mul(a.sin(), b).cos().sum(), fullgraph=True, backend=backend)
    found = torch.autograd.grad(compiled(a, b), (a, b))
    expected = torch.autograd.grad((a.sin() * b).cos().sum(), (a, b))
    torch.testing.assert_close(found, expected)


def test_opcheck(device: str) -> None:
    assert set(torch.library.opcheck(mul.overload, two(device)).values()) == {"SUCCESS"}
