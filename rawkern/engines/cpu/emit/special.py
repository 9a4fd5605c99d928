"""Special registers: where a thread is in the grid, the clock, and what else ``%name`` can stand for."""

from __future__ import annotations

from rawkern.engines.cpu.analysis.storage import RESERVED, RESERVED_BYTES
from rawkern.engines.cpu.emit.context import Context
from rawkern.engines.cpu.emit.forms import LANES, Affine, Form
from rawkern.engines.cpu.ir import Val, const
from rawkern.engines.cpu.records import BLOCK, LAUNCH, SEGMENTS


def special(f: Context, name: str) -> Form:
    """A special register."""
    if name in ("%clock", "%clock64", "%globaltimer", "%clock_hi", "%globaltimer_lo", "%globaltimer_hi"):
        return _time(f, name)
    if name not in f.entry_cache:
        form = _special(f, name)
        if not isinstance(form, Val):
            return form
        f.entry_cache[name] = form
    return f.entry_cache[name]


def _special(f: Context, name: str) -> Form:
    o = f.once
    axis = name[-1] if name[-2:-1] == "." else ""
    root = name[1:-2] if axis else name[1:]
    if root in ("tid", "ntid", "ctaid", "nctaid") and axis == "w":
        return const("i32", 0)
    if root == "tid":
        return _thread_index(f, axis)
    if root in ("ntid", "nctaid"):
        record = ("block_" if root == "ntid" else "grid_") + axis
        return f.field(LAUNCH, record)
    if root == "ctaid":
        return Val(name, "i32") if f.function.entry else f.field(BLOCK, axis)
    if root == "laneid":
        return Affine((const("i32", 0),), 1, True)
    if root == "warpid":
        return Val("%warp", "i32")
    if root == "nwarpid":
        return f.field(LAUNCH, "nwarps")
    if root.startswith("lanemask_"):
        words = {"eq": lambda k: 1 << k, "lt": lambda k: (1 << k) - 1, "le": lambda k: (2 << k) - 1}
        words |= {"ge": lambda k: ~((1 << k) - 1), "gt": lambda k: ~((2 << k) - 1)}
        lanes = (words[root[9:]](k) & 0xFFFFFFFF for k in range(LANES))
        return Val(f"<{', '.join(f'i32 {v}' for v in lanes)}>", "i32", LANES)
    if root in ("envreg1", "envreg2"):  # the address of the grid's barrier, as cooperative groups reads it
        at = f.field_address(LAUNCH, "grid_sync")
        return o.cast("trunc", o.bin("lshr", at, 32) if root == "envreg1" else at, "i32")
    if root == "dynamic_smem_size":
        return f.field(LAUNCH, "shared_dynamic")
    if root == "total_smem_size":
        return f.field(LAUNCH, "shared_total")
    if name.startswith(RESERVED):
        start = f.plan.shared[RESERVED]
        places = {"begin": start, "0": start, "1": start + RESERVED_BYTES // 2, "end": start + RESERVED_BYTES}
        places["cap"] = RESERVED_BYTES
        if name[len(RESERVED) + 1 :] in places:
            return const("i32", places[name[len(RESERVED) + 1 :]])
    if root in ("smid", "gridid", "nsmid", "cluster_ctarank", "cluster_ctaid"):
        return const("i64" if root == "gridid" else "i32", 1 if root == "nsmid" else 0)
    if root == "current_graph_exec":
        return const("i64", 0)
    if root in ("cluster_nctarank", "cluster_nctaid"):
        return const("i32", 1)
    raise f.unsupported(f"special register {name}")


def _thread_index(f: Context, axis: str) -> Form:
    """``%tid``: in one-dimensional blocks from the warp's number, else from a table (`grid`) made once per block."""
    o, shape = f.once, f.plan.tid_shape
    if shape == "line":
        return const("i32", 0) if axis != "x" else Affine((f.e.bin("mul", Val("%warp", "i32"), LANES),), 1, True)
    segments = SEGMENTS.get(shape)
    if segments and segments > 1 and axis == "x":
        return Affine((const("i32", 0),) * segments, 1)
    table, nwarps = f.field(LAUNCH, "tids"), f.field(LAUNCH, "nwarps")
    row = o.bin("add", o.bin("mul", nwarps, "xyz".index(axis)), Val("%warp", "i32"))
    if segments:
        values = tuple(_table_entry(f, axis, row, segments, s) for s in range(segments))
        if axis == "x":
            return Affine(values, 1, True)
        return Affine(values, 0) if segments > 1 else values[0]
    at = o.let("ptr", 1, f"getelementptr <32 x i32>, {table}, {row}")
    return o.let("i32", LANES, f"load <32 x i32>, {at}, align 4")


def _table_entry(f: Context, axis: str, row: Val, segments: int, s: int) -> Val:
    """``%tid`` of the first thread of a warp's segment `s`."""
    key, o = f"tid{axis}{s}", f.once
    if key not in f.entry_cache:
        place = o.bin("add", o.bin("mul", row, segments), s)
        at = o.let("ptr", 1, f"getelementptr i32, {f.field(LAUNCH, 'tids')}, {place}")
        f.entry_cache[key] = o.let("i32", 1, f"load i32, {at}, !invariant.load !1")
    return f.entry_cache[key]


def _time(f: Context, name: str) -> Val:
    e = f.e
    now = e.let("i64", 1, "call i64 @rk_now()")
    if name.endswith("_hi"):
        now = e.bin("lshr", now, 32)
    return now if name in ("%clock64", "%globaltimer") else e.cast("trunc", now, "i32")
