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

constexpr int SORTING = 1024, DIGITS = 256;  // threads that sort, and values of a digit

// Where the threads of a block keep what they sort.
template <int ITEMS> struct Sorting {
    unsigned short counts[SORTING / WARP][DIGITS], parts[SORTING / DIGITS][DIGITS];
    unsigned of_warps[DIGITS / WARP], items[SORTING * ITEMS];
};

// The lanes of the warp that have the same digit. __match_any_sync takes many times as long.
__device__ inline unsigned lanes_with(unsigned digit) {
    unsigned same = ALL_LANES;
#pragma unroll
    for (int bit = 1; bit < DIGITS; bit *= 2) {
        const unsigned set = __ballot_sync(ALL_LANES, digit & bit);
        same &= digit & bit ? set : ~set;
    }
    return same;
}

// Turns how many items with a digit each warp has into where the first of them goes.
template <int ITEMS> __device__ void place(Sorting<ITEMS>& s) {
    constexpr int PARTS = SORTING / DIGITS, EACH = SORTING / WARP / PARTS;  // warps that a thread adds up
    const int digit = threadIdx.x % DIGITS, part = threadIdx.x / DIGITS, lane = threadIdx.x % WARP;
    unsigned sum = 0, before = 0;  // items with this digit in some warps; those with lower digits
#pragma unroll
    for (int w = 0; w < EACH; ++w) sum += s.counts[part * EACH + w][digit];
    s.parts[part][digit] = sum;
    __syncthreads();
    if (part == 0) {
        unsigned total = 0;
#pragma unroll
        for (int q = 0; q < PARTS; ++q) total += s.parts[q][digit];
        unsigned through = total;
#pragma unroll
        for (int offset = 1; offset < WARP; offset *= 2) {
            const unsigned other = __shfl_up_sync(ALL_LANES, through, offset);
            if (lane >= offset) through += other;
        }
        before = through - total;
        if (lane == WARP - 1) s.of_warps[digit / WARP] = through;
    }
    __syncthreads();
    if (part == 0) {
        for (int w = 0; w < digit / WARP; ++w) before += s.of_warps[w];
#pragma unroll
        for (int q = 0; q < PARTS; ++q) {
            const unsigned count = s.parts[q][digit];
            s.parts[q][digit] = before;
            before += count;
        }
    }
    __syncthreads();
    unsigned next = s.parts[part][digit];
#pragma unroll
    for (int w = 0; w < EACH; ++w) {
        const unsigned count = s.counts[part * EACH + w][digit];
        s.counts[part * EACH + w][digit] = next;
        next += count;
    }
    __syncthreads();
}

// The indices sorted, as `keys`, with the positions they had as `order`; equal ones stay in order. The first block sorts
// up to SORTING * ITEMS, by one digit of 8 bits after the other; the others clear grad_weight, `packs` packs. An item is
// an index of `bits` bits above its position: both have to fit 32. Block: SORTING threads. Shared memory: Sorting<ITEMS>.
template <typename T, int V, typename Key, int ITEMS>
__global__ void __launch_bounds__(SORTING)
    embedding_sort(const long long* index, Key* keys, long long* order, T* grad_weight, int count, int bits,
                   long long packs) {
    constexpr unsigned POSITIONS = SORTING * ITEMS;
    static_assert((POSITIONS & (POSITIONS - 1)) == 0 && POSITIONS <= 1 << 15, "bits, and counts of 16 bits");
    wait_for_previous();
    if (blockIdx.x > 0) {
        const long long threads = (gridDim.x - 1LL) * SORTING;
        for (long long i = (blockIdx.x - 1LL) * SORTING + threadIdx.x; i < packs; i += threads) {
            store(grad_weight + i * V, Pack<T, V>());
        }
        return;
    }
    extern __shared__ __align__(16) unsigned char memory[];
    Sorting<ITEMS>& s = *reinterpret_cast<Sorting<ITEMS>*>(memory);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = warp * WARP * ITEMS + lane;
    unsigned item[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int i = first + k * WARP;
        item[k] = i < count ? unsigned(index[i]) * POSITIONS + i : ~0u;  // those that are none remain the last
    }
    const int from = __popc(POSITIONS - 1);
    for (int shift = from; shift < from + bits; shift += 8) {
        unsigned rank[ITEMS];  // of an item among those of its warp that have the same digit
        for (int i = lane; i < DIGITS; i += WARP) s.counts[warp][i] = 0;
        __syncwarp();
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            const unsigned digit = item[k] >> shift & (DIGITS - 1), same = lanes_with(digit);
            const unsigned before = same & ((1u << lane) - 1), counted = s.counts[warp][digit];
            rank[k] = counted + __popc(before);
            __syncwarp();
            if (before == 0) s.counts[warp][digit] = counted + __popc(same);
            __syncwarp();
        }
        __syncthreads();
        place(s);
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            s.items[s.counts[warp][item[k] >> shift & (DIGITS - 1)] + rank[k]] = item[k];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) item[k] = s.items[first + k * WARP];
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int i = first + k * WARP;
        if (i >= count) continue;
        keys[i] = Key(item[k] / POSITIONS);
        order[i] = item[k] % POSITIONS;
    }
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
// go on to edges[chunk][1]. Others in the first row of blocks, if there are any, write zeros for entries of no key and for
// `padding`, CHUNK entries each. Grid: (chunks + entries / CHUNK) x column blocks. Block: whole warps.
template <typename T, int V, typename Key>
__global__ void embedding_sums(const T* grad_out, const Key* keys, const long long* order, T* grad_weight,
                               compute_t<T>* edges, long long count, long long chunks, long long entries, long long n,
                               long long padding) {
    using C = compute_t<T>;
    constexpr int AHEAD = 4;  // rows that a thread has on their way
    static_assert(CHUNK == WARP, "a lane looks for an entry");
    wait_for_previous();
    if (blockIdx.x >= chunks) {
        if (blockIdx.y > 0) return;
        const long long from = (blockIdx.x - chunks) * CHUNK, mine = from + threadIdx.x % WARP;
        const long long at = mine < entries && mine != padding ? lower_bound(keys, count, mine) : count;
        const unsigned empty = __ballot_sync(ALL_LANES, mine < entries && !(at < count && keys[at] == mine));
        for (int k = 0; k < CHUNK; ++k) {
            if (!(empty >> k & 1)) continue;
            for (long long i = threadIdx.x * V; i < n; i += blockDim.x * V) {
                store(grad_weight + (from + k) * n + i, Pack<T, V>());
            }
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
    const long long column = ((long long)blockIdx.y * blockDim.x + threadIdx.x) * V;
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
    wait_for_previous();
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
