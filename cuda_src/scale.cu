// scale(x, s) = x * s; its gradient is scale(grad_out, s). Grid: 1-D, at least ceil(n / V) threads, V elements each;
// see pack.cuh.
#include "pack.cuh"

// out = x * s
template <typename T, int V> __global__ void scale(const T* x, double s, T* out, long long n) {
    const auto factor = compute_t<T>(s);
    map<V>([=](compute_t<T> x) { return x * factor; }, n, out, x);
}
