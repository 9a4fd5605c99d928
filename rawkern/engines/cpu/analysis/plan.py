"""What is settled about a kernel before code is emitted: its functions, their control flow, and where variables lie."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from rawkern.engines.cpu.analysis import control_flow, inline, prototypes
from rawkern.engines.cpu.analysis.divergence import Analysis, analyze
from rawkern.engines.cpu.analysis.fixed import fixed_registers
from rawkern.engines.cpu.analysis.graph import Flow
from rawkern.engines.cpu.analysis.in_memory import whole_registers
from rawkern.engines.cpu.analysis.parameters import named_directly
from rawkern.engines.cpu.analysis.rounds import Rounds, find_rounds
from rawkern.engines.cpu.analysis.ssa import split_registers
from rawkern.engines.cpu.analysis.storage import Globals, lay_out_shared, reached
from rawkern.engines.cpu.ptx.data import Function, Instr, Ptx, describe
from rawkern.engines.cpu.records import SEGMENTS
from rawkern.errors import UnsupportedError


@dataclass(frozen=True)
class Plan:
    """A kernel with the functions it calls, for one shape of block."""

    ptx: Ptx
    kernel: str
    layout: Globals
    tid_shape: str  # how a warp's threads lie in a block (`grid.shape_of`)
    functions: list[Function]  # the kernel and those it calls, without those that became part of their callers
    flows: dict[str, Flow]
    analyses: dict[str, Analysis]
    shared: dict[str, int]  # offsets of variables in shared memory
    shared_static: int
    recursive: set[str]  # functions that may call themselves
    waiting_functions: set[str]  # functions that wait for other threads and are called nevertheless
    waiting: bool  # warps have stacks of their own and may wait
    remote: bool  # addresses may lead to the shared memory of other blocks: there is a ``mapa`` or a multicast
    rounds: Rounds | None = None  # how its blocks run in rounds, if they do (`in_rounds`)
    sites: list[str] = field(default_factory=list)  # source lines that requests to Python name, found while emitting

    def in_rounds(self) -> Plan:
        """The plan in which the kernel's blocks run in rounds, if they can."""
        if not self.waiting or len(self.functions) > 1:
            return self
        name = self.functions[0].name
        function, flow, analysis = self.functions[0], self.flows[name], self.analyses[name]
        rounds = find_rounds(function, flow, analysis)
        if rounds is None:
            return self
        analysis = replace(analysis, fixed=fixed_registers(function, flow, analysis.kinds))
        return replace(self, rounds=rounds, waiting=False, analyses={name: analysis})

    def where(self, loc: int) -> str:
        """The CUDA source line of an instruction."""
        return describe(self.ptx.locs[loc] if 0 <= loc < len(self.ptx.locs) else None)

    def has_line(self, loc: int) -> bool:
        """Whether an instruction comes from one line of CUDA: the compiler has made the others."""
        place = self.ptx.locs[loc] if 0 <= loc < len(self.ptx.locs) else None
        return place is not None and place.line > 0

    def site(self, loc: int) -> int:
        """Number of an instruction's source line in `sites`."""
        text = self.where(loc)
        if text not in self.sites:
            self.sites.append(text)
        return self.sites.index(text)


def _analyzed(function: Function, segments: int, called: set[str], graph: inline.Calls) -> tuple[Flow, Analysis]:
    """Control flow and analysis of a function, with places for lanes to meet where they may come to them apart."""
    result = split_registers(control_flow.build(function))
    look = partial(graph.look, function)
    analysis = analyze(function, result, segments, called, look)
    if analysis.free_running:
        collectives, whole = inline.has_collectives(function), whole_registers(result, analysis)
        if collectives or whole:
            result = split_registers(control_flow.build(function, collectives), whole)
            analysis = analyze(function, result, segments, called, look, free_running=True)
    return result, analysis


@contextlib.contextmanager
def _of(kernel: str) -> Iterator[None]:
    """Errors raised inside name the kernel."""
    try:
        yield
    except UnsupportedError as error:
        raise UnsupportedError(f"{kernel}: {error}") from None


def make_plan(ptx: Ptx, kernel: str, layout: Globals, tid_shape: str) -> Plan:
    """Analyse `kernel` for blocks of one shape."""
    every = reached(ptx, kernel)
    with _of(kernel):
        for f in every:
            prototypes.check_calls(ptx, f)
    graph = inline.calls(ptx, every)
    waiting, recursive = inline.waiting_functions(graph), inline.recursive_functions(graph)
    inlined, called = (waiting | inline.collective_functions(graph)) - recursive, waiting & recursive
    functions = [named_directly(inline.expand(graph, f, inlined)) for f in every if f.name not in inlined]
    flows, analyses = {}, {}
    for f in functions:
        with _of(kernel):
            flows[f.name], analyses[f.name] = _analyzed(f, SEGMENTS.get(tid_shape, 0), called, graph)
    shared, shared_static = lay_out_shared(ptx, functions)
    remote = any(
        isinstance(i, Instr) and (i.op.base == "mapa" or i.op.has("multicast::cluster"))
        for f in functions
        for i in f.body
    )
    together = any(isinstance(i, Instr) and i.op.base == "wgmma" for f in functions for i in f.body)
    waits = (
        remote
        or together
        or any(
            analyses[f.name].spin_headers or any(block.kind == "barrier" for block in flows[f.name].blocks)
            for f in functions
        )
    )
    return Plan(
        ptx, kernel, layout, tid_shape, functions, flows, analyses, shared, shared_static, recursive, called, waits,
        remote,
    )  # fmt: skip
