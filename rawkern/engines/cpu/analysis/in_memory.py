"""Registers whose values stay in memory, where lanes may wait anywhere, and which of them are not split for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rawkern.engines.cpu.analysis.divergence import Analysis
from rawkern.engines.cpu.analysis.graph import Flow
from rawkern.engines.cpu.analysis.ssa import origin
from rawkern.engines.cpu.analysis.uniformity import V
from rawkern.engines.cpu.ptx.operands import destinations, sources

#: The squares of how many places a register's values meet at, summed over registers: LLVM takes 1 to 20 microseconds
#: each to find machine registers for them.
MERGES = 50_000


def registers_in_memory(flow: Flow, analysis: Analysis) -> frozenset[str]:
    """Registers whose slots stay memory.

    Where lanes may wait anywhere, every block is on the way to every other, and the values that registers have there
    are merged at each: LLVM takes minutes to find that they do not fit into machine registers. What small loops write
    is left to it, as far as that takes part of a second.
    """
    if not (analysis.free_running and analysis.checks):
        return frozenset()
    tuples = {name for names in flow.tuples for name in names}  # in memory in any case
    merges = Counter(name for w in analysis.checks for name in flow.live_in[w] if name not in tuples)
    merges |= Counter({name: len(analysis.checks) for _, name in analysis.blends if name in merges})  # kept throughout
    size = _smallest(_written(flow), flow)
    left, found = MERGES, set()
    for name in sorted(merges, key=lambda name: (size.get(name, len(flow.blocks)), name)):
        left -= merges[name] ** 2
        if left < 0:
            found.add(name)
    return frozenset(found)


def _written(flow: Flow) -> set[tuple[int, str]]:
    """The registers that are written, by block, with those that edges from it copy."""
    found = {(i, name) for i, block in enumerate(flow.blocks) for x in block.instrs for name in destinations(x)}
    found |= {
        (i, name) for i, block in enumerate(flow.blocks) for copies in block.copies.values() for name, _ in copies
    }
    return found


def _smallest(uses: Iterable[tuple[int, str]], flow: Flow) -> dict[str, int]:
    """How many blocks the smallest loop has in which a register is used; `uses` by block."""
    count = len(flow.blocks)
    around = [min((len(members) for _, members in flow.loops if i in members), default=count) for i in range(count)]
    size: dict[str, int] = {}
    for i, name in uses:
        size[name] = min(around[i], size.get(name, count))
    return size


def whole_registers(flow: Flow, analysis: Analysis) -> frozenset[str]:
    """Registers, by their first names, that gain nothing by being split: their values stay in memory and vary.

    Where paths meet, each would be copied from one place in memory to another. Values that lanes share, or that a
    smaller loop has in machine registers, are a gain; the former only where an instruction reads them.
    """
    memory = registers_in_memory(flow, analysis)
    if all(name == origin(name) for name in memory):
        return frozenset()
    read = {(i, name) for i, block in enumerate(flow.blocks) for instr in block.instrs for name in sources(instr)}
    read |= {(i, block.pred.name) for i, block in enumerate(flow.blocks) if block.pred is not None}
    size = _smallest(read | _written(flow), flow)
    kept: dict[str, int] = {}  # the smallest loop that uses a value of a register in memory
    for name in memory:
        kept[origin(name)] = min(size.get(name, len(flow.blocks)), kept.get(origin(name), len(flow.blocks)))
    gain = {origin(name) for _, name in read if analysis.kinds.get(name, V) != V}
    gain |= {origin(x) for x, loop in size.items() if x not in memory and loop < kept.get(origin(x), 0)}
    return frozenset(kept.keys() - gain)
