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


def test_hidden_outputs_are_guarded_at_every_level(device: str) -> None:
    """A gradient of a gradient would take what the backward reads for a constant, in silence."""

    @rawkern.op("rawkern_tests::hidden_twice", save=("x", "twice"), hidden=("twice",))
    def square(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * x, 2 * x

    @square.backward
    def _(ctx, g):
        return g * ctx.saved_tensors[1]

    square.vmap(lambda info, dims, x: (square.overload(x), (dims[0], dims[0])))
    x = torch.randn(3, 4, device=device, dtype=torch.float64)
    grad, vmap, jacrev = torch.func.grad, torch.func.vmap, torch.func.jacrev
    inner = grad(lambda x: square(x).sum())
    torch.testing.assert_close((inner(x), vmap(inner)(x)), (2 * x, 2 * x))
    for outer in (lambda: grad(lambda x: inner(x).sum())(x), lambda: jacrev(inner)(x), lambda: jacrev(vmap(inner))(x)):
        with pytest.raises(RuntimeError, match="its hidden output twice has no derivative"):
            outer()
    y = square(x.requires_grad_())
    (several,) = torch.autograd.grad(y, x, torch.ones(2, 3, 4).to(x), is_grads_batched=True, create_graph=True)
    with pytest.raises(RuntimeError, match="its hidden output twice has no derivative"):
        several.sum().backward()
