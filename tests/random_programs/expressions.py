"""Random expressions of every type: pure, and defined for all values of their operands."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from .tree import C_TYPES, DIVERGENT, INTEGERS, PER_BLOCK, PER_WARP, Expr

COMPARISONS = ("<", "<=", "==", "!=", ">", ">=")
# Values that can be read everywhere: of all ranks, and steps from lane to lane.
SPECIALS = {
    DIVERGENT: ("tid", "lane", "gid", "(int)threadIdx.x", "(int)threadIdx.y", "(int)threadIdx.z", "(tid & 3)", "(tid * 3 + 1)", "(lane ^ 1)"),
    PER_WARP: ("(tid >> 5)",),
    PER_BLOCK: ("p", "q", "(int)blockIdx.x", "(int)blockIdx.y", "(int)gridDim.x", "total", "block", "(int)blockDim.x", "(p + q)", "(p & 3)"),
}  # fmt: skip
_INT1 = {
    "s32": ("abs($0 % 1000000)", "__mul24($0 % 4096, 12345)"),
    "u32": ("__brev($0)", "(unsigned)__popc($0)", "(unsigned)__clz((int)$0)", "(unsigned)__ffs((int)$0)"),
    "s64": ("(long long)__popcll((unsigned long long)$0)", "(long long)__clzll($0)", "(long long)__ffsll($0)"),
    "u64": ("__brevll($0)",),
}
_INT2 = {
    "s32": ("min($0, $1)", "max($0, $1)", "__mulhi($0, $1)", "__hadd($0, $1)", "__rhadd($0, $1)", "__mul24($0 % 32768, $1 % 32768)",
            "(($0 & 4095) * ($1 & 4095) - ($1 & 65535))", "(($0 >> 8) + ($1 >> 9))", "($0 / (-(($1 & 7) + 2)))",
            "($0 % (-(($1 & 7) + 2)))"),
    "u32": ("min($0, $1)", "max($0, $1)", "__umulhi($0, $1)", "__uhadd($0, $1)", "__umul24($0 & 65535u, $1 & 65535u)", "((($0 << 5) | ($0 >> 27)) + $1)",
            "__byte_perm($0, $1, $0 & 0x7777u)", "($0 / ($1 | 1u))", "($0 % ($1 | 1u))"),
    "s64": ("__mul64hi($0, $1)", "min($0, $1)", "((long long)(int)$0 * (int)$1)"),
    "u64": ("__umul64hi($0, $1)", "max($0, $1)", "((unsigned long long)(unsigned)$0 * (unsigned)$1)", "($0 / ($1 | 1ull))"),
}  # fmt: skip
_INT3 = {
    "s32": ("__dp4a($0, $1, $2)",),
    "u32": ("__byte_perm($0, $1, $2 & 0x7777u)", "__funnelshift_l($0, $1, $2)", "__funnelshift_r($0, $1, $2)",
            "__funnelshift_lc($0, $1, $2 & 63u)", "__usad($0, $1, $2)"),
}  # fmt: skip
_REAL = {
    "f32": ("(-$0)", "fabsf($0)", "sqrtf($0)", "floorf($0)", "rintf($0)", "truncf($0)", "ceilf($0)", "__saturatef($0 + 0.0f)",
            "($0 + $1)", "($0 - $1)", "($0 * $1)", "($0 / $1)", "fminf($0 + 0.0f, $1 + 0.0f)", "fmaxf($0 + 0.0f, $1 + 0.0f)",
            "fmaf($0, $1, $2)"),
    "f64": ("(-$0)", "fabs($0)", "sqrt($0)", "floor($0)", "rint($0)", "trunc($0)", "ceil($0)", "($0 + $1)", "($0 - $1)",
            "($0 * $1)", "($0 / $1)", "fmin($0 + 0.0, $1 + 0.0)", "fmax($0 + 0.0, $1 + 0.0)", "fma($0, $1, $2)"),
}  # fmt: skip


@dataclass(frozen=True)
class Var:
    """Something that can be read, and written if `write`: a local, a field, a lane of a vector."""

    name: str
    type: str
    rank: int = DIVERGENT
    write: bool = True
    read: str = ""  # how it is read, if not by its name: bit fields have another type then

    def value(self) -> Expr:
        return Expr(self.type, self.read or self.name, (), self.rank)


@dataclass(frozen=True)
class Signature:
    """A device function that can be called from a scope of at least its level; `family` names those with a table."""

    name: str
    result: str
    parameters: tuple[str, ...]
    level: int
    struct: str = ""
    family: tuple[str, ...] = ()
    recursive: bool = False


@dataclass(frozen=True)
class Array:
    """A local or constant array, or a field of an array of structs; its size is a power of two."""

    name: str
    type: str
    size: int
    write: bool = True
    field: str = ""

    def at(self, index: str) -> str:
        return f"{self.name}[{index} & {self.size - 1}]{self.field}"


@dataclass(frozen=True)
class Scope:
    """What a statement can use, and how many lanes come to it together (`level`)."""

    vars: tuple[Var, ...] = ()
    arrays: tuple[Array, ...] = ()
    structs: tuple[tuple[str, str], ...] = ()  # variables and their types
    level: int = 0
    breaks: bool = False
    continues: bool = False
    masked_breaks: bool = False  # at the top of a loop that lanes of a mask run together
    returns: str = ""  # the type that `return` gives back, "kernel", or nothing
    kernel: bool = True  # own, ex and the like are there
    functions: int = 0  # those with lower numbers may be called
    uniform_breaks: bool = False  # in a loop that all lanes run together
    calls: int = 2  # how deep loops with calls may be nested

    def but(self, **changes) -> Scope:
        return replace(self, **changes)

    def having(self, *more: Var) -> Scope:
        return replace(self, vars=self.vars + more)


@dataclass
class Taste:
    """What one program is made of: the features it has, drawn at random for each."""

    rng: random.Random
    features: set[str] = field(default_factory=set)
    types: tuple[str, ...] = ("s32", "u32")
    number: int = 0
    budget: int = 20  # statements that may still be made, about
    functions: list[Signature] = field(default_factory=list)
    shared: str = "s32"  # the type of what lanes exchange
    exchanges: bool = False  # whether there is shared memory for it

    def fresh(self) -> int:
        self.number += 1
        return self.number

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def type(self) -> str:
        return self.rng.choice(self.types)


def constant(taste: Taste, t: str) -> Expr:
    rng = taste.rng
    if t == "bool":
        return Expr(t, rng.choice(("true", "false")), (), PER_BLOCK)
    if t[0] == "f":
        value = rng.choice((0.0, 1.0, 0.5, -2.0, 3.0, 0.1, 1e10, -7.25))
        return Expr(t, f"({value!r}f)" if t == "f32" else f"({value!r})", (), PER_BLOCK)
    bits, signed = int(t[1:]), t[0] == "s"
    edges = (0, 1, 2, 3, 5, 7, 31, 32, 100, (1 << bits - signed) - 1)
    value = rng.choice(edges) if taste.chance(0.7) else rng.getrandbits(bits - signed)
    suffix = {"s64": "ll", "u64": "ull", "u32": "u"}.get(t, "")
    text = f"{value}{suffix}"
    if signed and taste.chance(0.3):
        text = f"(-{text})"
    return Expr(t, f"({C_TYPES[t]}){text}" if bits < 32 else text, (), PER_BLOCK)


def cast(e: Expr, t: str) -> Expr:
    """The value of `e` as a `t`."""
    if e.type == t:
        return e
    if t == "bool":
        return Expr(t, "($0 != 0)", (e,), e.rank)
    if e.type in ("f32", "f64") and t[0] != "f":
        return Expr(t, f"({C_TYPES[t]}){'f2i' if e.type == 'f32' else 'd2i'}($0)", (e,), e.rank)
    return Expr(t, f"({C_TYPES[t]})$0", (e,), e.rank)


def leaf(taste: Taste, scope: Scope, t: str, rank: int = DIVERGENT) -> Expr:
    rng = taste.rng
    if t == "bool":
        return condition(taste, scope, 0, rank)
    choice = rng.random()
    if choice < 0.6:
        fitting = [v for v in scope.vars if v.rank >= rank]
        same = [v for v in fitting if v.type == t]
        if same or fitting:
            var = rng.choice(same if same and taste.chance(0.7) else fitting)
            return cast(var.value(), t)
    if choice < 0.75 and scope.kernel:
        found = rng.choice([r for r in SPECIALS if r >= rank])
        return cast(Expr("s32", rng.choice(SPECIALS[found]), (), found), t)
    if choice < 0.85 and rank == DIVERGENT:
        return cast(Expr("u32", "(s >> 27)") if taste.chance(0.5) else Expr("u32", "s"), t)
    return constant(taste, t)


def expression(taste: Taste, scope: Scope, t: str, depth: int, rank: int = DIVERGENT) -> Expr:
    """An expression of type `t` that has at least the rank `rank`."""
    if t == "bool":
        return condition(taste, scope, depth, rank)
    if depth <= 0 or taste.chance(0.15):
        return leaf(taste, scope, t, rank)

    def operand(kind: str = t) -> Expr:
        return expression(taste, scope, kind, depth - 1, rank)

    rng, choice = taste.rng, taste.rng.random()
    if choice < 0.12:
        return cast(operand(taste.type()), t)
    if choice < 0.2:
        return Expr(t, "($0 ? $1 : $2)", (operand("bool"), operand(), operand()), rank)
    if choice < 0.35:
        found = memory(taste, scope, t, depth, rank)
        if found is not None:
            return found
    form = rng.choice(_REAL[t] if t[0] == "f" else _forms(t))
    count = 1 + max((int(c) for c in "012" if f"${c}" in form), default=0)
    return Expr(t, form, tuple(operand() for _ in range(count)), rank)


def memory(taste: Taste, scope: Scope, t: str, depth: int, rank: int) -> Expr | None:
    """A load, if there is something to load from."""
    rng = taste.rng
    arrays = [a for a in scope.arrays if rank == DIVERGENT or not a.write]
    index = expression(taste, scope, rng.choice(("s32", "u32")), depth - 1, rank)
    if arrays and taste.chance(0.6):
        array = rng.choice(arrays)
        return cast(Expr(array.type, array.at("$0"), (index,), rank), t)
    if not scope.kernel:
        return None
    if t[0] == "f":
        return cast(Expr("f32", "fin[$0 & 255]", (index,), rank), t)
    forms = ("in[$0 & 255]", "in[$0 & 31]", "__ldg(in + ($0 & 63))", "__ldcs(in + ($0 & 127))", "(int)((const unsigned char*)in)[$0 & 1023]", "(int)((const short*)in)[$0 & 511]",
             "(int)((const long long*)in)[$0 & 127]", "((const int4*)in)[$0 & 63].z", "((const int2*)in)[$0 & 127].y")  # fmt: skip
    return cast(Expr("s32", rng.choice(forms if "vectors" in taste.features else forms[:4]), (index,), rank), t)


_made: dict[str, tuple[str, ...]] = {}


def _forms(t: str) -> tuple[str, ...]:
    """Forms of an integer type, those that all have several times."""
    if t not in _made:
        c, bits = C_TYPES[t], int(t[1:])
        wide = "unsigned long long" if bits == 64 else "unsigned"
        common = (
            *(f"({c})(({wide})$0 {o} ({wide})$1)" for o in "+-*"),
            *(f"({c})($0 {o} $1)" for o in "&|^"),
            f"({c})(({wide})$0 << (int)($1 & {bits - 1}))",
            f"({c})($0 >> (int)($1 & {bits - 1}))",
            f"({c})($0 / ({c})(($1 & 63) | 1))",
            f"({c})($0 % ({c})(($1 & 63) | 1))",
        )
        unary = (f"({c})~$0", f"({c})(0 - ({wide})$0)", f"({c})!$0")
        own = _INT1.get(t, ()) + _INT2.get(t, ()) + _INT3.get(t, ())
        _made[t] = common * 2 + unary + own
    return _made[t]


def condition(taste: Taste, scope: Scope, depth: int, rank: int = DIVERGENT) -> Expr:
    """A bool; without a rank often one that is true in every few rounds of a loop, other ones for each lane."""
    rng, choice = taste.rng, taste.rng.random()
    if rank == DIVERGENT and choice < 0.35:
        bit = rng.randrange(8, 31)
        form = rng.choice((f"((s >> {bit}) & 1)", f"((s >> 28) < {rng.randrange(1, 15)}u)", f"((s >> {bit}) & 3) == 0"))
        return Expr("bool", f"({form})")
    if rank == DIVERGENT and scope.kernel and choice < 0.5:
        forms = ("(lane & 1)", "tid", "(lane == 0)", f"(tid & {1 << rng.randrange(5)})", f"(lane < {rng.randrange(33)})",
                 f"(gid % {rng.randrange(2, 6)} == 0)", "(lane > p)", "(tid < q)")  # fmt: skip
        return Expr("bool", f"({rng.choice(forms)} != 0)")
    if depth > 0 and choice < 0.65:
        a, b = (condition(taste, scope, depth - 1, rank) for _ in range(2))
        return Expr("bool", f"($0 {rng.choice(('&&', '||', '!='))} $1)", (a, b), rank)
    if depth > 0 and choice < 0.7:
        return Expr("bool", "(!$0)", (condition(taste, scope, depth - 1, rank),), rank)
    t = taste.type()
    a, b = expression(taste, scope, t, depth - 1, rank), leaf(taste, scope, t, rank)
    if t in INTEGERS and taste.chance(0.5):
        mask = rng.choice((1, 3, 7))
        return Expr("bool", f"(($0 & {mask}) == {rng.randrange(mask + 1)})", (a,), rank)
    return Expr("bool", f"($0 {rng.choice(COMPARISONS)} $1)", (a, b), rank)
