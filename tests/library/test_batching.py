"""vmap, batched gradients and per-sample gradients of the built-in operators, elementwise expressions, reductions and modules."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.functional import jacobian
from torch.func import functional_call, grad, vmap

import rawkern

BATCH = 3
INDEX = torch.tensor([1, 0, 3, 1, 2])
ANGLES = torch.linspace(0, 1, 10, dtype=torch.float64).view(5, 2)

gated = rawkern.elementwise("T x, T y", "T z", "z = x * y + exp(x)", "batch_gated")
placed = rawkern.elementwise("T x", "T z", "z = x * T(i + 1)", "batch_placed")
norm = rawkern.reduction("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "batch_norm")
weighted = rawkern.reduction("T x, T w", "T y", "x * w * (_J + 1)", "a + b", "y = a / count", "0", "batch_weighted")


def both(found: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat([t.flatten() for t in found])


def rotated(x: torch.Tensor, cos: torch.Tensor | None = None) -> torch.Tensor:
    return rawkern.rotary_embedding(x, ANGLES.to(x).cos() if cos is None else cos, ANGLES.to(x).sin())


#: A function of tensors, and their shapes.
CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "square": (rawkern.square, ((5, 4),)),
    "relu": (rawkern.relu, ((5, 4),)),
    "relu_": (lambda x: rawkern.relu_(x * 1.0), ((5, 4),)),
    "scale": (lambda x: rawkern.scale(x, -2.5), ((5, 4),)),
    "mul": (rawkern.mul, ((5, 4), (4,))),
    "silu": (rawkern.silu, ((5, 4),)),
    "gelu": (rawkern.gelu, ((5, 4),)),
    "swiglu": (rawkern.swiglu, ((5, 4), (5, 4))),
    "add_sin_cos": (rawkern.add_sin_cos, ((5, 1), (4,))),
    "rotary_embedding": (rotated, ((5, 4),)),
    "softmax": (lambda x: rawkern.softmax(x, 0), ((5, 4),)),
    "softmax of a number": (lambda x: rawkern.softmax(x, 0), ((),)),
    "log_softmax": (lambda x: rawkern.log_softmax(x, -1), ((5, 4),)),
    "sum": (lambda x: rawkern.sum(x, (0, 2)), ((5, 4, 3),)),
    "sum of all": (rawkern.sum, ((5, 4),)),
    "sum of a number": (rawkern.sum, ((),)),
    "mean": (lambda x: rawkern.mean(x, 1, keepdim=True), ((5, 4),)),
    "layer_norm": (lambda x, w, b: rawkern.layer_norm(x, 4, w, b), ((5, 4), (4,), (4,))),
    "rms_norm": (lambda x: rawkern.rms_norm(x, (5, 4)), ((2, 5, 4),)),
    "add_layer_norm": (lambda x, r, w: both(rawkern.add_layer_norm(x, r, 4, w)), ((5, 4), (5, 4), (4,))),
    "add_rms_norm": (lambda x, r: both(rawkern.add_rms_norm(x, r, 4)), ((5, 4), (5, 4))),
    "cross_entropy": (lambda x: rawkern.cross_entropy(x, INDEX.to(x.device)), ((5, 4),)),
    "embedding": (lambda w: rawkern.embedding(INDEX.to(w.device), w, 1), ((4, 6),)),
    "scale_by_sign_of_sum": (rawkern.scale_by_sign_of_sum, ((5, 4),)),
    "nbody_forces": (lambda p, m: rawkern.nbody_forces(p, m, G=1.0, softening=0.5), ((2, 5), (5,))),
    "an expression": (gated, ((5, 4), (4,))),
    "an expression of the index": (placed, ((5, 4),)),
    "a reduction": (lambda x: norm(x, axis=1), ((5, 4),)),
    "a reduction of a number": (norm, ((),)),
    "a reduction of two": (lambda x, w: weighted(x, w, axis=(0, 2), keepdims=True), ((5, 4, 3), (4, 3))),
}
cases = pytest.mark.parametrize("case", CASES)
#: Without those whose backward is derived from an expression, like silu's.
by_rule = pytest.mark.parametrize("case", [case for case in CASES if case not in ("gelu", "swiglu", "add_sin_cos")])


@pytest.fixture(autouse=True)
def _no_slow_vmap():
    """torch's way round a missing rule, which warns, is not to be used."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*performance drop.*")
        yield


def numbers(*shape: int, device: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device)


def made(case: str, device: str, *batch: int) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    function, shapes = CASES[case]
    return function, [numbers(*batch, *shape, device=device, seed=i).abs() for i, shape in enumerate(shapes)]


def each(function: Callable[..., Any], tensors: list[torch.Tensor], dims: list[int | None]) -> torch.Tensor:
    """One call after the other."""
    return torch.stack([
        function(*(t if d is None else t.select(d, k) for t, d in zip(tensors, dims, strict=True)))
        for k in range(BATCH)
    ])  # fmt: skip


@cases
def test_vmap(case: str, device: str) -> None:
    function, tensors = made(case, device, BATCH)
    many = len(tensors)
    for batched in [range(many), *([k] for k in range(many))]:
        dims = [0 if k in batched else None for k in range(many)]
        given = [t if d == 0 else t[0] for t, d in zip(tensors, dims, strict=True)]
        torch.testing.assert_close(vmap(function, tuple(dims))(*given), each(function, given, dims))
    last = [t.movedim(0, -1) for t in tensors]
    torch.testing.assert_close(vmap(function, -1, 1 if function(*[t[0] for t in tensors]).dim() else 0)(*last),
        (lambda t: t.movedim(0, 1) if t.dim() > 1 else t)(each(function, tensors, [0] * many)))  # fmt: skip
    twice = [torch.stack([t, t + 1]) for t in tensors]
    torch.testing.assert_close(vmap(vmap(function))(*twice)[1], each(function, [t[1] for t in twice], [0] * many))
    assert vmap(function)(*(t[:0] for t in tensors)).shape == (0, *function(*(t[0] for t in tensors)).shape)


@by_rule
def test_batched_gradients(case: str, device: str) -> None:
    function, tensors = made(case, device)
    leaves = [t.requires_grad_() for t in tensors]
    y = function(*leaves)
    several = numbers(BATCH, *y.shape, device=device, seed=9)
    found = torch.autograd.grad(y, leaves, several, is_grads_batched=True, retain_graph=True)
    singly = [torch.autograd.grad(y, leaves, g, retain_graph=True) for g in several]
    torch.testing.assert_close(found, tuple(torch.stack(parts) for parts in zip(*singly, strict=True)))
    quick, slow = (jacobian(function, tuple(leaves), vectorize=v) for v in (True, False))
    torch.testing.assert_close(quick, slow)


@by_rule
def test_per_sample_gradients(case: str, device: str) -> None:
    function, tensors = made(case, device, BATCH)
    every = tuple(range(len(tensors)))
    weights = numbers(*function(*(t[0] for t in tensors)).shape, device=device, seed=5)
    gradient = grad(lambda *args: (function(*args) * weights).sum(), every)
    found = vmap(gradient)(*tensors)
    for k in range(BATCH):
        torch.testing.assert_close(tuple(t[k] for t in found), gradient(*(t[k] for t in tensors)))


@pytest.mark.parametrize("case", ["softmax", "layer_norm", "cross_entropy", "an expression", "a reduction of two"])
def test_gradcheck(case: str) -> None:
    function, tensors = made(case, "cpu")
    assert torch.autograd.gradcheck(function, [t.requires_grad_() for t in tensors], check_batched_grad=True)


def test_tables_and_indices_may_be_batched(device: str) -> None:
    x, cos = numbers(5, 4, device=device), numbers(BATCH, 5, 2, device=device, seed=1)
    torch.testing.assert_close(vmap(rotated, (None, 0))(x, cos), each(rotated, [x, cos], [None, 0]))
    index = torch.randint(0, 4, (BATCH, 7), generator=torch.Generator().manual_seed(0)).to(device)
    for dims in ((0, None), (0, 0)):
        table = numbers(*([BATCH] if dims[1] == 0 else []), 4, 6, device=device)
        torch.testing.assert_close(
            vmap(rawkern.embedding, dims)(index, table), each(rawkern.embedding, [index, table], list(dims))
        )


def test_dropout(device: str) -> None:
    x = torch.ones(BATCH, 1000, device=device, requires_grad=True)
    y = rawkern.dropout(x, 0.5)
    several = torch.stack([torch.ones_like(y), 2 * torch.ones_like(y)])
    (found,) = torch.autograd.grad(y, x, several, is_grads_batched=True)
    assert torch.equal(found, torch.stack([y, 2 * y]))
    for randomness in ("same", "different"):
        found = vmap(lambda x: rawkern.dropout(x, 0.5), randomness=randomness)(x)
        assert torch.equal(found[0], found[1]) is (randomness == "same")
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(rawkern.dropout)(x)


class Block(torch.nn.Module):
    """Most modules there are."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rotary = rawkern.nn.Embedding(11, 8), rawkern.nn.RotaryEmbedding(8)
        self.before, self.after = rawkern.nn.LayerNorm(8), rawkern.nn.RMSNorm(8)
        self.swiglu, self.geglu = rawkern.nn.SwiGLU(8, 12, bias=True), rawkern.nn.GEGLU(8, 12)
        self.act, self.softmax, self.head = rawkern.nn.GELU(), rawkern.nn.Softmax(-1), torch.nn.Linear(8, 5)
        self.loss = rawkern.nn.CrossEntropyLoss()

    def forward(self, index: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.rotary(self.embedding(index))
        x = x + self.swiglu(self.before(x))
        y, x = self.after(x, x)
        return self.loss(self.head(self.act(self.softmax(y) * self.geglu(x))), target)


def test_per_sample_gradients_through_modules(device: str) -> None:
    torch.manual_seed(0)
    block = Block().double().to(device)
    params = {name: p.detach() for name, p in block.named_parameters()}
    index, target = (torch.randint(0, n, (BATCH, 7)).to(device) for n in (11, 5))
    gradient = grad(lambda params, index, target: functional_call(block, params, (index, target)))
    for f in (vmap(gradient, (None, 0, 0)), torch.compile(vmap(gradient, (None, 0, 0)), backend="aot_eager")):
        found = f(params, index, target)
        for k in range(BATCH):
            expected = gradient(params, index[k], target[k])
            torch.testing.assert_close({name: t[k] for name, t in found.items()}, expected)
    several = {name: torch.stack([p, p + 0.1]) for name, p in params.items()}
    losses = vmap(lambda params: functional_call(block, params, (index[0], target[0])))(several)
    for k in range(2):
        one = functional_call(block, {name: t[k] for name, t in several.items()}, (index[0], target[0]))
        torch.testing.assert_close(losses[k], one)


def test_errors_advise_what_the_caller_can_do() -> None:
    """The caller of a built-in operator or an elementwise expression cannot define a rule for it."""
    x, kernel = torch.ones(3, 4), rawkern.RawKernel('extern "C" __global__ void k(float* x) { x[0] = 1; }')
    for function in (lambda x: rawkern.softmax(x, 1), rawkern.sum, norm):
        with pytest.raises(
            NotImplementedError, match=r"no forward-mode derivative; use reverse mode: torch\.func\.vjp"
        ):
            torch.func.jvp(function, (x,), (x,))
    with pytest.raises(rawkern.LaunchError, match=r"adamw_: tracing, torch\.func and dispatch modes do not see"):
        vmap(lambda p: rawkern.adamw_([p], [p], [p], [p], step=1))(x)
    with pytest.raises(rawkern.LaunchError, match=r"is a Proxy, which stands for a tensor, .*; wrap this in"):
        torch.fx.symbolic_trace(lambda x: kernel[1, 1](x))
