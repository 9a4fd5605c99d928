"""Checked builds: what stands around accesses to memory.

Lanes whose access fails go on with an address of the checker's own: they read zeros, and what they write is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rawkern.engines.cpu.analysis.provenance import array_of
from rawkern.engines.cpu.analysis.storage import RESERVED, local_frame
from rawkern.engines.cpu.checker import uninitialized, uninitialized_tiles
from rawkern.engines.cpu.checker.native.layout import (
    AT_FENCE,
    AT_ONCE,
    BLOCK_SCOPE,
    BY_CHOICE,
    ENDS,
    OTHER,
    SET,
    SWAP,
    UPDATES,
    VOLATILE,
)  # fmt: skip
from rawkern.engines.cpu.checker.sites import (
    Site,
    add_site,
    checked,
    field,
    field_now,
    halves_of,
    identity,
    note,
    ordinal,
    place,
    put_field,
    root_of,
    used,
)
from rawkern.engines.cpu.emit.forms import LANES, Affine, Form, Wide, ramp
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import COPY, READ, WRITE, Access
from rawkern.engines.cpu.emit.memory.addresses import fits, starts, stride_of
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx.operands import callee, destinations

SINK = 2048  # where in the page of failing lanes their writes go; reads are at its start


def access(f: FunctionLowering, a: Access, form: Form) -> Form:
    """The addresses of an access, replaced where it fails."""
    ok = _allowed(f, a, form)
    if a.mask is not None:
        ok = f.e.bin("or", ok, f.e.invert(a.mask))
    return _replaced(f, form, a.what, ok)


def around(f: FunctionLowering, a: Access, form: Form, emit: Callable[[Form], list[Val]]) -> list[Val]:
    """An access as in `access`, with what `emit` makes of its addresses, in the usual build's way where none fails."""
    ok = _allowed(f, a, form)
    if not isinstance(form, (Affine, Wide)):
        return emit(_replaced(f, form, a.what, ok))
    e = f.e
    f.lanes.actv()  # made before the ways part
    known, ways = dict(f.cache), []
    fine, failing, met = (e.fresh(x)[1:] for x in ("allowed", "rejected", "checked"))
    e.line(f"br {e.cmp('icmp eq', ok, f.lanes.act())}, label %{fine}, label %{failing}, !prof !2")
    for label in (fine, failing):
        e.label(label)
        f.cache = dict(known)
        got = emit(form if label == fine else _replaced(f, form, a.what, ok))
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


def lines(f: FunctionLowering, a: Access, at: Val, pitch: Val, count: int) -> tuple[Val, Val]:
    """Address and pitch of `count` lines that the warp accesses as one: of a matrix of zeros where that fails."""
    e = f.e
    starts = e.bin("add", e.splat(at, LANES), e.bin("mul", e.splat(pitch, LANES), ramp("i64", 1)))
    mask = const("i32", (1 << count) - 1)
    got = access(f, replace(a, mask=mask), starts)
    bad = f.lanes.mask_of(e.cmp("icmp ne", f.values.plain(got), starts))
    ok = e.cmp("icmp eq", e.bin("and", bad, mask), 0)
    return e.select(ok, at, field(f, "null", SINK if a.what == WRITE else 0)), e.select(ok, pitch, 0)


def _replaced(f: FunctionLowering, form: Form, what: str, ok: Val) -> Form:
    """Addresses, of the checker's own page where lanes are not among `ok`."""
    e, null = f.e, field(f, "null", SINK if what != READ else 0)
    if isinstance(form, Val) and form.n == 1:
        return e.select(e.cmp("icmp eq", ok, 0), null, form)
    return e.select(e.let("i1", LANES, f"bitcast {ok} to <32 x i1>"), f.values.plain(form), e.splat(null, LANES))


def _allowed(f: FunctionLowering, a: Access, form: Form) -> Val:
    """Look at an access; the lanes that may go on."""
    e, what = f.e, a.what
    root, space, size = root_of(f, a.mem), a.space, a.size * a.count
    strong = bool(a.order) or (what == READ and id(f.instr) in halves_of(f).loads)
    if root is not None and root[0] == "local":
        space = "local"
    regs = a.regs or ()
    defers = what == READ and a.regs is not None and uninitialized.tracks(f, regs)
    array = array_of(f.function, f.provenance, root)
    kept, weak = a.values is not None, _weak(f, a)
    wide, looks = const("i64", int(not weak & BLOCK_SCOPE)), bool(a.order) and what != WRITE and a.looks
    observes = looks and not used(f).isdisjoint(destinations(f.instr) if f.instr is not None else ())
    swaps, shown = _swaps(f, a)
    site = Site(
        what, space, root, size, a.size, strong, a.align or size, place(f), defers, array, kept, observes, weak, swaps,
        ordinal(f),
    )  # fmt: skip
    number = add_site(f, site)
    _tell_frame(f, space)
    if a.values is not None or shown:
        _keep_values(f, a.values or shown)
    if what in (WRITE, COPY) and uninitialized.maybe_uninitialized(f):
        _keep_uninitialized(f, uninitialized_tiles.stored(f, a), a.size)
    # cooperative groups' own barriers for tiles of several warps, in reserved memory, do without fences
    if a.order in ("release", "acq_rel") or (a.order and RESERVED in f.plan.shared):
        note(f, "fence", wide)
    if looks:
        note(f, "look", const("i64", 0) if swaps == SWAP else wide, const("i64", _acquires(f, a)))
    if checked(f).dependent and space in ("generic", "global"):
        put_field(f, "addresses", e.splat(f.values.plain(form), LANES))
        note(f, "early", a.mask or f.lanes.act(), number)
    ok = _call(f, form, a.mask or f.lanes.act(), number)
    if a.order and what != READ:
        note(f, "pass_on", wide)
    if defers:
        missing = e.resize(field_now(f, "uninitialized"), "i32")
        uninitialized.loaded(f, regs, uninitialized_tiles.loaded(f, a, missing), number)
    return ok


def _call(f: FunctionLowering, form: Form, mask: Val, site: Val) -> Val:
    """Call the checker with the addresses in the shortest form that is known."""
    e, (ck, blk, warp) = f.e, identity(f)

    def evenly(bases: list[Val], stride: int) -> Val:
        for k, start in enumerate(bases):
            put_field(f, "bases", start, 8 * k)
        args = (ck, blk, warp, e.resize(mask, "i64"), site, const("i64", stride), const("i64", LANES // len(bases)))
        return e.cast("trunc", e.let("i64", 1, f"call i64 @rk_check_even({', '.join(map(str, args))})"), "i32")

    def apart() -> Val:
        addresses = e.splat(f.values.plain(form), LANES)
        return e.let("i32", 1, f"call i32 @rk_check({ck}, {blk}, {warp}, {mask}, {site}, {addresses})")

    if isinstance(form, Val):
        return evenly([form], 0) if form.n == 1 else apart()
    if isinstance(form, Affine):
        return evenly(list(form.bases), form.stride)
    assert isinstance(form, Wide)
    first, stride = starts(f, form), stride_of(form)
    near, far, met = (e.fresh(x)[1:] for x in ("even", "uneven", "looked"))
    assert stride is not None
    f.values.plain(form)  # made before the ways part, as more may use it
    e.line(f"br {fits(f, form)}, label %{near}, label %{far}, !prof !2")
    e.label(near)
    one = evenly(first, stride)
    e.line(f"br label %{met}")
    e.label(far)
    other = apart()
    e.line(f"br label %{met}")
    e.label(met)
    return e.let("i32", 1, f"phi i32 [ {one.ref}, %{near} ], [ {other.ref}, %{far} ]")


def _acquires(f: FunctionLowering, a: Access) -> int:
    """How a strong read puts in the past what it saw, as in `layout`; a lock is one followed by a fence."""
    if a.order in ("acquire", "acq_rel") or RESERVED in f.plan.shared:
        return AT_ONCE
    return AT_FENCE if f.instr is not None and f.instr.op.has("cas") else BY_CHOICE


def _weak(f: FunctionLowering, a: Access) -> int:
    """Why an atomic or volatile access may race with another one, as in `layout`."""
    op = f.instr.op if f.instr is not None else None
    if op is None or not a.order:
        return 0
    updates = UPDATES if id(f.instr) in halves_of(f).stores else 0
    ends = ENDS if op.has("inval") else 0
    return updates | ends | (BLOCK_SCOPE if op.has("cta") else 0) | (VOLATILE if op.has("volatile") else 0)


def _swaps(f: FunctionLowering, a: Access) -> tuple[int, list[Val]]:
    """Whether a strong write may take or leave a lock, as in `layout`, and the values that an update goes by."""
    instr = f.instr
    if a.what == READ or not a.order or instr is None or _weak(f, a) & BLOCK_SCOPE:
        return 0, []
    single = a.size in (4, 8) and a.count == 1
    if a.what == WRITE:
        return SET if single and a.values is not None else OTHER, []
    shown = 2 if instr.op.has("cas") else int(instr.op.has("exch"))
    if not single or not shown:
        return OTHER, []
    ty = instr.op.type
    operands = instr.args[2:4] if instr.op.base == "atom" else instr.args[1:3]
    return (SWAP if shown == 2 else SET), [f.values.number(x, ty.bits, ty.name) for x in operands[:shown]]


def _tell_frame(f: FunctionLowering, space: str) -> None:
    """Say where the function's own variables lie."""
    if space not in ("generic", "local"):
        return
    size = local_frame(f.function)
    if not size:
        put_field(f, "frame", const("i64", 0))
        put_field(f, "frame_bytes", const("i64", 0))
        return

    def make(e: Emitter) -> Val:
        e.line(f"%frameinit = alloca [{size * LANES} x i8], align 64")
        start = int(_passes_addresses(f))  # what other functions set through a pointer is not seen
        e.line(f"call void @llvm.memset.p0.i64(ptr %frameinit, i8 {start}, i64 {size * LANES}, i1 false)")
        return e.let("i64", 1, "ptrtoint ptr %frameinit to i64")

    init = f.frame.once("check.init", make)
    put_field(f, "frame", f.frame.once("check.frame", lambda e: e.let("i64", 1, "ptrtoint ptr %frame to i64")))
    put_field(f, "frame_bytes", const("i64", size))
    put_field(f, "frame_init", init)


def _passes_addresses(f: FunctionLowering) -> bool:
    """Whether other functions may get addresses of the function's own variables."""
    calls = [i for i in f.flow.instructions() if i.op.base == "call"]
    return any(callee(i) not in ("vprintf", "__assertfail", "malloc", "free") for i in calls)


def _keep_values(f: FunctionLowering, values: Sequence[Val]) -> None:
    """Let the checker see what is written: a write that changes nothing is not a conflict (`check_order`)."""
    for k, value in enumerate(values):
        wide = f.e.resize(f.e.splat(value, LANES), "i64")
        put_field(f, "values", wide, 256 * k)


def _keep_uninitialized(f: FunctionLowering, uninitialized: Sequence[Val | None], size: int) -> None:
    """Let the checker see which bytes of what is written are not set: lanes for each value of `size` bytes."""
    e, lanes, places = f.e, const("i32", 0), None
    for k, mask in enumerate(uninitialized):
        if mask is not None:
            lanes = e.bin("or", lanes, f.lanes.mask_of(mask))
            part = e.select(mask, const("i64", ((1 << size) - 1) << k * size, LANES), const("i64", 0, LANES))
            places = part if places is None else e.bin("or", places, part)
    put_field(f, "storing", e.resize(lanes, "i64"))
    if places is not None:
        put_field(f, "uninitialized_bytes", places)
