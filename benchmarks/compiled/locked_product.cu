// A product on tensor cores in four unrolled stages, whose blocks add up in turn, behind a lock: lanes may wait
// anywhere, and hundreds of registers live through all of it.
#include <cuda_fp16.h>

struct Tile { float v[4]; };

__device__ void product(Tile& d, const unsigned* a, const unsigned* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d.v[0]), "+f"(d.v[1]), "+f"(d.v[2]), "+f"(d.v[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

extern "C" __global__ void locked_product(const uint4* a, const uint2* b, const half2* scales, float4* c, int steps,
                                          int tiles, int* lock) {
    __shared__ uint4 rows[4][256];
    int lane = threadIdx.x;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        Tile sums[4][8] = {};
        for (int step = 0; step < steps; step += 4) {
#pragma unroll
            for (int stage = 0; stage < 4; stage++) {
                if (step + stage < steps) rows[stage][lane] = a[(step + stage) * 256 + lane];
                __syncthreads();
                half2 scale = scales[step + stage];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    uint4 row = rows[stage][(lane + 32 * i) % 256];
#pragma unroll
                    for (int j = 0; j < 8; j++) {
                        uint2 column = b[((step + stage) * 8 + j) * 32 + lane % 32];
                        half2 low = __hmul2(*(half2*)&column.x, scale);
                        half2 high = __hfma2(*(half2*)&column.y, scale, scale);
                        unsigned right[2] = {*(unsigned*)&low, *(unsigned*)&high};
                        product(sums[i][j], &row.x, right);
                    }
                }
                __syncthreads();
            }
        }
        if (lane == 0)
            while (*(volatile int*)lock != tile) {}
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float4* at = c + (i * 8 + j) * 256 + lane;
                float4 old = *at;
                float* v = sums[i][j].v;
                *at = make_float4(old.x + v[0], old.y + v[1], old.z + v[2], old.w + v[3]);
            }
        __syncthreads();
        __threadfence();
        if (lane == 0) *(volatile int*)lock = tile + 1;
    }
}
