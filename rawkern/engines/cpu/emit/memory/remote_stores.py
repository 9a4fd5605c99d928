"""``st.async`` and ``red.async``: stores and sums in a cluster's shared memory, which happen later (`pending`)."""

from __future__ import annotations

from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import UPDATE, WRITE, Access
from rawkern.engines.cpu.emit.lanes import define, pointer
from rawkern.engines.cpu.emit.memory import pending
from rawkern.engines.cpu.emit.memory.addresses import address
from rawkern.engines.cpu.emit.memory.atomics import OPERATIONS, atomic_step
from rawkern.engines.cpu.emit.memory.bulk import completion_barrier
from rawkern.engines.cpu.emit.memory.clusters import named, space_of
from rawkern.engines.cpu.ir import Emitter, Module, const
from rawkern.engines.cpu.ptx.data import Instr, Mem, Vec
from rawkern.engines.cpu.ptx.decode import DType


def _store(f: FunctionLowering, instr: Instr) -> None:
    """Each lane's values, each of which is an operation that tells the lane's barrier of its bytes."""
    op, e, space = instr.op, f.e, space_of(f, instr.op)
    to, source, bar = instr.args
    if not isinstance(to, Mem) or not isinstance(bar, Mem):
        raise f.unsupported()
    ty, items = op.type, source.items if isinstance(source, Vec) else (source,)
    size, what = ty.bits // 8, next((m for m in op.mods if m in OPERATIONS), "")
    does, order = (UPDATE, "relaxed") if what else (WRITE, "")
    values = [e.splat(e.resize(f.values.value(item, ty.bits), "i64"), LANES) for item in items]
    f.watch.note("copy")
    access = Access(does, to, named(space), size, len(items), order=order, looks=False)
    places = e.splat(f.values.plain(f.watch.access(access, address(f, to, space))), LANES)
    f.watch.note("copied")
    barrier = completion_barrier(f, bar, named(space), e.splat(f.values.plain(address(f, bar, space)), LANES), None)
    name = f"rk_async_{what}_{ty.name}"
    f.module.helper(name, lambda m: _later(m, name, what, ty))
    for k, value in enumerate(values):
        at = e.bin("add", places, k * size) if k else places
        pending.issue(f, name, barrier, const("i32", size), [at, value, const("i64", 0)])


def _later(m: Module, name: str, what: str, ty: DType) -> str:
    """What happens to one value, by its entry."""
    e = Emitter(m)
    to, value = (pending.word(e, k) for k in (pending.TO, pending.FROM))
    at, value = pointer(e, to), e.resize(value, ty.int)
    if what:
        atomic_step(what, ty, "shared", "monotonic")(e, at, [value])
    else:
        e.line(f"store {value}, {at}, align {ty.bits // 8}")
    e.line("ret void")
    return define(f"define internal void @{name}(ptr %entry) noinline", e)


HANDLERS = {"st.async": _store, "red.async": _store}
