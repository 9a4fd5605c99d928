"""Accesses of lanes that do not all take part, or whose addresses are not known to be neighbors.

Out-of-line helpers look at the addresses when they run: neighbors become one masked access, equal ones a broadcast.
Addresses go there in the shortest form known, so that little code stands where they are used.
"""

from __future__ import annotations

from rawkern.engines.cpu.emit.forms import LANES, Affine, Form, Wide, int_type, lanes_of, ramp
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.lanes import define, pointer
from rawkern.engines.cpu.ir import Emitter, Module, Val, const


def gather(f: FunctionLowering, form: Form, at: int, size: int, count: int) -> list[Val]:
    """`count` values of `size` bytes for each active lane, from its address and `at` bytes."""
    name, calls = _calls(f, form, at, size, count, False)
    return [f.e.call(name, int_type(8 * size), LANES, *args, f.lanes.act()) for args in calls]


def scatter(f: FunctionLowering, form: Form, at: int, values: list[Val], size: int) -> None:
    """Each active lane writes its values one after the other, to its address and `at` bytes."""
    name, calls = _calls(f, form, at, size, len(values), True)
    for args, value in zip(calls, values, strict=True):
        f.e.line(f"call void @{name}({', '.join(map(str, [*args, value, f.lanes.act()]))})")


def masked_loads(f: FunctionLowering, base: Val, at: int, size: int, count: int) -> list[Val]:
    """`count` values of `size` bytes for each active lane, whose addresses are neighbors; zero in the others."""
    if count == 1:
        return [masked_load(f.e, base, at, f.lanes.actv(), size)]
    e, ty = f.e, int_type(8 * size)
    name, returned = f"rk_load{count}_{ty}", f"{{ {', '.join([f'<32 x {ty}>'] * count)} }}"

    def build(m: Module) -> str:
        e = Emitter(m)
        whole = masked_load(e, Val("%base", "i64"), 0, _repeated(e, count), size)
        result = "poison"
        for k in range(count):
            part = e.shuffle(whole, range(k, whole.n, count))
            result = e.let("", 1, f"insertvalue {returned} {result}, {part}, {k}").ref
        e.line(f"ret {returned} {result}")
        return define(f"define internal {returned} @{name}(i64 %base, i32 %m) noinline", e)

    f.module.helper(name, build)
    first = e.bin("add", base, at) if at else base
    found = e.let("", 1, f"call {returned} @{name}({first}, {f.lanes.act()})").ref
    return [e.let(ty, LANES, f"extractvalue {returned} {found}, {k}") for k in range(count)]


def masked_stores(f: FunctionLowering, values: list[Val], base: Val, at: int, size: int) -> list[Val]:
    """Each active lane's values one after the other, to addresses that are neighbors."""
    e, count, ty = f.e, len(values), int_type(8 * size)
    if count == 1:
        masked_store(e, values[0], base, at, f.lanes.actv(), size)
        return []
    name = f"rk_store{count}_{ty}"

    def build(m: Module) -> str:
        e = Emitter(m)
        given = [Val(f"%given{k}", ty, LANES) for k in range(count)]
        masked_store(e, interleaved(e, given), Val("%base", "i64"), 0, _repeated(e, count), size)
        e.line("ret void")
        listed = ", ".join(map(str, given))
        return define(f"define internal void @{name}(i64 %base, i32 %m, {listed}) noinline", e)

    f.module.helper(name, build)
    first = e.bin("add", base, at) if at else base
    e.line(f"call void @{name}({', '.join(map(str, [first, f.lanes.act(), *values]))})")
    return []


def interleaved(e: Emitter, parts: list[Val]) -> Val:
    """A power of two of vectors as one: the first elements of all, the second ones, and so on."""
    while len(parts) > 1:  # (a, b, c, d) -> (ac, bd) -> abcd
        half, n = len(parts) // 2, parts[0].n
        picks = [k // 2 + (n if k % 2 else 0) for k in range(2 * n)]
        parts = [e.shuffle(parts[k], picks, parts[k + half]) for k in range(half)]
    return parts[0]


def _repeated(e: Emitter, count: int) -> Val:
    """The lanes of the mask ``%m`` as conditions, each of them `count` times."""
    lanes = e.let("i1", LANES, "bitcast i32 %m to <32 x i1>")
    return e.shuffle(lanes, [k // count for k in range(LANES * count)])


def masked_load(e: Emitter, base: Val, at: int, mask: Val, size: int) -> Val:
    """The active lanes' values from neighboring addresses; zero in the others."""
    ty, vec = int_type(8 * size), f"<{mask.n} x {int_type(8 * size)}>"
    name = f"llvm.masked.load.v{mask.n}{ty}.p0"
    e.module.declare(name, f"declare {vec} @{name}(ptr, i32, {mask.t}, {vec})")
    return e.let(ty, mask.n, f"call {vec} @{name}({pointer(e, base, at)}, i32 {size}, {mask}, {vec} zeroinitializer)")


def masked_store(e: Emitter, value: Val, base: Val, at: int, mask: Val, size: int) -> None:
    """The active lanes' values to neighboring addresses."""
    name = f"llvm.masked.store.v{mask.n}{value.ty}.p0"
    e.module.declare(name, f"declare void @{name}({value.t}, ptr, i32, {mask.t})")
    e.line(f"call void @{name}({value}, {pointer(e, base, at)}, i32 {size}, {mask})")


def _calls(
    f: FunctionLowering, form: Form, at: int, size: int, count: int, stores: bool
) -> tuple[str, list[list[Val]]]:
    """The helper for addresses of this form, and what stands for the addresses in each of the calls."""
    e, ty = f.e, int_type(8 * size)
    plain = f.module.helper(f"rk_{'store' if stores else 'load'}_{ty}", lambda m: _helper(m, size, stores))
    if isinstance(form, Affine):
        kind, parts, scale = "a", list(form.bases), None
        stride = const("i64", form.stride & (1 << 64) - 1)
    elif isinstance(form, Wide):
        kind, parts = "s" if form.signed else "u", [*form.offsets, *form.inners]
        scale, stride = const("i64", form.scale & (1 << 64) - 1), const("i32", form.stride & 0xFFFFFFFF)
    else:
        addrs = e.splat(f.values.plain(form), LANES)
        return plain, [[e.bin("add", addrs, at + k * size) if at + k else addrs] for k in range(count)]
    # Usual strides are constants in the helper, others are told: kernels share few helpers, which stay fast.
    usual = form.stride in (0, 1, size)
    known = "_".join(f"x{part.ref}" for part in (scale, stride if usual else None) if part is not None)
    name = f"{plain}_{kind}{form.segments}{known}"
    given = plain, form.segments, size, stores, kind == "s", scale, stride if usual else None
    f.module.helper(name, lambda m: _front(m, name, *given))
    told = [] if usual else [stride]
    return name, [[*parts, *told, const("i64", at + k * size)] for k in range(count)]


def _front(
    m: Module,
    name: str,
    plain: str,
    n: int,
    size: int,
    stores: bool,
    signed: bool,
    scale: Val | None,
    stride: Val | None,
) -> str:
    """A helper that takes the parts of an affine address, or of a wide one with its `scale`, in `n` segments.

    A stride that is not given is told as well. Lanes whose addresses turn out to be neighbors are accessed together,
    others as `plain` does.
    """
    e, ty, mask = Emitter(m), int_type(8 * size), Val("%m", "i32")
    offsets, inners = (tuple(Val(f"%{x}{s}", t) for s in range(n)) for x, t in (("o", "i64"), ("i", "i32")))
    params = list(offsets) if scale is None else [*offsets, *inners]
    if stride is None:
        params.append(stride := Val("%stride", "i64" if scale is None else "i32"))
    at = Val("%at", "i64")
    params.append(at)
    offsets = tuple(e.bin("add", x, at) for x in offsets)
    value = Val("%v", ty, LANES)
    rest = [value, mask] if stores else [mask]
    if n == 1:
        base = offsets[0]
        if scale is None:
            near = e.cmp("icmp eq", stride, size)
        else:
            first, step = e.resize(inners[0], "i64", signed), e.resize(stride, "i64", True)
            last = e.bin("add", first, e.bin("mul", step, LANES - 1))
            stays = e.cmp("icmp eq", last, e.resize(e.cast("trunc", last, "i32"), "i64", signed))
            near = e.bin("and", stays, e.cmp("icmp eq", e.bin("mul", step, scale), size))
            base = e.bin("add", base, e.bin("mul", first, scale))
        e.line(f"br {near}, label %near, label %far")
        e.label("near")
        lanes = e.let("i1", LANES, f"bitcast {mask} to <32 x i1>")
        _masked(e, ty, base, lanes, size, value if stores else None)
        e.label("far")
    ramped = e.bin("mul", ramp(stride.ty, 1, n), e.splat(stride, LANES))
    if scale is None:
        addrs = e.bin("add", lanes_of(e, offsets), ramped)
    else:
        inner = e.resize(e.bin("add", lanes_of(e, inners), ramped), "i64", signed)
        addrs = e.bin("add", e.bin("mul", inner, e.splat(scale, LANES)), lanes_of(e, offsets))
    if stores:
        e.line(f"call void @{plain}({', '.join(map(str, [addrs, *rest]))})")
    e.line("ret void" if stores else f"ret {e.call(plain, ty, LANES, addrs, *rest)}")
    listed = ", ".join(map(str, [*params, *rest]))
    return define(f"define internal {'void' if stores else f'<32 x {ty}>'} @{name}({listed}) noinline", e)


def _helper(m: Module, size: int, stores: bool) -> str:
    """A helper that takes the addresses."""
    ty, e = int_type(8 * size), Emitter(m)
    a, value, mask, vec = Val("%a", "i64", LANES), Val("%v", ty, LANES), Val("%m", "i32"), f"<32 x {ty}>"
    maskv, base, consecutive, equal = _look(e, a, mask, size)
    name = f"llvm.masked.{'scatter' if stores else 'gather'}.v32{ty}.v32p0"
    types = f"({vec}, <32 x ptr>, i32, <32 x i1>)" if stores else f"(<32 x ptr>, i32, <32 x i1>, {vec})"
    m.declare(name, f"declare {'void' if stores else vec} @{name}{types}")
    e.line(f"br {consecutive}, label %near, label %far")
    e.label("near")
    _masked(e, ty, base, maskv, size, value if stores else None)
    e.label("far")
    if stores:
        ptrs = e.let("ptr", LANES, f"inttoptr {a} to <32 x ptr>")
        e.line(f"call void @{name}({value}, {ptrs}, i32 {size}, {maskv})")
        e.line("ret void")
        return define(f"define internal void @rk_store_{ty}(<32 x i64> %a, {vec} %v, i32 %m) noinline", e)
    e.line(f"br {equal}, label %one, label %many")
    e.label("one")
    first = e.let("i64", 1, f"extractelement {a}, i32 %lane")
    e.line(f"ret {e.splat(e.let(ty, 1, f'load {ty}, {pointer(e, first)}, align {size}'), LANES)}")
    e.label("many")
    ptrs = e.let("ptr", LANES, f"inttoptr {a} to <32 x ptr>")
    e.line(f"ret {e.let(ty, LANES, f'call {vec} @{name}({ptrs}, i32 {size}, {maskv}, {vec} zeroinitializer)')}")
    return define(f"define internal {vec} @rk_load_{ty}(<32 x i64> %a, i32 %m) noinline", e)


def _masked(e: Emitter, ty: str, base: Val, lanes: Val, size: int, value: Val | None) -> None:
    """Load or store neighbors, and return from the helper."""
    if value is not None:
        masked_store(e, value, base, 0, lanes, size)
    e.line("ret void" if value is not None else f"ret {masked_load(e, base, 0, lanes, size)}")


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
