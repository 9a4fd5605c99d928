"""Where the code of a PTX function is emitted: its call's frame, the lanes that run, and the instruction at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rawkern.engines.cpu.analysis.plan import Plan
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.instrument import Watch
from rawkern.engines.cpu.ir import Emitter, Module, Val, size_of
from rawkern.engines.cpu.ptx.data import Function, Instr
from rawkern.engines.cpu.records import BLOCK, WARP, Record
from rawkern.errors import UnsupportedError

_ARGUMENT = {"Launch": "%launch", "Block": "%blk"}  # which argument of every function points to a record


class Frame:
    """What a call makes once, at its start: values, and memory; `e` emits there."""

    def __init__(self, module: Module):
        self.lines: list[str] = []
        self.e = Emitter(module, self.lines, "once")
        self._made: dict[str, Val] = {}
        self._words: dict[str, int | str] = {}  # with what they are at first
        self._kept: dict[str, str] = {}  # slots that stay memory, with their types
        self._arrays: dict[str, int] = {}  # bytes of memory that code elsewhere is given

    def once(self, key: str, make: Callable[[Emitter], Val]) -> Val:
        """The value of a name, which `make` emits when it is first asked for."""
        if key not in self._made:
            self._made[key] = make(self.e)
        return self._made[key]

    def field(self, record: Record, name: str) -> Val:
        """A field of the launch or the block, read once per call."""
        # What kernels read of a launch does not change while it runs, nor where a block's shared memory lies. Said to
        # LLVM, these loads leave the loop over warps, where each would wait for stores in flight whose addresses look
        # alike.
        fixed = ", !invariant.load !1" if record.name == "Launch" or name == "shared" else ""

        def read(e: Emitter) -> Val:
            ty, place = dict(record.fields)[name], f"ptr {_ARGUMENT[record.name]}, i32 0, i32 {record.index(name)}"
            return e.let(ty, 1, f"load {ty}, {e.let('ptr', 1, f'getelementptr %{record.name}, {place}')}{fixed}")

        return self.once(f"{record.name}.{name}", read)

    def field_address(self, record: Record, name: str) -> Val:
        """A pointer among the fields as a number."""
        key = f"{record.name}.{name}.address"
        return self.once(key, lambda e: e.let("i64", 1, f"ptrtoint {self.field(record, name)} to i64"))

    def warp_field(self, name: str) -> Val:
        """Where a field of the warp's own record is."""
        return self.once(f"Warp.{name}", lambda e: self.field_of_warp(e, Val("%warp", "i32"), name))

    def field_of_warp(self, e: Emitter, warp: Val, name: str) -> Val:
        """Where a field of the record of one of the block's warps is."""
        place = f"{self.field(BLOCK, 'warps')}, {warp}, i32 {WARP.index(name)}"
        return e.let("ptr", 1, f"getelementptr %Warp, {place}")

    def reserve(self, ref: str, ty: str, in_memory: bool) -> None:
        """Have memory at `ref` for the call, which LLVM may take for a register unless it shall stay memory."""
        if in_memory:
            self._kept[ref] = ty
        else:
            self.lines.append(f"{ref} = alloca {ty}")

    def array(self, ref: str, count: int) -> Val:
        """Memory at `ref` for `count` contiguous registers, to give to code elsewhere."""
        if ref not in self._arrays:
            self._arrays[ref] = count * LANES * 4
            self.lines.append(f"{ref} = alloca [{count} x <32 x i32>], align 64")
        return Val(ref, "ptr")

    def word(self, name: str, start: int | str = 0) -> str:
        """A word that is `start` at first, as ``%name``; it may be used before this is called."""
        self._words.setdefault(name, start)
        return f"%{name}"

    @property
    def kept_bytes(self) -> int:
        """Bytes of what stays memory."""
        return sum(map(size_of, self._kept.values())) + sum(self._arrays.values())

    def finish(self, in_one: bool) -> None:
        """Make the words; `in_one` piece with what shall stay memory, and LLVM is told that others know of it."""
        if not in_one:
            for name, start in self._words.items():
                self.lines += [f"%{name} = alloca i32", f"store i32 {start}, ptr %{name}"]
            return
        # Bytes, larger slots first: of a type that lists thousands of slots each use would spell them all.
        sizes = sorted(((ref, size_of(ty)) for ref, ty in self._kept.items()), key=lambda slot: -slot[1])
        sizes += [(f"%{name}", 4) for name in self._words]
        lines, place = [], 0
        for ref, size in sizes:
            lines.append(f"{ref} = getelementptr i8, ptr %kept, i64 {place}")
            place += size
        lines[:0] = [
            f"%kept = alloca [{place} x i8], align {max([4, *(size for _, size in sizes)])}",
            'call void asm sideeffect "", "r"(ptr %kept)',
        ]
        if self._words:
            words = f"ptr align 4 %{next(iter(self._words))}, i8 0, i64 {4 * len(self._words)}"
            lines.append(f"call void @llvm.memset.p0.i64({words}, i1 false)")
            lines += [f"store i32 {start}, ptr %{name}" for name, start in self._words.items() if start != 0]
        self.lines[:0] = lines


class Lanes:
    """The lanes of the warp that run in the block at hand, as 32-bit masks and as vectors of conditions."""

    def __init__(self, f: Context):
        self._f = f

    def act(self) -> Val:
        """The mask of the active lanes."""
        return self._f.in_block("act", lambda e: e.let("i32", 1, "load i32, ptr %act"))

    def set_act(self, mask: Val) -> None:
        """From here on `mask` are the active lanes, as the memory for it says already or need not."""
        self._f.cache["act"] = mask
        for of_others in ("full", "first"):
            self._f.cache.pop(of_others, None)

    def actv(self) -> Val:
        return self.vector(self.act())

    def vector(self, mask: Val) -> Val:
        """A mask as a vector of conditions."""
        return self._f.in_block(("lanes", mask.ref), lambda e: e.let("i1", LANES, f"bitcast {mask} to <32 x i1>"))

    def mask_of(self, cond: Val) -> Val:
        """A condition as a mask."""
        return self._f.e.let("i32", 1, f"{'sext' if cond.n == 1 else 'bitcast'} {cond} to i32")

    def first(self) -> Val:
        """Number of the lowest active lane."""
        act = self.act()
        return self._f.in_block("first", lambda e: e.intrinsic("llvm.cttz", "i32", act, extra=", i1 true"))

    def all_run(self) -> Val:
        """Whether no lane is missing."""
        act = self.act()
        return self._f.in_block("full", lambda e: e.cmp("icmp eq", act, -1))


class Context:
    """A function that is being emitted; `function.FunctionLowering` adds its registers and where lanes go."""

    watch: Watch

    def __init__(self, plan: Plan, module: Module, function: Function):
        self.plan, self.module, self.function = plan, module, function
        self.flow, self.analysis = plan.flows[function.name], plan.analyses[function.name]
        self.e = Emitter(module)
        self.frame, self.lanes = Frame(module), Lanes(self)
        self.instr: Instr | None = None
        self.block = 0
        self.places: dict[str, list[int]] = {}  # where slots of registers lie that each warp keeps (`kept`)
        self.cache: dict[object, Any] = {}  # what has been made in the block so far

    def in_block(self, key: object, make: Callable[[Emitter], Val]) -> Val:
        """A value that `make` emits when it is first asked for in a block."""
        if key not in self.cache:
            self.cache[key] = make(self.e)
        return self.cache[key]

    def unsupported(self, why: str = "") -> UnsupportedError:
        """The error for the instruction at hand; raise it."""
        op, where = (self.instr.op, self.plan.where(self.instr.loc)) if self.instr else ("?", self.plan.where(0))
        text = f"{self.plan.kernel}: the PTX instruction {op} is not supported on the CPU engine"
        return UnsupportedError(f"{text}{f' ({why})' if why else ''}; it comes from {where}")
