"""Arguments bound with care, one by one: what is not plain is converted, and what will not do is explained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rawkern.arguments.addresses import Address
from rawkern.arguments.memory import Memory, Piece, capturing, describe, without_memory
from rawkern.arguments.rules import DEVICE, DTYPE, POINTER, READ, Pointer
from rawkern.arguments.scalars import Where, by_value, traced
from rawkern.arguments.signature import Signature
from rawkern.arguments.structs import is_struct, struct_bytes
from rawkern.arguments.tensor_map import SIZE, TensorMap
from rawkern.base import operator_state
from rawkern.base import torch_private as private
from rawkern.base.ctype import CType, StructLayout, parse, with_layout
from rawkern.base.nearest import did_you_mean
from rawkern.base.records import extents_at
from rawkern.errors import LaunchError, UnsupportedError

# By CUDA index, -1 for the CPU; torch itself numbers devices with 8 bits.
DEVICES = {-1: torch.device("cpu")} | {index: torch.device("cuda", index) for index in range(128)}
_SYMBOLIC = {
    "int": (torch.SymInt, torch.SymBool),
    "bool": (torch.SymBool,),
    "opaque": (torch.SymInt, torch.SymFloat, torch.SymBool),
    **dict.fromkeys(("float", "half", "bfloat16", "float8"), (torch.SymFloat, torch.SymInt)),
}


_UNKNOWN = parse("void*")


def _is_memory(value: Any) -> bool:
    """Whether a value can only be meant as memory where it may be passed by value, too: NumPy's arrays are numbers."""
    if value is None or isinstance(value, (torch.Tensor, Address)) or type(value).__module__ == "cupy.cuda.memory":
        return True
    arrays = hasattr(value, "__cuda_array_interface__") or hasattr(value, "__dlpack__")
    return arrays and not isinstance(value, (np.generic, np.ndarray))


class Bound(NamedTuple):
    """Arguments ready for a launch."""

    #: Where the tensors are; None without any. `torch.device("meta")` says that the arguments were checked inside an
    #: operator's fake implementation and there is nothing to launch.
    device: torch.device | None
    values: tuple[Any, ...]  # for `struct.pack(signature.format, *values)`
    written: tuple[torch.Tensor, ...]  # tensors passed to non-const pointers; their versions have been incremented
    keep: tuple[Any, ...]  # objects that must live until the launch has been issued
    tensors: tuple[torch.Tensor, ...]  # every torch tensor whose memory the kernel gets, for `tensors.record`
    pieces: tuple[Piece, ...] = ()  # the memory that each argument leads to
    extents: tuple[int, ...] = ()  # of each word of the parameters, as `records.extents_at` has them
    index: int = -1  # CUDA device index; -1 for the CPU and for no device
    fresh: bool = False  # `bind` made GPU memory on torch's current stream; a launch on another has to wait for that


class Arguments:
    """The arguments of one launch on their way to C values; collects what `Bound` reports."""

    __slots__ = (
        "device", "extents", "first", "fresh", "host", "keep", "layout_of", "maps", "pieces", "strided", "tensors",
        "tracked", "written",
    )  # fmt: skip

    def __init__(self, strided: bool, layout_of: Callable[[str], StructLayout] | None) -> None:
        self.strided = strided
        self.tracked = True
        self.layout_of = layout_of
        self.device: int | None = None
        self.first: Where | None = None
        self.host: list[Memory] = []
        self.written: list[torch.Tensor] = []
        self.keep: list[Any] = []
        self.tensors: list[torch.Tensor] = []
        self.pieces: list[Piece] = []
        self.extents: dict[int, tuple[int, int]] = {}  # by where the address stands among the parameters
        self.maps: list[Pointer] = []
        self.fresh = False

    def value(self, ctype: CType, value: Any, where: Where) -> Any:
        """`value` as `struct.pack` wants it for `ctype.code`."""
        if isinstance(value, TensorMap):
            return self.mapped(ctype, value, where)
        if ctype.kind in ("pointer", "reference"):
            return self._address(ctype, value, where)
        if ctype.kind == "struct" or (ctype.kind == "vector" and is_struct(value)):
            return struct_bytes(self, ctype, value, where)
        if ctype.is_word and _is_memory(value):
            return self._address(_UNKNOWN, value, where).to_bytes(8, "little")
        return by_value(ctype, value, where)

    def sized(self, ctype: CType) -> CType:
        """A struct type with its layout; a type that is only declared in the source stays without."""
        if ctype.kind != "struct" or ctype.layout is not None or ctype.size or self.layout_of is None:
            return ctype
        try:
            return with_layout(ctype, self.layout_of(ctype.name))
        except UnsupportedError:
            return ctype

    def mapped(self, ctype: CType, value: TensorMap, where: Where) -> bytes:
        """A tensor map's bytes, for a struct by value of that size; its tensor is an argument of the call."""
        if ctype.kind not in ("struct", "opaque") or ctype.size != SIZE:
            fix = "declare the parameter const __grid_constant__ CUtensorMap"
            raise TypeError(f"{where} is a tensor map, the kernel takes {ctype.spell()}; {fix}")
        t = value.tensor
        if self.tracked and not value.read_only and operator_state.unseen_by_autograd(t):
            raise operator_state.not_inside_op(
                f"{where} maps a tensor that requires grad, the kernel may write it and autograd would not know; make "
                "the map with read_only=True, if it does not"
            )
        kind = READ if value.read_only else _UNKNOWN
        pointer = Pointer(kind, describe(t, where, kind.spell(), not value.read_only), where)
        DEVICE.slow_path(self, pointer)
        data = value.encoded(where)
        self.maps.append(pointer)
        self.found(pointer, mapped=True)
        self._take(pointer.memory, pointer.writes)
        return data

    def found(self, pointer: Pointer, mapped: bool = False) -> None:
        """Note down memory that has passed the rules."""
        memory, where = pointer.memory, pointer.where
        first, end = memory.reach()
        address, offset = memory.pointer + first, None if mapped or first else where.offset
        self.pieces.append(
            Piece(
                where.expr, address, end - first, memory.itemsize, not pointer.writes, offset,
                locked=not memory.writable, mapped=mapped, given_as=where.name, part=bool(where.path),
            )
        )  # fmt: skip

    def _stands(self, ctype: CType, where: Where, address: int, size: int) -> None:
        """Note down how many bytes follow an address, if it stands among the parameters."""
        if address and where.offset is not None:
            self.extents[where.offset] = size, 0 if ctype.const else size

    def _address(self, ctype: CType, value: Any, where: Where) -> int:
        target = ctype.target
        assert target is not None
        if value is None:
            if ctype.kind == "reference":
                raise TypeError(f"{where} is None, and {ctype.spell()} is a reference; pass a one-element tensor")
            return 0
        if target.kind == "pointer" and isinstance(value, (list, tuple)):
            return self._table(ctype, target, value, where)
        pointer = Pointer(ctype, describe(value, where, ctype.spell(), not ctype.const), where)
        for rule in POINTER:
            rule.slow_path(self, pointer)
        self.found(pointer)
        self._take(pointer.memory, pointer.writes)
        if (piece := self.pieces[-1]).parameter is not None:
            self._stands(ctype, where, piece.address, piece.size)
        return pointer.memory.pointer

    def _take(self, memory: Memory, writes: bool) -> None:
        if memory.tensor is None:
            return
        self.tensors.append(memory.tensor)
        if memory.owner is not memory.tensor:
            self.keep.append(memory.tensor)
            self.fresh |= memory.fresh
        if writes:
            live = memory.owner.tensor if isinstance(memory.owner, Address) else None
            self.written.append(memory.tensor if live is None else live)

    def _table(self, ctype: CType, target: CType, items: list[Any] | tuple[Any, ...], where: Where) -> int:
        """The address of a table of the items' addresses, made where the items are."""
        if not items:
            return 0
        addresses = [self._address(target, item, where.item(i)) for i, item in enumerate(items)]
        if self.device is None or self.device < 0:
            table = torch.tensor(addresses, dtype=torch.int64, device="cpu")
        else:
            if (error := capturing()) is not None:
                raise type(error)(
                    f"{where} is a list of tensors, and {error}, which would not keep the table made of it; "
                    "pass an int64 tensor of addresses made before"
                )
            # From pinned memory the copy needs no synchronization, and torch keeps the page until it is done.
            host = torch.tensor(addresses, dtype=torch.int64, device="cpu", pin_memory=True)
            table = host.to(torch.device("cuda", self.device), non_blocking=True)
            self.tensors.append(table)
            self.fresh = True
        self.keep.append(table)
        address, size = table.data_ptr(), 8 * len(items)
        self.pieces.append(
            Piece(where.expr, address, size, 8, True, where.offset, given_as=where.name, part=bool(where.path))
        )
        self._stands(ctype, where, address, size)
        return address


def _got(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """What was given, by kind: beside the signature it shows which one is missing, or too many."""
    kinds = [type(value).__name__ for value in args] + [f"{name}=..." for name in kwargs]
    return f"; got ({', '.join(kinds)})" if kinds else ""


def arrange(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """Positional and keyword arguments in the order of the parameters."""
    params, given = signature.params, len(args)
    if not kwargs:
        if given == len(params):
            return tuple(args)
        were = "was" if given == 1 else "were"
        takes = f"{len(params)} argument{'' if len(params) == 1 else 's'}"
        raise TypeError(f"{signature.name} takes {takes}, {given} {were} given: {signature}{_got(args, {})}")
    if given > len(params):
        total = given + len(kwargs)
        raise TypeError(
            f"{signature.name} takes {len(params)} arguments, {total} were given: {signature}{_got(args, kwargs)}"
        )
    names = [param.name for param in params]
    for name in kwargs:
        if name not in names:
            raise TypeError(f"{signature.name} has no parameter '{name}': {signature}{did_you_mean(name, names)}")
        if name in names[:given]:
            at = names.index(name)
            where = signature.wheres[at]
            raise TypeError(f"{where} is given by position and by keyword: {signature}")
    for param in params[given:]:
        if param.name not in kwargs:
            raise TypeError(f"{signature.wheres[param.index]} is missing: {signature}")
    return (*args, *(kwargs[name] for name in names[given:]))


def bind(
    signature: Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    strided: bool = False,
    call: Arguments | None = None,
) -> Bound:
    """Check the arguments of one launch and turn them into C values.

    Everything is checked before anything happens; then the versions of the written tensors are bumped.

    Raises
    ------
    TypeError, ValueError, OverflowError
        For arguments that do not fit the parameters; the message names the argument and the call that fixes it.
    LaunchError
        For launches that autograd or a tracer would lose.
    """
    args = arrange(signature, args, kwargs)
    if operator_state.state.level == operator_state.FAKE:
        return check(signature, args)
    if operator_state.state.level == operator_state.COMPOSED:
        raise LaunchError(f"{signature.name} is launched where autograd records; wrap it in rawkern.op")
    if operator_state.state.level == 0:
        if private.dispatch_modes():
            raise traced(f"{signature.name}:", f"a torch dispatch mode is active ({private.dispatch_mode_name()})")
        if private.jit_tracing():
            raise traced(f"{signature.name}:", "torch.jit.trace is active")
    call = call or Arguments(strided, signature.struct_layout)
    call.tracked = signature.tracked
    values = [
        call.value(param.ctype, value, where)
        for param, value, where in zip(signature.params, args, signature.wheres, strict=True)
    ]
    for one in call.maps:
        if one.memory.device != call.device:  # of pinned memory, which a pointer to would do
            raise ValueError(f"{one.where} maps a tensor on {one.memory.place}; map one on cuda:{call.device}")
    if call.written and signature.tracked:
        private.increment_version(tuple(call.written))
    extents = [0] * (extents_at(signature.size) // 4)
    for offset, row in call.extents.items():
        if offset % 8 == 0:
            extents[offset // 4 : offset // 4 + 2] = row
    device = None if call.device is None else DEVICES[call.device]
    index = -1 if call.device is None else call.device
    return Bound(
        device, tuple(values), tuple(call.written), tuple(call.keep), tuple(call.tensors), tuple(call.pieces),
        tuple(extents), index, call.fresh,
    )  # fmt: skip


def listed(signature: Signature, args: Sequence[Any], strided: bool) -> tuple[Piece, ...]:
    """The memory that the tensors of lists have, of arguments that have been checked."""
    call = Arguments(strided, signature.struct_layout)
    for param, value, where in zip(signature.params, args, signature.wheres, strict=False):
        if param.is_pointer and isinstance(value, tuple):
            call.value(param.ctype, value, where)
    return tuple(piece for piece in call.pieces if piece.parameter is None)


def check(signature: Signature, args: Sequence[Any]) -> Bound:
    """Check arguments for kind only: dtypes, devices. Symbolic numbers are neither compared nor converted."""
    first: tuple[Where, torch.device] | None = None
    call = Arguments(False, None)
    for param, where, value in zip(signature.params, signature.wheres, args, strict=True):
        ctype = param.ctype
        if param.is_pointer and isinstance(value, torch.Tensor):
            assert ctype.target is not None
            if ctype.target.dtypes:
                DTYPE.slow_path(call, Pointer(ctype, without_memory(value), where))
            if first is None:
                first = where, value.device
            elif value.device != first[1]:
                raise ValueError(f"{where} is on {value.device}, argument {first[0].position} is on {first[1]}")
        elif type(value) in (torch.SymInt, torch.SymFloat, torch.SymBool):
            if type(value) not in _SYMBOLIC.get(ctype.kind, ()):
                raise TypeError(f"{where} is a {type(value).__name__}, the kernel takes {ctype.spell()}")
        elif not (param.is_pointer or ctype.kind == "struct" or isinstance(value, torch.Tensor) or _has_symbols(value)):
            by_value(ctype, value, where)
    return Bound(torch.device("meta"), (), (), (), ())


def _has_symbols(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and any(
        isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)) for item in value
    )
