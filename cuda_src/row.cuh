// What kernels over rows share. A row is n elements that are `inner` apart; a group of threads does it:
// G = 1, one thread (neighboring threads do neighboring rows: for rows whose elements lie far apart);
// G = WARP, a warp (blocks of 32 x rows); G = BLOCK, a block of one dimension, whole warps.
// A thread loads packs of V elements; it keeps P of them in registers, or with P = 0 reads memory at each pass.
#pragma once
#include "pack.cuh"

#include <math_constants.h>

constexpr int WARP = 32, BLOCK = 1024;
constexpr unsigned ALL_LANES = 0xffffffff;
constexpr int LOADS = 4;  // that a thread has on their way where it keeps nothing in registers

// Threads of a block, at most. With P = 0 a thread needs more registers.
template <int P, int G> constexpr int MOST_THREADS = G == BLOCK && P > 0 ? BLOCK : 256;

template <int G> struct Group {
    __device__ static unsigned lane() { return G == 1 ? 0 : threadIdx.x; }
    __device__ static unsigned size() { return G == 1 ? 1 : G == WARP ? WARP : blockDim.x; }
    // This group's number among all of the grid, and how many there are.
    __device__ static long long index() {
        if constexpr (G == 1) return (long long)blockIdx.x * blockDim.x + threadIdx.x;
        return G == WARP ? (long long)blockIdx.x * blockDim.y + threadIdx.y : blockIdx.x;
    }
    __device__ static long long count() {
        return (long long)gridDim.x * (G == 1 ? blockDim.x : G == WARP ? blockDim.y : 1);
    }
};

struct Sum {
    template <typename C> __device__ static C identity() { return 0; }
    template <typename C> __device__ C operator()(C a, C b) const { return a + b; }
};

// The larger one; NaN only if both are.
struct Max {
    template <typename C> __device__ static C identity() { return -C(CUDART_INF); }
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
    __device__ double operator()(double a, double b) const { return fmax(a, b); }
};

// The K values combined over all threads of the group, each for itself; every thread gets them. Reductions that follow
// each other take turns with slot 0 and 1, so that one barrier is enough.
template <int G, typename F, typename C, int K> __device__ Pack<C, K> reduce(int slot, F f, Pack<C, K> values) {
    if constexpr (G == 1) return values;
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
#pragma unroll
        for (int k = 0; k < K; ++k) values.at[k] = f(values.at[k], __shfl_xor_sync(ALL_LANES, values.at[k], offset));
    }
    if constexpr (G == BLOCK) {
        __shared__ C of_warps[2][K][WARP];
        const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
        if (lane == 0) {
#pragma unroll
            for (int k = 0; k < K; ++k) of_warps[slot][k][warp] = values.at[k];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < K; ++k) values.at[k] = lane < warps ? of_warps[slot][k][lane] : F::template identity<C>();
#pragma unroll
        for (int offset = WARP / 2; offset > 0; offset /= 2) {
#pragma unroll
            for (int k = 0; k < K; ++k) values.at[k] = f(values.at[k], __shfl_xor_sync(ALL_LANES, values.at[k], offset));
        }
    }
    return values;
}

template <int G, typename F, typename C> __device__ C reduce(int slot, F f, C value) {
    return reduce<G>(slot, f, Pack<C, 1>{{value}}).at[0];
}

// Where a row begins. Rows that are read in packs, or kept in registers, have inner = 1.
template <int V, int P> __device__ long long row_offset(long long row, long long n, long long inner) {
    return V > 1 || P > 0 || inner == 1 ? row * n : row / inner * n * inner + row % inner;
}

// A pack as the registers it is loaded into. Half types are taken apart where they are used: done at once, that would
// wait for the load.
template <int BYTES> struct alignas(BYTES) Words { unsigned at[BYTES / 4]; };
template <> struct Words<2> { unsigned short at[1]; };
template <typename T, int V> using words_t = Words<sizeof(T) * V>;

template <typename T, int V, bool ONCE = false> __device__ words_t<T, V> load_words(const T* from) {
    return load_as<words_t<T, V>, ONCE>(from);
}

template <typename T, int V> __device__ Pack<T, V> unpack(const words_t<T, V>& words) {
    Pack<T, V> pack;
    memcpy(&pack, &words, sizeof(pack));
    return pack;
}

// What counts the elements of a row. Rows that are kept in registers are short.
template <int P> struct IndexOf { using type = int; };
template <> struct IndexOf<0> { using type = long long; };
template <int P> using index_t = typename IndexOf<P>::type;

// The part of a row that one thread sees.
template <typename T, int V, int P, int G> struct Row {
    const T* from;
    index_t<P> n;
    long long inner;
    words_t<T, V> held[P > 0 ? P : 1];

    __device__ Row(const T* base, long long row, long long n, long long inner = 1)
        : from(base + row_offset<V, P>(row, n, inner)), n(n), inner(inner) {
        if constexpr (P > 0) hold(from);
    }

    // A row that is still to be told where it is.
    __device__ explicit Row(long long n) : from(nullptr), n(n), inner(1) {}

    __device__ void hold(const T* row) {
#pragma unroll
        for (int p = 0; p < P; ++p) {
            if (index(p) < n) held[p] = load_words<T, V>(row + index(p));
        }
    }

    // The element that the p-th pack of this thread begins with.
    __device__ static int index(int p) { return (p * Group<G>::size() + Group<G>::lane()) * V; }

    // The pack that begins with element i; its number is p if it is held.
    __device__ Pack<T, V> pack(int p, long long i) const { return unpack<T, V>(P > 0 ? held[p] : words(i)); }

    __device__ words_t<T, V> words(long long i) const { return load_words<T, V>(from + (V == 1 ? i * inner : i)); }

    // f(p, i, pack) for each pack of this thread; i is the element that it begins with, p its number if it is held.
    template <typename F> __device__ void each(F f) const {
        if constexpr (P > 0) {
#pragma unroll
            for (int p = 0; p < P; ++p) {
                if (index(p) < n) f(p, index(p), pack(p, 0));
            }
        } else {
            some([&](long long i, long long step, const Pack<T, V>* packs, int count) {
#pragma unroll
                for (int j = 0; j < LOADS; ++j) {
                    if (j < count) f(0, i + j * step, packs[j]);
                }
            });
        }
    }

    // f(i, step, packs, count) with LOADS packs at a time, at the end with one; they begin with elements i, i + step ...
    // The next ones are on their way meanwhile.
    template <typename F> __device__ void some(F f) const {
        const long long step = (long long)Group<G>::size() * V;
        long long i = Group<G>::lane() * V;
        Pack<T, V> packs[LOADS];
        words_t<T, V> next[LOADS];
        bool more = i + (LOADS - 1) * step < n;
        if (more) several(i, step, next);
        while (more) {
#pragma unroll
            for (int j = 0; j < LOADS; ++j) packs[j] = unpack<T, V>(next[j]);
            const long long at = i;
            i += LOADS * step;
            more = i + (LOADS - 1) * step < n;
            if (more) several(i, step, next);
            f(at, step, packs, LOADS);
        }
        for (; i < n; i += step) {
            packs[0] = pack(0, i);
            f(i, step, packs, 1);
        }
    }

    __device__ void several(long long i, long long step, words_t<T, V>* to) const {
#pragma unroll
        for (int j = 0; j < LOADS; ++j) to[j] = words(i + j * step);
    }
};

// Asks the L2 cache for a row that is read later, in 16-byte packs; one thread of the group calls it. Without sm_90
// nothing happens.
template <typename T, int V> __device__ void prefetch_row(const T* row, long long n) {
#if __CUDA_ARCH__ >= 900
    if constexpr (V * sizeof(T) == 16) {
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(row)),
                     "r"(static_cast<unsigned>(n * sizeof(T))));
    }
#endif
}

// f(p, i, pack of a, pack of b) for the packs of two rows of the same layout.
template <typename T, int V, int P, int G, typename F>
__device__ void both(const Row<T, V, P, G>& a, const Row<T, V, P, G>& b, F f) {
    a.each([&](int p, index_t<P> i, const Pack<T, V>& pack) { f(p, i, pack, b.pack(p, i)); });
}

// Writes a pack of a row that begins at `to`.
template <typename T, int V> __device__ void put(T* to, long long i, long long inner, const Pack<T, V>& pack) {
    if constexpr (V == 1) to[i * inner] = pack.at[0];
    else store(to + i, pack);
}

// Sums as the elements they are stored as.
template <typename T, typename C, int V> __device__ Pack<T, V> narrowed(const Pack<C, V>& values) {
    Pack<T, V> result;
#pragma unroll
    for (int k = 0; k < V; ++k) result.at[k] = T(values.at[k]);
    return result;
}

// exp(x - y) in the precision that T needs.
template <typename T> __device__ compute_t<T> exp_minus(compute_t<T> x, compute_t<T> y) {
    if constexpr (sizeof(T) == 2) {
        const float log2_e = 1.44269504f;
        float result;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(fmaf(x, log2_e, -y * log2_e)));
        return result;
    } else if constexpr (sizeof(T) == 4) {
        return expf(x - y);
    } else {
        return exp(x - y);
    }
}
