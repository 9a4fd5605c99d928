// Reductions along some dimensions of arrays with any strides: kept dimensions index the results, reduced ones are gone.
#pragma once
#include "pack.cuh"

constexpr int REDUCE_THREADS = 256;
constexpr int REDUCE_DIMS = 8;

// Sizes of the kept and the reduced dimensions, innermost first (size[0] counts packs where there are any), and each of
// the N arrays' steps along them.
template <int N> struct Axes { long long dims, size[REDUCE_DIMS], step[N][REDUCE_DIMS]; };

// Adds to at[] where the index-th element of all dimensions lies, or the index-th pack of V.
template <int V, int N, typename Index> __device__ void locate(Index (&at)[N], Index index, const Axes<N>& axes) {
#pragma unroll
    for (int d = 0; d < REDUCE_DIMS; ++d) {
        const Index size = axes.size[d], scale = d == 0 ? V : 1;
        const bool last = d + 1 >= axes.dims;
        const Index outer = last ? 0 : index / size, inner = index - outer * size;
#pragma unroll
        for (int a = 0; a < N; ++a) at[a] += inner * scale * Index(axes.step[a][d]);
        if (last) break;
        index = outer;
    }
}

// Reduces memory[0], memory[stride], ... memory[(n - 1) * stride] into the first, n a power of two; all threads of the
// block call it, thread t of n with its own place in the order.
template <typename A, typename F> __device__ void reduce_shared(F f, A* mine, int t, int n, int stride) {
    for (int half = n / 2; half; half /= 2) {
        __syncthreads();
        if (t < half) mine[0] = f(mine[0], mine[half * stride]);
    }
    __syncthreads();
}
