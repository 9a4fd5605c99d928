"""Lists of tensors for tables of pointers, on the CPU: what the native function of a launch does with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rawkern.arguments.rules import native_pointer_or_none
from rawkern.base.records import CPU

if TYPE_CHECKING:
    from rawkern.arguments.signature import Param
    from rawkern.base.emit import Emit

MOST = 256  # tensors of a list; longer ones take the slow path


def takes_list(param: Param) -> bool:
    """Whether a parameter is a table of pointers."""
    target = param.ctype.target
    return param.ctype.kind == "pointer" and target is not None and target.kind == "pointer"


def memory(params: Sequence[Param]) -> str:
    """What the function has on its stack: for each such parameter its items' tuple, addresses and extents."""
    lines = [f"  %held{p.index} = alloca ptr\n  store ptr null, ptr %held{p.index}" for p in params]
    lines += [f"  %addresses{p.index} = alloca [{3 * MOST} x i64]" for p in params]
    if params:
        rows = len(params) * MOST + 1
        lines += [f"  %{name} = alloca [{2 * rows} x i64]" for name in ("readable", "writable")]
        lines += ["  %item = alloca i64", "  %counts = alloca [2 x i64]", "  %listed = alloca %Listed"]
    return "\n".join(lines)


def begin(params: Sequence[Param]) -> str:
    """What comes before the arguments."""
    given = "ptr %listed, ptr %counts, ptr %readable, ptr %writable"
    return f"  call void @rk_no_ranges({given})" if params else ""


def end(params: Sequence[Param], at: int) -> str:
    """What comes after them; the engine looks for the address of a `LISTED` at this offset from the parameters."""
    if not params:
        return ""
    place = f"  %plisted = getelementptr i8, ptr %params, i64 {at}"
    return f"{place}\n  call void @rk_listed(ptr %listed, ptr %counts, ptr %plisted)"


def hand_over(params: Sequence[Param]) -> str:
    """Have Python's code that goes on with a launch see the tensors that it began with."""
    lines = []
    for p in params:
        lines.append(f"  %list{p.index} = getelementptr ptr, ptr %handed, i64 {2 + p.index}")
        lines.append(f"  call void @rk_hand_over(ptr %held{p.index}, ptr %list{p.index})")
    return "\n".join(lines)


def release(params: Sequence[Param]) -> str:
    """What comes before each end of the function."""
    return "\n".join(f"  call void @rk_release_held(ptr %table, ptr %held{p.index})" for p in params)


def fill(e: Emit, param: Param, value: str, at: str) -> str:
    """Put the address of a table of a list's addresses among the parameters; returns the label of what comes then.

    The code goes on where the argument is something else.
    """
    target = param.ctype.target
    assert target is not None
    addresses, held = f"%addresses{param.index}", f"%held{param.index}"
    items = e.value(f"call ptr @rk_items(ptr %table, ptr {value}, i64 {MOST})")
    other = e.either(e.value(f"icmp ne ptr {items}, null"))
    e.do(f"store ptr {items}, ptr {held}")
    count = e.value(f"call i64 {e.row('PyTuple_Size')}(ptr {items})")
    extents = e.value(f"getelementptr i8, ptr {addresses}, i64 {8 * MOST}")
    e.do(f"call void @llvm.memset.p0.i64(ptr {extents}, i8 0, i64 {e.value(f'mul i64 {count}, 16')}, i1 false)")
    e.do("store i64 0, ptr %item")
    again, passed, done = e.label("item"), e.label("items"), e.label("listed")
    e.place(again)
    k = e.load("i64", "%item")
    e.unless(e.value(f"icmp ult i64 {k}, {count}"), passed)
    item = e.value(f"call ptr {e.row('PyTuple_GetItem')}(ptr {items}, i64 {k})")
    place = e.value(f"getelementptr i64, ptr {addresses}, i64 {k}")
    native_pointer_or_none(e, target, item, place, addresses, extents)
    e.do(f"store i64 {e.value(f'add i64 {k}, 1')}, ptr %item")
    e.do(f"br label %{again}")
    e.place(passed)
    e.unless(e.value(f"icmp eq i64 {e.load('i64', '%device')}, {CPU}"))  # a GPU's table is made there
    e.do(f"store ptr {addresses}, ptr {at}, align 1")
    size = e.value(f"mul i64 {count}, 8")
    written = 0 if param.const else size
    e.do(f"call void @rk_put_extent(ptr %params, ptr %extents, ptr {at}, i64 {size}, i64 {written})")
    e.do(f"call void @rk_add_listed(ptr %listed, ptr %counts, ptr {addresses}, ptr {extents}, i64 {count})")
    e.do(f"br label %{done}")
    e.place(other)
    return done


def changes(e: Emit, param: Param, value: str) -> None:
    """Count a change of each tensor of a list, or of the tensor of addresses in its place, that is written."""
    target = param.ctype.target
    assert target is not None
    done = e.label("counted")
    held = e.load("ptr", f"%held{param.index}")
    other = e.either(e.value(f"icmp ne ptr {held}, null"))
    if not target.const:
        e.do(f"call void @rk_bump_items(ptr %table, ptr {held})")
    e.do(f"br label %{done}")
    e.place(other)
    if not param.const:
        e.do(f"call void @rk_bump(ptr %table, ptr {value})")
    e.place(done)
