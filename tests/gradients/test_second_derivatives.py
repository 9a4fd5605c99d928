"""An operator with a derived backward raises an error that names what has no second derivative."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rawkern

HEAD = '#include <cuda_fp16.h>\nextern "C" __global__ void k(%s) { int i = blockIdx.x * blockDim.x + threadIdx.x; %s }'
KERNELS = {
    name: rawkern.RawKernel(HEAD % text, "k")
    for name, text in {
        "in place": ("const float* x, float* y, int n", "if (i < n) y[i] = x[i] * tanhf(y[i]);"),
        "half": ("const half* x, half* y, int n", "if (i < n) { float v = x[i]; y[i] = v * v; }"),
        "set twice": ("const float* x, float* y, int n", "if (i < n) y[i / 2] = x[i] * x[i];"),
        "squares": ("const float* x, float* y, int n", "if (i < n) y[i] = x[i] * x[i];"),
        "scaled": ("const float* x, float a, float* y, int n", "if (i < n) y[i] = x[i] * x[i] * a;"),
        "product": ("const float* x, float* y, int n",
                    "float p = 1.f; if (i < n) { for (int k = 0; k < 3; ++k) p = sinf(p * x[i]); y[i] = p * x[0]; }"),
    }.items()
}  # fmt: skip


def made(name: str, launch) -> None:
    def function(x: Tensor, a: Tensor) -> Tensor:
        y = torch.full_like(x, 0.5)
        launch(x, a, y)
        return y

    return rawkern.op(f"rawkern_test_second::{name}", backward="derive", verify=False)(function)


def plain(name: str):
    return lambda x, a, y: KERNELS[name].forall(x.numel())(x, y, x.numel())


OPERATORS = {
    "in place": (made("in_place", plain("in place")), "k overwrites y in place"),
    "half": (made("half", plain("half")), r"x of k is torch\.float16"),
    "set twice": (made("set_twice", plain("set twice")), "k may set an element twice, or reads what it has set"),
    "a part": (made("part", lambda x, a, y: KERNELS["squares"].forall(4)(x[:4], y, 4)), "x of k is empty or a part of a tensor"),
    "by value": (made("by_value", lambda x, a, y: KERNELS["scaled"].forall(x.numel())(x, a, y, x.numel())), "k takes a by value from a tensor"),
    "what the pipeline does not support": (made("warps", plain("product")), "k_backward has no derived backward: "),
}  # fmt: skip


@pytest.mark.parametrize("what", OPERATORS)
def test_second_derivatives_are_refused_by_name(what) -> None:
    function, reason = OPERATORS[what]
    x = torch.rand(64, dtype=torch.float16 if what == "half" else torch.float32).requires_grad_()
    a = torch.tensor(2.0, requires_grad=True)
    (grad,) = torch.autograd.grad(function(x, a).float().square().sum(), x, create_graph=True)
    with pytest.raises(
        rawkern.NotDifferentiable, match=f"has no second derivative: .*{reason}.*; write its backward by hand"
    ):
        torch.autograd.grad(grad.float().sum(), x)
