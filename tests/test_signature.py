"""What each C parameter type accepts and refuses, the bytes it becomes, and the words of every refusal."""

from __future__ import annotations

import ctypes
import enum
import math
import re
import struct
import threading
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rawkern
from rawkern.arguments.careful import Bound, bind
from rawkern.arguments.signature import Signature, make_signature
from rawkern.base.ctype import Member, StructLayout, parse
from rawkern.base.operator_state import inside_op
from rawkern.errors import LaunchError, UnsupportedError

LAYOUTS = {
    # struct Params { int n; float a; const float* x; float* y; }
    "ns::Params": StructLayout(
        24,
        8,
        (
            Member("n", "int", 0),
            Member("a", "float", 4),
            Member("x", "float const*", 8),
            Member("y", "float*", 16),
        ),
    ),
    # struct Padded { char c; double d; short s[3]; Inner in; }
    "Padded": StructLayout(
        32,
        8,
        (Member("c", "char", 0), Member("d", "double", 8), Member("s", "short [3]", 16), Member("in", "Inner", 24)),
    ),
    "Inner": StructLayout(8, 4, (Member("i", "int", 0), Member("f", "float", 4))),
    "Opaque": StructLayout(12, 4, unknown="its member 'a' is private"),
}


def layout(name: str) -> StructLayout:
    if name not in LAYOUTS:
        raise UnsupportedError(f"the layout of type {name} cannot be found")
    return LAYOUTS[name]


def make(*params: str, names: tuple[str, ...] = (), name: str = "k") -> Signature:
    return make_signature(SimpleNamespace(name=name, params=params), names, layout)


def pack(*params: str, args: tuple[Any, ...]) -> bytes:
    signature = make(*params)
    return struct.pack(signature.format, *bind(signature, args).values)


def one(param: str, value: Any, **options: Any) -> Bound:
    return bind(make(param, names=("x",)), (value,), **options)


def refuse(param: str, value: Any, message: str, error: type[Exception] = TypeError, **options: Any) -> None:
    """The whole message must be `message`, after the words that name the argument."""
    with pytest.raises(error) as caught:
        one(param, value, **options)
    assert str(caught.value) == f"k: argument 1 'x' {message}"


SAXPY = make("int", "float", "float const*", "float*", names=("n", "a", "x", "y"), name="saxpy")


# --- types ----------------------------------------------------------------------------------------------------------


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


# --- integers and bool ----------------------------------------------------------------------------------------------

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
        refuse(name, value, f"is {value}, {rest}", OverflowError)


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
    refuse("int", 2.0, "is the float 2.0, the kernel takes int by value; pass int(x)")
    refuse("long long", np.float32(0.5), "is the float 0.5, the kernel takes long long by value; pass int(x)")
    refuse("int", torch.tensor(1.5), "is the float 1.5, the kernel takes int by value; pass int(x)")
    refuse("int", 1j, "is the complex 1j, the kernel takes int by value; pass int(x.real)")


def test_what_is_no_number() -> None:
    refuse("int", None, "is None, the kernel takes int by value; pass a number (only pointers can be None)")
    refuse("int", "3", "is '3' (str), the kernel takes int by value; pass a number")
    refuse("float", [1.0], "is [1.0] (list), the kernel takes float by value; pass a number")
    refuse("float", b"abcd", "is b'abcd' (bytes), the kernel takes float by value; pass a number")
    refuse("float", np.datetime64(0, "s"), "is a NumPy datetime64[s], the kernel takes float by value; pass a number")


def test_tensors_for_numbers() -> None:
    refuse(
        "float",
        torch.ones(3, 2),
        "is a tensor of shape (3, 2), the kernel takes float by value; pass one element: x[0, 0].item()",
    )
    refuse("int", np.ones(3, int), "is an array of shape (3,), the kernel takes int by value; pass one element: x[0]")
    with pytest.raises(LaunchError, match=r"is a meta tensor, and a raw launch is not recorded there; wrap this in"):
        one("float", torch.ones((), device="meta"))
    assert one("float", torch.tensor(2.5, requires_grad=True)).values == (2.5,)
    assert one("double", torch.tensor(1 + 2j).conj().imag).values == (-2.0,)


def test_bool() -> None:
    for value, bit in ((True, 1), (False, 0), (1, 1), (0, 0), (np.False_, 0)):
        assert pack("bool", args=(value,)) == bytes([bit])
    refuse("bool", 2, "is 2, out of range for bool (0 or 1); pass bool(x)", OverflowError)
    refuse("bool", 1.0, "is the float 1.0, the kernel takes bool by value; pass bool(x)")


def test_int128() -> None:
    assert pack("__int128", args=(-3,)) == (-3).to_bytes(16, "little", signed=True)
    assert pack("unsigned __int128", args=(2**128 - 1,)) == b"\xff" * 16
    with pytest.raises(OverflowError):
        one("__int128", 2**127)


# --- floating point -------------------------------------------------------------------------------------------------

FLOAT_MAX = 3.4028234663852886e38


def test_float() -> None:
    for value in (0.1, -0.0, math.inf, -math.inf, math.nan, 1e-46, FLOAT_MAX, 3, True, Fraction(1, 3), Decimal("0.1")):
        assert pack("float", args=(value,)) == struct.pack("<f", float(value))
        assert pack("double", args=(value,)) == struct.pack("<d", float(value))
    assert pack("float", args=(FLOAT_MAX * (1 + 2**-26),)) == struct.pack("<f", FLOAT_MAX)  # rounds down to it
    limit = "out of range for float (the largest is 3.4028234663852886e+38); declare a wider type in the kernel"
    refuse("float", 1e39, f"is 1e+39, {limit}", OverflowError)
    refuse("float", -(10**39), f"is -1e+39, {limit}", OverflowError)
    assert one("double", 1e300).values == (1e300,)
    with pytest.raises(OverflowError, match="out of range for double"):
        one("double", 10**400)
    for kind in ("double", "int"):  # Python itself refuses to print an int of so many digits
        with pytest.raises(OverflowError, match=f"is the int of 33220 bits, out of range for {kind} "):
            one(kind, 10**10000)
    refuse("float", 1j, "is the complex 1j, the kernel takes float by value; pass x.real")


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


def test_complex() -> None:
    for name in ("cuda::std::complex<float>", "cuda::std::__4::complex<float>", "thrust::complex<float>"):
        for value in (1.5 - 2j, np.complex64(1.5 - 2j), torch.tensor(1.5 - 2j)):
            assert pack(name, args=(value,)) == struct.pack("<2f", 1.5, -2)
    assert pack("cuda::std::complex<double>", args=(3,)) == struct.pack("<2d", 3, 0)
    assert parse("cuda::std::complex<double>").align == 16
    with pytest.raises(OverflowError, match=re.escape("k: argument 1 'x[1]' is 1e+39, out of range for float")):
        one("cuda::std::complex<float>", 1e39j)


# --- vectors by value -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("char1", (-1,), "<b"),
        ("uchar4", (1, 2, 3, 255), "<4B"),
        ("short3", (-1, 2, 3), "<3h"),
        ("ushort2", (1, 65535), "<2H"),
        ("int4", (1, -2, 3, 4), "<4i"),
        ("uint3", (1, 2, 3), "<3I"),
        ("dim3", (1, 2, 3), "<3I"),
        ("long2", (1, -2), "<2q"),
        ("ulonglong2", (1, 2**64 - 1), "<2Q"),
        ("float2", (0.5, 2), "<2f"),
        ("float3", [0.5, 2, 3], "<3f"),
        ("float4", (0.5, 2, 3, 4), "<4f"),
        ("double4", (0.5, 2, 3, 4), "<4d"),
        ("double4_32a", (0.5, 2, 3, 4), "<4d"),
        ("__half2", (0.5, 2), "<2e"),
    ],
)
def test_vectors(name: str, value: Any, code: str) -> None:
    assert pack(name, args=(value,)) == struct.pack(code, *value)


def test_vectors_of_every_make() -> None:
    assert pack("__nv_bfloat162", args=((1.0, 2.0),)) == struct.pack("<2H", 0x3F80, 0x4000)
    assert pack("float2", args=(1 - 2j,)) == struct.pack("<2f", 1, -2)  # cuComplex is float2
    assert pack("float3", args=(np.array([1, 2, 3], np.float32),)) == struct.pack("<3f", 1, 2, 3)
    assert pack("int2", args=(torch.Size([3, 4]),)) == struct.pack("<2i", 3, 4)
    assert pack("int2", args=((np.int64(3), torch.tensor(4)),)) == struct.pack("<2i", 3, 4)


def test_vectors_refused() -> None:
    refuse("float2", (1, 2, 3), "has 3 numbers, the kernel takes float2 by value; pass a tuple of 2")
    refuse(
        "float2", 1.0, "is the float 1.0, the kernel takes float2 by value; pass a tuple of 2 numbers, such as (1, 2)"
    )
    with pytest.raises(TypeError, match=re.escape("k: argument 1 'x[1]' is the float 2.5, the kernel takes int by")):
        one("int2", (1, 2.5))
    with pytest.raises(OverflowError, match=re.escape("k: argument 1 'x[0]' is 300, out of range for unsigned char")):
        one("uchar2", (300, 1))


# --- structs by value -----------------------------------------------------------------------------------------------


class CParams(ctypes.Structure):
    _fields_ = (("n", ctypes.c_int), ("a", ctypes.c_float), ("x", ctypes.c_void_p), ("y", ctypes.c_void_p))


class OtherParams(ctypes.Structure):
    _fields_ = (("n", ctypes.c_float), ("a", ctypes.c_float), ("x", ctypes.c_void_p), ("y", ctypes.c_void_p))


class ForeignParams(ctypes.BigEndianStructure):
    _fields_ = (("n", ctypes.c_int), ("a", ctypes.c_float), ("x", ctypes.c_uint64), ("y", ctypes.c_uint64))


class FirstParams(ctypes.Structure):
    _fields_ = (("n", ctypes.c_int), ("a", ctypes.c_float))


class LastParams(FirstParams):
    _fields_ = (("x", ctypes.POINTER(ctypes.c_float)), ("y", ctypes.c_void_p))


def test_struct_from_dict() -> None:
    x, y = torch.ones(4), torch.zeros(4)
    before = y._version
    bound = one("ns::Params", {"n": 4, "a": 0.5, "x": x, "y": y})
    assert bound.values == (struct.pack("<ifQQ", 4, 0.5, x.data_ptr(), y.data_ptr()),)
    assert bound.written == (y,) and y._version == before + 1
    assert bound.tensors == (x, y) and bound.device == torch.device("cpu")
    assert one("ns::Params", {"n": 4, "a": 0.5, "x": None, "y": None}).values == (struct.pack("<ifQQ", 4, 0.5, 0, 0),)


def test_struct_from_bytes_and_the_like() -> None:
    want = struct.pack("<ifQQ", 4, 0.5, 1, 2)
    dtype = np.dtype([("n", "i4"), ("a", "f4"), ("x", "u8"), ("y", "u8")], align=True)
    array = np.array((4, 0.5, 1, 2), dtype)
    inherited = LastParams(4, 0.5, ctypes.cast(1, ctypes.POINTER(ctypes.c_float)), 2)
    for value in (
        CParams(4, 0.5, 1, 2),
        inherited,
        array,
        array[()],
        want,
        bytearray(want),
        memoryview(want),
        np.void(want),
    ):
        assert one("ns::Params", value).values == (want,)


def test_struct_members_nest() -> None:
    value = {"c": -3, "d": 0.1, "s": [1, -2, 3], "in": {"i": 9, "f": 0.25}}
    assert pack("Padded", args=(value,)) == struct.pack("<b7xd3h2xif", -3, 0.1, 1, -2, 3, 9, 0.25)
    with pytest.raises(TypeError, match=re.escape("k: argument 1 'x.in.i' is the float 0.5, the kernel takes int by")):
        one("Padded", value | {"in": {"i": 0.5, "f": 0.25}})
    with pytest.raises(
        TypeError, match=re.escape("'x.s' is [1, 2] (list), the kernel takes short [3]; pass a list of 3")
    ):
        one("Padded", value | {"s": [1, 2]})


def test_struct_refused() -> None:
    refuse("ns::Params", {"n": 1, "a": 1, "x": None}, "has no 'y'; ns::Params has the members (n, a, x, y)")
    refuse(
        "ns::Params",
        {"n": 1, "a": 1, "x": None, "y": None, "z": 1},
        "has a member 'z' that ns::Params has not; its members are (n, a, x, y)",
    )
    refuse(
        "ns::Params",
        b"abc",
        "has 3 bytes, the kernel takes ns::Params by value, whose size is 24; give it the kernel's members and padding",
    )
    refuse(
        "ns::Params",
        (1, 2),
        "is (1, 2) (tuple), the kernel takes ns::Params by value; pass a dict of its members (n, a, x, y), "
        "a NumPy structured scalar, a ctypes.Structure or bytes",
    )
    refuse(
        "Opaque",
        {"a": 1},
        "is a dict, which cannot fill Opaque: its member 'a' is private; pass its 12 bytes, such as those of a ctypes.Structure",
    )
    packed = np.zeros((), [("c", "i1"), ("d", "f8"), ("s", "i2", 3), ("in", "V8"), ("_pad", "V9")])
    refuse(
        "Padded",
        packed,
        "has member 'd' at byte 1, Padded has it at byte 8; align it as C does (numpy.dtype(..., align=True))",
    )
    # A pointer whose bytes are in reverse ends the process.
    foreign = "has the byte order of another machine; make it in this one's"
    refuse("ns::Params", np.zeros((), [("n", ">i4"), ("a", ">f4"), ("x", ">u8"), ("y", ">u8")]), foreign)
    refuse("ns::Params", ForeignParams(), foreign)
    read = "ns::Params has it as {}; give its dtype the kernel's members"
    for a, x, message in (
        ("i4", "u8", f"has member 'a' as int32, {read.format('float')}"),
        ("f2", "u8", f"has member 'a' as float16, {read.format('float')}"),
        ("f4", "f8", f"has member 'x' as float64, {read.format('const float*')}"),
    ):
        record = np.dtype({"names": ["n", "a", "x", "y"], "formats": ["i4", a, x, "u8"], "offsets": [0, 4, 8, 16]})
        refuse("ns::Params", np.zeros((), record), message)
    refuse("ns::Params", OtherParams(), f"has member 'n' as float32, {read.format('int')}")
    one("ns::Params", np.zeros((), [("n", "u4"), ("a", "f4"), ("x", "i8"), ("y", "u8")]))  # the sign is no matter
    with pytest.raises(TypeError, match=r"has a member 'm' that ns::Params has not"):
        one("ns::Params", np.zeros((), [("m", "i4"), ("a", "f4"), ("x", "u8"), ("y", "u8")]))
    wrong = {"n": 1, "a": 1, "x": torch.ones(2).double(), "y": None}
    with pytest.raises(TypeError) as caught:
        one("ns::Params", wrong)
    assert str(caught.value) == "k: argument 1 'x.x' is float64, the kernel reads const float*; pass x.x.float()"
    with pytest.raises(UnsupportedError, match="the layout of parameter type ns::Params is not known"):
        make_signature(SimpleNamespace(name="k", params=("ns::Params",)), ())


def test_function_pointers_are_refused() -> None:
    with pytest.raises(TypeError, match="make it a template parameter"):
        one("void (*)(int)", 1)


# --- pointers: dtypes -----------------------------------------------------------------------------------------------

EVERY = [
    *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16"),
    *("float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
]
BEHIND = {
    "bool": {"bool"},
    "char": {"int8", "uint8", "bool"},
    "signed char": {"int8", "uint8"},
    "unsigned char": {"uint8", "bool", "float8_e4m3fn", "float8_e5m2"},
    "short": {"int16", "uint16"},
    "unsigned short": {"int16", "uint16"},
    "int": {"int32", "uint32"},
    "unsigned int": {"int32", "uint32"},
    "long": {"int64", "uint64"},
    "unsigned long": {"int64", "uint64"},
    "long long": {"int64", "uint64"},
    "unsigned long long": {"int64", "uint64"},
    "__half": {"float16"},
    "__nv_bfloat16": {"bfloat16"},
    "float": {"float32"},
    "double": {"float64"},
    "__nv_fp8_e4m3": {"float8_e4m3fn"},
    "__nv_fp8_e5m2": {"float8_e5m2"},
    "float2": {"float32", "complex64"},
    "float4": {"float32"},
    "double2": {"float64", "complex128"},
    "int4": {"int32", "uint32"},
    "uchar4": {"uint8", "int8"},
    "__half2": {"float16", "complex32"},
    "__nv_bfloat162": {"bfloat16"},
    "cuda::std::complex<float>": {"complex64"},
    "cuda::std::complex<double>": {"complex128"},
    "void": set(EVERY),
}


@pytest.mark.parametrize("target", BEHIND)
def test_dtypes_behind_pointers(target: str) -> None:
    for name in EVERY:
        t = torch.zeros(8, dtype=getattr(torch, name))
        for const in ("", " const"):
            if name in BEHIND[target]:
                bound = one(f"{target}{const}*", t)
                assert bound.values == (t.data_ptr(),) and bound.tensors == (t,)
                assert bound.written == (() if const else (t,))
            else:
                with pytest.raises(TypeError, match=rf"^k: argument 1 'x' is {name}, the kernel "):
                    one(f"{target}{const}*", t)


def test_dtype_messages() -> None:
    x, y = torch.ones(4), torch.ones(4)
    with pytest.raises(TypeError) as caught:
        bind(SAXPY, (4, 1.0, x.double(), y))
    assert str(caught.value) == "saxpy: argument 3 'x' is float64, the kernel reads const float*; pass x.float()"
    with pytest.raises(TypeError) as caught:
        bind(SAXPY, (4, 1.0, x, y.double()))
    assert str(caught.value) == (
        "saxpy: argument 4 'y' is float64, the kernel writes float*; make it with dtype=torch.float32"
    )
    refuse("int const*", torch.ones(2).long(), "is int64, the kernel reads const int*; pass x.int()")
    refuse(
        "signed char const*", torch.ones(2), "is float32, the kernel reads const signed char*; pass x.to(torch.int8)"
    )
    refuse(
        "unsigned char*",
        torch.ones(2),
        "is float32, the kernel writes unsigned char*; pass x.view(torch.uint8) if bytes are meant",
    )
    refuse(
        "float const*",
        torch.ones(2) * 1j,
        "is complex64, the kernel reads const float*; pass torch.view_as_real(x)",
    )
    refuse("float const*", np.ones(2), "is float64, the kernel reads const float*; pass x.astype(numpy.float32)")
    refuse(
        "__nv_bfloat16 const*",
        np.ones(2),
        "is float64, the kernel reads const __nv_bfloat16*; pass x.astype(ml_dtypes.bfloat16)",
    )


def test_other_objects_for_pointers() -> None:
    need = "the kernel takes a pointer (const float*)"
    refuse("float const*", 1.5, f"is the float 1.5, {need}; pass a tensor, such as torch.tensor([1.5])")
    at = torch.ones(2).data_ptr()
    refuse("float const*", at, f"is the int {at}, {need}; pass the tensor itself, not its address")
    refuse("float const*", [1.0, 2.0], f"is [1.0, 2.0] (list), {need}; pass torch.tensor(x)")
    refuse(
        "float const*",
        "abc",
        f"is 'abc' (str), {need}; pass a torch tensor, a CuPy or NumPy array, or an object with __dlpack__",
    )
    with pytest.raises(TypeError, match=r"pass torch.frombuffer\(bytearray\(x\), dtype=torch.uint8\)"):
        one("char const*", b"abc")
    with pytest.raises(TypeError, match=r"^k: argument 1 'x' is <class 'torch.Tensor'> \(_TensorMeta\), the kernel"):
        one("float const*", torch.Tensor)
    with pytest.raises(TypeError, match="pass a tensor or an array, not one element of it"):
        one("float const*", np.float32(1))


def test_none_is_the_null_pointer() -> None:
    bound = bind(SAXPY, (1, 1.0, None, None))
    assert bound.values == (1, 1.0, 0, 0) and bound.device is None and bound.tensors == ()
    refuse("int&", None, "is None, and int& is a reference; pass a one-element tensor")


# --- pointers: memory -----------------------------------------------------------------------------------------------


def test_contiguity() -> None:
    t = torch.ones(3, 4).t()
    refuse(
        "float const*",
        t,
        "is not contiguous (shape (4, 3), strides (1, 4)), the kernel reads const float*; "
        "pass x.contiguous(), or make the kernel with strided=True",
        ValueError,
    )
    refuse(
        "float*",
        t,
        "is not contiguous (shape (4, 3), strides (1, 4)), the kernel writes float*; write into a contiguous tensor "
        "and copy it back, or make the kernel with strided=True",
        ValueError,
    )
    with pytest.raises(ValueError, match=r"pass x.copy\(\), or make the kernel with strided=True"):
        one("double const*", np.ones((3, 4)).T)
    assert one("float const*", torch.ones(3, 4)[1:]).values  # contiguous, though a view


def test_strided() -> None:
    t = torch.ones(3, 4).t()[1:]
    for param in ("float const*", "float*"):
        assert one(param, t, strided=True).values == (t.data_ptr(),)
    a = np.ones((3, 4))[::-1]
    assert one("double*", a, strided=True).values == (a.ctypes.data,)
    wide = torch.ones(1).expand(5)
    assert one("float const*", wide, strided=True).values == (wide.data_ptr(),)
    refuse(
        "float*",
        wide,
        "has several elements at one address (stride 0), the kernel writes float*; pass x.clone()",
        ValueError,
        strided=True,
    )
    with pytest.raises(ValueError, match="is not contiguous"):
        one("float*", wide)


def test_lazy_bits() -> None:
    z = torch.ones(3, dtype=torch.complex64)
    need = "which the kernel would not see"
    refuse(
        "cuda::std::complex<float> const*",
        z.conj(),
        f"has torch's lazy conj bit, {need}; pass x.resolve_conj()",
        ValueError,
    )
    imag = torch.ones(1, dtype=torch.complex64).conj().imag
    assert imag.is_neg() and imag.is_contiguous()
    refuse("float const*", imag, f"has torch's lazy neg bit, {need}; pass x.resolve_neg()", ValueError)
    for param, lazy in (("float*", imag), ("float2*", z.conj()), ("void*", z.conj()), ("void*", imag)):
        with pytest.raises(ValueError, match=rf"{need}; write into a tensor without it"):
            one(param, lazy)


def test_alignment() -> None:
    t = torch.zeros(9)
    assert t.data_ptr() % 16 == 0
    assert one("float4 const*", t[4:]).values == (t.data_ptr() + 16,)
    refuse(
        "float4 const*",
        t[1:],
        "starts at an address that is no multiple of 16 bytes, the kernel reads const float4*; pass x.clone()",
        ValueError,
    )
    refuse(
        "float2*",
        t[1:],
        "starts at an address that is no multiple of 8 bytes, the kernel writes float2*; give it memory of its own",
        ValueError,
    )
    odd = torch.frombuffer(bytearray(9), dtype=torch.float32, count=2, offset=1)
    with pytest.raises(ValueError, match="no multiple of 4 bytes"):
        one("float const*", odd)


def test_empty_tensors() -> None:
    for empty in (torch.empty(0), torch.empty(3, 0), np.empty(0, np.float32)):
        bound = one("float*", empty)
        assert bound.device == torch.device("cpu") and bound.index == -1


def test_devices() -> None:
    # Two devices without a GPU: a stand-in that says it is GPU memory.
    gpu = FakeGpuArray(np.zeros(4, np.float32))
    x = torch.ones(4)
    with pytest.raises(ValueError) as caught:
        bind(SAXPY, (4, 1.0, x, gpu))
    assert str(caught.value) == (
        "saxpy: argument 4 'y' is on cuda:3, argument 3 'x' is on cpu; a launch runs on one device: "
        "pass a copy of it on cpu"
    )
    with pytest.raises(ValueError, match=r"'y' is on cpu, argument 3 'x' is on cuda:3; .*: pass y.to\('cuda:3'\)"):
        bind(SAXPY, (4, 1.0, gpu, x))
    bound = bind(SAXPY, (4, 1.0, gpu, gpu))
    assert bound.device == torch.device("cuda", 3) and bound.index == 3


class FakeGpuArray:
    """Looks like a CuPy array on GPU 3."""

    def __init__(self, a: np.ndarray, **changes: Any) -> None:
        self.a, self.changes = a, changes
        self.dtype, self.device = a.dtype, SimpleNamespace(id=3)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        face = self.a.__array_interface__
        return {"shape": self.a.shape, "typestr": self.a.dtype.str, "data": face["data"], "version": 3} | self.changes


def test_cuda_array_interface() -> None:
    a = np.zeros((2, 3), np.float32)
    assert one("float*", FakeGpuArray(a)).values == (a.ctypes.data,)
    assert one("float*", FakeGpuArray(a, strides=(12, 4))).device == torch.device("cuda", 3)
    with pytest.raises(ValueError, match="is not contiguous"):
        one("float const*", FakeGpuArray(a, strides=(4, 8)))
    with pytest.raises(TypeError, match=r"is float32, the kernel reads const int\*; pass x.astype\(numpy.int32\)"):
        one("int const*", FakeGpuArray(a))
    with pytest.raises(ValueError, match="is a read-only"):
        one("float*", FakeGpuArray(a, data=(a.ctypes.data, True)))
    assert one("float const*", FakeGpuArray(a, data=(a.ctypes.data, True))).values
    assert one("__nv_bfloat16*", FakeGpuArray(np.zeros(2, ml_dtypes.bfloat16), typestr="<V2")).values


def test_numpy() -> None:
    a = np.zeros(4, np.float32)
    bound = one("float*", a)
    assert bound.values == (a.ctypes.data,) and bound.device == torch.device("cpu") and bound.written == ()
    assert one("__nv_bfloat16*", np.zeros(4, ml_dtypes.bfloat16)).values
    assert one("unsigned char*", np.zeros(4, ml_dtypes.float8_e5m2)).values
    a.flags.writeable = False
    assert one("float const*", a).values == (a.ctypes.data,)
    refuse(
        "float*", a, "is a read-only NumPy array, the kernel writes float*; pass a writable copy, x.copy()", ValueError
    )
    refuse(
        "float const*",
        a.astype(">f4"),
        "has the byte order of another machine (>f4); pass x.astype(x.dtype.newbyteorder('='))",
    )
    refuse("void*", np.array([None]), "is a NumPy array of Python objects; give it a numeric dtype")
    assert one("double const*", np.ones(3)[::-1][:1]).values  # one element has no direction
    with pytest.raises(TypeError, match=r"is a masked array, whose mask the kernel would not see; pass x.filled\(\)"):
        one("double const*", np.ma.masked_array([1.0, 2.0], [0, 1]))


class Producer:
    """Any `__dlpack__` object."""

    def __init__(self, a: Any, old: bool = False) -> None:
        self.a, self.old = a, old

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.a.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        if self.old and options:
            raise TypeError("an old producer")
        return self.a.__dlpack__(**options)


def test_dlpack_objects() -> None:
    a = np.arange(4, dtype=np.float32)
    for old in (False, True):
        bound = one("float*", Producer(a, old))
        assert bound.values == (a.ctypes.data,) and bound.keep[0].data_ptr() == a.ctypes.data
    with pytest.raises(ValueError, match="has a negative stride"):  # torch.from_dlpack would end the process
        one("float const*", Producer(a[::-1]))
    a.flags.writeable = False
    assert one("float const*", Producer(a)).values == (a.ctypes.data,)
    with pytest.raises(ValueError, match="is a read-only Producer"):
        one("float*", Producer(a))
    with pytest.raises(TypeError, match="cannot be exchanged through DLPack"):
        one("float*", Producer(a, old=True))  # read-only, and too old a protocol to say so


def test_struct_pointers() -> None:
    raw = torch.zeros(48, dtype=torch.uint8)
    assert one("ns::Params*", raw).values == (raw.data_ptr(),)
    rows = np.zeros(2, np.dtype([("n", "i4"), ("a", "f4"), ("x", "u8"), ("y", "u8")], align=True))
    assert one("ns::Params const*", rows).values == (rows.ctypes.data,)
    refuse(
        "ns::Params*",
        raw[:40],
        "has 40 bytes, the kernel writes ns::Params*, whose size is 24; pass a multiple of that",
        ValueError,
    )
    refuse(
        "ns::Params const*",
        torch.ones(6),
        "is float32, the kernel reads const ns::Params*; pass x.view(torch.uint8) or a structured array",
    )
    with pytest.raises(ValueError, match="no multiple of 8 bytes"):
        one("ns::Params*", torch.zeros(49, dtype=torch.uint8)[1:25])
    assert one("DeclaredOnly*", raw[:40]).values == (raw.data_ptr(),)
    with pytest.raises(TypeError, match="has elements of 20 bytes"):
        one("ns::Params*", np.zeros(2, [("n", "i4"), ("x", "u8"), ("y", "u8")]))
    with pytest.raises(TypeError, match="has a member 'b' that ns::Params has not"):
        one("ns::Params*", np.zeros(2, np.dtype([("n", "i4"), ("b", "f4"), ("x", "u8"), ("y", "u8")])))


def test_tables_of_pointers() -> None:
    xs = [torch.ones(3), torch.zeros(2), None]
    bound = one("float const* const*", xs)
    table = bound.keep[0]
    assert bound.values == (table.data_ptr(),)
    assert table.tolist() == [xs[0].data_ptr(), xs[1].data_ptr(), 0]
    assert bound.tensors == (xs[0], xs[1]) and bound.written == ()
    assert one("float* const*", xs).written == (xs[0], xs[1])
    addresses = torch.tensor([xs[0].data_ptr()])
    assert one("float* const*", addresses).values == (addresses.data_ptr(),)
    assert one("float* const*", []).values == (0,)
    refuse(
        "float* const*",
        torch.ones(3),
        "is float32, the kernel reads float* const*; pass an int64 tensor of addresses or a list of tensors",
    )
    with pytest.raises(
        TypeError, match=re.escape("k: argument 1 'x[1]' is float64, the kernel reads const float*; pa")
    ):
        one("float const* const*", [torch.ones(2), torch.ones(2).double()])
    with pytest.raises(ValueError, match=re.escape("argument 1 'x[0]' is on cpu")):
        one("float const* const*", [torch.ones(4), FakeGpuArray(np.zeros(4, np.float32))])


def test_references() -> None:
    t = torch.zeros(1, dtype=torch.int32)
    assert one("int&", t).written == (t,)
    assert one("int const&", torch.zeros((), dtype=torch.int32)).written == ()
    refuse(
        "int&",
        3,
        "is the int 3, the kernel takes a reference to device memory (int&); pass a tensor, such as torch.tensor([3])",
    )
    refuse(
        "int&",
        torch.zeros(2, dtype=torch.int32),
        "has 2 elements, the kernel writes int&, a reference; pass a one-element tensor",
        ValueError,
    )


# --- number and names of arguments ----------------------------------------------------------------------------------


def test_keywords() -> None:
    x, y = torch.ones(4), torch.ones(4)
    want = bind(SAXPY, (4, 2.0, x, y)).values
    assert bind(SAXPY, (), {"n": 4, "a": 2.0, "x": x, "y": y}).values == want
    assert bind(SAXPY, (4, 2.0), {"y": y, "x": x}).values == want
    assert bind(SAXPY, [4, 2.0, x, y]).values == want


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1, 2, 3), {}, "saxpy takes 4 arguments, 3 were given: "),
        ((1,), {}, "saxpy takes 4 arguments, 1 was given: "),
        ((1, 2, 3, 4, 5), {}, "saxpy takes 4 arguments, 5 were given: "),
        ((1, 2, 3, 4, 5), {"n": 1}, "saxpy takes 4 arguments, 6 were given: "),
        ((1, 2), {"z": 1}, "saxpy has no parameter 'z': "),
        ((1, 2), {"a": 1}, "saxpy: argument 2 'a' is given by position and by keyword: "),
        ((1, 2), {"y": 1}, "saxpy: argument 3 'x' is missing: "),
    ],
)
def test_wrong_number_prints_the_signature(args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        bind(SAXPY, args, kwargs)
    assert str(caught.value) == message + str(SAXPY)


def test_kernel_without_parameters() -> None:
    assert bind(make(), ()) == (None, (), (), (), (), -1, False)
    with pytest.raises(TypeError, match=re.escape("k takes 0 arguments, 1 was given: void k()")):
        bind(make(), (1,))


# --- traps ----------------------------------------------------------------------------------------------------------


def test_tensors_without_memory() -> None:
    zero = torch._efficientzerotensor(3)
    assert type(zero) is torch.Tensor and zero.data_ptr() == 0
    bound = one("float const*", zero)  # readable: it is made
    assert bound.values == (bound.keep[0].data_ptr(),) and bound.keep[0].tolist() == [0, 0, 0] and bound.fresh
    refuse("float*", zero, "is a zero tensor without memory, the kernel writes float*; pass x.clone()")
    rest = ", and a raw launch is not recorded there; wrap this in rawkern.op"
    refuse("float*", torch._to_functional_tensor(torch.ones(3)), f"is a functional tensor{rest}", LaunchError)
    refuse("float const*", torch.empty(3, device="meta"), f"is a meta tensor{rest}", LaunchError)
    refuse("float const*", torch.empty(0, device="meta"), f"is a meta tensor{rest}", LaunchError)
    refuse(
        "float const*",
        torch.eye(3).to_sparse(),
        "has layout sparse_coo, the kernel takes const float*; pass x.to_dense()",
    )
    refuse(
        "float const*",
        torch.eye(3).to_sparse_csr(),
        "has layout sparse_csr, the kernel takes const float*; pass x.to_dense()",
    )
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([torch.ones(3)], layout=layout)
        refuse("float const*", nested, "is a nested tensor, the kernel takes const float*; pass x.values()")
        one("float const*", nested.values())
    with pytest.raises(TypeError, match="has layout _mkldnn"):
        one("float const*", torch.eye(3).to_mkldnn())
    with pytest.raises(TypeError, match="is a UninitializedParameter without readable memory"):
        one("float const*", torch.nn.UninitializedParameter(requires_grad=False))


def test_subclasses() -> None:
    class Plain(torch.Tensor):
        pass

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Wrapper:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise NotImplementedError

    t = torch.ones(3)
    assert one("float*", t.as_subclass(Plain)).values == (t.data_ptr(),)
    for plain in (torch.nn.Parameter(t, requires_grad=False), torch.nn.Buffer(t)):
        assert one("float*", plain).values == (plain.data_ptr(),)
    refuse(
        "float*",
        Wrapper(t),
        "is a Wrapper, a tensor subclass that keeps its memory elsewhere; pass the plain "
        "tensor inside it, or wrap this in rawkern.op",
    )


def test_dtensor() -> None:
    distributed = pytest.importorskip("torch.distributed.tensor")
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
        t = distributed.DTensor.from_local(torch.ones(3), mesh)
        refuse("float const*", t, "is a DTensor, a tensor subclass that keeps its memory elsewhere; pass x.to_local()")
    finally:
        torch.distributed.destroy_process_group()


def test_torch_func() -> None:
    seen: list[str] = []

    def launch(t: torch.Tensor) -> torch.Tensor:
        with pytest.raises(LaunchError) as caught:
            one("float const*", t)
        seen.append(str(caught.value).split(",")[0])
        return t.sum()

    torch.func.vmap(launch)(torch.ones(2, 3))
    torch.func.grad(launch)(torch.ones(3))
    torch.func.vmap(torch.func.grad(launch))(torch.ones(2, 3))
    assert seen == [
        "k: argument 1 'x' is a tensor under vmap",
        "k: argument 1 'x' is a tensor under torch.func.grad",
        "k: argument 1 'x' is a tensor under torch.func.grad",
    ]


def test_tracing() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    x = torch.ones(3)
    with FakeTensorMode():
        fake = torch.ones(3)
        with pytest.raises(LaunchError, match=r"a torch dispatch mode is active \(FakeTensorMode\)"):
            one("float*", fake)
    refuse(
        "float*", fake, "is a FakeTensor, and a raw launch is not recorded there; wrap this in rawkern.op", LaunchError
    )
    with Watch():
        for signature, args in ((make("float*"), (x,)), (make("int"), (1,)), (make(), ())):
            with pytest.raises(LaunchError) as caught:
                bind(signature, args)
            assert str(caught.value) == (
                "k: a torch dispatch mode is active (Watch), and a raw launch is not recorded there; "
                "wrap this in rawkern.op"
            )
        with inside_op():
            assert one("float*", x).values == (x.data_ptr(),)

    def traced(t: torch.Tensor) -> torch.Tensor:
        one("float*", t)
        return t

    for mode in ("real", "fake", "symbolic"):
        with pytest.raises(LaunchError, match=r"wrap this in rawkern\.op"):
            make_fx(traced, tracing_mode=mode)(x)
    with pytest.raises(LaunchError, match=r"torch\.jit\.trace is active"):
        torch.jit.trace(traced, (x,))


def test_version_bump() -> None:
    x, y = torch.ones(3), torch.ones(3)
    before = x._version, y._version
    bind(SAXPY, (3, 1.0, x, y))
    assert (x._version, y._version) == (before[0], before[1] + 1)
    with pytest.raises(TypeError):
        bind(make("float*", "int"), (y, 0.5))
    assert y._version == before[1] + 1  # nothing happens before everything is checked
    leaf = torch.ones(3, requires_grad=True)
    squared = leaf * leaf
    saved = squared.detach()
    result = (squared * squared).sum()
    one("float*", saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_writing_where_autograd_would_not_know() -> None:
    leaf = torch.ones(4, requires_grad=True)
    message = "requires grad, the kernel writes float* and autograd would not know; use torch.no_grad() or rawkern.op"
    with torch.no_grad():
        quiet_view = leaf[1:]
    for t in (leaf, leaf[1:], leaf * 2, torch.nn.Parameter(torch.ones(3)), quiet_view):
        refuse("float*", t, message, LaunchError)
        assert one("float const*", t).values
        with torch.no_grad():
            assert one("float*", t).written[0] is t
        with inside_op():
            assert one("float*", t).written[0] is t
        assert one("float*", t.detach()).values


def test_inside_op_is_the_threads_own() -> None:
    leaf, errors = torch.ones(4, requires_grad=True), []

    def other() -> None:
        try:
            one("float*", leaf)
        except LaunchError as error:
            errors.append(error)

    with inside_op():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with inside_op():
            pass
        assert one("float*", leaf).values
    assert len(errors) == 1
    with pytest.raises(LaunchError):
        one("float*", leaf)


def test_inference_tensors() -> None:
    with torch.inference_mode():
        t = torch.ones(3)
        assert one("float*", t).written == (t,)
    assert one("float*", t).values == (t.data_ptr(),)


def test_values_are_each_calls_own() -> None:
    signature = make("long long", "double", "float*")
    wrong = []

    def work(seed: int) -> None:
        t = torch.zeros(2)
        for i in range(3000):
            values = bind(signature, (seed * 10000 + i, i / 3, t)).values
            if values != (seed * 10000 + i, i / 3, t.data_ptr()):
                wrong.append(values)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_fake_implementations_check_kinds_only() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()
    real = torch.ones(5, 3)
    with FakeTensorMode(shape_env=env, static_shapes=False) as mode:
        x = mode.from_tensor(real)
        with inside_op(fake=True):
            for size in (x.shape[0], x.numel()):
                assert isinstance(size, torch.SymInt)
                bound = bind(SAXPY, (size, 2.0, x, x.t()))
                assert bound.device == torch.device("meta") and bound.values == ()
            bind(SAXPY, (), {"n": x.shape[0], "a": x.shape[0], "x": x, "y": x})
            bind(make("int2", "ns::Params"), ((x.shape[0], 3), {}))
            with pytest.raises(TypeError, match=r"saxpy: argument 3 'x' is float64, the kernel reads const float\*"):
                bind(SAXPY, (1, 2.0, x.double(), x))
            with pytest.raises(TypeError, match="argument 1 'n' is a SymFloat, the kernel takes int"):
                bind(SAXPY, (x.shape[0] * 0.5, 2.0, x, x))
            with pytest.raises(TypeError, match=r"is the float 1\.5, the kernel takes int by value"):
                bind(SAXPY, (1.5, 2.0, x, x))
            with pytest.raises(TypeError, match="saxpy takes 4 arguments, 1 was given"):
                bind(SAXPY, (1,))
        assert not env.guards
    with inside_op(fake=True):
        meta = torch.empty(3, device="meta")
        assert bind(SAXPY, (1, 2.0, meta, meta)).device == torch.device("meta")
    with pytest.raises(LaunchError, match="is a SymInt, and a raw launch is not recorded there"):
        bind(make("int"), (x.shape[0],))


# --- with the compiler ----------------------------------------------------------------------------------------------


def compile_signatures(text: str, *instances: str) -> dict[str, tuple[Signature, bytes]]:
    pytest.importorskip("cupy")
    from rawkern.compile import programs, source

    program = programs.compile_program(source.from_text(text, ("--device-int128",), ()), programs.CPU_ARCH, instances)
    return {
        entry.name: (
            make_signature(
                entry,
                programs.parameter_names(program.source, entry),
                lambda name: programs.struct_layout(program, name),
            ),
            program.code,
        )
        for entry in program.entries
    }


def test_sizes_and_alignments_are_the_compilers() -> None:
    from rawkern.base import ctype

    skipped = {"void", "__nv_fp4x2_e2m1", "__nv_fp8_e8m0", "char8_t"}  # newer headers, or C++20
    kinds = [t for t in ctype._TABLE.values() if t.name not in skipped and not t.name.endswith(("_16a", "_32a"))]
    kinds += [parse(f"cuda::std::complex<{name}>") for name in ("float", "double")]
    includes = "".join(f"#include <{h}>\n" for h in ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda/std/complex"))
    text = includes + "".join(f"__global__ void k{i}({t.name} v) {{}}\n" for i, t in enumerate(kinds))
    found = compile_signatures(text)
    assert len(found) == len(kinds)
    for i, kind in enumerate(kinds):
        signature, code = found[f"k{i}"]
        compiled = signature.params[0].ctype
        assert (compiled.kind, compiled.size, compiled.align) == (kind.kind, kind.size, kind.align), kind.name
        line = re.search(rf"\.param ([^\n]*) _Z\d+k{i}\w*_param_0(?:\[(\d+)\])?".encode(), code)
        assert line is not None, kind.name
        if line.group(2):
            align = int(re.search(rb"\.align (\d+)", line.group(1)).group(1))  # type: ignore[union-attr]
            assert (int(line.group(2)), align) == (kind.size, kind.align), kind.name
        else:
            assert int(re.sub(rb"\D", b"", line.group(1))) == max(8 * kind.size, 8), kind.name


def test_compiled_signatures() -> None:
    found = compile_signatures(
        """
        #include <cuda_fp16.h>
        namespace ns { struct In { short s[3]; }; struct P { const float* x; double* y; int n; In in; }; }
        enum Mode : unsigned char { A, B };
        typedef const float* const __restrict__ floats;
        struct Later;
        template <class T, int N> __global__ void axpy(T a, const T* x, T* y) {}
        extern "C" __global__ void plain(const ns::P p, ns::P* ps, floats f, Mode m, Later* l, __half h) {}
        """,
        "axpy<float, 4>",
    )
    signature, _ = found["plain"]
    assert str(signature) == (
        "void plain(ns::P p, ns::P *ps, const float *f, " + str(signature.params[3]) + ", Later *l, __half h)"
    )
    assert signature.params[3].ctype.size == 1
    x, y = torch.ones(2), torch.ones(2, dtype=torch.float64)
    raw = torch.zeros(64, dtype=torch.uint8)
    value = {"x": x, "y": y, "n": 2, "in": {"s": [1, 2, -3]}}
    bound = bind(signature, (value, raw, x, 1, raw[:3], 0.5))
    at = [t.data_ptr() for t in (x, y, raw, x, raw)]
    want = struct.pack("<QQi3h6xQQB7xQe", at[0], at[1], 2, 1, 2, -3, at[2], at[3], 1, at[4], 0.5)
    assert struct.pack(signature.format, *bound.values) == want
    assert bound.written == (y, raw, bound.written[2])
    assert str(found["axpy<float, 4>"][0]) == "void axpy<float, 4>(float a, const float *x, float *y)"


def test_pointers_to_arrays_take_rows() -> None:
    """A `T (*)[N]` was taken for an array by value."""
    kernel = rawkern.RawKernel(
        'extern "C" __global__ void rows(unsigned (*d)[4], const float (&f)[2], int n) { d[1][threadIdx.x] = n * f[1]; }'
    )
    x = torch.zeros(3, 4, dtype=torch.int32)
    kernel[1, 4](x, torch.tensor([0.0, 2.0]), 7)
    assert x.tolist() == [[0] * 4, [14] * 4, [0] * 4]
    with pytest.raises(TypeError, match="argument 1 'd' is float32"):
        kernel[1, 4](x.float(), torch.tensor([0.0, 2.0]), 7)
