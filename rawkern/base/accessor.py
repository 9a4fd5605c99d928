"""Types of PyTorch's C++ headers that a tensor fills: its address, sizes and strides in one struct."""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import NamedTuple

from rawkern.base.ctype import CType, parse

_INDEX = {
    "int": "i", "unsigned int": "I", "long": "q", "long long": "q", "unsigned long": "Q", "unsigned long long": "Q",
}  # fmt: skip
_PACKED = re.compile(r"at::GenericPackedTensorAccessor<(.+), (\d+)ul*, at::\w+, ([a-z ]+)>$")
_INFO = re.compile(r"at::cuda::detail::TensorInfo<(.+), ([a-z ]+)>$")
_INFO_DIMS = 25  # places for sizes and strides in a TensorInfo, of any number of dimensions


class Accessor(NamedTuple):
    """What a type of accessors is made of: an address, `dims` sizes, as many strides, and their number if `loose`."""

    pointer: CType
    dims: int
    index: str  # the C type of sizes and strides
    loose: bool  # for tensors of up to so many dimensions

    @property
    def code(self) -> str:
        """`index` as `struct` has it."""
        return _INDEX[self.index]

    @property
    def most(self) -> int:
        """The largest number of that type."""
        return (1 << 8 * struct.calcsize(self.code) - self.code.islower()) - 1


@lru_cache(maxsize=1024)
def _accessor(name: str) -> Accessor | None:
    packed = _PACKED.match(name)
    match = packed or _INFO.match(name)
    if match is None:
        return None
    dims = int(match[2]) if packed else _INFO_DIMS
    return Accessor(parse(f"{match[1]}*"), dims, match[match.lastindex or 1], not packed)


def accessor_of(ctype: CType) -> Accessor | None:
    """What a struct that a tensor fills is made of; None for other types."""
    return _accessor(ctype.name) if ctype.name.startswith("at::") else None
