"""Random programs whose threads meet: divergent code between barriers, in branches and loops that a block takes together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rawkern

from .test_random import EFFORT, QUICK, SLOTS, TABLE, Jumps, N, State, X, Y, blocks, execute, program_text, text

pytestmark = pytest.mark.usefixtures("optimized")

BLOCK = 48  # threads: the last warp is half full, and the second block has threads that end at once
ABSENT = -9  # what threads that end at once leave in shared memory


def together(depth: int, alone=blocks, threads: int = BLOCK, others=()):
    """Statements that all threads of a block that still run come to: divergent code, an exchange, a branch, a loop.

    `others` are kinds of such statements as well.
    """
    slot = st.integers(0, SLOTS - 1)
    leaf = st.one_of(
        st.tuples(st.just("alone"), alone(1)),
        st.tuples(st.just("exchange"), slot, slot, st.integers(1, threads - 1)),
        *others,
    )
    if depth == 0:
        return st.lists(leaf, min_size=1, max_size=2)
    inner = together(depth - 1, alone, threads, others)
    branch = st.tuples(st.just("branch"), st.integers(-2, 40), inner, inner)
    loop = st.tuples(st.just("loop"), st.integers(0, 3), inner)
    return st.lists(st.one_of(leaf, leaf, branch, loop), min_size=2, max_size=4)


def together_text(statements, depth: int = 0, threads: int = BLOCK, turns: bool = False) -> str:
    """The statements in CUDA C. `turns`: in a loop the number u, which decides about branches, changes by turn."""
    lines = []
    for kind, *rest in statements:
        if kind == "alone":
            lines.append("{\n" + program_text(rest[0]) + "\n}")
        elif kind == "exchange":
            source, target, shift = rest
            lines.append(
                f"s[t] = v{source}; __syncthreads(); v{target} = s[(t + {shift}) % {threads}]; __syncthreads();"
            )
        elif kind == "rows":
            target, bound, body = rest
            lines.append(f"for (int j = t, end = ({text(bound)} & 63) * {threads}; j < end; j += blockDim.x) {{")
            lines.append(f"v{target} = (int)((unsigned)v{target} * 3u + (unsigned)table[j & 31]);")
            lines.append(program_text(body) + "\n}")
        elif kind == "branch":
            lines.append(f"if (u > {rest[0]}) {{\n{together_text(rest[1], depth, threads, turns)}\n}} else {{")
            lines.append(together_text(rest[2], depth, threads, turns) + "\n}")
        else:
            counter = f"r{depth}"
            lines.append(f"for (int {counter} = 0; {counter} < ((u + {rest[0]}) & 3); {counter}++) {{")
            body = together_text(rest[1], depth + 1, threads, turns)
            lines.append(f"u ^= {counter};\n{body}\nu ^= {counter};\n}}" if turns else f"{body}\n}}")
    return "\n".join(lines)


def run_together(statements, state: State, active: np.ndarray, jumps: Jumps, shared: np.ndarray, u: int) -> np.ndarray:
    """What the text does, for all threads at once; returns those that have not returned."""
    i = np.arange(N)
    for kind, *rest in statements:
        if kind == "alone":
            active = execute(rest[0], state, active, jumps)
        elif kind == "exchange":
            source, target, shift = rest
            shared[:N][active] = state.env[f"v{source}"][active]
            got = shared[i // BLOCK * BLOCK + (i + shift) % BLOCK]
            state.env[f"v{target}"] = np.where(active, got, state.env[f"v{target}"])
        elif kind == "branch":
            active = run_together(rest[1] if u > rest[0] else rest[2], state, active, jumps, shared, u)
        else:
            for _ in range((u + rest[0]) & 3):
                active = run_together(rest[1], state, active, jumps, shared, u)
    return active


FRAME = """extern "C" __global__ void k(int n, int u, const int* xs, const int* ys, const int* table, int* out) {
    __shared__ int s[%d];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = %d;
    if (i >= n) return;
    int x = xs[i], y = ys[i], v0 = 0, v1 = x, v2 = i, fuel = 60;
    int memory[4] = {1, i, y, -3};
    __syncthreads();
%s
    goto out;
out:
    out[i] = v0; out[n + i] = v1; out[2 * n + i] = v2; out[3 * n + i] = fuel;
    for (int k = 0; k < 4; k++) out[(4 + k) * n + i] = memory[k];
}"""


@pytest.mark.rawkern_unchecked(
    "of threads that leave by a jump to the kernel's end, past barriers, which CUDA does not allow"
)
@settings(QUICK, max_examples=10 * EFFORT)
@given(together(2), st.integers(-3, 40))
def test_barriers_where_a_block_goes_together(statements, u):
    """Threads that have returned take no part any more, and the others do not wait for them."""
    i = np.arange(N, dtype=np.int32)
    env = {"x": X, "y": Y, "i": i, "u": np.full(N, u, np.int32), "v0": np.zeros(N, np.int32), "v1": X, "v2": i, "table": TABLE}  # fmt: skip
    env["memory"] = [np.full(N, 1, np.int32), i.copy(), Y.copy(), np.full(N, -3, np.int32)]  # type: ignore[assignment]
    state, shared = State(env, np.full(N, 60, np.int32)), np.full(2 * BLOCK, ABSENT, np.int32)
    with np.errstate(over="ignore"):
        run_together(statements, state, np.ones(N, bool), Jumps(*(np.zeros(N, bool) for _ in range(3))), shared, u)
    code = FRAME % (BLOCK, ABSENT, together_text(statements))
    out = torch.full((8 * N,), 12345, dtype=torch.int32)
    inputs = [torch.from_numpy(a) for a in (X, Y, TABLE)]
    rawkern.RawKernel(code)[2, BLOCK](N, u, *inputs, out)
    want = np.array([*(env[f"v{k}"] for k in range(SLOTS)), state.fuel, *env["memory"]])
    got = out.numpy().reshape(8, N)
    assert np.array_equal(got, want), f"lanes {np.nonzero((got != want).any(0))[0][:5]} of\n{code}"
