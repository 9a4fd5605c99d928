"""Loops that only look: they read the same memory until it holds what another thread writes there.

Reading again tells nothing new before others have run, so such a loop lets them run each time it goes round; one that
changes memory itself (it tries to take a lock, say) tries a number of times first.
"""

from __future__ import annotations

from rawkern.engines.cpu.analysis.dataflow import derived
from rawkern.engines.cpu.analysis.graph import Block, Flow
from rawkern.engines.cpu.ptx.data import Instr, Mem, Reg
from rawkern.engines.cpu.ptx.operands import destinations


def polling_loops(flow: Flow, spin_headers: set[int]) -> dict[int, frozenset[int]]:
    """Of the loops that wait for other threads those that only look: their blocks, by header."""
    found = {}
    for header, members in flow.loops:
        if header in spin_headers:
            blocks = [flow.blocks[m] for m in members]
            changing = _changing(blocks)
            if all(_looks(instr, changing) for block in blocks for instr in block.instrs):
                found[header] = members
    return found


def _looks(instr: Instr, changing: set[str]) -> bool:
    """Whether an instruction changes nothing but registers, and reads memory where it did the round before."""
    if instr.op.facts.memory == "r":
        return not any(isinstance(a, Mem) and isinstance(a.base, Reg) and a.base.name in changing for a in instr.args)
    return instr.op.facts.pure


def _changing(blocks: list[Block]) -> set[str]:
    """Registers that a loop of these blocks may give another value each time it goes round."""
    found = {name for block in blocks for copies in block.copies.values() for name, _ in copies}
    instrs = [instr for block in blocks for instr in block.instrs]
    return derived(instrs, found.union(name for i in instrs if not i.op.facts.pure for name in destinations(i)))
