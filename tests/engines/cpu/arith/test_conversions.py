"""Conversions between types, as PTX rounds and saturates them."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch

import rawkern
from tests.engines.cpu.arith.kit import INT_EDGES, pairs, run

FLOATS = [0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, 0.49999997, 1e-40, -1e-45, 3.7, -3.2, 1e9, -1e9, 2147483520.0, 2147483648.0, -2147483648.0,
          4294967040.0, 4294967296.0, 1e10, 9.2e18, -9.3e18, 1.9e19, 3e38, math.inf, -math.inf, math.nan, 16777217.0, 65504.0, 65520.0]  # fmt: skip


def floats(dtype, n: int = 300) -> np.ndarray:
    rng = np.random.default_rng(3)
    wide = rng.standard_normal(n) * 10.0 ** rng.integers(-12, 14, n)
    return np.concatenate([FLOATS, wide, rng.integers(-(2**40), 2**40, n) / 2]).astype(dtype)


ROUND = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}


@pytest.mark.parametrize(("name", "dtype"), [("float", np.float32), ("double", np.float64)])
def test_float_to_integer(device, name, dtype):
    """Every rounding mode; values outside of the range go to its end, NaN to 0 (2^63 for 64-bit results)."""
    kinds = {
        "int": (np.int32, "int"),
        "uint": (np.uint32, "unsigned"),
        "ll": (np.int64, "long long"),
        "ull": (np.uint64, "unsigned long long"),
    }
    cases = [(k, m) for k in kinds for m in ROUND]
    params = ", ".join(f"{kinds[k][1]}* o{j}" for j, (k, _) in enumerate(cases))
    body = "\n".join(f"o{j}[i] = __{name}2{k}_{m}(x[i]);" for j, (k, m) in enumerate(cases))
    code = f"""extern "C" __global__ void k(int n, const {name}* x, {params}) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        {body}
    }}"""
    x = floats(dtype)
    got = run(code, len(x), x, device=device, out=[kinds[k][0] for k, _ in cases])
    for (kind, mode), g in zip(cases, got, strict=True):
        info = np.iinfo(kinds[kind][0])
        want = []
        for v in x:
            if math.isnan(v):
                want.append(None if kind in ("ll", "ull") or name == "double" else 0)
            elif math.isinf(v):
                want.append(info.max if v > 0 else info.min)
            else:
                want.append(min(max(int(ROUND[mode](v)), info.min), info.max))
        known = [w is not None for w in want]
        np.testing.assert_array_equal(
            g[known], np.array([w for w in want if w is not None], dtype=g.dtype), err_msg=f"{kind}_{mode}"
        )


def test_integer_to_float(device):
    code = r"""extern "C" __global__ void k(int n, const long long* x, float* a, float* b, float* c, float* d, double* e, float* f, float* g, float* h) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        a[i] = __ll2float_rn(x[i]); b[i] = __ll2float_rz(x[i]); c[i] = __ll2float_rd(x[i]); d[i] = __ll2float_ru(x[i]);
        e[i] = (double)x[i]; f[i] = (float)(int)x[i]; g[i] = (float)(unsigned)x[i]; h[i] = (float)(unsigned long long)x[i];
    }"""
    x, _ = pairs([*INT_EDGES, 2**24 + 1, 2**24 + 3, -(2**24) - 1, 2**53 + 1, 2**40 + 2**16], np.int64)
    got = run(code, len(x), x, device=device, out=[np.float32] * 4 + [np.float64] + [np.float32] * 3)
    nearest = x.astype(np.float32)
    exact = [int(v) for v in x]

    def stepped(direction: int) -> np.ndarray:
        """The neighbor on the right side of the exact value."""
        out = []
        for v, r in zip(exact, nearest, strict=True):
            wrong = int(r) > v if direction < 0 else int(r) < v
            out.append(np.nextafter(r, np.float32(direction * np.inf)) if wrong else r)
        return np.array(out, np.float32)

    down, up = stepped(-1), stepped(1)
    u64 = x.view(np.uint64)
    wants = [nearest, np.where(x < 0, up, down), down, up, x.astype(np.float64), x.astype(np.int32).astype(np.float32),
             x.astype(np.uint32).astype(np.float32), u64.astype(np.float32)]  # fmt: skip
    for k, (g, w) in enumerate(zip(got, wants, strict=True)):
        np.testing.assert_array_equal(g, w, err_msg=str(k))


def test_double_to_float(device):
    code = r"""extern "C" __global__ void k(int n, const double* x, float* a, float* b, float* c, float* d) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        a[i] = (float)x[i]; b[i] = __double2float_rz(x[i]); c[i] = __double2float_rd(x[i]); d[i] = __double2float_ru(x[i]);
    }"""
    rng = np.random.default_rng(4)
    x = np.concatenate(
        [
            floats(np.float64),
            rng.standard_normal(300) * 10.0 ** rng.integers(-46, 40, 300),
            [1e-46, -1e-46, 3.4028236e38],
        ]
    )
    got = run(code, len(x), x, device=device, out=[np.float32] * 4)
    with np.errstate(over="ignore"):
        near = x.astype(np.float32)
    down = np.where(near.astype(np.float64) > x, np.nextafter(near, np.float32(-np.inf)), near)
    up = np.where(near.astype(np.float64) < x, np.nextafter(near, np.float32(np.inf)), near)
    toward = np.where(x < 0, up, down)
    toward = np.where(toward == 0, np.copysign(np.float32(0), near), toward)
    for g, w in zip(got, (near, toward, down, up), strict=True):
        np.testing.assert_array_equal(g, w)
        np.testing.assert_array_equal(np.signbit(g[~np.isnan(g)]), np.signbit(w[~np.isnan(g)]))


@pytest.mark.parametrize(
    ("ctype", "to", "dtype"), [("__half", "half", np.float16), ("__nv_bfloat16", "bfloat16", ml_dtypes.bfloat16)]
)
def test_halves(device, ctype, to, dtype):
    """Conversion is exact or rounded to even; arithmetic is that of a wider type, rounded once."""
    code = f"""
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    typedef {ctype} H; typedef {ctype}2 H2;
    extern "C" __global__ void k(int n, const float* x, const float* y, H* conv, float* back, H* sum, H* prod, H* fma, H* quot, H* pair, int* flags) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        H a = __float2{to}_rn(x[i]), b = __float2{to}_rn(y[i]), c = __float2{to}_rn(y[n - 1 - i]);
        conv[i] = a; back[i] = __{to}2float(a) * 2;
        sum[i] = __hadd(a, b); prod[i] = a * b; fma[i] = __hfma(a, b, c); quot[i] = __hdiv(a, b);
        H2 p; p.x = a; p.y = b; H2 q = __hmul2(__hadd2(p, p), __halves2{to}2(c, c)); pair[i] = __hsub(q.x, q.y);
        flags[i] = __hlt(a, b) + 2 * __heq(a, b) + 4 * __hgtu(a, b) + 8 * __hisnan(a) + 16 * (__hmax(a, b) == a);
    }}""".replace("__halves2half2", "__halves2half2").replace("__halves2bfloat162", "__halves2bfloat162")
    rng = np.random.default_rng(5)
    x = np.concatenate(
        [floats(np.float32, 100), rng.standard_normal(400).astype(np.float32) * 10.0 ** rng.integers(-4, 3, 400)]
    ).astype(np.float32)
    y = np.roll(x, 37)
    kinds = [dtype, np.float32, *[dtype] * 5, np.int32]
    raw = [np.uint16 if d is dtype else d for d in kinds]
    n = len(x)
    tensors = [torch.from_numpy(a).to(device) for a in (x, y)]
    torch_type = torch.float16 if dtype is np.float16 else torch.bfloat16
    results = [
        torch.full((n,), 7, dtype={np.int32: torch.int32, np.float32: torch.float32}.get(d, torch_type), device=device)
        for d in kinds
    ]
    rawkern.RawKernel(code).forall(n)(n, *tensors, *results)
    got = [
        (r.view(torch.int16) if r.dtype == torch_type else r).cpu().numpy().view(w)
        for r, w in zip(results, raw, strict=True)
    ]
    got = [g.view(d) for g, d in zip(got, kinds, strict=True)]
    with np.errstate(all="ignore"):
        a, b = x.astype(dtype), y.astype(dtype)
        c = b[::-1]
        a64, b64, c64 = (v.astype(np.float64) for v in (a, b, c))
        two = (2 * a64).astype(dtype).astype(np.float64) * c64, (2 * b64).astype(dtype).astype(np.float64) * c64
        exact = lambda v: np.asarray(v, dtype=np.float64).astype(dtype)  # noqa: E731
        wants = [a, a.astype(np.float32) * 2, exact(a64 + b64), exact(a64 * b64), None, exact(a64 / b64),
                 exact(exact(two[0]).astype(np.float64) - exact(two[1]).astype(np.float64))]  # fmt: skip
    for k, (g, w) in enumerate(zip(got[:7], wants, strict=True)):
        if w is None or k == 5:
            continue
        same = (g == w) | (np.isnan(g.astype(np.float32)) & np.isnan(w.astype(np.float32)))
        assert same.all(), (k, x[~same][:3], y[~same][:3], g[~same][:3], w[~same][:3])
    fine = np.isfinite(a64) & np.isfinite(b64) & np.isfinite(c64)
    with np.errstate(all="ignore"):
        want = a64 * b64 + c64  # double rounding can miss by one unit in the last place of the result in rare cases
        ulp = np.abs(np.spacing(want.astype(np.float32)).astype(np.float64)) * (
            2.0**13 if dtype is np.float16 else 2.0**16
        )
        inside = fine & (np.abs(want) < float(ml_dtypes.finfo(dtype).max))
        error = np.abs(got[4].astype(np.float64) - want)
        tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
        assert (error[inside] <= np.maximum(ulp[inside], tiny) * 0.5000001).all()
        quotient_ = a64 / b64
        inside = (
            fine & (b64 != 0) & (np.abs(quotient_) < float(ml_dtypes.finfo(dtype).max) / 2) & (np.abs(quotient_) > 1e-3)
        )
        np.testing.assert_allclose(
            got[5].astype(np.float64)[inside], quotient_[inside], rtol=2.0**-10 if dtype is np.float16 else 2.0**-7
        )
        nan = np.isnan(a64) | np.isnan(b64)
        flags = (
            (a64 < b64)
            + 2 * (a64 == b64)
            + 4 * (nan | (a64 > b64))
            + 8 * np.isnan(a64)
            + 16 * ((a64 >= b64) | (np.isnan(b64) & ~np.isnan(a64)))
        )
    np.testing.assert_array_equal(got[7], flags)
