"""Switches and gotos."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern
from tests.engines.cpu.emit.kit import POISON, ints, launch

SWITCH = r"""extern "C" __global__ void k(int n, const int* x, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = WHICH, r = 5;
    switch (v) {
        case 0: r = v + 11; break;
        case 1: r *= 3;               // falls through
        case 2: r += 100; break;
        case 3: return;
        case 4: r = x[i] * x[i]; break;
        case 5: for (int k = 0; k < v; k++) r += k * i; break;
        case 6: r = ~r; break;
        case 7: r ^= 0x55; break;
        case 8: r = i % 7; break;
        case 1000000: r = 9; break;
        default: r = -v;
    }
    out[i] = r * 2;
}"""


def _switch(i: int, v: int, x: int) -> int:
    r = 5
    if v == 0:
        r = 11
    elif v in (1, 2):
        r = (r * 3 if v == 1 else r) + 100
    elif v == 3:
        return POISON
    elif v == 4:
        r = x * x
    elif v == 5:
        r += sum(k * i for k in range(5))
    elif v == 6:
        r = ~r
    elif v == 7:
        r ^= 0x55
    elif v == 8:
        r = i % 7
    elif v == 1000000:
        r = 9
    else:
        r = -v
    return 2 * r


@pytest.mark.parametrize("which", ["x[i]", "(int)(blockIdx.x % 11) - 1"], ids=["per lane", "uniform"])
def test_switch(device, which):
    x = ints(1000, -2, 12)
    x[5::50] = 1000000
    got = launch(SWITCH.replace("WHICH", which), 1000, x, device=device, block=32)
    v = x.tolist() if which == "x[i]" else [i // 32 % 11 - 1 for i in range(1000)]
    np.testing.assert_array_equal(got, [_switch(i, v[i], int(x[i])) for i in range(1000)])


def test_state_machine_by_goto(device):
    """Irreducible flow: the cycle of a and b is entered at either."""
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        int v = x[i], s = 0, fuel = 50;
        if (v & 1) goto b;
    a:  s = s * 3 + 1; v += 5;
        if (--fuel == 0) goto end;
        if (v % 4 == 0) goto c;
    b:  s = s * 2 + v; v ^= s & 7;
        if (--fuel == 0) goto end;
        if (v % 3) goto a;
    c:  s -= v; v += 3;
        if (--fuel == 0) goto end;
        if (s & 2) goto b;
        if (v < 900) goto a;
    end: out[i] = s;
    }"""

    def run(v: int) -> int:
        s, fuel, at = 0, 50, "b" if v & 1 else "a"
        wrap = lambda t: (t + 2**31) % 2**32 - 2**31  # noqa: E731
        rem = lambda a, b: a - b * int(a / b)  # noqa: E731
        while True:
            fuel -= 1
            if at == "a":
                s, v = wrap(s * 3 + 1), v + 5
                if fuel == 0:
                    return s
                at = "c" if rem(v, 4) == 0 else "b"
            elif at == "b":
                s = wrap(s * 2 + v)
                v ^= s & 7
                if fuel == 0:
                    return s
                at = "a" if rem(v, 3) else "c"
            else:
                s, v = wrap(s - v), v + 3
                if fuel == 0:
                    return s
                at = "b" if s & 2 else "a" if v < 900 else "end"
                if at == "end":
                    return s

    x = ints(640, -100, 1000)
    np.testing.assert_array_equal(launch(code, 640, x, device=device), [run(int(v)) for v in x])


def test_interpreter_loop(device):
    """A switch in a loop, each lane at its own place of a program: lanes never agree for long."""
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        int pc = x[i] & 7, a = x[i], c = 0;
        while (c < 40) {
            c++;
            switch (pc) {
                case 0: a += 3; pc = 4; continue;
                case 1: a = -a; pc = a & 3; break;
                case 2: a ^= c; pc = 5; break;
                case 3: a = a * 5 + 1; pc = (a >> 3) & 7; break;
                case 4: if (a & 1) { pc = 2; break; } a -= 9;
                case 5: pc = 6; a += c; break;
                case 6: a = a / 2; pc = (a & 1) ? 3 : 7; break;
                default: a += 1; pc = (a ^ c) & 7; if (a % 11 == 0) goto out_;
            }
            a &= 0xffff;
        }
    out_:
        out[i] = a * 64 + c;
    }"""

    def run(x: int) -> int:
        pc, a, c = x & 7, x, 0
        while c < 40:
            c += 1
            if pc == 0:
                a, pc = a + 3, 4
                continue
            if pc == 1:
                a = -a
                pc = a & 3
            elif pc == 2:
                a, pc = a ^ c, 5
            elif pc == 3:
                a = a * 5 + 1
                pc = a >> 3 & 7
            elif pc == 4 and a & 1:
                pc = 2
            elif pc in (4, 5):
                a = a - 9 if pc == 4 else a
                pc, a = 6, a + c
            elif pc == 6:
                a = int(a / 2)
                pc = 3 if a & 1 else 7
            else:
                a += 1
                pc = (a ^ c) & 7
                if a % 11 == 0:
                    break
            a &= 0xFFFF
        return a * 64 + c

    x = ints(500, 0, 60000)
    np.testing.assert_array_equal(launch(code, 500, x, device=device), [run(int(v)) for v in x])


def test_short_circuit_conditions(device):
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        int r = 0;
        if (i > 0 && x[i - 1] < x[i] && (i + 1 == n || x[i + 1] < x[i])) r |= 1;   // never reads outside
        if (i == 0 || i == n - 1 || x[i] % 2 || x[i + 1] % 2) r |= 2;
        r |= (x[i] > 0 ? (x[i] > 500 ? 4 : 8) : 16);
        out[i] = r;
    }"""
    x = ints(1001)
    v = x.tolist()
    n = len(v)
    want = []
    for i in range(n):
        r = int(i > 0 and v[i - 1] < v[i] and (i + 1 == n or v[i + 1] < v[i]))
        r |= 2 * int(i == 0 or i == n - 1 or v[i] % 2 != 0 or v[i + 1] % 2 != 0)
        want.append(r | (4 if v[i] > 500 else 8 if v[i] > 0 else 16))
    np.testing.assert_array_equal(launch(code, n, x, device=device), want)


def test_swapped_values_in_a_loop(device):
    """Registers that exchange their values each round while lanes leave at different rounds."""
    code = r"""extern "C" __global__ void k(int n, const int* x, const int* y, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        int a = x[i], b = y[i];
        while (b) { int t = a % b; a = b; b = t; }
        out[i] = a;
    }"""
    x, y = ints(400, 1, 100000, 1), ints(400, 0, 100000, 2)
    want = np.gcd(x.numpy(), y.numpy())
    np.testing.assert_array_equal(launch(code, 400, x, y, device=device), want)


def test_uniform_loop_with_divergent_body(device):
    code = r"""extern "C" __global__ void k(int n, int m, const int* x, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x, acc = 0;
        for (int j = 0; j < m; j++) {
            int v = x[j];
            if ((v + i) % 3 == 0) acc += v; else if (v > i) acc ^= j; else continue;
            acc -= 1;
        }
        if (i < n) out[i] = acc;
    }"""
    x = ints(75, 0, 500)
    got = torch.full((150,), POISON, dtype=torch.int32, device=device)
    rawkern.RawKernel(code).forall(150, block=64)(150, 75, x.to(device), got)
    want = []
    for i in range(150):
        acc = 0
        for j, v in enumerate(x.tolist()):
            if (v + i) % 3 == 0:
                acc += v
            elif v > i:
                acc ^= j
            else:
                continue
            acc -= 1
        want.append(acc)
    assert got.tolist() == want


def test_no_lane_runs_twice(device):
    """Side effects happen once a lane on every path."""
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        int v = x[i];
        out[i] = 0;
        for (int r = 0; r < 4; r++) {
            if (v > r) { out[i] += 1; if (v == 2) continue; }
            else { out[i] += 100; if (v < 0) break; }
            out[i] += 10000;
        }
        out[i] += 1000000;
    }"""
    x = ints(160, -2, 6)

    def run(v: int) -> int:
        total = 0
        for r in range(4):
            if v > r:
                total += 1
                if v == 2:
                    continue
            else:
                total += 100
                if v < 0:
                    break
            total += 10000
        return total + 1000000

    np.testing.assert_array_equal(launch(code, 160, x, device=device), [run(v) for v in x.tolist()])
