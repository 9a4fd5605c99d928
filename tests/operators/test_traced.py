"""Derived backwards are of the launches that the forward made, with what those were given; nothing is lost on the way."""

from __future__ import annotations

import itertools
import random
import time
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor

import rawkern

K = rawkern.RawModule(r"""
struct Pair { const float* a; float s; };
struct Line { float a, b; };
extern "C" __global__ void of_list(const float* const* xs, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = xs[0][i] * xs[1][i];
}
extern "C" __global__ void mul(const float* x, const float* w, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * w[i];
}
extern "C" __global__ void read(float* x, const float* w, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * w[i];
}
extern "C" __global__ void scale(const float* x, float s, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * s;
}
extern "C" __global__ void power(const float* x, const float* w, float s, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i] * s + w[i];
}
extern "C" __global__ void line(const float* x, Line l, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = l.a * x[i] + l.b;
}
extern "C" __global__ void pair(Pair p, const float* w, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = p.a[i] * p.s * w[i];
}
extern "C" __global__ void drop(const float* x, float* y, unsigned seed, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned h = (i + seed) * 2654435761u;
    h ^= h >> 15;
    y[i] = (h & 1u) ? 2.f * x[i] : 0.f;
}
""")


def derived(name, function, **more):
    return rawkern.op(f"rawkern_test_traced::{name}", backward="derive", **more)(function)


@pytest.fixture
def pair(device):
    draw = torch.Generator().manual_seed(3)
    return tuple(torch.randn(40, generator=draw).to(device).requires_grad_() for _ in range(2))


# Ways of a tensor to a launch ----------------------------------------------------------------------------------------

KEPT: dict[str, Tensor] = {}
LOST = {
    "a list": (lambda x, w, y, n: K.of_list[1, 64]([x, w], y, n), r"xs of of_list is a list of tensors.*pass each"),
    "addresses": (lambda x, w, y, n: K.mul((1,), (64,), (x.data_ptr(), w.data_ptr(), y.data_ptr(), n)), "x of mul is an addr"),
    "an address": (lambda x, w, y, n: K.mul((1,), (64,), (x, w.data_ptr(), y, n)), "w of mul is an address"),
    "NumPy": (lambda x, w, y, n: K.mul[1, 64](x, w.detach().numpy(), y, n), "reads w by numpy.*pass the tensor"),
    "NumPy's DLPack": (lambda x, w, y, n: K.mul[1, 64](x, np.from_dlpack(w.detach()), y, n), "reads w by __dlpack"),
    "torch's DLPack": (lambda x, w, y, n: K.mul[1, 64](x, torch.from_dlpack(w.detach()), y, n), "reads w by __dlpack"),
    "a struct": (lambda x, w, y, n: K.pair[1, 64]({"a": x, "s": 2.0}, w, y, n), "p of pair is a dict with memory"),
    "a number read": (lambda x, w, y, n: K.scale[1, 64](x, w.tolist()[0], y, n), "reads w by tolist"),
    "one element": (lambda x, w, y, n: K.scale[1, 64](x, float(w[0]), y, n), "_local_scalar_dense.*lost"),
    "from elsewhere": (lambda x, w, y, n: K.mul[1, 64](x, KEPT["w"], y, n),
                       "w of mul is not a contiguous view of an argument"),
    "an address in a number": (lambda x, w, y, n: K.scale[1, 64](x, float(w.data_ptr() % 8), y, n), "no launch is given w"),
}  # fmt: skip
CPU_ALONE = ("NumPy", "NumPy's DLPack", "a number read")


@pytest.mark.parametrize("how", LOST)
def test_what_would_be_lost_is_rejected(pair, how, device) -> None:
    if how in CPU_ALONE and device != "cpu":
        pytest.skip("a tensor of a GPU goes no such way")
    launch, said = LOST[how]
    KEPT["w"] = torch.ones(40, device=device)

    def function(x: Tensor, w: Tensor) -> Tensor:
        y = torch.empty_like(x)
        launch(x, w, y, x.numel())
        return y

    out = derived(f"lost_{list(LOST).index(how)}", function)(*pair)
    with pytest.raises(rawkern.NotDifferentiable, match=said):
        out.sum().backward()


KNOWN = {
    "detached": lambda t: t.detach(),
    "data": lambda t: t.data,
    "a view": lambda t: t.view(5, 8)[:].reshape(-1),
}


@pytest.mark.parametrize("how", KNOWN)
def test_other_tensors_of_the_same_memory(pair, how) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = torch.empty_like(x)
        K.mul[1, 64](x, KNOWN[how](w), y, x.numel())
        return y

    op, (x, w) = derived(f"known_{list(KNOWN).index(how)}", function), pair
    found = torch.autograd.grad(op(x, w).sum(), (x, w))
    torch.testing.assert_close(found, (w.detach(), x.detach()))


def test_a_part_of_an_argument(pair) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = torch.empty_like(x[8:])
        K.mul[1, 64](x[8:], w[:32], y, 32)
        return y

    x, w = pair
    found = torch.autograd.grad(derived("part", function)(x, w).sum(), (x, w))
    torch.testing.assert_close(found, torch.autograd.grad((x[8:] * w[:32]).sum(), (x, w)))


def test_a_number_that_is_a_tensor(pair) -> None:
    def function(x: Tensor, s: Tensor) -> Tensor:
        h, y = torch.empty_like(x), torch.empty_like(x)
        K.scale[1, 64](x, s, h, x.numel())
        K.scale[1, 64](h, s, y, x.numel())
        return y

    op, x = derived("number", function), pair[0]
    s = torch.tensor(3.0, requires_grad=True)
    for call in (op, torch.compile(op, backend="aot_eager", fullgraph=True)):
        found = torch.autograd.grad(call(x, s).sum(), (x, s))
        torch.testing.assert_close(found, torch.autograd.grad((x * s.to(x.device) ** 2).sum(), (x, s)))
        torch.testing.assert_close(torch.autograd.grad(call(x.detach(), s).sum(), s)[0], 6 * x.detach().sum().cpu())


def test_one_memory_in_two_arguments(pair) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = torch.empty_like(x)
        K.mul[1, 64](x, w.view(-1), y, x.numel())
        return y

    op, x = derived("twice", function), pair[0]
    torch.testing.assert_close(torch.autograd.grad(op(x, x.detach()).sum(), x)[0], x.detach())
    torch.testing.assert_close(torch.autograd.grad(op(x, x).sum(), x)[0], 2 * x.detach())


def test_a_pointer_that_is_not_const_and_only_read(pair) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = torch.empty_like(x)
        K.read[1, 64](x, w, y, x.numel())
        return y

    x, w = pair
    found = torch.autograd.grad(derived("only_read", function)(x, w).sum(), (x, w))
    torch.testing.assert_close(found, (w.detach(), x.detach()))


def test_an_argument_without_a_launch_has_no_gradient(pair) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = torch.empty_like(x)
        K.scale[1, 64](x, 2.0, y, w.numel())
        return y

    x, w = pair
    found = torch.autograd.grad(derived("unused", function)(x, w).sum(), (x, w))
    assert (found[0] == 2).all() and (found[1] == 0).all()


# What the function reads ---------------------------------------------------------------------------------------------


@rawkern.op("rawkern_test_traced::dropout", backward="derive")
def dropout(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    K.drop[-(-x.numel() // 64), 64](x, y, random.getrandbits(30), x.numel())
    return y


@rawkern.op("rawkern_test_traced::seeded", backward="derive")
def seeded(x: Tensor, seed: int) -> Tensor:
    y = torch.empty_like(x)
    K.drop[-(-x.numel() // 64), 64](x, y, seed, x.numel())
    return y


def mask_of(y):
    return torch.where(y.detach() != 0, 2.0, 0.0)


def profiled(y, x):
    with torch.profiler.profile():
        return torch.autograd.grad(y.sum(), x)[0]


def batched(y, x):
    each = torch.eye(y.numel(), device=y.device)
    return torch.autograd.grad(y, x, each, is_grads_batched=True)[0].diagonal()


BACKWARDS = {
    "batched": batched,  # first: a derived backward is compared with differences at its first use, here inside of vmap
    "plain": lambda y, x: torch.autograd.grad(y.sum(), x)[0],
    "graph": lambda y, x: torch.autograd.grad(y.sum(), x, create_graph=True)[0].detach(),
    "twice": lambda y, x: [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2)][1],
    "profiled": profiled,
}


@pytest.mark.parametrize("how", BACKWARDS)
def test_a_seed_is_that_of_the_forward(pair, how) -> None:
    x = pair[0]
    first, second = dropout(x), dropout(x)
    for y in (second, first):
        assert torch.equal(BACKWARDS[how](y, x), mask_of(y))
    y = torch.utils.checkpoint.checkpoint(dropout, x, use_reentrant=False)
    assert torch.equal(BACKWARDS["plain"](y, x), mask_of(y))


def test_a_seed_of_a_compiled_graph(pair) -> None:
    """Its backward has the arguments alone: a seed among them is right, one that is drawn raises."""
    x = pair[0]
    call = torch.compile(seeded, backend="aot_eager", fullgraph=True)
    kept = [call(x, seed) for seed in (1, 2, 3)]
    for y in reversed(kept):
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], mask_of(y))
    y = torch.compile(dropout, backend="aot_eager", fullgraph=True)(x)
    with pytest.raises(rawkern.LaunchError, match=r"does not launch the same each time.*pass it as an argument"):
        y.sum().backward()


def test_transforms(pair) -> None:
    x = pair[0].detach()
    for function in (dropout, lambda t: seeded(t, 5)):
        y, pull = torch.func.vjp(function, x)
        assert torch.equal(pull(torch.ones_like(y))[0], mask_of(y))
    y = seeded(x, 5)
    torch.testing.assert_close(torch.func.jacrev(lambda t: seeded(t, 5))(x), torch.diag(mask_of(y)))


def test_an_argument_that_was_changed_since(pair) -> None:
    inner = pair[0] * 1
    y = dropout(inner)
    inner.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_no_memory_is_kept_that_the_backward_has_no_need_of(pair) -> None:
    refs = []

    def function(x: Tensor) -> Tensor:
        h, y = torch.empty_like(x), torch.empty_like(x)
        K.scale[1, 64](x, 2.0, h, x.numel())
        K.scale[1, 64](h, 3.0, y, x.numel())
        refs.extend((weakref.ref(h), weakref.ref(y)))
        return y

    y = derived("scratch", function)(pair[0])
    assert refs[0]() is None
    graph = y.sum()
    del y
    assert refs[1]() is None
    assert (torch.autograd.grad(graph, pair[0])[0] == 6).all()


STATE = {"factor": 2.0, "line": {"a": 3.0, "b": 1.0}}


def test_what_has_changed_since_counts_as_it_was(pair) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        h, y = torch.full_like(x, STATE["factor"]), torch.empty_like(x)
        z = torch.empty_like(x)
        K.mul[1, 64](x, h, y, x.numel())
        K.line[1, 64](y, STATE["line"], z, x.numel())
        return y, z

    op, x = derived("state", function), pair[0]
    STATE["factor"], STATE["line"]["a"] = 2.0, 3.0
    y, z = op(x)
    STATE["factor"], STATE["line"]["a"] = 5.0, 7.0
    assert (torch.autograd.grad(y.sum() + z.sum(), x)[0] == 8).all()


# Random programs -----------------------------------------------------------------------------------------------------

COUNTER, LIST, GLOBAL = itertools.count(1), [0.5], {"s": 1.5}


def popped():
    LIST.append(LIST.pop() * 1.25)
    return LIST[-1]


SOURCES = {
    "random": random.random,
    "numpy": lambda: float(np.random.default_rng().random()),
    "time": lambda: time.time_ns() % 1009 / 1009,
    "count": lambda: next(COUNTER) % 7 / 3,
    "list": popped,
    "global": lambda: GLOBAL["s"],
    "constant": lambda: 0.75,
}


def drawn(seed):
    """A function of random launches with numbers of random sources, and the same in torch of what these gave."""
    draw = random.Random(seed)
    steps = [(draw.choice(("scale", "power", "line", "full")), draw.choice(list(SOURCES)), draw.randrange(8))
             for _ in range(draw.randint(2, 5))]  # fmt: skip
    given: list[float] = []

    def function(x: Tensor, w: Tensor) -> Tensor:
        n, h = x.numel(), [x]
        for kind, source, of in steps:
            s = SOURCES[source]()
            given.append(s)
            at, y = h[of % len(h)], torch.empty_like(x)
            grid = 1 if int(s * 8) % 2 else 2  # which blocks there are may depend on it, too
            if kind == "scale":
                K.scale[grid, 64](at, s, y, n)
            elif kind == "power":
                K.power[grid, 64](at, w, s, y, n)
            elif kind == "line":
                K.line[grid, 64](at, {"a": s, "b": 1.0}, y, n)
            else:
                K.mul[grid, 64](at, torch.full_like(x, s), y, n)
            h.append(y)
        return h[-1]

    def reference(x, w, numbers):
        h = [x]
        for (kind, _, of), s in zip(steps, numbers, strict=True):
            at = h[of % len(h)]
            h.append({"scale": at * s, "power": at * at * s + w, "line": s * at + 1.0, "full": at * s}[kind])
        return h[-1]

    return function, reference, given, len(steps)


@pytest.mark.parametrize("how", ["eager", "compiled"])
@pytest.mark.parametrize("part", range(3))
def test_random_functions_that_read_state(pair, part, how, monkeypatch) -> None:
    """The gradient of a forward is that of what it was given, or it raises: only in compiled graphs."""
    monkeypatch.setenv("RAWKERN_VERIFY", "0")
    x, w = pair
    rejected = 0
    for seed in range(8 * part, 8 * part + (8 if how == "eager" else 3)):
        function, reference, given, count = drawn(seed)
        op = derived(f"random_{how}_{seed}", function)
        call = torch.compile(op, backend="aot_eager", fullgraph=True) if how == "compiled" else op
        given.clear()
        kept = []
        for _ in range(2):
            given.clear()
            y = call(x, w)
            kept.append((y, given[-count:]))
            GLOBAL["s"] += 0.25
        for y, numbers in reversed(kept):
            right = reference(x, w, numbers)
            torch.testing.assert_close(y, right)
            expected = torch.autograd.grad(right.sum(), (x, w), allow_unused=True)
            try:
                found = torch.autograd.grad(y.sum(), (x, w))
            except rawkern.LaunchError as error:
                assert how == "compiled" and "the same each time" in str(error)
                rejected += 1
                continue
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b)
    assert how == "compiled" or not rejected
