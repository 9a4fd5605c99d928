"""Where lanes can wait while others run, against lanes that walk through graphs one by one."""

from __future__ import annotations

import random

import pytest
import torch

import rawkern
from rawkern.engines.cpu.analysis.control_flow import _ordered, _single_latches
from rawkern.engines.cpu.analysis.graph import Block, Flow, numbers
from rawkern.engines.cpu.analysis.waits import Waits
from rawkern.engines.cpu.ptx.data import Reg
from tests.engines.cpu.analysis.test_control_flow import IF_ELSE, LOOP, NESTED, at, flow_of, mark


def waits_of(flow: Flow, *marks: int) -> set[tuple[int, int]]:
    """Pairs of blocks: lanes can run the first while others wait at the second, if branches at the marks can differ."""
    waits = Waits(flow)
    waits.diverge(at(flow, m) for m in marks)
    return {(b, w) for b, bits in enumerate(waits.later) for w in numbers(bits)}


def pairs(flow: Flow, *marks: tuple[int, int]) -> set[tuple[int, int]]:
    return {(at(flow, a), at(flow, b)) for a, b in marks}


def test_where_lanes_wait_while_others_run():
    flow = flow_of(IF_ELSE)
    assert waits_of(flow, 100) == pairs(flow, (101, 102), (102, 103))
    flow = flow_of(LOOP)  # no lane waits in the loop when others iterate
    assert waits_of(flow, 103) == pairs(flow, (101, 104), (102, 104), (103, 104))
    assert waits_of(flow, 101) == pairs(flow, (102, 103))
    flow = flow_of(f"""
        HEAD: {mark(101)} @%p1 bra OUT; {mark(102)} @%p2 bra NEXT; {mark(103)}
        NEXT: {mark(104)} @%p3 bra HEAD;
        OUT: {mark(105)} ret;
    """)
    inside = [(a, 105) for a in (101, 102, 103, 104)]
    assert waits_of(flow, 101) == pairs(flow, *inside)  # those that break wait only after the loop
    assert waits_of(flow, 102) == pairs(flow, (103, 104))
    flow = flow_of(NESTED)
    assert waits_of(flow, 101) == pairs(flow, (101, 102))
    assert waits_of(flow, 102) == pairs(flow, (100, 103), (101, 103), (102, 103))


def test_lanes_wait_at_the_latch_for_those_that_come_to_it_by_a_branch_they_passed_by():
    """The second branch comes after the first on every path to the end, but for some lanes only in the next round."""
    flow = flow_of(f"""
        HEAD: {mark(100)} @%p1 bra SECOND;
        {mark(101)} bra LATCH;
        SECOND: {mark(102)} @%p2 bra OUT;
        LATCH: {mark(103)} bra HEAD;
        OUT: {mark(104)} ret;
    """)
    assert pairs(flow, (102, 103)) <= waits_of(flow, 100)


def graph(rng: random.Random) -> list[Block]:
    """Any blocks at all; those that are not reached go, each loop gets one latch."""
    n = rng.randint(3, 12)
    blocks = []
    for i in range(n):
        targets = rng.sample(range(1, n), min(n - 1, rng.choice((1, 1, 2, 2, 3))))
        kind = ("jump", "cond", "switch")[len(targets) - 1] if i < n - 1 else "ret"
        blocks.append(Block([], kind, targets if kind != "ret" else [], Reg("%p1")))
    return blocks


@pytest.mark.parametrize("seed", range(40))
def test_lanes_that_walk_wait_only_where_it_is_said(seed):
    rng = random.Random(seed)
    blocks, loops = _ordered(_ordered(_single_latches(graph(rng)))[0])
    flow = Flow(blocks, loops)
    divergent = {i for i, block in enumerate(blocks) if len(block.targets) > 1 and rng.random() < 0.7}
    waits = Waits(flow)
    waits.diverge(divergent)
    ends = [i for i, block in enumerate(blocks) if block.kind == "ret"]
    for _ in range(60):
        lanes = [0] * 6
        for _ in range(80):
            here = min(lanes)
            if here in ends:
                break
            others = {w for w in lanes if w != here}
            assert others <= set(numbers(waits.later[here])), (here, others)
            agreed = rng.choice(blocks[here].targets)
            for k, at_block in enumerate(lanes):
                if at_block == here:
                    lanes[k] = rng.choice(blocks[here].targets) if here in divergent else agreed
            lanes = [w for w in lanes if not blocks[w].exit_only] or [ends[0] if ends else 0]


def test_lanes_of_one_branch_reach_the_other_in_the_next_round(device):
    n, junk = torch.zeros(2, 64, dtype=torch.int32, device=device).unbind()
    rawkern.RawKernel(r"""
    extern "C" __global__ void k(int* n, int* junk) {
        int id = blockIdx.x * blockDim.x + threadIdx.x, count = 0;
        unsigned s = 12345 + id * 7919;
        while (true) {
            s = s * 1664525u + 1013904223u;
            count++;
            if ((s >> 28) & 1) junk[id] = s;
            else if ((s >> 27) & 1) s ^= 5;
            else break;
        }
        n[id] = count;
    }""")[1, 64](n, junk)
    want = []
    for lane in range(64):
        s, count, going = 12345 + lane * 7919, 0, True
        while going:
            s, count = (s * 1664525 + 1013904223) & 0xFFFFFFFF, count + 1
            if not (s >> 28) & 1:
                going = bool((s >> 27) & 1)
                s ^= 5
        want.append(count)
    assert n.tolist() == want


def test_a_loop_entered_in_two_places(device):
    out = torch.zeros(128, dtype=torch.int64, device=device)
    rawkern.RawKernel(r"""
    extern "C" __global__ void k(long long* out, int p) {
        __shared__ unsigned s[128];
        unsigned tid = threadIdx.x, lane = tid & 31;
        for (unsigned z = tid; z < 128; z += blockDim.x) s[z] = z * 2654435761u;
        int fuel = 7;
      a:;
        if (p == 0) goto c;
      b:;
        if (--fuel <= 0) goto e;
        if (tid) goto a;
      c:;
        if (lane) goto b;
      e:;
        __syncthreads();
        for (unsigned z = tid; z < 128; z += blockDim.x) out[z] = s[z];
    }""")[1, 33](out, 5)
    assert out.tolist() == [z * 2654435761 % 2**32 for z in range(128)]
