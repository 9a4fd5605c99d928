"""Checked builds: which elements of matrices are not set, as the lanes of a warp hold them.

A row of A that is not set makes a row of the product D unset, a column of B a column, an element of C an element.
Masks of lanes or elements are vectors of ``i1``; a register counts as set where one of the elements in it is.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from rawkern.engines.cpu import undefined
from rawkern.engines.cpu.forms import LANES
from rawkern.engines.cpu.fragments import Kind, accumulators, shuffle
from rawkern.engines.cpu.ir import Val
from rawkern.engines.cpu.ptx import Reg

if TYPE_CHECKING:
    from rawkern.engines.cpu.function import FunctionLowering
    from rawkern.engines.cpu.product import Product
    from rawkern.engines.cpu.ptx import Instr

#: For a register, the lines of memory that its lanes' elements come from: a list of a line for each lane.
Lines = list[list[int]]


@cache
def rows_of(matrix: int, trans: bool) -> Lines:
    """Which of the rows that ``ldmatrix`` names a matrix's register holds; lane k names row k."""
    if trans:
        return [[8 * matrix + 2 * (lane % 4) + k for lane in range(LANES)] for k in range(2)]
    return [[8 * matrix + lane // 4 for lane in range(LANES)]]


@cache
def lines_of(kind: Kind, operand: str, cross: bool) -> list[Lines]:
    """The lines of a tile in memory that each of its registers holds; `cross`: lines are columns of the tile."""
    registers = accumulators(kind) if operand == "c" else 1
    if not cross:
        return [[[lane // 4 for lane in range(LANES)]]] * registers
    per = 8 // 4 // registers if operand == "c" else kind.register // kind.bits
    return [
        [[lane % 4 * per * registers + r * per + k for lane in range(LANES)] for k in range(per)]
        for r in range(registers)
    ]


def from_lines(f: FunctionLowering, unset: Val, lines: Lines) -> Val:
    """The lanes of a register, all of whose lines are `unset`, a bit for each line; a 32-bit mask."""
    bits, found = f.lanes(unset), None
    for picks in lines:
        part = shuffle(f.e, bits, picks)
        found = part if found is None else f.e.bin("and", found, part)
    assert found is not None
    return f.mask_of(found)


def elements(f: FunctionLowering, reg: object, bits: int) -> Val:
    """Which of a register's elements of `bits` bits are not set, lane after lane: all or none of a lane."""
    bad, count = f.e.cmp("icmp ne", _shadow(f, reg), 0), max(1, 32 // bits)
    return shuffle(f.e, bad, [k // count for k in range(LANES * count)]) if count > 1 else bad


def multiplied(f: FunctionLowering, instr: Instr, p: Product, dest: tuple, operands: list[tuple]) -> None:
    """What is unset of a product, from what is unset of its factors and of C."""
    if not any(isinstance(reg, Reg) and reg.name in undefined.doubtful(f) for reg in dest):
        return
    e = f.e
    a, b, c = ([_shadow(f, reg) for reg in regs] for regs in operands)
    rows: dict[int, Val] = {}
    columns: dict[int, Val] = {}
    for tiles, shadows, found in ((p.shape.tiles("a", p.a), a, rows), (p.shape.tiles("b", p.b), b, columns)):
        for (at, _), value in zip(tiles, shadows, strict=True):
            found[at] = e.intrinsic("llvm.umax", "i16", found[at], value) if at in found else value
        for at, value in found.items():
            for step in (1, 2):  # in all four lanes that hold the row
                other = shuffle(e, value, [lane ^ step for lane in range(LANES)])
                value = e.intrinsic("llvm.umax", "i16", value, other)
            found[at] = value

    def element(k: int, row: int, column: int, half: int) -> Val:
        """The first or second element that a lane holds of the k-th 8 x 8."""
        along = shuffle(e, columns[column], [4 * (2 * (lane % 4) + half) for lane in range(LANES)])
        before = c[2 * k + half] if accumulators(p.c) == 2 else c[k]
        return e.intrinsic("llvm.umax", "i16", e.intrinsic("llvm.umax", "i16", rows[row], along), before)

    for k, (row, column) in enumerate(p.shape.tiles("d", p.d)):
        values = [element(k, row, column, half) for half in (0, 1)]
        if accumulators(p.d) == 1:
            values = [e.intrinsic("llvm.umin", "i16", *values)]
        for reg, value in zip(dest[len(values) * k :], values, strict=False):
            if isinstance(reg, Reg):
                undefined.keep(f, reg.name, undefined.computed(f, instr, value))


def transposed(f: FunctionLowering, dest: Reg, source: object) -> None:
    """What is unset of ``movmatrix``'s result: each lane gets two elements, from lanes 4 apart."""
    if dest.name in undefined.doubtful(f):
        value = _shadow(f, source)
        lanes = [[8 * (lane % 4) + 4 * k + lane // 8 for lane in range(LANES)] for k in range(2)]
        undefined.keep(f, dest.name, f.e.intrinsic("llvm.umin", "i16", *(shuffle(f.e, value, x) for x in lanes)))


def written(f: FunctionLowering, dest: tuple) -> None:
    """Registers hold a product of which nothing is known: it counts as set."""
    for reg in dest:
        if isinstance(reg, Reg) and reg.name in undefined.doubtful(f):
            undefined.keep(f, reg.name, Val("zeroinitializer", "i16", LANES))


def _shadow(f: FunctionLowering, reg: object) -> Val:
    if isinstance(reg, Reg) and reg.name in undefined.doubtful(f):
        return undefined.shadow(f, reg.name)
    return Val("zeroinitializer", "i16", LANES)
