"""Registers whose values stay in memory, where lanes may wait anywhere, and which of them are not split for that."""

from __future__ import annotations

from collections.abc import Iterable

from rawkern.engines.cpu.analysis.divergence import Analysis
from rawkern.engines.cpu.analysis.graph import Flow
from rawkern.engines.cpu.analysis.ssa import origin
from rawkern.engines.cpu.analysis.uniformity import V
from rawkern.engines.cpu.ptx.operands import destinations, sources

#: Registers times the square of the places where the code looks for waiting lanes: about as many microseconds of
#: LLVM's time to find machine registers for them.
MERGES = 1_000_000


def registers_in_memory(flow: Flow, analysis: Analysis) -> frozenset[str]:
    """Registers whose slots stay memory.

    Where lanes may wait anywhere, every block is on the way to every other, and the values of all lanes are merged at
    each: LLVM takes minutes to find that they do not fit into machine registers. What small loops write is left to it,
    as far as that takes about a second.
    """
    if not (analysis.free_running and analysis.checks):
        return frozenset()
    size = _smallest(((i, name) for i, name in analysis.blends), flow)
    return frozenset(sorted(size, key=lambda name: (size[name], name))[MERGES // len(analysis.checks) ** 2 :])


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
    written = {(i, name) for i, block in enumerate(flow.blocks) for x in block.instrs for name in destinations(x)}
    size = _smallest(read | written, flow)
    kept: dict[str, int] = {}  # the smallest loop that uses a value of a register in memory
    for name in memory:
        kept[origin(name)] = min(size.get(name, len(flow.blocks)), kept.get(origin(name), len(flow.blocks)))
    gain = {origin(name) for _, name in read if analysis.kinds.get(name, V) != V}
    gain |= {origin(x) for x, loop in size.items() if x not in memory and loop < kept.get(origin(x), 0)}
    return frozenset(kept.keys() - gain)
