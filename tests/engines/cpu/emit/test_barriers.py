"""Barriers: order, threads that ended, counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern
from rawkern.errors import LaunchError
from tests.engines.cpu.emit.barrier_kit import poison

REDUCE = r"""
extern "C" __global__ void reduce(int n, const float* x, double* out) {
    extern __shared__ double s[];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = i < n ? x[i] : 0.0;
    __syncthreads();
    for (int half = (blockDim.x + 1) / 2, m = blockDim.x; m > 1; m = half, half = (half + 1) / 2) {
        if (t + half < m) s[t] += s[t + half];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = s[0];
}
extern "C" __global__ void by_warps(int n, const float* x, double* out) {
    __shared__ double part[32];
    double v = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[i];
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) part[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = lane < blockDim.x / 32 ? part[lane] : 0.0;
        for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
        if (lane == 0) out[blockIdx.x] = v;
    }
}"""


@pytest.mark.parametrize("block", [1, 31, 32, 33, 100, 256, 1000, 1024])
def test_block_sums(device, block):
    n = 1777
    x = torch.randn(n, generator=torch.Generator().manual_seed(1))
    blocks = -(-n // block)
    out = poison(blocks, torch.float64, device)
    module = rawkern.RawModule(code=REDUCE)
    module.reduce[blocks, block, 8 * block](n, x.to(device), out)
    parts = torch.nn.functional.pad(x.double(), (0, blocks * block - n)).view(blocks, block).sum(1)
    torch.testing.assert_close(out.cpu(), parts, rtol=1e-12, atol=1e-12)
    if block % 32 == 0:
        out = poison(3, torch.float64, device)
        module.by_warps[3, block](n, x.to(device), out)
        torch.testing.assert_close(out.cpu(), x.double().sum().expand(3), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("block", [64, 256, 1024])
def test_bitonic_sort(device, block):
    code = r"""extern "C" __global__ void sort(const float* in, float* out) {
        extern __shared__ float s[];
        int t = threadIdx.x;
        s[t] = in[blockIdx.x * blockDim.x + t];
        __syncthreads();
        for (int k = 2; k <= blockDim.x; k *= 2)
            for (int j = k / 2; j > 0; j /= 2) {
                int other = t ^ j;
                if (other > t) {
                    float a = s[t], b = s[other];
                    if ((t & k) == 0 ? a > b : a < b) { s[t] = b; s[other] = a; }
                }
                __syncthreads();
            }
        out[blockIdx.x * blockDim.x + t] = s[t];
    }"""
    x = torch.randn(3, block, generator=torch.Generator().manual_seed(2))
    x[1, 5:50] = x[1, 4]
    out = poison(3 * block, torch.float32, device)
    rawkern.RawKernel(code)[3, block, 4 * block](x.flatten().to(device), out)
    assert torch.equal(out.cpu().view(3, block), x.sort(1).values)


@pytest.mark.parametrize("shape", [(64, 32), (33, 70), (100, 1)])
def test_transpose_by_tiles(device, shape):
    code = r"""extern "C" __global__ void transpose(int w, int h, const float* in, float* out) {
        __shared__ float tile[32][33];
        int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
        for (int k = 0; k < 32; k += 8) if (x < w && y + k < h) tile[threadIdx.y + k][threadIdx.x] = in[(y + k) * w + x];
        __syncthreads();
        x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y;
        for (int k = 0; k < 32; k += 8) if (x < h && y + k < w) out[(y + k) * h + x] = tile[threadIdx.x][threadIdx.y + k];
    }"""
    h, w = shape
    x = torch.randn(h, w)
    out = poison(h * w, torch.float32, device)
    rawkern.RawKernel(code)((-(-w // 32), -(-h // 32)), (32, 8), (w, h, x.flatten().to(device), out))
    assert torch.equal(out.cpu().view(w, h), x.T)


@pytest.mark.parametrize("tile", [8, 16, 32])
def test_tiled_matrix_product(device, tile):
    code = r"""extern "C" __global__ void matmul(int m, int n, int k, const float* a, const float* b, float* c) {
        __shared__ float as[TILE][TILE], bs[TILE][TILE];
        int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
        float sum = 0;
        for (int p = 0; p < k; p += TILE) {
            int kc = p + threadIdx.x, kr = p + threadIdx.y;
            as[threadIdx.y][threadIdx.x] = row < m && kc < k ? a[row * k + kc] : 0.f;
            bs[threadIdx.y][threadIdx.x] = kr < k && col < n ? b[kr * n + col] : 0.f;
            __syncthreads();
            #pragma unroll
            for (int i = 0; i < TILE; i++) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
            __syncthreads();
        }
        if (row < m && col < n) c[row * n + col] = sum;
    }"""
    m, n, k = 50, 71, 45
    a, b = torch.randn(m, k), torch.randn(k, n)
    out = poison(m * n, torch.float32, device)
    kernel = rawkern.RawKernel(code, options=(f"-DTILE={tile}",))
    kernel((-(-n // tile), -(-m // tile)), (tile, tile), (m, n, k, a.flatten().to(device), b.flatten().to(device), out))
    torch.testing.assert_close(out.cpu().view(m, n).double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


def test_scan_of_a_block(device):
    code = r"""extern "C" __global__ void scan(const int* in, int* out) {
        extern __shared__ int s[];
        int t = threadIdx.x, n = blockDim.x, from = 0;
        s[t] = in[blockIdx.x * n + t];
        __syncthreads();
        for (int d = 1; d < n; d *= 2, from ^= 1) {          // two halves that change roles
            s[(from ^ 1) * n + t] = s[from * n + t] + (t >= d ? s[from * n + t - d] : 0);
            __syncthreads();
        }
        out[blockIdx.x * n + t] = s[from * n + t];
    }"""
    x = torch.randint(-1000, 1000, (4, 345), generator=torch.Generator().manual_seed(3), dtype=torch.int32)
    out = poison(4 * 345, torch.int32, device)
    rawkern.RawKernel(code)[4, 345, 2 * 345 * 4](x.flatten().to(device), out)
    assert torch.equal(out.cpu().view(4, 345), x.cumsum(1).int())


@pytest.mark.parametrize("alive", [1, 31, 32, 40, 64, 100, 128])
def test_ended_threads_are_not_waited_for(device, alive):
    """Whole warps, and lanes of a warp, return before the barriers that the others share."""
    code = r"""extern "C" __global__ void k(int alive, int* out) {
        __shared__ int s[128];
        int t = threadIdx.x;
        if (t >= alive) return;
        for (int r = 0; r < 3; r++) {
            s[t] = t * 10 + r;
            __syncthreads();
            out[r * alive + t] = s[alive - 1 - t];
            __syncthreads();
        }
    }"""
    out = poison(3 * alive, torch.int32, device)
    rawkern.RawKernel(code)[1, 128](alive, out)
    want = (alive - 1 - torch.arange(alive)) * 10 + torch.arange(3)[:, None]
    assert torch.equal(out.cpu().view(3, alive), want.int())


def test_warps_leave_a_loop_of_barriers_one_by_one(device):
    code = r"""extern "C" __global__ void k(int* out) {
        __shared__ int total;
        if (threadIdx.x == 0) total = 0;
        __syncthreads();
        int warp = threadIdx.x / 32;
        for (int r = 0; ; r++) {
            if (r == 7 - warp) return;                // warp 7 goes first
            if (threadIdx.x % 32 == 0) atomicAdd(&total, 1 << (2 * r));
            __syncthreads();
            if (threadIdx.x % 32 == 0) out[warp * 8 + r] = total;
            __syncthreads();
        }
    }"""
    out = poison(64, torch.int32, device)
    rawkern.RawKernel(code)[1, 256](out)
    total, want = 0, np.full((8, 8), -77777)
    for r in range(7):
        total += (7 - r) << 2 * r
        want[: 7 - r, r] = total
    np.testing.assert_array_equal(out.cpu().view(8, 8).numpy(), want)


@pytest.mark.rawkern_finding("BarrierError")  # left open by CUDA; the engine goes on all the same
def test_lanes_of_several_warps_leave_between_barriers(device):
    code = r"""extern "C" __global__ void k(const int* rounds, int* out) {
        __shared__ int count[16];
        int t = threadIdx.x;
        if (t < 16) count[t] = 0;
        __syncthreads();
        for (int r = 0; r < rounds[t]; r++) {
            atomicAdd(&count[r], 1);
            __syncthreads();
            out[t * 16 + r] = count[r];
        }
    }"""
    rounds = torch.randint(0, 16, (90,), generator=torch.Generator().manual_seed(4), dtype=torch.int32)
    out = poison(90 * 16, torch.int32, device)
    rawkern.RawKernel(code)[1, 90](rounds.to(device), out)
    taking = torch.tensor([(rounds > r).sum() for r in range(16)])
    want = torch.where(torch.arange(16) < rounds[:, None], taking, -77777)
    assert torch.equal(out.cpu().view(90, 16), want.int())


@pytest.mark.parametrize("block", [32, 50, 256])
def test_barriers_that_count(device, block):
    code = r"""extern "C" __global__ void k(const int* x, int* out) {
        int t = threadIdx.x;
        for (int r = 0; r < 4; r++) {
            int p = x[t] > r * 25;
            int c = __syncthreads_count(p), a = __syncthreads_and(p), o = __syncthreads_or(x[t] > 98 - r);
            out[r * blockDim.x + t] = c * 4 + (a != 0) * 2 + (o != 0);
        }
    }"""
    for seed in range(3):
        x = torch.randint(
            0 if seed else 30, 99, (block,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32
        )
        out = poison(4 * block, torch.int32, device)
        rawkern.RawKernel(code)[1, block](x.to(device), out)
        want = [int((x > 25 * r).sum()) * 4 + int((x > 25 * r).all()) * 2 + int((x > 98 - r).any()) for r in range(4)]
        assert out.cpu().view(4, block).tolist() == [[w] * block for w in want]


def test_counting_barriers_on_two_ways(device):
    """``barrier.red`` without ``.aligned`` counts the lanes of all ways together, and each way gets the result."""
    code = r"""
    __device__ int count(int v) {
        int c; asm volatile("{ .reg .pred p; setp.gt.s32 p, %1, 0; barrier.red.popc.u32 %0, 1, p; }" : "=r"(c) : "r"(v) : "memory"); return c;
    }
    __device__ int any(int v) {
        int c; asm volatile("{ .reg .pred p, q; setp.gt.s32 p, %1, 60; barrier.red.or.pred q, 2, p; selp.s32 %0, 1, 0, q; }" : "=r"(c) : "r"(v) : "memory"); return c;
    }
    extern "C" __global__ void k(const int* x, int* out) {
        int t = threadIdx.x, v = x[t];
        if (t % 3 == 0) { out[t] = count(v) * 4 + any(v); }
        else if (v > 40) { out[t] = count(-v) * 4 + any(v) + 1000; }
        else { int c = count(v); out[t] = c * 4 + any(-v) + 2000; }
    }"""
    kernel = rawkern.RawKernel(code)
    for top in (60, 70):
        x = np.random.default_rng(top).integers(-60, top, 96).astype(np.int32)
        out = poison(96, torch.int32, device)
        kernel[1, 96](torch.from_numpy(x).to(device), out)
        t = np.arange(96)
        first, second = t % 3 == 0, (t % 3 != 0) & (x > 40)
        third = ~first & ~second
        given = np.where(second, -x, x)
        flags = np.where(third, -x, x) > 60
        want = int((given > 0).sum()) * 4 + int(flags.any()) + np.where(first, 0, np.where(second, 1000, 2000))
        np.testing.assert_array_equal(out.cpu(), want)


def test_counting_barrier_without_ended_threads(device):
    code = r"""extern "C" __global__ void k(int alive, int* out) {
        int t = threadIdx.x;
        if (t >= alive) return;
        out[t] = __syncthreads_count(t % 3 == 0) * 2 + (__syncthreads_and(t < alive) != 0);
    }"""
    kernel = rawkern.RawKernel(code)
    for alive in (5, 32, 64, 77):
        out = poison(96, torch.int32, device)
        kernel[1, 96](alive, out)
        assert out.tolist() == [-(-alive // 3) * 2 + 1] * alive + [-77777] * (96 - alive)


@pytest.mark.parametrize("block", [32, 33, 64, 200])
@pytest.mark.parametrize(
    "between", ["if (!__syncthreads_and(false)) __syncthreads();", "if (!__syncthreads_or(true)) __syncthreads();"]
)
def test_predicates_outlive_barriers(device, block, between):
    """What a warp knows of its lanes is kept while others run, in whatever registers the CPU has for it."""
    code = """extern "C" __global__ void k(int* y) {
        int tid = threadIdx.x;
        bool p = tid > 31;
        if (!p) y[tid] = 1;
        __syncthreads();
        BETWEEN
        __syncthreads();
        if (!p) y[tid] = 7;
    }"""
    y = torch.zeros(block, dtype=torch.int32, device=device)
    rawkern.RawKernel(code.replace("BETWEEN", between))[1, block](y)
    assert y.tolist() == [7] * 32 + [0] * (block - 32)


def test_values_that_are_kept_across_a_barrier_have_room(device: str) -> None:
    """A warp's stack holds whatever its kernel spills: here more than a quarter of a megabyte.

    Each value is made of the one before, the last is needed before the barrier, and all are after it, the last first.
    (Reads of memory, each with a branch of its own, would take a minute to compile.)
    """
    count = 1040
    source = r"""extern "C" __global__ void kept(const double* x, double* y) {
        __shared__ double s[32];
        double a[COUNT];
        a[0] = x[threadIdx.x];
        #pragma unroll
        for (int k = 1; k < COUNT; ++k) a[k] = a[k - 1] * 1.0078125;
        s[threadIdx.x] = a[COUNT - 1];
        __syncthreads();
        double sum = s[31 - threadIdx.x];
        #pragma unroll
        for (int k = COUNT - 1; k >= 0; --k) sum = sum * 0.5 + a[k];
        y[threadIdx.x] = sum;
    }"""
    rows = [torch.rand(32, dtype=torch.float64, device=device)]
    for _ in range(count - 1):
        rows.append(rows[-1] * 1.0078125)
    y, expected = torch.empty_like(rows[0]), rows[-1].flip(0)
    rawkern.RawKernel(source.replace("COUNT", str(count)))[1, 32](rows[0], y)
    for row in reversed(rows):
        expected = expected * 0.5 + row
    torch.testing.assert_close(y, expected)


NUMBERED = r"""
extern "C" __global__ void numbered(const int* numbers, const int* counts, int* out) {
    __shared__ int s[128];
    int t = threadIdx.x, number = numbers[t], count = counts[t], pair = t / 64 * 64;
    s[t] = t;
    asm volatile("barrier.sync %0, %1;" :: "r"(number), "r"(count) : "memory");
    out[t] = s[pair + (t + 32) % 64];
}
extern "C" __global__ void parted(const int* numbers, const int* counts, int* out) {
    __shared__ int s[128];
    int t = threadIdx.x, number = numbers[t], count = counts[t], pair = t / 64 * 64;
    s[t] = t;
    for (int i = 0; i < t % 3; i++) out[t] += i;
    if (out[t] < 9) asm volatile("barrier.sync %0, %1;" :: "r"(number), "r"(count) : "memory");
    out[t] = s[pair + (t + 32) % 64];
}"""


@pytest.mark.parametrize("name", ["numbered", "parted"])
def test_barriers_whose_number_is_in_memory(device: str, name: str) -> None:
    """The number differs between warps; the CPU engine does not support one that differs within a warp."""
    kernel, t = rawkern.RawModule(code=NUMBERED).get_function(name), torch.arange(128, device=device, dtype=torch.int32)
    numbers, counts, out = t // 64 + 3, torch.full_like(t, 64), torch.zeros_like(t)
    kernel[1, 128](numbers, counts, out)
    assert out.equal(t // 64 * 64 + (t + 32) % 64)
    if device == "cpu":
        for wrong in ((numbers + t % 2, counts), (numbers, counts + t % 2 * 32)):
            with pytest.raises(
                LaunchError, match=r"line \d+: thread .* a barrier whose number or thread count differs"
            ):
                kernel[1, 128](*wrong, torch.zeros_like(t))
