"""Checked builds: threads that should meet at a barrier or a warp instruction, and do not."""

from __future__ import annotations

from rawkern.engines.cpu.analysis.graph import Flow, closure
from rawkern.engines.cpu.checker import undefined
from rawkern.engines.cpu.checker.sites import add_site, blame, checked, meeting_site, note
from rawkern.engines.cpu.emit.forms import LANES, ramp
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.warp import permute
from rawkern.engines.cpu.ir import Val, const
from rawkern.engines.cpu.ptx.data import Instr


def arrive(f: FunctionLowering, instr: Instr, number: Val, counted: bool) -> None:
    """A warp comes to a barrier; `counted`: the barrier says how many threads it takes."""
    same = _is_aligned(instr) and not counted
    site = add_site(f, meeting_site(f, instr))
    note(f, "arrive", number, site, const("i64", int(same)))


def _is_aligned(instr: Instr) -> bool:
    """Whether all threads must come to the same barrier instruction."""
    return instr.op.meets == "block" and (instr.op.base == "bar" or instr.op.has("aligned"))


def meeting_points(f: FunctionLowering) -> dict[int, list[int]]:
    """For blocks where lanes meet after a branch: the blocks of barriers and warp instructions passed by."""
    kept = checked(f)
    if kept.meeting_points is None:
        found = kept.meeting_points = {}
        places = [
            k
            for k, block in enumerate(f.flow.blocks)
            if any(_is_aligned(x) or x.op.meets == "mask" for x in block.instrs)
        ]
        for i in f.analysis.divergent if f.function.entry else ():
            stop, between = f.flow.ipdom[i], _between(f.flow, i)
            if stop is not None and not _is_shared_end(f, stop):
                known = found.setdefault(stop, [])
                known += [k for k in places if k in between and k not in known]
    return kept.meeting_points


def _is_shared_end(f: FunctionLowering, block: int) -> bool:
    """Whether a block is the end of several ways of the source, which the compiler has made one: lanes there return.

    What it makes of instructions of different lines has line 0. Threads that have returned are not waited for.
    """
    first = next(iter(f.flow.blocks[block].instrs), None)
    merged = first is not None and getattr(f.plan.ptx.locs[first.loc], "line", 1) == 0
    return merged and not _waits_later(f.flow, block)


def _between(flow: Flow, index: int) -> set[int]:
    """Blocks that lanes can pass after those of block `index` part and before they meet; none if they never do."""
    stop = flow.ipdom[index]

    def on(block: int) -> list[int]:
        return [t for t in flow.lane_targets(block) if t != stop]

    return closure(on(index), on) if stop is not None else set()


def passing(f: FunctionLowering, block: int) -> None:
    """Lanes are where others, which wait at a barrier, meet them later: they have passed it by."""
    if f.analysis.free_running:
        e = f.e
        for key in (k for k in meeting_points(f).get(block, ()) if f.flow.blocks[k].kind == "barrier"):
            some = e.cmp("icmp ne", e.let("i32", 1, f"load i32, ptr {f.frame.word(f'park{key}')}"), 0)
            old = e.let("i32", 1, f"load i32, ptr {f.frame.word(f'missed{key}')}")
            e.line(f"store {e.bin('or', old, e.select(some, f.lanes.act(), 0))}, ptr %missed{key}")


def missed(f: FunctionLowering, key: int, came: Val, instr: Instr) -> None:
    """The lanes that wait at block `key` go on: those that passed by it and have not come are missing."""
    if any(key in keys for keys in meeting_points(f).values()):
        e = f.e
        gone = e.bin("and", e.let("i32", 1, f"load i32, ptr {f.frame.word(f'missed{key}')}"), e.invert(came))
        blame(f, "DIVERGENT_BARRIER", e.select(e.cmp("icmp ne", gone, 0), came, 0), instr, gone)
        e.line(f"store i32 0, ptr %missed{key}")


def is_alone(f: FunctionLowering, instr: Instr, named: Val | None = None) -> None:
    """Where no other lanes can come to an instruction: none that it needs may have passed it by.

    Those that a warp instruction has `named` may, if they end without waiting for anybody themselves.
    """
    e, absent = f.e, const("i32", 0)
    for stop, keys in meeting_points(f).items():
        if f.block in keys and stop in f.analysis.waitable and (named is None or _waits_later(f.flow, stop)):
            absent = e.bin("or", absent, e.let("i32", 1, f"load i32, ptr %wait{stop}"))
    if absent.ref == "0":
        return
    if named is not None:
        bits = e.bin("and", e.splat(named, LANES), e.splat(absent, LANES))
        lanes = e.bin("and", f.lanes.mask_of(e.cmp("icmp ne", bits, 0)), f.lanes.act())
        blame(f, "MASK_NOT_HERE", lanes, instr, absent)
    elif _is_aligned(instr):
        blame(f, "DIVERGENT_BARRIER", e.select(e.cmp("icmp ne", absent, 0), f.lanes.act(), 0), instr, absent)


def _waits_later(flow: Flow, block: int) -> bool:
    """Whether there is an instruction at which threads meet from a block on."""
    places = flow.reachable(block) | {block}
    return any(x.op.meets in ("block", "mask") for k in places for x in flow.blocks[k].instrs)


def part_ways(f: FunctionLowering, freed: dict[int, Val]) -> None:
    """The warp arrives at a barrier for the lanes `freed` at each block: all that live should be at one."""
    alive = f.e.let("i32", 1, "load i32, ptr %alive")
    for key, lanes in freed.items():
        instr = f.flow.blocks[key].instrs[-1]
        if _is_aligned(instr):
            missed(f, key, lanes, instr)
            rest = f.e.bin("and", alive, f.e.invert(lanes))
            some = f.e.cmp("icmp ne", rest, 0)
            blame(f, "DIVERGENT_BARRIER", f.e.select(some, lanes, 0), instr, rest)


def members(f: FunctionLowering, instr: Instr, mask: Val) -> None:
    """Each lane must be named by its own mask."""
    own = f.e.bin("and", f.e.bin("lshr", f.e.splat(mask, LANES), ramp("i32", 1)), 1)
    outside = f.e.bin("and", f.lanes.mask_of(f.e.cmp("icmp eq", own, 0)), f.lanes.act())
    blame(f, "MASK_WITHOUT_SELF", outside, instr)


def source_lanes(f: FunctionLowering, instr: Instr, dest: str, source: Val, inside: Val, named: Val) -> None:
    """What a lane gets from one that does not take part is undefined: to use it is a mistake, to get it is none.

    Reductions by ``shfl.down`` get such values at their ends.
    """
    e = f.e
    there = e.bin("and", e.bin("lshr", e.splat(named, LANES), source), 1)
    bad = e.bin("and", f.lanes.mask_of(e.cmp("icmp eq", there, 0)), f.lanes.mask_of(inside))
    got = undefined.known(f, instr.args[1])
    if got != undefined.SET:  # what another lane has not set is no better here
        got = e.resize(permute(f, e.resize(got, "i32"), source), "i16")
    undefined.exchanged(f, dest, e.bin("and", bad, f.lanes.act()), add_site(f, meeting_site(f, instr)), got)
