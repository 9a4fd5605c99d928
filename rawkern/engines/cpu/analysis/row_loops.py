"""Loops in which the warps of a block step through memory together, a row as wide as the block at a time.

Each warp would otherwise run to the end of such a loop alone, and read every eighth kilobyte, say, of a stretch of
memory before the next comes for what it left out. Where warps can leave such a loop they take turns instead, so that
memory is read in order, which is what the CPU fetches ahead. Where a warp's part is short that is not worth a
switch, and where blocks step over each other's parts there is no order to see; `prefetch` is for those.
"""

from __future__ import annotations

from dataclasses import dataclass

from rawkern.engines.cpu.analysis.dataflow import derived
from rawkern.engines.cpu.analysis.graph import Flow
from rawkern.engines.cpu.ptx.data import Instr, Special
from rawkern.engines.cpu.ptx.operands import destinations, sources

SHORT = 16  # rounds of such a loop before the warps of a block take turns
TURN_EVERY = 8  # and then the rounds from turn to turn


@dataclass(frozen=True)
class Row:
    """A loop along rows: its blocks, and the register that it steps by."""

    header: int
    members: frozenset[int]
    step: str


def row_loops(flow: Flow) -> dict[int, Row]:
    """Innermost loops that read global memory and step by the width of the block, or multiples of it, by header."""
    found: dict[int, Row] = {}
    widths: set[str] | None = None
    for header, members in flow.loops:
        if any(h != header and h in members for h, _ in flow.loops):
            continue
        blocks = [flow.blocks[m] for m in members]
        instrs = [instr for block in blocks for instr in block.instrs]
        loads = any(i.op.base == "ld" and (i.op.space == "global" or i.op.has("nc")) for i in instrs)
        if not loads or any(block.kind in ("barrier", "collective") for block in blocks):
            continue
        widths = _widths(flow) if widths is None else widths
        own = {name for i in instrs for name in destinations(i)}
        steps = (name for i in instrs if i.op.base == "add" for name in sources(i) if name in widths - own)
        step = next(steps, None)
        if step is not None:
            found[header] = Row(header, members, step)
    return found


def _widths(flow: Flow) -> set[str]:
    """Registers that are made of ``%ntid.x`` and not of ``%tid``."""
    instrs = [instr for instr in flow.instructions() if instr.op.facts.index]

    def reads(i: Instr, index: str) -> bool:
        return any(isinstance(a, Special) and a.name.startswith(index) for a in i.args)

    of_width, of_thread = (
        derived(instrs, (name for i in instrs if reads(i, index) for name in destinations(i)))
        for index in ("%ntid.x", "%tid")
    )
    return of_width - of_thread
