"""What of PTX the engine takes: no less than before, for real, and as the page in the docs says."""

from __future__ import annotations

import importlib.util
import re
from itertools import permutations, product
from pathlib import Path

import pytest

from rawkern.engines.cpu import jit
from rawkern.engines.cpu.instructions import HANDLERS
from rawkern.engines.cpu.opcodes import FORMS, REFUSED, refusal

ROOT = Path(__file__).parents[3]
_spec = importlib.util.spec_from_file_location("coverage_of_ptx", ROOT / "benchmarks" / "coverage.py")
assert _spec is not None and _spec.loader is not None
coverage = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(coverage)


def test_all_that_kernels_use_is_taken_but_textures_and_surfaces():
    assert {why.split(" are out")[0] for why in coverage.missing().values()} == {"textures", "surfaces"}
    plain, weighted = coverage.shares()
    assert plain >= 683 / 700
    assert weighted >= 0.998


def test_the_page_is_what_the_tables_say():
    assert coverage.PAGE.read_text() == coverage.page(), f"make it anew: {coverage.COMMAND}"


def test_what_is_listed_has_a_handler():
    in_flow = {"bra", "brx", "ret", "exit", "bar", "barrier"}
    assert {f.base for f in FORMS} == {f.base for f in FORMS} & (HANDLERS.keys() | in_flow)
    for start in REFUSED:
        assert refusal(start) is not None


@pytest.mark.parametrize(
    "op, why",
    [
        ("mma.sync.aligned.m8n8k16.row.col.f32.f16.f16.f32", "expected 1 of m16n8k8, m16n8k16, got none"),
        ("mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f32", "got none"),
        ("mma.sync.aligned.m16n8k16.col.col.f32.f16.f16.f32", "expected 1 of row, got none"),
        ("wmma.mma.sync.aligned.row.m16n16k16.f32.f32", "expected 2 of row, col, got row"),
        ("wmma.load.a.sync.aligned.row.m8n8k32.f16", "got none"),
        ("ld.global.b128", "no instruction ld"),
        ("ld.shared::cluster.u32", "modifier .shared::cluster"),
        ("fence.proxy.async", "expected 1 of alias"),
        ("st.async.weak.shared::cluster.b32", "clusters are out of the CPU engine's reach"),
        ("cp.async.bulk.commit_group", "bulk copies"),
        ("atom.global.add.noftz.f32", "modifier .noftz"),
        ("frobnicate.b32", "no instruction frobnicate"),
    ],
)
def test_why_a_form_is_refused(op, why):
    found = refusal(op)
    assert found is not None and why in found


# Every listed form is lowered, not only listed -----------------------------------------------------------------------

REGISTERS = {"8": "rs", "16": "rs", "32": "r", "64": "rd"}


def _register(ty: str, k: int) -> str:
    if ty == "pred":
        return f"%p{k}"
    if ty in ("f32", "f64"):
        return f"%{'f' if ty == 'f32' else 'd'}{k}"
    return f"%{REGISTERS[re.sub('x2$', '', ty)[-2:].lstrip('sub') if 'x2' not in ty else '32']}{k}"


def _regs(ty: str, n: int, first: int = 1) -> str:
    return "{" + ", ".join(_register(ty, first + k) for k in range(n)) + "}"


def _fragment(op: str, operand: str) -> str:
    """Registers of an operand of mma or wmma, as many as PTX gives it."""
    from rawkern.engines.cpu.fragments import KINDS
    from rawkern.engines.cpu.mma import product_of, shape_in

    if op.startswith("wmma") and ".mma." not in op:
        kind, shape = KINDS[op.rsplit(".", 1)[1]], shape_in(op)
        count = shape.registers(operand, kind)
    else:
        p = product_of(op)
        kind = {"a": p.a, "b": p.b, "c": p.c, "d": p.d}[operand]
        count = p.shape.registers(operand, kind)
    if op.startswith("wmma") and operand in "ab" and kind.name == "f16":
        count = 8
    ty = "f32" if kind.name == "f32" else "f64" if kind.name == "f64" else "b32"
    return _regs(ty, count)


def _operands(op: str) -> str:
    """Operands with which an instruction can stand in a kernel."""
    parts = op.split(".")
    base, ty = parts[0], parts[-1]
    hint = ", %rd9" if ".L2::cache_hint" in op else ""
    vector = next((int(p[1:]) for p in parts if p in ("v2", "v4", "v8")), 1)
    if base in ("ld", "ldu"):
        return f"{_regs(ty, vector) if vector > 1 else _register(ty, 1)}, [%rd1]{hint}"
    if base == "st":
        return f"[%rd1], {_regs(ty, vector) if vector > 1 else _register(ty, 1)}{hint}"
    if base in ("atom", "red"):
        values = ", ".join(_register(ty, k) for k in ((2, 3) if ".cas" in op else (2,)))
        return f"{_register(ty, 1) + ', ' if base == 'atom' else ''}[%rd1], {values}{hint}"
    if "m8n8k4" in op and ".f16.f16" in op:
        d, c = (_regs("b32" if x == "f16" else "f32", 4 if x == "f16" else 8) for x in (parts[-4], ty))
        return f"{d}, {_regs('b32', 2)}, {_regs('b32', 2)}, {c}"
    if base == "mma" or ".mma." in op:
        return ", ".join(_fragment(op, x) for x in "dabc")
    if base == "wmma":
        regs = _fragment(op, parts[2])
        return f"{regs}, [%rd1], %r9" if parts[1] == "load" else f"[%rd1], {regs}, %r9"
    if base in ("ldmatrix", "stmatrix"):
        regs = _regs("b32", int(next(p for p in parts if p in ("x1", "x2", "x4"))[1:]))
        return f"{regs}, [%rd1]" if base == "ldmatrix" else f"[%rd1], {regs}"
    if base == "mbarrier":
        what = parts[1]
        count = ", 2" if "noComplete" in parts else ""
        wanted = ", %r2" if "parity" in parts else ", %rd2"
        return {"init": "[%rd1], 4", "inval": "[%rd1]", "pending_count": "%r1, %rd1"}.get(
            what, f"%p1, [%rd1]{wanted}" if "_wait" in what else f"%rd2, [%rd1]{count}"
        )
    if base == "cp":
        where = {"commit_group": "", "wait_group": "1", "wait_all": "", "mbarrier": "[%rd1]"}
        return where.get(parts[2], f"[%rd1], [%rd2], 16{', 16, %rd9' if hint else ''}")
    if base in ("bar", "barrier"):
        if parts[1] == "warp":
            return "-1"
        return {"red": f"{'%r1' if 'popc' in parts else '%p1'}, 0, %p2", "arrive": "1, 64"}.get(
            next(p for p in parts[1:] if p != "cta"), "0"
        )
    fixed = {
        "isspacep": "%p1, %rd1", "shfl": "%r1|%p1, %r2, 1, 31, -1", "activemask": "%r1", "elect": "%r1|%p1, -1",
        "nanosleep": "%r1", "bra": "END", "brx": "%r1, TABLE", "call": "helper", "createpolicy": "%rd1, 1.0",
        "prefetch": "[%rd1]", "prefetchu": "[%rd1]", "discard": "[%rd1], 128", "applypriority": "[%rd1], 128",
        "pmevent": "1", "redux": "%r1, %r2, -1", "movmatrix": "%r1, %r2",
    }  # fmt: skip
    if base in fixed:
        return fixed[base].replace("|%p1", "" if base == "shfl" and ".sync" not in op else "|%p1")
    if base == "vote":
        return f"{'%r1' if ty == 'b32' else '%p1'}, %p2{', -1' if 'sync' in parts else ''}"
    if base == "match":
        return f"%r1{'|%p1' if 'all' in parts else ''}, {_register(ty, 2)}, -1"
    return f"{_register(ty, 1)}, {_register(ty, 2)}" if base in ("mov", "cvta") else ""


def _names(form) -> list[str]:
    """Mnemonics of a form: every type with the required modifiers, and every modifier with one of the types."""
    texts = set()
    first = sorted(form.types)[0]
    for ty in form.types:
        choices = [
            [
                n
                for n in (
                    permutations(names, needed) if needed > 1 and len(names) > 2 else product(names, repeat=needed)
                )
            ]
            if needed
            else [()]
            for needed, names in form.mods
        ]
        for picked in product(*choices):
            texts.add((ty, picked))
    base_choice = tuple((names[0],) * needed for needed, names in form.mods)
    for k, (needed, names) in enumerate(form.mods):
        for name in names if not needed else ():
            texts.add((first, (*base_choice[:k], (name,), *base_choice[k + 1 :])))
    ops = {".".join([form.base, *(m for slot in picked for m in slot), *([ty] if ty else [])]) for ty, picked in texts}
    return sorted(op for op in ops if not (".cvt.L2" in op or ".local" in op or ".param" in op))


HEAD = """.version 8.8
.target sm_80
.address_size 64
.func helper() { ret; }
"""


@pytest.mark.parametrize("base", sorted({f.base for f in FORMS}))
def test_listed_forms_are_lowered(base):
    ops = sorted({op for f in FORMS if f.base == base for op in _names(f)})
    assert ops or base == "cvt"
    text, cpu = HEAD, jit.Cpu("x86_64-unknown-linux-gnu", "haswell", "+avx2,+fma,+f16c")
    for k, op in enumerate(ops):
        text += f""".entry k{k}() {{
            .reg .pred %p<10>; .reg .b16 %rs<10>; .reg .b32 %r<20>; .reg .b64 %rd<10>; .reg .f32 %f<10>; .reg .f64 %d<10>;
            TABLE: .branchtargets END, END;
            mov.u32 %r1, %tid.x; mov.u64 %rd1, 0; mov.u64 %rd2, 64;
            {op} {_operands(op)};
        END: ret;
        }}
"""
    translation = jit.Translation(text)
    layout = translation.globals()
    for k in range(len(ops)):
        translation.lower(f"k{k}", layout, "line", cpu)
