"""Dot products of bytes and the video instructions, scalar and SIMD."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rawkern.engines.cpu.arith.integer import clamp, difference
from rawkern.engines.cpu.arith.rows import fetch
from rawkern.engines.cpu.ir import Emitter, Val
from rawkern.engines.cpu.ptx.decode import DTYPES, Op


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
        d = e.bin("add", d, e.product(x, y))
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
    return e.bin({"vshr": "ashr"}.get(name, name[1:]), a, b)


def _holds(e: Emitter, op: Op, a: Val, b: Val) -> Val:
    """A comparison of values extended far enough to be signed."""
    name = next(m for m in op.mods if m in ("eq", "ne", "lt", "le", "gt", "ge"))
    return e.cmp(f"icmp {name if name in ('eq', 'ne') else f's{name}'}", a, b)


def simd(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """v*2 and v*4: the operation lane by lane; .add sums the lanes into c."""
    to, ta, tb = op.types
    bits = 32 // int(op.base[-1])
    lane_type = DTYPES[f"{to.kind}{bits}"]

    def lane(x: Val, y: Val) -> Val:
        d = _primary(e, op.base[:-1], x, y)
        return clamp(e, d, DTYPES["s32"], lane_type) if op.has("sat") else d

    return _by_lanes(e, op, args, (ta.signed, tb.signed), to.signed, lane)


def compared_lanes(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """vset2 and vset4: 1 or 0 in each lane; .add counts the ones into c."""
    ta, tb = op.types
    return _by_lanes(
        e, op, args, (ta.signed, tb.signed), False, lambda x, y: e.cast("zext", _holds(e, op, x, y), "i32")
    )


def _by_lanes(
    e: Emitter, op: Op, args: Sequence[Val], signs: tuple[bool, bool], signed: bool, lane: Callable[[Val, Val], Val]
) -> Val:
    """`lane` of each pair of halves or bytes, packed or, with .add, summed into c."""
    count = int(op.base[-1])
    bits = 32 // count
    a, b, c = (e.resize(x, "i32") for x in args)
    lanes = [lane(_part(e, a, bits * i, bits, signs[0]), _part(e, b, bits * i, bits, signs[1])) for i in range(count)]
    if op.has("add"):
        for d in lanes:
            c = e.bin("add", c, _part(e, d, 0, bits, signed))
        return c
    return e.all("or", (e.bin("shl", e.bin("and", d, (1 << bits) - 1), bits * i) for i, d in enumerate(lanes)))


def scalar(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """vadd, vsub, vabsdiff, vmin, vmax, vshl and vshr of whole registers, with an optional second operation on c."""
    to, ta, tb = op.types
    a, b = (e.resize(fetch(e, x, t), "i64", t.signed) for x, t in zip(args, (ta, tb), strict=False))
    if op.has("clamp"):
        b = e.intrinsic("llvm.umin", "i64", b, e.like(b, 32))
    elif op.has("wrap"):
        b = e.bin("and", b, 31)
    d = _primary(e, op.base, a, b)
    if op.has("sat"):
        d = clamp(e, d, DTYPES["s64"], to)
    return _second(e, op, e.resize(d, "i32"), args, to.signed)


def compared(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """vset: 1 or 0, with an optional second operation on c."""
    a, b = (e.resize(fetch(e, x, t), "i64", t.signed) for x, t in zip(args, op.types, strict=False))
    return _second(e, op, e.cast("zext", _holds(e, op, a, b), "i32"), args, False)


def _second(e: Emitter, op: Op, d: Val, args: Sequence[Val], signed: bool) -> Val:
    second = next((m for m in op.mods if m in ("add", "min", "max")), None)
    if second is None:
        return d
    c = e.resize(args[2], "i32")
    if second == "add":
        return e.bin("add", d, c)
    return e.intrinsic(f"llvm.{'s' if signed else 'u'}{second}", "i32", d, c)


def multiplied(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """vmad: a product, which is never wider than 64 bits, plus c, plus one with .po, scaled; d has its low 32 bits."""
    _, ta, tb = op.types
    signed = ta.signed or tb.signed
    a, b = (e.resize(fetch(e, x, t), "i64", t.signed) for x, t in zip(args, (ta, tb), strict=False))
    d = e.bin("add", e.product(a, b), e.resize(e.resize(args[2], "i32"), "i64", signed))
    d = e.bin("add", d, 1) if op.has("po") else d
    shift = 7 if op.has("shr7") else 15 if op.has("shr15") else 0
    d = e.bin("ashr" if signed else "lshr", d, shift) if shift else d
    if op.has("sat"):
        d = clamp(e, d, DTYPES["s64" if signed else "u64"], DTYPES["s32" if signed else "u32"])
    return e.resize(d, "i32")
