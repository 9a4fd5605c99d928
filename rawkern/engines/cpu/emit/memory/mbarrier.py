"""``mbarrier``: barriers in shared memory. A block's warps never run at the same time, so plain accesses do.

The 64 bits, which PTX leaves to the implementation: how many arrivals a phase takes (20 bits), how many are pending
(20 bits), and the number of the phase modulo 2^24. A state is what the barrier held before an arrival.
"""

from __future__ import annotations

from rawkern.engines.cpu.emit.forms import LANES, Form
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import READ, UPDATE, WRITE, Access
from rawkern.engines.cpu.emit.lanes import each_lane, lanes_below
from rawkern.engines.cpu.emit.memory.addresses import address
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx.data import Instr, Mem, Reg

_PENDING, _PHASE, _COUNT_MASK = 20, 40, (1 << 20) - 1


def _initialise(f: FunctionLowering, instr: Instr) -> None:
    """``mbarrier.init``."""
    mem, count = instr.args
    at = f.values.plain(barrier_address(f, instr, mem, WRITE))
    each_lane(f, "rk_mbarrier_init", None, at, [f.values.value(count, 32)], _init)


def _arrival(f: FunctionLowering, instr: Instr) -> None:
    """``mbarrier.arrive`` and ``arrive_drop``."""
    args = list(instr.args)
    dest = None if isinstance(args[0], Mem) else args.pop(0)
    at = barrier_address(f, instr, args.pop(0), UPDATE)
    old = arrive_at(f, at, f.values.value(args[0], 32) if args else const("i32", 1), drop=instr.op.has("arrive_drop"))
    if isinstance(dest, Reg):
        f.values.put(dest.name, old)


def _wait(f: FunctionLowering, instr: Instr) -> None:
    """``mbarrier.test_wait`` and ``try_wait``."""
    dest, mem, wanted = instr.args[:3]
    at, parity = barrier_address(f, instr, mem, READ), instr.op.has("parity")
    wanted = f.e.resize(f.values.value(wanted, 32 if parity else 64), "i64")
    done = each_lane(
        f, f"rk_mbarrier_test{'_parity' if parity else ''}", "i8", f.values.plain(at), [wanted],
        lambda e, p, a: _test(e, p, a[0], parity), lambda e, p, a, _: _test(e, p, a[0], parity),
    )  # fmt: skip
    f.values.put(dest.name, f.e.cmp("icmp ne", done, 0))


def _pending_count(f: FunctionLowering, instr: Instr) -> None:
    """``mbarrier.pending_count``."""
    dest, state = instr.args
    f.values.put(
        dest.name, f.e.cast("trunc", f.e.bin("and", _shifted(f.e, f.values.value(state, 64)), _COUNT_MASK), "i32")
    )


def barrier_address(f: FunctionLowering, instr: Instr, mem: Mem, does: str) -> Form:
    """Where the barriers of the lanes are; arriving passes on what was done, waiting looks at it."""
    space = instr.op.space
    order = {WRITE: "relaxed", UPDATE: "acq_rel", READ: "acquire"}[does]
    return f.watch.access(Access(does, mem, space, 8, order=order), address(f, mem, space))


def arrive_at(f: FunctionLowering, at: Form, count: Val, drop: bool = False) -> Val:
    """Each active lane arrives `count` times; the barriers' states before."""
    name = f"rk_mbarrier_{'drop' if drop else 'arrive'}"
    together = None if drop or count.n != 1 else _arrive_together
    name += "_together" if together else ""
    return each_lane(f, name, "i64", f.values.plain(at), [count], lambda e, p, a: _arrive(e, p, a[0], drop), together)


def _shifted(e: Emitter, state: Val) -> Val:
    return e.bin("lshr", state, _PENDING)


def _init(e: Emitter, at: str, args: list[Val]) -> None:
    count = e.resize(args[0], "i64")
    e.line(f"store {e.bin('or', count, e.bin('shl', count, _PENDING))}, {at}, align 8")


def _arrive(e: Emitter, at: str, times: Val, drop: bool) -> Val:
    """Pending arrivals go down; with the last one the next phase begins with the full count."""
    old = e.let("i64", 1, f"load i64, {at}, align 8")
    times = e.resize(times, "i64")
    expected = e.bin("and", old, _COUNT_MASK)
    pending = e.bin("sub", e.bin("and", _shifted(e, old), _COUNT_MASK), times)
    phase = e.bin("lshr", old, _PHASE)
    if drop:
        expected = e.bin("sub", expected, times)
    complete = e.cmp("icmp eq", pending, 0)
    pending = e.bin("and", e.select(complete, expected, pending), _COUNT_MASK)
    phase = e.bin("add", phase, e.cast("zext", complete, "i64"))
    new = e.bin("or", e.bin("shl", phase, _PHASE), e.bin("shl", pending, _PENDING))
    e.line(f"store {e.bin('or', new, e.bin('and', expected, _COUNT_MASK))}, {at}, align 8")
    return old


def _arrive_together(e: Emitter, at: str, args: list[Val], mask: Val) -> Val:
    """The active lanes arrive equally often at one barrier, if that does not complete more than its present phase."""
    old = e.let("i64", 1, f"load i64, {at}, align 8")
    times = e.resize(e.let("i32", 1, f"extractelement {args[0]}, i64 0"), "i64")
    lanes = e.resize(e.intrinsic("llvm.ctpop", "i32", mask), "i64")
    expected = e.bin("and", old, _COUNT_MASK)
    pending, all_times = e.bin("and", _shifted(e, old), _COUNT_MASK), e.bin("mul", lanes, times)
    e.line(f"br {e.cmp('icmp ule', all_times, pending)}, label %arrive, label %apart")
    e.label("arrive")
    left = e.bin("sub", pending, all_times)
    complete = e.cmp("icmp eq", left, 0)
    phase = e.bin("add", e.bin("lshr", old, _PHASE), e.cast("zext", complete, "i64"))
    new = e.bin("or", e.bin("shl", phase, _PHASE), e.bin("shl", e.select(complete, expected, left), _PENDING))
    e.line(f"store {e.bin('or', new, expected)}, {at}, align 8")
    before = e.bin("mul", e.resize(lanes_below(e, mask), "i64"), e.bin("shl", times, _PENDING))
    return e.bin("sub", e.splat(old, LANES), before)


def _test(e: Emitter, at: str, wanted: Val, parity: bool) -> Val:
    """Whether the phase of a state, or that of this parity before the present one, is complete."""
    phase = e.bin("lshr", e.let("i64", 1, f"load i64, {at}, align 8"), _PHASE)
    if parity:
        return e.cast("zext", e.cmp("icmp ne", e.bin("and", wanted, 1), e.bin("and", phase, 1)), "i8")
    return e.cast("zext", e.cmp("icmp ne", e.bin("lshr", wanted, _PHASE), phase), "i8")


HANDLERS = {
    "mbarrier.init": _initialise,
    "mbarrier.inval": lambda f, instr: None,
    "mbarrier.arrive": _arrival,
    "mbarrier.arrive_drop": _arrival,
    "mbarrier.test_wait": _wait,
    "mbarrier.try_wait": _wait,
    "mbarrier.pending_count": _pending_count,
}
