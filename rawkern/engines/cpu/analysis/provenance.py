"""Which variable or parameter an address comes from: registers followed back to the one name they are made of."""

from __future__ import annotations

from rawkern.engines.cpu.analysis.plan import Plan
from rawkern.engines.cpu.analysis.storage import local_offset, parameter_offset
from rawkern.engines.cpu.ptx.data import Function, Imm, Instr, Mem, Pair, Reg, Sym, Vec
from rawkern.engines.cpu.ptx.operands import destinations, sources

#: ("param", offset among the kernel's parameters) or ("shared" | "global" | "const" | "local", variable). The compiler
#: puts a function's arrays into one local variable; "variable+8" is the one that starts there.
Root = tuple[str, int | str]
_ANY: frozenset[Root] = frozenset((("any", ""),))
_NONE: frozenset[Root] = frozenset()


def find_roots(plan: Plan, function: Function) -> dict[str, Root]:
    """The one root of registers that have one, and of the variables themselves."""
    found: dict[str, frozenset[Root]] = {}
    flow = plan.flows[function.name]
    writers: list[tuple[int, Instr, list[str]]] = []
    readers: dict[str, list[int]] = {}
    for instr in flow.instructions():
        written = [name for name in destinations(instr) if flow.regs.get(name) != "pred"]
        if written:
            for name in sources(instr):
                readers.setdefault(name, []).append(len(writers))
            writers.append((len(writers), instr, written))
    stale = set(range(len(writers)))  # those that read what has changed since
    while stale:
        for at, instr, written in writers:
            if at not in stale:
                continue
            stale.remove(at)
            for name in written:
                new = _result(plan, function, instr, found, name)
                old = found.get(name)
                if old is not None:
                    new = _either(old, new)
                if new != old:
                    found[name] = new
                    stale.update(readers.get(name, ()))
    names = {s: _symbol(plan, function, s) for s in (*function.local_vars, *plan.shared, *plan.layout.offsets)}
    return {k: next(iter(v)) for k, v in (found | names).items() if len(v) == 1 and v != _ANY}


def array_of(function: Function, roots: dict[str, Root], root: Root | None) -> tuple[int, int] | None:
    """From where to where in a thread's local memory the array reaches, up to the next, that an address comes from."""
    name, _, start = str(root[1]).partition("+") if root is not None and root[0] == "local" else ("", "", "")
    if not start:
        return None
    at = local_offset(function, name)
    known = (str(r[1]).partition("+") for r in roots.values() if r[0] == "local")
    ends = [int(s) for other, _, s in known if other == name and s and int(s) > int(start)]
    return at + int(start), at + min(ends, default=function.local_vars[name].size)


def _either(a: frozenset[Root], b: frozenset[Root]) -> frozenset[Root]:
    """One value or the other: all that is known of both."""
    return _ANY if _ANY in (a, b) else a | b


def _sum(a: frozenset[Root], b: frozenset[Root], sign: int) -> frozenset[Root]:
    """An address and an offset; the difference of two addresses is none."""
    if sign < 0 and a and b:
        return _NONE
    if _ANY in (a, b):  # an index from memory may look like an address: the other one is
        known = b if a == _ANY else a
        return known or _ANY
    return a | b


def _result(
    plan: Plan, function: Function, instr: Instr, found: dict[str, frozenset[Root]], name: str
) -> frozenset[Root]:
    op, takes = instr.op, instr.op.facts.address

    def of(a) -> frozenset[Root]:
        if isinstance(a, Reg):
            return found.get(a.name, _NONE)
        return _symbol(plan, function, a.name) if isinstance(a, Sym) else _NONE

    args = instr.args[1:]
    if takes == "first" and not isinstance(instr.args[0], Vec) and not isinstance(args[0], Vec):
        return of(args[0])
    if op.base == "ld" and op.space == "param" and isinstance(args[0], Mem) and isinstance(args[0].base, Sym):
        if not op.types or op.type.bits != 64:
            return _ANY
        into = instr.args[0]
        members = [getattr(one, "name", None) for one in into.items] if isinstance(into, Vec) else [name]
        return _parameter(function, args[0], 8 * members.index(name))
    if takes == "none":
        return _NONE
    if op.base == "add" and isinstance(args[1], Imm):
        (kind, variable), *others = of(args[0]) or (("", ""),)
        if kind == "local" and not others and "+" not in str(variable):  # only where an array starts
            return frozenset(((kind, f"{variable}+{args[1].value}"),))
    if takes in ("sum", "difference"):
        return _sum(of(args[0]), of(args[1]), 1 if takes == "sum" else -1)
    if takes == "last":
        return of(args[2])
    if takes == "either":
        return _either(of(args[0]), of(args[1]))
    if takes == "any" or op.base == "mov" or isinstance(instr.args[0], (Vec, Pair)):
        return _ANY
    return _ANY if any(of(a) for a in args) else _NONE


def _parameter(function: Function, mem: Mem, more: int) -> frozenset[Root]:
    at = parameter_offset(function, mem.base.name) if function.entry and isinstance(mem.base, Sym) else None
    return _ANY if at is None else frozenset((("param", at + mem.offset + more),))


def _symbol(plan: Plan, function: Function, name: str) -> frozenset[Root]:
    local = function.local_vars.get(name)
    if local is not None and local.space == "local":
        return frozenset((("local", name),))
    if name in plan.shared:
        return frozenset((("shared", name),))
    if name in plan.layout.offsets:
        return frozenset(((plan.ptx.variables[name].space, name),))
    return _ANY
