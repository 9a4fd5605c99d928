"""Elementwise operators: dtypes, shapes, layouts, outputs, gradients."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import rawkern
from rawkern.formulas import reduce_loop
from rawkern.formulas.gradient import Gradient
from rawkern.formulas.loop import Loop
from rawkern.formulas.parameters import parse_parameters
from tests.formulas.kit import add, fused, fused_reference, parts, silu, values

axpy = rawkern.elementwise("T x, T y, float64 a", "T z", "z = T(a * x + y)", "axpy")


FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes_against_float64(device, dtype):
    a, b = values(1003, dtype=dtype, device=device), values(1003, dtype=dtype, device=device, seed=1)
    y = fused(a, b)
    assert y.dtype is dtype and y.device == a.device
    # half types are computed in float and rounded once
    torch.testing.assert_close(y, fused_reference(a.double(), b.double()).to(dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.int32])
def test_integers_are_promoted_for_functions_of_floats(dtype, device):
    x = torch.arange(5, device=device).to(dtype)
    for _ in range(3):  # the first calls, and those that might be native
        found = silu(x)
        torch.testing.assert_close(found, torch.nn.functional.silu(x.float()))
    torch.testing.assert_close(torch.func.vmap(silu)(x), found)
    torch.testing.assert_close(silu(x, out=torch.empty(5, device=device)), found)
    assert silu(x.half()).dtype is torch.float16 and silu(3).dtype is torch.float32
    two = rawkern.elementwise("T x, S w", "T y", "y = __expf(x) * w", "promoted_two")
    assert two(x, x).dtype is torch.float32 and two(x.double(), x).dtype is torch.float64
    root = rawkern.elementwise("T x", "T y", "y = (T)sqrt((double)x)  // not exp(x)", "root_of_integers")
    assert torch.equal(root(x.long()), x.double().sqrt().long()) and add(x.long(), 1).dtype is torch.int64


def test_a_parameter_called_out(device):
    twice = rawkern.elementwise("T out", "T y", "y = out * out", "twice_out")
    x = values(5, device=device).requires_grad_()
    (found,) = torch.autograd.grad(twice(x).sum(), x)
    torch.testing.assert_close(found, 2 * x.detach())


SHAPES = [
    ((), ()),
    ((1,), (1,)),
    ((7, 1), (1, 5)),
    ((3, 4, 5), (5,)),
    ((3, 4, 5), (4, 1)),
    ((0, 3), (3,)),
    ((8, 16), ()),
    ((1, 1), (4, 4)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcasting_and_its_gradients(device, shapes):
    a, b = (values(*s, dtype=torch.float64, device=device, seed=k).requires_grad_() for k, s in enumerate(shapes))
    wanted = [t.detach().clone().requires_grad_() for t in (a, b)]
    y, want = fused(a, b), fused_reference(*wanted)
    torch.testing.assert_close(y, want)
    weight = values(*want.shape, dtype=torch.float64, device=device, seed=5)
    torch.testing.assert_close(
        torch.autograd.grad((y * weight).sum(), (a, b)), torch.autograd.grad((want * weight).sum(), wanted)
    )


def test_shapes_that_do_not_broadcast():
    for shapes in (((5,), (4,)), ((2, 3), (3, 2))):
        a, b = map(torch.zeros, shapes)
        words = rf"fused: shapes {re.escape(str(shapes)[1:-1])} do not broadcast; sizes of an axis"
        for out in (None, torch.zeros(5)):
            with pytest.raises(RuntimeError, match=words):
                fused(a, b, out=out)
        with pytest.raises(RuntimeError, match="fused_sum: shapes"):
            rawkern.reduction("T x, T z", "T y", "x * z", "a + b", "y = a", "0", "fused_sum")(a, b)


LAYOUTS = {
    "transposed": lambda t: t.transpose(-1, -2),
    "channels_last": lambda t: t.reshape(2, 6, 10, 7).contiguous(memory_format=torch.channels_last),
    "sliced": lambda t: t[:, ::2],
    "offset": lambda t: t.flatten()[3:],
    "expanded": lambda t: t[:1].expand(20, 42),
    "permuted": lambda t: t.reshape(4, 5, 6, 7).permute(2, 0, 3, 1),
    "many dimensions": lambda t: t.flatten()[:512].reshape((2,) * 9).permute(8, 0, 2, 1, 3, 5, 4, 7, 6),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts(device, layout, dtype):
    a = LAYOUTS[layout](values(20, 42, dtype=dtype, device=device))
    b = LAYOUTS[layout](values(20, 42, dtype=dtype, device=device, seed=1))
    want = fused_reference(a.double(), b.double()).to(dtype)
    y = fused(a, b)
    torch.testing.assert_close(y, want)
    assert y.stride() == torch.add(a, b).stride()
    other = b.contiguous()
    torch.testing.assert_close(fused(a, other), want)
    assert fused(a, other).stride() == torch.add(a, other).stride()
    alone = silu(a)
    torch.testing.assert_close(alone, torch.nn.functional.silu(a.double()).to(dtype))
    assert alone.stride() == torch.neg(a).stride()


def test_one_expanded_tensor(device):
    x = values(4, 1, device=device)
    for t in (x.expand(4, 5), x[:1].expand(3, 4), x[:1, 0].expand(7)):
        y = silu(t)
        torch.testing.assert_close(y, torch.nn.functional.silu(t))
        assert y.is_contiguous()
    a = x[0].expand(6, 7).requires_grad_()  # one element, read once
    b = values(6, 7, device=device, seed=1).requires_grad_()
    torch.testing.assert_close(fused(a, b), fused_reference(a, b))
    found, want = (torch.autograd.grad(f(a, b).sum(), (a, b)) for f in (fused, fused_reference))
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("start", [0, 1, 3])
def test_packs_of_several_sizes(device, start):
    """Elements of 2 and 4 bytes in one loop: as many of either in a pack, aligned or not."""
    op = rawkern.elementwise("float16 x, float32 a, uint8 k", "float32 y", "y = a * x + k", "several_sizes")
    x, a = values(3000, dtype=torch.float16, device=device), values(3000, device=device, seed=1)
    k = torch.arange(3000, device=device).to(torch.uint8)
    for cut in (lambda t: t[start:], lambda t: t[start : start + 2000].view(50, 40).t(), lambda t: t[: 2 * start + 2]):
        torch.testing.assert_close(op(cut(x), cut(a), cut(k)), cut(a) * cut(x) + cut(k))


def test_lazy_negation(device):
    x = values(6, dtype=torch.float32, device=device)
    negative = torch.complex(torch.zeros_like(x), x).conj().imag
    assert negative.is_neg()
    torch.testing.assert_close(silu(negative), torch.nn.functional.silu(-x))
    torch.testing.assert_close(fused(negative, x), fused_reference(-x, x))


PROMOTIONS = [
    (torch.ones(2, dtype=torch.float32), 2.5),
    (torch.ones(2, dtype=torch.int32), 2),
    (torch.ones(2, dtype=torch.int32), 2.5),
    (torch.ones(2, dtype=torch.bool), 3),
    (torch.ones(2, dtype=torch.bfloat16), torch.tensor(2.0, dtype=torch.float64)),
    (torch.ones(2, dtype=torch.float16), torch.ones(2, dtype=torch.bfloat16)),
    (torch.ones(2, dtype=torch.int8), torch.ones(1, dtype=torch.uint8)),
    (torch.tensor(1, dtype=torch.int64), torch.ones(2, dtype=torch.float32)),
    (torch.tensor(1.5, dtype=torch.float64), torch.ones(2, dtype=torch.int32)),
    (2, torch.ones(2, dtype=torch.float64)),
    (torch.tensor(1), torch.tensor(2.0)),
    (True, 2),
]


@pytest.mark.parametrize("k", range(len(PROMOTIONS)))
def test_promotion_is_torchs(device, k):
    a, b = (v.to(device) if isinstance(v, torch.Tensor) else v for v in PROMOTIONS[k])
    want = torch.add(a, b) if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor) else torch.tensor(a + b)
    y = add(a, b)
    assert y.dtype is want.dtype
    torch.testing.assert_close(y, want.to(y.device))


@pytest.mark.gpu
def test_cpu_number_tensor_goes_with_a_gpu():
    x = values(5, device="cuda").requires_grad_()
    s = torch.tensor(2.0, requires_grad=True)
    y = add(x, s)
    y.sum().backward()
    assert y.is_cuda and s.grad is not None and not s.grad.is_cuda
    assert s.grad.item() == 5.0


def test_integers_wrap_and_compare(device):
    op = rawkern.elementwise("T x, T y", "T z, bool less", "z = x * y + i; less = x < y", "wrap")
    x = torch.tensor([2**31 - 1, -5, 7], dtype=torch.int32, device=device)
    y = torch.tensor([2, 3, 7], dtype=torch.int32, device=device)
    z, less = op(x, y)
    assert z.tolist() == [-2, -14, 51]
    assert less.tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers(dtype, device):
    x, y = (torch.view_as_complex(values(6, 5, 2, device=device, seed=k)).to(dtype) for k in range(2))
    multiply = rawkern.elementwise("T x, T y", "T z", "z = x * conj(y) + exp(x / T(4))", "complex_multiply")
    real = {torch.complex64: "float32", torch.complex128: "float64"}[dtype]
    parts_of = rawkern.elementwise(f"T x, {real} by", f"{real} r, T turned", f"r = abs(x) * by; turned = x * complex<{'float' if real == 'float32' else 'double'}>(0, 1)", f"complex_parts_{real}")  # fmt: skip
    for _ in range(3):  # the first calls, and those that might be native
        for a, b in ((x, y), (x, y[0]), (x.conj(), y.t().reshape(6, 5)), (x, 2.0), (x.real, 2j), (x, y[0, 0])):
            found, want = multiply(a, b), a * torch.as_tensor(b).conj().to(device) + torch.exp(a / 4)
            assert found.dtype is dtype
            torch.testing.assert_close(found, want.to(found.dtype), rtol=1e-4, atol=1e-4)
    r, turned = parts_of(x, 3)
    torch.testing.assert_close((r, turned), (x.abs() * 3, x * 1j))
    out = torch.empty_like(x).conj()
    torch.testing.assert_close(multiply(x, y, out=out).resolve_conj(), multiply(x, y))


def test_gradients_of_complex_numbers(device):
    x, y = (torch.view_as_complex(values(5, 2, device=device, seed=k)).requires_grad_() for k in range(2))
    for call in (add, rawkern.elementwise("T a, T b", "float32 r", "r = abs(a + b)", "complex_size")):
        with pytest.raises(rawkern.NotDifferentiable, match=r"a is complex, but derivatives are only derived for real numbers; pass backward="):  # fmt: skip
            call(x, y).abs().sum().backward()
    given = rawkern.elementwise(
        "T x, T y", "T z", "z = x * y", "complex_given", backward="grad_x = grad_z * conj(y); grad_y = grad_z * conj(x)"
    )
    torch.testing.assert_close(
        torch.autograd.grad(given(x, y[:1]).abs().sum(), (x, y)), torch.autograd.grad((x * y[:1]).abs().sum(), (x, y))
    )
    with pytest.raises(rawkern.CompileError, match=re.escape("hint: a number beside a complex one has its type: T(2)")):
        rawkern.elementwise("T x", "T y", "y = 2 * x", "complex_int")(x.detach())


def test_index_and_raw(device):
    op = rawkern.elementwise("raw T x, T y", "T z", "z = x[n - 1 - i] - y", "mirrored")
    for dtype in (torch.float32, torch.float16):
        x = values(3, 5, dtype=dtype, device=device)
        y = values(5, 3, dtype=dtype, device=device, seed=2).t()
        want = (x.flatten().flip(0).reshape(3, 5).double() - y.double()).to(dtype)
        torch.testing.assert_close(op(x, y), want)


def test_several_outputs_and_their_gradients(device):
    x = values(40, dtype=torch.float64, device=device).requires_grad_()
    whole, rest, negative = parts(x)
    torch.testing.assert_close(whole, x.trunc())
    torch.testing.assert_close(rest, x - x.trunc())
    assert torch.equal(negative, x < 0) and not negative.requires_grad
    (grad,) = torch.autograd.grad((rest * 2).sum(), x)
    assert torch.equal(grad, torch.full_like(x, 2))


def test_fixed_types(device):
    x, y = values(9, dtype=torch.bfloat16, device=device), values(9, dtype=torch.bfloat16, device=device, seed=1)
    torch.testing.assert_close(
        axpy(x, y, 0.1), (x.double() * 0.1 + y.double()).to(torch.bfloat16), rtol=1e-2, atol=1e-2
    )
    with pytest.raises(
        TypeError, match=r"axpy: a is float32, the operator takes float64 there; pass a.to\(torch.float64\)"
    ):
        axpy(x, y, torch.ones(9, device=device))


def test_out(device):
    a, b = values(6, 5, device=device), values(6, 5, device=device, seed=1)
    want = fused(a, b)
    out = torch.full_like(a, float("nan"))
    assert fused(a, b, out=out) is out
    assert torch.equal(out, want)
    strided = torch.full((5, 12), float("nan"), device=device).t()[::2]
    fused(a, b, strided)  # as with CuPy, outputs may follow
    assert torch.equal(strided, want)
    assert strided._base is not None and strided._base[:, 1::2].isnan().all()
    over = a.clone()
    fused(over, b, out=over)
    assert torch.equal(over, want)
    square = values(5, 5, device=device)
    want = fused(square, square.t().clone())
    fused(square.clone().copy_(square), square.t(), out=square)  # read and written through different views
    assert torch.equal(square, want)


def test_out_rejections(device):
    a = values(4, device=device)
    with pytest.raises(ValueError, match=r"fused: out has shape \(3,\); the result has \(4,\)"):
        fused(a, a, out=torch.empty(3, device=device))
    with pytest.raises(TypeError, match="fused: out is float64; the result is float32"):
        fused(a, a, out=torch.empty(4, device=device, dtype=torch.float64))
    with pytest.raises(ValueError, match="fused: out has elements that share memory"):
        fused(a, a, out=torch.empty(1, device=device).expand(4))
    with pytest.raises(
        RuntimeError, match=r"fused: out can't be used with tensors that require grad; use torch.no_grad"
    ):
        fused(a.requires_grad_(), a, out=torch.empty(4, device=device))


def test_in_place(device):
    x = values(20, device=device)
    want = torch.nn.functional.silu(x)
    y = x.clone()
    assert silu.in_place(y) is y
    torch.testing.assert_close(y, want)
    leaf = values(20, dtype=torch.float64, device=device).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf"):
        silu.in_place(leaf)
    twice = leaf * 2
    silu.in_place(twice)
    (grad,) = torch.autograd.grad(twice.sum(), leaf)
    (want_grad,) = torch.autograd.grad(torch.nn.functional.silu(leaf * 2).sum(), leaf)
    torch.testing.assert_close(grad, want_grad)
    with pytest.raises(ValueError, match=r"add: a has shape \(3,\); the result has \(4, 3\)"):
        add.in_place(torch.ones(3, device=device), torch.ones(4, 3, device=device))


def test_gradients_that_are_passed_on(device):
    """The gradient of a sum is that of its result: nothing is computed or copied."""
    two = rawkern.elementwise("T x, T b, T c", "T y, T z", "y = x + b; z = x * c + b", "two_sums")
    x, b, c = (values(*s, device=device, seed=k).requires_grad_() for k, s in enumerate([(33, 7), (7,), (33, 1)]))
    grad = values(33, 7, device=device, seed=4)
    found = torch.autograd.grad(add(x, b), (x, b), grad)
    assert found[0].data_ptr() == grad.data_ptr()
    torch.testing.assert_close(found, (grad, grad.sum(0)))
    results, wanted = two(x, b, c), (x + b, x * c + b)
    for given in ((0,), (1,), (0, 1)):
        found, want = (
            torch.autograd.grad([r[k] for k in given], (x, b, c), [grad] * len(given), retain_graph=True, allow_unused=True)
            for r in (results, wanted)
        )  # fmt: skip
        for a, e in zip(found, want, strict=True):
            torch.testing.assert_close(a, torch.zeros_like(a) if e is None else e)


@pytest.mark.parametrize(
    ("backward", "passed_on"),
    [
        ("grad_x = grad_y; grad_b = 2 * grad_y", {"grad_x": "y"}),
        ("grad_b = grad_y ;\n grad_x = grad_z", {"grad_b": "y", "grad_x": "z"}),
        ("grad_b = 0; if (x > 0) grad_x = grad_y", {}),
        ("grad_b = 0; grad_x = grad_y; grad_x = grad_x * 2", {}),
        ("grad_b = grad_k; if (x < 0) return; grad_x = grad_y", {}),
        ("{ grad_b = 1; } grad_x = grad_y", {}),
        ("grad_x = grad_k; grad_b = grad_y  // grad_x = grad_y;", {}),
    ],
)
def test_what_is_passed_on(backward, passed_on):
    inputs, outputs = parse_parameters("T x, T b", "f"), parse_parameters("T y, T z, float64 k", "f")
    loop = Loop("f", inputs, outputs, "y = x; z = b; k = x")
    assert Gradient(loop, lambda: backward, lambda *_: None).passed_on == passed_on


@pytest.mark.parametrize(
    "shapes",
    [((300, 70), (70,)), ((300, 70), (300, 1)), ((4, 5, 6), (5, 1)), ((40, 5, 6), (1, 5, 6)), ((9, 1, 6), (1,)), ((3, 4), ())],
    ids=str,
)  # fmt: skip
def test_sums_of_what_was_broadcast(device, shapes):
    full, shape = shapes
    t, into = values(*full, device=device), torch.Size(shape)
    before = len(full) - len(shape)
    axis = tuple(d for d in range(len(full)) if d < before or shape[d - before] != full[d])
    by_kernel = reduce_loop._sum.run([t], {"T": t.dtype}, axis, False)[0].view(into)
    for found in (by_kernel, reduce_loop.sum_to(t, into)):
        torch.testing.assert_close(found, t.sum_to_size(into))


@pytest.mark.parametrize("op", [silu, fused, add], ids=lambda op: op.name)
@pytest.mark.parametrize("instance", ["float, 4", "__half, 8"])
def test_packs_are_stored_whole(op, instance):
    """The compiler has taken 16-byte stores apart before, which costs a sixth of the memory's rate."""
    loop = op.loop
    kernel = loop.instance(("array",) * len(loop.inputs), (True,), instance, False)
    stores = re.findall(r"st\.global(?:\.v\d)?\.\w+", kernel.ptx("sm_90"))
    assert len([s for s in stores if ".v4." in s]) == 1, stores
    assert not any(".v2." in s for s in stores), stores


def test_one_element_needs_no_kernel_of_its_own(device):
    op = rawkern.elementwise("T x", "T y", "y = x * x * x + 1", "one_element")
    for shape in ((7,), (1,), (), (1, 1)):
        x = values(*shape, device=device)
        torch.testing.assert_close(op(x), x**3 + 1)
    assert len(op.loop.kernels) == 1


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ("z = x * yy", 'mul: the operation does not compile: identifier "yy" is undefined\n  z = x * yy\n          ^'),
        ("T s = w[i];\nz = x * s + foo(y)", 'does not compile: identifier "foo" is undefined\n  z = x * s + foo(y)\n              ^'),
        ("z = x * w", "hint: w is raw, so the operation has to index it: w[i]"),
        ("z = x * w[i] + byte(3)", "hint: neither nvcc nor this compiler declares byte"),
    ],
)  # fmt: skip
def test_errors_show_the_formula_as_it_was_written(operation: str, message: str) -> None:
    with pytest.raises(rawkern.CompileError) as caught:
        rawkern.elementwise("T x, T y, raw T w", "T z", operation, "mul", preamble="\n")(*torch.zeros(3, 4))
    told = str(caught.value)
    assert message in told
    assert "in0" not in told and "mul_element" not in told and ".cuh" not in told


def test_what_is_raw_is_named_where_it_is_read_outside_of_it() -> None:
    x = torch.zeros(4)
    for name in ("w", "load", "in0", "block", "RawArray"):  # the last ones are names of the kernel's own
        shift = rawkern.elementwise(f"T x, raw T {name}", "T z", f"z = x + {name}[i + 4]", "shift")
        with pytest.raises(rawkern.OutOfBoundsError) as caught:
            shift(x, x)
        told = str(caught.value)
        assert "pack.cuh" not in told and f"z = x + {name}[i + 4]" in told
        assert f"reads {name}[4]; {name} has 4 elements" in told or name != "w"


@pytest.mark.parametrize("what", ["in_params", "out_params", "operation", "name", "backward", "preamble"])
def test_texts_that_are_none(what: str) -> None:
    given: dict[str, Any] = {"in_params": "T x", "out_params": "T z", "operation": "z = x", "name": "same"}
    with pytest.raises(TypeError, match=f"elementwise: {what} is the int 3; pass"):
        rawkern.elementwise(**(given | {what: 3}))
    with pytest.raises(TypeError, match=r"options is '-G'; pass a tuple of strings"):
        rawkern.elementwise(**given, options="-G")
    with pytest.raises(TypeError, match="same: out is the int 3; pass 1 tensor"):
        rawkern.elementwise(**given)(torch.zeros(3), out=3)
