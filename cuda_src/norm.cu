// layer_norm and rms_norm over rows, alone or of x + residual, and their gradients. A group of threads per row; see
// row.cuh. xhat = (x - mean) * rstd; RMS leaves the mean out.
#include "row.cuh"

// The weights of the columns that one thread has, kept in registers with P > 0; null stands for `otherwise`.
template <typename T, int V, int P, int G> struct Weights {
    const T* from;
    T otherwise;
    words_t<T, V> held[P > 0 ? P : 1];

    __device__ Weights(const T* from, long long n, float otherwise) : from(from), otherwise(otherwise) {
        if constexpr (P > 0) {
#pragma unroll
            for (int p = 0; p < P; ++p) {
                const int i = Row<T, V, P, G>::index(p);
                if (!from) held[p] = all();
                else if (i < n) held[p] = load_words<T, V>(from + i);
            }
        }
    }

    __device__ words_t<T, V> all() const {
        Pack<T, V> pack;
        words_t<T, V> words;
#pragma unroll
        for (int k = 0; k < V; ++k) pack.at[k] = otherwise;
        memcpy(&words, &pack, sizeof(words));
        return words;
    }

    __device__ Pack<T, V> at(int p, index_t<P> i) const {
        return unpack<T, V>(P > 0 ? held[p] : from ? load_words<T, V>(from + i) : all());
    }
};

// x + y for a row x and one more operand at the same places; `to` (a row) gets it, and the row becomes it.
template <typename T, int V, int P, int G> __device__ void add(Row<T, V, P, G>& row, const T* other, T* to) {
    using C = compute_t<T>;
    const auto sum = [](C x, C y) { return x + y; };
    if constexpr (P > 0) {
#pragma unroll
        for (int p = 0; p < P; ++p) {
            const int i = row.index(p);
            if (i < row.n) {
                const Pack<T, V> result = map_pack<V>(sum, row.pack(p, 0), load<T, V>(other + i));
                store(to + i, result);
                memcpy(&row.held[p], &result, sizeof(result));
            }
        }
    } else {
        row.each([&](int, index_t<P> i, const Pack<T, V>& pack) { store(to + i, map_pack<V>(sum, pack, load<T, V>(other + i))); });
        row.from = to;
    }
}

// out = xhat * weight + bias, with x + residual for x, which goes to `summed`, if there is a residual; mean and rstd of
// each row. weight and bias may be null, as is mean with RMS. Grid: at least as many groups as rows.
template <typename T, int V, int P, int G, bool RMS>
__global__ void __launch_bounds__(G == BLOCK ? 512 : 256)
    norm(const T* x, const T* residual, const T* weight, const T* bias, T* out, T* summed, compute_t<T>* mean,
         compute_t<T>* rstd, long long rows, long long n, double eps) {
    using C = compute_t<T>;
    const long long r = Group<G>::index();
    if (r >= rows) return;
    Row<T, V, P, G> row(x, r, n);
    const Weights<T, V, P, G> weights(weight, n, 1), biases(RMS ? nullptr : bias, n, 0);
    if (residual) add(row, residual + r * n, summed + r * n);
    const C share = C(1) / n;
    C center = 0, squares = 0;
    if constexpr (!RMS) {
        row.each([&](int, index_t<P>, const Pack<T, V>& pack) {
#pragma unroll
            for (int k = 0; k < V; ++k) center += C(pack.at[k]);
        });
        center = reduce<G>(0, Sum(), center) * share;
    }
    row.each([&](int, index_t<P>, const Pack<T, V>& pack) {
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const C distance = C(pack.at[k]) - center;
            squares += distance * distance;
        }
    });
    const C by = 1 / sqrt(reduce<G>(1, Sum(), squares) * share + C(eps));
    if (Group<G>::lane() == 0) {
        if constexpr (!RMS) mean[r] = center;
        rstd[r] = by;
    }
    T* to = out + r * n;
    row.each([&](int p, index_t<P> i, const Pack<T, V>& pack) {
        const auto f = [=](C x, C w, C b) { return RMS ? x * by * w : (x - center) * by * w + b; };
        store(to + i, map_pack<V>(f, pack, weights.at(p, i), biases.at(p, i)));
    });
}

// The sums over rows of what weight and bias get, by the columns that one thread has: in registers, or with P = 0 in
// memory, in a row that only this group touches.
template <typename C, int V, int P, int G> struct Columns {
    C* to;
    long long n;
    Pack<C, V> sums[P > 0 ? P : 1];

    __device__ Columns(C* base, long long n) : to(base ? base + Group<G>::index() * n : nullptr), n(n) {
        if constexpr (P > 0) {
#pragma unroll
            for (int p = 0; p < P; ++p) sums[p] = {};
        } else if (to) {
            for (long long i = Group<G>::lane() * V; i < n; i += Group<G>::size() * V) store(to + i, Pack<C, V>{});
        }
    }

    __device__ void add(int p, index_t<P> i, const Pack<C, V>& values) {
        if (P == 0 && !to) return;
        Pack<C, V> sum = P > 0 ? sums[p] : load<C, V>(to + i);
#pragma unroll
        for (int k = 0; k < V; ++k) sum.at[k] += values.at[k];
        if constexpr (P > 0) sums[p] = sum;
        else store(to + i, sum);
    }

    __device__ void finish() {
        if constexpr (P > 0) {
#pragma unroll
            for (int p = 0; p < P; ++p) {
                const long long i = (p * Group<G>::size() + Group<G>::lane()) * V;
                if (to && i < n) store(to + i, sums[p]);
            }
        }
    }
};

// grad_x, plus grad_summed if that is not null; and of each group the sums over its rows of what weight and bias get
// (each groups x n, null if not wanted). Grid: any. Half types have registers left to load the next row while
// one is computed.
template <typename T, int V, int P, int G, bool RMS>
__global__ void __launch_bounds__(G == BLOCK ? 512 : 128)
    norm_backward(const T* grad_out, const T* grad_summed, const T* x, const T* weight, const compute_t<T>* mean,
                  const compute_t<T>* rstd, T* grad_x, compute_t<T>* weight_sums, compute_t<T>* bias_sums,
                  long long rows, long long n) {
    using C = compute_t<T>;
    constexpr bool AHEAD = P > 0 && sizeof(T) == 2;
    const Weights<T, V, P, G> weights(weight, n, 1);
    Columns<C, V, P, G> for_weight(weight_sums, n), for_bias(RMS ? nullptr : bias_sums, n);
    const C share = C(1) / n;
    long long r = Group<G>::index();
    if (r >= rows) {
        for_weight.finish();
        if constexpr (!RMS) for_bias.finish();
        return;
    }
    Row<T, V, P, G> grad(grad_out, r, n), row(x, r, n), next_grad = grad, next_row = row;
    C next_by = rstd[r], next_center = RMS ? C(0) : mean[r];
    for (int turn = 0; r < rows; turn ^= 1) {
        const C by = next_by, center = next_center;
        const auto normalized = [=](C x) {  // half types have no digits that this loses, and it takes one instruction
            return RMS ? x * by : sizeof(T) == 2 ? x * by + -center * by : (x - center) * by;
        };
        const long long offset = r * n;
        r += Group<G>::count();
        if constexpr (P > 0) {  // the row after the next one; where nothing is loaded ahead, the next one
            const long long later = AHEAD ? r + Group<G>::count() : r;
            if (Group<G>::lane() == 0 && later < rows) {
                prefetch_row<T, V>(grad_out + later * n, n);
                prefetch_row<T, V>(x + later * n, n);
            }
        }
        if (r < rows) {
            if constexpr (AHEAD) {
                next_grad.hold(grad_out + r * n);
                next_row.hold(x + r * n);
            }
            next_by = rstd[r];
            if constexpr (!RMS) next_center = mean[r];
        }
        Pack<C, 2> sums = {};  // of w * g * xhat and of w * g
        both(grad, row, [&](int p, index_t<P> i, const Pack<T, V>& g, const Pack<T, V>& x) {
            const Pack<T, V> w = weights.at(p, i);
            Pack<C, V> bias, products;
#pragma unroll
            for (int k = 0; k < V; ++k) {
                const C xhat = normalized(C(x.at[k])), wg = C(w.at[k]) * C(g.at[k]);
                bias.at[k] = C(g.at[k]);
                products.at[k] = bias.at[k] * xhat;
                sums.at[0] += wg * xhat;
                sums.at[1] += wg;
            }
            for_weight.add(p, i, products);
            if constexpr (!RMS) for_bias.add(p, i, bias);
        });
        Row<T, V, P, G> more(n);  // loaded before the threads wait for each other
        if (grad_summed) {
            more.from = grad_summed + offset;
            if constexpr (P > 0) more.hold(more.from);
        }
        C along, constant = 0;  // what w * g loses along xhat and along a constant
        if constexpr (RMS) {
            along = reduce<G>(turn, Sum(), sums.at[0]) * share;
        } else {
            sums = reduce<G>(turn, Sum(), sums);
            along = sums.at[0] * share;
            constant = sums.at[1] * share;
        }
        both(grad, row, [&](int p, index_t<P> i, const Pack<T, V>& g, const Pack<T, V>& x) {
            const Pack<T, V> w = weights.at(p, i);
            Pack<T, V> added = {}, result;
            if (grad_summed) added = more.pack(p, i);
#pragma unroll
            for (int k = 0; k < V; ++k) {
                const C xhat = normalized(C(x.at[k])), wg = C(w.at[k]) * C(g.at[k]);
                result.at[k] = T((wg - constant - xhat * along) * by + C(added.at[k]));
            }
            store(grad_x + offset + i, result);
        });
        if (r >= rows) break;
        if constexpr (AHEAD) {
            grad = next_grad;
            row = next_row;
        } else {
            grad = Row<T, V, P, G>(grad_out, r, n);
            row = Row<T, V, P, G>(x, r, n);
        }
    }
    for_weight.finish();
    if constexpr (!RMS) for_bias.finish();
}
