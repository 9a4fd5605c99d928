"""Loops over lanes and numbers around code that is emitted once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.lanes import pointer
from rawkern.engines.cpu.ir import Val


def room(f: FunctionLowering, words: int) -> Val:
    """Where some words of the warp's stand."""
    e = f.frame.e
    return e.let("i64", 1, f"ptrtoint ptr {e.let('ptr', 1, f'alloca [{words} x i64], align 16').ref} to i64")


def counted(f: FunctionLowering, count: Val) -> Iterator[Val]:
    """Emit what follows once, as a loop over numbers below a count."""
    e, at = f.e, room(f, 1)
    e.line(f"store i64 0, {pointer(e, at)}")
    with loop(f) as leave:
        k = e.let("i64", 1, f"load i64, {pointer(e, at)}")
        leave(e.cmp("icmp uge", k, count))
        yield k
        e.line(f"store {e.bin('add', k, 1)}, {pointer(e, at)}")


def active_lanes(f: FunctionLowering) -> Iterator[Val]:
    """Emit what follows once, as a loop over the active lanes, each of which is the only one then."""
    e, at = f.e, room(f, 1)
    e.line(f"store {e.resize(f.lanes.act(), 'i64')}, {pointer(e, at)}")
    with loop(f) as leave:
        left = e.let("i64", 1, f"load i64, {pointer(e, at)}")
        leave(e.cmp("icmp eq", left, 0))
        rest = e.bin("and", left, e.bin("sub", left, 1))
        e.line(f"store {rest}, {pointer(e, at)}")
        f.lanes.set_act(e.resize(e.bin("xor", left, rest), "i32"))
        yield e.intrinsic("llvm.cttz", "i64", left, extra=", i1 true")


@contextmanager
def loop(f: FunctionLowering) -> Iterator:
    """A loop that is left where a condition holds; what is known in it is not known after it."""
    e, known = f.e, dict(f.cache)
    again, done = (e.fresh(x)[1:] for x in ("again", "done"))
    e.line(f"br label %{again}")
    e.label(again)

    def leave(condition: Val) -> None:
        inside = e.fresh("inside")[1:]
        e.line(f"br {condition}, label %{done}, label %{inside}")
        e.label(inside)

    yield leave
    e.line(f"br label %{again}")
    e.label(done)
    f.cache = known
