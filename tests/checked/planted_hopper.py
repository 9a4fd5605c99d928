"""Kernels for compute capability 9.0 with one bug each, marked ``// defect``, and what makes each of them right."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.checked.defects import Defect, floats

PRELUDE = r"""
#include <cuda_fp16.h>
typedef unsigned int u32;
typedef unsigned long long u64;
#define ASM(...) asm volatile(__VA_ARGS__)
__device__ u32 shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ u64 cores(const void* p) {  // of 128 bytes: 2 along K, then 8 rows on
    return (shared(p) & 0x3FFFF) >> 4 | (u64)(128 >> 4) << 16 | (u64)(256 >> 4) << 32;
}
#define D(c) "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
#define PRODUCT(c, a, b) ASM("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;" \
    : D(c) : "l"(a), "l"(b) : "memory")
#define FENCE ASM("wgmma.fence.sync.aligned;" ::: "memory")
#define COMMIT ASM("wgmma.commit_group.sync.aligned;" ::: "memory")
#define WAIT(n) ASM("wgmma.wait_group.sync.aligned " #n ";" ::: "memory")
#define PROXY_FENCE ASM("fence.proxy.async.shared::cta;" ::: "memory")
#define INIT(bar, count) ASM("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory")
#define ARRIVE(bar) ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory")
#define EXPECT(bar, bytes) ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory")
#define WAIT_PHASE(bar, parity) ASM("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L; }" \
    :: "r"(bar), "r"(parity) : "memory")
#define LOAD(to, from, bytes, bar) \
    ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" \
        :: "r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory")
#define STORE(to, from, bytes) \
    ASM("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n cp.async.bulk.commit_group;" \
        :: "l"(to), "r"(from), "r"(bytes) : "memory")
#define MEET ASM("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory")
#define RANK(r) ASM("mov.u32 %0, %%cluster_ctarank;" : "=r"(r))
#define MAPA(to, at, rank) ASM("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(at), "r"(rank))
#define LOAD_REMOTE(v, at) ASM("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory")
#define WAIT_STORES ASM("cp.async.bulk.wait_group.read 0;" ::: "memory")
"""


def halves(device: str) -> tuple:
    return (
        torch.randn(64, 16, device=device).half(), torch.randn(8, 16, device=device).half(),
        torch.zeros(64, 8, device=device),
    )  # fmt: skip


#: The operands' way to shared memory.
FILL = r"""
    __shared__ __align__(128) __half sa[64 * 16], sb[8 * 16];
    for (int i = threadIdx.x; i < 64 * 16; i += 128) sa[i / 128 * 128 + i % 16 / 8 * 64 + i / 16 % 8 * 8 + i % 8] = a[i];
    for (int i = threadIdx.x; i < 8 * 16; i += 128) sb[i % 16 / 8 * 64 + i / 16 * 8 + i % 8] = b[i];"""

# A bulk load of a warp's numbers, that its own barrier counts.
LOADS = r"""
    __shared__ __align__(16) float s[32];
    __shared__ u64 bar;
    if (threadIdx.x == 0) INIT(shared(&bar), 1);
    __syncwarp();
    if (threadIdx.x == 0) {
        EXPECT(shared(&bar), 128);
        LOAD(shared(s), x, 128, shared(&bar));       // defect
    }"""


def _pair(
    name: str, error: str, code: str, right: tuple[str, str], block: int, arguments, says: str = "", **more
) -> tuple[Defect, Defect]:  # fmt: skip
    """A kernel with a defect, and the same without, by replacing a part of it."""
    title, rest = code.split("\n", 1)
    code = f"{title}{PRELUDE}{rest}"
    assert right[0] in code, name
    wrong = Defect(name, error, code, more.pop("grid", 1), block, arguments, says=says, **more)
    return wrong, replace(wrong, code=code.replace(*right))


PAIRS = [
    _pair("product_read_early", "RaceError", r"""// sums of a wgmma read before wgmma.wait_group
extern "C" __global__ void k(const __half* a, const __half* b, float* d) {""" + FILL + r"""
    PROXY_FENCE;
    __syncthreads();
    float c[4] = {};
    FENCE;
    PRODUCT(c, cores(sa), cores(sb));
    COMMIT;
    // wait
    for (int i = 0; i < 4; i++)
        d[threadIdx.x * 4 + i] = c[i];               // defect
    WAIT(0);
}""", ("// wait", "WAIT(0);"), 128, halves, says=r"uses sums of its warp group's product .* without waiting for it"),
    _pair("product_wrong_group", "RaceError", r"""// a loop of wgmma that leaves its last group pending
extern "C" __global__ void k(const __half* a, const __half* b, float* d) {""" + FILL + r"""
    PROXY_FENCE;
    __syncthreads();
    float c[4] = {};
    for (int i = 0; i < int(gridDim.x) + 2; i++) {
        FENCE;
        PRODUCT(c, cores(sa), cores(sb));
        COMMIT;
        WAIT(1);
    }
    // wait
    for (int i = 0; i < 4; i++)
        d[threadIdx.x * 4 + i] = c[i];               // defect
}""", ("// wait", "WAIT(0);"), 128, halves, says=r"uses sums of its warp group's product"),
    _pair("operand_overwritten", "RaceError", r"""// an operand of a wgmma overwritten before wgmma.wait_group
extern "C" __global__ void k(const __half* a, const __half* b, float* d) {""" + FILL + r"""
    PROXY_FENCE;
    __syncthreads();
    float c[4] = {};
    FENCE;
    PRODUCT(c, cores(sa), cores(sb));                // defect
    COMMIT;
    // wait
    sb[threadIdx.x] = __half(1.0f);                  // defect
    WAIT(0);
    for (int i = 0; i < 4; i++) d[threadIdx.x * 4 + i] = c[i];
}""", ("// wait", "WAIT(0); __syncthreads();"), 128, halves),
    _pair("no_proxy_fence_for_wgmma", "RaceError", r"""// operands written for a wgmma without fence.proxy.async
extern "C" __global__ void k(const __half* a, const __half* b, float* d) {
    __shared__ __align__(128) __half sa[64 * 16], sb[8 * 16];
    for (int i = threadIdx.x; i < 64 * 16; i += 128)
        sa[i / 128 * 128 + i % 16 / 8 * 64 + i / 16 % 8 * 8 + i % 8] = a[i];  // defect
    for (int i = threadIdx.x; i < 8 * 16; i += 128)
        sb[i % 16 / 8 * 64 + i / 16 * 8 + i % 8] = b[i];                      // defect
    // fence
    __syncthreads();
    float c[4] = {};
    FENCE;
    PRODUCT(c, cores(sa), cores(sb));                // defect
    COMMIT;
    WAIT(0);
    for (int i = 0; i < 4; i++) d[threadIdx.x * 4 + i] = c[i];
}""", ("// fence", "PROXY_FENCE;"), 128, halves, says="without fence.proxy.async in between"),
    _pair("no_proxy_fence_for_store", "RaceError", r"""// shared memory written for a bulk store without fence.proxy.async
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ __align__(16) float s[64];
    s[threadIdx.x] = x[threadIdx.x] + 1;             // defect
    // fence
    __syncthreads();
    if (threadIdx.x == 0) {
        STORE(out, shared(s), 256);                  // defect
        WAIT_STORES;
    }
}""", ("// fence", "PROXY_FENCE;"), 64, floats(64), says="without fence.proxy.async in between"),
    _pair("store_without_wait", "RaceError", r"""// a kernel that ends while its bulk store may still read shared memory
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ __align__(16) float s[64];
    s[threadIdx.x] = x[threadIdx.x] + 1;
    PROXY_FENCE;
    __syncthreads();
    if (threadIdx.x == 0) {
        STORE(out, shared(s), 256);                  // defect
        // wait
    }
}""", ("// wait", "WAIT_STORES;"), 64, floats(64), says="ends while the copy"),
    _pair("load_without_wait", "RaceError", r"""// a kernel that ends while its bulk load may still write shared memory
extern "C" __global__ void k(int n, const float* x, float* out) {""" + LOADS + r"""
    // wait
    out[threadIdx.x] = 1;
}""", ("// wait", "__syncwarp(); WAIT_PHASE(shared(&bar), 0);"), 32, floats(32), says="ends while the copy"),
    _pair("barrier_initialized_twice", "BarrierError", r"""// an mbarrier that each round of a loop initializes
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ u64 bar;
    for (int i = 0; i < n; i++) {
        if (threadIdx.x == 0)
            INIT(shared(&bar), 32);                  // defect
        __syncwarp();
        ARRIVE(shared(&bar));
        WAIT_PHASE(shared(&bar), 0);
        __syncwarp();
        // inval
    }
    out[threadIdx.x] = x[threadIdx.x];
}""", ("// inval", r"""if (threadIdx.x == 0) ASM("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(shared(&bar)) : "memory");"""),
          32, floats(32), says="was already initialized at"),
    _pair("barrier_not_visible", "RaceError", r"""// an mbarrier that another warp uses before it has to be initialized
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ u64 bar;
    if (threadIdx.x == 0)
        INIT(shared(&bar), 64);                      // defect
    // sync
    ARRIVE(shared(&bar));                            // defect
    WAIT_PHASE(shared(&bar), 0);                     // defect
    out[threadIdx.x] = x[threadIdx.x];
}""", ("// sync", "__syncthreads();"), 64, floats(64)),
    _pair("phase_without_wait", "BarrierError", r"""// arrivals at an mbarrier for which no thread waits
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ u64 bar;
    if (threadIdx.x == 0) INIT(shared(&bar), 32);
    __syncwarp();
    for (int i = 0; i < n; i++) {
        __syncwarp();
        ARRIVE(shared(&bar));                        // defect
        // wait
    }
    out[threadIdx.x] = x[threadIdx.x];
}""", ("// wait", "WAIT_PHASE(shared(&bar), i & 1);"), 32, floats(32), says="for whose previous phase no thread has waited"),
    _pair("descriptors_differ", "BarrierError", r"""// warps of a group that give wgmma different operands
extern "C" __global__ void k(const __half* a, const __half* b, float* d) {""" + FILL + r"""
    PROXY_FENCE;
    __syncthreads();
    float c[4] = {};
    u64 left = cores(sa) + threadIdx.x / 32 % 2 * 16;
    FENCE;
    PRODUCT(c, left, cores(sb));                     // defect
    COMMIT;
    WAIT(0);
    for (int i = 0; i < 4; i++) d[threadIdx.x * 4 + i] = c[i];
}""", ("threadIdx.x / 32 % 2 * 16", "0"), 128, halves, says="other matrix descriptors than thread"),
    _pair("no_product_fence", "RaceError", r"""// sums of a wgmma changed between products without wgmma.fence
extern "C" __global__ void k(const __half* a, const __half* b, float* d) {""" + FILL + r"""
    PROXY_FENCE;
    __syncthreads();
    float c[4] = {};
    FENCE;
    for (int i = 0; i < int(gridDim.x) + 1; i++) {
        PRODUCT(c, cores(sa), cores(sb));            // defect
        COMMIT;
        WAIT(0);
        for (int j = 0; j < 4; j++) c[j] *= 0.5f;
        // fence
    }
    for (int i = 0; i < 4; i++) d[threadIdx.x * 4 + i] = c[i];
}""", ("// fence", "FENCE;"), 128, halves, says="without wgmma.fence"),
    _pair("no_first_product_fence", "RaceError", r"""// a first wgmma without wgmma.fence
extern "C" __global__ void k(const __half* a, const __half* b, float* d) {""" + FILL + r"""
    PROXY_FENCE;
    __syncthreads();
    float c[4] = {};
    // fence
    PRODUCT(c, cores(sa), cores(sb));                // defect
    COMMIT;
    WAIT(0);
    for (int i = 0; i < 4; i++) d[threadIdx.x * 4 + i] = c[i];
}""", ("// fence", "FENCE;"), 128, halves, says="without wgmma.fence"),
    _pair("load_read_early", "RaceError", r"""// what a bulk load brings is read before the barrier's phase has ended
extern "C" __global__ void k(int n, const float* x, float* out) {""" + LOADS + r"""
    __syncwarp();
    // wait
    out[threadIdx.x] = s[threadIdx.x];               // defect
    WAIT_PHASE(shared(&bar), 0);
}""", ("// wait", "WAIT_PHASE(shared(&bar), 0);"), 32, floats(32)),
    _pair("wrong_parity", "RaceError", r"""// a wait for the parity of the phase before, which returns at once
extern "C" __global__ void k(int n, const float* x, float* out) {""" + LOADS + r"""
    __syncwarp();
    WAIT_PHASE(shared(&bar), 1 /* parity */);
    out[threadIdx.x] = s[threadIdx.x];               // defect
    WAIT_PHASE(shared(&bar), 0);
}""", ("1 /* parity */", "0"), 32, floats(32)),
    _pair("source_overwritten", "RaceError", r"""// the source of a bulk store overwritten before cp.async.bulk.wait_group.read
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ __align__(16) float s[64];
    s[threadIdx.x] = x[threadIdx.x] + 1;
    PROXY_FENCE;
    __syncthreads();
    if (threadIdx.x == 0) {
        STORE(out, shared(s), 256);                  // defect
        // wait
    }
    __syncthreads();
    s[threadIdx.x] = 0;                              // defect
    if (threadIdx.x == 0) WAIT_STORES;
}""", ("// wait", "WAIT_STORES;"), 64, floats(64)),
    _pair("remote_before_start", "BarrierError", r"""// another block's shared memory read before that block runs
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int n, const float* x, float* out) {
    __shared__ float s[32];
    u32 rank, at;
    float v;
    s[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
    // meet
    RANK(rank);
    MAPA(at, shared(s + threadIdx.x), rank ^ 1);
    LOAD_REMOTE(v, at);                              // defect
    MEET;
    out[blockIdx.x * 32 + threadIdx.x] = v;
}""", ("// meet", "MEET;"), 32, floats(64), grid=2, says="before that block runs"),
    _pair("remote_after_end", "BarrierError", r"""// another block's shared memory read after that block has ended
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int n, const float* x, float* out) {
    __shared__ float s[32];
    u32 rank, at;
    float v;
    s[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
    MEET;
    RANK(rank);
    MAPA(at, shared(s + threadIdx.x), rank ^ 1);
    LOAD_REMOTE(v, at);                              // defect
    // meet
    out[blockIdx.x * 32 + threadIdx.x] = v;
}""", ("// meet", "MEET;"), 32, floats(64), grid=2, says="after that block has ended"),
    _pair("barrier_not_visible_to_cluster", "RaceError", r"""// an mbarrier initialized for another block, without fence.mbarrier_init
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int n, const float* x, float* out) {
    __shared__ u64 bar;
    u32 rank, at;
    if (threadIdx.x == 0)
        INIT(shared(&bar), 32);                      // defect
    // fence
    ASM("barrier.cluster.arrive.relaxed.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
    RANK(rank);
    MAPA(at, shared(&bar), rank ^ 1);
    ASM("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(at) : "memory");  // defect
    WAIT_PHASE(shared(&bar), 0);
    MEET;
    out[blockIdx.x * 32 + threadIdx.x] = 1;
}""", ("// fence", r"""if (threadIdx.x == 0) ASM("fence.mbarrier_init.release.cluster;" ::: "memory");"""),
          32, floats(64), grid=2),
    _pair("wrong_barrier", "RaceError", r"""// a wait at the barrier of another stage's copy
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ __align__(16) float s[2][32];
    __shared__ u64 bars[2];
    if (threadIdx.x == 0) INIT(shared(bars), 1);
    if (threadIdx.x == 0) INIT(shared(bars + 1), 1);
    __syncwarp();
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            EXPECT(shared(bars + i), 128);
            LOAD(shared(s[i]), x + 32 * i, 128, shared(bars + i));  // defect
        }
    }
    __syncwarp();
    WAIT_PHASE(shared(bars /* 0 */), 0);
    out[threadIdx.x] = s[1][threadIdx.x];            // defect
    WAIT_PHASE(shared(bars), 0);
    WAIT_PHASE(shared(bars + 1), 0);
}""", ("bars /* 0 */", "bars + 1"), 32, floats(64)),
]  # fmt: skip

CHECK, LAUNCH = "`full`", "every launch"
CLUSTERS, HOPPER = "engines/cpu/test_clusters.py", "engines/cpu/test_hopper.py"
TENSOR = "engines/cpu/emit/memory/test_tensor.py"
#: What can go wrong with Hopper's asynchronous operations: where it is reported, as what; and who plants it: names of
#: `PAIRS`, and tests by file and function.
FINDINGS: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("memory that a copy writes read before a wait for the phase of its barrier", CHECK, "RaceError",
     ("load_read_early", "wrong_barrier", f"{HOPPER}::test_bulk_copies_happen_where_they_are_waited_for")),
    ("a wait with the wrong parity", CHECK, "RaceError", ("wrong_parity",)),
    ("fewer or more bytes expected than arrive, or arrivals that are missing", LAUNCH, "LaunchError",
     (f"{HOPPER}::test_a_phase_that_never_ends_is_a_deadlock",)),
    ("an ordinary write without `fence.proxy.async` before a bulk store or `wgmma` reads it", CHECK, "RaceError",
     ("no_proxy_fence_for_wgmma", "no_proxy_fence_for_store")),
    ("a source overwritten before `wait_group.read`, an operand before `wgmma.wait_group`", CHECK, "RaceError",
     ("source_overwritten", "operand_overwritten")),
    ("an operand of `wgmma` overwritten before `wgmma.wait_group`", LAUNCH, "LaunchError",
     (f"{HOPPER}::test_products_take_effect_where_they_are_waited_for",)),
    ("a kernel that ends with copies under way", CHECK, "RaceError", ("store_without_wait", "load_without_wait")),
    ("shared memory of another block accessed before that block starts, or after it ends", CHECK, "BarrierError",
     ("remote_before_start", "remote_after_end", f"{CLUSTERS}::test_shared_memory_of_other_blocks")),
    ("an mbarrier initialized twice", CHECK, "BarrierError", ("barrier_initialized_twice",)),
    ("an mbarrier used before its initialization is visible to the block or the cluster", CHECK, "RaceError",
     ("barrier_not_visible", "barrier_not_visible_to_cluster")),
    ("a copy with a size, an address or a first coordinate that is not a multiple of 16 bytes", LAUNCH, "LaunchError",
     (f"{HOPPER}::test_bulk_copies_happen_where_they_are_waited_for", f"{TENSOR}::test_copies_that_raise")),
    ("sums of `wgmma` read before `wgmma.wait_group`", CHECK, "RaceError",
     ("product_read_early", "product_wrong_group")),
    ("`wgmma` without `wgmma.fence` after writes of its registers, or before the first one", CHECK, "RaceError",
     ("no_product_fence", "no_first_product_fence")),
    ("warps of a group that give `wgmma` different descriptors", CHECK, "BarrierError", ("descriptors_differ",)),
    ("a warp of the group that does not take part in `wgmma`", LAUNCH, "LaunchError", (f"{HOPPER}::test_wgmma",)),
    ("`barrier.cluster.arrive` twice without a wait, a wait without one, a block that never arrives", LAUNCH,
     "LaunchError", (f"{CLUSTERS}::test_what_goes_wrong_at_the_barrier_is_said",)),
    ("arrivals for a phase of an mbarrier while no thread has waited for the one before", CHECK, "BarrierError",
     ("phase_without_wait",)),
    ("a tensor store or reduction to a negative coordinate", LAUNCH, "LaunchError",
     (f"{TENSOR}::test_copies_that_raise",)),
    ("memory that the launch before writes, accessed before `griddepcontrol.wait` with `programmatic=True`", CHECK,
     "RaceError",
     ("checked/test_planted_hopper.py::test_what_the_launch_before_writes_is_read_after_a_wait_for_it",)),
    ("a tensor map that a kernel changes (`tensormap.replace`)", "compilation", "UnsupportedError",
     ("engines/cpu/test_unsupported.py::test_an_instruction_that_the_engine_lacks",)),
]  # fmt: skip


def table() -> str:
    """The table of docs/checking.md."""
    rows = ["| finding | reported in | as |", "| --- | --- | --- |"]
    return "\n".join([*rows, *(f"| {what} | {level} | `{error}` |" for what, level, error, _ in FINDINGS)])
