// Random words that depend on a seed and an index only: Philox 4x32 with 10 rounds (Salmon et al., Parallel Random
// Numbers: As Easy as 1, 2, 3, SC 2011).
#pragma once

// The index-th word. Four neighbours come from one counter, which the compiler computes once where it sees them together.
__device__ __forceinline__ unsigned int random_word(long long seed, long long index) {
    unsigned int key0 = static_cast<unsigned int>(seed), key1 = static_cast<unsigned int>(seed >> 32);
    const unsigned long long counter = static_cast<unsigned long long>(index) >> 2;
    unsigned int c0 = static_cast<unsigned int>(counter), c1 = static_cast<unsigned int>(counter >> 32), c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned long long p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
        c0 = static_cast<unsigned int>(p1 >> 32) ^ c1 ^ key0;
        c2 = static_cast<unsigned int>(p0 >> 32) ^ c3 ^ key1;
        c1 = static_cast<unsigned int>(p1);
        c3 = static_cast<unsigned int>(p0);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    const int word = static_cast<int>(index & 3);
    return word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3;
}
