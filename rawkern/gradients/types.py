"""C's types, as far as kernels that are derived may use them: a whitelist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FLOATS = ("float", "double", "__half", "__nv_bfloat16")
#: Types of memory; what is computed with them is computed as float and rounded.
HALVES = ("__half", "__nv_bfloat16")
# Integers by rank; "long" has 64 bits, as it has wherever CUDA runs on Linux.
_RANKS = {"bool": 1, "signed char": 8, "unsigned char": 8, "short": 16, "unsigned short": 16, "int": 32,
          "unsigned int": 32, "long long": 64, "unsigned long long": 64}  # fmt: skip
SPELLINGS = {
    "char": "signed char", "unsigned": "unsigned int", "long": "long long", "unsigned long": "unsigned long long",
    "size_t": "unsigned long long", "int8_t": "signed char", "uint8_t": "unsigned char", "int16_t": "short",
    "uint16_t": "unsigned short", "int32_t": "int", "uint32_t": "unsigned int", "int64_t": "long long",
    "uint64_t": "unsigned long long", "uint": "unsigned int", "long int": "long long", "short int": "short",
    "long long int": "long long", "unsigned long long int": "unsigned long long", "signed int": "int", "signed": "int",
    "unsigned long int": "unsigned long long", "ptrdiff_t": "long long",
    "half": "__half", "nv_bfloat16": "__nv_bfloat16",
}  # fmt: skip


@dataclass(frozen=True)
class Aggregate:
    """A struct or vector type: named fields of scalars or aggregates."""

    name: str
    fields: tuple[tuple[str, Type], ...]

    def of(self, name: str) -> Type | None:
        return dict(self.fields).get(name)

    @property
    def array(self) -> bool:
        """Whether it is an array within a struct, whose fields are its elements."""
        return self.name.endswith("]")


Type = str | Aggregate


@dataclass(frozen=True)
class PointerTo:
    """A pointer that is a member of a struct: to what, and whether that is const."""

    type: Type
    const: bool

    @property
    def name(self) -> str:
        return f"{self.type if isinstance(self.type, str) else self.type.name}*"


def pointers(kind: Any) -> bool:
    """Whether a struct has pointers."""
    inner = (each for _, each in kind.fields) if isinstance(kind, Aggregate) else ()
    return isinstance(kind, PointerTo) or any(map(pointers, inner))


@dataclass(frozen=True)
class Accessor:
    """PyTorch's accessor of a tensor: the type of its elements, its dimensions, and the type that it counts in."""

    type: str
    dimensions: int
    index: str
    const: bool = False  # whether its elements are


def array(kind: Type, count: int) -> Aggregate:
    """An array as a member of a struct."""
    return Aggregate(
        f"{kind if isinstance(kind, str) else kind.name}[{count}]", tuple((str(k), kind) for k in range(count))
    )


VECTORS = {
    f"{spelled}{n}": Aggregate(f"{spelled}{n}", tuple((f, base) for f in "xyzw"[:n]))
    for spelled, base in (("float", "float"), ("double", "double"), ("int", "int"), ("uint", "unsigned int"))
    for n in (1, 2, 3, 4)
}
for _pair, _half in (("__half2", "__half"), ("__nv_bfloat162", "__nv_bfloat16")):
    VECTORS[_pair] = VECTORS[_pair.removeprefix("__")] = Aggregate(_pair, (("x", _half), ("y", _half)))


def packed(kind: Type | None, own: Type | None) -> Aggregate | None:
    """A vector that is there for its bytes alone, as the floats of another type that they are: float4 of 8 halves."""
    if kind not in VECTORS.values() or not isinstance(kind, Aggregate) or own not in FLOATS or own in scalars(kind):
        return None
    n, rest = divmod(size(kind), size(own))
    return Aggregate(f"{kind.name} of {own}", tuple((str(k), own) for k in range(n))) if n > 1 and not rest else None


def of_packed(found: Any, kind: Type | None) -> Aggregate | None:
    """A type, if it is what `packed` makes of a vector."""
    if not isinstance(found, Aggregate) or not isinstance(kind, Aggregate):
        return None
    return found if found.name.startswith(f"{kind.name} of ") else None


#: The state of curand's counter generator; `second`: whether curand_normal has kept a number.
PHILOX = Aggregate(
    "curandStatePhilox4_32_10_t",
    (*((f, "unsigned long long") for f in ("seed", "sequence", "at")), ("second", "bool")),
)
GENERATORS = ("curandStatePhilox4_32_10_t", "curandStatePhilox4_32_10")


def scalar(spelled: str) -> str | None:
    """The type of a spelling; None for what is not a scalar of the whitelist."""
    spelled = " ".join(spelled.split())
    spelled = SPELLINGS.get(spelled, spelled)
    return spelled if spelled in FLOATS or spelled in _RANKS else None


def size(kind: Type) -> int:
    """Bytes; of structs with their padding."""
    if isinstance(kind, PointerTo):
        return 8
    if kind == "void":  # pointers to which none reads
        return 1
    if not isinstance(kind, Aggregate):
        return {"float": 4, "double": 8, "__half": 2, "__nv_bfloat16": 2}.get(kind) or max(_RANKS[kind], 8) // 8
    at = 0
    for _, inner in kind.fields:
        at = -(-at // alignment(inner)) * alignment(inner) + size(inner)
    return -(-at // alignment(kind)) * alignment(kind)


def alignment(kind: Type) -> int:
    """Bytes that an address is a multiple of."""
    if not isinstance(kind, Aggregate):
        return size(kind)
    if kind in VECTORS.values() and len(kind.fields) in (2, 4):
        return min(len(kind.fields) * size(kind.fields[0][1]), 16)
    return max((alignment(inner) for _, inner in kind.fields), default=1)


def count(kind: Type) -> int:
    """How many numbers a type consists of."""
    return len(scalars(kind))


def scalars(kind: Type) -> list[str]:
    """The types of the numbers that a type consists of."""
    return [s for _, inner in kind.fields for s in scalars(inner)] if isinstance(kind, Aggregate) else [kind]


def is_float(kind: Type) -> bool:
    return kind in FLOATS


def bits(kind: str) -> int:
    """The width of an integer type."""
    return _RANKS[kind]


def promoted(kind: str) -> str:
    """What C computes a small integer as."""
    return "int" if kind in _RANKS and _RANKS[kind] < 32 else kind


def common(a: str, b: str) -> str:
    """The type of C's usual arithmetic conversions."""
    for kind in ("double", "float", *HALVES):
        if kind in (a, b):
            return kind
    a, b = promoted(a), promoted(b)
    if _RANKS[a] != _RANKS[b]:
        return a if _RANKS[a] > _RANKS[b] else b
    return a if a.startswith("unsigned") else b
