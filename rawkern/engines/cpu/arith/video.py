"""Dot products of bytes and the video instructions, scalar and SIMD."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Emitter, Val
from .decode import DTYPES, Op, fetch
from .integer import clamp, difference


def _part(e: Emitter, v: Val, at: int, bits: int, signed: bool) -> Val:
    """Bits `at` to `at + bits - 1` of a 32-bit value, extended to 32."""
    if at + bits < 32:
        v = e.bin("shl", v, 32 - bits - at)
    return e.bin("ashr" if signed else "lshr", v, 32 - bits)


def dot(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """dp4a, and dp2a with the low or high two bytes of b; the sum wraps."""
    a, b, d = (e.resize(x, "i32") for x in args)
    sign_a, sign_b = (t.signed for t in op.types)
    count, bits = (4, 8) if op.base == "dp4a" else (2, 16)
    first = 16 if op.has("hi") else 0
    for i in range(count):
        x = _part(e, a, bits * i, bits, sign_a)
        y = _part(e, b, first + 8 * i, 8, sign_b)
        d = e.bin("add", d, e.bin("mul", x, y))
    return d


def _primary(e: Emitter, name: str, a: Val, b: Val) -> Val:
    """One lane's operation on values extended far enough that nothing wraps."""
    if name == "vabsdiff":
        return difference(e, a, b, True)
    if name == "vavrg":
        total = e.bin("add", a, b)  # halves go away from zero
        return e.bin("ashr", e.bin("add", total, e.resize(e.cmp("icmp sge", total, 0), total.ty)), 1)
    if name in ("vmin", "vmax"):
        return e.intrinsic(f"llvm.s{name[1:]}", a.ty, a, b)
    return e.bin(name[1:], a, b)


def simd(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """v*2 and v*4: the operation lane by lane; .add sums the lanes into c."""
    name, count = op.base[:-1], int(op.base[-1])
    to, ta, tb = op.types
    bits = 32 // count
    lane_type = DTYPES[f"{to.kind}{bits}"]
    a, b, c = (e.resize(x, "i32") for x in args)
    lanes = []
    for i in range(count):
        d = _primary(e, name, _part(e, a, bits * i, bits, ta.signed), _part(e, b, bits * i, bits, tb.signed))
        lanes.append(clamp(e, d, DTYPES["s32"], lane_type) if op.has("sat") else d)
    if op.has("add"):
        for d in lanes:
            c = e.bin("add", c, _part(e, d, 0, bits, to.signed))
        return c
    out: Val | None = None
    for i, d in enumerate(lanes):
        d = e.bin("shl", e.bin("and", d, (1 << bits) - 1), bits * i)
        out = d if out is None else e.bin("or", out, d)
    assert out is not None
    return out


def scalar(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """vadd, vsub, vabsdiff, vmin, vmax on whole registers, with an optional second operation on c."""
    to, ta, tb = op.types
    a, b = (e.resize(fetch(e, x, t), "i64", t.signed) for x, t in zip(args, (ta, tb), strict=False))
    d = _primary(e, op.base, a, b)
    if op.has("sat"):
        d = clamp(e, d, DTYPES["s64"], to)
    d = e.resize(d, "i32")
    second = next((m for m in op.mods if m in ("add", "min", "max")), None)
    if second is None:
        return d
    c = fetch(e, args[2], to)
    if second == "add":
        return e.bin("add", d, c)
    return e.intrinsic(f"llvm.{'s' if to.signed else 'u'}{second}", "i32", d, c)
