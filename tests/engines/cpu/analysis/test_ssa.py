"""Registers split by meaning: what analysis makes of loops that lanes leave one by one, and that they compute the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rawkern
from rawkern.engines.cpu.analysis.control_flow import build
from rawkern.engines.cpu.analysis.divergence import Analysis, analyze
from rawkern.engines.cpu.analysis.graph import Flow
from rawkern.engines.cpu.analysis.ssa import split_registers
from rawkern.engines.cpu.analysis.uniformity import ALIGNED, U, V
from rawkern.engines.cpu.ptx.operands import destinations
from rawkern.engines.cpu.ptx.parser import parse


def analyzed(text: str) -> tuple[Flow, Analysis]:
    registers = ".reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %rd<9>; .reg .f32 %f<9>;"
    (function,) = parse(f".version 8.7\n.target sm_80\n.entry k() {{ {registers} {text} }}").functions.values()
    flow = split_registers(build(function))
    return flow, analyze(function, flow, 1, set(), lambda instr: False)


def kinds_of(flow: Flow, analysis: Analysis, op: str) -> list:
    """Kinds of the results of all instructions `op`, in running order."""
    return [analysis.kinds[n] for b in flow.blocks for i in b.instrs if i.op.text == op for n in destinations(i)]


def test_the_counter_of_a_loop_that_lanes_leave_one_by_one_stays_uniform():
    flow, analysis = analyzed("""
        mov.u32 %r1, %tid.x; mov.u32 %r2, 0;
        HEAD: add.s32 %r2, %r2, 1; setp.lt.s32 %p1, %r2, %r1; @%p1 bra HEAD;
        st.global.u32 [%rd1], %r2; ret;
    """)
    assert kinds_of(flow, analysis, "add.s32") == [U]
    stored = flow.blocks[-1].instrs[-1].args[1].name
    assert analysis.kinds[stored] == V
    assert [name for _, name in analysis.blends] == [stored]  # only on the exit


def test_an_index_stays_affine_though_the_register_held_the_thread_index_before():
    flow, analysis = analyzed("""
        mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31; mov.u64 %rd1, 4096;
        HEAD: add.s32 %r1, %r1, %ntid.x; mul.wide.s32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
        ld.global.f32 %f1, [%rd3]; setp.lt.s32 %p1, %r1, %r9; @%p1 bra HEAD;
        st.global.u32 [%rd1], %r2; ret;
    """)
    assert kinds_of(flow, analysis, "mov.u32") == [ALIGNED]
    assert kinds_of(flow, analysis, "and.b32") == [("a", 1, 1)]
    assert kinds_of(flow, analysis, "add.s32") == [("a", 1, 1)]
    assert kinds_of(flow, analysis, "add.s64") == [("w", 4, 1, True, 1)]


def test_a_break_leaves_what_the_loop_counts_alone():
    flow, analysis = analyzed("""
        mov.u32 %r1, %tid.x; mov.u32 %r2, 0; mov.u32 %r3, 7;
        HEAD: add.s32 %r2, %r2, 2; setp.gt.s32 %p1, %r2, %r1; @%p1 bra OUT;
        sub.s32 %r3, %r3, 1; setp.ne.s32 %p2, %r3, 0; @%p2 bra HEAD;
        OUT: st.global.u32 [%rd1], %r2; st.global.u32 [%rd2], %r3; ret;
    """)
    assert kinds_of(flow, analysis, "add.s32") == kinds_of(flow, analysis, "sub.s32") == [U]
    assert analysis.divergent == {1}


def test_values_of_two_branches_meet_in_a_register_of_their_own():
    flow, analysis = analyzed("""
        mov.u32 %r1, %tid.x; mov.u32 %r2, 5; setp.lt.s32 %p1, %r1, 7; add.s32 %r5, %r2, %ntid.x; @%p1 bra OTHER;
        mov.u32 %r2, 6; bra MEET; OTHER: mul.lo.s32 %r2, %r2, %r2;
        MEET: st.global.u32 [%rd1], %r2; ret;
    """)
    assert kinds_of(flow, analysis, "add.s32") == kinds_of(flow, analysis, "mul.lo.s32") == [U]
    assert analysis.kinds[flow.blocks[-1].instrs[-1].args[1].name] == V


def test_a_kernel_that_ends_in_a_loop_meets_at_its_barrier():
    _, analysis = analyzed("""
        mov.u32 %r1, %tid.x; setp.lt.s32 %p1, %r1, %r9; @%p1 bra ON; add.s32 %r2, %r1, 1;
        ON: bar.sync 0;
        HEAD: add.s32 %r1, %r1, 3; setp.lt.s32 %p2, %r1, %r9; @%p2 bra HEAD;
        ret;
    """)
    assert not analysis.free_running


@pytest.mark.rawkern_finding("RaceError")  # threads overwrite what others have written, in whatever order
def test_a_value_of_all_lanes_meets_one_of_each_segment():
    code = """extern "C" __global__ void k(int* out, int n) {
        int row = 0, at = threadIdx.x + 64 * threadIdx.y;
        for (int j = 0; j < n; j++) { out[at + row] = j; row = j * 512 + threadIdx.y * 16; }
    }"""
    out = torch.full((2048,), -1, dtype=torch.int32)
    rawkern.RawKernel(code)[1, (16, 8)](out, 3)
    want = torch.full((2048,), -1, dtype=torch.int32)
    y, x = torch.meshgrid(torch.arange(8), torch.arange(16), indexing="ij")
    for j in range(3):
        row = 0 if j == 0 else (j - 1) * 512 + y * 16
        want[(x + 64 * y + row).flatten()] = j
    assert torch.equal(out, want)


def test_what_two_loops_leave_has_a_name_at_each_level():
    flow, analysis = analyzed("""
        mov.u32 %r1, %tid.x; mov.u32 %r2, 0; mov.u32 %r4, 0;
        OUTER: mov.u32 %r3, 0;
        INNER: add.s32 %r3, %r3, 1; setp.lt.s32 %p1, %r3, %r1; @%p1 bra INNER;
        mad.lo.s32 %r2, %r3, %r2, 1; add.u32 %r4, %r4, 1; setp.lt.s32 %p2, %r4, %r2; @%p2 bra OUTER;
        st.global.u32 [%rd1], %r3; st.global.u32 [%rd1], %r4; ret;
    """)
    assert kinds_of(flow, analysis, "add.s32") == kinds_of(flow, analysis, "add.u32") == [U]
    assert kinds_of(flow, analysis, "mad.lo.s32") == [V]
    stores = [i.args[1].name for i in flow.blocks[-1].instrs]
    assert [analysis.kinds[name] for name in stores] == [V, V]


# Loops with a trip count for each lane --------------------------------------------------------------------------------
# A program is made once and written twice: as CUDA C, and as Python that runs one thread.

N = 77
COUNTERS = "abc"  # of the nested loops; all are stored at the end
QUICK = settings(
    max_examples=25, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
START = st.sampled_from(["0", "1", "i % 5", "u", "y"])
LIMIT = st.sampled_from(["u", "6", "i % 9", "(i & 3) + 2", "y", "u + 3", "x[i]"])
STEP = st.sampled_from([1, 1, 2, 3])
VALUE = st.sampled_from(["x[COUNTER]", "x[COUNTER + 3]", "x[COUNTER + i]", "k", "COUNTER", "i", "u", "1", "s + k"])
TEST = st.sampled_from(
    ["x[COUNTER] == y", "COUNTER == 3", "k > 4", "k > i", "(s & 3) == 1", "COUNTER + u > i", "u == 4"]
)


@dataclass
class Text:
    """Lines of both languages."""

    c: list[str]
    python: list[str]


def write(body, text: Text, depth: int, indent: int) -> None:
    counter, pad = COUNTERS[max(depth - 1, 0)], "    " * indent
    for kind, *rest in body:
        if kind == "for":
            start, limit, step, inner = rest
            mine = COUNTERS[depth]
            text.c.append(f"{pad}for ({mine} = {start}; {mine} < {limit}; {mine} += {step}) {{")
            text.python += [f"{pad}{mine} = {start}", f"{pad}while {mine} < {limit}:"]
            steps[depth] = step
            write(inner, text, depth + 1, indent + 1)
            text.c.append(f"{pad}}}")
            text.python.append(f"{pad}    {mine} += {step}")
        elif kind == "if":
            test = rest[0].replace("COUNTER", counter)
            text.c.append(f"{pad}if ({test}) {{")
            text.python.append(f"{pad}if {test}:")
            write(rest[1], text, depth, indent + 1)
            text.c.append(f"{pad}}}")
        elif kind in ("break", "continue", "return"):
            test = rest[0].replace("COUNTER", counter)
            text.c.append(f"{pad}if ({test}) {'goto out' if kind == 'return' else kind};")
            text.python.append(f"{pad}if {test}:")
            if kind == "continue":
                text.python.append(f"{pad}    {counter} += {steps[depth - 1]}")
            text.python.append(f"{pad}    {'return a, b, c, k, s' if kind == 'return' else kind}")
        else:
            target, value = kind, rest[0].replace("COUNTER", counter)
            text.c.append(f"{pad}{target} += {value};")
            text.python.append(f"{pad}{target} = ({target} + {value}) & 0xffff")
            text.c.append(f"{pad}{target} &= 0xffff;")


steps: dict[int, int] = {}  # of the loops around, by depth


def bodies(depth: int):
    simple = st.one_of(st.tuples(st.just("s"), VALUE), st.tuples(st.just("k"), st.just("1")))
    leave = st.tuples(st.sampled_from(["break", "continue", "return"]), TEST)
    inside = [simple, simple, leave, st.tuples(st.just("if"), TEST, st.lists(simple, min_size=1, max_size=2))]
    if depth < len(COUNTERS):
        inside.append(loops(depth))
        inside.append(st.tuples(st.just("if"), TEST, st.lists(loops(depth), min_size=1, max_size=1)))
    return st.lists(st.one_of(inside), min_size=1, max_size=4)


def loops(depth: int):
    return st.tuples(st.just("for"), START, LIMIT, STEP, bodies(depth + 1))


KERNEL = """extern "C" __global__ void k(int n, int u, const int* x, const int* ys, int* out) {
    __shared__ int met[128];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int a = 0, b = 0, c = 0, k = 0, s = 0, y = ys[i < n ? i : 0];
    if (i >= n) goto out;
%s
out:
    met[threadIdx.x] = a + k;
    MEET
    if (i < n) {
        out[i] = a; out[n + i] = b; out[2 * n + i] = c; out[3 * n + i] = k; out[4 * n + i] = s;
        out[5 * n + i] = met[threadIdx.x ^ SWAP];
    }
}"""


@QUICK
@given(st.lists(loops(0), min_size=1, max_size=2), st.integers(0, 7), st.booleans())
def test_loops_that_lanes_leave_one_by_one(program, u, meet):
    rng = np.random.default_rng(3)
    x, ys = rng.integers(0, 8, 128).astype(np.int32), rng.integers(0, 8, N).astype(np.int32)
    text = Text([], [])
    write(program, text, 0, 1)
    code = KERNEL % "\n".join(text.c)
    code = code.replace("MEET", "__syncthreads();" if meet else "").replace("SWAP", "1" if meet else "0")
    python = "\n".join(["def run(i, u, x, y):", "    a = b = c = k = s = 0", *text.python, "    return a, b, c, k, s"])
    space: dict = {}
    exec(python, space)
    rows = np.zeros((96, 5), np.int64)
    for i in range(N):
        rows[i] = space["run"](i, u, x.tolist(), int(ys[i]))
    swap = np.arange(N) ^ meet
    want = [*rows[:N].T, (rows[:, 0] + rows[:, 3])[swap]]
    out = torch.full((6 * N,), 12345, dtype=torch.int32)
    rawkern.RawKernel(code)[2, 48](N, u, torch.from_numpy(x), torch.from_numpy(ys), out)
    assert np.array_equal(out.numpy().reshape(6, N), np.array(want)), f"{code}\n{python}"


ROWS = r"""
extern "C" __global__ void rows(const float* x, float* y, int n, int pitch) {
    __shared__ float part[32];
    const float* row = x + (long long)blockIdx.x * pitch;
    float most = row[0];
    for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, row[i]);
    for (int o = 16; o > 0; o >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, o));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = most;
    __syncthreads();
    for (int w = 0; w < blockDim.x / 32; w++) most = fmaxf(most, part[w]);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[(long long)blockIdx.x * pitch + i] = row[i] - most;
}"""


@pytest.mark.parametrize("n", [1, 31, 32, 33, 64, 100, 257])
def test_rows_of_any_length(n, device):
    x = torch.randn(5, 260, dtype=torch.float64).float()
    x[1, 0], x[2, n - 1], x[3, :n] = float("inf"), float("nan"), -float("inf")
    y = torch.full_like(x, 777.0).to(device)
    rawkern.RawKernel(ROWS)[5, 64](x.to(device), y, n, 260)
    most = torch.from_numpy(np.fmax.reduce(x.numpy()[:, :n], 1, keepdims=True))
    want = torch.full_like(x, 777.0)
    want[:, :n] = x[:, :n] - most
    torch.testing.assert_close(y.cpu(), want, rtol=0, atol=0, equal_nan=True)


def test_nans_of_selected_and_moved_values(device):
    """Arithmetic gives the canonical NaN, also where it went through selections, loops and shuffles; loads keep theirs."""
    code = """extern "C" __global__ void k(const float* x, float* out, int n) {
        int i = threadIdx.x;
        float a = x[i], b = a - a, c = a * 2.0f, s = 0.0f;
        out[i] = i % 3 ? b : c;
        out[32 + i] = i % 3 ? a : 1.5f;
        out[64 + i] = i % 3 ? a : c;
        for (int k = 0; k < n + i % 4; k++) s = a > 0 ? s + b : s * c;
        out[96 + i] = s;
        out[128 + i] = __shfl_xor_sync(~0u, b, 1);
        out[160 + i] = __shfl_xor_sync(~0u, a, 1);
        out[192 + i] = __int_as_float(__float_as_int(i % 2 ? b : c) ^ 1);
    }"""
    bits = torch.full((32,), 0x7FC12345, dtype=torch.int32)
    bits[::2] = 0x7F800000  # inf
    bits[1::8] = 0x3FC00000
    x = bits.view(torch.float32).to(device)
    out = torch.zeros(224, device=device)
    rawkern.RawKernel(code)[1, 32](x, out, 2)
    got = out.cpu().view(torch.int32).reshape(7, 32).numpy().view(np.uint32)
    a = bits.view(torch.float32).numpy()
    with np.errstate(invalid="ignore"):
        b, c = a - a, a * np.float32(2)
    i = np.arange(32)

    def canonical(v: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(v), np.uint32(0x7FFFFFFF), v.astype(np.float32).view(np.uint32))

    assert np.array_equal(got[0], canonical(np.where(i % 3, b, c)))
    assert np.array_equal(got[1], np.where(i % 3, a.view(np.uint32), np.float32(1.5).view(np.uint32)))
    assert np.array_equal(got[2], np.where(i % 3, a.view(np.uint32), canonical(c)))
    s = np.zeros(32, np.float32)
    with np.errstate(invalid="ignore"):
        for k in range(5):
            s = np.where(k < 2 + i % 4, np.where(a > 0, s + b, s * c), s)
    assert np.array_equal(got[3], canonical(s))
    assert np.array_equal(got[4], canonical(b)[i ^ 1])
    assert np.array_equal(got[5], a.view(np.uint32)[i ^ 1])
    assert np.array_equal(got[6], canonical(np.where(i % 2, b, c)) ^ 1)


def test_what_a_loop_leaves_goes_round_another_loop_or_through_it(device: str) -> None:
    """Lanes that leave the first loop in its middle pass the second one by, and all read what the first has made."""
    kernel = rawkern.RawKernel(
        """extern "C" __global__ void k(int fuel, int* out) {
            int i = threadIdx.x, x, kind;
            asm volatile("and.b32 %0, %1, 3;" : "=r"(kind) : "r"(i));
            do {
                asm volatile("shl.b32 %0, %1, 5;" : "=r"(x) : "r"(i));
                if (--fuel < 0) goto end;
            } while (i & 1);
            do {
                if (--fuel < 0) goto end;
            } while (kind == 2);
            if (--fuel < 0) goto end;
        end:
            out[2 * i] = x;
            out[2 * i + 1] = fuel;
        }"""
    )
    out = torch.zeros(192, dtype=torch.int32, device=device)
    kernel[1, 96](9, out)
    assert out.view(96, 2).tolist() == [[i << 5, -1 if i % 4 else 6] for i in range(96)]
