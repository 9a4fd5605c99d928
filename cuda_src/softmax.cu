// softmax and log_softmax over rows, and their gradients. A group of threads per row; see row.cuh.
#include "softmax.cuh"

// out = exp(x) / sum(exp(x)), or its logarithm. Grid: at least as many groups as rows.
template <typename T, int V, int P, int G, bool LOG>
__global__ void __launch_bounds__(MOST_THREADS<P, G>)
    softmax(const T* x, T* out, long long rows, long long n, long long inner) {
    using C = compute_t<T>;
    const long long r = Group<G>::index();
    if (r >= rows) return;
    const Row<T, V, P, G> row(x, r, n, inner);
    T* to = out + row_offset<V, P>(r, n, inner);
    const MaxSum<C> found = max_and_sum(row);
    const C max = found.max, by = LOG ? C(log(found.sum)) : 1 / found.sum;
    row.each([&](int, index_t<P> i, const Pack<T, V>& pack) {
        const auto f = [=](C x) { return LOG ? x - max - by : exp_minus<T>(x, max) * by; };
        put(to, i, inner, map_pack<V>(f, pack));
    });
}

// grad_x from the result of the forward. Grid: as above.
template <typename T, int V, int P, int G, bool LOG>
__global__ void __launch_bounds__(MOST_THREADS<P, G>)
    softmax_backward(const T* grad_out, const T* out, T* grad_x, long long rows, long long n, long long inner) {
    using C = compute_t<T>;
    const long long r = Group<G>::index();
    if (r >= rows) return;
    const Row<T, V, P, G> grad(grad_out, r, n, inner), y(out, r, n, inner);
    T* to = grad_x + row_offset<V, P>(r, n, inner);
    C sum = 0;
    both(grad, y, [&](int, index_t<P>, const Pack<T, V>& g, const Pack<T, V>& y) {
#pragma unroll
        for (int k = 0; k < V; ++k) sum += C(g.at[k]) * (LOG ? C(1) : C(y.at[k]));
    });
    sum = reduce<G>(0, Sum(), sum);
    both(grad, y, [&](int, index_t<P> i, const Pack<T, V>& g, const Pack<T, V>& y) {
        const auto f = [=](C g, C y) { return LOG ? g - exp_minus<T>(y, 0) * sum : y * (g - sum); };
        put(to, i, inner, map_pack<V>(f, g, y));
    });
}
