"""cub's block-wide primitives inside kernels, against NumPy: every algorithm, ragged blocks and tiles, several types."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern

CODE = r"""
#include <cub/block/block_adjacent_difference.cuh>
#include <cub/block/block_discontinuity.cuh>
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_histogram.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_merge_sort.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_run_length_decode.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_shuffle.cuh>
#include <cub/block/block_store.cuh>

struct Map { int a, b; };                     // x -> a * x + b; composing such maps does not commute
struct Compose { __device__ Map operator()(Map f, Map g) const { return {f.a * g.a, f.b * g.a + g.b}; } };
struct Maximum { template <class T> __device__ T operator()(T a, T b) const { return a > b ? a : b; } };

// out: sum of all, maximum of the first n, sum of two items a thread, and, unless the algorithm needs it to commute, a map
template <int B, cub::BlockReduceAlgorithm A, class T>
__global__ void reduce(int n, const T* x, T* out, int* map) {
    using R = cub::BlockReduce<T, B, A>;
    __shared__ typename R::TempStorage temp;
    int t = threadIdx.x;
    T v = x[t], items[2] = {v, T(t)};
    T sum = R(temp).Sum(v);
    __syncthreads();
    T most = R(temp).Reduce(v, Maximum{}, n);
    __syncthreads();
    T both = R(temp).Sum(items);
    if (t == 0) { out[0] = sum; out[1] = most; out[2] = both; }
    if constexpr (A != cub::BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY) {
        using M = cub::BlockReduce<Map, B, A>;
        __shared__ typename M::TempStorage maps;
        Map all = M(maps).Reduce(Map{2 * t + 1, t}, Compose{});
        if (t == 0) { map[0] = all.a; map[1] = all.b; }
    }
}

struct Running { int total; __device__ int operator()(int sum) { int old = total; total += sum; return old; } };

template <int B, cub::BlockScanAlgorithm A, class T>
__global__ void scan(const T* x, T* out, int* map) {
    using S = cub::BlockScan<T, B, A>;
    using N = cub::BlockScan<int, B, A>;
    using M = cub::BlockScan<Map, B, A>;
    __shared__ union { typename S::TempStorage s; typename N::TempStorage n; typename M::TempStorage m; } temp;
    int t = threadIdx.x;
    T v = x[t], inclusive, all, most, items[3] = {v, v + T(1), v + v};
    S(temp.s).InclusiveSum(v, inclusive, all);
    __syncthreads();
    S(temp.s).ExclusiveScan(v, most, T(40), Maximum{});
    __syncthreads();
    S(temp.s).ExclusiveSum(items, items);
    __syncthreads();
    Running prefix = {1000};
    int once, twice;
    N(temp.n).ExclusiveSum(t, once, prefix);
    __syncthreads();
    N(temp.n).InclusiveSum(1, twice, prefix);
    __syncthreads();
    Map f;
    M(temp.m).InclusiveScan(Map{2 * t + 1, t}, f, Compose{});
    out[t * 5] = inclusive; out[t * 5 + 1] = all; out[t * 5 + 2] = most; out[t * 5 + 3] = items[0]; out[t * 5 + 4] = items[2];
    map[t * 4] = once; map[t * 4 + 1] = twice; map[t * 4 + 2] = f.a; map[t * 4 + 3] = f.b;
}

template <int B, class T>
__global__ void radix(const T* x, T* out, T* down, int* where) {
    using S = cub::BlockRadixSort<T, B, 3, int>;
    __shared__ typename S::TempStorage temp;
    int t = threadIdx.x, place[3];
    T keys[3];
    for (int k = 0; k < 3; k++) { keys[k] = x[t * 3 + k]; place[k] = t * 3 + k; }
    S(temp).Sort(keys, place);
    for (int k = 0; k < 3; k++) { out[t * 3 + k] = keys[k]; where[t * 3 + k] = place[k]; keys[k] = x[t * 3 + k]; }
    __syncthreads();
    S(temp).SortDescendingBlockedToStriped(keys, place);
    for (int k = 0; k < 3; k++) down[k * B + t] = keys[k];
}
template <int B> __global__ void radix_bits(const unsigned* x, unsigned* out) {         // only bits 3 to 10 count
    using S = cub::BlockRadixSort<unsigned, B, 2>;
    __shared__ typename S::TempStorage temp;
    unsigned keys[2] = {x[threadIdx.x * 2], x[threadIdx.x * 2 + 1]};
    S(temp).Sort(keys, 3, 11);
    out[threadIdx.x * 2] = keys[0]; out[threadIdx.x * 2 + 1] = keys[1];
}
struct ByMagnitude { template <class T> __device__ bool operator()(T a, T b) const { return a * a < b * b; } };
template <int B, class T> __global__ void merge(int n, const T* x, T* out, int* where) {
    using S = cub::BlockMergeSort<T, B, 4, int>;
    __shared__ typename S::TempStorage temp;
    int t = threadIdx.x, place[4];
    T keys[4];
    for (int k = 0; k < 4; k++) { place[k] = t * 4 + k; keys[k] = place[k] < n ? x[place[k]] : T(9999); }
    S(temp).StableSort(keys, place, ByMagnitude{}, n, T(9999));
    for (int k = 0; k < 4; k++) if (t * 4 + k < n) { out[t * 4 + k] = keys[k]; where[t * 4 + k] = place[k]; }
}

template <int B, cub::BlockHistogramAlgorithm A> __global__ void histogram(const unsigned char* x, int* out) {
    using H = cub::BlockHistogram<unsigned char, B, 3, 50, A>;
    __shared__ typename H::TempStorage temp;
    __shared__ int bins[50];
    unsigned char items[3];
    for (int r = 0; r < 2; r++) {
        for (int k = 0; k < 3; k++) items[k] = x[(r * B + threadIdx.x) * 3 + k];
        if (r) H(temp).Composite(items, bins); else H(temp).Histogram(items, bins);
        __syncthreads();
    }
    for (int b = threadIdx.x; b < 50; b += B) out[b] = bins[b];
}

template <int B, bool SLICED, class T> __global__ void exchange(const T* x, T* out) {
    using E = cub::BlockExchange<T, B, 3, SLICED>;
    __shared__ typename E::TempStorage temp;
    int t = threadIdx.x, rank[3], row = 0;
    T v[3];
    auto load = [&] { for (int k = 0; k < 3; k++) { v[k] = x[t * 3 + k]; rank[k] = (t * 3 + k) * 7 % (3 * B); } };
    auto blocked = [&] { for (int k = 0; k < 3; k++) out[row * 3 * B + t * 3 + k] = v[k]; row++; __syncthreads(); };
    auto striped = [&] { for (int k = 0; k < 3; k++) out[row * 3 * B + k * B + t] = v[k]; row++; __syncthreads(); };
    load(); E(temp).BlockedToStriped(v, v); striped();
    load(); E(temp).StripedToBlocked(v, v); blocked();
    load(); E(temp).ScatterToBlocked(v, v, rank); blocked();
    load(); E(temp).ScatterToStriped(v, v, rank); striped();
    if (B % 32) return;                            // cub's warps are whole in what follows
    load(); E(temp).BlockedToWarpStriped(v, v);
    for (int k = 0; k < 3; k++) out[row * 3 * B + t / 32 * 96 + k * 32 + t % 32] = v[k];
    row++; __syncthreads();
    load(); E(temp).WarpStripedToBlocked(v, v); blocked();
}

template <int B, int L, class T> __global__ void load_store(int n, const T* x, T* out) {
    constexpr auto from = (cub::BlockLoadAlgorithm)L;
    constexpr auto to = (cub::BlockStoreAlgorithm)L;
    using I = cub::BlockLoad<T, B, 4, from>;
    using O = cub::BlockStore<T, B, 4, to>;
    __shared__ union { typename I::TempStorage i; typename O::TempStorage o; } temp;
    T v[4];
    I(temp.i).Load(x, v);                          // a whole tile, then one of n elements
    for (int k = 0; k < 4; k++) v[k] = v[k] * T(2) + T(1);
    __syncthreads();
    O(temp.o).Store(out, v);
    __syncthreads();
    I(temp.i).Load(x + 4 * B, v, n, T(-9));
    T s = v[0] + v[1] + v[2] + v[3];
    for (int k = 0; k < 4; k++) v[k] = v[k] - T(3);
    __syncthreads();
    O(temp.o).Store(out + 4 * B, v, n);
    out[8 * B + threadIdx.x] = s;
}

template <int B> __global__ void neighbors(int n, const int* x, int* out) {
    using D = cub::BlockDiscontinuity<int, B>;
    using A = cub::BlockAdjacentDifference<int, B>;
    using S = cub::BlockShuffle<int, B>;
    __shared__ union { typename D::TempStorage d; typename A::TempStorage a; typename S::TempStorage s; } temp;
    int t = threadIdx.x, v[2] = {x[t * 2], x[t * 2 + 1]}, r[2], q[2], row = 0;
    auto put = [&] { out[row * 2 * B + t * 2] = r[0]; out[row * 2 * B + t * 2 + 1] = r[1]; row++; __syncthreads(); };
    D(temp.d).FlagHeads(r, v, cuda::std::not_equal_to<int>{}); put();
    D(temp.d).FlagHeads(r, v, cuda::std::not_equal_to<int>{}, x[0]); put();
    D(temp.d).FlagTails(r, v, cuda::std::not_equal_to<int>{}, x[2 * B - 1] + 1); put();
    D(temp.d).FlagHeadsAndTails(r, q, v, cuda::std::not_equal_to<int>{});
    r[0] = r[0] * 2 + q[0]; r[1] = r[1] * 2 + q[1]; put();
    A(temp.a).SubtractLeft(v, r, cuda::std::minus<int>{}); put();
    A(temp.a).SubtractRight(v, r, cuda::std::minus<int>{}); put();
    A(temp.a).SubtractLeftPartialTile(v, r, cuda::std::minus<int>{}, n); put();
    A(temp.a).SubtractRightPartialTile(v, r, cuda::std::minus<int>{}, n); put();
    r[0] = r[1] = -5;
    S(temp.s).Offset(v[0], r[0], 3); __syncthreads(); S(temp.s).Rotate(v[0], r[1], B - 2); put();
    S(temp.s).Up(v, r); if (t == 0) r[0] = -5; put();
    S(temp.s).Down(v, r); if (t == B - 1) r[1] = -5; put();
}

template <int B> __global__ void decode(const short* values, const int* lengths, short* out, int* at, int* total) {
    using D = cub::BlockRunLengthDecode<short, B, 2, 4>;
    __shared__ typename D::TempStorage temp;
    int t = threadIdx.x, length[2] = {lengths[t * 2], lengths[t * 2 + 1]};
    short value[2] = {values[t * 2], values[t * 2 + 1]}, items[4];
    unsigned size, offset[4];
    D runs(temp, value, length, size);
    for (unsigned from = 0; from < size; from += 4 * B) {
        runs.RunLengthDecode(items, offset, from);
        for (int k = 0; k < 4; k++)
            if (from + t * 4 + k < size) { out[from + t * 4 + k] = items[k]; at[from + t * 4 + k] = offset[k]; }
        __syncthreads();
    }
    if (t == 0) *total = size;
}
"""

REDUCTIONS = ("RAKING", "RAKING_COMMUTATIVE_ONLY", "WARP_REDUCTIONS")
SCANS = ("RAKING", "RAKING_MEMOIZE", "WARP_SCANS")
LOADS = range(6)  # direct, striped, vectorized, transposed, by warps, by warps one after the other
C_TYPES = {"unsigned char": np.uint8, "short": np.int16, "int": np.int32, "long long": np.int64, "float": np.float32, "double": np.float64, "unsigned": np.uint32}  # fmt: skip

REDUCE = [(b, a, t) for a in REDUCTIONS for b, t in ((32, "double"), (100, "int"), (256, "float"))]
SCAN = [(b, a, t) for a in SCANS for b, t in ((32, "int"), (100, "double"), (256, "int"))]
RADIX = [(32, "short"), (50, "double"), (128, "float"), (64, "long long"), (96, "unsigned char")]
MERGE = [(32, "int"), (256, "double")]
EXCHANGE = [(64, "false", "double"), (50, "false", "short"), (96, "true", "int")]
LOAD = [(96, mode, "float") for mode in LOADS] + [(64, 2, "unsigned char"), (50, 3, "double")]
INSTANCES = [
    *(f"reduce<{b}, cub::BLOCK_REDUCE_{a}, {t}>" for b, a, t in REDUCE),
    *(f"scan<{b}, cub::BLOCK_SCAN_{a}, {t}>" for b, a, t in SCAN),
    *(f"radix<{b}, {t}>" for b, t in RADIX),
    *(f"merge<{b}, {t}>" for b, t in MERGE),
    *(f"exchange<{b}, {sliced}, {t}>" for b, sliced, t in EXCHANGE),
    *(f"load_store<{b}, {mode}, {t}>" for b, mode, t in LOAD),
    *(f"{name}<{b}>" for name in ("neighbors", "decode", "radix_bits") for b in (33, 128)),
    *(f"histogram<{b}, cub::BLOCK_HISTO_{a}>" for a in ("SORT", "ATOMIC") for b in (40, 128)),
]


@pytest.fixture(scope="module")
def cub():
    return rawkern.RawModule(code=CODE, name_expressions=INSTANCES)


def values(n: int, c_type: str, seed: int = 0) -> np.ndarray:
    """Numbers of both signs with repeats; of floats also both zeros and infinities."""
    dtype = np.dtype(C_TYPES[c_type])
    rng = np.random.default_rng(seed)
    if dtype.kind == "f":
        x = (rng.integers(-300, 300, n) / 8).astype(dtype)
        return x
    low, high = (0, 250) if dtype.kind == "u" else (-900, 900)
    return rng.integers(low, high, n).astype(dtype)


def empty(shape, like: np.ndarray | type, device: str) -> torch.Tensor:
    dtype = like.dtype if isinstance(like, np.ndarray) else np.dtype(like)
    return torch.from_numpy(np.full(shape, 77, dtype)).to(device)


def on(x: np.ndarray, device: str) -> torch.Tensor:
    return torch.from_numpy(x.copy()).to(device)


def maps(n: int) -> np.ndarray:
    """The maps x -> (2t + 1) x + t composed from 0 to t, for each t, modulo 2^32."""
    a, b, rows = 1, 0, []
    for t in range(n):
        a, b = a * (2 * t + 1) & 0xFFFFFFFF, (b * (2 * t + 1) + t) & 0xFFFFFFFF
        rows.append((a, b))
    return np.array(rows, np.uint32).view(np.int32)


@pytest.mark.parametrize(("block", "algorithm", "c_type"), REDUCE)
def test_reduce(device, cub, block, algorithm, c_type):
    x, n = values(block, c_type), block - 3
    x[n:] = 500  # not among the first n
    out, found = empty(3, x, device), empty(2, np.int32, device)
    cub.get_function(f"reduce<{block}, cub::BLOCK_REDUCE_{algorithm}, {c_type}>")[1, block](
        n, on(x, device), out, found
    )
    t = np.arange(block).astype(x.dtype)
    np.testing.assert_array_equal(out.cpu(), [x.sum(), x[:n].max(), (x + t).sum()])  # small eighths add up exactly
    if algorithm != "RAKING_COMMUTATIVE_ONLY":
        np.testing.assert_array_equal(found.cpu(), maps(block)[-1])


@pytest.mark.parametrize(("block", "algorithm", "c_type"), SCAN)
def test_scan(device, cub, block, algorithm, c_type):
    x = values(block, c_type)
    out, found = empty((block, 5), x, device), empty((block, 4), np.int32, device)
    cub.get_function(f"scan<{block}, cub::BLOCK_SCAN_{algorithm}, {c_type}>")[1, block](on(x, device), out, found)
    items = np.stack([x, x + 1, x + x], 1)
    before = (items.cumsum() - items.ravel()).reshape(-1, 3)
    most = np.maximum.accumulate(np.concatenate([[40], x]))[:-1]
    want = np.stack([x.cumsum(), np.full(block, x.sum()), most, before[:, 0], before[:, 2]], 1)
    np.testing.assert_array_equal(out.cpu(), want)
    t = np.arange(block)
    total = block * (block - 1) // 2
    want = np.concatenate([(1000 + t.cumsum() - t)[:, None], (1000 + total + t + 1)[:, None], maps(block)], 1)
    np.testing.assert_array_equal(found.cpu(), want)


@pytest.mark.parametrize(("block", "c_type"), RADIX)
def test_radix_sort(device, cub, block, c_type):
    x = values(3 * block, c_type)
    if x.dtype.kind == "f":
        x[[3, 7, 20, 5]] = [-np.inf, np.inf, -0.0, 0.0]
    out, down, where = empty(3 * block, x, device), empty(3 * block, x, device), empty(3 * block, np.int32, device)
    cub.get_function(f"radix<{block}, {c_type}>")[1, block](on(x, device), out, down, where)
    order = np.argsort(x, kind="stable")  # cub takes -0.0 for 0.0, as NumPy does
    np.testing.assert_array_equal(out.cpu(), x[order])
    np.testing.assert_array_equal(where.cpu(), order)
    np.testing.assert_array_equal(down.cpu(), x[order][::-1])


@pytest.mark.parametrize("block", [33, 128])
def test_radix_sort_of_some_bits(device, cub, block):
    x = np.random.default_rng(1).integers(0, 2**32, 2 * block).astype(np.uint32)
    out = empty(2 * block, x, device)
    cub.get_function(f"radix_bits<{block}>")[1, block](on(x, device), out)
    np.testing.assert_array_equal(out.cpu(), x[np.argsort(x >> 3 & 255, kind="stable")])


@pytest.mark.parametrize(("block", "c_type"), MERGE)
def test_merge_sort(device, cub, block, c_type):
    for n in (4 * block, 4 * block - 27, 1):
        x = values(n, c_type, n)
        out, where = empty(n, x, device), empty(n, np.int32, device)
        cub.get_function(f"merge<{block}, {c_type}>")[1, block](n, on(x, device), out, where)
        order = np.argsort(np.abs(x), kind="stable")
        np.testing.assert_array_equal(out.cpu(), x[order])
        np.testing.assert_array_equal(where.cpu(), order)


@pytest.mark.parametrize("algorithm", ["SORT", "ATOMIC"])
@pytest.mark.parametrize("block", [40, 128])
def test_histogram(device, cub, algorithm, block):
    x = (np.random.default_rng(2).integers(0, 50, 6 * block) ** 2 // 50).astype(np.uint8)
    out = empty(50, np.int32, device)
    cub.get_function(f"histogram<{block}, cub::BLOCK_HISTO_{algorithm}>")[1, block](on(x, device), out)
    np.testing.assert_array_equal(out.cpu(), np.bincount(x, minlength=50))


@pytest.mark.parametrize(("block", "sliced", "c_type"), EXCHANGE)
def test_exchange(device, cub, block, sliced, c_type):
    """The kernel reads blocked and says in each row which arrangement it takes its registers for."""
    x = values(3 * block, c_type)
    out = empty((6, 3 * block), x, device)
    cub.get_function(f"exchange<{block}, {sliced}, {c_type}>")[1, block](on(x, device), out)
    scattered = np.empty_like(x)
    scattered[np.arange(3 * block) * 7 % (3 * block)] = x
    want = [x, x.reshape(block, 3).T.ravel(), scattered, scattered]
    if block % 32 == 0:
        want += [x, x.reshape(-1, 32, 3).transpose(0, 2, 1).ravel()]
    out = out[: len(want)]
    np.testing.assert_array_equal(out.cpu(), want)


@pytest.mark.parametrize(("block", "mode", "c_type"), LOAD)
def test_load_and_store(device, cub, block, mode, c_type):
    kernel = cub.get_function(f"load_store<{block}, {mode}, {c_type}>")
    for n in (4 * block, 4 * block - 13, 5):
        x = values(8 * block, c_type, n)
        out = empty(9 * block, x, device)
        kernel[1, block](n, on(x, device), out)
        two, nine, three = (np.array(v).astype(x.dtype) for v in (2, -9, 3))
        tail = np.where(np.arange(4 * block) < n, x[4 * block :], nine)
        stored = np.where(np.arange(4 * block) < n, tail - three, np.array(77, x.dtype))
        mine = tail.reshape(4, block).T if mode == 1 else tail.reshape(block, 4)
        want = np.concatenate([x[: 4 * block] * two + np.array(1, x.dtype), stored, mine.sum(1, dtype=x.dtype)])
        np.testing.assert_array_equal(out.cpu(), want)


@pytest.mark.parametrize("block", [33, 128])
def test_neighbors(device, cub, block):
    m, n = 2 * block, 2 * block - 7
    x = np.random.default_rng(3).integers(-3, 3, m).astype(np.int32)
    out = empty((11, m), x, device)
    cub.get_function(f"neighbors<{block}>")[1, block](n, on(x, device), out)
    heads = np.concatenate([[1], x[1:] != x[:-1]])
    tails = np.concatenate([x[1:] != x[:-1], [1]])
    left = np.concatenate([x[:1], x[1:] - x[:-1]])
    right = np.concatenate([x[:-1] - x[1:], x[-1:]])
    i = np.arange(m)
    first = x[::2]
    moved = np.full((block, 2), -5)
    moved[: block - 3, 0] = first[3:]
    moved[:, 1] = np.roll(first, -(block - 2))
    want = [
        heads, np.concatenate([[0], heads[1:]]), tails, heads * 2 + tails, left, right,
        np.where(i < n, left, x), np.where(i < n - 1, right, x), moved.ravel(),
        np.concatenate([[-5], x[:-1]]), np.concatenate([x[1:], [-5]]),
    ]  # fmt: skip
    np.testing.assert_array_equal(out.cpu(), want)


@pytest.mark.parametrize("block", [33, 128])
def test_run_length_decode(device, cub, block):
    rng = np.random.default_rng(4)
    x, lengths = values(2 * block, "short"), rng.integers(1, 12, 2 * block).astype(np.int32)
    size = int(lengths.sum())
    out, at, total = empty(size, x, device), empty(size, np.int32, device), empty(1, np.int32, device)
    cub.get_function(f"decode<{block}>")[1, block](on(x, device), on(lengths, device), out, at, total)
    assert total.item() == size
    np.testing.assert_array_equal(out.cpu(), np.repeat(x, lengths))
    np.testing.assert_array_equal(at.cpu(), np.concatenate([np.arange(k) for k in lengths]))
