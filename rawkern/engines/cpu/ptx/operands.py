"""What an instruction does with its operands: the registers it reads and writes, the function it calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rawkern.engines.cpu.ptx.data import Instr, Mem, Not, Pair, Reg, Sym, Vec


def callee(instr: Instr) -> str | None:
    """Name of the function that an instruction calls; None for other instructions and for calls through pointers."""
    if instr.op.base != "call":
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
    op = instr.op
    if not instr.args or not (op.facts.result or (op.collective == "block" and op.has("red"))):
        return []
    first = instr.args[0]
    return [] if isinstance(first, (Mem, Sym)) else [r.name for r in registers([first])]


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


def mapped(a: Any, register: Callable[[Reg], Reg], symbol: Callable[[Sym], Sym] = lambda s: s) -> Any:
    """An operand with other registers and symbols in it."""
    if isinstance(a, Reg):
        return register(a)
    if isinstance(a, Sym):
        return symbol(a)
    if isinstance(a, Mem):
        return Mem(mapped(a.base, register, symbol), a.offset)
    if isinstance(a, Not):
        return Not(register(a.reg))
    if isinstance(a, Vec):
        return Vec(tuple(mapped(x, register, symbol) for x in a.items))
    if isinstance(a, Pair):
        return Pair(*(x and register(x) for x in (a.first, a.second)))
    if isinstance(a, list):
        return [mapped(x, register, symbol) for x in a]
    return a


def replaced(a, names: dict[str, str]):
    """An operand with registers by other names."""
    return mapped(a, lambda r: Reg(names.get(r.name, r.name)))
