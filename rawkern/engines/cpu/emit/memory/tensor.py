"""``cp.async.bulk.tensor`` and its reductions: copies of boxes of a tensor, which happen later (`pending`)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from rawkern.arguments.tensor_map import MAGIC
from rawkern.base.records import filled
from rawkern.engines.cpu.emit.calls import service
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import COPY, READ, UPDATE, WRITE, Access
from rawkern.engines.cpu.emit.lanes import pointer
from rawkern.engines.cpu.emit.memory import pending
from rawkern.engines.cpu.emit.memory.addresses import address
from rawkern.engines.cpu.emit.memory.bulk import completion_barrier, placed_at, reduction, seen
from rawkern.engines.cpu.emit.memory.clusters import destinations, space_of, window
from rawkern.engines.cpu.emit.memory.loops import active_lanes, counted, room
from rawkern.engines.cpu.ir import Module, Val, const
from rawkern.engines.cpu.ptx.data import Imm, Instr, Mem, Reg, Vec
from rawkern.engines.cpu.ptx.decode import DTYPES
from rawkern.engines.cpu.records import OPERATION

_UNIT = 16  # bytes
#: Types of elements as `rawkern.arguments.tensor_map` numbers them, which every copy takes, and those of reductions.
#: An H100 raises "illegal instruction" for the others.
_ALL = range(13)
_TYPES = {2: "u32", 3: "s32", 4: "u64", 5: "s64", 6: "f16", 7: "f32", 8: "f64", 9: "bf16"}
_REDUCTIONS = {
    "add": (2, 3, 4, 6, 7, 8, 9), **dict.fromkeys(("min", "max"), (2, 3, 4, 5, 6, 9)),
    **dict.fromkeys(("inc", "dec"), (2,)), **dict.fromkeys(("and", "or", "xor"), (2, 3, 4)),
}  # fmt: skip
_VALUES = {
    "magic": MAGIC, "to": pending.TO, "from": pending.FROM, "bytes": pending.BYTES, "more": pending.MORE,
}  # fmt: skip


def _copy(f: FunctionLowering, instr: Instr) -> None:
    """Each active lane copies a box of a tensor into shared memory, or from there."""
    op, e = instr.op, f.e
    loads = op.mods[[m in ("global",) or m.startswith("shared") for m in op.mods].index(True)] != "global"
    first, second, *more = instr.args
    at, tensor = (first, second) if loads else (second, first)
    rank = next(int(m[0]) for m in op.mods if m[1:] == "d")
    if not isinstance(at, Mem) or not _is_tensor(tensor, rank) or (loads and not more):
        raise f.unsupported()
    map_, coordinates = tensor
    known = Access(READ, Mem(map_, 0), "generic", 8, 16, align=8)
    maps = e.splat(f.values.plain(f.watch.access(known, address(f, known.mem, "generic"))), LANES)
    space = "cluster" if space_of(f, op) == "cluster" else "shared"
    places = e.splat(f.values.plain(address(f, at, space)), LANES)
    numbers = [e.splat(f.values.value(c, 32), LANES) for c in coordinates.items]
    barriers = e.splat(f.values.plain(address(f, more[0], space)), LANES) if loads else None
    pixels, offsets = any(m.startswith("im2col") for m in op.mods), []
    if pixels and loads:
        offsets = [e.splat(f.values.value(x, 16), LANES) for x in more[1].items]
    ranks = f.values.value(more[2 if pixels else 1], 16) if op.has("multicast::cluster") else None
    op_at, out = (room(f, n) for n in (OPERATION - pending.MORE, 3))
    _define(f.module)
    what = next((m for m in op.mods if m in _REDUCTIONS), "")
    kinds = sum(1 << number for number in _REDUCTIONS.get(what, _ALL))
    function = "rk_tensor_load" if loads else "rk_tensor_store"
    if what:
        function = f.module.helper(f"rk_tensor_{what}", lambda m: _reducer(m, what))
    for lane in active_lanes(f):
        map_at, to = (e.let("i64", 1, f"extractelement {x}, {lane}") for x in (maps, places))
        for k in range(6):
            c = e.let("i32", 1, f"extractelement {numbers[k]}, {lane}") if k < rank else const("i32", 0)
            e.line(f"store {c}, {pointer(e, op_at, 4 * k)}")
        e.line(f"store i64 0, {pointer(e, op_at, 24)}")
        for k, x in enumerate(offsets):
            one = e.resize(e.let(x.ty, 1, f"extractelement {x}, {lane}"), "i16")
            e.line(f"store {one}, {pointer(e, op_at, 24 + 2 * k)}")
        e.line(f"call void @llvm.memcpy.p0.p0.i64({pointer(e, op_at, 32)}, {pointer(e, map_at)}, i64 128, i1 false)")
        for distance in destinations(f, instr, ranks):
            there = placed_at(f, to, distance)
            base = window(f, there)
            arguments = f"{pointer(e, op_at)}, {there}, {base}"
            asked = f"i64 {rank}, i64 {kinds}, i8 {int(pixels)}, i1 {int(loads)}"
            wrong = e.let("i64", 1, f"call i64 @rk_tensor_wrong({arguments}, {asked})")
            with e.where(e.cmp("icmp ne", wrong, 0), rare=True):
                service(f, "TENSOR", instr, wrong, map_at)
            bytes_ = e.let("i64", 1, f"call i64 @rk_tensor_bytes({pointer(e, op_at)})")
            f.watch.note("bulk_copy")
            written = Access(COPY if loads else READ, at, seen(space, distance), _UNIT, distance=distance)
            inside = _watched(f, written, bool(what), arguments, out, bytes_)
            f.watch.note("copied")
            barrier = None
            if barriers is not None:
                mine = e.let("i64", 1, f"extractelement {barriers}, {lane}")
                barrier = completion_barrier(f, more[0], space, e.splat(mine, LANES), distance)
            moved = e.select(inside, bytes_, const("i64", 0))
            pending.issue(f, function, barrier, bytes_, (there, base, moved), op_at)


def _is_tensor(operand: object, rank: int) -> bool:
    """Whether an operand is ``[map, {coordinates}]``."""
    if not isinstance(operand, list) or len(operand) != 2:
        return False
    return isinstance(operand[0], Reg) and isinstance(operand[1], Vec) and len(operand[1].items) == rank


def _watched(f: FunctionLowering, shared: Access, updates: bool, arguments: str, out: Val, size: Val) -> Val:
    """Tell of the units that the active lane copies to or from shared memory; returns whether it may."""
    e, units, loads = f.e, f.watch.each_unit, shared.what == COPY
    count, asks = (e.bin("lshr", size, 4), "unit") if units else (const("i64", 2), "ends")
    fine = room(f, 1)
    e.line(f"store i64 1, {pointer(e, fine)}")
    outside = READ if loads else UPDATE if updates else WRITE
    nowhere = Mem(Imm(0, "i"), 0)
    for k in counted(f, count):
        e.line(f"call void @rk_tensor_{asks}({arguments}, {k}, i1 {int(loads)}, {pointer(e, out)})")
        place, there, inside = (e.let("i64", 1, f"load i64, {pointer(e, out, 8 * j)}") for j in range(3))
        whole = f.lanes.mask_of(e.cmp("icmp eq", inside, _UNIT))
        some = None if loads else e.bin("and", f.lanes.mask_of(e.cmp("icmp ne", inside, 0)), f.lanes.act())
        length = e.resize(inside, "i32")
        whole = e.bin("and", whole, f.lanes.act())
        accesses = [
            (replace(shared, mask=some), place),
            (Access(outside, nowhere, "global", _UNIT, mask=whole, align=1, lengths=length), there),
        ]
        for access, wanted in accesses if loads else accesses[::-1]:
            got = f.values.plain(f.watch.access(access, e.splat(wanted, LANES)))
            other = f.lanes.mask_of(e.cmp("icmp ne", got, e.splat(wanted, LANES)))
            bad = e.cmp("icmp ne", e.bin("and", other, f.lanes.act()), 0)
            with e.where(bad, rare=True):
                e.line(f"store i64 0, {pointer(e, fine)}")
    return e.cmp("icmp ne", e.let("i64", 1, f"load i64, {pointer(e, fine)}"), 0)


def _reducer(m: Module, what: str) -> str:
    """An operation on each element of a tensor, which says of what type they are."""
    names = {number: reduction(m, what, DTYPES[_TYPES[number]], "global") for number in _REDUCTIONS[what]}
    cases = [f"i8 {number}, label %of{number}" for number in names]
    ways = [
        f"of{number}:\n  call void @{name}(i64 %address, i64 %place, i64 %n)\n  ret void"
        for number, name in names.items()
    ]
    return "\n".join([
        f"define internal void @rk_tensor_{what}_unit(i64 %address, i64 %place, i64 %n, ptr %op) {{",
        "  %ptype = getelementptr i8, ptr %op, i64 36",
        "  %type = load i8, ptr %ptype",
        f"  switch i8 %type, label %none [ {' '.join(cases)} ]",
        *ways,
        "none:",
        "  unreachable",
        "}",
        f"define internal void @rk_tensor_{what}(ptr %entry) noinline {{",
        f"  call void @rk_tensor_each(ptr %entry, ptr @rk_tensor_{what}_unit)",
        "  ret void",
        "}",
    ])  # fmt: skip


@cache
def _text() -> str:
    text = Path(__file__).with_name("tensor.ll").read_text()
    return filled(text, values=_VALUES)


def _define(m: Module) -> None:
    """Have the functions of ``tensor.ll`` in a module."""
    for name in ("usub.sat", "umin", "umax", "smin", "smax"):
        m.declare(f"llvm.{name}.i64", f"declare i64 @llvm.{name}.i64(i64, i64)")
    m.declare("llvm.memcpy.p0.p0.i64", "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    m.helper("rk_tensor", lambda m: _text())


HANDLERS = {
    "cp.async.bulk.tensor": _copy,
    "cp.reduce.async.bulk.tensor": _copy,
    "cp.async.bulk.prefetch.tensor": lambda f, instr: None,
}
