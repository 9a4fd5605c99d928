"""Kernels for compute capability 9.0 with one bug each, marked ``// defect``, and what makes each of them right."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.checked.defects import Defect

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
}""", ("// wait", "WAIT(0);"), 128, halves, says=r"uses sums of the product .* before it has waited for that"),
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
}""", ("// wait", "WAIT(0);"), 128, halves, says=r"uses sums of the product"),
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
]  # fmt: skip
