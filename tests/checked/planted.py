"""Kernels with one bug each, marked ``// defect``: what the checker must find, and where.

``python -m tests.checked.planted > docs/planted-defects.md`` writes the page of them.
"""

from __future__ import annotations

import torch

from tests.checked import planted_hopper
from tests.checked.defects import Defect, floats, freed, ints

BOUNDS = "OutOfBoundsError"
DEFECTS = [
    Defect("tail", BOUNDS, r"""// off by one at the tail: `<=` for `<`
extern "C" __global__ void k(int n, const float* x, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n)
        out[i] =                                     // defect
            2 * x[i];                                // defect
}""", 4, 256, floats(1000), says=r"x\[1000\]; x has 1000 elements"),
    Defect("no_guard", BOUNDS, r"""// no bounds test for the last, partial block
extern "C" __global__ void k(int n, const float* x, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = x[i] + 1;                               // defect
}""", 4, 256, floats(1000), says=r"thread \(232,0,0\) of block \(3,0,0\)"),
    Defect("wrong_grid", BOUNDS, r"""// rows and columns of the index swapped
extern "C" __global__ void k(int rows, int columns, const float* x, float* out) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r < rows && c < columns)
        out[c * columns + r] =                       // defect
            x[r * columns + c];
}""", (3, 2), (16, 8), lambda d: (10, 40, torch.randn(10, 40, device=d), torch.zeros(10, 40, device=d))),
    Defect("halo", BOUNDS, r"""// a stencil reads its halo before the first element
extern "C" __global__ void k(int n, const float* x, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n - 1)
        out[i] = x[i]
            + x[i - 1]                               // defect
            + x[i + 1];
}""", 4, 256, floats(1000), says=r"reads x\[-1\]"),
    Defect("negative_index", BOUNDS, r"""// a search that ends before the first element
extern "C" __global__ void k(int n, const int* x, int* out) {
    int i = threadIdx.x, j = i;
    while (x[j] != 60)                               // defect
        j--;
    out[i] = j;
}""", 1, 32, ints(100)),
    Defect("index_overflow", BOUNDS, r"""// a 32-bit product that wraps around and passes the test
extern "C" __global__ void k(int n, int pitch, const float* x, float* out) {
    int i = threadIdx.x * pitch;
    if (i < n)
        out[threadIdx.x] = x[i];                     // defect
}""", 1, 64, lambda d: (64, 200_000_000, torch.arange(64.0, device=d), torch.zeros(64, device=d)),
           says=r"thread \(11,0,0\) .* reads x\[-2094967296\]"),
    Defect("wrong_stride", BOUNDS, r"""// a grid-stride loop that counts in bytes
extern "C" __global__ void k(int n, const float* x, float* out) {
    for (int i = threadIdx.x; i < n * sizeof(float); i += blockDim.x)
        out[i] =                                     // defect
            x[i];                                    // defect
}""", 1, 128, floats(500)),
    Defect("neighbor", BOUNDS, r"""// past the end of one tensor into the next of the same storage
extern "C" __global__ void k(const float* x, const float* y, float* out) {
    int i = threadIdx.x;
    out[i] =
        x[i + 1]                                     // defect
        * y[i];
}""", 1, 32, lambda d: (*torch.arange(64.0, device=d).split(32), torch.zeros(32, device=d)), says=r"x\[32\]; x has 32"),
    Defect("gather", BOUNDS, r"""// an index from memory that is too large
extern "C" __global__ void k(int n, const long long* index, const float* x, float* out) {
    int i = threadIdx.x;
    if (i < n)
        out[i] = x[index[i]];                        // defect
}""", 1, 64, lambda d: (40, torch.arange(40, device=d) * 3, torch.randn(100, device=d), torch.zeros(40, device=d)),
           says=r"thread \(34,0,0\) .* reads x\[102\]; x has 100"),
    Defect("null", BOUNDS, r"""// an optional tensor that is None
extern "C" __global__ void k(int n, const float* x, const float* bias, float* out) {
    int i = threadIdx.x;
    if (i < n)
        out[i] = x[i] + bias[i];                     // defect
}""", 1, 32, lambda d: (32, torch.randn(32, device=d), None, torch.zeros(32, device=d)), says="bias is None"),
    Defect("table", BOUNDS, r"""// one of a list of tensors is shorter than the others
extern "C" __global__ void k(int n, const float* const* xs, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < 3; k++)
        sum += xs[k][i];                             // defect
    if (i < n) out[i] = sum;
}""", 1, 64, lambda d: (64, [torch.randn(64, device=d), torch.randn(50, device=d), torch.randn(64, device=d)],
                        torch.zeros(64, device=d))),
    Defect("constant", BOUNDS, r"""// a filter in constant memory that is one longer than the array
__constant__ float taps[5];
extern "C" __global__ void k(int n, const float* x, float* out) {
    int i = threadIdx.x;
    float sum = 0;
    for (int t = 0; t <= 5 && i + t < n; t++)
        sum += x[i + t] *
            taps[t];                                 // defect
    out[i] = sum;
}""", 1, 32, floats(64), says=r"taps\[5\]; taps has 5"),
    Defect("shared_small", BOUNDS, r"""// shared memory has one element per warp, but one too few
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ float part[4];
    float v = x[threadIdx.x];
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = v;                  // defect
    __syncthreads();
    if (threadIdx.x < 4) out[threadIdx.x] = part[threadIdx.x];
}""", 1, 160, floats(160), says=r"part\[4\]; part has 4"),
    Defect("shared_dynamic", BOUNDS, r"""// dynamic shared memory that the launch makes too small
extern "C" __global__ void k(int n, const float* x, float* out) {
    extern __shared__ float s[];
    s[threadIdx.x] = x[threadIdx.x];                 // defect
    __syncthreads();
    if (threadIdx.x < 32) out[threadIdx.x] = s[31 - threadIdx.x];
}""", 1, 64, floats(64), shared=128, says=r"s\[32\]; s has 32"),
    Defect("shared_neighbor", BOUNDS, r"""// past the end of one shared array into the next
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ float a[32];
    __shared__ float b[32];
    int i = threadIdx.x;
    a[i] = x[i]; b[i] = -x[i];
    __syncthreads();
    out[i] = a[i + 1] - b[i];                        // defect
}""", 1, 32, floats(32)),
    Defect("local_array", BOUNDS, r"""// a loop that fills one more than the array has
extern "C" __global__ void k(int n, const int* x, int* out) {
    int heap[8];
    for (int j = 0; j <= 8; j++)
        heap[j] = x[(threadIdx.x + j) % n];          // defect
    out[threadIdx.x] = heap[x[threadIdx.x] & 7];
}""", 1, 32, ints(32)),
    Defect("local_neighbor", BOUNDS, r"""// past the end of one local array into the next
extern "C" __global__ void k(int n, const int* x, int* out) {
    int a[8], b[16];
    for (int j = 0; j < 8; j++) a[j] = x[j];
    for (int j = 0; j < 16; j++) b[j] = -x[j];
    int i = threadIdx.x;
    out[i] = b[x[i] & 15]
        + a[x[i] & 15];                              // defect
}""", 1, 32, ints(32), says="element 8, counted in 4 bytes, of a local array"),
    Defect("float4", "MisalignedError", r"""// a float4 load at an offset of one float
extern "C" __global__ void k(int n, const float* x, float* out) {
    int i = threadIdx.x;
    const float4 v = *(const float4*)(x + 1 + 4 * i);  // defect
    out[i] = v.x + v.y + v.z + v.w;
}""", 1, 8, floats(64), says="not a multiple of 16"),
    Defect("shared_double", "MisalignedError", r"""// doubles after an odd number of floats in shared memory
extern "C" __global__ void k(int n, const float* x, double* out) {
    extern __shared__ float s[];
    double* d = (double*)(s + n);
    int i = threadIdx.x;
    s[i] = x[i];
    __syncthreads();
    d[i] = 2.0 * s[i];                               // defect
    out[i] = d[i];                                   // defect
}""", 1, 33, lambda d: (33, torch.randn(33, device=d), torch.zeros(33, dtype=torch.float64, device=d)), shared=33 * 12),
    Defect("const_write", "ReadOnlyError", r"""// const cast away: the kernel writes what it may only read
extern "C" __global__ void k(int n, const float* x, float* out) {
    int i = threadIdx.x;
    out[i] = x[i];
    ((float*)x)[i] = 0;                              // defect
}""", 1, 32, floats(32)),
    Defect("use_after_free", "FreedMemoryError", r"""// memory of malloc used after free
extern "C" __global__ void k(int n, const int* x, int* out) {
    int* p = (int*)malloc(4 * sizeof(int));
    p[0] = x[threadIdx.x];
    free(p);
    out[threadIdx.x] = p[0];                         // defect
}""", 1, 32, ints(32)),
    Defect("double_free", "FreedMemoryError", r"""// free of the same memory by every thread
__shared__ int* p;
extern "C" __global__ void k(int n, const int* x, int* out) {
    if (threadIdx.x == 0) { p = (int*)malloc(4); *p = x[0]; }
    __syncthreads();
    out[threadIdx.x] = *p;
    __syncthreads();
    free(p);                                         // defect
}""", 1, 32, ints(32)),
    Defect("heap_bounds", BOUNDS, r"""// one more element than malloc allocated
extern "C" __global__ void k(int n, const int* x, int* out) {
    int m = threadIdx.x + 1;
    int* p = (int*)malloc(m * sizeof(int));
    for (int j = 0; j <= m; j++)
        p[j] = x[j];                                 // defect
    out[threadIdx.x] = p[m - 1];
    free(p);
}""", 1, 8, ints(32), says="memory from malloc"),
    Defect("missing_sync_reduction", "RaceError", r"""// a tree reduction without __syncthreads() in its loop
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ float s[256];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int half = 128; half; half /= 2) {
        if (t < half)
            s[t] += s[t + half];                     // defect
    }
    __syncthreads();
    if (t == 0) out[0] = s[0];
}""", 1, 256, floats(256)),
    Defect("missing_sync_tile", "RaceError", r"""// a tile loop without the second __syncthreads(): the next tile overwrites what others still read
extern "C" __global__ void k(int n, const float* a, float* out) {
    __shared__ float tile[8][8];
    int x = threadIdx.x, y = threadIdx.y;
    float sum = 0;
    for (int p = 0; p < n / 8; p++) {
        tile[y][x] = a[y * n + p * 8 + x];           // defect
        __syncthreads();
        for (int q = 0; q < 8; q++)
            sum += tile[q][x];                       // defect
    }
    out[y * 8 + x] = sum;
}""", 1, (8, 8), lambda d: (32, torch.randn(8, 32, device=d), torch.zeros(64, device=d))),
    Defect("missing_sync_transpose", "RaceError", r"""// no barrier between filling a tile and reading it transposed
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ float tile[16][17];
    int i = threadIdx.x, j = threadIdx.y;
    tile[j][i] = x[j * 16 + i];                      // defect
    out[j * 16 + i] = tile[i][j];                    // defect
}""", 1, (16, 16), floats(256)),
    Defect("warp_reduction", "RaceError", r"""// a warp-synchronous reduction without __syncwarp()
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t]; s[t + 32] = x[t + 32];
    __syncwarp();
    for (int d = 32; d; d /= 2)
        if (t < d)
            s[t] += s[t + d];                        // defect
    if (t == 0) out[0] = s[0];
}""", 1, 32, floats(64)),
    Defect("histogram", "RaceError", r"""// a shared histogram counted without atomics
extern "C" __global__ void k(int n, const int* x, int* out) {
    __shared__ int bins[64];
    if (threadIdx.x < 64) bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        bins[x[i]]++;                                // defect
    __syncthreads();
    if (threadIdx.x < 64) out[threadIdx.x] = bins[threadIdx.x];
}""", 1, 128, ints(1000, 64)),
    Defect("histogram_sync", "RaceError", r"""// a shared histogram read before all have counted
extern "C" __global__ void k(int n, const int* x, int* out) {
    __shared__ int bins[64];
    if (threadIdx.x < 64) bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        atomicAdd(&bins[x[i]], 1);                   // defect
    if (threadIdx.x < 64)
        out[threadIdx.x] = bins[threadIdx.x];        // defect
}""", 1, 128, ints(1000, 64)),
    Defect("global_sum", "RaceError", r"""// all blocks add to one element without atomics
extern "C" __global__ void k(int n, const float* x, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[0] += x[i];                              // defect
}""", 4, 64, floats(256)),
    Defect("last_block", "RaceError", r"""// the last block sums what others wrote, without __threadfence()
__device__ unsigned done;
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        out[1 + blockIdx.x] = x[blockIdx.x];
        last = atomicInc(&done, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float sum = 0;
        for (int b = 0; b < gridDim.x; b++)
            sum += out[1 + b];                       // defect
        out[0] = sum;
    }
}""", 8, 32, floats(64)),
    Defect("grid_sync", "RaceError", r"""// results of neighboring blocks are read as if all blocks had finished
extern "C" __global__ void k(int n, const float* x, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = x[i];                                   // defect
    __syncthreads();
    if (i + 1 < n)
        out[n + i] = out[i + 1];                     // defect
}""", 4, 64, lambda d: (256, torch.randn(256, device=d), torch.zeros(512, device=d))),
    Defect("in_place", "RaceError", r"""// a stencil launched in place: it writes what it reads through const
extern "C" __global__ void k(int n, const float* x, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n - 1)
        out[i] =                                     // defect
            x[i] + x[i + 1];                         // defect
}""", 4, 64, lambda d: (256, *[torch.arange(256.0, device=d)] * 2)),
    Defect("normalize", "RaceError", r"""// division by a total that other blocks still add to
extern "C" __global__ void k(int n, const float* x, float* total, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(total, x[i]);                          // defect
    __syncthreads();
    out[i] = x[i] / *total;                          // defect
}""", 4, 64, lambda d: (256, torch.rand(256, device=d), torch.zeros(1, device=d), torch.zeros(256, device=d))),
    Defect("copy_not_awaited", "RaceError", r"""// the result of an asynchronous copy is read without waiting for it
#include <cuda_pipeline.h>
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ float s[64];
    int t = threadIdx.x;
    __pipeline_memcpy_async(&s[t], &x[t], 4);
    __pipeline_commit();
    out[t] = s[t];                                   // defect
    __pipeline_wait_prior(0);
}""", 1, 64, floats(64), says=r"reads s\[0\], which thread \(0,0,0\) .* copies at .*a wait for the copy"),
    Defect("copy_without_barrier", "RaceError", r"""// each thread waits for its own copies and then reads its neighbor's
#include <cuda_pipeline.h>
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ float s[32];
    int t = threadIdx.x;
    __pipeline_memcpy_async(&s[t], &x[t], 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[t] = s[31 - t];                              // defect
}""", 1, 32, floats(32)),
    Defect("copy_wrong_group", "RaceError", r"""// a pipeline of two stages that leaves the last group pending
#include <cuda_pipeline.h>
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ float s[2][32];
    int t = threadIdx.x;
    float sum = 0;
    __pipeline_memcpy_async(&s[0][t], &x[t], 4);
    __pipeline_commit();
    for (int r = 0; r < n / 32; r++) {
        if (r + 1 < n / 32) {
            __pipeline_memcpy_async(&s[(r + 1) % 2][t], &x[32 * (r + 1) + t], 4);
            __pipeline_commit();
        }
        __pipeline_wait_prior(1);
        __syncthreads();
        sum += s[r % 2][31 - t];                     // defect
        __syncthreads();
    }
    out[t] = sum;
}""", 1, 32, lambda d: (128, torch.randn(128, device=d), torch.zeros(32, device=d))),
    Defect("copy_too_early", "RaceError", r"""// the next copy goes to a buffer that other warps still read
#include <cuda_pipeline.h>
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ float s[64];
    int t = threadIdx.x;
    float sum = 0;
    for (int r = 0; r < n / 64; r++) {
        __pipeline_memcpy_async(&s[t], &x[64 * r + t], 4);  // defect
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();
        sum += s[63 - t];                            // defect
    }
    out[t] = sum;
}""", 1, 64, lambda d: (256, torch.randn(256, device=d), torch.zeros(64, device=d))),
    Defect("heap_race", "RaceError", r"""// memory from malloc that one thread fills and others read, without a barrier
__shared__ int* p;
extern "C" __global__ void k(int n, const int* x, int* out) {
    if (threadIdx.x == 0) p = (int*)malloc(64 * sizeof(int));
    __syncthreads();
    p[threadIdx.x] = x[threadIdx.x];                 // defect
    out[threadIdx.x] = p[63 - threadIdx.x];          // defect
}""", 1, 64, ints(64), says="memory from malloc"),
    Defect("uninitialized_shared", "UninitializedReadError", r"""// counters in shared memory without initialization
extern "C" __global__ void k(int n, const int* x, int* out) {
    __shared__ int bins[64];
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        atomicAdd(&bins[x[i]], 1);                   // defect
    __syncthreads();
    if (threadIdx.x < 61) out[threadIdx.x] = bins[threadIdx.x];
}""", 1, 128, ints(1000, 64)),
    Defect("early_return", "UninitializedReadError", r"""// threads that return early leave their part of the tile uninitialized
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ float s[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    s[threadIdx.x] = x[i];
    __syncthreads();
    out[i] = s[63 - threadIdx.x];                    // defect
}""", 2, 64, floats(100)),
    Defect("uninitialized_local", "UninitializedReadError", r"""// a local array of which only half is initialized
extern "C" __global__ void k(int n, const int* x, int* out) {
    int count[8];
    for (int j = 0; j < 4; j++) count[j] = 0;
    for (int j = 0; j < n; j++)
        count[x[j] & 7]++;                           // defect
    out[threadIdx.x] = count[threadIdx.x & 7];       // defect
}""", 1, 8, ints(32)),
    Defect("uninitialized_accumulator", "UninitializedReadError", r"""// a sum that does not start at zero
extern "C" __global__ void k(int n, const float* x, float* out) {
    float sum;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        sum += x[i];                                 // defect
    out[threadIdx.x] = sum;
}""", 1, 32, floats(100)),
    Defect("barrier_in_branch", "BarrierError", r"""// __syncthreads() that only half of a warp reaches
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    if (t < 16)
        __syncthreads();                             // defect
    out[t] = s[t];
}""", 1, 64, floats(64)),
    Defect("barrier_before_the_end", "BarrierError", r"""// __syncthreads() that half of a warp skips by ending
extern "C" __global__ void k(int n, float* x, float* out) {
    int t = threadIdx.x;
    if (t % 2 == 0) {
        float next = x[t + 2];
        __syncthreads();                             // defect
        x[t] = next;
    }
}""", 1, 64, floats(80)),
    Defect("barrier_on_one_side", "BarrierError", r"""// the other half of the warp stores and ends instead
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x;
    if (t % 2) {
        float v = x[t ^ 1];
        __syncthreads();                             // defect
        out[t] = v;
    } else
        out[t ^ 2] = x[t];
}""", 1, 64, lambda d: (torch.randn(64, device=d), torch.zeros(64, device=d))),
    Defect("group_sync_in_branch", "BarrierError", r"""// sync() of the block's group that only half of a warp reaches
#include <cooperative_groups.h>
extern "C" __global__ void k(int n, float* x, float* out) {
    auto block = cooperative_groups::this_thread_block();
    int t = threadIdx.x;
    if (t % 2 == 0)
        block.sync();                                // defect
    x[t] = t;
}""", 1, 64, floats(64)),
    Defect("barrier_in_loop", "BarrierError", r"""// a barrier in a loop that threads leave at different times
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = 0;
    for (int i = t; i < n; i += blockDim.x) {
        s[t] += x[i];
        __syncthreads();                             // defect
    }
    out[t] = s[t];
}""", 1, 64, floats(100)),
    Defect("different_barriers", "BarrierError", r"""// warps wait at different barriers, which the hardware counts as one
extern "C" __global__ void k(int n, const float* x, float* out) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    if (t < 32) {
        __syncthreads();                             // defect
        out[t] = s[t + 32];
    } else {
        __syncthreads();                             // defect
        out[t] = s[t - 32];
    }
}""", 1, 64, floats(64)),
    Defect("named_barrier", "BarrierError", r"""// a named barrier that fewer threads reach than it counts
extern "C" __global__ void k(int n, const float* x, float* out) {
    if (threadIdx.x < 64)
        asm volatile("bar.sync 1, 128;" ::: "memory");  // defect
    else
        __syncthreads();                             // defect
    out[threadIdx.x] = x[threadIdx.x];
}""", 1, 128, floats(128)),
    Defect("shuffle_in_branch", "WarpSyncError", r"""// a shuffle with a full mask that only half of the warp reaches
extern "C" __global__ void k(int n, const float* x, float* out) {
    float v = x[threadIdx.x];
    if (threadIdx.x < 16)
        v += __shfl_down_sync(~0u, v, 8);            // defect
    out[threadIdx.x] = v;
}""", 1, 32, floats(32)),
    Defect("ballot_in_loop", "WarpSyncError", r"""// a vote with a full mask in a loop that lanes leave at different times, to wait elsewhere
extern "C" __global__ void k(int n, const int* x, int* out) {
    int count = 0;
    for (int i = threadIdx.x; i < n; i += 32)
        count += __popc(__ballot_sync(~0u, x[i] > 30));  // defect
    count += __shfl_xor_sync(~0u, count, 1);         // defect
    out[threadIdx.x] = count;
}""", 1, 32, ints(100)),
    Defect("mask_without_self", "WarpSyncError", r"""// a mask of the lower half, executed by all
extern "C" __global__ void k(int n, const float* x, float* out) {
    float v = x[threadIdx.x];
    v += __shfl_xor_sync(0xffffu, v, 8);             // defect
    out[threadIdx.x] = v;
}""", 1, 32, floats(32)),
    Defect("inactive_source", "WarpSyncError", r"""// a value fetched from a lane outside of the mask
extern "C" __global__ void k(int n, const float* x, float* out) {
    float v = x[threadIdx.x];
    if (threadIdx.x >= 16)
        v = __shfl_sync(0xffff0000u, v, 3);          // defect
    out[threadIdx.x] = v;
}""", 1, 32, floats(32)),
    Defect("stale_pointer", BOUNDS, r"""// a table holds the address of a tensor that has been freed
extern "C" __global__ void k(int n, float* const* table, float* out) {
    out[threadIdx.x] = table[0][threadIdx.x];        // defect
}""", 1, 32, freed,
           says="freed, or never passed", device_memory=True),
    *(defect for defect, _ in planted_hopper.PAIRS),
]  # fmt: skip


def page() -> str:
    """The text of docs/planted-defects.md."""
    groups = {
        error: [d.title for d in DEFECTS if d.error == error] for error in dict.fromkeys(d.error for d in DEFECTS)
    }
    lines = [
        "# Planted defects",
        "",
        f"{len(DEFECTS)} kernels with one bug each (`tests/checked/planted.py`), by the exception that reports the bug. The tests",
        "run all of them under `rawkern.check()`: it reports each bug at its line, and nothing else.",
    ]
    for error, titles in groups.items():
        lines += ["", f"## `{error}`", "", *(f"- {title}" for title in titles)]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(page(), end="")
