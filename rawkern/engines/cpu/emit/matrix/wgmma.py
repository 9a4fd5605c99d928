"""``wgmma``: products of a warpgroup's 64 rows, with operands in shared memory.

Each warp computes its own 16 rows where it executes the instruction, of the same operands as the others. When these
are there for others to see, and that the operands stay as they are until then, is the matter of `groups`.

Descriptors say where the cores of a matrix lie: 8 rows (of B: columns) of 16 bytes each. Where they are major in K a
row's 16 bytes are neighbors in K, else there are 8 rows for each of 8 K.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rawkern.engines.cpu.emit.calls import service
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import READ, Access
from rawkern.engines.cpu.emit.lanes import define, pointer
from rawkern.engines.cpu.emit.matrix import fused, groups, product
from rawkern.engines.cpu.emit.matrix.fragments import KINDS, Kind, accumulators, registers_of, transposed
from rawkern.engines.cpu.emit.matrix.mma import items_of, require_warp, shape_in
from rawkern.engines.cpu.emit.memory.loops import counted, room
from rawkern.engines.cpu.ir import Emitter, Module, Val, const
from rawkern.engines.cpu.ptx.data import Imm, Instr, Mem, Vec
from rawkern.engines.cpu.records import BLOCK, LAUNCH

ROWS = 16  # of a warp
BYTES = 32  # of K, in one instruction
CORES = BYTES // 16
CORE = 128  # bytes
MOST = 256  # columns


@dataclass(frozen=True)
class Form:
    """What an instruction multiplies, apart from where operands lie."""

    n: int
    a: Kind
    b: Kind
    d: Kind
    negated: tuple[bool, bool] = (False, False)
    transposed: tuple[bool, bool] = (False, False)
    in_registers: bool = False  # A
    mode: str = ""

    @property
    def k(self) -> int:
        return 8 * BYTES // self.a.bits

    @property
    def registers(self) -> int:
        """Of D."""
        return self.n // 8 * 2 * accumulators(self.d)

    @property
    def name(self) -> str:
        signs = "".join("n" * x for x in self.negated)
        more = [f"t{int(self.transposed[0])}{int(self.transposed[1])}", "r" * self.in_registers, signs, self.mode]
        types = "_".join(kind.name for kind in (self.d, self.a, self.b))
        return f"rk_wgmma_n{self.n}_{types}_{'_'.join(x for x in more if x)}"

    @property
    def operands(self) -> str:
        """The function that looks at the operands in shared memory again."""
        a = "" if self.in_registers else f"_a{int(self.transposed[0])}"
        return f"rk_wgmma_operands_n{self.n}{a}_b{int(self.transposed[1])}"

    @property
    def number(self) -> str:
        """The type that sums are computed in."""
        return "i32" if self.d.name == "s32" else "float"

    @property
    def rule(self) -> fused.Rule | None:
        """How floats are added."""
        if self.number == "i32":
            return None
        every = (tuple(range(self.k)),)
        return fused.Rule(13, every, mantissa=13) if self.a.bits == 8 else fused.Rule(25, every)


def multiply(f: FunctionLowering, instr: Instr) -> None:
    """``wgmma.mma_async``: D = A B, or added to D."""
    require_warp(f, instr)
    e, op = f.e, instr.op
    dest, before, a, b, keep, *flags = instr.args
    d_, a_, b_ = (KINDS[t.name] for t in op.types)
    numbers = [x.value for x in flags if isinstance(x, Imm)]
    in_registers = isinstance(a, Vec)
    layouts = numbers[2:]
    if len(numbers) != len(flags) or (a_.bits != 16 and layouts):
        raise f.unsupported("its flags are not constants")
    if in_registers and layouts:
        layouts.insert(0, 0)
    negated = tuple((x & 0xFFFFFFFF) == 0xFFFFFFFF for x in (numbers[:2] or [1, 1]))
    mode = next((x for x in op.mods if x in ("satfinite", "and")), "")
    form = Form(
        shape_in(op).n, a_, b_, d_, (negated[0], negated[1]),
        (bool(layouts and layouts[0]), bool(layouts and layouts[1])), in_registers, mode,
    )  # fmt: skip
    if form.registers != len(items_of(dest)):
        raise f.unsupported(f"D has {form.registers} registers")
    placed = f.values.contiguous(items_of(dest))
    sums = placed or f.frame.array("%wgmma_sums", MOST // 8 * 4)
    held = [] if placed else [f.values.vector(reg, 32) for reg in items_of(before)]
    if held and f.cache.get("wgmma.sums") != held:  # else the product before has left them there
        for k, value in enumerate(held):
            e.line(f"store {value}, {_at(e, sums, k)}, align 64")
    if in_registers:
        left = f.frame.array("%wgmma_left", 4)
        for k, reg in enumerate(items_of(a)):
            e.line(f"store {f.values.vector(reg, 32)}, {_at(e, left, k)}, align 64")
        first = e.let("i64", 1, f"ptrtoint {left} to i64")
    else:
        first = _uniform(f, f.values.value(a, 64))
    second = _uniform(f, f.values.value(b, 64))
    kept = _uniform(f, f.values.value(keep, 1))
    total = e.resize(f.frame.field(LAUNCH, "shared_total"), "i64")
    place = e.bin("and", groups.number(f), 3)  # of the warp in its warpgroup
    name = f.module.helper(form.name, lambda m: _helper(m, form))
    hashed = groups.hashes(f)
    seen = f.frame.once("wgmma.seen", lambda e: e.let("ptr", 1, "alloca i32"))
    parts = ", ".join(map(str, (sums, f.frame.field(BLOCK, "shared"), total, first, second, place, kept, seen)))
    wrong = e.let("i1", 1, f"call i1 @{name}({parts})")
    check = f.module.helper(form.operands, lambda m: _operands(m, form)) if hashed else ""
    with e.where(wrong, rare=True):
        service(f, "DESCRIPTOR", instr)
    if f.watch.sees_products:
        f.watch.product(instr, groups.number(f), None if in_registers else first, second)
        _tell(f, form, None if in_registers else first, second)
    groups.issued(f, instr, (check, first, second, place, e.let("i32", 1, f"load i32, {seen}")) if hashed else None)
    if placed:
        f.values.changed(items_of(dest))
        return
    after = [e.let("i32", LANES, f"load <32 x i32>, {_at(e, sums, k)}, align 64") for k in range(form.registers)]
    for reg, value in zip(items_of(dest), after, strict=True):
        if reg is not None:
            f.values.put(reg.name, value)
    f.cache["wgmma.sums"] = after


def _at(e: Emitter, memory: Val, register: int) -> Val:
    return e.let("ptr", 1, f"getelementptr <32 x i32>, {memory}, i64 {register}")


def _uniform(f: FunctionLowering, value: Val) -> Val:
    """What all lanes have to hold: that of lane 0."""
    return value if value.n == 1 else f.e.let(value.ty, 1, f"extractelement {value}, i64 0")


# -- the product ------------------------------------------------------------------------------------------------
def _helper(m: Module, form: Form) -> str:
    """What one warp does; returns whether a descriptor leads out of shared memory."""
    e = Emitter(m)
    odd = form.rule is not None
    real = form.number
    per = form.k if odd else form.k * form.a.bits // form.a.raw  # elements of a row that the sums take
    e.line(f"%raw = alloca [{CORES * CORE} x i8], align 64")
    e.line(f"%left = alloca [{ROWS * per} x {real}], align 64")
    e.line(f"%right = alloca [{form.n * per} x {real}], align 64")
    e.line(f"%values = alloca [{ROWS * form.n} x {real}], align 64")
    e.line("%wrong = alloca i1")
    e.line("%odd = alloca i1")
    e.line("store i1 false, ptr %wrong")
    e.line("store i1 false, ptr %odd")
    e.line("store i32 0, ptr %seen")
    if odd:
        e.line(f"%left_exponents = alloca [{ROWS * per} x i16], align 64")
        e.line(f"%right_exponents = alloca [{form.n * per} x i16], align 64")
    gather = {x: _gather(m, x) for x in set(form.transposed)}
    for half in range(2):
        _left(e, form, half, gather[form.transposed[0]], per)
    e.line("%rows_hash = load i32, ptr %seen")
    e.line("br label %columns")
    e.label("columns")
    e.line("%c = phi i64 [ 0, %0 ], [ %c1, %columns ]")
    _right(e, form, gather[form.transposed[1]], per)
    e.line("%c1 = add i64 %c, 1")
    e.line(f"%more = icmp ult i64 %c1, {form.n // 8}")
    e.line("br i1 %more, label %columns, label %sum")
    e.label("sum")
    for half in range(2):
        _sum(e, form, half, per)
    whole = e.let("i32", 1, "load i32, ptr %seen")
    kept = e.select(e.cmp("icmp eq", Val("%w", "i32"), 0), whole, Val("%rows_hash", "i32"))
    e.line(f"store {kept}, ptr %seen")
    e.line("%failed = load i1, ptr %wrong")
    e.line("ret i1 %failed")
    params = "ptr %d, ptr %shared, i64 %total, i64 %da, i64 %db, i32 %w, i1 %keep, ptr %seen"
    return define(f"define internal i1 @{form.name}({params}) noinline", e)


def _operands(m: Module, form: Form) -> str:
    """A hash of a warp's rows of A in shared memory and, for the first warp of a group, of B: what `_helper` leaves."""
    e = Emitter(m)
    e.line(f"%raw = alloca [{CORES * CORE} x i8], align 64")
    e.line("%wrong = alloca i1")
    e.line("%seen = alloca i32")
    e.line("store i1 false, ptr %wrong")
    e.line("store i32 0, ptr %seen")
    gather = {x: _gather(m, x) for x in set(form.transposed)}
    for half in range(0 if form.in_registers else 2):
        _take(e, gather[form.transposed[0]], "%da", _rows(e, half))
    e.line(f"br {e.cmp('icmp eq', Val('%w', 'i32'), 0)}, label %columns, label %out")
    e.label("columns")
    e.line("%c = phi i64 [ 0, %0 ], [ %c1, %columns ]")
    _take(e, gather[form.transposed[1]], "%db", Val("%c", "i64"))
    e.line("%c1 = add i64 %c, 1")
    e.line(f"br {e.cmp('icmp ult', Val('%c1', 'i64'), form.n // 8)}, label %columns, label %out")
    e.label("out")
    e.line("%hash = load i32, ptr %seen")
    e.line("ret i32 %hash")
    return define(f"define internal i32 @{form.operands}({groups.OPERANDS}) noinline", e)


def _gather(m: Module, transposed: bool) -> str:
    """A function that copies the two cores of 8 rows, from row 8 times ``%group`` on, one after the other.

    It adds them to the hash ``%seen``.
    """
    name = f"rk_wgmma_core_{'mn' if transposed else 'k'}"
    return m.helper(name, lambda m: _gatherer(m, name, transposed))


def _places(e: Emitter, transposed: bool) -> list[Val]:
    """Where in shared memory the 16 bytes of each row of the two cores lie that ``%desc`` and ``%group`` say."""
    d = Val("%desc", "i64")

    def field(at: int, bits: int) -> Val:
        return e.bin("and", e.bin("lshr", d, at), (1 << bits) - 1)

    start, leading, stride = (e.bin("shl", field(at, 14), 4) for at in (0, 16, 32))
    mode, base = field(62, 2), e.bin("shl", field(49, 3), 7)
    swizzled = e.cmp("icmp ne", mode, 0)
    # a row of the swizzle's pattern: 16 bytes without, 128, 64, 32
    width = e.select(swizzled, e.bin("lshr", const("i64", 256), mode), const("i64", 16))
    mask = e.bin("sub", e.bin("lshr", width, 4), 1)  # of the bits from 7 on that change those from 4 on
    group = Val("%group", "i64")
    places = []
    for i in range(CORES * 8):
        outer, inner = divmod(i, 8)
        flat = e.all("add", [e.bin("mul", group, stride), e.bin("mul", leading, outer), const("i64", inner * 16)])
        if transposed:  # 8 rows of one K
            row = e.bin("shl", group, 4)
            turned = e.all("add", [
                e.bin("mul", e.bin("udiv", row, width), leading), e.bin("mul", stride, outer),
                e.bin("mul", width, inner), e.bin("urem", row, width),
            ])  # fmt: skip
        else:  # 16 bytes of one row
            turned = e.all("add", [e.bin("mul", group, stride), e.bin("mul", width, inner), const("i64", outer * 16)])
        at = e.bin("and", e.bin("add", start, e.select(swizzled, turned, flat)), (1 << 18) - 1)
        phase = e.bin("and", e.bin("lshr", e.bin("sub", at, base), 7), mask)
        places.append(e.bin("xor", at, e.bin("shl", phase, 4)))
    return places


def _gatherer(m: Module, name: str, transposed: bool) -> str:
    e, bad = Emitter(m), []
    for i, at in enumerate(_places(e, transposed)):
        inside = e.cmp("icmp ule", at, e.bin("sub", Val("%total", "i64"), 16))
        bad.append(e.invert(inside))
        at = e.select(inside, at, 0)
        source = e.let("ptr", 1, f"getelementptr i8, ptr %shared, {at}")
        got = e.let("i8", 16, f"load <16 x i8>, {source}, align 1")
        e.line(f"store {got}, {e.let('ptr', 1, f'getelementptr i8, ptr %out, i64 {16 * i}')}, align 16")
    factors = ", ".join(f"i32 {(2 * k + 1) * 0x9E3779B1 & 0xFFFFFFFF}" for k in range(CORES * CORE // 4))
    words = e.let("i32", 64, "load <64 x i32>, ptr %out, align 16")
    terms = e.let("i32", 64, f"mul {words}, <{factors}>")
    m.declare("llvm.vector.reduce.add.v64i32", "declare i32 @llvm.vector.reduce.add.v64i32(<64 x i32>)")
    these = e.let("i32", 1, f"call i32 @llvm.vector.reduce.add.v64i32({terms})")
    before = e.bin("mul", e.let("i32", 1, "load i32, ptr %seen"), 31)
    e.line(f"store {e.bin('add', before, these)}, ptr %seen")
    e.line(f"ret {e.all('or', bad)}")
    params = "ptr %out, ptr %shared, i64 %total, i64 %desc, i64 %group, ptr %seen"
    return define(f"define internal i1 @{name}({params}) noinline", e)


def _placer(m: Module, name: str, transposed: bool) -> str:
    """The same places as addresses, from ``%out`` on."""
    e = Emitter(m)
    for i, at in enumerate(_places(e, transposed)):
        address = e.bin("add", Val("%shared", "i64"), at)
        e.line(f"store {address}, {e.let('ptr', 1, f'getelementptr i64, ptr %out, i64 {i}')}")
    e.line("ret void")
    return define(f"define internal void @{name}(ptr %out, i64 %shared, i64 %desc, i64 %group) noinline", e)


def _tell(f: FunctionLowering, form: Form, left: Val | None, right: Val) -> None:
    """Tell of what the warp's product reads of shared memory: its rows of A, and B."""
    e, shared = f.e, f.frame.field_address(BLOCK, "shared")
    out = room(f, LANES)
    access = Access(READ, Mem(Imm(0, "i"), 0), "shared", 16)

    def both(transposed: bool, desc: Val, first: Val, mask: Val | None) -> None:
        name = f"rk_wgmma_places_{'mn' if transposed else 'k'}"
        f.module.helper(name, lambda m: _placer(m, name, transposed))
        for k in range(2):
            where = pointer(e, out, 128 * k)
            e.line(f"call void @{name}({where}, {shared}, {desc}, {e.bin('add', first, k) if k else first})")
        at = e.let("i64", LANES, f"load <32 x i64>, {pointer(e, out)}, align 16")
        f.watch.access(replace(access, mask=mask), at)

    f.watch.note("product")
    if left is not None:
        both(form.transposed[0], left, e.resize(e.bin("shl", e.bin("and", groups.number(f), 3), 1), "i64"), None)
    for c in counted(f, const("i64", -(-form.n // 16))):
        last = e.cmp("icmp eq", c, form.n // 16)
        half = e.select(last, const("i32", 0xFFFF), const("i32", -1))
        both(form.transposed[1], right, e.bin("shl", c, 1), half if form.n % 16 else None)
    f.watch.note("copied")


def _take(e: Emitter, gather: str, desc: str, group: Val) -> None:
    """Have the cores of 8 rows in ``%raw``."""
    failed = e.let("i1", 1, f"call i1 @{gather}(ptr %raw, ptr %shared, i64 %total, i64 {desc}, {group}, ptr %seen)")
    before = e.let("i1", 1, "load i1, ptr %wrong")
    e.line(f"store {e.bin('or', before, failed)}, ptr %wrong")


def _note(e: Emitter, found: Val) -> None:
    """Remember whether exponents are unusual."""
    before = e.let("i1", 1, "load i1, ptr %odd")
    e.line(f"store {e.bin('or', before, fused.unusual(e, found))}, ptr %odd")


def _put(e: Emitter, form: Form, values: Val, kind: Kind, to: str, at: Val, negated: bool) -> None:
    """Write factors, and their exponents beside them."""
    if negated:
        values = e.fneg(values)
    p = e.let("ptr", 1, f"getelementptr {values.ty}, ptr %{to}, {at}")
    e.line(f"store {values}, {p}, align 64")
    if form.rule is not None:
        found = fused.exponents(e, values, kind.name)
        _note(e, found)
        p = e.let("ptr", 1, f"getelementptr i16, ptr %{to}_exponents, {at}")
        e.line(f"store {found}, {p}, align 32")


def _rows(e: Emitter, half: int) -> Val:
    """The number of a warp's first or last 8 rows of A."""
    return e.bin("add", e.resize(e.bin("mul", Val("%w", "i32"), 2), "i64"), half)


def _left(e: Emitter, form: Form, half: int, gather: str, per: int) -> None:
    """Factors of 8 rows of A, row after row in each of two tiles."""
    kind = form.a
    if not form.in_registers:
        _take(e, gather, "%da", _rows(e, half))
    for tile in range(CORES):
        if form.in_registers:
            memory = e.let("ptr", 1, "inttoptr i64 %da to ptr")
            raw = e.let("i32", LANES, f"load <32 x i32>, {_at(e, memory, 2 * tile + half)}, align 64")
        else:
            p = e.let("ptr", 1, f"getelementptr i8, ptr %raw, i64 {CORE * tile}")
            raw = e.let("i32", LANES, f"load <32 x i32>, {p}, align 64")
            if form.transposed[0]:
                raw = e.view(transposed(e, e.view(raw, "i16"), 8), "i32")
        values = product.factors(e, raw, kind)
        _put(e, form, values, kind, "left", const("i64", 8 * per * half + values.n * tile), form.negated[0])


def _right(e: Emitter, form: Form, gather: str, per: int) -> None:
    """Factors of 8 columns of B, K after K."""
    kind = form.b
    _take(e, gather, "%db", Val("%c", "i64"))
    start = e.bin("mul", Val("%c", "i64"), 8 * per)
    for tile in range(CORES):
        p = e.let("ptr", 1, f"getelementptr i8, ptr %raw, i64 {CORE * tile}")
        raw = e.let("i32", LANES, f"load <32 x i32>, {p}, align 64")
        values = product.factors(e, raw, kind) if form.transposed[1] else product.columns(e, raw, kind)
        _put(e, form, values, kind, "right", e.bin("add", start, values.n * tile), form.negated[1])


def _sum(e: Emitter, form: Form, half: int, per: int) -> None:
    """8 rows of D: registers to sums, column block after column block, and back."""
    count, blocks = accumulators(form.d), form.n // 8
    loops = [e.fresh(x)[1:] for x in ("in", "add", "out", "done", "from")]
    into, add, out, done, before = loops
    e.line(f"br label %{before}")
    e.label(before)
    e.line(f"br label %{into}")

    def loop(label: str, entry: str, follow: str) -> tuple[Val, Val]:
        e.label(label)
        c = Val(e.fresh(), "i64")
        e.lines.append("")
        place, after = len(e.lines) - 1, e.fresh()

        def close() -> None:
            e.line(f"{after} = add {c}, 1")
            e.lines[place] = f"{c.ref} = phi i64 [ 0, %{entry} ], [ {after}, %{label} ]"
            e.line(f"br {e.cmp('icmp ult', Val(after, 'i64'), blocks)}, label %{label}, label %{follow}")

        closing.append(close)
        at = e.bin("mul", c, 64)
        return c, e.let("ptr", 1, f"getelementptr {form.number}, ptr %values, {at}")

    def registers(c: Val) -> list[Val]:
        first = e.bin("add", e.bin("mul", c, 2 * count), half * count)
        return [
            e.let("ptr", 1, f"getelementptr <32 x i32>, ptr %d, {e.bin('add', first, k) if k else first}")
            for k in range(count)
        ]

    closing: list = []
    c, at = loop(into, before, add)
    held = [e.let("i32", LANES, f"load <32 x i32>, {p}, align 64") for p in registers(c)]
    start = product.sums_of(e, held, form.d)
    start = e.select(Val("%keep", "i1"), start, e.like(start, 0))
    e.line(f"store {start}, {at}, align 64")
    closing[0]()
    e.label(add)
    if form.rule is not None:
        name = fused.core(e.module, form.rule, form.k, form.a.columns, form.d.name, form.d.name)
        odd = e.let("i1", 1, "load i1, ptr %odd")
        places = [
            e.let("ptr", 1, f"getelementptr {ty}, ptr %{to}, i64 {8 * per * half}")
            for ty, to in (("float", "left"), ("i16", "left_exponents"))
        ]
        parts = f"{places[0]}, {places[1]}, ptr %right, ptr %right_exponents, ptr %values"
        e.line(f"call void @{name}({parts}, i64 {blocks}, i64 64, {odd})")
    else:
        name = product.whole_core(e.module, form.a, per, per // CORES, form.mode)
        left = e.let("ptr", 1, f"getelementptr i32, ptr %left, i64 {8 * per * half}")
        e.line(f"call void @{name}({left}, ptr %right, ptr %values, i64 {blocks})")
    e.line(f"br label %{out}")
    c, at = loop(out, add, done)
    tile = e.let(form.number, 64, f"load <64 x {form.number}>, {at}, align 64")
    for value, p in zip(registers_of(e, product.raw(e, tile, form.d), form.d), registers(c), strict=True):
        e.line(f"store {value}, {p}, align 64")
    closing[1]()
    e.label(done)


def fence(f: FunctionLowering, instr: Instr) -> None:
    """``wgmma.fence``: registers are written when they are computed; whether there is one is a matter of checks."""
    f.watch.note("product_fence")


HANDLERS = {
    "wgmma.mma_async": multiply,
    "wgmma.fence": fence,
    "wgmma.commit_group": groups.commit,
    "wgmma.wait_group": groups.wait,
}
