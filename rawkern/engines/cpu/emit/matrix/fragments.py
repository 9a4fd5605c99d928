"""How the lanes of a warp hold a matrix: what ``mma.sync`` documents, carried on to the shapes of ``wmma``.

A matrix is cut into tiles of 8 rows. Of a tile, lane L holds one 32-bit register (64-bit for f64): the elements of row
L // 4 that start at column L % 4 times the number of elements that fit into it. Seen over the warp, a register of A is
thus 8 rows of A, and one of B 8 columns of B, 16 bytes each. A 32-bit accumulator takes two registers for 8 x 8.
"""

from __future__ import annotations

from dataclasses import dataclass

from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.ir import Emitter, Val


@dataclass(frozen=True, slots=True)
class Kind:
    """An element type: its bits, and ``raw``, the bits that one step of the product takes from a row of A."""

    name: str
    bits: int
    raw: int
    signed: bool = False

    @property
    def register(self) -> int:
        """Bits of a lane's register."""
        return max(32, self.bits)

    @property
    def columns(self) -> int:
        """Elements of a tile's row."""
        return 4 * self.register // self.bits

    @property
    def steps(self) -> int:
        """Steps of the product in a tile's row."""
        return 4 * self.register // self.raw


KINDS = {
    k.name: k
    for k in (
        Kind("f16", 16, 16), Kind("bf16", 16, 16), Kind("tf32", 32, 32), Kind("f32", 32, 32), Kind("f64", 64, 64),
        Kind("e4m3", 8, 8), Kind("e5m2", 8, 8),
        Kind("s8", 8, 16, True), Kind("u8", 8, 16), Kind("s4", 4, 8, True), Kind("u4", 4, 8), Kind("b1", 1, 32),
        Kind("s32", 32, 32, True),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """D = A B + C with A of m x k, B of k x n, C and D of m x n elements."""

    m: int
    n: int
    k: int

    def tiles(self, operand: str, kind: Kind) -> list[tuple[int, int]]:
        """First row and column of each register's tile, in the order of registers; for B, of its transpose."""
        if operand == "b":
            return [(n, k) for n in range(0, self.n, 8) for k in range(0, self.k, kind.columns)]
        width, step = (self.k, kind.columns) if operand == "a" else (self.n, 8)
        pairs = (range(m, min(m + 16, self.m), 8) for m in range(0, self.m, 16))
        return [(row, column) for rows in pairs for column in range(0, width, step) for row in rows]

    def registers(self, operand: str, kind: Kind) -> int:
        """Registers that hold an operand, each element once."""
        return len(self.tiles(operand, kind)) * (1 if operand in "ab" else accumulators(kind))


def shape_of(name: str) -> Shape:
    m, rest = name[1:].split("n")
    n, k = rest.split("k")
    return Shape(int(m), int(n), int(k))


def accumulators(kind: Kind) -> int:
    """Registers for 8 x 8 elements of C or D."""
    return max(1, kind.bits * 2 // kind.register)


def transposed(e: Emitter, v: Val, rows: int) -> Val:
    """A matrix of `rows` rows, stored row by row, column by column."""
    columns = v.n // rows
    return e.shuffle(v, [r * columns + c for c in range(columns) for r in range(rows)])


def tile_of(e: Emitter, registers: list[Val], kind: Kind) -> Val:
    """8 x 8 accumulators, row by row, as raw bits."""
    ty = f"i{kind.bits}"
    if len(registers) == 1:
        return e.view(registers[0], ty)
    return e.shuffle(registers[0], [k // 2 + LANES * (k % 2) for k in range(64)], registers[1])


def registers_of(e: Emitter, tile: Val, kind: Kind) -> list[Val]:
    """The registers that hold 8 x 8 accumulators."""
    if accumulators(kind) == 1:
        return [e.view(tile, "i32")]
    return [e.shuffle(tile, range(k, 64, 2)) for k in range(2)]
