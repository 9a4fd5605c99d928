"""Control flow of hand-written PTX: order of blocks, loops, post-dominators and liveness."""

from __future__ import annotations

import random

import pytest

from rawkern.engines.cpu.analysis.control_flow import build
from rawkern.engines.cpu.analysis.graph import Flow
from rawkern.engines.cpu.analysis.order import running_order
from rawkern.engines.cpu.ptx.data import Instr
from rawkern.engines.cpu.ptx.operands import destinations, sources
from rawkern.engines.cpu.ptx.parser import parse
from rawkern.errors import UnsupportedError


def flow_of(text: str, collectives: bool = False) -> Flow:
    """Control flow of a kernel; an instruction ``mov.u32 %r1, 7`` marks a place that `at` finds."""
    registers = ".reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %rd<9>;"
    return build(parse(f".version 8.7\n.target sm_80\n.entry k() {{ {registers} {text} }}").functions["k"], collectives)


def at(flow: Flow, mark: int) -> int:
    """Number of the block that holds the constant `mark`."""
    found = [
        i for i, block in enumerate(flow.blocks) for instr in block.instrs
        if any(getattr(a, "value", None) == mark for a in instr.args)
    ]  # fmt: skip
    assert len(found) == 1, (mark, found)
    return found[0]


def mark(n: int) -> str:
    return f"mov.u32 %r19, {n};"


IF_ELSE = f"""
    {mark(100)} @%p1 bra OTHER;
    {mark(101)} bra MEET;
    OTHER: {mark(102)}
    MEET: {mark(103)} ret;
"""
LOOP = f"""
    {mark(100)}
    HEAD: {mark(101)} @%p1 bra SKIP;
    {mark(102)}
    SKIP: {mark(103)} @%p2 bra HEAD;
    {mark(104)} ret;
"""
# the loop's exit precedes the rest of the loop in the PTX, as compilers like to put it
EARLY_EXIT = f"""
    {mark(100)}
    HEAD: {mark(101)} @%p1 bra BODY;
    bra OUT;
    OUT: {mark(103)} ret;
    BODY: {mark(102)} bra HEAD;
"""
NESTED = f"""
    OUTER: {mark(100)}
    INNER: {mark(101)} @%p1 bra INNER;
    {mark(102)} @%p2 bra OUTER;
    {mark(103)} ret;
"""
TWO_LATCHES = f"""
    {mark(100)}
    HEAD: {mark(101)} @%p1 bra HEAD;
    {mark(102)} @%p2 bra HEAD;
    {mark(103)} ret;
"""


# -- order ------------------------------------------------------------------------------------------------------------
def check_order(flow: Flow) -> None:
    """What the scheme of waiting lanes rests on."""
    headers = {header for header, _ in flow.loops}
    for i, block in enumerate(flow.blocks):
        for t in block.targets:
            assert t > i or t in headers, f"an edge goes back from {i} to {t}, which heads no loop"
    for header, members in flow.loops:
        assert sorted(members) == list(range(min(members), max(members) + 1)), "a loop is not contiguous"
        assert header == min(members)
        latches = [m for m in members if header in flow.blocks[m].targets]
        assert len(latches) == 1, "a loop jumps back in more than one place"


@pytest.mark.parametrize("text", [IF_ELSE, LOOP, EARLY_EXIT, NESTED, TWO_LATCHES])
def test_order(text):
    check_order(flow_of(text))


def test_branches_come_before_the_place_where_they_meet():
    flow = flow_of(IF_ELSE)
    places = [at(flow, n) for n in (100, 101, 102, 103)]
    assert places == sorted(places)
    assert flow.blocks[at(flow, 100)].targets == [at(flow, 102), at(flow, 101)]
    assert flow.loops == []


def test_a_loop_comes_before_what_follows_it():
    flow = flow_of(EARLY_EXIT)
    assert at(flow, 102) < at(flow, 103)
    ((header, members),) = flow.loops
    assert header == at(flow, 101)
    assert at(flow, 102) in members
    assert at(flow, 103) not in members


def test_nested_loops_outermost_first():
    flow = flow_of(NESTED)
    (outer, outer_members), (inner, inner_members) = flow.loops
    assert (outer, inner) == (at(flow, 100), at(flow, 101))
    assert inner_members < outer_members
    assert at(flow, 102) in outer_members - inner_members


def test_a_second_way_back_goes_through_one_latch():
    flow = flow_of(TWO_LATCHES)
    ((header, members),) = flow.loops
    (latch,) = (m for m in members if header in flow.blocks[m].targets)
    assert flow.blocks[latch].instrs == []
    assert latch == max(members)
    assert set(flow.predecessors[latch]) == {at(flow, 101), at(flow, 102)}


def test_unreachable_code_is_left_out():
    flow = flow_of(f"{mark(100)} bra END; {mark(101)} END: {mark(102)} ret;")
    constants = [a.value for b in flow.blocks for i in b.instrs for a in i.args if hasattr(a, "value")]
    assert constants == [100, 102]


def test_a_loop_entered_in_two_places_keeps_its_blocks_together():
    order, loops = running_order([[1, 2], [2], [1, 3], []])
    assert order[0] == 0 and order[-1] == 3
    assert [members for _, members in loops] == [{1, 2}]


@pytest.mark.parametrize("seed", range(40))
def test_order_of_random_graphs(seed):
    rng = random.Random(seed)
    n = rng.randrange(2, 25)
    targets = [[rng.randrange(n) for _ in range(rng.randrange(3))] for _ in range(n)]
    order, loops = running_order(targets)
    reachable, work = {0}, [0]
    while work:
        for t in targets[work.pop()]:
            if t not in reachable:
                reachable.add(t)
                work.append(t)
    assert sorted(order) == sorted(reachable)
    assert order[0] == 0
    number = {block: k for k, block in enumerate(order)}
    headers = {h for h, _ in loops} | {0}
    for block in order:
        assert all(number[t] > number[block] or t in headers for t in targets[block])
    for _, members in loops:
        places = sorted(number[m] for m in members)
        assert places == list(range(places[0], places[-1] + 1))


# -- blocks -----------------------------------------------------------------------------------------------------------
def test_a_predicated_instruction_is_a_branch_around_it():
    flow = flow_of(f"{mark(100)} @!%p1 mov.u32 %r1, 101; {mark(102)} ret;")
    first, inner, after = (at(flow, n) for n in (100, 101, 102))
    block = flow.blocks[first]
    assert (block.kind, block.targets, block.negated) == ("cond", [inner, after], True)
    assert block.pred is not None and block.pred.name == "%p1"
    (instr,) = flow.blocks[inner].instrs
    assert instr.guard is None
    assert flow.blocks[inner].targets == [after]


def test_a_predicated_return_ends_some_lanes():
    flow = flow_of(f"{mark(100)} @%p1 ret; {mark(101)} ret;")
    first = at(flow, 100)
    ending, going = flow.blocks[first].targets
    assert flow.blocks[ending].exit_only
    assert going == at(flow, 101)
    assert flow.lane_targets(first) == [going]


def test_barriers_end_blocks():
    flow = flow_of(f"{mark(100)} bar.sync 0; {mark(101)} bar.warp.sync -1; {mark(102)} ret;")
    first = flow.blocks[at(flow, 100)]
    assert (first.kind, first.instrs[-1].op.text, first.targets) == ("barrier", "bar.sync", [at(flow, 101)])
    second = flow.blocks[at(flow, 101)]
    assert (second.kind, second.targets) == ("ret", [])
    text = f"{mark(100)} bar.warp.sync -1; {mark(101)} shfl.sync.idx.b32 %r1, %r2, 0, 31, -1; {mark(102)} ret;"
    flow = flow_of(text, collectives=True)
    blocks = [flow.blocks[k] for k in (1, 3)]
    assert [(b.kind, len(b.instrs), b.targets) for b in blocks] == [("collective", 1, [2]), ("collective", 1, [4])]
    assert (at(flow, 100), at(flow, 101), at(flow, 102)) == (0, 2, 4)


def test_a_predicated_barrier_is_a_block_of_its_own():
    flow = flow_of(f"{mark(100)} @%p1 bar.sync 0; {mark(101)} ret;")
    inner, after = flow.blocks[at(flow, 100)].targets
    assert flow.blocks[inner].kind == "barrier"
    (alone,) = flow.blocks[inner].targets  # so that nothing is copied when a barrier is left
    assert (flow.blocks[alone].kind, flow.blocks[alone].targets) == ("jump", [after]) and after == at(flow, 101)


def test_switch():
    flow = flow_of(
        f"T: .branchtargets A, B, A; {mark(100)} brx.idx %r1, T; A: {mark(101)} bra E; B: {mark(102)} E: {mark(103)} ret;"
    )
    block = flow.blocks[at(flow, 100)]
    assert block.kind == "switch"
    assert block.targets == [at(flow, n) for n in (101, 102, 101)]
    assert flow.ipdom[at(flow, 100)] == at(flow, 103)


def test_a_branch_to_nowhere_is_named():
    with pytest.raises(UnsupportedError, match="unknown label NOWHERE"):
        flow_of("bra NOWHERE;")


# -- where lanes meet again -------------------------------------------------------------------------------------------
def test_post_dominators():
    flow = flow_of(IF_ELSE)
    a, b, c, d = (at(flow, n) for n in (100, 101, 102, 103))
    assert [flow.ipdom[i] for i in (a, b, c)] == [d, d, d]
    flow = flow_of(LOOP)
    head, skipped, skip, out = (at(flow, n) for n in (101, 102, 103, 104))
    assert (flow.ipdom[head], flow.ipdom[skipped], flow.ipdom[skip]) == (skip, skip, out)


def test_lanes_that_return_do_not_keep_the_others_from_meeting():
    flow = flow_of(
        f"{mark(100)} @%p1 bra A; {mark(101)} @%p2 ret; {mark(102)} bra M; A: {mark(103)} M: {mark(104)} ret;"
    )
    assert flow.ipdom[at(flow, 100)] == at(flow, 104)
    assert flow.ipdom[at(flow, 101)] == at(flow, 102)


def test_paths_that_return_on_their_own_do_not_meet():
    flow = flow_of(f"{mark(100)} @%p1 bra A; {mark(101)} ret; A: {mark(102)} ret;")
    assert flow.ipdom[at(flow, 100)] is None


def test_an_endless_loop_has_post_dominators_too():
    flow = flow_of(f"{mark(100)} @%p1 bra L; {mark(101)} ret; L: {mark(102)} bra L;")
    assert flow.ipdom[at(flow, 100)] is None


def test_paths_into_a_loop_that_is_left_by_returning_meet():
    """As in a kernel that ends with `for (...) x[i] = s[i];`: its exit is a bare `ret`."""
    flow = flow_of(
        f"{mark(100)} @%p1 bra A; {mark(101)} A: {mark(102)} @%p2 ret; L: {mark(103)} @%p1 bra M; {mark(104)} M: {mark(105)} @%p2 bra L; ret;"
    )
    assert flow.ipdom[at(flow, 100)] == at(flow, 102)
    assert flow.ipdom[at(flow, 103)] == at(flow, 105)
    assert flow.ipdom[at(flow, 105)] is None


def test_paths_meet_where_a_loop_returns_last():
    flow = flow_of(f"{mark(100)} L: {mark(101)} @%p1 bra A; {mark(102)} @%p2 ret; A: {mark(103)} @%p2 ret; bra L;")
    assert flow.ipdom[at(flow, 101)] == at(flow, 103)


# -- registers --------------------------------------------------------------------------------------------------------
def test_liveness():
    flow = flow_of(f"""
        mov.u32 %r1, 100; mov.u32 %r2, 5; mov.u32 %r3, 6;
        setp.eq.u32 %p1, %r2, 5;
        @%p1 bra OTHER;
        add.u32 %r1, %r1, 101; bra MEET;
        OTHER: add.u32 %r3, %r3, 102;
        MEET: st.global.u32 [%rd1], %r1; {mark(103)} ret;
    """)
    live = {n: flow.live_in[at(flow, n)] for n in (100, 101, 102, 103)}
    assert live[100] == {"%rd1"}
    assert live[101] == {"%rd1", "%r1"}
    assert live[102] == {"%rd1", "%r1", "%r3"}
    assert live[103] == {"%rd1", "%r1"}


def test_registers_live_round_a_loop():
    flow = flow_of(f"""
        mov.u32 %r1, 100; mov.u32 %r2, 0;
        HEAD: add.u32 %r2, %r2, %r1; setp.lt.u32 %p1, %r2, 101; @%p1 bra HEAD;
        {mark(102)} ret;
    """)
    assert flow.live_in[at(flow, 101)] == {"%r1", "%r2"}
    assert flow.live_in[at(flow, 102)] == set()


@pytest.mark.parametrize(
    "text, written, read",
    [
        ("add.u32 %r1, %r2, %r3;", ["%r1"], ["%r2", "%r3"]),
        ("st.global.v2.u32 [%rd1+4], {%r1, %r2};", [], ["%rd1", "%r1", "%r2"]),
        ("ld.global.v2.u32 {%r1, _}, [%rd1];", ["%r1"], ["%rd1"]),
        ("setp.lt.and.u32 %p1|%p2, %r1, 3, !%p3;", ["%p1", "%p2"], ["%r1", "%p3"]),
        ("atom.global.add.u32 %r1, [%rd1], %r2;", ["%r1"], ["%rd1", "%r2"]),
        ("atom.global.add.u32 _, [%rd1], %r2;", [], ["%rd1", "%r2"]),
        ("red.global.add.u32 [%rd1], %r2;", [], ["%rd1", "%r2"]),
        ("bar.red.popc.u32 %r1, 0, %p1;", ["%r1"], ["%p1"]),
        ("bar.sync %r1, %r2;", [], ["%r1", "%r2"]),
        ("call.uni (r), f, (a);", [], []),
        ("call (r), %rd1, (a), proto;", [], ["%rd1"]),
    ],
)
def test_what_instructions_read_and_write(text, written, read):
    (instr, *_) = (i for b in flow_of(f"{text} ret;").blocks for i in b.instrs)
    assert isinstance(instr, Instr)
    assert (destinations(instr), sources(instr)) == (written, read)
