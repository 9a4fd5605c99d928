"""A kernel's parameters, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rawkern.arguments.scalars import Where
from rawkern.base.accessor import accessor_of
from rawkern.base.ctype import CType, StructLayout, parse, with_layout
from rawkern.base.forking import cached_property
from rawkern.errors import UnsupportedError

if TYPE_CHECKING:
    from rawkern.compile.program import Entry


@dataclass(frozen=True, slots=True)
class Param:
    """One kernel parameter: its name, its C type and its place (counted from 0)."""

    name: str
    ctype: CType
    index: int

    @property
    def is_pointer(self) -> bool:
        """Whether an address is passed: a pointer or a reference."""
        return self.ctype.kind in ("pointer", "reference")

    @property
    def address(self) -> CType | None:
        """The type of the address that a tensor fills, its own or that its accessor begins with; None for others."""
        if self.is_pointer:
            return self.ctype
        accessor = accessor_of(self.ctype)
        return accessor.pointer if accessor is not None else None

    @property
    def takes_tensor(self) -> bool:
        """Whether a tensor's memory is passed: a pointer, a reference, or an accessor of PyTorch's."""
        return self.address is not None

    @property
    def takes_address(self) -> bool:
        """Whether a tensor is passed by its address: also where no more than the size is known, as in PTX."""
        return self.is_pointer or self.ctype.is_word

    @property
    def const(self) -> bool:
        """Whether the kernel only reads what the pointer leads to."""
        return self.ctype.const

    def __str__(self) -> str:
        return self.ctype.declare(self.name)


@dataclass(frozen=True)
class Signature:
    """A kernel's name and parameters; `slow_path.bind` turns Python arguments into packed C values."""

    name: str
    params: tuple[Param, ...]
    struct_layout: Callable[[str], StructLayout] | None = field(default=None, repr=False, compare=False)
    tracked: bool = True  # whether autograd hears of tensors that are written

    def __str__(self) -> str:
        return f"void {self.name}({', '.join(map(str, self.params))})"

    @cached_property
    def _block(self) -> tuple[str, int, tuple[int, ...]]:
        text, at, offsets = "<", 0, []
        for param in self.params:
            pad = -at % param.ctype.align
            text += (f"{pad}x" if pad else "") + param.ctype.code
            offsets.append(at + pad)
            at += pad + param.ctype.size
        return text, at, tuple(offsets)

    @property
    def format(self) -> str:
        """`struct` format of the block of parameters, offsets as CUDA lays them out, padding written as "x"."""
        return self._block[0]

    @property
    def size(self) -> int:
        """Bytes of that block."""
        return self._block[1]

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each parameter begins in it."""
        return self._block[2]

    @cached_property
    def wheres(self) -> tuple[Where, ...]:
        """The words for each argument in error messages."""
        return tuple(
            Where(self.name, param.index + 1, param.name, offset=offset)
            for param, offset in zip(self.params, self.offsets, strict=True)
        )

    def numbers(self, values: tuple[Any, ...]) -> list[Any]:
        """Return the bound values of parameters that are not pointers: numbers, and structs as bytes."""
        return [value for param, value in zip(self.params, values, strict=True) if not param.is_pointer]


def make_signature(
    entry: Entry, names: Sequence[str], struct_layout: Callable[[str], StructLayout] | None = None
) -> Signature:
    """The signature of a compiled kernel, which has `name` and `params` (C++ type spellings).

    Missing or empty names become arg0, arg1, ... `struct_layout` gives the layout of a struct by its C++ name; it is
    called here for structs passed by value, and at a first launch for structs that pointers refer to.
    """
    params = []
    for index, text in enumerate(entry.params):
        ctype = parse(text)
        if ctype.kind == "struct" and not ctype.size:
            if struct_layout is None:
                raise UnsupportedError(f"{entry.name}: the layout of parameter type {text} is not known")
            ctype = with_layout(ctype, struct_layout(ctype.name))
        name = names[index] if index < len(names) and names[index] else f"arg{index}"
        params.append(Param(name, ctype, index))
    return Signature(entry.name, tuple(params), struct_layout)
