"""Which places at which lanes wait for each other can be met by lanes that took different ways.

``bar`` waits for the other threads of the block, ``shfl.sync`` and its like for the lanes that their mask names,
wherever those come to such an instruction. Where lanes that are elsewhere cannot come to a fitting one before they have
to wait themselves, a program that is in order does not name them: the lanes that are there are all there will be.
"""

from __future__ import annotations

from rawkern.engines.cpu.analysis.graph import Flow
from rawkern.engines.cpu.ptx.data import Imm, Instr, Reg
from rawkern.engines.cpu.ptx.operands import callee


def lanes_can_wait_apart(
    flow: Flow, concurrent: list[frozenset[int]], constants: dict[str, Imm], waiting: set[str]
) -> bool:
    """Whether somewhere lanes may have to wait for others that went another way.

    `concurrent` gives, for each block, the blocks at which other lanes can be meanwhile; `waiting` names the functions
    that wait when they are called: of those all is taken to be possible.
    """
    for block, places in zip(flow.blocks, concurrent, strict=True):
        for x in block.instrs if places else ():
            if callee(x) in waiting:
                return True
            if x.op.collective in ("block", "mask") and _reached(flow, x, places, constants, waiting):
                return True
    return False


def _reached(flow: Flow, instr: Instr, places: frozenset[int], constants: dict[str, Imm], waiting: set[str]) -> bool:
    seen, work = set(places), list(places)
    while work:
        block = flow.blocks[work.pop()]
        for other in block.instrs:
            if callee(other) in waiting or _fit(instr, other, constants):
                return True
            if _stops(other, constants):  # for the lanes at `instr`, which wait themselves
                break
        else:
            for t in block.targets:
                if t not in seen:
                    seen.add(t)
                    work.append(t)
    return False


def _fit(instr: Instr, other: Instr, constants: dict[str, Imm]) -> bool:
    """Whether lanes at two instructions may be waiting for each other."""
    if instr.op.collective == "block":
        return other.op.collective == "block"
    if instr.op != other.op:
        return False
    mask, mask_of_other = _mask(instr, constants), _mask(other, constants)
    return mask is None or mask_of_other is None or mask == mask_of_other


def _stops(instr: Instr, constants: dict[str, Imm]) -> bool:
    """Whether an instruction lets no lane pass before all lanes of the warp have come."""
    if instr.op.collective == "block":
        count = 4 if instr.op.has("red") else 2
        return not instr.op.has("arrive") and len(instr.args) < count
    return instr.op.collective == "mask" and _mask(instr, constants) == 0xFFFFFFFF


def _mask(instr: Instr, constants: dict[str, Imm]) -> int | None:
    """The lanes that an instruction waits for, where they are written in the program."""
    mask = instr.args[-1]
    if isinstance(mask, Reg):
        mask = constants.get(mask.name)
    return mask.value & 0xFFFFFFFF if isinstance(mask, Imm) else None
