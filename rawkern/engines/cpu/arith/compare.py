"""Comparisons, tests and selections: setp, set, selp, slct, testp."""

from __future__ import annotations

from collections.abc import Sequence

from rawkern.engines.cpu.arith.formats import flush, load
from rawkern.engines.cpu.arith.rows import fetch
from rawkern.engines.cpu.ir import Emitter, Val
from rawkern.engines.cpu.ptx.decode import DTYPES, DType, Op

_INTEGER = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "lo": "ult", "ls": "ule"}
_INTEGER |= {"hi": "ugt", "hs": "uge"}
_FLOAT = {"eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "num": "ord", "nan": "uno"}
_FLOAT |= {"equ": "ueq", "neu": "une", "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge"}
COMPARISONS = {"u": "eq|ne|lt|le|gt|ge|lo|ls|hi|hs", "s": "eq|ne|lt|le|gt|ge", "b": "eq|ne", "f": "|".join(_FLOAT)}


def compare(e: Emitter, op: Op, a: Val, b: Val, t: DType) -> Val:
    """One comparison of values of type `t`; with .ftz subnormals count as zeros."""
    name = next(m for m in op.mods if m in _INTEGER or m in _FLOAT)
    a, b = fetch(e, a, t), fetch(e, b, t)
    if t.kind != "f":
        name = _INTEGER[name]
        sign = "" if len(name) == 3 or name in ("eq", "ne") else ("s" if t.signed else "u")
        return e.cmp(f"icmp {sign}{name}", a, b)
    if op.has("ftz"):
        a, b = flush(e, a, t), flush(e, b, t)
    return e.cmp(f"fcmp {_FLOAT[name]}", load(e, a, t), load(e, b, t))


def _combine(e: Emitter, op: Op, p: Val, args: Sequence[Val]) -> Val:
    name = next((m for m in op.mods if m in ("and", "or", "xor")), None)
    return p if name is None else e.bin(name, p, args[2])


def setp(e: Emitter, op: Op, args: Sequence[Val]) -> tuple[Val, Val]:
    """The predicate and its complement (each combined with the third operand), or one for each packed half."""
    t = op.type
    if t.count == 2:
        element = DTYPES[t.element]
        a, b = (halves(e, fetch(e, x, t)) for x in args[:2])
        low, high = (_combine(e, op, compare(e, op, x, y, element), args) for x, y in zip(a, b, strict=True))
        return low, high
    p = compare(e, op, args[0], args[1], t)
    return _combine(e, op, p, args), _combine(e, op, e.invert(p), args)


def halves(e: Emitter, v: Val) -> tuple[Val, Val]:
    return e.resize(v, "i16"), e.resize(e.bin("lshr", v, 16), "i16")


_ONE = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}


def set_value(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """A comparison as a number: all ones for integers, 1.0 for floating point."""
    to, t = op.types
    if t.count == 2:
        element = DTYPES[t.element]
        a, b = (e.view(v, "i16") for v in e.same(*(fetch(e, x, t) for x in args[:2])))
        p = compare(e, op, a, b, element)
        if len(args) > 2:
            twice = e.select(args[2], e.const("i32", -1, args[2].n), 0)
            p = _combine(e, op, p, (a, b, e.cmp("icmp ne", e.view(e.splat(twice, a.n // 2), "i16"), 0)))
        # u32 and s32 results of two comparisons hold 16 bits for each
        d = e.select(p, e.const("i16", _ONE.get(to.element, -1), p.n), 0)
        return e.view(d, "i32")
    p = _combine(e, op, compare(e, op, args[0], args[1], t), args)
    return e.select(p, e.const(to.int, _ONE.get(to.name, -1), p.n), 0)


def selp(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    return e.select(args[2], fetch(e, args[0], op.type), fetch(e, args[1], op.type))


def slct(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """The first operand where the third is not negative (-0 is not, NaN is)."""
    to, t = op.types
    c = fetch(e, args[2], t)
    if t.kind == "f":
        c = e.cmp("fcmp oge", load(e, flush(e, c, t) if op.has("ftz") else c, t), 0.0)
    else:
        c = e.cmp("icmp sge", c, 0)
    return e.select(c, fetch(e, args[0], to), fetch(e, args[1], to))


def testp(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    t = op.type
    v = fetch(e, args[0], t)
    top, least = (0x7F800000, 0x00800000) if t.bits == 32 else (0x7FF0000000000000, 0x0010000000000000)
    v = e.bin("and", v, (1 << t.bits - 1) - 1)
    simple = {"finite": ("ult", top), "infinite": ("eq", top), "number": ("ule", top), "notanumber": ("ugt", top)}
    kind = op.mods[0]
    if kind in simple:
        name, bound = simple[kind]
        return e.cmp(f"icmp {name}", v, bound)
    # [low, low + size) by one unsigned comparison; zeros count as normal
    low, size = (least, top - least) if kind == "normal" else (1, least - 1)
    d = e.cmp("icmp ult", e.bin("sub", v, low), size)
    return e.bin("or", d, e.cmp("icmp eq", v, 0)) if kind == "normal" else d
