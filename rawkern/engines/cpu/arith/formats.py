"""Floating-point formats: register bits to values that LLVM computes with and back, subnormals, NaNs, packing."""

from __future__ import annotations

from dataclasses import dataclass

from rawkern.engines.cpu.ir import Emitter, Val
from rawkern.engines.cpu.ptx.decode import DTYPES, DType


@dataclass(frozen=True, slots=True)
class Format:
    """Bit masks of an IEEE-like format, and the NaN that the hardware's arithmetic gives."""

    sign: int
    exponent: int
    nan: int


FORMATS = {
    "f16": Format(0x8000, 0x7C00, 0x7FFF),
    "bf16": Format(0x8000, 0x7F80, 0x7FFF),
    "f32": Format(0x80000000, 0x7F800000, 0x7FFFFFFF),
    "f64": Format(1 << 63, 0x7FF << 52, 0x7FF8 << 48),
}


def from_half(e: Emitter, bits: Val) -> Val:
    """The exact floats of f16 bits."""
    if "nof16c" not in e.module.features:
        return e.cast("fpext", e.cast("bitcast", bits, "half"), "float")
    wide = e.resize(bits, "i32")
    magnitude = e.bin("and", wide, 0x7FFF)
    x = e.bin("fmul", e.cast("bitcast", e.bin("shl", magnitude, 13), "float"), 2.0**112)
    x = e.cast("bitcast", x, "i32")
    x = e.select(e.cmp("icmp uge", magnitude, 0x7C00), e.bin("or", x, 0x7F800000), x)
    return e.cast("bitcast", e.bin("or", x, e.bin("shl", e.bin("and", wide, 0x8000), 16)), "float")


def to_half(e: Emitter, x: Val) -> Val:
    """Floats rounded to nearest even as f16 bits; the upper bits of a NaN's payload stay."""
    if "nof16c" not in e.module.features:
        return e.cast("bitcast", e.cast("fptrunc", x, "half"), "i16")
    bits = e.cast("bitcast", x, "i32")
    d = e.intrinsic("llvm.smin", "i32", shorten(e, bits, 10, -14), e.like(bits, 0x7C00))
    nan = e.bin("or", e.bin("and", e.bin("lshr", bits, 13), 0x3FF), 0x7E00)
    d = e.select(e.cmp("fcmp uno", x, x), nan, d)
    return e.resize(e.bin("or", d, e.bin("and", e.bin("lshr", bits, 16), 0x8000)), "i16")


def shorten(e: Emitter, bits: Val, mantissa: int, least: int) -> Val:
    """Round a float's magnitude to a format of fewer bits, whose smallest normal number is 2^least.

    The exponent runs on where the format ends: the caller cuts too large results, and NaNs.
    """
    magnitude = e.bin("and", bits, 0x7FFFFFFF)
    cut = 23 - mantissa
    # normal numbers: round the integer and move the exponent's bias
    odd = e.bin("and", e.bin("lshr", magnitude, cut), 1)
    rounded = e.bin("add", e.bin("add", magnitude, (1 << cut - 1) - 1), odd)
    normal = e.bin("sub", e.bin("lshr", rounded, cut), 126 + least << mantissa)
    # subnormal ones: adding a power of two leaves the rounded integer in the low bits
    offset = 2.0 ** (least - mantissa + 23)
    shifted = e.cast("bitcast", e.bin("fadd", e.cast("bitcast", magnitude, "float"), offset), "i32")
    subnormal = e.bin("sub", shifted, 127 + least - mantissa + 23 << 23)
    return e.select(e.cmp("icmp ult", magnitude, 127 + least << 23), subnormal, normal)


def load(e: Emitter, bits: Val, t: DType) -> Val:
    """The value of register bits as float (f16, bf16, f32) or double; exact."""
    if t.name == "f16":
        return from_half(e, bits)
    if t.name == "bf16":
        return e.cast("bitcast", e.bin("shl", e.resize(bits, "i32"), 16), "float")
    return e.cast("bitcast", bits, t.fp)


def store(e: Emitter, x: Val, t: DType) -> Val:
    """Register bits of a value, rounded to nearest even; a NaN stays one, with any payload."""
    if t.name == "f16":
        return to_half(e, x)
    if t.name == "bf16":
        bits = e.cast("bitcast", x, "i32")
        odd = e.bin("and", e.bin("lshr", bits, 16), 1)
        rounded = e.bin("lshr", e.bin("add", e.bin("add", bits, odd), 0x7FFF), 16)
        rounded = e.select(e.cmp("fcmp uno", x, x), FORMATS["bf16"].nan, rounded)
        return e.resize(rounded, "i16")
    return e.cast("bitcast", x, t.int)


def flush(e: Emitter, bits: Val, t: DType) -> Val:
    """Subnormals become zeros of their sign."""
    f = FORMATS[t.name]
    tiny = e.cmp("icmp eq", e.bin("and", bits, f.exponent), 0)
    return e.select(tiny, e.bin("and", bits, f.sign), bits)


def saturate(e: Emitter, x: Val) -> Val:
    """Cut to [+0, 1]; NaN becomes +0."""
    x = e.select(e.cmp("fcmp ogt", x, 0.0), x, e.like(x, 0.0))
    return e.select(e.cmp("fcmp olt", x, 1.0), x, e.like(x, 1.0))


def rectify(e: Emitter, x: Val) -> Val:
    """Negative values and -0 become +0; NaN stays."""
    return e.select(e.cmp("fcmp ule", x, 0.0), e.select(e.cmp("fcmp uno", x, x), x, e.like(x, 0.0)), x)


def is_nan(e: Emitter, bits: Val, t: DType) -> Val:
    if t.bits >= 32:
        x = e.cast("bitcast", bits, t.fp)
        return e.cmp("fcmp uno", x, x)
    f = FORMATS[t.name]
    return e.cmp("icmp ugt", e.bin("and", bits, f.sign - 1), f.exponent)


def canonical(e: Emitter, val: Val, kind: str) -> Val:
    """Give `val`, bits of format `kind` (a Result's `lazy_nan`), the hardware's NaN in place of any other."""
    t = DTYPES[kind]
    if t.count == 2:
        return e.view(canonical(e, e.view(val, "i16"), t.element), "i32")
    return e.select(is_nan(e, val, t), FORMATS[kind].nan, val)
