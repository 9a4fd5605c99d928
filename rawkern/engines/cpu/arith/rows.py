"""Rows of the lowering table: which mnemonics they take, by types and modifiers, and what they give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from rawkern.engines.cpu.ir import Emitter, Val
from rawkern.engines.cpu.ptx.decode import DType, Op


class UnsupportedOpcode(KeyError):
    """A register-only instruction, type or modifier that the CPU engine does not know."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class Result(NamedTuple):
    """What an instruction gave: raw register bits (or i1), and what is owed on them.

    Values have the width of the instruction's result type; an 8-bit result comes as i16. `signed` says how to
    extend to a wider register. `lazy_nan` names the format (``"f32"``, ``"f16x2"``, ...) whose NaNs are not yet
    the hardware's canonical one: pass the value to ``canonical`` with it where the bits escape.
    """

    vals: tuple[Val, ...]
    lazy_nan: str | None = None
    signed: bool = False


Emit = Callable[[Emitter, Op, Sequence[Val]], Any]


@dataclass(frozen=True, slots=True)
class Form:
    """Mnemonics of one instruction that are taken.

    `types` lists the type suffixes (``"u32.f32"``). `mods` lists the modifiers as slots: at most one of each slot's
    names may be in the mnemonic, exactly one where the number before them is 1, exactly two where it is 2.
    """

    base: str
    types: frozenset[str]
    mods: tuple[tuple[int, tuple[str, ...]], ...]

    def unsupported_reason(self, op: Op) -> str | None:
        """Why a mnemonic with these types is not taken; None where it is."""
        left = list(op.mods)
        for needed, names in self.mods:
            found = [m for m in left if m in names]
            if not needed <= len(found) <= max(needed, 1):
                what = " and ".join(found) if found else "none"
                return f"{op.text}: expected {needed or 'one'} of {', '.join(names)}, got {what}"
            for m in found:
                left.remove(m)
        return f"{op.text}: modifier .{left[0]} is not supported by the CPU engine" if left else None


F = TypeVar("F", bound=Form)


@dataclass(frozen=True, slots=True)
class Row(Form):
    """A line of the lowering table. With `lazy` the result's NaNs are left to ``canonical``."""

    emit: Emit
    lazy: bool = False


def form(base: str, types: str | Sequence[str], mods: str) -> Form:
    """A form; `mods` has its slots separated by blanks: ``"rn|rz ftz"``, ``"!lo|hi"``, ``"!!row|col"``."""
    slots = tuple((s.count("!"), tuple(s.lstrip("!").split("|"))) for s in mods.split())
    return Form(base, frozenset(types.split() if isinstance(types, str) else types), slots)


def row(base: str, types: str | Sequence[str], mods: str, emit: Emit, *, lazy: bool = False) -> Row:
    taken = form(base, types, mods)
    return Row(taken.base, taken.types, taken.mods, emit, lazy)


def index(rows: Iterable[F]) -> dict[tuple[str, str], list[F]]:
    """Rows by instruction and types."""
    table: dict[tuple[str, str], list[F]] = {}
    for r in rows:
        for types in r.types:
            table.setdefault((r.base, types), []).append(r)
    return table


def fetch(e: Emitter, v: Val, t: DType) -> Val:
    """Cut a register's bits to the width of type `t`; a register may be wider than the type, not narrower."""
    return e.resize(v, t.int, t.signed)


def constant(v: Val) -> int | None:
    """The value of an integer constant operand, else None."""
    text = v.ref[7:-1].split()[1] if v.ref.startswith("splat (") else v.ref
    text = {"zeroinitializer": "0", "false": "0", "true": "1"}.get(text, text)
    return int(text) if text.lstrip("-").isdigit() else None
