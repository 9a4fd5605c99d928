"""The table of instructions: an instruction is a row that names the function which lowers it."""

from __future__ import annotations

from rawkern.engines.cpu import arith
from rawkern.engines.cpu.emit import calls, jumps, moves, warp
from rawkern.engines.cpu.emit.affine import lower_affine
from rawkern.engines.cpu.emit.agreement import lower_agreement
from rawkern.engines.cpu.emit.forms import Lazy, int_type
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.matrix import mma, tiles, wgmma
from rawkern.engines.cpu.emit.memory import (
    access,
    async_copies,
    atomics,
    bulk,
    clusters,
    mbarrier,
    remote_stores,
    tensor,
)
from rawkern.engines.cpu.ir import Val, const
from rawkern.engines.cpu.ptx.data import Instr, Not, Pair, Reg


def arithmetic(f: FunctionLowering, instr: Instr) -> None:
    """Any register-only instruction: affine integers stay affine, all else goes through the arithmetic tables."""
    op, dest = instr.op, instr.args[0]
    if isinstance(dest, Reg) and (lower_affine(f, instr) or lower_agreement(f, instr)):
        return
    values = _sources(f, instr)
    if any(v.ty == "i128" for v in values):
        raise f.unsupported()
    try:
        result = arith.lower(f.e, op, values)
    except arith.UnsupportedOpcode as error:
        raise f.unsupported(str(error)) from None
    dests = (dest.first, dest.second) if isinstance(dest, Pair) else (dest,)
    for reg, val in zip(dests, result.vals, strict=False):
        if reg is None:
            continue
        if val.ty != "i1" and val.bits < f.values.bits_of(reg.name):
            val = f.e.resize(val, int_type(f.values.bits_of(reg.name)), result.signed)
        kind = f.values.lazy.get(reg.name) if op.base == "selp" else result.lazy_nan
        if kind in ("f32", "f64"):
            f.values.put(reg.name, Lazy(val, kind))
        else:
            f.values.put(reg.name, arith.canonical(f.e, val, result.lazy_nan) if result.lazy_nan else val)


def _sources(f: FunctionLowering, instr: Instr) -> list[Val]:
    """The operands of a register-only instruction as raw bits of the widths that it reads."""
    op = instr.op
    numbers = op.types[-1].name if op.facts.kind in ("arith", "compare", "convert") else None
    if op.base == "selp":
        numbers = f.values.lazy.get(instr.args[0].name)
    values = []
    for k, a in enumerate(instr.args[1:]):
        width = op.width(k)
        if isinstance(a, Not) or (isinstance(a, Reg) and f.values.bits_of(a.name) == 1):
            values.append(f.values.value(a, 1))
        elif numbers:
            values.append(f.values.number(a, width, numbers))
            if op.base in ("min", "max") and f.values.is_quiet(a):
                f.e.quiet.add(values[-1])
        else:
            values.append(f.values.value(a, width))
    return values


def policy(f: FunctionLowering, instr: Instr) -> None:
    """``createpolicy``: how to cache is a hint, so any number does."""
    f.values.put(instr.args[0].name, const("i64", 0))


def ignore(f: FunctionLowering, instr: Instr) -> None:
    """Hints that change no result."""


def depend(f: FunctionLowering, instr: Instr) -> None:
    """``griddepcontrol``: launches run one after the other; whether one waits for the one before, checks tell."""
    if instr.op.has("wait"):
        f.watch.note("dependency")


#: Handlers by opcode; the rows of the arithmetic tables are added below.
HANDLERS = {
    "mov": moves.move, "cvta": moves.convert_address, "isspacep": moves.is_space,
    "ld": access.load, "ldu": access.load, "st": access.store, "atom": atomics.atomic, "red": atomics.atomic,
    "membar": access.fence, "fence": access.fence,
    "prefetch": ignore, "prefetchu": ignore, "discard": ignore, "applypriority": ignore, "pmevent": ignore,
    "createpolicy": policy, "setmaxnreg": ignore, "griddepcontrol": depend,
    "activemask": warp.activemask, "nanosleep": jumps.nanosleep,
    "mma": mma.multiply, "wmma.mma": mma.multiply, "wmma.load": tiles.load_fragment,
    "wmma.store": tiles.store_fragment, "ldmatrix": tiles.load_rows, "stmatrix": tiles.store_rows,
    "movmatrix": tiles.transpose,
    "call": calls.call, "trap": calls.trap, "brkpt": calls.trap,
}  # fmt: skip
HANDLERS |= async_copies.HANDLERS | mbarrier.HANDLERS | bulk.HANDLERS | tensor.HANDLERS | clusters.HANDLERS
HANDLERS |= remote_stores.HANDLERS | wgmma.HANDLERS
HANDLERS |= dict.fromkeys(warp.EXCHANGES, warp.at_once)
HANDLERS |= {name: arithmetic for name in arith.BASES if name not in HANDLERS}
