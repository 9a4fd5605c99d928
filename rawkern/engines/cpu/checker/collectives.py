"""Checked builds: barrier divergence, and lanes missing at collective instructions of a warp."""

from __future__ import annotations

from rawkern.engines.cpu.analysis.graph import Flow, closure
from rawkern.engines.cpu.checker import uninitialized
from rawkern.engines.cpu.checker.native.layout import KINDS, ON
from rawkern.engines.cpu.checker.sites import add_site, blame, checked, collective_site, note
from rawkern.engines.cpu.emit.forms import LANES, ramp
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.warp import permute
from rawkern.engines.cpu.ir import Val, const
from rawkern.engines.cpu.ptx.data import Instr


def arrive(f: FunctionLowering, instr: Instr, number: Val, counted: bool, goes_on: bool) -> None:
    """A warp comes to a barrier; `counted`: the barrier says how many threads it takes; it `goes_on` at once."""
    same = _is_aligned(instr) and not counted
    site = add_site(f, collective_site(f, instr))
    note(f, "arrive", number, site, const("i64", same | goes_on * ON))


def _is_aligned(instr: Instr) -> bool:
    """Whether all threads must come to the same barrier instruction."""
    return instr.op.collective == "block" and (instr.op.base == "bar" or instr.op.has("aligned"))


def _takes_all(instr: Instr) -> bool:
    """Whether a barrier is one of all the block's threads: it does not say how many it takes."""
    return instr.op.collective == "block" and len(instr.args) == (3 if instr.op.has("red") else 1)


def reconvergence_points(f: FunctionLowering) -> dict[int, list[int]]:
    """For blocks where lanes reconverge: the blocks of barriers and collectives that they may have skipped."""
    kept = checked(f)
    if kept.reconvergence_points is None:
        found = kept.reconvergence_points = {}
        every = [(k, x) for k, block in enumerate(f.flow.blocks) for x in block.instrs]
        places = {k for k, x in every if _is_aligned(x) or x.op.collective == "mask"}
        last = {k for k, x in every if _takes_all(x)}  # missed by lanes that come to none after it
        for i in f.analysis.divergent if f.function.entry else ():
            stop, between = f.flow.ipdom[i], _between(f.flow, i)
            if stop is not None and not _is_shared_end(f, stop):
                known = found.setdefault(stop, [])
                here = places if _waits_later(f.flow, stop) else places | last
                known += [k for k in sorted(here & between) if k not in known]
    return kept.reconvergence_points


def _is_shared_end(f: FunctionLowering, block: int) -> bool:
    """Whether a block is the end of several ways of the source, which the compiler has made one: lanes there return.

    What it makes of instructions of different lines has line 0. Threads that have returned are not waited for.
    """
    first = next(iter(f.flow.blocks[block].instrs), None)
    merged = first is not None and getattr(f.plan.ptx.locs[first.loc], "line", 1) == 0
    return merged and not _waits_later(f.flow, block)


def _between(flow: Flow, index: int) -> set[int]:
    """Blocks between divergence in block `index` and reconvergence; none if lanes never reconverge."""
    stop = flow.ipdom[index]

    def on(block: int) -> list[int]:
        return [t for t in flow.lane_targets(block) if t != stop]

    return closure(on(index), on) if stop is not None else set()


def passing(f: FunctionLowering, block: int) -> None:
    """Lanes are where others, which wait at a barrier, will reconverge with them: they have skipped it."""
    if f.analysis.free_running:
        e = f.e
        for key in (k for k in reconvergence_points(f).get(block, ()) if f.flow.blocks[k].kind == "barrier"):
            some = e.cmp("icmp ne", e.let("i32", 1, f"load i32, ptr {f.frame.word(f'park{key}')}"), 0)
            old = e.let("i32", 1, f"load i32, ptr {f.frame.word(f'missed{key}')}")
            e.line(f"store {e.bin('or', old, e.select(some, f.lanes.act(), 0))}, ptr %missed{key}")


def missed(f: FunctionLowering, key: int, came: Val, instr: Instr) -> None:
    """The lanes that wait at block `key` go on: those that passed by it and have not come are missing."""
    if any(key in keys for keys in reconvergence_points(f).values()):
        e = f.e
        gone = e.bin("and", e.let("i32", 1, f"load i32, ptr {f.frame.word(f'missed{key}')}"), e.invert(came))
        blame(f, "DIVERGENT_BARRIER", e.select(e.cmp("icmp ne", gone, 0), came, 0), instr, gone)
        e.line(f"store i32 0, ptr %missed{key}")


def leaves(f: FunctionLowering, target: int, lanes: Val) -> None:
    """Lanes go on to a block, perhaps where the kernel ends: others may still come to a barrier."""
    if any(f.block in blocks for blocks in _ends_beside(f).values()) and _is_end(f, target):
        old = f.e.let("i32", 1, f"load i32, ptr {f.frame.word(f'ended{f.block}')}")
        f.e.line(f"store {f.e.bin('or', old, lanes)}, ptr %ended{f.block}")


def ended(f: FunctionLowering, key: int) -> None:
    """Lanes come to the barrier of block `key`: others may have ended without it (`rawkern.checked.skips` says how)."""
    e, blocks = f.e, _ends_beside(f).get(key, [])
    gone = [(k, e.let("i32", 1, f"load i32, ptr {f.frame.word(f'ended{k}')}")) for k in blocks]
    if blocks and not f.analysis.free_running:  # those that wait elsewhere come to no barrier any more
        waitable = sorted(f.analysis.waitable - {key})
        gone += [(k, e.let("i32", 1, f"load i32, ptr %wait{k}")) for k in waitable]
    if gone:
        barrier = add_site(f, collective_site(f, f.flow.blocks[key].instrs[-1]))
        with e.where(e.cmp("icmp ne", e.all("or", [lanes for _, lanes in gone]), 0), rare=True):
            for k, lanes in gone:
                block = f.flow.blocks[k]
                site = add_site(f, collective_site(f, block.ending or next(iter(reversed(block.instrs)), None)))
                note(f, "blame", lanes, site, const("i64", KINDS.index("SKIPPED_BARRIER")), barrier)


def _ends_beside(f: FunctionLowering) -> dict[int, list[int]]:
    """For blocks of barriers that take all threads: those from which lanes may end while others come to it."""
    kept = checked(f)
    if kept.ends_beside is None:
        blocks, kept.ends_beside = f.flow.blocks, {}
        barriers = [k for k, b in enumerate(blocks) if any(map(_takes_all, b.instrs))] if f.function.entry else []
        ways = [{i, *(_between(f.flow, i) or f.flow.reachable(i))} for i in f.analysis.divergent] if barriers else []
        ends = [k for k, block in enumerate(blocks) if any(_is_end(f, t) for t in block.targets)]
        for b in barriers:
            kept.ends_beside[b] = [k for k in ends if any(b in way and k in way for way in ways)]
    return kept.ends_beside


def _is_end(f: FunctionLowering, block: int) -> bool:
    """Whether lanes that come to a block return, as far as the source says, and do not end by ``exit``."""
    found = f.flow.blocks[block]
    return _is_shared_end(f, block) or (found.exit_only and (found.ending is None or found.ending.op.base == "ret"))


def is_alone(f: FunctionLowering, instr: Instr, named: Val | None = None) -> None:
    """Where no other lanes can come to an instruction: none that it needs may have passed it by.

    Those that a warp instruction has `named` may, if they end without waiting for anybody themselves.
    """
    e, absent = f.e, const("i32", 0)
    for stop, keys in reconvergence_points(f).items():
        if f.block in keys and stop in f.analysis.waitable and (named is None or _waits_later(f.flow, stop)):
            absent = e.bin("or", absent, e.let("i32", 1, f"load i32, ptr %wait{stop}"))
    if absent.ref == "0":
        return
    if named is not None:
        bits = e.bin("and", e.splat(named, LANES), e.splat(absent, LANES))
        lanes = e.bin("and", f.lanes.mask_of(e.cmp("icmp ne", bits, 0)), f.lanes.act())
        blame(f, "MASK_NOT_HERE", lanes, instr, absent)
    elif _is_aligned(instr) or _takes_all(instr):
        blame(f, "DIVERGENT_BARRIER", e.select(e.cmp("icmp ne", absent, 0), f.lanes.act(), 0), instr, absent)


def _waits_later(flow: Flow, block: int) -> bool:
    """Whether a collective instruction follows from a block on."""
    places = flow.reachable(block) | {block}
    return any(x.op.collective in ("block", "mask") for k in places for x in flow.blocks[k].instrs)


def divergent_arrival(f: FunctionLowering, freed: dict[int, Val]) -> None:
    """The warp arrives at a barrier for the lanes `freed` at each block: all that live should be at one."""
    alive = f.e.let("i32", 1, "load i32, ptr %alive")
    for key, lanes in freed.items():
        instr = f.flow.blocks[key].instrs[-1]
        ended(f, key)
        if _is_aligned(instr) or _takes_all(instr):
            missed(f, key, lanes, instr)
        if _is_aligned(instr):
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
    got = uninitialized.known(f, instr.args[1])
    if got != uninitialized.SET:  # what another lane has not set counts as uninitialized here
        got = e.resize(permute(f, e.resize(got, "i32"), source), "i16")
    uninitialized.exchanged(f, dest, e.bin("and", bad, f.lanes.act()), add_site(f, collective_site(f, instr)), got)
