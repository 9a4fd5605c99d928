"""rawkern.op: what one declaration gives, eagerly."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from .cases import CASES, cases, leaves, numbers, outputs, unit_reference
from .kernels import affine, descend, mul, relu_, smooth_mul, tracked, unit


@cases
def test_values_and_gradients(case: str, device: str) -> None:
    ours, theirs, shapes = CASES[case]
    for needed in range(1, 2 ** len(shapes)):  # which inputs require grad
        inputs = [t.detach().requires_grad_(bool(needed >> i & 1)) for i, t in enumerate(leaves(device, *shapes))]
        found, expected = outputs(ours(*inputs)), outputs(theirs(*inputs))
        torch.testing.assert_close(found, expected)
        wanted = [t for t in inputs if t.requires_grad]
        grads = [numbers(*t.shape, device=device, seed=9) for t in expected]
        torch.testing.assert_close(
            torch.autograd.grad(found, wanted, grads), torch.autograd.grad(expected, wanted, grads)
        )
    with torch.no_grad():
        found = outputs(ours(*inputs))
        torch.testing.assert_close(found, outputs(theirs(*inputs)))
        assert not any(t.requires_grad for t in found)
    with torch.inference_mode():
        torch.testing.assert_close(outputs(ours(*inputs)), outputs(theirs(*inputs)))


@cases
def test_gradcheck(case: str) -> None:
    ours, _, shapes = CASES[case]
    assert torch.autograd.gradcheck(ours, leaves("cpu", *shapes))


@cases
def test_through_the_dispatcher(case: str, device: str) -> None:
    """A torch function mode keeps calls from the short way."""
    ours, theirs, shapes = CASES[case]
    inputs = leaves(device, *shapes)
    with torch.device(device):
        found, expected = outputs(ours(*inputs)), outputs(theirs(*inputs))
        torch.testing.assert_close(found, expected)
        grads = [numbers(*t.shape, device=device, seed=9) for t in expected]
        torch.testing.assert_close(
            torch.autograd.grad(found, inputs, grads), torch.autograd.grad(expected, inputs, grads)
        )


def test_gradients_arrive_contiguous(device: str) -> None:
    (x,) = leaves(device, (5, 7))
    unit(x).sum().backward()  # a gradient of stride 0
    (expected,) = torch.autograd.grad(unit_reference(x).sum(), x)
    torch.testing.assert_close(x.grad, expected)
    a, b = leaves(device, (4, 6), (4, 6))
    grad = numbers(6, 4, device=device).t()
    torch.testing.assert_close(torch.autograd.grad(mul(a, b), (a, b), grad), (grad * b, grad * a))


def test_what_is_not_returned(device: str) -> None:
    x = numbers(5, 7, device=device)
    assert isinstance(unit(x), torch.Tensor)
    assert isinstance(unit.overload(x), tuple) and len(unit.overload(x)) == 2
    y = x.clone()
    assert relu_(y) is y and relu_.overload(x.clone()) is None


# --- changes in place -----------------------------------------------------------------------------------------------


def test_in_place_operators_reject_leaves_before_they_write(device: str) -> None:
    for context in (torch.autograd.graph.save_on_cpu, lambda: torch.device(device)):
        x = numbers(9, device=device).requires_grad_()
        before = x.detach().clone()
        with context(), pytest.raises(RuntimeError) as caught:
            relu_(x)
        assert str(caught.value) == (
            "rawkern_test::relu_: x is a leaf that requires grad and cannot be changed in place; "
            "use torch.no_grad() or pass a copy"
        )
        with context(), pytest.raises(RuntimeError, match="x is a view of a leaf that requires grad"):
            relu_(x[:3])
        assert torch.equal(x, before)
    with torch.no_grad():
        assert relu_(x) is x and torch.equal(x, before.relu())


def test_changed_tensors_are_noticed(device: str) -> None:
    x = numbers(9, device=device).requires_grad_()
    y = x * 2
    z = y.sin()  # saves y
    relu_(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    version = y._version
    relu_.overload(y.detach())
    assert y._version > version


def test_state_beside_the_outputs(device: str) -> None:
    (x,) = leaves(device, (3, 7))
    total = torch.ones_like(x)
    out = tracked(x, total)
    assert torch.equal(out, 2 * x) and torch.equal(total, 1 + x) and not total.requires_grad
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], torch.full_like(x, 2))
    with pytest.raises(RuntimeError, match="rawkern_test::tracked: total requires grad and is changed besides"):
        tracked(x, total.requires_grad_())


def test_lists_changed_in_place(device: str) -> None:
    params = leaves(device, (3, 7), (5,))
    before = [p.detach().clone() for p in params]
    with torch.no_grad():
        found = descend(params, before, 0.5)
    assert all(f is p for f, p in zip(found, params, strict=True))
    torch.testing.assert_close(params, [b * 0.5 for b in before])
    with pytest.raises(RuntimeError, match=r"rawkern_test::descend: params\[0\] is a leaf that requires grad"):
        descend(params, before, 0.5)


# --- derivatives of derivatives -------------------------------------------------------------------------------------


def test_double_backward(device: str) -> None:
    a, b = leaves(device, (3, 7), (3, 7))
    assert torch.autograd.gradgradcheck(smooth_mul, (a.detach()[:1].requires_grad_(), b.detach()[:1].requires_grad_()))
    (first,) = torch.autograd.grad(smooth_mul(smooth_mul(a, a), b).sum(), a, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), a)[0], 2 * b)
    (first,) = torch.autograd.grad(affine(a * a).sum(), a, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), a)[0], torch.full_like(a, 2))


def test_double_backward_of_a_launch_is_an_error(device: str) -> None:
    (a,) = leaves(device, (3, 7))
    (first,) = torch.autograd.grad(mul(a, a).sum(), a, create_graph=True)
    torch.testing.assert_close(first, 2 * a)
    with pytest.raises(RuntimeError) as caught:
        first.sum().backward()
    message = (
        "rawkern_test::mul_backward launches kernels itself, so it cannot be differentiated again; make it of "
        "differentiable operators (a kernel in it becomes one through rawkern.op)"
    )
    assert str(caught.value) == message
    with pytest.raises(RuntimeError) as caught:
        torch.func.grad(lambda a: torch.func.grad(lambda a: mul(a, a).sum())(a).sum())(a.detach())
    assert str(caught.value) == message
    with pytest.raises(NotImplementedError, match="mul_backward launches kernels itself and has no forward-mode"):
        torch.func.jacfwd(torch.func.grad(lambda a: mul(a, a).sum()))(a.detach())


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool, device: str) -> None:
    (x,) = leaves(device, (5, 7))
    checkpoint(lambda x: unit(mul(x, x)).sin().sum(), x, use_reentrant=reentrant).backward()
    expected = unit_reference(x * x).sin().sum()
    torch.testing.assert_close(x.grad, torch.autograd.grad(expected, x)[0])


def test_retained_graphs_and_hooks(device: str) -> None:
    (x,) = leaves(device, (5, 7))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to(device)):
        out = unit(x).sum()
    first = torch.autograd.grad(out, x, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(out, x), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, x)
