"""Floating-point arithmetic that PTX defines exactly, for scalar and packed formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rawkern.engines.cpu.arith.formats import FORMATS, flush, load, rectify, saturate, store
from rawkern.engines.cpu.arith.rounding import by_512_bits, directed, odd_float, odd_sum, two_sum
from rawkern.engines.cpu.arith.rows import Emit, fetch
from rawkern.engines.cpu.ir import Emitter, Val
from rawkern.engines.cpu.ptx.decode import DTYPES, DType, Op


def packed(emit: Emit) -> Emit:
    """Let `emit`, written for one element, serve packed pairs as well, as vectors of twice the length."""

    def either(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
        t = op.type
        if t.count == 1:
            return emit(e, op, args)
        parts = [e.view(v, "i16") for v in e.same(*(fetch(e, a, t) for a in args))]
        return e.view(emit(e, replace(op, types=(DTYPES[t.element],)), parts), "i32")

    return either


def operands(e: Emitter, op: Op, args: Sequence[Val]) -> list[Val]:
    """The operands as floats or doubles, subnormals flushed if the instruction says so."""
    t = op.type
    bits = [fetch(e, a, t) for a in args]
    return [load(e, flush(e, b, t) if op.has("ftz") else b, t) for b in bits]


def finish(e: Emitter, op: Op, x: Val, t: DType) -> Val:
    """Clamp, round to the format and flush, as the modifiers say; bits."""
    if op.has("sat"):
        x = saturate(e, x)
    elif op.has("relu"):
        x = rectify(e, x)
    bits = store(e, x, t)
    return flush(e, bits, t) if op.has("ftz") else bits


@packed
def add_sub_mul(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """A sum or product; f16 and bf16 go through float, which is long enough to round twice."""
    t = op.type
    a, b = operands(e, op, args)
    if op.rounding != "rn":
        return finish(e, op, directed(e, op.base, (a, b), op.rounding), t)
    if t.name == "bf16" and op.base == "mul":  # a float may be too short for small products
        a, b = (e.cast("fpext", x, "double") for x in (a, b))
        return finish(e, op, odd_float(e, e.bin("fmul", a, b), None), t)
    return finish(e, op, e.bin(f"f{op.base}", a, b), t)


@packed
def fma(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    t = op.type
    a, b, c = operands(e, op, args)
    if t.bits == 16:
        return finish(e, op, _small_fma(e, a, b, c, t), t)
    if op.rounding != "rn":
        return finish(e, op, directed(e, "fma", (a, b, c), op.rounding), t)
    return finish(e, op, fused(e, a, b, c), t)


def fused(e: Emitter, a: Val, b: Val, c: Val) -> Val:
    """a * b + c rounded once. Without FMA, floats go through double rounded to odd, doubles to libm's fma."""
    if a.ty == "double" or "nofma" not in e.module.features:
        return e.intrinsic("llvm.fma", a.ty, a, b, c)
    a, b, c = (e.cast("fpext", x, "double") for x in e.same(a, b, c))
    return e.cast("fptrunc", odd_sum(e, *two_sum(e, e.bin("fmul", a, b), c)), "float")


def _small_fma(e: Emitter, a: Val, b: Val, c: Val, t: DType) -> Val:
    """a * b + c as a float rounded to odd: the product is exact in float for f16, in double for bf16."""
    if t.name == "bf16":
        a, b, c = (e.cast("fpext", x, "double") for x in (a, b, c))
        return odd_float(e, *two_sum(e, e.bin("fmul", a, b), c))
    return odd_sum(e, *two_sum(e, e.bin("fmul", a, b), c))


def div_rcp_sqrt(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    xs = operands(e, op, args)
    if op.base == "rcp":
        xs.insert(0, e.const(xs[0].ty, 1.0))
    name = "sqrt" if op.base == "sqrt" else "div"
    if op.rounding != "rn":
        y = directed(e, name, xs, op.rounding)
    elif name == "sqrt":
        y = e.intrinsic("llvm.sqrt", xs[0].ty, xs[0])
    else:
        y = e.bin("fdiv", xs[0], xs[1])
    return finish(e, op, y, op.type)


def root(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """sqrt of f64: of negative numbers a NaN with its sign set."""
    (x,) = operands(e, op, args)
    return root_nan(e, x, div_rcp_sqrt(e, op, args))


def root_nan(e: Emitter, x: Val, bits: Val) -> Val:
    nan = FORMATS["f64"].nan
    bits = e.select(e.cmp("fcmp uno", x, x), nan, bits)
    return e.select(e.cmp("fcmp olt", x, 0.0), nan | 1 << 63, bits)


@packed
def negate_absolute(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """neg and abs; they flush with .ftz, and their NaN is canonical as that of arithmetic."""
    t = op.type
    bits = fetch(e, args[0], t)
    if op.has("ftz"):
        bits = flush(e, bits, t)
    sign = FORMATS[t.name].sign
    return e.bin("xor", bits, sign) if op.base == "neg" else e.bin("and", bits, sign - 1)


@packed
def min_max(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """min and max; of a number and a NaN the number, unless .NaN; -0 is less than +0."""
    t = op.type
    xs = operands(e, op, args)
    signs = None
    if op.has("xorsign"):
        sign = FORMATS[t.name].sign
        a, b = (fetch(e, v, t) for v in args[:2])
        signs = e.bin("and", e.bin("xor", a, b), sign)
    if op.has("abs"):
        xs = [e.intrinsic("llvm.fabs", x.ty, x) for x in xs]
    y, quiet = xs[0], args[0] in e.quiet
    for x, bits in zip(xs[1:], args[1:], strict=True):
        if "avx512f" in e.module.features and not op.has("NaN") and t.bits >= 32 and max(x.n, y.n) == 32:
            y, x = e.same(y, x)
            y, quiet = _range(e, op.base, y, x, quiet, bits in e.quiet), True
        elif op.has("NaN"):
            y = e.intrinsic(f"llvm.{op.base}imum", y.ty, y, x)
        else:
            y = _of_numbers(e, op.base, y, x)
    bits = store(e, y, t)
    return bits if signs is None else e.bin("or", bits, signs)


def _of_numbers(e: Emitter, base: str, a: Val, b: Val) -> Val:
    """minimumNumber and maximumNumber: a NaN gives way to the other operand.

    LLVM's own intrinsics for them return the NaN on x86 where they know that the second operand is none.
    """
    a, b = e.same(a, b)
    first = e.select(e.cmp("fcmp uno", a, a), b, a)
    second = e.select(e.cmp("fcmp uno", b, b), a, b)
    return e.intrinsic(f"llvm.{base}imum", a.ty, first, second)


def _range(e: Emitter, base: str, a: Val, b: Val, *quiet: bool) -> Val:
    """minimumNumber and maximumNumber by AVX-512's vrange, which takes a signaling NaN's side: so none comes to it.

    `quiet` tells of which operands that is known.
    """
    suffix, mask = ("ps", "i16 -1") if a.ty == "float" else ("pd", "i8 -1")
    name, size = f"llvm.x86.avx512.mask.range.{suffix}.512", 512 // a.bits

    def apply(x: Val, y: Val) -> Val:
        how = (f"i32 {5 if base == 'max' else 4}", f"<{size} x {a.ty}> zeroinitializer", mask, "i32 4")
        return by_512_bits(e, name, (x, y), how)

    return apply(*(x if known else apply(x, x) for x, known in zip((a, b), quiet, strict=True)))


def copy_sign(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """The second operand with the first one's sign, bit for bit."""
    sign = FORMATS[op.type.name].sign
    a, b = (fetch(e, v, op.type) for v in args)
    return e.bin("or", e.bin("and", b, sign - 1), e.bin("and", a, sign))
