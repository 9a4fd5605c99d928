"""Which parameters' memory a kernel may write to."""

from __future__ import annotations

from rawkern.engines.cpu.analysis.plan import Plan
from rawkern.engines.cpu.analysis.provenance import find_roots
from rawkern.engines.cpu.ptx.data import Instr, Mem, Reg
from rawkern.engines.cpu.ptx.facts import UNKNOWN

OWN = ("shared", "local", "param")  # memory that does not belong to an argument
_SHARED = ("cp.async.ca", "cp.async.cg")  # copies of a few bytes, which all go to shared memory
_ELSEWHERE = ("cp", "sust", "wgmma", "tcgen05", "discard")  # what these write is not followed


def written(plan: Plan) -> frozenset[int] | None:
    """Offsets of the parameters whose addresses stores go to; None where that is not known of some store."""
    found: set[int] = set()
    for function in plan.functions:
        roots = find_roots(plan, function)
        for instr in plan.flows[function.name].instructions():
            if instr.op.facts is UNKNOWN or instr.op.base in _ELSEWHERE:
                return None
            if not instr.op.writes or instr.op.space.split("::")[0] in OWN or instr.op.name in _SHARED:
                continue
            if instr.op.base.startswith("mbarrier"):
                continue
            root = _root(instr, roots)
            if root is None:
                return None
            if root[0] == "param":
                found.add(int(root[1]))
    return frozenset(found)


def _root(instr: Instr, roots: dict) -> tuple | None:
    """What the address comes from that an instruction writes to."""
    places = [a.base for a in instr.args if isinstance(a, Mem)]
    names = [p.name for p in places if isinstance(p, Reg)] or [getattr(p, "name", "") for p in places]
    return roots.get(names[0]) if len(names) == 1 else None
