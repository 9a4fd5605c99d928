"""Matrices between memory and the lanes of a warp: ``ldmatrix``, ``stmatrix``, ``wmma.load``, ``wmma.store``.

And from lanes to lanes: ``movmatrix``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rawkern.engines.cpu.emit.calls import service
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import READ, WRITE, Access, Held
from rawkern.engines.cpu.emit.lanes import define, pointer
from rawkern.engines.cpu.emit.matrix.fragments import (
    KINDS,
    Kind,
    accumulators,
    registers_of,
    tile_of,
    transposed,
)
from rawkern.engines.cpu.emit.matrix.mma import items_of, require_warp, shape_in
from rawkern.engines.cpu.emit.memory.addresses import address
from rawkern.engines.cpu.ir import Emitter, Module, Val, const
from rawkern.engines.cpu.ptx.data import Instr, Reg
from rawkern.engines.cpu.ptx.decode import Op


def load_rows(f: FunctionLowering, instr: Instr) -> None:
    """``ldmatrix``: lanes 0-7 name the rows of the first 8 x 8 matrix of 16-bit elements, lanes 8-15 the second's."""
    dest, mem = instr.args
    name, matrices = _matrices(f, instr, mem, dest, READ, _rows_loaded)
    for reg, rows in matrices:
        f.values.put(reg.name, f.e.call(name, "i32", LANES, rows))


def _rows_loaded(m: Module, name: str, trans: bool) -> str:
    e = Emitter(m)
    rows = []
    for r in range(8):
        at = e.let("i64", 1, f"extractelement <8 x i64> %rows, i64 {r}")
        rows.append(e.let("i16", 8, f"load <8 x i16>, {pointer(e, at)}, align 2"))
    whole = e.concat(rows)
    e.line(f"ret {e.view(transposed(e, whole, 8) if trans else whole, 'i32')}")
    return define(f"define internal <32 x i32> @{name}(<8 x i64> %rows) noinline", e)


def store_rows(f: FunctionLowering, instr: Instr) -> None:
    """``stmatrix``: the reverse of ``ldmatrix``."""
    mem, source = instr.args
    items = items_of(source)
    values = None
    if f.watch.sees_values:
        wholes = [f.e.view(f.values.vector(reg, 32), "i16") for reg in items]
        wholes = [transposed(f.e, v, 8) if instr.op.has("trans") else v for v in wholes]
        values = _columns(f.e, f.e.concat(wholes), 8 * len(items))
    name, matrices = _matrices(f, instr, mem, source, WRITE, _rows_stored, values)
    for reg, rows in matrices:
        f.e.line(f"call void @{name}({rows}, {f.values.vector(reg, 32)})")


def transpose(f: FunctionLowering, instr: Instr) -> None:
    """``movmatrix``: an 8 x 8 matrix of 16-bit elements that the warp holds, a row in four lanes, to its transpose."""
    dest, source = instr.args
    require_warp(f, instr)
    whole = f.e.view(f.values.vector(source, 32), "i16")
    f.values.put(dest.name, f.e.view(transposed(f.e, whole, 8), "i32"))


@cache
def _held(columns: int, registers: int, cross: bool, first: int = 0) -> tuple[Held, ...]:
    """What each of the registers of 8 rows holds; the lines in memory, from `first` on, are rows or, `cross`, columns.

    Each lane has as many values as the others, one after the other, in turn in each of its registers.
    """
    per = 8 * columns // LANES

    def element(k: int) -> tuple[int, int]:
        row, column = divmod(k, columns)
        return (first + column, row) if cross else (first + row, column)

    return tuple(
        tuple(tuple(element(lane * per + k) for k in range(r, per, registers)) for lane in range(LANES))
        for r in range(registers)
    )


def _columns(e: Emitter, whole: Val, lines: int) -> list[Val]:
    """The first elements of a matrix's lines, a line for each lane, then the second ones, and so on."""
    per = whole.n // lines
    return [e.shuffle(whole, [(k % lines) * per + c for k in range(LANES)]) for c in range(per)]


def _matrices(
    f: FunctionLowering, instr: Instr, mem, regs, way: str, make, values: list[Val] | None = None
) -> tuple[str, list[tuple]]:
    """The out-of-line function for a matrix, which `make` writes, and each matrix's register and rows' addresses."""
    require_warp(f, instr)
    space, items, trans = instr.op.space, items_of(regs), instr.op.has("trans")
    lanes = const("i32", (1 << 8 * len(items)) - 1)
    held = [_held(8, 1, trans, 8 * k)[0] for k in range(len(items))]
    access = Access(way, mem, space, 2, 8, mask=lanes, values=values, regs=_names(items), held=held)
    form = f.watch.access(access, address(f, mem, space))
    addrs = f.e.splat(f.values.plain(form), LANES)
    name = f"rk_{instr.op.base}{'_trans' if trans else ''}"
    f.module.helper(name, lambda m: make(m, name, trans))
    return name, [(reg, f.e.shuffle(addrs, range(8 * k, 8 * k + 8))) for k, reg in enumerate(items)]


def _rows_stored(m: Module, name: str, trans: bool) -> str:
    e = Emitter(m)
    whole = e.view(Val("%v", "i32", LANES), "i16")
    whole = transposed(e, whole, 8) if trans else whole
    for r in range(8):
        at = e.let("i64", 1, f"extractelement <8 x i64> %rows, i64 {r}")
        e.line(f"store {e.shuffle(whole, range(8 * r, 8 * r + 8))}, {pointer(e, at)}, align 2")
    e.line("ret void")
    return define(f"define internal void @{name}(<8 x i64> %rows, <32 x i32> %v) noinline", e)


def load_fragment(f: FunctionLowering, instr: Instr) -> None:
    """``wmma.load``: registers beyond those that hold each element once repeat them."""
    dest, mem, *stride = instr.args
    regs = items_of(dest)
    operand, kind, places, pitch = _placement(f, instr, mem, len(regs), stride)
    per = accumulators(kind) if operand == "c" else 1
    loaded: list[Val] = []
    for k, at in enumerate(places):
        cross = _crosswise(instr.op, operand)
        own = [regs[n : n + per] for n in range(per * k, len(regs), per * len(places))]
        near = _accessed(f, instr, mem, READ, at, pitch, _extent(kind, operand, cross), cross, own)
        tile = _tile(f, *near, kind, operand, cross)
        loaded += registers_of(f.e, tile, kind) if operand == "c" else [f.e.view(tile, f"i{kind.register}")]
    for k, reg in enumerate(regs):
        f.values.put(reg.name, loaded[k % len(loaded)])


def store_fragment(f: FunctionLowering, instr: Instr) -> None:
    """``wmma.store``."""
    mem, source, *stride = instr.args
    items = items_of(source)
    _, kind, places, pitch = _placement(f, instr, mem, len(items), stride)
    regs = [f.values.vector(x, kind.register) for x in items]
    per = len(regs) // len(places)
    cross = _crosswise(instr.op, "d")
    name = f"rk_tile_store_{kind.bits}{'_cross' if cross else ''}"
    f.module.helper(name, lambda m: _tile_stored(m, name, kind, cross))
    for k, at in enumerate(places):
        tile = tile_of(f.e, regs[per * k : per * k + per], kind)
        values = None
        if f.watch.sees_values:
            values = _columns(f.e, transposed(f.e, tile, 8) if cross else tile, 8)
        own = [items[per * k : per * k + per]]
        near = _accessed(f, instr, mem, WRITE, at, pitch, _extent(kind, "c", cross), cross, own, values)
        f.e.line(f"call void @{name}({near[0]}, {near[1]}, {tile})")


def _accessed(
    f: FunctionLowering, instr: Instr, mem, what: str, at: Val, pitch: Val, shape: tuple[int, int, int],
    cross: bool, regs: list[tuple], values: list[Val] | None = None,
) -> tuple[Val, Val]:  # fmt: skip
    """Address and pitch of a tile that is about to be accessed; `shape` as `_extent` gives it.

    `regs`: the registers for the tile, each time that it is loaded; `values`: what is written, the k-th of each line.
    """
    count, size, element = shape
    each = size // element
    held = [x for own in regs for x in _held(count if cross else each, len(own), cross)]
    access = Access(
        what, mem, instr.op.space, element, each, align=element, values=values,
        regs=_names([reg for own in regs for reg in own]), held=held,
    )  # fmt: skip
    return f.watch.lines(access, at, pitch, count)


def _names(items: Sequence) -> list[str | None]:
    return [reg.name if isinstance(reg, Reg) else None for reg in items]


def _crosswise(op: Op, operand: str) -> bool:
    """Whether the rows of an operand's tiles (for B, its columns) do not lie together in memory."""
    return op.has("row") == (operand == "b")


def _placement(
    f: FunctionLowering, instr: Instr, mem, registers: int, stride: list
) -> tuple[str, Kind, list[Val], Val]:
    """Operand, element type, the address of each tile, and bytes from one line in memory to the next.

    All lanes give the same address and stride; those of the lowest count. The address has to be a multiple of what a
    lane holds in all its registers, and so has the stride by PTX; CUDA C++ asks for 16 bytes there, as programs use.
    """
    e, op = f.e, instr.op
    require_warp(f, instr)
    operand, shape, kind = op.mods[1], shape_in(op), KINDS[op.type.name]
    cross = _crosswise(op, operand)
    start = f.values.plain(address(f, mem, op.space))
    sizes = {"a": (shape.m, shape.k), "b": (shape.n, shape.k)}.get(operand, (shape.m, shape.n))
    pitch = f.values.value(stride[0], 32) if stride else const("i32", sizes[0] if cross else sizes[1])
    start, pitch = (v if v.n == 1 else e.let(v.ty, 1, f"extractelement {v}, i64 0") for v in (start, pitch))
    pitch = e.bin("lshr", e.bin("mul", e.resize(pitch, "i64"), kind.bits), 3)
    align = registers * kind.register // 8
    amiss = e.bin("or", e.bin("and", start, align - 1), e.bin("and", pitch, min(align, 16) - 1))
    with e.where(e.cmp("icmp ne", amiss, 0), rare=True):
        service(f, "TILE", instr, start, e.bin("or", e.bin("shl", pitch, 8), align))
    places = []
    for row, column in shape.tiles(operand, kind):
        line, within = (column, row) if cross else (row, column)
        places.append(e.bin("add", start, e.bin("add", e.bin("mul", pitch, line), within * kind.bits // 8)))
    return operand, kind, places, pitch


def _extent(kind: Kind, operand: str, cross: bool) -> tuple[int, int, int]:
    """Of a tile in memory: how many lines, bytes of a line, bytes of an element."""
    bits = max(kind.bits, 8)
    columns = 8 if operand == "c" else kind.columns * kind.bits // bits
    lines, per = (columns, 8) if cross else (8, columns)
    return lines, per * bits // 8, bits // 8


def _tile(f: FunctionLowering, at: Val, pitch: Val, kind: Kind, operand: str, cross: bool) -> Val:
    """8 rows of a tile, one after the other, as elements (of less than a byte: as bytes)."""
    bits = max(kind.bits, 8)
    columns = 8 if operand == "c" else kind.columns * kind.bits // bits
    name = f"rk_tile_load_{bits}x{columns}{'_cross' if cross else ''}"
    f.module.helper(name, lambda m: _tile_loaded(m, name, bits, columns, cross))
    return f.e.call(name, f"i{bits}", 8 * columns, at, pitch)


def _tile_loaded(m: Module, name: str, bits: int, columns: int, cross: bool) -> str:
    e = Emitter(m)
    lines, per = (columns, 8) if cross else (8, columns)
    parts = []
    for k in range(lines):
        p = pointer(e, e.bin("add", Val("%a", "i64"), e.bin("mul", Val("%pitch", "i64"), k)))
        parts.append(e.let(f"i{bits}", per, f"load <{per} x i{bits}>, {p}, align {bits // 8}"))
    whole = e.concat(parts)
    e.line(f"ret {transposed(e, whole, lines) if cross else whole}")
    return define(f"define internal <{8 * columns} x i{bits}> @{name}(i64 %a, i64 %pitch) noinline", e)


def _tile_stored(m: Module, name: str, kind: Kind, cross: bool) -> str:
    e, ty = Emitter(m), f"i{kind.bits}"
    whole = Val("%v", ty, 64)
    whole = transposed(e, whole, 8) if cross else whole
    for k in range(8):
        p = pointer(e, e.bin("add", Val("%a", "i64"), e.bin("mul", Val("%pitch", "i64"), k)))
        e.line(f"store {e.shuffle(whole, range(8 * k, 8 * k + 8))}, {p}, align {kind.bits // 8}")
    e.line("ret void")
    return define(f"define internal void @{name}(i64 %a, i64 %pitch, <64 x {ty}> %v) noinline", e)
