// square(x) = x * x and its gradient. Grids: 1-D, at least ceil(n / V) threads, V elements each; see pack.cuh.
#include "pack.cuh"

// out = x * x
template <typename T, int V> __global__ void square(const T* x, T* out, long long n) {
    map<V>([](compute_t<T> x) { return x * x; }, n, out, x);
}

// grad_x = grad_out * 2 * x
template <typename T, int V> __global__ void square_backward(const T* grad_out, const T* x, T* grad_x, long long n) {
    map<V>([](compute_t<T> g, compute_t<T> x) { return g * (2 * x); }, n, grad_x, grad_out, x);
}
