// One step of AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019) over many tensors.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T> struct Real { using type = float; };
template <> struct Real<double> { using type = double; };

// A chunk is the elements first[c] to first[c] + chunk of tensor which[c], as far as it has them; count is the tensors'
// numbers of elements. T: parameters and gradients; S: the averages. Grid: one block for each chunk.
template <typename T, typename S>
__global__ void adamw(T* const* params, const T* const* grads, S* const* averages, S* const* squares,
    const long long* count, const int* which, const long long* first, int chunk, float sign, double lr, double beta1,
    double beta2, double eps, double decay, double correction1, double root_correction2) {
    const int tensor = which[blockIdx.x];
    const long long begin = first[blockIdx.x], end = min(begin + chunk, count[tensor]);
    T* const p = params[tensor];
    const T* const g = grads[tensor];
    S* const m = averages[tensor];
    S* const v = squares[tensor];
    using R = typename Real<T>::type;
    const R rest1 = 1 - beta1, b2 = beta2, rest2 = 1 - beta2, keep = 1 - lr * decay;
    const R size = lr / correction1, root = 1 / root_correction2;
    for (long long i = begin + threadIdx.x; i < end; i += blockDim.x) {
        const R grad = R(sign) * R(g[i]);
        const R average = R(m[i]) + rest1 * (grad - R(m[i]));
        const R square = b2 * R(v[i]) + rest2 * grad * grad;
        p[i] = T(R(p[i]) * keep - size * average / (sqrt(square) * root + R(eps)));
        m[i] = S(average);
        v[i] = S(square);
    }
}
