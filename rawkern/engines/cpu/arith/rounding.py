"""Rounding other than to nearest: from an exact sum to a format, and directed arithmetic.

A value between two formats is kept as ``s + error``: `s` a double to nearest, `error` what is missing (only its
sign matters once ``s`` is subtracted from). The result is rounded to nearest and then moved by one ulp where that
went the wrong way. Rounding to odd keeps enough to round once more, to a format two bits shorter, correctly.
"""

from __future__ import annotations

from collections.abc import Sequence

from rawkern.engines.cpu.arith.formats import from_half, to_half
from rawkern.engines.cpu.ir import Emitter, Module, Val, llvm_type
from rawkern.engines.cpu.ptx.decode import DType


def two_sum(e: Emitter, a: Val, b: Val) -> tuple[Val, Val]:
    """The rounded sum and its exact error (Knuth); both operands may have any order of size."""
    s = e.bin("fadd", a, b)
    part = e.bin("fsub", s, a)
    error = e.bin("fadd", e.bin("fsub", a, e.bin("fsub", s, part)), e.bin("fsub", b, part))
    return s, error


def _toward(e: Emitter, bits: Val) -> Val:
    """-1 for negative values, 1 for the others: what to add to the bits to go up by one ulp."""
    return e.bin("or", e.bin("ashr", bits, bits.bits - 1), 1)


def step(e: Emitter, r: Val, rest: Val, mode: str) -> Val:
    """Correct `r`, rounded to nearest, given the sign of what the exact value has beyond it; bits."""
    bits = e.cast("bitcast", r, f"i{r.bits}")
    if mode == "rn":
        return bits
    if mode == "rm":
        return e.select(e.cmp("fcmp olt", rest, 0.0), e.bin("sub", bits, _toward(e, bits)), bits)
    if mode == "rp":
        return e.select(e.cmp("fcmp ogt", rest, 0.0), e.bin("add", bits, _toward(e, bits)), bits)
    negative = e.cmp("icmp slt", bits, 0)
    if mode == "rz":
        over = e.select(negative, e.cmp("fcmp ogt", rest, 0.0), e.cmp("fcmp olt", rest, 0.0))
        return e.bin("sub", bits, e.resize(over, bits.ty))
    # odd: an even result next to the exact value gives way to its odd neighbor on that side
    further = e.bin("xor", negative, e.cmp("fcmp ogt", rest, 0.0))
    move = e.select(further, e.like(bits, 1), e.like(bits, -1))
    even = e.cmp("icmp eq", e.bin("and", bits, 1), 0)
    inexact = e.cmp("fcmp one", rest, 0.0)
    return e.select(e.bin("and", even, inexact), e.bin("add", bits, move), bits)


def odd_sum(e: Emitter, s: Val, error: Val) -> Val:
    """The sum `s` + `error` rounded to odd; `error` is what `s`, to nearest, lacks."""
    ty = f"i{s.bits}"
    bits = e.cast("bitcast", s, ty)
    inexact = e.cmp("fcmp one", error, 0.0)
    # where the error points toward zero, the next smaller magnitude is the odd one
    inward = e.cmp("icmp slt", e.bin("xor", bits, e.cast("bitcast", error, ty)), 0)
    odd = e.bin("or", e.bin("sub", bits, e.resize(inward, ty)), 1)
    even = e.cmp("icmp eq", e.bin("and", bits, 1), 0)
    return e.cast("bitcast", e.select(e.bin("and", inexact, even), odd, bits), s.ty)


def narrow(e: Emitter, s: Val, error: Val | None, mode: str) -> Val:
    """Round the double `s` + `error` to float, giving bits; mode "odd" is there too."""
    r = e.cast("fptrunc", s, "float")
    if mode == "rn" and error is None:
        return e.cast("bitcast", r, "i32")
    rest = e.bin("fsub", s, e.cast("fpext", r, "double"))
    if error is not None:
        rest = e.bin("fadd", rest, error)
    return step(e, r, rest, mode)


def odd_float(e: Emitter, s: Val, error: Val | None) -> Val:
    """The double `s` + `error` as a float rounded to odd."""
    return e.cast("bitcast", narrow(e, s, error, "odd"), "float")


def to_small(e: Emitter, x: Val, t: DType, mode: str) -> Val:
    """Round a float (to odd, if it is a rounded one) to f16 or bf16 bits in any mode; NaN stays NaN."""
    if t.name == "f16":
        half = to_half(e, x)
        return step(e, half, e.bin("fsub", x, from_half(e, half)), mode)
    bits = e.cast("bitcast", x, "i32")
    if mode != "rz":
        away = e.bin("ashr", bits, 31) if mode == "rm" else e.invert(e.bin("ashr", bits, 31))
        bits = e.bin("add", bits, e.bin("and", away, 0xFFFF))
    cut = e.select(e.cmp("fcmp uno", x, x), 0x7FFF, e.bin("lshr", bits, 16))
    return e.resize(cut, "i16")


# -- directed arithmetic ------------------------------------------------------------------------------
def directed(e: Emitter, name: str, args: Sequence[Val], mode: str) -> Val:
    """add, sub, mul, fma, div or sqrt in mode rz, rm or rp, on floats or doubles."""
    args = e.same(*args)
    if "avx512f" in e.module.features and args[0].n in (1, 32):
        return _embedded(e, name, args, mode)
    if args[0].ty == "double":
        return _helper(e, name, args, mode)
    if name == "fma" and "nofma" not in e.module.features:
        return _fma(e, args, mode)
    return _through_double(e, name, args, mode)


def _fma(e: Emitter, args: Sequence[Val], mode: str) -> Val:
    """fma on floats: where the product is small beside the addend, as in exp, an fma tells what the result lacks."""
    a = args[0]
    kind = f"fma_{mode}_float_{a.n}"
    params = ", ".join(f"{a.t} %{name}" for name in "abc")
    x, y, z = (Val(f"%{name}", "float", a.n) for name in "abc")

    def any_size(module: Module) -> str:
        inner = Emitter(module)
        found = _through_double(inner, "fma", (x, y, z), mode)
        body = "\n".join([*inner.lines, f"ret {found}"])
        return f"define internal {a.t} @rawkern_{kind}_any({params}) noinline {{\n{body}\n}}"

    def build(module: Module) -> str:
        inner = Emitter(module)
        near, found = _near_addend(inner, x, y, z, mode)
        inner.line(f"br {near}, label %near, label %any")
        inner.label("any")
        other = inner.call(module.helper(f"rawkern_{kind}_any", any_size), "float", a.n, x, y, z)
        inner.line(f"ret {other}")
        inner.label("near")
        inner.line(f"ret {found}")
        body = "\n".join(inner.lines)
        return f"define internal {a.t} @rawkern_{kind}({params}) alwaysinline {{\n{body}\n}}"

    return e.call(e.module.helper(f"rawkern_{kind}", build), "float", a.n, *args)


def _near_addend(e: Emitter, a: Val, b: Val, c: Val, mode: str) -> tuple[Val, Val]:
    """Whether all results lie within a quarter of their addends, and then what they are.

    The difference of addend and result is exact there, so a second fma has the sign of what the result lacks. Where the
    difference is 0 that is the sign of the product, be it too small for a float; -0 stands for less than 0. Other sums
    are multiples of the least float, as addends of 2^-60 and more are taken alone.
    """
    r = e.intrinsic("llvm.fma", "float", a, b, c)
    bits = e.cast("bitcast", r, "i32")
    if mode != "rm":  # rp is rm of the negative, rz is rm of the absolute value
        flip = e.like(bits, 0x80000000) if mode == "rp" else e.bin("and", bits, 0x80000000)
        bits = e.bin("xor", bits, flip)
        a, c = (e.cast("bitcast", e.bin("xor", e.cast("bitcast", x, "i32"), flip), "float") for x in (a, c))
        r = e.cast("bitcast", bits, "float")
    missing = e.bin("fsub", c, r)
    rest = e.cast("bitcast", e.intrinsic("llvm.fma", "float", a, b, missing), "i32")
    size = e.intrinsic("llvm.fabs", "float", c)
    near = e.cmp("fcmp ole", e.intrinsic("llvm.fabs", "float", missing), e.bin("fmul", size, 0.25))
    near = e.bin("and", near, e.cmp("fcmp oge", size, 2.0**-60))
    found = e.bin("sub", bits, e.bin("and", e.bin("ashr", rest, 31), _toward(e, bits)))
    if mode != "rm":
        found = e.bin("xor", found, flip)
    if near.n > 1:
        name = f"llvm.vector.reduce.and.v{near.n}i1"
        e.module.declare(name, f"declare i1 @{name}({near.t})")
        near = e.let("i1", 1, f"call i1 @{name}({near})")
    return near, e.cast("bitcast", found, "float")


def _through_double(e: Emitter, name: str, args: Sequence[Val], mode: str) -> Val:
    """Arithmetic on floats in doubles, which are long enough for the result and the sign of what it lacks."""
    if name == "sub":
        name, args = "add", (args[0], e.fneg(args[1]))
    wide = [e.cast("fpext", a, "double") for a in args]
    if name in ("add", "fma"):
        a = wide[0] if name == "add" else e.bin("fmul", wide[0], wide[1])
        s, error = two_sum(e, a, wide[-1])
        bits = narrow(e, s, error, mode)
        if mode == "rm":  # a sum that cancels is -0, unless both terms are +0
            signs = e.bin("or", e.cast("bitcast", a, "i64"), e.cast("bitcast", wide[-1], "i64"))
            zero = e.resize(e.bin("lshr", signs, 32), "i32")
            bits = e.select(e.cmp("fcmp oeq", s, 0.0), e.bin("and", zero, 0x80000000), bits)
        return e.cast("bitcast", bits, "float")
    # a quotient or root of two floats that is not a float is further from any float than a double's rounding moves it
    exact = e.intrinsic("llvm.sqrt", "double", *wide) if name == "sqrt" else e.bin(f"f{name}", *wide)
    return e.cast("bitcast", narrow(e, exact, None, mode), "float")


_X86_MODE = {"rm": 9, "rp": 10, "rz": 11}


def _embedded(e: Emitter, name: str, args: Sequence[Val], mode: str) -> Val:
    """AVX-512 instructions that carry their rounding mode."""
    full = f"llvm.x86.avx512.{'vfmadd' if name == 'fma' else name}.{'ps' if args[0].ty == 'float' else 'pd'}.512"
    return by_512_bits(e, full, args, (f"i32 {_X86_MODE[mode]}",))


def by_512_bits(e: Emitter, name: str, args: Sequence[Val], rest: Sequence[str] = ()) -> Val:
    """Call an intrinsic of AVX-512 on 512 bits at a time; `rest` are further arguments, the same for all."""
    ty, n = args[0].ty, args[0].n
    size = 512 // args[0].bits
    vector = llvm_type(ty, size)
    types = [vector] * len(args) + [text.rsplit(" ", 1)[0] for text in rest]
    e.module.declare(name, f"declare {vector} @{name}({', '.join(types)})")
    parts = []
    for at in range(0, n, size):
        cut = [e.splat(a, size) if n == 1 else e.shuffle(a, range(at, at + size)) for a in args]
        parts.append(e.let(ty, size, f"call {vector} @{name}({', '.join([*map(str, cut), *rest])})"))
    if n == 1:
        return e.let(ty, 1, f"extractelement {parts[0]}, i64 0")
    return e.concat(parts)


_SET_ROUNDING = {"rz": 0, "rp": 2, "rm": 3}


def _helper(e: Emitter, name: str, args: Sequence[Val], mode: str) -> Val:
    """A function that switches the processor's rounding mode around one instruction."""
    a = args[0]
    function = f"rawkern_{name}_{mode}_{a.ty}_{a.n}"

    def build(module: Module) -> str:
        names = [f"{a.t} %x{i}" for i in range(len(args))]
        lanes = f"v{a.n}f64" if a.n > 1 else "f64"
        intrinsic = f"llvm.experimental.constrained.{name if name in ('fma', 'sqrt') else 'f' + name}.{lanes}"
        module.declare(intrinsic, f"declare {a.t} @{intrinsic}({', '.join([a.t] * len(args))}, metadata, metadata)")
        module.declare("llvm.set.rounding", "declare void @llvm.set.rounding(i32)")
        how = 'metadata !"round.dynamic", metadata !"fpexcept.strict"'
        return "\n".join(
            [
                f"define internal {a.t} @{function}({', '.join(names)}) noinline strictfp {{",
                f"call void @llvm.set.rounding(i32 {_SET_ROUNDING[mode]}) strictfp",
                f"%r = call {a.t} @{intrinsic}({', '.join(names)}, {how}) strictfp",
                "call void @llvm.set.rounding(i32 1) strictfp",
                f"ret {a.t} %r\n}}",
            ]
        )

    return e.call(e.module.helper(function, build), a.ty, a.n, *args)
