"""What of PTX the engine takes: no less than before, for real, and as the page in the docs says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rawkern.base import llvm as llvm_
from rawkern.engines.cpu.emit.instructions import HANDLERS
from rawkern.engines.cpu.emit.opcodes import FORMS, UNSUPPORTED, unsupported_reason
from rawkern.engines.cpu.ptx.decode import decode
from rawkern.engines.cpu.runtime import jit
from tests.engines.cpu.arith import ptx_forms

ROOT = Path(__file__).parents[4]
_spec = importlib.util.spec_from_file_location("coverage_of_ptx", ROOT / "benchmarks" / "coverage.py")
assert _spec is not None and _spec.loader is not None
coverage = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(coverage)


def test_all_that_kernels_use_is_taken_but_textures_and_surfaces():
    assert {why.removesuffix(" are not supported") for why in coverage.missing().values()} == {"textures", "surfaces"}
    plain, weighted = coverage.shares()
    assert plain >= 683 / 700
    assert weighted >= 0.998


def test_the_page_is_what_the_tables_say():
    assert coverage.PAGE.read_text() == coverage.page(), f"write it again: {coverage.COMMAND}"


def test_what_is_listed_has_a_handler():
    in_flow = {"bra", "brx", "ret", "exit", "bar", "barrier"}
    assert {f.base for f in FORMS} <= {name.split(".")[0] for name in HANDLERS} | in_flow
    for start in UNSUPPORTED:
        assert unsupported_reason(decode(start)) is not None


@pytest.mark.parametrize(
    "op, why",
    [
        ("mma.sync.aligned.m8n8k16.row.col.f32.f16.f16.f32", "expected 1 of m16n8k8, m16n8k16, got none"),
        ("mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f32", "got none"),
        ("mma.sync.aligned.m16n8k16.col.col.f32.f16.f16.f32", "expected 1 of row, got none"),
        ("wmma.mma.sync.aligned.row.m16n16k16.f32.f32", "expected 2 of row, col, got row"),
        ("wmma.load.a.sync.aligned.row.m8n8k32.f16", "got none"),
        ("ld.global.f16", "no instruction ld"),
        ("ld.global.v2.b128", "modifier .v2"),
        ("ldmatrix.sync.aligned.m8n8.x1.shared::cluster.b16", "modifier .shared::cluster"),
        ("fence.proxy.tensormap", "expected 1 of"),
        (
            "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128",
            "requests for blocks of compute capability 10.0 are not supported",
        ),
        ("tensormap.replace.tile.rank.global.b1024.b32", "changes of tensor maps by kernels"),
        ("atom.global.add.noftz.f32", "modifier .noftz"),
        ("frobnicate.b32", "no instruction frobnicate"),
    ],
)
def test_why_a_form_is_not_supported(op, why):
    found = unsupported_reason(decode(op))
    assert found is not None and why in found


# Every listed form is lowered, not only listed -----------------------------------------------------------------------


@pytest.mark.parametrize("base", sorted({f.base for f in FORMS}))
def test_listed_forms_are_lowered(base):
    ops, cpu = ptx_forms.listed(base), llvm_.Cpu("x86_64-unknown-linux-gnu", "haswell", "+avx2,+fma,+f16c")
    assert ops or base == "cvt"
    translation = jit.Translation(ptx_forms.module(ops))
    layout = translation.globals()
    for k in range(len(ops)):
        translation.lower(f"k{k}", layout, "line", cpu)
