"""How many registers a kernel's values take at a time, before the assembler of a GPU has moved any instruction."""

from __future__ import annotations

from collections.abc import Iterable

from rawkern.engines.cpu.analysis import control_flow
from rawkern.engines.cpu.analysis.storage import reached
from rawkern.engines.cpu.ptx.data import TYPE_BYTES, Function, Ptx
from rawkern.engines.cpu.ptx.operands import destinations, sources


def pressure(ptx: Ptx, kernel: str) -> int:
    """32-bit registers that are live at once in a kernel, with those of all functions that it reaches."""
    return sum(map(_most_live, reached(ptx, kernel)))


def _most_live(function: Function) -> int:
    flow = control_flow.build(function)

    def size(names: Iterable[str]) -> int:
        types = (function.regs.get(name, "b32") for name in names)
        return sum(0 if ty == "pred" else -(-TYPE_BYTES.get(ty, 4) // 4) for ty in types)

    most = 0
    for block in flow.blocks:
        live: set[str] = set().union(*(flow.live_in[t] for t in block.targets))
        most = max(most, size(live))
        for instr in reversed(block.instrs):
            live.difference_update(destinations(instr))
            live.update(sources(instr))
            most = max(most, size(live))
    return most
