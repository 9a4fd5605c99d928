"""Reads of a kernel's parameters by address, named directly.

Compilers take the address of a struct once and read its members through a register. Named directly, a member is known
when a kernel begins, needs no comparison with the parameter's size, and a pointer among them leads to its tensor.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from rawkern.engines.cpu.ptx.data import Function, Imm, Instr, Mem, Reg, Sym, Var
from rawkern.engines.cpu.ptx.operands import destinations


def named_directly(function: Function) -> Function:
    """Return the function with reads through registers that can only hold a parameter's address and an offset named."""
    if not function.entry:
        return function
    params = {p.name: p for p in function.params}
    addresses = _addresses(function, params)
    if not addresses:
        return function
    body = [_named(item, addresses, params) if isinstance(item, Instr) else item for item in function.body]
    return replace(function, body=body)


def _addresses(function: Function, params: dict[str, Var]) -> dict[str, Sym]:
    """The registers that are written once, with the address of a parameter and a constant offset."""
    instrs = [item for item in function.body if isinstance(item, Instr)]
    writes = Counter(name for instr in instrs for name in destinations(instr))
    moves = [i for i in instrs if i.op.base in ("mov", "add") and i.guard is None and isinstance(i.args[0], Reg)]
    found: dict[str, Sym] = {}
    before = -1
    while len(found) > before:
        before = len(found)
        for instr in moves:
            dest, source, *rest = instr.args
            if isinstance(source, Reg):
                source = found.get(source.name)
            if writes[dest.name] != 1 or not isinstance(source, Sym) or source.name not in params:
                continue
            if all(isinstance(a, Imm) for a in rest):
                found[dest.name] = Sym(source.name, source.offset + sum(_signed(a) for a in rest))
    return found


def _signed(number: Imm) -> int:
    value = number.bits(64)
    return value - (value >> 63 << 64)


def _named(instr: Instr, addresses: dict[str, Sym], params: dict[str, Var]) -> Instr:
    """An instruction that reads a parameter, all of it inside, by the parameter's name."""
    mem = instr.args[1] if len(instr.args) > 1 else None
    if instr.op.base != "ld" or instr.op.space != "param" or not isinstance(mem, Mem) or not isinstance(mem.base, Reg):
        return instr
    address = addresses.get(mem.base.name)
    if address is None:
        return instr
    at, size = address.offset + mem.offset, instr.op.type.bits // 8 * instr.op.count
    if not 0 <= at <= params[address.name].size - size:
        return instr
    named = [instr.args[0], Mem(Sym(address.name), at), *instr.args[2:]]
    return Instr(instr.op, named, instr.guard, instr.negated, instr.loc)
