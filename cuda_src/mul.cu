// mul(a, b) = a * b, its gradients, and the product of tensors of different shapes or layouts.
#include "pack.cuh"

// out = a * b. Grid: 1-D, at least ceil(n / V) threads, V elements each; see pack.cuh.
template <typename T, int V> __global__ void mul(const T* a, const T* b, T* out, long long n) {
    map<V>([](compute_t<T> a, compute_t<T> b) { return a * b; }, n, out, a, b);
}

// grad_a = grad_out * b and grad_b = grad_out * a, all of one shape. Grid: as for mul.
template <typename T, int V>
__global__ void mul_backward(const T* grad_out, const T* a, const T* b, T* grad_a, T* grad_b, long long n) {
    const long long first = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * V;
    if (V > 1 && first + V <= n && aligned<V>(grad_out, a, b, grad_a, grad_b)) {
        const auto times = [](compute_t<T> x, compute_t<T> y) { return x * y; };
        const auto g = load<T, V>(grad_out + first), x = load<T, V>(a + first), y = load<T, V>(b + first);
        store(grad_a + first, map_pack<V>(times, g, y));
        store(grad_b + first, map_pack<V>(times, g, x));
    } else {
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const long long i = first + k;
            if (i >= n) break;
            const compute_t<T> g = grad_out[i], x = a[i], y = b[i];
            grad_a[i] = T(g * y);
            grad_b[i] = T(g * x);
        }
    }
}

constexpr int MAX_DIMS = 8;

// The shape of the result, innermost dimension first, and how far apart the elements of a and b are along each one.
// size[0] counts packs.
struct Layout {
    long long dims, size[MAX_DIMS], a[MAX_DIMS], b[MAX_DIMS];
};

// out = a * b, a and b broadcast or with any strides, out contiguous and aligned, its rows a multiple of V elements.
// Grid: 1-D, at least n / V = packs threads, V elements of a row each. Index is the type that all indices fit: 32 bits
// wherever they suffice, since dividing 64 bits is slow.
template <typename T, int V, typename Index, Way A, Way B>
__global__ void mul_strided(const T* a, const T* b, T* out, Layout layout, long long packs) {
    const long long pack = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (pack >= packs) return;
    Index rest = pack, at_a = 0, at_b = 0;
#pragma unroll
    for (int d = 0; d < MAX_DIMS; ++d) {
        const Index size = layout.size[d], scale = d == 0 ? V : 1;
        const bool last = d + 1 >= layout.dims;
        const Index outer = last ? 0 : rest / size, index = rest - outer * size;
        at_a += index * scale * Index(layout.a[d]);
        at_b += index * scale * Index(layout.b[d]);
        if (last) break;
        rest = outer;
    }
    const auto times = [](compute_t<T> x, compute_t<T> y) { return x * y; };
    store(out + pack * V, map_pack<V>(times, gather<V, A>(a + at_a, layout.a[0]), gather<V, B>(b + at_b, layout.b[0])));
}
