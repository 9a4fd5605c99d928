"""Parameters' values: of a kernel from the launch, of functions and their calls from buffers on the stack."""

from __future__ import annotations

from rawkern.engines.cpu.emit.forms import LANES, int_type
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.symbols import kernel_parameter
from rawkern.engines.cpu.ir import Val
from rawkern.engines.cpu.records import LAUNCH


def make_buffers(f: FunctionLowering) -> None:
    """Memory for the parameters of a device function and of the calls it makes."""
    if not f.function.entry:
        for k, var in enumerate([*f.function.params, *f.function.returns]):
            f.buffers[var.name] = f"%arg{k}"
    for var in f.function.local_vars.values():
        if var.space == "param":
            words = max(1, -(-var.size // 4))
            f.buffers[var.name] = f.alloca(f"[{words} x <32 x i32>]", "param")


def load_parameter(f: FunctionLowering, name: str, offset: int, size: int) -> Val:
    """``ld.param``: of a kernel from the launch, of a function or call from its buffer (32 lanes a 4-byte word)."""
    e, ty = f.e, int_type(8 * size)
    buffer = f.buffers.get(name)
    if buffer is None:
        at = kernel_parameter(f, name, offset)
        key = f"param{at}.{size}"
        if key not in f.entry_cache:
            pointer = f.once.let("ptr", 1, f"getelementptr i8, {f.field(LAUNCH, 'params')}, i64 {at}")
            f.entry_cache[key] = f.once.let(ty, 1, f"load {ty}, {pointer}, align {min(size, 8)}, !invariant.load !1")
        return f.entry_cache[key]
    if size == 8:
        low, high = (load_parameter(f, name, offset + k, 4) for k in (0, 4))
        return e.bin("or", e.bin("shl", e.cast("zext", high, "i64"), 32), e.cast("zext", low, "i64"))
    pointer = e.let("ptr", 1, f"getelementptr <32 x i32>, ptr {buffer}, i64 {offset // 4}")
    word = e.let("i32", LANES, f"load <32 x i32>, {pointer}")
    return word if size == 4 else e.cast("trunc", e.bin("lshr", word, 8 * (offset % 4)), ty)


def store_parameter(f: FunctionLowering, name: str, offset: int, value: Val) -> None:
    """``st.param``: the active lanes' part of a call's argument or a function's result."""
    e, buffer = f.e, f.buffers.get(name)
    if buffer is None:
        raise f.unsupported("a kernel's parameter is read-only")
    if value.bits == 64:
        store_parameter(f, name, offset, e.cast("trunc", value, "i32"))
        store_parameter(f, name, offset + 4, e.cast("trunc", e.bin("lshr", value, 32), "i32"))
        return
    pointer = e.let("ptr", 1, f"getelementptr <32 x i32>, ptr {buffer}, i64 {offset // 4}")
    old = e.let("i32", LANES, f"load <32 x i32>, {pointer}")
    if value.bits < 32:
        shift = 8 * (offset % 4)
        keep = ~(((1 << value.bits) - 1) << shift) & 0xFFFFFFFF
        value = e.bin("or", e.bin("and", old, keep), e.bin("shl", e.cast("zext", value, "i32"), shift))
    e.line(f"store {e.select(f.actv(), value, old)}, {pointer}")
