// Numbers of 8 bits of PyTorch's C++ headers.
#include <cuda_fp8.h>
#include <rawkern/torch.h>

namespace c10 {

struct alignas(1) Float8_e4m3fn {
  unsigned char x;
  struct from_bits_t {};
  static constexpr __host__ __device__ from_bits_t from_bits() { return from_bits_t(); }
  Float8_e4m3fn() = default;
  constexpr __host__ __device__ Float8_e4m3fn(unsigned char bits, from_bits_t) : x(bits) {}
  __host__ __device__ __forceinline__ Float8_e4m3fn(float value) : x(__nv_cvt_float_to_fp8(value, __NV_NOSAT, __NV_E4M3)) {}
  __host__ __device__ __forceinline__ operator float() const { return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, __NV_E4M3))); }
};

struct alignas(1) Float8_e5m2 {
  unsigned char x;
  struct from_bits_t {};
  static constexpr __host__ __device__ from_bits_t from_bits() { return from_bits_t(); }
  Float8_e5m2() = default;
  constexpr __host__ __device__ Float8_e5m2(unsigned char bits, from_bits_t) : x(bits) {}
  __host__ __device__ __forceinline__ Float8_e5m2(float value) : x(__nv_cvt_float_to_fp8(value, __NV_NOSAT, __NV_E5M2)) {}
  __host__ __device__ __forceinline__ operator float() const { return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, __NV_E5M2))); }
};
}

namespace at {
template <> struct OpMathType<c10::Float8_e5m2> { using type = float; };
template <> struct OpMathType<c10::Float8_e4m3fn> { using type = float; };
}
