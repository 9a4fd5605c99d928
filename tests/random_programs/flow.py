"""Random control flow for any number of lanes: branches, loops and jumps. Loops end because each round takes `fuel`."""

from __future__ import annotations

from .expressions import Expr, Scope, Taste, Var, condition, expression
from .kinds import block, kind
from .tree import C_TYPES, PER_BLOCK, Stmt
from .values import FENCES, STEP

# Branches -------------------------------------------------------------------------------------------------------------


def alone(scope: Scope) -> Scope:
    """What is left of a scope where lanes go different ways."""
    return scope.but(level=0, masked_breaks=False, uniform_breaks=False)


@kind(4.5, deep=True)
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
    count, inner = taste.rng.choice((2, 3, 4, 5, 8)), alone(scope).but(breaks=True)
    labels = taste.rng.sample(range(8), count) if taste.chance(0.3) else list(range(count))
    lines, bodies = [], []
    for k, label in enumerate(labels):
        lines.append(f"    {'default' if k == count - 1 and taste.chance(0.5) else f'case {label}'}:\n        @{k}")
        if taste.chance(0.6):
            lines.append("        break;")
        bodies.append(block(taste, inner, depth - 1, 2))
    form = f"switch ($0 & {7 if max(labels) > 3 else 3}) {{\n" + "\n".join(lines) + "\n}"
    return Stmt("switch", form, [expression(taste, scope, "s32", 2)], bodies)


@kind(1, deep=True)
def local(taste, scope, depth):
    """A variable that lives in a block."""
    t, n = taste.type(), taste.fresh()
    value, inner = expression(taste, scope, t, 2), scope.but(masked_breaks=False).having(Var(f"w{n}", t))
    return Stmt("let", f"{{\n    {C_TYPES[t]} w{n} = $0;\n    @0\n}}", [value], [block(taste, inner, depth - 1)])


# Loops and their exits -----------------------------------------------------------------------------------------


def looping(taste: Taste, scope: Scope) -> Scope:
    return alone(scope).but(breaks=True, continues=True, calls=scope.calls - 1)


def extra(taste: Taste, scope: Scope) -> str:
    """What may be at the head of a loop: a new `s`, a fence, which makes lanes wait for each other another way."""
    text = STEP if taste.chance(0.8) else ""
    if "waits" in taste.features and taste.chance(0.5):
        text += " " + taste.rng.choice(FENCES if scope.kernel else FENCES[:2])
    return text


@kind(3, "loops", deep=True)
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
    heads = [
        ("s32", "for (int I = 0; I < ($0 & 7); I++)"), ("s32", "for (int I = $0 & 3; I < 5; I++)"), ("s32", "for (int I = ($0 & 7); I-- > 0;)"),
        ("u32", "for (unsigned I = $0 & 31; I; I >>= 1)"), ("s32", "for (int I = 0; I < 16 && --fuel >= 0; I += 3)"),
        ("u8", "for (unsigned char I = $0 | 0xf8; I; I++)"), ("s16", "for (short I = $0 & 7; I < 9; I += 2)"),
        ("s64", "for (long long I = $0 & 3; I < 6; I++)"), ("f32", "for (float I = $0 & 3; I < 4; I += 0.75f)"),
        ("f64", "for (double I = 3; I > 0.125; I /= 2)"),
    ]  # fmt: skip
    if scope.kernel:
        heads.append(("s32", "for (int I = tid; I < q + 40; I += 32)"))
    t, head = taste.rng.choice(heads[:5] + heads)  # the usual ones more often
    head = head.replace("I", i)
    body = block(taste, inner.having(Var(i, t, 0, False)), depth - 1)
    return Stmt("for", f"{head} {{\n    {extra(taste, scope)}\n    @0\n}}", [bound], [body])


@kind(1, "rows", deep=True)
def row_loop(taste, scope, depth):
    """The threads of a block step through memory together."""
    if not scope.kernel:
        return None
    i = f"i{taste.fresh()}"
    inner = looping(taste, scope).having(Var(i, "s32", 0, False))
    load = taste.rng.choice(
        (f"in[{i} & 255]", f"__ldg(in + ({i} & 255))", f"in[({i} * 4 + 1) & 255]", f"in[(255 - {i}) & 255]")
    )
    start, step = taste.rng.choice((("tid", "THREADS"), ("gid", "total"), ("lane", "32"), ("tid & 15", "16")))
    form = f"for (int {i} = {start}; {i} < {taste.rng.choice(('256', '100 + p', 'q * 4'))} && {i} < {step} * 12; {i} += {step}) {{"
    return Stmt("row_loop", f"{form}\n    s += {load};\n    @0\n}}", [], [block(taste, inner, depth - 1, 2)])


@kind(2.5, "exits", deep=True)
def exit_chain(taste, scope, depth):
    """A loop whose lanes leave at different times, where a chain of branches says so."""
    inner, rng = looping(taste, scope), taste.rng
    count = rng.randint(1, 3)
    conditions = [condition(taste, scope, 1) for _ in range(count)]
    bodies = [block(taste, inner, depth - 1, 2) for _ in range(count)]
    bodies.append(block(taste, inner.but(continues=False), depth - 1, 2))  # another round would take no fuel
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


@kind(2.5, "gotos", deep=True)
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


@kind(1.5, "gotos", deep=True)
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
