"""Instruments while kernels run: code and memory of their own, exact counts, launches that they end."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rawkern
from rawkern.arguments.slow_path import Bound
from rawkern.base.records import filled
from rawkern.compile.programs import compile_program
from rawkern.compile.source import CPU_ARCH, from_text
from rawkern.engines import cpu as engine
from rawkern.engines.cpu.analysis.graph import Block
from rawkern.engines.cpu.emit.forms import Form
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import READ, UPDATE, WRITE, Access, Instrument, Session, Watch
from rawkern.engines.cpu.emit.memory.addresses import shift
from rawkern.engines.cpu.ir import Val, const
from rawkern.engines.cpu.ptx.data import Instr
from rawkern.engines.cpu.records import BLOCK, LAUNCH
from rawkern.engines.cpu.runtime.grid import Target


def kernel_of(code: str, instrument: type[Instrument], pointers: int) -> Any:
    """Kernel ``k``, whose parameters are all pointers, of CUDA or PTX."""
    signature: Any = SimpleNamespace(name="k", format=f"={pointers}Q", size=8 * pointers, params=[None] * pointers)
    ptx = code if code.startswith(".version") else compile_program(from_text(code), CPU_ARCH).ptx
    return engine.Module(ptx, instrument).kernel("k", signature)


# -- what lowering leaves to the instrument ----------------------------------------------------------------------------


def shifted(by: int) -> type[Instrument]:
    """An instrument with which all accesses to global memory go `by` bytes further."""

    class Shifting(Watch):
        def __init__(self, f: FunctionLowering):
            self.f = f

        def access(self, access: Access, form: Form) -> Form:
            return shift(self.f, form, const("i64", by)) if access.space == "global" else form

        def lines(self, access: Access, at: Val, pitch: Val, count: int) -> tuple[Val, Val]:
            return (self.f.e.bin("add", at, by) if access.space == "global" else at), pitch

    class Shift(Instrument):
        name = "shift"

        def watch(self, f: FunctionLowering) -> Watch:
            return Shifting(f)

    return Shift


EVERY = r"""
#include <mma.h>
#include <cuda_pipeline.h>
using namespace nvcuda;
extern "C" __global__ void k(const float* x, const int* at, float* out, float4* wide, float* sums, half* m) {
    __shared__ float s[32];
    int i = threadIdx.x;
    __pipeline_memcpy_async(s + i, x + i, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncwarp();
    float v = x[0] + x[i] * 3 + x[at[i]] + x[3 * i] + s[31 - i];
    if (i % 3) v += x[31 - i];
    out[i] = v;
    out[32 + at[i]] = v + 1;
    if (i == 7) out[64] = *(volatile const float*)(x + 5);
    float4 w = wide[i];
    wide[32 + i] = make_float4(w.w, w.z, w.y, w.x + v);
    if (i & 1) out[65] = x[2];
    atomicAdd(sums + i % 4, 1.0f);
    sums[4 + i] = atomicExch(sums + 40 + i, v);
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
    wmma::fragment<wmma::accumulator, 16, 16, 16, half> c;
    wmma::load_matrix_sync(a, m, 16);
    wmma::load_matrix_sync(c, m + 256, 16, wmma::mem_col_major);
    for (int k = 0; k < c.num_elements; k++) c.x[k] = __hadd(c.x[k], a.x[k]);
    wmma::store_matrix_sync(m + 512, c, 16, wmma::mem_row_major);
}"""


def test_addresses_are_those_that_the_instrument_gives_back():
    """Each form of address, each instruction that has one: shifted by the instrument or by the caller."""
    rng, by = np.random.default_rng(2), 64
    results = []
    start = [rng.standard_normal(160, dtype=np.float32), rng.permutation(96).astype(np.int32) % 32]
    start[1][16:48] = rng.permutation(32)
    start += [np.zeros(128, np.float32), rng.standard_normal(300, dtype=np.float32), np.zeros(128, np.float32)]
    start.append(rng.standard_normal(900).astype(np.float16))
    for instrument, add in ((Instrument, by), (shifted(by), 0)):
        arrays = [np.frombuffer(bytearray(256 + a.nbytes), np.uint8) for a in start]
        places = [-a.ctypes.data % 128 for a in arrays]
        for array, place, values in zip(arrays, places, start, strict=True):
            array[place : place + values.nbytes] = values.view(np.uint8)
        kernel = kernel_of(EVERY, instrument, 6)
        addresses = tuple(a.ctypes.data + place + add for a, place in zip(arrays, places, strict=True))
        kernel.target((32, 1, 1), 0).run((1, 1, 1), None, Bound(None, tuple(addresses), (), (), ()))
        results.append([a[p : p + v.nbytes].tobytes() for a, p, v in zip(arrays, places, start, strict=True)])
    assert results[0] == results[1]
    changed = [a.tobytes() != b for a, b in zip(start, results[0], strict=True)]
    assert changed == [False, False, True, True, True, True]


def test_the_heap_is_the_instruments():
    class Heap(Watch):
        has_heap = True

        def __init__(self, f: FunctionLowering):
            self.f, self.freed = f, []

        def malloc(self, size: Val) -> Val:
            return self.f.e.bin("add", self.f.e.splat(size, 32), 1 << 40)

        def free(self, address: Val) -> None:
            self.freed.append(address)  # and nothing is called

    class Own(Instrument):
        name = "heap"

        def watch(self, f: FunctionLowering) -> Watch:
            return Heap(f)

    code = 'extern "C" __global__ void k(long long* out) { void* p = malloc(threadIdx.x); out[threadIdx.x] = (long long)p; free(p); }'
    out = np.zeros(64, np.int64)
    kernel_of(code, Own, 1).target((64, 1, 1), 0).run((1, 1, 1), None, Bound(None, (out.ctypes.data,), (), (), ()))
    np.testing.assert_array_equal(out, (1 << 40) + np.arange(64))


# -- what is counted while kernels run ---------------------------------------------------------------------------------


class Counts(Instrument):
    """Counts events: `table` says of what each number is, the numbers are in memory of each block."""

    name = "counts"
    own = ("rk_count_",)
    barrier_opens = "call void @count_opens(ptr %blk, i32 %id)"

    def __init__(self, plan: Any):
        super().__init__(plan)
        self.keys: dict[tuple, int] = {("opens",): 0}

    def watch(self, f: FunctionLowering) -> Counting:
        return Counting(f, self.keys)

    def table(self) -> dict[str, Any]:
        return {"keys": list(self.keys)}

    @classmethod
    def linked(cls) -> str:
        text = """declare i64 @rk_count_add(i64, i64)
define internal void @count_opens(ptr %blk, i32 %id) {
  %p = &Block.session %blk
  %a = load i64, ptr %p
  %r = call i64 @rk_count_add(i64 %a, i64 1)
  ret void
}"""
        return filled(text, (BLOCK,))

    @classmethod
    def runtime(cls) -> str:
        return """define i64 @rk_count_add(i64 %a, i64 %n) {
  %p = inttoptr i64 %a to ptr
  %old = load i64, ptr %p
  %new = add i64 %old, %n
  store i64 %new, ptr %p
  ret i64 %new
}"""


class Counting(Watch):
    def __init__(self, f: FunctionLowering, keys: dict[tuple, int]):
        self.f, self.keys = f, keys

    def count(self, *key: Any, lanes: Val | None = None) -> None:
        """Add one, or the number of some lanes."""
        e, number = self.f.e, self.keys.setdefault(key, len(self.keys))
        at = e.bin("add", self.f.frame.field(BLOCK, "session"), 8 * number)
        amount = const("i64", 1) if lanes is None else e.resize(e.intrinsic("llvm.ctpop", "i32", lanes), "i64")
        e.line(f"call i64 @rk_count_add({at}, {amount})")

    def enter(self) -> None:
        self.f.frame.lines.append(f"call i64 @rk_count_add({self.f.frame.field(LAUNCH, 'session')}, i64 1)")

    def instruction(self, instr: Instr) -> None:
        self.count("instruction", instr.op.text)
        self.count("lanes", instr.op.text, lanes=self.f.lanes.act())

    def access(self, access: Access, form: Form) -> Form:
        self.count("access", access.what, access.space, lanes=access.mask or self.f.lanes.act())
        return form

    def branch(self, block: Block) -> None:
        f, e, act = self.f, self.f.e, self.f.lanes.act()
        assert block.pred is not None and block.ending is not None
        self.count("branch", block.ending.op.text)
        taken = f.lanes.mask_of(f.values.value(block.pred, 1))
        taken = e.bin("and", e.invert(taken) if block.negated else taken, act)
        parts = e.bin("and", e.cmp("icmp ne", taken, 0), e.cmp("icmp ne", taken, act))
        self.count("divergent", block.ending.op.text, lanes=e.resize(parts, "i32"))

    def arrive(self, instr: Instr, number: Val, counted: bool) -> None:
        self.count("arrive")

    def depart(self, number: Val) -> None:
        self.count("depart")

    def collective(self, instr: Instr, mask: Val) -> None:
        self.count("collective", lanes=self.f.lanes.act())


class CountSession(Session):
    def __init__(self, keys: Sequence[Sequence]):
        self.keys, self.blocks = keys, []
        self.calls = np.zeros(1, np.int64)
        self.address = self.calls.ctypes.data
        self.parallel = False  # the calls are counted for the launch

    def block(self, shared_total: int) -> int:
        self.blocks.append(np.zeros(len(self.keys), np.int64))
        return self.blocks[-1].ctypes.data

    def totals(self) -> dict[tuple, int]:
        found = dict(zip(map(tuple, self.keys), np.sum(self.blocks, axis=0).tolist(), strict=True))
        return found | {("calls",): int(self.calls[0])}


LOOP = """.version 8.8
.target sm_80
.address_size 64
.visible .entry k(.param .u64 pn, .param .u64 px, .param .u64 pout, .param .u64 psum) {
    .reg .pred %p<6>; .reg .b32 %r<16>; .reg .b64 %rd<16>;
    .shared .align 4 .b8 part[1024];
    ld.param.u64 %rd1, [pn];
    ld.param.u64 %rd2, [px];
    ld.param.u64 %rd3, [pout];
    ld.param.u64 %rd4, [psum];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.s32 %r4, %r2, %r3, %r1;
    mul.wide.s32 %rd5, %r4, 4;
    add.s64 %rd6, %rd1, %rd5;
    ld.global.s32 %r5, [%rd6];
    mov.u32 %r6, 0;
    mov.u32 %r7, 0;
LOOP:
    setp.ge.s32 %p1, %r6, %r5;
    @%p1 bra DONE;
    mul.wide.s32 %rd7, %r6, 4;
    add.s64 %rd8, %rd2, %rd7;
    ld.global.u32 %r8, [%rd8];
    add.s32 %r7, %r7, %r8;
    add.s32 %r6, %r6, 1;
    bra LOOP;
DONE:
    MIDDLE
    setp.lt.s32 %p2, %r1, 5;
    @%p2 red.global.add.u32 [%rd4], %r7;
    add.s64 %rd9, %rd3, %rd5;
    st.global.u32 [%rd9], %r7;
    ret;
}
"""
BARRIER = """
    mul.wide.s32 %rd10, %r1, 4;
    mov.u64 %rd11, part;
    add.s64 %rd12, %rd11, %rd10;
    st.shared.u32 [%rd12], %r7;
    bar.sync 0;
    ld.shared.u32 %r9, [part];
    shfl.sync.bfly.b32 %r10, %r7, 1, 31, -1;
    bar.sync 0;"""


def launch(kernel: Any, session: Session, grid: int, block: int, *values: int) -> None:
    target = Target(kernel, (block, 1, 1), 0)
    target.watch(session)
    target.run((grid, 1, 1), None, Bound(None, values, (), (), ()))


def counted(kernel: Any, grid: int, block: int, *arrays: np.ndarray) -> dict[tuple, int]:
    code = kernel.loaded("line")[0]
    session = CountSession(code.table["keys"])
    launch(kernel, session, grid, block, *(a.ctypes.data for a in arrays))
    return session.totals()


@pytest.mark.parametrize("block", [32, 96, 75])
@pytest.mark.parametrize("waits", [False, True])
def test_counts_are_exact(waits, block):
    grid, rng = 7, np.random.default_rng(block)
    n = rng.integers(0, 6, (grid, block)).astype(np.int32)
    n[0, :32] = 3  # a warp that stays together
    x = rng.integers(0, 99, 8).astype(np.int32)
    kernel = kernel_of(LOOP.replace("MIDDLE", BARRIER if waits else ""), Counts, 4)
    out, total = np.zeros((grid, block), np.int32), np.zeros(1, np.int32)
    found = counted(kernel, grid, block, n, x, out, total)
    sums = np.concatenate([[0], np.cumsum(x)])[n]
    np.testing.assert_array_equal(out, sums)
    assert total[0] == sums[:, :5].sum()

    warps = [row[k : k + 32] for row in n for k in range(0, block, 32)]
    rounds = sum(w.max() + 1 for w in warps)
    diverged = sum(0 < (w == k).sum() < (w >= k).sum() for w in warps for k in range(6))
    want = {
        ("calls",): len(warps),
        ("instruction", "ld.global.s32"): len(warps),
        ("lanes", "ld.global.s32"): n.size,
        ("instruction", "ld.global.u32"): rounds - len(warps),
        ("lanes", "ld.global.u32"): n.sum(),
        ("instruction", "setp.ge.s32"): rounds,
        ("lanes", "bra"): (n + 1).sum() + n.sum(),
        ("branch", "bra"): rounds,
        ("divergent", "bra"): diverged,
        ("branch", "red.global.add.u32"): len(warps),  # lanes that skip it
        ("access", READ, "global"): n.size + n.sum(),
        ("access", UPDATE, "global"): 5 * grid,
        ("access", WRITE, "global"): n.size,
        ("lanes", "red.global.add.u32"): 5 * grid,
        ("opens",): 2 * grid if waits else 0,
    }
    if waits:
        want |= {("access", WRITE, "shared"): n.size, ("access", READ, "shared"): n.size, ("collective",): n.size}
        want |= {("arrive",): 2 * len(warps), ("depart",): 2 * len(warps)}
        want |= {("instruction", "bar.sync"): 2 * len(warps), ("lanes", "shfl.sync.bfly.b32"): n.size}
    assert {key: found[key] for key in want} == want


class Sums(Counts):
    """Adds up the addresses of accesses to global memory."""

    name = "sums"

    def watch(self, f: FunctionLowering) -> Counting:
        return Summing(f, self.keys)


class Summing(Counting):
    def instruction(self, instr: Instr) -> None:
        pass

    def branch(self, block: Block) -> None:
        pass

    def access(self, access: Access, form: Form) -> Form:
        f, e, name = self.f, self.f.e, "llvm.vector.reduce.add.v32i64"
        f.module.declare(name, f"declare i64 @{name}(<32 x i64>)")
        addresses = e.bin("add", e.splat(f.values.plain(form), 32), access.at)
        kept = e.select(f.lanes.vector(access.mask or f.lanes.act()), addresses, const("i64", 0, 32))
        key = (access.what, access.space, access.size * access.count, access.at)
        at = e.bin("add", f.frame.field(BLOCK, "session"), 8 * self.keys.setdefault(key, len(self.keys)))
        e.line(f"call i64 @rk_count_add({at}, {e.let('i64', 1, f'call i64 @{name}({kept})')})")
        return form


@pytest.mark.parametrize("block", [96, 75])
def test_addresses_are_told_in_two_parts(block):
    code = r"""
extern "C" __global__ void k(const float* x, const int* at, double* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float a = x[3 * i + 1], b = x[3 * i + 2], c = x[at[i] + 7];
    out[2 * i] = a + b;
    out[2 * i + 1] = c + x[9];
}"""
    grid = 4
    threads = np.arange(grid * block, dtype=np.int64)
    x, out = np.zeros(3 * threads.size + 9, np.float32), np.zeros(2 * threads.size)
    at = np.random.default_rng(4).integers(0, threads.size, threads.size).astype(np.int32)
    found = counted(kernel_of(code, Sums, 3), grid, block, x, at, out)
    n, start = threads.size, x.ctypes.data
    reads = 4 * n * start + 4 * (6 * threads + 3).sum() + 4 * (at + 7).sum() + 36 * n
    reads += n * at.ctypes.data + 4 * threads.sum()
    writes = 2 * n * out.ctypes.data + 8 * (4 * threads + 1).sum()
    totals = [sum(n for key, n in found.items() if key[:2] == (what, "global")) for what in (READ, WRITE)]
    assert totals == [int(reads), int(writes)]
    assert {key[3] for key in found if key[:2] == (READ, "global")} > {0}  # offsets stay apart


class Paths(Counts):
    """Counts lanes where blocks begin and on the edges between them."""

    name = "paths"

    def watch(self, f: FunctionLowering) -> Counting:
        return PathCounting(f, self.keys)

    def table(self) -> dict[str, Any]:
        ends = [
            (f.name, i)
            for f in self.plan.functions
            for i, b in enumerate(self.plan.flows[f.name].blocks)
            if b.exit_only
        ]
        return super().table() | {"ends": ends}


class PathCounting(Counting):
    def block(self, index: int) -> None:
        self.count("block", self.f.function.name, index, lanes=self.f.lanes.act())

    def edge(self, target: int, copies: Sequence[tuple[str, str]], mask: Val) -> None:
        self.count("edge", self.f.function.name, target, lanes=mask)

    def instruction(self, instr: Instr) -> None:
        if instr.op.base in ("ret", "exit"):
            self.count("end", self.f.function.name, lanes=self.f.lanes.act())

    def arrive(self, instr: Instr, number: Val, counted: bool) -> None:
        self.count("arrive")

    def arrive_divergent(self, number: Val, lanes: dict[int, Val]) -> None:
        self.count("arrive divergent")

    def access(self, access: Access, form: Form) -> Form:
        return form

    def branch(self, block: Block) -> None:
        pass


BODIES = {
    "ways": r"""
    if (v & 1) { if (v & 2) out[i] = v; else out[i] = -v; } else if (v > 19) return;
    for (int j = 0; j < v; j++) { if (x[j] == 3) continue; if (x[j] == 25) break; out[i] += x[j]; if (x[j] + v == 30) return; }
    switch (v & 7) { case 0: out[i] *= 3; break; case 1: out[i] -= 4; case 2: out[i] ^= 5; break; case 3: return;
        case 4: out[i] = 7; break; case 5: out[i] += x[1]; break; case 6: out[i] = x[2] / v; break; default: out[i]++; }""",
    "barriers": r"""
    if (v & 1) while (atomicAdd(out, 0) < 0) {}
    if (v & 2) { out[i] = 1; asm volatile("barrier.sync 0;" ::: "memory"); out[i] = 5; }
    else { out[i] = v; asm volatile("barrier.sync 0;" ::: "memory"); if (v & 4) return; }
    out[i] += v;""",
    "collectives": r"""
    if (v & 1) v = __shfl_xor_sync(-1, v, 1); else v = __shfl_xor_sync(-1, v + 1, 1) * 3;
    if (v > 40) return;
    out[i] = __ballot_sync(-1, v & 2);""",
    "calls": r"""out[i] = fact(v, out + i);""",
}


@pytest.mark.parametrize("name", BODIES)
def test_lanes_that_begin_a_block_have_come_along_edges(name):
    code = r"""
__device__ __noinline__ int fact(int k, int* out) { if (k < 2) { out[0] = 1; return k; } return k * fact(k - 1, out); }
extern "C" __global__ void k(const int* x, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i];
    BODY
}""".replace("BODY", BODIES[name])
    x = np.random.default_rng(3).integers(0, 27, (5, 75)).astype(np.int32)
    kernel = kernel_of(code, Paths, 2)
    found = counted(kernel, 5, 75, x, np.zeros(x.size, np.int32))
    begun = {key[1:]: n for key, n in found.items() if key[0] == "block"}
    come = {key[1:]: n for key, n in found.items() if key[0] == "edge"}
    ends = set(map(tuple, kernel.loaded("line")[0].table["ends"]))
    assert len(begun) > 5 and begun["k", 0] == x.size
    for place, lanes in begun.items():
        if place[1] and place not in ends:  # one that only returns may have no code
            assert come[place] == lanes, place
    for function in {place[0] for place in begun}:
        gone = sum(n for place, n in come.items() if place in ends and place[0] == function)
        assert gone + found.get(("end", function), 0) == begun[function, 0]
    if name == "barriers":
        assert found["arrive divergent",] > 0


def test_a_session_can_end_a_launch():
    class Impatient(Session):
        def stop_reason(self) -> str | None:
            return "enough of this"

    kernel = kernel_of('extern "C" __global__ void k(volatile int* x) { while (x[0] == 0) {} }', Instrument, 1)
    x = np.zeros(1, np.int32)
    with pytest.raises(rawkern.LaunchError, match=r"^k: enough of this$"):
        launch(kernel, Impatient(), 1, 32, x.ctypes.data)
