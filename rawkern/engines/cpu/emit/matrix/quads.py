"""``mma.m8n8k4`` of f16: four products at once, each held by eight lanes, a quad of either half of the warp.

Sums are as those of `product`.
"""

from __future__ import annotations

from rawkern.engines.cpu import arith
from rawkern.engines.cpu.arith.formats import from_half, to_half
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.lanes import define
from rawkern.engines.cpu.emit.matrix.product import return_all
from rawkern.engines.cpu.ir import Emitter, Module, Val

Place = tuple[int, int]  # row and column


def _a(layout: str, lane: int, i: int) -> Place:
    own, other = lane % 4, i + 4 * (lane // 16)
    return (own + 4 * (lane // 16), i) if layout == "row" else (other, own)


def _b(layout: str, lane: int, i: int) -> Place:
    own, other = lane % 4, i + 4 * (lane // 16)
    return (own, other) if layout == "row" else (i, own + 4 * (lane // 16))


def _sums(kind: str, lane: int, i: int) -> Place:
    """Of C and D: in f16 a lane has a row, which is also how the product is computed."""
    if kind == "f16":
        return lane % 4 + 4 * (lane // 16), i
    return (lane & 1) + (i & 2) + 4 * (lane // 16), (i & 4) + (lane & 2) + (i & 1)


def helper(m: Module, name: str, layouts: tuple[str, str], d: str, c: str) -> str:
    """The text of the function that multiplies what its arguments hold, two registers of A, two of B and those of C."""
    e = Emitter(m)
    counts = {"a": 2, "b": 2, "c": count(c)}
    values = {o: [Val(f"%{o}{i}", "i32", LANES) for i in range(n)] for o, n in counts.items()}
    a, b = (e.concat(_halves(e, values[o])) for o in "ab")
    start = e.concat(_halves(e, values["c"]) if c == "f16" else [e.cast("bitcast", x, "float") for x in values["c"]])
    in_a, in_b = (_where(f, layout, 4) for f, layout in zip((_a, _b), layouts, strict=True))
    in_c = _where(_sums, c, 8)
    rows = [_sums("f16", lane, 0)[0] for lane in range(LANES)]
    left = [e.shuffle(a, [in_a[lane // 4 % 4, row, k] for lane, row in enumerate(rows)]) for k in range(4)]
    sums = []
    for j in range(8):
        total = e.shuffle(start, [in_c[lane // 4 % 4, row, j] for lane, row in enumerate(rows)])
        for k in range(4):
            right = e.shuffle(b, [in_b[lane // 4 % 4, k, j] for lane in range(LANES)])
            total = e.intrinsic("llvm.fma", "float", left[k], right, total)
        sums.append(total)
    ty = result_type(d)
    return_all(e, ty, _results(e, sums, d))
    params = ", ".join(f"<32 x i32> %{o}{i}" for o, n in counts.items() for i in range(n))
    return define(f"define internal {ty} @{name}({params}) noinline", e)


def count(kind: str) -> int:
    """Registers of C or D."""
    return 4 if kind == "f16" else 8


def result_type(d: str) -> str:
    return f"{{ {', '.join(['<32 x i32>'] * count(d))} }}"


def _where(place, layout: str, elements: int) -> dict[tuple[int, int, int], int]:
    """Index of each (product, row, column) among the elements of all lanes, the first of each lane first."""
    return {
        (lane // 4 % 4, *place(layout, lane, i)): LANES * i + lane for i in range(elements) for lane in range(LANES)
    }


def _halves(e: Emitter, registers: list[Val]) -> list[Val]:
    """The numbers in packed registers: a vector for each element of a lane."""
    parts = [e.view(r, "i16") for r in registers]
    return [from_half(e, e.shuffle(p, range(h, 2 * LANES, 2))) for p in parts for h in range(2)]


def _results(e: Emitter, sums: list[Val], d: str) -> list[Val]:
    if d == "f16":
        bits = [arith.canonical(e, to_half(e, x), "f16") for x in sums]
        both = [k // 2 + LANES * (k % 2) for k in range(2 * LANES)]
        return [e.view(e.shuffle(bits[k], both, bits[k + 1]), "i32") for k in range(0, 8, 2)]
    whole, found = e.concat(sums), _where(_sums, "f16", 8)
    order = [[found[lane // 4 % 4, *_sums("f32", lane, i)] for lane in range(LANES)] for i in range(8)]
    return [arith.canonical(e, e.cast("bitcast", e.shuffle(whole, picks), "i32"), "f32") for picks in order]
