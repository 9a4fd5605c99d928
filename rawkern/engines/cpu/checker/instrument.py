"""The checker as an instrument: which of the checker's parts emits code for which event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from rawkern.engines.cpu.analysis.plan import Plan
from rawkern.engines.cpu.checker import collectives, memory, pattern, sites, uninitialized, uninitialized_tiles
from rawkern.engines.cpu.checker.bounds import PATTERN
from rawkern.engines.cpu.checker.native import layout
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import Instrument
from rawkern.engines.cpu.ir import Val, const
from rawkern.engines.cpu.ptx.data import Instr


class Checker(Instrument):
    """A checked build."""

    name = "checked"
    own = ("rk_check_", "rk_run_", *PATTERN)
    barrier_opens = "call void @rk_check_opens(ptr %blk, i32 %id)"
    cluster_opens = "call void @rk_check_cluster_opens(ptr %first)"
    operation_left = "call void @rk_check_operation_left(ptr %blk, i32 %warp, i64 %thread, i64 %site)"

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self.sites: dict[sites.Site, int] = {}  # places that the checker can name, with their numbers

    def watch(self, f: FunctionLowering) -> Checks:
        return Checks(f, self.sites)

    def table(self) -> dict[str, Any]:
        return sites.table(self.plan, self.sites)

    def block_begins(self) -> str:
        return pattern.block_begins(self.plan)

    @classmethod
    def linked(cls) -> str:
        return f"{sites.connection()}\n{pattern.DECLARATIONS}"

    @classmethod
    def runtime(cls) -> str:
        types = "\n".join(record.llvm for record in pattern.RECORDS)
        return f"{types}\n{sites.checker()}\n{pattern.runtime()}"


class DependentChecker(Checker):
    """A checked build for launches that may begin before the launch before them has ended."""

    name = "checked-dependent"

    def watch(self, f: FunctionLowering) -> Checks:
        checks = super().watch(f)
        checks.dependent = True
        return checks


def _event(emit: Callable[..., Any]) -> Callable[..., Any]:
    """A watch's method that is a function of the function being lowered."""
    return lambda self, *args: emit(self.f, *args)


class Checks(sites.Checked):
    """The checks of one function."""

    whole_addresses = True
    sees_values = True
    sees_products = True
    prefetches = False
    whole_warps = False
    has_heap = True

    enter = _event(sites.enter)
    block = _event(collectives.passing)
    branch = _event(uninitialized.branch)
    access = _event(memory.access)
    around = _event(memory.around)
    lines = _event(memory.lines)
    shuffled = _event(collectives.source_lanes)
    note = _event(sites.note)

    def instruction(self, instr: Instr) -> None:
        follow = uninitialized_tiles.follow if uninitialized_tiles.follows(instr.op) else uninitialized.follow
        follow(self.f, instr)

    def edge(self, target: int, copies: Sequence[tuple[str, str]], mask: Val) -> None:
        uninitialized.edge(self.f, target, copies, mask)
        collectives.leaves(self.f, target, mask)

    def malloc(self, size: Val) -> Val:
        return sites.heap_call(self.f, "malloc", size)

    def free(self, address: Val) -> None:
        sites.heap_call(self.f, "free", address)

    def arrive(self, instr: Instr, number: Val, counted: bool) -> None:
        if not self.f.analysis.free_running:
            collectives.is_alone(self.f, instr)
        collectives.ended(self.f, self.f.block)
        collectives.arrive(self.f, instr, number, counted, goes_on=instr.op.has("arrive"))

    def arrive_divergent(self, number: Val, lanes: dict[int, Val]) -> None:
        collectives.divergent_arrival(self.f, lanes)
        first = self.f.flow.blocks[next(iter(lanes))].instrs[-1]
        goes_on = any(self.f.flow.blocks[k].instrs[-1].op.has("arrive") for k in lanes)
        collectives.arrive(self.f, first, number, counted=True, goes_on=goes_on)

    def depart(self, number: Val) -> None:
        sites.note(self.f, "depart", number)

    def cluster_arrive(self, instr: Instr) -> None:
        what = "cluster_relaxed" if instr.op.has("relaxed") else "cluster_arrive"
        sites.note(self.f, what, sites.add_site(self.f, sites.collective_site(self.f, instr)))

    def cluster_wait(self, instr: Instr) -> None:
        sites.note(self.f, "cluster_wait", sites.add_site(self.f, sites.collective_site(self.f, instr)))

    def cluster_depart(self) -> None:
        sites.note(self.f, "cluster_depart")

    def collective(self, instr: Instr, mask: Val) -> None:
        collectives.members(self.f, instr, mask)
        if self.f.flow.blocks[self.f.block].kind != "collective":  # where others come to it on another way as well
            collectives.is_alone(self.f, instr, mask)

    def incomplete(self, instr: Instr, lanes: Val) -> None:
        sites.blame(self.f, "MASK_NOT_HERE", lanes, instr)

    def mbarrier(self, what: Literal["init", "inval", "arrive", "test"], places: Val, lanes: Val) -> None:
        number = {"init": layout.INIT, "inval": layout.INVAL, "arrive": layout.ARRIVE, "test": layout.TEST}[what]
        sites.put_field(self.f, "addresses", self.f.e.splat(places, LANES))
        site = sites.add_site(self.f, sites.collective_site(self.f, self.f.instr))
        sites.note(self.f, "object", const("i64", number), lanes, site)

    def completes_at(self, places: Val) -> None:
        sites.put_field(self.f, "addresses", self.f.e.splat(places, LANES))
        sites.note(self.f, "completes_at", self.f.lanes.act())

    def product(self, instr: Instr, number: Val, left: Val | None, right: Val) -> None:
        site = sites.add_site(self.f, sites.collective_site(self.f, instr))
        sites.note(self.f, "descriptors", site, number, left or const("i64", 0), right)
        sites.note(self.f, "fenced_product", site, const("i64", int(id(instr) in self.f.rewritten)))

    def operation(self) -> Val:
        instr = self.f.instr
        number = sites.add_site(self.f, sites.collective_site(self.f, instr))
        return self.f.e.bin("add", number, 1)

    def early_read(self, instr: Instr, product: Instr, early: Val) -> None:
        lanes = self.f.e.select(early, self.f.lanes.act(), const("i32", 0))
        other = sites.add_site(self.f, sites.collective_site(self.f, product))
        sites.blame(self.f, "EARLY_READ", lanes, instr, other)
