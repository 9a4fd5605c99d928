// Cross entropy of rows of n logits, `inner` apart, with class indices; a group of threads per row; see row.cuh.
// With w the class weights (1 without), y the target and e the smoothing, of each row
//   loss = (1 - e) * w[y] * (lse - x[y]) + e / n * sum(w * (lse - x)),   lse = log(sum(exp(x))).
#include "softmax.cuh"

#include <assert.h>

// The losses of rows (0 where the target is `ignore`) and lse. weight may be null. Grid: as many groups as rows.
template <typename T, int V, int P, int G, bool SMOOTH>
__global__ void __launch_bounds__(MOST_THREADS<P, G>)
    cross_entropy(const T* x, const long long* target, const T* weight, compute_t<T>* losses, compute_t<T>* lse,
                  long long rows, long long n, long long inner, long long ignore, double smoothing) {
    using C = compute_t<T>;
    const long long r = Group<G>::index();
    if (r >= rows) return;
    const long long y = target[r];
    const bool counts = y != ignore;
    assert(!counts || (y >= 0 && y < n && "cross_entropy: target index out of range"));
    const Row<T, V, P, G> row(x, r, n, inner);
    const MaxSum<C> found = max_and_sum(row);
    const C log_sum = C(log(found.sum)), all = found.max + log_sum;
    C loss = 0;
    if (counts) loss = (found.max - C(row.from[y * inner]) + log_sum) * (weight ? C(weight[y]) : C(1));
    if constexpr (SMOOTH) {
        C others = 0;
        row.each([&](int, index_t<P> i, const Pack<T, V>& pack) {
#pragma unroll
            for (int k = 0; k < V; ++k) {
                others += (found.max - C(pack.at[k]) + log_sum) * (weight ? C(weight[i + k]) : C(1));
            }
        });
        others = reduce<G>(0, Sum(), others) / n;
        if (counts) loss = C(1 - smoothing) * loss + C(smoothing) * others;
    }
    if (Group<G>::lane() == 0) {
        losses[r] = loss;
        lse[r] = all;
    }
}

// loss, if it is not null: the sum of all losses, divided by the sum of w[y] if `mean`; total[0] is that sum (1 without
// `mean`), total[1] the sum of all w. Grid: one block, one group.
template <typename T, int G>
__global__ void __launch_bounds__(MOST_THREADS<1, G>)
    cross_entropy_total(const compute_t<T>* losses, const long long* target, const T* weight, T* loss,
                        compute_t<T>* total, long long rows, long long n, long long ignore, bool mean) {
    using C = compute_t<T>;
    Pack<C, 4> sums = {};  // of losses, of w[y], of w; packs have 2^k elements
    for (long long r = Group<G>::lane(); r < rows; r += Group<G>::size()) {
        const long long y = target[r];
        sums.at[0] += losses[r];
        if (y != ignore) sums.at[1] += weight ? C(weight[y]) : C(1);
    }
    if (weight) {
        for (long long i = Group<G>::lane(); i < n; i += Group<G>::size()) sums.at[2] += C(weight[i]);
    } else if (Group<G>::lane() == 0) {
        sums.at[2] = n;
    }
    sums = reduce<G>(0, Sum(), sums);
    if (Group<G>::lane() == 0) {
        const C by = mean ? sums.at[1] : C(1);
        if (loss) loss[0] = T(sums.at[0] / by);
        total[0] = by;
        total[1] = sums.at[2];
    }
}

// grad_x; grad_loss is one number, or one per row (each). A group does `size` elements of a row. Grid: at least rows *
// ceil(n / size) groups.
template <typename T, int V, int P, int G, bool SMOOTH>
__global__ void __launch_bounds__(MOST_THREADS<P, G>)
    cross_entropy_backward(const T* grad_loss, const T* x, const long long* target, const T* weight,
                           const compute_t<T>* lse, const compute_t<T>* total, T* grad_x, long long rows, long long n,
                           long long inner, long long size, long long ignore, double smoothing, bool each) {
    using C = compute_t<T>;
    const long long pieces = (n + size - 1) / size, r = pieces == 1 ? Group<G>::index() : Group<G>::index() / pieces;
    if (r >= rows) return;
    const long long first = pieces == 1 ? 0 : Group<G>::index() % pieces * size, y = target[r];
    const long long offset = row_offset<V, P>(r, n, inner) + first * inner;
    const bool counts = y != ignore;
    const C g = counts ? C(grad_loss[each ? r : 0]) / total[0] : C(0), log_sum = lse[r];
    const C of_hit = counts ? g * C(1 - smoothing) * (weight ? C(weight[y]) : C(1)) : C(0);
    const C of_all = SMOOTH ? g * C(smoothing) / n : C(0), factor = of_hit + (SMOOTH ? of_all * total[1] : C(0));
    const index_t<P> target_at = counts && first <= y && y < first + size ? y - first : -V;
    const auto f = [&](C x, index_t<P> i) {
        const C grad = factor * exp_minus<T>(x, log_sum);
        return SMOOTH ? grad - of_all * (weight ? C(weight[first + i]) : C(1)) : grad;
    };
    const Row<T, V, P, G> row(x + offset, 0, min(size, n - first), inner);
    row.each([&](int, index_t<P> i, const Pack<T, V>& pack) {
        Pack<T, V> result;
#pragma unroll
        for (int k = 0; k < V; ++k) result.at[k] = T(counts ? f(C(pack.at[k]), i + k) : C(0));
        if (i <= target_at && target_at < i + V) {
#pragma unroll
            for (int k = 0; k < V; ++k) {
                if (i + k == target_at) result.at[k] = T(f(C(pack.at[k]), i + k) - of_hit);
            }
        }
        put(grad_x + offset, i, inner, result);
    });
}
