"""Integer arithmetic: add to rem, 24-bit and wide products, carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rawkern.engines.cpu.arith.rows import Result, fetch
from rawkern.engines.cpu.ir import Emitter, Module, Val
from rawkern.engines.cpu.ptx.decode import DTYPES, DType, Op


def limits(t: DType) -> tuple[int, int]:
    """The least and greatest value of an integer type."""
    return (-(1 << t.bits - 1), (1 << t.bits - 1) - 1) if t.signed else (0, (1 << t.bits) - 1)


def high_product(e: Emitter, a: Val, b: Val, signed: bool) -> Val:
    """The upper half of the double-width product."""
    wide = f"i{2 * a.bits}"
    a, b = e.same(a, b)
    # hidden for the reason that `Emitter.product` gives
    product = e.bin("mul", e.resize(e.hidden(a), wide, signed), e.resize(b, wide, signed))
    return e.cast("trunc", e.bin("lshr", product, a.bits), a.ty)


def wide_product(e: Emitter, a: Val, b: Val, signed: bool) -> Val:
    wide = f"i{2 * a.bits}"
    return e.product(e.resize(a, wide, signed), e.resize(b, wide, signed))


def _product(e: Emitter, op: Op, a: Val, b: Val) -> Val:
    if op.has("lo"):
        return e.product(a, b)
    return (high_product if op.has("hi") else wide_product)(e, a, b, op.type.signed)


def saturating(e: Emitter, name: str, a: Val, b: Val, signed: bool) -> Val:
    return e.intrinsic(f"llvm.{'s' if signed else 'u'}{name}.sat", a.ty, a, b)


def _packed(e: Emitter, op: Op, args: Sequence[Val], emit: Callable[[Emitter, Op, Sequence[Val]], Val]) -> Val:
    """An operation on each half of packed operands."""
    t = DTYPES[op.type.element]
    half = replace(op, types=(t,))
    whole = emit(e, half, [e.view(fetch(e, v, op.type), t.int) for v in args])
    return e.view(whole, op.type.int)


def _pair(e: Emitter, op: Op, args: Sequence[Val]) -> tuple[Val, Val]:
    return fetch(e, args[0], op.type), fetch(e, args[1], op.type)


def add_sub(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    if op.type.count > 1:
        return _packed(e, op, args, add_sub)
    a, b = _pair(e, op, args)
    if op.has("sat"):
        return saturating(e, op.base, a, b, op.type.signed)
    return e.bin(op.base, a, b)


def mul(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    return _product(e, op, *_pair(e, op, args))


def mad(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    product = _product(e, op, *_pair(e, op, args))
    c = e.resize(args[2], product.ty, op.type.signed)
    return saturating(e, "add", product, c, True) if op.has("sat") else e.bin("add", product, c)


def mul24(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """Products of the operands' low 24 bits; .hi gives bits 47 to 16."""
    shift = "ashr" if op.type.signed else "lshr"
    a, b = (e.bin(shift, e.bin("shl", x, 8), 8) for x in _pair(e, op, args))
    if op.has("lo"):
        d = e.product(a, b)
    else:
        d = e.cast("trunc", e.bin("lshr", wide_product(e, a, b, op.type.signed), 16), "i32")
    if op.base == "mul24":
        return d
    c = fetch(e, args[2], op.type)
    return saturating(e, "add", d, c, True) if op.has("sat") else e.bin("add", d, c)


def difference(e: Emitter, a: Val, b: Val, signed: bool) -> Val:
    """The absolute difference, modulo the width."""
    kind = "s" if signed else "u"
    return e.bin("sub", e.intrinsic(f"llvm.{kind}max", a.ty, a, b), e.intrinsic(f"llvm.{kind}min", a.ty, a, b))


def sad(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    return e.bin("add", difference(e, *_pair(e, op, args), op.type.signed), fetch(e, args[2], op.type))


def min_max(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    if op.type.count > 1:
        return _packed(e, op, args, min_max)
    a, b = _pair(e, op, args)
    d = e.intrinsic(f"llvm.{'s' if op.type.signed else 'u'}{op.base}", a.ty, a, b)
    return e.intrinsic("llvm.smax", a.ty, d, e.like(d, 0)) if op.has("relu") else d


def absolute(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    a = fetch(e, args[0], op.type)
    return e.intrinsic("llvm.abs", a.ty, a, extra=", i1 false")


def negate(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    return e.neg(fetch(e, args[0], op.type))


# -- division ---------------------------------------------------------------------------------------
def div_rem(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """Quotient or remainder, both all ones where the divisor is 0, as the hardware gives; nothing traps."""
    t = op.type
    a, b = _pair(e, op, args)
    a, b = e.same(a, b)
    quotient = _quotient_by_float(e, a, b, t) if t.bits < 64 and a.n > 1 else _quotient(e, a, b, t.signed)
    d = quotient if op.base == "div" else e.bin("sub", a, e.bin("mul", quotient, b))
    return e.select(e.cmp("icmp eq", b, 0), -1, d)


def _quotient_by_float(e: Emitter, a: Val, b: Val, t: DType) -> Val:
    """Quotient through floating point, which has vector instructions.

    A quotient that is not an integer is further below the next integer than half an ulp, so truncation is exact.
    """
    real = "float" if t.bits == 16 else "double"
    to, back = ("sitofp", "fptosi") if t.signed else ("uitofp", "fptoui")
    q = e.cast(back, e.bin("fdiv", e.cast(to, a, real), e.cast(to, b, real)), a.ty)
    if t.signed:  # the least value by -1 is out of the conversion's range
        q = e.select(e.cmp("icmp eq", b, -1), e.neg(a), q)
    return e.select(e.cmp("icmp eq", b, 0), 0, q)


def _quotient(e: Emitter, a: Val, b: Val, signed: bool) -> Val:
    if a.n == 1:
        return _guarded_quotient(e, a, b, signed)
    name = f"rawkern_{'s' if signed else 'u'}div_{a.ty}_{a.n}"

    def build(module: Module) -> str:
        inner = Emitter(module)
        q = _guarded_quotient(inner, Val("%a", a.ty, a.n), Val("%b", a.ty, a.n), signed)
        body = "\n".join(inner.lines)
        return f"define internal {a.t} @{name}({a.t} %a, {a.t} %b) noinline {{\n{body}\nret {q}\n}}"

    return e.call(e.module.helper(name, build), a.ty, a.n, a, b)


def _guarded_quotient(e: Emitter, a: Val, b: Val, signed: bool) -> Val:
    if not signed:
        return e.bin("udiv", a, e.select(e.cmp("icmp eq", b, 0), 1, b))
    # b + 1 <= 1 unsigned: b is -1 or 0
    special = e.cmp("icmp ule", e.bin("add", b, 1), 1)
    q = e.bin("sdiv", a, e.select(special, 1, b))
    return e.select(e.cmp("icmp eq", b, -1), e.neg(a), q)


# -- carries ----------------------------------------------------------------------------------------
def carry(e: Emitter, op: Op, args: Sequence[Val]) -> Result:
    """add, sub, mad with .cc and addc, subc, madc, of which the flag is the last operand; .cc gives a second result.

    The flag is the adder's carry, and a - b is a + ~b + 1: after a subtraction it says that nothing was borrowed.
    """
    base, takes = op.base[:3], op.base.endswith("c")
    a, b = _pair(e, op, args)
    if base == "mad":
        a, b, base = _product(e, op, a, b), fetch(e, args[2], op.type), "add"
    d, flag = _with_carry(e, base, a, b)
    if takes:
        given = args[-1] if base == "add" else e.invert(args[-1])
        d, again = _with_carry(e, base, d, e.resize(given, a.ty))
        flag = e.bin("or" if base == "add" else "and", flag, again)
    return Result((d, flag) if op.has("cc") else (d,), None, op.type.signed)


def _with_carry(e: Emitter, base: str, a: Val, b: Val) -> tuple[Val, Val]:
    d = e.bin(base, a, b)
    return d, e.cmp("icmp ult", d, a) if base == "add" else e.cmp("icmp uge", a, b)


def clamp(e: Emitter, v: Val, source: DType, to: DType) -> Val:
    """Cut the integer `v` of type `source` to the range of `to`; the width stays."""
    low, high = limits(to)
    least, most = limits(source)
    kind = "s" if source.signed else "u"
    if low > least:
        v = e.intrinsic("llvm.smax", v.ty, v, e.like(v, low))
    if high < most:
        v = e.intrinsic(f"llvm.{kind}min", v.ty, v, e.like(v, high))
    return v
