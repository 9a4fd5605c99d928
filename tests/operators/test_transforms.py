"""rawkern.op under torch.func's transforms and forward-mode AD."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import rawkern

from .cases import CASES, cases, leaves, numbers, outputs, unit_reference
from .kernels import affine, kernel, mul, relu_, scale, smooth_mul, square_and_cube, unit


@pytest.fixture(autouse=True)
def _no_slow_vmap():
    """torch's way round a missing rule for vmap, one call after the other, is not to be used."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*performance drop.*")
        yield


@cases
def test_func_grad(case: str, device: str) -> None:
    ours, theirs, shapes = CASES[case]
    inputs = [t.detach() for t in leaves(device, *shapes)]
    every = tuple(range(len(inputs)))
    found, expected = (
        grad(lambda *args, f=f: sum(t.sin().sum() for t in outputs(f(*args))), argnums=every)(*inputs)
        for f in (ours, theirs)
    )
    torch.testing.assert_close(found, expected)
    _, pull = vjp(ours, *inputs)  # called outside of the transform, with tensors that have outlived it
    value, pull_expected = vjp(theirs, *inputs)
    cotangent = tuple(numbers(*t.shape, device=device, seed=9) for t in outputs(value))
    cotangent = cotangent if isinstance(value, tuple) else cotangent[0]
    torch.testing.assert_close(pull(cotangent), pull_expected(cotangent))


def test_second_derivatives(device: str) -> None:
    a, b = (t.detach() for t in leaves(device, (5,), (5,)))
    for outer in (jacrev, jacfwd):
        for inner in (jacrev, jacfwd):
            found = outer(inner(lambda a: smooth_mul(smooth_mul(a, a), b).sum()))(a)
            torch.testing.assert_close(found, torch.diag(2 * b))
    torch.testing.assert_close(hessian(lambda a: smooth_mul(a, smooth_mul(a, a)).sum())(a), torch.diag(6 * a))
    third = grad(lambda a: grad(lambda a: grad(lambda a: smooth_mul(a, smooth_mul(a, a)).sum())(a).sum())(a).sum())(a)
    torch.testing.assert_close(third, torch.full_like(a, 6))


# --- forward mode ---------------------------------------------------------------------------------------------------


def test_jvp_of_elementwise_operators(device: str) -> None:
    a, b, u, v = (numbers(3, 7, device=device, seed=i) for i in range(4))
    for product in (mul, smooth_mul):
        torch.testing.assert_close(jvp(product, (a, b), (u, v)), jvp(torch.mul, (a, b), (u, v)))
        torch.testing.assert_close(jvp(lambda a, p=product: p(a, b), (a,), (u,)), jvp(lambda a: a * b, (a,), (u,)))
    torch.testing.assert_close(jvp(lambda a: scale(a, 3.0), (a,), (u,)), jvp(lambda a: a * 3, (a,), (u,)))
    torch.testing.assert_close(jvp(lambda a: relu_(a * 2), (a,), (u,)), jvp(lambda a: (a * 2).relu(), (a,), (u,)))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a, u)
        tangent = torch.autograd.forward_ad.unpack_dual(mul(dual, b)).tangent
    torch.testing.assert_close(tangent, u * b)


def test_forward_mode_gradcheck() -> None:
    for f in (mul, smooth_mul, lambda a, b: relu_(a * b)):
        assert torch.autograd.gradcheck(f, leaves("cpu", (2, 3), (2, 3)), check_forward_ad=True)


def test_a_missing_jvp_raises(device: str) -> None:
    x = numbers(5, 7, device=device)
    for f in (unit, square_and_cube):
        with pytest.raises(NotImplementedError) as caught:
            jvp(f, (x,), (x,))
        name = f.__name__
        assert str(caught.value) == f"rawkern_test::{name} has no forward-mode derivative; define one with @{name}.jvp"
        with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode"):
            f(torch.autograd.forward_ad.make_dual(x, x))


def test_jvp_of_ones_own(device: str) -> None:
    @rawkern.op("rawkern_test::own_jvp", save=("x", "square"), hidden=("square",))
    def cube(x: Tensor, s: float = 1.0) -> tuple[Tensor, Tensor]:
        square, cube = square_and_cube(x)
        return cube * s, square

    seen = []

    @cube.jvp
    def _(ctx, tangent):
        _, square = ctx.saved_tensors
        seen.append((ctx.needs_input_grad, ctx.s, ctx.shapes))
        return smooth_mul(tangent, square) * (3 * ctx.s)

    x, t = numbers(3, 7, device=device), numbers(3, 7, device=device, seed=1)
    torch.testing.assert_close(jvp(cube, (x,), (t,)), (x**3, 3 * x**2 * t))
    assert seen == [((True, False), 1.0, (x.shape, None))]
    torch.testing.assert_close(jacfwd(lambda x: cube(x, 2.0).sum())(x), 6 * x**2)
    second = jvp(lambda x: jvp(cube, (x,), (t,))[1], (x,), (t,))[1]
    # x**2, which is saved, comes from the same call: it is not differentiable, so neither is the tangent through it.
    torch.testing.assert_close(second, torch.zeros_like(x))


def test_jvp_that_launches_is_an_error(device: str) -> None:
    @rawkern.op("rawkern_test::launching_jvp")
    def twice(x: Tensor) -> Tensor:
        return x * 2

    @twice.jvp
    def _(ctx, tangent):
        out = torch.empty_like(tangent)
        mul.operator.function(tangent, tangent)
        return out

    x = numbers(4, device=device)
    with pytest.raises(RuntimeError, match=r"mul<double> is launched where autograd records; wrap it in rawkern\.op"):
        jvp(twice, (x,), (x,))


# --- vmap -----------------------------------------------------------------------------------------------------------


def test_vmap_of_elementwise_operators(device: str) -> None:
    a, b = numbers(4, 3, 7, device=device), numbers(4, 3, 7, device=device, seed=1)
    for dims in ((0, 0), (1, 1), (2, -1)):
        torch.testing.assert_close(vmap(mul, dims)(a, b), vmap(torch.mul, dims)(a, b))
    torch.testing.assert_close(vmap(mul, (0, None))(a, b[0]), a * b[0])
    torch.testing.assert_close(vmap(mul, (None, 1))(a[0], b.movedim(0, 1)), a[0] * b)
    torch.testing.assert_close(vmap(vmap(mul, (0, None)), (0, None))(a, b[0, 0]), a * b[0, 0])
    torch.testing.assert_close(vmap(lambda x: scale(x, 2.0), 1)(a), (a * 2).movedim(1, 0))
    x = a.clone()
    vmap(relu_, 1)(x)
    assert torch.equal(x, a.relu())


def test_vmap_of_changes_in_place(device: str) -> None:
    @rawkern.op("rawkern_test::add_", mutates_args=("x",), elementwise=True)
    def add_(x: Tensor, y: Tensor) -> None:
        kernel("add_to", x.dtype).forall(x.numel())(y, 1.0, x, x.numel())

    a, b = numbers(4, 3, 7, device=device), numbers(3, 4, 7, device=device, seed=1)
    x = a.clone()
    vmap(add_, (0, 1))(x, b)
    assert torch.equal(x, a + b.movedim(1, 0))
    x = a.movedim(0, 1).clone()
    vmap(add_, (1, None))(x, b[:, 0])
    assert torch.equal(x, (a + b[:, 0]).movedim(0, 1))
    with pytest.raises(RuntimeError, match="vmap cannot change x in place, which is not batched"):
        vmap(lambda y: add_(x[0, 0], y))(b)


def test_gradients_under_vmap(device: str) -> None:
    a, b = numbers(4, 3, 7, device=device), numbers(3, 7, device=device, seed=1)
    for product in (mul, smooth_mul):
        per_item = vmap(grad(lambda a, b, p=product: p(a, p(a, b)).sum(), argnums=(0, 1)), (0, None))(a, b)
        torch.testing.assert_close(per_item, (2 * a * b, a * a))
    x = numbers(5, 7, device=device)
    torch.testing.assert_close(jacrev(unit)(x), jacrev(unit_reference)(x))  # its backward is batched, and it is not
    torch.testing.assert_close(jacrev(square_and_cube)(x), jacrev(lambda x: (x * x, x**3))(x))
    w = numbers(7, device=device)
    torch.testing.assert_close(
        jacrev(affine, argnums=(0, 1))(x, w), jacrev(torch.mul, argnums=(0, 1))(x, w)
    )  # gradients of different shapes


def test_per_sample_gradients(device: str) -> None:
    layer = torch.nn.Linear(7, 5, device=device, dtype=torch.float64)
    params = {name: p.detach() for name, p in layer.named_parameters()}
    x = numbers(4, 7, device=device)

    def loss(params, x, f):
        y = functional_call(layer, params, (x,))
        return f(y, y).sum()

    found, expected = (vmap(grad(loss), (None, 0, None))(params, x, f) for f in (mul, torch.mul))
    torch.testing.assert_close(found, expected)


def test_vmap_of_others_is_an_error(device: str) -> None:
    with pytest.raises(NotImplementedError) as caught:
        vmap(unit)(numbers(4, 5, 7, device=device))
    assert str(caught.value) == (
        "rawkern_test::unit has no rule for vmap; declare it elementwise=True if it is, or define one with @unit.vmap"
    )


def test_vmap_of_ones_own(device: str) -> None:
    @rawkern.op("rawkern_test::own_vmap")
    def total(x: Tensor) -> Tensor:
        return x.sum(-1)

    @total.vmap
    def _(info, dims, x):
        assert info.batch_size == 4 and dims == (1,)
        return total(x.movedim(1, 0)), 0

    x = numbers(5, 4, 7, device=device)
    torch.testing.assert_close(vmap(total, 1)(x), x.sum(-1).t())


def test_a_rule_of_ones_own_and_gradients(device: str) -> None:
    """The backward's operators bring their own rules; one that launches is called for each item."""

    @rawkern.op("rawkern_test::own_vmap_with_gradient")
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    seen = []

    @doubled.vmap
    def _(info, dims, x):
        seen.append((info.batch_size, dims))
        return doubled.overload(x), dims[0]

    @doubled.backward
    def _(ctx, g):
        return doubled(g)

    x = numbers(5, 7, device=device)
    torch.testing.assert_close(vmap(grad(lambda x: doubled(x).square().sum()))(x), 8 * x)
    y = doubled(x.requires_grad_())
    several = numbers(3, 5, 7, device=device, seed=2)
    (found,) = torch.autograd.grad(y, x, several, is_grads_batched=True)
    torch.testing.assert_close(found, 2 * several)
    assert seen == [(5, (0,)), (5, (0,)), (3, (0,))]


@cases
def test_batched_gradients(case: str, device: str) -> None:
    ours, theirs, shapes = CASES[case]
    inputs = leaves(device, *shapes)
    found, expected = (list(outputs(f(*inputs))) for f in (ours, theirs))
    several = [numbers(3, *y.shape, device=device, seed=i) for i, y in enumerate(expected)]
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, several, is_grads_batched=True),
        torch.autograd.grad(expected, inputs, several, is_grads_batched=True),
    )


# --- what has outlived a transform ----------------------------------------------------------------------------------


def test_dead_wrappers(device: str) -> None:
    kept = []
    x = numbers(3, 7, device=device)
    grad(lambda x: (kept.append(x), mul(x, x).sum())[1])(x)
    assert torch.equal(mul(kept[0], x), x * x)
    y = x.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(mul(kept[0], y).sum(), y)[0], x)
