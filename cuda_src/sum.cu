// Sums of rows and of columns, in parts where there are few of them.
#include "row.cuh"

// The quotient, in 32 bits where they suffice, since dividing 64 bits is slow.
__device__ inline long long quotient(long long a, long long b) {
    return (a | b) >> 31 ? a / b : (unsigned)a / (unsigned)b;
}

// Of each row, cut into parts of `size` elements: out[row][part] = scale * the sum. in: rows x n. A group of threads per
// part; see row.cuh. Grid: at least rows * parts groups.
template <typename In, typename Out, int V, int G>
__global__ void __launch_bounds__(MOST_THREADS<0, G>)
    sum_rows(const In* in, Out* out, long long rows, long long n, long long parts, long long size, double scale) {
    using C = compute_t<In>;
    wait_for_previous();
    const long long which = Group<G>::index();
    if (which >= rows * parts) return;
    const long long row = parts == 1 ? which : quotient(which, parts), first = (which - row * parts) * size;
    const long long left = max(0LL, min(size, n - first)), step = (long long)V * Group<G>::size();
    const In* const from = in + row * n + first;
    Pack<C, LOADS> sums = {};
    const auto add = [&](int j, const words_t<In, V>& words) {
        const auto pack = unpack<In, V>(words);
#pragma unroll
        for (int k = 0; k < V; ++k) sums.at[j] += C(pack.at[k]);
    };
    words_t<In, V> held[LOADS];
    long long i = Group<G>::lane() * V;
    for (; i + (LOADS - 1) * step < left; i += LOADS * step) {
#pragma unroll
        for (int j = 0; j < LOADS; ++j) held[j] = load_words<In, V, true>(from + i + j * step);
#pragma unroll
        for (int j = 0; j < LOADS; ++j) add(j, held[j]);
    }
#pragma unroll
    for (int j = 0; j < LOADS; ++j) {
        if (i + j * step < left) held[j] = load_words<In, V, true>(from + i + j * step);
    }
#pragma unroll
    for (int j = 0; j < LOADS; ++j) {
        if (i + j * step < left) add(j, held[j]);
    }
    C sum = 0;
#pragma unroll
    for (int j = 0; j < LOADS; ++j) sum += sums.at[j];
    sum = reduce<G>(0, Sum(), sum);
    if (Group<G>::lane() == 0) out[which] = Out(sum * C(scale));
}

// Of each column, cut into `parts` parts: out[o][part][i] = scale * the sum over k of in[o][k][i]; in: outer x n x
// inner. Block: 32 threads of V columns each x as many as share a column, at most 32. Grid: outer * parts *
// ceil(inner / (32 * V)).
template <typename In, typename Out, int V>
__global__ void __launch_bounds__(BLOCK)
    sum_columns(const In* in, Out* out, long long n, long long inner, long long parts, double scale) {
    using C = compute_t<In>;
    __shared__ C of_threads[WARP][V][WARP];
    wait_for_previous();
    const long long tiles = (inner + WARP * V - 1) / (WARP * V), which = quotient(blockIdx.x, tiles);
    const long long o = quotient(which, parts), i = ((blockIdx.x - which * tiles) * WARP + threadIdx.x) * V;
    const long long size = (n + parts - 1) / parts, first = (which - o * parts) * size;
    const long long last = n - first < size ? n : first + size;
    C sums[V] = {};
    if (i < inner) {
#pragma unroll 4
        for (long long k = first + threadIdx.y; k < last; k += blockDim.y) {
            const auto pack = load<In, V, true>(in + (o * n + k) * inner + i);
#pragma unroll
            for (int v = 0; v < V; ++v) sums[v] += C(pack.at[v]);
        }
    }
    if (blockDim.y > 1) {
#pragma unroll
        for (int v = 0; v < V; ++v) of_threads[threadIdx.y][v][threadIdx.x] = sums[v];
        __syncthreads();
        if (threadIdx.y > 0) return;
        for (int y = 1; y < blockDim.y; ++y) {
#pragma unroll
            for (int v = 0; v < V; ++v) sums[v] += of_threads[y][v][threadIdx.x];
        }
    }
    if (i < inner) {
        Pack<Out, V> result;
#pragma unroll
        for (int v = 0; v < V; ++v) result.at[v] = Out(sums[v] * C(scale));
        store(out + which * inner + i, result);
    }
}

// out[o][k][i] = scale * in[o][i], k < n and i < inner: the gradient of a sum over n. Grid: 1-D, at least packs =
// total / V threads; V divides inner, or n where inner is 1.
template <typename T, int V>
__global__ void spread(const T* in, T* out, long long packs, long long n, long long inner, double scale) {
    wait_for_previous();
    const long long pack = (long long)blockIdx.x * blockDim.x + threadIdx.x, at = pack * V;
    if (pack >= packs) return;
    const long long o = quotient(at, n * inner);
    Pack<T, V> from;
    if (inner == 1) {
#pragma unroll
        for (int k = 0; k < V; ++k) from.at[k] = in[o];
    } else {
        from = load<T, V>(in + o * inner + (at - quotient(at, inner) * inner));
    }
    store(out + at, map_pack<V>([=](compute_t<T> x) { return x * compute_t<T>(scale); }, from));
}
