"""``mbarrier``: barriers in shared memory. A block's warps never run at the same time, so plain accesses do.

The 64 bits, which PTX leaves to the implementation: how many arrivals a phase takes (20 bits), how many are pending
(20 bits), the number of the phase modulo 8, and how many bytes are still to come (21 bits with a sign: they may come
before they are expected). A phase ends when no arrivals are pending and no bytes are to come. A state is what the
barrier held before an arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rawkern.engines.cpu.emit.forms import LANES, Form
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import READ, UPDATE, WRITE, Access
from rawkern.engines.cpu.emit.lanes import define, each_lane, lanes_below, pointer
from rawkern.engines.cpu.emit.memory.addresses import address
from rawkern.engines.cpu.emit.memory.clusters import named, space_of
from rawkern.engines.cpu.ir import Emitter, Module, Val, const
from rawkern.engines.cpu.ptx.data import Instr, Mem, Reg

_PENDING, _PHASE, _TX = 20, 40, 43  # where the fields begin
_COUNT_MASK, _PHASE_MASK = (1 << 20) - 1, 7


def _initialize(f: FunctionLowering, instr: Instr) -> None:
    """``mbarrier.init``."""
    mem, count = instr.args
    at = f.values.plain(barrier_address(f, instr, mem, WRITE))
    f.watch.mbarrier("init", at, f.lanes.act())
    each_lane(f, "rk_mbarrier_init", None, at, [f.values.value(count, 32)], _init)


def _invalidate(f: FunctionLowering, instr: Instr) -> None:
    """``mbarrier.inval``: the memory may be used for other things.

    It is a strong write, as libcu++ has one lane end barriers at which lanes of its warp have arrived just before.
    """
    at = f.values.plain(barrier_address(f, instr, instr.args[0], WRITE, "relaxed"))
    f.watch.mbarrier("inval", at, f.lanes.act())


def _arrival(f: FunctionLowering, instr: Instr) -> None:
    """``mbarrier.arrive`` and ``arrive_drop``, also with ``.expect_tx``."""
    args = list(instr.args)
    dest = None if isinstance(args[0], Mem) else args.pop(0)
    at, drop = barrier_address(f, instr, args.pop(0), UPDATE), instr.op.has("arrive_drop")
    count = f.values.value(args[0], 32) if args else const("i32", 1)
    f.watch.mbarrier("arrive", f.values.plain(at), f.lanes.act())
    if instr.op.has("expect_tx"):
        name = f"rk_mbarrier_expect_{'drop' if drop else 'arrive'}"
        old = each_lane(
            f, name, "i64", f.values.plain(at), [count], lambda e, p, a: _change(e, p, 1, a[0], drop=drop)
        )  # fmt: skip
    else:
        old = arrive_at(f, at, count, drop=drop)
    if isinstance(dest, Reg):
        f.values.put(dest.name, old)


def _bytes(f: FunctionLowering, instr: Instr) -> None:
    """``mbarrier.expect_tx`` and ``complete_tx``."""
    mem, count = instr.args
    at, sign = f.values.plain(barrier_address(f, instr, mem, UPDATE)), "add" if instr.op.has("expect_tx") else "sub"
    tell(f, at, f.values.value(count, 32), sign)


def tell(f: FunctionLowering, at: Val, count: Val, sign: str = "sub") -> None:
    """Bytes are expected (``"add"``), or have come."""
    each_lane(f, f"rk_mbarrier_tx_{sign}", "i64", at, [count], lambda e, p, a: _change(e, p, 0, a[0], sign))


def wait(
    f: FunctionLowering, instr: Instr, given: Val | None = None,
    settle: Callable[[Emitter, str, str], None] | None = None,
) -> None:  # fmt: skip
    """``mbarrier.test_wait`` and ``try_wait``; where the phase is not over, after a call of `settle` with `given`."""
    dest, mem, wanted = instr.args[:3]
    at, parity = barrier_address(f, instr, mem, READ), instr.op.has("parity")
    wanted = f.e.resize(f.values.value(wanted, 32 if parity else 64), "i64")
    name = f"rk_mbarrier_test{'_parity' if parity else ''}{'_pending' if settle else ''}"

    def test(e: Emitter, p: str, args: list[Val], mask: Val | None = None) -> Val:
        if settle is not None:
            open_ = e.cmp("icmp eq", _test(e, p, args[0], parity), 0)
            some = e.cmp("icmp ne", e.let(f"i{open_.n}", 1, f"bitcast {open_} to i{open_.n}"), 0)
            with e.where(some):
                block = args[1] if args[1].n == 1 else e.let("i64", 1, f"extractelement {args[1]}, i64 0")
                settle(e, pointer(e, block), p)
        return _test(e, p, args[0], parity)

    values = [wanted] if given is None else [wanted, given]
    done = f.e.cmp("icmp ne", each_lane(f, name, "i8", f.values.plain(at), values, test, test), 0)
    f.watch.mbarrier("test", f.values.plain(at), f.e.bin("and", f.lanes.act(), f.lanes.mask_of(done)))
    if f.plan.waiting:
        _note(f, f.e.splat(f.values.plain(at), LANES), done)
    f.values.put(dest.name, done)


def _note(f: FunctionLowering, places: Val, done: Val) -> None:
    """Note for the scheduler at which barrier the warp waits, if it does."""
    e = f.e
    failed = e.bin("and", f.lanes.act(), e.invert(f.lanes.mask_of(done)))
    lane = e.bin("and", e.intrinsic("llvm.cttz", "i32", failed, extra=", i1 false"), LANES - 1)
    first = e.let("i64", 1, f"extractelement {places}, {lane}")
    e.line(f"store {e.select(e.cmp('icmp ne', failed, 0), first, 0)}, {f.frame.warp_field('mbarrier')}")


def _pending_count(f: FunctionLowering, instr: Instr) -> None:
    """``mbarrier.pending_count``."""
    dest, state = instr.args
    f.values.put(dest.name, f.e.cast("trunc", _State.of(f.e, f.values.value(state, 64)).pending, "i32"))


def barrier_address(f: FunctionLowering, instr: Instr, mem: Mem, does: str, order: str = "") -> Form:
    """Where the barriers of the lanes are; arriving passes on what was done, waiting looks at it."""
    space = space_of(f, instr.op)
    order = order or {WRITE: "", UPDATE: "acq_rel", READ: "acquire"}[does]
    return f.watch.access(Access(does, mem, named(space), 8, order=order), address(f, mem, space))


def arrive_at(f: FunctionLowering, at: Form, count: Val, drop: bool = False) -> Val:
    """Each active lane arrives `count` times; the barriers' states before."""
    name = f"rk_mbarrier_{'drop' if drop else 'arrive'}"
    together = None if drop or count.n != 1 else _arrive_together
    name += "_together" if together else ""
    return each_lane(
        f, name, "i64", f.values.plain(at), [count], lambda e, p, a: _change(e, p, a[0], drop=drop), together
    )


@dataclass(frozen=True)
class _State:
    """What the 64 bits of a barrier say, each as an i64."""

    expected: Val
    pending: Val
    phase: Val
    tx: Val

    @classmethod
    def of(cls, e: Emitter, word: Val) -> _State:
        """Take the bits apart."""
        pending = e.bin("and", e.bin("lshr", word, _PENDING), _COUNT_MASK)
        phase = e.bin("and", e.bin("lshr", word, _PHASE), _PHASE_MASK)
        return cls(e.bin("and", word, _COUNT_MASK), pending, phase, e.bin("ashr", word, _TX))

    def settled(self, e: Emitter) -> Val:
        """The bits; where nothing is pending any more the next phase has begun."""
        complete = e.cmp("icmp eq", e.bin("or", self.pending, self.tx), 0)
        pending = e.bin("and", e.select(complete, self.expected, self.pending), _COUNT_MASK)
        phase = e.bin("and", e.bin("add", self.phase, e.cast("zext", complete, "i64")), _PHASE_MASK)
        parts = [e.bin("and", self.expected, _COUNT_MASK), e.bin("shl", pending, _PENDING)]
        return e.all("or", [*parts, e.bin("shl", phase, _PHASE), e.bin("shl", self.tx, _TX)])


def _init(e: Emitter, at: str, args: list[Val]) -> None:
    count = e.resize(args[0], "i64")
    e.line(f"store {e.bin('or', count, e.bin('shl', count, _PENDING))}, {at}, align 8")


def _change(e: Emitter, at: str, times: Val | int, tx: Val | None = None, sign: str = "add", drop: bool = False) -> Val:
    """So many arrive, after bytes are expected (or, with ``"sub"``, have come); returns what the barrier held."""
    old = e.let("i64", 1, f"load i64, {at}, align 8")
    state = _State.of(e, old)
    if tx is not None:
        state = replace(state, tx=e.bin(sign, state.tx, e.resize(tx, "i64")))
    if times != 0:
        times = e.resize(times, "i64") if isinstance(times, Val) else const("i64", times)
        state = replace(state, pending=e.bin("sub", state.pending, times))
        if drop:
            state = replace(state, expected=e.bin("sub", state.expected, times))
    e.line(f"store {state.settled(e)}, {at}, align 8")
    return old


def define_complete(m: Module) -> None:
    """Have ``rk_mbarrier_complete`` in a module: so many bytes have come."""

    def build(m: Module) -> str:
        e = Emitter(m)
        _change(e, "ptr %bar", 0, Val("%bytes", "i64"), "sub")
        e.line("ret void")
        return define("define internal void @rk_mbarrier_complete(ptr %bar, i64 %bytes) noinline", e)

    m.helper("rk_mbarrier_complete", build)


def _arrive_together(e: Emitter, at: str, args: list[Val], mask: Val) -> Val:
    """The active lanes arrive equally often at one barrier, if that does not complete more than its present phase."""
    old = e.let("i64", 1, f"load i64, {at}, align 8")
    times = e.resize(e.let("i32", 1, f"extractelement {args[0]}, i64 0"), "i64")
    lanes = e.resize(e.intrinsic("llvm.ctpop", "i32", mask), "i64")
    state, all_times = _State.of(e, old), e.bin("mul", lanes, times)
    e.line(f"br {e.cmp('icmp ule', all_times, state.pending)}, label %arrive, label %apart")
    e.label("arrive")
    state = replace(state, pending=e.bin("sub", state.pending, all_times))
    e.line(f"store {state.settled(e)}, {at}, align 8")
    before = e.bin("mul", e.resize(lanes_below(e, mask), "i64"), e.bin("shl", times, _PENDING))
    return e.bin("sub", e.splat(old, LANES), before)


def _test(e: Emitter, at: str, wanted: Val, parity: bool) -> Val:
    """Whether the phase of a state, or that of this parity before the present one, is complete."""
    phase = _State.of(e, e.let("i64", 1, f"load i64, {at}, align 8")).phase
    if parity:
        return e.cast("zext", e.cmp("icmp ne", e.bin("and", wanted, 1), e.bin("and", phase, 1)), "i8")
    return e.cast("zext", e.cmp("icmp ne", _State.of(e, wanted).phase, phase), "i8")


HANDLERS = {
    "mbarrier.init": _initialize,
    "mbarrier.inval": _invalidate,
    "mbarrier.arrive": _arrival,
    "mbarrier.arrive_drop": _arrival,
    "mbarrier.expect_tx": _bytes,
    "mbarrier.complete_tx": _bytes,
    "mbarrier.test_wait": wait,
    "mbarrier.try_wait": wait,
    "mbarrier.pending_count": _pending_count,
}
