"""Cooperative groups inside kernels, against NumPy: partitions, reductions and scans, tiles of several warps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern

CODE = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

extern "C" __global__ void partitions(const int* x, int* out) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    int t = threadIdx.x, v = x[t], *o = out + t * 12;
    auto half = cg::binary_partition(warp, v > 0);
    o[0] = half.size(); o[1] = half.thread_rank(); o[2] = cg::reduce(half, v, cg::plus<int>());
    auto same = cg::labeled_partition(warp, v & 3);
    o[3] = same.size(); o[4] = cg::reduce(same, v, cg::greater<int>());
    o[5] = cg::inclusive_scan(same, v);
    o[6] = cg::exclusive_scan(half, v, cg::bit_xor<int>());
    int z = 5;
    cg::invoke_one(warp, [&] { z = 6; });
    o[7] = cg::reduce(warp, z, cg::plus<int>());
    o[8] = cg::invoke_one_broadcast(same, [&] { return v; }) == same.shfl(v, 0);
    o[9] = same.shfl(v, same.size() - 1) - same.shfl_down(v, 1);
    o[10] = warp.match_any(v & 7);
    int all;
    warp.match_all(v & ~0x3ff, all);
    o[11] = all;
}
template <class T, int N> __device__ void operations(T v, T* o) {
    auto tile = cg::tiled_partition<N>(cg::this_thread_block());
    o[0] = cg::reduce(tile, v, cg::plus<T>());  o[1] = cg::reduce(tile, v, cg::less<T>());
    o[2] = cg::reduce(tile, v, cg::greater<T>());  o[3] = cg::inclusive_scan(tile, v, cg::greater<T>());
    o[4] = cg::exclusive_scan(tile, v);  o[5] = tile.shfl_xor(v, 1);
}
extern "C" __global__ void types(const int* x, double* d, float* f, long long* l, unsigned short* h) {
    int t = threadIdx.x, v = x[t];
    operations<double, 16>(v * 0.25, d + t * 6);
    operations<float, 4>(v * 0.5f, f + t * 6);
    operations<long long, 32>((long long)v << 33, l + t * 6);
    operations<unsigned short, 8>(v, h + t * 6);
}
struct Map { int a, b; };
extern "C" __global__ void structs(const int* x, int* out) {              // x -> a x + b: the order matters
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    auto then = [](Map g, Map f) { return Map{f.a * g.a, f.b * g.a + g.b}; };       // the later one comes first
    int t = threadIdx.x;
    Map m = {x[t] % 7, t}, upto = cg::inclusive_scan(tile, m, then);
    out[t * 2] = upto.a; out[t * 2 + 1] = upto.b;
}
extern "C" __global__ void large(const int* x, int* out) {
    __shared__ cg::block_tile_memory<256> memory;
    auto block = cg::this_thread_block(memory);
    auto a = cg::tiled_partition<64>(block);
    auto b = cg::tiled_partition<128>(block);
    int t = threadIdx.x, v = x[t], *o = out + t * 6;
    o[0] = cg::reduce(a, v, cg::plus<int>());  o[1] = a.shfl(v, 40);
    o[2] = cg::inclusive_scan(b, v);  o[3] = b.any(v > 995);  o[4] = b.all(v > -998);
    o[5] = a.meta_group_rank() * 1000 + a.thread_rank();
    a.sync();
}
// lanes that came by different ways form groups of their own, as often as they like
extern "C" __global__ void loops(const int* x, int* out) {
    int t = threadIdx.x, v = x[t], sum = 0;
    for (int r = 0; r < (v & 7); r++) {
        if ((v >> 3 & r) & 1) { auto g = cg::coalesced_threads(); sum += cg::reduce(g, v, cg::plus<int>()) * (r + 1); }
        else { auto g = cg::coalesced_threads(); sum += g.size() + g.ballot(v < 0) % 1000; }
    }
    out[t] = sum;
}
extern "C" __global__ void grid(int n, const float* x, double* part, double* out) {
    auto g = cg::this_grid();
    double sum = 0;
    for (int i = g.thread_rank(); i < n; i += g.size()) sum += x[i];
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    sum = cg::reduce(warp, sum, cg::plus<double>());
    if (warp.thread_rank() == 0) part[g.thread_rank() / 32] = sum;
    g.sync();
    int warps = g.size() / 32;
    if (g.block_rank() == 0 && threadIdx.x < 32) {
        double total = 0;
        for (int i = threadIdx.x; i < warps; i += 32) total += part[i];
        total = cg::reduce(warp, total, cg::plus<double>());
        if (threadIdx.x == 0) *out = total;
    }
    g.sync();
    if (threadIdx.x == 0) part[g.block_rank()] = *out;
}
"""


@pytest.fixture(scope="module")
def groups():
    return rawkern.RawModule(code=CODE, enable_cooperative_groups=True)


def ints(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1000, 1000, n).astype(np.int32)


def empty(shape, dtype, device: str) -> torch.Tensor:
    return torch.from_numpy(np.full(shape, 77, dtype)).to(device)


def on(x: np.ndarray, device: str) -> torch.Tensor:
    return torch.from_numpy(x.copy()).to(device)


def test_partitions_of_a_warp(device, groups):
    x = ints(64)
    out = empty((64, 12), np.int32, device)
    groups.partitions[1, 64](on(x, device), out)
    want = []
    for t in range(64):
        warp, v = x[t // 32 * 32 :][:32].astype(np.int64), int(x[t])
        lane = t % 32
        half = np.flatnonzero((warp > 0) == (v > 0))
        same = np.flatnonzero((warp & 3) == (v & 3))
        before = half[half < lane]
        following = same[same > lane]
        down = warp[following[0]] if len(following) else v
        alike = sum(1 << int(k) for k in np.flatnonzero((warp & 7) == (v & 7)))
        want.append([
            len(half), len(before), warp[half].sum(), len(same), warp[same].max(), warp[same[same <= lane]].sum(),
            np.bitwise_xor.reduce(warp[before]) if len(before) else 0, 161, 1, warp[same[-1]] - down,
            np.uint32(alike).view(np.int32), len(set(warp & ~0x3FF)) == 1,
        ])  # fmt: skip
    np.testing.assert_array_equal(out.cpu(), want)


def test_types_and_operations(device, groups):
    x = ints(64, 1)
    values = (x * 0.25, (x * 0.5).astype(np.float32), x.astype(np.int64) << 33, x.astype(np.uint16))
    outs = [empty((64, 6), v.dtype, device) for v in values]
    groups.types[1, 64](on(x, device), *outs[:3], outs[3].view(torch.int16))
    for v, width, out in zip(values, (16, 4, 32, 8), outs, strict=True):
        rows = v.reshape(-1, width)
        whole = np.ones_like(rows)
        total = rows.cumsum(1, dtype=v.dtype)
        want = [
            whole * rows.sum(1, keepdims=True, dtype=v.dtype), whole * rows.min(1, keepdims=True),
            whole * rows.max(1, keepdims=True), np.maximum.accumulate(rows, axis=1), total - rows,
            rows[:, np.arange(width) ^ 1],
        ]  # fmt: skip
        np.testing.assert_array_equal(out.cpu().numpy().reshape(-1, width, 6), np.stack(want, 2))


def test_scan_of_structs(device, groups):
    x = np.abs(ints(64, 2))
    out = empty((64, 2), np.int32, device)
    groups.structs[1, 64](on(x, device), out)
    want = []
    for t in range(64):
        a, b = (1, 0) if t % 8 == 0 else want[-1]
        want.append((a * int(x[t] % 7), b * int(x[t] % 7) + t))
    np.testing.assert_array_equal(out.cpu(), want)


def test_tiles_of_several_warps(device, groups):
    x = ints(256, 3)
    out = empty((256, 6), np.int32, device)
    groups.large[1, 256](on(x, device), out)
    t = np.arange(256)
    small, wide = x.reshape(4, 64), x.reshape(2, 128)
    want = [
        small.sum(1).repeat(64), small[:, 40].repeat(64), wide.cumsum(1).ravel(), (wide > 995).any(1).repeat(128),
        (wide > -998).all(1).repeat(128), t // 64 * 1000 + t % 64,
    ]  # fmt: skip
    np.testing.assert_array_equal(out.cpu(), np.stack(want, 1))


def test_coalesced_threads_in_loops(groups):
    """Hardware may form the groups otherwise; here lanes of one way and round come together."""
    x = ints(32, 4)
    out = empty(32, np.int32, "cpu")
    groups.loops[1, 32](on(x, "cpu"), out)
    v = x.astype(np.int64)
    want = np.zeros(32, np.int64)
    for r in range(7):
        going = r < (v & 7)
        left = going & ((v >> 3 & r) & 1 == 1)
        right = going & ~left
        want[left] += v[left].sum() * (r + 1)
        members = np.flatnonzero(right)
        want[right] += len(members) + sum(1 << k for k, lane in enumerate(members) if v[lane] < 0) % 1000
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize(("blocks", "threads"), [(1, 32), (7, 96)])
def test_sum_of_a_grid(device, groups, blocks, threads):
    x = np.random.default_rng(5).standard_normal(5003).astype(np.float32)
    part, out = empty(blocks * threads // 32, np.float64, device), empty(1, np.float64, device)
    groups.grid[blocks, threads](len(x), on(x, device), part, out)
    np.testing.assert_allclose(out.cpu(), x.astype(np.float64).sum(), rtol=1e-12)
    assert (part[:blocks].cpu() == out.cpu()).all()
