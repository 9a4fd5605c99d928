"""Mathematical functions, and the bits of floats."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
import torch

import rawkern

# Largest errors in units of the last place, from the tables of the CUDA C++ Programming Guide.
SINGLE = {
    "expf": (2, -87, 88), "exp2f": (2, -126, 127), "exp10f": (2, -37, 38), "expm1f": (1, -20, 80), "logf": (1, 1e-30, 1e30), "log2f": (1, 1e-30, 1e30),
    "log10f": (2, 1e-30, 1e30), "log1pf": (1, -0.99, 1e10), "sinf": (2, -200, 200), "cosf": (2, -200, 200), "tanf": (4, -100, 100),
    "asinf": (2, -1, 1), "acosf": (2, -1, 1), "atanf": (2, -1e4, 1e4), "sinhf": (3, -80, 80), "coshf": (2, -80, 80), "tanhf": (2, -12, 12),
    "asinhf": (3, -1e6, 1e6), "acoshf": (4, 1, 1e6), "atanhf": (3, -0.999, 0.999), "erff": (2, -5, 5), "erfcf": (4, -5, 9),
    "cbrtf": (1, -1e20, 1e20), "sqrtf": (0.5, 0, 1e30), "rsqrtf": (2, 1e-30, 1e30), "lgammaf": (6, 0.1, 50), "tgammaf": (5, 0.1, 30),
    "sinpif": (2, -50, 50), "cospif": (2, -50, 50),
}  # fmt: skip


DOUBLE = {"exp": (1, -700, 700), "log": (1, 1e-300, 1e300), "sin": (2, -1e3, 1e3), "cos": (2, -1e3, 1e3), "tanh": (2, -20, 20), "erf": (2, -5, 5),
          "cbrt": (1, -1e100, 1e100), "atan": (2, -1e6, 1e6), "expm1": (1, -20, 300), "lgamma": (4, 0.1, 100), "sqrt": (0.5, 0, 1e300), "rsqrt": (1, 1e-300, 1e300)}  # fmt: skip


def reference(name: str, x: np.ndarray) -> np.ndarray:
    """The function in float64 (80-bit where the machine has it)."""
    v = x.astype(np.longdouble)
    special = {"erf": torch.special.erf, "erfc": torch.special.erfc, "lgamma": torch.special.gammaln}
    with np.errstate(all="ignore"):
        if name in special:
            return special[name](torch.from_numpy(x.astype(np.float64))).numpy().astype(np.longdouble)
        if name == "tgamma":
            return np.array([math.gamma(float(u)) for u in x], dtype=np.longdouble)
        if name in ("sinpi", "cospi"):
            part = (x.astype(np.float64) % 2).astype(np.longdouble)
            return (np.sin if name == "sinpi" else np.cos)(part * np.longdouble(np.pi))
        if name == "exp10":
            return np.longdouble(10) ** v
        if name == "rsqrt":
            return 1 / np.sqrt(v)
        inverse = {
            "asin": "arcsin",
            "acos": "arccos",
            "atan": "arctan",
            "asinh": "arcsinh",
            "acosh": "arccosh",
            "atanh": "arctanh",
        }
        return getattr(np, inverse.get(name, name))(v)


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Errors in units of the last place of the wanted value."""
    rounded = want.astype(got.dtype)
    tiny = np.finfo(got.dtype).smallest_subnormal
    unit = np.maximum(np.spacing(np.abs(rounded)), tiny).astype(np.longdouble)
    return np.abs(got.astype(np.longdouble) - want) / unit


@pytest.mark.parametrize(
    ("table", "ctype", "dtype"),
    [(SINGLE, "float", np.float32), (DOUBLE, "double", np.float64)],
    ids=["float", "double"],
)
def test_functions_keep_their_bounds(device, table, ctype, dtype):
    n, rng = 800, np.random.default_rng(6)
    body = "\n".join(f"o[{k} * n + i] = {f}(x[{k} * n + i]);" for k, f in enumerate(table))
    code = f"""extern "C" __global__ void k(int n, const {ctype}* x, {ctype}* o) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        {body}
    }}"""
    x = np.empty((len(table), n), dtype)
    for k, (_, low, high) in enumerate(table.values()):
        half = n // 2
        x[k, :half] = rng.uniform(low, high, half)
        small = np.exp(rng.uniform(-12, math.log(min(high, 1e30)), n - half)) * np.where(
            rng.random(n - half) < 0.5 if low < 0 else False, -1, 1
        )
        x[k, half:] = np.clip(small, low, high)
    out = torch.full((x.size,), float("nan"), dtype=torch.from_numpy(x).dtype, device=device)
    rawkern.RawKernel(code).forall(n)(n, torch.from_numpy(x.ravel()).to(device), out)
    got = out.cpu().numpy().reshape(x.shape)
    worst = {}
    for k, (f, (bound, _, _)) in enumerate(table.items()):
        name = f.removesuffix("f") if ctype == "float" and f != "erf" else f
        want = reference(name, x[k])
        slack = 0.02 if dtype is np.float32 else 1.0 if name in ("erf", "lgamma") else 0.05  # the reference's own error
        keep = np.ones(n, bool) if name not in ("lgamma", "tan") else np.abs(want) > 0.1
        error = ulps(got[k], want)[keep]
        if error.max() > bound + slack:
            worst[f] = (float(error.max()), x[k][keep][error.argmax()], got[k][keep][error.argmax()])
    assert not worst


def test_functions_of_two_arguments(device):
    code = r"""extern "C" __global__ void k(int n, const float* x, const float* y, float* o) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        float a = x[i], b = y[i], p = fabsf(a) + 1e-6f;
        o[i] = powf(p, b * 0.1f); o[n + i] = fmodf(a, b); o[2 * n + i] = remainderf(a, b); o[3 * n + i] = atan2f(a, b); o[4 * n + i] = hypotf(a, b);
        o[5 * n + i] = fdimf(a, b); o[6 * n + i] = copysignf(a, b); o[7 * n + i] = nextafterf(a, b); o[8 * n + i] = a / b; o[9 * n + i] = fmaf(a, b, a);
        o[10 * n + i] = ldexpf(a, (int)b); o[11 * n + i] = fminf(a, b) * 2 + fmaxf(a, b);
    }"""
    rng = np.random.default_rng(7)
    x = (rng.standard_normal(700) * 10.0 ** rng.integers(-3, 3, 700)).astype(np.float32)
    y = (rng.standard_normal(700) * 30).astype(np.float32)
    out = torch.full((12 * 700,), float("nan"), device=device)
    rawkern.RawKernel(code).forall(700)(700, torch.from_numpy(x).to(device), torch.from_numpy(y).to(device), out)
    got = out.cpu().numpy().reshape(12, 700)
    a, b = x.astype(np.float64), y.astype(np.float64)
    p = (np.abs(x) + np.float32(1e-6)).astype(np.float64)
    exponent = (y * np.float32(0.1)).astype(np.float64)
    wants = [
        (p**exponent, 4), (np.fmod(a, b), 0), (np.array([math.remainder(u, v) for u, v in zip(a, b, strict=True)]), 0), (np.arctan2(a, b), 3),
        (np.hypot(a, b), 3), (np.maximum(a - b, 0), 0.5), (np.copysign(a, b), 0), (np.nextafter(x, y).astype(np.float64), 0), (a / b, 0.5),
        (a * b + a, 0.5), (np.ldexp(a, b.astype(int)), 0.5), (np.minimum(x, y) * np.float32(2) + np.maximum(x, y), 0.5),
    ]  # fmt: skip
    for k, (want, bound) in enumerate(wants):
        error = ulps(got[k], want.astype(np.longdouble))
        assert error.max() <= bound + 0.01, (k, error.max(), x[error.argmax()], y[error.argmax()])


def test_special_values(device):
    code = r"""extern "C" __global__ void k(int n, const float* x, float* o, int* c) {
        int i = threadIdx.x;
        if (i >= n) return;
        float a = x[i];
        o[i] = expf(a); o[n + i] = logf(a); o[2 * n + i] = sqrtf(a); o[3 * n + i] = sinf(a); o[4 * n + i] = tanhf(a); o[5 * n + i] = 1.f / a;
        o[6 * n + i] = fmaxf(a, 1.f); o[7 * n + i] = floorf(a); o[8 * n + i] = rintf(a); o[9 * n + i] = roundf(a); o[10 * n + i] = truncf(a); o[11 * n + i] = a * 0.f;
        c[i] = isnan(a) + 2 * isinf(a) + 4 * signbit(a) + 8 * (a == a) + 16 * (a < 1) + 32 * !(a >= 1) + 64 * isfinite(a);
    }"""
    x = np.array(
        [math.inf, -math.inf, math.nan, 0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 0.5, -0.5, 2.5, 1.0, 88.8, -104.0],
        np.float32,
    )
    n = len(x)
    out, c = torch.full((12 * n,), 7.0, device=device), torch.zeros(n, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[1, 32](n, torch.from_numpy(x).to(device), out, c)
    got = out.cpu().numpy().reshape(12, n)
    v = x.astype(np.float64)
    with np.errstate(all="ignore"):
        away = np.where(np.isfinite(v), np.copysign(np.floor(np.abs(v) + 0.5), v), v)
        wants = [
            np.exp(v),
            np.log(v),
            np.sqrt(v),
            np.sin(v),
            np.tanh(v),
            1 / v,
            np.fmax(v, 1),
            np.floor(v),
            np.rint(v),
            away,
            np.trunc(v),
            v * 0,
        ]
        for k, want in enumerate(wants):
            w32 = want.astype(np.float32)
            np.testing.assert_allclose(got[k], w32, rtol=3e-7, atol=2e-45, err_msg=str(k))
            known = ~np.isnan(w32)
            np.testing.assert_array_equal(np.signbit(got[k][known]), np.signbit(w32[known]), err_msg=str(k))
    flags = (
        np.isnan(v)
        + 2 * np.isinf(v)
        + 4 * np.signbit(v)
        + 8 * (v == v)
        + 16 * (v < 1)
        + 32 * ~(v >= 1)
        + 64 * np.isfinite(v)
    )
    nan = np.isnan(v)
    np.testing.assert_array_equal(c.cpu().numpy()[~nan], flags[~nan])
    assert (c.cpu().numpy()[nan] & ~4 == 1 + 32).all()


def test_fast_functions(device):
    """Intrinsics of less precision, and --use_fast_math, stay near."""
    code = r"""extern "C" __global__ void k(int n, const float* x, float* o) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        float a = x[i], p = fabsf(a) + 0.01f;
        o[i] = __expf(a); o[n + i] = __logf(p); o[2 * n + i] = __sinf(a); o[3 * n + i] = __cosf(a); o[4 * n + i] = __powf(p, 1.7f);
        o[5 * n + i] = __fdividef(a, p); o[6 * n + i] = __frcp_rn(p); o[7 * n + i] = __fsqrt_rn(p); o[8 * n + i] = __frsqrt_rn(p);
        o[9 * n + i] = sinf(a) / p + expf(a) * rsqrtf(p); o[10 * n + i] = __saturatef(a); o[11 * n + i] = __exp10f(a); o[12 * n + i] = tanhf(a);
    }"""
    x = np.random.default_rng(8).uniform(-3, 3, 500).astype(np.float32)
    v, p = x.astype(np.float64), (np.abs(x) + np.float32(0.01)).astype(np.float64)
    wants = [np.exp(v), np.log(p), np.sin(v), np.cos(v), p ** np.float32(1.7), v / p, 1 / p, np.sqrt(p), 1 / np.sqrt(p),
             np.sin(v) / p + np.exp(v) / np.sqrt(p), np.clip(v, 0, 1), 10.0**v, np.tanh(v)]  # fmt: skip
    for options in ((), ("--use_fast_math",)):
        out = torch.full((13 * 500,), float("nan"), device=device)
        rawkern.RawKernel(code, options=options).forall(500)(500, torch.from_numpy(x).to(device), out)
        for k, (g, w) in enumerate(zip(out.cpu().numpy().reshape(13, 500), wants, strict=True)):
            rtol, atol = (1e-3, 1e-5) if k == 12 and options else (1e-5, 2e-6)
            np.testing.assert_allclose(g, w, rtol=rtol, atol=atol, err_msg=f"{k} {options}")


def test_rounded_arithmetic(device):
    code = r"""extern "C" __global__ void k(int n, const float* x, const float* y, float* o, const double* u, double* p) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        float a = x[i], b = y[i];
        o[i] = __fadd_rz(a, b); o[n + i] = __fadd_rd(a, b); o[2 * n + i] = __fadd_ru(a, b); o[3 * n + i] = __fmul_rz(a, b);
        o[4 * n + i] = __fmul_rd(a, b); o[5 * n + i] = __fmul_ru(a, b); o[6 * n + i] = __fdiv_rd(a, b); o[7 * n + i] = __fsqrt_ru(fabsf(a));
        p[i] = __dadd_rd(u[i], 0.1); p[n + i] = __dmul_ru(u[i], 0.1); p[2 * n + i] = __ddiv_rz(u[i], 3.0); p[3 * n + i] = __dsqrt_rd(fabs(u[i]));
    }"""
    from fractions import Fraction

    rng = np.random.default_rng(9)
    n = 200
    x, y = ((rng.standard_normal(n) * 10.0 ** rng.integers(-5, 6, n)).astype(np.float32) for _ in range(2))
    u = rng.standard_normal(n)
    out, wide = (
        torch.full((8 * n,), float("nan"), device=device),
        torch.full((4 * n,), float("nan"), dtype=torch.float64, device=device),
    )
    rawkern.RawKernel(code).forall(n)(
        n, torch.from_numpy(x).to(device), torch.from_numpy(y).to(device), out, torch.from_numpy(u).to(device), wide
    )
    o, p = out.cpu().numpy().reshape(8, n), wide.cpu().numpy().reshape(4, n)

    def rounded(exact: Fraction, near, mode: str):
        if mode == "z":
            mode = "d" if exact > 0 else "u"
        other = np.nextafter(near, type(near)(-np.inf if mode == "d" else np.inf))
        wrong = Fraction(float(near)) > exact if mode == "d" else Fraction(float(near)) < exact
        return other if wrong else near

    for i in range(n):
        a, b = Fraction(float(x[i])), Fraction(float(y[i]))
        for k, (exact, mode) in enumerate(
            [(a + b, "z"), (a + b, "d"), (a + b, "u"), (a * b, "z"), (a * b, "d"), (a * b, "u"), (a / b, "d")]
        ):
            assert o[k, i] == rounded(exact, np.float32(float(exact)), mode), (k, x[i], y[i])
        r, v = o[7, i], abs(a)
        assert Fraction(float(r)) ** 2 >= v > Fraction(float(np.nextafter(r, np.float32(0)))) ** 2
        w = Fraction(float(u[i]))
        for k, (exact, mode) in enumerate([(w + Fraction(0.1), "d"), (w * Fraction(0.1), "u"), (w / 3, "z")]):
            assert p[k, i] == rounded(exact, np.float64(exact.numerator / exact.denominator), mode), (k, u[i])
        r = p[3, i]
        assert Fraction(float(r)) ** 2 <= abs(w) < Fraction(float(np.nextafter(r, np.inf))) ** 2


def test_nan_payloads_pass_through_memory(device):
    code = r"""extern "C" __global__ void k(int n, const float* x, const double* y, float* a, double* b, int m) {
        int i = threadIdx.x;
        if (i >= n) return;
        __shared__ float s[64];
        float v = x[i]; double w = y[n - 1 - i];
        s[i] = v;
        __syncthreads();
        a[i] = i < m ? s[i] : x[i]; b[n - 1 - i] = w;
        float u = __shfl_xor_sync(~0u, v, 1);
        a[n + i] = u;
        a[2 * n + i] = __int_as_float(__float_as_int(v) ^ 1);
    }"""
    n = 64
    x = (np.uint32(0x7F800001) + np.arange(n, dtype=np.uint32) * np.uint32(0x10101)).view(np.float32)
    x.view(np.uint32)[1::2] |= 0x80000000
    y = (np.uint64(0xFFF0000000000001) + np.arange(n, dtype=np.uint64) * np.uint64(0x10000001)).view(np.float64)
    ints32, ints64 = torch.from_numpy(x.view(np.int32)).to(device), torch.from_numpy(y.view(np.int64)).to(device)
    a, b = torch.zeros(3 * n, dtype=torch.int32, device=device), torch.zeros(n, dtype=torch.int64, device=device)
    rawkern.RawKernel(code)[1, 64](
        n, ints32.view(torch.float32), ints64.view(torch.float64), a.view(torch.float32), b.view(torch.float64), 40
    )
    got, bits = a.cpu().numpy().view(np.uint32).reshape(3, n), x.view(np.uint32)
    np.testing.assert_array_equal(got[0], bits)
    np.testing.assert_array_equal(got[1], bits[np.arange(n) ^ 1])
    np.testing.assert_array_equal(got[2], bits ^ 1)
    np.testing.assert_array_equal(b.cpu().numpy(), y.view(np.int64))


def test_new_nans_are_the_hardwares(device):
    code = r"""extern "C" __global__ void k(const float* x, const double* y, float* a, double* b) {
        a[0] = x[0] - x[0]; a[1] = x[1] * x[0]; a[2] = x[2] + 1.f; a[3] = sqrtf(-x[3]); a[4] = x[1] / x[1]; a[5] = fmaxf(x[2], x[4]); a[6] = fmaf(x[2], 2.f, 1.f);
        b[0] = y[0] - y[0]; b[1] = sqrt(-y[1]); b[2] = y[2] * 3;
    }"""
    x = np.array([math.inf, 0, math.nan, 4, math.nan], np.float32)
    x.view(np.uint32)[[2, 4]] = 0xFFC12345, 0x7FD00001
    y = np.array([math.inf, 2, math.nan])
    a, b = torch.zeros(7, dtype=torch.int32, device=device), torch.zeros(3, dtype=torch.int64, device=device)
    tensors = [torch.from_numpy(x.view(np.int32)).view(torch.float32).to(device), torch.from_numpy(y).to(device)]
    rawkern.RawKernel(code)[1, 1](*tensors, a.view(torch.float32), b.view(torch.float64))
    assert a.tolist() == [0x7FFFFFFF] * 7
    assert all(v & 0x7FF8000000000000 == 0x7FF8000000000000 for v in b.tolist())


SUBNORMAL = r"""extern "C" __global__ void k(int n, const float* x, float* o) {
    int i = threadIdx.x;
    if (i >= n) return;
    o[i] = x[i] * 0.5f; o[n + i] = x[i] + 1e-45f; o[2 * n + i] = x[i] * 1e10f; o[3 * n + i] = fmaf(x[i], 2.f, -1e-44f); o[4 * n + i] = fabsf(x[i]) / 3.f;
}"""


@pytest.mark.parametrize("flush", [False, True])
def test_subnormals_whatever_torch_is_set_to(device, flush):
    """The host thread's flush-to-zero mode is not the kernel's, and comes back unchanged."""
    x = np.concatenate(
        [
            np.float32([1e-45, -1e-45, 1e-40, -1.1e-38, 1.2e-38]),
            np.float32(10.0) ** np.arange(-44, -36, dtype=np.float32),
        ]
    )
    x = x.astype(np.float32)
    n = len(x)
    out = torch.full((5 * n,), float("nan"), device=device)
    inputs = torch.from_numpy(x).to(device)
    kernel = rawkern.RawKernel(SUBNORMAL)
    a, tiny = x.astype(np.float64), float(np.float32(1e-45))
    if not torch.set_flush_denormal(flush) and flush:
        pytest.skip("this processor cannot flush")
    try:
        kernel[1, 32](n, inputs, out)
        flushed = torch.tensor([1e-40]).mul(0.5).item() == 0.0
    finally:
        torch.set_flush_denormal(False)
    assert flushed == flush
    wants = [a * 0.5, a + tiny, a * float(np.float32(1e10)), a * 2 - float(np.float32(1e-44)), np.abs(a) / 3]
    np.testing.assert_array_equal(out.cpu().numpy().reshape(5, n), np.array(wants).astype(np.float32))


def test_flushing_when_asked_for(device):
    out = torch.full((15,), float("nan"), device=device)
    x = torch.tensor([1e-40, -1e-40, 2e-38], device=device)
    rawkern.RawKernel(SUBNORMAL, options=("-ftz=true",))[1, 32](3, x, out)
    got = out.cpu().view(5, 3)
    assert got[0].tolist() == [0, 0, 0] and torch.signbit(got[0]).tolist() == [False, True, False]
    assert got[2, :2].tolist() == [0, 0] and got[2, 2] > 1e-29
    assert got[1].tolist() == [0, 0, x[2].item()]


def test_rounding_mode_of_the_host_is_not_used(device):
    """The host may round upward while it launches."""
    libm = ctypes.CDLL("libm.so.6")
    code = 'extern "C" __global__ void k(float* o) { int i = threadIdx.x; o[i] = (i + 1) / 3.0f; o[32 + i] = (float)(0.1 * (i + 1)); }'
    out = torch.full((64,), float("nan"), device=device)
    kernel = rawkern.RawKernel(code)
    kernel[1, 32](out)
    before = libm.fegetround()
    try:
        libm.fesetround(0x800)  # FE_UPWARD on x86-64; another mode elsewhere
        kernel[1, 32](out)
    finally:
        libm.fesetround(before)
    i = np.arange(1, 33)
    np.testing.assert_array_equal(
        out.cpu().numpy(), np.concatenate([(i / 3).astype(np.float32), (0.1 * i).astype(np.float32)])
    )


def test_decimal_numbers_in_assembly(device):
    """They are float64 and rounded to the type that reads them."""
    code = r"""extern "C" __global__ void k(const float* x, float* out, double* wide) {
        int i = threadIdx.x;
        asm("fma.rn.f32 %0, %1, 0.1, -2.5e-3;" : "=f"(out[i]) : "f"(x[i]));
        asm("mul.f64 %0, %1, 0.1;" : "=d"(wide[i]) : "d"((double)x[i]));
        asm("{ .reg .f32 t; mov.f32 t, 1.0e40; min.f32 %0, %0, t; }" : "+f"(out[i]));
    }"""
    x = torch.randn(32)
    out, wide = torch.full((32,), float("nan"), device=device), torch.full((32,), float("nan"), device=device).double()
    rawkern.RawKernel(code)[1, 32](x.to(device), out, wide)
    exact = x.double() * float(np.float32(0.1)) + float(np.float32(-2.5e-3))
    assert torch.equal(out.cpu(), exact.float())
    assert torch.equal(wide.cpu(), x.double() * 0.1)


def test_functions_of_halves(device):
    """The header's inline PTX for each of them."""
    names = ["hsqrt", "hrsqrt", "hrcp", "hexp", "hexp2", "hlog", "hlog2", "hlog10", "hsin", "hcos"]
    lines = "\n".join(f"o[{k} * 64 + i] = {name}(x[i]);" for k, name in enumerate(names))
    code = f"""#include <cuda_fp16.h>
    extern "C" __global__ void k(const __half* x, __half* o) {{ int i = threadIdx.x; {lines} }}"""
    x = (torch.arange(64, dtype=torch.float64) / 16 + 0.125).half().to(device)
    out = torch.full((len(names), 64), float("nan"), dtype=torch.float16, device=device)
    rawkern.RawKernel(code)[1, 64](x, out)
    exact = x.double()
    want = [getattr(exact, {"hrcp": "reciprocal"}.get(name, name[1:]))() for name in names]
    torch.testing.assert_close(out.double(), torch.stack(want), rtol=1.1e-3, atol=6e-4)
