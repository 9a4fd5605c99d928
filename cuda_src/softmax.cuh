// The largest element of a row, and the sum of exp(x - largest).
#pragma once
#include "row.cuh"

template <typename C> struct MaxSum { C max, sum; };

template <typename T, int V, int P, int G> __device__ auto max_and_sum(const Row<T, V, P, G>& row) {
    using C = compute_t<T>;
    C max = -C(CUDART_INF), sum = 0;
    if constexpr (P > 0) {
        row.each([&](int, index_t<P>, const Pack<T, V>& pack) {
#pragma unroll
            for (int k = 0; k < V; ++k) max = Max()(max, C(pack.at[k]));
        });
        max = reduce<G>(0, Max(), max);
        row.each([&](int, index_t<P>, const Pack<T, V>& pack) {
#pragma unroll
            for (int k = 0; k < V; ++k) sum += exp_minus<T>(C(pack.at[k]), max);
        });
    } else {  // one pass: the sum so far is scaled where a larger element comes; as long as all are -inf it is 0
        row.some([&](long long, long long, const Pack<T, V>* packs, int count) {
            C larger = max;
#pragma unroll
            for (int j = 0; j < LOADS; ++j) {
#pragma unroll
                for (int k = 0; k < V; ++k) larger = j < count ? Max()(larger, C(packs[j].at[k])) : larger;
            }
            const C by = larger == -C(CUDART_INF) ? C(0) : larger;
            sum *= exp_minus<T>(max, by);
            max = larger;
#pragma unroll
            for (int j = 0; j < LOADS; ++j) {
#pragma unroll
                for (int k = 0; k < V; ++k) sum += j < count ? exp_minus<T>(C(packs[j].at[k]), by) : 0;
            }
        });
        const C largest = reduce<G>(0, Max(), max);
        sum *= exp_minus<T>(max, largest == -C(CUDART_INF) ? C(0) : largest);
        max = largest;
    }
    return MaxSum<C>{max, reduce<G>(1, Sum(), sum)};
}
