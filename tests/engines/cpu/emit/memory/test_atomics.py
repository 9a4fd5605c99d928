"""Atomics: every operation and type, on global and shared memory, their results, under contention within and across blocks."""

from __future__ import annotations

import contextlib
import re

import numpy as np
import pytest
import torch

import rawkern

NUMPY = {"int": np.int32, "unsigned": np.uint32, "long long": np.int64, "unsigned long long": np.uint64, "float": np.float32,
         "double": np.float64}  # fmt: skip


def tensor(a: np.ndarray, device: str) -> torch.Tensor:
    """A copy on `device`; unsigned types as signed ones of the same width."""
    kind = {"u": "i"}.get(a.dtype.kind, a.dtype.kind)
    return torch.from_numpy(a.view(f"{kind}{a.itemsize}").copy()).to(device)


def values(ctype: str, n: int, seed: int = 1) -> np.ndarray:
    rng, dtype = np.random.default_rng(seed), NUMPY[ctype]
    if np.dtype(dtype).kind == "f":
        return (rng.integers(-4000, 4000, n) / 8).astype(dtype)  # sums are exact in any order
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, n, dtype=dtype, endpoint=True)


# Every operation on every type -----------------------------------------------------------------------------------------

OPERATIONS = {
    "Add": ("int", "unsigned", "unsigned long long", "float", "double"),
    "Sub": ("int", "unsigned"),
    "Min": ("int", "unsigned", "long long", "unsigned long long"),
    "Max": ("int", "unsigned", "long long", "unsigned long long"),
    "And": ("int", "unsigned", "unsigned long long"),
    "Or": ("int", "unsigned", "unsigned long long"),
    "Xor": ("int", "unsigned", "unsigned long long"),
}
FOLD = {"Add": np.add, "Sub": np.subtract, "Min": np.minimum, "Max": np.maximum, "And": np.bitwise_and, "Or": np.bitwise_or,
        "Xor": np.bitwise_xor}  # fmt: skip
CODE = r"""
template <class T> __device__ void both(int n, const T* x, T* cells, T* olds, T* shared_cells, T start) {
    // each thread hits cell i % 7; the last cell belongs to one thread alone, whose old value must be the start
    __shared__ T s[8];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x < 8) s[threadIdx.x] = start;
    __syncthreads();
    if (i < n) {
        OP(cells + i % 7, x[i]);                       // result unused
        olds[i] = OP(cells + 8 + i, x[i]);             // a cell for each thread
        T old = OP(s + i % 7, x[i]);
        if (i % 5 == 2) olds[n + i] = OP(cells + 7, old);   // some lanes off
    }
    __syncthreads();
    if (threadIdx.x < 8) shared_cells[blockIdx.x * 8 + threadIdx.x] = s[threadIdx.x];
}
"""


def fold(op: str, start, items: np.ndarray):
    with np.errstate(over="ignore"):
        result = start
        for item in items:
            result = FOLD[op](result, item)
        return result


@pytest.mark.parametrize("op", OPERATIONS)
def test_operations(device, op):
    kernels = "".join(
        f'extern "C" __global__ void k{j}(int n, const {t}* x, {t}* c, {t}* o, {t}* s, {t} start)'
        f" {{ both<{t}>(n, x, c, o, s, start); }}\n"
        for j, t in enumerate(OPERATIONS[op])
    )
    module = rawkern.RawModule(code=CODE + kernels, options=(f"-DOP=atomic{op}",))
    n, block = 150, 64
    for j, ctype in enumerate(OPERATIONS[op]):
        x = values(ctype, n)
        start = values(ctype, 1, 9)[0]
        cells, olds = np.full(8 + n, start), np.full(2 * n, start)
        cells_t, olds_t = tensor(cells, device), tensor(olds, device)
        shared = tensor(np.zeros(24, x.dtype), device)
        module.get_function(f"k{j}")[3, block](n, tensor(x, device), cells_t, olds_t, shared, start.item())
        got = cells_t.cpu().numpy().view(x.dtype)
        i = np.arange(n)
        for cell in range(7):
            assert got[cell] == fold(op, start, x[i % 7 == cell]), (ctype, cell)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got[8:], FOLD[op](np.full(n, start), x), err_msg=ctype)
        np.testing.assert_array_equal(olds_t.cpu().numpy().view(x.dtype)[:n], np.full(n, start), err_msg=ctype)
        got = shared.cpu().numpy().view(x.dtype).reshape(3, 8)
        for b in range(3):
            for cell in range(7):
                assert got[b, cell] == fold(op, start, x[(i // block == b) & (i % 7 == cell)]), (ctype, b, cell)
            assert got[b, 7] == start


@pytest.mark.parametrize("space", ["global", "shared"])
def test_old_values_are_all_different(device, space):
    """Tickets: under contention each old value comes once."""
    code = r"""
    extern "C" __global__ void global_(int n, int* c, int* out, unsigned long long* w, float* f) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        out[i] = atomicAdd(c, 3);
        out[n + i] = (int)atomicAdd(w, 1ull << 20) + (int)(atomicAdd(w + 1, 1ull) & 0);
        out[2 * n + i] = (int)atomicAdd(f, 1.0f);
    }
    extern "C" __global__ void shared_(int n, int* c, int* out, unsigned long long* w, float* f) {
        __shared__ int sc; __shared__ unsigned long long sw; __shared__ float sf;
        if (threadIdx.x == 0) { sc = 0; sw = 0; sf = 0; }
        __syncthreads();
        int i = threadIdx.x;
        if (i < n) { out[i] = atomicAdd(&sc, 3); out[n + i] = (int)atomicAdd(&sw, 1ull << 20); out[2 * n + i] = (int)atomicAdd(&sf, 1.f); }
        __syncthreads();
        if (i == 0) { *c = sc; *w = sw; *f = sf; }
    }"""
    n, grid, block = (1000, 8, 128) if space == "global" else (1000, 1, 1024)
    c, w = torch.zeros(1, dtype=torch.int32, device=device), torch.zeros(2, dtype=torch.int64, device=device)
    f, out = torch.zeros(1, device=device), torch.full((3 * n,), -1, dtype=torch.int32, device=device)
    rawkern.RawModule(code=code).get_function(f"{space}_")[grid, block](n, c, out, w, f)
    got = out.cpu().view(3, n)
    assert got[0].sort().values.tolist() == list(range(0, 3 * n, 3))
    assert sorted(got[1].tolist()) == [k << 20 for k in range(n)]
    assert got[2].sort().values.tolist() == list(range(n))
    assert (c.item(), w[0].item(), f.item()) == (3 * n, n << 20, n)


# Increments, exchanges, compare and swap ---------------------------------------------------------------------------------


def test_increment_and_decrement_wrap_at_their_limit(device):
    code = r"""extern "C" __global__ void k(int n, unsigned* c, unsigned* olds) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        __shared__ unsigned s[2];
        if (threadIdx.x < 2) s[threadIdx.x] = 5 * threadIdx.x;
        __syncthreads();
        if (i < n) {
            olds[i] = atomicInc(c, 9); olds[n + i] = atomicDec(c + 1, 9);
            atomicInc(s, 16); atomicDec(s + 1, 6);
        }
        __syncthreads();
        if (threadIdx.x < 2) c[2 + 2 * blockIdx.x + threadIdx.x] = s[threadIdx.x];
    }"""
    n = 77
    c, olds = torch.zeros(6, dtype=torch.int32, device=device), torch.zeros(2 * n, dtype=torch.int32, device=device)
    c[1] = 100  # above the limit: the first decrement sets it to the limit
    rawkern.RawKernel(code)[2, 40](n, c, olds)
    down = [100, *[9 - k % 10 for k in range(n)]]
    assert c.tolist() == [n % 10, down[n], 40 % 17, (5 - 40) % 7, 37 % 17, (5 - 37) % 7]
    assert sorted(olds.tolist()[:n]) == sorted(k % 10 for k in range(n))
    assert sorted(olds.tolist()[n:]) == sorted(down[:n])


def test_exchange(device):
    """A chain of values handed on: what went in comes out once, but for the one that stays."""
    code = r"""extern "C" __global__ void k(int n, int* c, float* f, unsigned long long* u, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        __shared__ int s;
        if (threadIdx.x == 0) s = -1;
        __syncthreads();
        if (i >= n) return;
        out[i] = atomicExch(c, i);
        out[n + i] = (int)atomicExch(f, (float)i);
        out[2 * n + i] = (int)(atomicExch(u, (unsigned long long)i << 32) >> 32);
        out[3 * n + i] = atomicExch(&s, i);
    }"""
    n = 500
    c, f = torch.full((1,), -1, dtype=torch.int32, device=device), torch.full((1,), -1.0, device=device)
    u = torch.full((1,), -1, dtype=torch.int64, device=device)
    out = torch.full((4 * n,), -77, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[8, 64](n, c, f, u, out)
    got = out.cpu().view(4, n)
    for row, last in ((0, c.item()), (1, int(f.item())), (2, u.item() >> 32)):
        assert sorted([*got[row].tolist(), last]) == list(range(-1, n)), row
    assert len(set(got[3].tolist()) - {-1}) == n - 8


WIDE = r"""
struct __align__(16) Pair { unsigned long long a, b; };
extern "C" __global__ void handed_on(Pair* x, Pair* out) {
    __shared__ Pair s[4];
    unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x < 4) s[threadIdx.x] = Pair{threadIdx.x, 7};
    __syncthreads();
    out[2 * i] = atomicExch(x, Pair{i, ~i});
    out[2 * i + 1] = atomicCAS(&s[i % 4], Pair{i % 4, 7}, Pair{i, 8});
}
extern "C" __global__ void counted(Pair* x, int n) {
    for (int i = 0; i < n; i++) {
        Pair seen{0, 0};
        for (Pair old; old = atomicCAS(x, seen, Pair{seen.a + 1, seen.b + 3}), old.a != seen.a || old.b != seen.b;) seen = old;
    }
}
extern "C" __global__ void moved(const Pair* x, Pair* y, unsigned at) {
    asm volatile("{ .reg .b128 v; .reg .b64 a, b; ld.global.b128 v, [%0]; mov.b128 {a, b}, v; mov.b128 v, {b, a};"
        "st.global.b128 [%1], v; }" :: "l"((const char*)(x + threadIdx.x) + at), "l"(y + threadIdx.x) : "memory");
}"""


def test_sixteen_bytes_at_once(device):
    """Of compute capability 9.0: exchanges, compare-and-swaps, loads and stores of 128 bits."""
    if device == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no atomics of 128 bits")
    module = rawkern.RawModule(WIDE)
    n = 256
    x, out = torch.full((2,), -1, device=device, dtype=torch.int64), torch.zeros(2 * n, 2, device=device).long()
    module.get_function("handed_on")[4, 64](x, out)
    old, seen = out.cpu().view(n, 2, 2).unbind(1)
    assert sorted([*old[:, 0].tolist(), x[0].item()]) == list(range(-1, n))
    first, last = old[:, 0], old[:, 1]
    assert last[first >= 0].equal(~first[first >= 0]) and last[first < 0].tolist() == [-1]
    for block in seen.view(4, 16, 4, 2):  # one thread finds what it compares with
        for k, words in enumerate(block.unbind(1)):
            assert words.tolist().count([k, 7]) == 1
    for launches in (contextlib.nullcontext, *([rawkern.check] if device == "cpu" else [])):
        with launches():
            module.get_function("counted")[8, 64](x.zero_(), 2)
        assert x.tolist() == [2 * 8 * 64, 6 * 8 * 64]
    y = torch.zeros(32, 2, device=device, dtype=torch.int64)
    z = torch.arange(66, device=device)
    module.get_function("moved")[1, 32](z, y, 0)
    assert y.flip(1).flatten().tolist() == list(range(64))
    if device == "cpu":
        with pytest.raises(rawkern.MisalignedError, match="16 bytes"):
            module.get_function("moved")[1, 32](z, y, 8)


@pytest.mark.parametrize("ctype", ["int", "unsigned long long", "unsigned short"])
def test_compare_and_swap(device, ctype):
    """A lock-free update of any function, and a swap that fails leaves the cell as it was."""
    code = rf"""
    typedef {ctype} T;
    extern "C" __global__ void k(int n, T* c, T* out) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        __shared__ T s[2];
        if (threadIdx.x == 0) {{ s[0] = 1; s[1] = 50; }}
        __syncthreads();
        if (i < n) {{
            T old = c[0], seen;
            do {{ seen = old; old = atomicCAS(c, seen, (T)(seen * 3 + 1)); }} while (old != seen);
            out[i] = old;
            out[n + i] = atomicCAS(c + 1, (T)7, (T)8);              // the cell holds 9: never swapped
            out[2 * n + i] = atomicCAS(c + 3 + i, (T)(i % 3), (T)100);
            atomicCAS(s + 1, (T)(50 + threadIdx.x), (T)(51 + threadIdx.x));
        }}
        __syncthreads();
        if (threadIdx.x == 0) c[2] = s[0] + s[1];
    }}"""
    n, dtype = 60, {"int": np.int32, "unsigned long long": np.uint64, "unsigned short": np.uint16}[ctype]
    cells = np.concatenate([[1, 9, 0], np.arange(n) % 2]).astype(dtype)
    c, out = tensor(cells, device), tensor(np.zeros(3 * n, dtype), device)
    rawkern.RawKernel(code)[1, 64](n, c, out)
    chain = [dtype(1)]
    with np.errstate(over="ignore"):
        for _ in range(n):
            chain.append(dtype(chain[-1] * dtype(3) + dtype(1)))
    got, olds = c.cpu().numpy().view(dtype), out.cpu().numpy().view(dtype).reshape(3, n)
    assert got[0] == chain[-1] and sorted(olds[0]) == sorted(chain[:-1])
    assert got[1] == 9 and (olds[1] == 9).all()
    assert 52 <= got[2] <= 51 + n
    i = np.arange(n)
    np.testing.assert_array_equal(got[3:], np.where(i % 3 == i % 2, 100, i % 2))
    np.testing.assert_array_equal(olds[2], i % 2)


def test_float_maximum_by_compare_and_swap(device):
    code = r"""
    __device__ float atomic_max(float* p, float v) {
        int* q = (int*)p; int old = *q, seen;
        do { seen = old; if (__int_as_float(seen) >= v) break; old = atomicCAS(q, seen, __float_as_int(v)); } while (old != seen);
        return __int_as_float(old);
    }
    extern "C" __global__ void k(int n, const float* x, float* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) atomic_max(out + i % 3, x[i]);
    }"""
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    out = torch.full((3,), -1e9, device=device)
    rawkern.RawKernel(code).forall(1000, block=96)(1000, x.to(device), out)
    assert out.tolist() == [x[k::3].max().item() for k in range(3)]


# Halves --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ctype", "dtype"), [("__half", torch.float16), ("__nv_bfloat16", torch.bfloat16)])
def test_adding_halves(device, ctype, dtype):
    """Neighbors in the same word are added to at the same time, one and two at a time."""
    code = rf"""
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    typedef {ctype} H; typedef {ctype}2 H2;
    extern "C" __global__ void k(int n, const H* x, H* out, H2* pairs, H* olds) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        __shared__ H s[8];
        if (threadIdx.x < 8) s[threadIdx.x] = x[0];
        __syncthreads();
        if (i < n) {{
            atomicAdd(out + i % 5, x[i]);
            olds[i] = atomicAdd(out + 8 + i, x[i]);
            H2 v; v.x = x[i]; v.y = x[n - 1 - i];
            atomicAdd(pairs + i % 3, v);
            atomicAdd(s + i % 8, x[i]);
        }}
        __syncthreads();
        if (threadIdx.x < 8) out[8 + n + 8 * blockIdx.x + threadIdx.x] = s[threadIdx.x];
    }}"""
    n, blocks = 90, 3
    x = torch.randint(-3, 4, (n,), generator=torch.Generator().manual_seed(1)) / 2  # sums are exact in any order
    out, olds = (
        torch.ones(8 + n + 24, dtype=dtype, device=device),
        torch.full((n,), float("nan"), dtype=dtype, device=device),
    )
    pairs = torch.zeros(6, dtype=dtype, device=device)
    rawkern.RawKernel(code)[blocks, 32](n, x.to(dtype).to(device), out, pairs, olds)
    i, got = torch.arange(n), out.cpu().double()
    assert got[:8].tolist() == [1 + x[i % 5 == k].sum().item() if k < 5 else 1 for k in range(8)]
    assert torch.equal(got[8 : 8 + n], 1 + x.double()) and (olds == 1).all()
    want = [[x[0].item() + x[(i // 32 == b) & (i % 8 == k)].sum().item() for k in range(8)] for b in range(blocks)]
    assert got[8 + n :].view(blocks, 8).tolist() == want
    sums = [[x[i % 3 == k].sum().item(), x.flip(0)[i % 3 == k].sum().item()] for k in range(3)]
    assert pairs.cpu().double().view(3, 2).tolist() == sums


# Rounding, scopes, patterns ---------------------------------------------------------------------------------------------------


def test_float_sums_are_rounded_each_time(device):
    code = r"""extern "C" __global__ void k(float* f, double* d) {
        atomicAdd(f + threadIdx.x, 1e-8f); atomicAdd(f + 40, 0.1f); atomicAdd(d, 0.1);
        atomicAdd(f + 41, -0.0f);
        __shared__ float s[2];          // shared memory keeps subnormals
        if (threadIdx.x < 2) s[threadIdx.x] = threadIdx.x * 1e-39f;
        __syncthreads();
        atomicAdd(s + threadIdx.x % 2, 1e-40f);
        __syncthreads();
        if (threadIdx.x < 2) f[42 + threadIdx.x] = s[threadIdx.x];
    }"""
    f, d = torch.ones(44, device=device), torch.zeros(1, dtype=torch.float64, device=device)
    f[40], f[41] = 0, -0.0
    rawkern.RawKernel(code)[1, 40](f, d)
    assert (f[:40] == 1).all()
    assert f[40].item() == np.add.accumulate(np.full(40, 0.1, np.float32))[-1]
    assert d.item() == np.add.accumulate(np.full(40, 0.1))[-1]
    assert f[41].item() == 0 and torch.signbit(f[41])
    np.testing.assert_allclose(f[42:].cpu(), np.float32([20e-40, 30e-40]), rtol=1e-4)


def test_generic_float_sums_flush_subnormals_in_global_memory_alone(device):
    code = r"""extern "C" __global__ void k(const int* pick, float* g, float* olds, float* out) {
        __shared__ float s[32];
        int t = threadIdx.x;
        s[t] = 1e-39f;
        __syncthreads();
        float* p = pick[t] ? s + t : g + t;      // lanes of one warp go to both
        olds[t] = atomicAdd(p, t % 3 ? -3e-39f : 1.1754943e-38f);
        __syncthreads();
        out[t] = s[t];
    }"""
    pick = (torch.arange(32, dtype=torch.int32) * 5 % 7 < 3).int()
    g, olds, out = torch.full((32,), 1e-39, device=device), *torch.full((2, 32), torch.nan, device=device)
    kernel = rawkern.RawKernel(code)
    assert re.search(r"(atom|red)\.(?!\w*shared)[\w.]*add\.f32", kernel.ptx())  # through a generic address
    kernel[1, 32](pick.to(device), g, olds, out)
    added = np.where(np.arange(32) % 3, np.float32(-3e-39), np.float32(1.1754943e-38))
    kept, flushed = np.float32(1e-39) + added, np.where(np.arange(32) % 3, np.float32(0), added)
    shared = pick.numpy() > 0
    np.testing.assert_array_equal(out.cpu().numpy(), np.where(shared, kept, np.float32(1e-39)))
    np.testing.assert_array_equal(g.cpu().numpy(), np.where(shared, np.float32(1e-39), flushed))
    np.testing.assert_array_equal(olds[pick > 0].cpu().numpy(), np.float32(1e-39))


@pytest.mark.parametrize("suffix", ["", "_block", "_system"])
def test_scopes(device, suffix):
    code = f"""extern "C" __global__ void k(int* out, unsigned long long* w) {{
        atomicAdd{suffix}(out, 2); atomicMax{suffix}(out + 1, (int)threadIdx.x); atomicOr{suffix}(out + 2, 1 << (threadIdx.x % 7));
        atomicExch{suffix}(out + 3, 5); atomicCAS{suffix}(out + 4, 0, 6); atomicMin{suffix}(w, 100ull - threadIdx.x);
    }}"""
    out, w = torch.zeros(5, dtype=torch.int32, device=device), torch.full((1,), 1000, dtype=torch.int64, device=device)
    rawkern.RawKernel(code)[1, 50](out, w)
    assert out.tolist() == [100, 49, 127, 5, 6] and w.item() == 51


def test_histograms(device):
    code = r"""extern "C" __global__ void k(int n, const unsigned char* x, int* global_bins, int* shared_bins) {
        __shared__ int bins[256];
        for (int b = threadIdx.x; b < 256; b += blockDim.x) bins[b] = 0;
        __syncthreads();
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
            atomicAdd(&global_bins[x[i]], 1);
            atomicAdd(&bins[x[i]], 1);
        }
        __syncthreads();
        for (int b = threadIdx.x; b < 256; b += blockDim.x) if (bins[b]) atomicAdd(&shared_bins[b], bins[b]);
    }"""
    n = 60_001
    x = (torch.randn(n, generator=torch.Generator().manual_seed(2)) * 30 + 100).clamp(0, 255).to(torch.uint8)
    a, b = torch.zeros(256, dtype=torch.int32, device=device), torch.zeros(256, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[9, 192](n, x.to(device), a, b)
    want = torch.bincount(x, minlength=256)
    assert torch.equal(a.cpu().long(), want) and torch.equal(b.cpu().long(), want)


def test_contention_across_blocks(device):
    """Many blocks at the same cells, with every width at once; all cores take part."""
    code = r"""extern "C" __global__ void k(int rounds, int* a, unsigned long long* b, float* c, double* d, unsigned short* h) {
        for (int r = 0; r < rounds; r++) {
            atomicAdd(a, 1); atomicAdd(b, 1ull << 33); atomicAdd(c, 0.5f); atomicAdd(d, 0.25);
            unsigned short old = *(volatile unsigned short*)h, seen;
            if (threadIdx.x % 16 == 0) do { seen = old; old = atomicCAS(h, seen, (unsigned short)(seen + 1)); } while (old != seen);
        }
    }"""
    a, b = torch.zeros(1, dtype=torch.int32, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    c, d = torch.zeros(1, device=device), torch.zeros(1, dtype=torch.float64, device=device)
    h = torch.zeros(4, dtype=torch.int16, device=device)
    rawkern.RawKernel(code)[100, 64](10, a, b, c, d, h)
    total = 64_000
    assert (a.item(), b.item(), c.item(), d.item()) == (total, total << 33, total / 2, total / 4)
    assert h.tolist() == [4000, 0, 0, 0]


def test_last_block_finishes_the_sum(device):
    """Each block leaves its part; the one whose ticket is the last adds them up."""
    code = r"""
    __device__ unsigned done = 0;
    extern "C" __global__ void k(int n, const float* x, double* parts, double* out) {
        __shared__ double s[128]; __shared__ bool last;
        int t = threadIdx.x;
        double v = 0;
        for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) v += x[i];
        s[t] = v;
        __syncthreads();
        for (int d = 64; d; d /= 2) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
        if (t == 0) {
            parts[blockIdx.x] = s[0];
            __threadfence();
            last = atomicInc(&done, gridDim.x - 1) == gridDim.x - 1;
        }
        __syncthreads();
        if (last) {
            v = 0;
            for (int b = t; b < gridDim.x; b += blockDim.x) v += ((volatile double*)parts)[b];
            s[t] = v;
            __syncthreads();
            for (int d = 64; d; d /= 2) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
            if (t == 0) *out = s[0];
        }
    }"""
    x = torch.randn(50_007, generator=torch.Generator().manual_seed(3))
    kernel = rawkern.RawKernel(code)
    for grid in (1, 37, 200):
        parts = torch.full((grid,), float("nan"), dtype=torch.float64, device=device)
        out = torch.full((1,), float("nan"), dtype=torch.float64, device=device)
        kernel[grid, 128](len(x), x.to(device), parts, out)
        torch.testing.assert_close(out.cpu()[0], x.double().sum(), rtol=1e-11, atol=1e-9)


def test_stream_compaction(device):
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out, int* count) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n && x[i] % 3 == 0) out[atomicAdd(count, 1)] = x[i];
    }"""
    x = torch.randperm(3001, generator=torch.Generator().manual_seed(4)).int()
    out, count = (
        torch.full((3001,), -1, dtype=torch.int32, device=device),
        torch.zeros(1, dtype=torch.int32, device=device),
    )
    rawkern.RawKernel(code).forall(3001)(3001, x.to(device), out, count)
    assert count.item() == 1001 and (out[1001:] == -1).all()
    assert out[:1001].sort().values.tolist() == list(range(0, 3001, 3))


@pytest.mark.parametrize("place", ["p", "&s"])
@pytest.mark.parametrize("ctype", ["int", "unsigned long long"])
def test_lanes_that_add_at_one_place(device, ctype, place):
    """Each gets what was there before it: together, those of all lanes tell in which order they came."""
    code = f"""extern "C" __global__ void k({ctype}* p, const {ctype}* x, {ctype}* olds, {ctype}* total) {{
        __shared__ {ctype} s;
        int t = threadIdx.x;
        if (t == 0) s = *p;
        __syncthreads();
        if (t % 5 != 3 && t < 29) olds[t] = atomicAdd({place}, x[t]);
        __syncthreads();
        if (t > 3) atomicAdd({place}, x[t]);
        __syncthreads();
        if (t == 0) *total = *({place});
    }}"""
    x, dtype = values(ctype, 32), NUMPY[ctype]
    start = dtype(41)
    cell, olds, total = np.array([start], dtype), np.zeros(32, dtype), np.zeros(1, dtype)
    arrays = [tensor(a, device) for a in (cell, x, olds, total)]
    rawkern.RawKernel(code)[1, 32](*arrays)
    olds, total = (a.cpu().numpy().view(dtype) for a in arrays[2:])
    lanes, modulus = [t for t in range(29) if t % 5 != 3], 2 ** (8 * x.itemsize)
    with np.errstate(over="ignore"):
        assert total[0] == start + x[lanes].sum(dtype=dtype) + x[4:].sum(dtype=dtype)
    after = {int(olds[t]) % modulus: (int(olds[t]) + int(x[t])) % modulus for t in lanes}
    assert len(after) == len(lanes)
    at = int(start)
    while at in after:
        at = after.pop(at)
    assert not after
