"""Barriers, and what happens when no lane can go on: a warp, or some of its lanes, lets others run."""

from __future__ import annotations

from rawkern.engines.cpu import check
from rawkern.engines.cpu.calls import service
from rawkern.engines.cpu.function import FunctionLowering
from rawkern.engines.cpu.ir import Val, const
from rawkern.engines.cpu.jumps import after, jump, wait_at
from rawkern.engines.cpu.ptx import Instr
from rawkern.engines.cpu.records import BAR


def barrier(f: FunctionLowering, instr: Instr, follow: int) -> None:
    """``bar`` and ``barrier``: the warp arrives; `follow` is the block after it."""
    parts = [p for p in instr.op.split(".") if p not in ("cta", "aligned")]
    kind = parts[1]
    args = list(instr.args)
    e = f.e
    result = args.pop(0) if kind == "red" else None
    predicate = const("i32", 0)
    if kind == "red":
        predicate = f.mask_of(f.value(args.pop(), 1))
    number = f.value(args[0], 32)
    expected = f.value(args[1], 32) if len(args) > 1 else const("i32", 0)
    if parts[0] == "bar":  # every thread of the warp executes it with the same operands
        number, expected = (
            v if v.n == 1 else e.let(v.ty, 1, f"extractelement {v}, {f.first_lane()}") for v in (number, expected)
        )
    if number.n != 1 or expected.n != 1:
        raise f.unsupported("the barrier's number differs between lanes")
    act = f.act()
    if f.analysis.free_running:
        f.flush()
        alive = e.let("i32", 1, "load i32, ptr %alive")
        together, some = e.fresh("together")[1:], e.fresh("some")[1:]
        e.line(f"br {e.cmp('icmp eq', act, alive)}, label %{together}, label %{some}")
        e.label(some)
        if kind == "red":
            service(f, "UNSUPPORTED", instr)
        _park(f, number, expected)
        e.label(together)
    wait = const("i1", 0 if kind == "arrive" else 1)
    args_text = ", ".join(map(str, (number, expected, act, predicate, wait)))
    check.note(f, "arrive", number)
    bar = e.let("ptr", 1, f"call ptr @rk_barrier(ptr %blk, i32 %warp, {args_text})")
    if kind != "arrive":
        check.note(f, "depart", number)
    if result is not None:
        f.put(result.name, _reduced(f, parts[2], bar))
    f.flush()
    jump(f, follow, act)


def _park(f: FunctionLowering, number: Val, expected: Val) -> None:
    """Part of the warp's lanes have come to a barrier: they stay there while the others go on."""
    e, key = f.e, f.block
    f.barriers.append(key)
    f.entry += [f"%park{key} = alloca i32", f"store i32 0, ptr %park{key}"]
    f.entry += [f"%parkid{key} = alloca i32", f"%parkcount{key} = alloca i32"]
    old = e.let("i32", 1, f"load i32, ptr %park{key}")
    e.line(f"store {e.bin('or', old, f.act())}, ptr %park{key}")
    e.line(f"store {number}, ptr %parkid{key}")
    e.line(f"store {expected}, ptr %parkcount{key}")
    e.line(f"br label %{after(f, key)}")


def warp_barrier(f: FunctionLowering, instr: Instr, follow: int) -> None:
    """``bar.warp.sync``: lanes wait for all that the mask names, wherever those come to such a barrier.

    Where lanes run in step none has to wait, and only the order of memory accesses is left to keep. Masks that differ
    between the lanes that come together are taken as one.
    """
    e, act = f.e, f.act()
    e.line('fence syncscope("singlethread") seq_cst')
    check.note(f, "warp_sync")
    mask = f.value(instr.args[0], 32)
    f.flush()
    if f.analysis.free_running:
        if mask.n > 1:
            named = e.select(f.actv(), mask, const("i32", 0, mask.n))
            f.module.declare("llvm.vector.reduce.or.v32i32", "declare i32 @llvm.vector.reduce.or.v32i32(<32 x i32>)")
            mask = e.let("i32", 1, f"call i32 @llvm.vector.reduce.or.v32i32({named})")
        key = f.block
        f.warp_barriers.append(key)
        f.entry += [f"%meet{key} = alloca i32", f"%meetmask{key} = alloca i32", f"store i32 0, ptr %meet{key}"]
        complete, partial = e.fresh("complete")[1:], e.fresh("partial")[1:]
        here = e.bin("or", act, e.let("i32", 1, "load i32, ptr %met"))
        e.line(f"br {_all_there(f, mask, here)}, label %{complete}, label %{partial}")
        e.label(partial)
        old = e.let("i32", 1, f"load i32, ptr %meet{key}")
        named = e.select(e.cmp("icmp eq", old, 0), 0, e.let("i32", 1, f"load i32, ptr %meetmask{key}"))
        e.line(f"store {e.bin('or', old, act)}, ptr %meet{key}")
        e.line(f"store {e.bin('or', named, mask)}, ptr %meetmask{key}")
        e.line(f"store {here}, ptr %met")
        e.line(f"br label %{after(f, key)}")
        e.label(complete)
        e.line(f"store {mask}, ptr %meetnow")
        wait_at(f, follow, act)
        e.line("br label %release")
        return
    jump(f, follow, act)


def _all_there(f: FunctionLowering, mask: Val, here: Val) -> Val:
    """Whether all lanes of `mask` that still run are among those `here`."""
    e = f.e
    alive = e.let("i32", 1, "load i32, ptr %alive")
    missing = e.bin("and", e.bin("and", mask, alive), e.invert(here))
    return e.cmp("icmp eq", missing, 0)


def release_met(f: FunctionLowering) -> None:
    """The lanes of ``%meetnow`` that wait at barriers of the warp go on; then whoever comes first in order."""
    e = f.e
    f.entry += ["%met = alloca i32", "store i32 0, ptr %met", "%meetnow = alloca i32"]
    e.label("release")
    mask = e.let("i32", 1, "load i32, ptr %meetnow")
    for key in f.warp_barriers:
        waiting = e.let("i32", 1, f"load i32, ptr %meet{key}")
        freed = e.bin("and", waiting, mask)
        wait_at(f, f.flow.blocks[key].targets[0], freed)
        e.line(f"store {e.bin('xor', waiting, freed)}, ptr %meet{key}")
    met = e.let("i32", 1, "load i32, ptr %met")
    e.line(f"store {e.bin('and', met, e.invert(mask))}, ptr %met")
    e.line(f"br label %c{f.analysis.checks[0]}")


def _resume_met(f: FunctionLowering, key: int) -> None:
    """Lanes whose barrier of the warp is complete, because others ended, go on."""
    e = f.e
    waiting = e.let("i32", 1, f"load i32, ptr %meet{key}")
    mask = e.let("i32", 1, f"load i32, ptr %meetmask{key}")
    ready = e.bin("and", e.cmp("icmp ne", waiting, 0), _all_there(f, mask, e.let("i32", 1, "load i32, ptr %met")))
    go, no = e.fresh("go")[1:], e.fresh("no")[1:]
    e.line(f"br {ready}, label %{go}, label %{no}")
    e.label(go)
    e.line(f"store {mask}, ptr %meetnow")
    e.line("br label %release")
    e.label(no)


def _give_up_meeting(f: FunctionLowering) -> None:
    """Nothing else can run: lanes that wait for ones that never come go on, as those have other masks or none."""
    e = f.e
    met = e.let("i32", 1, "load i32, ptr %met")
    go, no = e.fresh("go")[1:], e.fresh("no")[1:]
    e.line(f"br {e.cmp('icmp ne', met, 0)}, label %{go}, label %{no}")
    e.label(go)
    e.line(f"store {met}, ptr %meetnow")
    e.line("br label %release")
    e.label(no)


def _reduced(f: FunctionLowering, op: str, bar: Val) -> Val:
    e = f.e

    def field(name: str) -> Val:
        p = e.let("ptr", 1, f"getelementptr %Bar, {bar}, i32 0, i32 {BAR.index(name)}")
        return e.let("i32", 1, f"load i32, {p}")

    count = field("result")
    if op == "popc":
        return count
    return e.cmp("icmp ne", count, 0) if op == "or" else e.cmp("icmp eq", count, field("result_total"))


def resume_set_aside(f: FunctionLowering) -> None:
    """No lane can go on: those set aside come back, or the warp arrives at a barrier for them."""
    f.entry += ["%alive = alloca i32", "store i32 %initial, ptr %alive"]
    for h in sorted(f.analysis.spin_headers):
        f.entry += [f"%defer{h} = alloca i32", f"store i32 0, ptr %defer{h}"]
    if f.analysis.checks:
        for block in f.warp_barriers:
            _resume_met(f, block)
        if f.analysis.spin_headers:
            _resume_loops(f)
        for block in f.barriers:
            _arrive(f, block)
        if f.warp_barriers:
            _give_up_meeting(f)


def _resume_loops(f: FunctionLowering) -> None:
    """Lanes set aside in loops that wait try again, after the other warps had their turn."""
    e = f.e
    masks = {h: e.let("i32", 1, f"load i32, ptr %defer{h}") for h in sorted(f.analysis.spin_headers)}
    union = const("i32", 0)
    for m in masks.values():
        union = e.bin("or", union, m)
    back, nobody = e.fresh("back")[1:], e.fresh("nobody")[1:]
    e.line(f"br {e.cmp('icmp ne', union, 0)}, label %{back}, label %{nobody}")
    e.label(back)
    for h, m in masks.items():
        wait_at(f, h, m)
        e.line(f"store i32 0, ptr %defer{h}")
    e.line("call void @rk_yield(ptr %blk, i32 %warp)")
    e.line("call void @rk_poll(ptr %blk)")
    e.line(f"br label %c{f.analysis.checks[0]}")
    e.label(nobody)


def _arrive(f: FunctionLowering, block: int) -> None:
    """The warp arrives at the barrier of `block` if lanes wait there."""
    e = f.e
    parked = e.let("i32", 1, f"load i32, ptr %park{block}")
    arrive, other = e.fresh("arrive")[1:], e.fresh("other")[1:]
    e.line(f"br {e.cmp('icmp ne', parked, 0)}, label %{arrive}, label %{other}")
    e.label(arrive)
    number = e.let("i32", 1, f"load i32, ptr %parkid{block}")
    count = e.let("i32", 1, f"load i32, ptr %parkcount{block}")
    check.note(f, "arrive", number)
    e.line(f"call ptr @rk_barrier(ptr %blk, i32 %warp, {number}, {count}, {parked}, i32 0, i1 true)")
    check.note(f, "depart", number)
    e.line(f"store {number}, ptr %opened")
    e.line("br label %open")
    e.label(other)


def open_barrier(f: FunctionLowering) -> None:
    """The lanes that wait at any barrier of the number ``%opened`` go on; then whoever comes first in order."""
    e = f.e
    f.entry.append("%opened = alloca i32")
    e.label("open")
    number = e.let("i32", 1, "load i32, ptr %opened")
    for block in f.barriers:
        parked = e.let("i32", 1, f"load i32, ptr %park{block}")
        equal = e.cmp("icmp eq", e.let("i32", 1, f"load i32, ptr %parkid{block}"), number)
        freed = e.select(equal, parked, 0)
        wait_at(f, f.flow.blocks[block].targets[0], freed)
        e.line(f"store {e.bin('xor', parked, freed)}, ptr %park{block}")
    e.line(f"br label %c{f.analysis.checks[0]}")
