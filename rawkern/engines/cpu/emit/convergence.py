"""Lanes of a warp that wait for each other: ``shfl.sync``, ``__syncwarp()`` and their like, on different ways as well.

Lanes that come to such an instruction and find all that its mask names go on at once. Others stay there while the rest
of the warp runs (such functions are `free_running`, and the instruction has a block of its own); what they give to the
others lies in ``%given``, their masks and instructions in ``%named``. When the last of the named lanes has come or
ended, all go on.
"""

from __future__ import annotations

from rawkern.engines.cpu.emit.calls import service
from rawkern.engines.cpu.emit.forms import LANES, Form, int_type
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.jumps import after, jump, wait_at
from rawkern.engines.cpu.emit.warp import EXCHANGES, Exchange, reject_lanes_outside
from rawkern.engines.cpu.ir import Module, Val, const
from rawkern.engines.cpu.ptx.data import Instr


def collective(f: FunctionLowering, instr: Instr, follow: int) -> None:
    """An instruction at which lanes wait for those that its mask names; `follow` is the block after it."""
    e, row, act = f.e, EXCHANGES[instr.op.name], f.lanes.act()
    value = row.value(f, instr)
    mask = f.values.value(instr.args[-1], 32)
    if f.function.name in f.plan.recursive:
        reject_lanes_outside(f, instr, mask)
    f.watch.collective(instr, mask)
    if not f.analysis.concurrent[f.block]:
        _together(f, instr, row, value, e.bin("and", act, mask), follow)
        return
    key = f.block
    named = _union(f, mask)
    f.lanes.actv()  # made before the ways part
    alive = e.let("i32", 1, "load i32, ptr %alive")
    missing = e.bin("and", e.bin("and", named, alive), e.invert(act))
    together, apart = e.fresh("together")[1:], e.fresh("apart")[1:]
    e.line(f"br {e.cmp('icmp eq', missing, 0)}, label %{together}, label %{apart}")
    e.label(apart)
    known = dict(f.cache)
    forms = list(dict.fromkeys(b.instrs[0].op for b in f.flow.blocks if b.kind == "collective"))
    key_of_lane = e.bin("or", e.resize(mask, "i64"), forms.index(instr.op) << 32)
    _keep_lanes(f, "%named", e.splat(key_of_lane, LANES))
    if value is not None:
        _keep_lanes(f, "%given", e.splat(e.resize(f.values.plain(value), "i64"), LANES))
    waiting = e.let("i32", 1, f"load i32, ptr {f.frame.word(f'gather{key}')}")
    e.line(f"store {e.bin('or', waiting, act)}, ptr %gather{key}")
    here = e.bin("or", act, e.let("i32", 1, "load i32, ptr %met"))
    e.line(f"store {here}, ptr %met")
    _go_if_complete(f, after(f, key))
    e.label(together)
    f.cache = known
    _together(f, instr, row, value, e.bin("and", act, mask), follow)


def _collectives(f: FunctionLowering) -> list[int]:
    """Blocks at which lanes wait for others of the warp that may be elsewhere."""
    return [i for i, block in enumerate(f.flow.blocks) if block.kind == "collective" and f.analysis.concurrent[i]]


def _together(f: FunctionLowering, instr: Instr, row: Exchange, value: Form | None, members: Val, follow: int) -> None:
    row.exchange(f, instr, value, members)
    f.values.flush()
    jump(f, follow, f.lanes.act())


def _union(f: FunctionLowering, mask: Val) -> Val:
    """All lanes that the active ones name."""
    if mask.n == 1:
        return mask
    e = f.e
    f.module.declare("llvm.vector.reduce.or.v32i32", "declare i32 @llvm.vector.reduce.or.v32i32(<32 x i32>)")
    named = e.select(f.lanes.actv(), mask, const("i32", 0, LANES))
    return e.let("i32", 1, f"call i32 @llvm.vector.reduce.or.v32i32({named})")


def _keep_lanes(f: FunctionLowering, place: str, value: Val) -> None:
    """Write the active lanes' part of a vector in memory."""
    old = f.e.let(value.ty, LANES, f"load {value.t}, ptr {place}")
    f.e.line(f"store {f.e.select(f.lanes.actv(), value, old)}, ptr {place}")


def _go_if_complete(f: FunctionLowering, otherwise: str) -> None:
    """Let the lanes go whose named lanes are all there; if there are none, go to the label `otherwise`."""
    e = f.e
    helper = f.module.helper("rk_complete", _complete_helper)
    here, alive = (e.let("i32", 1, f"load i32, ptr %{name}") for name in ("met", "alive"))
    ready = e.let("i32", 1, f"call i32 @{helper}(ptr %named, {here}, {alive})")
    e.line(f"store {ready}, ptr %going")
    e.line(f"br {e.cmp('icmp ne', ready, 0)}, label %release, label %{otherwise}")


def _complete_helper(m: Module) -> str:
    """Which of the lanes that wait can go: those whose mask's lanes all wait with the same mask and instruction."""
    m.declare("llvm.cttz.i32", "declare i32 @llvm.cttz.i32(i32, i1)")
    return """define internal i32 @rk_complete(ptr %named, i32 %here, i32 %alive) noinline {
  %keys = load <32 x i64>, ptr %named
  br label %each
each:
  %left = phi i32 [ %here, %0 ], [ %rest, %each ]
  %sofar = phi i32 [ 0, %0 ], [ %complete, %each ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %key = extractelement <32 x i64> %keys, i32 %lane
  %one = insertelement <32 x i64> poison, i64 %key, i64 0
  %all = shufflevector <32 x i64> %one, <32 x i64> poison, <32 x i32> zeroinitializer
  %equal = icmp eq <32 x i64> %keys, %all
  %bits = bitcast <32 x i1> %equal to i32
  %group = and i32 %bits, %left
  %mask = trunc i64 %key to i32
  %named_alive = and i32 %mask, %alive
  %others = xor i32 %group, -1
  %missing = and i32 %named_alive, %others
  %whole = icmp eq i32 %missing, 0
  %going = select i1 %whole, i32 %group, i32 0
  %complete = or i32 %sofar, %going
  %rest = and i32 %left, %others
  %more = icmp ne i32 %rest, 0
  br i1 %more, label %each, label %out
out:
  ret i32 %complete
}"""


def resume_collectives(f: FunctionLowering) -> None:
    """Nothing runs: lanes whose meeting is complete because others have ended go on."""
    if _collectives(f):
        on = f.e.fresh("incomplete")[1:]
        _go_if_complete(f, on)
        f.e.label(on)


def report_incomplete(f: FunctionLowering) -> None:
    """Nothing else can run: lanes that wait for ones that never come are an error."""
    e = f.e
    for key in _collectives(f):
        incomplete = e.let("i32", 1, f"load i32, ptr %gather{key}")
        with e.where(e.cmp("icmp ne", incomplete, 0)):
            f.lanes.set_act(incomplete)
            f.watch.incomplete(f.flow.blocks[key].instrs[0], incomplete)
            service(f, "INCOMPLETE", f.flow.blocks[key].instrs[0])


def release_complete(f: FunctionLowering) -> None:
    """The lanes of ``%going`` do what they met for and go on; then whoever comes first in order."""
    if not _collectives(f):
        return
    e = f.e
    for name in ("met", "going"):
        f.frame.word(name)
    for name in ("named", "given"):
        f.frame.reserve(f"%{name}", "<32 x i64>", in_memory=True)
        f.frame.lines.append(f"store <32 x i64> zeroinitializer, ptr %{name}")
    e.label("release")
    for key in _collectives(f):
        block = f.flow.blocks[key]
        waiting = e.let("i32", 1, f"load i32, ptr %gather{key}")
        freed = e.bin("and", waiting, e.let("i32", 1, "load i32, ptr %going"))
        with e.where(e.cmp("icmp ne", freed, 0)):
            f.begin(key)
            f.lanes.set_act(freed)
            e.line(f"store {e.bin('xor', waiting, freed)}, ptr %gather{key}")
            f.instr = instr = block.instrs[0]
            row = EXCHANGES[instr.op.name]
            value = None
            if row.bits is not None:
                value = e.resize(e.let("i64", LANES, "load <32 x i64>, ptr %given"), int_type(row.bits(instr)))
            members = e.bin("and", f.values.value(instr.args[-1], 32), e.let("i32", 1, "load i32, ptr %alive"))
            row.exchange(f, instr, value, members)
            f.values.flush()
            f.values.copy(block.targets[0], freed)
            wait_at(f, block.targets[0], freed)
    met, going = (e.let("i32", 1, f"load i32, ptr %{name}") for name in ("met", "going"))
    e.line(f"store {e.bin('and', met, e.invert(going))}, ptr %met")
    e.line(f"br label %c{f.analysis.checks[0]}")
