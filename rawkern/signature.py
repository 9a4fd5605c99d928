"""A kernel's parameters and how Python arguments become them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch

from rawkern import binder, fused
from rawkern.ctype import CType, StructLayout, parse, with_layout
from rawkern.errors import UnsupportedError
from rawkern.values import Where

__all__ = ["Bound", "Param", "Signature", "make_signature"]


class Binder(Protocol):
    """The function `Signature.bind` is."""

    def __call__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, strided: bool = False
    ) -> Bound: ...


class Plain(Protocol):
    """The function `Signature.plain` is."""

    def __call__(self, args: Sequence[Any], strided: bool = False) -> tuple[int | None, tuple[Any, ...]] | None: ...


class EntryLike(Protocol):
    """What `make_signature` needs of a compiled kernel."""

    @property
    def name(self) -> str: ...

    @property
    def params(self) -> tuple[str, ...]: ...


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
    def const(self) -> bool:
        """Whether the kernel only reads what the pointer leads to."""
        return self.ctype.const

    def __str__(self) -> str:
        return self.ctype.declare(self.name)


class Bound(NamedTuple):
    """Arguments ready for a launch.

    Attributes
    ----------
    device : torch.device or None
        Where the tensors are; None without any. `torch.device("meta")` says that the arguments were checked inside an
        operator's fake implementation and there is nothing to launch.
    values : tuple
        For `struct.pack(signature.format, *values)`.
    written : tuple of torch.Tensor
        Tensors behind non-const pointers; their versions have been bumped.
    keep : tuple
        Objects that must live until the launch has been issued.
    tensors : tuple of torch.Tensor
        Every torch tensor whose memory the kernel gets, for `tensors.record`.
    index : int
        CUDA device index; -1 for the CPU and for no device.
    fresh : bool
        Whether `bind` made GPU memory on torch's current stream; a launch on another stream must wait for that one.
    """

    device: torch.device | None
    values: tuple[Any, ...]
    written: tuple[torch.Tensor, ...]
    keep: tuple[Any, ...]
    tensors: tuple[torch.Tensor, ...]
    index: int = -1
    fresh: bool = False


@dataclass(frozen=True)
class Signature:
    """A kernel's name and parameters; `bind` turns Python arguments into packed C values.

    Attributes
    ----------
    format : str
        `struct` format of the kernel-parameter block, offsets as CUDA lays them out, padding written as "x".
    size : int
        Bytes of that block.
    offsets : tuple of int
        Where each parameter begins in it.
    """

    name: str
    params: tuple[Param, ...]
    struct_layout: Callable[[str], StructLayout] | None = field(default=None, repr=False, compare=False)

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
        return self._block[0]

    @property
    def size(self) -> int:
        return self._block[1]

    @property
    def offsets(self) -> tuple[int, ...]:
        return self._block[2]

    @cached_property
    def wheres(self) -> tuple[Where, ...]:
        """The words for each argument in error messages."""
        return tuple(Where(self.name, param.index + 1, param.name) for param in self.params)

    @cached_property
    def bind(self) -> Binder:
        """Check the arguments of one launch and turn them into C values: `bind(args, kwargs=None, strided=False)`.

        Everything is checked before anything happens; then the versions of the written tensors are bumped. This is the
        generated function itself, so that a launch pays for no call in between.

        Raises
        ------
        TypeError, ValueError, OverflowError
            For arguments that do not fit the parameters; the message names the argument and the call that mends it.
        LaunchError
            For launches that autograd or a tracer would lose.
        """
        return binder.build(self, Bound, True)

    @cached_property
    def plain(self) -> Plain:
        """The fast path of `bind` alone: `plain(args, strided=False)` is (CUDA index or -1, values), or None.

        None says that the arguments are not all plain, or wrong, and that `bind` has to look at them: nothing has
        happened then, else the written tensors' versions have been bumped. The index is None for a kernel without
        pointers. This saves a launch the making of a `Bound`.
        """
        return binder.build(self, Bound, False)

    def numbers(self, values: tuple[Any, ...]) -> list[Any]:
        """Return those of bound values that are no pointer's: numbers, and structs as bytes."""
        return [value for param, value in zip(self.params, values, strict=True) if not param.is_pointer]

    def plain_but(self, nulls: tuple[int, ...]) -> Plain:
        """Return `plain` for arguments that are None at these positions and nowhere else; pointers alone can be."""
        if nulls not in self._plains:
            possible = all(self.params[index].ctype.kind == "pointer" for index in nulls)
            self._plains[nulls] = binder.build(self, Bound, False, nulls) if possible else _never_plain
        return self._plains[nulls]

    @cached_property
    def _plains(self) -> dict[tuple[int, ...], Plain]:
        return {}

    @cached_property
    def _makers(self) -> dict[Any, fused.Make | None]:
        return {}

    def maker(
        self, inline: fused.Inline, *, strided: bool, watched: bool, nulls: tuple[int, ...] = ()
    ) -> fused.Make | None:
        """Return what makes a function that does `plain` and an engine's launch at once: see `fused.maker`."""
        key = (*inline[:3], *inline.names, strided, watched, nulls)
        if key not in self._makers:
            self._makers[key] = fused.maker(self, inline, strided=strided, watched=watched, nulls=nulls)
        return self._makers[key]

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Bound:
        """Check arguments for kind only (count, dtypes, devices), as `bind` does in an operator's fake implementation.

        Symbolic sizes are neither compared nor converted.
        """
        return binder.check(self, Bound, args, kwargs)


def _never_plain(args: Sequence[Any], strided: bool = False) -> None:
    """`plain` where None is refused."""


def make_signature(
    entry: EntryLike, names: Sequence[str], struct_layout: Callable[[str], StructLayout] | None = None
) -> Signature:
    """The signature of a compiled kernel.

    Parameters
    ----------
    entry
        Has `name` and `params` (C++ type spellings).
    names
        Parameter names; missing or empty ones become arg0, arg1, ...
    struct_layout
        Gives the layout of a struct by its C++ name. Called here for structs passed by value, and at a first launch
        for structs behind pointers.
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
