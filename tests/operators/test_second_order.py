"""Differentiating twice through what an operator saves."""

from __future__ import annotations

import pytest
import torch

import rawkern


@rawkern.op("rawkern_tests::hidden_root", save=("x", "root"), hidden=("root",))
def hidden_root(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    root = x.detach().sqrt()
    return root * 1, root


@hidden_root.backward
def _(ctx, grad_out):
    _, root = ctx.saved_tensors
    return grad_out / (2 * root)


def test_a_hidden_output_has_no_derivative(device):
    """Its dependence on the inputs is not recorded, so a second derivative through it would be wrong in silence."""
    x = torch.tensor([1.0, 4.0], dtype=torch.float64, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(hidden_root(x).sum(), x, create_graph=True)
    assert grad.tolist() == [0.5, 0.25]
    with pytest.raises(RuntimeError, match="rawkern_tests::hidden_root: its hidden output root has no derivative"):
        torch.autograd.grad(grad.sum(), x)


def test_what_does_not_depend_on_it_is_differentiated(device):
    weight = torch.ones(2, dtype=torch.float64, device=device, requires_grad=True)
    x = torch.tensor([1.0, 4.0], dtype=torch.float64, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad((hidden_root(x) * weight).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), weight)
    assert second.tolist() == [0.5, 0.25]
