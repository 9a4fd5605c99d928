"""Numbers: what each C type accepts and rejects, and the bytes it becomes."""

from __future__ import annotations

import ctypes
import enum
import math
import random
import re
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rawkern.base.ctype import parse
from rawkern.errors import LaunchError
from tests.arguments.kit import SAXPY, make, one, pack, rejects


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("float const*", "const float*"),
        ("const float*", "const float*"),
        ("float*", "float*"),
        ("float const* const*", "const float* const*"),
        ("float* const*", "float* const*"),
        ("float**", "float**"),
        ("int volatile*", "int*"),
        ("char const* __restrict__", "const char*"),
        ("float const&", "const float&"),
        ("unsigned", "unsigned int"),
        ("long unsigned int", "unsigned long"),
        ("ns::P<float const*, 3>*", "ns::P<float const*, 3>*"),
        ("constant_t*", "constant_t*"),
    ],
)
def test_spelling(text: str, spelled: str) -> None:
    assert parse(text).spell() == spelled


def test_str() -> None:
    assert str(SAXPY) == "void saxpy(int n, float a, const float *x, float *y)"
    table = make("float const* const*", "float* const*", "unsigned char*", "ns::Params", "int&")
    assert str(table) == (
        "void k(const float *const *arg0, float *const *arg1, unsigned char *arg2, ns::Params arg3, int &arg4)"
    )
    assert str(make()) == "void k()"


def test_block_layout_is_cudas() -> None:
    signature = make("char", "double", "short", "float4", "bool", "double3", "dim3", "ns::Params", "__half", "__int128")
    assert signature.offsets == (0, 8, 16, 32, 48, 56, 80, 96, 120, 128)
    assert signature.size == struct.calcsize(signature.format) == 144


INTEGERS = {
    "char": ctypes.c_int8,
    "signed char": ctypes.c_int8,
    "unsigned char": ctypes.c_uint8,
    "short": ctypes.c_int16,
    "unsigned short": ctypes.c_uint16,
    "int": ctypes.c_int32,
    "unsigned int": ctypes.c_uint32,
    "long": ctypes.c_int64,
    "unsigned long": ctypes.c_uint64,
    "long long": ctypes.c_int64,
    "unsigned long long": ctypes.c_uint64,
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_limits(name: str) -> None:
    c = INTEGERS[name]
    low, high = parse(name).low, parse(name).high
    assert (c(low).value, c(high).value, c(high + 1).value) == (low, high, low)
    for value in (low, high, 0, 1):
        assert pack(name, args=(value,)) == bytes(c(value))
    rest = f"out of range for {name} ({low} to {high}); declare a wider type in the kernel"
    for value in (low - 1, high + 1):
        rejects(name, value, f"is {value}, {rest}", OverflowError)


class Colour(enum.IntEnum):
    RED = 7


@pytest.mark.parametrize(
    "value",
    [7, np.int8(7), np.uint64(7), np.array(7), torch.tensor(7), torch.tensor(7, dtype=torch.uint8), Colour.RED],
    ids=lambda v: type(v).__name__,
)
def test_integers_of_every_make(value: Any) -> None:
    assert pack("int", args=(value,)) == struct.pack("<i", 7)
    assert pack("double", args=(value,)) == struct.pack("<d", 7.0)
    assert one("int", value).device is None


def test_bools_are_integers_too() -> None:
    for value in (True, np.True_, torch.tensor(True)):
        assert pack("int", "bool", args=(value, value)) == struct.pack("<i?", 1, True)


def test_float_for_an_integer() -> None:
    rejects("int", 2.0, "is the float 2.0, the kernel takes int by value; pass int(x)")
    rejects("long long", np.float32(0.5), "is the float 0.5, the kernel takes long long by value; pass int(x)")
    rejects("int", torch.tensor(1.5), "is the float 1.5, the kernel takes int by value; pass int(x)")
    rejects("int", 1j, "is the complex 1j, the kernel takes int by value; pass int(x.real)")


def test_what_is_no_number() -> None:
    rejects("int", None, "is None, the kernel takes int by value; pass a number (only pointers can be None)")
    rejects("int", "3", "is '3' (str), the kernel takes int by value; pass a number")
    rejects("float", [1.0], "is [1.0] (list), the kernel takes float by value; pass a number")
    rejects("float", b"abcd", "is b'abcd' (bytes), the kernel takes float by value; pass a number")
    rejects("float", np.datetime64(0, "s"), "is a NumPy datetime64[s], the kernel takes float by value; pass a number")


def test_tensors_for_numbers() -> None:
    rejects(
        "float",
        torch.ones(3, 2),
        "is a tensor of shape (3, 2), the kernel takes float by value; pass one element: x[0, 0].item()",
    )
    rejects("int", np.ones(3, int), "is an array of shape (3,), the kernel takes int by value; pass one element: x[0]")
    with pytest.raises(LaunchError, match=r"is a meta tensor, and a raw launch is not recorded there; wrap this in"):
        one("float", torch.ones((), device="meta"))
    assert one("float", torch.tensor(2.5, requires_grad=True)).values == (2.5,)
    assert one("double", torch.tensor(1 + 2j).conj().imag).values == (-2.0,)


def test_bool() -> None:
    for value, bit in ((True, 1), (False, 0), (1, 1), (0, 0), (np.False_, 0)):
        assert pack("bool", args=(value,)) == bytes([bit])
    rejects("bool", 2, "is 2, out of range for bool (0 or 1); pass bool(x)", OverflowError)
    rejects("bool", 1.0, "is the float 1.0, the kernel takes bool by value; pass bool(x)")


def test_int128() -> None:
    assert pack("__int128", args=(-3,)) == (-3).to_bytes(16, "little", signed=True)
    assert pack("unsigned __int128", args=(2**128 - 1,)) == b"\xff" * 16
    with pytest.raises(OverflowError):
        one("__int128", 2**127)


FLOAT_MAX = 3.4028234663852886e38


def test_float() -> None:
    for value in (0.1, -0.0, math.inf, -math.inf, math.nan, 1e-46, FLOAT_MAX, 3, True, Fraction(1, 3), Decimal("0.1")):
        assert pack("float", args=(value,)) == struct.pack("<f", float(value))
        assert pack("double", args=(value,)) == struct.pack("<d", float(value))
    assert pack("float", args=(FLOAT_MAX * (1 + 2**-26),)) == struct.pack("<f", FLOAT_MAX)  # rounds down to it
    limit = "out of range for float (the largest is 3.4028234663852886e+38); declare a wider type in the kernel"
    rejects("float", 1e39, f"is 1e+39, {limit}", OverflowError)
    rejects("float", -(10**39), f"is -1e+39, {limit}", OverflowError)
    assert one("double", 1e300).values == (1e300,)
    with pytest.raises(OverflowError, match="out of range for double"):
        one("double", 10**400)
    for kind in ("double", "int"):  # Python itself cannot print an int of so many digits
        with pytest.raises(OverflowError, match=f"is the int of 33220 bits, out of range for {kind} "):
            one(kind, 10**10000)
    rejects("float", 1j, "is the complex 1j, the kernel takes float by value; pass x.real")


@pytest.mark.parametrize(
    "value",
    [
        np.float16(0.1),
        np.float32(0.1),
        np.float64(0.1),
        np.longdouble(0.1),
        ml_dtypes.bfloat16(0.1),
        ml_dtypes.float8_e4m3fn(0.1),
        np.array(0.1, np.float32),
        torch.tensor(0.1),
        torch.tensor(0.1, dtype=torch.bfloat16),
    ],
    ids=lambda v: f"{type(v).__name__}-{getattr(v, 'dtype', '')}",
)
def test_floats_of_every_make(value: Any) -> None:
    assert pack("double", args=(value,)) == struct.pack("<d", float(value))


@settings(max_examples=300, deadline=None)
@given(st.floats(width=32, allow_nan=False))
def test_half_types_round_to_nearest_even(value: float) -> None:
    if abs(value) < 65520 or math.isinf(value):
        assert pack("__half", args=(value,)) == np.float16(value).tobytes()
    else:
        with pytest.raises(OverflowError, match=r"out of range for __half \(the largest is 65504.0\)"):
            one("__half", value)
    rounded = torch.tensor(value, dtype=torch.float32).bfloat16()
    if bool(rounded.isinf()) and not math.isinf(value):
        with pytest.raises(OverflowError, match="out of range for __nv_bfloat16"):
            one("__nv_bfloat16", value)
    else:
        (bits,) = one("__nv_bfloat16", value).values
        assert bits == int(rounded.view(torch.int16)) & 0xFFFF


def test_bfloat16_rounds_once() -> None:
    # Through float32 this would tie and go to even, downwards; it is above the tie.
    assert one("__nv_bfloat16", 1 + 2**-8 + 2**-40).values == (0x3F81,)
    assert one("__nv_bfloat16", 1 + 2**-8).values == (0x3F80,)
    assert one("__nv_bfloat16", math.nan).values == (0x7FC0,)
    assert one("__nv_bfloat16", -0.0).values == (0x8000,)
    assert one("__nv_bfloat16", 2.0**-133).values == (1,)
    assert one("__nv_bfloat16", 2.0**-134).values == (0,)
    assert one("__nv_bfloat16", 2.0**-134 * 1.5).values == (1,)
    assert one("__nv_bfloat16", 2.0**-126 * (1 - 2**-20)).values == (0x0080,)
    assert one("__nv_bfloat16", 1e-300).values == (0,)


def test_float8() -> None:
    for name, dtype in (("__nv_fp8_e4m3", "float8_e4m3fn"), ("__nv_fp8_e5m2", "float8_e5m2")):
        kind = getattr(ml_dtypes, dtype)
        for value in (0.1, -1.7, 300.0):
            assert pack(name, args=(value,)) == np.array(value, np.float32).astype(kind).tobytes()
    with pytest.raises(OverflowError, match=r"out of range for __nv_fp8_e4m3 \(the largest is 448.0\)"):
        one("__nv_fp8_e4m3", 1000.0)


#: Bits of precision and the exponent of the smallest number of the types that round.
ROUNDED = {
    "float": (24, -149, torch.float32),
    "double": (53, -1074, torch.float64),
    "__half": (11, -24, torch.float16),
    "__nv_bfloat16": (8, -133, torch.bfloat16),
    "__nv_fp8_e4m3": (4, -9, torch.float8_e4m3fn),
    "__nv_fp8_e5m2": (3, -16, torch.float8_e5m2),
}


def nearest(value: Fraction, precision: int, lowest: int) -> Fraction:
    """The nearest number of a type, in exact arithmetic; ties go to even."""
    if not value:
        return value
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - precision + 1, lowest)
    return round(value / unit) * unit


def passed(name: str, value: Any) -> Fraction:
    """What a kernel gets."""
    dtype = ROUNDED[name][2]
    return Fraction(torch.frombuffer(bytearray(pack(name, args=(value,))), dtype=dtype).double().item())


@pytest.mark.parametrize("name", ROUNDED)
def test_numbers_are_rounded_once(name: str) -> None:
    """At ties and on both sides of them, by less than a double or a float can tell."""
    precision, lowest, dtype = ROUNDED[name]
    rng = random.Random(0)
    largest = Fraction(torch.finfo(dtype).max)
    for _ in range(200):
        significand = rng.randrange(1 << precision - 1, 1 << precision)
        places = rng.choice([p for p in (-140, -30, -8, 1, 4, 8, 40, 70) if lowest <= p])
        tie = Fraction(2 * significand + 1) * Fraction(2) ** (places - 1)
        for sign in (1, -1):
            for by in (0, Fraction(2) ** (min(places, 1) - 71), Fraction(1, 10**30), Fraction(tie, 2**60), 1):
                for value in (sign * (tie + by), sign * (tie - by)):
                    want = nearest(value, precision, lowest)
                    if abs(value) > largest or abs(want) > largest:
                        continue
                    assert passed(name, value) == want, (name, value)
                    if value.denominator == 1:
                        assert passed(name, int(value)) == want, (name, value)
                    if Fraction(float(value)) == value:
                        assert passed(name, float(value)) == want, (name, value)


def test_ties_of_large_integers() -> None:
    for name, value, want in (
        ("float", 2**60 + 2**36, 2**60),
        ("float", 2**60 + 2**36 + 1, 2**60 + 2**37),
        ("float", np.uint64(2**63 + 2**39 + 1), 2**63 + 2**40),
        ("float", np.longdouble(2**60 + 2**36) + np.longdouble(1), 2**60 + 2**37),
        ("float", torch.tensor(-(2**60) - 2**36 - 1), -(2**60) - 2**37),
        ("__nv_bfloat16", 2**60 + 2**52 + 1, 2**60 + 2**53),
        ("__nv_fp8_e4m3", 1 + 2**-4 + 2**-30, 1.125),
        ("__nv_fp8_e5m2", Decimal("1.125000000000000000000000000001"), 1.25),
        ("double", 2**53 + 1, 2**53),
    ):
        assert passed(name, value) == Fraction(want), (name, value)
    assert pack("cuda::std::complex<float>", args=(2**60 + 2**36 + 1,)) == struct.pack("<2f", 2**60 + 2**37, 0)
    assert pack("float2", args=((2**60 + 2**36 + 1, 1),)) == struct.pack("<2f", 2**60 + 2**37, 1)
    rejects(
        "float",
        10**39,
        "is 1e+39, out of range for float (the largest is 3.4028234663852886e+38); declare a wider type in the kernel",
        OverflowError,
    )
    with pytest.raises(OverflowError, match="out of range for float"):
        one("float", Fraction(10**400))
    with pytest.raises(OverflowError, match=r"-1.0, out of range for __nv_fp8_e8m0 \(no negative numbers"):
        one("__nv_fp8_e8m0", -1)


def test_complex() -> None:
    for name in ("cuda::std::complex<float>", "cuda::std::__4::complex<float>", "thrust::complex<float>"):
        for value in (1.5 - 2j, np.complex64(1.5 - 2j), torch.tensor(1.5 - 2j)):
            assert pack(name, args=(value,)) == struct.pack("<2f", 1.5, -2)
    assert pack("cuda::std::complex<double>", args=(3,)) == struct.pack("<2d", 3, 0)
    assert parse("cuda::std::complex<double>").align == 16
    with pytest.raises(OverflowError, match=re.escape("k: argument 1 'x[1]' is 1e+39, out of range for float")):
        one("cuda::std::complex<float>", 1e39j)


@pytest.mark.parametrize(
    ("size", "value", "expected"),
    [
        (1, -128, b"\x80"),
        (1, 255, b"\xff"),
        (1, True, b"\x01"),
        (2, 0.5, struct.pack("<e", 0.5)),
        (4, -2, struct.pack("<i", -2)),
        (4, 2**32 - 1, b"\xff" * 4),
        (4, 0.1, struct.pack("<f", 0.1)),
        (4, np.uint32(7), struct.pack("<I", 7)),
        (8, 0.1, struct.pack("<d", 0.1)),
        (8, np.array([[0.1]]), struct.pack("<d", 0.1)),
        (8, 1 - 2j, struct.pack("<2f", 1, -2)),
        (8, None, bytes(8)),
        (16, 1 - 2j, struct.pack("<2d", 1, -2)),
        (3, b"abc", b"abc"),
    ],
)
def test_parameters_of_which_the_size_alone_is_known(size: int, value: Any, expected: bytes) -> None:
    assert pack(f"{size} bytes, aligned to 1", args=(value,)) == expected


def test_alignment_of_what_has_a_size_alone() -> None:
    assert pack("1 bytes", "4 bytes", "6 bytes, aligned to 2", "8 bytes", args=(1, 2, b"abcdef", 3)) == struct.pack(
        "<B3xI6s2xQ", 1, 2, b"abcdef", 3
    )
    t = torch.zeros(3)
    assert pack("8 bytes", args=(t,)) == struct.pack("<Q", t.data_ptr()) and t._version == 1


def test_what_does_not_fit_a_size() -> None:
    by, fix = "bytes by value", "pass what has as many: a NumPy scalar, a record or bytes"
    rejects(
        "4 bytes",
        np.float64(1),
        f"is the float64 {np.float64(1)!r}, which has 8 bytes, the kernel takes 4 {by}; {fix}",
    )
    rejects("4 bytes", torch.zeros(3), f"is a Tensor, the kernel takes 4 {by}; {fix}")
    rejects("8 bytes", np.zeros(3), f"is a ndarray, the kernel takes 8 {by}; {fix}")
    rejects("1 bytes", 0.5, f"is the float 0.5, the kernel takes 1 {by}; {fix}")
    for value, limits in ((256, "-128 to 255"), (-129, "-128 to 255")):
        message = f"is {value}, out of range for 1 bytes ({limits}); declare a wider type in the kernel"
        rejects("1 bytes", value, message, OverflowError)
    rejects("2 bytes", 1e6, "is 1000000.0, out of range for 2 bytes (as a float of 2 bytes); declare a wider type in the "
           "kernel", OverflowError)  # fmt: skip
