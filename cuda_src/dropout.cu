// Dropout with random words that depend on a seed and an element's index only, so that backward makes them again.
#include "pack.cuh"

struct Words { unsigned int at[4]; };

// Words 4 * counter to 4 * counter + 3 of Philox 4x32 with 7 rounds, the fewest that pass BigCrush (Salmon et al.,
// Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011).
__device__ __forceinline__ Words philox(unsigned long long seed, unsigned long long counter) {
    unsigned int key0 = seed, key1 = seed >> 32, c0 = counter, c1 = counter >> 32, c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 7; ++round) {
        const unsigned long long p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
        c0 = static_cast<unsigned int>(p1 >> 32) ^ c1 ^ key0;
        c2 = static_cast<unsigned int>(p0 >> 32) ^ c3 ^ key1;
        c1 = static_cast<unsigned int>(p1);
        c3 = static_cast<unsigned int>(p0);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// out[i] = word i < drop ? 0 : in[i] * scale. A thread does 4 P neighbouring elements, those of P counters. Grid: 1-D, at
// least ceil(n / (4 P)) threads.
template <typename T, int P>
__global__ void dropout(const T* in, T* out, const long long* seed, unsigned int drop, compute_t<T> scale, long long n) {
    constexpr int V = 4 * P, LOAD = V * sizeof(T) > 16 ? 16 / sizeof(T) : V;  // elements of a load
    const long long first = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * V;
    if (first >= n) return;
    const unsigned long long key = *seed;
    Pack<T, V> values;
    const bool whole = first + V <= n && aligned<LOAD>(in, out);
    if (whole) {
#pragma unroll
        for (int k = 0; k < V; k += LOAD) {
            const auto part = load<T, LOAD>(in + first + k);
#pragma unroll
            for (int j = 0; j < LOAD; ++j) values.at[k + j] = part.at[j];
        }
    } else {
#pragma unroll
        for (int k = 0; k < V; ++k) values.at[k] = first + k < n ? in[first + k] : T(0.0f);
    }
#pragma unroll
    for (int p = 0; p < P; ++p) {
        const Words words = philox(key, static_cast<unsigned long long>(first) / 4 + p);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            T& value = values.at[4 * p + k];
            value = words.at[k] < drop ? T(0.0f) : T(compute_t<T>(value) * scale);
        }
    }
    if (whole) {
#pragma unroll
        for (int k = 0; k < V; k += LOAD) {
            Pack<T, LOAD> part;
#pragma unroll
            for (int j = 0; j < LOAD; ++j) part.at[j] = values.at[k + j];
            store(out + first + k, part);
        }
    } else {
#pragma unroll
        for (int k = 0; k < V; ++k) {
            if (first + k < n) out[first + k] = values.at[k];
        }
    }
}
