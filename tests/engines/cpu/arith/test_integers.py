"""Integers, with a CPU's answers in exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern
from tests.engines.cpu.arith.kit import INT_EDGES, pairs, run, wrap


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


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


@pytest.mark.parametrize("wide", ["int", "long long"])
def test_products_of_narrow_numbers_shifted_and_truncated(device: str, wide: str) -> None:
    """LLVM has an instruction for the upper 16 bits of such products, which it uses for other bits, too."""
    bits = {"int": 32, "long long": 64}[wide]
    shifts = [s for s in (15, 16, 17, 20, 24, 31, 32, 33, 48, 63) if s < bits]
    types = [("signed char", np.int8), ("unsigned char", np.uint8), ("short", np.int16), ("unsigned short", np.uint16)]
    wides = [f"({kind}{wide})" for kind in ("", "unsigned ")]
    results = [
        (f"({to})({sign}((unsigned {wide})x * y) >> {s})", sign, s)
        for to in ("short", "int")
        for sign in wides
        for s in shifts
    ]
    high = "__mulhi((int)x, (int)y)" if bits == 32 else "__mul64hi((long long)x, (long long)y)"
    results.append((f"(short){high}", wides[0], bits))
    stores = "\n".join(
        f"(({text[1 : text.index(')')]}*)(o + {k} * n))[i] = {text};" for k, (text, _, _) in enumerate(results)
    )
    code = f"""template <typename A, typename B> __global__ void k(int n, const A* a, const B* b, int* o) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        {wide} x = a[i], y = b[i];
        {stores}
    }}"""
    kernels = [(types[a], types[b]) for a, b in ((0, 0), (0, 1), (1, 2), (2, 2), (2, 3), (3, 3))]
    names = [f"k<{a}, {b}>" for (a, _), (b, _) in kernels]
    module = rawkern.RawModule(code, name_expressions=names)
    rng = np.random.default_rng(0)
    for name, ((_, p), (_, q)) in zip(names, kernels, strict=True):
        a, b = (np.append(rng.integers(0, 1 << 16, 30), [0, 0xFF80, 0xFFFF, 0x8000]).astype(t) for t in (p, q))
        out = torch.full((len(results), len(a)), 77, dtype=torch.int32, device=device)
        module.get_function(name).forall(len(a))(len(a), *(torch.from_numpy(x).to(device) for x in (a, b)), out)
        product = a.astype(np.int64) * b.astype(np.int64)
        for (text, sign, s), got in zip(results, out.cpu().numpy(), strict=True):
            whole = [int(v) for v in product]
            if s < bits:
                whole = [int(v) for v in wrap(whole, np.dtype(f"{'u' if 'unsigned' in sign else ''}int{bits}"))]
            to = np.int16 if text.startswith("(short)") else np.int32
            expected = np.array([(v >> s) & 0xFFFFFFFF for v in whole], np.uint32).astype(to)
            np.testing.assert_array_equal(got.view(to)[: len(a)], expected, f"{name}: {text}")
