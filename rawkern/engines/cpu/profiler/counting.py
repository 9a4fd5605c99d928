"""What is counted where: each block of a kernel's code with its lanes, each access to memory with its addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from rawkern.base.records import filled
from rawkern.engines.cpu.analysis.graph import Block
from rawkern.engines.cpu.checker.guard import Guard
from rawkern.engines.cpu.checker.sites import Site, place, root_of
from rawkern.engines.cpu.emit.forms import LANES, Affine, Form, Wide, ramp
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import UPDATE, Access
from rawkern.engines.cpu.emit.lanes import pointer
from rawkern.engines.cpu.emit.memory.addresses import fits, starts, stride_of
from rawkern.engines.cpu.ir import Val, const
from rawkern.engines.cpu.profiler.layout import ACCESS, HEADS, LINE, PROFILE, RANGE, ROW, Tally
from rawkern.engines.cpu.profiler.operations import kind_of, readers_of
from rawkern.engines.cpu.ptx.data import Instr, Pair, Reg
from rawkern.engines.cpu.records import BLOCK, LAUNCH

ALL = (1 << 64) - 1
_ENDS = ("llvm.umin", "llvm.umax")


def runtime() -> str:
    """LLVM IR of what looks at a warp's addresses."""
    names = ("counts.ll", "counts_shared.ll", "counts_trace.ll")
    text = "\n".join(Path(__file__).with_name(name).read_text() for name in names)
    values = {f"NEXT{n}": f"<{', '.join(f'i32 {k ^ n}' for k in range(LANES))}>" for n in (1, 2)}
    values |= {"LANES": ramp("i64", 1).ref, "ROW": str(ROW)}
    return "\n".join([PROFILE.llvm, RANGE.llvm, ACCESS.llvm, filled(text, (LAUNCH, PROFILE, RANGE, ACCESS), values)])


def counted(block: Block) -> list[Instr]:
    """The instructions of a block that are counted."""
    ending = [block.ending] if block.ending is not None and not block.guards else []
    return [*block.instrs, *ending]


class Counting(Guard):
    """A function whose blocks and accesses are counted."""

    each_unit = True

    def __init__(self, f: FunctionLowering, sites: dict[Site, int], recent: Iterator[int], tally: Tally):
        super().__init__(f, sites, recent)
        self.tally = tally
        self._places: dict[int, tuple[int, int]] = {}  # block and number in it of each instruction, by identity
        self._accesses: dict[tuple[int, str], dict[str, Any]] = {}  # those of `tally`, by instruction and space
        self._readers = readers_of(f.flow.blocks)
        self.first = len(tally.blocks)
        for index, block in enumerate(f.flow.blocks):
            self._add(index, block)

    def _add(self, index: int, block: Block) -> None:
        tally, number = self.tally, len(self.tally.blocks)
        every = counted(block)
        for k, instr in enumerate(every):
            self._places[id(instr)] = number, k
        tally.blocks.append(
            {
                "function": self.f.function.name,
                "at": tally.room(3),  # warps, lanes, and warps whose lanes diverge at the end
                "instructions": [[i.op.text, place(self.f, i), kind_of(i, self._readers)] for i in every],
                "branch": block.kind in ("cond", "switch") and not block.guards,
                "loops": any(t <= index for t in block.targets),
                "leaves": any(self.f.flow.blocks[t].exit_only for t in block.targets),
            }
        )

    # -- control ------------------------------------------------------------------------------------------------
    def block(self, index: int) -> None:
        super().block(index)
        self._passed(index, self.f.lanes.act())

    def edge(self, target: int, copies: Sequence[tuple[str, str]], mask: Val) -> None:
        super().edge(target, copies, mask)
        if target and self.f.flow.blocks[target].exit_only and target not in self.f.analysis.waitable:
            self._passed(target, mask)  # nothing else is made of it

    def diverged(self, block: Block, ways: Sequence[Val]) -> None:
        e = self.f.e
        some = [e.resize(e.cmp("icmp ne", way, 0), "i64") for way in ways]
        several = e.cmp("icmp ugt", e.all("add", some), 1)
        self._count(self.tally.blocks[self.first + self.f.block]["at"] + 2, e.resize(several, "i64"))

    def _passed(self, index: int, mask: Val) -> None:
        e, at = self.f.e, self.tally.blocks[self.first + index]["at"]
        if mask.ref == "-1":
            warps, lanes = const("i64", 1), const("i64", LANES)
        else:
            warps = e.resize(e.cmp("icmp ne", mask, 0), "i64")
            lanes = e.resize(e.intrinsic("llvm.ctpop", "i32", mask), "i64")
        self._count(at, warps)
        self._count(at + 1, lanes)

    def _counter(self, at: int) -> str:
        """A pointer to a counter."""
        f = self.f
        base = f.frame.once("profile", lambda e: e.bin("add", f.frame.field(BLOCK, "session"), HEADS))
        return pointer(f.e, base, 8 * at)

    def _count(self, at: int, more: Val) -> None:
        e, where = self.f.e, self._counter(at)
        e.line(f"store {e.bin('add', e.let('i64', 1, f'load i64, {where}'), more)}, {where}")

    # -- memory -------------------------------------------------------------------------------------------------
    def access(self, a: Access, form: Form) -> Form:
        form = super().access(a, form)
        mask = a.mask or self.f.lanes.act()
        if a.mask is None:
            self._addresses(a, form, mask)
            return form
        known = dict(self.f.cache)
        with self.f.e.where(self.f.e.cmp("icmp ne", mask, 0)):
            self._addresses(a, form, mask)
        self.f.cache = known
        return form

    def lines(self, a: Access, at: Val, pitch: Val, count: int) -> tuple[Val, Val]:
        at, pitch = super().lines(a, at, pitch, count)
        e, size = self.f.e, a.size * a.count
        each = e.bin("add", e.splat(at, LANES), e.bin("mul", e.splat(pitch, LANES), ramp("i64", 1)))
        for part in range(0, size, 16):  # as lanes would access it, 16 bytes at a time
            self._spread(a, e.bin("add", each, part) if part else each, const("i32", (1 << count) - 1), min(size, 16))
        return at, pitch

    def _addresses(self, a: Access, form: Form, mask: Val) -> None:
        f, e, size = self.f, self.f.e, a.size * a.count
        if a.what == UPDATE:
            lanes = e.splat(f.values.plain(form), LANES)
            self.tell("rk_profile_collisions", self._slot(a), mask, lanes)
        space = self.space_of(a)
        if space not in ("global", "shared"):
            self._spread(a, self.whole(form, a.at), mask, size)
            return
        stride = stride_of(form)
        if space == "shared" and self._plain(a, form, size, mask):
            return
        if isinstance(form, Val) and form.n == 1:
            self._line(a, space, form, 0, mask, size)
        elif isinstance(form, Affine) and form.segments == 1:
            self._line(a, space, form.bases[0], form.stride, mask, size)
        elif isinstance(form, Wide) and form.segments == 1 and stride is not None:
            known = dict(f.cache)
            stays = fits(f, form)
            with e.where(stays):
                self._line(a, space, starts(f, form)[0], stride, mask, size)
            with e.where(e.invert(stays), rare=True):
                self._spread(a, self.whole(form, a.at), mask, size)
            f.cache = known
        else:
            self._spread(a, self.whole(form, a.at), mask, size)

    def _plain(self, a: Access, form: Form, size: int, mask: Val) -> bool:
        """Count whole warps without a conflict in one place; False where the form does not tell that beforehand.

        Words that lie in one row of banks have none: lanes with one address, neighbors, or rows of the block near each
        other.
        """
        f, e = self.f, self.f.e
        bases = (form,) if isinstance(form, Val) and form.n == 1 else form.bases if isinstance(form, Affine) else ()
        stride, parts = stride_of(form) or 0, max(1, size // 4)
        if not bases or stride not in (0, size) or a.mask is not None:
            return False
        wavefronts, near = (parts + 1) // 2 if not stride else parts, f.lanes.all_run()
        if len(bases) > 1:
            room = LINE - (LANES // len(bases) - 1) * stride
            if size != 4 or room <= 0:
                return False
            low, high = (reduce(lambda x, y, op=op: e.intrinsic(op, "i64", x, y), bases) for op in _ENDS)
            near = e.bin("and", near, e.cmp("icmp ult", e.bin("sub", high, low), room))
        at = self.slot_at(a, wavefronts=wavefronts, stride=stride)
        known, (yes, no, join) = dict(f.cache), (e.fresh(name)[1:] for name in ("plain", "other", "counted"))
        e.line(f"br {near}, label %{yes}, label %{no}, !prof !2")
        e.label(yes)
        self._count(at + ACCESS.offset("plain") // 8, const("i64", 1))
        if len(bases) > 1:  # what padding would do to rows of the block
            start = f.frame.field_address(BLOCK, "shared")
            lanes = self.whole(form, a.at)
            self.tell(
                "rk_profile_pattern", self._slot(a), const("i32", (1 << LANES) - 1), const("i64", 0), start, lanes
            )
        e.line(f"br label %{join}")
        f.cache = dict(known)
        e.label(no)
        self._spread(a, self.whole(form, a.at), mask, size)
        e.line(f"br label %{join}")
        e.label(join)
        f.cache = known
        return True

    def whole(self, form: Form, at: int) -> Val:
        e = self.f.e
        lanes = e.splat(self.f.values.plain(form), LANES)
        return e.bin("add", lanes, at) if at else lanes

    def space_of(self, a: Access) -> str:
        root = root_of(self.f, a.mem)
        if root is not None and a.space == "generic" and root[0] in ("shared", "global", "const", "local", "param"):
            return "global" if root[0] == "param" else root[0]
        return "shared" if a.space == "cluster" else a.space

    def _line(self, a: Access, space: str, base: Val, stride: int, mask: Val, size: int) -> None:
        e = self.f.e
        base = e.bin("add", base, a.at) if a.at else base
        where = (mask, const("i64", size))
        line = (base, const("i64", stride & ALL))
        if space == "shared":
            start = self.f.frame.field_address(BLOCK, "shared")
            self.tell("rk_profile_shared_line", self._slot(a), *where, start, *line)
        else:
            self.tell("rk_profile_global_line", Val("%launch", "ptr"), self._slot(a), *where, *line)

    def _spread(self, a: Access, lanes: Val, mask: Val, size: int) -> None:
        f, space = self.f, self.space_of(a)
        slot, where = self._slot(a), (mask, const("i64", size))
        launch, start = Val("%launch", "ptr"), f.frame.field_address(BLOCK, "shared")
        if space == "shared":
            self.tell("rk_profile_shared", slot, *where, start, lanes)
        elif space == "global":
            self.tell("rk_profile_global", launch, slot, *where, lanes)
        elif space == "local":
            found = self.range_of(a, root_of(f, a.mem))
            low, pitch = (found.low, found.pitch) if found is not None else (const("i64", 0), 0)
            self.tell("rk_profile_local", slot, *where, low, const("i64", pitch), lanes)
        elif space == "generic":
            total = f.frame.once("bounds.shared", lambda e: e.resize(f.frame.field(LAUNCH, "shared_total"), "i64"))
            self.tell("rk_profile_generic", launch, slot, *where, start, total, lanes)

    def tell(self, name: str, *args: Val) -> None:
        """Call a function of `runtime`."""
        self.f.module.declare(name, f"declare i64 @{name}({', '.join(a.t for a in args)})")
        self.f.e.call(name, "i64", 1, *args)

    def _slot(self, a: Access) -> Val:
        return Val(self._counter(self.slot_at(a)).removeprefix("ptr "), "ptr")

    def slot_at(self, a: Access, **known: int) -> int:
        """Where the counters of the access at hand stand; `known`: what is true of each time counted as plain."""
        f, tally = self.f, self.tally
        assert f.instr is not None
        key = id(f.instr), a.space if a.what != UPDATE else UPDATE
        if key not in self._accesses:
            block, number = self._places[id(f.instr)]
            self._accesses[key] = {
                "at": tally.room(ACCESS.size // 8),
                "block": block,
                "instruction": number,
                "what": "reduces" if a.what == UPDATE and not self._looked_at(f.instr) else a.what,
                "space": self.space_of(a),
                "size": a.size * a.count,
                "root": root_of(f, a.mem),
                "plain": {},
            }
            tally.accesses.append(self._accesses[key])
        self._accesses[key]["plain"] |= known
        return self._accesses[key]["at"]

    def _looked_at(self, instr: Instr) -> bool:
        """Whether anything reads what an atomic has found."""
        dest = instr.args[0] if instr.op.base == "atom" else None
        if isinstance(dest, Pair):
            dest = dest.first
        return isinstance(dest, Reg) and dest.name in self._readers
