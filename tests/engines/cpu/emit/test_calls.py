"""Device functions, recursion, function pointers, printf, assert and trap."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

import rawkern
from rawkern.errors import LaunchError


def poison(n: int, device: str, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.full((n,), -77777, dtype=dtype, device=device)


def ints(n: int, low: int = -1000, high: int = 1000, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(low, high, n).astype(np.int32))


# Calls --------------------------------------------------------------------------------------------------------------


def test_calls_without_arguments_in_a_debug_build(device):
    code = r"""
    __device__ __noinline__ int seven() { return 7; }
    extern "C" __global__ void k(int* out) { __threadfence_block(); out[threadIdx.x] = seven() + threadIdx.x; }"""
    out = poison(40, device)
    rawkern.RawKernel(code, options=("-G",))[1, 40](out)
    assert out.tolist() == [7 + i for i in range(40)]


def test_calls_in_assembly_with_registers_and_numbers(device):
    code = r"""
    extern "C" __device__ __noinline__ float blend(int n, float x, double y) { return n * x + float(y); }
    extern "C" __global__ void k(float* out, double y) {
        float a = threadIdx.x * 0.5f, b = -1, c = -2, keep = blend(threadIdx.x, a, y);
        asm volatile("call.uni(%0),blend,(-3,%1,%2);" : "=f"(b) : "f"(a), "d"(y));
        asm volatile("{.reg.pred p;.reg.u32 t;mov.u32 t,%%tid.x;setp.gt.u32 p,t,7;@p call (%0), blend, (t, 0f40200000, %1);}"
                     : "+f"(c) : "d"(y));
        asm volatile("call (_), blend, (0, %0, %1);" :: "f"(a), "d"(y));
        out[threadIdx.x] = b;
        out[32 + threadIdx.x] = c;
        out[64 + threadIdx.x] = keep;
    }"""
    out = torch.full((96,), float("nan"), device=device)
    rawkern.RawKernel(code)[1, 32](out, 0.25)
    lanes = range(32)
    assert out[:32].tolist() == [-1.5 * i + 0.25 for i in lanes]
    assert out[32:64].tolist() == [i * 2.5 + 0.25 if i > 7 else -2 for i in lanes]
    assert out[64:].tolist() == [0.5 * i * i + 0.25 for i in lanes]


def test_calls_under_divergence(device):
    code = r"""
    __device__ __noinline__ int collatz(int v) { int c = 0; while (v > 1) { v = v & 1 ? 3 * v + 1 : v / 2; c++; } return c; }
    __device__ __noinline__ int pick(int v, int* where) {
        if (v < 0) { *where += 100; return collatz(-v); }
        if (v % 3 == 0) return v;
        *where += 1;
        return pick == 0 ? 0 : collatz(v) + collatz(v / 2);
    }
    extern "C" __global__ void k(int n, const int* x, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        int where = i, v = x[i];
        if (v & 1) v = pick(v, &where) * 2;
        for (int r = 0; r < (i & 3); r++) v += pick(v % 50, &where);
        out[i] = v * 7 + where;
    }"""

    def collatz(v: int) -> int:
        c = 0
        while v > 1:
            v, c = (3 * v + 1 if v & 1 else v // 2), c + 1
        return c

    def run(i: int, v: int) -> int:
        where = i

        def pick(v: int) -> int:
            nonlocal where
            if v < 0:
                where += 100
                return collatz(-v)
            if v % 3 == 0:
                return v
            where += 1
            return collatz(v) + collatz(v // 2)

        if v & 1:
            v = pick(v) * 2
        for _ in range(i & 3):
            v += pick(int(math.fmod(v, 50)))
        return v * 7 + where

    x = ints(300)
    out = poison(300, device)
    rawkern.RawKernel(code).forall(300)(300, x.to(device), out)
    assert out.tolist() == [run(i, v) for i, v in enumerate(x.tolist())]


def test_structs_as_arguments_and_results(device):
    code = r"""
    struct Small { short a; char b; };
    struct Big { double d[3]; int i; Small s; float4 v; };
    __device__ __noinline__ Big mix(Big a, Small s, const Big& other, double scale) {
        Big r = a;
        for (int k = 0; k < 3; k++) r.d[k] = a.d[k] * scale + other.d[2 - k];
        r.i += s.a - s.b; r.s = s; r.s.a++; r.v.w = other.v.x; r.v.x = scale;
        return r;
    }
    __device__ __noinline__ Small swap(Small s) { Small r = {(short)s.b, (char)s.a}; return r; }
    __device__ __noinline__ bool odd(long long a, unsigned char c, bool flip, float f) { return ((a + c + (int)f) & 1) != flip; }
    extern "C" __global__ void k(int n, const int* x, double* out) {
        int i = threadIdx.x;
        if (i >= n) return;
        Big a = {{i + 0.5, i * 2.0, -i * 1.0}, i, {1, 2}, make_float4(i, 1, 2, 3)};
        Big b = {{x[i] * 1.0, 0.25, 8}, 0, {0, 0}, make_float4(x[i], 0, 0, 0)};
        Small s = {(short)(i * 3), (char)(i & 31)};
        Big r = i % 3 ? mix(a, swap(s), b, 2.0) : mix(b, s, a, -1.0);
        out[i * 8] = r.d[0]; out[i * 8 + 1] = r.d[1]; out[i * 8 + 2] = r.d[2]; out[i * 8 + 3] = r.i;
        out[i * 8 + 4] = r.s.a * 1000 + r.s.b; out[i * 8 + 5] = r.v.w; out[i * 8 + 6] = r.v.x;
        out[i * 8 + 7] = odd((long long)i << 33 | x[i], i, i & 2, i * 0.5f);
    }"""
    n, x = 40, ints(40)
    out = poison(8 * n, device, torch.float64)
    rawkern.RawKernel(code)[1, 64](n, x.to(device), out)
    want = []
    for i, v in enumerate(x.tolist()):
        a, b = [i + 0.5, i * 2.0, -i], [v, 0.25, 8]
        s = (i * 3, i & 31)
        if i % 3:
            s, p, q, scale, count, w = (s[1], s[0]), a, b, 2.0, i, v
        else:
            p, q, scale, count, w = b, a, -1.0, 0, i
        d = [p[k] * scale + q[2 - k] for k in range(3)]
        odd = ((v + i + int(i * 0.5)) & 1) != bool(i & 2)
        want += [*d, count + s[0] - s[1], (s[0] + 1) * 1000 + s[1], w, scale, odd]
    np.testing.assert_array_equal(out.cpu().numpy(), np.array(want, dtype=np.float64))


def test_recursion(device):
    code = r"""
    __device__ __noinline__ int ackermann(int m, int n) {
        if (m == 0) return n + 1;
        return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
    }
    __device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
    __device__ __noinline__ int odd(int n);
    __device__ __noinline__ int even(int n) { int pad[6]; for (int k = 0; k < 6; k++) pad[k] = n + k; return n == 0 ? 1 : odd(pad[n % 6] - n % 6 - 1); }
    __device__ __noinline__ int odd(int n) { return n == 0 ? 0 : even(n - 1); }
    extern "C" __global__ void k(int n, int* out) {
        int i = threadIdx.x;
        if (i >= n) return;
        out[i] = fib(i % 14) + 1000 * even(i * 3 % 50) + 10000 * ackermann(i % 3, i % 4);
    }"""

    def ackermann(m: int, n: int) -> int:
        return n + 1 if m == 0 else ackermann(m - 1, 1 if n == 0 else ackermann(m, n - 1))

    def fib(n: int) -> int:
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    if device == "cuda":  # a GPU gives each thread a stack of 1 KB unless it is told otherwise
        rawkern.set_limit("stack_size", 16 << 10, device)
    out = poison(77, device)
    rawkern.RawKernel(code)[1, 96](77, out)
    assert out.tolist() == [
        fib(i % 14) + 1000 * (i * 3 % 50 % 2 == 0) + 10000 * ackermann(i % 3, i % 4) for i in range(77)
    ]


def test_recursive_quicksort(device):
    code = r"""
    __device__ void sort(float* a, int lo, int hi) {
        if (lo >= hi) return;
        float p = a[(lo + hi) / 2]; int i = lo, j = hi;
        while (i <= j) {
            while (a[i] < p) i++;
            while (a[j] > p) j--;
            if (i <= j) { float t = a[i]; a[i++] = a[j]; a[j--] = t; }
        }
        sort(a, lo, j); sort(a, i, hi);
    }
    extern "C" __global__ void k(int n, int m, float* x) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) sort(x + i * m, 0, m - 1 - i % 5);
    }"""
    n, m = 70, 41
    x = torch.randn(n, m, generator=torch.Generator().manual_seed(2))
    y = x.clone().to(device)
    rawkern.RawKernel(code).forall(n, block=64)(n, m, y)
    for i, (row, got) in enumerate(zip(x, y.cpu(), strict=True)):
        length = m - i % 5
        assert torch.equal(got, torch.cat([row[:length].sort().values, row[length:]]))


def test_function_pointers(device):
    code = r"""
    typedef int (*fn)(int, int);
    __device__ __noinline__ int add(int a, int b) { return a + b; }
    __device__ __noinline__ int mul(int a, int b) { return a * b; }
    __device__ __noinline__ int deep(int a, int b) { return b <= 0 ? a : add(deep(a + 1, b - 1), 1); }
    __device__ fn table[3] = {add, mul, deep};
    __device__ __noinline__ int apply(fn f, int a, int b) { return f(a, b) + 1; }
    struct Shape { __device__ virtual int area(int s) const { return s; } };
    struct Square : Shape { int k; __device__ int area(int s) const override { return k * s * s; } };
    struct Circle : Shape { __device__ int area(int s) const override { return 3 * s * s + 1; } };
    extern "C" __global__ void k(int n, const int* which, int* out) {
        int i = threadIdx.x;
        if (i >= n) return;
        int w = which[i];
        fn f = w == 0 ? add : w == 1 ? mul : deep;
        int r = f(i, w + 3) * 10 + apply(table[(w + i) % 3], i, 5);
        Square q; q.k = i; Circle c; Shape plain;
        const Shape* s = w == 0 ? (const Shape*)&q : w == 1 ? (const Shape*)&c : &plain;
        out[i] = r + 100000 * s->area(w + 2);
    }"""
    which = ints(50, 0, 3)
    out = poison(50, device)
    rawkern.RawKernel(code)[1, 64](50, which.to(device), out)
    functions = [lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a + 2 * b]
    areas = [lambda i, s: i * s * s, lambda i, s: 3 * s * s + 1, lambda i, s: s]
    want = [
        functions[w](i, w + 3) * 10 + functions[(w + i) % 3](i, 5) + 1 + 100000 * areas[w](i, w + 2)
        for i, w in enumerate(which.tolist())
    ]
    assert out.tolist() == want


def test_lambdas_and_templates(device):
    code = r"""
    template <class F> __device__ __noinline__ float fold(const float* x, int n, F f) { float a = x[0]; for (int k = 1; k < n; k++) a = f(a, x[k]); return a; }
    template <int N> struct Poly { float c[N]; __device__ float operator()(float x) const { float s = 0; for (int k = N - 1; k >= 0; k--) s = s * x + c[k]; return s; } };
    extern "C" __global__ void k(int n, const float* x, float* out) {
        int i = threadIdx.x;
        if (i + 4 > n) return;
        float bias = i;
        Poly<3> p = {{1.f, -2.f, bias}};
        out[i] = fold(x + i, 4, [=](float a, float b) { return a > b ? a : b; }) + p(x[i]) + fold(x + i, 4, [&](float a, float b) { bias += 1; return a + b; }) + bias;
    }"""
    x = torch.randint(-20, 20, (60,), generator=torch.Generator().manual_seed(1)).float()
    out = poison(60, device, torch.float32)
    rawkern.RawKernel(code)[1, 64](60, x.to(device), out)
    w = x.unfold(0, 4, 1)
    i = torch.arange(57)
    want = w.max(1).values + (1 - 2 * x[:57] + i * x[:57] ** 2) + w.sum(1) + i + 3
    assert torch.equal(out[:57].cpu(), want)


# printf ----------------------------------------------------------------------------------------------------------------


def printed(capfd, device: str) -> list[str]:
    if device == "cuda":
        torch.cuda.synchronize()
    return capfd.readouterr().out.splitlines()


def test_printf_conversions(device, capfd):
    code = r"""extern "C" __global__ void k(const char* unused, float f, double d, long long big) {
        printf("plain\n");
        printf("%d %i %5d|%-5d|%05d|%+d\n", -7, 42, 42, 42, 42, 42);
        printf("%u %x %X %#x %o %08x\n", 3000000000u, 48879, 48879, 255, 8, 0xbeef);
        printf("%lld %llu %llx %ld %hd\n", big, 18446744073709551615ull, big, (long)big, (short)-3);
        printf("%f %.3f %10.2f|%-10.1f|%e %.2E %g %G\n", f, d, d, d, d, d, d, 1e-10);
        printf("%c%c%c %s %10s|%-6s|%.2s %%\n", 'a', 'b', 'c', "text", "right", "left", "cut");
        printf("%*d|%-*d\n", 6, 42, 6, 42);
        printf("%f %f %f %d\n", 1.0 / 0.0 * d, -1.0 / 0.0 * d, 0.0 / 0.0 * d, 5);
        int r = printf("no newline, ");
        printf("%d argument%s\n", 1, r < 0 ? "?" : "");
    }"""
    rawkern.RawKernel(code)[1, 1](torch.empty(1, dtype=torch.int8, device=device), 1.5, 1234.5678, -(2**40))
    lines = printed(capfd, device)
    d = 1234.5678
    want = [
        "plain",
        "-7 42    42|42   |00042|+42",
        "3000000000 beef BEEF 0xff 10 0000beef",
        f"{-(2**40)} 18446744073709551615 {2**64 - 2**40:x} {-(2**40)} -3",
        f"{1.5:f} {d:.3f} {d:10.2f}|{d:<10.1f}|{d:e} {d:.2E} {d:g} {1e-10:G}",
        "abc text      right|left  |cu %",
        "    42|42    ",
    ]
    assert lines[: len(want)] == want
    assert re.fullmatch(r"inf -inf -?nan 5", lines[len(want)])
    assert lines[len(want) + 1 :] == ["no newline, 1 argument"]


def test_printf_from_lanes_and_blocks(device, capfd):
    code = r"""extern "C" __global__ void k(int n, const float* where) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n && i % 3 == 0) printf("thread %d of block %d has %.2f and %s\n", threadIdx.x, blockIdx.x, i * 0.25, i % 2 ? "odd" : "even");
    }"""
    rawkern.RawKernel(code)[5, 40](
        190, torch.empty(1, device=device)
    )  # without a tensor it would run on a GPU where there is one
    want = [
        f"thread {i % 40} of block {i // 40} has {i * 0.25:.2f} and {'odd' if i % 2 else 'even'}"
        for i in range(0, 190, 3)
    ]
    assert sorted(printed(capfd, device)) == sorted(want)


def test_printf_in_a_loop_and_between_barriers(device, capfd):
    code = r"""
    __device__ __noinline__ void say(int r, int v) { printf("%d:%d\n", r, v); }
    extern "C" __global__ void k(int* out) {
        __shared__ int s[64];
        int t = threadIdx.x;
        s[t] = t;
        for (int r = 0; r < 3; r++) {
            __syncthreads();
            int v = s[63 - t];
            __syncthreads();
            s[t] = v + 1;
            if (t == 33 || (r == 1 && t == 2)) say(r, v);
        }
        out[t] = s[t];
    }"""
    out = poison(64, device)
    rawkern.RawKernel(code)[1, 64](out)
    assert sorted(printed(capfd, device)) == ["0:30", "1:3", "1:34", "2:32"]
    assert out.tolist() == [66 - t for t in range(64)]


# assert and trap ---------------------------------------------------------------------------------------------------------

FAILS = """#include <cassert>
extern "C" __global__ void checks(int n, const int* x, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = 1;
    assert(x[i] != 13 && "unlucky");
    out[i] = 2;
    if (x[i] == 99) __trap();
}"""


def test_assertions_that_hold(device):
    x, out = ints(100, 20, 90), poison(100, device)
    rawkern.RawKernel(FAILS).forall(100)(100, x.to(device), out)
    assert (out == 2).all()


@pytest.mark.parametrize("value", [13, 99])
def test_failures_are_reported(tmp_path, value):
    """Message, file, line, and who it was; the kernel runs again afterwards."""
    path = tmp_path / "fails.cu"
    path.write_text(FAILS)
    kernel = rawkern.RawKernel(path=path)
    x, out = ints(100, 20, 90), poison(100, "cpu")
    x[70] = value
    with pytest.raises(LaunchError) as caught:
        kernel[4, 32](100, x, out)
    text = str(caught.value)
    line = (
        FAILS.splitlines().index(next(t for t in FAILS.splitlines() if ("assert(" if value == 13 else "__trap") in t))
        + 1
    )
    assert "checks" in text and f"fails.cu:{line}" in text and "(6,0,0)" in text and "(2,0,0)" in text, text
    if value == 13:
        assert 'x[i] != 13 && "unlucky"' in text
    else:
        assert "trap" in text
    x[70] = 50
    kernel[4, 32](100, x, out)
    assert (out == 2).all()


def test_failure_in_a_kernel_with_barriers(tmp_path):
    path = tmp_path / "deep.cu"
    path.write_text("""#include <cassert>
__device__ __noinline__ int check(int v) {
    assert(v < 100);
    return v + 1;
}
extern "C" __global__ void deep(int limit, int* out) {
    __shared__ int s[128];
    int t = threadIdx.x;
    s[t] = t;
    for (int r = 0; r < limit; r++) {
        __syncthreads();
        int v = s[blockDim.x - 1 - t];
        __syncthreads();
        s[t] = check(v);
    }
    out[t] = s[t];
}""")
    kernel = rawkern.RawKernel(path=path)
    out = poison(128, "cpu")
    for _ in range(2):
        with pytest.raises(LaunchError, match=r"deep: .*deep\.cu:3.*v < 100"):
            kernel[7, 128](3, out)
    kernel[1, 64](2, out)
    assert out.tolist() == [t + 2 for t in range(64)] + [-77777] * 64


def test_trap_in_one_of_many_blocks():
    code = 'extern "C" __global__ void k(int* out) { if (blockIdx.x == 500) __trap(); out[blockIdx.x] = 1; }'
    out = torch.zeros(1000, dtype=torch.int32)
    with pytest.raises(LaunchError, match=r"trap"):
        rawkern.RawKernel(code)[1000, 64](out)
    assert out[500] == 0


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "int* p = (int*)v;\nif (n > 3) p[n] = 3;\nx[0] = v[0];",
            r"line 5: thread \(0,0,0\) .* executed a trap: .* __constant__",
        ),
        ("while (n--) {\nif (x[n] > 2)\n*(int*)nullptr = 3;\nx[n] = 1; }", "line [56]: .* executed a trap: "),
        (
            "int* p = (int*)v;\np[n] = 3;",
            r"k: thread \(0,0,0\) of block \(0,0,0\) always has undefined behavior, .* __constant__",
        ),
    ],
)
def test_traps_that_the_compiler_makes(body: str, says: str) -> None:
    """They have no line of their own: that of the branch that leads there is told."""
    head = '__constant__ int v[4];\nextern "C" __global__ void k(int* x, int n) {\n'
    with pytest.raises(LaunchError, match=says):
        rawkern.RawKernel(f"\n{head}{body}\n}}")[1, 1](torch.full((8,), 5, dtype=torch.int32), 5)


def test_an_unknown_instruction_is_named():
    code = 'extern "C" __global__ void k(int* out) {\n  asm volatile("tcgen05.wait::ld.sync.aligned;");\n out[0] = 1; }'
    with pytest.raises((rawkern.UnsupportedError, rawkern.CompileError)) as caught:
        rawkern.RawKernel(code)[1, 1](torch.zeros(1, dtype=torch.int32))
    assert "tcgen05" in str(caught.value)
