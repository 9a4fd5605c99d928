"""Random statements that lanes execute together: shuffles, votes, barriers, and branches whose lanes know each other.

In a scope of level 1 and above, `m` is the mask of the lanes that come here: some (1), all of the warp that have not
ended (2), and all threads of the block (3). Inner blocks declare their own `m`, so a block that is taken out of its
branch is still right.
"""

from __future__ import annotations

from .expressions import Var, cast, condition, expression
from .flow import alone, extra
from .kinds import block, kind, target
from .tree import C_TYPES, PER_BLOCK, PER_WARP, Expr, Stmt

SHUFFLED = ("s32", "u32", "s64", "u64", "f32", "f64")


@kind(2, "shuffles", least=1)
def shuffle(taste, scope, depth):
    """A value from another lane, which is used if that lane takes part."""
    rng, width = taste.rng, taste.rng.choice((32, 32, 32, 16, 8, 4, 2))
    t = rng.choice([t for t in taste.types if t in SHUFFLED] or ["s32"])
    mode, source = rng.choice((
        ("", f"(lane & ~{width - 1}) | (by & {width - 1})"),
        ("up_", f"(lane & {width - 1}) >= by ? lane - by : lane"),
        ("down_", f"(lane & {width - 1}) + by < {width} ? lane + by : lane"),
        ("xor_", f"(lane ^ by) < (lane | {width - 1}) + 1 ? lane ^ by : lane"),
    ))  # fmt: skip
    by = Expr("s32", str(1 << rng.randrange(5))) if taste.chance(0.5) else expression(taste, scope, "s32", 1)
    var, c = target(taste, scope, t), C_TYPES[t]
    form = (
        f"{{\n    const int by = $1 & 31;\n    const {c} t = __shfl_{mode}sync(m, $0, by, {width});\n"
        f"    if ((m >> (({source}) & 31)) & 1) {var.name} = $2;\n}}"
    )
    return Stmt("shuffle", form, [expression(taste, scope, t, 2), by, cast(Expr(t, "t"), var.type)])


@kind(0.8, "shuffles", least=1)
def scan(taste, scope, depth):
    """Sums over lanes: over those before, or over all."""
    t = taste.rng.choice(("u32", "u64"))
    c, var = C_TYPES[t], target(taste, scope, t)
    loop, mode, source = taste.rng.choice((
        ("d = 1; d < 32; d <<= 1", "up", "lane - d"), ("d = 16; d; d >>= 1", "xor", "lane ^ d"), ("d = 16; d; d >>= 1", "down", "lane + d"),
    ))  # fmt: skip
    form = (
        f"{{\n    {c} v = $0;\n    for (int {loop}) {{\n        const {c} t = __shfl_{mode}_sync(m, v, d, 32);\n"
        f"        if ({source} >= 0 && {source} < 32 && (m >> ({source} & 31) & 1)) v += t;\n    }}\n    {var.name} = $1;\n}}"
    )
    return Stmt("scan", form, [expression(taste, scope, t, 2), cast(Expr(t, "v"), var.type)])


@kind(2, "votes", least=1)
def vote(taste, scope, depth):
    rng, var = taste.rng, target(taste, scope, "u32")
    c = C_TYPES[var.type]
    form, args = rng.choice((
        ("__ballot_sync(m, $0)", ["bool"]), ("__any_sync(m, $0)", ["bool"]), ("__all_sync(m, $0)", ["bool"]),
        ("__popc(__ballot_sync(m, $0))", ["bool"]), ("__popc(__ballot_sync(m, $0) & ((1u << lane) - 1))", ["bool"]),
        ("__match_any_sync(m, $0 & 3)", ["s32"]), ("__match_any_sync(m, $0)", ["u64"]),
        ("__reduce_add_sync(m, $0)", ["u32"]), ("__reduce_min_sync(m, $0)", ["s32"]), ("__reduce_max_sync(m, $0)", ["u32"]),
        ("__reduce_xor_sync(m, $0)", ["u32"]), ("__reduce_and_sync(m, $0)", ["u32"]), ("__reduce_or_sync(m, $0)", ["u32"]),
    ))  # fmt: skip
    if taste.chance(0.15):
        both = f"{{\n    int all;\n    const unsigned t = __match_all_sync(m, $0, &all);\n    {var.name} = ({c})(t + all);\n}}"
        return Stmt("match_all", both, [expression(taste, scope, rng.choice(("s32", "u64")), 1)])
    return Stmt("vote", f"{var.name} = ({c}){form};", [expression(taste, scope, t, 2) for t in args])


@kind(0.8, "uniforms", least=2)
def warp_uniform(taste, scope, depth):
    """A value that all lanes of the warp have, which the compiler knows of only some."""
    found = [v for v in scope.vars if v.rank == PER_WARP and v.write]
    if not found:
        return None
    form, t = taste.rng.choice((
        ("__ballot_sync(m, $0)", "bool"), ("__shfl_sync(m, $0, __ffs(m) - 1, 32)", "u32"), ("__reduce_add_sync(m, $0)", "u32"),
        ("__any_sync(m, $0)", "bool"),
    ))  # fmt: skip
    return Stmt("warp_uniform", f"{found[0].name} = {form};", [expression(taste, scope, t, 1)])


def exchanged(taste, var):
    """The value `t` that came out of shared memory, for `var`."""
    return cast(Expr(taste.shared, "t"), var.type)


@kind(0.7, "shared", least=1)
def warp_exchange(taste, scope, depth):
    """Through shared memory, with the lanes of the mask."""
    if not scope.kernel:
        return None
    var = target(taste, scope, taste.shared)
    form = (
        "{\n    ex[tid] = $0;\n    __syncwarp(m);\n    const EX t = ex[(tid & ~31) + pick(m, $1)];\n    __syncwarp(m);\n"
        f"    {var.name} = $2;\n}}"
    )
    values = [expression(taste, scope, t, 2) for t in (taste.shared, "u32")]
    return Stmt("warp_exchange", form, [*values, exchanged(taste, var)])


@kind(2, "barriers", least=3)
def exchange(taste, scope, depth):
    """Through shared memory, with the whole block; where all read one place, the value is the same for all."""
    var, place = (
        target(taste, scope, taste.shared),
        taste.rng.choice(
            (
                "(tid + 1) % THREADS",
                "THREADS - 1 - tid",
                "(unsigned)$1 % THREADS",
                "($1 & 7) % THREADS",
                "0",
                "(THREADS > 5 ? 5 : 0)",
            )
        ),
    )
    uniform = [v for v in scope.vars if v.rank == PER_BLOCK and v.write]
    if uniform and place[:2] in ("0", "(T") and taste.chance(0.7):
        var = uniform[0]
    form = f"{{\n    ex[tid] = $0;\n    __syncthreads();\n    const EX t = ex[{place}];\n    __syncthreads();\n    {var.name} = $2;\n}}"
    values = [expression(taste, scope, t, 2) for t in (taste.shared, "s32")]
    return Stmt("exchange", form, [*values, exchanged(taste, var)])


@kind(0.8, "barriers", least=3, deep=True)
def tree_sum(taste, scope, depth):
    var, t = target(taste, scope, taste.shared), taste.shared
    wide = C_TYPES[t] if t[0] == "f" else "unsigned long long" if t[1:] == "64" else "unsigned"
    form = (
        "{\n    ex[tid] = $0;\n    __syncthreads();\n    for (int half = 128; half; half >>= 1) {\n"
        f"        if (tid < half && tid + half < THREADS) ex[tid] = ({wide})ex[tid] + ({wide})ex[tid + half];\n"
        "        __syncthreads();\n    }\n    const EX t = ex[0];\n    __syncthreads();\n"
        f"    {var.name} = $1;\n}}"
    )
    return Stmt("tree_sum", form, [expression(taste, scope, t, 2), exchanged(taste, var)])


@kind(0.6, "chain", least=3)
def chain(taste, scope, depth):
    """Each thread waits for a word of the one before it (or after it), also in its own warp."""
    if not scope.kernel:
        return None
    before = taste.rng.choice(("tid - 1", "tid + 1"))
    first = "tid == 0" if before == "tid - 1" else "tid == THREADS - 1"
    form = (
        "{\n    flags[tid] = 0;\n    __syncthreads();\n    unsigned t = 0;\n"
        f"    if (!({first}))\n        while ((t = atomicAdd(flags + {before}, 0u)) == 0u) __threadfence_block();\n"
        "    __threadfence_block();\n    atomicExch(flags + tid, (t * 5u + $0) | 1u);\n    s ^= t;\n    __syncthreads();\n}"
    )
    return Stmt("chain", form, [expression(taste, scope, "u32", 1)])


@kind(1, "barriers", least=3)
def block_vote(taste, scope, depth):
    rng = taste.rng
    name = rng.choice(("count", "or", "and"))
    wanted = [v for v in scope.vars if v.write and v.rank == PER_BLOCK] if "uniforms" in taste.features else []
    var = rng.choice(wanted) if wanted and taste.chance(0.5) else target(taste, scope, "s32")
    form = f"{var.name} = ({C_TYPES[var.type]})__syncthreads_{name}($0);"
    return Stmt("block_vote", form, [condition(taste, scope, 2)])


@kind(1, "barriers", least=3)
def barrier(taste, scope, depth):
    return Stmt("barrier", "__syncthreads();")


# Branches and loops -----------------------------------------------------------------------------------------------


@kind(1.5, "uniforms", least=2, deep=True)
def uniform_branch(taste, scope, depth):
    rank = PER_BLOCK if scope.level == 3 else PER_WARP
    inner = scope.but(breaks=False, continues=False, masked_breaks=False)
    cond, bodies = condition(taste, scope, 2, rank), [block(taste, inner, depth - 1, 2) for _ in range(2)]
    if taste.chance(0.5):
        return Stmt("uniform_branch", "if ($0) {\n    @0\n}", [cond], bodies[:1])
    return Stmt("uniform_branch", "if ($0) {\n    @0\n} else {\n    @1\n}", [cond], bodies)


@kind(1.5, "uniforms", least=2, deep=True)
def uniform_loop(taste, scope, depth):
    i, rank = f"i{taste.fresh()}", PER_BLOCK if scope.level == 3 else PER_WARP
    count = expression(taste, scope, "s32", 1, rank)
    inner = scope.but(breaks=False, continues=False, masked_breaks=False, uniform_breaks=True, calls=scope.calls - 1)
    body = block(taste, inner.having(Var(i, "s32", rank, False)), depth - 1)
    head = extra(taste, scope)
    # the bound is the same for all lanes while they are in the loop
    form = f"{{\n    const int end{i} = $0 & 3;\n    for (int {i} = 0; {i} < end{i}; {i}++) {{\n        {head}\n        @0\n    }}\n}}"
    return Stmt("uniform_loop", form, [count], [body])


@kind(1, "uniforms", least=2)
def uniform_leave(taste, scope, depth):
    if not scope.uniform_breaks:
        return None
    cond = condition(taste, scope, 1, PER_BLOCK if scope.level == 3 else PER_WARP)
    return Stmt("uniform_leave", f"if ($0) {taste.rng.choice(('break', 'continue'))};", [cond])


@kind(1.2, "votes", least=1, deep=True)
def vote_loop(taste, scope, depth):
    """Rounds for as long as one of the lanes, or of the block's threads, wants another."""
    i, most = f"i{taste.fresh()}", taste.rng.randint(1, 6)
    inner = scope.but(
        breaks=False, continues=False, masked_breaks=False, uniform_breaks=scope.level > 1, calls=scope.calls - 1
    )
    vote = taste.rng.choice(("__any_sync(m, $0)", "!__all_sync(m, $0)", "__ballot_sync(m, $0) > 5u"))
    if scope.level == 3:
        vote = taste.rng.choice(("__syncthreads_or($0)", "__syncthreads_count($0) > 3", "!__syncthreads_and($0)"))
    body = block(taste, inner.having(Var(i, "s32", 0, False)), depth - 1, 2)
    form = f"for (int {i} = 0; {i} < {most} && {vote}; {i}++) {{\n    {extra(taste, scope)}\n    @0\n}}"
    return Stmt("vote_loop", form, [condition(taste, scope, 1)], [body])


@kind(2.5, "masks", least=1, deep=True)
def masked_branch(taste, scope, depth):
    """Both sides know who is there."""
    inner = scope.but(level=1, breaks=False, uniform_breaks=False, continues=False, masked_breaks=False)
    form = (
        "{\n    const bool c = $0;\n    const unsigned n = __ballot_sync(m, c), o = m & ~n;\n    if (c) {\n        const unsigned m = n;\n"
        "        @0\n    } else {\n        const unsigned m = o;\n        @1\n    }\n}"
    )
    return Stmt("masked_branch", form, [condition(taste, scope, 2)], [block(taste, inner, depth - 1) for _ in range(2)])


@kind(1, "masks", least=1, deep=True)
def masked_switch(taste, scope, depth):
    inner = scope.but(level=1, breaks=False, uniform_breaks=False, continues=False, masked_breaks=False)
    form = (
        "{\n    const int c = $0 & 3;\n    const unsigned n = __match_any_sync(m, c);\n    const unsigned m = n;\n    switch (c) {\n"
        "    case 0:\n        @0\n        break;\n    case 2:\n        @1\n        break;\n    default:\n        @2\n    }\n}"
    )
    # lanes of 1 and 3 are in `default` with masks of their own
    return Stmt(
        "masked_switch",
        form,
        [expression(taste, scope, "s32", 2)],
        [block(taste, inner, depth - 1, 2) for _ in range(3)],
    )


@kind(2.5, "masks", least=1, deep=True)
def masked_loop(taste, scope, depth):
    """Lanes leave one by one, and those that stay know who is left."""
    inner = scope.but(
        level=1, breaks=False, uniform_breaks=False, continues=False, masked_breaks=True, calls=scope.calls - 1
    )
    body = block(taste, inner, depth - 1)
    if taste.chance(0.5):
        body.insert(taste.rng.randrange(len(body) + 1), masked_leave(taste, scope))
    form = (
        "{\n    unsigned n = m;\n    while (true) {\n"
        f"        {extra(taste, scope)}\n"
        "        const bool c = $0 && --fuel >= 0;\n        n = __ballot_sync(n, c);\n        if (!c) break;\n        unsigned m = n;\n"
        "        @0\n    }\n}"
    )
    return Stmt("masked_loop", form, [condition(taste, scope, 2)], [body])


def masked_leave(taste, scope):
    """One exit for a loop's lanes; only one for each loop, as lanes that continue would not know who breaks."""
    if taste.chance(0.5):
        form = "{\n    const bool c = $0;\n    m = n = __ballot_sync(m, !c);\n    if (c) break;\n}"
    else:
        form = "{\n    const bool c = $0;\n    m = __ballot_sync(m, !c);\n    if (c) continue;\n}"
    return Stmt("masked_leave", form, [condition(taste, alone(scope), 1)])


@kind(0.6, "lock", most=3)
def lock(taste, scope, depth):
    """Lanes wait for each other before they change what all share."""
    if not scope.kernel:
        return None
    form = (
        "for (bool done = false; !done;) {\n    if (atomicCAS(acc + 60, 0u, 1u) == 0u) {\n        __threadfence();\n"
        "        *(volatile unsigned*)(acc + 61) = *(volatile unsigned*)(acc + 61) + $0;\n        __threadfence();\n"
        "        atomicExch(acc + 60, 0u);\n        done = true;\n    }\n}"
    )
    return Stmt("lock", form, [expression(taste, scope, "u32", 1)])


def last_block(scope):
    """At the end: what the first threads have is summed up by the block that comes last."""
    return Stmt("last_block", LAST, [Expr("u32", "s")])


LAST = """{
    __shared__ unsigned ticket;
    const int blocks = gridDim.x * gridDim.y;
    if (tid == 0) {
        wide[16 + blocks * 32 + block] = $0;
        __threadfence();
        ticket = atomicAdd(acc + 62, 1u);
    }
    __syncthreads();
    if (ticket == blocks - 1) {
        __threadfence();
        unsigned long long sum = 0;
        for (int k = tid; k < blocks; k += THREADS) sum += ((volatile unsigned long long*)wide)[16 + blocks * 32 + k];
        atomicAdd(wide + 15, sum);
    }
}"""


def early_exit(taste, scope):
    """Some threads end before the others have met."""
    form = "{\n    const bool c = $0;\n    m = __ballot_sync(m, !c);\n    if (c) {\n        own[gid * 4] = $1;\n        return;\n    }\n}"
    return Stmt("early_exit", form, [condition(taste, scope, 1), expression(taste, scope, "s32", 1)])
