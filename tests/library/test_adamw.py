"""adamw_ and rawkern.optim.AdamW against torch.optim.AdamW in float64."""

from __future__ import annotations

import pytest
import torch

import rawkern
from rawkern.optim import AdamW

SHAPES = [(3,), (40000, 2), (1,), (6, 4), (0, 5), (129,)]


def parameters(dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(s, generator=generator, dtype=torch.float64).to(device, dtype) for s in SHAPES]
    made[3] = made[3].t()
    return [t.detach().requires_grad_() for t in made]


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_steps_are_torchs(device, dtype, tolerance, maximize):
    ours = parameters(dtype, device)
    theirs = [p.detach().double().clone().requires_grad_() for p in ours]
    options = {"lr": 0.05, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1, "maximize": maximize}
    one, two = AdamW(ours, **options), torch.optim.AdamW(theirs, **options)
    generator = torch.Generator().manual_seed(1)
    for k in range(4):
        for p, q in zip(ours, theirs, strict=True):
            grad = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(device)
            p.grad, q.grad = grad.to(dtype), grad.clone()
        if k == 2:
            ours[0].grad = theirs[0].grad = None  # then its step is less than the others'
        one.step()
        two.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p.double(), q, rtol=tolerance, atol=tolerance)
    two.load_state_dict(one.state_dict())
    one.load_state_dict(two.state_dict())


def test_half_parameters_with_float_averages(device):
    p = torch.linspace(-2, 2, 1001, device=device).to(torch.bfloat16)
    g = torch.linspace(3, -1, 1001, device=device).to(torch.bfloat16)
    m, v = torch.zeros(1001, device=device), torch.zeros(1001, device=device)
    want = p.double().clone().requires_grad_()
    want.grad = g.double()
    torch.optim.AdamW([want], lr=0.01, weight_decay=0.1).step()
    rawkern.adamw_([p], [g], [m], [v], step=1, lr=0.01, weight_decay=0.1)
    torch.testing.assert_close(p.double(), want.detach(), rtol=4e-3, atol=1e-5)
    torch.testing.assert_close(m, 0.1 * g.float(), rtol=1e-6, atol=0)
    torch.testing.assert_close(v, 0.001 * g.float() ** 2, rtol=1e-5, atol=0)


def test_closure_and_rejections(device):
    p = torch.ones(3, device=device, requires_grad=True)
    optimizer = AdamW([p], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3.0
    assert (p < 1).all()
    with pytest.raises(ValueError, match=r"rawkern.optim.AdamW has no amsgrad; use torch.optim.AdamW"):
        AdamW([p], amsgrad=True)
    with pytest.raises(ValueError, match="has no fused"):  # torch's scaler leaves dividing to a fused step
        AdamW([p], fused=True)
    with pytest.raises(ValueError, match="has no amsgrad"):
        one_group = AdamW([{"params": [p], "amsgrad": True}])
        one_group.step()
    with pytest.raises(ValueError, match="adamw_: step is 0; the first is 1"):
        rawkern.adamw_([p], [p], [p], [p], step=0)
    with pytest.raises(ValueError, match="adamw_: grads has 0 tensors, params has 1"):
        rawkern.adamw_([p], [], [p], [p], step=1)
    with pytest.raises(ValueError, match=r"adamw_: exp_avgs\[0\] has shape \(2,\), params\[0\] has \(3,\)"):
        rawkern.adamw_([p], [p], [p[:2]], [p], step=1)
    with pytest.raises(TypeError, match=r"adamw_: grads\[0\] is torch.float64, params\[0\] is torch.float32"):
        rawkern.adamw_([p], [p.double()], [p], [p], step=1)


@pytest.mark.gpu
def test_a_cuda_graph_would_replay_one_step():
    p = torch.ones(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(rawkern.LaunchError, match="a CUDA graph would replay the same step"), torch.cuda.graph(graph):
        rawkern.adamw_([p], [p.clone()], [p.clone()], [p.clone()], step=1)
