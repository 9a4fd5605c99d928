"""Which branches the lanes of a warp can disagree on, where lanes then wait, and what their registers must keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rawkern.engines.cpu.analysis.dataflow import derived
from rawkern.engines.cpu.analysis.fixed import fixed_registers
from rawkern.engines.cpu.analysis.graph import Block, Flow, instructions, numbers
from rawkern.engines.cpu.analysis.pairing import lanes_can_wait_apart
from rawkern.engines.cpu.analysis.uniformity import Getter, Kind, U, V, infer, merge
from rawkern.engines.cpu.analysis.waits import Waits
from rawkern.engines.cpu.ptx.data import Function, Imm, Instr
from rawkern.engines.cpu.ptx.decode import Op
from rawkern.engines.cpu.ptx.operands import destinations, sources


@dataclass
class Analysis:
    """Kinds of all registers, divergent blocks, and which writes must keep other lanes' old values."""

    kinds: dict[str, Kind]
    constants: dict[str, Imm]
    divergent: set[int] = field(default_factory=set)
    concurrent: list[frozenset[int]] = field(default_factory=list)  # per block: where other lanes can wait meanwhile
    blends: set[tuple[int, str]] = field(default_factory=set)
    fresh: list[list[str]] = field(default_factory=list)  # per block: blended registers whose values are not needed yet
    free_running: bool = False  # lanes may wait anywhere: in spin loops, or where others meet them on another way
    fixed: dict[str, Instr] = field(default_factory=dict)  # registers computed at the start, where lanes run freely
    spin_headers: set[int] = field(default_factory=set)
    waitable: frozenset[int] = frozenset()  # blocks where lanes can wait for their turn
    checks: list[int] = field(default_factory=list)  # the same, in order: where the code looks for waiting lanes
    together: dict[str, Kind] = field(default_factory=dict)  # kinds of varying registers if lanes leave loops together,
    # and if factors that are not known are 1

    def can_wait_between(self, i: int, t: int) -> bool:
        """Whether lanes can wait between block `i` and a later block `t`."""
        return any(i < w < t and w in self.waitable for w in self.concurrent[i])


def looks(instr: Instr, used: set[str]) -> bool:
    """Whether an instruction looks at what other threads write, or lets them run; `used` are the registers read."""
    if instr.op.writes:  # an atomic whose result is not read only adds up
        return instr.op.observes and any(name in used for name in destinations(instr))
    return instr.op.observes


def spin_headers(flow: Flow, calls_looking: Callable[[Instr], bool]) -> set[int]:
    """Headers of loops that may wait for another thread: they look at what others write, and branch on it.

    `calls_looking` says whether an instruction calls a function that looks.
    """
    used = {name for instr in flow.instructions() for name in sources(instr)}
    used |= {block.pred.name for block in flow.blocks if block.pred is not None}
    found = set()
    for header, members in flow.loops:
        blocks = [flow.blocks[m] for m in members]
        look = any(looks(i, used) or calls_looking(i) for block in blocks for i in block.instrs)
        if look and _decides_by_memory(blocks):
            found.add(header)
    return found


def _decides_by_memory(blocks: list[Block]) -> bool:
    """Whether a branch in a loop depends on what the loop has read; others go round as often as they would alone."""
    instrs = instructions(blocks)
    calls = any(instr.op.base == "call" for instr in instrs)  # whose results are parameters

    def loads(op: Op) -> bool:  # constant memory does not change while the kernel runs
        fixed = op.space == "const" or op.has("nc") or (op.space == "param" and not calls)
        return op.name == "activemask" or (op.reads and not fixed)

    read = derived(instrs, (name for i in instrs if loads(i.op) for name in destinations(i)))
    return any(block.pred is not None and block.pred.name in read for block in blocks)


def analyze(
    function: Function,
    flow: Flow,
    tid_segments: int,
    waiting: set[str],
    calls_looking: Callable[[Instr], bool],
    free_running: bool = False,
) -> Analysis:
    """Find kinds and divergence together, to a fixpoint.

    Parameters
    ----------
    tid_segments : int
        In how many rows of the block a warp's threads lie, along which ``%tid.x`` grows by one from lane to lane; 0
        where they lie otherwise.
    waiting : set of str
        Functions that wait for other threads when they are called.
    calls_looking : callable
        Whether an instruction calls a function that looks at what other threads write.
    free_running : bool
        Whether it is known that lanes may wait anywhere.
    """
    definitions: dict[str, list[Instr]] = {}
    for block in flow.blocks:
        for instr in block.instrs:
            for name in destinations(instr):
                definitions.setdefault(name, []).append(instr)
    constants = {
        name: writes[0].args[1]
        for name, writes in definitions.items()
        if len(writes) == 1 and writes[0].op.base == "mov" and isinstance(writes[0].args[1], Imm)
    }
    spinning = spin_headers(flow, calls_looking)
    result = Analysis({}, constants, free_running=free_running, spin_headers=spinning)
    forced: set[str] = set()
    fixed: dict[str, Instr] | None = None
    waits = Waits(flow)
    while True:
        result.kinds = _propagate(function, flow, constants, forced, tid_segments)
        if fixed is None:
            fixed = fixed_registers(function, flow, result.kinds)
        result.divergent = {
            i
            for i, block in enumerate(flow.blocks)
            if block.pred is not None and block.kind in ("cond", "switch") and result.kinds.get(block.pred.name, V) != U
        }
        _find_concurrent(flow, result, waiting, waits)
        if result.free_running:
            result.fixed = fixed
        _find_blends(flow, result, {name for name, writes in definitions.items() if len(writes) > 1})
        new = {name for _, name in result.blends if result.kinds.get(name) != V} - forced
        if not new:
            _find_waitable(flow, result)
            _find_fresh(flow, result)
            together = _propagate(function, flow, constants, set(), tid_segments, units=True)
            result.together = {n: k for n, k in together.items() if k != V and result.kinds.get(n) == V}
            return result
        forced |= new


def _find_concurrent(flow: Flow, result: Analysis, waiting: set[str], waits: Waits) -> None:
    """Fill `concurrent`, and find out whether lanes run freely."""
    if not result.free_running:
        waits.diverge(result.divergent)
        result.concurrent = [frozenset(numbers(bits)) for bits in waits.later]
        spinning = bool(result.divergent) and bool(result.spin_headers)
        result.free_running = spinning or lanes_can_wait_apart(flow, result.concurrent, result.constants, waiting)
    if result.free_running:
        places = [0] * len(flow.blocks)
        reached = flow.all_reachable()
        for bits in {reached[i] for i in result.divergent}:
            for b in numbers(bits):
                places[b] |= bits
        shared = {bits: frozenset(numbers(bits)) for bits in set(places)}  # many blocks have the same
        result.concurrent = [shared[bits] for bits in places]


def _find_blends(flow: Flow, result: Analysis, rewritten: set[str]) -> None:
    """Fill `blends`: writes to registers that lanes elsewhere still need the old value of."""
    cyclic = {m for _, members in flow.loops for m in members}
    result.blends = set()
    needed = needed_elsewhere(flow, result)
    for i, block in enumerate(flow.blocks):
        live = needed[i]
        if live:
            for instr in block.instrs:
                for name in destinations(instr):
                    if (
                        name in live
                        and name not in result.fixed
                        and (result.free_running or i in cyclic or name in rewritten)
                    ):
                        result.blends.add((i, name))
        for t, copies in block.copies.items():
            others = [flow.live_in[o] for o in block.targets if o != t] if i in result.divergent else []
            for name, _ in copies:
                if name in live or any(name in other for other in others):
                    result.blends.add((i, name))


def needed_elsewhere(flow: Flow, result: Analysis) -> list[frozenset[str]]:
    """For each block, the registers that lanes need which can wait at other blocks meanwhile."""
    needed = {
        places: frozenset().union(*(flow.live_in[w] for w in places)) for places in dict.fromkeys(result.concurrent)
    }
    return [needed[places] for places in result.concurrent]


def _find_fresh(flow: Flow, result: Analysis) -> None:
    """Fill `fresh`: where registers begin whose writes keep the values of other lanes.

    Otherwise LLVM would carry their old values, which are never read, around every loop.
    """
    blended = {name for _, name in result.blends}
    written: list[set[str]] = [set() for _ in flow.blocks]
    for i, name in result.blends:
        written[i].add(name)
    needed = [
        blended & (live | others) for live, others in zip(flow.live_in, needed_elsewhere(flow, result), strict=True)
    ]
    result.fresh = [
        sorted(written[i].union(*(needed[t] for t in block.targets)) - needed[i]) for i, block in enumerate(flow.blocks)
    ]


def _propagate(
    function: Function, flow: Flow, constants: dict[str, Imm], forced: set[str], tid_segments: int, units: bool = False
) -> dict[str, Kind]:
    """Kinds of all registers, where those of `forced` vary."""
    kinds: dict[str, Kind] = {name: V for name in forced}
    get = Getter(function, kinds, tid_segments, units)
    changed = True
    while changed:
        changed = False
        for block in flow.blocks:
            for instr in block.instrs:
                names = destinations(instr)
                if any(kinds.get(name) != V for name in names):  # else there is nothing to learn
                    kind = infer(instr, get, constants)
                    for name in names:
                        changed |= _learn(kinds, name, kind)
            for copies in block.copies.values():
                for name, source in copies:
                    changed |= _learn(kinds, name, kinds.get(source))
        uninitialized = [] if changed else [name for name in flow.live_in[0] if name not in kinds]
        kinds.update(
            dict.fromkeys(uninitialized, V)
        )  # a register that a loop updates and that was not written before it
        changed |= bool(uninitialized)
    return kinds


def _learn(kinds: dict[str, Kind], name: str, kind: Kind | None) -> bool:
    """Take in the kind of one more value of a register; returns whether anything is new."""
    old = kinds.get(name)
    if kind is None or old == kind:
        return False
    kinds[name] = merge(old, kind)
    return kinds[name] != old


def _find_waitable(flow: Flow, result: Analysis) -> None:
    """Blocks where lanes can wait: targets of divergent branches, and whatever a jump must not leap over."""
    found: set[int] = set()
    for i in result.divergent:
        targets = flow.lane_targets(i)
        if len(targets) > 1 or result.free_running:
            found |= set(targets)
    if result.free_running:
        found |= result.spin_headers
        found |= {block.targets[0] for block in flow.blocks if block.kind in ("barrier", "collective")}
    while True:
        result.waitable = frozenset(found)
        more = {
            t
            for i, block in enumerate(flow.blocks)
            for t in block.targets
            if t > i and t not in found and not flow.blocks[t].exit_only and result.can_wait_between(i, t)
        }
        if not more:
            result.checks = sorted(found)
            return
        found |= more
