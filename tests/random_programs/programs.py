"""A whole random program from a seed: its shape, features, types, functions and kernel."""

from __future__ import annotations

import random

from .expressions import Array, Scope, Signature, Taste, Var, cast, condition, constant, expression
from .kinds import block
from .together import early_exit, last_block
from .tree import C_TYPES, INTEGERS, PER_BLOCK, PER_WARP, Expr, Function, Program, Stmt
from .values import COMMON, COMMON_TYPES

BLOCKS = ((32,), (64,), (33,), (48,), (31,), (1,), (7,), (96,), (70,), (8, 4), (16, 3), (5, 7), (4, 4, 4), (33, 2), (32, 2),
          (2, 3, 5), (16, 4), (8, 8), (1, 40), (128,), (16, 16))  # fmt: skip
GRIDS = ((1,), (1,), (2,), (3,), (2, 2), (1, 3))
FEATURES = ("own", "vectors", "atomics", "waits", "loops", "switch", "exits", "jumps", "gotos", "functions", "structs",
            "arrays", "constants", "rows", "lock")  # fmt: skip
OPTIONS = tuple(("-fmad=false", *more) for more in ((), ("-G",), ("--Ofast-compile=mid",), ("-lineinfo",)))
TOGETHER = ("shuffles", "votes", "shared", "masks", "uniforms")
FRAME = (
    "const int total = gridDim.x * gridDim.y * THREADS;",
    "const int tid = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z), lane = tid & 31;",
    "const int block = blockIdx.x + gridDim.x * blockIdx.y, gid = block * THREADS + tid;",
    "unsigned m = (tid | 31) < THREADS ? ~0u : (1u << (THREADS & 31)) - 1;",
    "unsigned s = in[gid & 255];",
    "int fuel = 40;",
)
#: How a function calls itself: each lane as it likes, those that do with their mask, or all.
RECURSE = {
    0: "if ($0 && n > 0) v0 = $1;",
    1: "{\n    const bool c = $0 && n > 0;\n    const unsigned o = __ballot_sync(m, c);\n    if (c) v0 = $1;\n}",
    3: "if (n > 0) v0 = $1;",
}
OBSERVED = {"f32": "fbits({})", "f64": "dbits({})"}


def generate(seed: int) -> Program:
    """The program of a seed; always the same."""
    rng = random.Random(seed)
    taste = Taste(rng)
    rate = rng.choice((0.3, 0.5, 0.7))
    taste.features = {f for f in FEATURES if rng.random() < rate * (0.15 if f == "lock" else 1)}
    level = rng.choice((0, 0, 2, 3, 3))
    if level:
        taste.features |= {f for f in TOGETHER if rng.random() < 0.7}
    if level == 3:
        taste.features |= {"barriers"} | ({"chain"} if rng.random() < 0.1 else set())
    every = [*INTEGERS, "f32", "f64"]
    taste.types = tuple(rng.sample(every, rng.randint(1, 4))) + (("s32", "u32") if rng.random() < 0.7 else ("s32",))
    options = rng.choices(OPTIONS, (84, 8, 4, 4))[0]
    most = rng.choice((3, 5, 8, 12, 20)) // (2 if "-G" in options else 1)  # code for debugging is many times as long
    program = Program(
        seed, options, rng.choice(GRIDS), rng.choice(BLOCKS), rng.choice((0, 1, 3, 5, 17)), rng.randrange(33)
    )
    program.bounds = rng.choice(("", "", "", "__launch_bounds__(THREADS) "))
    program.pointer = rng.choice(("const int*", "const int* __restrict__"))
    if level:
        taste.shared = rng.choice(("s32", taste.type()))
        taste.exchanges = level == 3 or "shared" in taste.features
        program.parts.append(f"typedef {C_TYPES[taste.shared]} EX;")
    scope = Scope(level=level, returns="" if level else "kernel")
    structs = _structs(taste, program) if "structs" in taste.features else []
    if "constants" in taste.features:
        scope = scope.but(arrays=(_constants(taste, program),))
    if "functions" in taste.features:
        for _ in range(rng.choice((1, 1, 2, 3))):
            taste.budget = most // 3
            _function(taste, program, structs, scope)
    scope = _kernel_variables(taste, program, scope, structs, level)
    scope = scope.but(functions=len(taste.functions))
    leaving = taste.chance(0.3) and "chain" not in taste.features
    if level and leaving:
        program.body.append(early_exit(taste, scope))
    taste.budget = most
    program.body += block(taste, scope, rng.choice((1, 2, 2, 3)), rng.choice((2, 4, 5)))
    if level == 3 and not leaving and taste.chance(0.2):
        program.body.append(last_block(scope))
    _ending(program, scope)
    return program


def _structs(
    taste: Taste, program: Program
) -> list[tuple[str, list[tuple[str, str, str]], list[tuple[str, str, int]]]]:
    """Types with fields of all kinds; each as its name, its fields (name, type, how it is read) and its arrays."""
    found = []
    for n in range(taste.rng.choice((1, 1, 2))):
        name, lines, fields, arrays = f"S{n}", [], [], []
        for k in range(taste.rng.randint(1, 3)):
            t, way = taste.type(), taste.rng.random()
            c = C_TYPES[t]
            if way < 0.3 and t in INTEGERS:
                width = taste.rng.randint(1, int(t[1:]))
                lines.append(f"{c} f{k} : {width};")
                fields.append((f"f{k}", t, f"(({c}){{}}.f{k})"))
            elif way < 0.4:
                lines.append(f"union {{ unsigned w; unsigned short h[2]; unsigned char b[4]; }} u{k};")
                fields.append((f"u{k}.w", "u32", ""))
                arrays += [(f"u{k}.h", "u16", 2), (f"u{k}.b", "u8", 4)]
            elif way < 0.5:
                lines.append(f"{c} f{k}[4];")
                arrays.append((f"f{k}", t, 4))
            else:
                lines.append(f"{c} f{k};")
                fields.append((f"f{k}", t, ""))
        program.parts.append(f"struct {name} {{ {' '.join(lines)} }};")
        found.append((name, fields, arrays))
    return found


def _struct_variable(scope: Scope, struct, name: str) -> Scope:
    kind, fields, arrays = struct
    return scope.but(
        vars=scope.vars + tuple(Var(f"{name}.{f}", t, read=read.format(name)) for f, t, read in fields),
        arrays=scope.arrays + tuple(Array(f"{name}.{f}", t, size) for f, t, size in arrays),
        structs=(*scope.structs, (name, kind)),
    )


def _constants(taste: Taste, program: Program) -> Array:
    t = taste.type()
    values = ", ".join(constant(taste, t).text() for _ in range(16))
    memory = taste.rng.choice(("__constant__", "__device__"))
    program.parts.append(f"{memory} const {C_TYPES[t]} table[16] = {{{values}}};")
    return Array("table", t, 16, False)


def _locals(taste: Taste, program_or_list: list[Stmt], scope: Scope, count: int, prefix: str) -> Scope:
    for k in range(count):
        t = "s32" if k == 0 else taste.type()
        name = f"{prefix}{k}"
        program_or_list.append(Stmt("local", f"{C_TYPES[t]} {name} = $0;", [expression(taste, scope, t, 1)]))
        scope = scope.having(Var(name, t))
    return scope


def _function(taste: Taste, program: Program, structs, outer: Scope) -> None:
    """One device function, several with a table, or one that calls itself."""
    rng, n = taste.rng, len(taste.functions)
    level = rng.choice([0, 0, outer.level and 1, outer.level if outer.level == 3 else 0])
    struct = rng.choice(structs) if structs and level == 0 and taste.chance(0.4) else None
    way = "struct" if struct else rng.choice(("plain", "plain", "family", "recursive"))
    result = taste.type()
    parameters = tuple(taste.type() for _ in range(rng.randint(1, 3)))
    names = [f"f{n}"] if way != "family" else [f"f{n}_{k}" for k in range(rng.randint(2, 3))]
    family = tuple(names) if way == "family" else ()
    inline = rng.choice(("__noinline__", "__noinline__", "__forceinline__", ""))
    for name in names:
        declared = [f"{C_TYPES[t]} a{k}" for k, t in enumerate(parameters)] + [COMMON_TYPES[level]]
        scope = Scope(arrays=outer.arrays, level=level, kernel=False, functions=n, calls=1)
        scope = scope.having(*(Var(f"a{k}", t) for k, t in enumerate(parameters)))
        returned = C_TYPES[result]
        if struct:
            declared.insert(0, f"{struct[0]} b")
            scope, returned = _struct_variable(scope, struct, "b"), struct[0]
        if way == "recursive":
            declared.insert(0, "int n")
        declarations = [Stmt("fuel", f"int fuel = {rng.choice((3, 8, 12))};")]
        scope = _locals(taste, declarations, scope, rng.randint(1, 2), "v")
        if not struct and level == 0:
            scope = scope.but(returns=result)
        body = block(taste, scope, rng.choice((1, 2)), 3)
        if way == "recursive":
            args = tuple(expression(taste, scope, t, 1) for t in parameters)
            holes = ", ".join(f"${k}" for k in range(len(args)))
            common = COMMON[level].replace("s", "s ^ n", 1).replace(" m,", " o," if level == 1 else " m,")
            value = cast(Expr(result, f"{name}(n - 1, {holes}, {common})", args), "s32")
            again = Stmt("recurse", RECURSE[level], [condition(taste, scope, 1), value])
            body.insert(rng.randrange(len(body) + 1), again)
        end = (
            Stmt("result", "return b;")
            if struct
            else Stmt("result", "return $0;", [expression(taste, scope, result, 2)])
        )
        head = f"static __device__ {inline} {returned} {name}({', '.join(declared)})"
        program.functions.append(Function(name, head, declarations, body, end))
    if family:
        types = ", ".join([*(C_TYPES[t] for t in parameters), COMMON_TYPES[level]])
        after = f"typedef {C_TYPES[result]} (*{names[0]}_type)({types});\n"
        after += f"__device__ {names[0]}_type const t_{names[0]}[] = {{{', '.join(names)}}};"
        program.functions.append(Function(f"t_{names[0]}", after, [], [], Stmt("", "")))
    taste.functions.append(
        Signature(names[0], result, parameters, level, struct[0] if struct else "", family, way == "recursive")
    )


def _kernel_variables(taste: Taste, program: Program, scope: Scope, structs, level: int) -> Scope:
    rng, out = taste.rng, program.declarations
    out += [Stmt("frame", line) for line in FRAME]
    scope = _locals(taste, out, scope, rng.randint(2, 4), "v")
    if "uniforms" in taste.features:
        out.append(Stmt("local", "int ub = $0;", [expression(taste, scope, "s32", 1, PER_BLOCK)]))
        out.append(Stmt("local", "unsigned uw = __ballot_sync(m, $0);", [condition(taste, scope, 1)]))
        scope = scope.having(Var("ub", "s32", PER_BLOCK), Var("uw", "u32", PER_WARP))
    if "arrays" in taste.features:
        for k in range(rng.randint(1, 2)):
            t, size = taste.type(), rng.choice((2, 4, 8))
            values = [expression(taste, scope, t, 1) for _ in range(size)]
            holes = ", ".join(f"${j}" for j in range(size))
            out.append(Stmt("array", f"{C_TYPES[t]} x{k}[{size}] = {{{holes}}};", values))
            scope = scope.but(arrays=(*scope.arrays, Array(f"x{k}", t, size)))
    if "vectors" in taste.features:
        base, t = rng.choice(
            (
                ("int", "s32"),
                ("uint", "u32"),
                ("short", "s16"),
                ("uchar", "u8"),
                ("longlong", "s64"),
                ("float", "f32"),
                ("double", "f64"),
            )
        )
        lanes = rng.choice(("xy", "xyzw"))
        values = [expression(taste, scope, t, 1) for _ in lanes]
        holes = ", ".join(f"${j}" for j in range(len(lanes)))
        out.append(Stmt("vector", f"{base}{len(lanes)} w = make_{base}{len(lanes)}({holes});", values))
        scope = scope.having(*(Var(f"w.{x}", t) for x in lanes))
    for struct in structs:
        for k in range(2):
            name = f"{struct[0].lower()}_{k}"
            out.append(Stmt("struct", f"{struct[0]} {name} = {{}};"))
            scope = _struct_variable(scope, struct, name)
        fields = [(f, t) for f, t, read in struct[1] if not read]
        if fields and taste.chance(0.5):
            name = f"{struct[0].lower()}_x"
            # `= {}` of structs with padding loses stores at indices that NVRTC does not know
            out.append(Stmt("struct", f"{struct[0]} {name}[4];\nmemset({name}, 0, sizeof {name});"))
            scope = scope.but(arrays=scope.arrays + tuple(Array(name, t, 4, field=f".{f}") for f, t in fields))
    if taste.exchanges:
        out.append(
            Stmt("shared", "__shared__ EX ex[THREADS];\nex[tid] = $0;", [expression(taste, scope, taste.shared, 1)])
        )
    if "chain" in taste.features:
        out.append(Stmt("shared", "__shared__ unsigned flags[THREADS];"))
    if level == 3:
        out.append(
            Stmt(
                "shared",
                "__shared__ unsigned sacc[32];\nfor (int k = tid; k < 32; k += THREADS) sacc[k] = k * 0x9e3779b1u;\n__syncthreads();",
            )
        )
    return scope


def _ending(program: Program, scope: Scope) -> None:
    """All that the threads have is compared."""
    end = program.ending
    if scope.level == 3:
        end.append(
            Stmt(
                "out",
                "__syncthreads();\nfor (int k = tid; k < 32; k += THREADS) wide[16 + block * 32 + k] = sacc[k];",
            )
        )
    for v in [*scope.vars, Var("s", "u32"), Var("fuel", "s32")]:
        if v.write:
            value = OBSERVED.get(v.type, "(long long){}").format(v.name)
            end.append(Stmt("out", f"out[ROW * total + gid] = {value};"))
    for a in scope.arrays:
        if a.write:
            value = OBSERVED.get(a.type, "(long long){}").format(a.at("k"))
            end.append(
                Stmt("out", f"for (int k = 0; k < {a.size}; k++) out[(ROW{a.size} + k) * total + gid] = {value};")
            )
