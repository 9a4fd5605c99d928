"""Structs: the compiler's layout of them, and what a dict of their members becomes."""

from __future__ import annotations

import ctypes
import enum
import re
from typing import Any

import numpy as np
import pytest
import torch

import rawkern
from rawkern.compile import dwarf, nvrtc
from rawkern.compile.programs import Program, compile_program, struct_layout
from rawkern.compile.source import CPU_ARCH, from_text
from rawkern.errors import UnsupportedError


def _compile(code: str) -> Program:
    return compile_program(from_text(code), CPU_ARCH)


STRUCTS = """
struct Base { short s; };
template <class A, class B> struct Pair { A first; B second; };
namespace ns {
struct Inner { char c; double d[3][2]; };
struct alignas(32) Params : Base {
    int a; Inner in[2]; float* p; const Pair<float, int>* q; float4 f4; bool b; long long ll; static const int z = 3;
    Pair<float, double> pr; };
}
namespace { struct Hidden { int x; }; }
struct Pointee { float a; char b; };
struct United { union { int u; float v; }; int w; };
struct Bits { unsigned b : 3; int c; };
class Private { int x; public: int y; };
struct Empty {};
struct Declared;
extern "C" __global__ void k(ns::Params p, Hidden h, Pointee* q, Declared* d, United u, Bits b, Private v, Empty e) {}
"""


def test_struct_layout() -> None:
    program = _compile(STRUCTS)
    layout = struct_layout(program, "ns::Params")
    assert (layout.size, layout.align) == (192, 32)
    assert [(member.name, member.type, member.offset) for member in layout.members] == [
        ("s", "short", 0), ("a", "int", 4), ("in", "ns::Inner [2]", 8), ("p", "float*", 120), 
        ("q", "const Pair<float, int>*", 128),
        ("f4", "float4", 144), ("b", "bool", 160), ("ll", "long long", 168), ("pr", "Pair<float, double>", 176),
    ]  # fmt: skip
    inner = struct_layout(program, "ns::Inner")
    assert [(member.type, member.offset) for member in inner.members] == [("char", 0), ("double [3][2]", 8)]
    assert (inner.size, inner.align) == (56, 8)


@pytest.mark.parametrize(
    ("name", "size", "align", "members"),
    [
        ("(anonymous namespace)::Hidden", 4, 4, ["x"]),
        ("Pointee", 8, 4, ["a", "b"]),
        ("Pair<float, double>", 16, 8, ["first", "second"]),
        ("United", 8, 4, ["u", "v", "w"]),
        ("Bits", 8, 4, ["b", "c"]),
        ("Private", 8, 4, []),
        ("Empty", 1, 1, []),
    ],
)
def test_struct_sizes(name: str, size: int, align: int, members: list[str]) -> None:
    layout = struct_layout(_compile(STRUCTS), name)
    assert (layout.size, layout.align, [member.name for member in layout.members]) == (size, align, members)


def test_layout_of_a_type_that_is_only_declared() -> None:
    with pytest.raises(UnsupportedError, match="layout of type Declared cannot be found; it must be defined"):
        struct_layout(_compile(STRUCTS), "Declared")


def test_private_members_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in each dialect, the last of which includes all of libcu++."""
    real, runs = nvrtc._run, []
    program = _compile("#include <torch/extension.h>\nclass P { int a; };\n__global__ void k(P p, at::Half* x) {}")
    monkeypatch.setattr(nvrtc, "_run", lambda *args: runs.append(args) or real(*args))
    assert struct_layout(program, "P").unknown == "its member 'a' is private"
    assert len(runs) == 2


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Private", "its member 'x' is private"),
        ("Heir", "its member 's' is private"),
        ("Unnamed", "its member 'w' is of a type without a name"),
        ("Coded", "its member 'm' is a bit field of an enumeration"),
        ("Virtual", "it has virtual functions or bases"),
        ("Twins", "it has two members Base::s"),
    ],
)
def test_members_that_cannot_be_filled_one_by_one(name: str, why: str) -> None:
    code = """
        struct Heir : private Base { int y; };
        enum Mode { A, B }; struct Coded { int a; const Mode m : 2; };
        struct Unnamed { int a; struct { int u; } w[3]; };
        struct Virtual { int a; __device__ virtual int f() { return a; } };
        struct Left : Base {}; struct Right : Base {}; struct Twins : Left, Right { int y; };
    """
    layout = struct_layout(_compile(STRUCTS + code), name)
    assert layout.members == () and layout.unknown == why and layout.size >= 4


def test_bit_fields() -> None:
    code = """
        struct Flags { unsigned char kind : 3; unsigned short count : 9; unsigned : 2; long long id : 40; bool on : 1;
            int n; int low : 5; };
        struct Outer { char c; Flags f; };
        __global__ void k(Outer o) {}"""
    layout = struct_layout(_compile(code), "Flags")
    assert [(member.name, member.bits) for member in layout.members] == [
        ("kind", (0, 3)), ("count", (3, 9)), ("id", (14, 40)), ("on", (54, 1)), ("n", None), ("low", (96, 5)),
    ]  # fmt: skip
    assert (layout.size, layout.members[4].offset) == (16, 8)


def test_members_that_others_hide() -> None:
    code = """
        namespace ns { struct Base { int a; float b; }; }
        template <class T> struct Mixed { T a; T c; };
        struct Middle : ns::Base { short b; };
        struct Params : Middle, Mixed<double> { char a; };
        __global__ void k(Params p) {}"""
    layout = struct_layout(_compile(code), "Params")
    assert [(member.name, member.type, member.offset) for member in layout.members] == [
        ("Base::a", "int", 0), ("Base::b", "float", 4), ("b", "short", 8), ("Mixed<double>::a", "double", 16),
        ("c", "double", 24), ("a", "char", 32),
    ]  # fmt: skip


def test_bases_as_compilers_from_13_5_on_describe_them() -> None:
    code = "struct A { int a; }; struct P : A { float a; }; __global__ void k(P p) {}"
    result = nvrtc.run_nvrtc(from_text(code), CPU_ARCH, ["k"], extra=("-G",))
    ((_, symbol),) = result.lowered
    debug = dwarf.read(result.ptx)
    expected = [("a", 0, "A", 1), ("a", 4, "P", 0)]
    for _ in range(2):
        assert [(m.name, m.offset, m.owner, m.depth) for m in dwarf.members(debug, symbol)] == expected
        for die in debug.values():
            if (die.text(dwarf._NAME) or "").startswith("__b_"):  # a member with a name that is made up
                die.tag = dwarf._INHERITANCE
                del die.attributes[dwarf._NAME]


# --- Dicts ------------------------------------------------------------------------------------------------


class Mode(enum.IntEnum):
    FAST = 2


DICTS: dict[str, tuple[str, str, Any, list[float]]] = {
    "constructors": (
        "struct I { int a; __device__ explicit I(int x) : a(x) {} };"
        "struct P { I i; float b; __host__ __device__ P(float x, int y) : i(y), b(x) {} __device__ ~P() {} };",
        "y[0] = p.i.a; y[1] = p.b;",
        {"i": {"a": -4}, "b": 1.5},
        [-4, 1.5],
    ),
    "constexpr constructor": (
        "struct P { float a; int b; constexpr P(float x, int y) : a(x), b(y) {} };",
        "y[0] = p.a; y[1] = p.b;",
        {"a": 0.25, "b": 7},
        [0.25, 7],
    ),
    "empty": ("struct P {};", "y[0] = sizeof(p); y[1] = 2;", {}, [1, 2]),
    "functor": ("struct P { __device__ float operator()(float x) const { return 2 * x; } };", "y[0] = p(3);", {}, [6]),
    "empty bases and members": (
        "struct A {}; struct B {}; struct P : A, B { A a; float b; };",
        "y[0] = p.b; y[1] = sizeof(P);",
        {"a": {}, "b": 2.5},
        [2.5, 8],
    ),
    "bases": (
        "struct A { char a; }; struct B { double b; }; struct C : A { short c; }; struct P : C, B { float d; };",
        "y[0] = p.a; y[1] = p.b; y[2] = p.c; y[3] = p.d;",
        {"a": -1, "b": 0.125, "c": 300, "d": 4.5},
        [-1, 0.125, 300, 4.5],
    ),
    "hidden members": (
        "struct A { int a; }; struct P : A { float a; };",
        "y[0] = p.a; y[1] = p.A::a;",
        {"a": 1.5, "A::a": 9},
        [1.5, 9],
    ),
    "nested": (
        "struct P { struct I { char c; struct J { double d; int e; } j; } i; struct { int u; float v; }; float f; };",
        "y[0] = p.i.c; y[1] = p.i.j.d; y[2] = p.i.j.e; y[3] = p.f + p.u; y[4] = p.v;",
        {"i": {"c": 5, "j": {"d": 0.5, "e": -6}}, "f": 0.25, "u": 1, "v": 8.5},
        [5, 0.5, -6, 1.25, 8.5],
    ),
    "arrays of structs": (
        "struct I { char s; float d[2]; }; struct P { char c; I i[2][3]; };",
        "y[0] = p.i[0][0].d[0]; y[1] = p.i[1][2].d[1]; y[2] = p.i[1][0].s;",
        {"c": 1, "i": [[{"s": 10 * j + k, "d": (j + k, j - k)} for k in range(3)] for j in range(2)]},
        [0, -1, 10],
    ),
    "enumerations": (
        "enum E { A, B }; enum class F : short { X = 3 }; struct P { E e; F f; enum { Q = 7 } g; F h[2]; };",
        "y[0] = p.e; y[1] = (int)p.f; y[2] = p.g; y[3] = (int)p.h[1];",
        {"e": 1, "f": Mode.FAST, "g": 7, "h": [0, -3]},
        [1, 2, 7, -3],
    ),
    "bit fields": (
        "struct P { unsigned char a : 3; unsigned short b : 9; long long c : 40; bool d : 1; unsigned : 2; int e : 5;"
        " float f; };",
        "y[0] = p.a; y[1] = p.b; y[2] = p.c; y[3] = p.d; y[4] = p.e; y[5] = p.f;",
        {"a": 7, "b": 257, "c": -(2**39), "d": True, "e": -16, "f": 1.5},
        [7, 257, -(2.0**39), 1, -16, 1.5],
    ),
    "unions without a name": (
        "struct B { union { int i; float f; }; }; struct P : B { char c; union { struct { short a, b; }; unsigned whole;"
        " union { float x; struct { unsigned m : 23, : 8, s : 1; }; }; }; struct { float y, z; }; };",
        "y[0] = p.f; y[1] = p.m; y[2] = p.s; y[3] = p.y + p.z; y[4] = p.c; y[5] = p.whole == 0x80000003u;",
        {"f": 1.5, "m": 3, "s": 1, "y": 2, "z": 3, "c": 4},
        [1.5, 3, 1, 5, 4, 1],
    ),
    "unions": (
        "union U { int i; float f[2]; }; struct P { U u[2]; };",
        "y[0] = p.u[0].i; y[1] = p.u[1].f[1]; y[2] = p.u[0].f[1];",
        {"u": [{"i": 3}, {"f": (1, 2)}]},
        [3, 2, 0],
    ),
    "anonymous namespace": ("namespace { struct P { float a; }; }", "y[0] = p.a;", {"a": 1.5}, [1.5]),
    "template": ("template <class T, int N> struct Q { T v[N]; }; using P = Q<short, 3>;", "y[0] = p.v[2];", {"v": [1, 2, 3]}, [3]),
}  # fmt: skip


@pytest.mark.parametrize("what", DICTS)
def test_a_dict_becomes_the_struct(what: str, device: str) -> None:
    declared, body, value, expected = DICTS[what]
    y = torch.full((7,), torch.nan, device=device)
    rawkern.RawKernel(f"{declared}\n__global__ void k(P p, float* y) {{ {body} }}")[1, 1](value, y)
    assert y[: len(expected)].tolist() == expected


def _rejected(declared: str, value: Any) -> str:
    kernel = rawkern.RawKernel(f"{declared}\n__global__ void k(P p, float* y) {{}}")
    with pytest.raises((TypeError, OverflowError)) as caught:
        kernel[1, 1](value, torch.zeros(1, device="cpu"))
    return str(caught.value).removeprefix("k: argument 1 ")


@pytest.mark.parametrize(
    ("declared", "value", "message"),
    [
        ("struct P {};", {"a": 1}, "'p' has a member 'a' that P does not have; it has no members"),
        ("struct P {};", 3, "'p' is the int 3, the kernel takes P by value; pass a dict of its members, "),
        ("union P { int a; float b; };", {}, "'p' has none of 'a', 'b', which share memory; pass one of them"),
        ("struct P { int n; union { float a; struct { short b, c; }; }; };", {"n": 1, "a": 1, "c": 2},
         "'p' has 'a' and 'c', which share memory; pass one of them"),
        ("struct P { int n; union { float a; struct { short b, c; }; }; };", {"n": 1, "c": 2}, "'p' has no 'b'; P has the"),
        ("class P { int a; };", {"a": 1}, "'p' is a dict, which cannot fill P: its member 'a' is private; pass its 4 bytes"),
        ("struct A { int a; }; struct P : A { float a; };", {"a": 1.5}, "'p' has no 'A::a'; P has the members (A::a, a)"),
        ("struct P { unsigned a : 3; };", {"a": 8}, "'p.a' is 8, out of range for unsigned int : 3 (0 to 7)"),
        ("struct P { int a : 3; };", {"a": 4}, "'p.a' is 4, out of range for int : 3 (-4 to 3)"),
        ("struct P { int a : 3; };", {"a": 1.0}, "'p.a' is the float 1.0, the kernel takes int : 3 by value"),
        ("struct P { bool a : 1; };", {"a": 2}, "'p.a' is 2, out of range for bool (0 or 1)"),
    ],
)  # fmt: skip
def test_dicts_that_are_rejected(declared: str, value: Any, message: str) -> None:
    assert _rejected(declared, value).startswith(message)


def test_structures_with_bit_fields(device: str) -> None:
    class Flags(ctypes.Structure):
        _fields_ = (("a", ctypes.c_uint, 3), ("b", ctypes.c_int, 9), ("c", ctypes.c_float))

    kernel = rawkern.RawKernel(
        "struct P { unsigned a : 3; int b : 9; float c; };"
        "__global__ void k(P p, float* y) { y[0] = p.a; y[1] = p.b; y[2] = p.c; }"
    )
    record = np.zeros((), np.dtype([("held", "u4"), ("c", "f4")]))
    record["held"], record["c"] = 5 | (-100 % 512) << 3, 0.5
    for value in (Flags(5, -100, 0.5), record, {"a": 5, "b": -100, "c": 0.5}):
        y = torch.full((3,), torch.nan, device=device)
        kernel[1, 1](value, y)
        assert y.tolist() == [5, -100, 0.5]
    with pytest.raises(TypeError, match=re.escape("'c' at byte 8, P has it at byte 4")):
        kernel[1, 1](np.zeros((), np.dtype([("a", "u4"), ("b", "u4"), ("c", "f4")])), y)


def test_structures_with_unions(device: str) -> None:
    class Pair(ctypes.Structure):
        _fields_ = (("x", ctypes.c_float), ("y", ctypes.c_float))

    class Either(ctypes.Union):
        _anonymous_ = ("pair",)
        _fields_ = (("pair", Pair), ("whole", ctypes.c_longlong))

    class Given(ctypes.Structure):
        _anonymous_ = ("either",)
        _fields_ = (("n", ctypes.c_int), ("either", Either))

    class Wrong(ctypes.Structure):
        _anonymous_ = ("pair",)
        _fields_ = (("pair", Pair), ("n", ctypes.c_longlong))

    kernel = rawkern.RawKernel(
        "struct P { int n; union { struct { float x, y; }; long long whole; }; };"
        "__global__ void k(P p, float* y) { y[0] = p.n; y[1] = p.x; y[2] = p.y; }"
    )
    given = Given(n=3)
    given.x, given.y = 0.5, 1.5
    record = np.zeros((), np.dtype({"names": ["n", "other"], "formats": ["i4", "2f4"], "offsets": [0, 8]}))
    record["n"], record["other"] = 3, (0.5, 1.5)
    for value in (given, record, {"n": 3, "x": 0.5, "y": 1.5}):
        y = torch.full((3,), torch.nan, device=device)
        kernel[1, 1](value, y)
        assert y.tolist() == [3, 0.5, 1.5]
    with pytest.raises(TypeError, match=re.escape("'n' at byte 8, P has it at byte 0")):
        kernel[1, 1](Wrong(), y)


NUMBERS = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
struct V2 { union { float x, r; }; union { float y, g; }; };
struct V3 { float x, y, z; };
struct Box { V3 low, high; float2 w; V2 more[2]; };
struct H3 { __half a, b, c; };
struct B2 { __nv_bfloat162 ab; };
struct D4 { double m[2][2]; };
struct I2 { int a; unsigned b; };
struct Gap { float x; double y; };
struct Padded { double x; float y[3]; };
struct alignas(16) Wide { float x, y, z; };
struct Mixed { float x; int y; };
class Hidden { float x, y; };
template <class T> __global__ void swap(T* p, int n) {
    if (threadIdx.x < n / 2) { T t = p[threadIdx.x]; p[threadIdx.x] = p[n - 1 - threadIdx.x]; p[n - 1 - threadIdx.x] = t; }
}
template <class T> __global__ void first(const T& p, T* y) { *y = p; }
"""


@pytest.mark.parametrize(
    ("name", "dtype", "lanes"),
    [
        ("V2", torch.float32, 2), ("V3", torch.float32, 3), ("Box", torch.float32, 12), ("H3", torch.float16, 3),
        ("B2", torch.bfloat16, 2), ("D4", torch.float64, 4), ("I2", torch.int32, 2), ("I2", torch.uint32, 2),
        ("V2", torch.complex64, 1),
    ],
)  # fmt: skip
def test_numbers_for_pointers_to_structs_of_them(name: str, dtype: torch.dtype, lanes: int, device: str) -> None:
    x = torch.arange(5 * lanes, device=device).to(dtype)
    module = rawkern.RawModule(NUMBERS)
    for shape in ((5, lanes), (5 * lanes,), (1, 5, lanes)) + ((5, 2, 2),) * (lanes == 4):
        y = x.view(shape).clone()
        module.get_function(f"swap<{name}>")[1, 32](y, 5)
        assert y.view(5, lanes).tolist() == x.view(5, lanes).cpu().flipud().tolist()
    y = torch.zeros(lanes, dtype=dtype, device=device)
    module.get_function(f"first<{name}>")[1, 1](x[lanes : 2 * lanes].clone(), y)
    assert y.tolist() == x[lanes : 2 * lanes].tolist()


def test_numbers_that_are_no_structs() -> None:
    module = rawkern.RawModule(NUMBERS)

    def rejected(name: str, x: torch.Tensor, n: Any = 1, kernel: str = "swap") -> str:
        with pytest.raises((TypeError, ValueError)) as caught:
            module.get_function(f"{kernel}<{name}>")[1, 1](x, n)
        return str(caught.value).partition("argument 1 ")[2]

    assert rejected("V2", torch.zeros(4, 2, dtype=torch.int32)) == (
        "'p' is int32, the kernel writes V2*, of 2 float each; make it with dtype=torch.float32"
    )
    for shape in ((2, 4), (4,), (2, 2, 2), (3, 2)):
        assert rejected("V3", torch.zeros(shape)) == (
            f"'p' has shape {shape}, the kernel writes V3*, of 3 float each; give it a last dimension of 3"
        )
    for name in ("Gap", "Padded", "Wide", "Mixed", "Hidden"):
        assert rejected(name, torch.zeros(48)).endswith(
            f"the kernel writes {name}*; pass p.view(torch.uint8) or a structured array"
        )
    message = rejected("V2", torch.zeros(4), torch.zeros(2), "first")
    assert message == "'p' has 4 elements, the kernel reads const V2&, a reference; pass a one-element tensor"


def test_pointers_to_structs_of_anonymous_namespaces(device: str) -> None:
    code = "namespace { struct P { float a; int b; }; }\n__global__ void k(const P* p, float* y) { y[0] = p[1].a; }"
    y = torch.full((1,), torch.nan, device=device)
    kernel = rawkern.RawKernel(code)
    kernel[1, 1](torch.tensor([1.5, 2.5, 3.5, 4.5], device=device).view(torch.uint8), y)
    assert y.item() == 3.5
    with pytest.raises(
        TypeError, match=r"is float32, the kernel reads const \(anonymous namespace\)::P\*; pass p.view"
    ):
        kernel[1, 1](torch.zeros(4, device=device), y)
