"""square, mul, scale and relu forward: values, layouts, dtypes and what they reject."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

import rawkern
from rawkern.formulas.axes import aligned_ways, strided_layout
from rawkern.formulas.loop import Loop
from rawkern.formulas.parameters import c_name
from rawkern.library import elementwise

from .common import DTYPES, LAYOUTS, SIZES, assert_rounded, layouts, numbers, poison, same_bits, special

Unary = Callable[[torch.Tensor], torch.Tensor]
# Each operator of one tensor beside the same in torch; given float64, the latter is exact enough to compare with.
UNARY: dict[str, tuple[Unary, Unary]] = {
    "square": (rawkern.square, torch.square),
    "scale": (lambda x: rawkern.scale(x, -0.75), lambda x: x * -0.75),
    "relu": (rawkern.relu, torch.relu),
    "relu_": (lambda x: rawkern.relu_(x.clone()), torch.relu),
}
unary = pytest.mark.parametrize("name", UNARY)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])


@unary
@dtypes
def test_unary_of_every_size(name: str, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = UNARY[name]
    poison(monkeypatch)
    for n in SIZES:
        x = numbers(n, dtype, device)
        before = x.clone()
        got = ours(x)
        assert got.device == x.device and torch.equal(x, before)
        assert_rounded(got, theirs(x.double()), dtype)


@unary
@dtypes
def test_unary_of_special_values(name: str, dtype: torch.dtype, device: str) -> None:
    ours, theirs = UNARY[name]
    x = special(dtype, device)
    assert_rounded(ours(x), theirs(x.double()), dtype)


@dtypes
def test_signs_of_zero_and_nan(dtype: torch.dtype, device: str) -> None:
    x = special(dtype, device)
    assert same_bits(rawkern.relu(x), torch.where(x < 0, torch.zeros_like(x), x))
    assert same_bits(rawkern.scale(x, -1.0), -x)
    assert same_bits(rawkern.mul(x, -torch.ones_like(x)), -x)
    assert not torch.signbit(rawkern.square(torch.tensor(-0.0, dtype=dtype, device=device)))


@unary
@dtypes
@pytest.mark.parametrize("layout", LAYOUTS)
def test_unary_of_every_layout(
    name: str, dtype: torch.dtype, layout: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = UNARY[name]
    x = layouts(dtype, device)[layout]
    poison(monkeypatch)
    got = ours(x)
    assert_rounded(got, theirs(x.double()), dtype)
    assert got.stride() == theirs(x).stride() or not x.numel()


@dtypes
def test_mul_of_every_size(dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    for n in SIZES:
        a, b = numbers(n, dtype, device), numbers(n, dtype, device, seed=1)
        assert_rounded(rawkern.mul(a, b), a.double() * b.double(), dtype)


@dtypes
def test_mul_of_special_values(dtype: torch.dtype, device: str) -> None:
    a = special(dtype, device)
    b = a.roll(7)
    assert_rounded(rawkern.mul(a, b), a.double() * b.double(), dtype)


@dtypes
@pytest.mark.parametrize("layout", LAYOUTS)
def test_mul_of_every_layout(dtype: torch.dtype, layout: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = layouts(dtype, device)[layout]
    y = numbers(tuple(x.shape), dtype, device, seed=2)
    poison(monkeypatch)
    for a, b in ((x, y), (y, x), (x, x)):
        assert_rounded(rawkern.mul(a, b), a.double() * b.double(), dtype)


SHAPES = [
    ((4, 5), (5,)),
    ((5,), (4, 5)),
    ((4, 1), (1, 5)),
    ((3, 1, 5), (4, 1)),
    ((), (3, 4)),
    ((3, 4), ()),
    ((), ()),
    ((1,), (7,)),
    ((0, 3), (3,)),
    ((0, 1), (1, 4)),
    ((2, 3, 1, 5, 1), (1, 4, 1, 6)),
    ((1, 1, 1), (2,)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_mul_broadcasts(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = numbers(shapes[0], torch.float32, device), numbers(shapes[1], torch.float32, device, seed=1)
    poison(monkeypatch)
    assert_rounded(rawkern.mul(a, b), a.double() * b.double(), torch.float32)


@pytest.mark.parametrize("shapes", [((6, 16), (16,)), ((6, 16), (6, 1)), ((6, 16), (1,)), ((16, 6), (16, 1))], ids=str)
@pytest.mark.parametrize("index", ["unsigned int", "long long"])
@pytest.mark.parametrize("offset", [0, 1])
def test_packs_of_broadcast_products(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], index: str, offset: int, device: str
) -> None:
    """The instances that a GPU runs, and those for many elements, on both engines."""
    count = math.prod(shapes[0])
    a = numbers(count + offset, torch.float32, device)[offset:].view(shapes[0])
    b = numbers(shapes[1], torch.float32, device, seed=1)
    for x in (a, a.t().contiguous().t()):
        x, y = torch.broadcast_tensors(x, b)
        out = torch.full(x.shape, math.nan, device=device)
        layout, width, _, ways = strided_layout(x.shape, (x.stride(), y.stride(), out.stride()), None, 4)
        arguments = ["float", str(width), index, *aligned_ways(ways, (x, y, out), width)]
        mul = elementwise._MUL.instance(("array",) * 2, (True,), ", ".join(arguments), True)
        mul.forall(count // width)(x, y, out, layout, count // width, count)
        assert_rounded(out, x.double() * y.double(), torch.float32)


def test_layouts_of_mul() -> None:
    """Dimensions that go on where the one inside them ends are one; rows that packs divide get packs."""

    def facts(shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, int, str]:
        layout, width, index, _ = strided_layout(shape, (a, b), None, 4)
        assert layout is not None
        return struct.unpack_from("q", layout)[0], width, index

    assert facts((4, 8), (8, 1), (0, 1)) == (2, 4, "unsigned int")
    assert facts((4, 8), (8, 1), (0, 0)) == (1, 4, "unsigned int")
    assert facts((4, 6), (6, 1), (0, 1)) == (2, 1, "unsigned int")
    assert facts((2, 3, 1, 4), (12, 4, 9, 1), (0, 4, 0, 1)) == (2, 4, "unsigned int")
    assert facts((), (), ()) == (1, 1, "unsigned int")
    assert facts((2**16, 2**16), (2**16, 1), (0, 1)) == (2, 4, "long long")
    assert facts((2, 4), (2**31, 1), (0, 1)) == (2, 4, "long long")
    assert strided_layout((2,) * 9, (tuple(3**k for k in range(9)), (0,) * 9), None, 4)[0] is None


def test_mul_of_more_dimensions_than_a_kernel_takes(device: str) -> None:
    a = numbers((2,) * 11, torch.float32, device)
    b = a.permute(*range(10, -1, -2), *range(1, 11, 2))
    assert_rounded(rawkern.mul(a, b), a.double() * b.double(), torch.float32)


def test_mul_rejects_shapes_that_do_not_broadcast(device: str) -> None:
    with pytest.raises(RuntimeError, match="must match"):
        rawkern.mul(torch.ones(3, device=device), torch.ones(4, device=device))


PROMOTED = [*DTYPES, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("one", DTYPES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("other", PROMOTED, ids=lambda dtype: str(dtype)[6:])
def test_mul_promotes_as_torch_does(one: torch.dtype, other: torch.dtype, device: str) -> None:
    values = torch.tensor([0, 1, 3, 2], device=device)
    for a, b in (
        (values.to(one), values.to(other)),
        (values.to(one), values[2].to(other)),
        (values[2].to(one), values.to(other)),
    ):
        want = a * b
        for got in (rawkern.mul(a, b), rawkern.mul(b, a)):
            assert got.dtype == want.dtype and torch.equal(got, want)


@dtypes
@pytest.mark.parametrize(
    "s", [0.1, -3, 0, True, math.inf, math.nan, 1e300, 1e-300, np.float32(0.3), np.int64(7), Fraction(1, 3)]
)
def test_scale_takes_numbers(s: float, dtype: torch.dtype, device: str) -> None:
    x = numbers(100, dtype, device)
    torch.testing.assert_close(rawkern.scale(x, s), x * float(s), rtol=torch.finfo(dtype).eps, atol=0, equal_nan=True)


@pytest.mark.parametrize("s", [1j, "2", None, torch.tensor(2.0), [1.0]])
def test_scale_rejects_what_is_no_number(s: object, device: str) -> None:
    with pytest.raises(TypeError, match=f"scale: s is {type(s).__name__}, it must be a real number"):
        rawkern.scale(torch.ones(3, device=device), s)  # type: ignore[arg-type]


# The kernels as a GPU runs them, a pack of elements for each thread, run on both engines.
PACKS = {torch.float16: 8, torch.bfloat16: 8, torch.float32: 4, torch.float64: 2}


def packed(loop: Loop, dtype: torch.dtype) -> rawkern.RawKernel:
    wanted = (True,) * len(loop.outputs)
    return loop.instance(("array",) * len(loop.inputs), wanted, f"{c_name('', dtype)}, {PACKS[dtype]}", False)


@dtypes
@pytest.mark.parametrize("offset", [0, 1])
def test_packs_are_right_on_both_engines(dtype: torch.dtype, offset: int, device: str) -> None:
    width = PACKS[dtype]
    square, square_grad, mul_grad = (
        packed(loop, dtype) for loop in (elementwise._SQUARE, elementwise._SQUARE_GRAD, elementwise._MUL_GRAD)
    )
    for n in (1, width - 1, width, 5 * width + 1, 1030):
        x, g, y = (numbers(n + offset, dtype, device, seed)[offset:] for seed in range(3))
        outs = [torch.full_like(x, math.nan) for _ in range(4)]
        threads = -(-n // width)
        square.forall(threads)(x, outs[0], n)
        square_grad.forall(threads)(g, x, outs[1], n)
        mul_grad.forall(threads)(g, x, y, outs[2], outs[3], n)
        exact = x.double() ** 2, 2 * g.double() * x.double(), g.double() * y.double(), g.double() * x.double()
        for out, want in zip(outs, exact, strict=True):
            assert_rounded(out, want, dtype)


def test_a_pack_writes_nothing_beyond_the_end(device: str) -> None:
    kernel, width = packed(elementwise._SQUARE, torch.float32), PACKS[torch.float32]
    x, out = numbers(64, torch.float32, device), torch.full((64,), math.nan, device=device)
    kernel.forall(64)(x, out, 4 * width + 1)
    assert torch.equal(out[: 4 * width + 1], x[: 4 * width + 1] ** 2)
    assert out[4 * width + 1 :].isnan().all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64, torch.uint8, torch.float8_e4m3fn])
def test_other_dtypes_are_rejected(dtype: torch.dtype, device: str) -> None:
    x = torch.zeros(3, device=device).to(dtype)
    name = str(dtype)[6:]
    calls = {
        "square": lambda: rawkern.square(x),
        "scale": lambda: rawkern.scale(x, 2.0),
        "relu": lambda: rawkern.relu(x),
        "mul": lambda: rawkern.mul(x, x),
    }
    for op, call in calls.items():
        with pytest.raises(TypeError, match=rf"^{op}: the tensor is {name}; .* float16, bfloat16, float32, float64$"):
            call()
    with pytest.raises(TypeError, match="the tensor is"):
        rawkern.relu_(x)


def test_what_is_no_tensor_is_rejected() -> None:
    x = torch.ones(3)
    for call, got in (
        (lambda: rawkern.square(2.0), "float"),  # type: ignore[arg-type]
        (lambda: rawkern.scale([1.0], 2.0), "list"),  # type: ignore[arg-type]
        (lambda: rawkern.relu(None), "NoneType"),  # type: ignore[arg-type]
        (lambda: rawkern.relu_(np.ones(3)), "ndarray"),  # type: ignore[arg-type]
        (lambda: rawkern.mul(x, 2.0), "float"),  # type: ignore[arg-type]
        (lambda: rawkern.mul(2.0, x), "float"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=f"takes torch tensors, got {got}"):
            call()


@pytest.mark.gpu
def test_a_cpu_and_a_gpu_tensor_are_rejected() -> None:
    with pytest.raises(ValueError, match="mul: a is on cpu, b is on cuda:0"):
        rawkern.mul(torch.ones(3), torch.ones(3, device="cuda"))


@pytest.mark.gpu
def test_more_elements_than_32_bits_can_count() -> None:
    n = 2**31 + 13
    if torch.cuda.mem_get_info()[0] < 4 * n * 2:
        pytest.skip("needs 20 GB of GPU memory")
    x = torch.full((n,), 3.0, dtype=torch.float16, device="cuda")
    x[-1] = 5.0
    y = rawkern.square(x)
    assert y[-1] == 25 and y[2**31] == 9 and y[0] == 9
    y = rawkern.mul(x, x[-1].expand(n))
    assert y[-1] == 25 and y[2**31] == 15 and y[0] == 15
    rawkern.relu_(x.neg_())
    assert not x.any()


# What autograd or a tracer would lose has to be said, not computed wrongly -----------------------------------------


TRANSFORMED: dict[str, tuple[Unary, Unary]] = UNARY | {
    "mul": (lambda x: rawkern.mul(x, x.sin()), lambda x: x * x.sin()),
    "mul of a row": (lambda x: rawkern.mul(x, x[0]), lambda x: x * x[0]),
}
transformed = pytest.mark.parametrize("name", TRANSFORMED)


@transformed
def test_tracers_and_transforms(name: str, device: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    ours, theirs = TRANSFORMED[name]
    x, t = numbers((4, 3), torch.float64, device), numbers((4, 3), torch.float64, device, seed=1)
    close = torch.testing.assert_close
    close(make_fx(ours)(t)(x), theirs(x))
    assert ours(torch.ones(4, 3, device="meta")).shape == (4, 3)
    close(torch.func.jvp(ours, (x,), (t,)), torch.func.jvp(theirs, (x,), (t,)))
    close(torch.func.grad(lambda x: ours(x).sum())(x), torch.func.grad(lambda x: theirs(x).sum())(x))
    batch = numbers((4, 5, 3), torch.float64, device, seed=2)
    close(torch.func.vmap(ours, 1)(batch), torch.func.vmap(theirs, 1)(batch))
    close(torch.func.jacrev(ours)(x), torch.func.jacrev(theirs)(x))


@transformed
def test_compiles_once_for_all_sizes(name: str, device: str) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    ours, theirs = TRANSFORMED[name]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x: ours(x * 2).sum(), fullgraph=True, dynamic=True, backend=counter)
    for rows in (4, 7, 12):
        x = numbers((rows, 3), torch.float64, device).requires_grad_()
        found, expected = compiled(x), theirs(x * 2).sum()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(expected, x))
    assert counter.frame_count == 1


def test_a_lazily_negated_tensor(device: str) -> None:
    z = torch.complex(numbers(6, torch.float32, device), numbers(6, torch.float32, device, seed=1))
    x = z.conj().imag
    assert x.is_neg()
    assert_rounded(rawkern.relu(x), torch.relu(-z.imag.double()), torch.float32)
    assert_rounded(rawkern.mul(x, x[:1]), (z.imag * z.imag[:1].double()), torch.float32)
