"""Extensions as tutorials have them, on tensors of each device: an operator of TORCH_LIBRARY, LLTM, muladd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rawkern import cpp_extension

DATA = Path(__file__).parent / "sources"


@pytest.mark.parametrize("name", ["square", "square_shared"])
def test_an_operator_of_torch_library(name: str, device: torch.device) -> None:
    cpp_extension.load("my_custom_ops", [DATA / "my_custom_ops.cu"])
    x = torch.randn(1000, device=device)
    assert torch.equal(getattr(torch.ops.my_custom_ops, name)(x), x * x)


@pytest.fixture(scope="module")
def lltm() -> Any:
    return cpp_extension.load("lltm_cuda", [DATA / "lltm.cpp", DATA / "lltm.cu"])


def reference(x: Any, weights: Any, bias: Any, h: Any, cell: Any) -> tuple[Any, Any]:
    gates = torch.addmm(bias, torch.cat([h, x], 1), weights.t()).chunk(3, 1)
    i, o, candidate = torch.sigmoid(gates[0]), torch.sigmoid(gates[1]), torch.nn.functional.elu(gates[2])
    new_cell = cell + candidate * i
    return torch.tanh(new_cell) * o, new_cell


class LLTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ext: Any, x: Any, weights: Any, bias: Any, h: Any, cell: Any) -> Any:
        outputs = ext.forward(x, weights, bias, h, cell)
        ctx.ext = ext
        ctx.save_for_backward(*outputs[1:], weights)
        return tuple(outputs[:2])

    @staticmethod
    def backward(ctx: Any, grad_h: Any, grad_cell: Any) -> Any:
        d_old_h, d_input, d_weights, d_bias, d_old_cell, *_ = ctx.ext.backward(
            grad_h.contiguous(), grad_cell.contiguous(), *ctx.saved_tensors
        )
        return None, d_input, d_weights, d_bias, d_old_h, d_old_cell


def test_the_lltm_of_the_tutorial_with_its_gradients(lltm: Any, device: torch.device) -> None:
    batch, features, state = 4, 7, 5
    make = lambda *shape: torch.randn(*shape, dtype=torch.float64, device=device, requires_grad=True)  # noqa: E731
    inputs = [make(batch, features), make(3 * state, features + state), make(1, 3 * state), make(batch, state)]
    inputs.append(make(batch, state))
    ours, expected = LLTM.apply(lltm, *inputs), reference(*inputs)
    for found, right in zip(ours, expected, strict=True):
        torch.testing.assert_close(found, right)
    weights = [torch.randn_like(one) for one in ours]
    found = torch.autograd.grad(ours, inputs, weights)
    for one, right in zip(found, torch.autograd.grad(expected, inputs, weights), strict=True):
        torch.testing.assert_close(one, right)
    with pytest.raises(RuntimeError, match="weights must be contiguous"):
        lltm.forward(inputs[0], inputs[1].t(), *inputs[2:])


def test_the_muladd_of_torchs_template(device: torch.device) -> None:
    cpp_extension.load("muladd", [DATA / "muladd.cpp", DATA / "muladd.cu"])
    a, b = torch.randn(1000, device=device), torch.randn(1000, device=device)
    torch.testing.assert_close(torch.ops.muladd_ext.muladd(a, b, 1.5), a * b + 1.5)
    out = torch.empty_like(a)
    torch.ops.muladd_ext.add_out(a, b, out)
    assert torch.equal(out, a + b)
    with pytest.raises(RuntimeError, match=r"Expected a.sizes\(\) == b.sizes\(\) to be true"):
        torch.ops.muladd_ext.muladd(a, b[1:], 1.0)


def test_what_is_for_the_cpu_runs_there_if_that_is_asked() -> None:
    cpp_extension.load("muladd", [DATA / "muladd.cpp", DATA / "muladd.cu"])
    a, b = torch.randn(10), torch.randn(10)
    cpp_extension.take_cpu_tensors(False)
    try:
        torch.testing.assert_close(torch.ops.muladd_ext.muladd(a, b, 1.5), a * b + 1.5)
        out = torch.empty_like(a)
        with pytest.raises(RuntimeError, match="a must be on a GPU"):
            torch.ops.muladd_ext.add_out(a, b, out)
    finally:
        cpp_extension.take_cpu_tensors(True)
