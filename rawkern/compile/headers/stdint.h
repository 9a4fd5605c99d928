// Typedefs and macros as in libcu++'s <cuda/std/cstdint>, which gives way to none of them.
#if __has_include(<cuda/std/cstdint>)
#include <cuda/std/cstdint>
#else
#include <limits.h>
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef signed char int_fast8_t;
typedef unsigned char uint_fast8_t;
typedef signed char int_least8_t;
typedef unsigned char uint_least8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef short int_fast16_t;
typedef unsigned short uint_fast16_t;
typedef short int_least16_t;
typedef unsigned short uint_least16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef int int_fast32_t;
typedef unsigned int uint_fast32_t;
typedef int int_least32_t;
typedef unsigned int uint_least32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef long long int_fast64_t;
typedef unsigned long long uint_fast64_t;
typedef long long int_least64_t;
typedef unsigned long long uint_least64_t;
typedef long long intptr_t;
typedef unsigned long long uintptr_t;
typedef long long intmax_t;
typedef unsigned long long uintmax_t;
#define INT8_MIN SCHAR_MIN
#define INT8_MAX SCHAR_MAX
#define UINT8_MAX UCHAR_MAX
#define INT_FAST8_MIN SCHAR_MIN
#define INT_FAST8_MAX SCHAR_MAX
#define UINT_FAST8_MAX UCHAR_MAX
#define INT_LEAST8_MIN SCHAR_MIN
#define INT_LEAST8_MAX SCHAR_MAX
#define UINT_LEAST8_MAX UCHAR_MAX
#define INT16_MIN SHRT_MIN
#define INT16_MAX SHRT_MAX
#define UINT16_MAX USHRT_MAX
#define INT_FAST16_MIN SHRT_MIN
#define INT_FAST16_MAX SHRT_MAX
#define UINT_FAST16_MAX USHRT_MAX
#define INT_LEAST16_MIN SHRT_MIN
#define INT_LEAST16_MAX SHRT_MAX
#define UINT_LEAST16_MAX USHRT_MAX
#define INT32_MIN INT_MIN
#define INT32_MAX INT_MAX
#define UINT32_MAX UINT_MAX
#define INT_FAST32_MIN INT_MIN
#define INT_FAST32_MAX INT_MAX
#define UINT_FAST32_MAX UINT_MAX
#define INT_LEAST32_MIN INT_MIN
#define INT_LEAST32_MAX INT_MAX
#define UINT_LEAST32_MAX UINT_MAX
#define INT64_MIN LLONG_MIN
#define INT64_MAX LLONG_MAX
#define UINT64_MAX ULLONG_MAX
#define INT_FAST64_MIN LLONG_MIN
#define INT_FAST64_MAX LLONG_MAX
#define UINT_FAST64_MAX ULLONG_MAX
#define INT_LEAST64_MIN LLONG_MIN
#define INT_LEAST64_MAX LLONG_MAX
#define UINT_LEAST64_MAX ULLONG_MAX
#define INTPTR_MIN LLONG_MIN
#define INTMAX_MIN LLONG_MIN
#define INTPTR_MAX LLONG_MAX
#define INTMAX_MAX LLONG_MAX
#define UINTPTR_MAX ULLONG_MAX
#define UINTMAX_MAX ULLONG_MAX
#define SIZE_MAX ULLONG_MAX
#define PTRDIFF_MIN LLONG_MIN
#define PTRDIFF_MAX LLONG_MAX
#define INT8_C(x) ((int_least8_t)(x))
#define UINT8_C(x) ((uint_least8_t)(x))
#define INT16_C(x) ((int_least16_t)(x))
#define UINT16_C(x) ((uint_least16_t)(x))
#define INT32_C(x) ((int_least32_t)(x))
#define UINT32_C(x) ((uint_least32_t)(x))
#define INT64_C(x) ((int_least64_t)(x))
#define UINT64_C(x) ((uint_least64_t)(x))
#endif
namespace std {
using ::int8_t; using ::uint8_t; using ::int_fast8_t; using ::uint_fast8_t; using ::int_least8_t;
using ::uint_least8_t; using ::int16_t; using ::uint16_t; using ::int_fast16_t; using ::uint_fast16_t;
using ::int_least16_t; using ::uint_least16_t; using ::int32_t; using ::uint32_t; using ::int_fast32_t;
using ::uint_fast32_t; using ::int_least32_t; using ::uint_least32_t; using ::int64_t; using ::uint64_t;
using ::int_fast64_t; using ::uint_fast64_t; using ::int_least64_t; using ::uint_least64_t; using ::intptr_t;
using ::uintptr_t; using ::intmax_t; using ::uintmax_t;
}
