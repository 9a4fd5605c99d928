// What device code uses of PyTorch's C++ headers: types, loops, atomic functions, accessors.
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <stdint.h>
#include <math.h>
#include <cuda.h>
#include <rawkern/torch_accessor.h>
#include <stddef.h>

#define C10_HOST __host__
#define C10_DEVICE __device__
#define C10_HOST_DEVICE __host__ __device__
#define __CUDA_HOSTDEVICE__ __host__ __device__
#define __CUDA_HOSTDEVICE __host__ __device__
#define AT_HOST_DEVICE __host__ __device__
#define AT_DEVICE __device__
#define AT_HOST __host__
#define GPU_LAMBDA __host__ __device__
#define C10_ALWAYS_INLINE __forceinline__
#define C10_NOINLINE __noinline__
#define C10_UNUSED [[maybe_unused]]
#define C10_NODISCARD [[nodiscard]]
#define C10_RESTRICT __restrict__
#define C10_LIKELY(expr) (__builtin_expect(static_cast<bool>(expr), 1))
#define C10_UNLIKELY(expr) (__builtin_expect(static_cast<bool>(expr), 0))
#define C10_API
#define C10_EXPORT
#define C10_HIDDEN
#define C10_CUDA_API
#define TORCH_API
#define TORCH_CUDA_CU_API
#define TORCH_CUDA_CPP_API
#define TORCH_CUDA_API
#define AT_API
#define C10_WARP_SIZE 32
#define C10_MAX_THREADS_PER_BLOCK(val) (val)
#define C10_MIN_BLOCKS_PER_SM(threads_per_block, blocks_per_sm) (blocks_per_sm)
#define C10_LAUNCH_BOUNDS_0 __launch_bounds__(256, 4)
#define C10_LAUNCH_BOUNDS_1(max_threads_per_block) __launch_bounds__((max_threads_per_block))
#define C10_LAUNCH_BOUNDS_2(max_threads_per_block, min_blocks_per_sm) __launch_bounds__((max_threads_per_block), (min_blocks_per_sm))
#define C10_LAUNCH_BOUNDS(max_threads_per_block) __launch_bounds__((max_threads_per_block))
#define CUDA_KERNEL_ASSERT(cond) assert(cond)
#define CUDA_KERNEL_ASSERT2(cond) assert(cond)
#define CUDA_KERNEL_ASSERT_MSG(cond, msg) assert(cond)
#define CUDA_KERNEL_ASSERT_PRINTF(cond, msg, ...) assert(cond)
#define TORCH_CHECK(cond, ...) assert(cond)
#define TORCH_INTERNAL_ASSERT(cond, ...) assert(cond)
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY(cond, ...)
#define CUDA_KERNEL_LOOP_TYPE(i, n, index_type) int64_t _i_n_d_e_x = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; for (index_type i = _i_n_d_e_x; _i_n_d_e_x < (n); _i_n_d_e_x += static_cast<int64_t>(blockDim.x) * gridDim.x, i = _i_n_d_e_x)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)
#define AT_PI 3.14159265358979323846264338327950288

namespace std {}

namespace c10 {

struct alignas(2) Half {
  unsigned short x;
  struct from_bits_t {};
  static constexpr __host__ __device__ from_bits_t from_bits() { return from_bits_t(); }
  Half() = default;
  constexpr __host__ __device__ Half(unsigned short bits, from_bits_t) : x(bits) {}
  __host__ __device__ __forceinline__ Half(float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x) : "f"(value)); }
  __host__ __device__ __forceinline__ Half(const __half& value) : x(__half_raw(value).x) {}
  __host__ __device__ __forceinline__ operator float() const { float value; asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x)); return value; }
  __host__ __device__ __forceinline__ operator __half() const { __half_raw raw; raw.x = x; return raw; }
};

struct alignas(2) BFloat16 {
  unsigned short x;
  struct from_bits_t {};
  static constexpr __host__ __device__ from_bits_t from_bits() { return from_bits_t(); }
  BFloat16() = default;
  constexpr __host__ __device__ BFloat16(unsigned short bits, from_bits_t) : x(bits) {}
  __host__ __device__ __forceinline__ BFloat16(float value) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(x) : "f"(value)); }
  __host__ __device__ __forceinline__ BFloat16(const __nv_bfloat16& value) : x(__nv_bfloat16_raw(value).x) {}
  __host__ __device__ __forceinline__ operator float() const { return __uint_as_float(static_cast<unsigned int>(x) << 16); }
  __host__ __device__ __forceinline__ operator __nv_bfloat16() const { __nv_bfloat16_raw raw; raw.x = x; return raw; }
};
}

#include <rawkern/torch_numbers.h>

namespace c10 {

template <typename T> struct alignas(sizeof(T) * 2) complex {
  using value_type = T;
  T real_ = T(0);
  T imag_ = T(0);
  constexpr complex() = default;
  constexpr __host__ __device__ complex(const T& re, const T& im = T()) : real_(re), imag_(im) {}
  template <typename U> constexpr explicit __host__ __device__ complex(const complex<U>& other) : real_(other.real()), imag_(other.imag()) {}
  constexpr __host__ __device__ complex& operator=(T re) { real_ = re; imag_ = 0; return *this; }
  constexpr __host__ __device__ complex& operator+=(T re) { real_ += re; return *this; }
  constexpr __host__ __device__ complex& operator-=(T re) { real_ -= re; return *this; }
  constexpr __host__ __device__ complex& operator*=(T re) { real_ *= re; imag_ *= re; return *this; }
  constexpr __host__ __device__ complex& operator/=(T re) { real_ /= re; imag_ /= re; return *this; }
  template <typename U> constexpr __host__ __device__ complex& operator+=(const complex<U>& b) { real_ += b.real(); imag_ += b.imag(); return *this; }
  template <typename U> constexpr __host__ __device__ complex& operator-=(const complex<U>& b) { real_ -= b.real(); imag_ -= b.imag(); return *this; }
  template <typename U> constexpr __host__ __device__ complex& operator*=(const complex<U>& b) { T re = real_ * b.real() - imag_ * b.imag(); imag_ = real_ * b.imag() + imag_ * b.real(); real_ = re; return *this; }
  template <typename U> __host__ __device__ complex& operator/=(const complex<U>& b) {
    T a = real_, i = imag_, c = b.real(), d = b.imag();
    T ac = c < 0 ? -c : c, ad = d < 0 ? -d : d;
    if (ac >= ad) {
      if (ac == 0 && ad == 0) { real_ = a / ac; imag_ = i / ad; return *this; }
      T rat = d / c, scl = T(1) / (c + d * rat);
      real_ = (a + i * rat) * scl; imag_ = (i - a * rat) * scl;
    } else {
      T rat = c / d, scl = T(1) / (c * rat + d);
      real_ = (a * rat + i) * scl; imag_ = (i * rat - a) * scl;
    }
    return *this;
  }
  constexpr __host__ __device__ T real() const { return real_; }
  constexpr __host__ __device__ T imag() const { return imag_; }
  constexpr __host__ __device__ void real(T value) { real_ = value; }
  constexpr __host__ __device__ void imag(T value) { imag_ = value; }
};
template <typename T> constexpr __host__ __device__ complex<T> operator+(const complex<T>& a) { return a; }
template <typename T> constexpr __host__ __device__ complex<T> operator-(const complex<T>& a) { return complex<T>(-a.real(), -a.imag()); }
template <typename T> constexpr __host__ __device__ complex<T> operator+(const complex<T>& a, const complex<T>& b) { complex<T> r(a); return r += b; }
template <typename T> constexpr __host__ __device__ complex<T> operator+(const complex<T>& a, const T& b) { complex<T> r(a); return r += b; }
template <typename T> constexpr __host__ __device__ complex<T> operator+(const T& a, const complex<T>& b) { complex<T> r(a); return r += b; }
template <typename T> constexpr __host__ __device__ complex<T> operator-(const complex<T>& a, const complex<T>& b) { complex<T> r(a); return r -= b; }
template <typename T> constexpr __host__ __device__ complex<T> operator-(const complex<T>& a, const T& b) { complex<T> r(a); return r -= b; }
template <typename T> constexpr __host__ __device__ complex<T> operator-(const T& a, const complex<T>& b) { complex<T> r(a); return r -= b; }
template <typename T> constexpr __host__ __device__ complex<T> operator*(const complex<T>& a, const complex<T>& b) { complex<T> r(a); return r *= b; }
template <typename T> constexpr __host__ __device__ complex<T> operator*(const complex<T>& a, const T& b) { complex<T> r(a); return r *= b; }
template <typename T> constexpr __host__ __device__ complex<T> operator*(const T& a, const complex<T>& b) { complex<T> r(a); return r *= b; }
template <typename T> __host__ __device__ complex<T> operator/(const complex<T>& a, const complex<T>& b) { complex<T> r(a); return r /= b; }
template <typename T> __host__ __device__ complex<T> operator/(const complex<T>& a, const T& b) { complex<T> r(a); return r /= b; }
template <typename T> __host__ __device__ complex<T> operator/(const T& a, const complex<T>& b) { complex<T> r(a); return r /= b; }
template <typename T> constexpr __host__ __device__ bool operator==(const complex<T>& a, const complex<T>& b) { return a.real() == b.real() && a.imag() == b.imag(); }
template <typename T> constexpr __host__ __device__ bool operator!=(const complex<T>& a, const complex<T>& b) { return !(a == b); }
template <typename T> constexpr __host__ __device__ T real(const complex<T>& z) { return z.real(); }
template <typename T> constexpr __host__ __device__ T imag(const complex<T>& z) { return z.imag(); }
template <typename T> constexpr __host__ __device__ complex<T> conj(const complex<T>& z) { return complex<T>(z.real(), -z.imag()); }
template <typename T> constexpr __host__ __device__ T norm(const complex<T>& z) { return z.real() * z.real() + z.imag() * z.imag(); }
template <typename T> __host__ __device__ T abs(const complex<T>& z) { return ::hypot(z.real(), z.imag()); }
template <typename T> __host__ __device__ T arg(const complex<T>& z) { return ::atan2(z.imag(), z.real()); }
template <typename T> __host__ __device__ complex<T> polar(const T& r, const T& theta = T()) { return complex<T>(r * ::cos(theta), r * ::sin(theta)); }
template <typename T> __host__ __device__ complex<T> exp(const complex<T>& z) { return polar(::exp(z.real()), z.imag()); }

enum class ScalarType : int8_t {
  Byte, Char, Short, Int, Long, Half, Float, Double, ComplexHalf, ComplexFloat, ComplexDouble, Bool, QInt8, QUInt8, QInt32,
  BFloat16, QUInt4x2, QUInt2x4, Bits1x8, Bits2x4, Bits4x2, Bits8, Bits16, Float8_e5m2, Float8_e4m3fn
};

template <typename T> struct scalar_value_type { using type = T; };
template <typename T> struct scalar_value_type<complex<T>> { using type = T; };

// Stays incomplete: tensors are for the host.
class Scalar;

template <typename T, typename U> constexpr __host__ __device__ T div_up(T a, U b) { return (a + b - 1) / b; }

namespace cuda {
namespace compat {
__device__ __forceinline__ float abs(float x) { return ::fabsf(x); }
__device__ __forceinline__ double abs(double x) { return ::fabs(x); }
__device__ __forceinline__ float exp(float x) { return ::expf(x); }
__device__ __forceinline__ double exp(double x) { return ::exp(x); }
__device__ __forceinline__ float ceil(float x) { return ::ceilf(x); }
__device__ __forceinline__ double ceil(double x) { return ::ceil(x); }
__device__ __forceinline__ float floor(float x) { return ::floorf(x); }
__device__ __forceinline__ double floor(double x) { return ::floor(x); }
__device__ __forceinline__ float log(float x) { return ::logf(x); }
__device__ __forceinline__ double log(double x) { return ::log(x); }
__device__ __forceinline__ float log1p(float x) { return ::log1pf(x); }
__device__ __forceinline__ double log1p(double x) { return ::log1p(x); }
__device__ __forceinline__ float sqrt(float x) { return ::sqrtf(x); }
__device__ __forceinline__ double sqrt(double x) { return ::sqrt(x); }
__device__ __forceinline__ float rsqrt(float x) { return ::rsqrtf(x); }
__device__ __forceinline__ double rsqrt(double x) { return ::rsqrt(x); }
__device__ __forceinline__ float tan(float x) { return ::tanf(x); }
__device__ __forceinline__ double tan(double x) { return ::tan(x); }
__device__ __forceinline__ float tanh(float x) { return ::tanhf(x); }
__device__ __forceinline__ double tanh(double x) { return ::tanh(x); }
__device__ __forceinline__ float sin(float x) { return ::sinf(x); }
__device__ __forceinline__ double sin(double x) { return ::sin(x); }
__device__ __forceinline__ float cos(float x) { return ::cosf(x); }
__device__ __forceinline__ double cos(double x) { return ::cos(x); }
__device__ __forceinline__ float normcdf(float x) { return ::normcdff(x); }
__device__ __forceinline__ double normcdf(double x) { return ::normcdf(x); }
__device__ __forceinline__ float copysign(float x, float y) { return ::copysignf(x, y); }
__device__ __forceinline__ double copysign(double x, double y) { return ::copysign(x, y); }
__device__ __forceinline__ float max(float x, float y) { return ::fmaxf(x, y); }
__device__ __forceinline__ double max(double x, double y) { return ::fmax(x, y); }
__device__ __forceinline__ float min(float x, float y) { return ::fminf(x, y); }
__device__ __forceinline__ double min(double x, double y) { return ::fmin(x, y); }
__device__ __forceinline__ float pow(float x, float y) { return ::powf(x, y); }
__device__ __forceinline__ double pow(double x, double y) { return ::pow(x, y); }
__device__ __forceinline__ void sincos(float x, float* s, float* c) { ::sincosf(x, s, c); }
__device__ __forceinline__ void sincos(double x, double* s, double* c) { ::sincos(x, s, c); }
}
}
}

namespace at {

using namespace c10;
class Tensor;

template <typename T> struct OpMathType { using type = T; };
template <> struct OpMathType<c10::Half> { using type = float; };
template <> struct OpMathType<c10::BFloat16> { using type = float; };
template <> struct OpMathType<c10::complex<c10::Half>> { using type = c10::complex<float>; };
template <typename T> using opmath_type = typename OpMathType<T>::type;

template <typename T, bool is_cuda> struct AccumulateType { using type = T; };
template <> struct AccumulateType<int8_t, true> { using type = int64_t; };
template <> struct AccumulateType<uint8_t, true> { using type = int64_t; };
template <> struct AccumulateType<char, true> { using type = int64_t; };
template <> struct AccumulateType<int16_t, true> { using type = int64_t; };
template <> struct AccumulateType<int32_t, true> { using type = int64_t; };
template <> struct AccumulateType<c10::Half, true> { using type = float; };
template <> struct AccumulateType<c10::BFloat16, true> { using type = float; };
template <> struct AccumulateType<int8_t, false> { using type = int64_t; };
template <> struct AccumulateType<uint8_t, false> { using type = int64_t; };
template <> struct AccumulateType<char, false> { using type = int64_t; };
template <> struct AccumulateType<int16_t, false> { using type = int64_t; };
template <> struct AccumulateType<int32_t, false> { using type = int64_t; };
template <> struct AccumulateType<c10::Half, false> { using type = float; };
template <> struct AccumulateType<c10::BFloat16, false> { using type = float; };
template <> struct AccumulateType<float, false> { using type = double; };
template <> struct AccumulateType<__half, true> { using type = float; };
template <typename T, bool is_cuda> using acc_type = typename AccumulateType<T, is_cuda>::type;
template <typename T> using acc_type_device = typename AccumulateType<T, true>::type;

template <typename T> __host__ __device__ __forceinline__ T ceil_div(T a, T b) { return (a + b - 1) / b; }
template <typename T> __host__ __device__ __forceinline__ T round_up(T a, T b) { return ceil_div(a, b) * b; }
template <typename T> __host__ __device__ __forceinline__ bool _isnan(T value) { return static_cast<float>(value) != static_cast<float>(value); }
template <> __host__ __device__ __forceinline__ bool _isnan(double value) { return value != value; }
template <typename T> __host__ __device__ __forceinline__ bool _isinf(T value) { return ::isinf(static_cast<double>(value)); }

template <typename T> struct numeric_limits {};
template <> struct numeric_limits<bool> {
  static __host__ __device__ __forceinline__ bool lowest() { return false; }
  static __host__ __device__ __forceinline__ bool max() { return true; }
  static __host__ __device__ __forceinline__ bool lower_bound() { return false; }
  static __host__ __device__ __forceinline__ bool upper_bound() { return true; }
};
template <> struct numeric_limits<uint8_t> {
  static __host__ __device__ __forceinline__ uint8_t lowest() { return 0; }
  static __host__ __device__ __forceinline__ uint8_t max() { return UINT8_MAX; }
  static __host__ __device__ __forceinline__ uint8_t lower_bound() { return 0; }
  static __host__ __device__ __forceinline__ uint8_t upper_bound() { return UINT8_MAX; }
};
template <> struct numeric_limits<int8_t> {
  static __host__ __device__ __forceinline__ int8_t lowest() { return INT8_MIN; }
  static __host__ __device__ __forceinline__ int8_t max() { return INT8_MAX; }
  static __host__ __device__ __forceinline__ int8_t lower_bound() { return INT8_MIN; }
  static __host__ __device__ __forceinline__ int8_t upper_bound() { return INT8_MAX; }
};
template <> struct numeric_limits<int16_t> {
  static __host__ __device__ __forceinline__ int16_t lowest() { return INT16_MIN; }
  static __host__ __device__ __forceinline__ int16_t max() { return INT16_MAX; }
  static __host__ __device__ __forceinline__ int16_t lower_bound() { return INT16_MIN; }
  static __host__ __device__ __forceinline__ int16_t upper_bound() { return INT16_MAX; }
};
template <> struct numeric_limits<int32_t> {
  static __host__ __device__ __forceinline__ int32_t lowest() { return INT32_MIN; }
  static __host__ __device__ __forceinline__ int32_t max() { return INT32_MAX; }
  static __host__ __device__ __forceinline__ int32_t lower_bound() { return INT32_MIN; }
  static __host__ __device__ __forceinline__ int32_t upper_bound() { return INT32_MAX; }
};
template <> struct numeric_limits<int64_t> {
  static __host__ __device__ __forceinline__ int64_t lowest() { return INT64_MIN; }
  static __host__ __device__ __forceinline__ int64_t max() { return INT64_MAX; }
  static __host__ __device__ __forceinline__ int64_t lower_bound() { return INT64_MIN; }
  static __host__ __device__ __forceinline__ int64_t upper_bound() { return INT64_MAX; }
};
template <> struct numeric_limits<float> {
  static __host__ __device__ __forceinline__ float lowest() { return -3.402823466e+38F; }
  static __host__ __device__ __forceinline__ float max() { return 3.402823466e+38F; }
  static __host__ __device__ __forceinline__ float lower_bound() { return -INFINITY; }
  static __host__ __device__ __forceinline__ float upper_bound() { return INFINITY; }
};
template <> struct numeric_limits<double> {
  static __host__ __device__ __forceinline__ double lowest() { return -1.7976931348623158e+308; }
  static __host__ __device__ __forceinline__ double max() { return 1.7976931348623158e+308; }
  static __host__ __device__ __forceinline__ double lower_bound() { return -HUGE_VAL; }
  static __host__ __device__ __forceinline__ double upper_bound() { return HUGE_VAL; }
};
template <> struct numeric_limits<c10::Half> {
  static __host__ __device__ __forceinline__ c10::Half lowest() { return c10::Half(0xFBFF, c10::Half::from_bits()); }
  static __host__ __device__ __forceinline__ c10::Half max() { return c10::Half(0x7BFF, c10::Half::from_bits()); }
  static __host__ __device__ __forceinline__ c10::Half lower_bound() { return c10::Half(0xFC00, c10::Half::from_bits()); }
  static __host__ __device__ __forceinline__ c10::Half upper_bound() { return c10::Half(0x7C00, c10::Half::from_bits()); }
};
template <> struct numeric_limits<c10::BFloat16> {
  static __host__ __device__ __forceinline__ c10::BFloat16 lowest() { return c10::BFloat16(0xFF7F, c10::BFloat16::from_bits()); }
  static __host__ __device__ __forceinline__ c10::BFloat16 max() { return c10::BFloat16(0x7F7F, c10::BFloat16::from_bits()); }
  static __host__ __device__ __forceinline__ c10::BFloat16 lower_bound() { return c10::BFloat16(0xFF80, c10::BFloat16::from_bits()); }
  static __host__ __device__ __forceinline__ c10::BFloat16 upper_bound() { return c10::BFloat16(0x7F80, c10::BFloat16::from_bits()); }
};

struct PhiloxCudaState {
  PhiloxCudaState() = default;
  union Payload {
    uint64_t val;
    int64_t* ptr;
  };
  Payload seed_;
  Payload offset_;
  uint32_t offset_intragraph_;
  bool captured_;
};

namespace detail {
template <typename T, int size_> struct Array {
  T data[size_];
  __host__ __device__ T operator[](int i) const { return data[i]; }
  __host__ __device__ T& operator[](int i) { return data[i]; }
  static constexpr __host__ __device__ int size() { return size_; }
};
}

namespace cuda {
using at::detail::Array;
using PhiloxCudaState = at::PhiloxCudaState;
template <typename T> __host__ __device__ __forceinline__ T ATenCeilDiv(T a, T b) { return (a + b - 1) / b; }
namespace detail {
constexpr int MAX_TENSORINFO_DIMS = 25;
// Filled from a tensor by the launch.
template <typename T, typename IndexType> struct TensorInfo {
  T* data;
  IndexType sizes[MAX_TENSORINFO_DIMS];
  IndexType strides[MAX_TENSORINFO_DIMS];
  int dims;
  __host__ __device__ bool isContiguous() const { return dims == 1 && strides[0] == 1; }
};
template <typename T, typename IndexType, int Dims> struct IndexToOffset {
  static __host__ __device__ IndexType get(IndexType linearId, const TensorInfo<T, IndexType>& info) {
    IndexType offset = 0;
    for (int i = (Dims < 0 ? info.dims : Dims) - 1; i > 0; --i) {
      offset += linearId % info.sizes[i] * info.strides[i];
      linearId /= info.sizes[i];
    }
    return offset + linearId * info.strides[0];
  }
};
}
namespace philox {
struct Unpacked {
  uint64_t first, second;
};
// What std::get and structured bindings would take apart; seed and offset, as torch's unpack has them.
__device__ __forceinline__ Unpacked unpack(at::PhiloxCudaState state) {
  if (state.captured_) return {static_cast<uint64_t>(*state.seed_.ptr), static_cast<uint64_t>(*state.offset_.ptr + state.offset_intragraph_)};
  return {state.seed_.val, state.offset_.val};
}
}
}

namespace native {
namespace memory {
template <typename scalar_t, int vec_size> struct alignas(sizeof(scalar_t) * vec_size) aligned_vector { scalar_t val[vec_size]; };
}
}
}

namespace torch {
using namespace at;
}

// Bases of functors that C++17 has dropped, and the host's library still has.
namespace std {
template <class A, class R> struct unary_function { using argument_type = A; using result_type = R; };
template <class A, class B, class R> struct binary_function {
  using first_argument_type = A;
  using second_argument_type = B;
  using result_type = R;
};
using ::c10::abs;
using ::c10::arg;
using ::c10::conj;
using ::c10::exp;
using ::c10::imag;
using ::c10::norm;
using ::c10::polar;
using ::c10::real;
}

template <typename T> __device__ __forceinline__ T doLdg(const T* p) { return *p; }

template <typename T> __host__ __device__ __forceinline__ T THCCeilDiv(T a, T b) { return (a + b - 1) / b; }
