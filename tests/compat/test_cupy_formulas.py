"""Elementwise kernels and reductions of CuPy's guide, on torch tensors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from rawkern import elementwise, reduction

SQUARED = elementwise("float32 x, float32 y", "float32 z", "z = (x - y) * (x - y)", "squared_difference")
GENERIC = elementwise("T x, T y", "T z", "T d = x - y;\nz = d * d;", "generic_difference")
OPEN = elementwise("X x, Y y", "Z z", "z = (x - y) * (x - y)", "open_difference")
REVERSED = elementwise("T x, raw T y", "T z", "z = x + y[_ind.size() - i - 1]", "add_reversed")
RAW = elementwise("raw T x, raw T y", "T z", "z = x[i] + y[_ind . size( ) - 1 - i]", "add_all_raw")
COUNT = elementwise("", "T y", "y = 2 * i + _ind.size()", "count_up")


def test_numbers_and_broadcasting(device: str) -> None:
    x = torch.arange(10.0, device=device).reshape(2, 5)
    y = torch.arange(5.0, device=device)
    assert torch.equal(SQUARED(x, y), (x - y) ** 2) and torch.equal(SQUARED(x, 5), (x - 5) ** 2)
    z = torch.full((2, 5), torch.nan, device=device)
    assert SQUARED(x, y, z) is z and torch.equal(z, (x - y) ** 2)
    z.fill_(torch.nan)
    assert SQUARED(x, np.float32(2.5), out=z) is z and torch.equal(z, (x - 2.5) ** 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.float16])
def test_letters(dtype: torch.dtype, device: str) -> None:
    x, y = torch.arange(10, device=device).to(dtype), torch.full((10,), 3, device=device, dtype=dtype)
    assert torch.equal(GENERIC(x, y), (x - y) ** 2) and GENERIC(x, y).dtype is dtype


def test_letters_of_outputs_alone(device: str) -> None:
    x, y = torch.arange(6.0, device=device), torch.full((6,), 2, dtype=torch.int32, device=device)
    for dtype in (torch.float32, torch.float64, torch.int64):
        z = torch.full((6,), 77, dtype=dtype, device=device)
        assert OPEN(x, y, z) is z and torch.equal(z, ((x - y) ** 2).to(dtype))
        assert torch.equal(OPEN(x, 2, out=z.zero_()), ((x - y) ** 2).to(dtype))
    with torch.device(device):  # a mode of torch's functions
        assert torch.equal(OPEN(x, y, torch.zeros(6)), (x - y) ** 2)
    two = elementwise("T x", "Z y, Z z", "y = x; z = -x", "two_of_a_letter")
    outs = torch.zeros(6, dtype=torch.int64, device=device), torch.zeros(6, dtype=torch.int64, device=device)
    assert two(x, *outs) == outs and torch.equal(outs[1], -x.long())
    with pytest.raises(TypeError, match="two_of_a_letter: Z is int64 and float32"):
        two(x, outs[0], outs[1].float())


def test_letters_of_outputs_alone_need_the_outputs() -> None:
    x = torch.ones(3)
    with pytest.raises(TypeError, match="open_difference: no input determines Z; pass the output z after the inputs"):
        OPEN(x, x)
    with pytest.raises(RuntimeError, match="out can't be used with tensors that require grad"):
        OPEN(x.clone().requires_grad_(), x, torch.zeros(3))
    with pytest.raises(RuntimeError, match="vmap cannot change z in place, which is not batched"):
        torch.func.vmap(lambda t: OPEN(t, 1.0, torch.zeros(())))(x)
    with pytest.raises(TypeError, match="the inputs do not determine the output; pass out="):
        OPEN.in_place(x, x)


def test_raw_arguments(device: str) -> None:
    x, y = torch.rand(2, 7, device=device)
    assert torch.equal(REVERSED(x, y), x + y.flip(0))
    matrix = torch.rand(4, 3, device=device).t()  # indexed as it reads, whatever its strides are
    assert torch.equal(REVERSED(torch.zeros(12, device=device), matrix), matrix.reshape(-1).flip(0))


def test_loops_over_raw_arguments_alone(device: str) -> None:
    x, y = torch.rand(2, 7, device=device)
    expected = x + y.flip(0)
    assert torch.equal(RAW(x, y, size=7), expected)
    assert RAW(x, y, size=0).shape == (0,) and RAW(x, y[:1], size=1).tolist() == (x[:1] + y[:1]).tolist()
    for give in (lambda z: RAW(x, y, z), lambda z: RAW(x, y, out=z), lambda z: RAW(x, y, z, size=7)):
        z = torch.full((7,), torch.nan, device=device)
        assert give(z) is z and torch.equal(z, expected)


def test_loops_without_inputs(device: str) -> None:
    y = torch.zeros(2, 3, dtype=torch.int64, device=device)
    assert COUNT(y) is y and y.tolist() == [[6, 8, 10], [12, 14, 16]]
    with torch.device(device):
        iota = elementwise("", "float32 y", "y = i", "iota")(size=4)
    assert iota.tolist() == [0, 1, 2, 3] and iota.device.type == device


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda x: RAW(x, x),
            ValueError,
            "add_all_raw: no input determines the number of elements; pass size=, or the",
        ),
        (lambda x: RAW(x, x, size=-1), ValueError, "add_all_raw: size is -1; pass the number of elements, 0 or more"),
        (lambda x: RAW(x, size=3), TypeError, "add_all_raw() takes 2 arguments (x, y), got 1"),
        (lambda x: RAW(x, x, torch.zeros(3), size=4), ValueError, "out has shape (3,); the result has (4,)"),
        (
            lambda x: GENERIC(x, x, size=3),
            ValueError,
            "generic_difference: size is only for operators whose inputs are all raw",
        ),
        (lambda x: COUNT(size=3), TypeError, "count_up: no input determines T; pass the output y after the inputs"),
        (lambda x: SQUARED(x, x.double()), TypeError, "squared_difference: y is float64, the operator takes float32"),
        (lambda x: SQUARED(x, x, x.double()), TypeError, "squared_difference: out is float64; the result is float32"),
        (lambda x: GENERIC(x.numpy(), x), TypeError, "generic_difference: x is a ndarray; pass a tensor or a number"),
    ],
)
def test_calls_rejected(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call(torch.ones(3))


def test_they_are_operators_of_torch(device: str) -> None:
    x = torch.rand(7, device=device)
    compiled = torch.compile(lambda t: RAW(t, t, size=7) * 2, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), 2 * (x + x.flip(0)))
    x.requires_grad_()
    operation = "z = x * x + y[_ind.size() - i - 1]"
    own = elementwise("T x, raw T y", "T z", operation, "own_backward", backward="grad_x = 2 * x * grad_z")
    own(x, torch.ones(7, device=device)).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_reductions(device: str) -> None:
    norm = reduction("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "l2norm")
    x = torch.arange(10.0, device=device).reshape(2, 5)
    torch.testing.assert_close(norm(x, axis=1), x.norm(dim=1))
    torch.testing.assert_close(norm(x), x.norm())
    torch.testing.assert_close(norm(x, axis=(0, 1), keepdims=True), x.norm().reshape(1, 1))
    largest = reduction("T x, T y", "T z", "x * y", "a > b ? a : b", "z = a", "-INFINITY", "largest_product")
    assert torch.equal(largest(x, x, axis=0), (x * x).amax(0))
