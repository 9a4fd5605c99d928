"""Python, NumPy and torch numbers as C values: what a by-value parameter takes, and the errors for what it does not."""

from __future__ import annotations

import ctypes
import math
import numbers
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import torch

from rawkern.base import torch_private as private
from rawkern.base.ctype import CType
from rawkern.errors import LaunchError

# Largest finite magnitudes; the next half step above each still rounds down to it (see _real).
FLOAT_LIMITS = {"float": 3.4028234663852886e38, "double": math.inf, "__half": 65504.0}
FLOAT_LIMITS |= dict.fromkeys(("c10::Half", "cutlass::half_t"), 65504.0)
_FLOAT8 = {"__nv_fp8_e4m3": "float8_e4m3fn", "__nv_fp8_e5m2": "float8_e5m2", "__nv_fp8_e8m0": "float8_e8m0fnu"}
_FLOAT8 |= {"c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2"}
_FLOAT8 |= {"cutlass::float_e4m3_t": "float8_e4m3fn", "cutlass::float_e5m2_t": "float8_e5m2"}
_LARGEST = "the largest is 1.7976931348623157e+308"
LONG = 256  # bits of an int that is no longer written out
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True, slots=True)
class Where:
    """Which argument an error is about: its words for the message, and the name to use in the call that fixes it.

    `offset`: where its value stands among the parameters; None for what they only lead to.
    """

    kernel: str
    position: int
    name: str
    path: str = ""
    offset: int | None = None

    def __str__(self) -> str:
        return f"{self.kernel}: argument {self.position} '{self.name}{self.path}'"

    @property
    def expr(self) -> str:
        """The argument as an expression: "x", "p.x" or "xs[2]"."""
        return self.name + self.path

    def member(self, name: str, offset: int) -> Where:
        """A member, at an offset in a struct that this is."""
        return Where(self.kernel, self.position, self.name, f"{self.path}.{name}", self._after(offset))

    def item(self, index: int, size: int | None = None) -> Where:
        """An item of an array that this is, each of `size` bytes; or of a list that makes a table elsewhere."""
        offset = None if size is None else self._after(size * index)
        return Where(self.kernel, self.position, self.name, f"{self.path}[{index}]", offset)

    def _after(self, offset: int) -> int | None:
        return None if self.offset is None else self.offset + offset


def shown(value: object) -> str:
    """A value for an error message: its repr where that is short, else its type."""
    if isinstance(value, (torch.Tensor, np.ndarray)) or hasattr(type(value), "__dlpack__"):
        return f"a {type(value).__name__}"
    if isinstance(value, int) and value.bit_length() > LONG:  # Python itself prints no int of over 4300 digits
        return f"the int of {value.bit_length()} bits"
    if isinstance(value, (bool, int, float, complex)):
        return f"the {type(value).__name__} {value!r}"
    text = repr(value)
    name = type(value).__name__
    return f"{text} ({name})" if len(text) <= 40 else f"a {name}"


def traced(where: Where | str, what: str) -> LaunchError:
    """The error for a launch that a tracer would lose."""
    return LaunchError(f"{where} {what}, and a raw launch is not recorded there; wrap this in rawkern.op")


def by_value(ctype: CType, value: Any, where: Where) -> Any:
    """`value` as what `struct.pack` wants for `ctype.code`; structs are not handled here."""
    return _CONVERT[ctype.kind](ctype, value, where)


def _wrong(ctype: CType, what: str, where: Where, fix: str) -> TypeError:
    return TypeError(f"{where} is {what}, the kernel takes {ctype.name} by value; {fix}")


def _out_of_range(ctype: CType, value: object, where: Where, limits: str) -> OverflowError:
    text = shown(value) if isinstance(value, int) and value.bit_length() > LONG else repr(value)
    return OverflowError(
        f"{where} is {text}, out of range for {ctype.name} ({limits}); declare a wider type in the kernel"
    )


def _scalar(ctype: CType, value: Any, where: Where) -> bool | int | float | complex:
    """The Python number in `value`, whoever's number it is."""
    if type(value) in (bool, int, float, complex):
        return value
    if isinstance(value, torch.Tensor):
        return _tensor_scalar(ctype, value, where)
    if isinstance(value, _SYMBOLIC):
        raise traced(where, f"is a {type(value).__name__}")
    if isinstance(value, (np.generic, np.ndarray)):
        return _numpy_scalar(ctype, value, where)
    if not isinstance(value, (str, bytes, bytearray)) and not hasattr(value, "__dlpack__"):
        if isinstance(value, int):  # subclasses: enums
            return int(value)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, complex):
            return complex(value)
        if hasattr(value, "__index__"):
            return value.__index__()
        if hasattr(value, "__float__"):  # fractions.Fraction, decimal.Decimal
            try:
                return _float(ctype, value)
            except OverflowError:
                raise _out_of_range(ctype, value, where, _LARGEST) from None
    if type(value).__module__ == "cupy.cuda.texture":  # CUDA's textures and surfaces are 64-bit numbers
        return getattr(value, "ptr")  # noqa: B009  # an attribute of CuPy's
    if value is None:
        raise _wrong(ctype, "None", where, "pass a number (only pointers can be None)")
    fix = f"pass {where.expr}.item(), which waits for the GPU" if hasattr(value, "__dlpack__") else "pass a number"
    raise _wrong(ctype, shown(value), where, fix)


def _tensor_scalar(ctype: CType, value: torch.Tensor, where: Where) -> bool | int | float | complex:
    kind = private.wrapper_kind(value)
    if kind not in (None, "zero") or value.is_meta:
        raise traced(where, f"is a {WRAPPERS.get(kind or 'meta')}")
    if value.dim() != 0:
        one = f"{where.expr}[{', '.join('0' * value.dim())}].item()"
        raise _wrong(ctype, f"a tensor of shape {tuple(value.shape)}", where, f"pass one element: {one}")
    if not value.is_cpu:
        raise _wrong(ctype, f"a tensor on {value.device}", where, f"pass {where.expr}.item(), which waits for the GPU")
    return value.item()


#: What the kinds of tensors that have no memory of their own are called, by `wrapper_kind`; also "meta".
WRAPPERS = {
    "fake": "FakeTensor",
    "functional": "functional tensor",
    "vmap": "tensor under vmap",
    "grad": "tensor under torch.func.grad",
    "functorch": "tensor under a torch.func transform",
    "meta": "meta tensor",
    "zero": "zero tensor",
}


def single(value: Any) -> Any:
    """The element of a NumPy array that has one, as CuPy passes it by value; anything else as it is."""
    return value.reshape(())[()] if isinstance(value, np.ndarray) and value.size == 1 else value


def _numpy_scalar(ctype: CType, value: Any, where: Where) -> bool | int | float | complex:
    value = single(value)
    if value.ndim:
        one = f"{where.expr}[{', '.join('0' * value.ndim)}]"
        raise _wrong(ctype, f"an array of shape {value.shape}", where, f"pass one element: {one}")
    if value.dtype.kind == "f":
        return _float(ctype, value)
    for base, kinds in ((bool, "b"), (int, "iu"), (complex, "c")):
        if value.dtype.kind in kinds:
            return base(value)
    name = value.dtype.name
    if name.startswith(("bfloat16", "float")):  # the scalar types of ml_dtypes
        return float(value)
    if name in ("int2", "uint2", "int4", "uint4"):
        return int(value)
    raise _wrong(ctype, f"a NumPy {name}", where, "pass a number")


def _int(ctype: CType, value: Any, where: Where) -> int | bytes:
    number = _scalar(ctype, value, where)
    if isinstance(number, float):
        raise _wrong(ctype, f"the float {number!r}", where, f"pass int({where.expr})")
    if isinstance(number, complex):
        raise _wrong(ctype, f"the complex {number!r}", where, f"pass int({where.expr}.real)")
    number = int(number)
    if not ctype.low <= number <= ctype.high:
        raise _out_of_range(ctype, number, where, f"{ctype.low} to {ctype.high}")
    return number if ctype.size <= 8 else number.to_bytes(16, "little", signed=ctype.low < 0)


def _bool(ctype: CType, value: Any, where: Where) -> bool:
    number = _scalar(ctype, value, where)
    if isinstance(number, (float, complex)):
        raise _wrong(ctype, f"the {type(number).__name__} {number!r}", where, f"pass bool({where.expr})")
    if number not in (0, 1):
        raise OverflowError(f"{where} is {number!r}, out of range for bool (0 or 1); pass bool({where.expr})")
    return bool(number)


def _number(ctype: CType, value: Any, where: Where) -> float:
    """A real number as a Python float; complex ones raise."""
    number = _scalar(ctype, value, where)
    if isinstance(number, complex):
        raise _wrong(ctype, f"the complex {number!r}", where, f"pass {where.expr}.real")
    try:
        return _float(ctype, number)
    except OverflowError:
        raise _out_of_range(ctype, number, where, _LARGEST) from None


def _nearest(ctype: CType, value: Any, where: Where) -> float:
    """A real number as the nearest double, for messages."""
    number = _scalar(ctype, value, where)
    assert not isinstance(number, complex)
    return float(number)


def _float(ctype: CType, value: Any) -> float:
    """A real number as a double that is still to be rounded to `ctype`.

    What a double cannot hold is rounded to odd: the last bit says that there is more. Narrower types have at least two
    bits less, so they make of it what they would make of the number.
    """
    near = float(value)
    exact = not isinstance(value, float) and isinstance(value, (numbers.Rational, Decimal, np.floating))
    if ctype.name == "double" or not exact or not math.isfinite(near) or near == value:
        return near
    if math.frexp(near)[0] * 2**53 % 2 == 0:  # to odd: the neighbor on the other side of the number
        return math.nextafter(near, math.inf if value > near else -math.inf)  # pyright: ignore[reportOperatorIssue]
    return near


def _real(ctype: CType, value: Any, where: Where) -> float:
    number = _number(ctype, value, where)
    try:
        struct.pack("<" + ctype.code, number)  # rounds to nearest even; inf and nan pass
    except OverflowError:
        largest = f"the largest is {FLOAT_LIMITS[ctype.name]!r}"
        raise _out_of_range(ctype, _nearest(ctype, value, where), where, largest) from None
    return number


def _bfloat16(ctype: CType, value: Any, where: Where) -> int:
    """The bits of the bfloat16 nearest to a double, ties to even, in one rounding."""
    number = _number(ctype, value, where)
    if number != number:
        return 0x7FC0
    sign = 0x8000 if math.copysign(1.0, number) < 0 else 0
    if math.isinf(number):
        return sign | 0x7F80
    if number == 0.0:
        return sign
    mantissa, exponent = math.frexp(abs(number))  # abs(number) = mantissa * 2**exponent, mantissa in [0.5, 1)
    # Eight significant bits, or as many as are left above the smallest subnormal, 2**-133. round() ties to even.
    unit = max(exponent - 8, -133)
    steps = round(math.ldexp(mantissa, exponent - unit))
    bits = steps if unit == -133 else ((unit + 133) << 7) + steps
    if bits >= 0x7F80:
        largest = "the largest is 3.3895313892515355e+38"
        raise _out_of_range(ctype, _nearest(ctype, value, where), where, largest)
    return sign | bits


def _float8(ctype: CType, value: Any, where: Where) -> int:
    number = _number(ctype, value, where)
    dtype = getattr(torch, _FLOAT8[ctype.name])
    most = torch.finfo(dtype).max
    if most < abs(number) < math.inf or (number < 0 and ctype.name == "__nv_fp8_e8m0"):
        limits = "no negative numbers; " * (ctype.name == "__nv_fp8_e8m0") + f"the largest is {most!r}"
        raise _out_of_range(ctype, _nearest(ctype, value, where), where, limits)
    near = torch.tensor(number, dtype=torch.float32, device="cpu")
    if number == number and near.item() != number and not int(near.view(torch.int32)) & 1:  # to odd, as in `_float`
        near = near.nextafter(torch.tensor(math.copysign(math.inf, number - near.item())))
    rounded = near.to(dtype)
    return rounded.view(torch.uint8).item()  # type: ignore[return-value]


def _pack(ctype: CType, numbers: list[Any], where: Where) -> bytes:
    element = ctype.element
    assert element is not None
    packed = (by_value(element, number, where.item(i)) for i, number in enumerate(numbers))
    return struct.pack(f"<{ctype.lanes}{element.code}", *packed)


def _complex(ctype: CType, value: Any, where: Where) -> bytes:
    number = _scalar(ctype, value, where)
    return _pack(ctype, [number.real, number.imag], where)


def _vector(ctype: CType, value: Any, where: Where) -> bytes:
    if isinstance(value, np.ndarray) and (value.dtype.kind == "c" or not value.ndim):
        value = single(value)
    if isinstance(value, torch.Tensor) and value.is_complex() and not value.dim():
        value = _scalar(ctype, value, where)
    if isinstance(value, (complex, np.complexfloating)) and ctype.name in ("float2", "double2"):
        value = (value.real, value.imag)  # cuComplex is float2
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist() if value.dtype.kind in "biufc" else list(value)
    if not isinstance(value, (tuple, list)):
        sample = ", ".join(str(i) for i in range(1, ctype.lanes + 1)) + ("," if ctype.lanes == 1 else "")
        raise _wrong(ctype, shown(value), where, f"pass a tuple of {ctype.lanes} numbers, such as ({sample})")
    if len(value) != ctype.lanes:
        raise TypeError(
            f"{where} has {len(value)} numbers, the kernel takes {ctype.name} by value; pass a tuple of {ctype.lanes}"
        )
    return _pack(ctype, list(value), where)


def _function(ctype: CType, value: Any, where: Where) -> int:
    raise TypeError(
        f"{where} is a function pointer in the kernel ({ctype.name}), and Python has no device functions to pass; "
        "make it a template parameter"
    )


_BY_SIZE = {2: "<e", 4: "<f", 8: "<d"}


def _opaque(ctype: CType, value: Any, where: Where) -> bytes:
    """What fits a parameter of which the size alone is known, as CuPy passes it."""
    value, data = single(value), raw_bytes(value)
    if isinstance(value, np.generic):
        data = value.tobytes()
    elif isinstance(value, (bool, int)):
        low, high = -(1 << 8 * ctype.size - 1), (1 << 8 * ctype.size) - 1
        if not low <= value <= high:
            raise _out_of_range(ctype, value, where, f"{low} to {high}")
        data = int(value).to_bytes(ctype.size, "little", signed=value < 0)
    elif isinstance(value, float) and ctype.size in _BY_SIZE:
        try:
            data = struct.pack(_BY_SIZE[ctype.size], value)
        except OverflowError:
            raise _out_of_range(ctype, value, where, f"as a float of {ctype.size} bytes") from None
    elif isinstance(value, complex):
        data = struct.pack("<2f" if ctype.size == 8 else "<2d", value.real, value.imag)
    if data is None or len(data) != ctype.size:
        size = "" if data is None else f", which has {len(data)} bytes"
        raise _wrong(ctype, f"{shown(value)}{size}", where, "pass what has as many: a NumPy scalar, a record or bytes")
    return data


_CONVERT: dict[str, Callable[[CType, Any, Where], Any]] = {
    "int": _int,
    "bool": _bool,
    "float": _real,
    "half": _real,
    "bfloat16": _bfloat16,
    "float8": _float8,
    "complex": _complex,
    "vector": _vector,
    "function": _function,
    "opaque": _opaque,
}


def raw_bytes(value: object) -> bytes | None:
    """The bytes of a buffer or a ctypes object, or None for anything else."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, memoryview):
        return value.tobytes()
    if isinstance(value, (ctypes.Structure, ctypes.Union)):
        return bytes(memoryview(value).cast("B"))
    return None
