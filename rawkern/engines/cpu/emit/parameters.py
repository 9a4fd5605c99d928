"""Parameters' values: of a kernel from the launch, of functions and their calls from buffers on the stack."""

from __future__ import annotations

from rawkern.engines.cpu.emit.context import Context
from rawkern.engines.cpu.emit.forms import LANES, int_type
from rawkern.engines.cpu.emit.names import kernel_parameter
from rawkern.engines.cpu.ir import Emitter, Val
from rawkern.engines.cpu.records import LAUNCH


class Parameters:
    """The parameters of a function, and of the calls that it makes."""

    def __init__(self, f: Context):
        self._f = f
        self._buffers: dict[str, str] = {}  # memory for those of a device function and of calls: 32 lanes a 4-byte word
        if not f.function.entry:
            for k, var in enumerate([*f.function.params, *f.function.returns]):
                self._buffers[var.name] = f"%arg{k}"
        for var in f.function.local_vars.values():
            if var.space == "param":
                ref = self._buffers[var.name] = f.e.fresh("param")
                f.frame.reserve(ref, f"[{max(1, -(-var.size // 4))} x <32 x i32>]", in_memory=False)

    def buffer(self, name: str) -> str:
        """The memory of an argument or result of a call."""
        return self._buffers[name]

    def load(self, name: str, offset: int, size: int) -> Val:
        """``ld.param``: of a kernel from the launch, of a function or call from its buffer."""
        f, e, ty = self._f, self._f.e, int_type(8 * size)
        if name not in self._buffers:
            return self._of_launch(kernel_parameter(f, name, offset), size)
        if size == 8:
            low, high = (self.load(name, offset + k, 4) for k in (0, 4))
            return e.bin("or", e.bin("shl", e.cast("zext", high, "i64"), 32), e.cast("zext", low, "i64"))
        pointer = e.let("ptr", 1, f"getelementptr <32 x i32>, ptr {self._buffers[name]}, i64 {offset // 4}")
        word = e.let("i32", LANES, f"load <32 x i32>, {pointer}")
        return word if size == 4 else e.cast("trunc", e.bin("lshr", word, 8 * (offset % 4)), ty)

    def _of_launch(self, at: int, size: int) -> Val:
        frame, ty = self._f.frame, int_type(8 * size)

        def read(e: Emitter) -> Val:
            pointer = e.let("ptr", 1, f"getelementptr i8, {frame.field(LAUNCH, 'params')}, i64 {at}")
            return e.let(ty, 1, f"load {ty}, {pointer}, align {min(size, 8)}, !invariant.load !1")

        return frame.once(f"param{at}.{size}", read)

    def store(self, name: str, offset: int, value: Val) -> None:
        """``st.param``: the active lanes' part of a call's argument or a function's result."""
        f, e, buffer = self._f, self._f.e, self._buffers.get(name)
        if buffer is None:
            raise f.unsupported("a kernel's parameter is read-only")
        if value.bits == 64:
            self.store(name, offset, e.cast("trunc", value, "i32"))
            self.store(name, offset + 4, e.cast("trunc", e.bin("lshr", value, 32), "i32"))
            return
        pointer = e.let("ptr", 1, f"getelementptr <32 x i32>, ptr {buffer}, i64 {offset // 4}")
        old = e.let("i32", LANES, f"load <32 x i32>, {pointer}")
        if value.bits < 32:
            shift = 8 * (offset % 4)
            keep = ~(((1 << value.bits) - 1) << shift) & 0xFFFFFFFF
            value = e.bin("or", e.bin("and", old, keep), e.bin("shl", e.cast("zext", value, "i32"), shift))
        e.line(f"store {e.select(f.lanes.actv(), value, old)}, {pointer}")
