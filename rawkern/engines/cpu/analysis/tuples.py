"""Registers that are contiguous in memory: sums of a warp group's products (``wgmma``), up to 128 at a time.

A product takes its sums from memory and leaves them there. PTX names one list of registers for both, and compilers the
same for all products that add to one tile. Such a list keeps its place in memory, so nothing is moved around a product.
"""

from __future__ import annotations

from collections.abc import Iterable

from rawkern.engines.cpu.ptx.data import TYPE_BYTES, Instr, Vec
from rawkern.engines.cpu.ptx.operands import registers

Tuples = list[tuple[str, ...]]


def sum_tuples(instrs: Iterable[Instr], types: dict[str, str]) -> Tuples:
    """The lists of sums that share no register with another list; `types`: those of all registers."""
    found: dict[tuple[str | None, ...], None] = {}
    factors: set[str] = set()  # a product reads these while it writes its sums
    for instr in instrs:
        if instr.op.name == "wgmma.mma_async" and isinstance(instr.args[0], Vec):
            found[tuple(reg and reg.name for reg in instr.args[0].items)] = None
            factors.update(reg.name for reg in registers(instr.args[2:]))
    owners: dict[str | None, list[tuple[str | None, ...]]] = {}
    for names in found:
        for name in names:
            owners.setdefault(name, []).append(names)

    def suits(name: str | None) -> bool:
        return name is not None and name not in factors and TYPE_BYTES[types[name]] == 4 and len(owners[name]) == 1

    return [tuple(filter(None, names)) for names in found if all(map(suits, names))]
