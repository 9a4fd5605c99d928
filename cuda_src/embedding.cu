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

// The first of the sorted keys that is not less than `key`.
template <typename Key> __device__ long long lower_bound(const Key* keys, long long count, long long key) {
    long long low = 0;
    for (long long high = count; low < high;) {
        const long long middle = (low + high) / 2;
        if (keys[middle] < key) low = middle + 1;
        else high = middle;
    }
    return low;
}

// The rows of grad_out that belong to one entry, added up in the order of their positions. `keys` are the indices sorted,
// `order` the positions they had. The first `chunks` blocks do CHUNK keys each, a thread 1 pack of columns. Runs of equal
// keys that lie in one chunk go to grad_weight; those that begin earlier go to edges[chunk][0], those that begin here and
// go on to edges[chunk][1]. The other blocks write zeros for entries of no key and for `padding`, CHUNK entries each.
// Grid: (chunks + entries / CHUNK) x column blocks. Block: whole warps.
template <typename T, int V, typename Key>
__global__ void embedding_sums(const T* grad_out, const Key* keys, const long long* order, T* grad_weight,
                               compute_t<T>* edges, long long count, long long chunks, long long entries, long long n,
                               long long padding) {
    using C = compute_t<T>;
    constexpr int AHEAD = 4;  // rows that a thread has on their way
    static_assert(CHUNK == WARP, "a lane looks for an entry");
    const long long column = ((long long)blockIdx.y * blockDim.x + threadIdx.x) * V;
    if (blockIdx.x >= chunks) {
        const long long from = (blockIdx.x - chunks) * CHUNK, mine = from + threadIdx.x % WARP;
        const long long at = mine < entries && mine != padding ? lower_bound(keys, count, mine) : count;
        const unsigned empty = __ballot_sync(ALL_LANES, mine < entries && !(at < count && keys[at] == mine));
        if (column >= n) return;
        for (int k = 0; k < CHUNK; ++k) {
            if (empty >> k & 1) store(grad_weight + (from + k) * n + column, Pack<T, V>());
        }
        return;
    }
    // The chunk's keys, with the one before and the one after; -1, which no key is, where there is none.
    __shared__ long long around[CHUNK + 2], rows[CHUNK];
    const long long chunk = blockIdx.x, first = chunk * CHUNK;
    const int size = min((long long)CHUNK, count - first);
    for (int k = threadIdx.x; k < size + 2; k += blockDim.x) {
        const long long at = first + k - 1;
        around[k] = at >= 0 && at < count ? keys[at] : -1;
        if (k < size) rows[k] = order[first + k];
    }
    __syncthreads();
    if (column >= n) return;
    bool begun = around[0] == around[1];  // whether the run has begun before this chunk
    Pack<C, V> sum = {};
    for (int base = 0; base < size; base += AHEAD) {
        Pack<T, V> packs[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            if (base + j < size) packs[j] = load<T, V>(grad_out + rows[base + j] * n + column);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int i = base + j;
            if (i >= size) break;
#pragma unroll
            for (int k = 0; k < V; ++k) sum.at[k] += C(packs[j].at[k]);
            const long long key = around[i + 1];
            const bool goes_on = around[i + 2] == key;
            if (goes_on && i + 1 < size) continue;
            if (begun || goes_on) {
                store(edges + (2 * chunk + (begun ? 0 : 1)) * n + column, sum);
            } else if (key != padding) {
                store(grad_weight + key * n + column, narrowed<T>(sum));
            }
            begun = false;
            sum = {};
        }
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
