// Elementwise maps that read and write 16 bytes at a time. A thread does V neighboring elements; V = 1 is the plain
// map.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The type that T is computed in: float for the half types, so that a result is rounded once.
template <typename T> struct Compute { using type = T; };
template <> struct Compute<__half> { using type = float; };
template <> struct Compute<__nv_bfloat16> { using type = float; };
template <typename T> using compute_t = typename Compute<T>::type;

// What an element of an array is to statements that index it: one that is only read arrives as it is computed in.
template <typename T> struct Indexed { using type = T&; };
template <> struct Indexed<const __half> { using type = float; };
template <> struct Indexed<const __nv_bfloat16> { using type = float; };

// A contiguous array that the statements of an elementwise operator index themselves. Where they ask for its shape it
// has DIMS dimensions, of which `extents` has the sizes, and after them the strides in bytes.
template <typename T, int DIMS = -1> struct RawArray {
    static constexpr int ndim = DIMS;
    T* data;
    const long long* extents;

    __device__ typename Indexed<T>::type operator[](long long i) const {
        return static_cast<typename Indexed<T>::type>(data[i]);
    }
    template <typename I, int N> __device__ typename Indexed<T>::type operator[](const I (&index)[N]) const {
        static_assert(N == (DIMS > 0 ? DIMS : 1), "an element has as many indices as its array has dimensions");
        long long at = 0;
        for (int d = 0; d < DIMS; ++d) at = at * extents[d] + index[d];
        return (*this)[at];
    }
    __device__ long long size() const {
        long long n = 1;
        for (int d = 0; d < DIMS; ++d) n *= extents[d];
        return n;
    }
    __device__ const long long* shape() const { return extents; }
    __device__ const long long* strides() const { return extents + DIMS; }
};

// What the statements know as `_ind`: the indices of the i-th of n elements, in row-major order.
template <int DIMS> struct Indexer {
    static constexpr int ndim = DIMS;
    using Indices = long long[DIMS > 0 ? DIMS : 1];
    long long n;
    Indices index = {};

    __device__ Indexer(const long long* sizes, long long i, long long n) : n(n) {
        for (int d = DIMS; d-- > 0; i /= sizes[d]) index[d] = i % sizes[d];
    }
    __device__ long long size() const { return n; }
    __device__ const Indices& get() const { return index; }
};

// V elements that one instruction loads or stores.
template <typename T, int V> struct alignas(sizeof(T) * V) Pack { T at[V]; };

template <int V, typename... T> __device__ bool aligned(const T*... pointer) {
    return (... && (reinterpret_cast<unsigned long long>(pointer) % sizeof(Pack<T, V>) == 0));
}

// The I-th of the V elements is f(in[0].at[I], in[1].at[I], ...), computed in compute_t<T>.
template <int V, typename F, typename T, typename... In>
__device__ Pack<T, V> map_pack(F f, const Pack<T, V>& first, const In&... rest) {
    Pack<T, V> result;
#pragma unroll
    for (int i = 0; i < V; ++i) result.at[i] = T(f(compute_t<T>(first.at[i]), compute_t<T>(rest.at[i])...));
    return result;
}

// The type T in memory. With ONCE nothing reads it again soon, so that the L2 cache drops it before other things.
template <typename T, bool ONCE = false> __device__ T load_as(const void* from) {
#if __CUDA_ARCH__ >= 800
    if constexpr (ONCE && sizeof(T) == 16) {
        uint4 words;
        asm volatile(
            "{ .reg .b64 policy; createpolicy.fractional.L2::evict_first.b64 policy, 1.0; "
            "ld.global.L1::evict_first.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], policy; }"
            : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
            : "l"(__cvta_generic_to_global(from)));
        T result;
        memcpy(&result, &words, sizeof(result));
        return result;
    }
#endif
    return *static_cast<const T*>(from);
}

template <typename T, int V, bool ONCE = false> __device__ Pack<T, V> load(const T* from) {
    return load_as<Pack<T, V>, ONCE>(from);
}

// Waits until the kernel before this one on the stream has ended, where this one is launched to begin while that ends.
// A kernel never triggers the next one's begin before its blocks end: waiting blocks would take up multiprocessors
// unevenly.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <typename T, int V> __device__ void store(T* to, const Pack<T, V>& pack) {
    *reinterpret_cast<Pack<T, V>*>(to) = pack;
}

// How the elements of a pack lie, where the host knows it: one after another and aligned, or all are one.
enum class Way { ANY, NEXT, SAME };

// V elements that are `step` apart.
template <int V, Way WAY = Way::ANY, bool ONCE = false, typename T>
__device__ Pack<T, V> gather(const T* from, long long step) {
    if (WAY == Way::NEXT || (WAY == Way::ANY && step == 1 && aligned<V>(from))) return load<T, V, ONCE>(from);
    Pack<T, V> pack;
#pragma unroll
    for (int i = 0; i < V; ++i) pack.at[i] = from[WAY == Way::SAME ? 0 : i * step];
    return pack;
}

template <int V, Way WAY = Way::ANY, typename T> __device__ void scatter(T* to, long long step, const Pack<T, V>& pack) {
    if (WAY == Way::NEXT || (WAY == Way::ANY && step == 1 && aligned<V>(to))) return store(to, pack);
#pragma unroll
    for (int i = 0; i < V; ++i) to[i * step] = pack.at[i];
}

// out[i] = f(in[i]...) for i < n. Grid: 1-D, at least ceil(n / V) threads. `in` and `out` may be the same memory.
template <int V, typename F, typename T, typename... In>
__device__ void map(F f, long long n, T* out, const In*... in) {
    const long long block = (long long)blockIdx.x * blockDim.x * V;
    const long long first = block + threadIdx.x * V;
    if constexpr (V == 1) {
        if (first < n) out[first] = T(f(compute_t<In>(in[first])...));
    } else if (first + V <= n && aligned<V>(out, in...)) {
        store(out + first, map_pack<V>(f, load<In, V>(in + first)...));
    } else if (block + V * blockDim.x <= n) {  // misaligned, so one by one; all loads come first
        Pack<T, V> result;
#pragma unroll
        for (int k = 0; k < V; ++k) result.at[k] = T(f(compute_t<In>(in[block + k * blockDim.x + threadIdx.x])...));
#pragma unroll
        for (int k = 0; k < V; ++k) out[block + k * blockDim.x + threadIdx.x] = result.at[k];
    } else {
#pragma unroll
        for (int k = 0; k < V; ++k) {
            if (first + k < n) out[first + k] = T(f(compute_t<In>(in[first + k])...));
        }
    }
}
