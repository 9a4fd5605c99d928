"""``cp.async``: copies to shared memory, done where they stand; a wait for them then has nothing to do.

PTX lets an asynchronous copy happen at any time before a wait for it returns, so at once is legal. An
instrument is told of all: before that wait nothing may use what a copy reads and writes.
"""

from __future__ import annotations

from rawkern.engines.cpu.emit.calls import service
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import COPY, READ, UPDATE, Access
from rawkern.engines.cpu.emit.lanes import each_lane, pointer
from rawkern.engines.cpu.emit.memory.addresses import address
from rawkern.engines.cpu.emit.memory.mbarrier import arrive_at, barrier_address
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx.data import Imm, Instr, Mem, Reg


def _copies_arrive(f: FunctionLowering, instr: Instr) -> None:
    """``cp.async.mbarrier.arrive``: once the copies are done, which they are."""
    f.watch.note("copies_arrive")
    if instr.op.has("noinc"):  # else one more is expected, which arrives at once
        arrive_at(f, barrier_address(f, instr, instr.args[0], UPDATE), const("i32", 1))


def _copy(f: FunctionLowering, instr: Instr) -> None:
    """4, 8 or 16 bytes for each active lane, of which some may be zeros instead of being read."""
    e = f.e
    to, source, size, *more = instr.args
    if not (isinstance(size, Imm) and size.value in (4, 8, 16) and isinstance(to, Mem) and isinstance(source, Mem)):
        raise f.unsupported("copies are of 4, 8 or 16 bytes")
    if instr.op.has("L2::cache_hint"):
        more = more[:-1]
    count = None
    if more and isinstance(more[0], Reg) and f.values.bits_of(more[0].name) == 1:
        count = e.select(f.values.value(more[0], 1), const("i32", 0), const("i32", size.value))  # ignore-src
    elif more:
        count = f.values.value(more[0], 32)
        if not (isinstance(more[0], Imm) and more[0].value <= size.value):
            over = e.bin("and", f.lanes.mask_of(e.cmp("icmp ugt", e.splat(count, LANES), size.value)), f.lanes.act())
            with e.where(e.cmp("icmp ne", over, 0), rare=True):
                service(f, "COPY", instr, const("i64", size.value), lanes=over)
    width, read = size.value, f.lanes.act()
    if count is not None:  # of lanes that read less, what they read is not looked at
        read = e.bin("and", read, f.lanes.mask_of(e.cmp("icmp eq", e.splat(count, LANES), width)))
    f.watch.note("copy")
    form = f.watch.access(Access(COPY, to, "shared", width), address(f, to, "shared"))
    dst = e.splat(f.values.plain(form), LANES)
    form = e.splat(f.values.plain(address(f, source, "global")), LANES)
    src = f.values.plain(f.watch.access(Access(READ, source, "global", width, mask=read, lengths=count), form))
    f.watch.note("copied")
    if count is None or (isinstance(more[0], Imm) and more[0].value == size.value):
        each_lane(f, f"rk_copy_{width}", None, dst, [src], lambda e, at, a: _whole(e, at, a, width))
    else:
        each_lane(f, f"rk_copy_part_{width}", None, dst, [src, count], lambda e, at, a: _part(e, at, a, width))


def _whole(e: Emitter, at: str, args: list[Val], size: int) -> None:
    got = e.let("i32", size // 4, f"load {_words(size)}, {pointer(e, args[0])}, align 4")
    e.line(f"store {got}, {at}, align 4")


def _part(e: Emitter, at: str, args: list[Val], size: int) -> None:
    """The first ``args[1]`` bytes of the source, then zeros; bytes beyond it are not read."""
    source, count = args
    count = e.intrinsic("llvm.umin", "i32", count, const("i32", size))
    whole, part, loop, more, done = (e.fresh(x)[1:] for x in ("whole", "part", "byte", "more", "copied"))
    e.line(f"br {e.cmp('icmp eq', count, size)}, label %{whole}, label %{part}")
    e.label(whole)
    _whole(e, at, args, size)
    e.line(f"br label %{done}")
    e.label(part)
    e.line(f"store {_words(size)} zeroinitializer, {at}, align 4")
    e.line(f"br label %{loop}")
    step, after = e.fresh(), e.fresh()
    e.label(loop)
    e.line(f"{step} = phi i32 [ 0, %{part} ], [ {after}, %{more} ]")
    e.line(f"br {e.cmp('icmp ult', Val(step, 'i32'), count)}, label %{more}, label %{done}")
    e.label(more)
    offset = e.resize(Val(step, "i32"), "i64")
    byte = e.let("i8", 1, f"load i8, {pointer(e, e.bin('add', source, offset))}")
    e.line(f"store {byte}, ptr {e.let('ptr', 1, f'getelementptr i8, {at}, {offset}').ref}")
    e.line(f"{after} = add i32 {step}, 1")
    e.line(f"br label %{loop}")
    e.label(done)


def _words(size: int) -> str:
    return "i32" if size == 4 else f"<{size // 4} x i32>"


HANDLERS = {
    "cp.async.mbarrier": _copies_arrive,
    "cp.async.ca": _copy,
    "cp.async.cg": _copy,
    "cp.async.commit_group": lambda f, instr: f.watch.note("commit"),
    "cp.async.wait_group": lambda f, instr: f.watch.note("wait", f.values.value(instr.args[0], 32)),
    "cp.async.wait_all": lambda f, instr: f.watch.note("wait_all"),
}
