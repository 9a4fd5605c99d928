"""Vectors and structs by value, from dicts, records and bytes."""

from __future__ import annotations

import ctypes
import re
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rawkern.arguments.signature import make_signature
from rawkern.arguments.slow_path import bind
from rawkern.base.ctype import Member, StructLayout
from rawkern.errors import UnsupportedError
from tests.arguments.kit import one, pack, rejects


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
    for z in (1 - 2j, torch.tensor(1 - 2j), torch.tensor(1 - 2j).to(torch.complex128)):  # cuComplex is float2
        assert pack("float2", args=(z,)) == struct.pack("<2f", 1, -2)
        assert pack("double2", args=(z,)) == struct.pack("<2d", 1, -2)
    rejects(
        "float2",
        torch.tensor(1.0),
        "is a Tensor, the kernel takes float2 by value; pass a tuple of 2 numbers, such as (1, 2)",
    )
    assert pack("float3", args=(np.array([1, 2, 3], np.float32),)) == struct.pack("<3f", 1, 2, 3)
    assert pack("int2", args=(torch.Size([3, 4]),)) == struct.pack("<2i", 3, 4)
    assert pack("int2", args=((np.int64(3), torch.tensor(4)),)) == struct.pack("<2i", 3, 4)


def test_vectors_rejected() -> None:
    rejects("float2", (1, 2, 3), "has 3 numbers, the kernel takes float2 by value; pass a tuple of 2")
    rejects(
        "float2", 1.0, "is the float 1.0, the kernel takes float2 by value; pass a tuple of 2 numbers, such as (1, 2)"
    )
    with pytest.raises(TypeError, match=re.escape("k: argument 1 'x[1]' is the float 2.5, the kernel takes int by")):
        one("int2", (1, 2.5))
    with pytest.raises(OverflowError, match=re.escape("k: argument 1 'x[0]' is 300, out of range for unsigned char")):
        one("uchar2", (300, 1))


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


def test_memory_belongs_to_a_parameter() -> None:
    """What is noted down of an argument's memory says whether a list or a struct leads to it, whatever it is called."""

    def parts(param: str, value: Any) -> list[bool]:
        pieces = one(param, value).pieces
        assert {piece.given_as for piece in pieces} == {"x"}
        return [piece.part for piece in pieces]

    x, y = torch.ones(4), torch.zeros(4)
    assert parts("float*", x) == [False]
    assert parts("float* const*", [x, y]) == [True, True, False]  # and the table of their addresses
    assert parts("ns::Params", {"n": 4, "a": 0.5, "x": x, "y": y}) == [True, True]


@pytest.mark.parametrize("text", ["const float* [2]", "float const * [2]", "const float* [2][3]"])
def test_arrays_of_pointers_to_const_are_only_read(text: str) -> None:
    """The qualifier belongs to what the items lead to."""
    layout = StructLayout(48 if "[3]" in text else 16, 8, (Member("in", text, 0),))
    signature = make_signature(SimpleNamespace(name="k", params=("S",)), (), lambda name: layout)
    x = torch.ones(4, requires_grad=True)
    items: Any = [x, None, None] if "[3]" in text else x
    bound = bind(signature, ({"in": [items, items]},))
    assert not bound.written and [piece.read_only for piece in bound.pieces] == [True, True]


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


def test_struct_rejected() -> None:
    rejects("ns::Params", {"n": 1, "a": 1, "x": None}, "has no 'y'; ns::Params has the members (n, a, x, y)")
    rejects(
        "ns::Params",
        {"n": 1, "a": 1, "x": None, "y": None, "z": 1},
        "has a member 'z' that ns::Params does not have; its members are (n, a, x, y)",
    )
    rejects(
        "ns::Params",
        b"abc",
        "has 3 bytes, the kernel takes ns::Params by value, whose size is 24; give it the kernel's members and padding",
    )
    rejects(
        "ns::Params",
        (1, 2),
        "is (1, 2) (tuple), the kernel takes ns::Params by value; pass a dict of its members (n, a, x, y), "
        "a NumPy structured scalar, a ctypes.Structure or bytes",
    )
    rejects(
        "Opaque",
        {"a": 1},
        "is a dict, which cannot fill Opaque: its member 'a' is private; pass its 12 bytes, such as those of a ctypes.Structure",
    )
    packed = np.zeros((), [("c", "i1"), ("d", "f8"), ("s", "i2", 3), ("in", "V8"), ("_pad", "V9")])
    rejects(
        "Padded",
        packed,
        "has member 'd' at byte 1, Padded has it at byte 8; align it as C does (numpy.dtype(..., align=True))",
    )
    # A pointer whose bytes are in reverse ends the process.
    foreign = "has a foreign byte order; convert it to the native one"
    rejects("ns::Params", np.zeros((), [("n", ">i4"), ("a", ">f4"), ("x", ">u8"), ("y", ">u8")]), foreign)
    rejects("ns::Params", ForeignParams(), foreign)
    read = "ns::Params has it as {}; give its dtype the kernel's members"
    for a, x, message in (
        ("i4", "u8", f"has member 'a' as int32, {read.format('float')}"),
        ("f2", "u8", f"has member 'a' as float16, {read.format('float')}"),
        ("f4", "f8", f"has member 'x' as float64, {read.format('const float*')}"),
    ):
        record = np.dtype({"names": ["n", "a", "x", "y"], "formats": ["i4", a, x, "u8"], "offsets": [0, 4, 8, 16]})
        rejects("ns::Params", np.zeros((), record), message)
    rejects("ns::Params", OtherParams(), f"has member 'n' as float32, {read.format('int')}")
    one("ns::Params", np.zeros((), [("n", "u4"), ("a", "f4"), ("x", "i8"), ("y", "u8")]))  # the sign does not matter
    with pytest.raises(TypeError, match=r"has a member 'm' that ns::Params does not have"):
        one("ns::Params", np.zeros((), [("m", "i4"), ("a", "f4"), ("x", "u8"), ("y", "u8")]))
    wrong = {"n": 1, "a": 1, "x": torch.ones(2).double(), "y": None}
    with pytest.raises(TypeError) as caught:
        one("ns::Params", wrong)
    assert str(caught.value) == "k: argument 1 'x.x' is float64, the kernel reads const float*; pass x.x.float()"
    with pytest.raises(UnsupportedError, match="the layout of parameter type ns::Params is not known"):
        make_signature(SimpleNamespace(name="k", params=("ns::Params",)), ())


def test_function_pointers_are_rejected() -> None:
    with pytest.raises(TypeError, match="make it a template parameter"):
        one("void (*)(int)", 1)
