// What device code uses most of the C++ library's std: libcu++, which has all of it, takes the compiler seconds.
#include <stddef.h>
#include <stdint.h>
#include <limits.h>
#include <float.h>
#include <cmath>

// NVRTC itself has std::move and std::forward.
namespace std {
using ::size_t;
using ::ptrdiff_t;
template <class T, T v> struct integral_constant {
  static constexpr T value = v;
  using value_type = T;
  using type = integral_constant;
  constexpr __host__ __device__ operator T() const { return v; }
  constexpr __host__ __device__ T operator()() const { return v; }
};
template <bool v> using bool_constant = integral_constant<bool, v>;
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;
template <class T, class U> struct is_same : false_type {};
template <class T> struct is_same<T, T> : true_type {};
template <class T, class U> constexpr bool is_same_v = is_same<T, U>::value;
template <bool condition, class T, class F> struct conditional { using type = T; };
template <class T, class F> struct conditional<false, T, F> { using type = F; };
template <bool condition, class T, class F> using conditional_t = typename conditional<condition, T, F>::type;
template <bool condition, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool condition, class T = void> using enable_if_t = typename enable_if<condition, T>::type;
template <class...> using void_t = void;
template <class T> struct remove_const { using type = T; };
template <class T> struct remove_const<const T> { using type = T; };
template <class T> struct remove_volatile { using type = T; };
template <class T> struct remove_volatile<volatile T> { using type = T; };
template <class T> struct remove_cv { using type = typename remove_const<typename remove_volatile<T>::type>::type; };
template <class T> struct remove_reference { using type = T; };
template <class T> struct remove_reference<T&> { using type = T; };
template <class T> struct remove_reference<T&&> { using type = T; };
template <class T> struct remove_pointer { using type = T; };
template <class T> struct remove_pointer<T*> { using type = T; };
template <class T> struct remove_pointer<T* const> { using type = T; };
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> using remove_volatile_t = typename remove_volatile<T>::type;
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> struct is_const : false_type {};
template <class T> struct is_const<const T> : true_type {};
template <class T> constexpr bool is_const_v = is_const<T>::value;
template <class T> struct is_pointer : false_type {};
template <class T> struct is_pointer<T*> : true_type {};
template <class T> constexpr bool is_pointer_v = is_pointer<T>::value;
template <class T> struct is_integral_of : false_type {};
template <> struct is_integral_of<bool> : true_type {};
template <> struct is_integral_of<char> : true_type {};
template <> struct is_integral_of<signed char> : true_type {};
template <> struct is_integral_of<unsigned char> : true_type {};
template <> struct is_integral_of<short> : true_type {};
template <> struct is_integral_of<unsigned short> : true_type {};
template <> struct is_integral_of<int> : true_type {};
template <> struct is_integral_of<unsigned int> : true_type {};
template <> struct is_integral_of<long> : true_type {};
template <> struct is_integral_of<unsigned long> : true_type {};
template <> struct is_integral_of<long long> : true_type {};
template <> struct is_integral_of<unsigned long long> : true_type {};
template <class T> struct is_integral : is_integral_of<remove_cv_t<T>> {};
template <class T> constexpr bool is_integral_v = is_integral<T>::value;
template <class T> struct is_floating_point : bool_constant<is_same_v<remove_cv_t<T>, float> || is_same_v<remove_cv_t<T>, double>> {};
template <class T> constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T> struct is_arithmetic : bool_constant<is_integral_v<T> || is_floating_point_v<T>> {};
template <class T> constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <size_t size, size_t align = 16> struct aligned_storage {
  struct type {
    alignas(align) unsigned char data[size];
  };
};
template <size_t size, size_t align = 16> using aligned_storage_t = typename aligned_storage<size, align>::type;

template <class T> constexpr __host__ __device__ const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T> constexpr __host__ __device__ const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T> constexpr __host__ __device__ const T& clamp(const T& x, const T& low, const T& high) { return x < low ? low : high < x ? high : x; }
template <class T> __host__ __device__ void swap(T& a, T& b) { T old = static_cast<T&&>(a); a = static_cast<T&&>(b); b = static_cast<T&&>(old); }

template <class T> struct numeric_limits;
template <> struct numeric_limits<bool> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_signed = false;
  static constexpr bool has_infinity = false;
  static constexpr int digits = 1;
  static constexpr __host__ __device__ bool min() noexcept { return false; }
  static constexpr __host__ __device__ bool lowest() noexcept { return false; }
  static constexpr __host__ __device__ bool max() noexcept { return true; }
};
template <> struct numeric_limits<char> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_signed = true;
  static constexpr bool has_infinity = false;
  static constexpr int digits = 7;
  static constexpr __host__ __device__ char min() noexcept { return CHAR_MIN; }
  static constexpr __host__ __device__ char lowest() noexcept { return CHAR_MIN; }
  static constexpr __host__ __device__ char max() noexcept { return CHAR_MAX; }
};
template <> struct numeric_limits<signed char> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_signed = true;
  static constexpr bool has_infinity = false;
  static constexpr int digits = 7;
  static constexpr __host__ __device__ signed char min() noexcept { return SCHAR_MIN; }
  static constexpr __host__ __device__ signed char lowest() noexcept { return SCHAR_MIN; }
  static constexpr __host__ __device__ signed char max() noexcept { return SCHAR_MAX; }
};
template <> struct numeric_limits<unsigned char> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_signed = false;
  static constexpr bool has_infinity = false;
  static constexpr int digits = 8;
  static constexpr __host__ __device__ unsigned char min() noexcept { return 0; }
  static constexpr __host__ __device__ unsigned char lowest() noexcept { return 0; }
  static constexpr __host__ __device__ unsigned char max() noexcept { return UCHAR_MAX; }
};
template <> struct numeric_limits<short> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_signed = true;
  static constexpr bool has_infinity = false;
  static constexpr int digits = 15;
  static constexpr __host__ __device__ short min() noexcept { return SHRT_MIN; }
  static constexpr __host__ __device__ short lowest() noexcept { return SHRT_MIN; }
  static constexpr __host__ __device__ short max() noexcept { return SHRT_MAX; }
};
template <> struct numeric_limits<unsigned short> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_signed = false;
  static constexpr bool has_infinity = false;
  static constexpr int digits = 16;
  static constexpr __host__ __device__ unsigned short min() noexcept { return 0; }
  static constexpr __host__ __device__ unsigned short lowest() noexcept { return 0; }
  static constexpr __host__ __device__ unsigned short max() noexcept { return USHRT_MAX; }
};
template <> struct numeric_limits<int> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_signed = true;
  static constexpr bool has_infinity = false;
  static constexpr int digits = 31;
  static constexpr __host__ __device__ int min() noexcept { return INT_MIN; }
  static constexpr __host__ __device__ int lowest() noexcept { return INT_MIN; }
  static constexpr __host__ __device__ int max() noexcept { return INT_MAX; }
};
template <> struct numeric_limits<unsigned int> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_signed = false;
  static constexpr bool has_infinity = false;
  static constexpr int digits = 32;
  static constexpr __host__ __device__ unsigned int min() noexcept { return 0; }
  static constexpr __host__ __device__ unsigned int lowest() noexcept { return 0; }
  static constexpr __host__ __device__ unsigned int max() noexcept { return UINT_MAX; }
};
template <> struct numeric_limits<long> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_signed = true;
  static constexpr bool has_infinity = false;
  static constexpr int digits = 63;
  static constexpr __host__ __device__ long min() noexcept { return LONG_MIN; }
  static constexpr __host__ __device__ long lowest() noexcept { return LONG_MIN; }
  static constexpr __host__ __device__ long max() noexcept { return LONG_MAX; }
};
template <> struct numeric_limits<unsigned long> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_signed = false;
  static constexpr bool has_infinity = false;
  static constexpr int digits = 64;
  static constexpr __host__ __device__ unsigned long min() noexcept { return 0; }
  static constexpr __host__ __device__ unsigned long lowest() noexcept { return 0; }
  static constexpr __host__ __device__ unsigned long max() noexcept { return ULONG_MAX; }
};
template <> struct numeric_limits<long long> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_signed = true;
  static constexpr bool has_infinity = false;
  static constexpr int digits = 63;
  static constexpr __host__ __device__ long long min() noexcept { return LLONG_MIN; }
  static constexpr __host__ __device__ long long lowest() noexcept { return LLONG_MIN; }
  static constexpr __host__ __device__ long long max() noexcept { return LLONG_MAX; }
};
template <> struct numeric_limits<unsigned long long> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_signed = false;
  static constexpr bool has_infinity = false;
  static constexpr int digits = 64;
  static constexpr __host__ __device__ unsigned long long min() noexcept { return 0; }
  static constexpr __host__ __device__ unsigned long long lowest() noexcept { return 0; }
  static constexpr __host__ __device__ unsigned long long max() noexcept { return ULLONG_MAX; }
};
template <> struct numeric_limits<float> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = false;
  static constexpr bool is_signed = true;
  static constexpr bool has_infinity = true;
  static constexpr int digits = 24;
  static constexpr __host__ __device__ float min() noexcept { return FLT_MIN; }
  static constexpr __host__ __device__ float lowest() noexcept { return -FLT_MAX; }
  static constexpr __host__ __device__ float max() noexcept { return FLT_MAX; }
  static constexpr __host__ __device__ float epsilon() noexcept { return FLT_EPSILON; }
  static constexpr __host__ __device__ float infinity() noexcept { return __builtin_bit_cast(float, 0x7f800000); }
  static constexpr __host__ __device__ float quiet_NaN() noexcept { return __builtin_bit_cast(float, 0x7fc00000); }
};
template <> struct numeric_limits<double> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = false;
  static constexpr bool is_signed = true;
  static constexpr bool has_infinity = true;
  static constexpr int digits = 53;
  static constexpr __host__ __device__ double min() noexcept { return DBL_MIN; }
  static constexpr __host__ __device__ double lowest() noexcept { return -DBL_MAX; }
  static constexpr __host__ __device__ double max() noexcept { return DBL_MAX; }
  static constexpr __host__ __device__ double epsilon() noexcept { return DBL_EPSILON; }
  static constexpr __host__ __device__ double infinity() noexcept { return __builtin_bit_cast(double, 0x7ff0000000000000LL); }
  static constexpr __host__ __device__ double quiet_NaN() noexcept { return __builtin_bit_cast(double, 0x7ff8000000000000LL); }
};
template <class T> struct numeric_limits<const T> : numeric_limits<T> {};
}
