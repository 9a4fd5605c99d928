"""Accesses ask for memory that is used some time later.

Those in loops along rows (`row_loops`) ask for what their warp comes to some turns later. Asking for an address that is
not there does nothing, so whether the loop goes on that far need not be known. Where it does not, the next blocks
mostly begin there. Outside of loops, accesses of warps that can wait ask for what a later block comes to; others run
one after the other, so that the CPU sees the order itself, and asking takes a tenth of a small kernel's time.
"""

from __future__ import annotations

from rawkern.engines.cpu.analysis.row_loops import Row
from rawkern.engines.cpu.emit.forms import LANES, Affine, Form, Val, Wide
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.lanes import pointer
from rawkern.engines.cpu.emit.memory.addresses import starts, stride_of
from rawkern.engines.cpu.ptx.data import Mem, Reg

TURNS = 12  # more of them push each other out of the cache where the step is a large power of two
DISTANCE = 8192  # bytes, from one warp to a later one
LINE = 64  # bytes
FAR = 1 << 16  # bytes from lane to lane: what is further apart is in no order that is worth asking for
SECOND_LEVEL = 2  # of the cache, as LLVM counts


def ask(f: FunctionLowering, mem: Mem, form: Form, at: int, writes: bool = False) -> None:
    """Ask for what the access to ``[mem]``, at `form` and `at` bytes, touches later."""
    stride = stride_of(form)
    if not f.watch.prefetches or not stride or abs(stride) > FAR or not isinstance(form, (Affine, Wide)):
        return
    if len(begin := set(starts(f, form))) > 1:
        return
    e, distance = f.e, DISTANCE
    if any(f.block in members for _, members in f.flow.loops):
        row = next((row for row in f.control.rows.values() if f.block in row.members), None)
        step = f.values.operand(Reg(row.step), 32) if row is not None and _first(f, mem, row) else None
        if not isinstance(step, Val) or step.n > 1:
            return
        # an index grows by one from lane to lane, so that the step in elements is as many strides
        distance = e.bin("mul", e.resize(step, "i64", True), TURNS * stride)
    elif not f.plan.waiting and f.kept is None:
        return
    f.module.declare("llvm.prefetch.p0", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    there = e.bin("add", begin.pop(), distance)
    for line in range(0, LANES * abs(stride), max(LINE, abs(stride))):
        place = pointer(e, there, at + line)
        e.line(f"call void @llvm.prefetch.p0({place}, i32 {int(writes)}, i32 {SECOND_LEVEL}, i32 1)")


def _first(f: FunctionLowering, mem: Mem, row: Row) -> bool:
    """Whether no code before the loop touches what the same parameter or variable points to: that is in the cache."""
    root = f.provenance.get(getattr(mem.base, "name", ""))
    return root is not None and not any(
        i.op.facts.kind == "memory" and isinstance(a, Mem) and f.provenance.get(getattr(a.base, "name", "")) == root
        for block in f.flow.blocks[: row.header]
        for i in block.instrs
        for a in i.args
        if i.op.space != "param"
    )
