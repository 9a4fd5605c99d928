"""``st.async`` and ``red.async``: stores and sums in a cluster's shared memory, of which a barrier there is told.

PTX lets them happen at any time before that; here they happen at once.
"""

from __future__ import annotations

from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import UPDATE, WRITE, Access
from rawkern.engines.cpu.emit.lanes import each_lane
from rawkern.engines.cpu.emit.memory import mbarrier
from rawkern.engines.cpu.emit.memory.addresses import address
from rawkern.engines.cpu.emit.memory.atomics import OPERATIONS, atomic_step
from rawkern.engines.cpu.emit.memory.clusters import named, space_of
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx.data import Instr, Mem, Vec


def _store(f: FunctionLowering, instr: Instr) -> None:
    """Each lane's values, then the bytes that its barrier is told."""
    op, e, space = instr.op, f.e, space_of(f, instr.op)
    to, source, bar = instr.args
    if not isinstance(to, Mem) or not isinstance(bar, Mem):
        raise f.unsupported()
    ty, items = op.type, source.items if isinstance(source, Vec) else (source,)
    size, what = ty.bits // 8, next((m for m in op.mods if m in OPERATIONS), "")
    does, order = (UPDATE, "relaxed") if what else (WRITE, "")
    access = Access(does, to, named(space), size, len(items), order=order, looks=False)
    places = f.values.plain(f.watch.access(access, address(f, to, space)))
    step = atomic_step(what, ty, "shared", "monotonic") if what else None

    def one(e: Emitter, at: str, args: list[Val]) -> None:
        if step is not None:
            step(e, at, args)
        else:
            e.line(f"store {args[0]}, {at}, align {size}")

    for k, item in enumerate(items):
        value = e.splat(e.resize(f.values.number(item, ty.bits, ty.name), ty.int), LANES)
        each_lane(f, f"rk_async_{what}_{ty.name}", None, e.bin("add", places, k * size) if k else places, [value], one)
    told = Access(UPDATE, bar, named(space), 8, order="release", looks=False)
    barrier = f.values.plain(f.watch.access(told, address(f, bar, space)))
    mbarrier.tell(f, barrier, const("i32", size * len(items)))


HANDLERS = {"st.async": _store, "red.async": _store}
