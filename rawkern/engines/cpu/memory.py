"""Loads, stores and atomics: lanes' addresses to as few accesses as can be shown or seen to do.

Addresses known to be equal or consecutive (`kinds`) become one access. Others go to out-of-line helpers, which look
at the addresses when they run. Inactive lanes never touch memory.
"""

from __future__ import annotations

from collections.abc import Callable

from rawkern.engines.cpu import arith
from rawkern.engines.cpu.function import LANES, Affine, Form, FunctionLowering, Wide, int_type, ramp
from rawkern.engines.cpu.ir import Emitter, Module, Val, const
from rawkern.engines.cpu.ptx import TYPE_BYTES, Instr, Mem, Pair, Reg, Special, Sym, Vec

SPACES = ("global", "shared", "local", "const", "param")
_HINTS = frozenset(
    [
        "ca",
        "cg",
        "cs",
        "lu",
        "wb",
        "wt",
        "nc",
        "weak",
        "sys",
        "gpu",
        "cta",
        "cluster",
        "evict_first",
        "evict_last",
        "evict_normal",
    ]
)
_ORDERS = dict.fromkeys(("volatile", "relaxed", "mmio", "cv"), "monotonic") | {
    "acquire": "acquire",
    "release": "release",
}


def decode(f: FunctionLowering, op: str) -> tuple[str, str, str, int, set[str]]:
    """Split a memory instruction: (space, type, LLVM ordering or "", vector length, other modifiers)."""
    space, order, count, rest = "generic", "", 1, set()
    parts = op.replace("::cta", "").split(".")[1:]
    ty = parts[-1]
    for p in parts[:-1]:
        if p in SPACES:
            space = p
        elif p in _ORDERS:
            order = _ORDERS[p]
        elif p in ("v2", "v4", "v8"):
            count = int(p[1:])
        elif p not in _HINTS and not p.startswith(("L1::", "L2::")):
            rest.add(p)
    if ty not in TYPE_BYTES or ty == "b128":
        raise f.unsupported(f"type {ty}")
    return space, ty, order, count, rest


def address(f: FunctionLowering, mem: Mem, space: str) -> Form:
    """The host address of ``[base + offset]`` in the best form known."""
    base = mem.base
    if isinstance(base, Sym):
        form = f.program.symbol(f, base)
    else:
        form = f.operand_form(base, 64)
        form = f.plain(form) if not isinstance(form, (Val, Affine, Wide)) else form
    form = widen(f, form)
    if mem.offset:
        form = shift(f, form, const("i64", mem.offset))
    if space == "shared":
        form = shift(f, form, f.program.shared_base(f))
    return form


def widen(f: FunctionLowering, form: Form) -> Form:
    """Extend 32-bit addresses (of shared memory) to 64 bits."""
    if isinstance(form, Affine) and form.base.ty == "i32":
        return Wide(const("i64", 0), form.base, 1, form.stride, False)
    if isinstance(form, Val) and form.ty != "i64":
        return f.e.resize(form, "i64")
    return form


def shift(f: FunctionLowering, form: Form, by: Val) -> Form:
    """Add a scalar to an address."""
    if isinstance(form, Affine):
        return Affine(f.e.bin("add", form.base, by), form.stride)
    if isinstance(form, Wide):
        return Wide(f.e.bin("add", form.offset, by), form.inner, form.scale, form.stride, form.signed)
    assert isinstance(form, Val)
    return f.e.bin("add", form, by)


def pointer(e: Emitter, addr: Val) -> str:
    return f"ptr {e.let('ptr', addr.n, f'inttoptr {addr} to ptr').ref}"


def fits(f: FunctionLowering, form: Wide) -> Val:
    """Whether the 32-bit part of a wide address does not wrap around within the warp."""
    key = ("fits", form.inner.ref, form.stride, form.signed)
    if key not in f.cache:
        e = f.e
        first = e.resize(form.inner, "i64", form.signed)
        last = e.bin("add", first, (LANES - 1) * form.stride)
        back = e.resize(e.cast("trunc", last, "i32"), "i64", form.signed)
        f.cache[key] = e.cmp("icmp eq", last, back)
    return f.cache[key]


def linear_base(f: FunctionLowering, form: Wide) -> Val:
    """Address of lane 0 of a wide form whose 32-bit part does not wrap."""
    e = f.e
    inner = e.resize(form.inner, "i64", form.signed)
    return e.bin("add", e.bin("mul", inner, form.scale) if form.scale != 1 else inner, form.offset)


def stride_of(form: Form) -> int | None:
    """Bytes from lane to lane, where known."""
    if isinstance(form, Affine):
        return form.stride
    return form.scale * form.stride if isinstance(form, Wide) else None


def load(f: FunctionLowering, instr: Instr) -> None:
    """``ld``, ``ldu``."""
    space, ty, order, count, rest = decode(f, instr.op)
    dest, mem = instr.args
    if rest or not isinstance(mem, Mem):
        raise f.unsupported()
    names = [r.name if r is not None else None for r in (dest.items if isinstance(dest, Vec) else (dest,))]
    size = TYPE_BYTES[ty]
    if space == "param" and isinstance(mem.base, Sym):
        values = [f.program.load_parameter(f, mem.base.name, mem.offset + k * size, size) for k in range(count)]
    else:
        form = address(f, mem, space)
        values = load_lanes(f, form, size, count, order, space == "const" or ".nc" in instr.op)
    for name, value in zip(names, values, strict=True):
        if name is not None:
            bits = f.bits_of(name)
            f.put(name, f.e.resize(value, int_type(bits), ty[0] == "s") if bits > value.bits else value)


def load_lanes(f: FunctionLowering, form: Form, size: int, count: int, order: str, constant: bool) -> list[Val]:
    """`count` values of `size` bytes from each lane's address."""
    e, ty = f.e, int_type(8 * size)
    if isinstance(form, Val) and form.n == 1:
        how = f"atomic {ty}" if order else ty
        tail = f" {order}, align {size}" if order else f", align {size}{', !invariant.load !1' if constant else ''}"
        result = []
        for k in range(count):
            at = e.bin("add", form, k * size) if k else form
            result.append(e.let(ty, 1, f"load {how}, {pointer(e, at)}{tail}"))
        return result
    if order:
        addrs = f.plain(form)
        return [_ordered_load(f, e.bin("add", addrs, k * size) if k else addrs, size, order) for k in range(count)]
    if stride_of(form) == size * count and count in (1, 2, 4):
        return _consecutive(
            f, form, lambda base: _load_block(f, base, size, count), lambda: _gather(f, form, size, count), ty
        )
    return _gather(f, form, size, count)


def _consecutive(f: FunctionLowering, form: Form, fast: Callable, slow: Callable, ty: str) -> list[Val]:
    """Emit `fast` on lane 0's address for a warp with all lanes active and no wrap-around, else `slow`.

    Plain vector accesses, not masked ones: a masked store that misses the cache costs several times a plain one.
    """
    e = f.e
    assert isinstance(form, (Affine, Wide))
    f.act()  # both ways use it, so it must not be made in one of them
    if "full" not in f.cache:
        f.cache["full"] = e.cmp("icmp eq", f.act(), -1)
    condition = f.cache["full"]
    if isinstance(form, Wide):
        condition = e.bin("and", fits(f, form), condition)
    yes, no, join = (e.fresh(p)[1:] for p in ("near", "far", "met"))
    e.line(f"br {condition}, label %{yes}, label %{no}, !prof !2")
    e.label(yes)
    a = fast(form.base if isinstance(form, Affine) else linear_base(f, form))
    yes_end = _end_label(e, join)
    e.label(no)
    b = slow()
    no_end = _end_label(e, join)
    e.label(join)
    return [
        e.let(ty, LANES, f"phi {x.t} [ {x.ref}, %{yes_end} ], [ {y.ref}, %{no_end} ]")
        for x, y in zip(a, b, strict=True)
    ]


def _end_label(e: Emitter, join: str) -> str:
    """Close the current LLVM block under a name of its own, so that a phi can refer to it."""
    name = e.fresh("edge")[1:]
    e.line(f"br label %{name}")
    e.label(name)
    e.line(f"br label %{join}")
    return name


def _load_block(f: FunctionLowering, base: Val, size: int, count: int) -> list[Val]:
    e, ty = f.e, int_type(8 * size)
    if count == 1:
        return [e.let(ty, LANES, f"load <32 x {ty}>, {pointer(e, base)}, align {size}")]
    total = LANES * count
    whole = e.let(ty, total, f"load <{total} x {ty}>, {pointer(e, base)}, align {size}")
    result = []
    for k in range(count):
        picks = ", ".join(f"i32 {k + count * lane}" for lane in range(LANES))
        result.append(e.let(ty, LANES, f"shufflevector {whole}, {whole.t} poison, <32 x i32> <{picks}>"))
    return result


def _gather(f: FunctionLowering, form: Form, size: int, count: int) -> list[Val]:
    e = f.e
    addrs = f.spread(form) if isinstance(form, (Affine, Wide)) else f.plain(form)
    ty = int_type(8 * size)
    name = f.module.helper(f"rk_load_{ty}", lambda m: _load_helper(m, size))
    return [e.call(name, ty, LANES, e.bin("add", addrs, k * size) if k else addrs, f.act()) for k in range(count)]


def _load_helper(m: Module, size: int) -> str:
    ty, e = int_type(8 * size), Emitter(m)
    a, mask = Val("%a", "i64", LANES), Val("%m", "i32")
    maskv, base, consecutive, equal = _look(e, a, mask, size)
    vec = f"<32 x {ty}>"
    masked = f"llvm.masked.load.v32{ty}.p0"
    m.declare(masked, f"declare {vec} @{masked}(ptr, i32, <32 x i1>, {vec})")
    gather = f"llvm.masked.gather.v32{ty}.v32p0"
    m.declare(gather, f"declare {vec} @{gather}(<32 x ptr>, i32, <32 x i1>, {vec})")
    e.line(f"br {consecutive}, label %near, label %far")
    e.label("near")
    got = e.let(ty, LANES, f"call {vec} @{masked}({pointer(e, base)}, i32 {size}, {maskv}, {vec} zeroinitializer)")
    e.line(f"ret {got}")
    e.label("far")
    e.line(f"br {equal}, label %one, label %many")
    e.label("one")
    first = e.let("i64", 1, f"extractelement {a}, i32 %lane")
    e.line(f"ret {e.splat(e.let(ty, 1, f'load {ty}, {pointer(e, first)}, align {size}'), LANES)}")
    e.label("many")
    ptrs = e.let("ptr", LANES, f"inttoptr {a} to <32 x ptr>")
    e.line(f"ret {e.let(ty, LANES, f'call {vec} @{gather}({ptrs}, i32 {size}, {maskv}, {vec} zeroinitializer)')}")
    return _function(f"define internal {vec} @rk_load_{ty}(<32 x i64> %a, i32 %m) noinline", e)


def _look(e: Emitter, a: Val, mask: Val, size: int) -> tuple[Val, Val, Val, Val]:
    """Lanes as conditions, the address lane 0 would have, and whether the active lanes are consecutive or equal."""
    maskv = e.let("i1", LANES, f"bitcast {mask} to <32 x i1>")
    e.module.declare("llvm.cttz.i32", "declare i32 @llvm.cttz.i32(i32, i1)")
    e.line("%lane = call i32 @llvm.cttz.i32(i32 %m, i1 true)")
    lane = e.resize(Val("%lane", "i32"), "i64")
    first = e.let("i64", 1, f"extractelement {a}, i32 %lane")
    base = e.bin("sub", first, e.bin("mul", lane, size))
    near = e.cmp("icmp eq", a, e.bin("add", e.splat(base, LANES), ramp("i64", size)))
    same = e.cmp("icmp eq", a, e.splat(first, LANES))
    tests = []
    for test in (near, same):
        bits = e.let("i32", 1, f"bitcast {test} to i32")
        tests.append(e.cmp("icmp eq", e.bin("and", bits, mask), mask))
    return maskv, base, tests[0], tests[1]


def _function(header: str, e: Emitter) -> str:
    return "\n".join([f"{header} {{", *e.lines, "}"])


def store(f: FunctionLowering, instr: Instr) -> None:
    """``st``."""
    space, ty, order, _, rest = decode(f, instr.op)
    mem, source = instr.args
    if rest or not isinstance(mem, Mem):
        raise f.unsupported()
    size = TYPE_BYTES[ty]
    items = source.items if isinstance(source, Vec) else (source,)
    values = [f.e.resize(f.value(a, 8 * size), int_type(8 * size)) for a in items]
    if space == "param" and isinstance(mem.base, Sym):
        for k, value in enumerate(values):
            f.program.store_parameter(f, mem.base.name, mem.offset + k * size, f.e.splat(value, LANES))
        return
    store_lanes(f, address(f, mem, space), values, size, order)


def store_lanes(f: FunctionLowering, form: Form, values: list[Val], size: int, order: str) -> None:
    """Each active lane writes its values one after the other at its address."""
    e, ty, count = f.e, int_type(8 * size), len(values)
    if isinstance(form, Val) and form.n == 1:
        for k, value in enumerate(values):
            at = e.bin("add", form, k * size) if k else form
            if value.n > 1:  # which lane's value stays is open; take the lowest
                value = e.let(ty, 1, f"extractelement {value}, {f.first_lane()}")
            how = f"store atomic {value}, {pointer(e, at)} {order}" if order else f"store {value}, {pointer(e, at)}"
            e.line(f"{how}, align {size}")
        return
    values = [e.splat(v, LANES) for v in values]
    if order:
        addrs = f.plain(form)
        for k, value in enumerate(values):
            _ordered_store(f, e.bin("add", addrs, k * size) if k else addrs, value, size, order)
    elif stride_of(form) == size * count and count in (1, 2, 4):

        def slow() -> list[Val]:
            _scatter(f, form, values, size)
            return []

        _consecutive(f, form, lambda base: _store_block(f, base, values, size), slow, ty)
    else:
        _scatter(f, form, values, size)


def _store_block(f: FunctionLowering, base: Val, values: list[Val], size: int) -> list[Val]:
    e, ty = f.e, int_type(8 * size)
    parts, n = values, LANES
    while len(parts) > 1:  # interleave neighbours: (a, b, c, d) -> (ac, bd) -> abcd
        half = len(parts) // 2
        picks = ", ".join(f"i32 {k // 2 + (n if k % 2 else 0)}" for k in range(2 * n))
        mask = f"<{2 * n} x i32> <{picks}>"
        parts = [e.let(ty, 2 * n, f"shufflevector {parts[k]}, {parts[k + half]}, {mask}") for k in range(half)]
        n *= 2
    e.line(f"store {parts[0]}, {pointer(e, base)}, align {size}")
    return []


def _scatter(f: FunctionLowering, form: Form, values: list[Val], size: int) -> None:
    e, ty = f.e, int_type(8 * size)
    addrs = f.spread(form) if isinstance(form, (Affine, Wide)) else f.plain(form)
    name = f.module.helper(f"rk_store_{ty}", lambda m: _store_helper(m, size))
    for k, value in enumerate(values):
        at = e.bin("add", addrs, k * size) if k else addrs
        e.line(f"call void @{name}({at}, {value}, {f.act()})")


def _store_helper(m: Module, size: int) -> str:
    ty, e = int_type(8 * size), Emitter(m)
    a, value, mask = Val("%a", "i64", LANES), Val("%v", int_type(8 * size), LANES), Val("%m", "i32")
    maskv, base, consecutive, _ = _look(e, a, mask, size)
    masked, scatter = f"llvm.masked.store.v32{ty}.p0", f"llvm.masked.scatter.v32{ty}.v32p0"
    m.declare(masked, f"declare void @{masked}(<32 x {ty}>, ptr, i32, <32 x i1>)")
    m.declare(scatter, f"declare void @{scatter}(<32 x {ty}>, <32 x ptr>, i32, <32 x i1>)")
    e.line(f"br {consecutive}, label %near, label %far")
    e.label("near")
    e.line(f"call void @{masked}({value}, {pointer(e, base)}, i32 {size}, {maskv})")
    e.line("ret void")
    e.label("far")
    ptrs = e.let("ptr", LANES, f"inttoptr {a} to <32 x ptr>")
    e.line(f"call void @{scatter}({value}, {ptrs}, i32 {size}, {maskv})")
    e.line("ret void")
    return _function(f"define internal void @rk_store_{ty}(<32 x i64> %a, <32 x {ty}> %v, i32 %m) noinline", e)


def _ordered_load(f: FunctionLowering, addrs: Val, size: int, order: str) -> Val:
    ty = int_type(8 * size)

    def one(e: Emitter, at: str, _: list[Val]) -> Val:
        return e.let(ty, 1, f"load atomic {ty}, {at} {order}, align {size}")

    name = f"rk_load_{order}_{ty}"
    f.module.helper(name, lambda m: lane_loop(m, name, ty, [], one))
    return f.e.call(name, ty, LANES, addrs, f.act())


def _ordered_store(f: FunctionLowering, addrs: Val, value: Val, size: int, order: str) -> None:
    ty = int_type(8 * size)

    def one(e: Emitter, at: str, args: list[Val]) -> None:
        e.line(f"store atomic {args[0]}, {at} {order}, align {size}")

    name = f"rk_store_{order}_{ty}"
    f.module.helper(name, lambda m: lane_loop(m, name, None, [ty], one))
    f.e.line(f"call void @{name}({addrs}, {value}, {f.act()})")


def lane_loop(m: Module, name: str, result: str | None, types: list[str], one: Callable) -> str:
    """A helper that calls ``one(emitter, "ptr %p", operands)`` for each active lane in order."""
    e = Emitter(m)
    m.declare("llvm.cttz.i32", "declare i32 @llvm.cttz.i32(i32, i1)")
    arrays = ["%addresses", *(f"%operands{k}" for k in range(len(types)))]
    for array, ty, value in zip(arrays, ["i64", *types], ["%a", *(f"%b{k}" for k in range(len(types)))], strict=True):
        e.line(f"{array} = alloca <32 x {ty}>")
        e.line(f"store <32 x {ty}> {value}, ptr {array}")
    if result:
        e.line(f"%results = alloca <32 x {result}>")
        e.line(f"store <32 x {result}> zeroinitializer, ptr %results")
    e.line("br label %each")
    e.label("each")
    e.line("%left = phi i32 [ %m, %0 ], [ %rest, %next ]")
    e.line("%lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)")
    e.line("%pa = getelementptr i64, ptr %addresses, i32 %lane")
    addr = e.let("i64", 1, "load i64, ptr %pa")
    operands = []
    for k, ty in enumerate(types):
        p = e.let("ptr", 1, f"getelementptr {ty}, ptr %operands{k}, i32 %lane")
        operands.append(e.let(ty, 1, f"load {ty}, {p}"))
    out = one(e, pointer(e, addr), operands)
    if result:
        e.line(f"%pr = getelementptr {result}, ptr %results, i32 %lane")
        e.line(f"store {out}, ptr %pr")
    e.line("br label %next")
    e.label("next")
    e.line("%less = sub i32 %left, 1")
    e.line("%rest = and i32 %left, %less")
    e.line("%more = icmp ne i32 %rest, 0")
    e.line("br i1 %more, label %each, label %out")
    e.label("out")
    if result:
        e.line(f"%all = load <32 x {result}>, ptr %results")
        e.line(f"ret <32 x {result}> %all")
    else:
        e.line("ret void")
    params = ", ".join(["<32 x i64> %a", *(f"<32 x {ty}> %b{k}" for k, ty in enumerate(types)), "i32 %m"])
    ret = f"<32 x {result}>" if result else "void"
    return _function(f"define internal {ret} @{name}({params}) noinline", e)


# -- atomics --------------------------------------------------------------------------------------------------------
_RMW = {
    "add": "add", "and": "and", "or": "or", "xor": "xor", "exch": "xchg", "inc": "uinc_wrap", "dec": "udec_wrap",
    "min.s": "min", "max.s": "max", "min.u": "umin", "max.u": "umax",
}  # fmt: skip
_FLOATS = {"f32": "float", "f64": "double"}
_PACKED = {"f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32}


def atomic(f: FunctionLowering, instr: Instr) -> None:
    """``atom`` and ``red``: one scalar operation for each active lane, in lane order."""
    args = list(instr.args)
    root = instr.op.split(".", 1)[0]
    dest = args.pop(0) if root == "atom" else None
    if isinstance(dest, (Pair, Vec)):
        raise f.unsupported()
    space, ty, order, count, rest = decode(f, instr.op.replace(".acq_rel", ".acquire"))
    if ".acq_rel" in instr.op:
        order = "acq_rel"
    rest -= {"noftz"}
    if count != 1 or len(rest) != 1:
        raise f.unsupported()
    op = rest.pop()
    size = TYPE_BYTES[ty]
    ity = int_type(8 * size)
    if not isinstance(args[0], Mem) or ity == "i128":
        raise f.unsupported()
    addrs = f.e.splat(f.plain(address(f, args[0], space)), LANES)
    kind = "number" if ty in _FLOATS else ""
    operands = [
        f.e.splat(f.e.resize(f.number(a, 8 * size, ty) if kind else f.value(a, 8 * size), ity), LANES)
        for a in args[1:3]
    ]
    shared = space == "shared"  # a block's warps never run at the same time
    name = f"rk_atomic_{op}_{ty}_{'block' if shared else order or 'monotonic'}"
    one = _atomic_step(f, op, ty, size, shared, order or "monotonic")
    f.module.helper(name, lambda m: lane_loop(m, name, ity, [ity] * len(operands), one))
    result = f.e.call(name, ity, LANES, addrs, *operands, f.act())
    if isinstance(dest, Reg):
        f.put(dest.name, result)


def _atomic_step(f: FunctionLowering, op: str, ty: str, size: int, shared: bool, order: str) -> Callable:
    """What one lane does: returns the old value as raw bits."""
    ity = int_type(8 * size)
    updated = _update(f, op, ty, flush=not shared)
    if shared:

        def plain(e: Emitter, at: str, args: list[Val]) -> Val:
            old = e.let(ity, 1, f"load {ity}, {at}, align {size}")
            e.line(f"store {updated(e, old, args)}, {at}, align {size}")
            return old

        return plain
    if op == "cas":
        failure = {"acq_rel": "acquire", "release": "monotonic"}.get(order, order)

        def cas(e: Emitter, at: str, args: list[Val]) -> Val:
            pair = e.fresh()
            e.line(f"{pair} = cmpxchg {at}, {args[0]}, {args[1]} {order} {failure}, align {size}")
            return e.let(ity, 1, f"extractvalue {{ {ity}, i1 }} {pair}, 0")

        return cas
    rmw = _RMW.get(op) or _RMW.get(f"{op}.{ty[0]}")
    if rmw and ty[0] in "bsu" and "f" not in ty:
        return lambda e, at, args: e.let(ity, 1, f"atomicrmw {rmw} {at}, {args[0]} {order}, align {size}")

    def retry(e: Emitter, at: str, args: list[Val]) -> Val:  # anything else: compare and swap until it holds
        first = e.let(ity, 1, f"load atomic {ity}, {at} monotonic, align {size}")
        e.line("br label %try")
        e.label("try")
        e.lines.append("")
        place, old = len(e.lines) - 1, Val(e.fresh(), ity)
        pair = e.fresh()
        new = updated(e, old, args)
        e.line(f"{pair} = cmpxchg {at}, {old}, {new} {order} monotonic, align {size}")
        seen = e.let(ity, 1, f"extractvalue {{ {ity}, i1 }} {pair}, 0")
        done = e.let("i1", 1, f"extractvalue {{ {ity}, i1 }} {pair}, 1")
        e.lines[place] = f"{old.ref} = phi {ity} [ {first.ref}, %each ], [ {seen.ref}, %try ]"
        e.line(f"br {done}, label %swapped, label %try")
        e.label("swapped")
        return old

    return retry


def _update(f: FunctionLowering, op: str, ty: str, flush: bool) -> Callable:
    """The new value from the old one and the operands.

    `flush`: float32 sums in global memory flush subnormals, as the PTX manual says of ``atom``; in shared memory they
    do not.
    """
    if op == "cas":
        return lambda e, old, args: e.select(e.cmp("icmp eq", old, args[0]), args[1], old)
    if op == "exch":
        return lambda e, old, args: args[0]
    if op in ("inc", "dec") and ty == "u32":
        if op == "inc":
            return lambda e, old, args: e.select(e.cmp("icmp uge", old, args[0]), 0, e.bin("add", old, 1))

        def dec(e: Emitter, old: Val, args: list[Val]) -> Val:
            wrap = e.bin("or", e.cmp("icmp eq", old, 0), e.cmp("icmp ugt", old, args[0]))
            return e.select(wrap, args[0], e.bin("sub", old, 1))

        return dec
    if op in ("and", "or", "xor", "add", "min", "max") and (ty in _FLOATS or ty in _PACKED or ty[0] in "bsu"):
        kind = ty
        if op in ("and", "or", "xor"):
            kind = f"b{8 * TYPE_BYTES[ty]}"
        rounding = ".rn" if ty in _PACKED and op == "add" else ""
        opcode = f"{op}{rounding}{'.ftz' if flush and kind == 'f32' and op == 'add' else ''}.{kind}"
        if arith.supported(opcode):

            def compute(e: Emitter, old: Val, args: list[Val]) -> Val:
                out = arith.lower(e, opcode, [old, args[0]])
                return arith.canonical(e, out.vals[0], out.lazy_nan) if out.lazy_nan else out.vals[0]

            return compute
    raise f.unsupported()


def prefetch(f: FunctionLowering, instr: Instr) -> None:
    """``prefetch``, ``discard``, ``applypriority``: hints."""


def fence(f: FunctionLowering, instr: Instr) -> None:
    """``membar`` and ``fence``."""
    f.e.line("fence acq_rel" if ".acq_rel" in instr.op or ".acquire" in instr.op else "fence seq_cst")


__all__ = ["Special", "address", "atomic", "fence", "load", "load_lanes", "prefetch", "store", "store_lanes"]
