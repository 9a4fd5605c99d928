"""Checked builds: which elements of matrices are uninitialized, as the lanes of a warp hold them.

An uninitialized row of A makes a row of the product D uninitialized, a column of B a column, an element of C an
element. Masks of lanes or elements are vectors of ``i1``; a register counts as set where one of the elements in it is.
"""

from __future__ import annotations

from rawkern.engines.cpu.checker import uninitialized
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import Access, Held
from rawkern.engines.cpu.emit.matrix.fragments import accumulators
from rawkern.engines.cpu.emit.matrix.mma import in_quads, items_of, product_of
from rawkern.engines.cpu.ir import Val
from rawkern.engines.cpu.ptx.data import Instr, Reg
from rawkern.engines.cpu.ptx.decode import Op


def follows(op: Op) -> bool:
    """Whether an instruction takes matrices from registers and gives one."""
    return op.collective == "warp" and op.facts.result and not op.facts.memory


def follow(f: FunctionLowering, instr: Instr) -> None:
    """Keep the shadows of what a product or ``movmatrix`` writes, as `uninitialized.follow` does for others."""
    if instr.op.base == "movmatrix":
        _transposed(f, instr)
    elif in_quads(instr.op) or instr.op.base == "wgmma":  # counts as set
        uninitialized.follow(f, instr)
    else:
        _multiplied(f, instr)


def loaded(f: FunctionLowering, a: Access, uninitialized: Val) -> list[Val]:
    """For each loaded register the lanes whose values all lie in `uninitialized` lines; 32-bit masks."""
    regs = a.regs or ()
    return [uninitialized] * len(regs) if a.held is None else [_held(f, uninitialized, held) for held in a.held]


def _held(f: FunctionLowering, uninitialized: Val, held: Held) -> Val:
    bits = f.lanes.vector(uninitialized)
    every = dict.fromkeys(zip(*([line for line, _ in values] for values in held), strict=True))
    return f.lanes.mask_of(f.e.all("and", (f.e.shuffle(bits, lines) for lines in every)))


def stored(f: FunctionLowering, a: Access) -> list[Val | None]:
    """For each value that is written the lanes, or lines of a matrix, in which it is not set; None where there is none.

    A register that is not set counts for all values in it.
    """
    bad = uninitialized.uninitialized(f, a.regs or ())
    if a.held is None or not any(bad):
        return bad
    whole = f.e.concat([x or Val("zeroinitializer", "i1", LANES) for x in bad])
    lanes = [(LANES * r + lane, values) for r, held in enumerate(a.held) for lane, values in enumerate(held)]
    where = {value: at for at, values in lanes for value in values}
    return [f.e.shuffle(whole, [where.get((line, k), 0) for line in range(LANES)]) for k in range(a.count)]


def _multiplied(f: FunctionLowering, instr: Instr) -> None:
    """Uninitialized elements of a product, from those of its factors and of C."""
    p, (dest, *operands) = product_of(instr.op), (items_of(operand) for operand in instr.args)
    if not any(isinstance(reg, Reg) and reg.name in uninitialized.maybe_uninitialized(f) for reg in dest):
        return
    e = f.e
    a, b, c = ([uninitialized.known(f, reg) for reg in regs[:n]] for regs, n in zip(operands, p.counts(), strict=False))
    rows: dict[int, Val] = {}
    columns: dict[int, Val] = {}
    for tiles, shadows, found in ((p.shape.tiles("a", p.a), a, rows), (p.shape.tiles("b", p.b), b, columns)):
        for (at, _), value in zip(tiles, shadows, strict=True):
            found[at] = e.intrinsic("llvm.umax", "i16", found[at], value) if at in found else value
        for at, value in found.items():
            for step in (1, 2):  # in all four lanes that hold the row
                other = e.shuffle(value, [lane ^ step for lane in range(LANES)])
                value = e.intrinsic("llvm.umax", "i16", value, other)
            found[at] = value

    def element(k: int, row: int, column: int, half: int) -> Val:
        """The first or second element that a lane holds of the k-th 8 x 8."""
        along = e.shuffle(columns[column], [4 * (2 * (lane % 4) + half) for lane in range(LANES)])
        before = c[2 * k + half] if accumulators(p.c) == 2 else c[k]
        return e.intrinsic("llvm.umax", "i16", e.intrinsic("llvm.umax", "i16", rows[row], along), before)

    for k, (row, column) in enumerate(p.shape.tiles("d", p.d)):
        values = [element(k, row, column, half) for half in (0, 1)]
        if accumulators(p.d) == 1:
            values = [e.intrinsic("llvm.umin", "i16", *values)]
        for reg, value in zip(dest[len(values) * k :], values, strict=False):
            if isinstance(reg, Reg):
                uninitialized.keep(f, reg.name, uninitialized.computed(f, instr, value))


def _transposed(f: FunctionLowering, instr: Instr) -> None:
    """Uninitialized elements of ``movmatrix``'s result: each lane gets two elements, from lanes 4 apart."""
    dest, source = instr.args
    if dest.name in uninitialized.maybe_uninitialized(f):
        value = uninitialized.known(f, source)
        lanes = [[8 * (lane % 4) + 4 * k + lane // 8 for lane in range(LANES)] for k in range(2)]
        uninitialized.keep(f, dest.name, f.e.intrinsic("llvm.umin", "i16", *(f.e.shuffle(value, x) for x in lanes)))
