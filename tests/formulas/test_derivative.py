"""Derivatives of C statements: checked by running them as operators against torch's autograd."""

from __future__ import annotations

import math

import pytest
import torch

import rawkern
from rawkern import NotDifferentiable
from rawkern.formulas.derivative import derive
from rawkern.formulas.statements import names_in


def step(q, x):
    return q * x + q.sin()


# Statements for y from x, and the same in torch. What is differentiated is evaluated in float64.
ONE = [
    ("y = x / (1 + exp(-x))", torch.nn.functional.silu),
    ("y = T(1) / (T(1) + exp(-x))", torch.sigmoid),
    ("y = T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752)))", torch.nn.functional.gelu),
    (
        "y = 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)))",
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    ),
    ("y = fmax(x, T(0))", torch.relu),
    ("y = x > 0 ? x : T(0.01) * x", torch.nn.functional.leaky_relu),
    ("if (x > 0) { y = x; } else { T e = exp(x); y = e - 1; }", torch.nn.functional.elu),
    ("y = x * x; if (x < -1) y = -2 * x - 1;", lambda x: torch.where(x < -1, -2 * x - 1, x * x)),
    ("T t = sin(x); t *= cos(x); t += x; y = t", lambda x: x.sin() * x.cos() + x),
    ("y = log1p(exp(-fabs(x))) + max(x, T(0))", torch.nn.functional.softplus),
    ("y = pow(fabs(x), T(1.5)) + sqrt(x * x + 1) - rsqrt(x * x + 2)", lambda x: x.abs() ** 1.5 + (x * x + 1).sqrt() - (x * x + 2).rsqrt()),
    ("y = atan2(x, T(2)) + hypot(x, T(1)) + cbrt(x * x + 1)", lambda x: torch.atan2(x, torch.full_like(x, 2)) + torch.hypot(x, torch.ones_like(x)) + (x * x + 1) ** (1 / 3)),
    ("y = x * floor(x) + x * (x > 0)", lambda x: x * x.floor() + x * (x > 0)),
    ("y = min(max(x, T(-1)), T(1)) * x", lambda x: x.clamp(-1, 1) * x),
    ("bool far = x > 1 || x < -1; y = far && x > 0 ? x * x : expm1(x)", lambda x: torch.where(x > 1, x * x, x.expm1())),
    ("y = exp2(x) + log2(x * x + 1) + log10(x * x + 3) + exp10(x)", lambda x: x.exp2() + (x * x + 1).log2() + (x * x + 3).log10() + 10**x),
    ("double t = (double)x; y = static_cast<T>(t * t) /* square */ + T(3); // and 3", lambda x: x * x + 3),
    ("int k = x; y = x * k + (int)x * x + int(x * 2) + static_cast<int>(x)", lambda x: 2 * x * x.trunc() + (x * 2).trunc() + x.trunc()),
    ("const T s = normcdf(x); y = s * x", lambda x: torch.special.ndtr(x) * x),
    ("y = fabs(cbrt(x)) * x + cbrt(2 * x)", lambda x: x.sign() * x.abs() ** (4 / 3) + (2 * x).sign() * (2 * x).abs() ** (1 / 3)),
    ("y = sinpi(x) * cospi(x) + normcdf(x) * expm1(x)", lambda x: (torch.pi * x).sin() * (torch.pi * x).cos() + torch.special.ndtr(x) * x.expm1()),
    ("bool b = x; b = b && x; y = b * x + (b ? 1 : 0) * x", lambda x: (x != 0) * 2 * x),
    ("y = x * (T(1) / 4) + 010 * x + 0x1F * x + 'A' * x", lambda x: (0.25 + 8 + 31 + 65) * x),
    ("T a = (x)+x*(x), b = (T) - x; y = a < x && b > (a) ? a * a : a * b", lambda x: torch.where((x + x * x < x) & (-x > x + x * x), (x + x * x) ** 2, (x + x * x) * -x)),
    ("auto k = std::floor(x); int64_t n2 = x, m = -010; y = k * x, y += n2 * x + m * ::sin(x)", lambda x: x.floor() * x + x.trunc() * x - 8 * x.sin()),
    ("int64_t q = 3; q /= 2; y = x * ((int)x / 2) + x * ((x > 1) / 2) + x * ('A' / true) + x * q * (int(x) % 3)",
     lambda x: x * ((x / 2).trunc() + 65 + x.trunc().fmod(3))),
    ("T v[2] = {x, 2 * x}; for (int k = 0; k < 2; ++k) y += v[k] * v[k] * k", lambda x: 4 * x * x),
    ("T q = x; for (int k = 0; k < 3; ++k) q = q * x + sin(q); y = q", lambda x: step(step(step(x, x), x), x)),
    ("y = __saturatef(x) * __fdividef(x, T(3)) + rcbrt(x * x + 1)", lambda x: x.clamp(0, 1) * x / 3 + (x * x + 1) ** (-1 / 3)),
    ("y = tanh(x) * asinh(x) + acosh(x * x + 2) + atanh(x / 100) + sinh(x) / cosh(x)", lambda x: x.tanh() * x.asinh() + (x * x + 2).acosh() + (x / 100).atanh() + x.sinh() / x.cosh()),
]  # fmt: skip
TWO = [
    ("y = (a + b) + sin(a) * cos(b)", lambda a, b: (a + b) + a.sin() * b.cos()),
    ("y = a / b - b / a", lambda a, b: a / b - b / a),
    ("y = max(a, b) + min(a, b) * a", lambda a, b: torch.maximum(a, b) + torch.minimum(a, b) * a),
    ("y = pow(fabs(a), b)", lambda a, b: a.abs() ** b),
    ("y = a * atan2(a, b) + b * hypot(a, b)", lambda a, b: a * torch.atan2(a, b) + b * torch.hypot(a, b)),
    ("y = a * fmod(a, b)", lambda a, b: a * torch.fmod(a, b)),
    ("y = fma(a, b, a * a)", lambda a, b: a * b + a * a),
]


def points() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, dtype=torch.float64, generator=generator) * 2
    return torch.cat([x, torch.tensor([0.5, -0.5, 30.0, -30.0], dtype=torch.float64)])


@pytest.mark.parametrize(("operation", "reference"), ONE, ids=[f"one{k}" for k in range(len(ONE))])
def test_one_input(operation, reference):
    op = rawkern.elementwise("T x", "T y", operation, "one")
    x = points().requires_grad_()
    want_x = points().requires_grad_()
    y, want = op(x), reference(want_x)
    torch.testing.assert_close(y, want)
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (want_grad,) = torch.autograd.grad(want.sum(), want_x, create_graph=True)
    torch.testing.assert_close(grad, want_grad)
    if want_grad.requires_grad and grad.requires_grad:
        (second,) = torch.autograd.grad(grad.sum(), x)
        (want_second,) = torch.autograd.grad(want_grad.sum(), want_x)
        torch.testing.assert_close(second, want_second)


@pytest.mark.parametrize(("operation", "reference"), TWO, ids=[f"two{k}" for k in range(len(TWO))])
def test_two_inputs(operation, reference):
    op = rawkern.elementwise("T a, T b", "T y", operation, "two")
    inputs = [points()[:20].requires_grad_(), points()[20:40].requires_grad_()]
    wanted = [t.detach().clone().requires_grad_() for t in inputs]
    weight = points()[5:25]
    grads = torch.autograd.grad((op(*inputs) * weight).sum(), inputs)
    torch.testing.assert_close(grads, torch.autograd.grad((reference(*wanted) * weight).sum(), wanted))


def test_sigmoid_does_not_overflow():
    op = rawkern.elementwise("T x", "T y", "y = x / (1 + exp(-x))", "silu32")
    x = torch.tensor([-200.0, -100.0, 0.0, 100.0, 200.0], requires_grad=True)
    op(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0]))


def test_derivatives_do_not_cancel_or_overflow():
    """What other terms for log1p, expm1, normcdf and hypot would lose in float32."""
    cases = (
        ("y = expm1(x) / x", 1e-3, 0.5003334),
        ("y = log(normcdf(x))", -6.0, 6.1584827),
        ("y = log1p(x) / x", 1e-3, -0.4993341),
        ("y = hypot(x, x)", 1e30, 2**0.5),
    )
    for operation, at, want in cases:
        x = torch.tensor([at], requires_grad=True)
        (grad,) = torch.autograd.grad(rawkern.elementwise("T x", "T y", operation, "exact")(x), x)
        torch.testing.assert_close(grad, torch.tensor([want]), rtol=1e-3, atol=0)


def test_power_of_zero_to_the_zero():
    x, y = (torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    grads = torch.autograd.grad(rawkern.elementwise("T x, T p", "T y", "y = pow(x, p)", "power")(x, y), (x, y))
    torch.testing.assert_close(grads, torch.autograd.grad(x**y, (x, y)))


def test_conversion_to_the_type_of_an_output():
    op = rawkern.elementwise("T x", "int32 k, T y", "k = int(x); y = x * int(x)", "whole")
    x = points().requires_grad_()
    (grad,) = torch.autograd.grad(op(x)[1].sum(), x)
    torch.testing.assert_close(grad, x.detach().trunc())


@pytest.mark.parametrize("first", ["bool m", "int32 m", "float32 m"])
def test_the_first_output_does_not_set_the_type_of_derivatives(first):
    op = rawkern.elementwise("float64 x", f"{first}, float64 y", "m = x > 0; y = exp(x) * sin(x) * 1.1", "typed")
    x = points()[:20].requires_grad_()
    (grad,) = torch.autograd.grad(op(x)[1].sum(), x)
    torch.testing.assert_close(grad, torch.autograd.grad((x.exp() * x.sin() * 1.1).sum(), x)[0], rtol=1e-13, atol=0)


def test_power_at_zero():
    op = rawkern.elementwise("T x, T p", "T y", "y = pow(x, p)", "power")
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    p = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    op(x, p).sum().backward()
    assert x.grad is not None and p.grad is not None
    assert x.grad.tolist() == [1.0, 0.0, 0.0]
    assert p.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("operation", "what"),
    [
        ("y = mine(x)", "mine has no known derivative"),
        ("y = lgamma(x)", r"needs digamma\(\), which CUDA does not have"),
        ("y = x; if (x > 0) { T t = x; y = t; } y = t", "t is not known"),
        ("y = x + / 2", "its text is not understood: 'y = x"),
        ("y = (x", "its text is not understood: 'y = \\(x"),
        ("y = x; } void more() {", "function definition"),
        ("half h = x; y = h * 2", "of __half and int"),
        ("y = x.z", "'x.z' has no field z"),
        ("y = missing * x", "missing is not known"),
        ("y = sin(x, x)", "sin takes 1 argument"),
        ("y = x; return; y = 3 * x", "a return or continue here"),
        ("if (x > 0) return; y = x", "a return or continue here"),
        ("y = x * threadIdx.x", "it names threadIdx"),
        ("y = __shfl_sync(~0, x, 2)", "what threads do together"),
        ("__syncthreads(); y = x", "what threads do together"),
    ],
)
def test_rejections(operation, what):
    with pytest.raises(NotDifferentiable, match=what) as error:
        derive(operation, {"x": "T"}, {"y": "T"}, {"y"}, ["x"], "op")
    assert "pass backward=" in str(error.value)
    assert str(error.value).startswith("op:")


def test_outputs_start_at_0():
    op = rawkern.elementwise("T x", "T y, T z", "y += 3 * x; if (x > 1) z = x * x", "op")
    x = torch.tensor([2.0, 0.5], requires_grad=True)
    y, z = op(x)
    assert torch.autograd.grad((10 * y + 100 * z).sum(), x)[0].tolist() == [3 * 10 + 4 * 100, 3 * 10]


def test_integers_stay_integers():
    op = rawkern.elementwise(
        "float64 x, int32 k", "float64 y",
        "int q = x; double r = k; y = x * (q % 3) * (k / 2) * ((k + 1) / 2) * (r / 2) * max(k, 3)", "integers",
    )  # fmt: skip
    x = torch.tensor([2.5, -4.5], dtype=torch.float64, requires_grad=True)
    k = torch.tensor([5, 3], dtype=torch.int32)
    (grad,) = torch.autograd.grad(op(x, k).sum(), x)
    assert grad.tolist() == [2 * 2 * 3 * 2.5 * 5, -1 * 1 * 2 * 1.5 * 3]


def test_nothing_is_computed_twice():
    text = derive("T t = sin(x); t *= cos(x); y = t * exp(x)", {"x": "T"}, {"y": "T"}, {"y"}, ["x"], "op")
    assert [text.count(f"{f}(x)") for f in ("sin", "cos", "exp")] == [1, 1, 1]
    assert "grad_a = grad_y;" in derive("y = a + b", {"a": "T", "b": "T"}, {"y": "T"}, {"y"}, ["a", "b"], "op")


def test_complex_numbers_are_rejected():
    with pytest.raises(NotDifferentiable, match=r"op: x is complex, .*; pass backward="):
        derive("y = x", {"x": "cuda::std::complex<float>"}, {"y": "float"}, {"y"}, ["x"], "op")


def test_constants_are_exact():
    text = derive("y = x * 0.1 + x * 0x10 + x * 1e-3f", {"x": "T"}, {"y": "T"}, {"y"}, ["x"], "op")
    namespace = {"T": float, "grad_y": 1.0}
    assert text.startswith("grad_x = ")
    value = eval(text.removeprefix("grad_x = ").rstrip(";"), namespace)
    assert math.isclose(value, 16.101, rel_tol=1e-15)


def test_names_in():
    assert names_in('y = x2 * 1e3f; // z\n/* w */ const char* s = "v"; p.member') == {
        "y", "x2", "const", "char", "s", "p",
    }  # fmt: skip


NAN = math.nan
CONVENTIONS = {
    "clamped angle": ("y = acos(min(max(x, T(-1)), T(1))) + w", [2.0, 0.0], [0, 0], [0, -1], [1, 1]),
    "clamped root": ("y = sqrt(max(x, T(0))) + w", [-2.0, 0.25], [0, 0], [0, 1], [1, 1]),
    "chosen root": ("y = x > 0 ? sqrt(x) * w : w", [-1.0, 4.0], [1, 1], [0, 0.25], [1, 2]),
    "root of chosen": ("y = sqrt(x > 0 ? x : 0) + w", [-1.0, 4.0], [1, 1], [0, 0.25], [1, 1]),
    "chosen quotient": ("y = x > 0 ? w / x : 0", [0.0, 2.0], [1, 1], [0, -0.25], [0, 0.5]),
    "power of clamped": ("y = pow(max(x, T(0)), w)", [-1.0, 4.0], [0.5, 0.5], [0, 0.25], [0, 2 * math.log(4)]),
    "maximum beside NaN": ("y = fmax(x, w)", [NAN, 1.0, 2.0, 3.0], [1.0, NAN, 2.0, 5.0], [0, 1, 0.5, 0], [1, 0, 0.5, 1]),
    "minimum beside NaN": ("y = min(x, w)", [NAN, 1.0, 2.0, 3.0], [1.0, NAN, 2.0, 5.0], [0, 1, 0.5, 1], [1, 0, 0.5, 0]),
    "angle at the origin": ("y = atan2(x, w)", [0.0, 1.0], [0, 1], [0, 0.5], [0, -0.5]),
    "rest": ("y = fmod(x, w)", [1.0, -7.5], [0.1, 2.0], [1, 1], [-9, 3]),
}  # fmt: skip


@pytest.mark.parametrize("what", CONVENTIONS)
def test_conventions_where_functions_are_not_smooth(what):
    text, x, w, *expected = CONVENTIONS[what]
    inputs = [torch.tensor(t, dtype=torch.float32, requires_grad=True) for t in (x, w)]
    found = torch.autograd.grad(rawkern.elementwise("T x, T w", "T y", text, "convention")(*inputs).sum(), inputs)
    torch.testing.assert_close(found, tuple(torch.tensor(t, dtype=torch.float32) for t in expected))
