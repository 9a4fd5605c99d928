"""silu, gelu, swiglu, geglu, add_sin_cos against torch in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

import rawkern

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ONE = {
    "silu": (rawkern.silu, F.silu),
    "gelu": (rawkern.gelu, F.gelu),
    "gelu_tanh": (lambda x: rawkern.gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh")),
}
TWO = {
    "swiglu": (rawkern.swiglu, lambda g, u: F.silu(g) * u),
    "geglu": (rawkern.geglu, lambda g, u: F.gelu(g) * u),
    "geglu_tanh": (lambda g, u: rawkern.geglu(g, u, "tanh"), lambda g, u: F.gelu(g, approximate="tanh") * u),
    "add_sin_cos": (rawkern.add_sin_cos, lambda a, b: (a + b) + a.sin() * b.cos()),
}
# Relative to the value, and absolute for what is left where terms cancel.
TOLERANCES = {
    torch.float16: (1e-3, 1e-4),
    torch.bfloat16: (8e-3, 1e-4),
    torch.float32: (4e-6, 1e-6),
    torch.float64: (1e-12, 1e-14),
}


def values(*shape: int, dtype: torch.dtype, device: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
    x.flatten()[:8] = torch.tensor([0.0, -0.0, 1e-4, -1e-4, 60.0, -60.0, 9.0, -9.0], dtype=torch.float64)
    return x.to(device=device, dtype=dtype)


def compare(op, reference, inputs: list[torch.Tensor]) -> None:
    dtype = inputs[0].dtype
    rtol, atol = TOLERANCES[dtype]
    given = [t.clone().requires_grad_() for t in inputs]
    wide = [t.detach().double().clone().requires_grad_() for t in inputs]
    y, want = op(*given), reference(*wide)
    assert y.dtype is dtype
    torch.testing.assert_close(y.double(), want, rtol=rtol, atol=atol)
    grad = values(*y.shape, dtype=dtype, device=y.device.type, seed=9)
    y.backward(grad)
    want.backward(grad.double())
    for t, w in zip(given, wide, strict=True):
        assert t.grad is not None and w.grad is not None
        torch.testing.assert_close(t.grad.double(), w.grad, rtol=2 * rtol, atol=20 * atol)


def with_dtypes(names):
    """Each with its dtypes: what is made of others' terms has two, one that is computed in float and float itself."""
    made = {"gelu_tanh", "geglu_tanh", "swiglu", "geglu"}
    few = (torch.bfloat16, torch.float32)
    rows = [(name, dtype) for name in names for dtype in (few if name in made else DTYPES)]
    return pytest.mark.parametrize(("name", "dtype"), rows, ids=lambda each: str(each).removeprefix("torch."))


@with_dtypes(ONE)
def test_one_input(device, name, dtype):
    compare(*ONE[name], [values(1031, dtype=dtype, device=device)])


@with_dtypes(TWO)
def test_two_inputs(device, name, dtype):
    compare(*TWO[name], [values(1031, dtype=dtype, device=device, seed=k) for k in (0, 1)])


@pytest.mark.parametrize("name", [*ONE, "swiglu", "add_sin_cos"])
def test_gradients_of_gradients(device, name):
    op, _ = (ONE | TWO)[name]
    many = 1 if name in ONE else 2
    inputs = tuple(values(12, dtype=torch.float64, device=device, seed=k)[6:].requires_grad_() for k in range(many))
    assert gradcheck(op, inputs)
    assert gradgradcheck(op, inputs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes(device, dtype):
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([inf, -inf, nan, torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=dtype, device=device)
    for op, reference in ONE.values():
        torch.testing.assert_close(op(x).double(), reference(x.double()).to(dtype).double(), equal_nan=True)
    a = torch.tensor([30000.0, 12345.678, -333.25], device=device).to(dtype)
    want = rawkern.add_sin_cos(a.double(), a.double())
    rtol, _ = TOLERANCES[dtype]
    torch.testing.assert_close(rawkern.add_sin_cos(a, a).double(), want, rtol=rtol, atol=rtol)


def test_broadcast_and_layout(device):
    gate = values(6, 9, dtype=torch.bfloat16, device=device).t()
    up = values(9, 1, dtype=torch.bfloat16, device=device, seed=1)
    compare(*TWO["swiglu"], [gate, up])
    assert rawkern.silu(gate).stride() == gate.stride()


def test_inplace(device):
    x = values(50, dtype=torch.float32, device=device)
    want = F.silu(x)
    assert rawkern.silu(x, inplace=True) is x
    torch.testing.assert_close(x, want)


def test_compile_without_a_graph_break(device):
    def step(x, u):
        return rawkern.geglu(rawkern.gelu(x, approximate="tanh"), rawkern.silu(u)).sum()

    x, u = (values(8, 5, dtype=torch.float32, device=device, seed=k).requires_grad_() for k in (0, 1))
    torch.compile(step, fullgraph=True, backend="aot_eager")(x, u).backward()
    a, b = (t.detach().clone().requires_grad_() for t in (x, u))
    step(a, b).backward()
    torch.testing.assert_close([x.grad, u.grad], [a.grad, b.grad])


def test_rejections(device):
    with pytest.raises(TypeError, match="silu: the argument is int64; pass a tensor of float16"):
        rawkern.silu(torch.arange(3, device=device))
    with pytest.raises(TypeError, match="gelu: the argument is a list"):
        rawkern.gelu([1.0])
    with pytest.raises(ValueError, match="gelu: approximate is 'erf'; it is 'none' or 'tanh'"):
        rawkern.gelu(torch.ones(3, device=device), approximate="erf")
