"""Pointers, structs and launches' sizes: what a tensor's memory is to C++."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple, Self

import torch

from rawkern.arguments.structs import Members
from rawkern.extensions.cpp.devices import cuda_device
from rawkern.extensions.cpp.numbers import at, dtype_of, known_dtype, text


class dim3(NamedTuple):
    """The size of a grid or block."""

    x: int = 1
    y: int = 1
    z: int = 1


class Vector(Members):
    """One of CUDA's vectors, such as ``int4``: members x, y, z and w."""

    def __init__(self, *values: Any) -> None:
        for name, value in zip("xyzw", values, strict=False):
            setattr(self, name, value)

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)


_VALUES = frozenset((int, float, bool, str, type(None), torch.Tensor))  # what no copy is made of
_METHODS = (FunctionType, staticmethod, classmethod, property)


class Struct(Members):
    """A struct of C++: the attributes of its class, with their defaults, are its members in their order.

    A kernel takes it by value. A pointer in it is a tensor or None.
    """

    __pointers__: Sequence[str] = ()  # members that are pointers to objects, which a copy has in common

    def __init__(self, **members: Any) -> None:
        for name, default in self._members().items():
            value = members.get(name, default)
            setattr(self, name, shared(value) if name in self.__pointers__ else copied(value))

    @classmethod
    def _members(cls) -> dict[str, Any]:
        names = cls.__dict__.get("__members__")
        if names is None:
            bases = [one for one in reversed(cls.__mro__) if issubclass(one, Struct) and one is not Struct]
            found = {name: value for one in bases for name, value in vars(one).items()}
            names = cls.__members__ = tuple(
                name
                for name, value in found.items()
                if not (name.startswith("__") or name == "_abc_impl" or isinstance(value, _METHODS))
            )
        return {name: getattr(cls, name) for name in names}

    def become(self, other: Struct) -> Self:
        """``*this = other``: its members become those of a value that has no other owner."""
        self.__dict__.update(other.__dict__)
        return self

    def clear(self) -> None:
        """Zero, as memset makes it."""
        for name, value in self.__dict__.items():
            setattr(self, name, _zero(value))

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name] if name in self.__dict__ else self.__dict__[f"{name}_"]

    def __iter__(self) -> Iterator[str]:
        return (name.removesuffix("_") if name.removesuffix("_") in _WORDS else name for name in self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"


_WORDS = {"in", "is", "from", "lambda", "len", "max", "min", "sum", "range", "list", "str", "int", "float", "def"}


def new(cls: type[Any], **members: Any) -> Any:
    """An object whose members are zero, or as they are given."""
    made = object.__new__(cls)
    Struct.__init__(made, **members)
    return made


def shared(value: Any) -> Any:
    """A copy of a pointer, or of a list or map of some: of the same objects."""
    if isinstance(value, list):
        return [shared(one) for one in value]
    if isinstance(value, dict):
        return {key: shared(one) for key, one in value.items()}
    return tuple(map(shared, value)) if type(value) is tuple else value


def copied(value: Any) -> Any:
    """A copy of a struct or an array, as C++ copies what is passed by value; anything else as it is."""
    if type(value) in _VALUES:
        return value
    if isinstance(value, Struct | Vector):
        made = type(value).__new__(type(value))
        pointers = value.__pointers__ if isinstance(value, Struct) else ()
        for name, one in value.__dict__.items():
            made.__dict__[name] = shared(one) if name in pointers else copied(one)
        return made
    if isinstance(value, list):
        return [copied(one) for one in value]
    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    return tuple(map(copied, value)) if type(value) is tuple else value


def _zero(value: Any) -> Any:
    if type(value) in _VALUES:
        return type(value)(0) if isinstance(value, bool | int | float) else None
    if isinstance(value, list):
        return [_zero(one) for one in value]
    if isinstance(value, Struct):
        value.clear()
        return value
    if isinstance(value, Vector):
        return Vector(*(0 for _ in value))
    return type(value)(0) if isinstance(value, bool | int | float) else None


def clear(vector: list[Any], count: int) -> None:
    """``memset(&vector[0], 0, count * sizeof(T))``."""
    if count > len(vector):
        raise IndexError(f"{count} elements of a vector that has {len(vector)}")
    vector[:count] = [type(one)(0) for one in vector[:count]]


def resize(vector: list[Any], count: int, fill: Any) -> None:
    """``vector.resize(count)``."""
    del vector[count:]
    vector.extend(copied(fill) if isinstance(fill, list) else fill for _ in range(count - len(vector)))


class Part:
    """A pointer to an element of a vector: the elements from there on."""

    def __init__(self, vector: list[Any], start: int) -> None:
        self.vector, self.start = vector, start

    def __getitem__(self, index: int) -> Any:
        return self.vector[at(self.start + index)]

    def __setitem__(self, index: int, value: Any) -> None:
        self.vector[at(self.start + index)] = value


def part(vector: Any, start: int) -> Part:
    """``&vector[start]``, and ``pointer + start`` of such a pointer."""
    return Part(vector.vector, vector.start + start) if isinstance(vector, Part) else Part(vector, start)


def overwrite(vector: list[Any], start: int, values: list[Any]) -> None:
    """``std::copy(values.begin(), values.end(), vector.begin() + start)``."""
    if start + len(values) > len(vector):
        raise IndexError(f"{len(values)} elements from {start} of a vector that has {len(vector)}")
    vector[start : start + len(values)] = copied(values)


# Optionals and pointers ---------------------------------------------------------------------------------------------


def value(optional: Any) -> Any:
    """``optional.value()``."""
    if optional is None:
        raise RuntimeError("bad optional access")
    return optional


def typed(pointer: Any, type_: str) -> Any:
    """What ``data_ptr<T>()`` checks: that a tensor is one of T."""
    dtype = known_dtype(type_)
    if isinstance(pointer, torch.Tensor) and dtype is not None and pointer.dtype != dtype:
        raise RuntimeError(f"expected scalar type {text(dtype)} but found {text(pointer.dtype)}")
    return pointer


def is_null(pointer: Any) -> bool:
    """Whether a pointer is null: None, or that of a tensor without elements."""
    return pointer is None or (isinstance(pointer, torch.Tensor) and pointer.data_ptr() == 0)


def same_pointer(a: Any, b: Any) -> bool:
    """``a == b`` of pointers."""
    return _address(a) == _address(b)


def _address(pointer: Any) -> Any:
    if isinstance(pointer, Struct):
        return id(pointer)
    return pointer.data_ptr() if isinstance(pointer, torch.Tensor) else pointer or 0


def memory_address(pointer: Any) -> int:
    """``reinterpret_cast<uintptr_t>(pointer)``."""
    found = _address(pointer)
    if not isinstance(found, int) or isinstance(pointer, Struct):
        raise TypeError(f"the address of a {type(pointer).__name__} as a number")
    return found


def elements(pointer: torch.Tensor) -> torch.Tensor:
    """The memory at a pointer as a tensor of one dimension, to the end of its storage."""
    return offset(pointer, 0)


def offset(pointer: torch.Tensor, count: int, type_: str | int | None = None) -> torch.Tensor:
    """``pointer + count``: a view of the memory from there to the end of the storage, by a type or its size."""
    if pointer is None:
        if count == 0:
            return pointer
        raise RuntimeError("an offset of a null pointer")
    tensor = pointer.detach()
    size = tensor.element_size()
    if type_ is not None:
        step = type_ if isinstance(type_, int) else _size(type_)
        if step != size:
            if (count * step) % size:
                raise RuntimeError(f"{count} elements of {type_} are not a whole number of {tensor.dtype}")
            count = count * step // size
    start = tensor.storage_offset() + count
    length = tensor.untyped_storage().nbytes() // size - start
    if start < 0 or length < 0:
        raise RuntimeError(f"an offset of {count} leaves the memory of a tensor of shape {list(tensor.shape)}")
    return tensor.as_strided((length,), (1,), start)


#: Dtypes that torch has little for; memory of another size is seen as them.
_WIDE: dict[str, torch.dtype] = dict.fromkeys(
    ("unsigned long long", "unsigned long", "uint64_t", "size_t"), torch.uint64
)
_WIDE |= dict.fromkeys(("unsigned", "unsigned int", "uint32_t"), torch.uint32)


#: The components of CUDA's vectors, by what precedes their number.
_COMPONENTS = {
    "char": torch.int8, "uchar": torch.uint8, "short": torch.int16, "ushort": torch.uint16, "int": torch.int32,
    "uint": torch.uint32, "long": torch.int64, "ulong": torch.uint64, "longlong": torch.int64,
    "ulonglong": torch.uint64, "float": torch.float32, "double": torch.float64, "half": torch.float16,
    "nv_half": torch.float16, "nv_bfloat16": torch.bfloat16,
}  # fmt: skip


def _dtype(type_: str) -> torch.dtype:
    """The dtype of memory of a type, of a vector that of its components; TypeError for one that torch has not."""
    component = _COMPONENTS.get(type_[:-1].removeprefix("__")) if type_[-1:] in "1234" else None
    return _WIDE.get(type_) or component or dtype_of(type_)


def _size(type_: str) -> int:
    """The bytes of a number or of one of CUDA's vectors."""
    of_vector = type_[-1:] in "1234" and type_[:-1].removeprefix("__") in _COMPONENTS
    return _dtype(type_).itemsize * (int(type_[-1]) if of_vector else 1)


def pointer(tensor: torch.Tensor, type_: str) -> torch.Tensor:
    """``reinterpret_cast<T*>``: the same memory; a dtype of torch where T has one."""
    if tensor is None:
        return tensor
    try:
        dtype = _dtype(type_)
    except TypeError:
        return tensor  # a struct: the kernel's parameter says what it reads
    unsigned = dtype in (torch.uint16, torch.uint32, torch.uint64) and not tensor.dtype.is_floating_point
    if dtype == tensor.dtype or (unsigned and dtype.itemsize == tensor.element_size()):
        return tensor
    flat = offset(tensor, 0)
    whole = flat.numel() * flat.element_size() // dtype.itemsize * dtype.itemsize // flat.element_size()
    return flat[:whole].view(dtype)


def from_blob(pointer: Any, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """``torch::from_blob``: a view of a tensor's memory; of a vector a copy."""
    count = math.prod(sizes)
    if isinstance(pointer, list):
        return torch.tensor(pointer[:count], dtype=dtype).view(*sizes)
    flat = offset(pointer, 0)
    flat = flat if flat.dtype == dtype else flat.view(torch.uint8)[: count * dtype.itemsize].view(dtype)
    return flat[:count].view(*sizes)


def allocated(count: int, type_: str = "uint8_t") -> torch.Tensor:
    """``cudaMalloc`` of bytes, as elements of a type."""
    dtype = _dtype(type_)
    return torch.empty(-(-count // dtype.itemsize), dtype=dtype, device=cuda_device())


def _typed(memory: torch.Tensor, type_: str, count: int) -> torch.Tensor:
    """The elements that a number of bytes at a pointer has."""
    dtype = _dtype(type_)
    found = offset(memory, 0).view(torch.uint8)[:count]
    if len(found) < count:
        raise RuntimeError(f"a copy of {count} bytes from or to a tensor of {len(found)}")
    return found.view(dtype)


def download(vector: list[Any], memory: torch.Tensor, count: int, type_: str) -> int:
    """``cudaMemcpy`` to a vector."""
    values = _typed(memory, type_, count).tolist()
    whole = part(vector, 0)
    overwrite(whole.vector, whole.start, values)
    return 0


def upload(memory: torch.Tensor, vector: list[Any], count: int, type_: str) -> int:
    """``cudaMemcpy`` from a vector."""
    target, whole = _typed(memory, type_, count), part(vector, 0)
    values = whole.vector[whole.start : whole.start + len(target)]
    if len(target) > len(values):
        raise IndexError(f"{len(target)} elements of a vector that has {len(values)}")
    target.copy_(torch.tensor(values, dtype=target.dtype))
    return 0


def memset(pointer: torch.Tensor, value: int, count: int) -> int:
    """``cudaMemset``."""
    if count and not value & 0xFF and count == pointer.nbytes and pointer.is_contiguous():
        pointer.detach().zero_()
    elif count:
        flat = offset(pointer, 0)
        flat.view(torch.uint8)[:count].fill_(value & 0xFF) if flat.dtype != torch.bool else flat[:count].fill_(value)
    return 0


def memcpy(target: torch.Tensor, source: torch.Tensor, count: int) -> int:
    """``cudaMemcpy``."""
    if count:
        bytes_ = [offset(one, 0).view(torch.uint8)[:count] for one in (target, source)]
        if min(map(len, bytes_)) < count:
            raise RuntimeError(f"a copy of {count} bytes from or to a tensor of fewer")
        bytes_[0].copy_(bytes_[1])
    return 0
