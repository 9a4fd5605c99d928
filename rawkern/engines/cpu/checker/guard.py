"""Ordinary launches stay inside their memory: comparisons of addresses with ranges before each access.

Where an address comes from is known of most (`analysis.provenance`): from a word of the parameters, whose extent
follows them (`records.extents_at`), or from a variable. One comparison then covers a warp's neighboring addresses. Any
other address is compared with memory that Python has told of, that in which the access was found before. What a
comparison does not let pass is looked at out of line (`guard.ll`), at last lane by lane; what is not memory of the
launch there either goes to Python, which knows it or ends the launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rawkern.base.records import extents_at, filled
from rawkern.engines.cpu.analysis.plan import Plan
from rawkern.engines.cpu.analysis.provenance import Root, array_of
from rawkern.engines.cpu.analysis.storage import laid_out, local_frame, local_offset
from rawkern.engines.cpu.checker import pattern
from rawkern.engines.cpu.checker.sites import Site, place, root_of, sizes_of
from rawkern.engines.cpu.checker.touches import Touch, touched_together
from rawkern.engines.cpu.emit.forms import LANES, Affine, Form, Wide, ramp, spread
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import READ, Access, Watch
from rawkern.engines.cpu.emit.lanes import each_lane, pointer
from rawkern.engines.cpu.emit.memory.addresses import fits, starts, stride_of
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx.operands import callee
from rawkern.engines.cpu.records import BAR, BLOCK, FRAME, HEAP, LAUNCH, MEMORY, REASONS, TOUCHED, WORKER

ALL = (1 << 64) - 1
KINDS = {"": 0, "SHARED": 1, "LOCAL": 2, "VARIABLE": 3, "PARAM": 4, "FIRST": 5}  # of ranges, for guard.ll
BITS = f"<{', '.join(f'i32 {1 << k}' for k in range(LANES))}>"
FILLED = 64  # bytes of memory from malloc that get a pattern: more would be felt


def runtime() -> str:
    """LLVM IR of what comparisons that fail call: an object file of its own, loaded once for all kernels."""
    text = Path(__file__).with_name("guard.ll").read_text()
    values = {**KINDS, "BOUNDS": REASONS["BOUNDS"], "LANES": ramp("i64", 1).ref, "BITS": BITS}
    records = (BAR, BLOCK, LAUNCH, WORKER, MEMORY, HEAP, FRAME, TOUCHED)
    return "\n".join([*(record.llvm for record in records), filled(text, records, values), pattern.runtime()])


def frames(plan: Plan) -> bool:
    """Whether any function of a kernel has local variables in memory."""
    return any(map(local_frame, plan.functions))


def uses_heap(plan: Plan) -> bool:
    """Whether a kernel may take memory from the device heap."""
    calls = (i for f in plan.functions for i in plan.flows[f.name].instructions() if i.op.base == "call")
    return any(callee(i) in ("malloc", "free") for i in calls)


@dataclass(frozen=True)
class Range:
    """`size` bytes from `low` on, of lane 0; each lane's own begins `pitch` bytes after that of the lane before.

    `place` says where that is: a kind, and what `guard.ll` adds to find it, or where it and its size stand. `low` is
    known to be a multiple of `aligned` when code is made. Without a `key` it may change while a function runs.
    """

    low: Val
    size: Val | int
    key: str
    place: tuple[str, int, int]
    pitch: int = 0
    aligned: int = 1


class Guard(Watch):
    """A function whose accesses are compared."""

    each_unit = False
    has_heap = True

    def __init__(self, f: FunctionLowering, sites: dict[Site, int], recent: Iterator[int]):
        self.f = f
        self.sites, self._recent = sites, recent
        self._sizes = sizes_of(f.plan)
        self._groups: dict[int, list[Touch]] = {}
        self._head, self._innermost = "", const("i64", 0)  # where the chain of the warp's calls begins, and what there

    def enter(self) -> None:
        """Tell of the call's local variables, as others may get addresses of them."""
        f, e = self.f, self.f.frame.e
        if not frames(f.plan):
            return
        warp = e.let("i64", 1, "zext i32 %warp to i64")
        self._head = pointer(e, e.bin("add", f.frame.field(BLOCK, "session"), e.bin("mul", warp, 8)))
        self._innermost = const("i64", 0) if f.function.entry else e.let("i64", 1, f"load i64, {self._head}")
        size = local_frame(f.function)
        if size:
            e.line(f"%chained = alloca [{len(FRAME.fields)} x i64]")
            low = f.frame.once("frame", lambda e: e.let("i64", 1, "ptrtoint ptr %frame to i64"))
            for field, value in (("before", self._innermost), ("low", low), ("size", const("i64", size))):
                at = e.let("ptr", 1, f"getelementptr i64, ptr %chained, i32 {FRAME.index(field)}")
                e.line(f"store {value}, {at}")
            self._innermost = e.let("i64", 1, "ptrtoint ptr %chained to i64")
        e.line(f"store {self._innermost}, {self._head}")

    def returned(self) -> None:
        if self._head:
            self.f.e.line(f"store {self._innermost}, {self._head}")

    def malloc(self, size: Val) -> Val:
        heap, held = self._heap()
        return each_lane(
            self.f, "rk_malloc", "i64", heap, [self.f.e.splat(size, LANES), held],
            lambda e, at, args: pattern.fill_piece(
                e, e.let("i64", 1, f"call i64 @rk_heap_take({at}, {pointer(e, args[1])}, {args[0]})"), args[0], FILLED
            ),
        )  # fmt: skip

    def free(self, address: Val) -> None:
        f, e = self.f, self.f.e
        heap, held = self._heap()
        address = e.splat(address, LANES)
        done = each_lane(
            f, "rk_free", "i64", heap, [address, held],
            lambda e, at, args: e.let("i64", 1, f"call i64 @rk_heap_give({at}, {pointer(e, args[1])}, {args[0]})"),
        )  # fmt: skip
        bad = e.bin("and", f.lanes.mask_of(e.cmp("icmp eq", done, 0)), f.lanes.act())
        site = Site("free", "heap", None, 0, 1, False, 1, place(f))
        number = const("i32", self.sites.setdefault(site, len(self.sites)))
        with e.where(e.cmp("icmp ne", bad, 0), rare=True):
            zero = const("i64", 0, LANES)
            reason = REASONS["BAD_FREE"]
            e.line(f"call void @rk_service(ptr %blk, i32 {reason}, {bad}, i32 %warp, {number}, {address}, {zero})")

    def _heap(self) -> tuple[Val, Val]:
        """The heap, and where it stands how much is held of it and may be, for all lanes."""
        f = self.f
        for declared in ("@rk_heap_take(ptr, ptr, i64)", "@rk_heap_give(ptr, ptr, i64)"):
            f.module.declare(declared, f"declare i64 {declared}")

        def find(e: Emitter) -> Val:
            memory = f.frame.field(LAUNCH, "session")
            return e.let("i64", 1, f"load i64, {pointer(e, memory, MEMORY.offset('heap'))}")

        return f.frame.once("bounds.heap", find), f.e.splat(f.frame.field_address(LAUNCH, "heap"), LANES)

    def block(self, index: int) -> None:
        self._groups = touched_together(self.f, index)

    def access(self, a: Access, form: Form) -> Form:
        f, e, given = self.f, self.f.e, form
        if a.distance is not None:  # what fits in the own shared memory fits in that of the others
            form = e.bin("sub", f.values.plain(form), e.splat(a.distance, f.values.plain(form).n))
            a = replace(a, space="shared", distance=None)
        group = self._groups.get(id(f.instr))
        if group is not None:  # the first of them looks for all
            if group[0].instr is f.instr:
                self._guard(a, form, group, f.lanes.act())
            return given
        mask, size = a.mask or f.lanes.act(), a.size * a.count
        self._guard(a, form, [self._one(a, size, a.align or size)], mask)
        if a.lengths is not None:  # the others read some bytes: the first and the last of them
            lengths = e.splat(e.intrinsic("llvm.umin", "i32", a.lengths, const("i32", size)), LANES)
            some = f.lanes.mask_of(e.cmp("icmp ne", lengths, 0))
            rest = e.bin("and", e.bin("and", f.lanes.act(), e.invert(mask)), some)
            first = e.splat(f.values.plain(form), LANES)
            last = e.bin("add", first, e.bin("sub", e.resize(lengths, "i64"), 1))
            for addresses in (first, last):
                self._guard(a, addresses, [self._one(a, 1, 1)], rest)
        return given

    def lines(self, a: Access, at: Val, pitch: Val, count: int) -> tuple[Val, Val]:
        e, size = self.f.e, a.size * a.count
        each = e.bin("add", e.splat(at, LANES), e.bin("mul", e.splat(pitch, LANES), ramp("i64", 1)))
        self._guard(a, each, [self._one(a, size, a.align or size)], const("i32", (1 << count) - 1))
        return at, pitch

    def _one(self, a: Access, size: int, align: int) -> Touch:
        """The access at hand, by itself."""
        assert self.f.instr is not None
        return Touch(self.f.instr, a.at, size, align, a.size)

    def _guard(self, a: Access, form: Form, group: list[Touch], mask: Val) -> None:
        """Let no active lane of `mask` go on unless what it touches is aligned and inside of memory."""
        f, e = self.f, self.f.e
        root = root_of(f, a.mem)
        found, number = self.range_of(a, root), 0
        if (likely := found) is None:
            number = next(self._recent)
            indexed = a.space == "param" and a.what == READ and f.function.entry
            likely = self._parameters() if indexed else self._found_last(a, number)
        elif found.place[0] == "FIRST":
            likely = self._either(found, self._found_last(a, number := next(self._recent)))
        first, end = min(t.offset for t in group), max(t.offset + t.size for t in group)
        bad, ends = self._outside(likely, first, form, end - first, max(t.align for t in group), mask)
        known = dict(f.cache)
        with e.where(bad, rare=True, ends=ends):
            self._look(a, root, found, form, group, mask, ends, number)
        f.cache = known

    # -- where memory lies --------------------------------------------------------------------------------------
    def range_of(self, a: Access, root: Root | None) -> Range | None:
        """The memory that an access may touch, where that is known when code is made."""
        f = self.f
        kind, name = root or ("", "")
        shared = kind == "shared" or (not kind and a.space == "shared")
        if shared:
            start = f.plan.shared[str(name)] if kind else 0
            total = f.frame.once("bounds.shared", lambda e: e.resize(f.frame.field(LAUNCH, "shared_total"), "i64"))
            key, size = f"shared.{name}", self._sizes[str(name)] if kind else 0
            base = f.frame.field_address(BLOCK, "shared")
            low = f.frame.once(f"bounds.{key}", lambda e: e.bin("add", base, start) if start else base)
            left = size or f.frame.once(
                f"bounds.left.{start}", lambda e: e.bin("sub", total, start) if start else total
            )
            return Range(low, left, key, ("SHARED", start, size), aligned=16)
        if kind == "local":
            frame = f.frame.once("frame", lambda e: e.let("i64", 1, "ptrtoint ptr %frame to i64"))
            variable = str(name).partition("+")[0]
            first = local_offset(f.function, variable)
            whole = first, first + f.function.local_vars[variable].size
            first, end = array_of(f.function, f.provenance, root) or whole
            low = f.frame.once(f"bounds.local.{first}", lambda e: e.bin("add", frame, first) if first else frame)
            place_ = ("LOCAL", first, end - first)
            return Range(low, end - first, f"local.{first}.{end}", place_, local_frame(f.function))
        if kind in ("global", "const"):
            at, var = f.plan.layout.offsets[str(name)], f.plan.ptx.variables[str(name)]
            start = f.frame.field_address(LAUNCH, "globals")
            low = f.frame.once(f"bounds.variable.{name}", lambda e: e.bin("add", start, at))
            writable = kind == "global" or a.what == READ
            size = var.size if writable else 0
            return Range(low, size, f"variable.{name}.{writable}", ("VARIABLE", at, size))
        if kind == "param":
            return self._parameter(int(name), a.what != READ)
        return None

    def _parameter(self, offset: int, writes: bool) -> Range | None:
        """What a kernel's parameter, or a word of one, leads to; None where no extent stands there.

        That of a word of a struct is 0 unless it was filled with a tensor.
        """
        f = self.f
        offsets, size = laid_out(f.function.params)
        at_word = (p for p in f.function.params if 0 <= offset - offsets[p.name] <= p.size - 8)
        param = None if offset % 8 else next(at_word, None)
        if param is None:
            return None
        at = extents_at(size, offset) + 8 * writes
        low = f.parameters.load(param.name, offset - offsets[param.name], 8)

        def extent(e: Emitter) -> Val:
            pointer = e.let("ptr", 1, f"getelementptr i8, {f.frame.field(LAUNCH, 'params')}, i64 {at}")
            return e.let("i64", 1, f"load i64, {pointer}, align 8, !invariant.load !1")

        kind = "PARAM" if param.size == 8 else "FIRST"
        return Range(low, f.frame.once(f"bounds.extent.{at}", extent), f"param.{at}", (kind, offset, at))

    def _parameters(self) -> Range:
        """The values of a kernel's parameters, with the one that is indexed among them."""
        low, size = self.f.frame.field_address(LAUNCH, "params"), laid_out(self.f.function.params)[1]
        return Range(low, size, "parameters", ("", 0, 0))

    def _either(self, first: Range, other: Range) -> Range:
        """The first range if it has an extent."""
        e = self.f.e
        assert isinstance(first.size, Val) and isinstance(other.size, Val)
        there = e.cmp("icmp ne", first.size, 0)
        low, size = e.select(there, first.low, other.low), e.select(there, first.size, other.size)
        return Range(low, size, "", first.place)

    def _found_last(self, a: Access, number: int) -> Range:
        """Where what an access of unknown memory touched was found last, among what the launch has been told of.

        A row of the launch's table that `guard.ll` has put down under the access' number; an empty one at first.
        """
        f, e = self.f, self.f.e
        memory = f.frame.field(LAUNCH, "session")

        def word(at: Val, offset: int) -> Val:
            return e.let("i64", 1, f"load i64, {pointer(e, at, offset)}")

        table = word(memory, MEMORY.offset("told" if a.what == READ else "told_writable"))
        row = e.bin("add", table, e.bin("mul", word(word(memory, MEMORY.offset("recent")), 8 * number), 16))
        return Range(word(row, -16), word(row, -8), "", ("", 0, 0))

    # -- comparisons --------------------------------------------------------------------------------------------
    def _room(self, found: Range, size: int, align: int) -> Val:
        """How many aligned offsets `size` bytes may have in a range."""
        f = self.f

        def make(e: Emitter) -> Val:
            if isinstance(found.size, int):
                room = const("i64", -(-max(found.size - size + 1, 0) // align))
            else:
                room = (
                    e.intrinsic("llvm.usub.sat", "i64", found.size, const("i64", size - 1)) if size > 1 else found.size
                )
                if align > 1:
                    room = e.bin("lshr", e.bin("add", room, align - 1), align.bit_length() - 1)
            if align > 1:  # offsets from a start that is not aligned tell nothing
                room = e.select(e.cmp("icmp eq", e.bin("and", found.low, align - 1), 0), room, 0)
            return room

        return f.frame.once(f"bounds.room.{found.key}.{size}.{align}", make) if found.key else make(f.e)

    def _outside(self, found: Range, at: int, form: Form, size: int, align: int, mask: Val) -> tuple[Val, bool]:
        """Whether any active lane may be outside; and whether it then is, beyond doubt."""
        f, e = self.f, self.f.e
        stride = stride_of(form)
        if isinstance(form, Val) and form.n == 1 and not found.pitch:
            return self._beyond(found, form, at, size, align), False
        if isinstance(form, Affine) and stride == found.pitch and found.pitch and form.segments == 1:
            return self._beyond(found, form.bases[0], at, size, align), False
        if stride is not None and not found.pitch and stride % align == 0:
            assert isinstance(form, (Affine, Wide))
            reach = (LANES // form.segments - 1) * stride
            first = starts(f, form)
            tests = [
                self._beyond(found, base, at + min(reach, 0), size + abs(reach), align) for base in dict.fromkeys(first)
            ]
            if isinstance(form, Wide):
                tests.append(e.invert(fits(f, form)))
            return e.all("or", tests), False
        addresses = e.splat(f.values.plain(form), LANES)
        low = e.bin("sub", found.low, at) if at else found.low
        starting = e.bin("add", e.splat(low, LANES), ramp("i64", found.pitch)) if found.pitch else e.splat(low, LANES)
        offsets = self._turned(e.bin("sub", addresses, starting), align)
        beyond = f.lanes.mask_of(e.cmp("icmp uge", offsets, self._room(found, size, align)))
        # code generation need keep nothing for what nothing comes back from: half the time where there are many
        certain = found.aligned >= align and isinstance(found.size, int) and found.size > 0
        return e.cmp("icmp ne", e.bin("and", beyond, mask), 0), certain

    def _beyond(self, found: Range, base: Val, at: int, size: int, align: int) -> Val:
        e = self.f.e
        offset = e.bin("sub", e.bin("add", base, at) if at else base, found.low)
        return e.cmp("icmp uge", self._turned(offset, align), self._room(found, size, align))

    def _turned(self, offset: Val, align: int) -> Val:
        """An offset divided by its alignment, and larger than any where that leaves a rest."""
        if align == 1:
            return offset
        return self.f.e.intrinsic("llvm.fshr", "i64", offset, offset, const("i64", align.bit_length() - 1, offset.n))

    # -- the slow path ----------------------------------------------------------------------------------------
    def _look(
        self, a: Access, root: Root | None, found: Range | None, form: Form, group: list[Touch], mask: Val,
        ends: bool = False, number: int = 0,
    ) -> None:  # fmt: skip
        """Have each lane looked at; comes back if all may go on, unless it `ends` as that cannot be.

        `number` is that of an access of unknown memory.
        """
        f, e = self.f, self.f.e
        grows = (0, 1, False)
        if isinstance(form, Affine) and form.segments == 1 and not ends:
            name, where, grows = "rk_guard_line", form.bases, (form.stride, 1, False)
        elif isinstance(form, Wide) and form.segments == 1 and not ends:
            name, where = "rk_guard_wide", (*form.offsets, *form.inners)
            grows = (form.stride, form.scale, form.signed)
        else:
            name = "rk_guard_fails" if ends else "rk_guard"
            lanes = spread(e, form) if isinstance(form, (Affine, Wide)) else f.values.plain(form)
            where = (e.splat(lanes, LANES),)
        table = Val(self._table(a, root, found, grows, group, number), "ptr")
        args = (Val("%blk", "ptr"), Val("%warp", "i32"), mask, table, *where)
        how = "cold noreturn" if ends else "cold"
        f.module.declare(name, f"declare i64 @{name}({', '.join(x.t for x in args)}) {how}")
        e.call(name, "i64", 1, *args)

    def _table(
        self, a: Access, root: Root | None, found: Range | None, grows: tuple[int, int, bool], group: list[Touch],
        recent: int,
    ) -> str:  # fmt: skip
        """A constant that says what a group touches, and where that has to lie: a `TOUCHED`."""
        f = self.f
        space = "local" if root is not None and root[0] == "local" else a.space
        array, rows = array_of(f.function, f.provenance, root), []
        for t in group:
            site = Site(a.what, space, root, t.size, t.element, bool(a.order), t.align, place(f, t.instr), array=array)
            number = self.sites.setdefault(site, len(self.sites))
            rows.append(f"[4 x i64] [i64 {t.offset}, i64 {t.size}, i64 {t.align - 1}, i64 {number}]")
        kind, start, size = found.place if found is not None else ("", 0, 0)
        stride, scale, signed = grows
        words = (
            KINDS[kind],
            start,
            size,
            found.pitch if found is not None else 0,
            stride & ALL,
            scale & ALL,
            int(signed),
            int(a.what != READ),
            recent,
        )
        numbers = ", ".join(f"i64 {word}" for word in words)
        types = f"i64, ptr, {', '.join('i64' for _ in words)}, [{len(rows)} x [4 x i64]]"
        values = f"i64 {len(rows)}, ptr @rk_service, {numbers}, [{len(rows)} x [4 x i64]] [{', '.join(rows)}]"
        text = f"internal constant {{ {types} }} {{ {values} }}"
        name = f"@rk_touch{len(f.module.declarations)}"
        f.module.declare(text, f"{name} = {text}")
        return f.module.declarations[text].partition(" ")[0]
