"""Standard headers that NVRTC lacks, as far as device code needs them.

NVRTC compiles without a host compiler's headers, yet CUDA files written for nvcc include ``<stdint.h>``, ``<cmath>``
or ``<stdio.h>``. These small ones stand in. They name types as libcu++ does for NVRTC (int64_t is ``long long``), so
that both can be included. The rest of the C++ library is libcu++: its names are made visible in ``std``.
"""

from __future__ import annotations

from collections.abc import Set

__all__ = ["C_TYPES", "header_of", "needed"]

_STDDEF = """
typedef decltype(sizeof(0)) size_t;
typedef decltype((char*)0 - (char*)0) ptrdiff_t;
#ifndef NULL
#define NULL 0
#endif
#ifndef offsetof
#define offsetof(type, member) ((size_t)((char*)&(((type*)0)->member) - (char*)0))
#endif
namespace std { using ::size_t; using ::ptrdiff_t; typedef decltype(nullptr) nullptr_t; }
"""

_CSTDDEF = """
#include <stddef.h>
#include <cuda/std/cstddef>
namespace std { using ::cuda::std::byte; using ::cuda::std::to_integer; using ::cuda::std::max_align_t; }
"""

# Types of <sys/types.h>, which nvcc's own headers include for every .cu file.
C_TYPES = {
    "uint": "unsigned int", "ulong": "unsigned long", "ushort": "unsigned short",
    "u_int": "unsigned int", "u_long": "unsigned long", "u_short": "unsigned short", "u_char": "unsigned char",
    "ssize_t": "long",
}  # fmt: skip

_LIMITS = {
    "CHAR_BIT": "8", "SCHAR_MIN": "(-128)", "SCHAR_MAX": "127", "UCHAR_MAX": "255", "CHAR_MIN": "SCHAR_MIN",
    "CHAR_MAX": "SCHAR_MAX",
    "SHRT_MIN": "(-32768)", "SHRT_MAX": "32767", "USHRT_MAX": "65535", "INT_MIN": "(-INT_MAX - 1)",
    "INT_MAX": "2147483647",
    "UINT_MAX": "4294967295U", "LONG_MIN": "(-LONG_MAX - 1L)", "LONG_MAX": "9223372036854775807L",
    "ULONG_MAX": "18446744073709551615UL",
    "LLONG_MIN": "(-LLONG_MAX - 1LL)", "LLONG_MAX": "9223372036854775807LL", "ULLONG_MAX": "18446744073709551615ULL",
}  # fmt: skip

# IEEE 754 single and double precision.
_FLOAT = {
    "FLT_RADIX": "2", "FLT_MANT_DIG": "24", "FLT_DIG": "6", "FLT_MIN_EXP": "(-125)", "FLT_MAX_EXP": "128",
    "FLT_MIN_10_EXP": "(-37)",
    "FLT_MAX_10_EXP": "38", "FLT_MAX": "3.402823466e+38F", "FLT_MIN": "1.175494351e-38F",
    "FLT_EPSILON": "1.192092896e-07F",
    "FLT_DECIMAL_DIG": "9", "FLT_TRUE_MIN": "1.401298464e-45F",
    "DBL_MANT_DIG": "53", "DBL_DIG": "15", "DBL_MIN_EXP": "(-1021)", "DBL_MAX_EXP": "1024", "DBL_MIN_10_EXP": "(-307)",
    "DBL_MAX_10_EXP": "308", "DBL_MAX": "1.7976931348623157e+308", "DBL_MIN": "2.2250738585072014e-308",
    "DBL_EPSILON": "2.2204460492503131e-16", "DBL_DECIMAL_DIG": "17", "DBL_TRUE_MIN": "4.9406564584124654e-324",
}  # fmt: skip

_MATH = {
    "INFINITY": "__builtin_bit_cast(float, 0x7f800000)", "NAN": "__builtin_bit_cast(float, 0x7fc00000)",
    "HUGE_VALF": "__builtin_bit_cast(float, 0x7f800000)",
    "HUGE_VAL": "__builtin_bit_cast(double, 0x7ff0000000000000LL)",
    "M_E": "2.71828182845904523536", "M_LOG2E": "1.44269504088896340736", "M_LOG10E": "0.434294481903251827651",
    "M_LN2": "0.693147180559945309417", "M_LN10": "2.30258509299404568402", "M_PI": "3.14159265358979323846",
    "M_PI_2": "1.57079632679489661923", "M_PI_4": "0.785398163397448309616", "M_1_PI": "0.318309886183790671538",
    "M_2_PI": "0.636619772367581343076", "M_2_SQRTPI": "1.12837916709551257390", "M_SQRT2": "1.41421356237309504880",
    "M_SQRT1_2": "0.707106781186547524401",
}  # fmt: skip
_MATH |= {f"{name}f": f"{value}F" for name, value in _MATH.items() if name.startswith("M_")}  # as the GNU library has
_MATH["MAXFLOAT"] = _FLOAT["FLT_MAX"]

# Those that there are for float, too, with an f behind their names; and the others.
_MATH_PAIRS = [
    "fabs", "fmod", "remainder", "fma", "fmax", "fmin", "fdim", "exp", "exp2", "expm1", "log", "log10", "log2", "log1p",
    "pow", "sqrt", "cbrt", "hypot", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh",
    "asinh", "acosh", "atanh", "erf", "erfc", "tgamma", "lgamma", "ceil", "floor", "trunc", "round", "nearbyint",
    "rint", "frexp", "ldexp", "modf", "scalbn", "ilogb", "logb", "nextafter", "copysign",
]  # fmt: skip
_MATH_ALONE = [
    "abs", "remquo", "lround", "llround", "lrint", "llrint", "scalbln", "isfinite", "isinf", "isnan", "signbit",
]  # fmt: skip

_INTEGERS = [f"{u}int{form}{bits}_t" for bits in (8, 16, 32, 64) for form in ("", "_fast", "_least") for u in ("", "u")]
_INTEGERS += ["intptr_t", "uintptr_t", "intmax_t", "uintmax_t"]


def _guarded(name: str, text: str) -> str:
    guard = "RAWKERN_" + "".join(c.upper() if c.isalnum() else "_" for c in name)
    return f"#ifndef {guard}\n#define {guard}\n{text}\n#endif\n"


def _defines(values: dict[str, str]) -> str:
    return "".join(f"#ifndef {name}\n#define {name} {value}\n#endif\n" for name, value in values.items())


def _using(names: list[str]) -> str:
    return "namespace std { " + " ".join(f"using ::{name};" for name in names) + " }\n"


def _stdint() -> str:
    """Typedefs and macros as in libcu++'s <cuda/std/cstdint>, which gives way to none of them."""
    kinds = {"8": ("signed char", "unsigned char", "CHAR"), "16": ("short", "unsigned short", "SHRT"),
             "32": ("int", "unsigned int", "INT"), "64": ("long long", "unsigned long long", "LLONG")}  # fmt: skip
    lines, macros = [], {}
    for bits, (signed, unsigned, word) in kinds.items():
        for form in ("", "_fast", "_least"):
            lines += [f"typedef {signed} int{form}{bits}_t;", f"typedef {unsigned} uint{form}{bits}_t;"]
            short = "SCHAR" if word == "CHAR" else word
            macros[f"INT{form.upper()}{bits}_MIN"] = f"{short}_MIN"
            macros[f"INT{form.upper()}{bits}_MAX"] = f"{short}_MAX"
            macros[f"UINT{form.upper()}{bits}_MAX"] = f"U{word}_MAX"
    for name in ("intptr_t", "intmax_t"):
        lines += [f"typedef long long {name};", f"typedef unsigned long long u{name};"]
    macros |= {f"INT{kind}_MIN": "LLONG_MIN" for kind in ("PTR", "MAX")} | {
        f"INT{kind}_MAX": "LLONG_MAX" for kind in ("PTR", "MAX")
    }
    macros |= {
        "UINTPTR_MAX": "ULLONG_MAX",
        "UINTMAX_MAX": "ULLONG_MAX",
        "SIZE_MAX": "ULLONG_MAX",
        "PTRDIFF_MIN": "LLONG_MIN",
        "PTRDIFF_MAX": "LLONG_MAX",
    }
    constants = "".join(
        f"#ifndef {u}INT{bits}_C\n#define {u}INT{bits}_C(x) (({u.lower()}int_least{bits}_t)(x))\n#endif\n"
        for bits in kinds for u in ("", "U")
    )  # fmt: skip
    return "#include <limits.h>\n" + "\n".join(lines) + "\n" + _defines(macros) + constants


def _or_libcudacxx(name: str, text: str) -> str:
    """libcu++'s header where it is there: it defines its macros without asking whether somebody else has."""
    return f"#if __has_include(<cuda/std/{name}>)\n#include <cuda/std/{name}>\n#else\n{text}\n#endif\n"


def _libcudacxx(name: str) -> str:
    """A header of libcu++, its names visible in std; NVRTC's own std::move, forward and initializer_list come first.

    Some headers had another name in older releases: <cuda/std/__algorithm_>.
    """
    return (
        f"#if __has_include(<cuda/std/{name}>) || !__has_include(<cuda/std/__{name}_>)\n#include <cuda/std/{name}>\n"
        f"#else\n#include <cuda/std/__{name}_>\n#endif\nnamespace std {{ using namespace ::cuda::std; }}\n"
    )


def _headers() -> dict[str, str]:
    limits, floats = _or_libcudacxx("climits", _defines(_LIMITS)), _defines(_FLOAT)
    math = _defines(_MATH) + _using([*_MATH_PAIRS, *(f"{name}f" for name in _MATH_PAIRS), *_MATH_ALONE])
    stdlib = "#include <stddef.h>\n" + _using(["malloc", "free", "abs", "labs", "llabs"])
    headers = {
        "stddef.h": _STDDEF, "cstddef": _CSTDDEF,
        "stdint.h": _or_libcudacxx("cstdint", _stdint()) + _using(_INTEGERS), "cstdint": "#include <stdint.h>",
        "inttypes.h": "#include <stdint.h>", "cinttypes": "#include <stdint.h>",
        "limits.h": limits, "climits": "#include <limits.h>",
        "float.h": floats, "cfloat": "#include <float.h>",
        "math.h": math, "cmath": "#include <math.h>",
        "stdio.h": "#include <stddef.h>\nnamespace std { using ::printf; }", "cstdio": "#include <stdio.h>",
        "stdlib.h": stdlib, "cstdlib": "#include <stdlib.h>",
        "string.h": "#include <stddef.h>\nnamespace std { using ::memcpy; using ::memset; }",
        "cstring": "#include <string.h>",
        "assert.h": "", "cassert": "", "stdbool.h": "", "cstdbool": "", "stdarg.h": "", "cstdarg": "",
        "stdalign.h": "", "iso646.h": "", "ciso646": "", "version": "",
        "sys/types.h": "#include <stdint.h>\n" + "".join(f"typedef {of} {name};\n" for name, of in C_TYPES.items()),
        "memory.h": "#include <string.h>",
        "time.h": "namespace std { using ::clock; using ::clock_t; }", "ctime": "#include <time.h>",
        "cuda.h": _DRIVER, "cub/cub.cuh": _CUB,
    }  # fmt: skip
    same_name = [
        "algorithm",
        "array",
        "atomic",
        "barrier",
        "bit",
        "bitset",
        "chrono",
        "complex",
        "concepts",
        "expected",
        "functional",
        "initializer_list",
        "iterator",
        "latch",
        "limits",
        "memory",
        "mdspan",
        "new",
        "numbers",
        "numeric",
        "optional",
        "ranges",
        "ratio",
        "semaphore",
        "source_location",
        "span",
        "tuple",
        "type_traits",
        "utility",
        "variant",
    ]
    headers |= {name: _libcudacxx(name) for name in same_name if name != "initializer_list"}
    headers["initializer_list"] = ""  # built into NVRTC
    return {name: _guarded(name, text) for name, text in headers.items()}


# The driver's functions are for the host; device code uses the version and the type of a tensor map.
_DRIVER = """
#ifndef CUDA_VERSION
#define CUDA_VERSION (__CUDACC_VER_MAJOR__ * 1000 + __CUDACC_VER_MINOR__ * 10)
#endif
typedef struct CUtensorMap_st { alignas(64) unsigned long long opaque[16]; } CUtensorMap;
"""

# The whole of <cub/cub.cuh> brings device-wide algorithms along, whose launch code is for the host and does not
# compile here.
_CUB = """
#include <cub/version.cuh>
#include <cub/util_type.cuh>
#include <cub/util_ptx.cuh>
#include <cub/util_math.cuh>
#include <cub/thread/thread_load.cuh>
#include <cub/thread/thread_store.cuh>
#include <cub/thread/thread_operators.cuh>
#include <cub/thread/thread_reduce.cuh>
#include <cub/thread/thread_scan.cuh>
#include <cub/thread/thread_search.cuh>
#include <cub/thread/thread_sort.cuh>
#include <cub/warp/warp_exchange.cuh>
#include <cub/warp/warp_load.cuh>
#include <cub/warp/warp_merge_sort.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cub/warp/warp_store.cuh>
#include <cub/block/block_adjacent_difference.cuh>
#include <cub/block/block_discontinuity.cuh>
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_histogram.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_merge_sort.cuh>
#include <cub/block/block_radix_rank.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_run_length_decode.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_shuffle.cuh>
#include <cub/block/block_store.cuh>
"""

_HEADERS = _headers()

# Names of std by the header that declares them; the types and macros of C's headers stand above.
_STD = {
    "cstddef": "size_t ptrdiff_t nullptr_t byte max_align_t",
    "cstdio": "printf",
    "cstdlib": "malloc free labs llabs",
    "cstring": "memcpy memset",
    "cmath": " ".join([*_MATH_PAIRS, *(f"{name}f" for name in _MATH_PAIRS), *_MATH_ALONE]),
    "cstdint": " ".join(_INTEGERS),
    "limits": "numeric_limits",
    "algorithm": "min max minmax clamp fill fill_n copy copy_n find find_if count equal reverse rotate transform "
    "for_each any_of all_of none_of lower_bound upper_bound binary_search min_element max_element is_sorted unique "
    "partition",
    "array": "array to_array",
    "bit": "bit_cast bit_ceil bit_floor bit_width has_single_bit popcount countl_zero countr_zero rotl rotr endian",
    "complex": "complex conj norm polar arg real imag",
    "functional": "plus minus multiplies divides modulus negate equal_to not_equal_to greater less greater_equal "
    "less_equal logical_and logical_or logical_not bit_and bit_or bit_xor bit_not invoke ref cref identity",
    "iterator": "begin end size data distance next prev advance iterator_traits",
    "memory": "addressof to_address pointer_traits",
    "numeric": "accumulate iota inner_product reduce gcd lcm midpoint partial_sum",
    "optional": "optional nullopt",
    "tuple": "tuple make_tuple tie ignore apply forward_as_tuple tuple_cat tuple_size tuple_size_v tuple_element "
    "tuple_element_t",
    "type_traits": "enable_if enable_if_t conditional conditional_t decay decay_t common_type common_type_t void_t "
    "underlying_type underlying_type_t make_signed make_signed_t make_unsigned make_unsigned_t integral_constant "
    "bool_constant true_type false_type conjunction conjunction_v disjunction disjunction_v negation negation_v "
    "alignment_of alignment_of_v extent extent_v rank rank_v aligned_storage aligned_storage_t invoke_result "
    "invoke_result_t type_identity type_identity_t",
    "utility": "pair make_pair swap exchange declval as_const in_place integer_sequence make_integer_sequence "
    "index_sequence make_index_sequence index_sequence_for",
}
_SIZES = ("8", "16", "32", "64", "PTR", "MAX")
_C_NAMES = {
    "cfloat": _FLOAT,
    "climits": _LIMITS,
    "cmath": _MATH,
    "cstdint": [*_INTEGERS, "SIZE_MAX", *(f"{u}INT{size}_MAX" for u in ("", "U") for size in _SIZES),
                *(f"INT{size}_MIN" for size in _SIZES), *(f"{u}INT{size}_C" for u in ("", "U") for size in _SIZES[:4])],
}  # fmt: skip
_DECLARED_IN = {f"std::{name}": header for header, names in _STD.items() for name in names.split()}
_DECLARED_IN |= {name: header for header, names in _C_NAMES.items() for name in names}


def header_of(name: str) -> str:
    """Return the standard header that declares a name, such as "INT_MAX" or "std::is_same"; "" if none here does.

    Code for nvcc finds many of them without an include of its own: CUDA's headers bring them along there, or headers
    for the host.
    """
    trait = name.startswith(("std::is_", "std::add_", "std::remove_"))
    return _DECLARED_IN.get(name, "type_traits" if trait else "")


def needed(local_names: Set[str]) -> dict[str, str]:
    """Return the headers by name, less those that the user has files for."""
    return {name: text for name, text in _HEADERS.items() if name not in local_names}
