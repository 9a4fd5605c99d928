// out = 2 * x if a sum is positive, else -2 * x, decided on the device.
#include "row.cuh"

// The sum is that of `parts`, `count` of them, added up by every block in the same order; the first block leaves it in
// `total` if that is not null. A group of threads does `size` elements of x, whole packs; see row.cuh. Grid: at least
// n / size groups.
template <typename T, int V, int G>
__global__ void __launch_bounds__(MOST_THREADS<0, G>)
    scale_by_sign(const T* x, const compute_t<T>* parts, compute_t<T>* total, T* out, long long n, long long size,
                  long long count) {
    using C = compute_t<T>;
    C sum = 0;
    for (long long i = Group<G>::lane(); i < count; i += Group<G>::size()) sum += parts[i];
    sum = reduce<G>(0, Sum(), sum);
    const long long first = Group<G>::index() * size;
    if (total && first == 0 && Group<G>::lane() == 0) total[0] = sum;
    if (first >= n) return;
    const C factor = sum > 0 ? 2 : -2;
    const Row<T, V, 0, G> row(x + first, 0, min(size, n - first));
    row.each([&](int, long long i, const Pack<T, V>& pack) {
        store(out + first + i, map_pack<V>([=](C x) { return factor * x; }, pack));
    });
}
