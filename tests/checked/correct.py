"""Correct kernels that use what the checker must understand: fences, atomics, flags, barriers of all kinds."""

from __future__ import annotations

CODE = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda_pipeline.h>
#include <cuda/pipeline>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_merge_sort.cuh>
namespace cg = cooperative_groups;
__device__ unsigned done;
__device__ int lock;
__device__ volatile int flag;

// the last block adds up what all have written
extern "C" __global__ void last_block(const float* x, float* part, float* out) {
    __shared__ bool last;
    float v = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
    if (threadIdx.x == 0) {
        part[blockIdx.x] = v;
        __threadfence();
        last = atomicInc(&done, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last) {
        float sum = 0;
        for (int b = 0; b < gridDim.x; b++) sum += part[b];
        if (threadIdx.x == 0) out[0] = sum;
    }
}
// every thread fences, one counts: the fences of all serve the atomic after the barrier
extern "C" __global__ void all_fence(const float* x, float* part, float* out) {
    __shared__ bool last;
    part[blockIdx.x * blockDim.x + threadIdx.x] = 2 * x[blockIdx.x * blockDim.x + threadIdx.x];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(&done, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (last) for (int i = threadIdx.x; i < gridDim.x * blockDim.x; i += blockDim.x) out[i] = part[i];
}
// a lock, with the fences that it needs
extern "C" __global__ void locked(int* count) {
    if (threadIdx.x == 0) {
        while (atomicCAS(&lock, 0, 1) != 0) { }
        __threadfence();
        count[0] = count[0] + 1;
        __threadfence();
        atomicExch(&lock, 0);
    }
}
// a flag that one warp sets for another
extern "C" __global__ void flags(const int* x, int* out) {
    __shared__ int data[32];
    __shared__ volatile int ready;
    int t = threadIdx.x;
    if (t == 0) ready = 0;
    __syncthreads();
    if (t < 32) {
        data[t] = x[t];
        __threadfence_block();
        __syncwarp();
        if (t == 0) ready = 1;
    } else {
        while (!ready) { }
        __threadfence_block();
        out[t - 32] = data[63 - t];
    }
}
// producers and consumers at named barriers
extern "C" __global__ void named(const int* x, int* out) {
    __shared__ int s[2][32];
    int t = threadIdx.x, lane = t % 32;
    for (int r = 0; r < 4; r++) {
        if (t < 32) {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            s[r % 2][lane] = x[32 * r + lane];
            asm volatile("bar.arrive 2, 64;" ::: "memory");
        } else {
            asm volatile("bar.arrive 1, 64;" ::: "memory");
            asm volatile("bar.sync 2, 64;" ::: "memory");
            out[32 * r + lane] = s[r % 2][31 - lane];
        }
    }
}
// CUDA's own way to write an atomic operation
extern "C" __global__ void own_atomic(const float* x, float* out) {
    int* p = (int*)out, old = *p, seen;
    float v = x[blockIdx.x * blockDim.x + threadIdx.x];
    do { seen = old; if (__int_as_float(seen) >= v) break; old = atomicCAS(p, seen, __float_as_int(v)); } while (old != seen);
}
// grid-wide steps
extern "C" __global__ void steps(float* a, float* b, int n) {
    cg::grid_group grid = cg::this_grid();
    int i = grid.thread_rank();
    for (int r = 0; r < 3; r++) {
        if (i < n) b[i] = a[(i * 7 + 3) % n] + 1;
        grid.sync();
        if (i < n) a[i] = b[n - 1 - i];
        grid.sync();
    }
}
// threads that write and return before a barrier: the compiler makes one store of theirs and that of the others
extern "C" __global__ void early_with_result(const int* x, int* out) {
    __shared__ int s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    if (s[t] % 5) {
        out[t] = s[t];
        return;
    }
    int v = s[t] + s[t ^ 1];
    __syncthreads();
    out[t] = v;
}

// threads that return before a barrier; all set the same flag; a tail without values
extern "C" __global__ void early(int n, const int* x, int* out, int* any) {
    __shared__ int s[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    s[threadIdx.x] = x[i];
    if (x[i] > 3) *any = 1;
    __syncthreads();
    int left = s[threadIdx.x - (threadIdx.x > 0)];
    out[i] = left;
}
// threads of which some return before a barrier and others after it, from inside of branches
extern "C" __global__ void early_inside(const int* x, int* out) {
    int t = threadIdx.x;
    if (t % 2) {
        if (x[t] > 3) out[t] = 1;
        return;
    }
    __syncthreads();
    if (x[t] > 3) return;
    __syncthreads();
}
// groups of lanes go their own ways
extern "C" __global__ void groups(const int* x, int* out) {
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    int v = x[threadIdx.x];
    if (tile.meta_group_rank() % 2) for (int d = 4; d; d /= 2) v += tile.shfl_xor(v, d);
    else v = tile.shfl(v, 3);
    if (v & 1) {
        auto some = cg::coalesced_threads();
        v = some.shfl(v, 0) + some.size();
    }
    out[threadIdx.x] = v;
}
// cub's scan and merge sort, which read beyond what they have and do not use it
extern "C" __global__ void library(const int* x, int* out) {
    using Scan = cub::BlockScan<int, 64>;
    using Sort = cub::BlockMergeSort<int, 64, 2>;
    __shared__ union { Scan::TempStorage scan; Sort::TempStorage sort; } temp;
    int t = threadIdx.x, v[2] = {x[2 * t], x[2 * t + 1]}, sum;
    Scan(temp.scan).InclusiveSum(v[0], sum);
    __syncthreads();
    Sort(temp.sort).Sort(v, [](int a, int b) { return a < b; });
    out[2 * t] = v[0] + sum; out[2 * t + 1] = v[1];
}
// registers and arrays that are set on the ways that use them
extern "C" __global__ void maybe(int n, const int* x, int* out) {
    int value, stack[8], top = 0;
    if (x[threadIdx.x] & 1) value = x[threadIdx.x] * 3;
    for (int i = 0; i < n; i++) { stack[top++ & 7] = i; if (i & 1) top--; }
    out[threadIdx.x] = x[threadIdx.x] & 1 ? value : stack[(top - 1) & 7];
}
// an array that another function fills, or shared memory, through one pointer
__device__ __noinline__ void fill(int* a, int n, int v) { for (int i = 0; i < n; i++) a[i] = v + i; }
extern "C" __global__ void filled(const int* x, int* out) {
    __shared__ int s[64];
    int a[16], t = threadIdx.x;
    fill(a, 8, t);
    s[t] = x[t];
    __syncthreads();
    const int* p = x[t] & 1 ? a : s;
    out[t] = p[t & 7];
}
// two stages of asynchronous copies, each waited for before a barrier
extern "C" __global__ void stages(int n, const float* x, float* out) {
    __shared__ float s[2][64];
    int t = threadIdx.x;
    float sum = 0;
    __pipeline_memcpy_async(&s[0][t], &x[t], 4);
    __pipeline_commit();
    for (int r = 0; r < n; r++) {
        if (r + 1 < n) __pipeline_memcpy_async(&s[(r + 1) % 2][t], &x[64 * (r + 1) + t], 4);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        sum += s[r % 2][63 - t];
        __syncthreads();
    }
    out[t] = sum;
}
// each thread uses its own copies alone; half of the lanes copy in groups of their own
extern "C" __global__ void own_copies(const float* x, float* out) {
    __shared__ float s[64];
    int t = threadIdx.x;
    if (t % 2) { __pipeline_memcpy_async(&s[t], &x[t], 4); __pipeline_commit(); }
    else s[t] = -x[t];
    __pipeline_wait_prior(0);
    out[t] = s[t];
}
// copies that an mbarrier counts, and those of a group
extern "C" __global__ void counted_copies(const int* x, int* out) {
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ int s[64], u[64];
    int t = threadIdx.x;
    if (t == 0) init(&bar, 64);
    __syncthreads();
    cuda::memcpy_async(&s[t], &x[t], cuda::aligned_size_t<4>(4), bar);
    bar.arrive_and_wait();
    cg::memcpy_async(cg::this_thread_block(), u, x + 64, sizeof u);
    cg::wait(cg::this_thread_block());
    out[t] = s[63 - t] + u[63 - t];
}
// a list in memory from malloc, made by one thread, used by others after a barrier, by all with atomics
extern "C" __global__ void on_heap(const int* x, int* out) {
    __shared__ int* p;
    int t = threadIdx.x;
    if (t == 0) { p = (int*)malloc(65 * sizeof(int)); p[64] = 0; }
    __syncthreads();
    p[t] = x[t];
    atomicAdd(p + 64, x[t]);
    __syncthreads();
    out[t] = p[63 - t] + p[64];
    __syncthreads();
    if (t == 0) free(p);
}
// parts of local arrays, by pointers into their middle
struct Cell { int key[4]; float value[5]; short tail; };
__device__ __noinline__ void last(int* a, int n) { for (int i = 0; i < n; i++) a[i] *= 2; }
extern "C" __global__ void arrays(int n, const int* x, int* out) {
    int t = threadIdx.x, a[16], m[3][5];
    Cell c[3];
    for (int j = 0; j < 16; j++) a[j] = x[j] + t;
    for (int j = 0; j < 15; j++) m[j / 5][j % 5] = x[j] - t;
    for (int j = 0; j < 3; j++) {
        for (int k = 0; k < 4; k++) c[j].key[k] = x[j + k];
        for (int k = 0; k < 5; k++) c[j].value[k] = x[j * k];
        c[j].tail = j;
    }
    int *low = a, *high = a + 8, *row = m[1] + n;
    for (int r = 0; r < n; r++) { int* old = low; low = high; high = old; high[r & 7] += low[r * 3 & 7]; }
    last(a + 11, 5);
    last(m[2], 5);
    Cell *cell = c + n % 3, copy = *cell;
    memcpy(copy.value, cell[-1].value + 1, 16);
    out[t] = a[n] + high[-8 * (high != a)] + row[-n] + row[9 - n] + copy.value[n & 3] + cell->key[x[t] & 3] + cell->tail;
}
// a pipeline of the block, whose barriers one lane ends for all
extern "C" __global__ void block_pipeline(int tiles, const float* x, float* out) {
    __shared__ float s[3][64];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 3> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    float sum = 0;
    for (int i = 0, next = 0; i < tiles; i++) {
        for (; next < tiles && next < i + 3; next++) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, s[next % 3], x + next * 64, cuda::aligned_size_t<16>(256), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum = sum * 0.5f + s[i % 3][63 - threadIdx.x];
        pipe.consumer_release();
    }
    out[threadIdx.x] = sum;
}
// the best so far, which the first round does not look at
extern "C" __global__ void best(const int* x, int* out) {
    int t = threadIdx.x, v[4] = {x[t], x[(t + 1) % 64], x[(t + 2) % 64], x[(t + 3) % 64]};
    float best;
    bool have = false;
    for (int i = 0; i < 4; i++) {
        float c = v[i];
        if (!have || c > best) { best = c; have = true; }
    }
    out[t] = best;
}
"""
