"""Registers that are contiguous in memory: lists of sums that no other product takes in another order or in part."""

from __future__ import annotations

from rawkern.engines.cpu.analysis.tuples import sum_tuples
from rawkern.engines.cpu.ptx.data import Instr
from rawkern.engines.cpu.ptx.parser import parse

OP = "wgmma.mma_async.sync.aligned"
SUMS = f"{OP}.m64n8k16.f32.f16.f16 {{%s}}, %%rd1, %%rd2, 1, 1, 1, 0, 0;"


def tuples(text: str) -> list[tuple[str, ...]]:
    registers = ".reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<20>;"
    (function,) = parse(f".version 8.7\n.target sm_90a\n.entry k() {{ {registers} {text} }}").functions.values()
    return sum_tuples([x for x in function.body if isinstance(x, Instr)], function.regs)


def products(*lists: str) -> list[tuple[str, ...]]:
    return tuples(" ".join(SUMS % names for names in lists))


def test_lists_of_their_own():
    first, second = ("%f1", "%f2", "%f3", "%f4"), ("%f9", "%f7", "%f8", "%f6")
    found = products(*map(", ".join, (first, second, first)))
    assert found == [first, second]


def test_lists_that_share_registers():
    assert products("%f1, %f2, %f3, %f4", "%f2, %f1, %f3, %f4") == []
    assert products("%f1, %f2, %f3, %f4", "%f4, %f5, %f6, %f7", "%f8, %f9, %f10, %f11") == [
        ("%f8", "%f9", "%f10", "%f11")
    ]
    assert products("%f1, %f2, %f3, %f1") == []


def test_sums_that_are_factors_as_well():
    one = f"{OP}.m64n8k8.f32.tf32.tf32 {{%r0, %r1, %r2, %r3}}, {{%r4, %r5, %r6, %r7}}, %rd1, 1, 1, 1;"
    assert tuples(one) == [("%r0", "%r1", "%r2", "%r3")]
    assert tuples(one.replace("%r7", "%r1")) == []


def test_other_registers_than_words():
    assert tuples(f"{OP}.m64n8k16.f16.f16.f16 {{%r1, %r2}}, %rd1, %rd2, 1, 1, 1, 0, 0;") == [("%r1", "%r2")]
    assert tuples(f"{OP}.m64n8k16.f16.f16.f16 {{%r1, %h2}}, %rd1, %rd2, 1, 1, 1, 0, 0;") == []
