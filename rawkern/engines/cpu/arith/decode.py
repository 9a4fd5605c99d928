"""PTX mnemonics taken apart: types, modifiers, and the check that a table row knows all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..ir import Emitter, Val


class UnsupportedOpcode(KeyError):
    """A register-only instruction, type or modifier that the CPU engine does not know."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class Result(NamedTuple):
    """What an instruction gave: raw register bits (or i1), the carry flag, and what is owed on them.

    Values have the width of the instruction's result type; an 8-bit result comes as i16. `signed` says how to
    extend to a wider register. `lazy_nan` names the format (``"f32"``, ``"f16x2"``, ...) whose NaNs are not yet
    the hardware's canonical one: pass the value to ``canonical`` with it where the bits escape.
    """

    vals: tuple[Val, ...]
    cc: Val | None = None
    lazy_nan: str | None = None
    signed: bool = False


@dataclass(frozen=True, slots=True)
class DType:
    """A PTX type: width in bits, kind (``u s b f p``), and for packed types the element and how many of it."""

    name: str
    bits: int
    kind: str
    element: str = ""
    count: int = 1

    @property
    def int(self) -> str:
        return f"i{self.bits}"

    @property
    def signed(self) -> bool:
        return self.kind == "s"

    @property
    def fp(self) -> str:
        """The LLVM type in which values of this format are computed."""
        return "double" if self.name == "f64" else "float"


DTYPES = {
    d.name: d
    for d in (
        *(DType(f"{kind}{bits}", bits, kind) for kind in "usb" for bits in (8, 16, 32, 64)),
        *(DType(f"{kind}{bits}", bits, kind) for kind in "us" for bits in (2, 4)),
        DType("b1", 1, "b"),
        DType("pred", 1, "p"),
        DType("f16", 16, "f"),
        DType("bf16", 16, "f"),
        DType("f32", 32, "f"),
        DType("f64", 64, "f"),
        DType("tf32", 32, "f"),
        DType("f16x2", 32, "f", "f16", 2),
        DType("bf16x2", 32, "f", "bf16", 2),
        DType("e4m3", 8, "f"),
        DType("e5m2", 8, "f"),
        DType("e4m3x2", 16, "f", "e4m3", 2),
        DType("e5m2x2", 16, "f", "e5m2", 2),
    )
}
ROUNDINGS = ("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi")


@dataclass(frozen=True, slots=True)
class Op:
    """One decoded mnemonic."""

    text: str
    base: str
    mods: tuple[str, ...]
    types: tuple[DType, ...]

    @property
    def type(self) -> DType:
        return self.types[0]

    @property
    def rounding(self) -> str:
        return next((m for m in self.mods if m in ROUNDINGS), "rn")

    def has(self, mod: str) -> bool:
        return mod in self.mods


def parse(opcode: str) -> Op:
    base, *parts = opcode.split(".")
    types = tuple(DTYPES[p] for p in parts if p in DTYPES)
    return Op(opcode, base, tuple(p for p in parts if p not in DTYPES), types)


Emit = Callable[..., Any]  # (emitter, op, operands), for carry rows also the flag


@dataclass(frozen=True, slots=True)
class Form:
    """Mnemonics of one instruction that are taken.

    `types` lists the type suffixes (``"u32.f32"``). `mods` lists the modifiers as slots: at most one of each slot's
    names may stand in the mnemonic, exactly one where the number before them is 1, exactly two where it is 2.
    """

    base: str
    types: frozenset[str]
    mods: tuple[tuple[int, tuple[str, ...]], ...]

    def check(self, op: Op) -> None:
        left = list(op.mods)
        for needed, names in self.mods:
            found = [m for m in left if m in names]
            if not needed <= len(found) <= max(needed, 1):
                what = " and ".join(found) if found else "none"
                raise UnsupportedOpcode(f"{op.text}: expected {needed or 'one'} of {', '.join(names)}, got {what}")
            for m in found:
                left.remove(m)
        if left:
            raise UnsupportedOpcode(f"{op.text}: modifier .{left[0]} is not supported by the CPU engine")


@dataclass(frozen=True, slots=True)
class Row(Form):
    """A line of the lowering table. With `lazy` the result's NaNs are left to ``canonical``."""

    emit: Emit
    lazy: bool = False
    carry: bool = False


def form(base: str, types: str | Sequence[str], mods: str) -> Form:
    """A form; `mods` has its slots separated by blanks: ``"rn|rz ftz"``, ``"!lo|hi"``, ``"!!row|col"``."""
    slots = tuple((s.count("!"), tuple(s.lstrip("!").split("|"))) for s in mods.split())
    return Form(base, frozenset(types.split() if isinstance(types, str) else types), slots)


def row(
    base: str, types: str | Sequence[str], mods: str, emit: Emit, *, lazy: bool = False, carry: bool = False
) -> Row:
    taken = form(base, types, mods)
    return Row(taken.base, taken.types, taken.mods, emit, lazy, carry)


def fetch(e: Emitter, v: Val, t: DType) -> Val:
    """Cut a register's bits to the width of type `t`; a register may be wider than the type, not narrower."""
    return e.resize(v, t.int, t.signed)


def constant(v: Val) -> int | None:
    """The value of an integer constant operand, else None."""
    text = v.ref
    if text == "zeroinitializer":
        return 0
    if text.startswith("splat ("):
        text = text[7:-1].split()[1]
    return {"true": 1, "false": 0}.get(text) if text in ("true", "false") else _integer(text)


def _integer(text: str) -> int | None:
    return int(text) if text.lstrip("-").isdigit() else None
