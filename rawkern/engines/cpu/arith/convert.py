"""cvt in all its forms, and cvt.pack."""

from __future__ import annotations

from collections.abc import Sequence

from rawkern.engines.cpu.arith.formats import flush, load, rectify, saturate, store, to_half
from rawkern.engines.cpu.arith.fp8 import from_fp8, to_fp8
from rawkern.engines.cpu.arith.integer import clamp, limits
from rawkern.engines.cpu.arith.rounding import narrow, odd_float, step, to_small
from rawkern.engines.cpu.arith.rows import Result, fetch
from rawkern.engines.cpu.ir import Emitter, Val
from rawkern.engines.cpu.ptx.decode import DTYPES, DType, Op

_INTEGRAL = {"rni": "llvm.roundeven", "rzi": "llvm.trunc", "rmi": "llvm.floor", "rpi": "llvm.ceil"}


def cvt(e: Emitter, op: Op, args: Sequence[Val]) -> Result:
    to, t = op.types
    if to.count == 2:
        return Result((_to_pair(e, op, args),))
    v = fetch(e, args[0], t)
    if to.kind != "f":
        bits = _integer_to_integer(e, op, v) if t.kind != "f" else _float_to_integer(e, op, v)
        return Result((widen(e, bits, to),), signed=to.signed)
    if to.name == "tf32":
        return Result((_to_tf32(e, op, v),))
    if t.kind != "f":
        bits = _integer_to_float(e, op, v)
    elif op.has("satfinite"):
        bits = _small(e, op, e.cast("bitcast", v, "float"), to)
    else:
        bits = _float_to_float(e, op, v)
    return Result((bits,))


def widen(e: Emitter, bits: Val, to: DType) -> Val:
    return e.resize(bits, "i16", to.signed) if to.bits == 8 else bits


# -- integers -----------------------------------------------------------------------------------------
def _integer_to_integer(e: Emitter, op: Op, v: Val) -> Val:
    to, t = op.types
    if op.has("sat"):
        v = clamp(e, v, t, to)
    return e.resize(v, to.int, t.signed)


def _integer_to_float(e: Emitter, op: Op, v: Val) -> Val:
    to, t = op.types
    if op.has("sat"):  # to the range from 0 to 1
        v = e.intrinsic("llvm.smax", v.ty, v, e.like(v, 0)) if t.signed else v
        v = e.intrinsic("llvm.umin", v.ty, v, e.like(v, 1))
    name, mode = "sitofp" if t.signed else "uitofp", op.rounding
    if mode == "rn" and to.bits >= 32:
        return e.cast("bitcast", e.cast(name, v, to.fp), to.int)
    if t.bits < 64:
        s, error = e.cast(name, v, "double"), None
    else:
        # the halves are exact, and of a sum of two doubles the smaller one's loss is exact
        high = e.cast(name, e.bin("ashr" if t.signed else "lshr", v, 32), "double")
        high = e.bin("fmul", high, 2.0**32)
        low = e.cast("uitofp", e.bin("and", v, 0xFFFFFFFF), "double")
        s = e.bin("fadd", high, low)
        error = e.bin("fsub", low, e.bin("fsub", s, high))
    if to.name == "f64":
        return e.cast("bitcast", s, "i64") if error is None else step(e, s, error, mode)
    if to.name == "f32":
        return narrow(e, s, error, mode)
    x = odd_float(e, s, error)
    return store(e, x, to) if mode == "rn" else to_small(e, x, to, mode)


def _float_to_integer(e: Emitter, op: Op, v: Val) -> Val:
    """Out of range the nearest bound; NaN gives 0, or the top bit alone from f64 and for 64-bit results."""
    to, t = op.types
    if op.has("ftz"):
        v = flush(e, v, t)
    x = load(e, v, t)
    nan = e.cmp("fcmp uno", x, x)
    if op.rounding != "rzi":  # the conversion itself cuts toward zero
        x = e.intrinsic(_INTEGRAL[op.rounding], x.ty, x)
    return to_integer(e, x, nan, to, nan_value(to, t))


def nan_value(to: DType, t: DType) -> int:
    return 1 << to.bits - 1 if 64 in (to.bits, t.bits) else 0


def to_integer(e: Emitter, x: Val, nan: Val, to: DType, nan_bits: int) -> Val:
    low, high = limits(to)
    inner = "i32" if to.bits < 32 else to.int
    above = e.cmp("fcmp oge", x, float(high + 1))
    x = e.select(e.cmp("fcmp ogt", x, float(low)), x, e.like(x, float(low)))
    d = e.cast("fptosi" if to.signed else "fptoui", x, inner)
    return e.resize(e.select(nan, nan_bits, e.select(above, high, d)), to.int)


# -- floating point -----------------------------------------------------------------------------------
def _float_to_float(e: Emitter, op: Op, v: Val) -> Val:
    """One floating-point format to another."""
    to, t = op.types
    if to is t and not op.mods and to.bits >= 32:
        return v
    ftz = op.has("ftz") and to.name != "f16"  # the hardware does not flush on the way to f16
    if ftz and t.name == "f32":
        v = flush(e, v, t)
    x = load(e, v, t)
    nan = e.cmp("fcmp uno", x, x)
    mode = op.rounding
    if mode in _INTEGRAL:
        x, mode = e.intrinsic(_INTEGRAL[mode], x.ty, x), "rn"
    if op.has("sat"):
        x = saturate(e, x)
    elif op.has("relu"):
        x = rectify(e, x)
    bits = _round(e, x, to, mode)
    if ftz and to.name == "f32":
        bits = flush(e, bits, to)
    value = None if op.has("sat") else _nan(op)
    return bits if value is None else e.select(nan, value, bits)


def _nan(op: Op) -> int | None:
    """The NaN that the hardware makes of any, or None where it keeps what it can of the payload."""
    to, t = (d.name for d in op.types)
    if op.has("ftz") and t == "f32" and to == "f64":
        return 0x7FFFFFFFE0000000
    if to in ("f32", "f64") and t in ("f16", "f32", "f64") and (t, to) != ("f16", "f32") and t != to:
        return None
    if (t == "bf16" and to in ("f32", "f64") and not op.has("ftz")) or (t, to) == ("f64", "f16"):
        return None
    return 0x7FC0 if (t, to) == ("f64", "bf16") else _CVT_NAN[to]


_CVT_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FF8 << 48}


def _round(e: Emitter, x: Val, to: DType, mode: str) -> Val:
    if to.name == "f64":
        return e.cast("bitcast", e.cast("fpext", x, "double"), "i64")
    if to.name == "f32":
        return e.cast("bitcast", x, "i32") if x.ty == "float" else narrow(e, x, None, mode)
    if x.ty == "double":
        x = odd_float(e, x, None)
    return store(e, x, to) if mode == "rn" else to_small(e, x, to, mode)


def _to_tf32(e: Emitter, op: Op, v: Val) -> Val:
    """A float with 10 mantissa bits, in a register of 32."""
    x = e.cast("bitcast", v, "float")
    nan = e.cmp("fcmp uno", x, x)
    kept: Val | int = 0x7FFFE000
    if op.rounding == "rna":  # a NaN as it is, if that leaves one
        gone = e.cmp("icmp eq", e.bin("and", v, 0x007FE000), 0)
        kept = e.bin("or", v, e.select(gone, 0x00400000, e.like(v, 0)))
    if op.has("relu"):
        v = e.cast("bitcast", rectify(e, x), "i32")
    if op.rounding == "rna":
        v = e.bin("add", v, 0x1000)
    elif op.rounding == "rn":
        v = e.bin("add", e.bin("add", v, 0x0FFF), e.bin("and", e.bin("lshr", v, 13), 1))
    v = e.bin("and", e.select(nan, kept, v), 0xFFFFE000)
    if op.has("satfinite"):
        infinite = e.cmp("icmp uge", e.bin("and", v, 0x7FFFFFFF), 0x7F800000)
        v = e.select(infinite, e.bin("sub", v, 0x2000), v)
    return v


# -- pairs --------------------------------------------------------------------------------------------
_GREATEST = {"f16": 0x7BFF, "bf16": 0x7F7F}


def _to_pair(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """Two values into one register, the first in its upper half; or packed fp8 from and to packed f16."""
    to, t = op.types
    if t.count == 2:
        v = fetch(e, args[0], t)
        if t.element in ("e4m3", "e5m2"):
            x = from_fp8(e, e.view(v, "i8"), t.element)
            x = rectify(e, x) if op.has("relu") else x
            return e.view(_canonical_half(e, x), "i32")
        return e.view(_to_fp8(e, op, load(e, e.view(v, "i16"), DTYPES[t.element])), "i16")
    high, low = e.same(*(e.cast("bitcast", fetch(e, a, t), "float") for a in args))
    if to.element in ("e4m3", "e5m2"):
        parts = [_to_fp8(e, op, x) for x in (high, low)]
    else:
        parts = [_small(e, op, x, DTYPES[to.element]) for x in (high, low)]
    a, b = (e.resize(p, to.int) for p in parts)
    return e.bin("or", e.bin("shl", a, to.bits // 2), b)


def _canonical_half(e: Emitter, x: Val) -> Val:
    return e.select(e.cmp("fcmp uno", x, x), 0x7FFF, to_half(e, x))


def _to_fp8(e: Emitter, op: Op, x: Val) -> Val:
    if op.has("relu"):
        x = rectify(e, x)
    return to_fp8(e, x, op.type.element)


def _small(e: Emitter, op: Op, x: Val, t: DType) -> Val:
    nan = e.cmp("fcmp uno", x, x)
    if op.has("relu"):
        x = rectify(e, x)
    bits = store(e, x, t) if op.rounding == "rn" else to_small(e, x, t, op.rounding)
    if op.has("satfinite"):
        greatest = _GREATEST[t.name]
        infinite = e.cmp("icmp eq", e.bin("and", bits, 0x7FFF), greatest + 1)
        bits = e.select(infinite, e.bin("sub", bits, 1), bits)
    return e.select(nan, 0x7FFF, bits)


def cvt_pack(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """Two saturated integers into the low bits; below 16 bits the third operand's low bits move up."""
    to, t = op.types[:2]
    parts = [e.bin("and", clamp(e, fetch(e, a, t), t, to), (1 << to.bits) - 1) for a in args[:2]]
    d = e.bin("or", e.bin("shl", parts[0], to.bits), parts[1])
    if len(args) < 3:
        return d
    return e.bin("or", d, e.bin("shl", e.resize(args[2], "i32"), 2 * to.bits))
