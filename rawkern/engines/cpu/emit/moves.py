"""Instructions that move values: ``mov``, and addresses between memory spaces."""

from __future__ import annotations

from rawkern.engines.cpu.analysis.storage import laid_out, local_frame
from rawkern.engines.cpu.emit.forms import LANES, int_type
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.memory import clusters
from rawkern.engines.cpu.emit.memory.addresses import in_shared, shift, widen
from rawkern.engines.cpu.ir import Val
from rawkern.engines.cpu.ptx.data import Instr, Vec
from rawkern.engines.cpu.records import BLOCK, LAUNCH


def move(f: FunctionLowering, instr: Instr) -> None:
    """``mov``: between registers, from symbols and special registers, packing and unpacking vectors."""
    dest, source = instr.args
    bits, e = instr.op.type.bits, f.e
    if isinstance(dest, Vec):
        whole = f.values.value(source, bits)
        part = bits // len(dest.items)
        for k, item in enumerate(dest.items):
            if item is not None:
                shifted = e.bin("lshr", whole, k * part) if k else whole
                f.values.put(item.name, e.resize(shifted, int_type(part)))
    elif isinstance(source, Vec):
        part = bits // len(source.items)

        def piece(k: int) -> Val:
            value = e.resize(e.resize(f.values.value(source.items[k], part), int_type(part)), int_type(bits))
            return e.bin("shl", value, k * part) if k else value

        f.values.put(dest.name, e.all("or", map(piece, range(len(source.items)))))
    else:
        f.values.put(dest.name, f.values.operand(source, bits))


def convert_address(f: FunctionLowering, instr: Instr) -> None:
    """``cvta``: only shared memory has addresses of its own."""
    dest, source = instr.args
    form = f.values.operand(source, 64)
    if instr.op.space == "shared" and f.plan.remote and not clusters.is_own(f, source):
        plain = f.values.plain(widen(f, form))
        form = clusters.unplaced(f, plain) if instr.op.has("to") else clusters.placed(f, plain)
    elif instr.op.space == "shared":
        start = f.frame.field_address(BLOCK, "shared")
        form = shift(f, widen(f, form), f.e.neg(start) if instr.op.has("to") else start)
    f.values.put(dest.name, form)


def is_space(f: FunctionLowering, instr: Instr) -> None:
    """``isspacep``: shared memory, the thread's own frame and constants are told apart from the rest, which is global.

    Parameters lie in global memory.
    """
    dest, source = instr.args
    e, addr = f.e, f.values.value(source, 64)
    space = instr.op.space
    shared = in_shared(f, addr, space != "shared" or instr.op.has("shared::cluster"))
    frame = local_frame(f.function) * LANES
    local = e.cmp("icmp ne", addr, addr)
    if frame:
        local = e.cmp("icmp ult", e.bin("sub", addr, e.let("i64", 1, "ptrtoint ptr %frame to i64")), frame)
    known = {"shared": shared, "local": local}
    if space == "param":
        size = laid_out(f.plan.ptx.functions[f.plan.kernel].params)[1]
        known[space] = e.cmp("icmp ult", e.bin("sub", addr, f.frame.field_address(LAUNCH, "params")), size)
    elif space not in known:
        known["const"] = _is_constant(f, addr)
        known["global"] = e.invert(e.bin("or", e.bin("or", shared, local), known["const"]))
    f.values.put(dest.name, known[space])


def _is_constant(f: FunctionLowering, addr: Val) -> Val:
    """Whether addresses lie in the module's constant variables."""
    e, start, found = f.e, f.frame.field_address(LAUNCH, "globals"), f.e.cmp("icmp ne", addr, addr)
    for name, at in f.plan.layout.offsets.items():
        var = f.plan.ptx.variables[name]
        if var.space == "const":
            here = e.cmp("icmp ult", e.bin("sub", addr, e.bin("add", start, at)), var.size)
            found = e.bin("or", found, here)
    return found
