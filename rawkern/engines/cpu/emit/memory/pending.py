"""Asynchronous operations of a block that have been issued and have not happened yet.

PTX lets one happen at any time between its issue and the wait that orders it. Here it is as late as that, so that code
that does not wait sees what was there before: where a barrier is looked at whose phase the operation keeps open, which
may be that of another block of the cluster, where its thread waits for its group, or where its warp ends. If the
list is full, the first ones happen, too. In launches in another order (`rawkern.order`) some happen where they are
issued: with the seed 0 all of them.

An entry of the block's list has a function, the barrier that is told of bytes (or 0), the thread, how many bytes it is
told, three words for the function, and as many as `MORE` that it may need besides. An entry without a function ends a
group of the thread's.
"""

from __future__ import annotations

from collections.abc import Sequence

from rawkern.base.records import filled
from rawkern.engines.cpu.analysis.plan import Plan
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.lanes import each_lane
from rawkern.engines.cpu.emit.memory import mbarrier
from rawkern.engines.cpu.ir import Emitter, Module, Val
from rawkern.engines.cpu.ptx.data import Instr
from rawkern.engines.cpu.records import BLOCK, LAUNCH, OPERATION, ORDER, PENDING, WORKER

TO, FROM, BYTES, SITE, MORE = 4, 5, 6, 7, 8  # words of an entry
_VALUES = {
    "count": BLOCK.offset("pending"), "list": BLOCK.offset("operations"), "most": PENDING,
    "issued": BLOCK.offset("issued"), "launch": WORKER.offset("launch"),
    "entry": f"[{OPERATION} x i64]", "size": 8 * OPERATION, "more": MORE,
    "rest": 8 * (OPERATION - MORE), "order": LAUNCH.offset("order"),
    "factor": ORDER.offset("factor0"), "first": BLOCK.offset("first"),
    "beside": BLOCK.offset("beside"), "site": SITE, "done": BLOCK.offset("done"),
    "nwarps": BLOCK.offset("nwarps"),
}  # fmt: skip


def used(plan: Plan) -> bool:
    """Whether a kernel has such operations."""
    every = (instr for function in plan.functions for instr in function.body if isinstance(instr, Instr))
    later = ("st.async", "red.async")
    return any((i.op.base == "cp" and i.op.has("bulk")) or i.op.name in later for i in every)


def word(e: Emitter, k: int) -> Val:
    """A word of the entry ``%entry`` of which a function is called."""
    return e.let("i64", 1, f"load i64, {e.let('ptr', 1, f'getelementptr i64, ptr %entry, i64 {k}')}")


def issue(
    f: FunctionLowering, function: str, barrier: Val | None, told: Val, words: Sequence[Val], more: Val | None = None
) -> None:
    """Each active lane issues an operation: `function` with three `words`, after which a barrier is told of bytes.

    `more`: where the rest of the entry's words stand, which are copied.
    """
    e = f.e
    _define(f.module)
    run = e.let("i64", 1, f"ptrtoint ptr @{function} to i64") if function else Val("0", "i64")
    site = f.watch.operation() if function else None
    values = [run, barrier or Val("0", "i64"), _threads(f), e.resize(told, "i64"), *words]
    values += [site or Val("0", "i64"), more or Val("0", "i64")]
    each_lane(f, "rk_pending_put_each", None, _block(f), values, _put)


def commit(f: FunctionLowering) -> None:
    """Each active lane ends a group of its operations."""
    zero = Val("0", "i64")
    issue(f, "", None, zero, (zero, zero, zero))


def wait(f: FunctionLowering, keep: Val) -> None:
    """Each active lane waits for all its groups but the last few."""
    _define(f.module)
    each_lane(f, "rk_pending_wait_each", None, _block(f), [_threads(f), f.e.resize(keep, "i64")], _wait)


def begin(plan: Plan) -> list[str]:
    """What a warp does at its start, in LLVM IR, where no scheduler has emptied the list for the block's warps."""
    place = f"%pending = getelementptr i8, ptr %blk, i64 {BLOCK.offset('pending')}"
    return [] if plan.waiting else [place, "store i64 0, ptr %pending"]


def finish(m: Module, left: str) -> str:
    """What a warp does at its end, in LLVM IR; `left`: what an instrument does about operations that are left."""
    _define(m)
    if left:
        m.helper("rk_pending_left", lambda m: filled(_LEFT, values={**_VALUES, "left": left}))
        return "call void @rk_pending_left(ptr %blk, i32 %warp)\n  call void @rk_pending_finish(ptr %blk, i32 %warp)"
    return "call void @rk_pending_finish(ptr %blk, i32 %warp)"


def _block(f: FunctionLowering) -> Val:
    return f.e.let("i64", 1, "ptrtoint ptr %blk to i64")


def _threads(f: FunctionLowering) -> Val:
    """Numbers of the lanes' threads."""
    lanes = Val(f"<{', '.join(f'i64 {k}' for k in range(LANES))}>", "i64", LANES)
    return f.e.bin("add", lanes, f.e.resize(f.e.bin("shl", Val("%warp", "i32"), 5), "i64"))


def _put(e: Emitter, block: str, args: list[Val]) -> None:
    e.line(f"call void @rk_pending_put({block}, {', '.join(map(str, args))})")


def _wait(e: Emitter, block: str, args: list[Val]) -> None:
    e.line(f"call void @rk_pending_groups({block}, {', '.join(map(str, args))})")


def test_barrier(f: FunctionLowering, instr: Instr) -> None:
    """``mbarrier.test_wait`` and ``try_wait``, before which operations happen that keep the phase open."""
    if not used(f.plan):
        mbarrier.wait(f, instr)
        return
    _define(f.module)
    mbarrier.wait(f, instr, _block(f), lambda e, block, at: e.line(f"call void @rk_pending_barrier({block}, {at})"))


HANDLERS = {"mbarrier.test_wait": test_barrier, "mbarrier.try_wait": test_barrier}


def _define(m: Module) -> None:
    """Have the functions below in a module."""
    mbarrier.define_complete(m)
    for what in ("memcpy", "memmove"):
        m.declare(f"llvm.{what}.p0.p0.i64", f"declare void @llvm.{what}.p0.p0.i64(ptr, ptr, i64, i1)")
    for text in _FUNCTIONS.strip().split("\n\n"):
        text = filled(text, values=_VALUES)
        name = text[text.index("@") + 1 : text.index("(")]
        m.helper(name, lambda m, text=text: text)


# Operations of the warp that is about to end: in groups that it has not waited for, and if it is the block's last, also
# those that no thread has waited for at a barrier.
_LEFT = """
define internal void @rk_pending_left(ptr %blk, i32 %warp) noinline {
  %pn = getelementptr i8, ptr %blk, i64 {count}
  %list = getelementptr i8, ptr %blk, i64 {list}
  %own = zext i32 %warp to i64
  %pdone = getelementptr i8, ptr %blk, i64 {done}
  %done = load i32, ptr %pdone
  %pall = getelementptr i8, ptr %blk, i64 {nwarps}
  %all = load i32, ptr %pall
  %others = add i32 %done, 1
  %last = icmp uge i32 %others, %all
  br label %look
look:
  %k = phi i64 [ 0, %0 ], [ %k1, %next ]
  %n = load i64, ptr %pn
  %more = icmp ult i64 %k, %n
  br i1 %more, label %one, label %out
one:
  %p = getelementptr {entry}, ptr %list, i64 %k
  %run = load i64, ptr %p
  %pbar = getelementptr i64, ptr %p, i64 1
  %bar = load i64, ptr %pbar
  %pt = getelementptr i64, ptr %p, i64 2
  %thread = load i64, ptr %pt
  %psite = getelementptr i64, ptr %p, i64 {site}
  %site = load i64, ptr %psite
  %k1 = add i64 %k, 1
  %warpof = lshr i64 %thread, 5
  %mine = icmp eq i64 %warpof, %own
  %some = icmp ne i64 %run, 0
  %group = icmp eq i64 %bar, 0
  %due = or i1 %group, %last
  %a = and i1 %mine, %some
  %b = and i1 %a, %due
  br i1 %b, label %left, label %next
left:
  {left}
  br label %next
next:
  br label %look
out:
  ret void
}
"""

_FUNCTIONS = """
define internal void @rk_pending_take(ptr %blk, i64 %k) noinline {
  %entry = alloca {entry}, align 16
  %pn = getelementptr i8, ptr %blk, i64 {count}
  %n = load i64, ptr %pn
  %list = getelementptr i8, ptr %blk, i64 {list}
  %p = getelementptr {entry}, ptr %list, i64 %k
  call void @llvm.memcpy.p0.p0.i64(ptr %entry, ptr %p, i64 {size}, i1 false)
  %n1 = sub i64 %n, 1
  %after = sub i64 %n1, %k
  %bytes = mul i64 %after, {size}
  %next = getelementptr i8, ptr %p, i64 {size}
  call void @llvm.memmove.p0.p0.i64(ptr %p, ptr %next, i64 %bytes, i1 false)
  store i64 %n1, ptr %pn
  %run = load ptr, ptr %entry
  %nothing = icmp eq ptr %run, null
  br i1 %nothing, label %out, label %go
go:
  call void %run(ptr %entry)
  %pbar = getelementptr i64, ptr %entry, i64 1
  %bar = load ptr, ptr %pbar
  %none = icmp eq ptr %bar, null
  br i1 %none, label %out, label %tell
tell:
  %ptold = getelementptr i64, ptr %entry, i64 3
  %told = load i64, ptr %ptold
  call void @rk_mbarrier_complete(ptr %bar, i64 %told)
  br label %out
out:
  ret void
}

define internal void @rk_pending_put(ptr %blk, i64 %f, i64 %bar, i64 %t, i64 %told, i64 %a, i64 %b, i64 %c,
  i64 %site, i64 %d) noinline {
  %pn = getelementptr i8, ptr %blk, i64 {count}
  %before = load i64, ptr %pn
  %full = icmp uge i64 %before, {most}
  br i1 %full, label %make, label %put
make:
  call void @rk_pending_take(ptr %blk, i64 0)
  br label %put
put:
  %n = load i64, ptr %pn
  %list = getelementptr i8, ptr %blk, i64 {list}
  %p = getelementptr {entry}, ptr %list, i64 %n
  store i64 %f, ptr %p
  %p1 = getelementptr i64, ptr %p, i64 1
  store i64 %bar, ptr %p1
  %p2 = getelementptr i64, ptr %p, i64 2
  store i64 %t, ptr %p2
  %p3 = getelementptr i64, ptr %p, i64 3
  store i64 %told, ptr %p3
  %p4 = getelementptr i64, ptr %p, i64 4
  store i64 %a, ptr %p4
  %p5 = getelementptr i64, ptr %p, i64 5
  store i64 %b, ptr %p5
  %p6 = getelementptr i64, ptr %p, i64 6
  store i64 %c, ptr %p6
  %p7 = getelementptr i64, ptr %p, i64 {site}
  store i64 %site, ptr %p7
  %none = icmp eq i64 %d, 0
  br i1 %none, label %added, label %rest
rest:
  %p8 = getelementptr i64, ptr %p, i64 {more}
  %pmore = inttoptr i64 %d to ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %p8, ptr %pmore, i64 {rest}, i1 false)
  br label %added
added:
  %n1 = add i64 %n, 1
  store i64 %n1, ptr %pn
  %pissued = getelementptr i8, ptr %blk, i64 {issued}
  %issued = load i64, ptr %pissued
  %issued1 = add i64 %issued, 1
  store i64 %issued1, ptr %pissued
  %worker = load ptr, ptr %blk
  %plaunch = getelementptr i8, ptr %worker, i64 {launch}
  %launch = load ptr, ptr %plaunch
  %porder = getelementptr i8, ptr %launch, i64 {order}
  %order = load ptr, ptr %porder
  %usual = icmp eq ptr %order, null
  %marks = icmp eq i64 %f, 0
  %late = or i1 %usual, %marks
  br i1 %late, label %out, label %choose
choose:
  %pfactor = getelementptr i8, ptr %order, i64 {factor}
  %factor = load i64, ptr %pfactor
  %mixed = mul i64 %factor, %issued1
  %chosen = lshr i64 %mixed, 5
  %bit = trunc i64 %chosen to i1
  br i1 %bit, label %out, label %early
early:
  call void @rk_pending_take(ptr %blk, i64 %n)
  br label %out
out:
  ret void
}

define internal void @rk_pending_some(ptr %blk, i64 %word, i64 %shift, i64 %value) noinline {
  %pn = getelementptr i8, ptr %blk, i64 {count}
  %list = getelementptr i8, ptr %blk, i64 {list}
  br label %look
look:
  %k = phi i64 [ 0, %0 ], [ %k1, %pass ], [ %k, %take ]
  %n = load i64, ptr %pn
  %more = icmp ult i64 %k, %n
  br i1 %more, label %compare, label %out
compare:
  %p = getelementptr {entry}, ptr %list, i64 %k
  %pw = getelementptr i64, ptr %p, i64 %word
  %w = load i64, ptr %pw
  %shifted = lshr i64 %w, %shift
  %same = icmp eq i64 %shifted, %value
  br i1 %same, label %take, label %pass
take:
  call void @rk_pending_take(ptr %blk, i64 %k)
  br label %look
pass:
  %k1 = add i64 %k, 1
  br label %look
out:
  ret void
}

define internal void @rk_pending_barrier(ptr %blk, ptr %bar) noinline {
  %value = ptrtoint ptr %bar to i64
  %pfirst = getelementptr i8, ptr %blk, i64 {first}
  %first = load ptr, ptr %pfirst
  br label %each
each:
  %one = phi ptr [ %first, %0 ], [ %next, %each ]
  call void @rk_pending_some(ptr %one, i64 1, i64 0, i64 %value)
  %pnext = getelementptr i8, ptr %one, i64 {beside}
  %next = load ptr, ptr %pnext
  %all = icmp eq ptr %next, null
  br i1 %all, label %out, label %each
out:
  ret void
}

define internal void @rk_pending_finish(ptr %blk, i32 %warp) noinline {
  %value = zext i32 %warp to i64
  call void @rk_pending_some(ptr %blk, i64 2, i64 5, i64 %value)
  ret void
}

define internal i1 @rk_pending_ends(ptr %p, i64 %thread) alwaysinline {
  %run = load i64, ptr %p
  %pt = getelementptr i64, ptr %p, i64 2
  %t = load i64, ptr %pt
  %own = icmp eq i64 %t, %thread
  %mark = icmp eq i64 %run, 0
  %ends = and i1 %own, %mark
  ret i1 %ends
}

define internal void @rk_pending_groups(ptr %blk, i64 %thread, i64 %keep) noinline {
  %pn = getelementptr i8, ptr %blk, i64 {count}
  %list = getelementptr i8, ptr %blk, i64 {list}
  %n = load i64, ptr %pn
  br label %count
count:
  %j = phi i64 [ 0, %0 ], [ %j1, %counted ]
  %ends = phi i64 [ 0, %0 ], [ %ends1, %counted ]
  %some = icmp ult i64 %j, %n
  br i1 %some, label %counted, label %start
counted:
  %pj = getelementptr {entry}, ptr %list, i64 %j
  %end = call i1 @rk_pending_ends(ptr %pj, i64 %thread)
  %endw = zext i1 %end to i64
  %ends1 = add i64 %ends, %endw
  %j1 = add i64 %j, 1
  br label %count
start:
  %last = sub i64 %ends, %keep
  br label %look
look:
  %k = phi i64 [ 0, %start ], [ %k1, %pass ], [ %k, %take ]
  %seen = phi i64 [ 0, %start ], [ %seen1, %pass ], [ %seen1, %take ]
  %now = load i64, ptr %pn
  %more = icmp ult i64 %k, %now
  br i1 %more, label %compare, label %out
compare:
  %p = getelementptr {entry}, ptr %list, i64 %k
  %pbar = getelementptr i64, ptr %p, i64 1
  %bar = load i64, ptr %pbar
  %pt = getelementptr i64, ptr %p, i64 2
  %t = load i64, ptr %pt
  %own = icmp eq i64 %t, %thread
  %ownmark = call i1 @rk_pending_ends(ptr %p, i64 %thread)
  %ownmarkw = zext i1 %ownmark to i64
  %seen1 = add i64 %seen, %ownmarkw
  %ingroup = icmp eq i64 %bar, 0
  %owned = and i1 %own, %ingroup
  %old = icmp slt i64 %seen, %last
  %due = and i1 %owned, %old
  br i1 %due, label %take, label %pass
take:
  call void @rk_pending_take(ptr %blk, i64 %k)
  br label %look
pass:
  %k1 = add i64 %k, 1
  br label %look
out:
  ret void
}
"""
