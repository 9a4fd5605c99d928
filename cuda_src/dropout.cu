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

// out[i] = word i < drop ? 0 : in[i] * scale. Words have 32 bits, or 16 for half types, which come twice as fast: so a
// counter is enough for C = 4 or 8 elements. A thread does C neighboring ones. Grid: 1-D, at least ceil(n / C) threads.
template <typename T>
__global__ void dropout(const T* in, T* out, const long long* seed, unsigned int drop, compute_t<T> scale, long long n) {
    constexpr int C = sizeof(T) == 2 ? 8 : 4, LOAD = 16 / sizeof(T) < C ? 16 / sizeof(T) : C;  // elements of a load
    const long long counter = (long long)blockIdx.x * blockDim.x + threadIdx.x, first = counter * C;
    if (first >= n) return;
    const auto kept = [=](const Words& words, int k, T value) {
        const unsigned int word = C == 4 ? words.at[k % 4] : words.at[k / 2] >> (k % 2 * 16) & 0xFFFFu;
        return word < drop ? T(0.0f) : T(compute_t<T>(value) * scale);
    };
    if (first + C <= n && aligned<LOAD>(in, out)) {
        Pack<T, LOAD> values[C / LOAD];
#pragma unroll
        for (int j = 0; j < C / LOAD; ++j) values[j] = load<T, LOAD>(in + first + j * LOAD);
        const Words words = philox(*seed, counter);
#pragma unroll
        for (int k = 0; k < C; ++k) {
            T& value = values[k / LOAD].at[k % LOAD];
            value = kept(words, k, value);
        }
#pragma unroll
        for (int j = 0; j < C / LOAD; ++j) store(out + first + j * LOAD, values[j]);
        return;
    }
    const Words words = philox(*seed, counter);
#pragma unroll
    for (int k = 0; k < C; ++k) {
        if (first + k < n) out[first + k] = kept(words, k, in[first + k]);
    }
}
