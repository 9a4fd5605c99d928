// Builtins of GCC that nvcc takes from the host's compiler; NVRTC has __builtin_expect, __builtin_unreachable,
// __builtin_assume, __builtin_assume_aligned and some more of its own.
#include <stddef.h>

#define __builtin_popcount(x) __rawkern_popcount(unsigned(x))
#define __builtin_popcountl(x) __rawkern_popcount((unsigned long long)(x))
#define __builtin_popcountll(x) __rawkern_popcount((unsigned long long)(x))
#define __builtin_parity(x) __rawkern_parity(unsigned(x))
#define __builtin_parityl(x) __rawkern_parity((unsigned long long)(x))
#define __builtin_parityll(x) __rawkern_parity((unsigned long long)(x))
#define __builtin_clz(x) __rawkern_clz(unsigned(x))
#define __builtin_clzl(x) __rawkern_clz((unsigned long long)(x))
#define __builtin_clzll(x) __rawkern_clz((unsigned long long)(x))
#define __builtin_ctz(x) __rawkern_ctz(unsigned(x))
#define __builtin_ctzl(x) __rawkern_ctz((unsigned long long)(x))
#define __builtin_ctzll(x) __rawkern_ctz((unsigned long long)(x))
#define __builtin_ffs(x) __rawkern_ffs(unsigned(x))
#define __builtin_ffsl(x) __rawkern_ffs((unsigned long long)(x))
#define __builtin_ffsll(x) __rawkern_ffs((unsigned long long)(x))
#define __builtin_clrsb(x) __rawkern_clrsb(unsigned(x))
#define __builtin_clrsbl(x) __rawkern_clrsb((unsigned long long)(x))
#define __builtin_clrsbll(x) __rawkern_clrsb((unsigned long long)(x))
#define __builtin_bswap16(x) __rawkern_bswap16(x)
#define __builtin_bswap32(x) __rawkern_bswap(unsigned(x))
#define __builtin_bswap64(x) __rawkern_bswap((unsigned long long)(x))
#define __builtin_abs(x) abs(int(x))
#define __builtin_labs(x) abs(long(x))
#define __builtin_llabs(x) abs((long long)(x))

#define __builtin_expect_with_probability(x, value, probability) __builtin_expect(x, value)
#define __builtin_constant_p(x) 0
#define __builtin_trap() __trap()
#define __builtin_prefetch(...) __rawkern_nothing(__VA_ARGS__)
#define __builtin_offsetof(type, member) offsetof(type, member)
#define __builtin_launder(p) __rawkern_same(p)
#define __builtin_memcpy(to, from, n) memcpy(to, from, n)
#define __builtin_memmove(to, from, n) __rawkern_memmove(to, from, n)
#define __builtin_memset(to, value, n) memset(to, value, n)
#define __builtin_memcmp(a, b, n) __rawkern_memcmp(a, b, n)
#define __builtin_strlen(text) __rawkern_strlen(text)

#define __builtin_add_overflow(a, b, to) __rawkern_add_overflow(a, b, to)
#define __builtin_sub_overflow(a, b, to) __rawkern_sub_overflow(a, b, to)
#define __builtin_mul_overflow(a, b, to) __rawkern_mul_overflow(a, b, to)
#define __builtin_sadd_overflow(a, b, to) __rawkern_add_overflow(int(a), int(b), to)
#define __builtin_ssub_overflow(a, b, to) __rawkern_sub_overflow(int(a), int(b), to)
#define __builtin_smul_overflow(a, b, to) __rawkern_mul_overflow(int(a), int(b), to)
#define __builtin_saddl_overflow(a, b, to) __rawkern_add_overflow(long(a), long(b), to)
#define __builtin_ssubl_overflow(a, b, to) __rawkern_sub_overflow(long(a), long(b), to)
#define __builtin_smull_overflow(a, b, to) __rawkern_mul_overflow(long(a), long(b), to)
#define __builtin_saddll_overflow(a, b, to) __rawkern_add_overflow((long long)(a), (long long)(b), to)
#define __builtin_ssubll_overflow(a, b, to) __rawkern_sub_overflow((long long)(a), (long long)(b), to)
#define __builtin_smulll_overflow(a, b, to) __rawkern_mul_overflow((long long)(a), (long long)(b), to)
#define __builtin_uadd_overflow(a, b, to) __rawkern_add_overflow(unsigned(a), unsigned(b), to)
#define __builtin_usub_overflow(a, b, to) __rawkern_sub_overflow(unsigned(a), unsigned(b), to)
#define __builtin_umul_overflow(a, b, to) __rawkern_mul_overflow(unsigned(a), unsigned(b), to)
#define __builtin_uaddl_overflow(a, b, to) __rawkern_add_overflow((unsigned long)(a), (unsigned long)(b), to)
#define __builtin_usubl_overflow(a, b, to) __rawkern_sub_overflow((unsigned long)(a), (unsigned long)(b), to)
#define __builtin_umull_overflow(a, b, to) __rawkern_mul_overflow((unsigned long)(a), (unsigned long)(b), to)
#define __builtin_uaddll_overflow(a, b, to) __rawkern_add_overflow((unsigned long long)(a), (unsigned long long)(b), to)
#define __builtin_usubll_overflow(a, b, to) __rawkern_sub_overflow((unsigned long long)(a), (unsigned long long)(b), to)
#define __builtin_umulll_overflow(a, b, to) __rawkern_mul_overflow((unsigned long long)(a), (unsigned long long)(b), to)

#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_huge_valf() __int_as_float(0x7f800000)
#define __builtin_inf() __longlong_as_double(0x7ff0000000000000ll)
#define __builtin_huge_val() __longlong_as_double(0x7ff0000000000000ll)
#define __builtin_nanf(text) nanf(text)
#define __builtin_nan(text) nan(text)
#define __builtin_powif(x, n) powf(x, float(n))
#define __builtin_powi(x, n) pow(double(x), double(n))
#define __builtin_signbit(x) signbit(x)
#define __builtin_isgreater(x, y) ((x) > (y))
#define __builtin_isgreaterequal(x, y) ((x) >= (y))
#define __builtin_isless(x, y) ((x) < (y))
#define __builtin_islessequal(x, y) ((x) <= (y))
#define __builtin_acos acos
#define __builtin_acosf acosf
#define __builtin_acosh acosh
#define __builtin_acoshf acoshf
#define __builtin_asin asin
#define __builtin_asinf asinf
#define __builtin_asinh asinh
#define __builtin_asinhf asinhf
#define __builtin_atan atan
#define __builtin_atanf atanf
#define __builtin_atanh atanh
#define __builtin_atanhf atanhf
#define __builtin_cbrt cbrt
#define __builtin_cbrtf cbrtf
#define __builtin_ceil ceil
#define __builtin_ceilf ceilf
#define __builtin_cos cos
#define __builtin_cosf cosf
#define __builtin_cosh cosh
#define __builtin_coshf coshf
#define __builtin_erf erf
#define __builtin_erff erff
#define __builtin_erfc erfc
#define __builtin_erfcf erfcf
#define __builtin_exp exp
#define __builtin_expf expf
#define __builtin_exp2 exp2
#define __builtin_exp2f exp2f
#define __builtin_expm1 expm1
#define __builtin_expm1f expm1f
#define __builtin_fabs fabs
#define __builtin_fabsf fabsf
#define __builtin_floor floor
#define __builtin_floorf floorf
#define __builtin_lgamma lgamma
#define __builtin_lgammaf lgammaf
#define __builtin_log log
#define __builtin_logf logf
#define __builtin_log10 log10
#define __builtin_log10f log10f
#define __builtin_log1p log1p
#define __builtin_log1pf log1pf
#define __builtin_log2 log2
#define __builtin_log2f log2f
#define __builtin_logb logb
#define __builtin_logbf logbf
#define __builtin_nearbyint nearbyint
#define __builtin_nearbyintf nearbyintf
#define __builtin_rint rint
#define __builtin_rintf rintf
#define __builtin_round round
#define __builtin_roundf roundf
#define __builtin_sin sin
#define __builtin_sinf sinf
#define __builtin_sinh sinh
#define __builtin_sinhf sinhf
#define __builtin_sqrt sqrt
#define __builtin_sqrtf sqrtf
#define __builtin_tan tan
#define __builtin_tanf tanf
#define __builtin_tanh tanh
#define __builtin_tanhf tanhf
#define __builtin_tgamma tgamma
#define __builtin_tgammaf tgammaf
#define __builtin_trunc trunc
#define __builtin_truncf truncf
#define __builtin_atan2 atan2
#define __builtin_atan2f atan2f
#define __builtin_fdim fdim
#define __builtin_fdimf fdimf
#define __builtin_fma fma
#define __builtin_fmaf fmaf
#define __builtin_fmax fmax
#define __builtin_fmaxf fmaxf
#define __builtin_fmin fmin
#define __builtin_fminf fminf
#define __builtin_fmod fmod
#define __builtin_fmodf fmodf
#define __builtin_frexp frexp
#define __builtin_frexpf frexpf
#define __builtin_hypot hypot
#define __builtin_hypotf hypotf
#define __builtin_ilogb ilogb
#define __builtin_ilogbf ilogbf
#define __builtin_ldexp ldexp
#define __builtin_ldexpf ldexpf
#define __builtin_llrint llrint
#define __builtin_llrintf llrintf
#define __builtin_llround llround
#define __builtin_llroundf llroundf
#define __builtin_lrint lrint
#define __builtin_lrintf lrintf
#define __builtin_lround lround
#define __builtin_lroundf lroundf
#define __builtin_modf modf
#define __builtin_modff modff
#define __builtin_nextafter nextafter
#define __builtin_nextafterf nextafterf
#define __builtin_pow pow
#define __builtin_powf powf
#define __builtin_remainder remainder
#define __builtin_remainderf remainderf
#define __builtin_remquo remquo
#define __builtin_remquof remquof
#define __builtin_scalbln scalbln
#define __builtin_scalblnf scalblnf
#define __builtin_scalbn scalbn
#define __builtin_scalbnf scalbnf
#define __builtin_sincos sincos
#define __builtin_sincosf sincosf

// In constant expressions, too, where CUDA's own functions cannot be called.
constexpr __device__ __forceinline__ int __rawkern_popcount(unsigned long long x) {
  if (!__builtin_is_constant_evaluated()) return __popcll(x);
  int n = 0;
  for (; x; x &= x - 1) ++n;
  return n;
}
constexpr __device__ __forceinline__ int __rawkern_popcount(unsigned x) {
  return __builtin_is_constant_evaluated() ? __rawkern_popcount((unsigned long long)x) : __popc(x);
}
constexpr __device__ __forceinline__ int __rawkern_clz(unsigned long long x) {
  if (!__builtin_is_constant_evaluated()) return __clzll(x);
  int n = 64;
  for (; x; x >>= 1) --n;
  return n;
}
constexpr __device__ __forceinline__ int __rawkern_clz(unsigned x) {
  return __builtin_is_constant_evaluated() ? __rawkern_clz((unsigned long long)x) - 32 : __clz(x);
}
constexpr __device__ __forceinline__ int __rawkern_ffs(unsigned long long x) {
  return __builtin_is_constant_evaluated() ? 64 - __rawkern_clz(x & -x) : __ffsll(x);
}
constexpr __device__ __forceinline__ int __rawkern_ffs(unsigned x) {
  return __builtin_is_constant_evaluated() ? 32 - __rawkern_clz(x & -x) : __ffs(x);
}
template <class T> constexpr __device__ __forceinline__ int __rawkern_ctz(T x) { return __rawkern_ffs(x) - 1; }
template <class T> constexpr __device__ __forceinline__ int __rawkern_parity(T x) { return __rawkern_popcount(x) & 1; }
template <class T> constexpr __device__ __forceinline__ int __rawkern_clrsb(T x) {
  return __rawkern_clz(x >> (8 * sizeof(T) - 1) ? ~x : x) - 1;
}
constexpr __device__ __forceinline__ unsigned short __rawkern_bswap16(unsigned short x) { return x << 8 | x >> 8; }
constexpr __device__ __forceinline__ unsigned __rawkern_bswap(unsigned x) {
  if (!__builtin_is_constant_evaluated()) return __byte_perm(x, 0, 0x0123);
  return x << 24 | (x & 0xff00) << 8 | (x >> 8 & 0xff00) | x >> 24;
}
constexpr __device__ __forceinline__ unsigned long long __rawkern_bswap(unsigned long long x) {
  return (unsigned long long)__rawkern_bswap(unsigned(x)) << 32 | __rawkern_bswap(unsigned(x >> 32));
}
__device__ __forceinline__ void* __rawkern_memmove(void* to, const void* from, size_t n) {
  for (size_t k = 0; k < n; ++k) {
    const size_t i = to < from ? k : n - 1 - k;
    ((char*)to)[i] = ((const char*)from)[i];
  }
  return to;
}
__device__ __forceinline__ int __rawkern_memcmp(const void* a, const void* b, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const int difference = ((const unsigned char*)a)[i] - ((const unsigned char*)b)[i];
    if (difference) return difference;
  }
  return 0;
}
__device__ __forceinline__ size_t __rawkern_strlen(const char* text) {
  size_t n = 0;
  while (text[n]) ++n;
  return n;
}
template <class... T> __device__ __forceinline__ void __rawkern_nothing(T...) {}
template <class T> __device__ __forceinline__ T* __rawkern_same(T* p) { return p; }

// Stores a number of a sign and a size as a T; whether it is another one then.
template <class T> __device__ __forceinline__ bool __rawkern_lost(bool negative, unsigned __int128 size, T* to) {
  constexpr bool with_sign = T(-1) < T(0);
  constexpr unsigned __int128 top = (unsigned __int128)1 << (8 * sizeof(T) - 1);
  *to = T(negative ? -size : size);
  return size > (negative ? (with_sign ? top : 0) : with_sign ? top - 1 : 2 * (top - 1) + 1);
}
template <class T> __device__ __forceinline__ unsigned __int128 __rawkern_size(T x) {
  return x < T(0) ? -(unsigned __int128)(__int128)x : (unsigned __int128)x;
}
template <class A, class B, class T> __device__ __forceinline__ bool __rawkern_add_overflow(A a, B b, T* to) {
  const __int128 sum = (__int128)a + (__int128)b;
  return __rawkern_lost(sum < 0, __rawkern_size(sum), to);
}
template <class A, class B, class T> __device__ __forceinline__ bool __rawkern_sub_overflow(A a, B b, T* to) {
  const __int128 difference = (__int128)a - (__int128)b;
  return __rawkern_lost(difference < 0, __rawkern_size(difference), to);
}
template <class A, class B, class T> __device__ __forceinline__ bool __rawkern_mul_overflow(A a, B b, T* to) {
  const unsigned __int128 size = __rawkern_size(a) * __rawkern_size(b);
  return __rawkern_lost((a < A(0)) != (b < B(0)) && size != 0, size, to);
}
