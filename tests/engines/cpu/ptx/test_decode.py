"""Mnemonics taken apart, and the table of what holds of each opcode."""

from __future__ import annotations

import pytest

from rawkern.engines.cpu import arith
from rawkern.engines.cpu.emit.instructions import HANDLERS
from rawkern.engines.cpu.emit.opcodes import FORMS
from rawkern.engines.cpu.ptx.data import Imm, Instr, Mem, Not, Pair, Reg, Vec
from rawkern.engines.cpu.ptx.decode import decode
from rawkern.engines.cpu.ptx.facts import FACTS
from rawkern.engines.cpu.ptx.operands import destinations, sources
from tests.engines.cpu.arith import ptx_forms


@pytest.mark.parametrize(
    "text, name, types, space, order, count",
    [
        ("ld.global.nc.L1::no_allocate.v4.f32", "ld", ["f32"], "global", "", 4),
        ("ld.volatile.shared::cta.u32", "ld", ["u32"], "shared", "relaxed", 1),
        ("ld.acquire.gpu.b64", "ld", ["b64"], "generic", "acquire", 1),
        ("ld.param::entry.u64", "ld", ["u64"], "param", "", 1),
        ("atom.acq_rel.gpu.global.add.u32", "atom", ["u32"], "global", "acq_rel", 1),
        ("atom.global.cas.b32", "atom", ["b32"], "global", "", 1),
        ("cvta.to.shared.u64", "cvta", ["u64"], "shared", "", 1),
        ("cvt.rn.f16x2.e4m3x2", "cvt", ["f16x2", "e4m3x2"], "generic", "", 1),
        ("match.any.sync.b64", "match.any", ["b64"], "generic", "", 1),
        ("bar.warp.sync", "bar.warp", [], "generic", "", 1),
        ("bar.cta.red.popc.u32", "bar", ["u32"], "generic", "", 1),
        ("mbarrier.try_wait.parity.acquire.cta.shared::cta.b64", "mbarrier.try_wait", ["b64"], "shared", "acquire", 1),
        ("cp.async.mbarrier.arrive.noinc.shared.b64", "cp.async.mbarrier", ["b64"], "shared", "", 1),
        ("wmma.store.d.sync.aligned.row.m16n16k16.global.f32", "wmma.store", ["f32"], "global", "", 1),
        ("frobnicate.b32", "frobnicate", ["b32"], "generic", "", 1),
    ],
)
def test_words(text, name, types, space, order, count):
    op = decode(text)
    assert (op.name, [t.name for t in op.types], op.space, op.order, op.count) == (name, types, space, order, count)
    assert op is decode(text) and op == decode(text.replace("::entry", ""))


@pytest.mark.parametrize(
    "text, who",
    [
        ("bar.sync", "block"), ("barrier.cta.red.and.pred", "block"), ("bar.warp.sync", "mask"),
        ("barrier.cluster.arrive", "block"), ("shfl.sync.idx.b32", "mask"), ("shfl.idx.b32", ""), ("vote.any.pred", ""),
        ("vote.sync.any.pred", "mask"), ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", "warp"),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "warp"), ("activemask.b32", ""),
    ],
)  # fmt: skip
def test_who_takes_part(text, who):
    assert decode(text).collective == who


def test_widths_of_operands():
    wide = [decode("mad.wide.u32").width(k) for k in range(3)]
    assert wide == [32, 32, 64]
    assert [decode("shl.b64").width(k) for k in range(2)] == [64, 32]
    assert [decode("slct.f64.s32").width(k) for k in range(3)] == [64, 64, 32]
    assert [decode("bfi.b64").width(k) for k in range(4)] == [64, 64, 32, 32]


@pytest.mark.parametrize(
    "text, args, written, read",
    [
        ("ld.global.v2.f32", [Vec((Reg("a"), None)), Mem(Reg("p"), 0)], ["a"], ["p"]),
        ("st.global.f32", [Mem(Reg("p"), 0), Reg("a")], [], ["p", "a"]),
        ("red.global.add.f32", [Mem(Reg("p"), 0), Reg("a")], [], ["p", "a"]),
        ("setp.lt.and.s32", [Pair(Reg("p"), Reg("q")), Reg("a"), Imm(1, "i"), Not(Reg("r"))], ["p", "q"], ["a", "r"]),
        ("bar.sync", [Reg("a")], [], ["a"]),
        ("barrier.red.popc.u32", [Reg("a"), Imm(0, "i"), Reg("p")], ["a"], ["p"]),
        ("mbarrier.arrive.shared.b64", [None, Mem(Reg("p"), 0)], [], ["p"]),
        ("mbarrier.init.shared.b64", [Mem(Reg("p"), 0), Reg("a")], [], ["p", "a"]),
        ("wmma.store.d.sync.aligned.row.m16n16k16.f32", [Mem(Reg("p"), 0), Vec((Reg("a"),))], [], ["p", "a"]),
    ],
)
def test_registers(text, args, written, read):
    instr = Instr(decode(text), args)
    assert (destinations(instr), sources(instr)) == (written, read)


def test_each_opcode_has_its_row():
    """Of what only reads and writes registers the table says so; all else says what it does besides."""
    listed = {decode(op).name for f in FORMS for op in ptx_forms.mnemonics(f)}
    assert not (listed | HANDLERS.keys() | arith.BASES) - FACTS.keys()
    assert all(FACTS[base].pure for base in arith.BASES)
    assert not any(facts.pure and (facts.memory or facts.collective) for facts in FACTS.values())
