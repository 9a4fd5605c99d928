"""Barriers, and what happens when no lane can go on: a warp, or some of its lanes, lets others run."""

from __future__ import annotations

from rawkern.engines.cpu.emit.calls import elsewhere, reject_divergent_wait, remaining, service
from rawkern.engines.cpu.emit.convergence import report_incomplete, resume_collectives
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.jumps import after, come_back, give_way, jump, own_record, site_of, switch_warp, wait_at
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx.data import Instr
from rawkern.engines.cpu.records import AT_CLUSTER, BAR, BLOCK, TO_CLUSTER


def _of_cluster(instr: Instr) -> int | None:
    """What stands for the number of a barrier of the cluster; None for others."""
    if instr.op.name != "barrier.cluster":
        return None
    return TO_CLUSTER if instr.op.has("arrive") else AT_CLUSTER


def barrier(f: FunctionLowering, instr: Instr, follow: int) -> None:
    """``bar`` and ``barrier``: the warp arrives; `follow` is the block after it."""
    if f.kept is not None:
        f.kept.leave(follow)
        return
    op, args, e = instr.op, list(instr.args), f.e
    cluster = _of_cluster(instr)
    if op.has("red"):
        args.pop(0)
    predicate = f.lanes.mask_of(f.values.value(args.pop(), 1)) if op.has("red") else const("i32", 0)
    number = f.values.value(args[0], 32) if cluster is None else const("i32", cluster)
    expected = f.values.value(args[1], 32) if len(args) > 1 else const("i32", 0)
    given = number, expected
    number, expected = (v if v.n == 1 else e.let(v.ty, 1, f"extractelement {v}, {f.lanes.first()}") for v in given)
    varies = op.base != "bar" and any(v.n != 1 for v in given)  # those of bar are the same in all threads of a warp
    if varies:
        for lanes, one in zip(given, (number, expected), strict=True):
            other = f.lanes.mask_of(e.cmp("icmp ne", e.splat(lanes, LANES), e.splat(one, LANES)))
            _reject_others(f, instr, e.bin("and", other, f.lanes.act()))
    act = f.lanes.act()
    if f.analysis.free_running:
        f.values.flush()
        alive = e.let("i32", 1, "load i32, ptr %alive")
        together, some = e.fresh("together")[1:], e.fresh("some")[1:]
        e.line(f"br {e.cmp('icmp eq', act, alive)}, label %{together}, label %{some}")
        e.label(some)
        if varies:
            parked = _kept(f, "park", f.block)
            for name, one in (("parkid", number), ("parkcount", expected)):
                same = e.cmp("icmp eq", _kept(f, name, f.block), one)
                _reject_others(f, instr, e.select(same, const("i32", 0), parked))
        _park(f, number, expected, e.bin("and", predicate, act))
        e.label(together)
    _reject_partial_warp(f, instr, act)
    if cluster is not None:
        _wait_at_cluster(f, instr, act)
        f.values.flush()
        jump(f, follow, act)
        return
    f.watch.arrive(instr, number, len(args) > 1)
    counts = op.has("arrive") or op.has("red") or len(args) > 1 or number != const("i32", 0)
    if f.in_turn and not counts:
        _come_in_turn(f, act, instr)
        f.watch.depart(number)
    else:
        wait = const("i1", 0 if op.has("arrive") else 1)
        args_text = ", ".join(map(str, (number, expected, act, predicate, wait)))
        bar = _come(f, args_text, number, instr)
        if not op.has("arrive"):
            f.watch.depart(number)
        _take_result(f, instr, bar)
    f.values.flush()
    jump(f, follow, act)


def _come_in_turn(f: FunctionLowering, lanes: Val, instr: Instr) -> None:
    """The warp comes to ``__syncthreads()``, and others run until all have."""

    def before(e: Emitter) -> Val:
        warp = Val("%warp", "i32")
        return e.bin("sub", e.select(e.cmp("icmp eq", warp, 0), f.frame.field(BLOCK, "nwarps"), warp), 1)

    records = f"{f.frame.once('before', before)}, {own_record(f)}"
    come_back(f, f"@rk_sync(ptr %blk, i32 %warp, {records}, {lanes}, i32 {site_of(f, [instr])})")


def _reject_others(f: FunctionLowering, instr: Instr, others: Val) -> None:
    """Lanes that come to the instruction with another number or count than the others are an error."""
    with f.e.where(f.e.cmp("icmp ne", others, 0), rare=True):
        service(f, "BARRIERS", instr)


def _reject_partial_warp(f: FunctionLowering, instr: Instr, lanes: Val) -> None:
    """In a function that calls itself `lanes` are an error if more of the warp are elsewhere: it arrives as a whole."""
    if f.function.name in f.plan.waiting_functions:
        reject_divergent_wait(f, instr, lanes, elsewhere(f, remaining(f, lanes)))


def _come(f: FunctionLowering, args: str, number: Val, instr: Instr) -> Val:
    """The warp arrives at barrier `number`, and others run if it has to wait; returns where the barrier lies."""
    switch_warp(f, f"@rk_barrier(ptr %blk, i32 %warp, {args}, i32 {site_of(f, [instr])})")
    where = f"i32 0, i32 {BLOCK.index('bars')}, {f.e.bin('and', number, 15)}"
    return f.e.let("ptr", 1, f"getelementptr %Block, ptr %blk, {where}")


def _wait_at_cluster(f: FunctionLowering, instr: Instr, lanes: Val) -> None:
    """The warp arrives at the barrier of its cluster, or waits there while others run."""
    number = _of_cluster(instr)
    (f.watch.cluster_arrive if number == TO_CLUSTER else f.watch.cluster_wait)(instr)
    switch_warp(f, f"@rk_cluster_barrier(ptr %blk, i32 %warp, i32 {number}, {lanes}, i32 {site_of(f, [instr])})")
    if number == AT_CLUSTER:
        f.watch.cluster_depart()


def _take_result(f: FunctionLowering, instr: Instr, bar: Val) -> None:
    """Write what ``bar.red`` found."""
    op, e = instr.op, f.e
    if not op.has("red"):
        return

    def field(name: str) -> Val:
        p = e.let("ptr", 1, f"getelementptr %Bar, {bar}, i32 0, i32 {BAR.index(name)}")
        return e.let("i32", 1, f"load i32, {p}")

    count = field("result")
    if not op.has("popc"):
        count = e.cmp("icmp ne", count, 0) if op.has("or") else e.cmp("icmp eq", count, field("result_total"))
    f.values.put(instr.args[0].name, count)


def _park(f: FunctionLowering, number: Val, expected: Val, predicate: Val) -> None:
    """Part of the warp's lanes have come to a barrier: they stay there while the others go on."""
    e, key = f.e, f.block
    for name, lanes in (("park", f.lanes.act()), ("parkpred", predicate)):
        e.line(f"store {e.bin('or', _kept(f, name, key), lanes)}, ptr %{name}{key}")
    e.line(f"store {number}, ptr {f.frame.word(f'parkid{key}')}")
    e.line(f"store {expected}, ptr {f.frame.word(f'parkcount{key}')}")
    e.line(f"br label %{after(f, key)}")


def resume_parked(f: FunctionLowering) -> None:
    """No lane can go on: those set aside come back, or the warp arrives at a barrier for them."""
    f.frame.word("alive", "%initial")
    for h in sorted(f.analysis.spin_headers):
        f.frame.word(f"defer{h}")
    if f.analysis.checks:
        resume_collectives(f)
        if f.analysis.spin_headers:
            _resume_loops(f)
        barriers = [i for i, block in enumerate(f.flow.blocks) if block.kind == "barrier"]
        kinds = {i: _of_cluster(f.flow.blocks[i].instrs[-1]) for i in barriers}
        for kind in (None, TO_CLUSTER, AT_CLUSTER):
            if same := [i for i in barriers if kinds[i] == kind]:
                _arrive(f, same)
        report_incomplete(f)


def _resume_loops(f: FunctionLowering) -> None:
    """Lanes set aside in loops that wait try again, after the other warps had their turn."""
    e = f.e
    masks = {h: e.let("i32", 1, f"load i32, ptr %defer{h}") for h in sorted(f.analysis.spin_headers)}
    union = e.all("or", [const("i32", 0), *masks.values()])
    with e.where(e.cmp("icmp ne", union, 0), follow=f"c{f.analysis.checks[0]}"):
        for h, m in masks.items():
            wait_at(f, h, m)
            e.line(f"store i32 0, ptr %defer{h}")
        give_way(f, masks)


def _kept(f: FunctionLowering, name: str, key: int) -> Val:
    """What lanes that are parked at a barrier have left there."""
    return f.e.let("i32", 1, f"load i32, ptr {f.frame.word(f'{name}{key}')}")


def _arrive(f: FunctionLowering, barriers: list[int]) -> None:
    """If lanes wait at barriers the warp arrives at one of these, for all that wait at one of the same number."""
    e = f.e

    number, count, some = const("i32", 0), const("i32", 0), const("i32", 0)
    for key in reversed(barriers):
        lanes = _kept(f, "park", key)
        here = e.cmp("icmp ne", lanes, 0)
        number, count = (
            e.select(here, _kept(f, "parkid", key), number),
            e.select(here, _kept(f, "parkcount", key), count),
        )
        some = e.bin("or", some, lanes)
    with e.where(e.cmp("icmp ne", some, 0), follow=f"c{f.analysis.checks[0]}"):
        _arrive_at(f, barriers, number, count)


def _arrive_at(f: FunctionLowering, barriers: list[int], number: Val, count: Val) -> None:
    """The warp arrives at a barrier for lanes parked there; those of each block then go on."""
    e = f.e
    lanes, predicate, waits = const("i32", 0), const("i32", 0), const("i32", 0)
    freed = {}
    for key in barriers:
        same = e.cmp("icmp eq", _kept(f, "parkid", key), number)
        freed[key] = e.select(same, _kept(f, "park", key), 0)
        lanes = e.bin("or", lanes, freed[key])
        predicate = e.bin("or", predicate, e.select(same, _kept(f, "parkpred", key), 0))
        if not f.flow.blocks[key].instrs[-1].op.has("arrive"):
            waits = e.bin("or", waits, freed[key])
    args = ", ".join(map(str, (number, count, lanes, predicate, e.cmp("icmp ne", waits, 0))))
    first = f.flow.blocks[barriers[0]].instrs[-1]
    _reject_partial_warp(f, first, lanes)
    bar = None
    if _of_cluster(first) is not None:
        _wait_at_cluster(f, first, lanes)
    else:
        f.watch.arrive_divergent(number, freed)
        bar = _come(f, args, number, first)
        f.watch.depart(number)
    for key in barriers:
        with e.where(e.cmp("icmp ne", freed[key], 0)):
            f.begin(key)
            f.lanes.set_act(freed[key])
            block = f.flow.blocks[key]
            if bar is not None:
                _take_result(f, block.instrs[-1], bar)
            f.values.flush()
            f.values.copy(block.targets[0], freed[key])
            wait_at(f, block.targets[0], freed[key])
            e.line(f"store i32 0, ptr %park{key}")
            e.line(f"store i32 0, ptr %parkpred{key}")
