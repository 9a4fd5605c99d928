// A large kernel in which lanes may wait anywhere, as it reads volatile memory in a loop: a selective scan of halves whose
// length no block divides, so that each item is loaded and stored under a branch of its own.
#include <cuda_fp16.h>

constexpr int THREADS = 64, ITEMS = 16, CHUNK = THREADS * ITEMS;

struct Pair {
    float decay, state;
};

__device__ Pair then(Pair a, Pair b) { return {a.decay * b.decay, fmaf(a.state, b.decay, b.state)}; }

// Items of a warp lie one behind the other in memory; each thread gets ITEMS neighbours, by way of shared memory.
__device__ void load(const __half* from, int left, float (&items)[ITEMS], __half* room) {
    int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 32 * ITEMS;
    for (int k = 0; k < ITEMS; k++) {
        int at = first + k * 32 + lane;
        room[at] = __float2half(0.0f);
        if (at < left) room[at] = from[at];
    }
    __syncwarp();
    for (int k = 0; k < ITEMS; k++) items[k] = __half2float(room[first + lane * ITEMS + k]);
    __syncwarp();
}

__device__ void store(__half* to, int left, const float (&items)[ITEMS], __half* room) {
    int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 32 * ITEMS;
    for (int k = 0; k < ITEMS; k++) room[first + lane * ITEMS + k] = __float2half(items[k]);
    __shared__ volatile int valid;
    if (threadIdx.x == 0) valid = left;
    __syncthreads();
    left = valid;
    for (int k = 0; k < ITEMS; k++) {
        int at = first + k * 32 + lane;
        if (at < left) to[at] = room[at];
    }
    __syncwarp();
}

// What the threads before this one make of the state, and (for all) what the whole block makes of it.
__device__ Pair scan(Pair mine, Pair& all, Pair* warps) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Pair sum = mine;
    for (int d = 1; d < 32; d *= 2) {
        Pair other = {__shfl_up_sync(0xffffffff, sum.decay, d), __shfl_up_sync(0xffffffff, sum.state, d)};
        if (lane >= d) sum = then(other, sum);
    }
    if (lane == 31) warps[warp] = sum;
    Pair before = {__shfl_up_sync(0xffffffff, sum.decay, 1), __shfl_up_sync(0xffffffff, sum.state, 1)};
    if (lane == 0) before = {1.0f, 0.0f};
    __syncthreads();
    all = {1.0f, 0.0f};
    for (int w = 0; w < THREADS / 32; w++) {
        if (w == warp) before = then(all, before);
        all = then(all, warps[w]);
    }
    __syncthreads();
    return before;
}

// y[t] = sum over n of c[n, t] h[n, t] + skip u[t], gated by z; h[n, t] = exp(dt a[n]) h[n, t - 1] + dt b[n, t] u[t]
extern "C" __global__ void selective_scan(
    int length, int states, const __half* u, const __half* delta, const __half* z, const float* a, const __half* b,
    const __half* c, float skip, float bias, bool softplus, __half* y, float* last) {
    __shared__ __half room[CHUNK];
    __shared__ Pair warps[THREADS / 32];
    __shared__ float kept[256];
    u += blockIdx.x * length, delta += blockIdx.x * length, z += blockIdx.x * length, y += blockIdx.x * length;
    for (int start = 0; start < length; start += CHUNK) {
        int left = length - start;
        float x[ITEMS], dt[ITEMS], gate[ITEMS], sum[ITEMS];
        load(u + start, left, x, room);
        load(delta + start, left, dt, room);
        load(z + start, left, gate, room);
        for (int k = 0; k < ITEMS; k++) {
            dt[k] += bias;
            if (softplus && dt[k] <= 20.0f) dt[k] = log1pf(expf(dt[k]));
            sum[k] = skip * x[k];
        }
        for (int n = 0; n < states; n++) {
            float in[ITEMS], out[ITEMS];
            load(b + n * length + start, left, in, room);
            load(c + n * length + start, left, out, room);
            Pair step[ITEMS], mine = {1.0f, 0.0f}, all;
            for (int k = 0; k < ITEMS; k++) {
                step[k] = {exp2f(dt[k] * a[n] * 1.44269504f), dt[k] * in[k] * x[k]};
                if (threadIdx.x * ITEMS + k >= left) step[k] = {1.0f, 0.0f};
                mine = then(mine, step[k]);
            }
            Pair before = scan(mine, all, warps);
            Pair from = {1.0f, start ? kept[n] : 0.0f};
            __syncthreads();
            if (threadIdx.x == 0) last[blockIdx.x * states + n] = kept[n] = then(from, all).state;
            before = then(from, before);
            for (int k = 0; k < ITEMS; k++) {
                before = then(before, step[k]);
                sum[k] = fmaf(before.state, out[k], sum[k]);
            }
        }
        for (int k = 0; k < ITEMS; k++) sum[k] *= gate[k] / (1.0f + expf(-gate[k]));
        store(y + start, left, sum, room);
    }
}
