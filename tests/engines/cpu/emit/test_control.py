"""Divergence: what lanes do that part and meet again."""

from __future__ import annotations

import numpy as np

from tests.engines.cpu.emit.kit import ints, launch


def test_nested_branches_meet_again(device):
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        int v = x[i], r = 0;
        if (v & 1) {
            r = 1;
            if (v & 2) { r += 10; if (v & 4) r += 100; else r -= 5; } else r += 1000;
            r *= 3;
        } else if (v % 3 == 0) r = -v;
        else { r = v; if (v > 50) r -= 50; }
        out[i] = r + 7 * __popc(__activemask());
    }"""
    x = ints(1000)
    # a lane that left is not counted; all others must have met again before the last line
    v = x.numpy().astype(np.int64)
    odd = np.where(v & 2, np.where(v & 4, 111, 6), 1001) * 3
    even = np.where(v % 3 == 0, -v, np.where(v > 50, v - 50, v))
    lanes = np.full(1000, 32)
    lanes[992:] = 8
    got = launch(code, 1000, x, device=device)
    if device == "cpu":
        np.testing.assert_array_equal(got, np.where(v & 1, odd, even) + 7 * lanes)
    else:  # hardware may let lanes go on alone
        assert ((got - np.where(v & 1, odd, even)) % 7 == 0).all()


def test_trip_counts_differ_between_lanes(device):
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        unsigned v = (unsigned)x[i]; int steps = 0;
        while (v != 1) { v = (v & 1) ? 3 * v + 1 : v / 2; steps++; }
        out[i] = steps;
    }"""
    x = ints(500, 1, 5000)

    def collatz(v: int) -> int:
        steps = 0
        while v != 1:
            v, steps = (3 * v + 1 if v & 1 else v // 2), steps + 1
        return steps

    np.testing.assert_array_equal(launch(code, 500, x, device=device), [collatz(int(v)) for v in x])


def test_value_that_leaves_a_divergent_loop(device):
    """A counter that is the same in all lanes inside the loop differs after it."""
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        int limit = i < n ? x[i] : 0, c = 0, last = -1;
        for (c = 0; c < 1000; c++) { last = c * 3; if (c * c > limit) break; }
        if (i < n) out[i] = c * 10000 + last;
    }"""
    x = ints(333, 0, 5000)
    c = np.array([next(c for c in range(1000) if c * c > v) for v in x.tolist()])
    np.testing.assert_array_equal(launch(code, 333, x, device=device), c * 10000 + c * 3)


def test_nested_loops_with_break_and_continue(device):
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        int m = x[i], sum = 0;
        for (int a = 0; a < m; a++) {
            if (a % 5 == 3) continue;
            for (int b = a; ; b++) {
                if (b % 7 == 6) { sum += 100; break; }
                if ((a ^ b) & 1) continue;
                sum += a * b;
                if (sum > 40000) goto done;
            }
            if (a > 30) break;
        }
        sum = -sum;
    done:
        out[i] = sum;
    }"""

    def run(m: int) -> int:
        total = 0
        for a in range(m):
            if a % 5 == 3:
                continue
            b = a
            while True:
                if b % 7 == 6:
                    total += 100
                    break
                if not (a ^ b) & 1:
                    total += a * b
                    if total > 40000:
                        return total
                b += 1
            if a > 30:
                break
        return -total

    x = ints(300, -3, 60)
    np.testing.assert_array_equal(launch(code, 300, x, device=device), [run(int(v)) for v in x])


def test_do_while_runs_once(device):
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        int v = x[i], c = 0;
        do { v -= 17; c++; } while (v > 0);
        out[i] = c * 1000 + v;
    }"""
    x = ints(257, -50, 900)

    def run(v: int) -> int:
        c = 0
        while True:
            v, c = v - 17, c + 1
            if v <= 0:
                return c * 1000 + v

    np.testing.assert_array_equal(launch(code, 257, x, device=device), [run(int(v)) for v in x])


def test_early_return_inside_loops(device):
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        int v = x[i];
        for (int d = 2; d < 60; d++)
            for (int e = d; e < 60; e++)
                if (d * e == v) { out[i] = d * 100 + e; return; }
        out[i] = -v;
    }"""
    x = ints(200, 2, 400)

    def run(v: int) -> int:
        return next((d * 100 + e for d in range(2, 60) for e in range(d, 60) if d * e == v), -v)

    np.testing.assert_array_equal(launch(code, 200, x, device=device), [run(int(v)) for v in x])
