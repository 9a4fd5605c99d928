"""Random expressions over integers of all widths and floats: casts, shifts, comparisons, choices, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rawkern

from .test_random import EFFORT, QUICK

pytestmark = pytest.mark.usefixtures("optimized")

N = 77
C_TYPES = {
    "s8": "signed char", "u8": "unsigned char", "s16": "short", "u16": "unsigned short", "s32": "int", "u32": "unsigned",
    "s64": "long long", "u64": "unsigned long long", "f32": "float", "f64": "double",
}  # fmt: skip
DTYPES = {t: np.dtype(f"{'iuf'['suf'.index(t[0])]}{int(t[1:]) // 8}") for t in C_TYPES}
INTEGERS = [t for t in C_TYPES if t[0] != "f"]
COMPARISONS = {"<": np.less, "<=": np.less_equal, "==": np.equal, "!=": np.not_equal, ">": np.greater, ">=": np.greater_equal}  # fmt: skip
WRAPPING = {"+": np.add, "-": np.subtract, "*": np.multiply}
LOGIC = {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}
REAL = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}
FUNCTIONS = {"sqrt": np.sqrt, "fabs": np.fabs, "floor": np.floor, "trunc": np.trunc, "rint": np.rint}


def bits(t: str) -> int:
    return int(t[1:])


# An expression of type t is (what, t, operands...); it is built of such of the same type, and of casts from others.


def expressions(t: str, depth: int):
    leaves = st.tuples(st.just("input"), st.just(t)) | st.tuples(st.just("input"), st.just(t), st.just(1))
    if depth == 0:
        return leaves
    e, other = expressions(t, depth - 1), st.sampled_from(list(C_TYPES)).flatmap(lambda s: expressions(s, depth - 1))
    operators = [*REAL] if t[0] == "f" else [*WRAPPING, *LOGIC, "<<", ">>", "/", "%"]
    unary = [*FUNCTIONS, "neg"] if t[0] == "f" else ["~", "neg", "!"]
    pair = st.sampled_from(list(C_TYPES)).flatmap(
        lambda s: st.tuples(
            st.sampled_from(list(COMPARISONS)), st.just(t), expressions(s, depth - 1), expressions(s, depth - 1)
        )
    )
    return st.one_of(
        st.tuples(st.sampled_from(operators), st.just(t), e, e),
        st.tuples(st.sampled_from(operators), st.just(t), e, e),
        st.tuples(st.sampled_from(unary), st.just(t), e),
        st.tuples(st.just("cast"), st.just(t), other),
        st.tuples(st.just("?"), st.just(t), other, e, e),
        pair,
    )


def text(e) -> str:
    what, t, *operands = e
    c = C_TYPES[t]
    if what == "input":
        return f"{t}_{'b' if operands else 'a'}"
    a = [text(o) for o in operands]
    wide = "unsigned long long" if bits(t) == 64 else "unsigned"  # arithmetic that wraps around, as C has it
    if what == "cast":
        source = operands[0][1]
        if source[0] == "f" and t[0] != "f":  # only what fits is defined in C
            return f"({c})fmin(fmax((double){a[0]}, {-100.0 if t[0] == 's' else 0.0}), 100.0)"
        return f"({c}){a[0]}"
    if what in COMPARISONS:
        return f"({c})({a[0]} {what} {a[1]})"
    if what == "?":
        return f"({a[0]} != 0 ? {a[1]} : {a[2]})"
    if what == "neg":
        return f"(-{a[0]})" if t[0] == "f" else f"({c})(0 - ({wide}){a[0]})"
    if t[0] == "f":
        return f"{what}({a[0]})" if what in FUNCTIONS else f"({a[0]} {what} {a[1]})"
    if what in ("~", "!"):
        return f"({c})({what}{a[0]})"
    if what in WRAPPING:
        return f"({c})(({wide}){a[0]} {what} ({wide}){a[1]})"
    if what == "<<":
        return f"({c})(({wide}){a[0]} << ({a[1]} & {bits(t) - 1}))"
    if what == ">>":
        return f"({c})({a[0]} >> ({a[1]} & {bits(t) - 1}))"
    if what in "/%":
        return f"({c})({a[0]} {what} (({a[1]} & 63) | 1))"
    return f"({c})({a[0]} {what} {a[1]})"


def evaluate(e, inputs: dict[str, np.ndarray]) -> np.ndarray:
    what, t, *operands = e
    dtype = DTYPES[t]
    if what == "input":
        return inputs[f"{t}_{'b' if operands else 'a'}"]
    a = [evaluate(o, inputs) for o in operands]
    if what == "cast":
        if operands[0][1][0] == "f" and t[0] != "f":
            least = -100.0 if t[0] == "s" else 0.0
            return np.fmin(np.fmax(a[0].astype(np.float64), least), 100.0).astype(dtype)
        return a[0].astype(dtype)
    if what in COMPARISONS:
        return COMPARISONS[what](*a).astype(dtype)
    if what == "?":
        return np.where(a[0] != 0, a[1], a[2])
    if t[0] == "f":
        function = (FUNCTIONS | REAL | {"neg": np.negative})[what]
        return function(*a).astype(dtype)
    if what == "~":
        return ~a[0]
    if what == "!":
        return (a[0] == 0).astype(dtype)
    modular = [v.astype(np.uint64) for v in a]
    if what == "neg":
        return (np.uint64(0) - modular[0]).astype(dtype)
    if what in WRAPPING:
        return WRAPPING[what](*modular).astype(dtype)
    if what in LOGIC:
        return LOGIC[what](*a)
    if what in ("<<", ">>"):
        amount = a[1] & dtype.type(bits(t) - 1)
        return (modular[0] << amount.astype(np.uint64)).astype(dtype) if what == "<<" else a[0] >> amount
    divisor = (a[1] & dtype.type(63)) | dtype.type(1)
    quotient = a[0] // divisor
    quotient += ((a[0] < 0) & (quotient * divisor != a[0])).astype(dtype)  # towards zero; the divisor is positive
    return quotient if what == "/" else a[0] - quotient * divisor


def _inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(21)
    found = {}
    for t, dtype in DTYPES.items():
        for name in "ab":
            if t[0] == "f":
                edges = [
                    0.0,
                    -0.0,
                    np.inf,
                    -np.inf,
                    np.nan,
                    1e-40,
                    -1e-42,
                    3e38,
                    0.5,
                    -1.5,
                    2.5,
                    255.5,
                    -129.0,
                    2.0**31,
                    2.0**63,
                ]
                rest = rng.standard_normal(N - len(edges)) * 10.0 ** rng.integers(-9, 9, N - len(edges))
                values = np.concatenate([edges, rest]).astype(dtype)
            else:
                info = np.iinfo(dtype)
                edges = np.array([0, 1, 2, info.max, info.min, info.max - 1, info.min + 1, 7, 100], dtype)
                rest = rng.integers(0, 1 << 64, N - len(edges), dtype=np.uint64) >> rng.integers(
                    0, 62, N - len(edges)
                ).astype(np.uint64)
                values = np.concatenate([edges, rest.astype(dtype)])
            found[f"{t}_{name}"] = rng.permutation(values)
    return found


INPUTS = _inputs()
PACKED = torch.from_numpy(np.stack([np.resize(v.view(np.uint8), (N, v.itemsize)) if v.itemsize == 8 else
                                    np.pad(v.view(np.uint8).reshape(N, -1), ((0, 0), (0, 8 - v.itemsize))) for v in INPUTS.values()]))  # fmt: skip


@settings(QUICK, max_examples=8 * EFFORT)
@given(st.lists(st.sampled_from(list(C_TYPES)).flatmap(lambda t: expressions(t, 3)), min_size=8, max_size=8))
def test_typed_expressions(es):
    """Integers leave as long long, floats as double, which hold all of their values."""
    stores = "\n".join(f"{'reals' if e[1][0] == 'f' else 'whole'}[{k} * n + i] = {text(e)};" for k, e in enumerate(es))
    loads = "\n".join(
        f"{C_TYPES[name[:-2]]} {name} = *(const {C_TYPES[name[:-2]]}*)(in + ({k} * n + i) * 8);"
        for k, name in enumerate(INPUTS)
        if name in stores
    )
    code = f"""extern "C" __global__ void k(int n, const unsigned char* in, long long* whole, double* reals) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        {loads}
        {stores}
    }}"""
    whole, reals = torch.full((len(es), N), -12345), torch.full((len(es), N), -54321.0, dtype=torch.float64)
    rawkern.RawKernel(code, options=("-fmad=false",))[2, 48](N, PACKED.view(-1), whole.view(-1), reals.view(-1))
    for k, e in enumerate(es):
        with np.errstate(all="ignore"):
            want = evaluate(e, INPUTS)
        got = (reals if e[1][0] == "f" else whole)[k].numpy()
        wide = want.astype(np.float64) if e[1][0] == "f" else want.astype(np.int64)
        np.testing.assert_array_equal(got, wide, err_msg=f"{e[1]}: {text(e)}")
