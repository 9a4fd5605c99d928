"""Numbers and text as C++ has them."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import re
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch


def _integer(name: str, bits: int, signed: bool) -> Callable[[Any], int]:
    least = -(2 ** (bits - 1)) if signed else 0
    most = 2 ** (bits - signed) - 1
    mask = 2**bits - 1

    def convert(value: Any) -> int:
        number = int(value)  # towards zero, as C++ converts; an error for NaN and infinity
        if least <= number <= most:
            return number
        if not signed and not isinstance(value, float):  # C++ leaves open what a fraction beyond the limits becomes
            return number & mask
        raise OverflowError(f"{number} does not fit {name}, the type that it has in C++")

    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = f"A number as {name}: " + ("checked." if signed else "it wraps.")
    return convert


int8, uint8 = _integer("int8", 8, True), _integer("uint8", 8, False)
int16, uint16 = _integer("int16", 16, True), _integer("uint16", 16, False)
int32, uint32 = _integer("int32", 32, True), _integer("uint32", 32, False)
int64, uint64 = _integer("int64", 64, True), _integer("uint64", 64, False)


def signed(value: int, bits: int) -> int:
    """An unsigned number as the signed one of the same bits."""
    return value - (1 << bits) if value >> (bits - 1) else value


def float32(value: Any) -> float:
    """A number in single precision."""
    return ctypes.c_float(value).value


def div(a: Any, b: Any) -> Any:
    """``a / b`` of C++: of integers towards zero."""
    if isinstance(a, int) and isinstance(b, int):
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    return divide(a, b)


def rem(a: int, b: int, bits: int = 0) -> int:
    """``a % b`` of C++: with the sign of a; of signed numbers of so many bits, where the quotient may not fit them."""
    if bits and b == -1 and a == -1 << (bits - 1):
        raise OverflowError(f"{a} % -1, whose quotient does not fit {bits} bits")
    return a - b * div(a, b)


def divide(a: float, b: float) -> float:
    """``a / b`` of floating-point numbers, where b may be zero."""
    if b:
        return a / b
    if math.isnan(a) or a == 0:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def float_rem(a: float, b: float) -> float:
    """``std::fmod``."""
    return math.fmod(a, b) if b and math.isfinite(a) else math.nan


def shift(count: int, bits: int) -> int:
    """A shift's count; C++ leaves open what one beyond the bits does."""
    if 0 <= count < bits:
        return count
    raise OverflowError(f"a shift by {count} of {bits} bits")


def ordered(values: list[Any], before: Callable[[Any, Any], bool]) -> list[Any]:
    """``std::stable_sort`` with a comparison."""
    return sorted(values, key=functools.cmp_to_key(lambda a, b: before(b, a) - before(a, b)))


def at(index: int) -> int:
    """An index, which C++ counts from the front only."""
    if index < 0:
        raise IndexError(f"index {index} is negative")
    return index


def power(a: float, b: float) -> float:
    """``std::pow``."""
    try:
        return math.pow(a, b)
    except OverflowError:
        return math.inf if a > 0 or b % 2 == 0 else -math.inf
    except ValueError:
        return math.nan if a else math.inf


def std_max(*values: float) -> float:
    """``std::max``, for NaN too."""
    found = values[0]
    for one in values[1:]:
        found = one if found < one else found
    return found


def std_min(*values: float) -> float:
    """``std::min``, for NaN too."""
    found = values[0]
    for one in values[1:]:
        found = one if one < found else found
    return found


def _of_math(name: str, beyond: Callable[[float], float]) -> Callable[[float], float]:
    inner = getattr(math, name)
    signed_zero = name in ("floor", "ceil", "trunc")  # Python's integers have no -0

    def function(value: float) -> float:
        try:
            return math.copysign(inner(value), value) if signed_zero else float(inner(value))
        except (ValueError, OverflowError):
            return beyond(value)

    function.__name__ = function.__qualname__ = f"math_{name}"
    function.__doc__ = f"``std::{name}``."
    return function


def _nan(value: float) -> float:
    return math.nan


def _log(value: float) -> float:
    return -math.inf if value == 0 else math.nan


def _same(value: float) -> float:
    return value


def _infinity(value: float) -> float:
    return math.inf


math_sqrt, math_sin, math_cos, math_tan = (_of_math(name, _nan) for name in ("sqrt", "sin", "cos", "tan"))
math_log, math_log2, math_log10, math_log1p = (_of_math(name, _log) for name in ("log", "log2", "log10", "log1p"))
math_exp, math_expm1, math_exp2 = (_of_math(name, _infinity) for name in ("exp", "expm1", "exp2"))
math_floor, math_ceil, math_trunc = (_of_math(name, _same) for name in ("floor", "ceil", "trunc"))
math_tanh, math_fabs, math_cbrt = (_of_math(name, _same) for name in ("tanh", "fabs", "cbrt"))


def math_round(value: float) -> float:
    """``std::round``: halves away from zero."""
    if not math.isfinite(value):
        return value
    return math.copysign(math.floor(abs(value) + 0.5) if abs(value) < 2**52 else abs(value), value)


def math_rsqrt(value: float) -> float:
    """``rsqrt``."""
    return divide(1.0, math_sqrt(value))


# Types by their text in C++ -----------------------------------------------------------------------------------------

_DTYPES = {
    "float": torch.float32, "double": torch.float64, "at::Half": torch.float16, "c10::Half": torch.float16,
    "__half": torch.float16, "half": torch.float16, "at::BFloat16": torch.bfloat16, "c10::BFloat16": torch.bfloat16,
    "__nv_bfloat16": torch.bfloat16, "nv_bfloat16": torch.bfloat16, "nv_half": torch.float16, "int": torch.int32,
    "int32_t": torch.int32, "int64_t": torch.int64, "long": torch.int64, "long long": torch.int64,
    "int16_t": torch.int16, "short": torch.int16, "int8_t": torch.int8, "uint8_t": torch.uint8, "bool": torch.bool,
    "unsigned char": torch.uint8, "char": torch.int8, "c10::complex<float>": torch.complex64,
    "c10::complex<double>": torch.complex128, "at::Float8_e4m3fn": torch.float8_e4m3fn,
    "at::Float8_e5m2": torch.float8_e5m2, "torch::Half": torch.float16, "torch::BFloat16": torch.bfloat16,
}  # fmt: skip
_OTHERS = {"unsigned int": 4, "uint32_t": 4, "unsigned": 4, "size_t": 8, "uint64_t": 8, "uint16_t": 2, "uint": 4}
_OTHERS |= {"unsigned long": 8, "unsigned long long": 8, "unsigned short": 2}
_CONVERT = {"int": int32, "int32_t": int32, "int64_t": int64, "long": int64, "long long": int64, "short": int16}
_CONVERT |= {"int16_t": int16, "int8_t": int8, "char": int8, "uint8_t": uint8, "unsigned char": uint8, "bool": bool}
_CONVERT |= {"unsigned int": uint32, "uint32_t": uint32, "unsigned": uint32, "size_t": uint64, "uint64_t": uint64}
_CONVERT |= {"unsigned long": uint64, "uint16_t": uint16, "float": float32, "double": float, "uint": uint32}
_NAMES = {
    torch.float32: "float", torch.float64: "double", torch.float16: "at::Half", torch.bfloat16: "at::BFloat16",
    torch.int32: "int", torch.int64: "int64_t", torch.int16: "int16_t", torch.int8: "int8_t", torch.uint8: "uint8_t",
    torch.bool: "bool", torch.complex64: "c10::complex<float>", torch.complex128: "c10::complex<double>",
    torch.float8_e4m3fn: "at::Float8_e4m3fn", torch.float8_e5m2: "at::Float8_e5m2",
}  # fmt: skip
_SHOWN = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.int32: "Int", torch.int64: "Long", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
    torch.complex32: "ComplexHalf", torch.float8_e4m3fn: "Float8_e4m3fn", torch.float8_e5m2: "Float8_e5m2",
}  # fmt: skip


def dtype_of(type_: str) -> torch.dtype:
    """The dtype of a type of C++, by its text."""
    found = _DTYPES.get(type_)
    if found is None:
        raise TypeError(f"torch has no dtype for {type_}")
    return found


def known_dtype(type_: str) -> torch.dtype | None:
    """The dtype of a type of C++; None for one that torch has not."""
    return _DTYPES.get(type_)


def type_name(dtype: torch.dtype) -> str:
    """The text of a dtype's type in C++."""
    return _NAMES[dtype]


def convert(type_: str, value: Any) -> Any:
    """A number as one of a type of C++, given by its text."""
    function = _CONVERT.get(type_)
    if function is not None:
        return function(value)
    return torch.tensor(value, dtype=dtype_of(type_)).item()


def dispatch(name: str, dtype: torch.dtype, *dtypes: torch.dtype) -> str:
    """The type of C++ for a dtype, which is one of those given: what AT_DISPATCH_* chooses."""
    if dtype in dtypes:
        return _NAMES[dtype]
    raise NotImplementedError(f"\"{name}\" not implemented for '{_SHOWN.get(dtype, str(dtype))}'")


def acc_type(type_: str) -> str:
    """``at::acc_type<T, true>``."""
    dtype = dtype_of(type_)
    if dtype == torch.float64 or dtype.is_complex:
        return type_
    return "float" if dtype.is_floating_point else "bool" if dtype == torch.bool else "int64_t"


def opmath_type(type_: str) -> str:
    """``at::opmath_type<T>``."""
    return "float" if dtype_of(type_) in (torch.float16, torch.bfloat16) else type_


def same_type(a: str, b: str) -> bool:
    """``std::is_same<A, B>``."""
    return a == b or (_canonical(a) == _canonical(b))


def _canonical(type_: str) -> str:
    for name in ("c10::", "at::", "torch::"):
        type_ = type_.removeprefix(name)
    table = {"half": "__half", "int32_t": "int", "long": "int64_t", "short": "int16_t", "unsigned char": "uint8_t"}
    table |= {"unsigned": "unsigned int", "uint32_t": "unsigned int", "unsigned long": "size_t", "uint64_t": "size_t"}
    table |= {"nv_bfloat16": "__nv_bfloat16"}
    return table.get(type_, type_)


def sizeof(type_: str, kernels: Any) -> int:
    """``sizeof(T)`` by the type's text."""
    if type_ in _OTHERS:
        return _OTHERS[type_]
    if type_ in _DTYPES:
        return _DTYPES[type_].itemsize
    return kernels.constant(f"sizeof({type_})")


def alignof(type_: str, kernels: Any) -> int:
    """``alignof(T)`` by the type's text."""
    size = _OTHERS.get(type_) or (_DTYPES[type_].itemsize if type_ in _DTYPES else 0)
    return size or kernels.constant(f"alignof({type_})")


def limit(type_: str, which: str) -> Any:
    """``std::numeric_limits<T>::max()`` and the like."""
    if type_ in _OTHERS:
        return 2 ** (8 * _OTHERS[type_]) - 1 if which == "max" else 0
    dtype = dtype_of(type_)
    if not dtype.is_floating_point:
        info: Any = torch.iinfo(dtype)
        return info.max if which == "max" else info.min
    info = torch.finfo(dtype)
    values = {"max": info.max, "lowest": info.min, "min": info.tiny, "epsilon": info.eps, "infinity": math.inf}
    return (values | {"quiet_NaN": math.nan})[which]


def more_types(types: Iterable[str]) -> str:
    """The texts of types as further arguments of a template."""
    return "".join(f", {one}" for one in types)


def spelled(value: Any) -> str:
    """A value as an argument of a template."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# Text ---------------------------------------------------------------------------------------------------------------


def text(*values: Any) -> str:
    """Values as C++ writes them, one after the other."""
    return "".join(map(_shown, values))


def to_string(value: Any) -> str:
    """``std::to_string``."""
    return f"{value:f}" if isinstance(value, float) else str(int(value))


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, torch.dtype):
        return _SHOWN.get(value, str(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value)


def expected(condition: str) -> str:
    """What TORCH_CHECK says of a condition without words of its own."""
    return (
        f"Expected {condition} to be true, but got false.  (Could this error message be improved?  If so, please "
        "report an enhancement request to PyTorch.)"
    )


def printf(format: str, *values: Any) -> None:
    """``printf``."""
    print(sprintf(format, *values), end="")


def sprintf(format: str, *values: Any) -> str:
    """The text that ``sprintf`` writes, whose format Python's ``%`` knows but for the sizes of integers."""
    for size in ("ll", "l", "z", "h"):
        for letter in "diux":
            format = format.replace(f"%{size}{letter}", f"%{letter}")
    return format.replace("%u", "%d") % values


def character(string: str, index: int) -> int:
    """``text[index]`` of a pointer to characters, whose end is a zero."""
    data = string.encode()
    if not 0 <= index <= len(data):
        raise IndexError(f"index {index} of a string of {len(data)} characters")
    return signed(data[index], 8) if index < len(data) else 0


def getenv(name: str) -> str | None:
    """``std::getenv``."""
    return os.environ.get(name)


def leading_number(text: str, kind: type, lenient: bool) -> Any:
    """The number that a text begins with: 0 (`lenient`, as ``atoi`` has it) or an error where there is none."""
    pattern = r"\s*[-+]?\d+" if kind is int else r"\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
    match = re.match(pattern, text)
    if match is None and not lenient:
        raise ValueError(f"{text!r} is not a number")
    return kind(match[0]) if match is not None else kind(0)


def unix_time() -> int:
    """``time(NULL)``."""
    return int(time.time())


def bits(value: float) -> int:
    """The bits of a number in single precision."""
    return struct.unpack("I", struct.pack("f", value))[0]


def listed(values: Iterable[Any]) -> list[Any]:
    """A copy of a vector."""
    return list(values)
