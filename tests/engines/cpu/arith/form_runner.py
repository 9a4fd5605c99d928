"""Compile recorded PTX forms with the CPU engine's lowering and run them over arrays."""

from __future__ import annotations

import ctypes
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

from rawkern.engines.cpu import arith
from rawkern.engines.cpu.ir import Emitter, Module, Val, const, llvm_type
from rawkern.engines.cpu.ptx.decode import decode

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
DATA = Path(__file__).parents[3] / "data" / "h200_ptx_results.npz"
COUNT = 1024
#: Lanes where a warp's 32 would show nothing more: vectors that old CPUs still split, in a quarter of the time to compile.
FEW = 8


@dataclass(frozen=True)
class Form:
    """One recorded form: its name, the asm text, types of result and operands, and register widths."""

    index: int
    name: str
    text: str
    result: str
    operands: tuple[str, ...]
    widths: tuple[int, ...]  # of the result, then of the operands


@lru_cache(maxsize=1)
def data() -> dict[str, np.ndarray]:
    with np.load(DATA) as file:
        return {name: file[name] for name in file.files}


@lru_cache(maxsize=1)
def forms() -> tuple[Form, ...]:
    z = data()
    out = []
    for i, (name, text, result, operands) in enumerate(json.loads(str(z["forms"]))):
        arrays = [z[f"out.{i}"], *(z[f"in.{t}.{j}"] for j, t in enumerate(operands))]
        out.append(Form(i, name, text, result, tuple(operands), tuple(a.dtype.itemsize * 8 for a in arrays)))
    return tuple(out)


def instructions(text: str) -> list[tuple[str, list[str]]]:
    """Split asm text into (mnemonic, operands), register declarations left out."""
    out = []
    for part in text.strip("{} ").split(";"):
        part = part.strip()
        if part and not part.startswith(".reg"):
            name, _, rest = part.partition(" ")
            out.append((name, [x.strip() for x in re.split(r"[,|]", rest)]))
    return out


def emit(module: Module, form: Form, n: int) -> None:
    """Add a function `form_I_N(result, operands...)` that runs the form over all inputs, `n` lanes at a time."""
    name = f"form_{form.index}_{n}"
    e = Emitter(module)
    e.lines += ["br label %loop", "loop:", "%i = phi i64 [ 0, %0 ], [ %next, %loop ]"]
    regs: dict[str, Val] = {}
    for j, width in enumerate(form.widths[1:], 1):
        t = llvm_type(f"i{width}", n)
        e.line(f"%p{j} = getelementptr i{width}, ptr %in{j}, i64 %i")
        regs[f"%{j}"] = e.let(f"i{width}", n, f"load {t}, ptr %p{j}, align {width // 8}")
    for opcode, (target, *sources) in instructions(form.text):
        op = decode(opcode)
        args = [regs[s] if s in regs else const("i32", int(s, 0)) for s in sources]
        result = arith.lower(e, op, [*args, regs["flag"]] if op.base in ("addc", "subc", "madc") else args)
        value = result.vals[0]
        if result.lazy_nan:
            value = arith.canonical(e, value, result.lazy_nan)
        regs[target] = value
        if op.has("cc"):
            regs["flag"] = result.vals[1]
        signed = result.signed
    out = e.splat(e.resize(regs["%0"], f"i{form.widths[0]}", signed), n)
    e.line(f"%p0 = getelementptr {out.ty}, ptr %out, i64 %i")
    e.line(f"store {out}, ptr %p0, align {out.bits // 8}")
    e.lines += [f"%next = add i64 %i, {n}", f"%more = icmp ult i64 %next, {COUNT}"]
    e.lines += ["br i1 %more, label %loop, label %end", "end:", "ret void"]
    params = ", ".join(["ptr noalias %out", *(f"ptr %in{j}" for j in range(1, len(form.widths)))])
    module.functions.append(f"define void @{name}({params}) {{\n" + "\n".join(e.lines) + "\n}")


def host_machine(cpu: str | None = None, effort: int = 2) -> llvm.TargetMachine:
    target = llvm.Target.from_default_triple()
    flags = "" if cpu else llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu=cpu or llvm.get_host_cpu_name(), features=flags, opt=effort, jit=True)


def optimise(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    module = llvm.parse_assembly(text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    builder = llvm.create_pass_builder(machine, options)
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return module


def recorded(form: Form) -> list[np.ndarray]:
    """The recorded inputs of a form."""
    return [data()[f"in.{t}.{j}"] for j, t in enumerate(form.operands)]


@dataclass
class Compiled:
    """A JIT module that stays alive while its functions are used."""

    engine: llvm.ExecutionEngine

    def run(self, form: Form, n: int, inputs: Sequence[np.ndarray] | None = None) -> np.ndarray:
        """The form's raw result bits for the recorded inputs, or for `inputs`, 1,024 elements each."""
        name = f"form_{form.index}_{n}"
        out = np.full(COUNT, 0xA5, dtype=f"u{form.widths[0] // 8}")
        inputs = [np.ascontiguousarray(a) for a in (recorded(form) if inputs is None else inputs)]
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (out, *inputs)]
        ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers))(self.engine.get_function_address(name))(*pointers)
        return out


def build(
    chosen: Sequence[Form], n: int, features: frozenset[str] = frozenset(), cpu: str | None = None, effort: int = 2
) -> Compiled:
    """JIT-compile forms for this machine, or for an older `cpu` that it can run; an effort of 0 takes a third as long."""
    module = Module(features=features)
    for form in chosen:
        emit(module, form, n)
    machine = host_machine(cpu, effort)
    engine = llvm.create_mcjit_compiler(optimise(module.text(), machine), machine)
    engine.finalize_object()
    return Compiled(engine)


def expected(form: Form) -> np.ndarray:
    z = data()[f"out.{form.index}"]
    return z.view(f"u{z.dtype.itemsize}")


def undefined_symbols(text: str, triple: str, cpu: str, effort: int) -> set[str]:
    """Names that the ELF object made from LLVM IR wants from elsewhere."""
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=effort, reloc="pic")
    obj = machine.emit_object(optimise(text, machine))
    table, size, count = struct.unpack_from("<Q", obj, 0x28)[0], *struct.unpack_from("<HH", obj, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", obj, table + i * size) for i in range(count)]
    names = set()
    for section in sections:
        if section[1] != 2:  # SHT_SYMTAB
            continue
        strings = sections[section[6]][4]
        for at in range(section[4] + 24, section[4] + section[5], 24):
            name, _, _, where = struct.unpack_from("<IBBH", obj, at)
            if where == 0:
                start = strings + name
                names.add(obj[start : obj.index(b"\0", start)].decode())
    return names
