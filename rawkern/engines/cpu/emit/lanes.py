"""Helpers that do something lane by lane: what vectors cannot, such as atomics, or must not, such as ordered loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rawkern.engines.cpu.emit.context import Context
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.ir import BITS, Emitter, Module, Val


def pointer(e: Emitter, addr: Val, at: int = 0) -> str:
    """An address, and `at` bytes, as a pointer operand."""
    start = e.let("ptr", addr.n, f"inttoptr {addr} to ptr")
    return str(e.let("ptr", 1, f"getelementptr i8, {start}, i64 {at}") if at else start)


def define(header: str, e: Emitter) -> str:
    """The text of a helper."""
    return "\n".join([f"{header} {{", *e.lines, "}"])


def lane_loop(
    m: Module,
    name: str,
    result: str | None,
    types: list[str],
    one: Callable,
    together: Callable | None = None,
    neighbors: Callable | None = None,
) -> str:
    """A helper that calls ``one(emitter, "ptr %p", operands)`` for each active lane in order.

    Where all active lanes have one address, ``together(emitter, "ptr %p", operands, mask)`` does what they do, with
    operands as vectors, and returns all their results; it may branch to ``%apart`` if it cannot. Before,
    ``neighbors(emitter, "ptr %p", operands)`` does what active lanes do whose addresses are 16 contiguous bytes.
    """
    e = Emitter(m)
    m.declare("llvm.cttz.i32", "declare i32 @llvm.cttz.i32(i32, i1)")
    if together is not None:
        _same_address(e, types, together)
    arrays = ["%addresses", *(f"%operands{k}" for k in range(len(types)))]
    for array, ty, value in zip(arrays, ["i64", *types], ["%a", *(f"%b{k}" for k in range(len(types)))], strict=True):
        e.line(f"{array} = alloca <32 x {ty}>")
        e.line(f"store <32 x {ty}> {value}, ptr {array}")
    if result:
        e.line(f"%results = alloca <32 x {result}>")
        e.line(f"store <32 x {result}> zeroinitializer, ptr %results")
    left = f"[ %m, {'%apart' if together else '%0'} ]"
    if neighbors is not None:
        _contiguous(e, types, result, "%apart" if together else "%0", neighbors)
        left = "[ %scattered, %singles ]"
    else:
        e.line("br label %each")
    e.label("each")
    e.line(f"%left = phi i32 {left}, [ %rest, %next ]")
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
    return define(f"define internal {ret} @{name}({params}) noinline", e)


def each_lane(
    f: Context,
    name: str,
    result: str | None,
    addresses: Val,
    values: Sequence[Val],
    one: Callable,
    together: Callable | None = None,
    neighbors: Callable | None = None,
) -> Any:
    """Do something for each active lane in turn, or as the others do for several, out of line (`lane_loop`).

    Returns the lanes' results, if they have any.
    """
    f.module.helper(name, lambda m: lane_loop(m, name, result, [v.ty for v in values], one, together, neighbors))
    args = [*(f.e.splat(v, LANES) for v in (addresses, *values)), f.lanes.act()]
    if result:
        return f.e.call(name, result, LANES, *args)
    return f.e.line(f"call void @{name}({', '.join(map(str, args))})")


def _same_address(e: Emitter, types: list[str], together: Callable) -> None:
    """The start of a helper: what lanes with one address do."""
    addrs, mask = Val("%a", "i64", LANES), Val("%m", "i32")
    e.line("%lowest = call i32 @llvm.cttz.i32(i32 %m, i1 true)")
    first = e.let("i64", 1, f"extractelement {addrs}, i32 %lowest")
    same = e.let("i32", 1, f"bitcast {e.cmp('icmp eq', addrs, first)} to i32")
    e.line(f"br {e.cmp('icmp eq', e.bin('and', same, mask), mask)}, label %together, label %apart")
    e.label("together")
    out = together(e, pointer(e, first), [Val(f"%b{k}", ty, LANES) for k, ty in enumerate(types)], mask)
    e.line("ret void" if out is None else f"ret {out}")
    e.label("apart")


def _contiguous(e: Emitter, types: list[str], result: str | None, before: str, neighbors: Callable) -> None:
    """What lanes with contiguous addresses do; those that are left, ``%scattered``, go on."""
    size = BITS[types[0]] // 8
    each = 16 // size
    addrs, mask = Val("%a", "i64", LANES), Val("%m", "i32")
    heads = e.shuffle(addrs, [k // each * each for k in range(LANES)])
    steps = ", ".join(f"i64 {k % each * size}" for k in range(LANES))
    near = e.cmp("icmp eq", e.bin("sub", addrs, heads), Val(f"<{steps}>", "i64", LANES))
    good = e.bin("and", near, e.cmp("icmp eq", e.bin("and", heads, 15), 0))
    found = e.bin("and", e.let("i32", 1, f"bitcast {good} to i32"), mask)
    shift = 1
    while shift < each:
        found = e.bin("and", found, e.bin("lshr", found, shift))
        shift *= 2
    first = e.bin("and", found, sum(1 << k for k in range(0, LANES, each)))
    others = e.bin("xor", e.bin("mul", first, (1 << each) - 1), -1)
    e.line(f"%scattered = and {mask}, {others.ref}")
    e.line("br label %groups")
    e.label("groups")
    e.line(f"%group = phi i32 [ {first.ref}, {before} ], [ %fewer, %grouped ]")
    e.line(f"br {e.cmp('icmp ne', Val('%group', 'i32'), 0)}, label %group_each, label %singles")
    e.label("group_each")
    e.line("%head = call i32 @llvm.cttz.i32(i32 %group, i1 true)")
    at = e.let("ptr", 1, "getelementptr i64, ptr %addresses, i32 %head")
    addr = e.let("i64", 1, f"load i64, {at}")
    operands = []
    for k, ty in enumerate(types):
        p = e.let("ptr", 1, f"getelementptr {ty}, ptr %operands{k}, i32 %head")
        operands.append(e.let(ty, each, f"load <{each} x {ty}>, {p}, align {size}"))
    out = neighbors(e, pointer(e, addr), operands)
    if result:
        p = e.let("ptr", 1, f"getelementptr {result}, ptr %results, i32 %head")
        e.line(f"store {out}, {p}, align {size}")
    e.line("br label %grouped")
    e.label("grouped")
    e.line("%one_less = sub i32 %group, 1")
    e.line("%fewer = and i32 %group, %one_less")
    e.line("br label %groups")
    e.label("singles")
    e.line("%any = icmp ne i32 %scattered, 0")
    e.line("br i1 %any, label %each, label %out")


def lanes_below(e: Emitter, mask: Val) -> Val:
    """For each lane, how many of the mask's lanes come before it."""
    below = ", ".join(f"i32 {(1 << k) - 1}" for k in range(LANES))
    return e.intrinsic("llvm.ctpop", "i32", e.bin("and", e.splat(mask, LANES), Val(f"<{below}>", "i32", LANES)))
