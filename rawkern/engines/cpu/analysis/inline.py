"""Functions that wait become part of their caller, so that all lanes of a warp can be set aside in one place.

A barrier, a spin loop or an exchange between lanes in a called function must be able to let the caller's other lanes
run; a call cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rawkern.base.forking import cached_property
from rawkern.engines.cpu.analysis import control_flow, prototypes
from rawkern.engines.cpu.analysis.divergence import looks, spin_headers
from rawkern.engines.cpu.analysis.graph import closure
from rawkern.engines.cpu.analysis.storage import symbols
from rawkern.engines.cpu.ptx.data import Function, Instr, Label, Ptx, Reg, Sym
from rawkern.engines.cpu.ptx.decode import decode
from rawkern.engines.cpu.ptx.operands import callee, mapped, sources


@dataclass(frozen=True)
class Calls:
    """Which functions of a module call which; a call through a pointer may reach whatever function fits it.

    `pointed` names the functions whose addresses the program takes.
    """

    ptx: Ptx
    functions: list[Function]
    pointed: frozenset[str]

    def targets(self, function: Function, item: Instr | Label) -> list[str]:
        """Names of the functions that an instruction of a function may call."""
        if not isinstance(item, Instr) or item.op.base != "call":
            return []
        name = callee(item)
        if name is not None:
            return [name]
        passed, every = prototypes.of_call(function, item), self.ptx.functions
        return sorted(n for n in self.pointed if prototypes.of_function(every[n]) == passed)

    def of(self, function: Function) -> list[str]:
        return [name for item in function.body for name in self.targets(function, item)]

    @cached_property
    def looking(self) -> set[str]:
        """Names of the device functions that look at what other threads write or let them run, or call such."""
        return _with_callers(self, _looks)

    def look(self, function: Function, item: Instr) -> bool:
        """Whether an instruction of a function may call one that looks at what other threads write."""
        return any(name in self.looking for name in self.targets(function, item))


def calls(ptx: Ptx, functions: list[Function]) -> Calls:
    """Find the functions whose addresses are taken, in code or in variables."""
    named = {i.name.removeprefix("generic:") for v in ptx.variables.values() for i in v.init if isinstance(i, Sym)}
    for f in functions:
        direct = [callee(i) for i in f.body if isinstance(i, Instr)]
        mentioned = list(symbols(f))
        named |= {name for name in mentioned if mentioned.count(name) > direct.count(name)}
    return Calls(ptx, functions, frozenset(f.name for f in functions if f.name in named and not f.entry))


def waiting_functions(graph: Calls) -> set[str]:
    """Names of the device functions that wait for other threads of the block or end them, or call such."""
    return _with_callers(graph, lambda f: _waits(f, graph))


def has_collectives(function: Function) -> bool:
    """Whether a function has collective instructions of a warp, in its own code."""
    return any(isinstance(i, Instr) and i.op.collective in ("mask", "warp") for i in function.body)


def collective_functions(graph: Calls) -> set[str]:
    """Names of the device functions in which lanes of a warp wait for each other, or that call such."""
    return _with_callers(graph, has_collectives)


def _with_callers(graph: Calls, chosen: Callable[[Function], bool]) -> set[str]:
    called = {f.name: graph.of(f) for f in graph.functions if not f.entry}
    found = [f.name for f in graph.functions if not f.entry and chosen(f)]
    return closure(found, lambda name: [caller for caller, names in called.items() if name in names])


def _looks(function: Function) -> bool:
    instrs = [i for i in function.body if isinstance(i, Instr)]
    used = {name for i in instrs for name in sources(i)}
    return any(looks(i, used) for i in instrs)


def _waits(function: Function, graph: Calls) -> bool:
    if any(isinstance(i, Instr) and (i.op.collective == "block" or i.op.base == "exit") for i in function.body):
        return True
    return bool(spin_headers(control_flow.build(function), partial(graph.look, function)))


def recursive_functions(graph: Calls) -> set[str]:
    """Names of the functions that may call themselves."""
    every = [f.name for f in graph.functions if not f.entry]
    reached = {f.name: [n for n in graph.of(f) if n in every] for f in graph.functions}
    return {name for name in every if name in closure(reached[name], lambda n: reached[n])}


def expand(graph: Calls, function: Function, names: set[str]) -> Function:
    """Replace calls to the functions in `names`, none of which may call itself, by their bodies."""
    if not any(name in names for name in graph.of(function)):
        return function
    result = Function(
        function.name, function.entry, function.params, function.returns, [], dict(function.regs),
        dict(function.local_vars), dict(function.tables), locs=function.locs,
    )  # fmt: skip
    count, settled = 0, set()
    work: list[Instr | Label] = list(reversed(function.body))
    while work:
        item = work.pop()
        wanted = [name for name in graph.targets(result, item) if name in names and id(item) not in settled]
        if not wanted:
            result.body.append(item)
            continue
        assert isinstance(item, Instr)
        count += 1
        if callee(item) is None:
            body = _by_name(item, wanted, count, result)
            settled.add(id(item))
        else:
            body = _Copy(graph.ptx.functions[wanted[0]], item, count).into(result)
        work += reversed(body)
    return result


def _by_name(call: Instr, names: list[str], number: int, target: Function) -> list[Instr | Label]:
    """A call through a pointer with calls by name to the functions that become part of the caller before it."""
    at = 1 if isinstance(call.args[0], list) else 0
    done, chosen = f"called~{number}", Reg(f"%called~{number}")
    target.regs[chosen.name] = "pred"
    body: list[Instr | Label] = []
    if call.guard is not None:
        body.append(Instr(decode("bra"), [Sym(done)], call.guard, not call.negated, call.loc))
    for k, name in enumerate(names):
        other = f"other~{number}~{k}"
        args = [Sym(name) if j == at else a for j, a in enumerate(call.args)]
        body += [
            Instr(decode("setp.eq.u64"), [chosen, call.args[at], Sym(name)], None, False, call.loc),
            Instr(decode("bra"), [Sym(other)], chosen, True, call.loc),
            Instr(decode("call"), args, None, False, call.loc),
            Instr(decode("bra"), [Sym(done)], None, False, call.loc),
            Label(other),
        ]
    return [*body, call, Label(done)]  # what is left goes through a pointer that holds none of these


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
            body.append(Instr(decode("bra"), [Sym(end)], self.call.guard, not self.call.negated, self.call.loc))
        for item in source.body:
            if isinstance(item, Label):
                body.append(Label(self.names[item.name]))
                continue
            guard = self._register(item.guard) if item.guard is not None else None
            if item.op.base == "ret":
                body.append(Instr(decode("bra"), [Sym(end)], guard, item.negated, item.loc))
            else:
                body.append(Instr(item.op, [self.renamed(a) for a in item.args], guard, item.negated, item.loc))
        return [*body, Label(end)]

    def _register(self, reg: Reg) -> Reg:
        return Reg(f"{reg.name}~{self.number}")

    def renamed(self, a):
        return mapped(a, self._register, lambda s: Sym(self.names.get(s.name, s.name), s.offset))
