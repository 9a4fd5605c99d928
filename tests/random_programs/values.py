"""Random statements that compute and touch memory: assignments, arrays, atomics, calls."""

from __future__ import annotations

from .expressions import cast, condition, expression
from .kinds import kind, target
from .tree import C_TYPES, DIVERGENT, PER_BLOCK, PER_WARP, Expr, Stmt

STEP = "s = s * 1664525u + 1013904223u;"  # of a value that is random for each lane
FENCES = ("__threadfence_block();", "__threadfence();", "s ^= *(volatile unsigned*)(acc + 63);",
          "s ^= ((const volatile unsigned*)in)[gid & 255] & 1;")  # fmt: skip


# Values and memory ----------------------------------------------------------------------------------------------------


@kind(4)
def assign(taste, scope, depth):
    var = target(taste, scope)
    if taste.chance(0.2) and var.type in ("u32", "u64"):
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
    return Stmt("array_store", f"{a.at('$0')} = $1;", [index, expression(taste, scope, a.type, 2)])


@kind(0.7)
def struct_copy(taste, scope, depth):
    pairs = [(a, b) for a, t in scope.structs for b, u in scope.structs if a != b and t == u]
    if not pairs:
        return None
    a, b = taste.rng.choice(pairs)
    return Stmt("struct_copy", f"{a} = {b};")


@kind(1.5, "own")
def own_store(taste, scope, depth):
    """A word of the lane's own, at an address that steps from lane to lane by one or by four."""
    if not scope.kernel:
        return None
    place = taste.rng.choice(("gid * 4 + ($0 & 3)", "gid + total * 4 + total * ($0 & 3)", "gid + total * 5"))
    index, value = expression(taste, scope, "s32", 1), expression(taste, scope, "s32", 2)
    how = taste.rng.choice(("own", "own", "own", "((volatile int*)own)" if "waits" in taste.features else "own"))
    return Stmt("own_store", f"{how}[{place}] = $1;", [index, value])


@kind(1, "own")
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


@kind(0.8, "own")
def pointer(taste, scope, depth):
    """Through an address that is of one kind of memory in some lanes and of another in others."""
    if not scope.kernel:
        return None
    places = ["own + gid * 4 + ($1 & 3)", "own + gid + total * 5"]
    places += [f"{a.name} + ($1 & {a.size - 1})" for a in scope.arrays if a.write and a.type == "s32" and not a.field]
    if taste.exchanges and taste.shared == "s32":
        places.append("ex + tid")
    one, other = (taste.rng.choice(places) for _ in range(2))
    var = target(taste, scope, "s32")
    uses = ["*at = $2;", f"{var.name} = ({C_TYPES[var.type]})*at;", "*at = *at ^ $2;"]
    if all(place.startswith(("own", "ex")) for place in (one, other)):  # local memory has no atomics
        uses.append("atomicXor(at, $2);")
    use = taste.rng.choice(uses)
    args = [condition(taste, scope, 1), expression(taste, scope, "s32", 1), expression(taste, scope, "s32", 1)]
    return Stmt("pointer", f"{{\n    int* at = $0 ? {one} : {other};\n    {use}\n}}", args)


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
_LOOP16 = (
    "{ unsigned short *at = (unsigned short*)(AT) + 1, was = *(volatile unsigned short*)at, t; "
    "do { t = was; was = atomicCAS(at, t, (unsigned short)(t ^ $1)); } while (was != t); }"
)
_LOOP64 = (
    "{ unsigned long long *at = wide + 14, was = *(volatile unsigned long long*)at, t; "
    "do { t = was; was = atomicCAS(at, t, t + $1 * 77777ull); } while (was != t); }"
)
# On words of all blocks: an atomic of a block's scope would race with those of others.
_ATOMICS = (
    (0, ("atomicAdd(AT, $1);", "atomicSub(AT, $1);", "atomicAdd_system(AT, $1);", _LOOP.replace("OP", "t + $1"))),
    (4, ("atomicMin(AT, $1);", _LOOP.replace("OP", "min(t, $1)"))),
    (8, ("atomicMax(AT, $1);", "atomicMax(AT, $1 & 65535u);")),
    (12, ("atomicAnd(AT, $1 | 65535u);", "atomicAnd(AT, ~(1u << ($1 & 31u)));")),
    (16, ("atomicOr(AT, 1u << ($1 & 31u));", "atomicOr(AT, $1 & 0x11111u);")),
    (20, ("atomicXor(AT, $1);", _LOOP.replace("OP", "t ^ $1"))),
    (24, ("atomicInc(AT, 1000000u);",)),
    (52, ("{ atomicXor(acc + 28, atomicInc(AT, 1000000u)); }",)),  # all that count there tell
    (32, ("atomicMin((int*)(AT), (int)$1);",)),
    (36, ("atomicMax((int*)(AT), (int)$1);",)),
    (40, ("atomicAdd((float*)(AT), (float)(int)($1 & 255u));",)),
    (44, ("atomicDec(AT, 4000000000u);", "atomicDec_system(AT, 4000000000u);")),
    (56, (_LOOP16,)),
    (48, ("{ atomicAdd(wide + ($0 & 3), (unsigned long long)$1 << 20); }",)),
    (48, ("{ atomicMax(wide + 4 + ($0 & 3), (unsigned long long)$1 * $1); }", "{ atomicXor(wide + 8 + ($0 & 3), (unsigned long long)$1 << 13); }")),
    (48, ("{ atomicMin((long long*)wide + 12, (long long)(int)$1 * 77777); }", "{ atomicAdd((double*)wide + 13, (double)($1 & 1023u)); }", _LOOP64)),
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
    form, called = f"{var.name} = $0;", f.name
    if f.recursive:
        holes.insert(0, str(taste.rng.randint(1, 3)))
    if f.family and taste.chance(0.7):
        called = f"t_{f.name}[${len(args)} % {len(f.family)}u]"
        # lanes that do something together have to be in one function
        rank = {0: DIVERGENT, 1: PER_WARP, 3: PER_BLOCK}[f.level]
        args.append(expression(taste, scope, "u32", 1, rank))
        if taste.chance(0.5):  # a table of the block's own
            form = f"{{\n    {f.name}_type const t_{f.name}[] = {{{', '.join(f.family)}}};\n    {form}\n}}"
    value = Expr(f.result, f"{called}({', '.join(holes)})", tuple(args))
    return Stmt("call_pointer" if f.family else "call", form, [cast(value, var.type)])


#: What functions of a level are given besides their own parameters.
COMMON = {0: "s", 1: "s, m, lane", 3: "s, m, lane, tid, ex"}
COMMON_TYPES = {
    0: "unsigned s",
    1: "unsigned s, unsigned m, int lane",
    3: "unsigned s, unsigned m, int lane, int tid, EX* ex",
}
