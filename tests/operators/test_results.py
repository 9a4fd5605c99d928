"""What functions of rawkern.op return: what raises, tuples of one, names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rawkern

from .cases import numbers


def define(function: Any, **options: Any) -> Any:
    return rawkern.op("rawkern_test::result", **options)(function)


@pytest.mark.parametrize(
    "body, message",
    [
        (lambda x: x, "returned memory of x as out; return a new tensor, or name what it changes in mutates_args"),
        (lambda x: x.view(-1), "returned memory of x as out"),
        (lambda x: x[1:], "returned memory of x as out"),
        (lambda x: x[:0], "returned memory of x as out"),
        (lambda x: x.detach(), "returned memory of x as out"),
        (lambda x: None, "returned a NoneType for out, which is declared a tensor"),
        (lambda x: 1.0, "returned a float for out, which is declared a tensor"),
        (lambda x: (x + 1, x + 2), "returned a tuple for out, which is declared a tensor"),
    ],
)
def test_rejected_results(body: Any, message: str) -> None:
    def function(x: Tensor) -> Tensor:
        return body(x)

    op = define(function)
    for x in (torch.ones(3), torch.ones(3, requires_grad=True), torch.ones(3, device="meta")):
        for call in (op, op.overload):
            with pytest.raises((TypeError, ValueError), match=f"rawkern_test::result {message}"):
                call(x)


def test_rejected_tuples() -> None:
    def one(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1  # type: ignore[return-value]

    def same(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y, y

    with pytest.raises(TypeError, match="returned a Tensor; it is declared to return a tuple of 2 tensors"):
        define(one)(torch.ones(3))

    def halves(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x + 1
        return x + 2, y[:1], y[1:]

    for x in (torch.ones(3), torch.ones(3, requires_grad=True), torch.ones(3, device="meta")):
        op = define(same)
        for call in (op, op.overload):
            with pytest.raises(ValueError, match="returned memory of out0 as out1; return tensors with memory of thei"):
                call(x)
        for options in ({}, {"hidden": ("last",)}):
            with pytest.raises(ValueError, match=f"returned memory of out1 as {'last' if options else 'out2'}"):
                define(halves, **options)(x)

    def something(x: Tensor) -> None:
        return x  # type: ignore[return-value]

    with pytest.raises(TypeError, match="returned a Tensor; it is declared to return None"):
        define(something, mutates_args=("x",))(torch.ones(3))


def test_a_tuple_of_one(device: str) -> None:
    def double(x: Tensor) -> tuple[Tensor]:
        return (x * 2,)

    op = define(double, save=())
    op.backward(lambda ctx, g: g * 2)
    op.vmap(lambda info, dims, x: ((x * 2,), dims))
    x = numbers(3, device=device).requires_grad_()
    for call in (op, torch.compile(op, fullgraph=True, backend="aot_eager"), torch.func.vmap(op)):
        (found,) = call(x)
        assert torch.equal(found, x * 2)
        assert torch.equal(torch.autograd.grad(found.sum(), x)[0], torch.full_like(x, 2))
    torch.library.opcheck(op.overload, (x,))

    def alone(x: Tensor) -> tuple[Tensor]:
        return x * 2  # type: ignore[return-value]

    with pytest.raises(TypeError, match="returned a Tensor; it is declared to return a tuple of 1 tensor"):
        define(alone)(x)


def test_a_parameter_called_out(device: str) -> None:
    def plus(x: Tensor, out: Tensor, out_: float) -> Tensor:
        return x * out + out_

    op = define(plus, save=("out", "out__"))
    op.backward(lambda ctx, g: (g * ctx.saved_tensors[0], (ctx.saved_tensors[1] - ctx.out_) / ctx.saved_tensors[0] * g))
    x, y = (numbers(3, device=device, seed=k).requires_grad_() for k in range(2))
    for call in (op, torch.compile(op, fullgraph=True, backend="aot_eager")):
        found = call(x, out=y, out_=0.5)
        torch.testing.assert_close(found, x * y + 0.5)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), (x, y)), (y, x))
