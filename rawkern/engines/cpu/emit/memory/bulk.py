"""``cp.async.bulk`` and ``cp.reduce.async.bulk``: copies of whole ranges, which happen later (`pending`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rawkern.engines.cpu.arith.formats import is_nan
from rawkern.engines.cpu.emit.calls import service
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import COPY, READ, UPDATE, WRITE, Access
from rawkern.engines.cpu.emit.lanes import define
from rawkern.engines.cpu.emit.memory import pending
from rawkern.engines.cpu.emit.memory.addresses import address
from rawkern.engines.cpu.emit.memory.atomics import OPERATIONS, atomic_step, new_value
from rawkern.engines.cpu.emit.memory.clusters import destinations, local, named, space_of
from rawkern.engines.cpu.ir import Emitter, Module, Val, const
from rawkern.engines.cpu.ptx.data import Instr, Mem
from rawkern.engines.cpu.ptx.decode import DType

_UNIT = 16  # bytes


def _copy(f: FunctionLowering, instr: Instr) -> None:
    """A copy, or an operation on each element, between global and shared memory."""
    op, e = instr.op, f.e
    to, source, size, *more = instr.args
    multicast = op.has("multicast::cluster")
    spaces = [m.partition("::")[0] for m in op.mods if m.partition("::")[0] in ("global", "shared")][:2]
    if not isinstance(to, Mem) or not isinstance(source, Mem):
        raise f.unsupported()
    what = next((m for m in op.mods if m in OPERATIONS), "")
    size = e.splat(f.values.value(size, 32), LANES)
    odd = e.bin("and", f.lanes.mask_of(e.cmp("icmp ne", e.bin("and", size, _UNIT - 1), 0)), f.lanes.act())
    with e.where(e.cmp("icmp ne", odd, 0), rare=True):
        service(f, "BULK", instr, e.resize(size, "i64"), lanes=odd)
    does = COPY if spaces[0] == "shared" and not what else UPDATE if what else WRITE
    space = "cluster" if space_of(f, op) == "cluster" else spaces[0]
    places = [e.splat(f.values.plain(address(f, m, at)), LANES) for m, at in ((to, space), (source, spaces[1]))]
    barriers = None
    if not op.has("bulk_group"):
        barriers = e.splat(f.values.plain(address(f, more[0], space)), LANES)
    function = f.module.helper("rk_bulk_copy", _copier)
    if what:
        name = f"rk_bulk_{what}_{op.type.name}_{spaces[0]}"
        function = f.module.helper(name, lambda m: _reducer(m, name, reduction(m, what, op.type, spaces[0])))
    for distance in destinations(f, instr, f.values.value(more[1], 16) if multicast else None):
        there = placed_at(f, places[0], distance)
        f.watch.note("bulk_copy")
        written = Access(does, to, seen(space, distance), _UNIT, distance=distance)
        inside = _watched(f, (written, Access(READ, source, spaces[1], _UNIT)), [there, places[1]], size)
        f.watch.note("copied")
        barrier = completion_barrier(f, more[0], space, barriers, distance) if barriers is not None else None
        bytes_ = e.select(inside, e.resize(size, "i64"), e.splat(const("i64", 0), LANES))
        pending.issue(f, function, barrier, size, [there, places[1], bytes_])


def placed_at(f: FunctionLowering, at: Val, distance: Val | None) -> Val:
    """Where lanes copy to in the block of the cluster at a distance; None: where their addresses lead."""
    return at if distance is None else f.e.bin("add", local(f, at), f.e.splat(distance, at.n))


def seen(space: str, distance: Val | None) -> str:
    """What instruments are told of the memory that a copy writes."""
    return named(space) if distance is None else space


def completion_barrier(f: FunctionLowering, mem: Mem, space: str, at: Val, distance: Val | None) -> Val:
    """Each active lane's barrier, at which a copy completes a transaction of its bytes."""
    there = placed_at(f, at, distance)
    f.watch.completes_at(there)
    # The result is not used: the thread itself has to wait as well.
    access = Access(UPDATE, mem, seen(space, distance), 8, order="release", looks=False, distance=distance)
    return f.e.splat(f.values.plain(f.watch.access(access, there)), LANES)


def _watched(f: FunctionLowering, accesses: tuple[Access, ...], places: list[Val], size: Val) -> Val:
    """Tell of all units of the lanes' ranges; returns the lanes that may access them."""
    e, act, known = f.e, f.lanes.act(), dict(f.cache)
    units, done, before = (e.fresh(x)[1:] for x in ("units", "told", "before"))
    e.line(f"br label %{before}")
    e.label(before)
    e.line(f"br label %{units}")
    e.label(units)
    at, after, inside, still = e.fresh(), e.fresh(), e.fresh(), None
    phis = len(e.lines)
    here = e.bin("and", f.lanes.mask_of(e.cmp("icmp ult", e.splat(Val(at, "i32"), LANES), size)), act)
    still = Val(inside, "i1", LANES)
    for access, place in zip(accesses, places, strict=True):
        wanted = e.bin("add", place, e.resize(Val(at, "i32"), "i64"))
        got = f.values.plain(f.watch.access(_masked(access, here), wanted))
        other = e.bin("and", e.cmp("icmp ne", e.splat(got, LANES), wanted), f.lanes.vector(here))
        still = e.bin("and", still, e.invert(other))
    last = e.fresh("unit")[1:]
    e.line(f"br label %{last}")
    e.label(last)
    e.line(f"{after} = add i32 {at}, {_UNIT}")
    left = e.bin("and", f.lanes.mask_of(e.cmp("icmp ult", e.splat(Val(after, "i32"), LANES), size)), act)
    e.line(f"br {e.cmp('icmp ne', left, 0)}, label %{units}, label %{done}")
    every = Val("splat (i1 true)", "i1", LANES)
    e.lines[phis:phis] = [
        f"{at} = phi i32 [ 0, %{before} ], [ {after}, %{last} ]",
        f"{inside} = phi <{LANES} x i1> [ {every.ref}, %{before} ], [ {still.ref}, %{last} ]",
    ]
    e.label(done)
    f.cache = known
    return still


def _masked(access: Access, mask: Val) -> Access:
    return replace(access, mask=mask)


def _copier(m: Module) -> str:
    e = Emitter(m)
    to, source, size = (pending.word(e, k) for k in (pending.TO, pending.FROM, pending.BYTES))
    m.declare("llvm.memcpy.p0.p0.i64", "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    places = ", ".join(f"ptr {e.let('ptr', 1, f'inttoptr {x} to ptr').ref}" for x in (to, source))
    e.line(f"call void @llvm.memcpy.p0.p0.i64({places}, {size}, i1 false)")
    e.line("ret void")
    return define("define internal void @rk_bulk_copy(ptr %entry) noinline", e)


def _reducer(m: Module, name: str, does: str) -> str:
    e = Emitter(m)
    words = ", ".join(str(pending.word(e, k)) for k in (pending.TO, pending.FROM, pending.BYTES))
    e.line(f"call void @{does}({words})")
    e.line("ret void")
    return define(f"define internal void @{name}(ptr %entry) noinline", e)


def reduction(m: Module, what: str, ty: DType, space: str) -> str:
    """Have a function in a module that does something to each element at an address, with one from another address.

    Its parameters are the two addresses and how many bytes there are.
    """
    return m.helper(f"rk_{what}_each_{ty.name}_{space}", lambda m: _reduction(m, what, ty, space))


def _reduction(m: Module, what: str, ty: DType, space: str) -> str:
    e, size = Emitter(m), ty.bits // 8
    to, source, total = (Val(f"%{name}", "i64") for name in ("to", "from", "bytes"))
    step = atomic_step(what, ty, space, "monotonic", _sum(ty) if what == "add" and ty.kind == "f" else None)
    e.line("br label %look")
    e.label("look")
    e.line("%k = phi i64 [ 0, %0 ], [ %k1, %done ]")
    e.line(f"br {e.cmp('icmp ult', Val('%k', 'i64'), total)}, label %each, label %out")
    e.label("each")
    places = [e.bin("add", x, Val("%k", "i64")) for x in (to, source)]
    at, p = (e.let("ptr", 1, f"inttoptr {x} to ptr") for x in places)
    step(e, str(at), [e.let(ty.int, 1, f"load {ty.int}, {p}, align {size}")])
    e.line("br label %done")
    e.label("done")
    e.line(f"%k1 = add i64 %k, {size}")
    e.line("br label %look")
    e.label("out")
    e.line("ret void")
    header = f"define internal void @rk_{what}_each_{ty.name}_{space}(i64 %to, i64 %from, i64 %bytes) noinline"
    return define(header, e)


def _sum(ty: DType) -> Callable:
    """Sums as Hopper makes them here: subnormals stay, and of f64 a NaN as it is."""
    plain = new_value("add", ty, "shared")
    if ty.name != "f64":
        return plain

    def update(e: Emitter, old: Val, args: list[Val]) -> Val:
        value = plain(e, old, args)
        for x in (args[0], old):
            value = e.select(is_nan(e, x, ty), x, value)
        return value

    return update


def _commit(f: FunctionLowering, instr: Instr) -> None:
    """``cp.async.bulk.commit_group``."""
    f.watch.note("commit")
    pending.commit(f)


def _wait(f: FunctionLowering, instr: Instr) -> None:
    """``cp.async.bulk.wait_group``; what is read of the sources is written at the same time."""
    keep = f.values.value(instr.args[0], 32)
    pending.wait(f, keep)
    f.watch.note("wait", keep)


HANDLERS = {
    **pending.HANDLERS,
    "cp.async.bulk": _copy,
    "cp.reduce.async.bulk": _copy,
    "cp.async.bulk.prefetch": lambda f, instr: None,
    "cp.async.bulk.commit_group": _commit,
    "cp.async.bulk.wait_group": _wait,
}
