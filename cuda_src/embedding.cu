// embedding: rows of a table by index, and the table's gradient, added in one order.
#include "row.cuh"

#include <assert.h>

constexpr int CHUNK = 32;  // positions that a block adds up

// out[i] = weight[index[i]], rows of n elements. Block: 32 x rows; a warp per row. Grid: at least `count` warps.
template <typename T, int V>
__global__ void embedding(const long long* index, const T* weight, T* out, long long count, long long entries, long long n) {
    const long long i = Group<WARP>::index();
    if (i >= count) return;
    const long long from = index[i];
    assert(from >= 0 && from < entries && "embedding: an index is outside the table");
    Row<T, V, 0, WARP>(weight, from, n).each([&](int, long long k, const Pack<T, V>& pack) { store(out + i * n + k, pack); });
}

// The rows of grad_out that belong to one entry, added up in the order of their positions. `keys` are the indices sorted,
// `order` the positions they had. A block does CHUNK keys and 1 pack of columns per thread. Runs of equal keys that lie in
// one chunk go to grad_weight; those that begin earlier go to edges[chunk][0], those that begin here and go on to
// edges[chunk][1]. Entries of no key are not written, nor is `padding`. Grid: chunks x column blocks.
template <typename T, int V, typename Key>
__global__ void embedding_sums(const T* grad_out, const Key* keys, const long long* order, T* grad_weight,
                               compute_t<T>* edges, long long count, long long n, long long padding) {
    using C = compute_t<T>;
    const long long chunk = blockIdx.x, first = chunk * CHUNK, end = min(first + CHUNK, count);
    const long long column = ((long long)blockIdx.y * blockDim.x + threadIdx.x) * V;
    if (column >= n) return;
    bool begun = first > 0 && keys[first - 1] == keys[first];  // whether the run has begun before this chunk
    Pack<C, V> sum = {};
    Pack<T, V> next = load<T, V>(grad_out + order[first] * n + column);
    for (long long i = first; i < end; ++i) {
        const long long key = keys[i];
        const Pack<T, V> pack = next;
        if (i + 1 < end) next = load<T, V>(grad_out + order[i + 1] * n + column);
#pragma unroll
        for (int k = 0; k < V; ++k) sum.at[k] += C(pack.at[k]);
        const bool goes_on = i + 1 < count && keys[i + 1] == key;
        if (goes_on && i + 1 < end) continue;
        if (begun || goes_on) {
            store(edges + (2 * chunk + (begun ? 0 : 1)) * n + column, sum);
        } else if (key != padding) {
            store(grad_weight + key * n + column, narrowed<T>(sum));
        }
        begun = false;
        sum = {};
    }
}

// The runs that begin in a chunk and end in a later one. Grid: as above.
template <typename T, int V, typename Key>
__global__ void embedding_edges(const Key* keys, const compute_t<T>* edges, T* grad_weight, long long count,
                                long long n, long long padding) {
    using C = compute_t<T>;
    const long long chunk = blockIdx.x, first = chunk * CHUNK, last = first + CHUNK - 1;
    const long long column = ((long long)blockIdx.y * blockDim.x + threadIdx.x) * V;
    if (column >= n || last + 1 >= count) return;
    const long long key = keys[last];
    const bool whole = keys[first] == key && first > 0 && keys[first - 1] == key;  // it has begun before this chunk
    if (keys[last + 1] != key || whole || key == padding) return;
    Pack<C, V> sum = load<C, V>(edges + (2 * chunk + 1) * n + column);
    for (long long c = chunk + 1; c * CHUNK < count && keys[c * CHUNK] == key; ++c) {
        const Pack<C, V> more = load<C, V>(edges + 2 * c * n + column);
#pragma unroll
        for (int k = 0; k < V; ++k) sum.at[k] += more.at[k];
    }
    store(grad_weight + key * n + column, narrowed<T>(sum));
}
