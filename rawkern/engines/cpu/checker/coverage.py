"""Checked builds that tell which sides of branches lanes take, and which parameters decide on them."""

from __future__ import annotations

import re
from typing import Any

from rawkern.engines.cpu.analysis.dataflow import derived
from rawkern.engines.cpu.analysis.graph import Block
from rawkern.engines.cpu.checker import sites, uninitialized
from rawkern.engines.cpu.checker.instrument import Checker, Checks
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.ptx.data import Imm, Mem, Sym
from rawkern.engines.cpu.ptx.operands import destinations, sources


class Coverage(Checker):
    """A checked build whose branches are followed."""

    name = "covered"

    def watch(self, f: FunctionLowering) -> CoveredChecks:
        return CoveredChecks(f, self.sites)

    def table(self) -> dict[str, Any]:
        return {**super().table(), "steering": self._steering()}

    def _steering(self) -> dict[str, list[int]]:
        """The parameters, by number, on which branches depend, with the constants that they are compared with."""
        found: dict[str, list[int]] = {}
        for function in self.plan.functions:
            flow = self.plan.flows[function.name]
            instrs = flow.instructions()
            conditions = {block.pred.name for block in flow.blocks if block.pred is not None}
            loads: dict[str, list[str]] = {}
            for i in instrs if function.entry else ():
                mem = i.args[1] if i.op.base == "ld" and i.op.space == "param" else None
                if isinstance(mem, Mem) and isinstance(mem.base, Sym) and not mem.offset:
                    number = re.search(r"_param_(\d+)$", mem.base.name)
                    if number:
                        loads.setdefault(number[1], []).extend(destinations(i))
            for number, names in loads.items():
                reached = derived(instrs, names)
                if reached.isdisjoint(conditions):
                    continue
                compared = [i for i in instrs if i.op.base == "setp" and not reached.isdisjoint(sources(i))]
                known = found.setdefault(number, [])
                known += sorted({a.value for i in compared for a in i.args if isinstance(a, Imm)} - set(known))
        return found


class CoveredChecks(Checks):
    """The checks of one function, and its branches."""

    def branch(self, block: Block) -> None:
        uninitialized.branch(self.f, block)
        f, e = self.f, self.f.e
        if block.kind != "cond" or block.guards or block.pred is None:
            return
        act = f.lanes.act()
        taken = e.bin("and", act, f.lanes.mask_of(f.values.plain(f.values.operand(block.pred, 1))))
        site = sites.Site("branches", "collective", None, 0, 1, False, 1, sites.place(f, block.ending), branch=f.block)
        number = sites.add_site(f, site)
        sites.note(f, "branch", number, taken, e.bin("and", act, e.invert(taken)))
