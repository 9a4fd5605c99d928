"""Which registers LLVM has to leave in memory, so that large kernels are compiled in time."""

from __future__ import annotations

from rawkern.engines.cpu.analysis.divergence import Analysis
from rawkern.engines.cpu.analysis.graph import Flow

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
    size: dict[str, int] = {}  # of the smallest loop that writes a register, in blocks
    for i, name in analysis.blends:
        around = min((len(members) for _, members in flow.loops if i in members), default=len(flow.blocks))
        size[name] = min(around, size.get(name, around))
    return frozenset(sorted(size, key=lambda name: (size[name], name))[MERGES // len(analysis.checks) ** 2 :])
