"""Blocks that run in rounds: which kernels' do, and that every thread then does what it would do by itself."""

from __future__ import annotations

from collections.abc import Iterator

import llvmlite.binding as llvm
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rawkern
from rawkern.base.llvm import OTHERS, Cpu, optimize, target_machine
from rawkern.compile.programs import compile_program
from rawkern.compile.source import CPU_ARCH, from_text
from rawkern.engines.cpu.analysis import rounds
from rawkern.engines.cpu.analysis.plan import make_plan
from rawkern.engines.cpu.checker.bounds import Bounds
from rawkern.engines.cpu.checker.instrument import Checker
from rawkern.engines.cpu.emit.instrument import Instrument
from rawkern.engines.cpu.profiler.instrument import Profiler
from rawkern.engines.cpu.runtime import jit

from ..test_random import QUICK, SLOTS, TABLE, Jumps, N, State, X, Y, assign, evaluate, execute, expressions
from ..test_random_barriers import together, together_text

pytestmark = pytest.mark.usefixtures("optimized")

HEAD = "__global__ void k(int n, const int* __restrict__ fixed, int* x) { __shared__ int s[64]; int t = threadIdx.x, v = x[t];"
#: Kernels by what they do, each with whether all threads of a block come to the same barriers for certain.
KERNELS = {
    "a barrier": ("s[t] = v; __syncthreads(); x[t] = s[63 - t];", True),
    "a loop as long for all": ("for (int i = 0; i < n; i++) { s[t] = v; __syncthreads(); v += s[i]; __syncthreads(); } x[t] = v;", True),
    "a tree": ("s[t] = v; for (int d = blockDim.x / 2; d > 0; d /= 2) { __syncthreads(); if (t < d) s[t] += s[t + d]; } x[t] = s[0];", True),
    "a branch for all": ("if (n > blockIdx.x) { s[t] = v; __syncthreads(); v = s[63 - t]; } x[t] = v;", True),
    "a number that is only read": ("for (int i = fixed[blockIdx.x]; i; i--) { s[t] = v; __syncthreads(); v = s[63 - t]; __syncthreads(); } x[t] = v;", True),
    "other loops in between": ("s[t] = v; __syncthreads(); for (int i = 0; i < v; i++) x[t] += s[i & 63]; __syncthreads(); s[t] = 1;", True),
    "a return at the end": ("s[t] = v; __syncthreads(); if (t > n) return; x[t] = s[63 - t];", True),
    "a return before": ("if (t > n) return; s[t] = v; __syncthreads(); x[t] = s[63 - t];", False),
    "a loop by threads": ("for (int i = 0; i < v; i++) { s[t] = i; __syncthreads(); x[t] += s[63 - t]; }", False),
    "a loop by warps": ("for (int i = 0; i < t / 32; i++) { s[t] = i; __syncthreads(); x[t] += s[63 - t]; }", False),
    "a loop by rows": ("for (int i = 0; i < threadIdx.y; i++) { s[t] = i; __syncthreads(); x[t] += s[63 - t]; }", False),
    "a counter that some raise": ("int c = 1; if (v) c = 2; for (int i = 0; i < c; i++) { s[t] = i; __syncthreads(); x[t] += s[63 - t]; }", False),
    "a number that may be written": ("for (int i = x[0]; i; i--) { s[t] = i; __syncthreads(); x[t] += s[63 - t]; }", False),
    "barriers of some": ("if (t < 32) { s[t] = v; __syncthreads(); } else { s[t] = -v; __syncthreads(); } x[t] = s[63 - t];", False),
    "a count": ("x[t] = __syncthreads_count(v);", False),
    "another number": ('s[t] = v; asm volatile("bar.sync 1;"); x[t] = s[63 - t];', False),
    "a flag": ("if (t == 0) atomicExch(x, 1); while (atomicAdd(x, 0) == 0) ; __syncthreads(); x[t] = 1;", False),
    "memory of its own": ("int a[4]; for (int i = 0; i < 4; i++) a[i] = x[t + i]; __syncthreads(); x[t] = a[v & 3] + a[n & 3];", False),
    "no end": ("s[t] = v; __syncthreads(); if (n) for (;;) atomicAdd(x, 1); __syncthreads();", False),
    "a loop along rows": ("for (int i = t; i < n; i += blockDim.x) v += x[i]; s[t] = v; __syncthreads(); x[t] = s[63 - t];", True),
    "print": ('s[t] = v; __syncthreads(); printf("%d", s[0]);', False),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_blocks_run_in_rounds_where_all_come_to_the_same_barriers(name: str) -> None:
    body, want = KERNELS[name]
    program = compile_program(from_text(f'extern "C" {HEAD} {body} }}'), arch=CPU_ARCH)
    translation = jit.Translation(program.ptx)
    plan = make_plan(translation.parsed(), "k", translation.globals(), "rows")
    assert (plan.in_rounds().rounds is not None) == want


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Of each kernel that is lowered meanwhile whether its warps have stacks to wait on."""
    found: list[bool] = []
    lower = jit.Translation.lower

    def lowered(*args):
        result = lower(*args)
        found.append(result.waiting)
        return result

    monkeypatch.setattr(jit.Translation, "lower", lowered)
    monkeypatch.setattr(rounds, "MOST_INSTRUCTIONS", 10_000)
    yield found


@pytest.mark.parametrize(
    ("instrument", "waits"), [(Instrument, False), (Bounds, False), (Checker, True), (Profiler, True)]
)
def test_instruments_that_look_at_barriers_see_them(waiting: list[bool], instrument: type, waits: bool) -> None:
    program = compile_program(from_text(f'extern "C" {HEAD} {KERNELS["a barrier"][0]} }}'), arch=CPU_ARCH)
    translation = jit.Translation(program.ptx)
    translation.compile("k", translation.globals(), "line", instrument)
    assert waiting == [waits]


def test_registers_that_are_kept_take_no_masked_stores_without_avx512() -> None:
    """LLVM made them of stores for some lanes, and AMD's CPUs spent most of the time of such a loop there."""
    body = "for (; n; n--) { if (t < n) v += s[t]; __syncthreads(); s[t] = v; __syncthreads(); } x[t] = v;"
    program, cpu = compile_program(from_text(f'extern "C" {HEAD} {body} }}'), arch=CPU_ARCH), OTHERS["haswell"]
    translation = jit.Translation(program.ptx)
    lowered = translation.lower("k", translation.globals(), "line", cpu)
    assert "@rk_round(" in lowered.text
    with (
        llvm.create_context() as context,
        llvm.parse_assembly(jit.module_text(lowered, cpu), context) as module,
        target_machine(cpu) as machine,
    ):
        module.triple = cpu.triple
        optimize(llvm, module, machine, None)
        text = machine.emit_assembly(module)
    assert "vpaddd" in text and "maskmov" not in text


@pytest.mark.parametrize("cpu", OTHERS.values(), ids=lambda cpu: cpu.name)
def test_rounds_are_code_for_other_cpus(cpu: Cpu) -> None:
    program = compile_program(from_text(f'extern "C" {HEAD} {KERNELS["a tree"][0]} }}'), arch=CPU_ARCH)
    translation = jit.Translation(program.ptx)
    lowered = translation.lower("k", translation.globals(), "line", cpu, Bounds)
    assert not lowered.waiting and b"rk_row" in jit.emit(lowered, cpu)


def alone(depth: int):
    """Statements in which threads go their own ways and come back."""
    simple = st.tuples(st.just("set"), st.integers(0, SLOTS - 1), expressions(2))
    if depth == 0:
        return st.lists(simple, min_size=1, max_size=2)
    e, inner = expressions(1), alone(depth - 1)
    branch = st.tuples(st.just("if"), e, inner, inner | st.just([]))
    loop = st.tuples(st.just("while"), e, inner)
    return st.lists(st.one_of(simple, simple, branch, loop), min_size=1, max_size=3)


def rows():
    """Loops along rows of up to 63 rounds, the same for all threads or their own, that some lanes may leave before."""
    slot, e = st.integers(0, SLOTS - 1), expressions(1)
    change = st.tuples(st.just("set"), slot, expressions(2))
    jump = st.sampled_from(["break", "continue"]).map(lambda kind: [(kind,)])
    branch = st.tuples(st.just("if"), e, jump | st.lists(change, min_size=1, max_size=2), st.just([]))
    return st.tuples(
        st.just("rows"), slot, st.integers(0, 63) | st.just("u") | e, st.lists(change | branch, max_size=2)
    )


def run_rows(target: int, bound, body, state: State) -> None:
    """What the text does, for all threads at once."""
    env, j = state.env, np.arange(N)
    end = (evaluate(bound, env) & 63) * N
    jumps, inside = Jumps(*(np.zeros(N, bool) for _ in range(3))), j < end
    while inside.any():
        value = env[f"v{target}"].view(np.uint32) * np.uint32(3) + TABLE[j & 31].view(np.uint32)
        assign(env, f"v{target}", value.view(np.int32), inside)
        jumps.continued[:] = False
        inside = execute(body, state, inside, jumps) | jumps.continued
        j += N
        inside &= j < end


def run_together(statements, state: State, u: int) -> None:
    """What the text does, for all threads at once."""
    every, i = np.ones(N, bool), np.arange(N)
    state.env["u"] = np.full(N, u, np.int32)
    for kind, *rest in statements:
        if kind == "alone":
            execute(rest[0], state, every, Jumps(*(np.zeros(N, bool) for _ in range(3))))
        elif kind == "rows":
            target, bound, body = rest
            run_rows(target, bound, body, state)
        elif kind == "exchange":
            source, target, shift = rest
            state.env[f"v{target}"] = state.env[f"v{source}"][(i + shift) % N]
        elif kind == "branch":
            run_together(rest[1] if u > rest[0] else rest[2], state, u)
        else:
            for k in range((u + rest[0]) & 3):
                run_together(rest[1], state, u ^ k)
                state.env["u"] = np.full(N, u, np.int32)


FRAME = """extern "C" __global__ void k(int u, const int* xs, const int* ys, const int* table, int* out) {
    __shared__ int s[%d];
    int i = threadIdx.x, t = i, x = xs[i], y = ys[i], v0 = 0, v1 = x, v2 = i, fuel = 60;
    __syncthreads();
%s
    int* own = out + 4 * %d * blockIdx.x + i;
    own[0] = v0; own[%d] = v1; own[2 * %d] = v2; own[3 * %d] = fuel;
}"""


def compare(statements, u: int) -> None:
    """Run a program on both sides: three warps, of which the last is not whole, in two blocks that one worker runs."""
    i = np.arange(N, dtype=np.int32)
    env = {"x": X, "y": Y, "i": i, "v0": np.zeros(N, np.int32), "v1": X, "v2": i, "table": TABLE}
    state = State(env, np.full(N, 60, np.int32))
    with np.errstate(over="ignore"):
        run_together(statements, state, u)
    code = FRAME % (N, together_text(statements, threads=N, turns=True), N, N, N, N)
    out = torch.full((2, 4, N), 12345, dtype=torch.int32)
    inputs = [torch.from_numpy(a) for a in (X, Y, TABLE)]
    rawkern.RawKernel(code)[2, N](u, *inputs, out)
    want = np.array([*(env[f"v{k}"] for k in range(SLOTS)), state.fuel])
    for got in out.numpy():
        assert np.array_equal(got, want), f"lanes {np.nonzero((got != want).any(0))[0][:5]} of\n{code}"


def test_random_programs_in_rounds(waiting: list[bool]) -> None:
    @QUICK
    @given(together(2, alone, N), st.integers(-3, 40))
    def check(statements, u):
        compare(statements, u)

    check()
    assert not any(waiting)


def test_random_loops_along_rows_in_rounds(waiting: list[bool]) -> None:
    """Warps leave them for the turns of others, with lanes that wait elsewhere or without, and go on where they were."""

    @settings(QUICK, max_examples=2 * QUICK.max_examples)
    @given(together(1, alone, N, others=(rows(), rows())), st.integers(-3, 40))
    def check(statements, u):
        compare(statements, u)

    check()
    assert not any(waiting)


def test_sums_of_floats_and_wide_integers_are_kept_over_barriers(waiting: list[bool]) -> None:
    """Registers of all sizes, for lanes, for warps and for the block, with more barriers than places that they share."""
    code = r"""extern "C" __global__ void mixed(int n, const double* x, const long long* y, double* a, long long* b, short* c) {
        __shared__ double s[128];
        __shared__ long long w[128];
        int t = threadIdx.x;
        long long place = blockIdx.x * 128ll + t, many = y[place];
        double sum = x[place], scale = 1 + n;
        short small = (short)(t * 259);
        bool odd = many & 1;
        for (int i = 0; i < n; i++) {
            s[t] = sum; w[t] = many;
            __syncthreads();
            if (odd) sum += s[(t + i) % 128] * scale; else many -= w[(t + 3 * i) % 128];
            scale *= 0.5;
            __syncthreads();
            odd = odd != (w[t] > many);
            small = small * 3 + odd;
        }
        a[place] = sum; b[place] = many; c[place] = small;
    }"""
    rng, n = np.random.default_rng(3), 9
    x, y = rng.random((3, 128)), rng.integers(-(2**40), 2**40, (3, 128))
    t = np.arange(128)
    total, many, small, scale = x.copy(), y.copy(), np.tile((t * 259).astype(np.int16), (3, 1)), 1.0 + n
    odd = many % 2 == 1
    for i in range(n):
        s, w = total.copy(), many.copy()
        total = np.where(odd, total + s[:, (t + i) % 128] * scale, total)
        many = np.where(odd, many, many - w[:, (t + 3 * i) % 128])
        scale *= 0.5
        odd = odd != (w > many)
        small = (small * 3 + odd).astype(np.int16)
    a, b, c = (
        torch.zeros(3, 128, dtype=torch.double),
        torch.zeros(3, 128, dtype=torch.long),
        torch.zeros(3, 128, dtype=torch.short),
    )
    rawkern.RawKernel(code, options=("-fmad=false",))[3, 128](n, torch.from_numpy(x), torch.from_numpy(y), a, b, c)
    assert not any(waiting)
    assert np.array_equal(a.numpy(), total) and np.array_equal(b.numpy(), many) and np.array_equal(c.numpy(), small)


@pytest.mark.parametrize("first", [0, 1])
def test_lanes_that_wait_for_others_find_what_they_kept(waiting: list[bool], first: int) -> None:
    """What lanes on one path write does not lie where those on the other path, which is next, still read."""
    code = r"""extern "C" __global__ void paths(const int* x, int first, int* out) {
        __shared__ int s[96];
        int t = threadIdx.x, n = x[t], kept = 5 * n + 1, made;
        s[t] = n;
        __syncthreads();
        if ((n & 1) == first) {
            made = 7;
            int i = 0;
            do made = 3 * made + s[(t + i) % 96]; while (++i < n);
        } else {
            made = kept;
            int i = 0;
            do made = 5 * made - s[(t + i) % 96]; while (++i < n);
        }
        __syncthreads();
        s[t] = made;
        __syncthreads();
        out[t] = made + 2 * s[95 - t];
    }"""
    x = np.random.default_rng(first).integers(1, 9, 96).astype(np.int32)
    made = np.where(x % 2 == first, 7, 5 * x + 1)
    for i in range(9):
        other = x[(np.arange(96) + i) % 96]
        made = np.where(i < x, np.where(x % 2 == first, 3 * made + other, 5 * made - other), made)
    out = torch.zeros(96, dtype=torch.int32)
    rawkern.RawKernel(code)[1, 96](torch.from_numpy(x), first, out)
    assert not any(waiting)
    assert (out.numpy() == made + 2 * made[::-1]).all()


@pytest.mark.parametrize("seed", range(3))
def test_another_order_of_warps(waiting: list[bool], seed: int) -> None:
    """The warp that is not whole may come anywhere among the others."""
    code = r"""extern "C" __global__ void turn(int* out) {
        __shared__ int s[77];
        int t = threadIdx.x, v = t;
        for (int i = 1; i < 5; i++) { s[t] = v; __syncthreads(); v = 3 * s[(t + i) % 77] + i; __syncthreads(); }
        out[77 * blockIdx.x + t] = v;
    }"""
    out, want = torch.zeros(4, 77, dtype=torch.int32), np.arange(77)
    for i in range(1, 5):
        want = 3 * want[(np.arange(77) + i) % 77] + i
    with rawkern.order(seed):
        rawkern.RawKernel(code)[4, 77](out)
    assert not any(waiting)
    assert (out.numpy() == want).all()


def test_a_loop_of_barriers_is_stopped_by_the_time_limit(waiting: list[bool]) -> None:
    code = r"""extern "C" __global__ void slow(unsigned n, int* x) {
        for (unsigned i = 0; i < n; i++) { __syncthreads(); atomicAdd(x, 1); __syncthreads(); }
    }"""
    with (
        rawkern.time_limit(0.05),
        pytest.raises(rawkern.LaunchTimeoutError, match=r"1 warp computing.*line 2 .*warp 0 of"),
    ):
        rawkern.RawKernel(code)[1, 64](np.uint32(2**32 - 1), torch.zeros(1, dtype=torch.int32))
    assert not any(waiting)


def test_an_access_outside_of_memory_is_named(waiting: list[bool]) -> None:
    code = r"""extern "C" __global__ void past(int n, float* x) {
        __shared__ float s[64];
        s[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        x[threadIdx.x + n] = s[63 - threadIdx.x];
    }"""
    with pytest.raises(rawkern.OutOfBoundsError, match=r"line 5.*|thread \(60,0,0\)"):
        rawkern.RawKernel(code)[1, 64](4, torch.zeros(64))
    assert not any(waiting)
