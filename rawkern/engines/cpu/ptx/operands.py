"""What an instruction does with its operands: the registers it reads and writes, the function it calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from rawkern.engines.cpu.ptx.data import Instr, Mem, Not, Pair, Reg, Sym, Vec

#: Instructions whose first operand is no destination.
NO_DESTINATION = frozenset(
    (
        "st", "red", "bra", "brx", "bar", "barrier", "call", "ret", "exit", "trap", "membar", "fence",
        "prefetch", "prefetchu", "nanosleep", "brkpt", "pmevent", "discard", "applypriority",
        "stmatrix", "cp", "griddepcontrol", "setmaxnreg", "sust", "wgmma", "tcgen05", "clusterlaunchcontrol",
    )
)  # fmt: skip
_BARRIERS = (
    "bar.sync", "bar.red", "bar.arrive", "bar.cta",
    "barrier.sync", "barrier.red", "barrier.arrive", "barrier.cta",
)  # fmt: skip


_WHOLE_WARP = ("mma.", "wmma.", "ldmatrix.", "stmatrix.", "movmatrix.")
_MEETINGS = ("bar.warp", "shfl.", "vote.", "match.", "redux.", "elect.")


@cache
def base(op: str) -> str:
    return op.split(".", 1)[0]


@cache
def is_barrier(op: str) -> bool:
    return op.startswith(_BARRIERS)


@cache
def is_meeting(op: str) -> bool:
    """Whether lanes wait at an instruction for those that its last operand, a mask, names."""
    return op.startswith(_MEETINGS) and ".sync" in op


def needs_warp(op: str) -> bool:
    """Whether all lanes of the warp execute an instruction together."""
    return op.startswith(_WHOLE_WARP)


def callee(instr: Instr) -> str | None:
    """Name of the function that an instruction calls; None for other instructions and for calls through pointers."""
    if base(instr.op) != "call":
        return None
    target = instr.args[1] if isinstance(instr.args[0], list) else instr.args[0]
    return target.name if isinstance(target, Sym) else None


def destinations(instr: Instr) -> list[str]:
    """Registers that an instruction writes."""
    if instr.written is None:
        instr.written = _destinations(instr)
    return instr.written


def sources(instr: Instr) -> list[str]:
    """Registers that an instruction reads."""
    if instr.read is None:
        instr.read = _sources(instr)
    return instr.read


def _destinations(instr: Instr) -> list[str]:
    if not instr.args or base(instr.op) in NO_DESTINATION or instr.op.startswith("wmma.store"):
        if is_barrier(instr.op) and ".red" in instr.op:
            return [r.name for r in registers(instr.args[:1])]
        return []
    first = instr.args[0]
    if isinstance(first, (Mem, Sym)) or first is None:
        return []
    return [r.name for r in registers([first])]


def _sources(instr: Instr) -> list[str]:
    args = instr.args[1:] if destinations(instr) or (instr.args and instr.args[0] is None) else instr.args
    found = [r.name for r in registers(args)]
    if instr.guard is not None:
        found.append(instr.guard.name)
    return found


def registers(args: Iterable) -> Iterator[Reg]:
    for a in args:
        if isinstance(a, Reg):
            yield a
        elif isinstance(a, Mem):
            if isinstance(a.base, Reg):
                yield a.base
        elif isinstance(a, Vec):
            yield from registers(a.items)
        elif isinstance(a, Pair):
            yield from registers((a.first, a.second))
        elif isinstance(a, Not):
            yield a.reg
        elif isinstance(a, list):
            yield from registers(a)


def replaced(a, names: dict[str, str]):
    """An operand with registers by other names."""
    if isinstance(a, Reg):
        return Reg(names.get(a.name, a.name))
    if isinstance(a, Mem):
        return Mem(replaced(a.base, names), a.offset)
    if isinstance(a, Not):
        return Not(replaced(a.reg, names))
    if isinstance(a, Vec):
        return Vec(tuple(replaced(x, names) for x in a.items))
    if isinstance(a, Pair):
        first, second = (replaced(x, names) for x in (a.first, a.second))
        return Pair(first, second)  # type: ignore[arg-type]
    if isinstance(a, list):
        return [replaced(x, names) for x in a]
    return a
