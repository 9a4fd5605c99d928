"""Registers of a warp group's products (``wgmma``) that other instructions access without what orders the two.

Sums may be read before the warp waits for their group (`early_reads`), and sums or operands written without a
``wgmma.fence`` before the next product (`rewritten`). What is found here may be so on one of the paths that meet;
whether it is, the code that runs tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from rawkern.engines.cpu.analysis.graph import Flow
from rawkern.engines.cpu.analysis.provenance import Root
from rawkern.engines.cpu.ptx.data import Imm, Instr, Mem, Reg, Vec
from rawkern.engines.cpu.ptx.operands import destinations, registers, sources
from rawkern.engines.cpu.records import GROUPS

_NOT_COMMITTED = -1
_PRODUCT = "wgmma.mma_async"


@dataclass(frozen=True)
class Sum:
    """What a register, or a local array, may be: a sum of products that may not be done.

    `newer`: how many groups were committed after that of the last one; `products`: identities of the instructions;
    `stored`: it has been in a local array, perhaps beside sums of others among them.
    """

    newer: int
    products: frozenset[int]
    stored: bool = False

    def joined(self, other: Sum | None) -> Sum:
        """This one or the other."""
        if other is None or other == self:
            return self
        return Sum(min(self.newer, other.newer), self.products | other.products, self.stored or other.stored)


_State = dict[str | Root, Sum]


@dataclass(frozen=True)
class EarlyReads:
    """By the identity of an instruction: registers that it reads early."""

    reads: dict[int, dict[str, Sum]]
    products: dict[int, Instr]  # those that are read early, by their identities, in the order of the code

    def of(self, held: Sum) -> list[int]:
        """The products of a sum in the order of the code: identities are addresses, which differ from run to run."""
        return [product for product in self.products if product in held.products]


def early_reads(flow: Flow, array: Callable[[Mem], Root | None]) -> EarlyReads:
    """Look for such reads; `array`: which of the function's own arrays is accessed, None for other memory.

    Moves, and stores to such arrays, are the compiler's, and pass a sum on.
    """
    every = {id(i): i for i in flow.instructions() if i.op.name == _PRODUCT}
    found: dict[int, dict[str, Sum]] = {}
    if every:
        before: list[_State] = [{} for _ in flow.blocks]
        work = set(range(len(flow.blocks)))
        while work:
            i = min(work)
            work.discard(i)
            after = _through(flow.blocks[i].instrs, before[i], array)
            for t in flow.blocks[i].targets:
                arriving = {k: s for k, s in after.items() if isinstance(k, tuple) or k in flow.live_in[t]}
                copies = flow.blocks[i].copies.get(t, ())
                arriving |= {name: after[source] for name, source in copies if source in after}
                joined = before[t] | {k: s.joined(before[t].get(k)) for k, s in arriving.items()}
                if joined != before[t]:
                    before[t] = joined
                    work.add(t)
        for block, state in zip(flow.blocks, before, strict=True):
            _through(block.instrs, state, array, found)
    used = {product for reads in found.values() for s in reads.values() for product in s.products}
    return EarlyReads(found, {key: instr for key, instr in every.items() if key in used})


def _through(
    instrs: Iterable[Instr], state: _State, array: Callable[[Mem], Root | None],
    found: dict[int, dict[str, Sum]] | None = None,
) -> _State:  # fmt: skip
    """What is pending after some instructions; early reads are added to what was `found`."""
    state = dict(state)
    for instr in instrs:
        name = instr.op.name
        if name == "wgmma.commit_group":
            state = {key: replace(s, newer=min(s.newer + 1, GROUPS)) for key, s in state.items()}
        elif name == "wgmma.wait_group":
            keep = min(instr.args[0].value, GROUPS - 1) if isinstance(instr.args[0], Imm) else GROUPS
            state = {key: s for key, s in state.items() if s.newer < keep}
        elif name == _PRODUCT or state:
            passed = _passed(instr, state, array)
            early = {reg: state[reg] for reg in _looked_at(instr) if reg in state}
            if early and passed is None and found is not None:
                found[id(instr)] = early
            for reg in destinations(instr):
                state.pop(reg, None)
                if name == _PRODUCT:
                    state[reg] = Sum(_NOT_COMMITTED, frozenset({id(instr)}))
                elif passed is not None:
                    state[reg] = passed
            if passed is not None and name == "st":
                key = array(instr.args[0])
                assert key is not None
                state[key] = passed.joined(state.get(key))
    return state


def _passed(instr: Instr, state: _State, array: Callable[[Mem], Root | None]) -> Sum | None:
    """The sum that an instruction passes on as it is: a move, or one to or from a local array."""
    base, args = instr.op.base, instr.args
    if base == "mov" and all(isinstance(a, Reg) for a in args):
        return state.get(args[1].name)
    if base in ("ld", "st"):
        mem = args[1] if base == "ld" else args[0]
        key = array(mem) if isinstance(mem, Mem) else None
        if key is not None:
            if base == "ld":
                return state.get(key)
            sums = [state[reg.name] for reg in registers(args[1:]) if reg.name in state]
            if sums:
                whole = sums[0]
                for s in sums[1:]:
                    whole = whole.joined(s)
                return replace(whole, stored=True)
    return None


def _looked_at(instr: Instr) -> list[str]:
    """Registers whose values an instruction needs at once: of a product those of A, as it adds to its sums later."""
    if instr.op.name != _PRODUCT:
        return sources(instr)
    return [reg.name for reg in registers(instr.args[2:])]


def rewritten(flow: Flow, array: Callable[[Mem], Root | None]) -> frozenset[int]:
    """Identities of products, some of whose registers may have been computed after the last product before them.

    Moves are the compiler's; so are constants, which it makes where it needs them. The compiler may also move
    instructions across ``wgmma.fence``, so that one anywhere after the last product counts.
    """
    found: set[int] = set()
    if not any(i.op.name == _PRODUCT for i in flow.instructions()):
        return frozenset()
    before: list[frozenset[str | Root]] = [frozenset() for _ in flow.blocks]
    work = set(range(len(flow.blocks)))
    while work:
        i = min(work)
        work.discard(i)
        block = flow.blocks[i]
        fresh: set[str | Root] = set(before[i])
        for instr in block.instrs:
            _compute(instr, fresh, array, found)
        for t in block.targets:
            arriving = {k for k in fresh if isinstance(k, tuple) or k in flow.live_in[t]}
            arriving |= {name for name, source in block.copies.get(t, ()) if source in fresh}
            if not arriving <= before[t]:
                before[t] |= arriving
                work.add(t)
    return frozenset(found)


def _compute(instr: Instr, fresh: set[str | Root], array: Callable[[Mem], Root | None], found: set[int]) -> None:
    """Add to `fresh` what an instruction computes, to `found` a product that takes some of it."""
    if instr.op.name == _PRODUCT:
        _, before, a = instr.args[:3]
        taken = [before, a] if isinstance(a, Vec) else [before]  # else a descriptor
        if any(reg.name in fresh for reg in registers(taken)):
            found.add(id(instr))
        fresh.clear()
        return
    key: Root | None = None
    if instr.op.base in ("ld", "st") and isinstance(mem := instr.args[instr.op.base == "ld"], Mem):
        key = array(mem)
    if key is not None and instr.op.base == "st":
        if any(reg.name in fresh for reg in registers(instr.args[1:])):
            fresh.add(key)
        return
    if key is not None:
        computed = key in fresh
    elif instr.op.base == "mov":
        computed = any(reg.name in fresh for reg in registers(instr.args[1:]))
    else:
        computed = True
    for reg in destinations(instr):
        (fresh.add if computed else fresh.discard)(reg)
