"""Numbers in whole kernels: wide integers, halves, conversions, mathematical functions within CUDA's stated errors."""

from __future__ import annotations

import ctypes
import math

import ml_dtypes
import numpy as np
import pytest
import torch

import rawkern

INT_EDGES = [
    0,
    1,
    -1,
    2,
    -2,
    3,
    7,
    -7,
    10,
    127,
    -128,
    255,
    65535,
    2**31 - 1,
    -(2**31),
    2**31,
    2**32 - 1,
    2**32,
    2**62,
    2**63 - 1,
    -(2**63),
    -(2**63) + 1,
]


def run(code: str, n: int, *arrays: np.ndarray, device: str, out: list, options=()) -> list[np.ndarray]:
    """Run ``k(int n, inputs..., outputs...)`` on n threads; outputs by dtype, poisoned first."""
    tensors = [torch.from_numpy(a.view(f"i{a.itemsize}") if a.dtype.kind in "uV" else a).to(device) for a in arrays]
    results = [torch.full((n * np.dtype(d).itemsize,), 0xA5, dtype=torch.uint8, device=device) for d in out]
    views = [r.view({"i": {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}, "f": {2: torch.float16, 4: torch.float32,
             8: torch.float64}}["i" if np.dtype(d).kind in "uV" else np.dtype(d).kind][np.dtype(d).itemsize])
             for r, d in zip(results, out, strict=True)]  # fmt: skip
    rawkern.RawKernel(code, options=options).forall(n, block=96)(n, *tensors, *views)
    return [r.cpu().numpy().view(d) for r, d in zip(results, out, strict=True)]


def pairs(edges: list[int], dtype, extra: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of edges, and random values of all magnitudes."""
    bits = np.dtype(dtype).itemsize * 8
    wrap = [e & (1 << bits) - 1 for e in edges]
    a, b = np.meshgrid(np.array(wrap, dtype=np.uint64), np.array(wrap, dtype=np.uint64))
    rng = np.random.default_rng(1)
    c, d = (
        rng.integers(0, 2**64 - 1, extra, dtype=np.uint64) >> rng.integers(0, 60, extra).astype(np.uint64)
        for _ in range(2)
    )
    unsigned = f"u{bits // 8}"
    return (np.concatenate([x.ravel(), y]).astype(unsigned).view(dtype) for x, y in ((a, c), (b, d)))  # type: ignore[return-value]


def wrap(values: list[int], dtype) -> np.ndarray:
    bits = np.dtype(dtype).itemsize * 8
    return np.array([v & (1 << bits) - 1 for v in values], dtype=f"u{bits // 8}").view(dtype)


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


# Integers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ctype", "dtype"),
    [("int", np.int32), ("unsigned", np.uint32), ("long long", np.int64), ("unsigned long long", np.uint64)],
)
def test_integer_arithmetic(device, ctype, dtype):
    ops = ["a + b", "a - b", "a * b", "a & b", "a | b", "a ^ ~b", "a << (b & SH)", "a >> (b & SH)", "b ? a / b : 5", "b ? a % b : 5",
           "a < b", "a == b ? a : b", "min(a, b)", "max(a, b)", "HI(a, b)", "a * 37 - b / 13 + a % 10", "-a"]  # fmt: skip
    bits = np.dtype(dtype).itemsize * 8
    signed = np.dtype(dtype).kind == "i"
    high = {(32, True): "__mulhi", (32, False): "__umulhi", (64, True): "__mul64hi", (64, False): "__umul64hi"}[
        bits, signed
    ]
    body = "\n".join(f"o{k}[i] = {op};" for k, op in enumerate(ops))
    params = ", ".join(f"T* o{k}" for k in range(len(ops)))
    overflow = f"b == -1 && a == (T)1 << {bits - 1}" if signed else "false"
    code = f"""typedef {ctype} T;
    extern "C" __global__ void k(int n, const T* x, const T* y, {params}) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        T a = x[i], b = y[i];
        if ({overflow}) a = 3;
        {body}
    }}"""
    a, b = pairs(INT_EDGES, dtype)
    got = run(code, len(a), a, b, device=device, out=[dtype] * len(ops), options=(f"-DSH={bits - 1}", f"-DHI={high}"))
    x, y = [int(v) for v in a], [int(v) for v in b]
    if signed:
        x = [3 if q == -1 and p == -(1 << bits - 1) else p for p, q in zip(x, y, strict=True)]
    functions = [
        lambda p, q: p + q, lambda p, q: p - q, lambda p, q: p * q, lambda p, q: p & q, lambda p, q: p | q, lambda p, q: p ^ ~q,
        lambda p, q: p << (q & bits - 1), lambda p, q: p >> (q & bits - 1), lambda p, q: quotient(p, q) if q else 5,
        lambda p, q: p - q * quotient(p, q) if q else 5, lambda p, q: p < q, lambda p, q: p if p == q else q, min, max,
        lambda p, q: p * q >> bits, None, lambda p, q: -p,
    ]  # fmt: skip
    for op, f, g in zip(ops, functions, got, strict=True):
        if f is None:
            f = lambda p, q: int(wrap([p * 37], dtype)[0]) - quotient(q, 13) + p - 10 * quotient(p, 10)  # noqa: E731
        np.testing.assert_array_equal(g, wrap([int(f(p, q)) for p, q in zip(x, y, strict=True)], dtype), err_msg=op)


def test_division_by_zero_and_overflow_do_not_kill(device):
    """CUDA leaves the results open; the process must go on, also with the lanes masked off."""
    code = r"""extern "C" __global__ void k(int n, const int* x, const int* y, const long long* v, const long long* w, int* out, long long* out2) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        out[i] = x[i] / y[i] + (x[i] % y[i]) * 3;
        out2[i] = v[i] / w[i] - v[i] % w[i];
        if (y[i] != 0 && (y[i] != -1)) out[i] = x[i] / y[i];
        if (w[i] != 0 && (w[i] != -1)) out2[i] = v[i] % w[i];
        unsigned z = y[i]; if (z) out[i] += (unsigned)x[i] / z * 0;
    }"""
    x, y = pairs([0, 1, -1, 5, 2**31 - 1, -(2**31)], np.int32, 0)
    v, w = pairs([0, 1, -1, 5, 2**63 - 1, -(2**63)], np.int64, 0)
    a, b = run(code, len(x), x, y, v, w, device=device, out=[np.int32, np.int64])
    fine = (y != 0) & (y != -1)
    np.testing.assert_array_equal(a[fine], [quotient(int(p), int(q)) for p, q in zip(x[fine], y[fine], strict=True)])
    fine = (w != 0) & (w != -1)
    np.testing.assert_array_equal(
        b[fine], [int(p) - int(q) * quotient(int(p), int(q)) for p, q in zip(v[fine], w[fine], strict=True)]
    )


def test_128_bit_integers(device):
    code = r"""
    typedef unsigned __int128 u128;
    extern "C" __global__ void k(int n, const unsigned long long* x, const unsigned long long* y, unsigned long long* lo,
                                 unsigned long long* hi, unsigned long long* lo2, unsigned long long* hi2, unsigned long long* carry) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        u128 a = ((u128)x[i] << 64) | y[i], b = ((u128)y[n - 1 - i] << 64) | x[n - 1 - i];
        u128 p = a * b + (a >> (x[i] & 127)) - (b << (y[i] & 127));
        lo[i] = (unsigned long long)p; hi[i] = (unsigned long long)(p >> 64);
        u128 s = (u128)x[i] * y[i] + x[i];
        lo2[i] = (unsigned long long)s ^ (s < a); hi2[i] = (unsigned long long)(s >> 64);
        unsigned r0, r1, r2; unsigned x0 = x[i], x1 = x[i] >> 32, y0 = y[i], y1 = y[i] >> 32;
        asm("add.cc.u32 %0, %3, %5; addc.cc.u32 %1, %4, %6; addc.u32 %2, 0, 0;" : "=r"(r0), "=r"(r1), "=r"(r2) : "r"(x0), "r"(x1), "r"(y0), "r"(y1));
        carry[i] = ((unsigned long long)r1 << 32 | r0) + r2;
    }"""
    x, y = pairs(INT_EDGES, np.uint64, 200)
    n = len(x)
    got = run(code, n, x, y, device=device, out=[np.uint64] * 5, options=("--device-int128",))
    a = [int(p) << 64 | int(q) for p, q in zip(x, y, strict=True)]
    b = [int(q) << 64 | int(p) for p, q in zip(x[::-1], y[::-1], strict=True)]
    big = (1 << 128) - 1
    p = [(u * v + (u >> (int(s) & 127)) - (v << (int(t) & 127))) & big for u, v, s, t in zip(a, b, x, y, strict=True)]
    s = [int(u) * int(v) + int(u) for u, v in zip(x, y, strict=True)]
    sums = [int(u) + int(v) for u, v in zip(x, y, strict=True)]
    wants = [
        p,
        [v >> 64 for v in p],
        [v ^ (v < u) for u, v in zip(a, s, strict=True)],
        [v >> 64 for v in s],
        [v + (v >> 64) for v in sums],
    ]
    for g, w in zip(got, wants, strict=True):
        np.testing.assert_array_equal(g, wrap(w, np.uint64))


def test_bit_functions(device):
    code = r"""extern "C" __global__ void k(int n, const unsigned* x, const unsigned* y, const unsigned long long* w, int* o) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        unsigned a = x[i], b = y[i]; unsigned long long c = w[i];
        int* r = o + i * 16;
        r[0] = __popc(a) * 100 + __popcll(c); r[1] = __clz(a) * 100 + __clzll(c); r[2] = __ffs(a) * 100 + __ffsll(c); r[3] = __brev(a);
        r[4] = (int)(__brevll(c) >> 32) ^ (int)__brevll(c); r[5] = __byte_perm(a, b, (unsigned)c & 0x7777); r[6] = __funnelshift_l(a, b, c & 63);
        r[7] = __funnelshift_r(a, b, c & 63); r[8] = __funnelshift_lc(a, b, c & 63); r[9] = __sad((int)a, (int)b, 5u);
        r[10] = __usad(a, b, 7u); r[11] = __hadd((int)a, (int)b); r[12] = __mul24((int)a, (int)b); r[13] = __dp4a((int)a, (int)b, 3);
        r[14] = __vadd4(a, b); r[15] = __rhadd((int)a, (int)b);
    }"""
    x, y = pairs(INT_EDGES[:18], np.uint32, 200)
    c, _ = pairs(INT_EDGES[:18], np.uint64, 200)
    n = len(x)
    tensors = [torch.from_numpy(a.view(f"i{a.itemsize}")).to(device) for a in (x, y, c)]
    out = torch.full((n * 16,), 77, dtype=torch.int32, device=device)
    rawkern.RawKernel(code).forall(n)(n, *tensors, out)
    rev = lambda v, b: int(f"{v:0{b}b}"[::-1], 2)  # noqa: E731
    s32 = lambda v: (v + 2**31) % 2**32 - 2**31  # noqa: E731
    s8 = lambda v, k: (v >> 8 * k & 255 ^ 128) - 128  # noqa: E731
    s24 = lambda v: (v + 2**23) % 2**24 - 2**23  # noqa: E731
    for i in range(n):
        a, b, q = int(x[i]), int(y[i]), int(c[i])
        both, sh = b << 32 | a, q & 63
        data = both.to_bytes(8, "little")
        r = rev(q, 64)
        want = [
            a.bit_count() * 100 + q.bit_count(), (32 - a.bit_length()) * 100 + 64 - q.bit_length(),
            (a & -a).bit_length() * 100 + (q & -q).bit_length(), rev(a, 32), r >> 32 ^ r & 0xFFFFFFFF,
            int.from_bytes(bytes(data[(q & 0x7777) >> 4 * k & 7] for k in range(4)), "little"),
            (both << (sh & 31)) >> 32, both >> (sh & 31), (both << min(sh, 32)) >> 32, abs(s32(a) - s32(b)) + 5, abs(a - b) + 7,
            s32(a) + s32(b) >> 1, s24(a) * s24(b), sum(s8(a, k) * s8(b, k) for k in range(4)) + 3,
            sum(((a >> 8 * k) + (b >> 8 * k) & 255) << 8 * k for k in range(4)), s32(a) + s32(b) + 1 >> 1,
        ]  # fmt: skip
        got = [int(g) & 0xFFFFFFFF for g in out[i * 16 : i * 16 + 16].tolist()]
        assert got == [w & 0xFFFFFFFF for w in want], (hex(a), hex(b), hex(q))


# Conversions -----------------------------------------------------------------------------------------------------------------

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
        """The neighbour on the right side of the exact value."""
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


# Mathematical functions ----------------------------------------------------------------------------------------------------------

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


# Bits of floats ----------------------------------------------------------------------------------------------------------------


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
