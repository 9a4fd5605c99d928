"""cub's warp-wide primitives inside kernels, against NumPy: logical warps of many widths, several types."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern

CODE = r"""
#include <cub/warp/warp_exchange.cuh>
#include <cub/warp/warp_load.cuh>
#include <cub/warp/warp_merge_sort.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cub/warp/warp_store.cuh>
#include <cub/thread/thread_operators.cuh>

constexpr int BLOCK = 96;
// Logical warps of a power of two share a warp; of others there is one in each, and the lanes after it do something else.
template <int W> constexpr int STEP = W & (W - 1) ? 32 : W;
struct Map { int a, b; };
struct Compose { __device__ Map operator()(Map f, Map g) const { return {f.a * g.a, f.b * g.a + g.b}; } };
struct Maximum { template <class T> __device__ T operator()(T a, T b) const { return a > b ? a : b; } };

template <int W, class T> __global__ void reduce(int valid, const T* x, const int* flags, T* out, int* map) {
    using R = cub::WarpReduce<T, W>;
    using M = cub::WarpReduce<Map, W>;
    __shared__ union { typename R::TempStorage r; typename M::TempStorage m; } temps[BLOCK / STEP<W>];
    auto& temp = temps[threadIdx.x / STEP<W>];
    int t = threadIdx.x, lane = t % STEP<W>;
    T v = x[t], found[5];
    if (lane >= W) { out[t * 5] = v; return; }
    found[0] = R(temp.r).Sum(v);                                       __syncwarp();
    found[1] = R(temp.r).Sum(v, valid);                                __syncwarp();
    found[2] = R(temp.r).Reduce(v, Maximum{});                         __syncwarp();
    found[3] = R(temp.r).HeadSegmentedSum(v, flags[t]);                __syncwarp();
    found[4] = R(temp.r).TailSegmentedReduce(v, flags[t], Maximum{});  __syncwarp();
    Map f = M(temp.m).Reduce(Map{2 * t + 1, t}, Compose{});
    if (lane == 0) {
        for (int k = 0; k < 3; k++) out[t * 5 + k] = found[k];
        map[t / STEP<W> * 2] = f.a; map[t / STEP<W> * 2 + 1] = f.b;
    }
    if (lane == 0 || flags[t]) out[t * 5 + 3] = found[3];
    if (lane == 0 || flags[t - 1]) out[t * 5 + 4] = found[4];
}

template <int W, class T> __global__ void scan(const T* x, T* out) {
    using S = cub::WarpScan<T, W>;
    __shared__ typename S::TempStorage temps[BLOCK / STEP<W>];
    auto& temp = temps[threadIdx.x / STEP<W>];
    int t = threadIdx.x;
    T v = x[t], a, b, c, d, total;
    if (t % STEP<W> < W) {
    S(temp).InclusiveSum(v, a, total);                                 __syncwarp();
    S(temp).ExclusiveScan(v, b, T(5), Maximum{});                      __syncwarp();
    S(temp).Scan(v, c, d, T(1), cuda::std::plus<>{});                  __syncwarp();
    out[t * 6] = a; out[t * 6 + 1] = total; out[t * 6 + 2] = b; out[t * 6 + 3] = c; out[t * 6 + 4] = d;
    out[t * 6 + 5] = S(temp).Broadcast(v, W / 2);
    } else out[t * 6] = v;
}

template <int W, class T> __global__ void sort(const T* x, T* out, int* where) {
    using S = cub::WarpMergeSort<T, 3, W, int>;
    __shared__ typename S::TempStorage temp[BLOCK / W];
    int t = threadIdx.x, place[3];
    T keys[3];
    for (int k = 0; k < 3; k++) { keys[k] = x[t * 3 + k]; place[k] = t * 3 + k; }
    S(temp[t / W]).StableSort(keys, place, [](T a, T b) { return a > b; });
    for (int k = 0; k < 3; k++) { out[t * 3 + k] = keys[k]; where[t * 3 + k] = place[k]; }
}

template <int W, class T> __global__ void move(int n, const T* x, T* out) {
    using E = cub::WarpExchange<T, 4, W>;
    using L = cub::WarpLoad<T, 4, cub::WARP_LOAD_TRANSPOSE, W>;
    using P = cub::WarpStore<T, 4, cub::WARP_STORE_TRANSPOSE, W>;
    __shared__ union { typename E::TempStorage e; typename L::TempStorage l; typename P::TempStorage p; } temps[BLOCK / W];
    auto& temp = temps[threadIdx.x / W];
    int t = threadIdx.x, lane = t % W, warp = t / W, left = n - warp * 4 * W, rank[4];
    left = left < 0 ? 0 : left > 4 * W ? 4 * W : left;
    T v[4];
    L(temp.l).Load(x + warp * 4 * W, v, left, T(3));
    __syncwarp();
    for (int k = 0; k < 4; k++) { v[k] = v[k] + v[k]; rank[k] = (lane * 4 + k) * 5 % (4 * W); }
    P(temp.p).Store(out + warp * 4 * W, v, left);
    __syncwarp();
    L(temp.l).Load(x + warp * 4 * W, v);               // storing has moved the registers' values between lanes
    __syncwarp();
    out += 4 * BLOCK;
    E(temp.e).BlockedToStriped(v, v);
    for (int k = 0; k < 4; k++) out[warp * 4 * W + k * W + lane] = v[k];
    __syncwarp();
    E(temp.e).ScatterToStriped(v, rank);
    for (int k = 0; k < 4; k++) out[4 * BLOCK + warp * 4 * W + k * W + lane] = v[k];
    __syncwarp();
    E(temp.e).StripedToBlocked(v, v);
    for (int k = 0; k < 4; k++) out[8 * BLOCK + t * 4 + k] = v[k];
}
"""

BLOCK = 96
TYPES = {"unsigned char": np.uint8, "short": np.int16, "int": np.int32, "long long": np.int64, "float": np.float32, "double": np.float64}  # fmt: skip
REDUCE = [(32, "int"), (32, "double"), (16, "float"), (8, "long long"), (12, "int"), (2, "short")]
SCAN = [(32, "int"), (16, "double"), (4, "unsigned char"), (12, "int")]
SORT = [(32, "float"), (8, "int"), (2, "double")]
MOVE = [(32, "double"), (16, "short"), (4, "int")]
INSTANCES = [
    f"{name}<{w}, {t}>"
    for name, which in (("reduce", REDUCE), ("scan", SCAN), ("sort", SORT), ("move", MOVE))
    for w, t in which
]


@pytest.fixture(scope="module")
def cub():
    return rawkern.RawModule(code=CODE, name_expressions=INSTANCES)


def values(n: int, c_type: str, seed: int = 0) -> np.ndarray:
    dtype = np.dtype(TYPES[c_type])
    rng = np.random.default_rng(seed)
    if dtype.kind == "f":
        return (rng.integers(-300, 300, n) / 8).astype(dtype)
    return rng.integers(*((0, 250) if dtype.kind == "u" else (-900, 900)), n).astype(dtype)


def empty(shape, dtype, device: str) -> torch.Tensor:
    return torch.from_numpy(np.full(shape, 77, dtype)).to(device)


def on(x: np.ndarray, device: str) -> torch.Tensor:
    return torch.from_numpy(x.copy()).to(device)


def step_of(width: int) -> int:
    """Threads from one logical warp to the next."""
    return 32 if width & (width - 1) else width


def segments(x: np.ndarray, heads: np.ndarray) -> list[np.ndarray]:
    return np.split(x, np.flatnonzero(heads[1:]) + 1)


@pytest.mark.parametrize(("width", "c_type"), REDUCE)
def test_reduce(device, cub, width, c_type):
    x, valid, step = values(BLOCK, c_type), max(1, width - 3), step_of(width)
    flags = (np.random.default_rng(1).random(BLOCK) < 0.3).astype(np.int32)
    out, found = empty((BLOCK, 5), x.dtype, device), empty((BLOCK // step, 2), np.int32, device)
    cub.get_function(f"reduce<{width}, {c_type}>")[1, BLOCK](valid, on(x, device), on(flags, device), out, found)
    got = out.cpu().numpy().reshape(-1, step, 5)
    rows, marks = x.reshape(-1, step), flags.reshape(-1, step)
    np.testing.assert_array_equal(got[:, width:, 0], rows[:, width:])
    got, rows, marks = got[:, :width], rows[:, :width], marks[:, :width]
    np.testing.assert_array_equal(got[:, 0, 0], rows.sum(1, dtype=x.dtype))
    np.testing.assert_array_equal(got[:, 0, 1], rows[:, :valid].sum(1, dtype=x.dtype))
    np.testing.assert_array_equal(got[:, 0, 2], rows.max(1))
    for row, mark, mine in zip(rows, marks, got, strict=True):
        first = np.concatenate([[1], mark[1:]]).astype(bool)
        np.testing.assert_array_equal(mine[first, 3], [s.sum(dtype=x.dtype) for s in segments(row, first)])
        first = np.concatenate([[1], mark[:-1]]).astype(bool)
        np.testing.assert_array_equal(mine[first, 4], [s.max() for s in segments(row, first)])
    want = []
    for start in range(0, BLOCK, step):
        a, b = 1, 0
        for t in range(start, start + width):
            a, b = a * (2 * t + 1) & 0xFFFFFFFF, (b * (2 * t + 1) + t) & 0xFFFFFFFF
        want.append((a, b))
    np.testing.assert_array_equal(found.cpu(), np.array(want, np.uint32).view(np.int32))


@pytest.mark.parametrize(("width", "c_type"), SCAN)
def test_scan(device, cub, width, c_type):
    x = values(BLOCK, c_type)
    out = empty((BLOCK, 6), x.dtype, device)
    cub.get_function(f"scan<{width}, {c_type}>")[1, BLOCK](on(x, device), out)
    step = step_of(width)
    got, rows = out.cpu().numpy().reshape(-1, step, 6), x.reshape(-1, step)
    np.testing.assert_array_equal(got[:, width:, 0], rows[:, width:])
    got, rows = got[:, :width], rows[:, :width]
    total = rows.cumsum(1, dtype=x.dtype)
    five, one = np.array(5, x.dtype), np.array(1, x.dtype)
    before = np.maximum.accumulate(np.concatenate([np.full_like(rows[:, :1], five), rows], 1), axis=1)[:, :-1]
    want = [
        total, np.broadcast_to(total[:, -1:], rows.shape), before, total + one, total - rows + one,
        np.broadcast_to(rows[:, width // 2 :][:, :1], rows.shape),
    ]  # fmt: skip
    np.testing.assert_array_equal(got, np.stack(want, 2))


@pytest.mark.parametrize(("width", "c_type"), SORT)
def test_merge_sort(device, cub, width, c_type):
    x = values(3 * BLOCK, c_type)
    out, where = empty(3 * BLOCK, x.dtype, device), empty(3 * BLOCK, np.int32, device)
    cub.get_function(f"sort<{width}, {c_type}>")[1, BLOCK](on(x, device), out, where)
    rows = x.reshape(-1, 3 * width)
    order = np.argsort(-rows, axis=1, kind="stable")
    np.testing.assert_array_equal(out.cpu().numpy().reshape(rows.shape), np.take_along_axis(rows, order, 1))
    start = np.arange(len(rows))[:, None] * 3 * width
    np.testing.assert_array_equal(where.cpu().numpy().reshape(rows.shape), order + start)


@pytest.mark.parametrize(("width", "c_type"), MOVE)
def test_load_exchange_and_store(device, cub, width, c_type):
    size = 4 * BLOCK
    for n in (size, size - 37):
        x = values(size, c_type, n)
        out = empty((4, size), x.dtype, device)
        cub.get_function(f"move<{width}, {c_type}>")[1, BLOCK](n, on(x, device), out)
        stored = np.where(np.arange(size) < n, x + x, np.array(77, x.dtype))
        # the registers of lane l are then items l, W + l, 2 W + l, 3 W + l of its warp, which go to 5 (4 l + k)
        rows = x.reshape(-1, 4 * width)
        registers = rows.reshape(-1, 4, width).transpose(0, 2, 1).reshape(rows.shape)
        scattered = np.empty_like(rows)
        scattered[:, np.arange(4 * width) * 5 % (4 * width)] = registers
        np.testing.assert_array_equal(out.cpu(), [stored, x, scattered.ravel(), scattered.ravel()])
