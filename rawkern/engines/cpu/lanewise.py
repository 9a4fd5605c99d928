"""Helpers that do something lane by lane: what vectors cannot, such as atomics, or must not, such as ordered loads."""

from __future__ import annotations

from collections.abc import Callable

from rawkern.engines.cpu.ir import Emitter, Module, Val


def pointer(e: Emitter, addr: Val, at: int = 0) -> str:
    """An address, and `at` bytes, as a pointer operand."""
    start = e.let("ptr", addr.n, f"inttoptr {addr} to ptr")
    return str(e.let("ptr", 1, f"getelementptr i8, {start}, i64 {at}") if at else start)


def define(header: str, e: Emitter) -> str:
    """The text of a helper."""
    return "\n".join([f"{header} {{", *e.lines, "}"])


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
    return define(f"define internal {ret} @{name}({params}) noinline", e)
