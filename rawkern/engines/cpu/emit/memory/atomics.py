"""``atom`` and ``red``: one scalar operation for each active lane, in lane order, after sums of contiguous floats."""

from __future__ import annotations

from collections.abc import Callable

from rawkern.engines.cpu import arith
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import UPDATE, Access
from rawkern.engines.cpu.emit.lanes import each_lane
from rawkern.engines.cpu.emit.memory.addresses import address, in_shared, ordering
from rawkern.engines.cpu.emit.memory.clusters import named, space_of
from rawkern.engines.cpu.ir import Emitter, Val
from rawkern.engines.cpu.ptx.data import Instr, Mem, Pair, Reg, Vec
from rawkern.engines.cpu.ptx.decode import DType, Op, decode

_RMW = {
    "add": "add", "and": "and", "or": "or", "xor": "xor", "exch": "xchg", "inc": "uinc_wrap", "dec": "udec_wrap",
    "min.s": "min", "max.s": "max", "min.u": "umin", "max.u": "umax",
}  # fmt: skip
OPERATIONS = frozenset(("add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"))


def atomic(f: FunctionLowering, instr: Instr) -> None:
    """``atom`` and ``red``: one scalar operation for each active lane, in lane order."""
    args = instr.args[:-1] if instr.op.has("L2::cache_hint") else list(instr.args)
    dest = args.pop(0) if instr.op.base == "atom" else None
    if isinstance(dest, Pair) or not isinstance(args[0], Mem):
        raise f.unsupported()
    space, size, count = space_of(f, instr.op), instr.op.type.bits // 8, instr.op.count
    access = Access(
        UPDATE, args[0], named(space), size, count, order=instr.op.order or "relaxed", looks=dest is not None
    )
    addrs = f.values.plain(f.watch.access(access, address(f, args[0], space)))
    if count == 1:
        _one(f, instr.op, dest, addrs, args[1:3])
        return
    if not isinstance(args[1], Vec):
        raise f.unsupported()
    for k, item in enumerate(args[1].items):  # each by itself, as PTX has it
        to = dest.items[k] if isinstance(dest, Vec) else None
        _one(f, instr.op, to, f.e.bin("add", addrs, k * size) if k else addrs, [item])


def _one(f: FunctionLowering, operation: Op, dest: Reg | None, addrs: Val, sources: list) -> None:
    """Each lane's operation on one value."""
    space, ty, order = named(space_of(f, operation)), operation.type, ordering(operation) or "monotonic"
    op = next(m for m in operation.mods if m in OPERATIONS)
    size, ity = ty.bits // 8, ty.int
    together = None
    if addrs.n == 1 and op == "add" and ty.kind in "sub":
        together = _add_together(ity, space, order, size, dest is not None)
    addrs = f.e.splat(addrs, LANES)
    operands = [f.e.splat(f.e.resize(f.values.number(a, ty.bits, ty.name), ity), LANES) for a in sources]
    if op == "add" and ty.name == "f32" and space == "generic":
        operands.append(f.e.cast("zext", in_shared(f, addrs), "i8"))
    name = f"rk_{operation.base}_{op}_{ty.name}_{space}_{order}{'_together' if together else ''}"
    one, several = atomic_step(op, ty, space, order), None
    if op == "add" and ty.name in ("f32", "f64") and space == "global" and "cx16" in f.module.features:
        several = _add_neighbors(ty, order)
    result = each_lane(f, name, ity, addrs, operands, one, together, several)
    if isinstance(dest, Reg):
        f.values.put(dest.name, result)


def _add_together(ity: str, space: str, order: str, size: int, looks: bool) -> Callable:
    """Lanes add integers at one place, in one addition of their sum; `looks`: somebody reads the old values."""

    def add(e: Emitter, at: str, args: list[Val], mask: Val) -> Val:
        own = e.select(e.let("i1", LANES, f"bitcast {mask} to <32 x i1>"), args[0], 0)
        sums = own  # of each lane's and those before
        for step in (1, 2, 4, 8, 16):
            picks = [k - step if k >= step else k + LANES for k in range(LANES)]
            sums = e.bin("add", sums, e.shuffle(sums, picks, Val("zeroinitializer", ity, LANES)))
        total = e.let(ity, 1, f"extractelement {sums}, i64 {LANES - 1}")
        if space == "shared":
            old = e.let(ity, 1, f"load {ity}, {at}, align {size}")
            e.line(f"store {e.bin('add', old, total)}, {at}, align {size}")
        else:
            old = e.let(ity, 1, f"atomicrmw add {at}, {total} {order}, align {size}")
        return e.bin("add", e.bin("sub", sums, own), old) if looks else e.splat(old, LANES)

    return add


def _add_neighbors(ty: DType, order: str) -> Callable:
    """Lanes add floats to neighbors in memory: 16 bytes are compared and swapped as one until that holds."""
    updated, each = new_value("add", ty, "global"), 128 // ty.bits

    def add(e: Emitter, at: str, args: list[Val]) -> Val:
        first = e.let(ty.int, each, f"load volatile <{each} x {ty.int}>, {at}, align 16")  # may be torn: then it fails
        e.line("br label %group_try")
        e.label("group_try")
        e.lines.append("")
        place, old = len(e.lines) - 1, Val(e.fresh(), ty.int, each)
        new = e.let("i128", 1, f"bitcast {updated(e, old, args)} to i128")
        held = e.let("i128", 1, f"bitcast {old} to i128")
        pair = e.fresh()
        e.line(f"{pair} = cmpxchg {at}, i128 {held.ref}, i128 {new.ref} {order} monotonic, align 16")
        seen = e.let("i128", 1, f"extractvalue {{ i128, i1 }} {pair}, 0")
        done = e.let("i1", 1, f"extractvalue {{ i128, i1 }} {pair}, 1")
        again = e.let(ty.int, each, f"bitcast i128 {seen.ref} to <{each} x {ty.int}>")
        e.lines[place] = f"{old.ref} = phi {old.t} [ {first.ref}, %group_each ], [ {again.ref}, %group_try ]"
        e.line(f"br {done}, label %group_done, label %group_try")
        e.label("group_done")
        return old

    return add


def atomic_step(op: str, ty: DType, space: str, order: str, update: Callable | None = None) -> Callable:
    """What one lane does: returns the old value as raw bits; `update`, if not `new_value`, makes the new one of it."""
    ity, size = ty.int, ty.bits // 8
    updated = update or new_value(op, ty, space)
    if space == "shared":  # a block's warps never run at the same time

        def plain(e: Emitter, at: str, args: list[Val]) -> Val:
            old = e.let(ity, 1, f"load {ity}, {at}, align {size}")
            e.line(f"store {updated(e, old, args)}, {at}, align {size}")
            return old

        return plain
    if op == "cas":
        failure = {"acq_rel": "acquire", "release": "monotonic"}.get(order, order)

        def cas(e: Emitter, at: str, args: list[Val]) -> Val:
            pair = e.fresh()
            e.line(f"{pair} = cmpxchg {at}, {args[0]}, {args[1]} {order} {failure}, align {size}")
            return e.let(ity, 1, f"extractvalue {{ {ity}, i1 }} {pair}, 0")

        return cas
    rmw = _RMW.get(op) or _RMW.get(f"{op}.{ty.kind}")
    if rmw and ty.kind in "sub":
        return lambda e, at, args: e.let(ity, 1, f"atomicrmw {rmw} {at}, {args[0]} {order}, align {size}")

    def retry(e: Emitter, at: str, args: list[Val]) -> Val:  # anything else: compare and swap until it holds
        first = e.let(ity, 1, f"load atomic {ity}, {at} monotonic, align {size}")
        e.line("br label %try")
        e.label("try")
        e.lines.append("")
        place, old = len(e.lines) - 1, Val(e.fresh(), ity)
        pair = e.fresh()
        new = updated(e, old, args)
        e.line(f"{pair} = cmpxchg {at}, {old}, {new} {order} monotonic, align {size}")
        seen = e.let(ity, 1, f"extractvalue {{ {ity}, i1 }} {pair}, 0")
        done = e.let("i1", 1, f"extractvalue {{ {ity}, i1 }} {pair}, 1")
        e.lines[place] = f"{old.ref} = phi {ity} [ {first.ref}, %each ], [ {seen.ref}, %try ]"
        e.line(f"br {done}, label %swapped, label %try")
        e.label("swapped")
        return old

    return retry


def new_value(op: str, ty: DType, space: str) -> Callable:
    """The new value from the old one and the operands.

    Float32 sums in global memory flush subnormals, as the PTX manual says of ``atom``; in shared memory they do not. A
    generic address may lead to either: whether it is shared memory's is one more operand then.
    """
    if op == "cas":
        return lambda e, old, args: e.select(e.cmp("icmp eq", old, args[0]), args[1], old)
    if op == "exch":
        return lambda e, old, args: args[0]
    if op == "inc":
        return lambda e, old, args: e.select(e.cmp("icmp uge", old, args[0]), 0, e.bin("add", old, 1))
    if op == "dec":

        def dec(e: Emitter, old: Val, args: list[Val]) -> Val:
            wrap = e.bin("or", e.cmp("icmp eq", old, 0), e.cmp("icmp ugt", old, args[0]))
            return e.select(wrap, args[0], e.bin("sub", old, 1))

        return dec
    kind = f"b{ty.bits}" if op in ("and", "or", "xor") else ty.name
    rounding = ".rn" if op == "add" and ty.kind == "f" and ty.name not in ("f32", "f64") else ""
    exact, flushed = decode(f"{op}{rounding}.{kind}"), decode(f"{op}.ftz.{kind}")

    def result(e: Emitter, opcode: Op, old: Val, args: list[Val]) -> Val:
        out = arith.lower(e, opcode, [old, args[0]])
        return arith.canonical(e, out.vals[0], out.lazy_nan) if out.lazy_nan else out.vals[0]

    def compute(e: Emitter, old: Val, args: list[Val]) -> Val:
        if op != "add" or ty.name != "f32" or space == "shared":
            return result(e, exact, old, args)
        new = result(e, flushed, old, args)
        if space == "generic":
            new = e.select(e.cmp("icmp ne", args[1], 0), result(e, exact, old, args), new)
        return new

    return compute
