// Put after a source and probe.cuh: a kernel template that is declared only, with the bits of a number as arguments.
// Integers are passed by their two halves; floats have no place among template arguments but by their bits.
template <class __rawkern_T, unsigned long long, unsigned long long>
__global__ void __rawkern_constant();

template <class __rawkern_T>
__host__ __device__ constexpr __rawkern_T __rawkern_value(__rawkern_T __rawkern_v) {
    return __rawkern_v;
}
template <class __rawkern_T>
__host__ __device__ constexpr unsigned long long __rawkern_low(__rawkern_T __rawkern_v) {
    return (unsigned long long)__rawkern_v;
}
__host__ __device__ constexpr unsigned long long __rawkern_low(float __rawkern_v) {
    return __builtin_bit_cast(unsigned int, __rawkern_v);
}
__host__ __device__ constexpr unsigned long long __rawkern_low(double __rawkern_v) {
    return __builtin_bit_cast(unsigned long long, __rawkern_v);
}
template <class __rawkern_T>
__host__ __device__ constexpr unsigned long long __rawkern_high(__rawkern_T) {
    return 0;
}
__host__ __device__ constexpr unsigned long long __rawkern_high(__int128 __rawkern_v) {
    return (unsigned long long)((unsigned __int128)__rawkern_v >> 64);
}
__host__ __device__ constexpr unsigned long long __rawkern_high(unsigned __int128 __rawkern_v) {
    return (unsigned long long)(__rawkern_v >> 64);
}
