"""Register-only PTX instructions in exact integer arithmetic, after the words of the PTX ISA manual.

Slow and plain, and shares nothing with the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from .exact_floats import (
    FORMATS,
    NARROW,
    ROUNDINGS,
    Format,
    Real,
    decode,
    divide_power,
    encode,
    less,
    over,
    plus,
    root,
    times,
)

# Integers -------------------------------------------------------------------------------------------------------------


@cache
def width(t: str) -> int:
    sizes = {"bf16": 16, "tf32": 32, "e4m3x2": 16, "e5m2x2": 16, "f16x2": 32, "bf16x2": 32, "u16x2": 32, "s16x2": 32}
    return sizes.get(t) or int(t[1:])


def signed(v: int, bits: int) -> int:
    v &= (1 << bits) - 1
    return v - (1 << bits) if v >> bits - 1 else v


def value(v: int, t: str) -> int:
    """A register's bits as a number of type `t`."""
    return signed(v, width(t)) if t[0] == "s" else v & (1 << width(t)) - 1


def clamp(v: int, t: str) -> int:
    low, high = (-(1 << width(t) - 1), (1 << width(t) - 1) - 1) if t[0] == "s" else (0, (1 << width(t)) - 1)
    return min(max(v, low), high)


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _divide(a: int, b: int, t: str) -> int:
    """By zero the manual leaves it open; all ones is what GPUs give."""
    return -1 if b == 0 else _quotient(a, b)


def _remainder(a: int, b: int, t: str) -> int:
    return -1 if b == 0 else a - b * _quotient(a, b)


def _part(mods: list[str], product: int, bits: int) -> int:
    return product >> bits if "hi" in mods else product


def _multiply(mods: list[str], t: str, a: int, b: int, c: int = 0) -> int:
    total = _part(mods, a * b, width(t)) + c
    return clamp(total, t) if "sat" in mods else total


def _multiply24(mods: list[str], t: str, a: int, b: int, c: int = 0) -> int:
    a, b = (signed(v, 24) if t[0] == "s" else v & 0xFFFFFF for v in (a, b))
    total = (a * b >> 16 if "hi" in mods else signed(a * b, 32) if t[0] == "s" else a * b & 0xFFFFFFFF) + c
    return clamp(total, t) if "sat" in mods else total


def _field(bits: int, *operands: int) -> list[int]:
    """Place and length of a bit field; beyond 255, which the manual leaves open, GPUs cut one of 32 bits and clamp others."""
    return [v & 255 if bits == 32 else min(v, 255) for v in operands]


def _extract(t: str, a: int, position: int, length: int) -> int:
    """Bits from `position` on, sign-extended from the field's last bit or, where the field reaches beyond, the word's."""
    bits = width(t)
    position, length = _field(bits, position, length)
    a &= (1 << bits) - 1
    if length == 0:
        return 0
    last = min(position + length - 1, bits - 1)
    sign = t[0] == "s" and a >> last & 1
    field = a >> position & (1 << length) - 1
    inside = max(0, min(length, bits - position))
    return field | (-1 << inside if sign else 0)


def _insert(t: str, a: int, b: int, position: int, length: int) -> int:
    bits = width(t)
    position, length = _field(bits, position, length)
    field = ((1 << length) - 1) << position & (1 << bits) - 1
    return b & ~field | a << position & field


def _find(mods: list[str], t: str, a: int) -> int:
    """The most significant 1, or for negative numbers 0; all ones if there is none."""
    if t[0] == "s" and a < 0:
        a = ~a
    place = a.bit_length() - 1
    return -1 if place < 0 else width(t) - 1 - place if "shiftamt" in mods else place


def _shift(base: str, t: str, a: int, b: int) -> int:
    """Amounts beyond the width are clamped to it."""
    b = min(b, width(t))
    return a << b if base == "shl" else a >> b


def _funnel(mods: list[str], low: int, high: int, c: int) -> int:
    n = min(c, 32) if "clamp" in mods else c & 31
    both = high << 32 | low
    return both << n >> 32 if "l" in mods else both >> n


def _extend(mods: list[str], t: str, a: int, n: int) -> int:
    n &= 0xFFFFFFFF
    n = min(n, 32) if "clamp" in mods else n & 31
    return 0 if n == 0 else signed(a, n) if t[0] == "s" else a & (1 << n) - 1


def _mask(mods: list[str], a: int, b: int) -> int:
    a, b = (min(v, 32) if "clamp" in mods else v & 31 for v in (a, b))
    return ((1 << b) - 1) << a


def integer(base: str, mods: list[str], t: str, args: list[int]) -> int | None:
    """The result of an instruction on one integer type, any bits beyond its width to be cut; None if not known here."""
    count = {"shl": 1, "shr": 1}.get(base, len(args))  # operands of type t; shift amounts are u32
    x = [value(v, t) for v in args[:count]] + args[count:]
    if base in ("add", "sub") and "cc" not in mods:
        total = x[0] + x[1] if base == "add" else x[0] - x[1]
        return clamp(total, t) if "sat" in mods else total
    simple: dict[str, Callable[..., int]] = {
        "div": lambda a, b: _divide(a, b, t),
        "rem": lambda a, b: _remainder(a, b, t),
        "min": lambda a, b: max(0, min(a, b)) if "relu" in mods else min(a, b),
        "max": lambda a, b: max(0, a, b) if "relu" in mods else max(a, b),
        "abs": abs,
        "neg": lambda a: -a,
        "sad": lambda a, b, c: c + abs(a - b),
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "not": lambda a: ~a,
        "cnot": lambda a: int(a == 0),
        "mov": lambda a: a,
        "popc": lambda a: a.bit_count(),
        "clz": lambda a: width(t) - a.bit_length(),
        "brev": lambda a: int(f"{a:0{width(t)}b}"[::-1], 2),
        "shl": lambda a, b: _shift(base, t, a, b),
        "shr": lambda a, b: _shift(base, t, a, b),
        "shf": lambda a, b, c: _funnel(mods, a, b, c),
        "bfi": lambda a, b, c, d: _insert(t, a, b, c, d),
        "bfind": lambda a: _find(mods, t, a),
        "bmsk": lambda a, b: _mask(mods, a, b),
    }
    if base in simple:
        return simple[base](*x)
    if base in ("mul", "mad") and "cc" not in mods:
        if "wide" in mods:
            return value(args[0], t) * value(args[1], t) + (args[2] if base == "mad" else 0)
        return _multiply(mods, t, *x)
    if base in ("mul24", "mad24"):
        return _multiply24(mods, t, *x)
    if base == "bfe":
        return _extract(t, *args)
    if base == "szext":
        return _extend(mods, t, *args)
    return None


# Floating point -------------------------------------------------------------------------------------------------------


def saturate(bits: int, f: Format) -> int:
    """To [0, 1]; a NaN becomes +0."""
    x = decode(bits, f)
    if x is None or x.sign or x.m == 0:
        return 0
    return min(bits, f.one)


def _minimum(base: str, mods: list[str], f: Format, a: int, b: int, ftz: bool) -> int:
    sign = 1 << f.bits - 1
    flip = 0
    if "xorsign" in mods:
        flip, a, b = (a ^ b) & sign, a & ~sign, b & ~sign
    x, y = decode(a, f, ftz), decode(b, f, ftz)
    if x is None or y is None:
        if (x is None and y is None) or "NaN" in mods:
            return f.nan
        kept = y if x is None else x
    elif less(x, y) or less(y, x):
        kept = x if less(x, y) == (base == "min") else y
    else:  # -0 is taken to be less than +0
        kept = x if (x.sign > y.sign) == (base == "min") else y
    return encode(kept, f) ^ flip


def floating(base: str, mods: list[str], t: str, args: list[int]) -> int | None:
    """The result of an instruction on one floating-point type; None if not known here."""
    f, ftz = FORMATS[t], "ftz" in mods
    mode = next((m for m in mods if m in ROUNDINGS), "rn")
    if base in ("min", "max"):
        return _minimum(base, mods, f, *args, ftz)
    if base == "copysign":  # the first operand's sign on the second
        sign = 1 << f.bits - 1
        return args[0] & sign | args[1] & ~sign
    x = [decode(a, f, ftz) for a in args]
    if base in ("neg", "abs"):
        if x[0] is None:
            return f.nan
        return encode(x[0]._replace(sign=0 if base == "abs" else 1 - x[0].sign), f)
    minus = Real(1, 1, 0)
    exact: dict[str, Callable[..., Real | None]] = {
        "add": lambda a, b: plus(a, b, mode),
        "sub": lambda a, b: plus(a, times(b, minus), mode),
        "mul": times,
        "fma": lambda a, b, c: plus(times(a, b), c, mode),
        "mad": lambda a, b, c: plus(times(a, b), c, mode),
        "div": over,
        "rcp": lambda a: over(Real(0, 1, 0), a),
        "sqrt": root,
    }
    if base not in exact:
        return None
    bits = encode(exact[base](*x), f, mode, ftz)
    if "sat" in mods:
        bits = saturate(bits, f)
    if "relu" in mods and bits != f.nan and bits >> f.bits - 1:
        bits = 0
    return bits


@cache
def compare(cmp: str, t: str, a: int, b: int, ftz: bool = False) -> bool:
    """``setp``'s comparison; on floats the forms that end in u hold where an operand is NaN."""
    f = FORMATS.get(t)
    if f is None:
        x, y = (value(v, t) for v in (a, b))
        root_, unordered = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(cmp, cmp), False
        below, above = x < y, y < x
    else:
        p, q = decode(a, f, ftz), decode(b, f, ftz)
        unordered = p is None or q is None
        if cmp in ("num", "nan"):
            return unordered == (cmp == "nan")
        if p is None or q is None:
            return cmp.endswith("u")
        root_ = cmp.removesuffix("u") if len(cmp) == 3 else cmp
        below, above = less(p, q), less(q, p)
    return {
        "eq": not below and not above,
        "ne": below or above,
        "lt": below,
        "le": not above,
        "gt": above,
        "ge": not below,
    }[root_]


# Conversions ----------------------------------------------------------------------------------------------------------


def convert(mods: list[str], to: str, source: str, a: int) -> int | None:
    """``cvt`` between integers and the formats above; None if not known here."""
    if not all(t in FORMATS or (t[0] in "us" and t[1:].isdigit()) for t in (to, source)):
        return None
    ftz, mode = "ftz" in mods, next((m.removesuffix("i") for m in mods if m.removesuffix("i") in ROUNDINGS), "rn")
    if source in FORMATS:
        f = FORMATS[source]
        x = decode(a, f, ftz and source == "f32" and to != "f16")  # to f16 GPUs keep what .ftz should take away
        if to not in FORMATS:
            return _to_integer(x, mode, to, source)
        if to == source and any(m.endswith("i") for m in mods) and x is not None and x.m:
            x = Real(x.sign, divide_power(x.m, -x.e, mode, x.sign), 0)
    else:
        number = value(a, source)
        if to not in FORMATS:
            return clamp(number, to) if "sat" in mods else number
        x = Real(int(number < 0), abs(number), 0)
    bits = encode(x, FORMATS[to], mode, ftz and to == "f32")
    if "satfinite" in mods:
        return _narrow(mods, x, FORMATS[to])
    if "sat" in mods:
        bits = saturate(bits, FORMATS[to])
    if "relu" in mods and bits != FORMATS[to].nan and bits >> FORMATS[to].bits - 1:
        bits = 0
    return bits


def _narrow(mods: list[str], x: Real | None, f: Format) -> int:
    bits = encode(x, f, next(m for m in mods if m in ROUNDINGS))
    sign = 1 << f.bits - 1
    if "satfinite" in mods and x is not None and bits & ~sign == f.infinity:
        bits -= 1
    return 0 if "relu" in mods and x is not None and bits & sign else bits


def convert_narrow(mods: list[str], to: str, source: str, args: list[int]) -> int:
    """``cvt`` to and from pairs and to tf32; of two operands the first gives the upper half."""
    if "pack" in mods:
        bits = width(to)
        packed = args[2] << 2 * bits if len(args) > 2 else 0
        high, low = (clamp(signed(a, 32), to) & (1 << bits) - 1 for a in args[:2])
        return packed | high << bits | low
    if to == "tf32":
        bits = _narrow(mods, decode(args[0], FORMATS["f32"]), NARROW["tf32"])
        return 0x7FFFFFFF if bits == NARROW["tf32"].nan else bits << 13
    known = FORMATS | NARROW
    f, g = known[to.removesuffix("x2")], known[source.removesuffix("x2")]
    parts = args if len(args) == 2 else [args[0] >> g.bits, args[0] & (1 << g.bits) - 1]
    high, low = (_narrow(mods, decode(a, g), f) for a in parts)
    return high << f.bits | low


def _to_integer(x: Real | None, mode: str, to: str, source: str) -> int:
    """Clamped to the range; a NaN gives 0, but 1 and zeros where f64 or a 64-bit integer is involved."""
    if x is None:
        return 1 << width(to) - 1 if source == "f64" or width(to) == 64 else 0
    if x.m is None:
        return clamp(-(1 << 70) if x.sign else 1 << 70, to)
    whole = divide_power(x.m, -x.e, mode, x.sign)
    return clamp(-whole if x.sign else whole, to)


def carry(base: str, mods: list[str], t: str, args: list[int], flag: int) -> tuple[int, int]:
    """Result and carry of ``add.cc``, ``subc``, ``madc.hi`` and the like; `flag` comes in.

    The manual speaks of a borrow after a subtraction. The hardware adds ``a + ~b + 1``, and ``~b`` and the flag in
    ``subc``, so there the flag says that nothing was borrowed; it shows where additions and subtractions are mixed.
    """
    size = 1 << width(t)
    first = args[0]
    if base in ("sub", "subc"):
        total = first + size - 1 - args[1] + (flag if base == "subc" else 1)
        return total % size, int(total >= size)
    if base in ("mad", "madc"):
        first = _part(mods, value(args[0], t) * value(args[1], t), width(t)) % size
    total = first + args[-1] + (flag if base in ("addc", "madc") else 0)
    return total % size, int(total >= size)


# Vectors of bytes and halves ------------------------------------------------------------------------------------------


def dot(base: str, mods: list[str], types: list[str], args: list[int]) -> int:
    """``dp4a``; ``dp2a`` takes two halves by the low or high two bytes."""
    a, b, c = args
    first = 8 if base == "dp4a" else 16
    shift = 16 if "hi" in mods else 0
    total = signed(c, 32) if "s32" in types else c
    for k in range(4 if base == "dp4a" else 2):
        x, y = a >> first * k & (1 << first) - 1, b >> shift + 8 * k & 255
        total += (signed(x, first) if types[0] == "s32" else x) * (signed(y, 8) if types[1] == "s32" else y)
    return total


def _video(base: str, x: int, y: int) -> int:
    return {
        "vadd": lambda: x + y,
        "vsub": lambda: x - y,
        "vabsdiff": lambda: abs(x - y),
        "vmin": lambda: min(x, y),
        "vmax": lambda: max(x, y),
        "vshl": lambda: x << y,
        "vshr": lambda: x >> y,
        "vavrg": lambda: x + y + (x + y >= 0) >> 1,
    }[base]()


def _compared(mods: list[str], x: int, y: int) -> int:
    return int(
        {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[
            next(m for m in mods if m in ("eq", "ne", "lt", "le", "gt", "ge"))
        ]
    )


def _multiplied(mods: list[str], types: list[str], a: int, b: int, c: int) -> int:
    """``vmad``: the sum is signed if a factor is."""
    final = "s32" if "s32" in types[1:] else "u32"
    total = value(a, types[1]) * value(b, types[2]) + value(c, final) + ("po" in mods)
    total >>= 7 if "shr7" in mods else 15 if "shr15" in mods else 0
    return clamp(total, final) if "sat" in mods else total


def video(base: str, mods: list[str], types: list[str], args: list[int]) -> int:
    """SIMD video instructions: on whole words, or on each half or byte of them."""
    count = int(base[-1]) if base[-1] in "24" else 1
    base, bits = base.rstrip("24"), 32 // count
    to, ta, tb = (t[0] + str(bits) for t in (types if len(types) == 3 else ["u32", *types]))
    a, b, c = args
    if base == "vmad":
        return _multiplied(mods, types, a, b, c)
    if base in ("vshl", "vshr"):
        mods, b = [m for m in mods if m not in ("clamp", "wrap")], min(b, 32) if "clamp" in mods else b & 31
    total = third = value(c, types[0] if len(types) == 3 else "u32")
    result = 0
    for k in range(count):
        x, y = value(a >> bits * k & (1 << bits) - 1, ta), value(b >> bits * k & (1 << bits) - 1, tb)
        d = _compared(mods, x, y) if base == "vset" else _video(base, x, y)
        d = clamp(d, to) if "sat" in mods else value(d & (1 << bits) - 1, to)
        total += d
        result |= (d & (1 << bits) - 1) << bits * k
    if count == 1 and {"add", "min", "max"} & set(mods):
        d, other = value(result, to), third
        return d + other if "add" in mods else min(d, other) if "min" in mods else max(d, other)
    return total if "add" in mods else result
