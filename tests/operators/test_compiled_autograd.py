"""torch._dynamo's compiled autograd: a backward as one graph, of operators that ran in eager or compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import rawkern

from .cases import CASES, leaves, numbers, outputs

gated = rawkern.elementwise("T x, T y", "T z", "z = x * y + exp(x)", "compiled_gated")
total = rawkern.reduction("T x", "T y", "x * x", "a + b", "y = a", "0", "compiled_total")
OURS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    name: (CASES[name][0], CASES[name][2]) for name in ("mul", "two outputs", "hidden output", "in place", "list")
}
OURS |= {
    "layer_norm": (lambda x, w: rawkern.layer_norm(x, 4, w), ((3, 4), (4,))),
    "an expression": (gated, ((3, 4), (4,))),
    "a reduction": (lambda x: total(x, axis=1), ((3, 4),)),
}


@pytest.fixture(autouse=True)
def _afresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def loss(function: Callable[..., Any], inputs: list[torch.Tensor]) -> torch.Tensor:
    return sum(t.square().sum() for t in outputs(function(*inputs)))


@pytest.mark.parametrize("case", OURS)
def test_gradients(case: str, device: str) -> None:
    function, shapes = OURS[case]
    expected = torch.autograd.grad(loss(function, inputs := leaves(device, *shapes)), inputs)
    value = loss(function, inputs := leaves(device, *shapes))
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        value.backward()
    torch.testing.assert_close(tuple(t.grad for t in inputs), expected)
    inputs = leaves(device, *shapes)
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda *inputs: loss(function, inputs).backward(), backend="aot_eager")(*inputs)
    torch.testing.assert_close(tuple(t.grad for t in inputs), expected)


def test_values_are_no_constants(device: str) -> None:
    """A node of the same operator with other values, as a factor or a dimension, has a graph of its own."""
    x = numbers(4, 4, device=device)
    calls = [lambda x, s=s: rawkern.scale(x, s) for s in (2.0, 3.0)]
    calls += [lambda x, d=d: rawkern.softmax(x, d) for d in (0, 1)] + [lambda x, d=d: total(x, axis=d) for d in (0, 1)]
    for call in calls:
        inputs = [x.clone().requires_grad_()]
        expected = torch.autograd.grad(loss(call, inputs), inputs)
        value = loss(call, inputs)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
            value.backward()
        torch.testing.assert_close((inputs[0].grad,), expected)
