// out = 2 * x if a sum is positive, else -2 * x, decided on the device.
#include "pack.cuh"

// A thread does V elements. Grid: 1-D, at least packs threads.
template <typename T, int V>
__global__ void scale_by_sign(const T* x, const compute_t<T>* total, T* out, long long packs) {
    using C = compute_t<T>;
    wait_for_previous();
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= packs) return;
    const auto pack = load<T, V>(x + i * V);
    const C factor = *total > 0 ? 2 : -2;
    store(out + i * V, map_pack<V>([=](C x) { return factor * x; }, pack));
}
