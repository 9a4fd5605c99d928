"""Registers that hold the same in each lane whenever they are written: addresses of variables, parameters, indices.

Compilers compute them where they are used, in loops as well. Where lanes may wait anywhere that would be a write which
has to keep the values of waiting lanes, and nothing would be known any more of what lanes share. So they are computed
once, at the start, in their best form.
"""

from __future__ import annotations

from collections import Counter

from rawkern.engines.cpu.analysis.graph import Flow
from rawkern.engines.cpu.analysis.uniformity import Kind, V
from rawkern.engines.cpu.ptx.data import Function, Imm, Instr, Mem, Reg, Special, Sym
from rawkern.engines.cpu.ptx.operands import destinations, registers

_INDICES = ("%tid.", "%ntid.", "%ctaid.", "%nctaid.", "%laneid")


def fixed_registers(function: Function, flow: Flow, kinds: dict[str, Kind]) -> dict[str, Instr]:
    """The instructions that write such registers, in order; of those alone whose lanes share something."""
    writes = Counter(name for instr in flow.instructions() for name in destinations(instr))
    found: dict[str, Instr] = {}
    for block in flow.blocks:
        for instr in block.instrs:
            for name in destinations(instr):
                once = writes[name] == 1 and name not in flow.live_in[0]
                if once and kinds.get(name, V) != V and _is_fixed(function, instr, found):
                    found[name] = instr
    return found


def _is_fixed(function: Function, instr: Instr, found: dict[str, Instr]) -> bool:
    """Whether an instruction depends on nothing that changes, and does not ask which lanes are active."""
    dest, *args = instr.args
    if not isinstance(dest, Reg):
        return False
    if instr.op.base == "ld":
        return (
            instr.op.space == "param" and function.entry and isinstance(args[0], Mem) and isinstance(args[0].base, Sym)
        )
    integers = all(t.kind in "sub" for t in instr.op.types)
    if not instr.op.facts.index or not integers or instr.op.has("cc"):
        return False
    if not all(isinstance(a, (Reg, Imm, Sym, Special)) for a in args):
        return False
    return all(r.name in found for r in registers(args)) and all(
        a.name.startswith(_INDICES) for a in args if isinstance(a, Special)
    )
