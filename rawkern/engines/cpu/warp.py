"""Warp-level instructions: shuffles, votes, matches and reductions over the active lanes."""

from __future__ import annotations

from collections.abc import Callable

from rawkern.engines.cpu.forms import LANES, Lazy, ramp
from rawkern.engines.cpu.function import FunctionLowering
from rawkern.engines.cpu.ir import Emitter, Module, Val, const
from rawkern.engines.cpu.kinds import constant
from rawkern.engines.cpu.ptx import Instr, Pair, Reg


def shuffle(f: FunctionLowering, instr: Instr) -> None:
    """``shfl.sync``: the formula of the PTX manual; a lane that reads an inactive one gets that one's register."""
    parts = instr.op.split(".")
    mode = parts[2] if parts[1] == "sync" else parts[1]
    dest, source, b, c = instr.args[:4]
    e = f.e
    form = f.operand_form(source, 32)
    lazy = isinstance(form, Lazy) and form.kind == "f32"  # which NaN it is matters as little there as here
    value = e.splat(form.val if lazy else f.plain(form), LANES)
    known_b, known_c = (constant(x, f.analysis.constants) for x in (b, c))
    if known_b is not None and known_c is not None:
        lanes = [_source(mode, lane, known_b, known_c) for lane in range(LANES)]
        picks = ", ".join(f"i32 {j}" for j, _ in lanes)
        moved = e.let("i32", LANES, f"shufflevector {value}, {value.t} poison, <32 x i32> <{picks}>")
        inside = Val(f"<{', '.join('i1 true' if ok else 'i1 false' for _, ok in lanes)}>", "i1", LANES)
    else:
        lane = ramp("i32", 1)
        amount = e.bin("and", f.vector(b, 32), 31)
        clamp = f.vector(c, 32)
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
        f.put(first.name, Lazy(moved, "f32") if lazy else moved)
    if isinstance(second, Reg):
        f.put(second.name, inside)


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


def _members(f: FunctionLowering, operand) -> Val:
    """Lanes that take part: the active ones of the mask operand, a scalar, or a vector where masks differ."""
    return f.e.bin("and", f.act(), f.value(operand, 32))


def vote(f: FunctionLowering, instr: Instr) -> None:
    """``vote.sync`` and the older ``vote``."""
    parts = instr.op.split(".")
    sync = parts[1] == "sync"
    mode = parts[2] if sync else parts[1]
    dest, source = instr.args[:2]
    members = _members(f, instr.args[2]) if sync else f.act()
    yes = f.e.bin("and", f.mask_of(f.value(source, 1)), members)
    e = f.e
    if mode == "ballot":
        result = yes
    elif mode == "all":
        result = e.cmp("icmp eq", yes, members)
    elif mode == "any":
        result = e.cmp("icmp ne", yes, 0)
    elif mode == "uni":
        result = e.bin("or", e.cmp("icmp eq", yes, members), e.cmp("icmp eq", yes, 0))
    else:
        raise f.unsupported()
    f.put(dest.name, result)


def activemask(f: FunctionLowering, instr: Instr) -> None:
    """``activemask``."""
    f.put(instr.args[0].name, f.act())


_IDENTITY = {"add": 0, "or": 0, "xor": 0, "and": -1, "umin": -1, "umax": 0, "smin": 0x7FFFFFFF, "smax": -0x80000000}


def reduce(f: FunctionLowering, instr: Instr) -> None:
    """``redux.sync`` of integers."""
    _, _, op, ty = instr.op.split(".")
    if ty not in ("s32", "u32", "b32"):
        raise f.unsupported()
    op = f"{'s' if ty == 's32' else 'u'}{op}" if op in ("min", "max") else op
    dest, source, mask = instr.args
    value, members = f.vector(source, 32), _members(f, mask)

    def combine(e: Emitter, v: Val, lanes: Val) -> Val:
        kept = e.select(e.let("i1", LANES, f"bitcast {lanes} to <32 x i1>"), v, const("i32", _IDENTITY[op], LANES))
        name = f"llvm.vector.reduce.{op}.v32i32"
        e.module.declare(name, f"declare i32 @{name}(<32 x i32>)")
        return e.let("i32", 1, f"call i32 @{name}({kept})")

    if members.n == 1:
        f.put(dest.name, combine(f.e, value, members))
        return
    group = Val("%group", "i32")

    def step(e: Emitter) -> tuple[Val, Val]:
        same = e.cmp("icmp eq", Val("%g", "i32", LANES), e.splat(group, LANES))
        return e.let("i32", 1, f"bitcast {same} to i32"), combine(e, Val("%v", "i32", LANES), group)

    name = f"rk_redux_{op}"
    f.module.helper(name, lambda m: _by_group(m, name, "i32", step))
    f.put(dest.name, f.e.call(name, "i32", LANES, value, members, f.act()))


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


def match(f: FunctionLowering, instr: Instr) -> None:
    """``match.any.sync`` and ``match.all.sync``."""
    _, mode, _, ty = instr.op.split(".")
    dest, source, mask = instr.args
    bits = int(ty[1:])
    value, members = f.vector(source, bits), _members(f, mask)
    e = f.e
    if mode == "any":

        def step(e: Emitter) -> tuple[Val, Val]:
            mine = e.let(value.ty, 1, f"extractelement <32 x {value.ty}> %v, i32 %lane")
            same = e.cmp("icmp eq", Val("%v", value.ty, LANES), e.splat(mine, LANES))
            found = e.bin("and", e.let("i32", 1, f"bitcast {same} to i32"), Val("%group", "i32"))
            return found, found

        name = f"rk_match_{ty}"
        f.module.helper(name, lambda m: _by_group(m, name, value.ty, step))
        f.put(dest.name, e.call(name, "i32", LANES, value, e.splat(members, LANES), f.act()))
        return
    if members.n > 1:
        raise f.unsupported("member masks that differ between lanes")
    first = e.let(value.ty, 1, f"extractelement {value}, {f.first_lane()}")
    equal = e.bin("and", f.mask_of(e.cmp("icmp eq", value, e.splat(first, LANES))), members)
    agreed = e.cmp("icmp eq", equal, members)
    first_dest, second = (dest.first, dest.second) if isinstance(dest, Pair) else (dest, None)
    if isinstance(first_dest, Reg):
        f.put(first_dest.name, e.select(agreed, members, 0))
    if isinstance(second, Reg):
        f.put(second.name, agreed)


def elect(f: FunctionLowering, instr: Instr) -> None:
    """``elect.sync``: the lowest active lane of the members."""
    dest, mask = instr.args
    members = _members(f, mask)
    if members.n > 1:
        raise f.unsupported("member masks that differ between lanes")
    leader = f.e.intrinsic("llvm.cttz", "i32", members, extra=", i1 true")
    if isinstance(dest.first, Reg):
        f.put(dest.first.name, leader)
    if isinstance(dest.second, Reg):
        f.put(dest.second.name, f.e.cmp("icmp eq", ramp("i32", 1), leader))
