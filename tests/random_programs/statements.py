"""Random statements for any number of lanes: assignments, memory, branches, loops and jumps.

Nothing here needs other lanes. Loops end because each round takes `fuel`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .expressions import Scope, Taste, Var, condition, expression
from .tree import C_TYPES, PER_BLOCK, Expr, Stmt

STEP = "s = s * 1664525u + 1013904223u;"
FENCES = ("__threadfence_block();", "__threadfence();", "s ^= *(volatile unsigned*)(acc + 63);",
          "s ^= ((const volatile unsigned*)in)[gid & 255] & 1;")  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of statement: how often, in which programs (all, if no feature is named), for which levels."""

    name: str
    weight: float
    make: Callable[[Taste, Scope, int], Stmt | None]
    feature: str = ""
    least: int = 0  # level of the scope
    most: int = 3
    deep: bool = False  # holds blocks


KINDS: list[Kind] = []


def kind(weight: float, feature: str = "", least: int = 0, most: int = 3, deep: bool = False):
    """Add a function that makes a statement to those that `block` chooses from."""

    def add(make):
        KINDS.append(Kind(make.__name__, weight, make, feature, least, most, deep))
        return make

    return add


def block(taste: Taste, scope: Scope, depth: int, most: int = 3) -> list[Stmt]:
    count = taste.rng.randint(1, most) if taste.budget > 0 else 1
    return [statement(taste, scope, depth if taste.budget > 0 else 0) for _ in range(count)]


def statement(taste: Taste, scope: Scope, depth: int) -> Stmt:
    taste.budget -= 1
    fitting = [k for k in KINDS if k.least <= scope.level <= k.most and (depth > 0 or not k.deep)]
    fitting = [k for k in fitting if not k.feature or k.feature in taste.features]
    # what lanes can do together is seldom possible, so it is chosen more often where it is
    weights = [k.weight * (1 + 2 * (k.least > 0)) for k in fitting]
    while True:
        made = taste.rng.choices(fitting, weights)[0].make(taste, scope, depth)
        if made is not None:
            return made


def target(taste: Taste, scope: Scope, t: str | None = None) -> Var | None:
    """Something to write to that lanes have each for themselves; of type `t`, where there is one."""
    found = [v for v in scope.vars if v.write and v.rank == 0]
    same = [v for v in found if v.type == t]
    return taste.rng.choice(same or found) if found else None


# Values and memory ----------------------------------------------------------------------------------------------------


@kind(5)
def assign(taste, scope, depth):
    var = target(taste, scope)
    if taste.chance(0.2) and var.type[0] in "us" and int(var.type[1:]) >= 32 and var.type[0] == "u":
        o = taste.rng.choice(("+=", "^=", "-=", "*=", "|="))
        return Stmt("assign", f"{var.name} {o} $0;", [expression(taste, scope, var.type, 2)])
    return Stmt("assign", f"{var.name} = $0;", [expression(taste, scope, var.type, taste.rng.choice((0, 1, 1, 2, 3)))])


@kind(1)
def step(taste, scope, depth):
    if taste.chance(0.5):
        return Stmt("step", STEP)
    return Stmt("step", "s ^= $0;", [expression(taste, scope, "u32", 1)])


@kind(1, "uniforms", least=3)
def set_uniform(taste, scope, depth):
    var = taste.rng.choice([v for v in scope.vars if v.rank == PER_BLOCK and v.write] or [None])
    return var and Stmt("set_uniform", f"{var.name} = $0;", [expression(taste, scope, var.type, 2, PER_BLOCK)])


@kind(1.5)
def array_store(taste, scope, depth):
    arrays = [a for a in scope.arrays if a.write]
    if not arrays:
        return None
    a, index = taste.rng.choice(arrays), expression(taste, scope, "u32", 1)
    return Stmt("array_store", f"{a.name}[$0 & {a.size - 1}] = $1;", [index, expression(taste, scope, a.type, 2)])


@kind(0.7)
def struct_copy(taste, scope, depth):
    pairs = [(a, b) for a, t in scope.structs for b, u in scope.structs if a != b and t == u]
    if not pairs:
        return None
    a, b = taste.rng.choice(pairs)
    return Stmt("struct_copy", f"{a} = {b};")


@kind(2, "own")
def own_store(taste, scope, depth):
    """A word of the lane's own, at an address that steps from lane to lane by one or by four."""
    if not scope.kernel:
        return None
    place = taste.rng.choice(("gid * 4 + ($0 & 3)", "gid + total * 4 + total * ($0 & 3)", "gid + total * 5"))
    index, value = expression(taste, scope, "s32", 1), expression(taste, scope, "s32", 2)
    how = taste.rng.choice(("own", "own", "own", "((volatile int*)own)" if "waits" in taste.features else "own"))
    return Stmt("own_store", f"{how}[{place}] = $1;", [index, value])


@kind(1.5, "own")
def own_load(taste, scope, depth):
    if not scope.kernel:
        return None
    place = taste.rng.choice(("gid * 4 + ($0 & 3)", "gid + total * 4 + total * ($0 & 3)", "gid + total * 5"))
    var = target(taste, scope, "s32")
    return Stmt("own_load", f"{var.name} = ({C_TYPES[var.type]})own[{place}];", [expression(taste, scope, "s32", 1)])


@kind(0.7, "vectors")
def own_vector(taste, scope, depth):
    """All four words of the lane's own at once."""
    if not scope.kernel:
        return None
    values = [expression(taste, scope, "s32", 1) for _ in range(4)]
    if taste.chance(0.5):
        return Stmt("own_vector", "((int4*)own)[gid] = make_int4($0, $1, $2, $3);", values)
    var = target(taste, scope, "s32")
    c = C_TYPES[var.type]
    return Stmt("own_vector", f"{{ const int4 t = ((const int4*)own)[gid]; {var.name} = ({c})(t.x ^ t.w); }}")


@kind(1.2, "atomics")
def atomic(taste, scope, depth):
    """Each place of memory knows one operation, so that the order does not matter."""
    if not scope.kernel:
        return None
    rng, index = taste.rng, expression(taste, scope, "u32", 1)
    place, forms = rng.choice(_ATOMICS)
    memory = "sacc" if "barriers" in taste.features and taste.chance(0.4) and place in range(0, 28) else "acc"
    form = rng.choice(forms).replace("AT", f"{memory} + {place} + ($0 & 3)")
    return Stmt("atomic", form, [index, expression(taste, scope, "u32", 1)])


_LOOP = "{ unsigned *at = AT, was = *(volatile unsigned*)at, t; do { t = was; was = atomicCAS(at, t, OP); } while (was != t); }"
_ATOMICS = (
    (0, ("atomicAdd(AT, $1);", "atomicSub(AT, $1);", _LOOP.replace("OP", "t + $1"))),
    (4, ("atomicMin(AT, $1);", _LOOP.replace("OP", "min(t, $1)"))),
    (8, ("atomicMax(AT, $1);", "atomicMax(AT, $1 & 65535u);")),
    (12, ("atomicAnd(AT, $1 | 65535u);", "atomicAnd(AT, ~(1u << ($1 & 31u)));")),
    (16, ("atomicOr(AT, 1u << ($1 & 31u));", "atomicOr(AT, $1 & 0x11111u);")),
    (20, ("atomicXor(AT, $1);", _LOOP.replace("OP", "t ^ $1"))),
    (24, ("atomicInc(AT, 1000000u);", "{ atomicXor(acc + 28, atomicInc(AT, 1000000u)); }")),
    (32, ("atomicMin((int*)(AT), (int)$1);",)),
    (36, ("atomicMax((int*)(AT), (int)$1);",)),
    (40, ("atomicAdd((float*)(AT), (float)(int)($1 & 255u));",)),
    (44, ("atomicDec(AT, 4000000000u);",)),
    (48, ("{ atomicAdd(wide + ($0 & 3), (unsigned long long)$1 << 20); }",)),
    (48, ("{ atomicMax(wide + 4 + ($0 & 3), (unsigned long long)$1 * $1); }", "{ atomicXor(wide + 8 + ($0 & 3), (unsigned long long)$1 << 13); }")),
    (48, ("{ atomicMin((long long*)wide + 12, (long long)(int)$1 * 77777); }", "{ atomicAdd((double*)wide + 13, (double)($1 & 1023u)); }")),
)  # fmt: skip


@kind(0.8, "atomics")
def own_atomic(taste, scope, depth):
    """On a word of the lane's own, where what was there is known."""
    if not scope.kernel:
        return None
    var = target(taste, scope, "s32")
    name = taste.rng.choice(
        ("atomicAdd", "atomicExch", "atomicMin", "atomicMax", "atomicAnd", "atomicOr", "atomicXor", "CAS")
    )
    call = f"{name}(own + gid * 4 + ($0 & 3), $1)" if name != "CAS" else "atomicCAS(own + gid * 4 + ($0 & 3), $2, $1)"
    args = [expression(taste, scope, "s32", 1) for _ in range(3 if name == "CAS" else 2)]
    return Stmt("own_atomic", f"{var.name} = ({C_TYPES[var.type]}){call};", args)


@kind(0.6, "waits")
def fence(taste, scope, depth):
    return Stmt("fence", taste.rng.choice(FENCES if scope.kernel else FENCES[:2]))


# Branches -------------------------------------------------------------------------------------------------------------


def alone(scope: Scope) -> Scope:
    """What is left of a scope where lanes go different ways."""
    return scope.but(level=0, masked_breaks=False)


@kind(4, deep=True)
def branch(taste, scope, depth):
    inner, cond = alone(scope), condition(taste, scope, 2)
    if taste.chance(0.4):
        return Stmt("branch", "if ($0) {\n    @0\n}", [cond], [block(taste, inner, depth - 1)])
    if taste.chance(0.6):
        bodies = [block(taste, inner, depth - 1) for _ in range(2)]
        return Stmt("branch", "if ($0) {\n    @0\n} else {\n    @1\n}", [cond], bodies)
    bodies = [block(taste, inner, depth - 1, 2) for _ in range(3)]
    form = "if ($0) {\n    @0\n} else if ($1) {\n    @1\n} else {\n    @2\n}"
    return Stmt("branch", form, [cond, condition(taste, scope, 2)], bodies)


@kind(1.5, "switch", deep=True)
def switch(taste, scope, depth):
    count, inner = taste.rng.randint(2, 5), alone(scope).but(breaks=True)
    labels = taste.rng.sample(range(8), count) if taste.chance(0.3) else list(range(count))
    lines, bodies = [], []
    for k, label in enumerate(labels):
        lines.append(f"    {'default' if k == count - 1 and taste.chance(0.5) else f'case {label}'}:\n        @{k}")
        if taste.chance(0.6):
            lines.append("        break;")
        bodies.append(block(taste, inner, depth - 1, 2))
    form = f"switch ($0 & {7 if max(labels) > 3 else 3}) {{\n" + "\n".join(lines) + "\n}"
    return Stmt("switch", form, [expression(taste, scope, "s32", 2)], bodies)


# Loops and ways out of them -----------------------------------------------------------------------------------------


def looping(taste: Taste, scope: Scope) -> Scope:
    return alone(scope).but(breaks=True, continues=True, calls=scope.calls - 1)


def extra(taste: Taste, scope: Scope) -> str:
    """What may stand at the head of a loop: a new `s`, a fence, which makes lanes wait for each other another way."""
    text = STEP if taste.chance(0.8) else ""
    if "waits" in taste.features and taste.chance(0.5):
        text += " " + taste.rng.choice(FENCES if scope.kernel else FENCES[:2])
    return text


@kind(2.5, "loops", deep=True)
def while_loop(taste, scope, depth):
    inner, head = looping(taste, scope), extra(taste, scope)
    cond, body = condition(taste, scope, 2), block(taste, inner, depth - 1)
    if taste.chance(0.4):
        return Stmt("while", f"do {{\n    {head}\n    @0\n}} while ($0 && --fuel >= 0);", [cond], [body])
    order = taste.rng.choice(("--fuel >= 0 && $0", "$0 && --fuel >= 0"))
    return Stmt("while", f"while ({order}) {{\n    {head}\n    @0\n}}", [cond], [body])


@kind(2, "loops", deep=True)
def for_loop(taste, scope, depth):
    i, inner = f"i{taste.fresh()}", looping(taste, scope)
    rank = PER_BLOCK if taste.chance(0.4) else 0
    bound = expression(taste, scope, "s32", 1, rank)
    head = taste.rng.choice((
        f"for (int {i} = 0; {i} < ($0 & 7); {i}++)", f"for (int {i} = $0 & 3; {i} < 5; {i}++)", f"for (int {i} = ($0 & 7); {i}-- > 0;)",
        f"for (unsigned {i} = $0 & 31; {i}; {i} >>= 1)", f"for (int {i} = tid; {i} < q + 40; {i} += 32)" if scope.kernel else f"for (int {i} = 0; {i} < 3; {i}++)",
        f"for (int {i} = 0; {i} < 16 && --fuel >= 0; {i} += 3)",
    ))  # fmt: skip
    t = "u32" if "unsigned" in head else "s32"
    body = block(taste, inner.having(Var(i, t, 0, False)), depth - 1)
    return Stmt("for", f"{head} {{\n    {extra(taste, scope)}\n    @0\n}}", [bound], [body])


@kind(2, "exits", deep=True)
def exit_chain(taste, scope, depth):
    """A loop whose lanes leave at different times, where a chain of branches says so."""
    inner, rng = looping(taste, scope), taste.rng
    count = rng.randint(1, 3)
    conditions = [condition(taste, scope, 1) for _ in range(count)]
    bodies = [block(taste, inner, depth - 1, 2) for _ in range(count + 1)]
    lines = ["if ($0 && --fuel >= 0) {\n        @0\n    }"]
    lines += [f"else if (${k} && --fuel >= 0) {{\n        @{k}\n    }}" for k in range(1, count)]
    if taste.chance(0.6):
        bodies.pop()
        lines.append("else break;")
    else:
        lines.append(f"else {{\n        @{count}\n        break;\n    }}")
    after = block(taste, inner, 0, 1) if taste.chance(0.4) else None
    if after:
        bodies.append(after)
        lines.append(f"@{len(bodies) - 1}")
    loop = rng.choice(("while (true)", "for (;; fuel--)"))
    form = f"{loop} {{\n    {extra(taste, scope)}\n    " + "\n    ".join(lines) + "\n}"
    return Stmt("exit_chain", form, conditions, bodies)


@kind(2.5, "jumps")
def leave(taste, scope, depth):
    """Break, continue or return on a condition, perhaps after a last deed."""
    ways = ["break;"] * scope.breaks + ["continue;"] * scope.continues
    if scope.level > 0:  # the other lanes would not know
        ways = []
    values: list[Expr] = []
    if scope.returns and scope.level == 0 and (taste.chance(0.3) or not ways):
        if scope.returns == "kernel":
            ways.append("{ out[gid] = $1; return; }")
            values.append(expression(taste, scope, "s64", 1))
        else:
            ways.append("return $1;")
            values.append(expression(taste, scope, scope.returns, 1))
    if not ways:
        return None
    way = ways[-1] if values else taste.rng.choice(ways)
    cond = condition(taste, scope, 1)
    if depth > 0 and taste.chance(0.4):
        return Stmt("leave", f"if ($0) {{\n    @0\n    {way}\n}}", [cond, *values], [block(taste, alone(scope), 0, 2)])
    return Stmt("leave", f"if ($0) {way}", [cond, *values])


@kind(1.5, "gotos", deep=True)
def jumps(taste, scope, depth):
    """Places with jumps between them, each of which takes fuel."""
    n, count, rng = taste.fresh(), taste.rng.randint(2, 4), taste.rng
    inner = alone(scope).but(calls=0)
    lines, conditions, bodies = [], [], []
    for k in range(count):
        lines.append(f"L{n}_{k}:; {STEP if taste.chance(0.5) else ''}\n    @{k}")
        bodies.append(block(taste, inner, min(depth - 1, 1), 2))
        lines.append(f"if (--fuel < 0) goto L{n}_end;")
        for _ in range(rng.choice((1, 1, 2))):
            conditions.append(condition(taste, scope, 1))
            to = rng.choice([*range(count), "end"])
            lines.append(f"if (${len(conditions) - 1}) goto L{n}_{to};")
    lines.append(f"L{n}_end:;")
    start = ""
    if taste.chance(0.5):
        conditions.append(condition(taste, scope, 1))
        start = f"    if (${len(conditions) - 1}) goto L{n}_{rng.randrange(1, count)};\n"
    return Stmt("jumps", "{\n" + start + "    " + "\n    ".join(lines) + "\n}", conditions, bodies)


@kind(1.2, "gotos", deep=True)
def jump_into_loop(taste, scope, depth):
    n, inner = taste.fresh(), looping(taste, scope)
    bodies = [block(taste, inner, depth - 1, 2) for _ in range(2)]
    loop = taste.rng.choice(
        ("while ($1 && --fuel >= 0) {", "while (--fuel >= 0 && $1) {", "for (; $1 && fuel > 0; fuel--) {")
    )
    form = f"if ($0) goto L{n};\n{loop}\n    {extra(taste, scope)}\n    @0\n    L{n}:;\n    @1\n}}"
    return Stmt("jump_into_loop", form, [condition(taste, scope, 1), condition(taste, scope, 1)], bodies)


@kind(1, "gotos", deep=True)
def jump_out_of_loops(taste, scope, depth):
    n, inner = taste.fresh(), looping(taste, scope)
    bodies = [block(taste, inner, depth - 1, 2) for _ in range(3)]
    form = (
        f"while ($0 && --fuel >= 0) {{\n    {STEP}\n    @0\n    while ($1 && --fuel >= 0) {{\n        {extra(taste, scope)}\n"
        f"        if ($2) goto L{n};\n        @1\n    }}\n    @2\n}}\nL{n}:;"
    )
    return Stmt("jump_out_of_loops", form, [condition(taste, scope, 1) for _ in range(3)], bodies)


# Calls ------------------------------------------------------------------------------------------------------------------


@kind(2.5, "functions")
def call(taste, scope, depth):
    """A function, by its name or through a pointer that differs from lane to lane."""
    known = [f for f in taste.functions[: scope.functions] if f.level <= scope.level]
    if scope.level == 3 and taste.chance(0.5):
        known = [f for f in known if f.level] or known
    if not known or scope.calls <= 0:
        return None
    f = taste.rng.choice(known)
    if f.level and not scope.kernel:
        return None
    args = [expression(taste, scope, t, 2) for t in f.parameters]
    holes = [f"${k}" for k in range(len(args))] + [*COMMON[f.level].split(", ")]
    if f.struct:
        have = [name for name, t in scope.structs if t == f.struct]
        if not have:
            return None
        to, what = taste.rng.choice(have), taste.rng.choice(have)
        return Stmt("call", f"{to} = {f.name}({', '.join([what, *holes])});", args)
    var = target(taste, scope, f.result)
    c = C_TYPES[var.type]
    if f.family and taste.chance(0.7):
        which = f"${len(args)} % {len(f.family)}u"
        args.append(expression(taste, scope, "u32", 1))
        table = f"t_{f.family[0]}"
        if taste.chance(0.5):
            return Stmt("call_pointer", f"{var.name} = ({c}){table}[{which}]({', '.join(holes)});", args)
        form = f"{{\n    {table[2:]}_type const t[] = {{{', '.join(f.family)}}};\n    {var.name} = ({c})t[{which}]({', '.join(holes)});\n}}"
        return Stmt("call_pointer", form, args)
    if f.recursive:
        holes.insert(0, str(taste.rng.randint(1, 3)))
    return Stmt("call", f"{var.name} = ({c}){f.name}({', '.join(holes)});", args)


#: What functions of a level are given besides their own parameters.
COMMON = {0: "s", 1: "s, m, lane", 3: "s, m, lane, tid, ex"}
COMMON_TYPES = {
    0: "unsigned s",
    1: "unsigned s, unsigned m, int lane",
    3: "unsigned s, unsigned m, int lane, int tid, int* ex",
}
