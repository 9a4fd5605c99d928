"""Asynchronous copies and the barriers that wait for them: ``cp.async``, ``mbarrier``, and the libraries on top."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern

# cp.async -----------------------------------------------------------------------------------------------------------

COPIES = r"""
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void k(const unsigned char* x, unsigned char* y, const int* bytes) {
    __shared__ __align__(16) unsigned char s[6][32 * 16];
    int t = threadIdx.x;
    for (int i = t; i < 6 * 32 * 16; i += 32) (&s[0][0])[i] = 0xA5;
    __syncthreads();
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at(&s[0][4 * t])), "l"(x + 4 * t));
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8;" :: "r"(at(&s[1][8 * t])), "l"(x + 8 * (31 - t)));
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" :: "r"(at(&s[2][16 * (t ^ 5)])), "l"(x + 16 * t));
    asm volatile("cp.async.wait_group %0;" :: "n"(1));
    if (t % 3 == 0)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at(&s[3][16 * t])), "l"(x + 16 * t), "r"(16));
    // bytes beyond the count are zeros and are not read: the last rows lie outside of x
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at(&s[4][16 * t])),
        "l"(bytes[t] ? x + 16 * t : (const unsigned char*)0), "r"(bytes[t]));
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; cp.async.ca.shared.global [%0], [%1], 8, p; }"
        :: "r"(at(&s[5][8 * t])), "l"(t & 1 ? (const unsigned char*)0 : x + 8 * t), "r"(t & 1));
    asm volatile("cp.async.wait_all;");
    __syncthreads();
    for (int i = t; i < 6 * 32 * 16; i += 32) y[i] = (&s[0][0])[i];
}"""


def test_copies_of_all_sizes(device):
    rng = np.random.default_rng(0)
    x = rng.integers(1, 256, 512).astype(np.uint8)
    counts = np.array([0, 1, 3, 4, 5, 8, 11, 12, 15, 16] * 4)[:32].astype(np.int32)
    y = torch.full((6 * 512,), 77, dtype=torch.uint8, device=device)
    rawkern.RawKernel(COPIES)[1, 32](torch.from_numpy(x).to(device), y, torch.from_numpy(counts).to(device))
    got = y.cpu().numpy().reshape(6, 512)
    want = np.full((6, 512), 0xA5, np.uint8)
    rows = x.reshape(32, 16)
    want[0, :128] = x[:128]
    want[1, :256] = x[:256].reshape(32, 8)[::-1].reshape(-1)
    want[2] = rows[np.arange(32) ^ 5].reshape(-1)
    want[3].reshape(32, 16)[::3] = rows[::3]
    want[4] = np.where(np.arange(16) < counts[:, None], rows, 0).reshape(-1)
    want[5, :256] = np.where(np.arange(32)[:, None] % 2, 0, x[:256].reshape(32, 8)).reshape(-1)
    np.testing.assert_array_equal(got, want)


def test_more_of_the_source_than_the_copy_takes() -> None:
    """PTX leaves it undefined."""
    code = r"""extern "C" __global__ void k(const int* x, int n) {
        __shared__ __align__(16) int s[128];
        unsigned to = (unsigned)__cvta_generic_to_shared(s + 4 * threadIdx.x);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(to), "l"(x), "r"(threadIdx.x == 3 ? n : 8));
        asm volatile("cp.async.wait_all;");
    }"""
    kernel, x = rawkern.RawKernel(code), torch.zeros(4, dtype=torch.int32)
    kernel[1, 32](x, 7)
    for n in (9, -1):
        with pytest.raises(rawkern.LaunchError, match=r"line 4: thread \(3,0,0\) .* above the copy's 8 bytes"):
            kernel[1, 32](x, n)


# mbarrier -----------------------------------------------------------------------------------------------------------


def test_phases_of_a_barrier(device):
    """One lane plays all parties: arrivals with counts, drops, states, parities."""
    code = r"""extern "C" __global__ void k(long long* out) {
        __shared__ unsigned long long bar;
        unsigned b = (unsigned)__cvta_generic_to_shared(&bar);
        if (threadIdx.x) return;
        unsigned long long first, state;
        unsigned ok, n = 0;
        #define COUNT asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(ok) : "l"(state)); out[n++] = ok;
        #define TEST asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" \
            : "=r"(ok) : "r"(b), "l"(first)); out[n++] = ok;
        #define PARITY(x) asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], " #x "; selp.u32 %0, 1, 0, p; }" \
            : "=r"(ok) : "r"(b)); out[n++] = ok;
        asm volatile("mbarrier.init.shared.b64 [%0], 5;" :: "r"(b));
        PARITY(0) PARITY(1)
        asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(first) : "r"(b));
        state = first; COUNT TEST
        asm volatile("mbarrier.arrive.noComplete.shared.b64 %0, [%1], 2;" : "=l"(state) : "r"(b));
        COUNT TEST
        asm volatile("mbarrier.arrive_drop.shared.b64 %0, [%1];" : "=l"(state) : "r"(b));
        COUNT TEST
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(b));
        TEST PARITY(0) PARITY(1)
        asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(b));  // the drop left 4
        COUNT
        asm volatile("mbarrier.arrive_drop.noComplete.shared.b64 %0, [%1], 2;" : "=l"(state) : "r"(b));
        COUNT
        asm volatile("mbarrier.arrive.b64 %0, [%1];" : "=l"(state) : "l"(&bar));
        COUNT PARITY(0) PARITY(1)
        asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(b));
        COUNT
        asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(b));
        out[n++] = -1;
    }"""
    out = torch.full((24,), 77, dtype=torch.int64, device=device)
    rawkern.RawKernel(code)[1, 32](out)
    #       fresh  arrive  two more  drop   last     next phase: 4, 3, then 1; complete; 2 after both drops
    want = [0, 1, 5, 0, 4, 0, 2, 0, 1, 1, 0, 4, 3, 1, 0, 1, 2, -1]
    assert out.tolist() == want + [77] * (24 - len(want))


def test_copies_arrive_at_a_barrier(device):
    """Each thread's copies count as one arrival (noinc) or as an additional one; consumers spin on the barrier."""
    code = r"""extern "C" __global__ void k(const int* x, int* y, int n) {
        __shared__ int s[128];
        __shared__ unsigned long long bars[2];
        unsigned b[2] = {(unsigned)__cvta_generic_to_shared(bars), (unsigned)__cvta_generic_to_shared(bars + 1)};
        int t = threadIdx.x;
        if (t == 0) {
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(b[0]), "r"(blockDim.x));
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(b[1]), "r"(blockDim.x));
        }
        __syncthreads();
        int sum = 0;
        for (int i = 0; i < n; i++) {
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"((unsigned)__cvta_generic_to_shared(s + t)), "l"(x + i * blockDim.x + t));
            unsigned long long state;
            if (i & 1) {
                asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" :: "r"(b[0]));
                asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(b[0]));
            } else {
                asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(b[0]));
            }
            unsigned ok;
            do asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                : "=r"(ok) : "r"(b[0]), "r"(i & 1) : "memory");
            while (!ok);
            sum = sum * 3 + s[(t * 7 + 40) % blockDim.x];
            asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(b[1]));
            do asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                : "=r"(ok) : "r"(b[1]), "l"(state) : "memory");
            while (!ok);
        }
        y[t] = sum;
    }"""
    rng = np.random.default_rng(4)
    x = rng.integers(-1000, 1000, (5, 96)).astype(np.int32)
    y = torch.full((96,), -77777, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[1, 96](torch.from_numpy(x).to(device), y, 5)
    want = np.zeros(96, np.int32)
    for row in x:
        want = want * 3 + row[(np.arange(96) * 7 + 40) % 96]
    np.testing.assert_array_equal(y.cpu().numpy(), want)


def test_try_wait():
    """Of compute capability 9.0: with scopes, a hint how long to wait, and a generic address; a loop over forward labels."""
    code = r"""extern "C" __global__ void k(int* out, int rounds) {
        __shared__ unsigned long long bar;
        __shared__ int s[64];
        unsigned b = (unsigned)__cvta_generic_to_shared(&bar);
        int t = threadIdx.x, sum = 0;
        if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(b), "r"(blockDim.x));
        __syncthreads();
        for (int i = 0; i < rounds; i++) {
            if (i % 2 == 0) s[t] = t * (i + 1);
            asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" :: "r"(b) : "memory");
            asm volatile("{ .reg .pred P;\n WAIT: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 P, [%0], %1, 1000;\n"
                "@P bra.uni DONE;\n bra.uni WAIT;\n DONE: }" :: "r"(b), "r"(i & 1) : "memory");
            if (i % 2 == 0) sum = sum * 3 + s[63 - t];
        }
        out[t] = sum;
    }"""
    out = torch.full((64,), -77777, dtype=torch.int32)
    rawkern.RawKernel(code)[1, 64](out, 6)
    t = 63 - np.arange(64)
    np.testing.assert_array_equal(out.numpy(), (t * 3 + t * 3) * 3 + t * 5)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("expects", [20, 40, 60, 1000])
@pytest.mark.parametrize("bars", [1, 3])
def test_lanes_arrive_together(bars, expects, count):
    """At one barrier or several, some lanes off, within a phase or beyond: as if each came after the lane before."""
    code = r"""extern "C" __global__ void k(int bars, int expects, int times, unsigned long long mask, int* pending, int* done) {
        __shared__ unsigned long long bar[3];
        int t = threadIdx.x;
        if (t < bars) asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"((unsigned)__cvta_generic_to_shared(bar + t)), "r"(expects));
        __syncthreads();
        unsigned place = (unsigned)__cvta_generic_to_shared(bar + t % bars);
        for (int r = 0; r < 3; r++) {
            if (mask >> t & 1) {
                unsigned long long state;
                asm volatile("mbarrier.arrive.shared.b64 %0, [%1], %2;" : "=l"(state) : "r"(place), "r"(times) : "memory");
                asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending[r * 32 + t]) : "l"(state));
                asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                    : "=r"(done[r * 32 + t]) : "r"(place), "l"(state) : "memory");
            }
        }
    }"""
    mask = 0b10111011101110111011101110110111
    kernel = rawkern.RawKernel(code)
    pending, done = (torch.full((96,), -7, dtype=torch.int32) for _ in range(2))
    kernel[1, 32](bars, expects, count, mask, pending, done)
    left, phase = [expects] * bars, [0] * bars
    for r in range(3):
        came = {}
        for t in range(32):
            if mask >> t & 1:
                b = t % bars
                came[t] = phase[b]
                assert pending[r * 32 + t] == left[b]
                left[b] -= count
                if left[b] <= 0:
                    left[b], phase[b] = expects, phase[b] + 1
            else:
                assert pending[r * 32 + t] == done[r * 32 + t] == -7
        assert all(done[r * 32 + t] == (came[t] != phase[t % bars]) for t in came)


# Libraries ----------------------------------------------------------------------------------------------------------

LIBRARIES = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
extern "C" __global__ void copied_by_a_group(const float* x, float* y, int n) {
    extern __shared__ __align__(16) float s[];
    auto block = cg::this_thread_block();
    float sum = 0;
    for (int at = 0; at < n; at += 128) {
        int count = min(128, n - at);
        cg::memcpy_async(block, s, x + at, sizeof(float) * count);
        cg::wait(block);
        int i = (int)threadIdx.x * 5 % 128;
        if (i < count) sum += s[i];
        block.sync();
    }
    y[threadIdx.x] = sum;
}
using barrier = cuda::barrier<cuda::thread_scope_block>;
#pragma nv_diag_suppress static_var_with_dynamic_init
extern "C" __global__ void handed_over(const int* x, int* y, int rounds) {
    __shared__ barrier ready, filled;
    __shared__ int s[64];
    int t = threadIdx.x;
    if (t == 0) { init(&ready, blockDim.x); init(&filled, blockDim.x); }
    __syncthreads();
    if (t < 64) {
        for (int i = 0; i < rounds; i++) {
            ready.arrive_and_wait();
            s[t] = x[i * 64 + t];
            (void)filled.arrive();
        }
    } else {
        (void)ready.arrive();
        int sum = 0;
        for (int i = 0; i < rounds; i++) {
            filled.arrive_and_wait();
            sum = sum * 3 + s[(t * 11) % 64];
            if (i + 1 < rounds) (void)ready.arrive();
        }
        y[t - 64] = sum;
    }
}
extern "C" __global__ void two_stages(const float* x, float* y, int tiles) {
    constexpr int stages = 2;
    __shared__ __align__(16) float s[stages][128];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, stages> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    float sum = 0;
    for (int i = 0, next = 0; i < tiles; i++) {
        for (; next < tiles && next < i + stages; next++) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, s[next % stages], x + next * 128, cuda::aligned_size_t<16>(512), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum = sum * 0.5f + s[i % stages][(threadIdx.x * 3 + 1) % 128];
        block.sync();
        pipe.consumer_release();
    }
    y[threadIdx.x] = sum;
}
extern "C" __global__ void one_thread(const float4* x, float* y, int n) {
    __shared__ float4 s[2][32];
    int t = threadIdx.x;
    auto pipe = cuda::make_pipeline();
    float sum = 0;
    for (int i = 0; i <= n; i++) {
        if (i < n) {
            pipe.producer_acquire();
            cuda::memcpy_async(&s[i % 2][t], x + i * 32 + t, cuda::aligned_size_t<16>(16), pipe);
            pipe.producer_commit();
        }
        if (i) {
            if (i < n) cuda::pipeline_consumer_wait_prior<1>(pipe); else cuda::pipeline_consumer_wait_prior<0>(pipe);
            float4 v = s[(i - 1) % 2][t];
            sum += v.x - 2 * v.y + 3 * v.z - 4 * v.w;
            pipe.consumer_release();
        }
    }
    y[t] = sum;
}"""


@pytest.fixture(scope="module")
def libraries():
    return rawkern.RawModule(LIBRARIES)


def test_cooperative_groups_memcpy_async(libraries, device):
    n = 128 * 3 + 37
    x = torch.randn(n, generator=torch.Generator().manual_seed(0))
    y = torch.full((128,), float("nan"), device=device)
    libraries.copied_by_a_group[1, 128, 512](x.to(device), y, n)
    rows = torch.cat([x, torch.zeros(512 - n)]).view(4, 128)[:, torch.arange(128) * 5 % 128]
    torch.testing.assert_close(y.cpu(), rows.sum(0), rtol=1e-6, atol=1e-6)


def test_barrier_with_arrive_and_wait(libraries, device):
    """Producer warps arrive and go on; consumer warps wait for the token's phase."""
    x = np.random.default_rng(6).integers(-99, 99, (7, 64)).astype(np.int32)
    y = torch.full((64,), -77777, dtype=torch.int32, device=device)
    libraries.handed_over[1, 128](torch.from_numpy(x).to(device), y, 7)
    want = np.zeros(64, np.int32)
    for row in x:
        want = want * 3 + row[(np.arange(64, 128) * 11) % 64]
    np.testing.assert_array_equal(y.cpu().numpy(), want)


def test_pipeline_of_two_stages(libraries, device):
    """cuda::pipeline shared by a block: the copy of the next tile is under way while this one is summed up."""
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(2))
    y = torch.full((128,), float("nan"), device=device)
    libraries.two_stages[1, 128](x.to(device), y, 5)
    want = torch.zeros(128)
    for row in x:
        want = want * 0.5 + row[(torch.arange(128) * 3 + 1) % 128]
    torch.testing.assert_close(y.cpu(), want, rtol=1e-6, atol=1e-6)


def test_pipeline_of_one_thread(libraries, device):
    """cuda::make_pipeline(): each thread's own copies, which become groups of cp.async."""
    x = torch.randn(6, 32, 4, generator=torch.Generator().manual_seed(3))
    y = torch.full((32,), float("nan"), device=device)
    libraries.one_thread[1, 32](x.view(-1).to(device), y, 6)
    want = (x.double() * torch.tensor([1.0, -2, 3, -4], dtype=torch.float64)).sum((0, 2))
    torch.testing.assert_close(y.cpu().double(), want, rtol=1e-5, atol=1e-5)


# A tile of a matrix product the way CUTLASS does it -----------------------------------------------------------------

TILE = r"""
#include <cuda_fp16.h>
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ int swizzled(int row, int chunk) { return row * 32 + ((chunk ^ (row >> 1)) & 3) * 8; }
// C (m x n) = A (m x k) B (k x n), all by rows; a block of 4 warps makes 64 x 64, each warp 32 x 32; k in tiles of 32
extern "C" __global__ void __launch_bounds__(128) gemm(const half* a, const half* b, float* c, int m, int n, int k) {
    __shared__ __align__(16) half sa[2][64 * 32], sb[2][32 * 72];
    int t = threadIdx.x, lane = t % 32, warp = t / 32, row0 = blockIdx.y * 64, col0 = blockIdx.x * 64;
    auto fetch = [&](int tile) {
        for (int i = t; i < 256; i += 128) {
            int r = i / 4, ch = i % 4, ok = row0 + r < m && tile * 32 + ch * 8 < k ? 16 : 0;
            asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                :: "r"(at(&sa[tile % 2][swizzled(r, ch)])), "l"(ok ? a + (row0 + r) * k + tile * 32 + ch * 8 : a), "r"(ok));
            r = i / 8, ch = i % 8, ok = tile * 32 + r < k && col0 + ch * 8 < n ? 16 : 0;
            asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                :: "r"(at(&sb[tile % 2][r * 72 + ch * 8])), "l"(ok ? b + (tile * 32 + r) * n + col0 + ch * 8 : b), "r"(ok));
        }
        asm volatile("cp.async.commit_group;");
    };
    float sums[2][4][4] = {};
    int tiles = (k + 31) / 32, wr = warp / 2 * 32, wc = warp % 2 * 32;
    fetch(0);
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) { fetch(tile + 1); asm volatile("cp.async.wait_group 1;" ::: "memory"); }
        else asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        for (int s = 0; s < 2; s++) {
            unsigned fa[2][4], fb[4][2];
            for (int i = 0; i < 2; i++)
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                    : "=r"(fa[i][0]), "=r"(fa[i][1]), "=r"(fa[i][2]), "=r"(fa[i][3])
                    : "r"(at(&sa[tile % 2][swizzled(wr + i * 16 + lane % 16, s * 2 + lane / 16)])));
            for (int j = 0; j < 4; j++)
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                    : "=r"(fb[j][0]), "=r"(fb[j][1]) : "r"(at(&sb[tile % 2][(s * 16 + lane % 16) * 72 + wc + j * 8])));
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 4; j++)
                    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                        : "+f"(sums[i][j][0]), "+f"(sums[i][j][1]), "+f"(sums[i][j][2]), "+f"(sums[i][j][3])
                        : "r"(fa[i][0]), "r"(fa[i][1]), "r"(fa[i][2]), "r"(fa[i][3]), "r"(fb[j][0]), "r"(fb[j][1]));
        }
        __syncthreads();
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
            for (int h = 0; h < 2; h++) {
                int row = row0 + wr + i * 16 + h * 8 + lane / 4, col = col0 + wc + j * 8 + lane % 4 * 2;
                if (row < m && col < n) *(float2*)&c[row * n + col] = make_float2(sums[i][j][2 * h], sums[i][j][2 * h + 1]);
            }
}"""


@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 32), (100, 72, 104)])
def test_double_buffered_tiles(device, m, n, k):
    gen = torch.Generator().manual_seed(9)
    a, b = torch.randn(m, k, generator=gen).half(), torch.randn(k, n, generator=gen).half()
    c = torch.full((m, n), float("nan"), device=device)
    rawkern.RawKernel(TILE, "gemm")[(-(-n // 64), -(-m // 64)), 128](a.to(device), b.to(device), c, m, n, k)
    torch.testing.assert_close(c.cpu().double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)
