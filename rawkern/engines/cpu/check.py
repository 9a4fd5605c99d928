"""Checked builds: the calls of the checker that kernels make, and the table of places they are made from.

Lanes whose access fails go on with an address of their own: they read zeros, and what they write is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from rawkern.engines.cpu import undefined
from rawkern.engines.cpu.addresses import fits, starts, stride_of
from rawkern.engines.cpu.forms import LANES, Affine, Form, Wide, ramp
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.lanewise import lane_loop
from rawkern.engines.cpu.operands import base, callee
from rawkern.engines.cpu.ptx import Instr, Loc, Mem, Reg, Sym
from rawkern.engines.cpu.records import BLOCK, LAUNCH
from rawkern.engines.cpu.roots import Root, find_roots
from rawkern.engines.cpu.symbols import store_parameter
from rawkern.engines.cpu.variables import RESERVED, RESERVED_BYTES, local_frame

if TYPE_CHECKING:
    from rawkern.engines.cpu.function import FunctionLowering
    from rawkern.engines.cpu.plan import Plan

SINK = 2048  # where in the page of failing lanes their writes go; reads are at its start
READ, WRITE, COPY, UPDATE = "reads", "writes", "copies", "updates"


@dataclass(frozen=True)
class Site:
    """An instruction that the checker can name.

    `what` is "reads", "writes", "copies" (by ``cp.async``), "updates" (atomically), "uses" (a register) or the name of
    an instruction at which threads meet; `root` the variable or parameter whose address the instruction uses, if it is
    one; a lane accesses `size` bytes in values of `element` bytes. `defers`: that it reads what is not set is told when
    the value is used. `lines` are (file, line), from the inside out where code was inlined.
    """

    what: str
    space: str
    root: Root | None
    size: int
    element: int
    strong: bool
    align: int
    lines: tuple[tuple[str, int], ...]
    defers: bool = False


def lines_of(place: Loc | None) -> tuple[tuple[str, int], ...]:
    """Where an instruction stands in the source, and where that was inlined."""
    found = []
    while place is not None:
        if place.line:
            found.append((place.file, place.line))
        place = place.inlined_at
    return tuple(found)


def add_site(f: FunctionLowering, site: Site) -> Val:
    """Number of a site in the plan's table."""
    if site not in f.plan.checked_sites:
        f.plan.checked_sites[site] = len(f.plan.checked_sites)
    return const("i64", f.plan.checked_sites[site])


def place(f: FunctionLowering) -> tuple[tuple[str, int], ...]:
    """Source lines of the instruction at hand."""
    loc = f.instr.loc if f.instr is not None else 0
    return lines_of(f.plan.ptx.locs[loc] if 0 <= loc < len(f.plan.ptx.locs) else None)


def access(
    f: FunctionLowering, form: Form, mem: Mem, space: str, what: str, size: int, count: int, order: str,
    values: list[Val] | None = None, looks: bool = True, mask: Val | None = None, align: int = 0,
    regs: list[str | None] | None = None,
) -> Form:  # fmt: skip
    """The addresses of an access of `count` values of `size` bytes, replaced where it fails.

    `order`: how strong the access is, empty for a plain one; `looks`: whether anybody reads an atomic's result; `mask`:
    the lanes that access, if not all active ones; `align`: bytes, if not those of the whole access; `regs`: registers
    that are loaded or stored.
    """
    if not f.plan.checked:
        return form
    ok = _allowed(f, form, mem, space, what, size, count, order, values, looks, mask, align, regs)
    if mask is not None:
        ok = f.e.bin("or", ok, f.e.invert(mask))
    return _replaced(f, form, what, ok)


def around(
    f: FunctionLowering, form: Form, mem: Mem, space: str, what: str, size: int, count: int, order: str,
    emit: Callable[[Form], list[Val]], values: list[Val] | None = None, regs: list[str | None] | None = None,
) -> list[Val]:  # fmt: skip
    """An access as in `access`, with what `emit` makes of its addresses, in the usual build's way where none fails."""
    if not f.plan.checked:
        return emit(form)
    ok = _allowed(f, form, mem, space, what, size, count, order, values, regs=regs)
    if not isinstance(form, (Affine, Wide)):
        return emit(_replaced(f, form, what, ok))
    e = f.e
    f.actv()  # made before the ways part
    known, ways = dict(f.cache), []
    fine, failing, met = (e.fresh(x)[1:] for x in ("allowed", "refused", "checked"))
    e.line(f"br {e.cmp('icmp eq', ok, f.act())}, label %{fine}, label %{failing}, !prof !2")
    for label in (fine, failing):
        e.label(label)
        f.cache = dict(known)
        got = emit(form if label == fine else _replaced(f, form, what, ok))
        end = e.fresh("after")[1:]
        e.line(f"br label %{end}")
        e.label(end)
        e.line(f"br label %{met}")
        ways.append(([e.splat(x, LANES) for x in got], end))
    e.label(met)
    f.cache = known
    return [
        e.let(x.ty, LANES, f"phi {x.t} [ {x.ref}, %{ways[0][1]} ], [ {y.ref}, %{ways[1][1]} ]")
        for x, y in zip(ways[0][0], ways[1][0], strict=True)
    ]


def _replaced(f: FunctionLowering, form: Form, what: str, ok: Val) -> Form:
    """Addresses, of the checker's own page where lanes are not among `ok`."""
    e, null = f.e, field(f, "null", SINK if what != READ else 0)
    if isinstance(form, Val) and form.n == 1:
        return e.select(e.cmp("icmp eq", ok, 0), null, form)
    return e.select(e.let("i1", LANES, f"bitcast {ok} to <32 x i1>"), f.plain(form), e.splat(null, LANES))


def _allowed(
    f: FunctionLowering, form: Form, mem: Mem, space: str, what: str, size: int, count: int, order: str,
    values: list[Val] | None = None, looks: bool = True, mask: Val | None = None, align: int = 0,
    regs: list[str | None] | None = None,
) -> Val:  # fmt: skip
    """Look at an access; the lanes that may go on."""
    e = f.e
    root = root_of(f, mem)
    strong = bool(order) or (what == READ and _is_validated(f, root))
    if root is not None and root[0] == "local":
        space = "local"
    defers = what == READ and regs is not None and undefined.tracks(f, regs)
    site = Site(what, space, root, size * count, size, strong, align or size * count, place(f), defers)
    number = add_site(f, site)
    _tell_frame(f, space)
    if values is not None:
        _keep_values(f, values)
    if what in (WRITE, COPY) and undefined.doubtful(f):
        _store(f, "storing", f.e.resize(undefined.unset_lanes(f, regs or []), "i64"))
    ck, blk, warp = identity(f)
    # cooperative groups' own barriers for tiles of several warps, in reserved memory, do without fences
    if order in ("release", "acq_rel") or (order and RESERVED in f.plan.shared):
        note(f, "fence")
    if order and what != WRITE and looks:
        e.line(f"call i64 @rk_check_look({ck}, {blk}, {warp})")
    ok = _call(f, form, mask or f.act(), number)
    if order and what != READ:
        e.line(f"call i64 @rk_check_pass_on({ck}, {blk}, {warp})")
    if defers and regs is not None:
        undefined.loaded(f, regs, field_now(f, "unset"), number)
    return ok


def _call(f: FunctionLowering, form: Form, mask: Val, site: Val) -> Val:
    """Call the checker with the addresses in the shortest form that is known."""
    e, (ck, blk, warp) = f.e, identity(f)

    def evenly(bases: list[Val], stride: int) -> Val:
        for k, start in enumerate(bases):
            _store(f, "bases", start, 8 * k)
        args = (ck, blk, warp, e.resize(mask, "i64"), site, const("i64", stride), const("i64", LANES // len(bases)))
        return e.cast("trunc", e.let("i64", 1, f"call i64 @rk_check_even({', '.join(map(str, args))})"), "i32")

    def apart() -> Val:
        addresses = e.splat(f.plain(form), LANES)
        return e.let("i32", 1, f"call i32 @rk_check({ck}, {blk}, {warp}, {mask}, {site}, {addresses})")

    if isinstance(form, Val):
        return evenly([form], 0) if form.n == 1 else apart()
    if isinstance(form, Affine):
        return evenly(list(form.bases), form.stride)
    assert isinstance(form, Wide)
    first, stride = starts(f, form), stride_of(form)
    near, far, met = (e.fresh(x)[1:] for x in ("even", "uneven", "looked"))
    assert stride is not None
    f.plain(form)  # made before the ways part, as more may use it
    e.line(f"br {fits(f, form)}, label %{near}, label %{far}, !prof !2")
    e.label(near)
    one = evenly(first, stride)
    e.line(f"br label %{met}")
    e.label(far)
    other = apart()
    e.line(f"br label %{met}")
    e.label(met)
    return e.let("i32", 1, f"phi i32 [ {one.ref}, %{near} ], [ {other.ref}, %{far} ]")


def lines(
    f: FunctionLowering, mem: Mem, space: str, what: str, at: Val, pitch: Val, shape: tuple[int, int, int]
) -> tuple[Val, Val]:
    """Address and pitch of a matrix in memory that the warp accesses as one: of a matrix of zeros where that fails.

    `shape`: how many lines, bytes of a line, bytes of an element.
    """
    if not f.plan.checked:
        return at, pitch
    e, (count, size, element) = f.e, shape
    starts = e.bin("add", e.splat(at, LANES), e.bin("mul", e.splat(pitch, LANES), ramp("i64", 1)))
    mask = const("i32", (1 << count) - 1)
    got = access(f, starts, mem, space, what, element, size // element, "", mask=mask, align=element)
    bad = f.mask_of(e.cmp("icmp ne", f.plain(got), starts))
    ok = e.cmp("icmp eq", e.bin("and", bad, mask), 0)
    return e.select(ok, at, field(f, "null", SINK if what == WRITE else 0)), e.select(ok, pitch, 0)


def identity(f: FunctionLowering) -> tuple[Val, Val, Val]:
    """The checker, the block and the warp as numbers."""
    if "check.block" not in f.entry_cache:
        f.entry_cache["check.block"] = f.once.let("i64", 1, "ptrtoint ptr %blk to i64")
        f.entry_cache["check.warp"] = f.once.let("i64", 1, "zext i32 %warp to i64")
    return f.field(LAUNCH, "check"), f.entry_cache["check.block"], f.entry_cache["check.warp"]


def field(f: FunctionLowering, name: str, add: int = 0) -> Val:
    """A field of the checker that does not change, plus a number."""
    from rawkern.engines.cpu.check_layout import CHECK

    key = f"check.{name}.{add}"
    if key not in f.entry_cache:
        at = f.once.bin("add", f.field(LAUNCH, "check"), CHECK.offset(name))
        pointer = f.once.let("ptr", 1, f"inttoptr {at} to ptr")
        value = f.once.let("i64", 1, f"load i64, {pointer}")
        f.entry_cache[key] = f.once.bin("add", value, add) if add else value
    return f.entry_cache[key]


def enter(f: FunctionLowering) -> None:
    """A warp starts a kernel."""
    if f.plan.checked and f.function.entry:
        ck, blk, _ = identity(f)
        f.entry.append(f"call i64 @rk_check_enter({ck}, {blk})")


def field_now(f: FunctionLowering, name: str) -> Val:
    """A field of the checker as it is now."""
    from rawkern.engines.cpu.check_layout import CHECK

    at = f.e.bin("add", f.field(LAUNCH, "check"), CHECK.offset(name))
    return f.e.let("i64", 1, f"load i64, ptr {f.e.let('ptr', 1, f'inttoptr {at} to ptr').ref}, align 8")


def note(f: FunctionLowering, what: str, *args: Val) -> None:
    """Tell the checker of something that orders accesses: ``fence``, ``arrive`` and others in `check_sync`."""
    if f.plan.checked:
        ck, blk, warp = identity(f)
        more = "".join(f", {f.e.resize(a, 'i64')}" for a in args)
        f.e.line(f"call i64 @rk_check_{what}({ck}, {blk}, {warp}{more})")


def blame(f: FunctionLowering, kind: str, lanes: Val, instr: Instr | None = None, other: Val | None = None) -> None:
    """Report `lanes`, if there are any, for an instruction at which threads meet; `other` are lanes it is about."""
    if not f.plan.checked:
        return
    from rawkern.engines.cpu.check_layout import KINDS

    ck, blk, warp = identity(f)
    number = add_site(f, meeting_site(f, instr or f.instr))
    more = f.e.resize(other, "i64") if other is not None else const("i64", 0)
    lanes = f.e.resize(lanes, "i64")
    kind_number = const("i64", KINDS.index(kind))
    f.e.line(f"call i64 @rk_check_blame({ck}, {blk}, {warp}, {lanes}, {number}, {kind_number}, {more})")


def meeting_site(f: FunctionLowering, instr: Instr | None) -> Site:
    """The site of a barrier or a warp instruction."""
    found = f.plan.ptx.locs[instr.loc] if instr is not None else None
    return Site(instr.op if instr is not None else "?", "meeting", None, 0, 1, False, 1, lines_of(found))


def register_use(site: Site) -> Site:
    """The site of an instruction that uses a register's value."""
    return replace(site, what="uses", space="register")


def unset(f: FunctionLowering, lanes: Val, shadow: Val, site: int) -> None:
    """Report lanes that use what has not been set; `shadow` says where they began to (`undefined`)."""
    ck, blk, warp = identity(f)
    _store(f, "addresses", f.e.resize(shadow, "i64"))
    f.e.line(f"call i64 @rk_check_unset({ck}, {blk}, {warp}, {f.e.resize(lanes, 'i64')}, i64 {site})")


def heap_call(f: FunctionLowering, name: str, results: list, argument: Val) -> None:
    """``malloc`` and ``free`` of the device heap that the checker keeps."""
    e = f.e
    ck, blk, warp = identity(f)
    argument = e.splat(argument, LANES)
    number = add_site(f, Site(name, "heap", None, 0, 1, False, 1, place(f)))

    def one(e: Emitter, at: str, args: list[Val]) -> Val:
        if name == "malloc":
            return e.let("i64", 1, f"call i64 @rk_check_malloc({args[1]}, {args[0]})")
        thread = e.bin("add", e.bin("mul", args[3], LANES), e.let("i64", 1, "zext i32 %lane to i64"))
        return e.let("i64", 1, f"call i64 @rk_check_free({args[1]}, {args[2]}, {thread}, {args[0]}, {args[4]})")

    helper = f"rk_checked_{name}"
    f.module.helper(helper, lambda m: lane_loop(m, helper, "i64", ["i64"] * 5, one))
    extra = [e.splat(x, LANES) for x in (ck, blk, warp, number)]
    got = e.call(helper, "i64", LANES, argument, argument, *extra, f.act())
    if name == "malloc":
        store_parameter(f, results[0].name, 0, got)


def root_of(f: FunctionLowering, mem: Mem) -> Root | None:
    if f.roots is None:
        f.roots = find_roots(f.plan, f.function)
    if isinstance(mem.base, Reg):
        return f.roots.get(mem.base.name)
    return f.roots.get(mem.base.name) if isinstance(mem.base, Sym) else None


#: Atomics that find out whether what was read before still holds, or do not care.
_VALIDATING = (".cas", ".exch", ".min", ".max", ".and", ".or")


def _is_validated(f: FunctionLowering, root: Root | None) -> bool:
    """Whether a plain read goes before an atomic that allows for others in between.

    ``old = *p; do { seen = old; old = atomicCAS(p, seen, ...); } while (old != seen)`` is CUDA's own way to write an
    atomic operation; ``if (v < *p) atomicMin(p, v)`` saves some.
    """
    if f.validated is None:
        instrs = [i for block in f.flow.blocks for i in block.instrs if i.op.startswith(("atom.", "red."))]
        roots = (
            root_of(f, a) for i in instrs if any(x in i.op for x in _VALIDATING) for a in i.args if isinstance(a, Mem)
        )
        f.validated = frozenset(roots)
    return root in f.validated


def _store(f: FunctionLowering, name: str, value: Val, offset: int = 0) -> None:
    from rawkern.engines.cpu.check_layout import CHECK

    at = f.e.bin("add", f.field(LAUNCH, "check"), CHECK.offset(name) + offset)
    f.e.line(f"store {value}, ptr {f.e.let('ptr', 1, f'inttoptr {at} to ptr').ref}, align 8")


def _tell_frame(f: FunctionLowering, space: str) -> None:
    """Say where the function's own variables lie."""
    if space not in ("generic", "local"):
        return
    size = local_frame(f.function)
    if size and "check.frame" not in f.entry_cache:
        f.entry.append(f"%frameinit = alloca [{size * LANES} x i8], align 64")
        start = int(_hands_out(f))  # what other functions set through a pointer is not seen
        f.entry.append(f"call void @llvm.memset.p0.i64(ptr %frameinit, i8 {start}, i64 {size * LANES}, i1 false)")
        f.entry_cache["check.init"] = f.once.let("i64", 1, "ptrtoint ptr %frameinit to i64")
        f.entry_cache["check.frame"] = f.once.let("i64", 1, "ptrtoint ptr %frame to i64")
    zero = const("i64", 0)
    _store(f, "frame", f.entry_cache["check.frame"] if size else zero)
    _store(f, "frame_bytes", const("i64", size))
    if size:
        _store(f, "frame_init", f.entry_cache["check.init"])


def _hands_out(f: FunctionLowering) -> bool:
    """Whether other functions may get addresses of the function's own variables."""
    calls = [i for i in f.flow.instructions() if base(i.op) == "call"]
    return any(callee(i) not in ("vprintf", "__assertfail", "malloc", "free") for i in calls)


def _keep_values(f: FunctionLowering, values: list[Val]) -> None:
    """Let the checker see what is written: a write that changes nothing is no conflict."""
    for k, value in enumerate(values):
        wide = f.e.resize(f.e.splat(value, LANES), "i64")
        _store(f, "values", wide, 256 * k)


def table(plan: Plan) -> dict:
    """What Python must know of a checked build, as plain data: sites in order, and where variables lie."""
    every = [v for f in plan.functions for v in f.local_vars.values() if v.space == "shared"]
    sizes = {v.name: v.size for v in (*plan.ptx.variables.values(), *every)} | {RESERVED: RESERVED_BYTES}
    return {
        "sites": [asdict(site) for site in plan.checked_sites],
        "shared": {name: (at, sizes[name]) for name, at in plan.shared.items()},
        "variables": {
            name: (at, sizes[name], plan.ptx.variables[name].space) for name, at in plan.layout.offsets.items()
        },
    }


@cache
def _sources() -> dict[Any, str]:
    """The modules of the checker itself, with their texts."""
    from rawkern.engines.cpu import check_access, check_order, check_runtime, check_sync

    package = resources.files("rawkern.engines.cpu")
    modules = (check_runtime, check_sync, check_order, check_access)
    return {m: package.joinpath(f"{m.__name__.rpartition('.')[2]}.py").read_text() for m in modules}


def checker() -> str:
    """LLVM IR of the checker itself, an object file of its own, which needs what `connection` defines."""
    from rawkern.engines.cpu import check_runs, scalar

    parts = [scalar.compiled(text, vars(module)) for module, text in _sources().items()]
    return "\n".join([*parts, check_runs.text(), "declare i64 @rk_check_stack_range(i64, i64, i64)"])


@cache
def connection() -> str:
    """LLVM IR that stands in each checked kernel's object: what connects it with the checker."""
    from rawkern.engines.cpu import scalar
    from rawkern.engines.cpu.check_layout import CHECK
    from rawkern.engines.cpu.records import linked

    text = resources.files("rawkern.engines.cpu").joinpath("check.ll").read_text()
    declarations = [scalar.declared(source) for source in _sources().values()]
    return "\n".join([CHECK.llvm, *declarations, linked(text, (CHECK, BLOCK))])
