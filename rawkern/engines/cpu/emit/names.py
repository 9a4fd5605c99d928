"""What names stand for: special registers (a thread's place, the clock), addresses of variables, and parameters."""

from __future__ import annotations

from rawkern.engines.cpu.analysis.prototypes import function_parameters
from rawkern.engines.cpu.analysis.storage import (
    RESERVED,
    RESERVED_BYTES,
    function_address,
    local_frame,
    local_offset,
    parameter_offset,
)
from rawkern.engines.cpu.emit.context import Context
from rawkern.engines.cpu.emit.forms import LANES, Affine, Form, int_type
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx.data import Sym
from rawkern.engines.cpu.records import BLOCK, LAUNCH, SEGMENTS

_CLOCKS = ("%clock", "%clock64", "%globaltimer", "%clock_hi", "%globaltimer_lo", "%globaltimer_hi")

#: Special registers that are the same for every launch: one multiprocessor.
_CONSTANTS = {
    "smid": ("i32", 0), "nsmid": ("i32", 1), "gridid": ("i64", 0), "current_graph_exec": ("i64", 0),
}  # fmt: skip
_OF_CLUSTERS = ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
#: Those that are fields of the launch.
_FIELDS = {"nwarpid": "nwarps", "dynamic_smem_size": "shared_dynamic", "total_smem_size": "shared_total"}


def special(f: Context, name: str) -> Form:
    """A special register."""
    if name in _CLOCKS:
        return _time(f, name)
    axis = name[-1] if name[-2:-1] == "." else ""
    root = name[1:-2] if axis else name[1:]
    if root == "tid" and axis != "w":
        return _thread_index(f, axis)
    if root == "laneid":
        return Affine((const("i32", 0),), 1, True)
    return f.frame.once(name, lambda o: _special(f, o, name, root, axis))


def _special(f: Context, o: Emitter, name: str, root: str, axis: str) -> Val:
    if root in (*("tid", "ntid", "ctaid", "nctaid"), *_OF_CLUSTERS) and axis == "w":
        return const("i32", 0)
    if "cluster" in root:
        return _cluster(f, o, name, root, axis)
    if root in ("ntid", "nctaid"):
        record = ("block_" if root == "ntid" else "grid_") + axis
        return f.frame.field(LAUNCH, record)
    if root == "ctaid":
        return _block_index(f, axis)
    if root == "warpid":
        return Val("%warp", "i32")
    if root.startswith("lanemask_"):
        words = {"eq": lambda k: 1 << k, "lt": lambda k: (1 << k) - 1, "le": lambda k: (2 << k) - 1}
        words |= {"ge": lambda k: ~((1 << k) - 1), "gt": lambda k: ~((2 << k) - 1)}
        lanes = (words[root[9:]](k) & 0xFFFFFFFF for k in range(LANES))
        return Val(f"<{', '.join(f'i32 {v}' for v in lanes)}>", "i32", LANES)
    if root in ("envreg1", "envreg2"):  # the address of the grid's barrier, as cooperative groups reads it
        at = f.frame.field_address(LAUNCH, "grid_sync")
        return o.cast("trunc", o.bin("lshr", at, 32) if root == "envreg1" else at, "i32")
    if root in _FIELDS:
        return f.frame.field(LAUNCH, _FIELDS[root])
    if name.startswith(RESERVED):
        start = f.plan.shared[RESERVED]
        places = {"begin": start, "0": start, "1": start + RESERVED_BYTES // 2, "end": start + RESERVED_BYTES}
        places["cap"] = RESERVED_BYTES
        if name[len(RESERVED) + 1 :] in places:
            return const("i32", places[name[len(RESERVED) + 1 :]])
    if root in _CONSTANTS:
        return const(*_CONSTANTS[root])
    raise f.unsupported(f"special register {name}")


def _block_index(f: Context, axis: str) -> Val:
    return Val(f"%ctaid.{axis}", "i32") if f.function.entry else f.frame.field(BLOCK, axis)


def _cluster(f: Context, o: Emitter, name: str, root: str, axis: str) -> Val:
    """The place of a cluster in its grid, and of a block in its cluster; without clusters each block is one."""
    sizes = {a: f.frame.field(LAUNCH, f"cluster_{a}") for a in "xyz"}
    if root == "is_explicit_cluster":
        return o.cmp("icmp ne", f.frame.field(LAUNCH, "explicit_cluster"), 0)
    if root == "cluster_nctarank":
        return o.all("mul", sizes.values())
    if root == "cluster_ctarank":
        x, y, z = (o.bin("urem", _block_index(f, a), sizes[a]) for a in "xyz")
        return o.bin("add", x, o.bin("mul", sizes["x"], o.bin("add", y, o.bin("mul", sizes["y"], z))))
    if root == "cluster_nctaid" and axis:
        return sizes[axis]
    if root in _OF_CLUSTERS and axis:
        whole = f.frame.field(LAUNCH, f"grid_{axis}") if root == "nclusterid" else _block_index(f, axis)
        return o.bin("urem" if root == "cluster_ctaid" else "udiv", whole, sizes[axis])
    raise f.unsupported(f"special register {name}")


def _thread_index(f: Context, axis: str) -> Form:
    """``%tid``: in one-dimensional blocks from the warp's number, else from a table (`grid`) made once per block."""
    shape = f.plan.tid_shape
    if shape == "line":
        return const("i32", 0) if axis != "x" else Affine((f.e.bin("mul", Val("%warp", "i32"), LANES),), 1, True)
    segments = SEGMENTS.get(shape)
    if segments and segments > 1 and axis == "x":
        return Affine((const("i32", 0),) * segments, 1)
    if not segments:
        return f.frame.once(f"%tid.{axis}", lambda o: _lanes_of_table(f, o, axis))
    if segments == 1 and axis != "x":
        return f.frame.once(f"%tid.{axis}", lambda o: _table_entry(f, axis, _row(f, o, axis), 1, 0))
    row = _row(f, f.frame.e, axis)
    values = tuple(_table_entry(f, axis, row, segments, s) for s in range(segments))
    return Affine(values, 1, True) if axis == "x" else Affine(values, 0)


def _row(f: Context, o: Emitter, axis: str) -> Val:
    """Row of the table of indices along an axis for the warp."""
    f.frame.field(LAUNCH, "tids")
    nwarps = f.frame.field(LAUNCH, "nwarps")
    return o.bin("add", o.bin("mul", nwarps, "xyz".index(axis)), Val("%warp", "i32"))


def _lanes_of_table(f: Context, o: Emitter, axis: str) -> Val:
    row = _row(f, o, axis)
    at = o.let("ptr", 1, f"getelementptr <32 x i32>, {f.frame.field(LAUNCH, 'tids')}, {row}")
    return o.let("i32", LANES, f"load <32 x i32>, {at}, align 4")


def _table_entry(f: Context, axis: str, row: Val, segments: int, s: int) -> Val:
    """``%tid`` of the first thread of a warp's segment `s`."""

    def entry(o: Emitter) -> Val:
        place = o.bin("add", o.bin("mul", row, segments), s)
        at = o.let("ptr", 1, f"getelementptr i32, {f.frame.field(LAUNCH, 'tids')}, {place}")
        return o.let("i32", 1, f"load i32, {at}, !invariant.load !1")

    return f.frame.once(f"tid{axis}{s}", entry)


def _time(f: Context, name: str) -> Val:
    e = f.e
    now = e.let("i64", 1, "call i64 @rk_now()")
    if name.endswith("_hi"):
        now = e.bin("lshr", now, 32)
    return now if name in ("%clock64", "%globaltimer") else e.cast("trunc", now, "i32")


def symbol(f: Context, sym: Sym) -> Form:
    """Address of a variable in its own space, of a parameter, or of a function."""
    name, e = sym.name, f.e
    local = f.function.local_vars.get(name)
    if local is not None and local.space == "local":
        start = f.frame.once("frame", lambda e: e.let("i64", 1, "ptrtoint ptr %frame to i64"))
        return Affine((e.bin("add", start, local_offset(f.function, name) + sym.offset),), local_frame(f.function))
    if name in f.plan.shared:
        return const("i64", f.plan.shared[name] + sym.offset)
    if name in f.plan.layout.offsets:
        return e.bin("add", f.frame.field_address(LAUNCH, "globals"), f.plan.layout.offsets[name] + sym.offset)
    if f.function.entry and any(p.name == name for p in f.function.params):
        start = f.frame.field_address(LAUNCH, "params")
        return e.bin("add", start, _kernel_parameter(f, name, sym.offset))
    if name in f.plan.ptx.functions and f.plan.ptx.functions[name].defined:
        return const("i64", function_address(name))
    raise f.unsupported(f"symbol {name}")


def _kernel_parameter(f: Context, name: str, offset: int) -> int:
    """Where a kernel's parameter, and `offset` bytes, lies among them all."""
    at = parameter_offset(f.function, name)
    if at is None:
        raise f.unsupported(f"parameter {name}")
    return at + offset


class Parameters:
    """The parameters of a function, and of the calls that it makes."""

    def __init__(self, f: Context):
        self._f = f
        self._buffers: dict[str, str] = {}  # memory for those of a device function and of calls: 32 lanes a 4-byte word
        self._sizes = {v.name: v.size for v in f.function.params}
        for k, var in enumerate(function_parameters(f.function)):
            self._buffers[var.name], self._sizes[var.name] = f"%arg{k}", var.size
        for var in f.function.local_vars.values():
            if var.space == "param":
                self._sizes[var.name] = var.size
                ref = self._buffers[var.name] = f.e.fresh("param")
                f.frame.reserve(ref, f"[{max(1, -(-var.size // 4))} x <32 x i32>]", in_memory=False)

    def buffer(self, name: str) -> str:
        """The memory of an argument or result of a call."""
        return self._buffers[name]

    def load(self, name: str, offset: int, size: int) -> Val:
        """``ld.param``: of a kernel from the launch, of a function or call from its buffer."""
        f, e, ty = self._f, self._f.e, int_type(8 * size)
        self._look(name, offset, size)
        if name not in self._buffers:
            return self._of_launch(_kernel_parameter(f, name, offset), size)
        if size == 8:
            low, high = (self.load(name, offset + k, 4) for k in (0, 4))
            return e.bin("or", e.bin("shl", e.cast("zext", high, "i64"), 32), e.cast("zext", low, "i64"))
        pointer = e.let("ptr", 1, f"getelementptr <32 x i32>, ptr {self._buffers[name]}, i64 {offset // 4}")
        word = e.let("i32", LANES, f"load <32 x i32>, {pointer}")
        return word if size == 4 else e.cast("trunc", e.bin("lshr", word, 8 * (offset % 4)), ty)

    def _look(self, name: str, offset: int, size: int) -> None:
        """Reject an access that leaves a parameter, or is not aligned."""
        has, shown = self._sizes.get(name), name.partition("@")[0]
        if has is None:
            raise self._f.unsupported(f"parameter {shown}")
        if not 0 <= offset <= has - size:
            raise self._f.unsupported(f"bytes {offset} to {offset + size - 1} of {shown}, which has {has}")
        if offset % size:
            raise self._f.unsupported(f"{size} bytes at byte {offset} of {shown}, which is not a multiple of {size}")

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
        self._look(name, offset, value.bits // 8)
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
