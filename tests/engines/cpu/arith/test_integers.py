"""Integers, with a CPU's answers in exact arithmetic."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

import rawkern
from tests.engines.cpu.arith import ptx_reference as reference
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


def test_integers_of_128_bits(device):
    """Division is NVIDIA's own routine, which mixes carry chains of additions and subtractions."""
    code = r"""template <typename T> __global__ void k(int n, const void* x, const void* y, void* o) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        T a = ((const T*)x)[i], b = ((const T*)y)[i]; int s = (int)b & 127; T* r = (T*)o + 8 * i;
        r[0] = a + b; r[1] = a - b; r[2] = a * b; r[3] = a / b; r[4] = a % b; r[5] = a << s; r[6] = a >> s;
        r[7] = (a < b) + 2 * (a <= b) + 4 * (a == b);
    }"""
    types = {"__int128": -(1 << 127), "unsigned __int128": 0}
    module = rawkern.RawModule(code, options=("--device-int128",), name_expressions=[f"k<{t}>" for t in types])
    rng = random.Random(0)
    edges = [0, 1, 2, (1 << 64) - 1, 1 << 64, (1 << 64) + 1, (1 << 127) - 1, 1 << 127, (1 << 128) - 1, (1 << 128) - 2]
    numbers = [rng.getrandbits(128) >> rng.randrange(128) for _ in range(300)]
    rows = [(a, b) for a in edges for b in edges if b] + [(a, b or 1) for a, b in itertools.pairwise(numbers)]

    def memory(values):
        return torch.frombuffer(bytearray(b"".join(v.to_bytes(16, "little") for v in values)), dtype=torch.int64)

    for name, low in types.items():
        pairs = [(a - ((a >> 127) << 128), b - ((b >> 127) << 128)) if low else (a, b) for a, b in rows]
        pairs = [(a, b) if b != -1 or a != low or not low else (a + 1, b) for a, b in pairs]
        wants = [
            (a + b, a - b, a * b, quotient(a, b), a - b * quotient(a, b), a << (b & 127), a >> (b & 127),
             (a < b) + 2 * (a <= b) + 4 * (a == b)) for a, b in pairs
        ]  # fmt: skip
        x, y = (memory([v % (1 << 128) for v in column]).to(device) for column in zip(*pairs, strict=True))
        out = torch.full((len(pairs) * 16,), -1, device=device)
        module.get_function(f"k<{name}>").forall(len(pairs))(len(pairs), x, y, out)
        assert out.cpu().tolist() == memory([v % (1 << 128) for row in wants for v in row]).tolist(), name


def test_integers_of_256_bits(device):
    """Chains of four 64-bit and of eight 32-bit words, with statements that the carry flag has to get through."""
    chains = {
        "add": [f"{op}.{{0}} %0, %1, %2;" for op in ("add.cc", *["addc.cc"] * 6, "addc")],
        "sub": [f"{op}.{{0}} %0, %1, %2;" for op in ("sub.cc", *["subc.cc"] * 6, "subc")],
    }
    code = "".join(
        f"__device__ void {name}{bits}(const unsigned {word}* a, const unsigned {word}* b, unsigned {word}* c) {{"
        + " ".join(
            f'asm volatile("{line.format("u" + str(bits))}" : "={r}"(c[{k}]) : "{r}"(a[{k}]), "{r}"(b[{k}]));'
            for k, line in enumerate([*lines[: 256 // bits - 1], lines[-1]])
        )
        + "}\n"
        for name, lines in chains.items()
        for bits, word, r in ((32, "int", "r"), (64, "long long", "l"))
    )
    code += r"""
    __device__ void mul32(const unsigned* a, const unsigned* b, unsigned* c) {
        for (int k = 0; k < 8; k++) c[k] = 0;
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                asm volatile("add.cc.u32 %0, %0, 0;" : "+r"(c[0]));
                #pragma unroll
                for (int k = 0; k + half + i < 8; k++)
                    if (half) asm volatile("madc.hi.cc.u32 %0, %1, %2, %0;" : "+r"(c[i + k + 1]) : "r"(a[k]), "r"(b[i]));
                    else asm volatile("madc.lo.cc.u32 %0, %1, %2, %0;" : "+r"(c[i + k]) : "r"(a[k]), "r"(b[i]));
            }
        }
    }
    #define RUN(f, t, n) { t u[n], v[n], w[n]; memcpy(u, x + 4 * i, 32); memcpy(v, y + 4 * i, 32); f(u, v, w); memcpy(r, w, 32); r += 4; }
    extern "C" __global__ void k(int n, const unsigned long long* x, const unsigned long long* y, unsigned long long* o) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        unsigned long long* r = o + 20 * i;
        RUN(add32, unsigned, 8) RUN(add64, unsigned long long, 4) RUN(sub32, unsigned, 8) RUN(sub64, unsigned long long, 4)
        RUN(mul32, unsigned, 8)
    }"""
    rng = random.Random(1)
    numbers = [rng.getrandbits(256) >> rng.randrange(256) for _ in range(200)] + [0, (1 << 256) - 1, 1, 0, 1 << 255]
    pairs = list(itertools.pairwise(numbers))

    def memory(values):
        data = b"".join((v % (1 << 256)).to_bytes(32, "little") for v in values)
        return torch.frombuffer(bytearray(data), dtype=torch.int64)

    x, y = (memory(column).to(device) for column in zip(*pairs, strict=True))
    out = torch.full((len(pairs) * 20,), -1, device=device)
    rawkern.RawKernel(code).forall(len(pairs))(len(pairs), x, y, out)
    wants = [v for a, b in pairs for v in (a + b, a + b, a - b, a - b, a * b)]
    assert out.cpu().tolist() == memory(wants).tolist()


def test_random_carry_chains(device):
    """Additions and subtractions of 32 and 64 bits in any order, some under a predicate, with what stands between."""
    rng, lanes = random.Random(2), 64
    names = [f"{b}{c}{part}{cc}" for b in ("add", "sub", "mad") for c in ("", "c") for cc in ("", ".cc") if c or cc
             for part in ((".lo", ".hi") if b == "mad" else ("",))]  # fmt: skip
    types = ["u32", "s32", "u64", "s64"]
    chains = [
        [("add.cc", "u32", False)]
        + [(rng.choice(names), rng.choice(types), rng.random() < 0.3) for _ in range(rng.randrange(2, 10))]
        for _ in range(40)
    ]
    texts = []
    for number, chain in enumerate(chains):
        lines = [
            ".reg .pred p; .reg .b32 x, y, z; .reg .b64 u, v, w; setp.ne.u32 p, %3, 0; mov.b32 x, 0; mov.b64 u, 0;"
        ]
        lines.append("cvt.u32.u64 y, %1; cvt.u32.u64 z, %2; mov.b64 v, %1; mov.b64 w, %2; mov.b64 %0, 0;")
        for op, t, guarded in chain:
            d, a, b = "xyz" if "32" in t else "uvw"
            lines.append(f"{'@p ' * guarded}{op}.{t} {d}, {a}, {b}{', ' + a if op[0] == 'm' else ''};")
            lines.append(
                "mad.lo.u64 %0, %0, 31, u; cvt.u64.u32 v, x; xor.b64 %0, %0, v; xor.b64 v, %1, %0; mov.b64 {z, y}, v;"
            )
        texts.append(
            f'asm("{{ {" ".join(lines)} }}" : "=&l"(r) : "l"(a), "l"(b), "r"(t & 1)); o[{number} * {lanes} + t] = r;'
        )
    code = f"""extern "C" __global__ void k(const unsigned long long* x, const unsigned long long* y, unsigned long long* o) {{
        int t = threadIdx.x; unsigned long long a = x[t], b = y[t], r;
        {" ".join(texts)}
    }}"""
    edges = [0, 1, (1 << 64) - 1, (1 << 32) - 1, 1 << 32, 1 << 63]
    a, b = ([rng.choice([rng.choice(edges), rng.getrandbits(64)]) for _ in range(lanes)] for _ in range(2))
    out = torch.zeros(len(chains) * lanes, dtype=torch.int64, device=device)
    x, y = (torch.from_numpy(np.array(v, dtype=np.uint64).view(np.int64)).to(device) for v in (a, b))
    rawkern.RawKernel(code)[1, lanes](x, y, out)
    got = out.cpu().numpy().view(np.uint64).reshape(len(chains), lanes)
    for chain, row in zip(chains, got, strict=True):
        for t in range(lanes):
            assert int(row[t]) == _chain(chain, a[t], b[t], t & 1), (chain, hex(a[t]), hex(b[t]), t)


def _chain(chain: list, a: int, b: int, p: int) -> int:
    """What `test_random_carry_chains` computes, by the reference of one instruction."""
    full, flag, r, v = (1 << 64) - 1, 0, 0, a
    d = {32: 0, 64: 0}
    operands = {32: (a & 0xFFFFFFFF, b & 0xFFFFFFFF), 64: (a, b)}
    for op, t, guarded in chain:
        name, *mods = op.split(".")
        bits = int(t[1:])
        if p or not guarded:
            args = [*operands[bits], operands[bits][0]][: 3 if name[0] == "m" else 2]
            d[bits], carried = reference.carry(name, mods, t, args, flag)
            flag = carried if "cc" in mods else flag
        r = (r * 31 + d[64] & full) ^ d[32]
        v = a ^ r
        operands = {32: (v >> 32, v & 0xFFFFFFFF), 64: (v, b)}
    return r


def test_a_carry_flag_that_nothing_sets():
    """On a GPU it holds what happens to be there."""
    code = 'extern "C" __global__ void k(int* o) {\n asm("addc.u32 %0, %1, 1;" : "=r"(o[0]) : "r"(o[1])); }'
    with pytest.raises(rawkern.UnsupportedError, match=r"addc\.u32 reads the carry flag.*:2"):
        rawkern.RawKernel(code)[1, 1](torch.zeros(2, dtype=torch.int32))


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
