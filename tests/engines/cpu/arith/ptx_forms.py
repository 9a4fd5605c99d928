"""A kernel in PTX for each listed form of what touches more than registers."""

from __future__ import annotations

import re
from itertools import permutations, product

from rawkern.engines.cpu.arith.rows import Form
from rawkern.engines.cpu.emit.matrix.fragments import KINDS, accumulators
from rawkern.engines.cpu.emit.matrix.mma import product_of, shape_in
from rawkern.engines.cpu.emit.opcodes import FORMS
from rawkern.engines.cpu.ptx.decode import decode

_LARGE = re.compile(r"wgmma.*\.m64n(?!8k|24k|64k)")  # of many sizes some
_REGISTERS = {"8": "rs", "16": "rs", "32": "r", "64": "rd", "128": "q"}


def _register(ty: str, k: int) -> str:
    if ty == "pred":
        return f"%p{k}"
    if ty in ("f32", "f64"):
        return f"%{'f' if ty == 'f32' else 'd'}{k}"
    return f"%{_REGISTERS['32' if 'x2' in ty else ty.lstrip('subf')]}{k}"


def _regs(ty: str, n: int, first: int = 1) -> str:
    return "{" + ", ".join(_register(ty, first + k) for k in range(n)) + "}"


def _fragment(op: str, operand: str) -> str:
    """Registers of an operand of mma or wmma, as many as PTX gives it."""
    if op.startswith("wmma") and ".mma." not in op:
        kind, shape = KINDS[op.rsplit(".", 1)[1]], shape_in(decode(op))
        count = shape.registers(operand, kind)
    else:
        p = product_of(decode(op))
        kind = {"a": p.a, "b": p.b, "c": p.c, "d": p.d}[operand]
        count = p.shape.registers(operand, kind)
    if op.startswith("wmma") and operand in "ab" and kind.name == "f16":
        count = 8
    ty = "f32" if kind.name == "f32" else "f64" if kind.name == "f64" else "b32"
    return _regs(ty, count)


def _warpgroup_product(op: str) -> str:
    """Operands of wgmma, with both matrices in shared memory."""
    form = decode(op)
    d, a = (KINDS[t.name] for t in form.types[:2])
    flags = "" if d.name == "s32" else ", 1, 1, 0, 0" if a.bits == 16 else ", 1, 1"
    count = shape_in(form).n // 8 * 2 * accumulators(d)
    return f"{_regs('f32' if d.name == 'f32' else 'b32', count)}, %rd1, %rd2, %p1{flags}"


def operands(op: str) -> str:
    """Operands with which an instruction can be in a kernel."""
    parts = op.split(".")
    base, ty = parts[0], parts[-1]
    hint = ", %rd9" if ".L2::cache_hint" in op else ""
    mask = ", %rs1" if "multicast::cluster" in parts else ""
    vector = next((int(p[1:]) for p in parts if p in ("v2", "v4", "v8")), 1)
    if base in ("ld", "ldu"):
        return f"{_regs(ty, vector) if vector > 1 else _register(ty, 1)}, [%rd1]{hint}"
    if "async" in parts and base in ("st", "red"):
        return f"[%rd1], {_regs(ty, vector) if vector > 1 else _register(ty, 1)}, [%rd2]"
    if base == "st":
        return f"[%rd1], {_regs(ty, vector) if vector > 1 else _register(ty, 1)}{hint}"
    if base in ("atom", "red") and vector > 1:
        return f"{_regs(ty, vector) + ', ' if base == 'atom' else ''}[%rd1], {_regs(ty, vector)}{hint}"
    if base in ("atom", "red"):
        values = ", ".join(_register(ty, k) for k in ((2, 3) if ".cas" in op else (2,)))
        return f"{_register(ty, 1) + ', ' if base == 'atom' else ''}[%rd1], {values}{hint}"
    if "m8n8k4" in op and ".f16.f16" in op:
        d, c = (_regs("b32" if x == "f16" else "f32", 4 if x == "f16" else 8) for x in (parts[-4], ty))
        return f"{d}, {_regs('b32', 2)}, {_regs('b32', 2)}, {c}"
    if base == "wgmma":
        return _warpgroup_product(op) if parts[1] == "mma_async" else "1" if parts[1] == "wait_group" else ""
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
        if what in ("expect_tx", "complete_tx"):
            return "[%rd1], %r2"
        count = ", 2" if "noComplete" in parts or "expect_tx" in parts else ""
        wanted = ", %r2" if "parity" in parts else ", %rd2"
        return {"init": "[%rd1], 4", "inval": "[%rd1]", "pending_count": "%r1, %rd1"}.get(
            what, f"%p1, [%rd1]{wanted}" if "_wait" in what else f"%rd2, [%rd1]{count}"
        )
    if base == "cp" and "tensor" in parts:
        rank = int(next(p for p in parts if p in ("1d", "2d", "3d", "4d", "5d"))[0])
        box = f"[%rd1, {_regs('b32', rank)}]"
        if "prefetch" in parts:
            return f"{box}{hint}"
        offsets = f", {_regs('b16', rank - 2)}" if "im2col" in parts else ""
        return f"{box}, [%rd2]{hint}" if "bulk_group" in parts else f"[%rd2], {box}, [%rd3]{offsets}{mask}{hint}"
    if base == "cp" and "bulk" in parts:
        barrier = ", [%rd3]" if "mbarrier::complete_tx::bytes" in parts else ""
        fixed = {"commit_group": "", "wait_group": "1", "prefetch": f"[%rd1], 32{hint}"}
        return fixed.get(parts[3], f"[%rd1], [%rd2], 32{barrier}{mask}{hint}")
    if base == "cp":
        where = {"commit_group": "", "wait_group": "1", "wait_all": "", "mbarrier": "[%rd1]"}
        return where.get(parts[2], f"[%rd1], [%rd2], 16{', 16, %rd9' if hint else ''}")
    if base in ("bar", "barrier"):
        if parts[1] in ("warp", "cluster"):
            return "-1" if parts[1] == "warp" else ""
        return {"red": f"{'%r1' if 'popc' in parts else '%p1'}, 0, %p2", "arrive": "1, 64"}.get(
            next(p for p in parts[1:] if p != "cta"), "0"
        )
    fixed = {
        "isspacep": "%p1, %rd1", "shfl": "%r1|%p1, %r2, 1, 31, -1", "activemask": "%r1", "elect": "%r1|%p1, -1",
        "nanosleep": "%r1", "bra": "END", "brx": "%r1, TABLE", "call": "helper", "createpolicy": "%rd1, 1.0",
        "prefetch": "[%rd1]", "prefetchu": "[%rd1]", "discard": "[%rd1], 128", "applypriority": "[%rd1], 128",
        "pmevent": "1", "redux": "%r1, %r2, -1", "movmatrix": "%r1, %r2",
    }  # fmt: skip
    if base in ("mapa", "getctarank"):
        return f"{_register(ty, 1) if base == 'mapa' else '%r1'}, {_register(ty, 2)}{', %r3' if base == 'mapa' else ''}"
    if base in fixed:
        return fixed[base].replace("|%p1", "" if base == "shfl" and ".sync" not in op else "|%p1")
    if base == "vote":
        return f"{'%r1' if ty == 'b32' else '%p1'}, %p2{', -1' if 'sync' in parts else ''}"
    if base == "match":
        return f"%r1{'|%p1' if 'all' in parts else ''}, {_register(ty, 2)}, -1"
    return f"{_register(ty, 1)}, {_register(ty, 2)}" if base in ("mov", "cvta") else ""


def mnemonics(form: Form) -> list[str]:
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


def listed(base: str) -> list[str]:
    """All mnemonics of a base opcode, each modifier in at least one."""
    every = {op for f in FORMS if f.base == base for op in mnemonics(f)}
    return sorted(op for op in every if not _LARGE.search(op))


def module(ops: list[str]) -> str:
    """A module with kernels ``k0``, ``k1`` and so on, each with one of the instructions."""
    text = """.version 8.8
.target sm_80
.address_size 64
.func helper() { ret; }
"""
    for k, op in enumerate(ops):
        text += f""".entry k{k}() {{
            .reg .pred %p<10>; .reg .b16 %rs<10>; .reg .b32 %r<40>; .reg .b64 %rd<10>; .reg .f32 %f<40>; .reg .f64 %d<10>; .reg .b128 %q<10>;
            TABLE: .branchtargets END, END;
            mov.u32 %r1, %tid.x; mov.u64 %rd1, 0; mov.u64 %rd2, 64;
            {op} {operands(op)};
        END: ret;
        }}
"""
    return text
