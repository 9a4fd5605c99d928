"""Control flow: lanes that part and meet again, loops of every shape, grids and blocks of one to three dimensions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern

POISON = -77777


def launch(
    code: str, n: int, *arrays: torch.Tensor, device: str, block: int = 96, out: int | None = None
) -> np.ndarray:
    """Run a kernel ``(int n, arrays..., int* out)`` on n threads; returns `out`, poisoned first."""
    kernel = rawkern.RawKernel(code)
    result = torch.full((n if out is None else out,), POISON, dtype=torch.int32, device=device)
    kernel.forall(n, block=block)(n, *(a.to(device) for a in arrays), result)
    return result.cpu().numpy()


def ints(n: int, low: int = -1000, high: int = 1000, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(low, high, n).astype(np.int32))


# Divergence ------------------------------------------------------------------------------------------------------


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


# Switches, gotos -------------------------------------------------------------------------------------------------

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


# Grids, blocks, special registers ----------------------------------------------------------------------------------

WHERE = r"""extern "C" __global__ void k(int* out) {
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int at = (block * blockDim.x * blockDim.y * blockDim.z + thread) * 8;
    out[at] += threadIdx.x; out[at + 1] += threadIdx.y; out[at + 2] += threadIdx.z;
    out[at + 3] += blockIdx.x; out[at + 4] += blockIdx.y; out[at + 5] += blockIdx.z;
    unsigned lane; asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    out[at + 6] += lane;
    unsigned le; asm("mov.u32 %0, %%lanemask_le;" : "=r"(le));
    out[at + 7] += __popc(le) * 100 + (blockDim.x * 7 + blockDim.y * 5 + blockDim.z * 3 + gridDim.x * 2 + gridDim.y + gridDim.z);
}"""


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((1,), (1,)), ((3,), (33,)), ((2, 3), (7, 5)), ((2, 2, 3), (3, 4, 5)), ((1, 2), (32, 3)), ((2,), (64, 2, 2)),
        ((1, 1, 4), (1, 1, 40)), ((1,), (1, 64)), ((1,), (16, 16)), ((2,), (8, 3, 5)), ((1,), (1024,)), ((1,), (96, 1, 3)),
        ((1,), (1, 1, 64)), ((5, 1, 2), (31, 2)),
    ],
)  # fmt: skip
def test_every_thread_knows_its_place(device, grid, block):
    g, b = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
    blocks, threads = int(np.prod(g)), int(np.prod(b))
    out = torch.zeros(blocks * threads + 5, 8, dtype=torch.int32, device=device)
    rawkern.RawKernel(WHERE)(grid, block, (out,))
    t, bl = np.arange(threads), np.arange(blocks)
    want = np.zeros((blocks, threads, 8), dtype=np.int64)
    want[:, :, 0], want[:, :, 1], want[:, :, 2] = t % b[0], t // b[0] % b[1], t // (b[0] * b[1])
    want[:, :, 3] = (bl % g[0])[:, None]
    want[:, :, 4] = (bl // g[0] % g[1])[:, None]
    want[:, :, 5] = (bl // (g[0] * g[1]))[:, None]
    want[:, :, 6] = t % 32
    want[:, :, 7] = (t % 32 + 1) * 100 + b[0] * 7 + b[1] * 5 + b[2] * 3 + g[0] * 2 + g[1] + g[2]
    np.testing.assert_array_equal(out[:-5].cpu().numpy().reshape(want.shape), want)
    assert (out[-5:] == 0).all(), "threads beyond the last one ran"


def test_one_kernel_with_many_block_shapes(device):
    """The same kernel object, launched with shapes that need different code, keeps them apart."""
    kernel = rawkern.RawKernel(WHERE)
    for block in [(40,), (32, 2), (5, 7), (40,), (64, 2), (1, 50)]:
        b = (*block, 1, 1)[:3]
        threads = int(np.prod(b))
        out = torch.zeros(2 * threads, 8, dtype=torch.int32, device=device)
        kernel(2, block, (out,))
        t = np.arange(threads)
        got = out.cpu().numpy().reshape(2, threads, 8)
        for k, want in enumerate((t % b[0], t // b[0] % b[1], t // (b[0] * b[1]))):
            np.testing.assert_array_equal(got[:, :, k], np.stack([want, want]), err_msg=f"{block}")


def test_grid_stride_loop(device):
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = x[i] * 3 - i;
    }"""
    kernel, x = rawkern.RawKernel(code), ints(5003)
    for grid, block in [(1, 1), (2, 33), (7, 96), (3, 1024)]:
        out = torch.full((5003,), POISON, dtype=torch.int32, device=device)
        kernel[grid, block](5003, x.to(device), out)
        np.testing.assert_array_equal(out.cpu().numpy(), x.numpy() * 3 - np.arange(5003), err_msg=f"{grid}, {block}")


@pytest.mark.parametrize("shape", [(37, 19), (64, 4), (16, 40), (1, 70)])
def test_image_in_two_dimensions(device, shape):
    code = r"""extern "C" __global__ void k(int w, int h, const float* in, float* out) {
        int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
        if (x >= w || y >= h) return;
        float s = 0;
        for (int dy = -1; dy <= 1; dy++)
            for (int dx = -1; dx <= 1; dx++) {
                int xx = x + dx, yy = y + dy;
                if (xx < 0 || xx >= w || yy < 0 || yy >= h) continue;
                s += in[yy * w + xx] * (1 + dx + 2 * dy);
            }
        out[y * w + x] = s;
    }"""
    w, h = shape
    image = torch.randn(h, w, dtype=torch.float64).float()
    weights = torch.tensor([[1 + dx + 2 * dy for dx in (-1, 0, 1)] for dy in (-1, 0, 1)], dtype=torch.float64)
    want = torch.nn.functional.conv2d(image.double()[None, None], weights[None, None], padding=1)[0, 0]
    kernel = rawkern.RawKernel(code)
    for block in [(16, 16), (32, 4), (8, 3), (5, 7)]:
        out = torch.full((h, w), float("nan"), device=device)
        kernel((-(-w // block[0]), -(-h // block[1])), block, (w, h, image.to(device), out))
        torch.testing.assert_close(out.cpu().double(), want, rtol=1e-5, atol=1e-5)


def test_large_grid_of_small_blocks(device):
    code = r"""extern "C" __global__ void k(int* out) { out[blockIdx.y * gridDim.x + blockIdx.x] = blockIdx.x * 3 + blockIdx.y; }"""
    out = torch.full((300, 1001), POISON, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)((1001, 300), 1, (out,))
    want = torch.arange(1001)[None, :] * 3 + torch.arange(300)[:, None]
    assert torch.equal(out.cpu(), want.int())


def test_device_time_goes_on(device):
    code = r"""extern "C" __global__ void k(long long* out) {
        long long a = clock64(); unsigned long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
        int c = 0; while (clock64() - a < 20000) c++;
        unsigned long long u; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(u));
        out[threadIdx.x] = clock64() - a; out[32 + threadIdx.x] = u - t;
    }"""
    out = torch.full((64,), -1, dtype=torch.int64, device=device)
    rawkern.RawKernel(code)[1, 32](out)
    assert (out[:32] >= 20000).all() and (out[32:] >= 0).all()


def test_threads_end_in_a_device_function(device):
    """exit in a function that is called, also under a barrier of the others."""
    code = r"""
    __device__ __noinline__ int checked(int x) {
        if (x % 3 == 0) asm volatile("exit;");
        return x * 2;
    }
    extern "C" __global__ void k(const int* x, int* out, int* count) {
        int i = threadIdx.x, v = x[i];
        out[i] = -1;
        v = checked(v);
        __syncthreads();
        atomicAdd(count, 1);
        out[i] = v;
    }"""
    x = torch.arange(96, dtype=torch.int32) * 7 % 50
    out, count = (
        torch.full((96,), 77, dtype=torch.int32, device=device),
        torch.zeros(1, dtype=torch.int32, device=device),
    )
    rawkern.RawKernel(code)[1, 96](x.to(device), out, count)
    assert torch.equal(out.cpu(), torch.where(x % 3 == 0, -1, x * 2).int())
    assert count.item() == (x % 3 != 0).sum()


def test_a_branch_table_under_a_predicate():
    code = r"""extern "C" __global__ void k(const int* x, int* out) {
        int i = threadIdx.x, r = 50;
        asm volatile("{ .reg .pred p; .reg .u32 t; setp.lt.s32 p, %1, 3; mov.u32 t, %1;\n"
            "T: .branchtargets A, B, C;\n"
            "@p brx.idx t, T;\n mov.u32 %0, 99; bra E;\n"
            "A: mov.u32 %0, 10; bra E;\n B: mov.u32 %0, 11; bra E;\n C: mov.u32 %0, 12;\n E: }" : "+r"(r) : "r"(x[i]));
        out[i] = r;
    }"""
    x = torch.arange(64, dtype=torch.int32) * 5 % 6
    out = torch.full((64,), 77, dtype=torch.int32)
    rawkern.RawKernel(code)[1, 64](x, out)
    assert torch.equal(out, torch.where(x < 3, x + 10, 99).int())


def test_a_branch_table_goes_round_a_loop():
    """Some lanes go back while others have left for two places behind it."""
    code = r"""extern "C" __global__ void k(const int* x, int* out) {
        int i = threadIdx.x, n = x[i], r = 0;
        asm volatile("{ .reg .u32 t;\n T: .branchtargets HEAD, A, B;\n"
            "HEAD: div.s32 %0, %0, 3; add.s32 %0, %0, 1; rem.s32 t, %0, 3; mad.lo.s32 %1, %1, 5, t; add.s32 %1, %1, 1;\n"
            "brx.idx t, T;\n"
            "A: add.s32 %1, %1, 1000000; bra E;\n B: add.s32 %1, %1, 2000000;\n E: }" : "+r"(n), "+r"(r));
        out[i] = r;
    }"""
    x = torch.cat([torch.arange(60), torch.tensor([42, 123, 366, 1095])]).int()
    out = torch.full((64,), 77, dtype=torch.int32)
    rawkern.RawKernel(code)[1, 64](x, out)

    def steps(n: int) -> int:
        r = t = 0
        while t == 0:
            n = n // 3 + 1
            t = n % 3
            r = r * 5 + t + 1
        return r + t * 1000000

    assert out.tolist() == [steps(n) for n in x.tolist()]


def test_lanes_leap_over_others_to_where_nobody_waits(device):
    """The way to B and to D leads over a block where others may wait; in the last two warps nobody does."""
    code = r"""extern "C" __global__ void k(const int* x, int* out) {
        int i = threadIdx.x, r = x[i] * 100;
        asm volatile("{ .reg .pred p;\n setp.eq.s32 p, %1, 0;\n @p bra A;\n bra B;\n A: add.s32 %0, %0, 10;\n bra E;\n"
            "B: setp.eq.s32 p, %1, 1;\n @p bra C;\n bra D;\n C: add.s32 %0, %0, 20;\n bra E;\n D: add.s32 %0, %0, 30;\n E: }"
            : "+r"(r) : "r"(x[i]));
        out[i] = r;
    }"""
    x = torch.cat([torch.arange(64) * 5 % 3, torch.arange(32) % 2 + 1, torch.full((32,), 2)]).int()
    out = torch.full((128,), 77, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[1, 128](x.to(device), out)
    assert torch.equal(out.cpu(), (x * 100 + torch.tensor([10, 20, 30])[x.long()]).int())


def test_both_ways_of_a_branch_are_one(device):
    code = r"""extern "C" __global__ void k(const int* x, int* out) {
        int i = threadIdx.x, r = 5;
        asm volatile("{ .reg .pred p;\n setp.eq.s32 p, %1, 0;\n @p bra NEXT;\n NEXT: add.s32 %0, %0, %1;\n }" : "+r"(r) : "r"(x[i]));
        out[i] = r;
    }"""
    x = torch.arange(64, dtype=torch.int32) % 3
    out = torch.full((64,), 77, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[1, 64](x.to(device), out)
    assert torch.equal(out.cpu(), x + 5)


def test_labels_of_inline_assembly_are_its_own(device):
    """Forward and backward, in two copies of the same text."""
    code = r"""
    __device__ int steps(int n) {
        int r;
        asm volatile("{ .reg .pred p; .reg .s32 t; mov.s32 t, %1; mov.s32 %0, 0;\n"
            "LOOP: setp.le.s32 p, t, 1;\n @p bra DONE;\n { .reg .pred p; .reg .s32 q; and.b32 q, t, 1; setp.eq.s32 p, q, 0;\n"
            "@p bra EVEN;\n mad.lo.s32 t, t, 3, 1;\n bra NEXT;\n EVEN: shr.s32 t, t, 1;\n NEXT: }\n"
            "add.s32 %0, %0, 1;\n bra LOOP;\n DONE: }" : "=r"(r) : "r"(n));
        return r;
    }
    extern "C" __global__ void k(int* out) { int i = threadIdx.x; out[i] = steps(i) * 1000 + steps(i + 1); }"""
    out = torch.full((32,), -1, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[1, 32](out)

    def steps(n: int) -> int:
        count = 0
        while n > 1:
            n, count = n // 2 if n % 2 == 0 else 3 * n + 1, count + 1
        return count

    assert out.tolist() == [steps(i) * 1000 + steps(i + 1) for i in range(32)]


def test_conditions_that_a_debug_build_leaves_constant(device):
    """-G folds the test to ``mov.pred %p, -1`` and keeps the branch on it."""
    code = r"""
    extern "C" __global__ void k(int* out) {
        int i = threadIdx.x, v = i;
        if (i & 0) v = -1;
        for (int q = 0; q < 3; q++)
            if (!(i & 0)) v += 100;
        out[i] = v;
    }"""
    out = torch.zeros(40, dtype=torch.int32, device=device)
    rawkern.RawKernel(code, options=("-G",))[1, 40](out)
    assert out.tolist() == [i + 300 for i in range(40)]
