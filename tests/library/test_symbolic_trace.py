"""torch.fx.symbolic_trace: each operator, elementwise expression and module is a node that calls it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import rawkern
from tests.library.test_batching import Block

plus = rawkern.elementwise("T x, T y", "T z", "z = x + y", "fx_plus")
norm = rawkern.reduction("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "fx_norm")
INDEX = torch.tensor([1, 0, 3])

CALLS: dict[str, Any] = {
    "square": rawkern.square,
    "scale": lambda x: rawkern.scale(x, 2.5),
    "mul": lambda x: rawkern.mul(x, x),
    "relu": rawkern.relu,
    "relu_": lambda x: rawkern.relu_(x * 1),
    "silu": rawkern.silu,
    "gelu": lambda x: rawkern.gelu(x, "tanh"),
    "swiglu": lambda x: rawkern.swiglu(x, x),
    "geglu": lambda x: rawkern.geglu(x, up=x),
    "add_sin_cos": lambda x: rawkern.add_sin_cos(x, x),
    "dropout": lambda x: rawkern.dropout(x, 0.0),
    "rotary_embedding": lambda x: rawkern.rotary_embedding(x, torch.ones(3, 2), torch.ones(3, 2)),
    "softmax": lambda x: rawkern.softmax(x, 1),
    "log_softmax": lambda x: rawkern.log_softmax(x, dim=1),
    "sum": lambda x: rawkern.sum(x, 0),
    "mean": lambda x: rawkern.mean(x, keepdim=True),
    "layer_norm": lambda x: rawkern.layer_norm(x, 4, torch.ones(4)),
    "rms_norm": lambda x: rawkern.rms_norm(x, 4),
    "add_layer_norm": lambda x: rawkern.add_layer_norm(x, x, 4)[0],
    "add_rms_norm": lambda x: rawkern.add_rms_norm(x, x, 4)[1],
    "cross_entropy": lambda x: rawkern.cross_entropy(x, INDEX, label_smoothing=0.1),
    "embedding": lambda x: rawkern.embedding(INDEX % 3, x),
    "scale_by_sign_of_sum": rawkern.scale_by_sign_of_sum,
    "nbody_forces": lambda x: rawkern.nbody_forces(x, x[0], G=1.0),
    "fx_plus": lambda x: plus(x, 2.0),
    "fx_norm": lambda x: norm(x, axis=1),
}


class Calls(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return CALLS[self.name](x)


@pytest.mark.parametrize("name", CALLS)
def test_operators_are_nodes(name: str) -> None:
    traced = torch.fx.symbolic_trace(Calls(name))
    assert name in [getattr(node.target, "__name__", None) for node in traced.graph.nodes]
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    leaves = [x.clone().requires_grad_() for _ in range(3)]
    modules = (CALLS[name], traced, copy.deepcopy(traced))
    outs = [module(leaf) for module, leaf in zip(modules, leaves, strict=True)]
    for out, leaf in zip(outs, leaves, strict=True):
        out.sum().backward()
        torch.testing.assert_close((out, leaf.grad), (outs[0], leaves[0].grad))


def test_modules() -> None:
    torch.manual_seed(0)
    block = Block()
    traced = torch.fx.symbolic_trace(block)
    index, target = torch.randint(0, 11, (7,)), torch.randint(0, 5, (7,))
    torch.testing.assert_close(traced(index, target), block(index, target))


def test_other_stand_ins() -> None:
    """Whatever has __torch_function__ sees the public function and all arguments."""

    class Recorder:
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function, args, kwargs

    r = Recorder()
    assert rawkern.square(r) == (rawkern.square, (r,), {})
    assert rawkern.softmax(r, dim=1) == (rawkern.softmax, (r, 1, None), {})
    assert rawkern.silu(r) == (rawkern.silu, (r,), {}) and rawkern.gelu(r, "tanh") == (rawkern.gelu, (r, "tanh"), {})
    assert rawkern.swiglu(torch.ones(2), r)[1][1] is r and rawkern.silu(r, True) == (rawkern.silu, (r, True), {})
    assert plus(torch.ones(2), r)[1][1] is r and norm(r, axis=0) == (norm, (r,), {"axis": 0, "keepdims": False})
    for wrong in ("x", None, [1.0]):
        with pytest.raises(TypeError, match="square"):
            rawkern.square(wrong)
