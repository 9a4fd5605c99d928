"""Each function of the table of derivatives against a central difference."""

from __future__ import annotations

import functools
import math
import re

import pytest
import torch

import rawkern
from rawkern.gradients.rules import ALIASES, RULES, rule_of

N = 16
STEPS = [n for n, r in RULES.items() if set(r.derivatives) == {None}]
SINGLE = {"__saturatef", "__fdividef"}
ROUNDED = [n for n in RULES if re.fullmatch(r"__\w+_r[nzud]", n)]
SMOOTH = [n for n in RULES if n not in STEPS and n not in SINGLE and n not in ROUNDED]
ARGUMENT = {"acosh": "x[i] + 1.0"}  # where the functions are defined: 0.1 to 0.9, else this


PARTS = 4  # in which functions are compiled together: one takes more time, and so do many


@functools.cache
def together(part):
    """A kernel that computes every function of a part, a row of y each; its backward; x and z."""
    lines = []
    for k, name in enumerate(SMOOTH[part::PARTS]):
        args = [ARGUMENT.get(name, "x[i]"), "z[i]", "x[i] * z[i]", "x[i] + z[i]"][: len(RULES[name].derivatives)]
        if RULES[name].whole is not None:
            args[RULES[name].whole] = "i % 4"
        lines.append(f"y[{k * N} + i] = {name}({', '.join(args)});")
    source = 'extern "C" __global__ void k(const double* x, const double* z, double* y) {\nint i = threadIdx.x;\n'
    kernel = rawkern.RawKernel(source + "\n".join(lines) + "\n}", "k")
    x = torch.linspace(0.1, 0.9, N, dtype=torch.float64)
    z = torch.linspace(0.85, 0.17, N, dtype=torch.float64)
    return kernel, kernel.derive(block=N), x, z


@functools.cache
def measured(part, which):
    """Central differences of all functions of a part by an argument."""
    kernel, _, x, z = together(part)
    found, step = [], 1e-5
    for sign in (1, -1):
        y = torch.full((len(SMOOTH[part::PARTS]), N), math.nan, dtype=torch.float64)
        moved = [x + sign * step, z] if which == "x" else [x, z + sign * step]
        kernel[1, N](*moved, y)
        found.append(y)
    return (found[0] - found[1]) / (2 * step)


@pytest.mark.parametrize("part", range(PARTS))
def test_agrees_with_a_central_difference_and_with_formulas(part) -> None:
    _, derived, x, z = together(part)
    names = SMOOTH[part::PARTS]
    for k, name in enumerate(names):
        grad = torch.zeros(len(names), N, dtype=torch.float64)
        grad[k] = 1
        found = derived(1, (x, z, torch.empty_like(grad)), {"y": grad})
        for each in ("x", "z"):
            right = measured(part, each)[k]
            torch.testing.assert_close(found[each], right, rtol=1e-6, atol=1e-7, msg=f"{name} by {each}")
        assert max(found["x"].abs().max(), found["z"].abs().max()) > 0.01, name


@pytest.mark.parametrize("name", STEPS)
def test_steps_have_no_gradient(name) -> None:
    source = (
        f'extern "C" __global__ void k(const float* x, float* y) {{ y[threadIdx.x] = {name}f(x[threadIdx.x]) * x[0]; }}'
    )
    assert f"{name}f(" in rawkern.RawKernel(source, "k").derive(block=4).source


def test_names_for_float() -> None:
    calls = [n for n in ALIASES if n.startswith("__")] + sorted(SINGLE) + ["fmaxf", "min", "sinf", "fdividef"]
    lines = []
    for k, name in enumerate(calls):
        args = ("x[i]", "z[i]", "x[i]")[: len(rule_of(name)[0].derivatives)]
        lines.append(f"y[{k * N} + i] = {name}({', '.join(args)});")
    source = 'extern "C" __global__ void k(const float* x, const float* z, float* y) {\nint i = threadIdx.x;\n'
    derived = rawkern.RawKernel(source + "\n".join(lines) + "\n}", "k").derive(block=N)
    x, z = torch.linspace(0.1, 0.9, N), torch.linspace(0.85, 0.15, N)
    reference = {"exp10": lambda a: 10**a, "pow": torch.pow, "fma": lambda a, b, c: a * b + c, "fmax": torch.maximum,
                 "fmin": torch.minimum, "__fdividef": torch.div, "__saturatef": lambda a: a.clamp(0, 1)}  # fmt: skip
    for k, name in enumerate(calls):
        rule = rule_of(name)[0]
        grad = torch.zeros(len(calls), N)
        grad[k] = 1
        found = derived(1, (x, z, torch.empty_like(grad)), {"y": grad})
        a, b = x.double().requires_grad_(), z.double().requires_grad_()
        args = (a, b, a)[: len(rule.derivatives)]
        function = reference.get(rule.name) or getattr(torch, rule.name)
        right = torch.autograd.grad(function(*args).sum(), (a, b), allow_unused=True)
        for each, value in zip(("x", "z"), right, strict=True):
            value = torch.zeros(N, dtype=torch.float64) if value is None else value
            torch.testing.assert_close(found[each].double(), value, rtol=3e-4, atol=1e-5, msg=f"{name} by {each}")


@pytest.mark.parametrize("kind", ["float", "double"])
def test_functions_that_say_how_they_round(kind) -> None:
    like = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
            "rcp": lambda a, b: 1 / a, "sqrt": lambda a, b: a.sqrt(), "ma": lambda a, b: a * b + a}  # fmt: skip
    calls = [n for n in ROUNDED if rule_of(n)[1] == kind]
    assert len(calls) == 28
    lines = []
    for k, name in enumerate(calls):
        args = ("x[i]", "z[i]", "x[i]")[: len(RULES[name].derivatives)]
        lines.append(f"y[{k * N} + i] = {name}({', '.join(args)});")
    head = f'extern "C" __global__ void k(const {kind}* x, const {kind}* z, {kind}* y) {{ int i = threadIdx.x;\n'
    derived = rawkern.RawKernel(head + "\n".join(lines) + "\n}", "k").derive(block=N)
    dtype = getattr(torch, kind)
    x, z = torch.linspace(0.1, 0.9, N, dtype=dtype), torch.linspace(0.85, 0.15, N, dtype=dtype)
    for k, name in enumerate(calls):
        grad = torch.zeros(len(calls), N, dtype=dtype)
        grad[k] = 1
        found = derived(1, (x, z, torch.empty_like(grad)), {"y": grad})
        a, b = x.double().requires_grad_(), z.double().requires_grad_()
        value = like[re.fullmatch(r"__[fd]?(ma|[a-z]+?)f?_r[nzud]", name)[1]](a, b)
        right = torch.autograd.grad(value.sum(), (a, b), allow_unused=True)
        for each, expected in zip(("x", "z"), right, strict=True):
            expected = torch.zeros(N, dtype=torch.float64) if expected is None else expected
            torch.testing.assert_close(found[each].double(), expected, rtol=1e-5, atol=1e-6, msg=f"{name} by {each}")


def test_functions_with_two_results_and_of_integers() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y) {
        int i = threadIdx.x;
        float s, c, t[2];
        sincosf(x[i], &s, &c);
        sincospif(x[i], t, t + 1);
        int bits = __popc(i) + __clz(i + 1) - 26 + __mul24(i, 2) + (int)lrintf(x[i]) + __double2int_rz(x[i]);
        y[i] = s * c * 2.f + t[0] * __int2float_rn(bits) + t[1];
    }"""
    x = torch.linspace(0.1, 0.9, 8, requires_grad=True)
    bits = (
        torch.tensor([bin(i).count("1") + 32 - (i + 1).bit_length() - 26 + 2 * i for i in range(8)])
        + x.detach().round()
    )
    y = (2 * x).sin() + (math.pi * x).sin() * bits + (math.pi * x).cos()
    found = rawkern.RawKernel(source, "k").derive(block=8)
    grads = found(1, (x.detach(), torch.empty(8)), {"y": torch.ones(8)})
    torch.testing.assert_close(grads["x"], torch.autograd.grad(y.sum(), x)[0], rtol=1e-4, atol=1e-4)


NAN, INF = math.nan, math.inf
#: An expression of x and w; values of x and w; what torch, or C's own meaning, gives their gradients.
CONVENTIONS = {
    "clamped root": ("sqrtf(fmaxf(x[i], 0.f)) + w[i]", [-2.0, 0.25], [0, 0], [0, 1], [1, 1]),
    "clamped angle": ("acosf(fminf(fmaxf(x[i], -1.f), 1.f)) * w[i]", [2.0, 0.0], [1, 1], [0, -1], [0, math.pi / 2]),
    "clamped logarithm": ("logf(fmaxf(x[i], 0.f)) + w[i]", [-2.0, 0.5], [0, 0], [0, 2], [1, 1]),
    "saturated": ("sqrtf(__saturatef(x[i])) + w[i]", [-2.0, 0.25], [0, 0], [0, 1], [1, 1]),
    "positive difference": ("sqrtf(fdimf(x[i], w[i]))", [1.0, 5.0], [2, 1], [0, 0.25], [0, -0.25]),
    "absolute": ("sqrtf(fabsf(x[i])) + w[i]", [0.0, -4.0], [0, 0], [0, -0.25], [1, 1]),
    "power": ("sqrtf(powf(x[i], w[i]) - 1.f)", [3.0, 5.0], [0, 1], [0, 0.25], [INF, 5 * math.log(5) / 4]),
    "angle at the origin": ("atan2f(x[i], w[i])", [0.0, 1.0], [0, 1], [0, 0.5], [0, -0.5]),
    "chosen root": ("x[i] > 0.f ? sqrtf(x[i]) * w[i] : w[i]", [-1.0, 4.0], [1, 1], [0, 0.25], [1, 2]),
    "chosen quotient": ("x[i] != 0.f ? w[i] / x[i] : 0.f * w[i]", [0.0, 2.0], [1, 1], [0, -0.25], [0, 0.5]),
    "chosen product": ("isinf(x[i]) ? 0.f : x[i] * w[i]", [INF, 2.0], [1, 3], [0, 3], [0, 2]),
    "sign bits": ("copysignf(x[i], w[i])", [2.0, -2.0, -2.0, 0.0], [-0.0, -0.0, 1.0, 1.0], [-1, 1, -1, 0], [0] * 4),
    "maximum beside NaN": ("fmaxf(x[i], w[i])", [NAN, 1.0, 2.0, 3.0], [1.0, NAN, 2.0, 5.0], [0, 1, 0.5, 0], [1, 0, 0.5, 1]),
    "minimum beside NaN": ("fminf(x[i], w[i])", [NAN, 1.0, 2.0, 3.0], [1.0, NAN, 2.0, 5.0], [0, 1, 0.5, 1], [1, 0, 0.5, 0]),
    "rest": ("fmodf(x[i], w[i])", [1.0, -7.5], [0.1, 2.0], [1, 1], [-9, 3]),
    "remainder": ("remainderf(x[i], w[i])", [1.0, 7.5], [0.1, 2.0], [1, 1], [-10, -4]),
}  # fmt: skip


@pytest.mark.parametrize("what", CONVENTIONS)
def test_conventions_where_functions_are_not_smooth(what) -> None:
    text, x, w, by_x, by_w = CONVENTIONS[what]
    source = f'extern "C" __global__ void k(const float* x, const float* w, float* y) {{ int i = threadIdx.x; y[i] = {text}; }}'
    x, w = torch.tensor(x), torch.tensor(w, dtype=torch.float32)
    found = rawkern.RawKernel(source, "k").derive(block=len(x))(
        1, (x, w, torch.empty_like(x)), {"y": torch.ones_like(x)}
    )
    for name, expected in (("x", by_x), ("w", by_w)):
        if name in found:
            torch.testing.assert_close(found[name], torch.tensor(expected, dtype=torch.float32), rtol=1e-5, atol=1e-6)


def test_an_if_that_guards_an_infinite_slope() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y) {
        int i = threadIdx.x;
        float r = 0.f;
        if (x[i] > 0.f) r = sqrtf(x[i]) / x[i];
        y[i] = r;
    }"""
    x = torch.tensor([0.0, -1.0, 4.0])
    found = rawkern.RawKernel(source, "k").derive(block=3)(1, (x, torch.empty(3)), {"y": torch.ones(3)})
    torch.testing.assert_close(found["x"], torch.tensor([0.0, 0.0, -0.0625]))
