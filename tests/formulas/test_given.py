"""Elementwise expressions that compute into given tensors: outputs that start with what those hold, raw outputs, shapes."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import rawkern
from rawkern.formulas.updated import updated
from tests.formulas.kit import values

sgd = rawkern.elementwise("T grad, T lr", "T param", "param -= lr * grad", "sgd_given")
masked = rawkern.elementwise("T x", "T y", "if (x > 1) y = x", "masked_given")
convert = rawkern.elementwise("T x, T scale", "S y", "y = x * scale", "convert_given")
add_up = rawkern.reduction("T x", "T y, int64 k", "x", "a + b", "y += a; k = count", "0", "add_up_given")
histogram = rawkern.elementwise("T x, int32 w", "raw int32 h", "atomicAdd(&h[(int)x], w)", "histogram_given")
back = rawkern.elementwise("T x", "raw T y", "y[n - 1 - i] = x", "back_given")
described = rawkern.elementwise(
    "raw T x",
    "T y, raw int64 about",
    """
    long long j[2] = {_ind.get()[1], _ind.get()[0]};
    y = x[j] + x[{j[0], j[1]}];
    if (i == 0) {
        about[0] = x.size(); about[1] = x.shape()[1]; about[2] = x.strides()[0]; about[3] = x.ndim;
        about[4] = about.size(); about[5] = _ind.size(); about[6] = _ind.ndim;
    }
    """,
    "described_given",
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
@pytest.mark.parametrize("layout", ["dense", "transposed", "every other", "many dimensions"])
def test_outputs_start_with_what_is_there(dtype: torch.dtype, layout: str, device: str) -> None:
    grad, p = (values(24, 70, dtype=dtype, device=device, seed=k) for k in range(2))
    if layout == "transposed":
        p = p.t().contiguous().t()
    elif layout == "every other":
        p = torch.full((24, 140), 7, dtype=dtype, device=device)[:, ::2].copy_(p)
    elif layout == "many dimensions":  # more than a kernel takes as they are
        whole = torch.full((3,) * 10, 7, dtype=dtype, device=device)[(slice(0, 2),) * 10]
        p, grad = whole.copy_(values(*whole.shape, dtype=dtype, device=device)), torch.ones_like(whole)
    want = (p.double() - 2 * grad.double()).to(dtype)
    assert sgd(grad, 2, p) is p
    torch.testing.assert_close(p, want)
    if layout == "every other":
        assert torch.equal(p._base[:, 1::2], torch.full_like(p, 7))  # type: ignore[index]


def test_what_is_not_set_keeps_its_value(device: str) -> None:
    momentum = rawkern.elementwise(
        "T grad, T lr, T m", "T param, T v", "v = m * v - lr * grad; param += v", "momentum_given"
    )
    p, v = torch.full((3,), 10.0, device=device), torch.ones(3, device=device)
    momentum(torch.ones(3, device=device), 0.5, 0.25, p, v)
    assert (p.tolist(), v.tolist()) == ([9.75] * 3, [-0.25] * 3)
    x, y = torch.tensor([1.0, 2.0, 3.0], device=device), torch.full((3,), -7.0, device=device)
    assert masked(x, out=y) is y and y.tolist() == [-7, 2, 3]
    assert masked(x).tolist() == [0, 2, 3]  # what a call makes starts at 0


def test_gradients_of_outputs_that_start_at_0(device: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    assert torch.autograd.grad(masked(x).sum(), x)[0].tolist() == [0, 1, 1]
    assert torch.autograd.grad(sgd(x, 0.5).sum(), x)[0].tolist() == [-0.5] * 3
    with pytest.raises(RuntimeError, match="out can't be used with tensors that require grad"):
        sgd(x.detach(), 0.5, x)
    with torch.no_grad():
        assert sgd(x.detach(), 0.5, x).tolist() == [0.5, 1, 1.5]


@pytest.mark.parametrize("over", ["input", "other output"])
def test_outputs_that_share_memory_with_others(over: str, device: str) -> None:
    pair = rawkern.elementwise("T x", "T y, T z", "y += x; z += 2 * x", "pair_given")
    memory = torch.arange(5.0, device=device)
    x, z = torch.ones(4, device=device), torch.zeros(4, device=device)
    if over == "input":
        pair(memory[:-1], memory[1:], z)
        assert (memory.tolist(), z.tolist()) == ([0, 1, 3, 5, 7], [0, 2, 4, 6])
    else:  # each is as if it were the only one
        pair(x, z, z.view(4))
        assert all(value in (1, 2, 3) for value in z.tolist())


def test_reductions_add_to_what_is_there(device: str) -> None:
    x, y = values(30, 4000, device=device), torch.arange(60.0, device=device).view(30, 2)[:, 0]
    k, want = torch.zeros(30, dtype=torch.int64, device=device), y.double() + x.double().sum(1)
    assert add_up(x, out=(y, k), axis=1)[0] is y
    torch.testing.assert_close(y, want.float(), rtol=1e-5, atol=1e-4)
    assert k.tolist() == [4000] * 30
    add_up(x, y, k, axis=1)  # as with CuPy, outputs may follow
    torch.testing.assert_close(y, (want + x.double().sum(1)).float(), rtol=1e-5, atol=1e-4)
    own = torch.arange(9.0, device=device).view(3, 3)
    add_up(own, own[0], k[:3], axis=1)  # which is read before it is written
    assert own[0].tolist() == [3, 13, 23]
    assert add_up(own[1:], axis=1)[0].tolist() == [12, 21]
    z = torch.ones(2, device=device)
    tall = values(100_000, 2, device=device)  # of which several blocks make one result
    add_up(tall, z, torch.empty(2, dtype=torch.int64, device=device), axis=0)
    torch.testing.assert_close(z, (1 + tall.double().sum(0)).float(), rtol=1e-4, atol=1e-2)


def _step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    p, s, h = x * 2, torch.zeros_like(x, dtype=torch.int32), torch.zeros_like(x)
    total, k = torch.ones_like(x[..., 0]), torch.zeros_like(x[..., 0], dtype=torch.int64)
    sgd(x, 0.5, p)
    convert(x, 10, s)
    back(x, h)
    add_up(x, total, k, axis=-1)
    return p, s + 1, h, total


def test_in_torch(device: str) -> None:
    x = torch.arange(6.0, device=device).view(2, 3)
    want = _step(x)
    assert want[0].tolist() == [[0, 1.5, 3], [4.5, 6, 7.5]] and want[1].tolist() == [[1, 11, 21], [31, 41, 51]]
    assert want[2].tolist() == [[5, 4, 3], [2, 1, 0]] and want[3].tolist() == [4, 13]
    torch._dynamo.reset()
    for found in (
        torch.compile(_step, backend="aot_eager", fullgraph=True)(x),
        make_fx(_step)(x)(x),
    ):
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    rows = torch.func.vmap(_step)(x)
    assert all(torch.equal(torch.stack(row), rows[k]) for k, row in enumerate(zip(*map(_step, x), strict=True)))
    with pytest.raises(RuntimeError, match="vmap cannot change y in place"):
        torch.func.vmap(lambda each: back(each, torch.zeros(3, device=device)))(x)


def test_raw_outputs(device: str) -> None:
    counts = torch.zeros(10, dtype=torch.int32, device=device)
    x = torch.tensor([0, 1, 1, 4], device=device)
    assert histogram(x, 2, counts[::2]).tolist() == [2, 4, 0, 0, 2] and counts[1::2].tolist() == [0] * 5
    x = values(3, 5, device=device)
    for dtype in (torch.float32, torch.bfloat16):
        y = x.to(dtype)
        want = y.flatten().flip(0).view(3, 5).clone()
        assert torch.equal(back(y, y), want)  # which is read before it is written
    with pytest.raises(TypeError, match="the size of the raw output y is not known; pass it after the inputs"):
        back(x)
    fill = rawkern.elementwise("", "raw T y", "y[2 * i] = i", "fill_given")
    assert fill(torch.zeros(6, device=device), size=3).tolist() == [0, 0, 1, 0, 2, 0]
    with pytest.raises(ValueError, match=r"no input determines the number of elements; pass size=$"):
        fill(torch.zeros(6, device=device))
    with pytest.raises(ValueError, match="y is a raw output, which has no gradient; remove backward"):
        rawkern.elementwise("T x", "raw T y", "y[i] = x", "f", backward="grad_x = 0")


def test_raw_outputs_are_checked_by_their_names() -> None:
    with pytest.raises(rawkern.OutOfBoundsError, match=r"updates h\[8\]; h has 5 elements"):
        histogram(torch.tensor([8.0]), 1, torch.zeros(5, dtype=torch.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_raw_arrays_tell_their_shape(dtype: torch.dtype, device: str) -> None:
    x, about = values(3, 5, dtype=dtype, device=device), torch.zeros(7, dtype=torch.int64, device=device)
    y = torch.empty(10, 3, dtype=dtype, device=device)[::2]
    assert torch.equal(described(x, y, about)[0], 2 * x.t())
    assert about.tolist() == [15, 5, 5 * x.element_size(), 2, 7, 15, 2]
    band = rawkern.elementwise("T x", "T y", "y = _ind.get()[1] >= _ind.get()[0] ? x : T(0)", "band_given")
    assert torch.equal(band(x.t()), x.t().triu())
    first = rawkern.elementwise("raw T x, int64 k", "T y", "y = at(x, i + k)", "first_given",
                                preamble="template <class A> __device__ auto at(A a, int i) { return a[i % a.size()]; }")  # fmt: skip
    assert torch.equal(first(x[0], 2, y[0]), x[0].roll(-2)[:3])
    own = rawkern.elementwise("raw T x", "T y", "y = x[_ind.get()]", "own_given")
    assert own(x.sum(), torch.empty((), dtype=dtype, device=device)) == x.sum()
    with pytest.raises(rawkern.CompileError, match="an element has as many indices as its array has dimensions"):
        own(x[0], y)


def test_shapes_of_given_outputs(device: str) -> None:
    """As with CuPy, outputs take part in broadcasting, and have its shape."""
    place = rawkern.elementwise("T v", "T y", "y = v + i", "place_given")
    y = torch.zeros(2, 3, device=device)
    want = torch.arange(6.0, device=device).view(2, 3)
    assert torch.equal(place(1, y), 1 + want)
    assert torch.equal(place(torch.tensor([[10.0], [20.0]], device=device), y), want + y.new_tensor([[10.0], [20.0]]))
    assert torch.equal(torch.compile(place, backend="aot_eager", fullgraph=True)(1, y), 1 + want)
    for x in (torch.ones(4, device=device), torch.ones(1, 2, 3, device=device)):
        with pytest.raises(ValueError, match=r"out has shape \(2, 3\); the result has"):
            place(x, y)


UPDATED = [
    ("y = x", ""), ("y += x", "y"), ("y = x; y += 1", ""), ("if (x > 0) y = x", "y"), ("y = y + x", "y"),
    ("if (x > 0) y = x; else y = 0", ""), ("if (x > 0) { y = x; } else if (x < -1) y = 0", "y"),
    ("if (x > 0) return; y = x", "y"), ("y = x; if (x > 0) return; y = 2", ""), ("x > 0 && (y = x)", "y"),
    ("for (int k = 0; k < 3; ++k) y = x", "y"), ("y = 0; for (int k = 0; k < 3; ++k) y += x", ""),
    ("T t = x; y = t; z = y", ""), ("z = y; y = x", "y"), ("y = z = x", ""), ("y = x, z = x", ""), ("++y", "y"),
    ("sincos(x, &y, &z)", ""), ("set(x, &y)", "y"), ("set(x, y)", "y"), ("switch (k) { case 0: y = 1; }", "y"),
    ("auto f = [&] { y = x; }; f()", "yz"), ("#ifdef A\ny = x;\n#endif\nz = 1", "yz"), ("y = x; {", "yz"),
    ("for (;;) { if (x > 0) { y = 1; break; } }", "y"), ("y = x ? y : 1", "y"), ("y == 1; y = x", "y"),
    ("{ T s = x; y = s; } z = 1", ""), ("if (x > 0) y = x; else return; z = y", "yz"),
    ("for (int k = 0; k < 3; y = k++) ; z = 1", "y"), ("// y\ny = x", ""), ("y = a.y", ""), ("y = a; /* z */ z = y", ""),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "found"), UPDATED)
def test_which_outputs_are_updated(operation: str, found: str) -> None:
    outputs = ["y", "z"] if "z" in operation or "yz" in found else ["y"]
    assert "".join(updated(operation, outputs)) == found
