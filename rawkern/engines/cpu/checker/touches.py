"""Which accesses of a function are checked together: those of a block at offsets from one address."""

from __future__ import annotations

from dataclasses import dataclass

from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.ptx.data import Instr, Mem, Reg
from rawkern.engines.cpu.ptx.operands import destinations

REACH = 1 << 16  # bytes that accesses looked at together lie in


@dataclass(frozen=True)
class Touch:
    """What an instruction does at `offset` bytes from an address: to `size` bytes, in values of `element` bytes."""

    instr: Instr
    offset: int
    size: int
    align: int
    element: int


def touched_together(f: FunctionLowering, index: int) -> dict[int, list[Touch]]:
    """Loads and stores of a block that have one base and are all made if one is, by the identity of each."""
    found: dict[int, list[Touch]] = {}
    open_: dict[tuple[str, str, bool], list[Touch]] = {}
    for instr in f.flow.blocks[index].instrs:
        if instr.op.facts.leaves or instr.op.base in ("trap", "brkpt"):
            open_.clear()
        if instr.op.base in ("ld", "ldu", "st"):
            mem = instr.args[0] if instr.op.base == "st" else instr.args[1]
            if isinstance(mem, Mem) and isinstance(mem.base, Reg) and instr.op.space != "param":
                element = instr.op.type.bits // 8
                size = element * instr.op.count
                touch = Touch(instr, mem.offset, size, size, element)
                key = (mem.base.name, instr.op.space, instr.op.base == "st")
                group = open_.setdefault(key, [])
                if not _fits(group, touch):
                    group = open_[key] = []
                group.append(touch)
                found[id(instr)] = group
        for name in destinations(instr):
            for key in [key for key in open_ if key[0] == name]:
                del open_[key]
    return found


def _fits(group: list[Touch], touch: Touch) -> bool:
    """Whether one more can be looked at with the others: that the first address is aligned says that all are."""
    every = [*group, touch]
    first, most = min(t.offset for t in every), max(t.align for t in every)
    end = max(t.offset + t.size for t in every)
    return (
        end - first <= REACH
        and all((t.offset - first) % t.align == 0 for t in every)
        and any(t.align == most and (t.offset - first) % most == 0 for t in every)
    )
