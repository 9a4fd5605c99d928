"""Loads and stores: lanes' addresses to as few accesses as can be shown or seen to do.

Addresses known to be equal or consecutive (`uniformity`), in all lanes or in each segment, become one access, or one
for each segment. Others go out of line (`gather`). Inactive lanes never touch memory.
"""

from __future__ import annotations

from collections.abc import Callable

from rawkern.engines.cpu.analysis.uniformity import U
from rawkern.engines.cpu.emit.forms import LANES, Affine, Form, Wide, int_type, ramp
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import READ, WRITE, Access
from rawkern.engines.cpu.emit.lanes import each_lane, pointer
from rawkern.engines.cpu.emit.memory.addresses import address_parts, fits, ordering, starts, stride_of
from rawkern.engines.cpu.emit.memory.clusters import named, space_of
from rawkern.engines.cpu.emit.memory.gather import gather, interleaved, masked_loads, masked_stores, scatter
from rawkern.engines.cpu.emit.memory.prefetch import LINE, ask
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx.data import Instr, Mem, Reg, Sym, Vec


def load(f: FunctionLowering, instr: Instr) -> None:
    """``ld``, ``ldu``."""
    op, order = instr.op, ordering(instr.op)
    space, count = space_of(f, op), op.count
    dest, mem = instr.args[:2]  # a third one says how to cache
    if not isinstance(mem, Mem):
        raise f.unsupported()
    names = [r.name if r is not None else None for r in (dest.items if isinstance(dest, Vec) else (dest,))]
    size = op.type.bits // 8
    if space == "param" and isinstance(mem.base, Sym):
        values = [f.parameters.load(mem.base.name, mem.offset + k * size, size) for k in range(count)]
    else:
        form, at = address_parts(f, mem, space)
        constant = space == "const" or op.has("nc")

        def emit(form: Form) -> list[Val]:
            if space == "global" and not order:
                ask(f, mem, form, at)
            return load_lanes(f, form, at, size, count, order, constant)

        access = Access(READ, mem, named(space), size, count, op.order, at, regs=names)
        values = _around(f, access, form, emit)
    for name, value in zip(names, values, strict=True):
        if name is not None:
            bits = f.values.bits_of(name)
            f.values.put(name, f.e.resize(value, int_type(bits), op.type.signed) if bits > value.bits else value)


def _around(f: FunctionLowering, access: Access, form: Form, emit: Callable[[Form], list[Val]]) -> list[Val]:
    """Emit an access, also for a whole warp whose addresses turn out to be neighbors, or equal.

    They are not known to be where lanes may have left a loop before in different rounds: one that the compiler has
    unrolled in part is one loop after another. Nor are they where an index has a factor that the launch tells.
    """
    guess = _together(f, access, form)
    if guess is None:
        return f.watch.around(access, form, emit)
    near, together = guess
    e = f.e
    yes, no, join = (e.fresh(p)[1:] for p in ("near", "far", "met"))
    e.line(f"br {near}, label %{yes}, label %{no}, !prof !2")
    e.label(yes)
    with f.values.aside():
        f.lanes.set_act(const("i32", -1))
        values = [e.splat(value, LANES) for value in f.watch.around(access, together, emit)]
        ways = [(values, _end_label(e, join))]
    e.label(no)
    with f.values.aside():
        ways.append((f.watch.around(access, form, emit), _end_label(e, join)))
    e.label(join)
    return _met(e, ways)


def _together(f: FunctionLowering, access: Access, form: Form) -> tuple[Val, Form] | None:
    """A condition that lanes' addresses are what they would be if lanes had stayed together, and what that is."""
    kind = f.analysis.together.get(access.mem.base.name) if isinstance(access.mem.base, Reg) else None
    if kind is None or kind[-1:] not in ((1,), U) or not isinstance(form, Val) or form.n == 1 or access.order:
        return None
    stride = 0 if kind == U else kind[1] if kind[0] == "a" else kind[1] * kind[2]
    if not f.watch.whole_warps or not _is_known(stride, access.size, access.count):
        return None

    def test(e: Emitter) -> tuple[Val, Val]:
        base = e.let("i64", 1, f"extractelement {form}, i64 0")
        equal = e.cmp("icmp eq", form, e.bin("add", e.splat(base, LANES), ramp("i64", stride)))
        every = e.cmp("icmp eq", e.let("i32", 1, f"bitcast {equal} to i32"), -1)
        return e.bin("and", f.lanes.all_run(), every), base

    key = ("together", form.ref, stride)
    if key not in f.cache:
        f.cache[key] = test(f.e)
    near, base = f.cache[key]
    return near, Affine((base,), stride) if stride else base


def load_lanes(
    f: FunctionLowering, form: Form, at: int, size: int, count: int, order: str, constant: bool
) -> list[Val]:
    """`count` values of `size` bytes from each lane's address and `at` bytes."""
    e, ty = f.e, int_type(8 * size)
    if isinstance(form, Val) and form.n == 1:
        how = f"atomic {ty}" if order else ty
        tail = f" {order}, align {size}" if order else f", align {size}{', !invariant.load !1' if constant else ''}"
        return [e.let(ty, 1, f"load {how}, {pointer(e, form, at + k * size)}{tail}") for k in range(count)]
    if order:
        addrs = f.values.plain(form)
        return [_ordered_load(f, e.bin("add", addrs, at + k * size), size, order) for k in range(count)]
    if _known(form, size, count) or (count == 1 and stride_of(form) in (2 * size, 3 * size, 4 * size)):
        return _consecutive(
            f, form, size, count,
            fast=lambda bases: _load_segments(f, bases, form, at, size, count),
            partial=lambda base: masked_loads(f, base, at, size, count),
            slow=lambda: gather(f, form, at, size, count),
        )  # fmt: skip
    return gather(f, form, at, size, count)


def _known(form: Form, size: int, count: int) -> bool:
    """Whether accesses of `count` values of `size` bytes are neighbors, in any order, or the same in each segment."""
    return _is_known(stride_of(form), size, count)


def _is_known(stride: int | None, size: int, count: int) -> bool:
    return count in (1, 2, 4) and stride in (0, size * count, -size if count == 1 else 0)


def _consecutive(
    f: FunctionLowering, form: Form, size: int, count: int, fast: Callable, partial: Callable, slow: Callable
) -> list[Val]:
    """Emit `fast` on the segments' first addresses for a warp with all lanes active and no wrap-around, else `slow`.

    Plain vector accesses, not masked ones: a masked store that misses the cache costs several times a plain one. Where
    instructions take masks, a part of a warp has `partial`, on lane 0's address. Each gives what it loads, if it does.
    """
    e = f.e
    assert isinstance(form, (Affine, Wide))
    f.lanes.actv()  # several ways use it, so it must not be made in one of them
    condition = f.lanes.all_run()
    if isinstance(form, Wide):
        condition = e.bin("and", fits(f, form), condition)
    yes, no, join = (e.fresh(p)[1:] for p in ("near", "far", "met"))
    bases = starts(f, form)
    e.line(f"br {condition}, label %{yes}, label %{no}, !prof !2")
    e.label(yes)
    ways = [(fast(bases), _end_label(e, join))]
    e.label(no)
    if "avx512f" in f.module.features and len(bases) == 1 and stride_of(form) == size * count and size >= 4:
        if isinstance(form, Wide):
            some, far = e.fresh("some")[1:], e.fresh("far")[1:]
            e.line(f"br {fits(f, form)}, label %{some}, label %{far}")
            e.label(far)
            ways.append((slow(), _end_label(e, join)))
            e.label(some)
        ways.append((partial(bases[0]), _end_label(e, join)))
    else:
        ways.append((slow(), _end_label(e, join)))
    e.label(join)
    return _met(e, ways)


def _met(e: Emitter, ways: list[tuple[list[Val], str]]) -> list[Val]:
    """What was loaded on the ways that come from these labels."""
    result = []
    for k, value in enumerate(ways[0][0] or ()):
        sources = ", ".join(f"[ {values[k].ref}, %{end} ]" for values, end in ways)
        result.append(e.let(value.ty, LANES, f"phi {value.t} {sources}"))
    return result


def _end_label(e: Emitter, join: str) -> str:
    """Close the current LLVM block under a name of its own, so that a phi can refer to it."""
    name = e.fresh("edge")[1:]
    e.line(f"br label %{name}")
    e.label(name)
    e.line(f"br label %{join}")
    return name


def _load_segments(f: FunctionLowering, bases: list[Val], form: Form, at: int, size: int, count: int) -> list[Val]:
    e, n, stride = f.e, LANES // len(bases), stride_of(form)
    assert stride is not None
    done = {}
    for base in dict.fromkeys(bases):
        if stride == 0:
            done[base] = _load_same(f, base, at, size, count, n)
        elif stride == size * count:
            done[base] = _load_block(f, base, at, size, count, n)
        elif stride < 0:
            done[base] = [e.shuffle(_load_block(f, base, at + stride * (n - 1), size, 1, n)[0], range(n - 1, -1, -1))]
        else:
            done[base] = [_load_spaced(f, base, at, size, stride // size, n)]
    return [e.concat([done[base][k] for base in bases]) for k in range(count)]


def _load_same(f: FunctionLowering, base: Val, at: int, size: int, count: int, n: int) -> list[Val]:
    e, ty = f.e, int_type(8 * size)
    places = [pointer(e, base, at + k * size) for k in range(count)]
    return [e.splat(e.let(ty, 1, f"load {ty}, {place}, align {size}"), n) for place in places]


def _load_block(f: FunctionLowering, base: Val, at: int, size: int, count: int, n: int) -> list[Val]:
    e, ty, total = f.e, int_type(8 * size), n * count
    whole = e.let(ty, total, f"load <{total} x {ty}>, {pointer(e, base, at)}, align {size}")
    return [whole] if count == 1 else [e.shuffle(whole, range(k, total, count)) for k in range(count)]


def _load_spaced(f: FunctionLowering, base: Val, at: int, size: int, step: int, n: int) -> Val:
    """Every `step`-th element; what lies between is read as well, but nothing before the first or past the last."""
    begins = [*range(0, n * (step - 1), n), (n - 1) * (step - 1)]
    blocks = [_load_block(f, base, at + begin * size, size, 1, n)[0] for begin in begins]
    result = blocks[0]
    for j, block in enumerate(blocks[1:], 1):
        picks = []
        for element in range(0, n * step, step):
            mine = min(element // n, step - 1)
            before = element if j == 1 else element // step  # where it is in `result`
            picks.append(n + element - begins[j] if mine == j else before if mine < j else 0)
        result = f.e.shuffle(result, picks, block)
    return result


def store(f: FunctionLowering, instr: Instr) -> None:
    """``st``."""
    op, space, order = instr.op, space_of(f, instr.op), ordering(instr.op)
    mem, source = instr.args[:2]
    if not isinstance(mem, Mem):
        raise f.unsupported()
    size = op.type.bits // 8
    items = source.items if isinstance(source, Vec) else (source,)
    values = [f.e.resize(f.values.value(a, 8 * size), int_type(8 * size)) for a in items]
    if space == "param" and isinstance(mem.base, Sym):
        for k, value in enumerate(values):
            f.parameters.store(mem.base.name, mem.offset + k * size, f.e.splat(value, LANES))
        return
    regs = [a.name if isinstance(a, Reg) else None for a in items]
    form, at = address_parts(f, mem, space)

    def emit(form: Form) -> list[Val]:
        if space == "global" and not order:
            ask(f, mem, form, at, writes=True)
        store_lanes(f, form, at, values, size, order)
        return []

    access = Access(WRITE, mem, named(space), size, len(items), op.order, at, values=values, regs=regs)
    _around(f, access, form, emit)


def store_lanes(f: FunctionLowering, form: Form, at: int, values: list[Val], size: int, order: str) -> None:
    """Each active lane writes its values one after the other at its address and `at` bytes."""
    e, ty, count = f.e, int_type(8 * size), len(values)
    if isinstance(form, Val) and form.n == 1:
        for k, value in enumerate(values):
            place = pointer(e, form, at + k * size)
            if value.n > 1:  # which lane's value stays is open; take the lowest
                value = e.let(ty, 1, f"extractelement {value}, {f.lanes.first()}")
            how = f"store atomic {value}, {place} {order}" if order else f"store {value}, {place}"
            e.line(f"{how}, align {size}")
        return
    values = [e.splat(v, LANES) for v in values]
    if order:
        addrs = f.values.plain(form)
        for k, value in enumerate(values):
            _ordered_store(f, e.bin("add", addrs, at + k * size), value, size, order)
    elif _known(form, size, count):
        _consecutive(
            f, form, size, count,
            fast=lambda bases: _store_segments(f, bases, form, at, values, size),
            partial=lambda base: masked_stores(f, values, base, at, size),
            slow=lambda: scatter(f, form, at, values, size),
        )  # fmt: skip
    else:
        scatter(f, form, at, values, size)


def _store_segments(f: FunctionLowering, bases: list[Val], form: Form, at: int, values: list[Val], size: int) -> None:
    e, run = f.e, LANES // len(bases)
    if stride_of(form) == 0:  # which lane's value stays is open; take the first's
        for s, base in enumerate(bases):
            for k, value in enumerate(values):
                one = e.let(value.ty, 1, f"extractelement {value}, i64 {s * run}")
                e.line(f"store {one}, {pointer(e, base, at + k * size)}, align {size}")
        return
    for s, base in enumerate(bases):
        own, start = range(s * run, (s + 1) * run), at
        if stride_of(form) == -size:
            own, start = own[::-1], at - size * (run - 1)
        parts = [e.shuffle(v, own) for v in values] if own != range(LANES) else values
        _store_block(e, interleaved(e, parts), base, start, size)


def _store_block(e: Emitter, values: Val, base: Val, at: int, size: int) -> None:
    """Store a vector in order: LLVM writes the parts of a long one backwards, in which the CPU sees no stream."""
    part = max(1, LINE // size)
    for k in range(0, values.n, part):
        piece = values if values.n <= part else e.shuffle(values, range(k, k + part))
        e.line(f"store {piece}, {pointer(e, base, at + k * size)}, align {size}")


def _ordered_load(f: FunctionLowering, addrs: Val, size: int, order: str) -> Val:
    ty = int_type(8 * size)

    def one(e: Emitter, at: str, _: list[Val]) -> Val:
        return e.let(ty, 1, f"load atomic {ty}, {at} {order}, align {size}")

    def together(e: Emitter, at: str, operands: list[Val], _: Val) -> Val:
        return e.splat(one(e, at, operands), LANES)

    return each_lane(f, f"rk_load_{order}_{ty}", ty, addrs, [], one, together)


def _ordered_store(f: FunctionLowering, addrs: Val, value: Val, size: int, order: str) -> None:
    def one(e: Emitter, at: str, args: list[Val]) -> None:
        e.line(f"store atomic {args[0]}, {at} {order}, align {size}")

    each_lane(f, f"rk_store_{order}_{value.ty}", None, addrs, [value], one)


def fence(f: FunctionLowering, instr: Instr) -> None:
    """``membar`` and ``fence``; a CPU has one way to memory, so a fence between ways orders as well.

    Those for asynchronous copies and for barriers just made order nothing between ordinary accesses.
    """
    op = instr.op
    if op.has("mbarrier_init"):
        f.watch.note("init_fence")
    if op.has("proxy") and op.has("async") and not op.has("global"):
        f.watch.note("proxy_fence")
    if not any(op.has(x) for x in ("async", "async::generic", "tensormap::generic", "mbarrier_init")):
        f.watch.note("fence", const("i64", int(not op.has("cta"))))  # whether it is for other blocks as well
    f.e.line("fence seq_cst" if instr.op.base == "membar" or instr.op.has("sc") else "fence acq_rel")
