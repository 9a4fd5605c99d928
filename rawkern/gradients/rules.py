"""The table of mathematical functions: what each is called for float and double, and its derivatives.

A derivative is an expression of the arguments ``a`` to ``d`` and the result ``r``; functions of the table and numbers
are of the type at hand. None: an argument that has no derivative of its own (it is constant almost everywhere). With
``g``, what the result gets, it is what the argument gets: so is one that is 0 under a condition, because 0 times an
infinite slope is not 0. Where two arguments meet in a maximum, each gets half, as in torch; a bound that has no
gradient leaves 0 to what equals it, as relu does. A NaN is not a maximum: the other argument is.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set
from dataclasses import dataclass

from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code.expressions import Binary, Call, Cast, Literal, Name, Node, Unary

call, infix, where = expr.call, expr.infix, expr.where


@dataclass(frozen=True)
class Rule:
    """A function: its derivative by each argument; the arguments that it has."""

    name: str  # for double; for float with an f appended, unless `single` says otherwise
    derivatives: tuple[Node | None, ...]
    whole: int | None = None  # the argument that is an int


A, B, C, D = map(Name, "abcd")
R, G = Name("r"), Name("g")
ZERO, HALF, ONE = (Literal(text) for text in ("0.0", "0.5", "1.0"))
_LN2, _LN10 = Literal("0.69314718055994530942"), Literal("2.30258509299404568402")
_TWO_OVER_ROOT_PI = Literal("1.12837916709551257390")
_PI, _ROOT_HALF_PI = Literal("3.14159265358979323846"), Literal("0.39894228040143267794")


def _is(e: Node, value: Node = ZERO) -> Node:
    return infix(e, "==", value)


def _bound(own: Node, sign: str, other: Node, equal: Node) -> Node:
    """What one of two numbers gets of the gradient of their maximum or minimum; `equal`: where they are equal."""
    return where(infix(infix(own, sign, other), "||", call("isnan", other)), G, equal)


def _meeting(own: Node, sign: str, other: Node) -> Node:
    return _bound(own, sign, other, where(_is(A, B), HALF * G, ZERO))


def _angle(by: Node) -> Node:
    return where(expr.both(_is(A), _is(B)), ZERO, G * by / (A * A + B * B))


def _positive(e: Node, yes: Node, no: Node = ZERO) -> Node:
    return where(infix(e, ">", ZERO), yes, no)


RULES: dict[str, Rule] = {
    name: Rule(name, tuple(derivatives))
    for name, *derivatives in (
        ("exp", R),
        ("exp2", R * _LN2),
        ("exp10", R * _LN10),
        ("expm1", R + ONE),
        ("log", ONE / A),
        ("log2", ONE / (A * _LN2)),
        ("log10", ONE / (A * _LN10)),
        ("log1p", ONE / (ONE + A)),
        ("sqrt", HALF / R),
        ("rsqrt", -HALF * R * R * R),
        ("cbrt", ONE / (Literal("3.0") * R * R)),
        ("rcbrt", -R / (Literal("3.0") * A)),
        ("sin", call("cos", A)),
        ("cos", -call("sin", A)),
        ("tan", ONE + R * R),
        ("sinpi", _PI * call("cospi", A)),
        ("cospi", -_PI * call("sinpi", A)),
        ("asin", call("rsqrt", (ONE - A) * (ONE + A))),
        ("acos", -call("rsqrt", (ONE - A) * (ONE + A))),
        ("atan", ONE / (ONE + A * A)),
        ("sinh", call("cosh", A)),
        ("cosh", call("sinh", A)),
        ("tanh", ONE - R * R),
        ("asinh", call("rsqrt", ONE + A * A)),
        ("acosh", call("rsqrt", (A - ONE) * (A + ONE))),
        ("atanh", ONE / ((ONE - A) * (ONE + A))),
        ("erf", _TWO_OVER_ROOT_PI * call("exp", -A * A)),
        ("erfc", -_TWO_OVER_ROOT_PI * call("exp", -A * A)),
        ("erfcx", Literal("2.0") * A * R - _TWO_OVER_ROOT_PI),
        ("erfinv", call("exp", R * R) / _TWO_OVER_ROOT_PI),
        ("erfcinv", -call("exp", R * R) / _TWO_OVER_ROOT_PI),
        ("normcdf", _ROOT_HALF_PI * call("exp", -HALF * A * A)),
        ("normcdfinv", call("exp", HALF * R * R) / _ROOT_HALF_PI),
        ("j0", -call("j1", A)),
        ("y0", -call("y1", A)),
        ("j1", where(_is(A), HALF, call("j0", A) - R / A)),
        ("y1", call("y0", A) - R / A),
        ("fabs", _positive(A, G, where(infix(A, "<", ZERO), -G, ZERO))),
        ("pow", where(_is(B), ZERO, G * B * call("pow", A, B - ONE)),
         where(expr.both(_is(A), infix(B, ">=", ZERO)), ZERO, G * R * call("log", A))),
        ("atan2", _angle(B), _angle(-A)),
        ("hypot", A / R, B / R),
        ("rhypot", -A * R * R * R, -B * R * R * R),
        ("fmod", ONE, -call("rint", (A - R) / B)),
        ("fmax", _meeting(A, ">", B), _meeting(B, ">", A)),
        ("fmin", _meeting(A, "<", B), _meeting(B, "<", A)),
        ("fdim", where(infix(A, ">", B), G, ZERO), where(infix(A, ">", B), -G, ZERO)),
        ("fma", B, A, ONE),
        ("copysign", where(_is(A), ZERO, where(_is(call("signbit", A), call("signbit", B)), G, -G)), None),
        ("remainder", ONE, -call("rint", (A - R) / B)),
        ("norm3d", A / R, B / R, C / R),
        ("norm4d", A / R, B / R, C / R, D / R),
        ("rnorm3d", *(-each * R * R * R for each in (A, B, C))),
        ("rnorm4d", *(-each * R * R * R for each in (A, B, C, D))),
        ("tgamma", R * call("digamma", A)),
        ("lgamma", call("digamma", A)),
        ("cyl_bessel_i0", call("cyl_bessel_i1", A)),
        ("cyl_bessel_i1", where(_is(A), HALF, call("cyl_bessel_i0", A) - R / A)),
        ("jn", None, where(_is(B), where(_is(A, expr.node(1)), HALF, ZERO), A / B * R - call("jn", A + 1, B))),
        ("yn", None, A / B * R - call("yn", A + 1, B)),
        ("ldexp", call("ldexp", ONE, B), None),
        ("scalbn", call("ldexp", ONE, B), None),
        ("logb", None),
        ("floor", None), ("ceil", None), ("trunc", None), ("rint", None), ("round", None), ("nearbyint", None),
        ("__saturatef", where(expr.both(infix(A, ">", ZERO), infix(A, "<", ONE)), G, ZERO)),
        ("__fdividef", ONE / B, -R / B),
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
_LIKE: dict[str, tuple[Node | None, ...]] = {
    "add": (ONE, ONE), "sub": (ONE, -ONE), "mul": (B, A), "div": (ONE / B, -R / B),
    "rcp": (-R * R,), "sqrt": (HALF / R,), "maf": (B, A, ONE), "ma": (B, A, ONE),
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
ROUNDINGS = {kind: Rule(name, (ONE,)) for kind, name in (("__half", "to_half"), ("__nv_bfloat16", "to_bfloat16"))}

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
_BOUNDS = {name: (_bound(A, sign, B, ZERO), _bound(B, sign, A, ZERO)) for name, sign in (("fmax", ">"), ("fmin", "<"))}


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


def derivative(rule: Rule, which: int, alike: list[bool]) -> Node | None:
    """The derivative by an argument, of `a`, `b`, `c`, `d` and `r`, or with `g`; None where there is none.

    `alike`: which arguments depend on anything that can have a gradient.
    """
    return _BOUNDS[rule.name][which] if rule.name in _BOUNDS and not all(alike) else rule.derivatives[which]


def gradient(slope: Node, kind: str, of: Mapping[str, Node], given: Node) -> Node:
    """What an argument with this derivative gets where the result gets `given`; `of`: what its names stand for."""
    found = _filled(slope, kind, {**of, "g": given})
    one = expr.number(1.0, kind)
    if "g" in expr.names(slope):
        return found
    if found == one:
        return given
    if isinstance(found, Binary) and found.sign == "/" and found.left == one:
        return given / found.right
    return expr.times(given, found)


def _filled(slope: Node, kind: str, of: Mapping[str, Node]) -> Node:
    def change(e: Node) -> Node | None:
        match e:
            case Name(name):
                return of[name]
            case Literal(text):
                return expr.number(float(text) if len(text) < 9 else text, kind) if "." in text else e
            case Binary(_, test, Call("isnan", (arg,))) if _is_number(filled(arg)):
                return filled(test)
            case Call(name, args) if name in RULES:
                return Call(spelled(RULES[name], kind), tuple(map(filled, args)))
        return None

    def filled(e: Node) -> Node:
        return expr.mapped(e, change)

    return filled(slope)


def _is_number(e: Node) -> bool:
    """Whether it is a constant, which is not a NaN."""
    while isinstance(e, Cast) or (isinstance(e, Unary) and e.sign == "-"):
        e = e.of
    return isinstance(e, Literal)


@functools.cache
def functions_of(kinds: frozenset[str]) -> Set[str]:
    """The names of all functions that a text may call for these types."""
    found = {spelled(rule, kind) for rule in RULES.values() for kind in kinds if kind in ("float", "double")}
    return (found | {"atomicAdd", "atomicExch", "fmaxf", "fmax", "fminf", "fmin", *TESTS, *PAIRS}) - {""}
