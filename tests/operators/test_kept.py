"""Calls whose launches are kept: which they are, and that they do what the function does."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import rawkern
from rawkern.base import torch_private as private
from rawkern.operators import kept, native
from rawkern.operators.kept import Kept
from rawkern.operators.recording import trace_through
from tests.operators.allocations import Limited

module = rawkern.RawModule(
    r"""
extern "C" __global__ void scale(const float* x, float* y, float by, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = by * x[i];
}
extern "C" __global__ void check(const float* x, float* y, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) { assert(x[i] >= 0); y[i] = x[i]; }
}
""",
    strided=True,
)


def values(*shape: int, device: str, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


class Function:
    """A function with kept launches, and how often it was called in Python."""

    def __init__(self, function: Callable[..., Any], count: int) -> None:
        self.function, self.count = function, 0
        self.kept = Kept(count, lambda args: trace_through("a function", self.counted, args))

    def counted(self, *args: Any) -> Any:
        self.count += 1
        return self.function(*args)

    def __call__(self, *args: Any) -> Any:
        found = self.kept.calls.call(*args)
        if found is None:
            found = self.kept.learn(args)
        return self.counted(*args) if found is None or found is NotImplemented else found

    def after(self, *args: Any, times: int = 5) -> int:
        """How many of some calls, after so many, are made in Python."""
        for _ in range(times):
            self(*args)
        self.count = 0
        for _ in range(3):
            self(*args)
        return self.count


def scaled(x: torch.Tensor, by: float, out: torch.Tensor | None = None) -> torch.Tensor:
    out = torch.empty_like(x) if out is None else out
    module.scale.forall(x.numel())(x, out, by, x.numel())
    return out


def test_calls_of_one_layout_are_native(device: str) -> None:
    x = values(3, 5, device=device)
    of = Function(scaled, 2)
    assert of.after(x, 2.0) == 0
    for t in (x, x + 1, torch.nn.Parameter(x)):
        with torch.no_grad():
            torch.testing.assert_close(of(t, 2.0), t * 2)
    with torch.inference_mode():
        assert of(x, 2.0).is_inference()
    assert of.count == 0
    found = of(x, 2.0)
    assert type(found) is torch.Tensor and found.shape == x.shape and not found.requires_grad
    others = (
        (x.double().float()[:2], 2.0), (x.flatten()[1:].view(2, 7), 2.0), (x.view(5, 3), 2.0), (x[None], 2.0),
        (x, 3.0), (x, 2), (x, True), (torch.nn.Parameter(x), 2.0), (x.as_subclass(Other), 2.0),
    )  # fmt: skip
    for t, by in others:
        of.count = 0
        torch.testing.assert_close(
            of(t, by).detach().as_subclass(torch.Tensor), t.detach().as_subclass(torch.Tensor) * by
        )
        assert of.count == 1


class Other(torch.Tensor):
    pass


def test_zeros_differ_by_their_signs(device: str) -> None:
    x = values(4, device=device).abs()
    of = Function(scaled, 2)
    assert of.after(x, 0.0) == 0
    assert not of(x, 0.0).signbit().any() and of(x, -0.0).signbit().all()


def test_lists_are_compared_item_by_item(device: str) -> None:
    x, given = values(4, device=device), [1, 2]
    of = Function(lambda x, by: scaled(x, float(by[0])), 2)
    assert of.after(x, given) == 0
    given[0] = 5
    assert torch.equal(of(x, given), x * 5) and torch.equal(of(x, [1, 2]), x)
    for same in ([1], [1, 2, 3], (1, 2), torch.Size((1, 2)), [1.0, 2]):
        of.count = 0
        assert torch.equal(of(x, same), x) and of.count == 1


def test_strings_from_elsewhere(device: str) -> None:
    """Those that torch's dispatcher hands over are not Python's constants."""
    x = values(4, device=device)
    of = Function(lambda x, how: scaled(x, float(len(how))), 2)
    of.after(x, "".join(["me", "an"]))
    assert of.after(x, "mean", times=0) == 0 and of.after(x, "sum") == 0
    assert torch.equal(of(x, "mean"), x * 4) and torch.equal(of(x, "sum"), x * 3)


def test_several_launches_parts_and_results(device: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor | None) -> Any:
        parts = x.new_empty((2, *x.shape))
        between = scaled(x, 2.0)
        first, second = scaled(between, 1.5, parts[0]), scaled(x, -1.0, parts[1])
        return first, None, x.new_empty(0), second.view(-1), scaled(x if y is None else y, 7.0)

    x, y = values(3, 4, device=device), values(3, 4, seed=1, device=device)
    empty = Function(lambda x: x.new_empty(3, 0), 1)
    assert empty.after(x[:0]) == 0 and empty(x[:0]).shape == (3, 0)
    of = Function(function, 2)
    for last in (None, y):
        assert of.after(x, last) == 0
        a, none, empty, b, c = of(x + 1, last)
        assert none is None and empty.shape == (0,) and b.shape == (12,)
        torch.testing.assert_close((a, b.view(3, 4)), ((x + 1) * 3, -1 - x))
        torch.testing.assert_close(c, 7 * (x + 1 if last is None else y))
    assert torch.equal(of(x, x)[4], function(x, x)[4])  # which share memory


def test_other_functions_are_called_each_time(device: str) -> None:
    draw = random.Random(0)
    one = torch.ones(1)
    functions: dict[str, Callable[[torch.Tensor], Any]] = {
        "draws": lambda x: scaled(x, draw.random()),
        "computes": lambda x: scaled(x + 1, 2.0),
        "reads": lambda x: scaled(x, float(x[0, 0])),
        "fills": lambda x: (scaled(x, 2.0), x.new_zeros(3)),
        "returns what it got": lambda x: (scaled(x, 2.0), x)[1],
        "launches with a part of what it got": lambda x: scaled(x[1:], 2.0),
        "launches with other memory": lambda x: module.scale.forall(1)(one.to(x.device), x.new_empty(1), 1.0, 1)
        or scaled(x, 1.0),
    }  # fmt: skip
    x = values(3, 4, device=device)
    for name, function in functions.items():
        of = Function(function, 1)
        assert of.after(x) == 3, name
        assert name == "draws" or of.kept.calls.call(x) is NotImplemented, name


def test_conversions_to_what_a_tensor_is_do_nothing(device: str) -> None:
    x = values(3, 4, device=device)
    assert Function(lambda x: scaled(x.to(torch.float32).resolve_neg(), 2.0), 1).after(x) == 0
    assert Function(lambda x: scaled(x.to(torch.float64).to(torch.float32), 2.0), 1).after(x) == 3


def test_launches_with_expanded_arguments_are_kept(device: str) -> None:
    """As the gradient of a sum is, of which an elementwise backward takes the one element."""
    x = values(1, device=device).expand(4, 3)
    of = Function(lambda x: scaled(x[0, 0], 2.0), 1)
    assert of.after(x) == 0 and torch.equal(of(x + 0), x[0, 0] * 2)


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_what_watches_sees_operators(device: str) -> None:
    x = values(3, 4, device=device)
    for _ in range(5):
        rawkern.softmax(x, 1)
    with Seen() as seen:
        found = rawkern.softmax(x, 1)
    assert "rawkern::softmax" in seen.names
    torch.testing.assert_close(found, torch.softmax(x, 1))
    torch.testing.assert_close(torch.func.vmap(lambda t: rawkern.softmax(t, 0))(x), torch.softmax(x, 1))
    traced = make_fx(lambda t: rawkern.softmax(t, 1))(x)
    assert any(node.target is torch.ops.rawkern.softmax.default for node in traced.graph.nodes)


def test_autocast_is_asked_each_time(device: str) -> None:
    x = values(3, 4, device=device).half()
    for _ in range(5):
        rawkern.softmax(x, 1)
    with torch.autocast(device):
        assert rawkern.softmax(x, 1).dtype is torch.softmax(x, 1).dtype
    assert rawkern.softmax(x, 1).dtype is torch.float16


def test_errors_of_launches_are_those_of_the_function(device: str) -> None:
    x, index = values(3, 4, device=device), torch.tensor([0, 1, 2], device=device)
    for _ in range(5):
        rawkern.cross_entropy(x, index)
    if device == "cpu":  # an assertion that fails on a GPU ends all of its work
        for _ in range(2):
            with pytest.raises(IndexError, match=r"target\[2\] is 4, and there are 4 classes"):
                rawkern.cross_entropy(x, torch.tensor([0, 1, 4]))
    torch.testing.assert_close(rawkern.cross_entropy(x, index), torch.nn.functional.cross_entropy(x, index))


def test_errors_of_the_allocation_are_raised(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    assert private.empty_strided is not None
    allocations = Limited(monkeypatch, (private, "empty_strided"), (torch, "empty_strided"))
    x = values(4, device=device)
    of = Function(lambda x: (scaled(x, 2.0), scaled(x, 3.0)), 1)
    assert of.after(x) == 0
    allocations.left = 1
    with pytest.raises(MemoryError, match="no more"):
        of(x)
    assert allocations.left == 0


def test_no_more_than_so_many_are_kept(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(kept, "MOST_MET", 3)
    of = Function(scaled, 2)
    for n in (*range(1, 8), 1):
        x = values(n, device=device)
        assert of.after(x, 2.0) == 0 and len(of.kept.calls.owners) <= 3
        torch.testing.assert_close(of(x, 2.0), x * 2)


def test_without_native_code(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    def rejects() -> None:
        raise rawkern.UnsupportedError("another torch")

    monkeypatch.setattr(native, "_watch", rejects)
    x = values(4, device=device)
    of = Function(scaled, 2)
    assert of.after(x, 2.0) == 3 and torch.equal(of(x, 2.0), x * 2)


# The operators over rows ---------------------------------------------------------------------------------------------


def layouts(device: str) -> list[torch.Tensor]:
    """Tensors of (6, 8): contiguous, transposed, strided, misaligned, expanded, negative."""
    flat = values(200, device=device)
    found = [values(6, 8, device=device), values(8, 6, device=device).t(), values(12, 16, device=device)[::2, ::2]]
    found += [flat[1:49].view(6, 8), flat[4:52].view(6, 8), flat[:8].expand(6, 8), flat[:1].expand(6, 8)]
    return [*found, torch.complex(values(6, 8, device=device), found[0]).conj().imag]


OPERATORS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "softmax": (lambda x, w, t: rawkern.softmax(x, 1), lambda x, w, t: torch.softmax(x, 1)),
    "log_softmax": (lambda x, w, t: rawkern.log_softmax(x, 0), lambda x, w, t: torch.log_softmax(x, 0)),
    "layer_norm": (
        lambda x, w, t: rawkern.layer_norm(x, 8, w, w + 1, 1e-2),
        lambda x, w, t: torch.nn.functional.layer_norm(x, (8,), w, w + 1, 1e-2),
    ),
    "rms_norm": (
        lambda x, w, t: rawkern.rms_norm(x, 8, w, 1e-2),
        lambda x, w, t: torch.nn.functional.rms_norm(x, (8,), w, 1e-2),
    ),
    "cross_entropy": (
        lambda x, w, t: rawkern.cross_entropy(x, t, label_smoothing=0.1),
        lambda x, w, t: torch.nn.functional.cross_entropy(x, t, label_smoothing=0.1),
    ),
    "sum": (lambda x, w, t: rawkern.sum(x, 1), lambda x, w, t: x.sum(1)),
    "embedding": (lambda x, w, t: rawkern.embedding(t.clamp(max=5), x), lambda x, w, t: x[t.clamp(max=5)]),
    "silu": (lambda x, w, t: rawkern.silu(x), lambda x, w, t: torch.nn.functional.silu(x)),
    "mul": (lambda x, w, t: rawkern.mul(x, x), lambda x, w, t: x * x),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_do_the_same_each_time(name: str, device: str) -> None:
    ours, theirs = OPERATORS[name]
    every = layouts(device) * 5
    random.Random(1).shuffle(every)
    w, index = values(8, seed=3, device=device), torch.tensor([0, 3, 7, 7, 1, 2], device=device)
    for k, x in enumerate(every):
        for dtype in (torch.float32, torch.float64) if k % 4 == 0 else (torch.float32,):
            pair = [
                (x.to(dtype).detach().requires_grad_(k % 3 != 0), w.to(dtype).requires_grad_(k % 2 == 0)) for _ in "ab"
            ]
            found, wanted = (f(*leaves, index) for f, leaves in zip((ours, theirs), pair, strict=True))
            torch.testing.assert_close(found, wanted)
            if not wanted.requires_grad:
                continue
            grads: Sequence[torch.Tensor] = [torch.ones_like(wanted), torch.ones_like(wanted) * 0.5]
            for grad in (grads[k % 2], grads[k % 2][..., :1].expand(wanted.shape) if wanted.dim() else grads[0]):
                both = [
                    torch.autograd.grad(y, [t for t in leaves if t.requires_grad], grad, True, allow_unused=True)
                    for y, leaves in zip((found, wanted), pair, strict=True)
                ]
                torch.testing.assert_close(*both, rtol=1e-4, atol=1e-4)


def test_calls_of_operators_are_native(device: str) -> None:
    x, w = values(6, 8, device=device), values(8, device=device)
    index = torch.tensor([0, 3, 7, 7, 1, 2], device=device)
    leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
    for name, (ours, _) in OPERATORS.items():
        for _ in range(5):
            ours(x, w, index)
            found = ours(*leaves, index)
            found.backward(torch.ones_like(found))
        made = python_calls(lambda ours=ours: ours(x, w, index))
        assert not {"learn", "plan", "row_sums", "pack_width"} & set(made), (name, made)
        made = python_calls(lambda ours=ours: ours(*leaves, index))
        assert name == "mul" or not {"learn", "look", "forward", "direct"} & set(made), (name, made)
        found = ours(*leaves, index)
        made = python_calls(lambda found=found: found.backward(torch.ones_like(found), retain_graph=True))
        assert name == "embedding" or not {"learn", "plan", "_spread"} & set(made), (name, made)
        assert name == "embedding" or made.count("backward") == 2, (name, made)  # of torch: not of the operator


def test_what_is_saved_is_read_once(device: str) -> None:
    for n in (4, 5):  # the second is not known where native code reads what is saved
        x = values(3, n, device=device).requires_grad_()
        for f in (rawkern.softmax, lambda t, dim: rawkern.silu(t)):
            for _ in range(5):
                y = torch.utils.checkpoint.checkpoint(f, x, 1, use_reentrant=False)
                wanted = torch.autograd.grad(f(x, 1)[:, 0].sum(), x)
                torch.testing.assert_close(torch.autograd.grad(y[:, 0].sum(), x), wanted)


def test_backwards_that_are_known_tell_what_is_wrong(device: str) -> None:
    x = values(3, 4, device=device).requires_grad_()
    for f in (lambda: rawkern.softmax(x, 1), lambda: rawkern.silu(x), lambda: rawkern.layer_norm(x, 4)):
        for _ in range(5):
            f().sum().backward()
        y = f().sum()
        y.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            y.backward()


def test_backwards_that_are_known_go_through_autocast(device: str) -> None:
    x = values(3, 4, device=device).requires_grad_()
    grad = values(3, 4, device=device, seed=1)
    for _ in range(5):
        wanted = torch.autograd.grad(rawkern.softmax(x, 1), x, grad)
    y = rawkern.softmax(x, 1)
    with torch.autocast(device, torch.bfloat16):
        made = python_calls(lambda: torch.autograd.grad(y, x, grad, retain_graph=True))
        torch.testing.assert_close(torch.autograd.grad(y, x, grad), wanted)
    assert "look" in made or "is_dynamo_compiling" in made  # in Python


def test_hooks_see_backwards_that_are_known(device: str) -> None:
    x = values(3, 4, device=device).requires_grad_()
    packed = []
    for k in range(6):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(t), t.clone())[1], lambda t: t):
            y = rawkern.softmax(x, 1)
        seen: list[Any] = []
        assert y.grad_fn is not None
        y.grad_fn.register_hook(lambda ins, outs, seen=seen: seen.append((ins, outs)))
        y.grad_fn.register_prehook(lambda grads: (grads[0] * 2,))
        (grad,) = torch.autograd.grad(y[:, 0].sum(), x)
        torch.testing.assert_close(grad, 2 * torch.autograd.grad(torch.softmax(x, 1)[:, 0].sum(), x)[0])
        assert len(seen) == 1 and len(packed) == k + 1


def python_calls(run: Callable[[], Any]) -> list[str]:
    names: list[str] = []
    sys.setprofile(lambda frame, event, arg: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(None)
    return names


def test_changes_of_what_is_saved_are_seen(device: str) -> None:
    x = values(3, 4, device=device).requires_grad_()
    for _ in range(5):
        y = rawkern.softmax(x, 1)
        y.sum().backward()
    y = rawkern.softmax(x, 1)
    y.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = rawkern.softmax(x, 1)
    (grad,) = torch.autograd.grad(y[:, 0].sum(), x, create_graph=True)
    torch.testing.assert_close(
        torch.autograd.grad(grad.square().sum(), x),
        torch.autograd.grad(
            torch.autograd.grad(torch.softmax(x, 1)[:, 0].sum(), x, create_graph=True)[0].square().sum(), x
        ),
    )
