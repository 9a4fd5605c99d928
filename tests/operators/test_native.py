"""Operators in machine code: which calls are native, and that every other goes to Python's functions."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import rawkern
from rawkern.base import operator_state
from rawkern.base import torch_private as private
from rawkern.formulas.loop import Loop
from rawkern.formulas.parameters import parse_parameters
from rawkern.launch import intercept
from rawkern.operators import native
from rawkern.operators.native import watching
from tests import forked
from tests.operators.allocations import Limited


def values(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def loop(inputs: str, outputs: str, operation: str) -> Loop:
    return Loop("native_test", parse_parameters(inputs, "test"), parse_parameters(outputs, "test"), operation)


class Calls:
    """A loop's calls, warmed up, and how many of those that came after went to Python."""

    def __init__(self, of: Loop, *args: Any) -> None:
        self.of, self.slow_path = of, of.fast.slow_path
        self.count = 0
        of.fast.run = of.fast.slow_path = self.counted
        of.fast.for_users(self.counted)
        for _ in range(4):
            of.fast.call(*args)
        self.count = 0

    def counted(self, *args: Any, **names: Any) -> Any:
        self.count += 1
        return self.slow_path(*args, **names)

    def native(self, *args: Any) -> Any:
        """The result of a call that did not go to Python; one may, to look at the source or to start workers."""
        for _ in range(5):
            before = self.count
            found = self.of.fast.call(*args)
            if self.count == before:
                return found
        raise AssertionError("every call goes to Python")


def test_plain_calls_are_native(device: str) -> None:
    x, y = values(3, 5, device=device), values(3, 5, seed=1, device=device)
    calls = Calls(loop("T x, T w, float64 s", "T y, T z", "y = x * w + T(s); z = x - w"), x, y, 0.5)
    out, other = calls.native(x, y, 2)
    torch.testing.assert_close((out, other), (x * y + 2, x - y))
    assert out.shape == x.shape and out.device == x.device and out._version == 0 and not out.requires_grad
    bigger, w = values(1 << 18, device=device), values(1 << 18, seed=1, device=device)
    torch.testing.assert_close(calls.native(bigger, w, 0.25), (bigger * w + 0.25, bigger - w))
    with torch.no_grad():
        assert type(calls.native(torch.nn.Parameter(x), y, 0.0)[0]) is torch.Tensor
    with torch.inference_mode():
        assert calls.native(x, y, 0.0)[0].is_inference()


def test_one_element_that_is_expanded_is_native(device: str) -> None:
    """As the gradient of a sum is."""
    x, one = values(3, 5, device=device), values(1, 1, seed=1, device=device).expand(3, 5)
    of = loop("T g, T w", "T d", "d = g * w - w")
    for args in ((one, x), (x, one)):
        calls = Calls(of, *args)
        for found in (calls.native(*args), calls.native(*(t.clone() for t in args)), calls.native(*args)):
            torch.testing.assert_close(found, args[0] * args[1] - args[1])
            assert found.is_contiguous()
    calls.count = 0
    for args in ((one, one), (one[:, :1].expand(2, 3, 1), x[:1, :1].expand(2, 3, 1)), (x, x[:1].expand(3, 5))):
        torch.testing.assert_close(of.fast.call(*args), args[0] * args[1] - args[1])
    assert calls.count == 3


def test_recorded_calls_go_straight_to_autograd(device: str) -> None:
    x = values(3, 5, device=device).requires_grad_()
    formula = rawkern.elementwise("T x, T w", "T y", "y = x * w", "rawkern_test::recorded")
    pairs = (
        (rawkern.square, torch.square), (lambda x: formula(x, x), torch.square), (rawkern.relu, torch.relu),
        (lambda x: rawkern.mul(x, x), torch.square),
    )  # fmt: skip
    for call, expected in pairs:
        for _ in range(4):
            call(x.detach())
        frames = python_calls(lambda call=call: call(x))
        assert not any(name in ("_checked", "_any_mul", "_prepared_call", "_slow_path") for name in frames), frames
        saved: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: saved.append(t) or t, lambda t: t):
            found = call(x)
        assert saved and all(t.data_ptr() in (x.data_ptr(), found.data_ptr()) for t in saved)
        torch.testing.assert_close(found, expected(x))
        (grad,) = torch.autograd.grad(found.sum(), x, create_graph=expected is not torch.relu)
        torch.testing.assert_close(grad, torch.autograd.grad(expected(x).sum(), x)[0])
        if grad.requires_grad:
            torch.testing.assert_close(torch.autograd.grad(grad.sum(), x)[0], torch.full_like(x, 2))
        assert call(x[:0]).shape == (0, 5) and call(x.t()).requires_grad
    y = x * 1
    found = rawkern.square(y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()


def python_calls(run: Callable[[], Any]) -> list[str]:
    """The Python functions that are called, by name; of several runs those of the last, when sources have been looked at."""
    for _ in range(3):
        names: list[str] = []
        sys.setprofile(
            lambda frame, event, arg, names=names: names.append(frame.f_code.co_name) if event == "call" else None
        )
        try:
            run()
        finally:
            sys.setprofile(None)
    return names


NOT_PLAIN: dict[str, Callable[[torch.Tensor], tuple[Any, ...]]] = {
    "another dtype": lambda x: (x.double(), x.double()),
    "two dtypes": lambda x: (x, x.double()),
    "transposed": lambda x: (x.t(), x.t()),
    "one transposed": lambda x: (x, x.t().contiguous().t()),
    "another shape": lambda x: (x, x[0]),
    "as many elements": lambda x: (x, x.reshape(5, 3).reshape(3, 1, 5)[:, 0].expand(3, 5)[:, :1]),
    "empty": lambda x: (x[:0], x[:0]),
    "negated": lambda x: (torch._neg_view(x), x),
    "requires grad": lambda x: (x, x.clone().requires_grad_()),
    "a subclass": lambda x: (x.as_subclass(Other), x),
    "meta": lambda x: (x.to("meta"), x.to("meta")),
}


class Other(torch.Tensor):
    pass


@pytest.mark.parametrize("kind", NOT_PLAIN)
def test_others_go_to_python(kind: str, device: str) -> None:
    x = values(3, 5, device=device)
    calls = Calls(loop("T x, T w", "T y", "y = x * w"), x, x)
    args = NOT_PLAIN[kind](x)
    with operator_state.inside_op(fake=kind == "meta"):
        try:
            found = calls.of.fast.run(*args)
        except (TypeError, RuntimeError):
            assert kind in ("two dtypes", "a subclass")
        else:
            assert kind == "meta" or torch.allclose(found.double(), args[0].double() * args[1].double(), atol=1e-6)
    assert calls.count == 1


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


WATCHERS: dict[str, Callable[[], Any]] = {
    "dispatch mode": Dispatch,
    "function mode": Functions,
    "forward mode": forward_ad.dual_level,
    "profiler": torch.autograd.profiler.profile,
    "composed": lambda: operator_state.inside_op(composed=True),
    "a hook": lambda: intercept.intercepted(lambda launch: launch.proceed()),
}


@pytest.mark.parametrize("what", WATCHERS)
def test_what_watches(what: str, device: str) -> None:
    x = values(4, device=device)
    calls = Calls(loop("T x", "T y", "y = x + 1"), x)
    seen: list[Any] = []

    def elsewhere() -> None:
        seen.append(watching.quiet())

    with WATCHERS[what]():
        if what != "composed":  # which a launch rejects
            with operator_state.inside_op():
                assert torch.equal(calls.of.fast.call(x), x + 1) and calls.count == 1
        assert watching.look(x) is None
        assert watching.quiet() is (what in ("composed", "a hook"))
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert watching.quiet() and watching.look(x) is False
    assert seen == [what not in ("forward mode", "profiler")]  # whose levels are the whole process's


def test_profilers_see_every_operator(device: str) -> None:
    x = values(4, device=device).requires_grad_()
    formula = rawkern.elementwise("T x", "T y", "y = x + 1", "rawkern_test::profiled")
    total = rawkern.reduction("T x", "T y", "x", "a + b", "y = a", "0", "rawkern_test::profiled_total")
    calls = {
        "rawkern::square": rawkern.square, "rawkern::softmax": lambda x: rawkern.softmax(x, 0),
        "rawkern::gelu": rawkern.gelu, "rawkern_test::profiled": formula, "rawkern_test::profiled_total": total,
    }  # fmt: skip
    for name, call in calls.items():
        for _ in range(3):
            call(x.detach())
        for profiler in (torch.profiler.profile, torch.autograd.profiler.profile):
            with profiler() as found:
                call(x.detach())
            assert name in {event.key for event in found.key_averages()}
            with profiler() as found:
                call(x).sum().backward()
            assert {name, f"{name}_backward"} <= {event.key for event in found.key_averages()}


def test_transforms_are_seen_in_each_thread(device: str) -> None:
    inside: list[Any] = []
    torch.func.vmap(lambda x: inside.append((watching.quiet(), watching.look(x))) or x * 2)(values(3, device=device))
    assert inside == [(False, None)] and watching.quiet()


def test_look(device: str) -> None:
    x, g = values(3, device=device), values(3, device=device).requires_grad_()
    look = watching.look
    assert look(x) is look(x, None, x) is False and look(x, g) is look(g.view(3)) is True
    with torch.no_grad():
        assert look(g) is False
    for wrong in ((), (None,), (x, 1), ([x],), (x, x.to("meta")), (x.to_sparse(),), (torch._neg_view(x),)):
        assert look(*wrong) is None


def test_fit(device: str) -> None:
    x = values(3, 2, device=device)
    assert watching.fit(x, x + 1, None, x, x, torch.nn.Parameter(x)) is True
    for a, b in ((x, x.t()), (x, x.double()), (x, None), (1, x), (x, x[:2]), (x, x[None])):
        assert watching.fit(x, x, a, b) is False


def test_what_a_plain_tensor_is_does_not_depend_on_the_first_call() -> None:
    """It is learned at the first call of a process, under whatever transform or mode that runs."""
    script = """
import os
import torch, rawkern
from torch._subclasses.fake_tensor import FakeTensorMode
from rawkern.operators.native import watching
calls = {
    "grad": lambda: torch.func.grad(lambda x: rawkern.square(x).sum())(torch.ones(3)),
    "vmap": lambda: torch.func.vmap(rawkern.square)(torch.ones(3, 2)),
    "functionalize": lambda: torch.func.functionalize(rawkern.square)(torch.ones(3)),
    "fake": lambda: FakeTensorMode().__enter__() and rawkern.square(torch.ones(3)),
    "inference": lambda: torch.inference_mode()(rawkern.square)(torch.ones(3)),
}
for within, call in calls.items():
    if child := os.fork():  # each call is the first of its process
        assert os.waitpid(child, 0)[1] == 0, within
        continue
    call()
    torch.utils._python_dispatch._pop_mode() if within == "fake" else None
    assert watching.look(torch.ones(3)) is False
    os._exit(0)
"""
    subprocess.run([*forked.python(), "-c", script], check=True, timeout=300)


def test_fresh(device: str) -> None:
    x, y = values(3, 2, device=device), values(3, 2, device=device)
    assert watching.fresh(x + 1, x, None, y) is watching.fresh((x + 1, y), x) is watching.fresh(x) is True
    for shared in (x, x[1:], x[:0], x.detach(), x.t()):
        assert watching.fresh(shared, y, x) is watching.fresh((y, shared), x) is False
    for results in ((x, x), (x, y, x[1:]), None, (x, None), 1.0, [x], x.to("meta"), (x, "y")):
        assert watching.fresh(results, values(1, device=device)) is False
    assert watching.fresh(x, 1) is False  # what it cannot tell


def test_without_native_code(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Another torch, which machine code cannot read: the same answers from Python, and every call its own."""
    x, g = values(3, device=device), values(3, device=device).requires_grad_()
    assert native._quiet() is True and native._look(x, None) is False and native._look(x, g) is True
    assert native._look(x.to("meta")) is native._look(None) is native._look(x.to_sparse()) is None
    assert native._fit(x, g, None, x) is True and native._fit(x, x[:2]) is False

    def rejects() -> None:
        raise rawkern.UnsupportedError("another torch")

    monkeypatch.setattr(native, "_watch", rejects)
    calls = Calls(loop("T x", "T y", "y = x - 1"), x)
    assert torch.equal(calls.of.fast.call(x), x - 1) and calls.count == 1
    answers = native._Watching()
    assert answers.quiet() is True and answers.look(g) is True and answers.fit(x, g) is True
    assert answers.fresh(x + 1, x) is False  # then the slow path looks


def test_errors_of_the_allocation_are_raised(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    assert private.empty_strided is not None
    allocations = Limited(monkeypatch, (private, "empty_strided"), (torch, "empty_like"))
    x = values(4, device=device)
    calls = Calls(loop("T x", "T y, T z", "y = x; z = x"), x)
    assert torch.equal(calls.native(x)[1], x)
    allocations.left = 1
    with pytest.raises(MemoryError, match="no more"):
        calls.of.fast.call(x)
    assert allocations.left == 0


def test_an_operator_with_parameters_called_as_its_variables(device: str) -> None:
    @rawkern.op("rawkern_tests::variables")
    def variables(result: torch.Tensor, level: int, recorded: float) -> torch.Tensor:
        return result * level + recorded

    @variables.backward
    def _(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * ctx.level

    x = values(3, device=device).requires_grad_()
    y = variables(x, 3, 0.5)
    torch.testing.assert_close(y, x * 3 + 0.5)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, 3))
    with torch.no_grad():
        torch.testing.assert_close(variables(x, 3, 0.5), x * 3 + 0.5)
