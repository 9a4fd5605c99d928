"""Floating-point instructions by the kinds that Nsight Compute counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rawkern.engines.cpu.analysis.graph import Block
from rawkern.engines.cpu.ptx.data import Instr
from rawkern.engines.cpu.ptx.operands import destinations, sources

_LETTERS = {"f32": "f", "f64": "d", "f16": "h", "f16x2": "h", "bf16": "h", "bf16x2": "h"}
_KINDS = {"add": "add", "sub": "add", "mul": "mul", "fma": "fma", "mad": "fma"}


def kind_of(instr: Instr, readers: Mapping[str, list[Instr | None]]) -> str:
    """What an instruction counts as: ``"fadd"``, ``"dfma"``, ``"hmul"``, ...; empty for anything else.

    As in machine code a sign is changed by an addition, unless arithmetic that reads it does so on the way, and float32
    is multiplied by one before it becomes float64.
    """
    op = instr.op
    letter = _LETTERS.get(op.types[-1].name) if op.types else None
    if letter is None:
        return ""
    if op.base in _KINDS:
        return letter + _KINDS[op.base]
    if op.base == "neg" and letter in "fd":
        free = all(_arithmetic(i) for name in destinations(instr) for i in readers.get(name, ()))
        return "" if free and any(readers.get(name) for name in destinations(instr)) else f"{letter}add"
    if op.base == "cvt" and [t.name for t in op.types] == ["f64", "f32"]:
        return "fmul"
    return ""


def readers_of(blocks: Iterable[Block]) -> dict[str, list[Instr | None]]:
    """The instructions that read each register; None stands for what copies it where paths meet."""
    found: dict[str, list[Instr | None]] = {}
    for block in blocks:
        for instr in block.instrs:
            for name in sources(instr):
                found.setdefault(name, []).append(instr)
        for copies in block.copies.values():
            for _, source in copies:
                found.setdefault(source, []).append(None)
        if block.pred is not None:
            found.setdefault(block.pred.name, []).append(None)
    return found


def _arithmetic(instr: Instr | None) -> bool:
    return instr is not None and instr.op.base in _KINDS
