"""Functions that wait become part of their caller, so that all lanes of a warp can be set aside in one place.

A barrier or a spin loop in a called function must be able to let the caller's other lanes run; a call cannot.
"""

from __future__ import annotations

from rawkern.engines.cpu import flow
from rawkern.engines.cpu.divergence import spin_headers
from rawkern.engines.cpu.operands import base, callee, is_barrier
from rawkern.engines.cpu.ptx import Function, Imm, Instr, Label, Mem, Not, Pair, Ptx, Reg, Sym, Vec


def waiting_functions(functions: list[Function]) -> set[str]:
    """Names of the functions that wait for other threads or end them, themselves or in one that they call by name."""
    found = {f.name for f in functions if _waits(f)}
    grown = True
    while grown:
        callers = {f.name for f in functions if any(name in found for name in callees(f))}
        grown = not callers <= found
        found |= callers
    return found


def _waits(function: Function) -> bool:
    if any(isinstance(i, Instr) and (is_barrier(i.op) or i.op == "exit") for i in function.body):
        return True
    return bool(spin_headers(flow.build(function)))


def callees(function: Function) -> list[str]:
    """Functions called by name."""
    return [name for item in function.body if isinstance(item, Instr) and (name := callee(item)) is not None]


def recursive_functions(functions: list[Function]) -> set[str]:
    """Names of the functions that may call themselves; a call through a pointer may reach any function."""
    every = [f.name for f in functions if not f.entry]
    calls = {}
    for f in functions:
        indirect = any(isinstance(i, Instr) and base(i.op) == "call" and callee(i) is None for i in f.body)
        calls[f.name] = every if indirect else [n for n in callees(f) if n in every]
    found = set()
    for name in every:
        seen, work = set(), list(calls[name])
        while work:
            other = work.pop()
            if other not in seen:
                seen.add(other)
                work += calls[other]
        if name in seen:
            found.add(name)
    return found


def expand(ptx: Ptx, function: Function, names: set[str]) -> Function:
    """Replace calls to the functions in `names`, none of which may call itself, by their bodies."""
    if not any(name in names for name in callees(function)):
        return function
    result = Function(
        function.name, function.entry, function.params, function.returns, [], dict(function.regs),
        dict(function.local_vars), dict(function.tables), locs=function.locs,
    )  # fmt: skip
    count = 0
    work: list[Instr | Label] = list(reversed(function.body))
    while work:
        item = work.pop()
        name = callee(item) if isinstance(item, Instr) else None
        if name is None or name not in names:
            result.body.append(item)
            continue
        assert isinstance(item, Instr)
        count += 1
        body = _Copy(ptx.functions[name], item, count).into(result)
        work += reversed(body)
    return result


class _Copy:
    """One call's copy of a function, with names of its own; parameters become the call's variables."""

    def __init__(self, source: Function, call: Instr, number: int):
        self.source, self.call, self.number = source, call, number
        args = list(call.args)
        results = args.pop(0) if isinstance(args[0], list) else []
        params = args[1] if len(args) > 1 and isinstance(args[1], list) else []
        formal = [v.name for v in (*source.params, *source.returns)]
        self.names = dict(zip(formal, [s.name for s in (*params, *results)], strict=True))
        self.names |= {name: f"{name}~{number}" for name in source.local_vars}
        self.names |= {item.name: f"{item.name}~{number}" for item in source.body if isinstance(item, Label)}
        self.names |= {name: f"{name}~{number}" for name in source.tables}

    def into(self, target: Function) -> list[Instr | Label]:
        """The instructions that stand for the call; declares their names in `target`."""
        source, end = self.source, f"return~{self.number}"
        target.regs |= {f"{name}~{self.number}": kind for name, kind in source.regs.items()}
        for name, var in source.local_vars.items():
            if var.space != "shared":
                target.local_vars[self.names[name]] = type(var)(
                    self.names[name], var.space, var.type, var.align, var.size, var.init, var.extern
                )
            else:  # shared memory belongs to the block, however often the function is copied
                self.names[name] = name
                target.local_vars[name] = var
        target.tables |= {self.names[n]: [self.names[t] for t in labels] for n, labels in source.tables.items()}
        body: list[Instr | Label] = []
        if self.call.guard is not None:
            body.append(Instr("bra", [Sym(end)], self.call.guard, not self.call.negated, self.call.loc))
        for item in source.body:
            if isinstance(item, Label):
                body.append(Label(self.names[item.name]))
                continue
            guard = self._register(item.guard) if item.guard is not None else None
            if base(item.op) == "ret":
                body.append(Instr("bra", [Sym(end)], guard, item.negated, item.loc))
            else:
                body.append(Instr(item.op, [self.renamed(a) for a in item.args], guard, item.negated, item.loc))
        return [*body, Label(end)]

    def _register(self, reg: Reg) -> Reg:
        return Reg(f"{reg.name}~{self.number}")

    def renamed(self, a):
        if isinstance(a, Reg):
            return self._register(a)
        if isinstance(a, Sym):
            return Sym(self.names.get(a.name, a.name), a.offset)
        if isinstance(a, Mem):
            return Mem(a.base if isinstance(a.base, Imm) else self.renamed(a.base), a.offset)
        if isinstance(a, Not):
            return Not(self._register(a.reg))
        if isinstance(a, Vec):
            return Vec(tuple(self.renamed(x) for x in a.items))
        if isinstance(a, Pair):
            return Pair(self.renamed(a.first), self.renamed(a.second))
        if isinstance(a, list):
            return [self.renamed(x) for x in a]
        return a
