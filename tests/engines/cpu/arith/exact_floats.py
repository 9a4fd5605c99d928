"""Floating-point numbers in exact integer arithmetic: formats, rounding, sums, products, quotients and roots.

Values are integers times powers of two; quotients and roots carry one more bit that says whether something is left
over, which is all that rounding asks.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple


class Format(NamedTuple):
    """A binary floating-point format; `digits` counts the hidden bit, `least` is the exponent of the last subnormal bit."""

    bits: int
    digits: int
    least: int
    nan: int
    top: int = 0  # what comes after the greatest number where there is no infinity

    @property
    def infinity(self) -> int:
        return self.top or ((1 << self.bits - self.digits) - 1) << self.digits - 1

    @property
    def one(self) -> int:
        return encode(Real(0, 1, 0), self)


class Real(NamedTuple):
    """(-1)^sign * m * 2^e; `m` is None for an infinity. A NaN is None in its place."""

    sign: int
    m: int | None
    e: int


FORMATS = {
    "f16": Format(16, 11, -24, 0x7FFF),
    "bf16": Format(16, 8, -133, 0x7FFF),
    "f32": Format(32, 24, -149, 0x7FFFFFFF),
    "f64": Format(64, 53, -1074, 0x7FF8000000000000),
}
#: Formats that only conversions know. The bits of tf32 are the upper ones of an f32.
NARROW = {"e4m3": Format(8, 4, -9, 0x7F, 0x7F), "e5m2": Format(8, 3, -16, 0x7F), "tf32": Format(19, 11, -136, 0x3FFFF)}
ROUNDINGS = ("rn", "rz", "rm", "rp", "rna")


@cache
def decode(bits: int, f: Format, ftz: bool = False) -> Real | None:
    sign, rest = bits >> f.bits - 1, bits & (1 << f.bits - 1) - 1
    exponent, m = rest >> f.digits - 1, rest & (1 << f.digits - 1) - 1
    if rest > f.infinity or rest == f.top != 0:
        return None
    if rest == f.infinity:
        return Real(sign, None, 0)
    if exponent == 0:
        return Real(sign, 0 if ftz else m, f.least)
    return Real(sign, m | 1 << f.digits - 1, f.least + exponent - 1)


def encode(x: Real | None, f: Format, mode: str = "rn", ftz: bool = False) -> int:
    """Round once to a format; a NaN becomes the canonical one."""
    if x is None:
        return f.nan
    sign = x.sign << f.bits - 1
    if x.m is None:
        return sign | f.infinity
    if x.m == 0:
        return sign
    last = max(x.m.bit_length() + x.e - f.digits, f.least)
    whole = divide_power(x.m, last - x.e, mode, x.sign)
    bits = (last - f.least << f.digits - 1) + whole
    if bits >= f.infinity:
        up = {"rn": True, "rna": True, "rz": False, "rp": not x.sign, "rm": bool(x.sign)}[mode]
        bits = f.infinity if up else f.infinity - 1
    if ftz and bits < 1 << f.digits - 1:
        bits = 0
    return sign | bits


def divide_power(m: int, shift: int, mode: str, sign: int) -> int:
    """m / 2^shift rounded to an integer; `sign` tells the directed modes which way is up."""
    if shift <= 0:
        return m << -shift
    whole, rest, half = m >> shift, m & (1 << shift) - 1, 1 << shift - 1
    up = {
        "rn": rest > half or (rest == half and whole & 1),
        "rna": rest >= half,
        "rz": False,
        "rp": rest and not sign,
        "rm": rest and sign,
    }[mode]
    return whole + bool(up)


def plus(x: Real | None, y: Real | None, mode: str) -> Real | None:
    if x is None or y is None:
        return None
    if x.m is None or y.m is None:
        if x.m is None and y.m is None and x.sign != y.sign:
            return None
        return x if x.m is None else y
    e = min(x.e, y.e)
    total = sum((-1) ** v.sign * (v.m << v.e - e) for v in (x, y))  # type: ignore[operator]
    if total == 0:
        same = x.m == y.m == 0 and x.sign == y.sign
        return Real(x.sign if same else int(mode == "rm"), 0, 0)
    return Real(int(total < 0), abs(total), e)


def times(x: Real | None, y: Real | None) -> Real | None:
    if x is None or y is None:
        return None
    sign = x.sign ^ y.sign
    if x.m is None or y.m is None:
        return None if x.m == 0 or y.m == 0 else Real(sign, None, 0)
    return Real(sign, x.m * y.m, x.e + y.e)


def over(x: Real | None, y: Real | None) -> Real | None:
    if x is None or y is None or (x.m is None and y.m is None) or (x.m == 0 and y.m == 0):
        return None
    sign = x.sign ^ y.sign
    if x.m is None or y.m == 0:
        return Real(sign, None, 0)
    if y.m is None or x.m == 0:
        return Real(sign, 0, 0)
    shift = max(0, 60 + y.m.bit_length() - x.m.bit_length())
    whole, rest = divmod(x.m << shift, y.m)
    return Real(sign, whole << 1 | (rest != 0), x.e - y.e - shift - 1)


def root(x: Real | None) -> Real | None:
    if x is None or x.m == 0:
        return x
    if x.sign:
        return None
    if x.m is None:
        return x
    shift = 120 + (x.e & 1)
    whole = math.isqrt(x.m << shift)
    return Real(0, whole << 1 | (whole * whole != x.m << shift), (x.e - shift) // 2 - 1)


def less(x: Real, y: Real) -> bool:
    """Numerical order; zeros of both signs are equal."""
    if x.m is None or y.m is None:
        rank = [0 if v.m is not None else -1 if v.sign else 1 for v in (x, y)]
        return rank[0] < rank[1]
    e = min(x.e, y.e)
    a, b = ((-1) ** v.sign * (v.m << v.e - e) for v in (x, y))  # type: ignore[operator]
    return a < b
