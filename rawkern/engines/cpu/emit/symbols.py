"""Variables, parameters and functions by name: their addresses."""

from __future__ import annotations

from rawkern.engines.cpu.analysis.storage import function_address, local_frame, local_offset, parameter_offset
from rawkern.engines.cpu.emit.context import Context
from rawkern.engines.cpu.emit.forms import Affine, Form
from rawkern.engines.cpu.ir import const
from rawkern.engines.cpu.ptx.data import Sym
from rawkern.engines.cpu.records import LAUNCH


def symbol(f: Context, sym: Sym) -> Form:
    """Address of a variable in its own space, of a parameter, or of a function."""
    name, e = sym.name, f.e
    local = f.function.local_vars.get(name)
    if local is not None and local.space == "local":
        if "frame" not in f.entry_cache:
            f.entry_cache["frame"] = f.once.let("i64", 1, "ptrtoint ptr %frame to i64")
        at = local_offset(f.function, name) + sym.offset
        return Affine((e.bin("add", f.entry_cache["frame"], at),), local_frame(f.function))
    if name in f.plan.shared:
        return const("i64", f.plan.shared[name] + sym.offset)
    if name in f.plan.layout.offsets:
        return e.bin("add", f.field_address(LAUNCH, "globals"), f.plan.layout.offsets[name] + sym.offset)
    if f.function.entry and any(p.name == name for p in f.function.params):
        start = f.field_address(LAUNCH, "params")
        return e.bin("add", start, kernel_parameter(f, name, sym.offset))
    if name in f.plan.ptx.functions and f.plan.ptx.functions[name].defined:
        return const("i64", function_address(f.plan.ptx, name))
    raise f.unsupported(f"symbol {name}")


def kernel_parameter(f: Context, name: str, offset: int) -> int:
    """Where a kernel's parameter, and `offset` bytes, lies among them all."""
    at = parameter_offset(f.function, name)
    if at is None:
        raise f.unsupported(f"parameter {name}")
    return at + offset
