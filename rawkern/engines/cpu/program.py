"""A kernel with the functions it calls, as one LLVM module: variables, parameters, special registers, calls."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rawkern.engines.cpu import arith, flow, inline, kinds, memory, waiting, warp
from rawkern.engines.cpu.function import (
    LANES,
    READS_NUMBERS,
    Affine,
    Form,
    FunctionLowering,
    Lazy,
    Target,
    Wide,
    int_type,
    ramp,
)
from rawkern.engines.cpu.ir import Emitter, Module, Val, const
from rawkern.engines.cpu.operands import base
from rawkern.engines.cpu.ptx import TYPE_BYTES, Function, Imm, Instr, Loc, Mem, Not, Pair, Ptx, Reg, Sym, Var, Vec
from rawkern.engines.cpu.records import BLOCK, LAUNCH, REASONS
from rawkern.errors import UnsupportedError

#: Functions that every PTX module may call without defining them.
SYSTEM_CALLS = ("vprintf", "__assertfail", "malloc", "free")


def align_up(value: int, align: int) -> int:
    return -(-value // align) * align


@dataclass(frozen=True)
class Globals:
    """Offsets of a module's ``.global`` and ``.const`` variables in one block of memory, and what it starts with."""

    offsets: dict[str, int]
    size: int
    image: bytes
    pointers: tuple[tuple[int, str, int], ...]  # (offset, variable, addend): addresses to fill in


def lay_out_globals(ptx: Ptx) -> Globals:
    """Place the variables that any function uses (headers bring a thousand more)."""
    used: dict[str, None] = {}
    work = [s for f in ptx.functions.values() for s in symbols(f)]
    while work:
        name = work.pop().removeprefix("generic:")
        var = ptx.variables.get(name)
        if name not in used and var is not None and var.space != "shared":
            used[name] = None
            work += [i.name for i in var.init if isinstance(i, Sym)]
    for name, var in ptx.variables.items():  # named by the user, perhaps only through get_global
        if var.space != "shared" and not name.startswith(("_ZN", "$str", "__unnamed")) and "4cuda" not in name:
            used.setdefault(name)
    offsets, size = {}, 0
    for name in sorted(used):
        var = ptx.variables[name]
        size = align_up(size, max(var.align, 16))
        offsets[name] = size
        size += max(var.size, 1)
    image, pointers = bytearray(size), []
    for name, at in offsets.items():
        var = ptx.variables[name]
        width = TYPE_BYTES[var.type]
        for k, value in enumerate(var.init):
            if isinstance(value, Sym) and value.name.removeprefix("generic:") in offsets:
                pointers.append((at + k * width, value.name.removeprefix("generic:"), value.offset))
            else:
                if isinstance(value, Sym):
                    value = Imm(function_address(ptx, value.name.removeprefix("generic:")), "i")
                image[at + k * width : at + (k + 1) * width] = (value.value & (1 << 8 * width) - 1).to_bytes(
                    width, "little"
                )
    return Globals(offsets, size, bytes(image), tuple(pointers))


def function_address(ptx: Ptx, name: str) -> int:
    """A number that stands for a function's address: one for all kernels of the module, and no address of memory."""
    return (0x7F << 56) + 16 * (1 + list(ptx.functions).index(name))


def symbols(function: Function):
    """Names of variables and functions that a function mentions."""
    stack = [a for i in function.body if isinstance(i, Instr) for a in i.args]
    while stack:
        a = stack.pop()
        if isinstance(a, Sym):
            yield a.name
        elif isinstance(a, Mem):
            if isinstance(a.base, Sym):
                yield a.base.name
        elif isinstance(a, Vec):
            stack += a.items
        elif isinstance(a, list):
            stack += a


@dataclass
class Lowered:
    """A kernel's LLVM IR and what the launcher must know about it."""

    text: str
    waiting: bool
    shared_static: int
    local_bytes: int
    recursive: bool
    sites: list[str] = field(default_factory=list)


def reached(ptx: Ptx, kernel: str) -> list[Function]:
    """A kernel and the functions it can call, by name or through variables."""
    entry = ptx.functions[kernel]
    found, work = {entry.name: entry}, [entry]
    tables = [i.name for v in ptx.variables.values() for i in v.init if isinstance(i, Sym)]
    while work:
        for name in [*symbols(work.pop()), *tables]:
            callee = ptx.functions.get(name.removeprefix("generic:"))
            if callee is not None and callee.defined and callee.name not in found and not callee.entry:
                found[callee.name] = callee
                work.append(callee)
    return list(found.values())


def lay_out_shared(ptx: Ptx, functions: list[Function]) -> tuple[dict[str, int], int]:
    """Offsets of the ``.shared`` variables that functions use, and their size; dynamic shared memory lies behind."""
    offsets, size, dynamic = {}, 0, []
    variables: dict[str, Var] = {}
    for function in functions:
        variables |= {n: v for n, v in function.local_vars.items() if v.space == "shared"}
        for name in symbols(function):
            var = ptx.variables.get(name)
            if var is not None and var.space == "shared":
                variables[name] = var
    for name, var in variables.items():
        if var.extern or var.size == 0:
            dynamic.append(name)
            continue
        size = align_up(size, max(var.align, 16))
        offsets[name] = size
        size += var.size
    size = align_up(size, 16)
    return offsets | dict.fromkeys(dynamic, size), size


def sizes(ptx: Ptx, kernel: str) -> tuple[int, int]:
    """Bytes of static shared memory of a block and of local memory of a thread."""
    functions = reached(ptx, kernel)
    return lay_out_shared(ptx, functions)[1], max(kinds.local_frame(f) for f in functions)


class ProgramLowering:
    """Lowers one kernel; the handlers of `function` call back here for all that is not arithmetic."""

    def __init__(self, ptx: Ptx, kernel: str, layout: Globals, tid_shape: str, features: frozenset[str] = frozenset()):
        self.ptx, self.kernel, self.layout, self.tid_shape = ptx, kernel, layout, tid_shape
        self.module = Module(features=features)
        functions = reached(ptx, kernel)
        waiting = inline.waiting_functions(ptx, [f for f in functions if not f.entry])
        self.recursive = inline.recursive_functions(functions)
        self.waiting_functions = waiting & self.recursive
        inlined = waiting - self.recursive
        self.reached = [inline.expand(ptx, f, inlined) for f in functions if f.name not in inlined]
        self.flows = {f.name: flow.build(f) for f in self.reached}
        self.shared, self.shared_static = lay_out_shared(ptx, self.reached)
        self.sites: list[str] = []
        self.analyses = {
            f.name: kinds.analyse(f, self.flows[f.name], tid_shape != "any", self.waiting_functions)
            for f in self.reached
        }
        self.waiting = any(
            self.analyses[f.name].spin_headers or any(b.kind == "barrier" for b in self.flows[f.name].blocks)
            for f in self.reached
        )

    def lower(self) -> Lowered:
        target = Target(self.tid_shape != "any", self.waiting)
        for function in self.reached:
            lowering = FunctionLowering(
                self, self.module, function, self.flows[function.name], self.analyses[function.name], target
            )
            self.prologue(lowering)
            self.module.functions.append(lowering.run(HANDLERS))
        inline = "" if self.waiting else " alwaysinline"
        self.module.functions.append(
            f"define internal void @rk_body(ptr %launch, ptr %blk, i32 %warp, i32 %initial){inline} {{\n"
            f"  call void @{mangle(self.kernel)}(ptr %launch, ptr %blk, i32 %warp, i32 %initial)\n  ret void\n}}"
        )
        metadata = '!0 = !{!"branch_weights", i32 1, i32 4095}\n!1 = !{}\n!2 = !{!"branch_weights", i32 64, i32 1}'
        local = max(kinds.local_frame(f) for f in self.reached)
        return Lowered(
            f"{self.module.text()}\n{metadata}",
            self.waiting,
            self.shared_static,
            local,
            bool(self.recursive),
            self.sites,
        )

    # -- source lines ------------------------------------------------------------------------------------------
    def where(self, loc: int) -> str:
        place = self.ptx.locs[loc] if 0 <= loc < len(self.ptx.locs) else None
        return describe(place)

    def site(self, f: FunctionLowering, instr: Instr) -> Val:
        text = self.where(instr.loc)
        if text not in self.sites:
            self.sites.append(text)
        return const("i32", self.sites.index(text))

    # -- functions and parameters --------------------------------------------------------------------------------
    def header(self, function: Function) -> tuple[str, str]:
        params = ["ptr %launch", "ptr %blk", "i32 %warp", "i32 %initial"]
        if not function.entry:
            params += [f"ptr %arg{k}" for k in range(len(function.params) + len(function.returns))]
        return mangle(function.name), ", ".join(params)

    def prologue(self, f: FunctionLowering) -> None:
        """Buffers of parameters for calls, and the frame of local variables."""
        f.buffers = {}  # type: ignore[attr-defined]
        if not f.function.entry:
            for k, var in enumerate([*f.function.params, *f.function.returns]):
                f.buffers[var.name] = f"%arg{k}"  # type: ignore[attr-defined]
        for var in f.function.local_vars.values():
            if var.space == "param":
                words = max(1, -(-var.size // 4))
                f.buffers[var.name] = f.alloca(f"[{words} x <32 x i32>]", "param")  # type: ignore[attr-defined]
        if f.function.name in self.recursive:
            f.entry.append("call void @rk_check_stack(ptr %launch, ptr %blk, i32 %warp)")
        frame = kinds.local_frame(f.function)
        if frame:
            f.entry.append(f"%frame = alloca [{frame * LANES} x i8], align 64")

    def load_parameter(self, f: FunctionLowering, name: str, offset: int, size: int) -> Val:
        """``ld.param``: of a kernel from the launch, of a function or call from its buffer (32 lanes a 4-byte word)."""
        e, ty = f.e, int_type(8 * size)
        buffer = f.buffers.get(name)  # type: ignore[attr-defined]
        if buffer is None:
            at = self._kernel_parameter(f, name, offset)
            key = f"param{at}.{size}"
            if key not in f.entry_cache:
                pointer = f.once.let("ptr", 1, f"getelementptr i8, {self._params(f)}, i64 {at}")
                f.entry_cache[key] = f.once.let(
                    ty, 1, f"load {ty}, {pointer}, align {min(size, 8)}, !invariant.load !1"
                )
            return f.entry_cache[key]
        if size == 8:
            low, high = (self.load_parameter(f, name, offset + k, 4) for k in (0, 4))
            return e.bin("or", e.bin("shl", e.cast("zext", high, "i64"), 32), e.cast("zext", low, "i64"))
        pointer = e.let("ptr", 1, f"getelementptr <32 x i32>, ptr {buffer}, i64 {offset // 4}")
        word = e.let("i32", LANES, f"load <32 x i32>, {pointer}")
        return word if size == 4 else e.cast("trunc", e.bin("lshr", word, 8 * (offset % 4)), ty)

    def store_parameter(self, f: FunctionLowering, name: str, offset: int, value: Val) -> None:
        """``st.param``: the active lanes' part of a call's argument or a function's result."""
        e, buffer = f.e, f.buffers.get(name)  # type: ignore[attr-defined]
        if buffer is None:
            raise f.unsupported("a kernel's parameter is read-only")
        if value.bits == 64:
            self.store_parameter(f, name, offset, e.cast("trunc", value, "i32"))
            self.store_parameter(f, name, offset + 4, e.cast("trunc", e.bin("lshr", value, 32), "i32"))
            return
        pointer = e.let("ptr", 1, f"getelementptr <32 x i32>, ptr {buffer}, i64 {offset // 4}")
        old = e.let("i32", LANES, f"load <32 x i32>, {pointer}")
        if value.bits < 32:
            shift = 8 * (offset % 4)
            keep = ~(((1 << value.bits) - 1) << shift) & 0xFFFFFFFF
            value = e.bin("or", e.bin("and", old, keep), e.bin("shl", e.cast("zext", value, "i32"), shift))
        e.line(f"store {e.select(f.actv(), value, old)}, {pointer}")

    def _kernel_parameter(self, f: FunctionLowering, name: str, offset: int) -> int:
        at = 0
        for var in f.function.params:
            at = align_up(at, var.align)
            if var.name == name:
                return at + offset
            at += var.size
        raise f.unsupported(f"parameter {name}")

    def _params(self, f: FunctionLowering) -> Val:
        return self.field(f, LAUNCH, "params", "%launch")

    def field(self, f: FunctionLowering, record, name: str, pointer: str) -> Val:
        """A field of the launch or the block, read once per call."""
        key = f"{record.name}.{name}"
        if key not in f.entry_cache:
            ty = dict(record.fields)[name]
            at = f.once.let("ptr", 1, f"getelementptr %{record.name}, ptr {pointer}, i32 0, i32 {record.index(name)}")
            f.entry_cache[key] = f.once.let(ty, 1, f"load {ty}, {at}")
        return f.entry_cache[key]

    def _address_field(self, f: FunctionLowering, record, name: str, pointer: str) -> Val:
        key = f"{record.name}.{name}.address"
        if key not in f.entry_cache:
            f.entry_cache[key] = f.once.let("i64", 1, f"ptrtoint {self.field(f, record, name, pointer)} to i64")
        return f.entry_cache[key]

    def shared_base(self, f: FunctionLowering) -> Val:
        return self._address_field(f, BLOCK, "shared", "%blk")

    # -- symbols and special registers -----------------------------------------------------------------------------
    def symbol(self, f: FunctionLowering, sym: Sym) -> Form:
        """Address of a variable in its own space, of a parameter, or of a function."""
        name, e = sym.name, f.e
        local = f.function.local_vars.get(name)
        if local is not None and local.space == "local":
            at = 0
            for var in f.function.local_vars.values():
                if var.space == "local":
                    at = align_up(at, var.align)
                    if var.name == name:
                        break
                    at += var.size
            if "frame" not in f.entry_cache:
                f.entry_cache["frame"] = f.once.let("i64", 1, "ptrtoint ptr %frame to i64")
            return Affine(e.bin("add", f.entry_cache["frame"], at + sym.offset), kinds.local_frame(f.function))
        if name in self.shared:
            return const("i64", self.shared[name] + sym.offset)
        if name in self.layout.offsets:
            return e.bin(
                "add", self._address_field(f, LAUNCH, "globals", "%launch"), self.layout.offsets[name] + sym.offset
            )
        if f.function.entry and any(p.name == name for p in f.function.params):
            start = self._address_field(f, LAUNCH, "params", "%launch")
            return e.bin("add", start, self._kernel_parameter(f, name, sym.offset))
        if name in self.ptx.functions and self.ptx.functions[name].defined:
            return const("i64", function_address(self.ptx, name))
        raise f.unsupported(f"symbol {name}")

    def special(self, f: FunctionLowering, name: str) -> Form:
        """A special register."""
        if name in ("%clock", "%clock64", "%globaltimer", "%clock_hi", "%globaltimer_lo", "%globaltimer_hi"):
            return self._time(f, name)
        if name not in f.entry_cache:
            form = self._special(f, name)
            if not isinstance(form, Val):
                return form
            f.entry_cache[name] = form
        return f.entry_cache[name]

    def _time(self, f: FunctionLowering, name: str) -> Val:
        e = f.e
        now = e.let("i64", 1, "call i64 @rk_now()")
        if name.endswith("_hi"):
            now = e.bin("lshr", now, 32)
        return now if name in ("%clock64", "%globaltimer") else e.cast("trunc", now, "i32")

    def _special(self, f: FunctionLowering, name: str) -> Form:
        o = f.once
        axis = name[-1] if name[-2:-1] == "." else ""
        root = name[1:-2] if axis else name[1:]
        if root == "tid":
            return self._thread_index(f, axis)
        if root in ("ntid", "nctaid"):
            record = ("block_" if root == "ntid" else "grid_") + axis
            return self.field(f, LAUNCH, record, "%launch")
        if root == "ctaid":
            return self.field(f, BLOCK, axis, "%blk")
        if root == "laneid":
            return Affine(const("i32", 0), 1, True)
        if root == "warpid":
            return Val("%warp", "i32")
        if root == "nwarpid":
            return self.field(f, LAUNCH, "nwarps", "%launch")
        if root.startswith("lanemask_"):
            words = {"eq": lambda k: 1 << k, "lt": lambda k: (1 << k) - 1, "le": lambda k: (2 << k) - 1}
            words |= {"ge": lambda k: ~((1 << k) - 1), "gt": lambda k: ~((2 << k) - 1)}
            lanes = (words[root[9:]](k) & 0xFFFFFFFF for k in range(LANES))
            return Val(f"<{', '.join(f'i32 {v}' for v in lanes)}>", "i32", LANES)
        if root in ("envreg1", "envreg2"):  # the address of the grid's barrier, as cooperative groups reads it
            at = self._address_field(f, LAUNCH, "grid_sync", "%launch")
            return o.cast("trunc", o.bin("lshr", at, 32) if root == "envreg1" else at, "i32")
        if root == "dynamic_smem_size":
            return self.field(f, LAUNCH, "shared_dynamic", "%launch")
        if root == "total_smem_size":
            return self.field(f, LAUNCH, "shared_total", "%launch")
        if root in ("smid", "gridid", "nsmid", "cluster_ctarank", "cluster_ctaid"):
            return const("i64" if root == "gridid" else "i32", 1 if root == "nsmid" else 0)
        if root in ("cluster_nctarank", "cluster_nctaid"):
            return const("i32", 1)
        raise f.unsupported(f"special register {name}")

    def _thread_index(self, f: FunctionLowering, axis: str) -> Form:
        """``%tid``: in one-dimensional blocks from the warp's number, else from a table made once per block shape."""
        o = f.once
        if self.tid_shape == "line":
            return const("i32", 0) if axis != "x" else Affine(f.e.bin("mul", Val("%warp", "i32"), LANES), 1, True)
        table, nwarps = self.field(f, LAUNCH, "tids", "%launch"), self.field(f, LAUNCH, "nwarps", "%launch")
        row = o.bin("add", o.bin("mul", nwarps, "xyz".index(axis)), Val("%warp", "i32"))
        if self.tid_shape == "rows":
            key = f"row{axis}"
            if key not in f.entry_cache:
                at = o.let("ptr", 1, f"getelementptr i32, {table}, {row}")
                f.entry_cache[key] = o.let("i32", 1, f"load i32, {at}")
            return Affine(f.entry_cache[key], 1, True) if axis == "x" else f.entry_cache[key]
        at = o.let("ptr", 1, f"getelementptr <32 x i32>, {table}, {row}")
        return o.let("i32", LANES, f"load <32 x i32>, {at}, align 4")

    # -- calls -----------------------------------------------------------------------------------------------------
    def service(
        self, f: FunctionLowering, reason: str, instr: Instr, a: Val | None = None, b: Val | None = None
    ) -> None:
        """Let Python do something for the active lanes."""
        zero = const("i64", 0)
        va, vb = (f.e.splat(x or zero, LANES) for x in (a, b))
        where = self.site(f, instr)
        f.e.line(f"call void @rk_service(ptr %blk, i32 {REASONS[reason]}, {f.act()}, i32 %warp, {where}, {va}, {vb})")

    def call(self, f: FunctionLowering, instr: Instr) -> None:
        """``call``: a function of the module, or one of the few that CUDA provides."""
        args = list(instr.args)
        results = args.pop(0) if isinstance(args[0], list) else []
        callee = args.pop(0)
        params = args.pop(0) if args and isinstance(args[0], list) else []
        if not isinstance(callee, Sym):
            self._call_through_pointer(f, instr, callee, results, params)
            return
        name = callee.name
        if name in SYSTEM_CALLS:
            self._system_call(f, name, instr, results, params)
            return
        function = self.ptx.functions.get(name)
        if function is None or not function.defined:
            raise f.unsupported(f"function {name} has no definition here; device-side libraries cannot be linked")
        if name in self.waiting_functions and f.analysis.free_running:  # its barriers are those of all lanes
            e, alive = f.e, f.e.let("i32", 1, "load i32, ptr %alive")
            parted, whole = e.fresh("parted")[1:], e.fresh("whole")[1:]
            e.line(f"br {e.cmp('icmp ne', f.act(), alive)}, label %{parted}, label %{whole}, !prof !0")
            e.label(parted)
            self.service(f, "UNSUPPORTED", instr)
            e.line(f"br label %{whole}")
            e.label(whole)
        f.e.line(
            f"call void @{mangle(name)}(ptr %launch, ptr %blk, i32 %warp, {f.act()}{self._buffers(f, results, params)})"
        )

    def _buffers(self, f: FunctionLowering, results: list, params: list) -> str:
        return "".join(f", ptr {f.buffers[s.name]}" for s in [*params, *results])  # type: ignore[attr-defined]

    def _call_through_pointer(
        self, f: FunctionLowering, instr: Instr, pointer: Reg, results: list, params: list
    ) -> None:
        """Call each function that lanes name, for those lanes."""
        e, act = f.e, f.act()
        targets = e.splat(f.value(pointer, 64), LANES)
        left = act
        for function in self.reached:
            if function.entry or (len(function.params), len(function.returns)) != (len(params), len(results)):
                continue
            address = const("i64", function_address(self.ptx, function.name), LANES)
            here = e.bin("and", f.mask_of(e.cmp("icmp eq", targets, address)), act)
            named, other = e.fresh("named")[1:], e.fresh("other")[1:]
            e.line(f"br {e.cmp('icmp ne', here, 0)}, label %{named}, label %{other}")
            e.label(named)
            buffers = self._buffers(f, results, params)
            e.line(f"call void @{mangle(function.name)}(ptr %launch, ptr %blk, i32 %warp, {here}{buffers})")
            e.line(f"br label %{other}")
            e.label(other)
            left = e.bin("and", left, e.invert(here))
        lost, on = e.fresh("lost")[1:], e.fresh("on")[1:]
        e.line(f"br {e.cmp('icmp ne', left, 0)}, label %{lost}, label %{on}, !prof !0")
        e.label(lost)
        self.service(f, "POINTER", instr, targets)
        e.line(f"br label %{on}")
        e.label(on)

    def _system_call(self, f: FunctionLowering, name: str, instr: Instr, results: list, params: list) -> None:
        e = f.e
        if name == "vprintf":
            text, values = (self.load_parameter(f, p.name, 0, 8) for p in params)
            self.service(f, "PRINTF", instr, text, values)
            self.store_parameter(f, results[0].name, 0, const("i32", 0, LANES))
        elif name == "__assertfail":
            message, line = self.load_parameter(f, params[0].name, 0, 8), self.load_parameter(f, params[2].name, 0, 4)
            file = self.load_parameter(f, params[1].name, 0, 8)
            del line
            self.service(f, "ASSERT", instr, message, file)
        elif name == "malloc":
            f.module.declare("malloc", "declare ptr @malloc(i64)")

            def allocate(e: Emitter, at: str, args: list[Val]) -> Val:
                p = e.let("ptr", 1, f"call ptr @malloc({args[0]})")
                return e.let("i64", 1, f"ptrtoint {p} to i64")

            f.module.helper("rk_malloc", lambda m: memory.lane_loop(m, "rk_malloc", "i64", ["i64"], allocate))
            size = e.splat(self.load_parameter(f, params[0].name, 0, 8), LANES)
            self.store_parameter(f, results[0].name, 0, e.call("rk_malloc", "i64", LANES, size, size, f.act()))
        else:
            f.module.declare("free", "declare void @free(ptr)")

            def release(e: Emitter, at: str, args: list[Val]) -> None:
                e.line(f"call void @free({at})")

            f.module.helper("rk_free", lambda m: memory.lane_loop(m, "rk_free", None, [], release))
            address = e.splat(self.load_parameter(f, params[0].name, 0, 8), LANES)
            e.line(f"call void @rk_free({address}, {f.act()})")


def mangle(name: str) -> str:
    """A PTX function's name as LLVM takes it."""
    return f'"k.{name}"'


def describe(place: Loc | None) -> str:
    """``file:line``, and where that was inlined."""
    if place is None:
        return "an unknown source line"
    text = f"{place.file}:{place.line}"
    outer = place.inlined_at
    while outer is not None:
        text += f", inlined at {outer.file}:{outer.line}"
        outer = outer.inlined_at
    return text


# -- instructions that move data ---------------------------------------------------------------------------------------
def move(f: FunctionLowering, instr: Instr) -> None:
    """``mov``: between registers, from symbols and special registers, packing and unpacking vectors."""
    dest, source = instr.args
    ty = instr.op.rsplit(".", 1)[1]
    bits = 1 if ty == "pred" else 8 * TYPE_BYTES[ty]
    e = f.e
    if isinstance(dest, Vec):
        whole = f.value(source, bits)
        part = bits // len(dest.items)
        for k, item in enumerate(dest.items):
            if item is not None:
                shifted = e.bin("lshr", whole, k * part) if k else whole
                f.put(item.name, e.resize(shifted, int_type(part)))
    elif isinstance(source, Vec):
        part = bits // len(source.items)
        whole = None
        for k, item in enumerate(source.items):
            piece = e.resize(e.resize(f.value(item, part), int_type(part)), int_type(bits))
            piece = e.bin("shl", piece, k * part) if k else piece
            whole = piece if whole is None else e.bin("or", whole, piece)
        assert whole is not None
        f.put(dest.name, whole)
    else:
        form = f.operand_form(source, bits)
        if isinstance(form, Lazy) and f.lazy.get(dest.name) != form.kind:
            form = f.plain(form)
        f.put(dest.name, form)


def convert_address(f: FunctionLowering, instr: Instr) -> None:
    """``cvta``: only shared memory has addresses of its own."""
    dest, source = instr.args
    form = f.operand_form(source, 64)
    if ".shared" in instr.op:
        start = f.program.shared_base(f)
        form = memory.shift(f, memory.widen(f, form), f.e.neg(start) if ".to." in instr.op else start)
    f.put(dest.name, form)


def is_space(f: FunctionLowering, instr: Instr) -> None:
    """``isspacep``: shared memory and the thread's own frame are told apart from the rest, which is global."""
    dest, source = instr.args
    e, addr = f.e, f.value(source, 64)
    space = instr.op.split(".")[1].split("::")[0]
    total = e.resize(f.program.field(f, LAUNCH, "shared_total", "%launch"), "i64")
    shared = e.cmp("icmp ult", e.bin("sub", addr, f.program.shared_base(f)), total)
    frame = kinds.local_frame(f.function) * LANES
    local = e.cmp("icmp ne", addr, addr)
    if frame:
        local = e.cmp("icmp ult", e.bin("sub", addr, e.let("i64", 1, "ptrtoint ptr %frame to i64")), frame)
    if space == "shared":
        result = shared
    elif space == "local":
        result = local
    elif space == "global":
        result = e.invert(e.bin("or", shared, local))
    else:
        raise f.unsupported()
    f.put(dest.name, result)


_WIDTHS = {  # operands whose width is not that of the instruction's last type
    "shl": {1: 32}, "shr": {1: 32}, "bfe": {1: 32, 2: 32}, "bfi": {2: 32, 3: 32}, "szext": {1: 32}, "bmsk": {1: 32},
    "slct": {2: 32}, "lop3": {3: 32},
}  # fmt: skip


def arithmetic(f: FunctionLowering, instr: Instr) -> None:
    """Any register-only instruction: affine integers stay affine, all else goes through the arithmetic tables."""
    op, args = instr.op, instr.args
    root, ty = base(op), op.rsplit(".", 1)[1]
    dest, source_args = args[0], args[1:]
    if isinstance(dest, Reg) and root in ("add", "sub", "mul", "mad", "shl", "shr", "and", "cvt") and _affine(f, instr):
        return
    bits = 1 if ty == "pred" else 8 * TYPE_BYTES.get(ty, 4)
    widths = _WIDTHS.get(root, {})
    if root == "mad" and ".wide" in op:
        widths = {2: 2 * bits}
    if root in ("slct",):
        bits = 8 * TYPE_BYTES[op.split(".")[-2]]
    numbers = root in READS_NUMBERS and not (root == "mad" and ty[0] in "su")
    values = []
    for k, a in enumerate(source_args):
        width = widths.get(k, bits)
        if isinstance(a, Not) or (isinstance(a, Reg) and f.bits_of(a.name) == 1):
            values.append(f.value(a, 1))
        elif numbers:
            values.append(f.number(a, width, ty))
        else:
            values.append(f.value(a, width))
    if any(v.ty == "i128" for v in values):
        raise f.unsupported()
    try:
        result = arith.lower(f.e, op, values, f.carry)
    except arith.UnsupportedOpcode as error:
        raise f.unsupported(str(error)) from None
    if result.cc is not None:
        f.carry = result.cc
    dests = (dest.first, dest.second) if isinstance(dest, Pair) else (dest,)
    for reg, val in zip(dests, result.vals, strict=False):
        if reg is None:
            continue
        if val.ty != "i1" and val.bits < f.bits_of(reg.name):
            val = f.e.resize(val, int_type(f.bits_of(reg.name)), ty_signed(op))
        if result.lazy_nan in ("f32", "f64"):
            form: Form = Lazy(val, result.lazy_nan)
            f.put(reg.name, form)
        else:
            f.put(reg.name, arith.canonical(f.e, val, result.lazy_nan) if result.lazy_nan else val)


def ty_signed(op: str) -> bool:
    """Whether the result's type is signed: the first type of cvt and set, else the last."""
    types = [p for p in op.split(".") if re.fullmatch(r"[subf]f?\d+(x2)?|pred", p)]
    return bool(types) and (types[0] if op.startswith(("cvt", "set.")) else types[-1])[0] == "s"


def _affine(f: FunctionLowering, instr: Instr) -> bool:
    """Emit an integer operation on affine operands as one on their scalar parts, if it is one of the forms known."""
    args = instr.args[1:]
    regs = [a for a in args if isinstance(a, Reg)]
    if not any(
        isinstance(f.forms.get(r.name), (Affine, Wide)) or f.analysis.kinds.get(r.name, ("v",))[0] in "aw" for r in regs
    ):
        return False
    op = instr.op
    ty = op.rsplit(".", 1)[1]
    bits = 8 * TYPE_BYTES.get(ty, 4)
    wide_third = {2: 64} if ".wide" in op else {}
    forms = [
        f.operand_form(a, 32 if op.startswith(("shl", "shr")) and k == 1 else wide_third.get(k, bits))
        for k, a in enumerate(args)
    ]
    known = [kinds.constant(a, f.analysis.constants) for a in args]
    kind = kinds.affine_result(op, [_kind(x) for x in forms], known)
    if kind is None or kind == kinds.V:
        return False
    parts = op.split(".")
    root = parts[0]
    e = f.e
    if root in ("add", "sub"):
        out = _combine(e, forms[0], forms[1], root)
    elif root in ("mul", "mad"):
        if kinds.affine_result("mul." + ".".join(parts[1:]), [_kind(x) for x in forms[:2]], known[:2]) is None:
            product: Form | None = e.bin("mul", forms[0], forms[1])  # type: ignore[arg-type]
        else:
            which = 0 if known[1] is not None and isinstance(forms[0], (Affine, Wide)) else 1
            product = _times(e, forms[which], known[1 - which], parts[1] == "wide", ty)  # type: ignore[arg-type]
        out = product if root == "mul" else _combine(e, product, forms[2], "add")  # type: ignore[arg-type]
    elif root == "and":
        which = 0 if isinstance(forms[0], Affine) else 1
        low = e.bin("and", forms[which].base, known[1 - which] & 0xFFFFFFFF)  # type: ignore[operator, union-attr]
        out = low if kind == kinds.U else Affine(low, 1)
    elif root == "shr":
        out = e.bin("ashr" if ty[0] == "s" else "lshr", forms[0].base, known[1])  # type: ignore[union-attr, arg-type]
    elif root == "shl":
        out = _times(e, forms[0], 1 << known[1], False, ty)  # type: ignore[operator]
    else:
        out = _convert(e, forms[0], parts[1], ty)
    f.put(instr.args[0].name, out)
    return True


def _kind(form: Form) -> kinds.Kind:
    if isinstance(form, Affine):
        return ("a", form.stride, 32) if form.aligned else ("a", form.stride)
    if isinstance(form, Wide):
        return ("w", form.scale, form.stride, form.signed)
    return kinds.U if isinstance(form, Val) and form.n == 1 else kinds.V


def _combine(e: Emitter, a: Form, b: Form, op: str) -> Form:
    if isinstance(a, Affine) and isinstance(b, Affine):
        stride = a.stride + (b.stride if op == "add" else -b.stride)
        total = e.bin(op, a.base, b.base)
        return Affine(total, stride) if stride else total
    if isinstance(b, Val):
        if isinstance(a, Affine):
            return Affine(e.bin(op, a.base, b), a.stride)
        assert isinstance(a, Wide)
        return Wide(e.bin(op, a.offset, b), a.inner, a.scale, a.stride, a.signed)
    assert isinstance(a, Val)
    if isinstance(b, Affine):
        return Affine(e.bin(op, a, b.base), b.stride if op == "add" else -b.stride)
    assert isinstance(b, Wide)
    return Wide(e.bin(op, a, b.offset), b.inner, b.scale if op == "add" else -b.scale, b.stride, b.signed)


def _times(e: Emitter, form: Form, factor: int, wide: bool, ty: str) -> Form:
    if factor == 0:
        return const("i64" if wide or "64" in ty else "i32", 0)
    if isinstance(form, Wide):
        return Wide(e.bin("mul", form.offset, factor), form.inner, form.scale * factor, form.stride, form.signed)
    assert isinstance(form, Affine)
    if wide:
        signed = ty == "s32"
        return Wide(const("i64", 0), form.base, factor if signed else factor & 0xFFFFFFFF, form.stride, signed)
    return Affine(e.bin("mul", form.base, factor & (1 << form.base.bits) - 1), form.stride * factor)


def _convert(e: Emitter, form: Form, to: str, source: str) -> Form:
    bits = int(to[1:])
    if bits == 64 and source[1:] == "32":
        assert isinstance(form, Affine)
        return Wide(const("i64", 0), form.base, 1, form.stride, source == "s32")
    if bits == 32 and source[1:] == "64":
        if isinstance(form, Wide):
            low = e.bin("add", e.cast("trunc", form.offset, "i32"), e.bin("mul", form.inner, form.scale & 0xFFFFFFFF))
            return Affine(low, form.scale * form.stride)
        assert isinstance(form, Affine)
        return Affine(e.cast("trunc", form.base, "i32"), form.stride)
    return form


def call(f: FunctionLowering, instr: Instr) -> None:
    f.program.call(f, instr)


def trap(f: FunctionLowering, instr: Instr) -> None:
    """``trap``, ``brkpt``: the launch fails."""
    f.program.service(f, "TRAP", instr)


def barrier_of_warp(f: FunctionLowering, instr: Instr) -> None:
    if ".warp" not in instr.op:
        raise f.unsupported()
    warp.warp_barrier(f, instr)


def ignore(f: FunctionLowering, instr: Instr) -> None:
    """Hints that change no result."""


#: Handlers by base opcode; what is not here is looked up in the arithmetic tables.
HANDLERS = {
    "mov": move, "cvta": convert_address, "isspacep": is_space,
    "ld": memory.load, "ldu": memory.load, "st": memory.store, "atom": memory.atomic, "red": memory.atomic,
    "membar": memory.fence, "fence": memory.fence,
    "prefetch": ignore, "prefetchu": ignore, "discard": ignore, "applypriority": ignore, "pmevent": ignore,
    "shfl": warp.shuffle, "vote": warp.vote, "activemask": warp.activemask, "redux": warp.reduce, "match": warp.match,
    "elect": warp.elect, "bar": barrier_of_warp, "nanosleep": waiting.nanosleep,
    "call": call, "trap": trap, "brkpt": trap,
}  # fmt: skip
HANDLERS |= {name: arithmetic for name in arith.BASES if name not in HANDLERS}

__all__ = ["Globals", "Lowered", "ProgramLowering", "UnsupportedError", "describe", "lay_out_globals", "ramp"]
