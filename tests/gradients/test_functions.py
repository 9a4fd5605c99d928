"""Device functions that compute a number from numbers stay functions in a derived backward."""

from __future__ import annotations

import contextlib
import re

import pytest
import torch

import rawkern

ACT = "__device__ float act(float v) { return v / (1.0f + expf(-v)); }"
MIX = "__device__ inline float mix(float a, const float b, float t) { return a + (b - a) * t; }"
silu = torch.nn.functional.silu

#: Name: functions, what y[i] is, the same in torch, the functions that stay.
STAY = {
    "one argument": (ACT, "act(x[i]) * w[i]", lambda x, w: silu(x) * w, {"act"}),
    "several": (MIX, "mix(x[i], w[i], x[i])", lambda x, w: x + (w - x) * x, {"mix"}),
    "of another": (
        f"{ACT} {MIX} __device__ float both(float p, float q) {{ return mix(act(p), q, p) * act(q); }}",
        "both(x[i], w[i])", lambda x, w: (silu(x) + (w - silu(x)) * x) * silu(w), {"act", "mix", "both"},
    ),
    "a branch": (
        "__device__ float leaky(float v) { if (v > 0.f) return v * v; float r = 0.1f * v; return r; }",
        "leaky(x[i]) + leaky(w[i])", lambda x, w: sum(torch.where(t > 0, t * t, 0.1 * t) for t in (x, w)), {"leaky"},
    ),
    "a relu": ("__device__ float relu(float v) { return fmaxf(v, 0.f); }",
               "relu(x[i] * w[i])", lambda x, w: torch.relu(x * w), {"relu"}),
    "an integer": (
        "__device__ float scaled(float v, int k, float s) { return k > 3 ? v * s : v * k; }",
        "scaled(x[i], i % 7, w[i])",
        lambda x, w: x * torch.where((i := torch.arange(len(x)) % 7) > 3, w, i), {"scaled"},
    ),
    "doubles": ("__device__ double wide(double v) { return v * v + 1; }",
                "wide(x[i]) * w[i]", lambda x, w: (x * x + 1) * w, {"wide"}),
    "constants": ("constexpr float K = 0.5f;\n#define TWICE(a) ((a) + (a))\n"
                  "__device__ float k(float v) { return TWICE(K * v) * v; }",
                  "k(x[i]) * w[i]", lambda x, w: x * x * w, {"k"}),
    "an argument without use": ("__device__ float first(float a, float b) { return a * a; }",
                                "first(x[i], w[i]) + w[i]", lambda x, w: x * x + w, {"first"}),
}  # fmt: skip

#: The same for functions that are put in.
PUT_IN = {
    "a template": ("template <typename T> __device__ T sq(T v) { return v * v; }",
                   "sq(x[i]) * w[i]", lambda x, w: x * x * w),
    "overloads": ("__device__ float sq(float v) { return v * v; } __device__ float sq(float v, float u) { return v * u; }",
                  "sq(x[i]) * sq(w[i], x[i])", lambda x, w: x**3 * w),
    "memory": ("__device__ float at(const float* p, int i) { return p[i] * p[i]; }",
               "at(x, i) * w[i]", lambda x, w: x * x * w),
    "a thread's number": ("__device__ float odd(float v) { return threadIdx.x % 2 ? v * v : v; }",
                          "odd(x[i]) * w[i]", lambda x, w: torch.where(torch.arange(len(x)) % 2 == 1, x * x, x) * w),
    "a loop": ("__device__ float cube(float v) { float r = 1; for (int k = 0; k < 3; ++k) r *= v; return r; }",
               "cube(x[i]) * w[i]", lambda x, w: x**3 * w),
    "by reference": ("__device__ float both(float v, float& u) { u += v * 2; return v * v + u; }",
                     "both(x[i], u) * w[i]", lambda x, w: (x * x + 2 * x) * w),
    "a helper's name": ("__device__ double digamma(double v) { return v * v; }",
                        "digamma(x[i]) * lgamma(w[i] + 99.0)", lambda x, w: x * x * torch.lgamma(w + 99)),
    "half": ("__device__ float of(__half v) { float f = __half2float(v); return f * f; }",
             "of(__float2half(x[i])) * w[i]", lambda x, w: x * x * w),
    "ties": ("__device__ float low(float a, float b) { return fminf(a, b); }",
             "low(x[i], 0.f) * w[i]", lambda x, w: x.clamp(max=0) * w),
}  # fmt: skip


def check(functions, value, reference, device):
    source = (
        f'{functions}\nextern "C" __global__ void f(const float* x, const float* w, float* y, int n) {{\n'
        f"    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    float u = 0;\n    if (i < n) y[i] = {value};\n}}"
    )
    source = "#include <cuda_fp16.h>\n" * ("half" in source) + source
    derived = rawkern.RawKernel(source, "f").derive(block=64, grid=4)
    draw = torch.Generator().manual_seed(2)
    x, w, v = ((torch.randint(-99, 99, (200,), generator=draw) * 0.03125).to(device) for _ in range(3))
    with rawkern.check() if device == "cpu" else contextlib.nullcontext():
        found = derived(4, (x, w, torch.zeros_like(x), 200), {"y": v})
    leaves = [t.double().cpu().requires_grad_() for t in (x, w)]
    expected = torch.autograd.grad((reference(*leaves) * v.double().cpu()).sum(), leaves)
    for n, right in zip("xw", expected, strict=True):
        torch.testing.assert_close(found[n].cpu().double(), right, rtol=1e-5, atol=1e-4)
    if device == "cpu" and "mix" in functions:  # in double, whose text is another
        derived.verify(4, (x, w, torch.zeros_like(x), 200))
    return set(re.findall(r"__device__ __forceinline__ \w+ (\w+)\(", derived.source)), derived.source


@pytest.mark.parametrize("name", STAY)
def test_stays_a_function(name, device) -> None:
    functions, value, reference, stay = STAY[name]
    found, source = check(functions, value, reference, device)
    assert {n for n in found if not n.endswith("_backward")} <= stay, source
    assert {n for n in found if n.endswith("_backward")} == {f"{n}_backward" for n in stay}, source


@pytest.mark.parametrize("name", PUT_IN)
def test_is_put_in(name, device) -> None:
    found, source = check(*PUT_IN[name], device)
    assert not {n for n in found if n.endswith("_backward")}, source


def test_what_a_loop_carries_on_is_no_argument(device) -> None:
    """A sum and a maximum are known by what happens to them."""
    derived = rawkern.RawKernel(
        "__device__ float plus(float a, float b) { return a + b; }\n"
        "__device__ float most(float a, float b) { return a > b ? a : b; }\n"
        'extern "C" __global__ void f(const float* x, float* y, int n) {\n'
        "    float s = 0, m = -1e30f;\n    int r = blockIdx.x * 32 + threadIdx.x;\n"
        "    for (int k = 0; k < n; ++k) { s = plus(s, x[r * n + k]); m = most(m, x[r * n + k]); }\n"
        "    y[r] = s * m;\n}",
        "f",
    ).derive(block=32, grid=2)
    x, v = (torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(device) for shape in ((64, 5), (64,)))
    found = derived(2, (x, v.clone(), 5), {"y": v})["x"]
    x.requires_grad_()
    torch.testing.assert_close(found, torch.autograd.grad(((x.sum(1) * x.amax(1)) * v).sum(), x)[0])
