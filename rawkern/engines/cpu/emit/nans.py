"""What NaNs float registers can hold: those that never hold one, and those whose NaNs never signal."""

from __future__ import annotations

import struct
from collections.abc import Callable

from rawkern.engines.cpu import arith
from rawkern.engines.cpu.analysis.graph import Flow
from rawkern.engines.cpu.emit.forms import is_nan
from rawkern.engines.cpu.ptx.data import Imm, Instr, Reg
from rawkern.engines.cpu.ptx.decode import DTYPES, Op
from rawkern.engines.cpu.ptx.operands import destinations

_SUMS = ("add", "sub", "mul", "fma")
_LARGE = 2.0**60


def quiet_registers(flow: Flow) -> frozenset[str]:
    """Registers that hold results of arithmetic, or numbers that are written in the program."""
    found = _written_by(flow, lambda i: _passes_on(i.op) > 0 or arith.lazy_nan(i.op) is not None)
    moves = [instr for instr in flow.instructions() if _passes_on(instr.op)]
    changed = True
    while changed:
        changed = False
        for instr in moves:
            given = instr.args[1 : 1 + _passes_on(instr.op)]
            lost = found.intersection(destinations(instr))
            if lost and not all((isinstance(a, Reg) and a.name in found) or is_number(a) for a in given):
                found, changed = found - lost, True
    return found


def _passes_on(op: Op) -> int:
    """How many of the first operands give their NaNs to the result."""
    return 1 if op.base in ("neg", "abs") else op.facts.moves


def number_registers(flow: Flow, constants: dict[str, Imm]) -> frozenset[str]:
    """Registers that hold sums and products of what is cut to 0 to 1 and of moderate constants: never a NaN."""
    unit = _written_by(flow, lambda i: i.op.has("sat") and i.op.types[:1] == (DTYPES["f32"],))  # cut to 0 to 1

    def moderate(a: object) -> bool:
        if isinstance(a, Reg):
            if a.name in unit:
                return True
            a = constants.get(a.name)
        return (
            isinstance(a, Imm) and is_number(a) and abs(struct.unpack("<f", struct.pack("<I", a.bits(32)))[0]) <= _LARGE
        )

    def computed(instr: Instr) -> bool:
        return instr.op.base in _SUMS and instr.op.types == (DTYPES["f32"],) and all(map(moderate, instr.args[1:]))

    return _written_by(flow, computed) if unit else unit


def is_number(a: object) -> bool:
    """Whether an operand is a literal float that is not a NaN."""
    return isinstance(a, Imm) and a.kind != "i" and not is_nan(a)


def _written_by(flow: Flow, suits: Callable[[Instr], bool]) -> frozenset[str]:
    """Registers that are written by instructions of a kind alone; what edges copy counts as a move."""
    found: set[str] = set()
    others: set[str] = set()
    for instr in flow.instructions():
        (found if suits(instr) else others).update(destinations(instr))
    return frozenset(found - others)
