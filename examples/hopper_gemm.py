"""C = A B' in bfloat16 as Hopper wants it: TMA, mbarriers, wgmma, multicast in clusters; on a CPU without a GPU.

One warp group loads tiles of A and B into a ring of stages, two multiply them. Two blocks form a cluster; each loads
half of the tile of B that both need, and the hardware copies it to both.

    python examples/hopper_gemm.py [--device cpu|cuda] [--size N]
"""

from __future__ import annotations

import argparse

import torch

import rawkern

SOURCE = r"""
#include <cuda.h>
#include <cuda_bf16.h>
typedef unsigned int u32;
typedef unsigned long long u64;
constexpr int BM = 128, BN = 256, BK = 64, PAIR = 2;         // a block's tile of C, and what a stage has of K
constexpr u32 BYTES_A = BM * BK * 2, BYTES_B = BN * BK * 2;  // of a stage
constexpr u32 STAGE = BYTES_A + BYTES_B;

__device__ u32 shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ u32 rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ void init(u32 bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
}
__device__ void expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ void wait(u32 bar, u32 parity) {
    asm volatile("{\n .reg .pred p;\n AGAIN:\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
                 " @!p bra AGAIN;\n}" :: "r"(bar), "r"(parity) : "memory");
}
__device__ void arrive_at(u32 bar, u32 block) {  // at the barrier of a block of the cluster
    asm volatile("{\n .reg .b32 r;\n mapa.shared::cluster.u32 r, %0, %1;\n"
                 " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r];\n}" :: "r"(bar), "r"(block) : "memory");
}
__device__ void load(u32 to, const CUtensorMap& map, int x, int y, u32 bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" :: "r"(to), "l"(&map), "r"(x), "r"(y), "r"(bar) : "memory");
}
__device__ void load_both(u32 to, const CUtensorMap& map, int x, int y, u32 bar) {  // to both blocks of the cluster
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3}], [%4], %5;"
                 :: "r"(to), "l"(&map), "r"(x), "r"(y), "r"(bar), "h"((short)3) : "memory");
}
__device__ void store(const CUtensorMap& map, int x, int y, u32 from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 :: "l"(&map), "r"(x), "r"(y), "r"(from) : "memory");
}
__device__ u64 tile(u32 at) {  // rows of 128 bytes, swizzled; 8 of them are 1024 bytes
    return (at & 0x3FFFF) >> 4 | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define D64(i) D16(i), D16(i + 16), D16(i + 32), D16(i + 48)
__device__ void multiply(float (&d)[128], u64 a, u64 b, int add) {  // d = a b' (+ d): 64 x 256 of a warp group, 16 of K
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %130, 0;\n wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,"
        "%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,"
        "%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,"
        "%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
        "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, %128, %129, p, 1, 1, 0, 0;}"
        : D64(0), D64(64) : "l"(a), "l"(b), "r"(add));
}

extern "C" __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(384, 1)
gemm(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
     const __grid_constant__ CUtensorMap c, int m, int n, int k) {
    extern __shared__ char memory[];
    __shared__ u64 bars[2 * STAGES];
    const u32 stages = (shared(memory) + 1023) / 1024 * 1024, full = shared(bars), empty = shared(bars + STAGES);
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, steps = (k + BK - 1) / BK;
    const int rows = (m + PAIR * BM - 1) / (PAIR * BM), columns = (n + BN - 1) / BN;  // of tiles of clusters
    const int cluster = blockIdx.x / PAIR, above = cluster / (BAND * columns) * BAND, high = min(rows - above, BAND);
    const int left = cluster % (BAND * columns) / high * BN;  // bands of tiles share what is in the L2 cache
    const int top = ((above + cluster % (BAND * columns) % high) * PAIR + rank()) * BM;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            init(full + 8 * s, 1);
            init(empty + 8 * s, 2 * PAIR);  // the multiplying groups of both blocks
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        for (int i = 0; i < steps && thread == 0; i++) {
            const u32 s = i % STAGES, at = stages + s * STAGE, bar = full + 8 * s, half = rank() * (BN / PAIR);
            wait(empty + 8 * s, i / STAGES % 2 ^ 1);
            expect(bar, STAGE);
            load(at, a, i * BK, top, bar);
            load_both(at + BYTES_A + half * BK * 2, b, i * BK, left + half, bar);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        float d[128];
        for (int i = 0; i < steps; i++) {
            const u32 s = i % STAGES, at = stages + s * STAGE;
            wait(full + 8 * s, i / STAGES % 2);
            const u64 rows64 = tile(at + (group - 1) * 64 * BK * 2), right = tile(at + BYTES_A);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            for (int j = 0; j < BK / 16; j++) multiply(d, rows64 + 2 * j, right + 2 * j, i + j);
            asm volatile("wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (thread < PAIR && i > 0) arrive_at(empty + 8 * ((i - 1) % STAGES), thread);  // the stage before is free
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        asm volatile("bar.sync 1, 256;" ::: "memory");  // both groups have read their last stage
        const u32 from = stages + (group - 1) * 64 * BN * 2;
        for (int j = 0; j < BN / 16; j++) {
            u32 v[4], row = thread / 32 * 16 + thread % 16, part = j % 4 * 2 + thread % 32 / 16;
            for (int i = 0; i < 4; i++)
                asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;"
                             : "=r"(v[i]) : "f"(d[8 * j + 2 * i + 1]), "f"(d[8 * j + 2 * i]));
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" :: "r"(from + j / 4 * 8192
                + row * 128 + (part ^ row % 8) * 16), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync %0, 128;" :: "r"(1 + group) : "memory");
        if (thread == 0) {
            for (int j = 0; j < BN / 64; j++) store(c, left + 64 * j, top + (group - 1) * 64, from + j * 8192);
            asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group.read 0;" ::: "memory");
        }
    }
    __syncwarp();
    cluster_sync();  // the other block's copies and arrivals reach this one
}
"""
BM, BN, BK, PAIR = 128, 256, 64, 2
kernel = rawkern.RawKernel(SOURCE, "gemm")
#: STAGES: of the ring. BAND: how many tiles of clusters lie below each other before the next column begins.
fixed = rawkern.autotune(kernel, [{"STAGES": 4, "BAND": 8}])
tuned = rawkern.autotune(kernel, {"STAGES": [3, 4], "BAND": [4, 8, 16]}, key=["m", "n", "k"])


def memory(config: dict) -> int:
    """Bytes of dynamic shared memory: the stages, which begin at a multiple of 1024."""
    return config["STAGES"] * (BM + BN) * BK * 2 + 1024


def matmul(a: torch.Tensor, b: torch.Tensor, gemm=tuned) -> torch.Tensor:
    """Return ``a @ b.T``, for a of (m, k) and b of (n, k) in bfloat16; k and n are multiples of 8."""
    (m, k), n = a.shape, b.shape[0]
    c = a.new_empty(m, n)
    maps = (
        rawkern.tensor_map(a, (BM, BK), swizzle=128, l2_promotion=256, read_only=True),
        rawkern.tensor_map(b, (BN // PAIR, BK), swizzle=128, l2_promotion=256, read_only=True),
        rawkern.tensor_map(c, (64, 64), swizzle=128),
    )
    gemm[PAIR * -(-m // (PAIR * BM)) * -(-n // BN), 384, memory](*maps, m, n, k)
    return c


def main(device: str, size: int) -> None:
    gemm = fixed if device == "cpu" else tuned
    a, b = (torch.randn(rows, size, device=device).bfloat16() for rows in (size, size // 2 + 8))
    c = matmul(a, b, gemm)
    torch.testing.assert_close(c, a @ b.T, rtol=2e-2, atol=1e-2 * size**0.5)
    print(f"{size} x {size // 2 + 8}, sums of {size} products: agrees with torch")
    print(*gemm.tunings)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=int, help="8192, on the CPU 512")
    options = parser.parse_args()
    main(options.device, options.size or (8192 if options.device == "cuda" else 512))
