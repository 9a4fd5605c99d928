"""Warp operations: shuffles, votes, matches, reductions, cooperative groups; against an H200's answers and against NumPy."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import rawkern

RECORDED = Path(__file__).parents[3] / "data" / "h200_warp_results.npz"
LANE = np.arange(32)


def poison(n: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.full((n,), float("nan") if dtype.is_floating_point else -77777, dtype=dtype, device=device)


def ints(n: int, seed: int = 0, low: int = -(2**31), high: int = 2**31) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(low, high, n).astype(np.int32))


# An H200's answers --------------------------------------------------------------------------------------------------


@functools.cache
def recorded() -> dict:
    with np.load(RECORDED) as data:
        return dict(data)


def _forms() -> list:
    forms = json.loads(str(recorded()["forms"]))
    chosen = ("shfl", "vote", "match", "redux")
    return [pytest.param(i, *f, id=f[0]) for i, f in enumerate(forms) if f[0].startswith(chosen)]


@pytest.mark.parametrize(("index", "name", "text", "results", "operands"), _forms())
def test_lanes_match_hardware(device, index, name, text, results, operands):
    ctypes = {"r": "unsigned", "l": "unsigned long long"}
    params = [f"{ctypes[c]}* o{j}" for j, c in enumerate(results)] + [
        f"const {ctypes[c]}* i{j}" for j, (c, _) in enumerate(operands)
    ]
    outs = ", ".join(f'"={c}"(o{j}[t])' for j, c in enumerate(results))
    ins = ", ".join(f'"{c}"(i{j}[t])' for j, (c, _) in enumerate(operands))
    code = f"""extern "C" __global__ void k({", ".join(params)}) {{
        int t = blockIdx.x * blockDim.x + threadIdx.x;
        asm volatile("{text}" : {outs} : {ins});
    }}"""
    data = recorded()
    want = [data[f"out.{index}.{j}"] for j in range(len(results))]
    n = len(want[0])
    out = [poison(n, torch.int32, device) for _ in results]
    given = [data[f"in.{index}.{j}"] for j in range(len(operands))]
    inputs = [torch.from_numpy(a.view(f"i{a.itemsize}")).to(device) for a in given]
    rawkern.RawKernel(code)[n // 128, 128](*out, *inputs)
    for got, w in zip(out, want, strict=True):
        np.testing.assert_array_equal(got.cpu().numpy().view(np.uint32), w.view(np.uint32), err_msg=name)


# Shuffles ----------------------------------------------------------------------------------------------------------------


def shuffled(mode: str, x: np.ndarray, amount: np.ndarray, width: int) -> np.ndarray:
    """CUDA's definition, warp by warp; x and amount have 32 columns."""
    start = LANE // width * width
    if mode == "":
        source = start + amount % width
    elif mode == "_up":
        source = np.where(LANE - amount < start, LANE, LANE - amount)
    elif mode == "_down":
        source = np.where(LANE + amount >= start + width, LANE, LANE + amount)
    else:
        source = np.where((LANE ^ amount) >= start + width, LANE, LANE ^ amount)
    return np.take_along_axis(x, np.broadcast_to(source, x.shape), 1)


WIDTHS = (2, 4, 8, 16, 32)
AMOUNTS = {"": (0, 1, 5, 31), "_up": (0, 1, 3, 16), "_down": (0, 1, 2, 17), "_xor": (1, 2, 5, 31)}


@pytest.mark.parametrize("mode", AMOUNTS)
def test_shuffles_by_constants(device, mode):
    """All widths and some amounts in one kernel; constants become fixed permutations."""
    cases = [(w, a) for w in WIDTHS for a in AMOUNTS[mode]]
    lines = "\n".join(
        f"out[{k} * n + i] = __shfl{mode}_sync(0xffffffffu, x[i], {a}, {w});" for k, (w, a) in enumerate(cases)
    )
    code = f"""extern "C" __global__ void k(int n, const int* x, int* out) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        {lines}
    }}"""
    x = ints(64)
    out = poison(64 * len(cases), torch.int32, device)
    rawkern.RawKernel(code)[1, 64](64, x.to(device), out)
    got = out.cpu().numpy().reshape(len(cases), 2, 32)
    for k, (w, a) in enumerate(cases):
        want = shuffled(mode, x.numpy().reshape(2, 32), np.full(32, a), w)
        np.testing.assert_array_equal(got[k], want, err_msg=f"width {w}, by {a}")


@pytest.mark.parametrize("mode", AMOUNTS)
def test_shuffles_by_variables(device, mode):
    code = f"""extern "C" __global__ void k(const int* x, const int* amount, int width, int* out) {{
        int i = threadIdx.x;
        out[i] = __shfl{mode}_sync(0xffffffffu, x[i], amount[i], width);
    }}"""
    kernel, x = rawkern.RawKernel(code), ints(128)
    for width in WIDTHS:
        amount = ints(128, width, 0, 32)
        if mode in ("_up", "_down"):  # hardware takes the amount modulo 32, and lanes differ here
            amount %= width
        out = poison(128, torch.int32, device)
        kernel[1, 128](x.to(device), amount.to(device), width, out)
        want = shuffled(mode, x.numpy().reshape(4, 32), amount.numpy().reshape(4, 32), width)
        np.testing.assert_array_equal(out.cpu().numpy().reshape(4, 32), want, err_msg=f"width {width}")


@pytest.mark.parametrize(
    ("ctype", "dtype"),
    [("int", torch.int32), ("float", torch.float32), ("double", torch.float64), ("long long", torch.int64)],
)
def test_shuffled_types(device, ctype, dtype):
    code = rf"""extern "C" __global__ void k(const {ctype}* x, {ctype}* out) {{
        int i = threadIdx.x;
        {ctype} v = __shfl_xor_sync(~0u, x[i], 7);
        v += __shfl_sync(~0u, x[i], i * 5);
        v -= __shfl_down_sync(~0u, v, 3, 8);
        out[i] = v * __shfl_up_sync(~0u, x[i], 1);
    }}"""
    x = (torch.randn(64, dtype=torch.float64) * 100).to(dtype)
    out = poison(64, dtype, device)
    rawkern.RawKernel(code)[1, 64](x.to(device), out)
    v = x.numpy().reshape(2, 32)
    w = shuffled("_xor", v, np.full(32, 7), 32) + shuffled("", v, np.tile(np.arange(64).reshape(2, 32) * 5 % 32, 1), 32)
    w = w - shuffled("_down", w, np.full(32, 3), 8)
    np.testing.assert_allclose(out.cpu().numpy().reshape(2, 32), w * shuffled("_up", v, np.full(32, 1), 32), rtol=1e-6)


def test_shuffles_of_halves(device):
    code = r"""
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    extern "C" __global__ void k(const __half* x, const __nv_bfloat162* y, __half* a, __nv_bfloat162* b) {
        int i = threadIdx.x;
        a[i] = __hadd(x[i], __shfl_down_sync(~0u, x[i], 1));
        b[i] = __shfl_xor_sync(~0u, y[i], 9);
    }"""
    x, y = torch.randn(32).half(), torch.randn(64).bfloat16()
    a, b = poison(32, torch.float16, device), poison(64, torch.bfloat16, device)
    rawkern.RawKernel(code)[1, 32](x.to(device), y.to(device), a, b)
    assert torch.equal(a.cpu(), x + torch.cat([x[1:], x[31:]]))
    assert torch.equal(b.cpu().view(32, 2), y.view(32, 2)[torch.arange(32) ^ 9])


def test_shuffle_with_part_of_a_warp(device):
    """Only the lower lanes take part; the block's last warp is partial."""
    code = r"""extern "C" __global__ void k(const int* x, int* out) {
        int i = threadIdx.x, lane = i % 32;
        if (lane < 20) {
            unsigned mask = 0xfffffu;
            int v = x[i];
            v += __shfl_sync(mask, v, (lane * 3 + 1) % 20);
            v += __shfl_down_sync(mask, v, lane < 19 ? 1 : 0);
            out[i] = v;
        }
    }"""
    x = ints(52, low=-1000, high=1000)
    out = poison(52, torch.int32, device)
    rawkern.RawKernel(code)[1, 52](x.to(device), out)
    got, v = out.cpu().numpy(), x.numpy()
    for start in (0, 32):
        part = v[start : start + 20]
        part = part + part[(np.arange(20) * 3 + 1) % 20]
        part = part + part[np.minimum(np.arange(20) + 1, 19)]
        np.testing.assert_array_equal(got[start : start + 20], part)
    assert (got[20:32] == -77777).all()


# Votes, matches, reductions --------------------------------------------------------------------------------------------------


def test_votes(device):
    code = r"""extern "C" __global__ void k(const int* x, int* out) {
        int i = threadIdx.x, v = x[i];
        unsigned r = __ballot_sync(~0u, v > 0);
        out[i * 6] = r;
        out[i * 6 + 1] = __any_sync(~0u, v == 77) * 4 + __all_sync(~0u, v < 90) * 2 + (__popc(r) > 16);
        if (v & 1) {
            unsigned m = __activemask();
            out[i * 6 + 2] = m;
            out[i * 6 + 3] = __ballot_sync(m, v > 10);
            out[i * 6 + 4] = __any_sync(m, v > 80) * 2 + __all_sync(m, v > -80);
            out[i * 6 + 5] = __shfl_sync(m, v, __ffs(m) - 1);
        }
        __syncwarp();
    }"""
    for seed in range(4):
        x = ints(96, seed, -100, 100) if seed else torch.full((96,), 5, dtype=torch.int32)
        out = torch.zeros(96 * 6, dtype=torch.int32, device=device)
        rawkern.RawKernel(code)[1, 96](x.to(device), out)
        got = out.cpu().numpy().reshape(3, 32, 6)
        for w, v in enumerate(x.numpy().reshape(3, 32)):
            bits = lambda c: int((c << LANE.astype(np.uint64)).sum()) & 0xFFFFFFFF  # noqa: E731
            ballot = bits((v > 0).astype(np.uint64))
            assert (got[w, :, 0].view(np.uint32) == ballot).all()
            assert (got[w, :, 1] == (v == 77).any() * 4 + (v < 90).all() * 2 + ((v > 0).sum() > 16)).all()
            odd = v % 2 != 0
            assert (got[w, ~odd, 2:] == 0).all()
            if odd.any():
                assert (got[w, odd, 2].view(np.uint32) == bits(odd.astype(np.uint64))).all()
                assert (got[w, odd, 3].view(np.uint32) == bits((odd & (v > 10)).astype(np.uint64))).all()
                assert (got[w, odd, 4] == (v[odd] > 80).any() * 2 + (v[odd] > -80).all()).all()
                assert (got[w, odd, 5] == v[odd][0]).all()


def test_reductions_by_groups(device):
    """`__reduce_*_sync` and `__match_any_sync` with masks that differ between lanes."""
    code = r"""extern "C" __global__ void k(const int* x, const int* key, int* out) {
        int i = threadIdx.x, v = x[i];
        unsigned m = __match_any_sync(~0u, key[i]);
        out[i * 8] = m;
        out[i * 8 + 1] = __reduce_add_sync(m, v);
        out[i * 8 + 2] = __reduce_min_sync(m, v);
        out[i * 8 + 3] = __reduce_max_sync(m, (unsigned)v);
        out[i * 8 + 4] = __reduce_xor_sync(m, (unsigned)v);
        out[i * 8 + 5] = __reduce_and_sync(m, (unsigned)v) ^ __reduce_or_sync(m, (unsigned)v);
        int same; unsigned a = __match_all_sync(~0u, key[i / 32 * 32 + (i & 1)], &same);
        out[i * 8 + 6] = a; out[i * 8 + 7] = same;
    }"""
    x, key = ints(128), ints(128, 5, 0, 7)
    key[96:] = 3
    out = poison(128 * 8, torch.int32, device)
    rawkern.RawKernel(code)[1, 128](x.to(device), key.to(device), out)
    got = out.cpu().numpy().reshape(4, 32, 8)
    for w in range(4):
        v, k = x.numpy().reshape(4, 32)[w], key.numpy().reshape(4, 32)[w]
        for lane in range(32):
            group = k == k[lane]
            u = v[group].view(np.uint32)
            agree = k[0] == k[1]
            want = [
                int((group.astype(np.int64) << LANE).sum()), v[group].sum(dtype=np.int32), v[group].min(), u.max(), np.bitwise_xor.reduce(u),
                np.bitwise_and.reduce(u) ^ np.bitwise_or.reduce(u), 0xFFFFFFFF if agree else 0, int(agree),
            ]  # fmt: skip
            assert [int(g) & 0xFFFFFFFF for g in got[w, lane]] == [int(a) & 0xFFFFFFFF for a in want], (w, lane)


def test_votes_while_lanes_leave_a_loop(device):
    code = r"""extern "C" __global__ void k(const int* rounds, int* out) {
        int i = threadIdx.x, mine = rounds[i], sum = 0;
        #pragma unroll 1
        for (int r = 0; r < mine; r++) {
            unsigned m = __activemask();
            sum += __popc(m) * (r + 1) + __popc(__ballot_sync(m, mine > r + 3));
        }
        out[i] = sum;
    }"""
    rounds = ints(64, 3, 0, 12)
    out = poison(64, torch.int32, device)
    rawkern.RawKernel(code)[1, 64](rounds.to(device), out)
    if device == "cpu":  # hardware may run lanes apart
        want = []
        for part in rounds.view(2, 32):
            inside = [int((part > r).sum()) * (r + 1) + int((part > r + 3).sum()) for r in range(12)]
            want += [sum(inside[:m]) for m in part.tolist()]
        assert out.tolist() == want


def test_scans(device):
    code = r"""extern "C" __global__ void k(const int* x, int* incl, int* segmented) {
        int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
        int v = x[i];
        for (int d = 1; d < 32; d *= 2) { int u = __shfl_up_sync(~0u, v, d); if (lane >= d) v += u; }
        incl[i] = v;
        // a new segment starts at each multiple of 5
        bool head = x[i] % 5 == 0;
        unsigned heads = __ballot_sync(~0u, head) | 1u;
        int start = 31 - __clz(heads & (0xffffffffu >> (31 - lane)));
        int s = x[i];
        for (int d = 1; d < 32; d *= 2) { int u = __shfl_up_sync(~0u, s, d); if (lane - d >= start) s += u; }
        segmented[i] = s;
    }"""
    x = ints(192, 6, -500, 500)
    a, b = poison(192, torch.int32, device), poison(192, torch.int32, device)
    rawkern.RawKernel(code)[3, 64](x.to(device), a, b)
    v = x.numpy().reshape(6, 32)
    np.testing.assert_array_equal(a.cpu().numpy().reshape(6, 32), v.cumsum(1))
    want = v.copy()
    for lane in range(1, 32):
        want[:, lane] += np.where(v[:, lane] % 5 == 0, 0, want[:, lane - 1])
    np.testing.assert_array_equal(b.cpu().numpy().reshape(6, 32), want)


def test_lanes_exchange_through_shared_memory(device):
    """`__syncwarp` orders stores before loads of other lanes."""
    code = r"""extern "C" __global__ void k(const int* x, int* out) {
        __shared__ int s[64];
        int t = threadIdx.x, w = t & ~31;
        s[t] = x[t];
        __syncwarp();
        for (int d = 16; d; d /= 2) {
            if ((t & 31) < d) s[t] += s[t + d];
            __syncwarp();
        }
        out[t] = s[w] + s[w + (t & 1)];
    }"""
    x = ints(64, 7, -1000, 1000)
    out = poison(64, torch.int32, device)
    rawkern.RawKernel(code)[1, 64](x.to(device), out)
    v = x.numpy().reshape(2, 32).astype(np.int64)
    ones = v[:, 1::2].sum(1)  # what is left in element 1 before the last round
    total = v.sum(1)
    want = np.where(LANE % 2, total[:, None] + ones[:, None], 2 * total[:, None])
    np.testing.assert_array_equal(out.cpu().numpy().reshape(2, 32), want)


# Cooperative groups -------------------------------------------------------------------------------------------------------

GROUPS = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
template <int N> __device__ void tile(const int* x, int* out) {
    auto t = cg::tiled_partition<N>(cg::this_thread_block());
    int i = threadIdx.x, v = x[i];
    out[0] = t.thread_rank() * 1000 + t.meta_group_rank() * 10 + t.size();
    out[1] = cg::reduce(t, v, cg::plus<int>());
    out[2] = cg::reduce(t, v, cg::less<int>());
    out[3] = t.shfl(v, (t.thread_rank() + 1) % N);
    out[4] = t.shfl_down(v, 1) - t.shfl_xor(v, N / 2) + t.shfl_up(v, 1);
    out[5] = t.ballot(v > 0);
    out[6] = t.any(v > 450) * 2 + t.all(v > -490);
    out[7] = cg::inclusive_scan(t, v) - cg::exclusive_scan(t, v);
    out[8] = __float2int_rn(cg::reduce(t, v * 0.5f, cg::greater<float>()) * 2);
    t.sync();
}
extern "C" __global__ void tiles(const int* x, int* out) {
    int i = threadIdx.x;
    tile<4>(x, out + i * 36); tile<8>(x, out + i * 36 + 9); tile<16>(x, out + i * 36 + 18); tile<32>(x, out + i * 36 + 27);
}
extern "C" __global__ void coalesced(const int* x, int* out, int* counter) {
    int i = threadIdx.x, v = x[i];
    if (v % 3 == 0) {
        auto g = cg::coalesced_threads();
        int base = 0;
        if (g.thread_rank() == 0) base = atomicAdd(counter, g.size());     // one atomic for all of them
        out[i * 4] = g.shfl(base, 0) + g.thread_rank();
        out[i * 4 + 1] = g.size();
        out[i * 4 + 2] = cg::reduce(g, v, cg::plus<int>());
        auto p = cg::labeled_partition(g, v & 1);
        out[i * 4 + 3] = p.size() * 100 + p.thread_rank();
    }
}
extern "C" __global__ void block(const int* x, int* out) {
    auto b = cg::this_thread_block();
    __shared__ int s[128];
    int r = b.thread_rank();
    s[r] = x[r];
    b.sync();
    out[r] = s[b.size() - 1 - r] + b.group_index().x * 1000 + b.dim_threads().x;
    b.sync();
    auto half = cg::tiled_partition(b, 16);
    if (half.thread_rank() == 0) s[r / 16] = half.size();
    cg::sync(b);
    out[r] += s[r / 16] * 1000000;
}"""


@pytest.fixture(scope="module")
def groups():
    return rawkern.RawModule(code=GROUPS)


def test_tiles(device, groups):
    x = ints(64, 8, -500, 500)
    out = poison(64 * 36, torch.int32, device)
    groups.tiles[1, 64](x.to(device), out)
    got = out.cpu().numpy().reshape(64, 4, 9)
    v = x.numpy()
    for k, n in enumerate((4, 8, 16, 32)):
        for i in range(64):
            r, start = i % n, i // n * n
            t = v[start : start + n]
            down = t[r + 1] if r + 1 < n else t[r]
            up = t[r - 1] if r else t[r]
            ballot = int(((t > 0).astype(np.int64) << np.arange(n)).sum())
            want = [
                r * 1000 + i // n * 10 + n, t.sum(), t.min(), t[(r + 1) % n], down - t[r ^ n // 2] + up, ballot,
                (t > 450).any() * 2 + (t > -490).all(), t[r], t.max(),
            ]  # fmt: skip
            assert [int(a) & 0xFFFFFFFF for a in got[i, k]] == [int(a) & 0xFFFFFFFF for a in want], (n, i)


def test_coalesced_threads(device, groups):
    x = ints(96, 9, -300, 300)
    out, counter = poison(96 * 4, torch.int32, device), torch.zeros(1, dtype=torch.int32, device=device)
    groups.coalesced[1, 96](x.to(device), out, counter)
    got, v = out.cpu().numpy().reshape(96, 4), x.numpy()
    chosen = v % 3 == 0
    assert counter.item() == chosen.sum()
    assert sorted(got[chosen, 0]) == list(range(chosen.sum()))
    assert (got[~chosen] == -77777).all()
    if device == "cpu":  # hardware may split the lanes into several groups
        for w in range(3):
            part = chosen & (np.arange(96) // 32 == w)
            assert (got[part, 1] == part.sum()).all() and (got[part, 2] == v[part].sum()).all()
            for bit in (0, 1):
                same = part & (v & 1 == bit)
                assert got[same, 3].tolist() == [same.sum() * 100 + k for k in range(same.sum())]


def test_thread_block_group(device, groups):
    x = ints(128, 10, -1000, 1000)
    out = poison(128, torch.int32, device)
    groups.block[1, 128](x.to(device), out)
    np.testing.assert_array_equal(out.cpu().numpy(), x.numpy()[::-1] + 128 + 16000000)


def test_warp_barriers_in_two_branches(device):
    """Lanes meet at different ``__syncwarp()`` calls; groups come as often as they like; ended lanes are not waited for."""
    code = r"""
    extern "C" __global__ void branches(int* x, int* out) {
        __shared__ volatile int s[32];
        int t = threadIdx.x;
        s[t] = -1;
        __syncwarp();
        if (t < 16) { for (int r = 0; r < x[t]; r++) x[32 + t] = r;  s[t] = t * 2; __syncwarp(); out[t] = s[t + 16]; x[32 + t] = 7; }
        else { s[t] = t * 3; x[32 + t] = 5; __syncwarp(); out[t] = s[t - 16]; x[32 + t] = 6; }
    }
    extern "C" __global__ void groups(int* out) {
        __shared__ volatile int s[32];
        int t = threadIdx.x, g = t / 8, v = t;
        unsigned mask = 0xffu << (8 * g);
        for (int r = 0; r <= g * 2; r++) {
            s[t] = v;
            __syncwarp(mask);
            v = s[g * 8 + (t + 1) % 8] + r;
            __syncwarp(mask);
        }
        out[t] = v;
    }
    extern "C" __global__ void leave(int* out) {
        __shared__ volatile int s[32];
        int t = threadIdx.x;
        s[t] = t;
        if (t % 3 == 0) {
            out[t] = -5;
            if (t > 20) return;
            __syncwarp(); s[t] = 100 + t; __syncwarp();
        } else { __syncwarp(); __syncwarp(); out[t] = s[t - t % 3]; }
    }"""
    module = rawkern.RawModule(code=code)
    t = np.arange(32)
    x, out = (torch.arange(64, dtype=torch.int32) * 7 % 5).to(device), poison(32, torch.int32, device)
    module.branches[1, 32](x, out)
    np.testing.assert_array_equal(out.cpu(), np.where(t < 16, (t + 16) * 3, (t - 16) * 2))
    assert x[32:].tolist() == [7] * 16 + [6] * 16
    module.groups[1, 32](out)
    want = t.copy()
    for r in range(7):
        moved = t // 8 * 8 + (t + 1) % 8
        want = np.where(r <= t // 8 * 2, want[moved] + r, want)
    np.testing.assert_array_equal(out.cpu(), want)
    module.leave[1, 32](out)
    first = t - t % 3
    want = np.where(t % 3 == 0, -5, np.where(first > 20, first, 100 + first))
    np.testing.assert_array_equal(out.cpu(), want)


def test_shuffled_nan_is_canonical_where_its_bits_are_seen(device):
    """A computed NaN has PTX's bits after shuffles; a loaded one keeps its own."""
    code = r"""extern "C" __global__ void k(const float* x, const float* own, int* bits, float* sum, int* kept) {
        int i = threadIdx.x;
        float v = x[i] * 0.0f, moved = __shfl_down_sync(~0u, v, 3);
        bits[i] = __float_as_int(__shfl_xor_sync(~0u, moved, 1));
        for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
        sum[i] = v;
        kept[i] = __float_as_int(__shfl_xor_sync(~0u, own[i], 1));
    }"""
    x = torch.arange(64.0)
    x[7], x[40] = float("inf"), -float("inf")
    payload = torch.full((64,), 0x7FC01234, dtype=torch.int32).view(torch.float32)
    bits, kept = (torch.full((64,), 5, dtype=torch.int32, device=device) for _ in range(2))
    total = torch.zeros(64, device=device)
    rawkern.RawKernel(code)[1, 64](x.to(device), payload.to(device), bits, total, kept)
    want = torch.zeros(64, dtype=torch.int32)
    for at in (7, 40):
        want[(at - 3) ^ 1] = 0x7FFFFFFF
    assert torch.equal(bits.cpu(), want)
    assert (total.cpu().view(torch.int32) == 0x7FFFFFFF).all()
    assert (kept.cpu() == 0x7FC01234).all()
