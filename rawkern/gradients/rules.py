"""The table of mathematical functions: what each is called for float and double, and its derivatives.

A derivative is C in which ``{a}``, ``{b}``, ``{c}`` stand for the arguments, ``{r}`` for the result, and ``f_NAME`` for
a function of the same table in the type at hand. Numbers stand without suffix as ``#0.5#``. None: an argument that has
no derivative of its own (it is constant almost everywhere). With ``{g}``, what the result gets, it is what the argument
gets: so is one that is 0 under a condition, because 0 times an infinite slope is not 0. Where two arguments meet in a
maximum, each gets half, as in torch; a bound that has no gradient leaves 0 to what equals it, as relu does. A NaN is no
maximum: the other argument is.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A function: its derivative by each argument; the arguments that it has."""

    name: str  # for double; for float with an f behind, unless `single` says otherwise
    derivatives: tuple[str | None, ...]
    whole: int | None = None  # the argument that is an int


_LN2, _LN10, _TWO_OVER_ROOT_PI = "0.69314718055994530942", "2.30258509299404568402", "1.12837916709551257390"
_PI, _ROOT_HALF_PI = "3.14159265358979323846", "0.39894228040143267794"
_FIRST = "({a} %s {b}{or_b_is_nan} ? {g} : {a} == {b} ? #0.5# * {g} : #0#)"
_SECOND = "({b} %s {a}{or_a_is_nan} ? {g} : {a} == {b} ? #0.5# * {g} : #0#)"
_ANGLE = "({a} == #0# && {b} == #0# ? #0# : {g} * %s / ({a} * {a} + {b} * {b}))"

RULES: dict[str, Rule] = {
    name: Rule(name, tuple(derivatives))
    for name, *derivatives in (
        ("exp", "{r}"),
        ("exp2", f"{{r}} * #{_LN2}#"),
        ("exp10", f"{{r}} * #{_LN10}#"),
        ("expm1", "({r} + #1#)"),
        ("log", "#1# / {a}"),
        ("log2", f"#1# / ({{a}} * #{_LN2}#)"),
        ("log10", f"#1# / ({{a}} * #{_LN10}#)"),
        ("log1p", "#1# / (#1# + {a})"),
        ("sqrt", "#0.5# / {r}"),
        ("rsqrt", "#-0.5# * {r} * {r} * {r}"),
        ("cbrt", "#1# / (#3# * {r} * {r})"),
        ("rcbrt", "-{r} / (#3# * {a})"),
        ("sin", "f_cos({a})"),
        ("cos", "-f_sin({a})"),
        ("tan", "(#1# + {r} * {r})"),
        ("sinpi", f"#{_PI}# * f_cospi({{a}})"),
        ("cospi", f"#-{_PI}# * f_sinpi({{a}})"),
        ("asin", "f_rsqrt((#1# - {a}) * (#1# + {a}))"),
        ("acos", "-f_rsqrt((#1# - {a}) * (#1# + {a}))"),
        ("atan", "#1# / (#1# + {a} * {a})"),
        ("sinh", "f_cosh({a})"),
        ("cosh", "f_sinh({a})"),
        ("tanh", "(#1# - {r} * {r})"),
        ("asinh", "f_rsqrt(#1# + {a} * {a})"),
        ("acosh", "f_rsqrt(({a} - #1#) * ({a} + #1#))"),
        ("atanh", "#1# / ((#1# - {a}) * (#1# + {a}))"),
        ("erf", f"#{_TWO_OVER_ROOT_PI}# * f_exp(-{{a}} * {{a}})"),
        ("erfc", f"#-{_TWO_OVER_ROOT_PI}# * f_exp(-{{a}} * {{a}})"),
        ("erfcx", f"(#2# * {{a}} * {{r}} - #{_TWO_OVER_ROOT_PI}#)"),
        ("erfinv", f"f_exp({{r}} * {{r}}) / #{_TWO_OVER_ROOT_PI}#"),
        ("erfcinv", f"-f_exp({{r}} * {{r}}) / #{_TWO_OVER_ROOT_PI}#"),
        ("normcdf", f"#{_ROOT_HALF_PI}# * f_exp(#-0.5# * {{a}} * {{a}})"),
        ("normcdfinv", f"f_exp(#0.5# * {{r}} * {{r}}) / #{_ROOT_HALF_PI}#"),
        ("j0", "-f_j1({a})"),
        ("y0", "-f_y1({a})"),
        ("j1", "({a} == #0# ? #0.5# : f_j0({a}) - {r} / {a})"),
        ("y1", "(f_y0({a}) - {r} / {a})"),
        ("fabs", "({a} > #0# ? {g} : {a} < #0# ? -{g} : #0#)"),
        ("pow", "({b} == #0# ? #0# : {g} * {b} * f_pow({a}, {b} - #1#))",
         "({a} == #0# && {b} >= #0# ? #0# : {g} * {r} * f_log({a}))"),
        ("atan2", _ANGLE % "{b}", _ANGLE % "-{a}"),
        ("hypot", "{a} / {r}", "{b} / {r}"),
        ("rhypot", "-{a} * {r} * {r} * {r}", "-{b} * {r} * {r} * {r}"),
        ("fmod", "#1#", "-f_rint(({a} - {r}) / {b})"),
        ("fmax", _FIRST % ">", _SECOND % ">"),
        ("fmin", _FIRST % "<", _SECOND % "<"),
        ("fdim", "({a} > {b} ? {g} : #0#)", "({a} > {b} ? -{g} : #0#)"),
        ("fma", "{b}", "{a}", "#1#"),
        ("copysign", "({a} == #0# ? #0# : signbit({a}) == signbit({b}) ? {g} : -{g})", None),
        ("remainder", "#1#", "-f_rint(({a} - {r}) / {b})"),
        ("norm3d", "{a} / {r}", "{b} / {r}", "{c} / {r}"),
        ("norm4d", "{a} / {r}", "{b} / {r}", "{c} / {r}", "{d} / {r}"),
        ("rnorm3d", *(f"-{{{x}}} * {{r}} * {{r}} * {{r}}" for x in "abc")),
        ("rnorm4d", *(f"-{{{x}}} * {{r}} * {{r}} * {{r}}" for x in "abcd")),
        ("tgamma", "{r} * digamma({a})"),
        ("lgamma", "digamma({a})"),
        ("cyl_bessel_i0", "f_cyl_bessel_i1({a})"),
        ("cyl_bessel_i1", "({a} == #0# ? #0.5# : f_cyl_bessel_i0({a}) - {r} / {a})"),
        ("jn", None, "({b} == #0# ? ({a} == 1 ? #0.5# : #0#) : {a} / {b} * {r} - f_jn({a} + 1, {b}))"),
        ("yn", None, "({a} / {b} * {r} - f_yn({a} + 1, {b}))"),
        ("ldexp", "f_ldexp(#1#, {b})", None),
        ("scalbn", "f_ldexp(#1#, {b})", None),
        ("logb", None),
        ("floor", None), ("ceil", None), ("trunc", None), ("rint", None), ("round", None), ("nearbyint", None),
        ("__saturatef", "({a} > #0# && {a} < #1# ? {g} : #0#)"),
        ("__fdividef", "#1# / {b}", "-{r} / {b}"),
    )
}  # fmt: skip
for _name, _which in (("jn", 0), ("yn", 0), ("ldexp", 1), ("scalbn", 1)):
    RULES[_name] = Rule(_name, RULES[_name].derivatives, _which)

#: Intrinsics that say how they round: those of float by those of double.
_ROUNDED = {
    f"__{single}_{mode}": f"__{double}_{mode}"
    for single, double in (("fadd", "dadd"), ("fsub", "dsub"), ("fmul", "dmul"), ("fdiv", "ddiv"), ("frcp", "drcp"),
                           ("fsqrt", "dsqrt"), ("fmaf", "fma"))
    for mode in ("rn", "rz", "ru", "rd")
}  # fmt: skip
_LIKE = {
    "add": ("#1#", "#1#"), "sub": ("#1#", "#-1#"), "mul": ("{b}", "{a}"), "div": ("#1# / {b}", "-{r} / {b}"),
    "rcp": ("-{r} * {r}",), "sqrt": ("#0.5# / {r}",), "maf": ("{b}", "{a}", "#1#"), "ma": ("{b}", "{a}", "#1#"),
}  # fmt: skip
for _pair in _ROUNDED.items():
    for _name in _pair:
        RULES[_name] = Rule(_name, _LIKE[_name[3:].partition("_")[0]])

#: Fast and other names of the functions above, for float; they are kept in the text.
ALIASES = {
    "__expf": "exp", "__exp10f": "exp10", "__logf": "log", "__log2f": "log2", "__log10f": "log10", "__sinf": "sin",
    "__cosf": "cos", "__tanf": "tan", "__powf": "pow", "__frsqrt_rn": "rsqrt",
    "__fmaf_rn": "fma", "fdividef": "__fdividef", "abs": "fabs", "max": "fmax", "min": "fmin", "fmaxf": "fmax",
}  # fmt: skip

#: What values of half-precision types are rounded by: device functions of the derived text, nothing in double.
ROUNDINGS = {kind: Rule(name, ("#1#",)) for kind, name in (("__half", "to_half"), ("__nv_bfloat16", "to_bfloat16"))}

#: Functions of a float whose result has no derivative, with the type of that.
TESTS = {"isnan": "bool", "isinf": "bool", "isfinite": "bool", "signbit": "bool", "__float2int_rd": "int",
         "__float2int_rn": "int", "__float2int_rz": "int", "__float2int_ru": "int",
         "ilogb": "int", "ilogbf": "int", "lrint": "long long", "lrintf": "long long", "llrint": "long long",
         "llrintf": "long long", "lround": "long long", "lroundf": "long long", "llround": "long long",
         "llroundf": "long long", "__popc": "int", "__popcll": "int", "__clz": "int", "__clzll": "int",
         "__ffs": "int", "__ffsll": "int", "__brev": "unsigned int",
         **{f"__float2uint_{m}": "unsigned int" for m in ("rn", "rz", "ru", "rd")},
         **{f"__double2int_{m}": "int" for m in ("rn", "rz", "ru", "rd")},
         **{f"__{a}2float_rn": "float" for a in ("int", "uint", "ll", "ull")},
         **{f"__{a}2double_rn": "double" for a in ("int", "uint", "ll", "ull")}}  # fmt: skip
#: Functions that write a sine and a cosine.
BOTH = {
    "sincos": ("sin", "cos"), "sincosf": ("sinf", "cosf"), "__sincosf": ("__sinf", "__cosf"),
    "sincospi": ("sinpi", "cospi"), "sincospif": ("sinpif", "cospif"),
}  # fmt: skip
#: Functions of two integers.
PAIRS = {"__mul24": "int", "__umul24": "unsigned int", "__mulhi": "int", "__umulhi": "unsigned int"}

#: Functions of float alone: device functions for the text in double.
_SINGLE = {"__saturatef": "saturated", "__fdividef": "divided", **_ROUNDED}
_BOUNDS = {
    name: (f"({{a}} {sign} {{b}}{{or_b_is_nan}} ? {{g}} : #0#)", f"({{b}} {sign} {{a}}{{or_a_is_nan}} ? {{g}} : #0#)")
    for name, sign in (("fmax", ">"), ("fmin", "<"))
}


def rule_of(name: str) -> tuple[Rule, str | None] | None:
    """The rule of a function, and the type that its name settles; None for a function that has none."""
    if name in ALIASES:
        return RULES[ALIASES[name]], None if name in ("abs", "max", "min") else "float"
    if name in RULES:
        double = name in _ROUNDED.values()
        return RULES[name], "double" if double else "float" if name.startswith("__") else None
    if name.endswith("f") and name[:-1] in RULES and not name.startswith("__"):
        return RULES[name[:-1]], "float"
    return None


def spelled(rule: Rule, kind: str) -> str:
    """The function's name for a type."""
    if rule in ROUNDINGS.values():
        return "" if kind == "double" else rule.name
    if rule.name in _SINGLE and kind == "double":
        return _SINGLE[rule.name]
    return rule.name if kind == "double" or rule.name.startswith("__") else f"{rule.name}f"


def derivative(
    rule: Rule, which: int, kind: str, args: list[str], result: str, given: str, alike: list[bool]
) -> str | None:
    """C for what an argument gets where the result gets `given`; None where it has no derivative.

    `alike`: which arguments depend on anything that can have a gradient.
    """
    text = rule.derivatives[which]
    if rule.name in _BOUNDS and not all(alike):
        text = _BOUNDS[rule.name][which]
    if text is None:
        return None
    text = re.sub(r"\bf_(\w+)", lambda m: spelled(RULES[m[1]], kind), text)
    text = re.sub(r"#(-?[\d.]+)#", lambda m: number(float(m[1]) if len(m[1]) < 9 else m[1], kind), text)
    by_name = dict(zip("abcd", args, strict=False))
    tests = {f"or_{n}_is_nan": "" if _LITERAL.fullmatch(a) else f" || isnan({a})" for n, a in by_name.items()}
    found = text.format(**by_name, **tests, r=result, g=given)
    one = number(1.0, kind)
    if "{g}" in text:
        return found
    if found == one:
        return given
    return f"{given} / {found.removeprefix(one + ' / ')}" if found.startswith(f"{one} / ") else f"{given} * {found}"


_LITERAL = re.compile(r"(\((float|double)\))?-?(\d[\w.+-]*|\.\d+f?|INFINITY)")


def number(value: float | str, kind: str) -> str:
    """A literal of a type."""
    text = value if isinstance(value, str) else f"{value:.17g}"
    text = text if any(c in text for c in ".en") else f"{text}.0"
    return text if kind == "double" else f"{text}f"


def functions_of(kinds: Collection[str]) -> set[str]:
    """The names of all functions that a text may call for these types."""
    found = {spelled(rule, kind) for rule in RULES.values() for kind in kinds if kind in ("float", "double")}
    return (found | {"atomicAdd", "atomicExch", "fmaxf", "fmax", "fminf", "fmin", *TESTS, *PAIRS}) - {""}
