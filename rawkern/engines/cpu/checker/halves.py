"""Checked builds: reads and writes that are halves of an update in several instructions.

``old = *p; do { seen = old; old = atomicCAS(p, seen, ...); } while (old != seen)`` is CUDA's own way to write an atomic
operation: the plain read may give anything, as the swap is made only where it still holds. ``*p = *p + 1`` through a
volatile pointer is none: it loses what others write in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from rawkern.engines.cpu.analysis.graph import Flow
from rawkern.engines.cpu.ptx.data import Imm, Instr, Mem, Reg, Sym
from rawkern.engines.cpu.ptx.operands import destinations, registers, sources

#: What an address is made of: a register or symbol as it is, or an instruction and what its operands are made of.
Made = tuple | str
DEEPEST = 16  # steps that an address is followed back


@dataclass(frozen=True)
class Halves:
    """Identities of loads that a compare-and-swap verifies, and of strong stores of what a load gave."""

    loads: set[int]
    stores: set[int]


def halves(flow: Flow) -> Halves:
    """Find loads whose value reaches what is stored at the same address, or what a compare-and-swap there expects."""
    instrs = flow.instructions()
    swaps = [(i, mem, i.args[2]) for i in instrs if i.op.base == "atom" and i.op.has("cas") and (mem := _mem(i, 1))]
    stores = [(i, mem, i.args[1]) for i in instrs if i.op.base == "st" and i.op.order and (mem := _mem(i, 0))]
    found = Halves(set(), set())
    if not swaps and not stores:
        return found
    writers: dict[str, list[Instr]] = {}
    for i in instrs:
        for name in destinations(i):
            writers.setdefault(name, []).append(i)
    loads = [(i, _made(mem, writers)) for i in instrs if i.op.base in ("ld", "ldu") and (mem := _mem(i, 1))]
    for instr, mem, value in (*swaps, *stores):
        at, reaching = _made(mem, writers), _reaching([r.name for r in registers([value])], writers)
        for load, where in loads:
            if where[0] == at[0] and _holds(load, where[1], at[1]) and not reaching.isdisjoint(destinations(load)):
                if instr.op.base == "st":
                    found.stores.add(id(instr))
                else:
                    found.loads.add(id(load))
    return found


def _mem(instr: Instr, index: int) -> Mem | None:
    mem = instr.args[index] if len(instr.args) > index else None
    return mem if isinstance(mem, Mem) else None


def _holds(load: Instr, start: int, at: int) -> bool:
    """Whether an offset lies in what a load from offset `start` on reads."""
    return start <= at < start + load.op.type.bits // 8 * load.op.count


def _reaching(names: list[str], writers: dict[str, list[Instr]]) -> set[str]:
    """Registers whose value reaches those named, as such or as part of a number, but not by what it decides."""
    found, work = set(names), list(names)
    while work:
        for i in writers.get(work.pop(), []):
            if i.op.base in ("ld", "ldu", "atom", "setp", "call"):
                continue
            new = [name for name in sources(i) if name not in found]
            found.update(new)
            work += new
    return found


def _made(mem: Mem, writers: dict[str, list[Instr]]) -> tuple[Made, int]:
    """What an address is made of, and an offset."""
    offset, base = mem.offset, mem.base
    while isinstance(base, Reg):  # offsets that instructions add
        by = writers.get(base.name, [])
        if len(by) != 1 or by[0].guard is not None:
            break
        op, args = by[0].op, by[0].args
        if op.base == "add" and isinstance(args[1], Reg) and isinstance(args[2], Imm):
            offset, base = offset + args[2].value, args[1]
        elif op.base in ("mov", "cvta") and isinstance(args[1], (Reg, Sym)):
            base = args[1]
        else:
            break
    return _value(base, writers, DEEPEST), offset


def _value(operand: object, writers: dict[str, list[Instr]], steps: int) -> Made:
    if not isinstance(operand, Reg):
        return str(operand)
    by = writers.get(operand.name, [])
    if len(by) != 1 or by[0].guard is not None or not steps or not _is_fixed(by[0]):
        return operand.name
    op, args = by[0].op, by[0].args[1:]
    if op.base in ("mov", "cvta"):
        return _value(args[0], writers, steps - 1)
    return (str(op), *(_value(a, writers, steps - 1) for a in args))


def _is_fixed(instr: Instr) -> bool:
    """Whether an instruction gives the same where its operands are the same."""
    if instr.op.base == "ld":
        return instr.op.space == "param"
    return instr.op.base in ("mov", "cvta", "add", "sub", "mul", "mad", "shl", "shr", "and", "or", "cvt", "neg")
