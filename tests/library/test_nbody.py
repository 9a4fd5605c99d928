"""nbody_forces against the equation in torch, in float64."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

import rawkern


def reference(p: torch.Tensor, m: torch.Tensor, G: float, softening: float = 0.0) -> torch.Tensor:
    away = p[:, None, :] - p[:, :, None]  # [:, i, j] = p_j - p_i
    square = (away * away).sum(0) + softening**2
    inverse = torch.where(square > 0, square.clamp(min=1e-300) ** -1.5, 0.0)
    return G * (m[:, None] * m * inverse * away).sum(-1)


def bodies(dims: int, n: int, dtype: torch.dtype, device: str):
    generator = torch.Generator().manual_seed(n)
    p = torch.randn(dims, n, generator=generator, dtype=torch.float64)
    m = torch.rand(n, generator=generator, dtype=torch.float64) + 0.5
    return p.to(device, dtype), m.to(device, dtype)


TOLERANCES = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 2e-5, torch.float64: 1e-12}


@pytest.mark.parametrize(("dims", "dtype"), [(2, torch.float32), *((3, dtype) for dtype in TOLERANCES)])
def test_forces_and_gradients(device, dims, dtype):
    tolerance = TOLERANCES[dtype]
    for n, softening in ((1, 0.0), (2, 0.0), (333, 0.25), (1100, 0.5)):
        p, m = bodies(dims, n, dtype, device)
        p.requires_grad_()
        m.requires_grad_()
        wide = [t.detach().double().clone().requires_grad_() for t in (p, m)]
        force = rawkern.nbody_forces(p, m, G=0.5, softening=softening)
        want = reference(*wide, 0.5, softening)
        assert force.dtype is dtype
        scale = want.abs().max().item() + 1e-30
        assert (force - want).abs().max().item() <= tolerance * scale
        grad = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(device)
        if n == 1:
            continue
        force.backward(grad.to(dtype))
        want.backward(grad)
        for t, w in zip((p, m), wide, strict=True):
            assert t.grad is not None and w.grad is not None
            assert (t.grad - w.grad).abs().max().item() <= 2 * tolerance * w.grad.abs().max().item()


def test_coincident_bodies_contribute_nothing(device):
    p = torch.tensor([[0.0, 0.0, 2.0], [1.0, 1.0, 1.0]], dtype=torch.float64, device=device, requires_grad=True)
    m = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64, device=device, requires_grad=True)
    force = rawkern.nbody_forces(p, m, G=1.0)
    assert force.tolist() == [[1.0, 2.0, -3.0], [0.0, 0.0, 0.0]]
    tiny = rawkern.nbody_forces(p.float(), m.float(), G=1.0, softening=1e-30)
    assert tiny.tolist() == [[1.0, 2.0, -3.0], [0.0, 0.0, 0.0]]
    force.sum().backward()
    assert p.grad is not None and p.grad.isfinite().all() and m.grad is not None and m.grad.isfinite().all()


def test_planets_in_si_units(device):
    """The Earth and the Sun, in float32: about 3.54e22 N."""
    p = torch.tensor([[0.0, 1.496e11], [0.0, 0.0]], device=device)
    m = torch.tensor([1.989e30, 5.972e24], device=device)
    force = rawkern.nbody_forces(p, m)
    assert force[0, 0].item() == pytest.approx(3.54e22, rel=2e-3)
    assert force[0, 1].item() == pytest.approx(-3.54e22, rel=2e-3)


def test_gradcheck_and_one_order_only(device):
    p, m = bodies(3, 5, torch.float64, device)
    p.requires_grad_()
    m.requires_grad_()
    op = lambda p, m: rawkern.nbody_forces(p, m, G=2.0, softening=0.1)  # noqa: E731
    assert gradcheck(op, (p, m))
    (grad,) = torch.autograd.grad(op(p, m).sum(), p, create_graph=True)
    with pytest.raises(RuntimeError, match=r"nbody_forces_backward launches kernels itself.*; where second deri"):
        grad.sum().backward()


def test_same_result_every_time(device):
    p, m = bodies(2, 3000, torch.float32, device)
    first = rawkern.nbody_forces(p, m)
    assert all(torch.equal(rawkern.nbody_forces(p, m), first) for _ in range(3))


def test_compile_opcheck_and_layout(device):
    p, m = bodies(2, 50, torch.float32, device)
    turned = p.t().contiguous().t()
    torch.testing.assert_close(rawkern.nbody_forces(turned, m, G=1.0), rawkern.nbody_forces(p, m, G=1.0))
    assert rawkern.nbody_forces(p[:, :0], m[:0]).shape == (2, 0)
    compiled = torch.compile(lambda p: rawkern.nbody_forces(p * 2, m, G=1.0).sum(), fullgraph=True, backend="aot_eager")
    compiled(p.requires_grad_()).backward()
    want = p.detach().clone().requires_grad_()
    rawkern.nbody_forces(want * 2, m, G=1.0).sum().backward()
    torch.testing.assert_close(p.grad, want.grad)
    torch.library.opcheck(torch.ops.rawkern.nbody_forces.default, (p, m, 1.0, 0.5))


def test_rejections(device):
    p, m = bodies(2, 4, torch.float32, device)
    with pytest.raises(ValueError, match=r"positions has shape \(4, 2\); pass \(2, N\) or \(3, N\)"):
        rawkern.nbody_forces(p.t(), m)
    with pytest.raises(ValueError, match=r"masses has shape \(3,\); positions has 4 bodies"):
        rawkern.nbody_forces(p, m[:3])
    with pytest.raises(TypeError, match="positions is int64; pass a tensor of float16"):
        rawkern.nbody_forces(p.long(), m)
    with pytest.raises(TypeError, match=r"positions is torch.float32, masses is torch.float64"):
        rawkern.nbody_forces(p, m.double())
    with pytest.raises(ValueError, match=r"softening is -1; it can't be negative"):
        rawkern.nbody_forces(p, m, softening=-1)
