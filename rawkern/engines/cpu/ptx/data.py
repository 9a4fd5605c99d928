"""A PTX module as plain data: functions, variables, instructions with their operands and source lines."""

from __future__ import annotations

import ctypes
import struct
import sys
from dataclasses import dataclass, field

from rawkern.engines.cpu.ptx.decode import Op
from rawkern.engines.cpu.records import NOWHERE
from rawkern.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Reg:
    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True, slots=True)
class Imm:
    """An immediate: ``kind`` is ``"i"`` (integer), ``"f"`` (float32 bits) or ``"d"`` (float64 bits)."""

    value: int
    kind: str

    def bits(self, width: int) -> int:
        """What an operand of `width` bits reads; float64 numbers are rounded to float32 where that is read."""
        value = self.value
        if self.kind == "d" and width == 32:
            number = struct.unpack("<d", struct.pack("<Q", value))[0]
            value = int.from_bytes(bytes(ctypes.c_float(number)), sys.byteorder)
        return value & (1 << width) - 1


@dataclass(frozen=True, slots=True)
class Sym:
    """A variable, parameter, function or label, with a byte offset where one is written (``name+8``)."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Mem:
    """``[base + offset]``; the base is a register, a symbol or an immediate address."""

    base: Reg | Sym | Imm
    offset: int


@dataclass(frozen=True, slots=True)
class Vec:
    """``{a, b, ...}``; an element is None where PTX writes ``_``."""

    items: tuple


@dataclass(frozen=True, slots=True)
class Pair:
    """A destination ``d|p``."""

    first: Reg | None
    second: Reg | None


@dataclass(frozen=True, slots=True)
class Not:
    """A negated predicate source ``!p``."""

    reg: Reg


@dataclass(frozen=True, slots=True)
class Part:
    """Some bits of a register, as video instructions name them (``%r1.b3``, ``%r1.h0``)."""

    reg: Reg
    at: int
    bits: int


@dataclass(slots=True)
class Instr:
    """An instruction, which is not changed once it is made."""

    op: Op
    args: list
    guard: Reg | None = None
    negated: bool = False
    loc: int = 0  # index into Ptx.locs; 0 is unknown
    written: list[str] | None = field(default=None, init=False, compare=False, repr=False)  # kept by `operands`
    read: list[str] | None = field(default=None, init=False, compare=False, repr=False)


@dataclass(slots=True)
class Label:
    name: str


@dataclass(frozen=True, slots=True)
class Var:
    """A variable or parameter: ``size`` in bytes (0 for ``name[]``); ``init`` holds numbers and Syms."""

    name: str
    space: str
    type: str
    align: int
    size: int
    init: tuple = ()
    extern: bool = False


@dataclass(frozen=True, slots=True)
class Loc:
    """A CUDA source position; ``inlined_at`` is the Loc of the call that this code was inlined into.

    Line 0 is what the compiler has made of several lines or by itself, such as a loop for memset; its ``inlined_at`` is
    then the position before it.
    """

    file: str
    line: int
    column: int
    inlined_at: Loc | None = None


@dataclass
class Function:
    name: str
    entry: bool
    params: list[Var]
    returns: list[Var]
    body: list[Instr | Label] = field(default_factory=list)
    regs: dict[str, str] = field(default_factory=dict)  # register -> "b32", "f64", "pred", ...
    local_vars: dict[str, Var] = field(default_factory=dict)  # .local, .shared, .param, by name
    tables: dict[str, list[str]] = field(default_factory=dict)  # .branchtargets
    defined: bool = True
    locs: list[Loc | None] = field(default_factory=list)  # those of the module
    max_threads: int = 0  # of a block, 0 where nothing limits them
    cluster: tuple[int, int, int] | None = None  # its blocks, zeros where the launch has them; None without clusters
    rejected: str = ""  # why no kernel can use it, where something in it was not understood

    def unsupported(self, instr: Instr, why: str) -> UnsupportedError:
        """The error for an instruction of this function; raise it."""
        place = describe(self.locs[instr.loc] if 0 <= instr.loc < len(self.locs) else None)
        return UnsupportedError(
            f"the PTX instruction {instr.op} is not supported on the CPU engine ({why}); it comes from {place}"
        )


def describe(place: Loc | None) -> str:
    """``file:line``, and where that was inlined."""
    if place is not None and not place.line:
        place = place.inlined_at
    if place is None:
        return NOWHERE
    text = f"{place.file}:{place.line}"
    outer = place.inlined_at
    while outer is not None:
        text += f", inlined at {outer.file}:{outer.line}"
        outer = outer.inlined_at
    return text


@dataclass
class Ptx:
    functions: dict[str, Function]
    variables: dict[str, Var]
    locs: list[Loc | None]
    version: int
    target: int = 80  # the architecture that the module is for: 90 for ``sm_90a``
    unknown: dict[str, str] = field(default_factory=dict)  # names without a definition, and why no kernel can use them


TYPE_BYTES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16, "texref": 8, "samplerref": 8, "surfref": 8,
}  # fmt: skip
