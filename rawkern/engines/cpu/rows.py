"""Loops in which the warps of a block go through memory side by side, a row as wide as the block at a time.

Each warp would otherwise run to the end of such a loop alone, and read every eighth kilobyte, say, of a stretch of
memory before the next comes for what it left out. Where warps have stacks of their own they take turns instead, so that
memory is read in order, which is what the CPU fetches ahead.
"""

from __future__ import annotations

from rawkern.engines.cpu.flow import Flow
from rawkern.engines.cpu.operands import base, destinations, sources
from rawkern.engines.cpu.ptx import Special

_CARRIES = frozenset(("mov", "add", "mul", "mad", "shl", "cvt"))  # what makes a step of the size of a block


def row_loops(flow: Flow) -> frozenset[int]:
    """Headers of innermost loops that read global memory and step by the width of the block, or multiples of it."""
    found = set()
    widths: set[str] | None = None
    for header, members in flow.loops:
        if any(h != header and h in members for h, _ in flow.loops):
            continue
        blocks = [flow.blocks[m] for m in members]
        instrs = [instr for block in blocks for instr in block.instrs]
        loads = any(base(i.op) == "ld" and (".global" in i.op or ".nc" in i.op) for i in instrs)
        if not loads or any(block.kind in ("barrier", "meeting") for block in blocks):
            continue
        widths = _widths(flow) if widths is None else widths
        own = {name for i in instrs for name in destinations(i)}
        if any(base(i.op) == "add" and (widths - own).intersection(sources(i)) for i in instrs):
            found.add(header)
    return frozenset(found)


def _widths(flow: Flow) -> set[str]:
    """Registers that are made of ``%ntid.x`` and not of ``%tid``."""
    found: set[str] = set()
    threads: set[str] = set()
    instrs = [instr for instr in flow.instructions() if base(instr.op) in _CARRIES]
    changed = True
    while changed:
        before = len(found) + len(threads)
        for i in instrs:
            read = set(sources(i)) | {a.name for a in i.args if isinstance(a, Special)}
            if read & threads or any(name.startswith("%tid") for name in read):
                threads.update(destinations(i))
            if read & found or "%ntid.x" in read:
                found.update(destinations(i))
        changed = len(found) + len(threads) > before
    return found - threads
