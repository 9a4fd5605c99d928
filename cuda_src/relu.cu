// relu(x) = max(x, 0) and its gradient. Grids: 1-D, at least ceil(n / V) threads, V elements each; see pack.cuh.
#include "pack.cuh"

// out = 0 where x < 0, else x (so NaN and -0.0 stay); relu_ passes the same memory as x and out
template <typename T, int V> __global__ void relu(const T* x, T* out, long long n) {
    map<V>([](compute_t<T> x) { return x < 0 ? 0 : x; }, n, out, x);
}

// grad_x = grad_out where out > 0 or out is NaN, else 0
template <typename T, int V> __global__ void relu_backward(const T* grad_out, const T* out, T* grad_x, long long n) {
    map<V>([](compute_t<T> g, compute_t<T> y) { return y <= 0 ? 0 : g; }, n, grad_x, grad_out, out);
}
