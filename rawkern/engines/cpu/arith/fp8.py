"""The 8-bit formats e4m3 and e5m2."""

from __future__ import annotations

from rawkern.engines.cpu.arith.formats import from_half, shorten
from rawkern.engines.cpu.ir import Emitter, Val

# mantissa bits, exponent of the smallest normal number, greatest finite magnitude; NaN is 0x7f in both
_FP8 = {"e4m3": (3, -6, 0x7E), "e5m2": (2, -14, 0x7B)}


def to_fp8(e: Emitter, x: Val, name: str) -> Val:
    """Round floats to nearest even as i8; too large becomes the greatest finite magnitude."""
    mantissa, least, greatest = _FP8[name]
    bits = e.cast("bitcast", x, "i32")
    d = e.intrinsic("llvm.smin", "i32", shorten(e, bits, mantissa, least), e.like(bits, greatest))
    d = e.bin("or", d, e.bin("and", e.bin("lshr", bits, 24), 0x80))
    return e.cast("trunc", e.select(e.cmp("fcmp uno", x, x), 0x7F, d), "i8")


def from_fp8(e: Emitter, bits: Val, name: str) -> Val:
    """The exact floats that i8 bits stand for."""
    if name == "e5m2":
        return from_half(e, e.bin("shl", e.resize(bits, "i16"), 8))
    wide = e.resize(bits, "i32")
    magnitude = e.bin("and", wide, 0x7F)
    x = e.cast("bitcast", e.bin("shl", magnitude, 20), "float")
    x = e.cast("bitcast", e.bin("fmul", x, 2.0**120), "i32")
    x = e.select(e.cmp("icmp eq", magnitude, 0x7F), 0x7FFFFFFF, x)
    return e.cast("bitcast", e.bin("or", x, e.bin("shl", e.bin("and", wide, 0x80), 24)), "float")
