"""Instruments are told of everything that lowering does, and nothing else knows of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from rawkern.compile.programs import compile_program
from rawkern.compile.source import CPU_ARCH, from_text
from rawkern.engines.cpu.analysis.graph import Block
from rawkern.engines.cpu.emit.forms import Form
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import COPY, READ, UPDATE, WRITE, Access, Instrument, Note, Watch
from rawkern.engines.cpu.emit.matrix.fragments import KINDS
from rawkern.engines.cpu.emit.matrix.mma import shape_in
from rawkern.engines.cpu.emit.opcodes import FORMS
from rawkern.engines.cpu.ir import Val
from rawkern.engines.cpu.ptx.data import TYPE_BYTES, Instr
from rawkern.engines.cpu.ptx.decode import decode
from rawkern.engines.cpu.runtime import jit
from tests.engines.cpu.arith import ptx_forms


class Recorder(Instrument):
    """Keeps all events in order, as tuples that start with the event's name."""

    name = "recorder"
    rounds = False

    def __init__(self, plan: Any):
        super().__init__(plan)
        self.events: list[tuple] = []

    def watch(self, f: FunctionLowering) -> Recording:
        return Recording(f, self.events)

    def table(self) -> dict[str, Any]:
        return {"events": self.events, "flows": self.plan.flows}


class Recording(Watch):
    def __init__(self, f: FunctionLowering, events: list[tuple]):
        self.f, self.events = f, events

    def tell(self, *event: Any) -> None:
        self.events.append(event)

    def enter(self) -> None:
        self.tell("enter", self.f.function.name)

    def block(self, index: int) -> None:
        self.tell("block", self.f.function.name, index)

    def instruction(self, instr: Instr) -> None:
        self.tell("instruction", instr.op.text)

    def branch(self, block: Block) -> None:
        self.tell("branch", self.f.function.name, self.f.block, block.kind)

    def diverged(self, block: Block, ways: Sequence[Val]) -> None:
        self.tell("diverged", self.f.function.name, self.f.block, len(ways))

    def edge(self, target: int, copies: Sequence[tuple[str, str]], mask: Val) -> None:
        self.tell("edge", self.f.function.name, self.f.block, target, len(copies))

    def access(self, access: Access, form: Form) -> Form:
        self.tell("access", access.what, access.space, access.size * access.count)
        return form

    def lines(self, access: Access, at: Val, pitch: Val, count: int) -> tuple[Val, Val]:
        self.tell("lines", access.what, access.space, access.size * access.count * count)
        return at, pitch

    def arrive(self, instr: Instr, number: Val, counted: bool) -> None:
        self.tell("arrive", instr.op.text)

    def arrive_divergent(self, number: Val, lanes: dict[int, Val]) -> None:
        self.tell("arrive divergent", *lanes)

    def depart(self, number: Val) -> None:
        self.tell("depart")

    def cluster_arrive(self, instr: Instr) -> None:
        self.tell("cluster arrive", instr.op.text)

    def cluster_wait(self, instr: Instr) -> None:
        self.tell("cluster wait", instr.op.text)

    def cluster_depart(self) -> None:
        self.tell("cluster depart")

    def collective(self, instr: Instr, mask: Val) -> None:
        self.tell("collective", instr.op.text)

    def shuffled(self, instr: Instr, dest: str, source: Val, inside: Val, members: Val) -> None:
        self.tell("shuffled", dest.split("!")[0])

    def incomplete(self, instr: Instr, lanes: Val) -> None:
        self.tell("incomplete", instr.op.text)

    def mbarrier(self, what: str, places: Val, lanes: Val) -> None:
        self.tell("mbarrier", what)

    def completes_at(self, places: Val) -> None:
        self.tell("completes")

    def note(self, what: Note, *args: Val) -> None:
        self.tell("note", what)


class Once(Recorder):
    """Without the second code for whole warps."""

    def watch(self, f: FunctionLowering) -> Recording:
        watch = super().watch(f)
        watch.whole_warps = False
        return watch


def events_of(ptx: str, instrument: type[Instrument], shape: str = "line") -> dict:
    translation = jit.Translation(ptx)
    table = translation.lower("k", translation.globals(), shape, jit.host(), instrument).table
    assert table is not None
    return table


def expected(op: str) -> list[tuple]:
    """The events of one instruction, but for itself."""
    parts = re.sub("::(cta|cluster)", "", op).split(".")
    root, space = parts[0], next((p for p in parts if p in ("global", "shared", "const")), "generic")
    bits = {"x2": 2, "x1": 1, "x4": 4}
    if root in ("ld", "ldu", "st", "atom", "red"):
        what = {"ld": READ, "ldu": READ, "st": WRITE}.get(root, UPDATE)
        count = next((int(p[1:]) for p in parts if p in ("v2", "v4", "v8")), 1)
        one = ("access", what, space, TYPE_BYTES[parts[-1]] * count)
        if "async" in parts:
            return [("note", "copy"), one, ("note", "copied"), ("completes",), ("access", UPDATE, space, 8)]
        return [one]
    if root in ("ldmatrix", "stmatrix"):
        assert any(p in bits for p in parts)
        return [("access", READ if root == "ldmatrix" else WRITE, space, 16)]
    if root == "wmma" and parts[1] != "mma":
        kind, shape, operand = KINDS[parts[-1]], shape_in(decode(op)), parts[2]
        rows, columns = {"a": (shape.m, shape.k), "b": (shape.k, shape.n)}.get(operand, (shape.m, shape.n))
        return [("lines", READ if parts[1] == "load" else WRITE, space, rows * columns * kind.bits // 8)]
    spaces = [p for p in parts if p in ("global", "shared")]
    if root == "cp" and "bulk" in parts and len(spaces) == 2:
        does = UPDATE if parts[1] == "reduce" else COPY if spaces[0] == "shared" else WRITE
        to = "cluster" if "multicast" in parts else spaces[0]
        told = [("completes",), ("access", UPDATE, to, 8)] if "bulk_group" not in parts else []
        both = [("access", does, to, 16), ("access", READ, spaces[1], 16)]
        map_ = [("access", READ, "generic", 128)] if "tensor" in parts else []
        return [*map_, ("note", "bulk_copy"), *both, ("note", "copied"), *told]
    if root == "cp" and "bulk" in parts:
        return {"commit_group": [("note", "commit")], "wait_group": [("note", "wait")]}.get(parts[3], [])
    if root == "cp" and parts[2] in ("ca", "cg"):
        return [
            ("note", "copy"), ("access", COPY, "shared", 16), ("access", READ, "global", 16), ("note", "copied"),
        ]  # fmt: skip
    if root == "cp" and parts[2] == "mbarrier":
        return [("note", "copies_arrive"), *([("access", UPDATE, space, 8)] if "noinc" in parts else [])]
    if root == "cp":
        return [("note", {"commit_group": "commit", "wait_group": "wait", "wait_all": "wait_all"}[parts[2]])]
    if root == "mbarrier" and parts[1] != "pending_count":
        what = WRITE if parts[1] in ("init", "inval") else READ if parts[1].endswith("_wait") else UPDATE
        does = {"test_wait": "test", "try_wait": "test", "arrive_drop": "arrive"}.get(parts[1], parts[1])
        told = [] if parts[1].endswith("_tx") else [("mbarrier", does)]
        return [("access", what, space, 8), *told]
    if root in ("membar", "fence"):
        others = {"async", "async::generic", "tensormap::generic", "mbarrier_init"}
        if "mbarrier_init" in parts:
            return [("note", "init_fence")]
        if "proxy" in parts and "async" in parts:
            return [("note", "proxy_fence")] if "global" not in parts else []
        return [("note", "fence")] if others.isdisjoint(parts) else []
    if op in ("griddepcontrol.wait", "wgmma.fence.sync.aligned"):
        return [("note", "dependency" if root == "griddepcontrol" else "product_fence")]
    if op.startswith("bar.warp"):
        return [("collective", op), ("note", "warp_sync")]
    if op.startswith("barrier.cluster"):
        waits = [("cluster wait", op), ("cluster depart",)]
        return [("cluster arrive", op)] if "arrive" in parts else waits
    if root in ("bar", "barrier"):
        return [("arrive", op), *([] if "arrive" in parts else [("depart",)])]
    if "sync" in parts and root in ("shfl", "vote", "match", "redux", "elect"):
        return [("collective", op), *([("shuffled", "%r1")] if root == "shfl" else [])]
    return []


@pytest.mark.parametrize("name", sorted({f.base for f in FORMS}))
def test_each_form_tells_what_it_does(name):
    ops = ptx_forms.listed(name)
    translation = jit.Translation(ptx_forms.module(ops))
    layout = translation.globals()
    for k, op in enumerate(ops):
        table = translation.lower(f"k{k}", layout, "line", jit.host(), Once).table
        assert table is not None
        told, rest = [], []
        for event in table["events"]:
            if event[0] == "instruction":
                told.append(event[1])
            elif event[0] not in ("enter", "block", "edge", "branch", "diverged"):
                rest.append(event)
        if name == "call":
            assert told.pop() == "ret"  # of what is called
        assert told == ["mov.u32", "mov.u64", "mov.u64", op]
        if name == "wmma" and rest:
            assert len({e[:3] for e in rest}) == 1
            rest = [(*rest[0][:3], sum(e[3] for e in rest))]
        assert rest == expected(op), op


FLOWS = {
    "ways": r"""
    int v = x[i];
    if (v & 1) { if (v & 2) out[i] = v; else out[i] = -v; } else if (v > 9) return;
    for (int j = 0; j < v; j++) { if (x[j] == 3) continue; if (x[j] == 5) break; out[i] += x[j]; }
    switch (v & 7) { case 0: out[i] *= 3; break; case 1: out[i] -= 4; case 2: out[i] ^= 5; break; case 3: return;
        case 4: out[i] = 7; break; case 5: out[i] += x[1]; break; case 6: out[i] = x[2] / v; break; default: out[i]++; }""",
    "barriers": r"""
    __shared__ int s[64];
    int v = x[i];
    s[threadIdx.x] = v;
    __syncthreads();
    for (int j = 0; j < n; j++) { v += s[(threadIdx.x + j) % 64]; __syncthreads(); s[threadIdx.x] = v; __syncthreads(); }
    if (v > 5) __syncwarp(0xff); else out[i] = __syncthreads_count(v);
    out[i] += v;""",
    "collectives": r"""
    int v = x[i];
    while (atomicCAS(out, 0, 1) != 0) {}
    if (v & 1) v = __shfl_xor_sync(-1, v, 1); else v = __shfl_xor_sync(-1, v + 1, 1) * 3;
    if (v > 9) return;
    if (v & 2) __syncthreads();
    out[i] = __ballot_sync(-1, v) + __reduce_add_sync(-1, v);
    atomicExch(out, 0);""",
    "calls": r"""
    if (x[i] > 2) out[i] = fact(x[i], out); else out[i] = ((int (*)(int, int*))(x[0] ? fact : other))(n, out);""",
}


def flow_ptx(name: str) -> str:
    code = r"""
__device__ __noinline__ int fact(int k, int* out) { if (k < 2) { out[0] = 1; return k; } return k * fact(k - 1, out); }
__device__ __noinline__ int other(int k, int* out) { return k + out[1]; }
extern "C" __global__ void k(int n, const int* x, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    BODY
}""".replace("BODY", FLOWS[name])
    return compile_program(from_text(code), CPU_ARCH).ptx


@pytest.mark.parametrize("shape", ["line", "rows", "halves", "any"])
@pytest.mark.parametrize("name", FLOWS)
def test_blocks_edges_and_branches_are_all_told(name, shape):
    table = events_of(flow_ptx(name), Once, shape)
    events, flows = set(table["events"]), table["flows"]
    for function, flow in flows.items():
        assert ("enter", function) in events
        for i, block in enumerate(flow.blocks):
            entered = [e for e in events if e[:2] == ("edge", function) and e[3] == i]
            if block.exit_only and i:
                assert entered
                continue
            assert ("block", function, i) in events
            for t in block.targets:
                assert ("edge", function, i, t, len(block.copies.get(t, ()))) in events
            if block.kind in ("cond", "switch") and len(set(block.targets)) > 1:
                assert ("branch", function, i, block.kind) in events
    diverged = {e[:3] for e in events if e[0] == "diverged"}
    assert {("branch", *e[1:]) for e in diverged} <= {e[:3] for e in events}
    assert diverged or name == "barriers"
    ops = Counter(i.op.text for flow in flows.values() for block in flow.blocks for i in block.instrs)
    ops += Counter(
        b.ending.op.text
        for flow in flows.values()
        for i, b in enumerate(flow.blocks)
        if b.ending is not None and not b.guards and not (b.exit_only and i)
    )
    assert Counter(e[1] for e in table["events"] if e[0] == "instruction") == ops
    kinds = {e[0] for e in events}
    if name == "barriers":
        assert {"arrive", "depart", "collective"} <= kinds
    if name == "collectives":
        assert {"arrive", "arrive divergent", "depart", "collective", "incomplete", "shuffled"} <= kinds


def test_the_second_code_for_whole_warps_tells_the_same():
    code = r"""
extern "C" __global__ void k(int n, const int* x, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[x[i]] + 1;
}"""
    ptx = compile_program(from_text(code), CPU_ARCH).ptx
    once, twice = (events_of(ptx, kind)["events"] for kind in (Once, Recorder))
    for name in ("instruction", "access", "branch", "edge"):
        single, double = (Counter(e for e in events if e[0] == name) for events in (once, twice))
        assert single and set(double) == set(single)
        assert name == "edge" or all(double[e] == 2 * single[e] for e in single)
