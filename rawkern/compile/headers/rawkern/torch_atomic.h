// Atomic functions of PyTorch's C++ headers.
#include <rawkern/torch_warp.h>

// A function of the value in memory, put in its place atomically.
template <typename Word, typename F> __device__ __forceinline__ Word rawkern_atomically(Word* address, F f) {
  Word old = *address, assumed;
  do {
    assumed = old;
    old = atomicCAS(address, assumed, f(assumed));
  } while (old != assumed);
  return old;
}
// The same for a byte, through the two bytes around it, which is the least that is compared and swapped.
template <typename F> __device__ __forceinline__ unsigned char rawkern_atomically(unsigned char* address, F f) {
  unsigned short* both = reinterpret_cast<unsigned short*>(reinterpret_cast<size_t>(address) & ~size_t(1));
  const int shift = (reinterpret_cast<size_t>(address) & 1) * 8;
  const unsigned short old = rawkern_atomically(both, [&](unsigned short bits) {
    const unsigned char now = f(static_cast<unsigned char>(bits >> shift));
    return static_cast<unsigned short>((bits & ~(0xff << shift)) | now << shift);
  });
  return static_cast<unsigned char>(old >> shift);
}

__device__ __forceinline__ c10::Half atomicAdd(c10::Half* address, c10::Half value) {
  unsigned short old;
  asm volatile("atom.add.noftz.f16 %0, [%1], %2;" : "=h"(old) : "l"(address), "h"(value.x) : "memory");
  return c10::Half(old, c10::Half::from_bits());
}
__device__ __forceinline__ c10::BFloat16 atomicAdd(c10::BFloat16* address, c10::BFloat16 value) {
  auto old = rawkern_atomically(&address->x, [&](unsigned short bits) { return (c10::BFloat16(bits, c10::BFloat16::from_bits()) + value).x; });
  return c10::BFloat16(old, c10::BFloat16::from_bits());
}
__device__ __forceinline__ uint8_t atomicAdd(uint8_t* address, uint8_t value) { return rawkern_atomically(address, [&](uint8_t old) { return static_cast<uint8_t>(old + value); }); }
__device__ __forceinline__ int8_t atomicAdd(int8_t* address, int8_t value) { return static_cast<int8_t>(rawkern_atomically(reinterpret_cast<uint8_t*>(address), [&](uint8_t old) { return static_cast<uint8_t>(old + value); })); }
__device__ __forceinline__ int16_t atomicAdd(int16_t* address, int16_t value) { return static_cast<int16_t>(rawkern_atomically(reinterpret_cast<unsigned short*>(address), [&](uint16_t old) { return static_cast<uint16_t>(old + value); })); }
__device__ __forceinline__ int64_t atomicAdd(int64_t* address, int64_t value) { return static_cast<int64_t>(atomicAdd(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value))); }
__device__ __forceinline__ long atomicAdd(long* address, long value) { return static_cast<long>(atomicAdd(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value))); }
__device__ __forceinline__ bool atomicAdd(bool* address, bool value) { return rawkern_atomically(reinterpret_cast<uint8_t*>(address), [&](uint8_t old) { return static_cast<uint8_t>(old || value); }); }
template <typename T> __device__ __forceinline__ void atomicAdd(c10::complex<T>* address, c10::complex<T> value) { atomicAdd(&address->real_, value.real_); atomicAdd(&address->imag_, value.imag_); }

template <typename T> __device__ __forceinline__ auto gpuAtomicAdd(T* address, T value) { return atomicAdd(address, value); }
template <typename T> __device__ __forceinline__ void gpuAtomicAddNoReturn(T* address, T value) { atomicAdd(address, value); }
__device__ __forceinline__ float gpuAtomicAdd(float* address, double value) { return atomicAdd(address, static_cast<float>(value)); }
__device__ __forceinline__ double gpuAtomicAdd(double* address, float value) { return atomicAdd(address, static_cast<double>(value)); }
__device__ __forceinline__ float gpuAtomicMul(float* address, float value) { return __int_as_float(rawkern_atomically(reinterpret_cast<int*>(address), [&](int bits) { float old = __int_as_float(bits); return __float_as_int(old * value); })); }
__device__ __forceinline__ double gpuAtomicMul(double* address, double value) { return __longlong_as_double(rawkern_atomically(reinterpret_cast<unsigned long long*>(address), [&](unsigned long long bits) { double old = __longlong_as_double(bits); return static_cast<unsigned long long>(__double_as_longlong(old * value)); })); }
__device__ __forceinline__ int gpuAtomicMul(int* address, int value) { return rawkern_atomically(address, [&](int old) { return old * value; }); }
__device__ __forceinline__ int64_t gpuAtomicMul(int64_t* address, int64_t value) { return static_cast<int64_t>(rawkern_atomically(reinterpret_cast<unsigned long long*>(address), [&](unsigned long long bits) { int64_t old = static_cast<int64_t>(bits); return static_cast<unsigned long long>(old * value); })); }
__device__ __forceinline__ c10::Half gpuAtomicMul(c10::Half* address, c10::Half value) { return c10::Half(rawkern_atomically(&address->x, [&](unsigned short bits) { c10::Half old(bits, c10::Half::from_bits()); return (old * value).x; }), c10::Half::from_bits()); }
__device__ __forceinline__ c10::BFloat16 gpuAtomicMul(c10::BFloat16* address, c10::BFloat16 value) { return c10::BFloat16(rawkern_atomically(&address->x, [&](unsigned short bits) { c10::BFloat16 old(bits, c10::BFloat16::from_bits()); return (old * value).x; }), c10::BFloat16::from_bits()); }
__device__ __forceinline__ float gpuAtomicMax(float* address, float value) { return __int_as_float(rawkern_atomically(reinterpret_cast<int*>(address), [&](int bits) { float old = __int_as_float(bits); return __float_as_int(old > value || old != old ? old : value); })); }
__device__ __forceinline__ double gpuAtomicMax(double* address, double value) { return __longlong_as_double(rawkern_atomically(reinterpret_cast<unsigned long long*>(address), [&](unsigned long long bits) { double old = __longlong_as_double(bits); return static_cast<unsigned long long>(__double_as_longlong(old > value || old != old ? old : value)); })); }
__device__ __forceinline__ int gpuAtomicMax(int* address, int value) { return rawkern_atomically(address, [&](int old) { return old > value || old != old ? old : value; }); }
__device__ __forceinline__ int64_t gpuAtomicMax(int64_t* address, int64_t value) { return static_cast<int64_t>(rawkern_atomically(reinterpret_cast<unsigned long long*>(address), [&](unsigned long long bits) { int64_t old = static_cast<int64_t>(bits); return static_cast<unsigned long long>(old > value || old != old ? old : value); })); }
__device__ __forceinline__ c10::Half gpuAtomicMax(c10::Half* address, c10::Half value) { return c10::Half(rawkern_atomically(&address->x, [&](unsigned short bits) { c10::Half old(bits, c10::Half::from_bits()); return (old > value || old != old ? old : value).x; }), c10::Half::from_bits()); }
__device__ __forceinline__ c10::BFloat16 gpuAtomicMax(c10::BFloat16* address, c10::BFloat16 value) { return c10::BFloat16(rawkern_atomically(&address->x, [&](unsigned short bits) { c10::BFloat16 old(bits, c10::BFloat16::from_bits()); return (old > value || old != old ? old : value).x; }), c10::BFloat16::from_bits()); }
__device__ __forceinline__ float gpuAtomicMin(float* address, float value) { return __int_as_float(rawkern_atomically(reinterpret_cast<int*>(address), [&](int bits) { float old = __int_as_float(bits); return __float_as_int(old < value || old != old ? old : value); })); }
__device__ __forceinline__ double gpuAtomicMin(double* address, double value) { return __longlong_as_double(rawkern_atomically(reinterpret_cast<unsigned long long*>(address), [&](unsigned long long bits) { double old = __longlong_as_double(bits); return static_cast<unsigned long long>(__double_as_longlong(old < value || old != old ? old : value)); })); }
__device__ __forceinline__ int gpuAtomicMin(int* address, int value) { return rawkern_atomically(address, [&](int old) { return old < value || old != old ? old : value; }); }
__device__ __forceinline__ int64_t gpuAtomicMin(int64_t* address, int64_t value) { return static_cast<int64_t>(rawkern_atomically(reinterpret_cast<unsigned long long*>(address), [&](unsigned long long bits) { int64_t old = static_cast<int64_t>(bits); return static_cast<unsigned long long>(old < value || old != old ? old : value); })); }
__device__ __forceinline__ c10::Half gpuAtomicMin(c10::Half* address, c10::Half value) { return c10::Half(rawkern_atomically(&address->x, [&](unsigned short bits) { c10::Half old(bits, c10::Half::from_bits()); return (old < value || old != old ? old : value).x; }), c10::Half::from_bits()); }
__device__ __forceinline__ c10::BFloat16 gpuAtomicMin(c10::BFloat16* address, c10::BFloat16 value) { return c10::BFloat16(rawkern_atomically(&address->x, [&](unsigned short bits) { c10::BFloat16 old(bits, c10::BFloat16::from_bits()); return (old < value || old != old ? old : value).x; }), c10::BFloat16::from_bits()); }

namespace at {
namespace native {
template <typename scalar_t, typename index_t> __device__ __forceinline__ void fastAtomicAdd(scalar_t* tensor, index_t index, const index_t numel, scalar_t value, bool fast_atomics) { atomicAdd(tensor + index, value); }
}
}
using at::native::fastAtomicAdd;
