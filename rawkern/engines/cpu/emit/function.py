"""What instructions are lowered with."""

from __future__ import annotations

from collections.abc import Iterable

from rawkern.base.forking import cached_property
from rawkern.engines.cpu.analysis.divergence import Analysis
from rawkern.engines.cpu.analysis.graph import Flow
from rawkern.engines.cpu.analysis.plan import Plan
from rawkern.engines.cpu.analysis.polling import polling_loops
from rawkern.engines.cpu.analysis.products import EarlyReads, early_reads, rewritten
from rawkern.engines.cpu.analysis.provenance import Root, find_roots
from rawkern.engines.cpu.analysis.row_loops import row_loops
from rawkern.engines.cpu.emit.context import Context
from rawkern.engines.cpu.emit.instrument import Instrument
from rawkern.engines.cpu.emit.kept import Kept
from rawkern.engines.cpu.emit.names import Parameters
from rawkern.engines.cpu.emit.values import Values
from rawkern.engines.cpu.ir import Module
from rawkern.engines.cpu.ptx.data import Function, Mem, Reg, Sym


class Control:
    """Where lanes go: loops of a special kind, and the places at which the code looks for lanes that wait."""

    def __init__(self, flow: Flow, analysis: Analysis):
        self.rows = row_loops(flow)
        self.polling = polling_loops(flow, analysis.spin_headers)
        self.whole = False  # what is emitted runs with all lanes
        self.looks: dict[int, set[int]] = {}  # by block: those at which lanes can wait when the code looks there
        if analysis.free_running and analysis.checks:
            self.looks[analysis.checks[0]] = set(analysis.checks)

    def look(self, places: Iterable[int]) -> str:
        """Label to go to when lanes can wait at `places` only: the first at which some do runs next."""
        found = set(places)
        if not found:
            return "end"
        self.looks.setdefault(min(found), set()).update(found)
        return f"c{min(found)}"

    def diverge(self) -> None:
        """From here to the end of the block lanes may have left each other."""
        self.whole = False


class FunctionLowering(Context):
    """A function that is being emitted, with its registers, parameters and control."""

    def __init__(self, plan: Plan, module: Module, function: Function, instrument: Instrument):
        super().__init__(plan, module, function)
        self.values, self.parameters = Values(self), Parameters(self)
        self.control = Control(self.flow, self.analysis)
        self.watch = instrument.watch(self)
        self.kept = Kept(plan.rounds, self, self.values) if plan.rounds is not None else None
        self.in_turn = not instrument.barrier_opens  # barriers need not be counted

    @cached_property
    def provenance(self) -> dict[str, Root]:
        """What addresses are made of."""
        return find_roots(self.plan, self.function)

    @cached_property
    def early(self) -> EarlyReads:
        """Where sums of products are read that may not be there yet."""
        return early_reads(self.flow, self._array)

    @cached_property
    def rewritten(self) -> frozenset[int]:
        """Products that need a ``wgmma.fence`` after the last product before them."""
        return rewritten(self.flow, self._array)

    def _array(self, mem: Mem) -> Root | None:
        root = self.provenance.get(mem.base.name) if isinstance(mem.base, (Reg, Sym)) else None
        return root if root is not None and root[0] == "local" else None

    def begin(self, block: int, whole: bool = False) -> None:
        """A block begins, for `whole` warps or any lanes: forget what holds only inside of one."""
        self.block, self.cache, self.control.whole = block, {}, whole
        self.values.begin()

    def end(self) -> None:
        """All is emitted: let go of the parts, which refer back, so that they are freed at once."""
        vars(self).clear()
