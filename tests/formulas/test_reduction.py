"""rawkern.reduction: axes, layouts, dtypes, gradients, and what it rejects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import rawkern

norm = rawkern.reduction("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
weighted = rawkern.reduction("T x, T w", "T y", "x * w", "a + b", "y = a / count", "0", "weighted")
largest = rawkern.reduction(
    "T x", "T y, int64 at", "Best<T>{x, _J}", "a.value > b.value || (a.value == b.value && a.at < b.at) ? a : b",
    "y = a.value; at = a.at", "Best<compute_t<T>>{-INF, 1LL << 62}", "largest", reduce_type="Best<T>",
    preamble="""
#define INF __int_as_float(0x7f800000)
template <typename T> struct Best { T value; long long at; };""",
    backward="grad_x = _J == at ? grad_y : 0",
)  # fmt: skip
product = rawkern.reduction("T x", "T y", "x", "a * b", "y = a", "1", "product", backward="grad_x = grad_y * y / x")


def values(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device=device, dtype=dtype)


def reference(x: torch.Tensor, axis, keepdims: bool = False) -> torch.Tensor:
    return x.double().square().sum(axis, keepdim=keepdims).sqrt()


@pytest.mark.parametrize("shape", [(1,), (1000,), (3, 1025), (1025, 3), (7, 33, 5), (70000,)], ids=str)
def test_axes_and_layouts(device, shape):
    x = values(*shape, device=device)
    turned = x.transpose(0, -1).contiguous().transpose(0, -1)
    for axis in [None, *range(len(shape)), -1, (0, len(shape) - 1) if len(shape) > 1 else (0,)]:
        for keepdims in (False, True):
            want = reference(x, axis, keepdims).float()
            for t in (x, turned):
                torch.testing.assert_close(norm(t, axis=axis, keepdims=keepdims), want, rtol=1e-5, atol=0)


def test_torchs_names_of_the_options(device):
    x = values(3, 5, 4, device=device)
    for dim in (1, -1, (0, 2), None):
        for keep in (False, True):
            assert torch.equal(norm(x, dim=dim, keepdim=keep), norm(x, axis=dim, keepdims=keep))
    with pytest.raises(TypeError, match="norm: axis is 0 and dim is 1, which are synonyms; pass only one"):
        norm(x, axis=0, dim=1)


def test_integers_are_promoted_for_functions_of_floats(device):
    x = torch.arange(1, 7, device=device).view(2, 3)
    torch.testing.assert_close(norm(x, dim=1), x.float().square().sum(1).sqrt())
    total = rawkern.reduction("T x", "T y", "x", "a + b", "y = a", "0", "int_total")
    assert total(x).dtype is torch.int64 and total(x) == 21


def test_a_parameter_called_out(device):
    of_out = rawkern.reduction("T out", "T y", "out * out", "a + b", "y = sqrt(a)", "0", "of_out")
    x = values(3, 5, device=device).requires_grad_()
    (found,) = torch.autograd.grad(of_out(x, axis=1).sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(norm(x, axis=1).sum(), x)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(device, dtype):
    x = values(5, 2048, dtype=dtype, device=device)
    y = norm(x, axis=1)
    assert y.dtype is dtype
    torch.testing.assert_close(y, reference(x, 1).to(dtype))  # accumulated in float and rounded once


def test_complex_numbers(device):
    x = torch.view_as_complex(values(40, 3000, 2, device=device)).requires_grad_()
    root = rawkern.reduction("T x", "T y, float64 size", "conj(x) * x * x", "a + b", "y = a; size = abs(a)", "T(0)", "complex_sum")  # fmt: skip
    for axis in (0, 1, None):
        y, size = root(x.detach(), axis=axis)
        want = (x.conj() * x * x).detach().sum(axis if axis is not None else (0, 1))
        torch.testing.assert_close(y, want, rtol=1e-3, atol=1e-1)
        torch.testing.assert_close(size, want.abs().double(), rtol=1e-3, atol=1e-1)
    with pytest.raises(rawkern.NotDifferentiable, match="norm: x is complex"):
        norm(x).abs().backward()


def test_many_results_in_parts(device):
    """The parts of 70 results are added by blocks of 32."""
    x = values(3000, 70, device=device)
    torch.testing.assert_close(norm(x, axis=0), reference(x, 0).float())


def test_sliced_and_expanded(device):
    x = values(12, 40, device=device)
    for t in (x[::3, 1::2], x[:, :1].expand(12, 9), x.reshape(3, 4, 40).permute(2, 0, 1)):
        for axis in range(t.dim()):
            torch.testing.assert_close(norm(t, axis=axis), reference(t, axis).float())


def test_nothing_to_reduce(device):
    x = values(0, 3, device=device)
    assert norm(x, axis=0).tolist() == [0.0, 0.0, 0.0]
    assert norm(x, axis=1).shape == (0,)
    assert norm(values(device=device).reshape(()) * 0 - 2).item() == 2.0
    assert product(x).item() == 1.0


def test_same_result_every_time(device):
    x = values(1 << 17, device=device)
    first = norm(x)
    assert all(torch.equal(norm(x), first) for _ in range(5))


def test_struct_accumulator_and_index(device):
    x = values(6, 5000, device=device)
    x[2, 17] = x[2, 4000] = 9.0  # the first of equals
    for axis in (0, 1):
        y, at = largest(x, axis=axis)
        assert at.dtype is torch.int64
        want, want_at = x.max(axis)
        assert torch.equal(y, want)
        assert torch.equal(at, want_at) or torch.equal(x.gather(axis, at.unsqueeze(axis)).squeeze(axis), want)
    assert largest(x, axis=1)[1][2] == 17


def test_broadcast_inputs(device):
    x, w = values(4, 1, 6, device=device), values(5, 1, device=device, seed=1)
    want = (x.double() * w.double()).mean((0, 2))
    torch.testing.assert_close(weighted(x, w, axis=(0, 2)), want.float())
    torch.testing.assert_close(weighted(x, 2.0, axis=2), x.mean(2) * 2)


def test_gradients(device):
    x = values(4, 5, dtype=torch.float64, device=device).requires_grad_()
    w = values(5, dtype=torch.float64, device=device, seed=1).requires_grad_()
    for axis in (None, 0, -1):
        assert gradcheck(lambda t, axis=axis: norm(t, axis=axis), (x,))
    assert gradcheck(lambda t, u: weighted(t, u, axis=0, keepdims=True), (x, w))
    assert gradcheck(lambda t: product(t, axis=1), (x,))
    assert gradgradcheck(lambda t: norm(t, axis=1), (x,))
    assert gradgradcheck(lambda t, u: weighted(t, u, axis=-1), (x, w))
    assert gradgradcheck(lambda t: product(t, axis=1), (x,))


def test_gradients_of_more_that_is_read(device):
    """The backward of what is not a plain sum has two steps; names and dtypes that these add or pass on meet no others."""
    spread = rawkern.reduction(  # reads the count and two outputs' gradients
        "T value, float64 w", "T y, T z", "w * value * value", "a + b", "y = sqrt(a / count); z = log(a)", "0", "spread"
    )
    value = values(4, 1, 6, dtype=torch.float64, device=device).requires_grad_()
    w = values(5, 1, dtype=torch.float64, device=device, seed=1).abs().requires_grad_()
    for axis in (None, 1, (0, 2)):
        assert gradcheck(lambda t, u, axis=axis: spread(t, u, axis=axis), (value, w))
    assert gradcheck(lambda t, u: spread(t, u, axis=(0, 2), keepdims=True)[1], (value, w))
    assert gradgradcheck(lambda t, u: spread(t, u, axis=1), (value, w))
    root = rawkern.reduction("T x", "T y", "x", "a + b", "y = sqrt(a)", "0", "root")  # nothing but a is read
    x = values(4, 6, dtype=torch.float64, device=device).abs().requires_grad_()
    assert gradcheck(lambda t: root(t, axis=0), (x,))
    half = x.detach().bfloat16().requires_grad_()
    root(half, axis=1).sum().backward()
    torch.testing.assert_close(half.grad, (0.5 / half.detach().double().sum(1).sqrt()).bfloat16()[:, None].expand(4, 6))


@pytest.mark.parametrize("graph", [False, True])
def test_gradients_of_dtypes_that_outputs_do_not_tell(device, graph):
    """A mean in float64 and a norm of accumulators of the input's dtype."""
    x = values(3, 400, dtype=torch.float32, device=device).requires_grad_()
    mean = rawkern.reduction("T x", "float64 y", "x", "a + b", "y = a / count", "0", "mean64")
    norm = rawkern.reduction("T x", "float64 y", "x * x", "a + b", "y = sqrt(a)", "0", "norm64", reduce_type="T")
    for op, want in ((mean, torch.full_like(x, 1 / 400)), (norm, x / x.norm(dim=1, keepdim=True))):
        (grad,) = torch.autograd.grad(op(x, axis=1).sum(), x, create_graph=graph)
        torch.testing.assert_close(grad, want)


def test_accumulator_of_halves_that_is_computed_again(device):
    """A sum beyond float16, in a gradient that is to be differentiated."""
    norm = rawkern.reduction("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
    x = torch.full((64,), 100.0, dtype=torch.float16, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(norm(x), x, create_graph=True)
    torch.testing.assert_close(grad, torch.full_like(x, 1 / 8))


def test_compiles_before_its_first_call(device):
    op = rawkern.reduction("T x", "T y", "x * x", "a + b", "y = a", "0", "compiled_first")
    x = values(3, 4, device=device)
    compiled = torch.compile(lambda x: op(x, axis=1), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), (x * x).sum(1))


def test_derived_backward_by_index(device):
    op = rawkern.reduction("T x", "T y", "x * x * _J", "a + b", "y = a", "0", "moment")
    x = values(3, 4, 2, dtype=torch.float64, device=device).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: op(x, axis=(0, 2)), x)


def test_given_backward_by_index(device):
    x = values(3, 7, device=device).requires_grad_()
    y, _ = largest(x, axis=1)
    y.sum().backward()
    want = torch.zeros(3, 7, device=device).scatter_(1, x.detach().argmax(1, keepdim=True), 1.0)
    assert torch.equal(x.grad, want)


def test_half_gradient(device):
    x = values(9, 33, dtype=torch.bfloat16, device=device).requires_grad_()
    norm(x, axis=1).sum().backward()
    wide = x.detach().double().requires_grad_()
    reference(wide, 1).sum().backward()
    torch.testing.assert_close(x.grad, wide.grad.to(torch.bfloat16), rtol=2e-2, atol=1e-3)


def test_opcheck_and_compile(device):
    x = values(4, 6, device=device).requires_grad_()
    torch.library.opcheck(norm.operator.overload, (x, [1], False))
    torch.library.opcheck(weighted.operator.overload, (x, x.detach()[0], [0], True))
    compiled = torch.compile(lambda t: norm(t * 2, axis=1).sum(), fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (4, 5):
        x = values(n, 6, device=device).requires_grad_()
        compiled(x).backward()
        want = x.detach().clone().requires_grad_()
        (want * 2).norm(dim=1).sum().backward()
        torch.testing.assert_close(x.grad, want.grad)


def test_out(device):
    x = values(4, 6, device=device)
    out = torch.full((6,), float("nan"), device=device)
    assert norm(x, axis=0, out=out) is out
    assert torch.equal(out, norm(x, axis=0))
    with pytest.raises(ValueError, match=r"norm: out has shape \(6,\); the result has \(4,\)"):
        norm(x, axis=1, out=out)


def test_sources():
    assert "norm_map" in norm.source
    assert "sqrt(a)" in norm.backward_source
    assert repr(norm) == "<rawkern.reduction norm(T x) -> T y>"


def test_rejections(device):
    x = values(4, 6, device=device)
    with pytest.raises(IndexError, match="norm: there is no axis 2; the arguments have 2 dimensions"):
        norm(x, axis=2)
    with pytest.raises(ValueError, match="norm: axis 1 is named twice"):
        norm(x, axis=(1, -1))
    with pytest.raises(TypeError, match=r"norm\(\) takes 1 arguments \(x\)"):
        norm(x, x, x)
    with pytest.raises(ValueError, match=r"norm: out has shape \(4, 6\); the result has \(\)"):
        norm(x, x)
    with pytest.raises(TypeError, match="norm: x is a list"):
        norm([1.0])
    times = rawkern.reduction("T x", "T y", "x", "a * b", "y = a", "T(1)", "times")
    torch.testing.assert_close(times(x, axis=1), x.prod(1))
    with pytest.raises(rawkern.NotDifferentiable, match=r"times: can derive the backward of a sum \(a \+ b\), a max"):
        times(x.requires_grad_()).backward()


DECLARATIONS = [
    (("raw T x", "T y", "x", "a + b", "y = a", "0", "f"), "x is raw"),
    (("T a", "T y", "a", "a + b", "y = a", "0", "f"), "a means something else in a reduction"),
    (("T axis", "T y", "axis", "a + b", "y = a", "0", "f"), "axis means something else in a reduction"),
    (("T x", "T y", "x", "a + b", "z = a", "0", "f"), "post_map_expr does not assign the output y"),
    (("T x", "S y", "x", "a + b", "y = a", "0", "f"), "no input determines S"),
    (("T x", "T x", "x", "a + b", "x = a", "0", "f"), "x is an input and an output"),
    (("", "T y", "1", "a + b", "y = a", "0", "f"), "at least one input and one output"),
]


@pytest.mark.parametrize(("arguments", "message"), DECLARATIONS, ids=[str(k) for k in range(len(DECLARATIONS))])
def test_declarations_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        rawkern.reduction(*arguments)


@pytest.mark.gpu
def test_parts_of_a_long_row():
    x = values(3, 1 << 20, device="cuda")
    torch.testing.assert_close(norm(x, axis=1), reference(x, 1).float(), rtol=1e-5, atol=0)
    torch.testing.assert_close(norm(x.t().contiguous(), axis=0), reference(x, 1).float(), rtol=1e-5, atol=0)


def test_a_struct_is_not_kept_for_the_backward():
    preamble = "struct Mean { float sum, n; __device__ Mean(float s = 0, float c = 1) : sum(s), n(c) {} };"
    parts = "T x", "T y", "Mean(x)", "Mean(a.sum + b.sum, a.n + b.n)", "y = a.sum / a.n", "Mean(0, 0)", "mean_of"
    options = {"reduce_type": "Mean", "preamble": preamble}
    with pytest.raises(ValueError, match="mean_of: backward reads a, which is the struct Mean and is not kept"):
        rawkern.reduction(*parts, **options, backward="grad_x = grad_y / a.n")
    x = torch.randn(8, 5, requires_grad=True)
    by_count = rawkern.reduction(*parts, **options, backward="grad_x = grad_y / count")
    torch.testing.assert_close(torch.autograd.grad(by_count(x, axis=1).sum(), x)[0], torch.full_like(x, 1 / 5))
    with pytest.raises(rawkern.NotDifferentiable, match="mean_of: can't derive the backward of a struct, Mean"):
        _ = rawkern.reduction(*parts, **options).backward_source


def made(**given: Any) -> Any:
    parts = {
        "map_expr": "x * x",
        "reduce_expr": "a + b",
        "post_map_expr": "y = sqrt(a)",
        "identity": "0",
        "name": "norm",
    }
    return rawkern.reduction(**({"in_params": "T x", "out_params": "T y"} | parts | given))


@pytest.mark.parametrize("axis", [1.0, "1", (0, 1.0), b"1.", object()])
def test_axes_that_are_no_ints(axis: Any) -> None:
    with pytest.raises(TypeError, match=r"norm: axis is .*; pass an int, a tuple of ints, or None for all"):
        made()(torch.ones(4, 5), axis=axis)


@pytest.mark.parametrize("axis", [np.int64(1), torch.tensor(1), [1], np.array(1), range(1, 2)])
def test_axes_that_are_ints(axis: Any) -> None:
    assert torch.equal(made()(torch.ones(4, 4), axis=axis), torch.full((4,), 2.0))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"identity": None}, TypeError, "reduction: identity is None .*; pass the expression to start from as a string"),
        ({"identity": float("inf")}, TypeError, "identity is the float inf; pass the expression"),
        ({"identity": " "}, ValueError, "norm: identity is ' '; pass an expression"),
        ({"identity": "zero"}, rawkern.CompileError, 'norm: identity does not compile: identifier "zero" is undefined\n  zero\n  \\^'),
        ({"map_expr": "x * y"}, rawkern.CompileError, 'norm: map_expr does not compile: identifier "y" is undefined\n  x \\* y\n      \\^'),
        ({"reduce_expr": "a + c"}, rawkern.CompileError, "norm: reduce_expr does not compile"),
        ({"post_map_expr": "y = b"}, rawkern.CompileError, "norm: post_map_expr does not compile"),
        ({"reduce_type": 3}, TypeError, "reduction: reduce_type is the int 3; pass the name of a type"),
    ],
)  # fmt: skip
def test_expressions_that_cannot_be(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made(**given)(torch.ones(4, 5))
    assert made(identity=0.0)(torch.ones(4)).item() == 2
