"""Types of C++ as the translation needs them: what an operation means, and what a value is in Python."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from rawkern.base.tree import named, text_of


@dataclass(frozen=True)
class Type:
    """A type of C++; `kind` tells what its values are in Python."""

    kind: str  # "int", "float", "bool", "param" (a type parameter's), "tensor", "pointer", "vector", "struct" ...
    name: str = ""  # as the runtime names it: "int32"; a type parameter's variable; a struct's class
    of: tuple[Type, ...] = ()  # elements of a vector, a tuple, an optional, a pointer
    reference: bool = False
    const: bool = False
    spelled: str = ""
    text: str = field(default="", compare=False)  # Python for its text, where template arguments are in it

    def __str__(self) -> str:
        return self.spelled or self.name or self.kind

    @property
    def item(self) -> Type:
        return self.of[0] if self.of else ANY

    @property
    def struct(self) -> str:
        """The class of a struct; of a template the function that makes it."""
        return self.name.partition("(")[0]

    @property
    def number(self) -> bool:
        return self.kind in ("int", "float", "bool", "param")

    @property
    def integral(self) -> bool:
        return self.kind in ("int", "bool")


def plain(type_: Type) -> Type:
    """A type without what declares a reference or a constant."""
    return replace(type_, reference=False, const=False)


ANY, TENSOR, VOID, BOOL = Type("any"), Type("tensor", "Tensor"), Type("void", "void"), Type("bool", "bool")
INT, UINT, INT64, SIZE = (Type("int", name) for name in ("int32", "uint32", "int64", "uint64"))
FLOAT, DOUBLE = Type("float", "float32"), Type("float", "float64")
STRING, DTYPE, DEVICE, OPTIONS, SIZES = (Type(kind) for kind in ("string", "dtype", "device", "options", "sizes"))
DIM3, STREAM, NULL, NOTHING, LAYOUT = (Type(kind) for kind in ("dim3", "stream", "null", "nothing", "layout"))
MEMORY_FORMAT, SCALAR, GUARD, DEVICE_TYPE, INDEX = (
    Type(kind) for kind in ("memory_format", "scalar", "guard", "device_type", "index")
)
KERNEL, ARGUMENTS, PROPERTIES, ERROR, GENERATOR = (
    Type(kind) for kind in ("kernel", "arguments", "properties", "error", "generator")
)
TENSOR_ARG = Type("tensor_arg")
PHILOX, STREAM_OF_TEXT = Type("philox"), Type("text")

#: Limits of each integer type.
LIMITS = {
    f"{'' if signed else 'u'}int{bits}": (-(2 ** (bits - 1)) if signed else 0, 2 ** (bits - signed) - 1)
    for bits in (8, 16, 32, 64)
    for signed in (True, False)
}
LIMITS["bool"] = (0, 1)

#: How C++ spells each type of numbers.
TEXTS = {
    "int32": "int", "uint32": "unsigned int", "int64": "int64_t", "uint64": "size_t", "bool": "bool",
    "float32": "float", "float64": "double", "int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t",
    "uint16": "uint16_t",
}  # fmt: skip

#: The code of what elements and variables begin with, by kind.
ZEROS = {
    "int": "0", "float": "0.0", "bool": "False", "string": "''", "vector": "[]", "map": "{}", "pointer": "None",
    "tensor": "None",
}  # fmt: skip

_INTEGERS = {
    "int32": "int signed|signed int|int|signed|int32_t|std::int32_t|cudaError_t|cudaDataType_t|CUresult",
    "uint32": "unsigned|unsigned int|uint|uint32_t|std::uint32_t",
    "int64": "long|long int|long long|long long int|signed long|int64_t|std::int64_t|ptrdiff_t|ssize_t|std::ptrdiff_t"
    "|c10::SymInt|intptr_t|at::SymInt",
    "uint64": "unsigned long|unsigned long int|unsigned long long|unsigned long long int|uint64_t|std::uint64_t"
    "|size_t|std::size_t|uintptr_t|std::uintptr_t|ulong",
    "int16": "short|short int|signed short|int16_t|std::int16_t",
    "uint16": "unsigned short|unsigned short int|uint16_t|std::uint16_t|ushort",
    "int8": "char|signed char|int8_t|std::int8_t",
    "uint8": "unsigned char|uint8_t|std::uint8_t|uchar|std::byte|byte",
}
_NAMES: dict[str, Type] = {
    spelled: Type("int", name, spelled=spelled) for name, all_ in _INTEGERS.items() for spelled in all_.split("|")
}
_NAMES |= {
    "bool": BOOL,
    "float": FLOAT,
    "double": DOUBLE,
    "void": VOID,
    "auto": Type("auto"),
    "string": STRING,
    "string_view": STRING,
    "Tensor": TENSOR,
    "Variable": TENSOR,
    "Parameter": TENSOR,
    "TensorOptions": OPTIONS,
    "ScalarType": DTYPE,
    "Dtype": DTYPE,
    "TypeMeta": DTYPE,
    "dtype": DTYPE,
    "Device": DEVICE,
    "DeviceType": DEVICE_TYPE,
    "DeviceIndex": INT,
    "IntArrayRef": SIZES,
    "IntList": SIZES,
    "Scalar": SCALAR,
    "MemoryFormat": MEMORY_FORMAT,
    "Layout": LAYOUT,
    "dim3": DIM3,
    "cudaStream_t": STREAM,
    "cudaEvent_t": Type("event"),
    "CUDAStream": STREAM,
    "TensorList": Type("vector", of=(TENSOR,)),
    "variable_list": Type("vector", of=(TENSOR,)),
    "tensor_list": Type("vector", of=(TENSOR,)),
    "cudaDeviceProp": PROPERTIES,
    "stringstream": STREAM_OF_TEXT,
    "ostringstream": STREAM_OF_TEXT,
    "PhiloxCudaState": PHILOX,
    "CUDAGeneratorImpl": GENERATOR,
    "Generator": GENERATOR,
    "TensorArg": TENSOR_ARG,
    "TensorGeometryArg": TENSOR_ARG,
    "CheckedFrom": STRING,
    "AutogradContext": Type("autograd"),
    "IValue": Type("ivalue"),
}
_GUARDS = {
    "CUDAGuard", "OptionalCUDAGuard", "DeviceGuard", "OptionalDeviceGuard", "NoGradGuard", "AutoGradMode",
    "InferenceMode", "AutoNonVariableTypeMode", "CUDAStreamGuard", "gil_scoped_release", "AutoDispatchBelowAutograd",
    "AutoDispatchBelowADInplaceOrView", "lock_guard", "unique_lock", "scoped_lock",
}  # fmt: skip
#: Types of numbers that torch has and C++ has not; a number of Python stands for them.
HALVES = {"Half": "at::Half", "__half": "__half", "half": "half", "BFloat16": "at::BFloat16"}
HALVES |= {"__nv_bfloat16": "__nv_bfloat16", "nv_bfloat16": "nv_bfloat16", "nv_half": "nv_half"}
_CONTAINERS = {"vector": "vector", "ArrayRef": "vector", "array": "vector", "SmallVector": "vector", "List": "vector"}
_CONTAINERS |= {"optional": "optional", "tuple": "tuple", "pair": "tuple", "map": "map", "unordered_map": "map"}
_CONTAINERS |= {"initializer_list": "vector", "ITensorListRef": "vector", "OptionalRef": "optional"}
VECTORS = {
    f"{base}{n}"
    for base in ["int", "uint", "float", "double", "char", "uchar", "short", "ushort", "long", "ulong"]
    for n in "234"
}
VECTORS |= {
    "half2",
    "__half2",
    "longlong2",
    "longlong3",
    "longlong4",
    "ulonglong2",
    "char1",
    "uchar1",
    "float1",
    "int1",
    "nv_bfloat162",
    "__nv_bfloat162",
}
NAMESPACES = ("at::", "torch::", "c10::", "std::", "at::cuda::", "c10::cuda::", "py::", "pybind11::")


def named_type(name: str) -> Type | None:
    """The type of a name, as far as it is the language's, the library's or torch's."""
    name = name.removeprefix("::").replace(" ::", "::").replace(":: ", "::")
    found = _NAMES.get(name)
    if found is not None:
        return found
    bare = name.rsplit("::", 1)[-1]
    if "::" in name and not name.startswith(NAMESPACES):
        return None
    found = _NAMES.get(bare)
    if found is not None:
        return found
    if bare in _GUARDS:
        return GUARD
    if bare in HALVES:
        return Type("float", bare, spelled=HALVES[bare])
    if bare in VECTORS:
        return Type("cuda_vector", bare, spelled=bare)
    return None


def container(name: str, of: tuple[Type, ...]) -> Type | None:
    """The type of a template of the library with its arguments."""
    bare = name.rsplit("::", 1)[-1]
    if "::" in name and not name.removeprefix("::").startswith(NAMESPACES):
        return None
    kind = _CONTAINERS.get(bare)
    if kind is not None:
        if bare == "ArrayRef" and of and of[0].integral:
            return SIZES
        return Type(kind, of=of)
    return GUARD if bare in _GUARDS else None


def cuda_vector_item(name: str) -> Type:
    """The type of the members of one of CUDA's vectors."""
    base = name.rstrip("1234")
    table = {"int": INT, "uint": UINT, "float": FLOAT, "double": DOUBLE, "long": INT64, "ulong": SIZE}
    table |= {"char": Type("int", "int8"), "uchar": Type("int", "uint8"), "longlong": INT64, "ulonglong": SIZE}
    table |= {"short": Type("int", "int16"), "ushort": Type("int", "uint16")}
    return table.get(base, ANY)


def words(node: Any) -> list[str]:
    """The words before a declaration: const, static ..."""
    found = []
    for child in node.children:
        if child.type in ("type_qualifier", "storage_class_specifier", "virtual"):
            found.append(text_of(child))
        elif child.type == "attribute_specifier":
            found.append("attribute")
    return found


def template_arguments(node: Any) -> list[Any]:
    """The nodes of the arguments of a ``template_argument_list``."""
    return [child for child in named(node)]
