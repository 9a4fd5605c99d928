"""The table of C parameter types: size, alignment, range, and the dtypes that a pointer to each accepts."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Member:
    """One data member of a struct: its name, its full C++ type and its offset in bytes.

    A member of a base that another member hides has the base in its name: "Base::x". `bits` are the lowest bit of a bit
    field, counted from the struct's first, and its width. `choices` are the unions that it is in, by numbers, outermost
    first, each with the number of the union's own member: of those one is there.
    """

    name: str
    type: str
    offset: int
    bits: tuple[int, int] | None = None
    choices: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StructLayout:
    """Size, alignment and members of a struct, in bytes; `unknown` says why there are no members to fill one by one."""

    size: int
    align: int
    members: tuple[Member, ...] = ()
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class CType:
    """One C type as a kernel parameter, or as what a pointer parameter points to."""

    name: str  # CUDA's spelling without const: "unsigned char", "float4", "ns::Params"
    #: "int", "bool", "float", "half", "bfloat16", "float8", "complex", "vector", "struct", "void", "function", "array",
    #: "pointer", "reference" or "opaque", of which the size alone is known
    kind: str
    size: int = 0  # bytes; 0 for void, for functions, and for structs whose layout has not been asked for
    align: int = 0
    code: str = ""  # what `struct` packs a value by, after an explicit "<"; compound types are packed as bytes
    dtypes: tuple[str, ...] = ()  # torch dtype names that a pointer to this type accepts
    low: int = 0  # range of integers
    high: int = 0
    element: CType | None = None  # of a vector, complex or array type, with their count
    lanes: int = 1
    target: CType | None = None  # what a pointer or reference leads to, and whether that is const
    const: bool = False
    layout: StructLayout | None = None  # set by `with_layout` for structs

    @property
    def is_word(self) -> bool:
        """Whether it is 8 bytes of which nothing else is known: a number, or an address."""
        return self.kind == "opaque" and self.size == 8

    def spell(self) -> str:
        """The type in CUDA's spelling, const first: "const float*", "float* const*"."""
        if self.target is None:
            return self.name
        mark = "&" if self.kind == "reference" else "*"
        inner = self.target.spell()
        if not self.const:
            return inner + mark
        return f"{inner} const{mark}" if self.target.target is not None else f"const {inner}{mark}"

    def declare(self, name: str) -> str:
        """A parameter declaration: "const float *x"."""
        if self.target is None:
            return f"{self.name} {name}"
        mark = "&" if self.kind == "reference" else "*"
        if self.const and self.target.target is not None:
            return self.target.declare("const " + mark + name)
        return ("const " if self.const else "") + self.target.declare(mark + name)


# Integers: one row each. The last column is what a pointer to the type accepts; char* also takes bool, and
# unsigned char* is the type for raw bytes, so it takes the byte-sized dtypes that have no C type of their own. Of the
# types with the same first dtype, the last one is that dtype's own (`C_NAMES`).
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
_I8, _I16, _I32, _I64 = ("int8", "uint8"), ("int16", "uint16"), ("int32", "uint32"), ("int64", "uint64")
_INTEGERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("char", "b", ("int8", "uint8", "bool")),
    ("signed char", "b", _I8),
    ("char8_t", "B", ("uint8", "int8")),
    ("unsigned char", "B", ("uint8", "bool", *_FLOAT8)),
    ("short", "h", _I16),
    ("char16_t", "H", _I16[::-1]),
    ("unsigned short", "H", _I16[::-1]),
    ("wchar_t", "i", _I32),
    ("int", "i", _I32),
    ("char32_t", "I", _I32[::-1]),
    ("unsigned int", "I", _I32[::-1]),
    ("long", "q", _I64),
    ("unsigned long", "Q", _I64[::-1]),
    ("long long", "q", _I64),
    ("unsigned long long", "Q", _I64[::-1]),
    ("__int128", "", ()),
    ("unsigned __int128", "", ()),
)

# (name, kind, size, code, dtypes)
_FLOATS: tuple[tuple[str, str, int, str, tuple[str, ...]], ...] = (
    ("bool", "bool", 1, "?", ("bool",)),
    ("float", "float", 4, "f", ("float32",)),
    ("double", "float", 8, "d", ("float64",)),
    ("c10::Half", "half", 2, "e", ("float16",)),
    ("c10::BFloat16", "bfloat16", 2, "H", ("bfloat16",)),
    ("c10::Float8_e4m3fn", "float8", 1, "B", ("float8_e4m3fn",)),
    ("c10::Float8_e5m2", "float8", 1, "B", ("float8_e5m2",)),
    ("cutlass::half_t", "half", 2, "e", ("float16",)),
    ("cutlass::bfloat16_t", "bfloat16", 2, "H", ("bfloat16",)),
    ("cutlass::float_e4m3_t", "float8", 1, "B", ("float8_e4m3fn",)),
    ("cutlass::float_e5m2_t", "float8", 1, "B", ("float8_e5m2",)),
    ("__half", "half", 2, "e", ("float16",)),
    ("__nv_bfloat16", "bfloat16", 2, "H", ("bfloat16",)),
    ("__nv_fp8_e4m3", "float8", 1, "B", ("float8_e4m3fn",)),
    ("__nv_fp8_e5m2", "float8", 1, "B", ("float8_e5m2",)),
    ("__nv_fp8_e8m0", "float8", 1, "B", ("float8_e8m0fnu",)),
    ("__nv_fp4x2_e2m1", "struct", 1, "", ("float4_e2m1fn_x2",)),
)

# Vector families of 1 to 4 lanes, as CUDA's vector_types.h has them: the element of each.
_VECTORS = {
    "char": "signed char", "uchar": "unsigned char", "short": "short", "ushort": "unsigned short", "int": "int",
    "uint": "unsigned int", "long": "long", "ulong": "unsigned long", "longlong": "long long",
    "ulonglong": "unsigned long long", "float": "float", "double": "double",
}  # fmt: skip

# Vectors with names of their own: (name, element, lanes, alignment)
_MORE_VECTORS: tuple[tuple[str, str, int, int], ...] = (
    ("dim3", "unsigned int", 3, 4),
    ("__half2", "__half", 2, 4),
    ("__nv_bfloat162", "__nv_bfloat16", 2, 4),
    ("__nv_fp8x2_e4m3", "__nv_fp8_e4m3", 2, 2),
    ("__nv_fp8x4_e4m3", "__nv_fp8_e4m3", 4, 4),
    ("__nv_fp8x2_e5m2", "__nv_fp8_e5m2", 2, 2),
    ("__nv_fp8x4_e5m2", "__nv_fp8_e5m2", 4, 4),
)

# cuComplex and cuDoubleComplex are float2 and double2 to the compiler, so those take complex dtypes too.
_COMPLEX_OF = {"float": "complex64", "double": "complex128", "__half": "complex32", "c10::Half": "complex32"}

_ALIASES = {
    "unsigned": "unsigned int", "long int": "long", "long unsigned int": "unsigned long",
    "unsigned long int": "unsigned long", "long long int": "long long",
    "long long unsigned int": "unsigned long long", "unsigned long long int": "unsigned long long",
    "short int": "short", "short unsigned int": "unsigned short", "unsigned short int": "unsigned short",
    "half": "__half", "half2": "__half2", "nv_bfloat16": "__nv_bfloat16", "nv_bfloat162": "__nv_bfloat162",
}  # fmt: skip


def _integer(name: str, code: str, dtypes: tuple[str, ...]) -> CType:
    size = struct.calcsize("<" + code) if code else 16
    bits = 8 * size
    signed = code.islower() if code else not name.startswith("unsigned")
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return CType(name, "int", size, size, code or "16s", dtypes, low, high)


def _vector(name: str, element: CType, lanes: int, align: int) -> CType:
    # bool is not a number here: uchar4* means four bytes, and a mask of bools is rarely meant.
    dtypes = _I8[::-1] if element.name == "unsigned char" else element.dtypes
    if lanes == 2 and element.name in _COMPLEX_OF:
        dtypes += (_COMPLEX_OF[element.name],)
    size = element.size * lanes
    return CType(name, "vector", size, align, f"{size}s", dtypes, element=element, lanes=lanes)


def _build_table() -> dict[str, CType]:
    table = {row[0]: _integer(*row) for row in _INTEGERS}
    for name, kind, size, code, dtypes in _FLOATS:
        table[name] = CType(name, kind, size, size, code, dtypes)
    for prefix, element in _VECTORS.items():
        size = table[element].size
        for lanes in (1, 2, 3, 4):
            align = size if lanes == 3 else min(lanes * size, 16)
            table[f"{prefix}{lanes}"] = _vector(f"{prefix}{lanes}", table[element], lanes, align)
        if size == 8:  # CUDA 13 has double4_16a and double4_32a, and so on, beside double4
            for align in (16, 32):
                name = f"{prefix}4_{align}a"
                table[name] = _vector(name, table[element], 4, align)
    for name, element, lanes, align in _MORE_VECTORS:
        table[name] = _vector(name, table[element], lanes, align)
    table["void"] = CType("void", "void")
    return table


_TABLE = _build_table()
#: Types that CUDA C has by one word.
TYPE_NAMES = frozenset(n for n in (*_TABLE, *_ALIASES, "uchar", "ushort", "uint", "ulong") if n.isidentifier())
#: What a dtype's elements are called in CUDA C, by torch's name of the dtype.
C_NAMES = {row[-1][0]: row[0] for row in (*_INTEGERS, *_FLOATS) if row[-1]}
# cuda::std::__4::complex<float>, thrust::complex<double>, std::complex<float>
_COMPLEX = re.compile(r"(?:\w+::)*complex<(float|double|__half|__nv_bfloat16|c10::Half)>$")
_ARRAY = re.compile(r"(.+?)\s*\[(\d+)\]$")
_TO_ARRAY = re.compile(r"(.+?)\s*\(\s*[*&](?:\s*const)?\s*\)\s*(?:\[\d+\])+$")
_OPAQUE = re.compile(r"(\d+) bytes(?:, aligned to (\d+))?$")
_QUALIFIER = re.compile(r"(?:^|(?<=[\s*&]))(const|volatile|__restrict__|__restrict|restrict)$")
_LEADING = re.compile(r"^(const|volatile)\s+")


@lru_cache(maxsize=4096)
def parse(text: str) -> CType:
    """The type that a C++ spelling names, by either habit: "float const*" or "const float*".

    A name that no row has is taken for a struct, whose size `with_layout` fills in.
    """
    return _parse(text.strip())[0]


def _parse(text: str) -> tuple[CType, bool]:
    """The type, and whether it is itself const."""
    const = False
    while match := _QUALIFIER.search(text):
        const |= match.group(1) == "const"
        text = text[: match.start()].rstrip()
    if text.endswith("*") or text.endswith("&"):
        kind = "pointer" if text.endswith("*") else "reference"
        target, target_const = _parse(text.rstrip("&").rstrip() if kind == "reference" else text[:-1].rstrip())
        return CType(text, kind, 8, 8, "Q", target=target, const=target_const), const
    if match := _TO_ARRAY.match(text):  # "float (*) [32]", "float (&) [32]": where rows of 32 floats lie, floats do
        element, element_const = _parse(match.group(1))
        return CType(text, "pointer", 8, 8, "Q", target=element, const=element_const), const
    if match := _ARRAY.match(text):
        inner, lanes = match.group(1), int(match.group(2))
        # "int [2][3]" is two arrays of three: the first bracket is the outermost dimension.
        if outer := re.match(r"([^\[]+?)\s*\[(\d+)\]((?:\[\d+\])+)$", text):
            inner, lanes = f"{outer.group(1)} {outer.group(3)}", int(outer.group(2))
        element, element_const = _parse(inner)
        size = element.size * lanes
        array = CType(text, "array", size, element.align, f"{size}s", element=element, lanes=lanes)
        return array, const or element_const
    while match := _LEADING.match(text):
        const |= match.group(1) == "const"
        text = text[match.end() :].lstrip()
    return _base(text), const


def _base(text: str) -> CType:
    name = _ALIASES.get(text, text)
    if name in _TABLE:
        return _TABLE[name]
    if match := _COMPLEX.match(name):
        element = _TABLE[match.group(1)]
        size = 2 * element.size
        dtype = _COMPLEX_OF.get(element.name)
        return CType(name, "complex", size, size, f"{size}s", (dtype,) if dtype else (), element=element, lanes=2)
    if match := _OPAQUE.match(name):
        size = int(match.group(1))
        return CType(name, "opaque", size, int(match.group(2) or size), f"{size}s")
    if "(" in name.replace("(anonymous namespace)::", "").split("<")[0]:
        return CType(name, "function", 8, 8, "Q")
    return CType(name, "struct")


def complex_of(ctype: CType) -> str | None:
    """The complex dtype of two numbers of a type."""
    return _COMPLEX_OF.get(ctype.name)


def with_layout(ctype: CType, layout: StructLayout) -> CType:
    """The struct type with its size, alignment and members filled in."""
    return replace(ctype, size=layout.size, align=layout.align, code=f"{layout.size}s", layout=layout)
