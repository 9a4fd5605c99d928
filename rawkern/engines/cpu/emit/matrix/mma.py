"""``mma.sync`` and ``wmma.mma``: products of matrices whose elements the lanes of a warp hold."""

from __future__ import annotations

from rawkern.engines.cpu.emit.calls import service
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.matrix import quads
from rawkern.engines.cpu.emit.matrix.fragments import KINDS, Shape, shape_of
from rawkern.engines.cpu.emit.matrix.product import Product, helper, result_type
from rawkern.engines.cpu.ir import Val
from rawkern.engines.cpu.ptx.data import Instr, Vec
from rawkern.engines.cpu.ptx.decode import Op


def product_of(op: Op, target: int = 0) -> Product:
    """What a mnemonic of ``mma`` or ``wmma.mma`` multiplies."""
    types = [KINDS[t.name] for t in op.types]
    if len(types) == 2:  # wmma leaves out that A and B are f16
        types = [types[0], KINDS["f16"], KINDS["f16"], types[1]]
    d, a, b, c = types
    mode = next((x for x in op.mods if x in ("satfinite", "and", "xor")), "")
    return Product(shape_in(op), a, b, c, d, mode, target)


def in_quads(op: Op) -> bool:
    """Whether an instruction multiplies four matrices, each held by 8 lanes."""
    return op.name == "mma" and op.has("m8n8k4") and op.types[1].name == "f16"


def multiply(f: FunctionLowering, instr: Instr) -> None:
    """``mma.sync`` and ``wmma.mma``: D = A B + C."""
    require_warp(f, instr)
    if in_quads(instr.op):
        _multiply_quads(f, instr)
        return
    p = product_of(instr.op, f.plan.ptx.target)
    counts, kinds = p.counts(), (p.a, p.b, p.c)
    dest, *operands = instr.args
    args = []
    for count, kind, operand in zip(counts, kinds, operands, strict=False):
        args += [f.values.vector(x, kind.register) for x in items_of(operand)[:count]]  # further registers repeat these
    name = f.module.helper(p.name, lambda m: helper(m, p))
    _call(f, name, result_type(p), f"i{p.d.register}", args, dest)


def _multiply_quads(f: FunctionLowering, instr: Instr) -> None:
    """``mma.m8n8k4`` of f16."""
    (*_, a, b), (d, _, _, c) = instr.op.mods, (t.name for t in instr.op.types)
    dest, *operands = instr.args
    name = f"rk_mma_quads_{a}_{b}_{d}_{c}"
    f.module.helper(name, lambda m: quads.helper(m, name, (a, b), d, c))
    args = [f.values.vector(x, 32) for operand in operands for x in items_of(operand)]
    _call(f, name, quads.result_type(d), "i32", args, dest)


def _call(f: FunctionLowering, name: str, returns: str, ty: str, args: list[Val], dest) -> None:
    """Call a product and give its results to the registers of D."""
    ref = f.e.fresh()
    f.e.line(f"{ref} = call {returns} @{name}({', '.join(map(str, args))})")
    for k, reg in enumerate(items_of(dest)):
        part = f.e.fresh()
        f.e.line(f"{part} = extractvalue {returns} {ref}, {k}")
        if reg is not None:
            f.values.put(reg.name, Val(part, ty, LANES))


def items_of(operand) -> tuple:
    """The registers of an operand."""
    return operand.items if isinstance(operand, Vec) else (operand,)


def require_warp(f: FunctionLowering, instr: Instr) -> None:
    """Stop the launch where not all lanes execute an instruction that PTX wants the whole warp for."""
    if "whole" not in f.cache:
        f.cache["whole"] = f.lanes.act()
        with f.e.where(f.e.cmp("icmp ne", f.lanes.act(), -1), rare=True):
            service(f, "PART_OF_WARP", instr)


def shape_in(op: Op) -> Shape:
    """The shape that a mnemonic names."""
    return next(shape_of(x) for x in op.mods if x[0] == "m" and x[-1].isdigit() and "k" in x)
