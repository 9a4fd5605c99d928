"""Groups of products of a warp group: when they take effect, and who waits for them.

PTX lets a product read its operands and change its sums at any time between its issue and the wait for its group. Here
it is computed where it is issued, but counts as done at the wait: an instruction that reads a sum earlier finds NaNs,
and if an operand in shared memory has changed by then, the launch ends with an error, because what the product would
have read is unknown. In launches in another order (`rawkern.order`) some are done where they are issued: with
the seed 0 all of them.

Whoever waits for a product waits for it in all four warps, as any may then have the operands overwritten. What a warp
has issued is in a ring in its kernel's frame, entry by entry: the function that hashes the operands, or null; two
of its arguments; the hash, the source line and the warp's place in its group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rawkern.base.records import filled
from rawkern.engines.cpu.analysis.products import Sum
from rawkern.engines.cpu.arith.formats import FORMATS
from rawkern.engines.cpu.emit.calls import service
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.jumps import site_of, switch_warp
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx.data import Imm, Instr, Reg
from rawkern.engines.cpu.records import BLOCK, ENDED, GROUPS, LAUNCH, ORDER, WARP

OPERANDS = "ptr %shared, i64 %total, i64 %da, i64 %db, i32 %w"  # parameters of a function that hashes them
_RING = 32  # products of a warp that are looked at again
_NAN = FORMATS["f32"].nan  # as two halves as well


# -- issued ---------------------------------------------------------------------------------------------------------
def hashes(f: FunctionLowering) -> bool:
    """Whether operands are hashed: in a kernel, whose frame outlives its products; checks see them anyway."""
    return f.function.entry and not f.watch.sees_products


def issued(f: FunctionLowering, instr: Instr, hashed: tuple[str, Val, Val, Val, Val] | None) -> None:
    """The warp has computed a product; `hashed`: what hashes its operands, three arguments, and the hash."""
    e, count = f.e, f.frame.warp_field("products")
    before = e.let("i32", 1, f"load i32, {count}")
    now = e.bin("add", before, 1)
    e.line(f"store {now}, {count}")
    late = Val("true", "i1")
    if not f.watch.sees_products:
        f.module.helper("rk_product_is_late", lambda m: _text(_LATE))
        late = e.let("i1", 1, f"call i1 @rk_product_is_late(ptr %launch, {now})")
    if id(instr) in f.early.products:
        e.line(f"store {e.select(late, now, const('i32', 0))}, ptr {_last(f, id(instr))}")
    if hashed is not None:
        function, first, second, place, found = hashed
        ring = f.frame.once("wgmma.ring", lambda e: e.let("ptr", 1, f"alloca [{4 * _RING} x i64], align 16"))
        e.line(f"store {ring}, {f.frame.warp_field('issued')}")
        entry = e.let("ptr", 1, f"getelementptr [4 x i64], {ring}, {e.bin('and', before, _RING - 1)}")
        look = e.select(late, e.let("i64", 1, f"ptrtoint ptr @{function} to i64"), const("i64", 0))
        where = e.bin("or", e.resize(place, "i64"), f.plan.site(instr.loc) << 2)
        last = e.bin("or", e.bin("shl", e.resize(found, "i64"), 32), where)
        for k, value in enumerate((look, first, second, last)):
            e.line(f"store {value}, {e.let('ptr', 1, f'getelementptr i64, {entry}, i64 {k}')}")


def _last(f: FunctionLowering, product: int) -> str:
    """A word with the number of a warp's last product by an instruction, zero where it was done at once."""
    return f.frame.word(f"product{list(f.early.products).index(product)}")


@contextmanager
def early(f: FunctionLowering, instr: Instr) -> Iterator[None]:
    """Registers hold NaNs for an instruction that reads them as sums of products that are not waited for."""
    e, reads = f.e, f.early.reads.get(id(instr), {})
    forms, found = {}, {}
    for reg, held in reads.items():
        if held not in found:
            found[held] = _is_early(f, held)
            f.watch.early_read(instr, f.early.products[f.early.of(held)[0]], found[held])
        value = f.values.value(Reg(reg), 32)
        forms[reg] = e.select(found[held], e.like(value, _NAN), value)
    with f.values.instead(forms):
        yield


def _is_early(f: FunctionLowering, held: Sum) -> Val:
    """Whether the warp has not waited for what a register is a sum of; if an array had it among others: for any."""
    e = f.e
    waited = e.let("i32", 1, f"load i32, {f.frame.warp_field('waited')}")
    last = [e.let("i32", 1, f"load i32, ptr {_last(f, product)}") for product in f.early.of(held)]
    late = e.all("or", [e.cmp("icmp sgt", x, waited) for x in last])
    if held.stored and len(last) > 1:
        done = [e.bin("and", e.cmp("icmp ne", x, 0), e.cmp("icmp sle", x, waited)) for x in last]
        late = e.bin("and", late, e.invert(e.all("or", done)))
    return late


# -- groups ---------------------------------------------------------------------------------------------------------
def number(f: FunctionLowering) -> Val:
    """Which of the block's warps this is: those of a group have numbers one after the other, wherever they run."""

    def load(e: Emitter) -> Val:
        at = e.bin("add", f.frame.field(LAUNCH, "nwarps"), Val("%warp", "i32"))
        return e.let("i32", 1, f"load i32, {_of_places(f, e, at)}")

    return f.frame.once("wgmma.number", load)


def _of_places(f: FunctionLowering, e: Emitter, at: Val) -> Val:
    return e.let("ptr", 1, f"getelementptr i32, {f.frame.field(LAUNCH, 'places')}, {at}")


def _end(f: FunctionLowering, group: Val) -> Val:
    """Where it is kept how many products there were at the end of a group."""
    e = f.e
    return e.let("ptr", 1, f"getelementptr i32, {f.frame.warp_field('ends')}, {e.bin('and', group, GROUPS - 1)}")


def commit(f: FunctionLowering, instr: Instr) -> None:
    """``wgmma.commit_group``: the products so far are a group."""
    e, groups = f.e, f.frame.warp_field("groups")
    n = e.let("i32", 1, f"load i32, {groups}")
    products = e.let("i32", 1, f"load i32, {f.frame.warp_field('products')}")
    e.line(f"store {products}, {_end(f, n)}")
    e.line(f"store {e.bin('add', n, 1)}, {groups}")


def wait(f: FunctionLowering, instr: Instr) -> None:
    """``wgmma.wait_group``: until the other warps have computed the products of all groups but the last few."""
    e, keep = f.e, instr.args[0]
    if not isinstance(keep, Imm):
        raise f.unsupported("the number of groups is not a constant")
    n = e.let("i32", 1, f"load i32, {f.frame.warp_field('groups')}")
    last = e.bin("sub", n, 1 + min(keep.value, GROUPS - 1))
    wanted = e.let("i32", 1, f"load i32, {_end(f, last)}")
    wanted = e.select(e.cmp("icmp slt", last, 0), 0, wanted)
    known = dict(f.cache)
    again, some, on = (e.fresh(x)[1:] for x in ("computing", "slower", "computed"))
    e.line(f"br label %{again}")
    e.label(again)
    late, ended, group = [], [], []
    for k in range(4):
        other = e.bin("or", e.bin("and", number(f), -4), k)
        other = e.select(e.cmp("icmp ult", other, f.frame.field(BLOCK, "nwarps")), other, number(f))
        warp = e.let("i32", 1, f"load i32, {_of_places(f, e, other)}")
        group.append(warp)
        fields = (f.frame.field_of_warp(e, warp, name) for name in ("products", "state"))
        products, state = (e.let("i32", 1, f"load i32, {at}") for at in fields)
        late.append(e.cmp("icmp slt", products, wanted))
        ended.append(e.bin("and", late[-1], e.cmp("icmp eq", state, ENDED)))
    e.line(f"br {e.all('or', late)}, label %{some}, label %{on}, !prof !0")
    e.label(some)
    with e.where(e.all("or", ended), rare=True):
        service(f, "WARPGROUP", instr)
    switch_warp(f, f"@rk_yield(ptr %blk, i32 %warp, i32 {site_of(f, [instr])})")
    e.line(f"br label %{again}")
    e.label(on)
    moved = e.let("ptr", 1, f"getelementptr %Block, ptr %blk, i32 0, i32 {BLOCK.index('moved')}")
    e.line(f"store i32 1, {moved}")
    f.cache = dict(known)
    waited = f.frame.warp_field("waited")
    e.line(f"store {e.intrinsic('llvm.smax', 'i32', e.let('i32', 1, f'load i32, {waited}'), wanted)}, {waited}")
    if hashes(f):
        f.module.helper("rk_products_landed", lambda m: _text(_LANDED))
        total = e.resize(f.frame.field(LAUNCH, "shared_total"), "i64")
        changed = const("i64", 0)
        for warp in group:
            record = e.let("ptr", 1, f"getelementptr %Warp, {f.frame.field(BLOCK, 'warps')}, {warp}")
            parts = f"{record}, {f.frame.field(BLOCK, 'shared')}, {total}, {wanted}"
            changed = e.bin("or", changed, e.let("i64", 1, f"call i64 @rk_products_landed({parts})"))
        with e.where(e.cmp("icmp ne", changed, 0), rare=True):
            service(f, "OPERANDS", instr, changed)
        f.cache = known
    if f.watch.sees_products:
        f.watch.note("products_seen", e.intrinsic("llvm.smax", "i32", wanted, const("i32", 0)), *group)


def _text(text: str) -> str:
    values = {"order": LAUNCH.offset("order"), "factor": ORDER.offset("factor0"), "ring": _RING, "ENDED": ENDED}
    values |= {name: WARP.offset(name) for name in ("issued", "landed", "products", "state")}
    return filled(text, values=values).strip()


_LATE = """
define internal i1 @rk_product_is_late(ptr %launch, i32 %number) alwaysinline {
  %porder = getelementptr i8, ptr %launch, i64 {order}
  %order = load ptr, ptr %porder
  %usual = icmp eq ptr %order, null
  br i1 %usual, label %out, label %choose
choose:
  %pfactor = getelementptr i8, ptr %order, i64 {factor}
  %factor = load i64, ptr %pfactor
  %n = zext i32 %number to i64
  %mixed = mul i64 %factor, %n
  %chosen = lshr i64 %mixed, 5
  %bit = trunc i64 %chosen to i1
  br label %out
out:
  %late = phi i1 [ true, %0 ], [ %bit, %choose ]
  ret i1 %late
}
"""

# The first `wanted` products of a warp are done: the source line (+ 1) of one whose operands have changed, or 0.
_LANDED = """
define internal i64 @rk_products_landed(ptr %warp, ptr %shared, i64 %total, i32 %wanted) noinline {
  %pstate = getelementptr i8, ptr %warp, i64 {state}
  %state = load i32, ptr %pstate
  %ended = icmp eq i32 %state, {ENDED}
  %pring = getelementptr i8, ptr %warp, i64 {issued}
  %ring = load ptr, ptr %pring
  %none = icmp eq ptr %ring, null
  %skip = or i1 %ended, %none
  br i1 %skip, label %done, label %start
start:
  %planded = getelementptr i8, ptr %warp, i64 {landed}
  %landed = load i32, ptr %planded
  %pcount = getelementptr i8, ptr %warp, i64 {products}
  %count = load i32, ptr %pcount
  %kept = sub i32 %count, {ring}
  %far = icmp sgt i32 %kept, %landed
  %first = select i1 %far, i32 %kept, i32 %landed
  br label %look
look:
  %k = phi i32 [ %first, %start ], [ %k1, %next ]
  %more = icmp slt i32 %k, %wanted
  br i1 %more, label %one, label %all
one:
  %slot = urem i32 %k, {ring}
  %entry = getelementptr [4 x i64], ptr %ring, i32 %slot
  %hash = load ptr, ptr %entry
  %early = icmp eq ptr %hash, null
  %k1 = add i32 %k, 1
  br i1 %early, label %next, label %again
again:
  %pa = getelementptr i64, ptr %entry, i64 1
  %a = load i64, ptr %pa
  %pb = getelementptr i64, ptr %entry, i64 2
  %b = load i64, ptr %pb
  %plast = getelementptr i64, ptr %entry, i64 3
  %last = load i64, ptr %plast
  %low = trunc i64 %last to i32
  %place = and i32 %low, 3
  %now = call i32 %hash(ptr %shared, i64 %total, i64 %a, i64 %b, i32 %place)
  %was64 = lshr i64 %last, 32
  %was = trunc i64 %was64 to i32
  %same = icmp eq i32 %now, %was
  br i1 %same, label %next, label %changed
next:
  br label %look
all:
  %further = icmp sgt i32 %wanted, %landed
  %to = select i1 %further, i32 %wanted, i32 %landed
  store i32 %to, ptr %planded
  br label %done
done:
  ret i64 0
changed:
  %site = lshr i32 %low, 2
  %site1 = add i32 %site, 1
  %found = zext i32 %site1 to i64
  ret i64 %found
}
"""
