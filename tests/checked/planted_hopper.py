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
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ __align__(16) float s[32];
    __shared__ u64 bar;
    if (threadIdx.x == 0) INIT(shared(&bar), 1);
    __syncwarp();
    if (threadIdx.x == 0) {
        EXPECT(shared(&bar), 128);
        LOAD(shared(s), x, 128, shared(&bar));       // defect
    }
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
]  # fmt: skip
