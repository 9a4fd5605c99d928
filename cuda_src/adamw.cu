// One step of AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019) over many tensors.

#include "pack.cuh"

struct Step { double lr, beta1, beta2, eps, decay, correction1, root_correction2; };

// A chunk is the elements first[c] to first[c] + chunk of tensor which[c], as far as it has them. The table has a row of
// addresses each for parameters and gradients (T) and for the averages of gradients and of their squares (S), and a row
// with the numbers of elements. A thread does V elements at a time. Grid: one block for each chunk.
template <typename T, typename S, int V>
__global__ void adamw(const long long* table, int tensors, const int* which, const long long* first, int chunk,
    float sign, Step step) {
    using R = compute_t<T>;
    const int tensor = which[blockIdx.x];
    T* const p = reinterpret_cast<T*>(table[tensor]);
    const T* const g = reinterpret_cast<const T*>(table[tensors + tensor]);
    S* const m = reinterpret_cast<S*>(table[2 * tensors + tensor]);
    S* const v = reinterpret_cast<S*>(table[3 * tensors + tensor]);
    const long long count = table[4 * tensors + tensor], begin = first[blockIdx.x];
    const long long end = begin + chunk < count ? begin + chunk : count;
    const R rest1 = 1 - step.beta1, b2 = step.beta2, rest2 = 1 - step.beta2, keep = 1 - step.lr * step.decay;
    const R size = step.lr / step.correction1, root = 1 / step.root_correction2, eps = step.eps;
    const auto update = [&](T& p, const T& g, S& m, S& v) {
        const R grad = R(sign) * R(g), average = R(m) + rest1 * (grad - R(m)), square = b2 * R(v) + rest2 * grad * grad;
        p = T(R(p) * keep - size * average / (sqrt(square) * root + eps));
        m = S(average);
        v = S(square);
    };
    long long done = begin;
    if (aligned<V>(p, g) && aligned<V>(m, v)) {
        done = begin + (end - begin) / V * V;
        for (long long start = begin; start < done; start += (long long)blockDim.x * V) {  // in all threads as often
            const long long i = start + threadIdx.x * V;
            if (i >= done) continue;
            auto ps = load<T, V>(p + i);
            const auto gs = load<T, V>(g + i);
            auto ms = load<S, V>(m + i), vs = load<S, V>(v + i);
#pragma unroll
            for (int k = 0; k < V; ++k) update(ps.at[k], gs.at[k], ms.at[k], vs.at[k]);
            store(p + i, ps);
            store(m + i, ms);
            store(v + i, vs);
        }
    }
    for (long long i = done + threadIdx.x; i < end; i += blockDim.x) update(p[i], g[i], m[i], v[i]);
}
