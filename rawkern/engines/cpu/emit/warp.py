"""Warp-level instructions: what converged lanes give to each other.

An instruction is taken apart: each lane gives a value; `exchange` makes the active lanes' results of those of all
members, which may be more than the lanes that are active where some came another way (`convergence`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rawkern.engines.cpu.analysis.uniformity import constant
from rawkern.engines.cpu.emit.calls import reject_divergent_wait
from rawkern.engines.cpu.emit.forms import LANES, Form, Lazy, ramp
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.ir import Emitter, Module, Val, const
from rawkern.engines.cpu.ptx.data import Instr, Pair, Reg


@dataclass(frozen=True)
class Exchange:
    """How lanes exchange values: ``exchange(f, instr, value, members)``; `members` may differ between lanes.

    `bits` is the width of the values that lanes give, by instruction; None where they give none.
    """

    exchange: Callable[[FunctionLowering, Instr, Any, Val], None]  # the value is None where a row has no bits
    bits: Callable[[Instr], int] | None

    def value(self, f: FunctionLowering, instr: Instr) -> Form | None:
        """What the lanes give."""
        return f.values.operand(instr.args[1], self.bits(instr)) if self.bits is not None else None


def at_once(f: FunctionLowering, instr: Instr) -> None:
    """A collective instruction of the lanes that are here: no other lane can come."""
    row = EXCHANGES[instr.op.name]
    if not instr.op.collective:  # which `vote` alone can be
        vote(f, instr, f.values.value(instr.args[1], 1), f.lanes.act())
        return
    mask = f.values.value(instr.args[-1], 32)
    if f.function.name in f.plan.recursive:
        reject_lanes_outside(f, instr, mask)
    f.watch.collective(instr, mask)
    row.exchange(f, instr, row.value(f, instr), f.e.bin("and", f.lanes.act(), mask))


def reject_lanes_outside(f: FunctionLowering, instr: Instr, mask: Val) -> None:
    """In a function that calls itself: an error if the mask names lanes that are in another call, or in none."""
    e = f.e
    lanes = e.let("i32", 1, "call i32 @rk_lanes(ptr %launch, i32 %warp)")
    strange = e.bin("and", lanes, e.invert(Val("%initial", "i32")))
    named = e.cmp("icmp ne", e.bin("and", mask, strange), 0)
    asks = e.bin("and", f.lanes.mask_of(named), f.lanes.act())
    reject_divergent_wait(f, instr, f.lanes.act(), e.cmp("icmp ne", asks, 0))


def barrier(f: FunctionLowering, instr: Instr, value: Val, members: Val) -> None:
    """``bar.warp.sync``: where lanes run in step, only the order of memory accesses is left to keep."""
    f.watch.note("warp_sync")
    f.e.line('fence syncscope("singlethread") seq_cst')


def shuffle(f: FunctionLowering, instr: Instr, value: Form, members: Val) -> None:
    """``shfl.sync``, as the PTX manual computes it; a lane that reads an inactive one gets that one's register."""
    mode = instr.op.mods[1]
    dest, _, b, c = instr.args[:4]
    e = f.e
    lazy = isinstance(value, Lazy) and value.kind == "f32"  # which NaN it is matters as little there as here
    value = e.splat(value.val if isinstance(value, Lazy) and lazy else f.values.plain(value), LANES)
    known_b, known_c = (constant(x, f.analysis.constants) for x in (b, c))
    if known_b is not None and known_c is not None:
        lanes = [_source(mode, lane, known_b, known_c) for lane in range(LANES)]
        moved = e.shuffle(value, [j for j, _ in lanes])
        inside = Val(f"<{', '.join('i1 true' if ok else 'i1 false' for _, ok in lanes)}>", "i1", LANES)
        j = Val(f"<{', '.join(f'i32 {k}' for k, _ in lanes)}>", "i32", LANES)
    else:
        lane = ramp("i32", 1)
        amount = e.bin("and", f.values.vector(b, 32), 31)
        clamp = f.values.vector(c, 32)
        segment = e.bin("and", e.bin("lshr", clamp, 8), 31)
        low = e.bin("and", lane, segment)
        outside = e.invert(segment)
        high = e.bin("or", low, e.bin("and", e.bin("and", clamp, 31), outside))
        if mode == "up":
            j = e.bin("sub", lane, amount)
            inside = e.cmp("icmp sge", j, high)
        else:
            if mode == "idx":
                j = e.bin("or", low, e.bin("and", amount, outside))
            else:
                j = e.bin("add" if mode == "down" else "xor", lane, amount)
            inside = e.cmp("icmp sle", j, high)
        j = e.select(inside, j, lane)
        moved = permute(f, value, j)
    first, second = (dest.first, dest.second) if isinstance(dest, Pair) else (dest, None)
    if isinstance(first, Reg):
        f.watch.shuffled(instr, first.name, j, inside, members)
        f.values.put(first.name, Lazy(moved, "f32") if lazy else moved)
    if isinstance(second, Reg):
        f.values.put(second.name, inside)


def _source(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """Lane to read from and whether it lies in range, for constant operands."""
    amount, clamp, segment = b & 31, c & 31, c >> 8 & 31
    low = lane & segment
    high = low | (clamp & ~segment)
    if mode == "up":
        j = lane - amount
        ok = j >= high
    else:
        j = {"down": lane + amount, "bfly": lane ^ amount, "idx": low | (amount & ~segment)}[mode]
        ok = j <= high
    return (j, True) if ok else (lane, False)


def permute(f: FunctionLowering, value: Val, lanes: Val) -> Val:
    """Lane k gets the 32-bit value of lane ``lanes[k]`` (modulo 32)."""
    name = f.module.helper("rk_permute", _permute_helper)
    return f.e.call(name, "i32", LANES, value, lanes)


def _permute_helper(m: Module) -> str:
    e = Emitter(m)
    e.line("%array = alloca <32 x i32>")
    e.line("store <32 x i32> %v, ptr %array")
    result = Val("poison", "i32", LANES)
    for k in range(LANES):
        j = e.bin("and", e.let("i32", 1, f"extractelement <32 x i32> %j, i64 {k}"), 31)
        got = e.let("i32", 1, f"load i32, {e.let('ptr', 1, f'getelementptr i32, ptr %array, {j}')}")
        result = e.let("i32", LANES, f"insertelement {result}, {got}, i64 {k}")
    e.line(f"ret {result}")
    return "\n".join(["define internal <32 x i32> @rk_permute(<32 x i32> %v, <32 x i32> %j) noinline {", *e.lines, "}"])


def vote(f: FunctionLowering, instr: Instr, value: Form, members: Val) -> None:
    """``vote.sync`` and the older ``vote``."""
    e, mode = f.e, instr.op.mods[-1]
    yes = e.bin("and", f.lanes.mask_of(f.values.plain(value)), members)
    if mode == "ballot":
        result = yes
    elif mode == "all":
        result = e.cmp("icmp eq", yes, members)
    elif mode == "any":
        result = e.cmp("icmp ne", yes, 0)
    else:
        result = e.bin("or", e.cmp("icmp eq", yes, members), e.cmp("icmp eq", yes, 0))
    f.values.put(instr.args[0].name, result)


def activemask(f: FunctionLowering, instr: Instr) -> None:
    """``activemask``."""
    f.values.put(instr.args[0].name, f.lanes.act())


_IDENTITY = {"add": 0, "or": 0, "xor": 0, "and": -1, "umin": -1, "umax": 0, "smin": 0x7FFFFFFF, "smax": -0x80000000}


def reduce(f: FunctionLowering, instr: Instr, value: Form, members: Val) -> None:
    """``redux.sync`` of integers."""
    op = instr.op.mods[1]
    op = f"{'s' if instr.op.type.signed else 'u'}{op}" if op in ("min", "max") else op
    dest, value = instr.args[0], f.e.splat(f.values.plain(value), LANES)

    def combine(e: Emitter, v: Val, lanes: Val) -> Val:
        kept = e.select(e.let("i1", LANES, f"bitcast {lanes} to <32 x i1>"), v, const("i32", _IDENTITY[op], LANES))
        name = f"llvm.vector.reduce.{op}.v32i32"
        e.module.declare(name, f"declare i32 @{name}(<32 x i32>)")
        return e.let("i32", 1, f"call i32 @{name}({kept})")

    if members.n == 1:
        f.values.put(dest.name, combine(f.e, value, members))
        return
    group = Val("%group", "i32")

    def step(e: Emitter) -> tuple[Val, Val]:
        same = e.cmp("icmp eq", Val("%g", "i32", LANES), e.splat(group, LANES))
        return e.let("i32", 1, f"bitcast {same} to i32"), combine(e, Val("%v", "i32", LANES), group)

    name = f"rk_redux_{op}"
    f.module.helper(name, lambda m: _by_group(m, name, "i32", step))
    f.values.put(dest.name, f.e.call(name, "i32", LANES, value, members, f.lanes.act()))


def _by_group(m: Module, name: str, ty: str, step: Callable[[Emitter], tuple[Val, Val]]) -> str:
    """A helper that goes over the active lanes ``%m`` group after group: ``%v`` holds values, ``%g`` members' masks.

    `step` gives the lanes of the group of lane ``%lane``, whose mask is ``%group``, and the group's result.
    """
    e = Emitter(m)
    m.declare("llvm.cttz.i32", "declare i32 @llvm.cttz.i32(i32, i1)")
    e.line("br label %each")
    e.label("each")
    e.line("%left = phi i32 [ %m, %0 ], [ %rest, %each ]")
    e.line("%sofar = phi <32 x i32> [ zeroinitializer, %0 ], [ %next, %each ]")
    e.line("%lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)")
    e.line("%group = extractelement <32 x i32> %g, i32 %lane")
    same, out = step(e)
    left = Val("%left", "i32")
    mine = e.bin("and", left, e.neg(left))  # also where the lane is not in its own mask
    done = e.bin("or", e.bin("and", same, left), mine)
    here = e.let("i1", LANES, f"bitcast {done} to <32 x i1>")
    e.line(f"%next = select {here}, {e.splat(out, LANES)}, <32 x i32> %sofar")
    e.line(f"%rest = xor i32 %left, {done.ref}")
    e.line("%more = icmp ne i32 %rest, 0")
    e.line("br i1 %more, label %each, label %out")
    e.label("out")
    e.line("ret <32 x i32> %next")
    head = f"define internal <32 x i32> @{name}(<32 x {ty}> %v, <32 x i32> %g, i32 %m) noinline {{"
    return "\n".join([head, *e.lines, "}"])


def match(f: FunctionLowering, instr: Instr, value: Form, members: Val) -> None:
    """``match.any.sync`` and ``match.all.sync``."""
    dest, mode, e = instr.args[0], instr.op.mods[0], f.e
    value = e.splat(f.values.plain(value), LANES)
    if mode == "all" and members.n == 1:  # one answer for all, as `facts` has it
        leader = e.bin("and", e.intrinsic("llvm.cttz", "i32", members, extra=", i1 false"), LANES - 1)
        same = e.cmp("icmp eq", value, e.splat(e.let(value.ty, 1, f"extractelement {value}, {leader}"), LANES))
        agree = e.cmp("icmp eq", e.bin("and", f.lanes.mask_of(same), members), members)
        _give(f, dest, lambda: e.select(agree, members, 0), lambda: agree)
        return

    def step(e: Emitter) -> tuple[Val, Val]:
        mine = e.let(value.ty, 1, f"extractelement <32 x {value.ty}> %v, i32 %lane")
        same = e.cmp("icmp eq", Val("%v", value.ty, LANES), e.splat(mine, LANES))
        group = Val("%group", "i32")
        found = e.bin("and", e.let("i32", 1, f"bitcast {same} to i32"), group)
        if mode == "any":
            return found, found
        of_group = e.cmp("icmp eq", Val("%g", "i32", LANES), e.splat(group, LANES))
        return e.let("i32", 1, f"bitcast {of_group} to i32"), e.select(e.cmp("icmp eq", found, group), group, 0)

    name = f"rk_match_{mode}_{value.ty}"
    f.module.helper(name, lambda m: _by_group(m, name, value.ty, step))
    found = e.call(name, "i32", LANES, value, e.splat(members, LANES), f.lanes.act())
    _give(f, dest, lambda: found, lambda: e.cmp("icmp ne", found, 0))


def _give(f: FunctionLowering, dest: Any, *results: Callable[[], Val]) -> None:
    """Write the results that the destination has registers for: one, or a pair."""
    for reg, result in zip((dest.first, dest.second) if isinstance(dest, Pair) else (dest,), results, strict=False):
        if isinstance(reg, Reg):
            f.values.put(reg.name, result())


def elect(f: FunctionLowering, instr: Instr, value: Val, members: Val) -> None:
    """``elect.sync``: the lowest active lane of the members."""
    leader = f.e.intrinsic("llvm.cttz", "i32", members, extra=", i1 true")
    _give(f, instr.args[0], lambda: leader, lambda: f.e.cmp("icmp eq", ramp("i32", 1), leader))


#: The collective instructions of a warp, by opcode.
EXCHANGES = {
    "shfl": Exchange(shuffle, lambda instr: 32),
    "vote": Exchange(vote, lambda instr: 1),
    "match.any": Exchange(match, lambda instr: instr.op.type.bits),
    "match.all": Exchange(match, lambda instr: instr.op.type.bits),
    "redux": Exchange(reduce, lambda instr: 32),
    "elect": Exchange(elect, None),
    "bar.warp": Exchange(barrier, None),
}
