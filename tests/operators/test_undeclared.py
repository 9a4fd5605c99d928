"""Arguments that an operator changes and does not declare: rejected, eagerly as when compiled, before anything runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rawkern

K = rawkern.RawModule(r"""
extern "C" __global__ void add1(float* x, int n) { int i = threadIdx.x; if (i < n) x[i] += 1; }
extern "C" __global__ void copy(float* x, float* y, int n) { int i = threadIdx.x; if (i < n) y[i] = 2 * x[i]; }
extern "C" __global__ void either(float* x, float* y, int n) { float* p = n > 1000 ? x : y; p[threadIdx.x] = 1; }
extern "C" __global__ void listed(float* const* xs, const float* y, int n) { int i = threadIdx.x; if (i < n) xs[0][i] = y[i]; }
struct Both { const float* from; float* to; };
extern "C" __global__ void both(Both b, float* y, int n) { int i = threadIdx.x; if (i < n) y[i] = b.to[i] = b.from[i]; }
""")
MODES = {"eager": lambda f: f, "compiled": lambda f: torch.compile(f, backend="aot_eager", fullgraph=True)}


def operator(name, function, **more):
    return rawkern.op(f"rawkern_test_undeclared::{name}", **more)(function)


@pytest.fixture
def x(device):
    return torch.ones(3, device=device)


def rejected(call, said, *tensors):
    """The call raises, and nothing has changed."""
    before = [t.clone() for t in tensors]
    with pytest.raises(Exception, match=said):
        call(*tensors)
    torch._dynamo.reset()
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))


@pytest.mark.parametrize("how", MODES)
def test_a_launch_that_writes_to_an_argument(x, how) -> None:
    def function(x: Tensor) -> Tensor:
        K.add1[1, 32](x, x.numel())
        return torch.zeros_like(x)

    op = operator("writes", function)
    for _ in range(2):
        rejected(
            MODES[how](op), r"add1 writes to x, which is the operator's argument x; name it, mutates_args=\('x',\)", x
        )


@pytest.mark.parametrize("how", MODES)
def test_a_pointer_that_is_not_const_and_only_read(x, how) -> None:
    def function(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        K.copy[1, 32](x, y, x.numel())
        return y

    op = MODES[how](operator("reads", function))
    for _ in range(3):
        assert (op(x) == 2).all() and (x == 1).all()


@pytest.mark.parametrize("how", MODES)
def test_a_launch_that_may_write(x, how) -> None:
    """Where the code does not tell which of two it is, const or mutates_args do."""

    def function(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        K.either[1, 3](x, y, x.numel())
        return y

    rejected(MODES[how](operator("may", function)), "either may write to x.*or declare x const in the kernel", x)


def test_a_call_that_writes_after_others_that_did_not(x) -> None:
    """What is not looked at in advance is seen from the count of changes; from then on it is looked at."""

    def function(x: Tensor, write: bool) -> Tensor:
        y = torch.zeros_like(x)
        if write:
            K.add1[1, 32](x, x.numel())
        return y

    op = operator("later", function)
    for _ in range(2):
        op(x, False)
    with pytest.raises(rawkern.LaunchError, match="add1 writes to x"):
        op(x, True)
    rejected(lambda x: op(x, True), "add1 writes to x", x)


def test_torch_itself_and_lists_of_pointers(x) -> None:
    def changes(x: Tensor) -> Tensor:
        x.add_(1)
        return torch.zeros_like(x)

    def listed(xs: list[Tensor], y: Tensor) -> Tensor:
        K.listed[1, 32](xs, y, y.numel())
        return torch.zeros_like(y)

    with pytest.raises(rawkern.LaunchError, match=r"may change the operator's argument x; name it"):
        operator("torch", changes)(x)
    with pytest.raises(
        rawkern.LaunchError, match=r"listed may write to xs, .* argument xs\[0\]; name it, mutates_args=\('xs',\)"
    ):
        operator("listed", listed)([x], torch.zeros_like(x))


def test_structs_of_pointers(x) -> None:
    def function(x: Tensor, other: Tensor) -> Tensor:
        y = torch.empty_like(x)
        K.both[1, 32]({"from": x, "to": other}, y, x.numel())
        return y

    with pytest.raises(rawkern.LaunchError, match=r"both may write to b, .* argument other; name it"):
        operator("struct", function)(x, x + 1)
    assert (operator("of_struct", function, mutates_args=("other",))(x, x + 1) == 1).all()


def test_what_is_declared_may_be_changed_through_any_view_of_it(x) -> None:
    def function(x: Tensor, other: Tensor) -> None:
        K.add1[1, 32](x, x.numel())

    op = operator("declared", function, mutates_args=("x",))
    for other in (x.view(3), x, torch.zeros_like(x)):
        op(x, other)
    assert (x == 4).all()
    with torch.inference_mode():
        inside = torch.ones_like(x)
        op(inside, inside + 1)
        assert (inside == 2).all()
