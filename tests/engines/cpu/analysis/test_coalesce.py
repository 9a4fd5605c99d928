"""Coalesced copies: fewer registers, and each thread computes what it did."""

from __future__ import annotations

import random

from rawkern.engines.cpu.analysis.coalesce import coalesce
from rawkern.engines.cpu.analysis.control_flow import build
from rawkern.engines.cpu.analysis.graph import Flow
from rawkern.engines.cpu.analysis.ssa import split_registers
from rawkern.engines.cpu.ptx.data import Imm, Reg
from rawkern.engines.cpu.ptx.operands import destinations
from rawkern.engines.cpu.ptx.parser import parse

DO = {"mov": lambda a: a, "add": lambda a, b: a + b, "xor": lambda a, b: a ^ b, "sub": lambda a, b: a - b}
COUNT = 6


def flow_of(text: str) -> Flow:
    registers = ".reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %rd<9>;"
    (function,) = parse(f".version 8.7\n.target sm_80\n.entry k() {{ {registers} {text} }}").functions.values()
    return split_registers(build(function))


def copies(flow: Flow) -> int:
    """Those on edges, and moves of registers."""
    edges = sum(len(pairs) for block in flow.blocks for pairs in block.copies.values())
    return edges + sum(i.op.base == "mov" and isinstance(i.args[1], Reg) for b in flow.blocks for i in b.instrs)


def every(flow: Flow) -> set[str]:
    return {name for name, ty in flow.regs.items() if ty != "pred"}


def run(flow: Flow, rounds: int = 60) -> list[int]:
    """What one thread stores."""
    held: dict[str, int] = {}
    stored, at = [], 0

    def value(a) -> int:
        return held[a.name] if isinstance(a, Reg) else a.value if isinstance(a, Imm) else 0

    for _ in range(rounds):
        block = flow.blocks[at]
        for instr in block.instrs:
            if instr.op.base == "st":
                stored.append(value(instr.args[1]))
            elif instr.op.base == "setp":
                a, b = map(value, instr.args[1:])
                held[instr.args[0].name] = a < b if instr.op.has("lt") else a == b
            else:
                held[destinations(instr)[0]] = DO[instr.op.base](*map(value, instr.args[1:])) & 0xFF
        if not block.targets:
            break
        if block.pred is None:
            to = block.targets[0]
        else:
            to = block.targets[0 if bool(held[block.pred.name]) != block.negated else 1]
        pairs = block.copies.get(to, ())
        held |= dict(zip([d for d, _ in pairs], [held.get(s, 0) for _, s in pairs], strict=True))
        at = to
    return stored


SUM = """
    mov.u32 %r1, 0; mov.u32 %r2, 1;
    HEAD: add.u32 %r3, %r1, %r2; @%p1 bra ON; add.u32 %r4, %r3, 1; bra JOIN;
    ON: xor.b32 %r4, %r3, 5;
    JOIN: mov.u32 %r1, %r4; setp.lt.u32 %p1, %r1, 50; @%p1 bra HEAD;
    st.global.u32 [%rd1], %r1; ret;
"""
SWAP = """
    mov.u32 %r1, 1; mov.u32 %r2, 2; mov.u32 %r5, 0;
    HEAD: mov.u32 %r3, %r1; mov.u32 %r1, %r2; mov.u32 %r2, %r3;
    add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 5; @%p1 bra HEAD;
    st.global.u32 [%rd1], %r1; st.global.u32 [%rd1], %r2; ret;
"""


def test_a_sum_round_a_loop_is_one_register():
    flow = flow_of(SUM.replace("@%p1 bra ON", "setp.lt.u32 %p2, %r3, 9; @%p2 bra ON"))
    want = run(flow)
    assert copies(flow) > 3
    assert coalesce(flow, every(flow))
    assert copies(flow) == 0
    assert run(flow) == want


def test_registers_that_are_exchanged_stay_two():
    flow = flow_of(SWAP)
    assert run(flow) == [2, 1]
    coalesce(flow, every(flow))
    assert run(flow) == [2, 1]
    assert copies(flow) > 0


def test_what_addresses_are_made_of_stays_as_it_is():
    flow = flow_of("ld.param.u64 %rd1, [k]; mov.u64 %rd2, %rd1; st.global.u64 [%rd2], %rd1; ret;")
    assert not coalesce(flow, every(flow))


def program(rng: random.Random) -> str:
    """Straight code, branches and loops over a few registers, of which each block stores one, and the end all."""

    def register() -> str:
        return f"%r{rng.randrange(COUNT)}"

    def step() -> str:
        op = rng.choice(("mov.u32", "mov.u32", "add.u32", "xor.b32", "sub.u32"))
        second = "" if op == "mov.u32" else f", {rng.choice((register(), '3'))}"
        return f"{op} {register()}, {register()}{second};"

    parts = [f"mov.u32 %r{k}, {rng.randrange(9)};" for k in range(COUNT)]
    blocks = 6
    for k in range(blocks):
        parts.append(f"L{k}: " + " ".join(step() for _ in range(rng.randint(1, 4))))
        parts.append(f"st.global.u32 [%rd1], {register()};")
        parts.append(f"setp.lt.u32 %p1, {register()}, {rng.randrange(200)}; @%p1 bra L{rng.randrange(blocks)};")
    parts += [f"st.global.u32 [%rd1], %r{k};" for k in range(COUNT)]
    return " ".join([*parts, "ret;"])


def test_threads_compute_the_same():
    rng = random.Random(1)
    merged = stored = 0
    for _ in range(150):
        text = program(rng)
        flow = flow_of(text)
        want = run(flow)
        merged += coalesce(flow, every(flow))
        assert run(flow) == want, text
        stored += len(want)
    assert merged > 100
    assert stored > 1000
