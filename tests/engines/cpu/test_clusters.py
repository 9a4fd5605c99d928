"""Thread block clusters: their registers, their barrier, and what a checked launch says of it."""

from __future__ import annotations

import contextlib
import re

import pytest
import torch

import rawkern
from rawkern.errors import BarrierError, LaunchError, OutOfBoundsError, RaceError
from rawkern.launch import intercept, native
from tests.engines.cpu import sm90

BARRIERS = r"""
#define ARRIVE asm volatile("barrier.cluster.arrive.aligned;" ::: "memory")
#define WAIT asm volatile("barrier.cluster.wait.aligned;" ::: "memory")
extern "C" __global__ void turns(int* x, int* out, int rounds) {
    unsigned r, n;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    for (int k = 0; k < rounds; k++) {
        x[blockIdx.x * blockDim.x + threadIdx.x] = k * 1000 + blockIdx.x;
        ARRIVE;
        WAIT;
        int sum = 0;
        for (int j = 0; j < n; j++) sum += x[(blockIdx.x - r + j) * blockDim.x + threadIdx.x];
        out[blockIdx.x * blockDim.x + threadIdx.x] += sum;
#ifdef EARLY
        __syncthreads();
#else
        ARRIVE; WAIT;
#endif
    }
}
extern "C" __global__ void uneven(int* x, int* out) {  // threads that have ended count as arrived
    if (threadIdx.x >= 32 * (blockIdx.x % 2 + 1) || (blockIdx.x % 2 && threadIdx.x % 2)) return;
    x[blockIdx.x] = blockIdx.x + 1;
    asm volatile("barrier.cluster.arrive;" ::: "memory");
    asm volatile("barrier.cluster.wait;" ::: "memory");
    if (threadIdx.x == 0) out[blockIdx.x] = x[blockIdx.x ^ 1];
}
extern "C" __global__ void wrong(int how) {
    if (how == 0) { ARRIVE; ARRIVE; }
    if (how == 1) { WAIT; }
    if (how == 2 && blockIdx.x % 2 == 0) asm volatile("bar.sync 1, 128;" ::: "memory");
    if (how == 2 && blockIdx.x % 2) { ARRIVE; WAIT; }
}"""


def needs_clusters(device: str) -> None:
    if device == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no clusters")


def test_recorded() -> None:
    sample = (
        r"cluster/(specials|reads|writes|atomics|ring|st_async|red_async|bulk_remote|bulk_multicast|tma_multicast"
        r"|bulk_reduce_(min_s32|inc_u32)|spaces|split|histogram)|misc/cooperative_cluster"
    )
    names = [name for name in sm90.load() if re.match(sample, name)]
    assert len(names) >= 75
    assert {name: wrong for name in names if (wrong := sm90.run(sm90.load()[name]))} == {}


def test_barrier(device: str) -> None:
    """Blocks of a cluster meet again and again; without clusters each block is one of its own."""
    needs_clusters(device)
    module = rawkern.RawModule(code=BARRIERS)
    for cluster, grid, block in ((1, 3, 64), (2, 6, 64), (8, 16, 33), (None, 3, 64)):
        kernel, size = module.get_function("turns").configured(cluster=cluster), cluster or 1
        first = torch.arange(grid) // size * size
        want = (3000 * size + 3 * (size * first + size * (size - 1) // 2)).repeat_interleave(block).tolist()
        x, out = (torch.zeros(grid * block, dtype=torch.int32, device=device) for _ in range(2))
        kernel[grid, block](x, out, 3)
        assert out.tolist() == want
        for seed in range(2 if device == "cpu" else 0):
            with rawkern.order(seed):
                kernel[grid, block](x, out.zero_(), 3)
            assert out.tolist() == want
    x, out = (torch.zeros(4, dtype=torch.int32, device=device) for _ in range(2))
    module.get_function("uneven").configured(cluster=2)[4, 64](x, out)
    assert out.tolist() == [2, 1, 4, 3]


def test_launches_with_clusters_are_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Along each axis a grid that is not made of whole clusters goes to Python, which says so."""
    ranks = rawkern.RawKernel(
        """extern "C" __global__ void ranks(int* out) {
            unsigned r;
            asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
            out[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] = r;
        }"""
    )
    rows = {
        (4, 1, 1): (2, [0, 1, 0, 1]), (2, 2, 1): ((1, 2, 1), [0, 0, 1, 1]), (1, 2, 2): ((1, 1, 2), [0, 0, 1, 1]),
        (2, 2, 2): ((2, 1, 2), [0, 1, 0, 1, 2, 3, 2, 3]),
    }  # fmt: skip
    kernels = {cluster: ranks.configured(cluster=cluster) for cluster, _ in rows.values()}
    launches = {grid: kernels[cluster][grid, 1] for grid, (cluster, _) in rows.items()}
    out = torch.zeros(8, dtype=torch.int32)
    for _ in range(3):
        for launch in launches.values():
            launch(out)
        native.wait()
    with monkeypatch.context() as patched:
        patched.setattr(intercept, "start", lambda *args: pytest.fail("the slow path"))
        for grid, (_, want) in rows.items():
            launches[grid](out.fill_(-1))
            assert out.tolist() == want + [-1] * (8 - len(want))
    for cluster, grid, axis in ((2, (3, 1, 1), "x"), ((1, 2, 1), (1, 3, 1), "y"), ((1, 1, 2), (2, 1, 3), "z")):
        with pytest.raises(ValueError, match=f"grid.{axis} is 3, and cluster.{axis} is 2"):
            kernels[cluster][grid, 1](out)


def test_what_goes_wrong_at_the_barrier_is_said() -> None:
    wrong = rawkern.RawModule(code=BARRIERS).get_function("wrong").configured(cluster=2)
    twice, incomplete = (
        r"line 30: .* arrives at .* twice, without waiting",
        r"line 31: .* waits .* without having arrived",
    )
    dead = r"(?s)deadlock: .*2 warps at a barrier: .*line 32 .*2 warps at the barrier of its cluster: .*line 33"
    for how, message in enumerate((twice, incomplete, dead)):
        with pytest.raises(LaunchError, match=message):
            wrong[2, 64](how)
    with rawkern.check(), pytest.raises(BarrierError, match=r"(?s)line 32: .* that the others never reach.*line 33: "):
        wrong[2, 64](2)


def test_what_the_barrier_orders_is_checked() -> None:
    x, out = (torch.zeros(64, dtype=torch.int32) for _ in range(2))
    relaxed = BARRIERS.replace("cluster.arrive", "cluster.arrive.relaxed", 1)
    for code, options, found in (
        (BARRIERS, (), None),
        (BARRIERS, ("-DEARLY",), r"(?s)reads x\[\d+\].* writes|writes x\[\d+\].* reads"),  # overwritten before all read
        (relaxed, (), r"reads x\[\d+\], which .* writes"),
    ):
        kernel = rawkern.RawModule(code=code, options=options).get_function("turns").configured(cluster=2)
        with rawkern.check():
            if found is None:
                kernel[2, 32](x, out, 2)
            else:
                with pytest.raises(RaceError, match=found):
                    kernel[2, 32](x, out, 2)


RING = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void ring(int* out, int how) {
    __shared__ int mine[64];
    auto cluster = cg::this_cluster();
    unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
    mine[threadIdx.x] = threadIdx.x + 100 * blockIdx.x;
    if (how != 1) cluster.sync();
    int* theirs = cluster.map_shared_rank(mine, next);
    int got = theirs[how == 3 ? threadIdx.x + 64 : threadIdx.x];
    if (how == 4) mine[threadIdx.x] = 7;
    if (how != 2) cluster.sync();
    if (how == 5) atomicAdd(theirs + threadIdx.x % 2, 1);
    if (how == 5) cluster.sync();
    if (how == 5) got = mine[threadIdx.x];
    out[blockIdx.x * 64 + threadIdx.x] = got + cluster.query_shared_rank(theirs) - next;
}"""


def test_shared_memory_of_other_blocks(device: str) -> None:
    needs_clusters(device)
    kernel = rawkern.RawKernel(RING).configured(cluster=4)
    out = torch.zeros(8 * 64, dtype=torch.int32, device=device)
    block, thread = torch.arange(8).repeat_interleave(64), torch.arange(64).repeat(8)
    kernel[8, 64](out, 0)
    assert out.tolist() == (thread + 100 * (block // 4 * 4 + (block + 1) % 4)).tolist()
    kernel[8, 64](out, 5)
    assert out.tolist() == (thread + 100 * block + 32 * (thread < 2)).tolist()
    if device == "cuda":
        return
    with pytest.raises(OutOfBoundsError, match=r"line 11: .* reads address"):
        kernel[8, 64](out, 3)
    early, late = "line 11: .* of its cluster before that block runs", "line 11: .* of its cluster after that block"
    race = r"line 12: .* writes mine\[0\], which .* of block \(3,0,0\) reads at .*line 11"
    with rawkern.check():
        for how in (0, 5):
            kernel[8, 64](out, how)
        for how, error, message in ((1, BarrierError, early), (2, BarrierError, late), (4, RaceError, race)):
            with pytest.raises(error, match=message):
                kernel[8, 64](out, how)
        with pytest.raises(OutOfBoundsError, match=r"line 11: .* reads address"):
            kernel[8, 64](out, 3)


COPIES = r"""
__device__ unsigned place(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ unsigned mapa(unsigned a, unsigned rank) {
    unsigned r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(rank));
    return r;
}
__device__ void meet() { asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ void begin(unsigned bar, unsigned bytes) {
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(bar) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("fence.proxy.async;" ::: "memory");
    meet();
}
__device__ void wait(unsigned bar) {
    asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.acquire.cluster.shared.b64 p, [%0], 0; @!p bra L; }"
        :: "r"(bar) : "memory");
}
extern "C" __global__ void multicast(const int* x, int* out, int waits, int size, int mask) {
    __shared__ __align__(128) int s[64];
    __shared__ int later[64];
    __shared__ unsigned long long bar;
    unsigned rank, b = place(&bar);
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    s[threadIdx.x] = later[threadIdx.x] = -1;
    begin(b, 2 * size);
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2,"
            " [%3], %4;" :: "r"(place(s + 32 * rank)), "l"(x + 32 * blockIdx.x), "r"(size), "r"(b), "h"((short)mask));
    }
    if (waits) wait(b);
    out[blockIdx.x * 64 + threadIdx.x] = s[threadIdx.x] + later[threadIdx.x] + 1;
    wait(b);
    meet();
}
extern "C" __global__ void remote(const int* x, int* out, int how) {
    __shared__ __align__(128) int s[64], mine[64];
    __shared__ unsigned long long bar;
    unsigned rank, b = place(&bar);
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    s[threadIdx.x] = -1;
    mine[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
    begin(b, 256);
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
            :: "r"(mapa(place(s), rank ^ 1)), "r"(place(mine)), "r"(mapa(b, rank ^ 1)) : "memory");
    }
    if (how == 2) mine[threadIdx.x] = 9;
    if (how != 1) wait(b);
    out[blockIdx.x * 64 + threadIdx.x] = s[threadIdx.x];
    wait(b);
    meet();
    mine[threadIdx.x] = 0;
}"""


def test_copies_to_other_blocks(device: str) -> None:
    """Copies to several blocks and to another one, which wait at their own barriers; what does not wait is found."""
    needs_clusters(device)
    module, x = rawkern.RawModule(code=COPIES), torch.arange(256, dtype=torch.int32, device=device)
    multicast, remote = (module.get_function(name).configured(cluster=2) for name in ("multicast", "remote"))
    both, swapped = x[:128].view(2, 64).repeat_interleave(2, 0), x.view(2, 2, 64).flip(1)
    for checked in (False, True) if device == "cpu" else (False,):
        with rawkern.check() if checked else contextlib.nullcontext():
            multicast[4, 64](x, out := torch.zeros_like(x), 1, 128, 3)
            assert out.equal(both.reshape(-1))
            remote[4, 64](x, out, 0)
            assert out.equal(swapped.reshape(-1))
    if device == "cuda":
        return
    multicast[4, 64](x, out, 0, 128, 3)  # as late as at the barrier of the block that gets them
    assert -1 in out.tolist()
    with pytest.raises(OutOfBoundsError, match=r"line 32: .* copies s\[64\.\.67\]; s has 64 elements"):
        multicast[4, 64](x, out, 1, 144, 3)
    with pytest.raises(LaunchError, match=r"line 32: .* by the mask 0x6, which names others than the 2"):
        multicast[4, 64](x, out, 1, 128, 6)
    with rawkern.check():
        early = r"(?s)reads s\[0\], which thread \(0,0,0\) of block \(0,0,0\) copies at .*line 32"
        with pytest.raises(RaceError, match=early):
            multicast[4, 64](x, out, 0, 128, 3)
        with pytest.raises(OutOfBoundsError, match=r"line 32: .* copies s\[64\.\.67\]; s has 64 elements"):
            multicast[4, 64](x, out, 1, 144, 3)
        early = r"(?s)reads s\[0\], which thread \(0,0,0\) of block \(1,0,0\) copies at .*line 49"
        with pytest.raises(RaceError, match=early):
            remote[4, 64](x, out, 1)
        with pytest.raises(RaceError, match=r"(?s)line 51: .* writes mine\[0\].* reads at .*line 49"):
            remote[4, 64](x, out, 2)


SEND = r"""
extern "C" __global__ void send(int* out, int waits) {  // each block sends numbers to the other
    __shared__ __align__(16) int got[64];
    __shared__ unsigned long long bar;
    unsigned at = (unsigned)__cvta_generic_to_shared(&bar), to = (unsigned)__cvta_generic_to_shared(got + threadIdx.x);
    got[threadIdx.x] = -1;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" :: "r"(at) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive;\n barrier.cluster.wait;" ::: "memory");
    asm volatile("{ .reg .b32 a, b; mapa.shared::cluster.u32 a, %0, %1; mapa.shared::cluster.u32 b, %2, %1;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [a], %3, [b]; }"
        :: "r"(to), "r"((blockIdx.x & 1) ^ 1), "r"(at), "r"(threadIdx.x + 100 * blockIdx.x) : "memory");
    if (!waits) out[blockIdx.x * 64 + threadIdx.x] = got[threadIdx.x];
    asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0; @!p bra L; }"
        :: "r"(at) : "memory");
    if (waits) out[blockIdx.x * 64 + threadIdx.x] = got[threadIdx.x];
    asm volatile("barrier.cluster.arrive;\n barrier.cluster.wait;" ::: "memory");
}"""


def test_asynchronous_stores_happen_where_they_are_waited_for(device: str) -> None:
    needs_clusters(device)
    kernel = rawkern.RawKernel(SEND).configured(cluster=2)
    out, sent = torch.zeros(2, 64, dtype=torch.int32, device=device), torch.arange(64)
    want = torch.stack([sent + 100, sent]).int().to(device)
    kernel[2, 64](out, 1)
    assert out.equal(want)
    if device == "cuda":
        return
    with rawkern.check():
        kernel[2, 64](out.zero_(), 1)
        assert out.equal(want)
        with pytest.raises(RaceError, match=r"line 16: .* reads got\[0\], which .* writes at .*line 15"):
            kernel[2, 64](out, 0)
    kernel[2, 64](out, 0)
    assert (out[0, :32] == -1).all()  # of the warp that runs first
    with rawkern.order(0):
        kernel[2, 64](out, 0)
    assert out.eq(want).any() and not out.eq(-1).all()
