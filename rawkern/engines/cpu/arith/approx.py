"""The approximate instructions, with the hardware's accuracy, as a few vector operations each.

Polynomials are minimax fits; the comments give the interval and the error of the exact polynomial.
"""

from __future__ import annotations

from collections.abc import Sequence

from rawkern.engines.cpu.arith.floating import finish, fused, operands, packed, root_nan
from rawkern.engines.cpu.arith.formats import flush, is_nan, load, store
from rawkern.engines.cpu.arith.rounding import by_512_bits, directed
from rawkern.engines.cpu.arith.rows import fetch
from rawkern.engines.cpu.ir import Emitter, Val
from rawkern.engines.cpu.ptx.decode import Op

# (2^f - 1) / f on [-1/2, 1/2]; 2^f has relative error 2^-28.9
_EXP2 = (0.6931471824645996, 0.24022647738456726, 0.055503323674201965, 0.00961843691766262, 0.0013398875016719103,
         0.00015353360504377633)  # fmt: skip
# log2(1 + f) / f on [sqrt(1/2) - 1, sqrt(2) - 1]; relative error 2^-25
_LOG2 = (1.4426950216293335, -0.7213472127914429, 0.4809102714061737, -0.3607162535190582, 0.28793907165527344,
         -0.2386758029460907, 0.21521250903606415, -0.2089330554008484, 0.12926264107227325)  # fmt: skip
# sin(2 pi g) / g in powers of g^2 on [0, 1/4]; absolute error 2^-27
_SIN = (6.2831854820251465, -41.34168243408203, 81.60248565673828, -76.58142852783203, 39.76182174682617)
# tanh(x) / x as a quotient of polynomials in x^2 up to |x| = 9, where it is 1 in single precision; relative error 2^-25
_TANH_P = (0.9999999794914802, 0.13381008571068717, 0.0034955677554760673, 2.0608747698029616e-05,
           1.3354207663526856e-08)  # fmt: skip
_TANH_Q = (1.0, 0.46714324176251, 0.025876904904783612, 0.00032856014686718046, 7.776370047497773e-07)
_INF = float("inf")


def _polynomial(e: Emitter, x: Val, coefficients: Sequence[float]) -> Val:
    y = e.like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        y = _multiply_add(e, y, x, e.like(x, c))
    return y


def _multiply_add(e: Emitter, a: Val, b: Val, c: Val) -> Val:
    """a * b + c, rounded once where that is fast."""
    return e.bin("fadd", e.bin("fmul", a, b), c) if "nofma" in e.module.features else fused(e, a, b, c)


def _least(e: Emitter, x: Val, bound: float) -> Val:
    """min(x, bound) that keeps NaN: one instruction on x86."""
    return e.select(e.cmp("fcmp ogt", x, bound), e.like(x, bound), x)


def _most(e: Emitter, x: Val, bound: float) -> Val:
    return e.select(e.cmp("fcmp olt", x, bound), e.like(x, bound), x)


# -- exponential, logarithm -----------------------------------------------------------------------------
def exp2_flushed(e: Emitter, x: Val) -> Val:
    """2^x of floats; results below the normal range become 0."""
    if "avx512f" in e.module.features and x.n == 32:
        return _exp2_scaled(e, x)
    shifter = 12582912.0  # 3 * 2^22: the sum's low bits are x rounded to an integer
    t = e.bin("fadd", x, shifter)
    f = e.bin("fsub", x, e.bin("fsub", t, shifter))
    y = _multiply_add(e, _polynomial(e, f, _EXP2), f, e.like(f, 1.0))
    scale = e.bin("shl", e.cast("bitcast", t, "i32"), 23)
    y = e.cast("bitcast", e.bin("add", e.cast("bitcast", y, "i32"), scale), "float")
    y = e.select(e.cmp("fcmp uge", x, 128.0), e.bin("fmul", x, _INF), y)
    return e.select(e.cmp("fcmp olt", x, -126.0), e.like(y, 0.0), y)


def _exp2_scaled(e: Emitter, x: Val) -> Val:
    """The same, bit for bit, with AVX-512's scaling by powers of two, which takes NaN times 2^infinity for infinity."""
    whole = e.intrinsic("llvm.roundeven", "float", x)
    f = e.bin("fsub", x, whole)
    y = _multiply_add(e, _polynomial(e, f, _EXP2), f, e.like(f, 1.0))
    rest = ("<16 x float> zeroinitializer", "i16 -1", "i32 4")
    y = by_512_bits(e, "llvm.x86.avx512.mask.scalef.ps.512", (y, whole), rest)
    return e.select(e.cmp("fcmp olt", x, -126.0), e.like(y, 0.0), y)


def exp2(e: Emitter, x: Val) -> Val:
    """2^x of floats with subnormal results."""
    x = _most(e, x, -160.0)
    small = e.cmp("fcmp olt", x, -125.0)
    y = exp2_flushed(e, e.select(small, e.bin("fadd", x, 64.0), x))
    return e.bin("fmul", y, e.select(small, e.like(x, 2.0**-64), 1.0))


@packed
def ex2(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    t = op.type
    x = load(e, fetch(e, args[0], t), t)  # 2^x is 1 for subnormals, flushed or not
    # a float reaches all subnormals of f16, and bf16 only comes with .ftz
    return store(e, exp2(e, x) if t.name == "f32" and not op.has("ftz") else exp2_flushed(e, x), t)


def lg2(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    x = load(e, fetch(e, args[0], op.type), op.type)
    least = 1 << 23 if op.has("ftz") else 1  # the bits of the smallest number that is not taken for 0
    y = x
    if not op.has("ftz"):
        tiny = e.cmp("fcmp olt", x, 2.0**-126)
        y = e.select(tiny, e.bin("fmul", x, 2.0**23), x)
    bits = e.cast("bitcast", y, "i32")
    exponent = e.bin("sub", bits, 0x3F3504F3)  # the bits of sqrt(1/2)
    f = e.bin("sub", bits, e.bin("and", exponent, 0xFF800000))
    f = e.bin("fsub", e.cast("bitcast", f, "float"), 1.0)
    whole = e.cast("sitofp", e.bin("ashr", exponent, 23), "float")
    if not op.has("ftz"):
        whole = e.bin("fsub", whole, e.select(tiny, e.like(x, 23.0), 0.0))
    y = _multiply_add(e, _polynomial(e, f, _LOG2), f, whole)
    bits = e.cast("bitcast", x, "i32")
    usual = e.cmp("icmp ult", e.bin("sub", bits, least), 0x7F800000 - least)
    other = e.select(e.cmp("fcmp ogt", x, 0.0), x, e.like(x, float("nan")))
    zero = e.cmp("icmp ult", e.bin("and", bits, 0x7FFFFFFF), least)
    return e.cast("bitcast", e.select(usual, y, e.select(zero, e.like(x, -_INF), other)), "i32")


# -- sine, cosine, hyperbolic tangent -------------------------------------------------------------------
def _turns(e: Emitter, x: Val) -> Val:
    """x / 2 pi cut to single precision, less its nearest integer: the reduction the hardware makes."""
    if "avx512f" in e.module.features:
        t = directed(e, "mul", (x, e.like(x, 0.15915494309189535)), "rz")
        return e.bin("fsub", t, e.intrinsic("llvm.roundeven", "float", t))
    t = e.bin("fmul", x, 0.15915494309189535)
    rest = fused(e, x, e.like(x, 0.15915494309189535), e.fneg(t))
    bits = e.cast("bitcast", t, "i32")
    over = e.cmp("icmp slt", e.bin("xor", bits, e.cast("bitcast", rest, "i32")), 0)
    over = e.bin("and", over, e.cmp("fcmp one", rest, 0.0))
    t = e.cast("bitcast", e.select(over, e.bin("sub", bits, 1), bits), "float")
    return e.bin("fsub", t, e.intrinsic("llvm.roundeven", "float", t))


def sin_cos(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    f = _turns(e, load(e, fetch(e, args[0], op.type), op.type))
    size = e.intrinsic("llvm.fabs", "float", f)
    if op.base == "cos":
        g = e.bin("fsub", e.like(size, 0.25), size)
    else:
        folded = e.bin("fsub", e.like(size, 0.5), size)
        g = e.select(e.cmp("fcmp olt", folded, size), folded, size)
    y = e.bin("fmul", g, _polynomial(e, e.bin("fmul", g, g), _SIN))
    bits = e.cast("bitcast", y, "i32")
    if op.base == "cos":
        return bits
    bits = e.bin("or", bits, e.bin("and", e.cast("bitcast", f, "i32"), 0x80000000))
    return flush(e, bits, op.type) if op.has("ftz") else bits


@packed
def tanh(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    (x,) = operands(e, op, args)
    c = _most(e, _least(e, x, 9.0), -9.0)
    square = e.bin("fmul", c, c)
    ratio = e.bin("fdiv", _polynomial(e, square, _TANH_P), _polynomial(e, square, _TANH_Q))
    y = e.bin("fmul", c, ratio)
    return finish(e, op, _most(e, _least(e, y, 1.0), -1.0), op.type)


# -- division, roots ------------------------------------------------------------------------------------
def div(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """div.full, and div.approx, which gives 0 for divisors beyond 2^126."""
    a, b = operands(e, op, args)
    y = e.bin("fdiv", a, b)
    if op.has("approx"):
        large = e.cmp("fcmp ogt", e.intrinsic("llvm.fabs", "float", b), 2.0**126)
        zero = e.cast("bitcast", e.bin("and", e.cast("bitcast", b, "i32"), 0x80000000), "float")
        y = e.select(large, e.bin("fmul", a, zero), y)
    return finish(e, op, y, op.type)


def rcp_sqrt(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    (x,) = operands(e, op, args)
    y = _rcp_sqrt(e, op, x)
    # roots have no subnormal results
    return finish(e, op, y, op.type) if op.base == "rcp" else store(e, y, op.type)


def _rcp_sqrt(e: Emitter, op: Op, x: Val) -> Val:
    y = x if op.base == "rcp" else e.intrinsic("llvm.sqrt", x.ty, x)
    return y if op.base == "sqrt" else e.bin("fdiv", e.like(y, 1.0), y)


def _nearer_rsqrt(e: Emitter, x: Val, y: Val) -> Val:
    """One Newton step from y = 1 / sqrt(x), rounded twice; y itself where that has no meaning (0, infinity)."""
    root = e.bin("fmul", x, y)
    rest = e.intrinsic("llvm.fma", x.ty, x, y, e.fneg(root))
    error = e.bin("fsub", e.intrinsic("llvm.fma", x.ty, e.fneg(root), y, e.like(y, 1.0)), e.bin("fmul", rest, y))
    step = e.intrinsic("llvm.fma", x.ty, e.bin("fmul", y, 0.5), error, y)
    return e.select(e.cmp("fcmp ord", error, error), step, y)


def rcp_rsqrt_f64(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """rcp and rsqrt of f64: with .ftz the upper half of the bits, rounded; else the whole."""
    (x,) = operands(e, op, args)
    y = _rcp_sqrt(e, op, x)
    if op.base == "rsqrt" and not op.has("ftz"):
        y = _nearer_rsqrt(e, x, y)
    bits = finish(e, op, y, op.type)
    if not op.has("ftz"):
        return root_nan(e, x, bits)
    nan = is_nan(e, bits, op.type)
    return e.bin("and", e.select(nan, 0x7FFFFFFF << 32, e.bin("add", bits, 0x80000000)), 0xFFFFFFFF << 32)
