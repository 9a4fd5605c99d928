"""The lowering table: one row for each instruction and group of types."""

from __future__ import annotations

from rawkern.engines.cpu.arith import approx, bits, compare, convert, floating, integer, video
from rawkern.engines.cpu.arith.rows import Row, index, row

_S = "s16 s32 s64"
_I = f"u16 u32 u64 {_S}"
_B = "b16 b32 b64"
_ALL = f"{_I} {_B} f32 f64"
_HALF = "f16 f16x2"
_BF = "bf16 bf16x2"
_COMPARE = compare.COMPARISONS
_BOOL = "and|or|xor"
_DIRECTED = "rn|rz|rm|rp"

_PACKED = (("u16x2 s16x2", ""), ("s16x2", "!relu"))
INTEGER = (
    *(row(name, _I, "", integer.add_sub) for name in ("add", "sub")),
    *(row(name, "s32", "!sat", integer.add_sub) for name in ("add", "sub")),
    row("add", "u16x2 s16x2", "", integer.add_sub),
    *(row(name, types, relu, integer.min_max) for name in ("min", "max") for types, relu in _PACKED),
    row("mul", _I, "!lo|hi", integer.mul),
    row("mul", "u16 s16 u32 s32", "!wide", integer.mul),
    row("mad", _I, "!lo|hi", integer.mad),
    row("mad", "s32", "!hi !sat", integer.mad),
    row("mad", "u16 s16 u32 s32", "!wide", integer.mad),
    row("mul24", "u32 s32", "!lo|hi", integer.mul24),
    row("mad24", "u32 s32", "!lo|hi", integer.mul24),
    row("mad24", "s32", "!hi !sat", integer.mul24),
    row("sad", _I, "", integer.sad),
    *(row(name, _I, "", integer.div_rem) for name in ("div", "rem")),
    *(row(name, _I, "", integer.min_max) for name in ("min", "max")),
    *(row(name, "s32", "!relu", integer.min_max) for name in ("min", "max")),
    row("abs", _S, "", integer.absolute),
    row("neg", _S, "", integer.negate),
)
_WIDE = "u32 s32 u64 s64"
CARRY = (
    *(row(name, _WIDE, "!cc", integer.carry) for name in ("add", "sub")),
    row("mad", _WIDE, "!lo|hi !cc", integer.carry),
    *(row(name, _WIDE, "cc", integer.carry) for name in ("addc", "subc")),
    row("madc", _WIDE, "!lo|hi cc", integer.carry),
)
BITS = (
    *(row(name, f"{_B} pred", "", bits.logic) for name in ("and", "or", "xor")),
    row("not", f"{_B} pred", "", bits.invert),
    row("cnot", _B, "", bits.cnot),
    row("mov", f"{_ALL} pred", "", bits.move),
    row("shl", _B, "", bits.shift),
    row("shr", f"{_I} {_B}", "", bits.shift),
    row("shf", "b32", "!l|r !wrap|clamp", bits.funnel),
    row("bfe", "u32 s32 u64 s64", "", bits.extract),
    row("bfi", "b32 b64", "", bits.insert),
    row("bfind", "u32 s32 u64 s64", "shiftamt", bits.find),
    row("brev", "b32 b64", "", bits.reverse),
    row("clz", "b32 b64", "", bits.leading),
    row("popc", "b32 b64", "", bits.population),
    row("prmt", "b32", "f4e|b4e|rc8|ecl|ecr|rc16", bits.permute),
    row("lop3", "b32", "", bits.lop3),
    row("lop3", "b32", "!and|or", bits.lop3_combined),
    row("szext", "u32 s32", "!clamp|wrap", bits.extend),
    row("bmsk", "b32", "!clamp|wrap", bits.mask),
    row("fns", "b32", "", bits.nth_set),
)
_ORDERED = "eq|ne|lt|le|gt|ge"
_UU = [f"{a}.{b}" for a in ("u32", "s32") for b in ("u32", "s32")]
_UUU = [f"{a}.{b}" for a in ("u32", "s32") for b in _UU]
VIDEO = (
    row("dp4a", _UU, "", video.dot),
    row("dp2a", _UU, "!lo|hi", video.dot),
    *(
        row(f"{name}{count}", _UUU, "sat|add", video.simd)
        for name in ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax")
        for count in (2, 4)
    ),
    *(row(name, _UUU, "sat add|min|max", video.scalar) for name in ("vadd", "vsub", "vabsdiff", "vmin", "vmax")),
    *(
        row(name, [t for t in _UUU if t.endswith(".u32")], "!clamp|wrap add|min|max", video.scalar)
        for name in ("vshl", "vshr")
    ),
    row("vmad", _UUU, "po sat shr7|shr15", video.multiplied),
    row("vset", _UU, f"!{_ORDERED} add|min|max", video.compared),
    *(row(f"vset{count}", _UU, f"!{_ORDERED} add", video.compared_lanes) for count in (2, 4)),
)
_SET_TYPES = [f"{a}.{b}" for a in ("u32", "s32", "f32") for b in (*_ALL.split(), "f16", "bf16")]
_SET_SMALL = [f"{a}.{b}" for b in ("f16", "bf16") for a in ("u16", "s16", b)]
_SET_SMALL += [f"f16.{b}" for b in _ALL.split()]
_SET_PAIR = [f"{a}.{b}" for b in ("f16x2", "bf16x2") for a in ("u32", "s32", b)]


def _set_rows() -> list[Row]:
    rows = []
    for t in {*_SET_TYPES, *_SET_SMALL, *_SET_PAIR}:
        kind = t.split(".")[1][0].replace("b", "f" if "bf" in t.split(".")[1] else "b")
        ftz = " ftz" if kind == "f" and not t.endswith("f64") else ""
        rows.append(row("set", t, f"!{_COMPARE[kind]}{ftz} {_BOOL}", compare.set_value))
    return rows


COMPARISON = (
    row("setp", "u16 u32 u64", f"!{_COMPARE['u']} {_BOOL}", compare.setp),
    row("setp", _S, f"!{_COMPARE['s']} {_BOOL}", compare.setp),
    row("setp", _B, f"!{_COMPARE['b']} {_BOOL}", compare.setp),
    row("setp", f"f32 f16 {_BF} f16x2", f"!{_COMPARE['f']} ftz {_BOOL}", compare.setp),
    row("setp", "f64", f"!{_COMPARE['f']} {_BOOL}", compare.setp),
    *_set_rows(),
    row("selp", f"{_ALL} pred", "", compare.selp),
    row("slct", [f"{t}.s32" for t in _ALL.split()], "", compare.slct),
    row("slct", [f"{t}.f32" for t in _ALL.split()], "ftz", compare.slct),
    row("testp", "f32 f64", "!finite|infinite|number|notanumber|normal|subnormal", compare.testp),
)
_XORSIGN = ("", " !xorsign !abs")  # both or none
_NAME3 = ("add", "sub", "mul")
FLOATING = (
    *(row(n, "f32", f"{_DIRECTED} ftz sat", floating.add_sub_mul, lazy=True) for n in _NAME3),
    *(row(n, "f64", _DIRECTED, floating.add_sub_mul, lazy=True) for n in _NAME3),
    *(row(n, _HALF, "rn ftz sat", floating.add_sub_mul, lazy=True) for n in _NAME3),
    *(row(n, _BF, "rn", floating.add_sub_mul, lazy=True) for n in _NAME3),
    *(row(n, "f32", f"!{_DIRECTED} ftz sat", floating.fma, lazy=True) for n in ("fma", "mad")),
    *(row(n, "f64", f"!{_DIRECTED}", floating.fma, lazy=True) for n in ("fma", "mad")),
    row("fma", _HALF, "!rn ftz sat|relu", floating.fma, lazy=True),
    row("fma", _BF, "!rn relu", floating.fma, lazy=True),
    *(row(n, "f32", f"!{_DIRECTED} ftz", floating.div_rcp_sqrt, lazy=True) for n in ("div", "rcp", "sqrt")),
    *(row(n, "f64", f"!{_DIRECTED}", floating.div_rcp_sqrt, lazy=True) for n in ("div", "rcp")),
    row("sqrt", "f64", f"!{_DIRECTED}", floating.root),
    *(row(n, f"f32 {_HALF}", "ftz", floating.negate_absolute, lazy=True) for n in ("neg", "abs")),
    *(row(n, f"f64 {_BF}", "", floating.negate_absolute, lazy=True) for n in ("neg", "abs")),
    *(row(n, f"f32 {_HALF}", f"ftz NaN{x}", floating.min_max, lazy=True) for n in ("min", "max") for x in _XORSIGN),
    *(row(n, _BF, f"NaN{x}", floating.min_max, lazy=True) for n in ("min", "max") for x in _XORSIGN),
    *(row(n, "f64", "", floating.min_max, lazy=True) for n in ("min", "max")),
    row("copysign", "f32 f64", "", floating.copy_sign),
)
APPROXIMATE = (
    row("div", "f32", "!full|approx ftz", approx.div, lazy=True),
    *(row(n, "f32", "!approx ftz", approx.rcp_sqrt, lazy=True) for n in ("rcp", "sqrt", "rsqrt")),
    row("rcp", "f64", "!approx !ftz", approx.rcp_rsqrt_f64),
    row("rsqrt", "f64", "!approx ftz", approx.rcp_rsqrt_f64),
    *(row(n, "f32", "!approx ftz", approx.sin_cos, lazy=True) for n in ("sin", "cos")),
    row("lg2", "f32", "!approx ftz", approx.lg2, lazy=True),
    row("ex2", "f32", "!approx ftz", approx.ex2, lazy=True),
    row("ex2", _HALF, "!approx", approx.ex2, lazy=True),
    row("ex2", _BF, "!approx !ftz", approx.ex2, lazy=True),
    row("tanh", f"f32 {_HALF} {_BF}", "!approx", approx.tanh, lazy=True),
)


def _cvt_rows() -> list[Row]:
    """Every pair of types with the modifiers that PTX gives it."""
    integers = [f"{k}{b}" for b in (8, 16, 32, 64) for k in "us"]
    reals = ("f16", "bf16", "f32", "f64")
    rows = [row("cvt", f"{a}.{b}", "sat", convert.cvt) for a in integers for b in integers]
    for a in reals:
        rest = {"bf16": "", "f32": " ftz sat"}.get(a, " sat")
        rows += [row("cvt", f"{a}.{b}", f"!{_DIRECTED}{rest}", convert.cvt) for b in integers]
    for b in reals:
        ftz = " ftz" if b == "f32" else ""
        rows += [row("cvt", f"{a}.{b}", f"!rni|rzi|rmi|rpi{ftz} sat", convert.cvt) for a in integers]
    for a in reals:
        for b in reals:
            ftz = " ftz" if "f32" in (a, b) else ""
            modes = "rni|rzi|rmi|rpi" if a == b else _DIRECTED
            needed = "!" if reals.index(a) < reals.index(b) and (a, b) != ("f16", "bf16") else ""
            relu = "|relu" if b == "f32" and a in ("f16", "bf16") else ""
            rows.append(row("cvt", f"{a}.{b}", f"{needed}{modes}{ftz} sat{relu}", convert.cvt))
    for pair in ("f16x2", "bf16x2"):
        rows.append(row("cvt", f"{pair}.f32", "!rn|rz relu satfinite", convert.cvt))
        rows.append(row("cvt", f"{pair[:-2]}.f32", "!rn|rz relu !satfinite", convert.cvt))
    for pair in ("e4m3x2", "e5m2x2"):
        rows += [row("cvt", f"{pair}.{b}", "!rn !satfinite relu", convert.cvt) for b in ("f32", "f16x2")]
        rows.append(row("cvt", f"f16x2.{pair}", "!rn relu", convert.cvt))
    rows.append(row("cvt", "tf32.f32", "!rna satfinite", convert.cvt))
    rows.append(row("cvt", "tf32.f32", "!rn|rz relu satfinite", convert.cvt))
    rows.append(row("cvt", ["u16.s32", "s16.s32"], "!pack !sat", convert.cvt_pack))
    small = [f"{kind}{bits}.s32.b32" for bits in (8, 4, 2) for kind in "us"]
    rows.append(row("cvt", small, "!pack !sat", convert.cvt_pack))
    return rows


TABLE = index((*INTEGER, *CARRY, *BITS, *VIDEO, *COMPARISON, *FLOATING, *APPROXIMATE, *_cvt_rows()))
BASES = frozenset(base for base, _ in TABLE)
