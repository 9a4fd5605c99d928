"""Random programs: expressions and control flow made by Hypothesis, run as CUDA C and by a small interpreter in NumPy."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rawkern

pytestmark = pytest.mark.usefixtures("optimized")

N = 77
EFFORT = int(os.environ.get("RAWKERN_RANDOM_EFFORT", "1"))  # how many times as many programs as usual
QUICK = settings(
    max_examples=10 * EFFORT, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
SLOTS = 3  # variables that a program changes


# Expressions ---------------------------------------------------------------------------------------------------------
# An expression is a number, a name, or (operator, operand, ...). The interpreter works on all threads at once.

INT_BINARY = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor,
    "<": np.less, "<=": np.less_equal, "==": np.equal, "!=": np.not_equal, ">": np.greater,
}  # fmt: skip
NAMES = ("x", "y", "i", "u", *(f"v{k}" for k in range(SLOTS)))


def c_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Towards zero; b is made odd and positive where it stands."""
    quotient = np.abs(a.astype(np.int64)) // b
    return (np.where(a < 0, -quotient, quotient)).astype(np.int32)


def evaluate(e, env: dict[str, np.ndarray]) -> np.ndarray:
    if isinstance(e, int):
        return np.full(N, e, np.int32)
    if isinstance(e, str):
        return env[e]
    op, *rest = e
    args = [evaluate(a, env) for a in rest]
    if op in INT_BINARY:
        return INT_BINARY[op](*args).astype(np.int32)
    if op == "?":
        return np.where(args[0] != 0, args[1], args[2])
    if op == "~":
        return ~args[0]
    if op == "!":
        return (args[0] == 0).astype(np.int32)
    if op == "<<":
        return (args[0].view(np.uint32) << (args[1] & 31).astype(np.uint32)).view(np.int32)
    if op == ">>":
        return args[0] >> (args[1] & 31)
    if op == ">>>":
        return (args[0].view(np.uint32) >> (args[1] & 31).astype(np.uint32)).view(np.int32)
    if op in ("/", "%"):
        divisor = (args[1] & 1023) | 1
        quotient = c_divide(args[0], divisor)
        return quotient if op == "/" else (args[0] - quotient * divisor).astype(np.int32)
    if op == "[]":
        return env["table"][args[0] & 31]
    if op == "hi":
        return (args[0].astype(np.int64) * args[1] >> 32).astype(np.int32)
    if op == "char":
        return args[0].astype(np.int8).astype(np.int32)
    if op == "max":
        return np.maximum(*args)
    raise AssertionError(op)


def text(e) -> str:
    if isinstance(e, int):
        return f"({e})" if e != -(2**31) else "(-2147483647 - 1)"
    if isinstance(e, str):
        return e
    op, *rest = e
    a = [text(r) for r in rest]
    if op in ("+", "-", "*"):
        return f"(int)((unsigned){a[0]} {op} (unsigned){a[1]})"
    if op in INT_BINARY:
        return f"({a[0]} {op} {a[1]})"
    forms = {
        "?": "({0} ? {1} : {2})", "~": "(~{0})", "!": "(!{0})", "<<": "(int)((unsigned){0} << ({1} & 31))", ">>": "({0} >> ({1} & 31))",
        ">>>": "(int)((unsigned){0} >> ({1} & 31))", "/": "({0} / (({1} & 1023) | 1))", "%": "({0} % (({1} & 1023) | 1))",
        "[]": "table[{0} & 31]", "hi": "__mulhi({0}, {1})", "char": "((int)(signed char){0})", "max": "max({0}, {1})",
    }  # fmt: skip
    return forms[op].format(*a)


CONSTANTS = st.sampled_from([0, 1, -1, 2, 3, 5, 31, 32, 64, 100, 255, 65535, -7, 2**31 - 1, -(2**31)]) | st.integers(
    -40, 40
)
LEAVES = st.sampled_from(NAMES) | CONSTANTS


def expressions(depth: int):
    if depth == 0:
        return LEAVES
    e = expressions(depth - 1)
    two = st.tuples(st.sampled_from([*INT_BINARY, "+", "-", "*", "<<", ">>", ">>>", "/", "%", "hi", "max"]), e, e)
    one = st.tuples(st.sampled_from(["~", "!", "[]", "char"]), e)
    return st.one_of(LEAVES, two, two, one, st.tuples(st.just("?"), e, e, e))


# Programs --------------------------------------------------------------------------------------------------------------


@dataclass
class State:
    env: dict[str, np.ndarray]
    fuel: np.ndarray


def assign(env: dict[str, np.ndarray], name: str, value: np.ndarray, active: np.ndarray) -> None:
    env[name] = np.where(active, value, env[name])


@dataclass
class Jumps:
    """Lanes that left the straight path: they broke off, go on with the next round, or returned."""

    broke: np.ndarray
    continued: np.ndarray
    returned: np.ndarray


def execute(block, state: State, active: np.ndarray, jumps: Jumps, depth: int = 0) -> np.ndarray:
    """Run statements for the lanes `active`; returns those that reach the end."""
    env = state.env
    for statement in block:
        kind, *rest = statement
        if kind == "set":
            assign(env, f"v{rest[0]}", evaluate(rest[1], env), active)
        elif kind == "store":
            index, value = evaluate(rest[0], env) & 3, evaluate(rest[1], env)
            for k in range(4):
                env["memory"][k] = np.where(active & (index == k), value, env["memory"][k])
        elif kind == "load":
            index = evaluate(rest[1], env) & 3
            assign(env, f"v{rest[0]}", np.choose(index, env["memory"]), active)
        elif kind == "if":
            taken = evaluate(rest[0], env) != 0
            then = execute(rest[1], state, active & taken, jumps, depth)
            other = execute(rest[2], state, active & ~taken, jumps, depth)
            active = then | other
        elif kind in ("while", "do"):
            inside, left = active.copy(), np.zeros(N, bool)
            first = kind == "do"
            mine = Jumps(np.zeros(N, bool), np.zeros(N, bool), jumps.returned)
            while True:
                if not first:
                    going = inside & (evaluate(rest[0], env) != 0)
                    state.fuel = np.where(going, state.fuel - 1, state.fuel)
                    going &= state.fuel >= 0
                    left |= inside & ~going
                    inside = going
                first = False
                if not inside.any():
                    break
                mine.broke[:], mine.continued[:] = False, False
                end = execute(rest[1], state, inside, mine, depth + 1)
                left |= mine.broke
                inside = end | mine.continued
            active = left
        elif kind == "switch":
            value = evaluate(rest[0], env) & 3
            waiting, here = active.copy(), np.zeros(N, bool)
            mine = Jumps(np.zeros(N, bool), jumps.continued, jumps.returned)
            for k, (body, falls) in enumerate(rest[1]):
                here |= waiting & (value == k)
                waiting &= value != k
                here = execute(body, state, here, mine, depth)
                if not falls:
                    mine.broke |= here
                    here = np.zeros(N, bool)
            active = here | waiting | mine.broke
        elif kind == "break":
            jumps.broke |= active
            return np.zeros(N, bool)
        elif kind == "continue":
            jumps.continued |= active
            return np.zeros(N, bool)
        elif kind == "return":
            jumps.returned |= active
            return np.zeros(N, bool)
    return active


def program_text(block, indent: str = "    ") -> str:
    lines = []
    for kind, *rest in block:
        if kind == "set":
            lines.append(f"v{rest[0]} = {text(rest[1])};")
        elif kind == "store":
            lines.append(f"memory[{text(rest[0])} & 3] = {text(rest[1])};")
        elif kind == "load":
            lines.append(f"v{rest[0]} = memory[{text(rest[1])} & 3];")
        elif kind == "if":
            lines.append(f"if ({text(rest[0])}) {{\n{program_text(rest[1], indent + '    ')}\n{indent}}}")
            if rest[2]:
                lines[-1] += f" else {{\n{program_text(rest[2], indent + '    ')}\n{indent}}}"
        elif kind == "while":
            lines.append(
                f"while ({text(rest[0])} && --fuel >= 0) {{\n{program_text(rest[1], indent + '    ')}\n{indent}}}"
            )
        elif kind == "do":
            body = program_text(rest[1], indent + "    ")
            lines.append(f"do {{\n{body}\n{indent}}} while ({text(rest[0])} && --fuel >= 0);")
        elif kind == "switch":
            cases = "\n".join(
                f"{indent}case {k}:\n{program_text(body, indent + '    ')}{'' if falls else f'{chr(10)}{indent}    break;'}"
                for k, (body, falls) in enumerate(rest[1])
            )
            lines.append(f"switch ({text(rest[0])} & 3) {{\n{cases}\n{indent}default: ;\n{indent}}}")
        else:
            lines.append({"break": "break;", "continue": "continue;", "return": "goto out;"}[kind])
    return "\n".join(indent + line for line in lines)


def blocks(depth: int, loop: bool = False, switch: bool = False):
    e, slot = expressions(1), st.integers(0, SLOTS - 1)
    simple = st.one_of(
        st.tuples(st.just("set"), slot, expressions(2)),
        st.tuples(st.just("store"), e, e),
        st.tuples(st.just("load"), slot, e),
    )
    if depth == 0:
        return st.lists(simple, min_size=1, max_size=2)
    inner = blocks(depth - 1, loop, switch)
    body = blocks(depth - 1, True, False)
    cases = st.lists(st.tuples(blocks(depth - 1, loop, True), st.booleans()), min_size=1, max_size=4)
    nested = [
        st.tuples(st.just("if"), e, inner, inner | st.just([])), st.tuples(st.just("if"), e, inner, inner | st.just([])),
        st.tuples(st.just("while"), e, body), st.tuples(st.just("do"), e, body), st.tuples(st.just("switch"), e, cases),
    ]  # fmt: skip
    leaving = [st.tuples(st.just("return"))]
    if loop or switch:
        leaving.append(st.tuples(st.just("break")))
    if loop:
        leaving.append(st.tuples(st.just("continue")))
    jump = st.tuples(st.just("if"), e, st.lists(st.one_of(leaving), min_size=1, max_size=1), st.just([]))
    return st.lists(st.one_of(simple, simple, *nested, jump), min_size=1, max_size=4)


RNG = np.random.default_rng(11)
X = np.concatenate([[0, 1, -1, 2**31 - 1, -(2**31)], RNG.integers(-(2**31), 2**31, N - 5)]).astype(np.int32)
Y = RNG.integers(-6, 7, N).astype(np.int32)
TABLE = RNG.integers(-100, 100, 32).astype(np.int32)
FRAME = """extern "C" __global__ void k(int n, int u, const int* xs, const int* ys, const int* table, int* out) {
    int i = (blockIdx.x * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = xs[i], y = ys[i], v0 = 0, v1 = x, v2 = i, fuel = 60;
    int memory[4] = {1, i, y, -3};
%s
    goto out;
out:
    END
    out[i] = v0; out[n + i] = v1; out[2 * n + i] = v2; out[3 * n + i] = fuel;
    for (int k = 0; k < 4; k++) out[(4 + k) * n + i] = memory[k];
}"""


def check(block, u: int = 5, threads=(48,), waiting: bool = False) -> None:
    """Run a program on both sides and compare all that it left behind.

    With `waiting`, loops hold a fence, as those do that wait for another thread, and all meet at a barrier at the end.
    """
    i = np.arange(N, dtype=np.int32)
    env = {
        "x": X,
        "y": Y,
        "i": i,
        "u": np.full(N, u, np.int32),
        "v0": np.zeros(N, np.int32),
        "v1": X,
        "v2": i,
        "table": TABLE,
    }
    env["memory"] = [np.full(N, 1, np.int32), i.copy(), Y.copy(), np.full(N, -3, np.int32)]  # type: ignore[assignment]
    state = State(env, np.full(N, 60, np.int32))
    with np.errstate(over="ignore"):
        execute(block, state, np.ones(N, bool), Jumps(*(np.zeros(N, bool) for _ in range(3))))
    code = (FRAME % program_text(block)).replace("END", "__syncthreads();" if waiting else ";")
    if waiting:
        code = code.replace("--fuel >= 0) {", "--fuel >= 0) { __threadfence_block();").replace(
            "do {", "do { __threadfence_block();"
        )
    out = torch.full((8 * N,), 12345, dtype=torch.int32)
    inputs = [torch.from_numpy(a) for a in (X, Y, TABLE)]
    rawkern.RawKernel(code)[2, threads](N, u, *inputs, out)
    want = np.array([*(env[f"v{k}"] for k in range(SLOTS)), state.fuel, *env["memory"]])
    got = out.numpy().reshape(8, N)
    assert np.array_equal(got, want), f"lanes {np.nonzero((got != want).any(0))[0][:5]} of\n{code}"


@QUICK
@given(st.lists(expressions(3), min_size=3, max_size=3))
def test_expressions(es):
    check([("set", k, e) for k, e in enumerate(es)])


@settings(QUICK, max_examples=20 * EFFORT)
@given(blocks(2), st.integers(-3, 40))
def test_control_flow(block, u):
    check(block, u=u)


@settings(QUICK, max_examples=8 * EFFORT)
@given(blocks(3), st.sampled_from([(48,), (6, 8), (32, 2)]))
def test_deep_control_flow(block, threads):
    check(block, threads=threads)


@settings(QUICK, max_examples=12 * EFFORT)
@given(blocks(2), st.sampled_from([(48,), (6, 8), (32, 2)]))
def test_control_flow_that_may_wait(block, threads):
    check(block, threads=threads, waiting=True)


# Floats -------------------------------------------------------------------------------------------------------------------

FLOAT_BINARY = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "fminf": np.fmin,
    "fmaxf": np.fmax,
    "<": np.less,
}
FLOAT_UNARY = {"-": np.negative, "fabsf": np.abs, "sqrtf": np.sqrt, "floorf": np.floor, "rintf": np.rint}


def float_expressions(depth: int):
    leaves = st.sampled_from(["a", "b", "c"]) | st.sampled_from([0.0, -0.0, 1.0, 0.5, -2.0, 3.0, 1e-30, 1e30, 0.1])
    if depth == 0:
        return leaves
    e = float_expressions(depth - 1)
    return st.one_of(
        leaves,
        st.tuples(st.sampled_from(list(FLOAT_BINARY)), e, e),
        st.tuples(st.sampled_from(["u" + f for f in FLOAT_UNARY]), e),
        st.tuples(st.sampled_from(["?", "fmaf"]), e, e, e),
    )


def float_value(e, env):
    if isinstance(e, float):
        return np.full(N, e, np.float32)
    if isinstance(e, str):
        return env[e]
    op, *rest = e
    args = [float_value(a, env) for a in rest]
    if op == "?":
        return np.where(args[0] > args[1], args[1], args[2])
    if op == "fmaf":  # rounded once: the float64 sum is rounded to odd first
        product = args[0].astype(np.float64) * args[1].astype(np.float64)
        third = args[2].astype(np.float64)
        total = product + third
        part = total - product
        error = (product - (total - part)) + (third - part)
        even = (total.view(np.int64) & 1) == 0
        toward = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
        fix = np.isfinite(total) & (error != 0) & even
        return np.where(fix, toward, total).astype(np.float32)
    if op[0] == "u":
        return FLOAT_UNARY[op[1:]](args[0]).astype(np.float32)
    return FLOAT_BINARY[op](*args).astype(np.float32)


def float_text(e) -> str:
    if isinstance(e, float):
        return f"{e!r}f" if e >= 0 and not np.signbit(e) else f"({e!r}f)"
    if isinstance(e, str):
        return e
    op, *rest = e
    a = [float_text(r) for r in rest]
    if op == "?":
        return f"({a[0]} > {a[1]} ? {a[1]} : {a[2]})"
    if op == "fmaf":
        return f"fmaf({', '.join(a)})"
    if op[0] == "u":
        return f"(-{a[0]})" if op == "u-" else f"{op[1:]}({a[0]})"
    return (
        f"{op}({', '.join(a)})"
        if op[0] == "f"
        else f"(float)({a[0]} {op} {a[1]})"
        if op == "<"
        else f"({a[0]} {op} {a[1]})"
    )


@QUICK
@given(st.lists(float_expressions(3), min_size=4, max_size=4))
def test_float_expressions(es):
    rng = np.random.default_rng(12)
    special = [0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-42, 3e38, 1, -1]
    arrays = [
        np.concatenate([np.roll(special, k), rng.standard_normal(N - 10) * 10.0 ** rng.integers(-9, 9, N - 10)])
        for k in range(3)
    ]
    env = dict(zip("abc", (v.astype(np.float32) for v in arrays), strict=True))
    lines = "\n".join(f"o[{k} * n + i] = {float_text(e)};" for k, e in enumerate(es))
    code = f"""extern "C" __global__ void k(int n, const float* x, const float* y, const float* z, float* o) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        float a = x[i], b = y[i], c = z[i];
        {lines}
    }}"""
    out = torch.full((4 * N,), 777.0)
    rawkern.RawKernel(code, options=("-fmad=false",))[2, 48](N, *(torch.from_numpy(v) for v in env.values()), out)
    with np.errstate(all="ignore"):
        want = np.array([float_value(e, env) for e in es])
    got = out.numpy().reshape(4, N)
    np.testing.assert_array_equal(got, want, err_msg=code)
    known = ~np.isnan(want)
    zeros = known & (want == 0)
    free = np.array(
        [["fminf" in float_text(e) or "fmaxf" in float_text(e)] for e in es]
    )  # which zero they give is open in NumPy
    assert (np.signbit(got) == np.signbit(want))[zeros & ~free].all(), code
