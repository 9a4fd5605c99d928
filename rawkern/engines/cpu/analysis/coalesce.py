"""Copy coalescing: registers that are copied to each other, and never needed at the same time, become one.

Where lanes may wait anywhere, each write has to keep the values of waiting lanes, so a copy reads the register it
writes, and most such registers stay memory. Lanes are threads of their own here: each has its element of a register,
and what matters is whether one thread needs both registers at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rawkern.engines.cpu.analysis.dataflow import liveness
from rawkern.engines.cpu.analysis.graph import Flow, numbers
from rawkern.engines.cpu.ptx.data import Instr, Mem, Reg, Vec
from rawkern.engines.cpu.ptx.operands import destinations, registers, replaced, sources


def coalesce(flow: Flow, names: set[str]) -> bool:
    """Make one register of several of `names` where that saves copies; returns whether any did."""
    # What is known of an address is known of its register, and what nobody has set is found by its register.
    names = names - _of_addresses(flow) - flow.live_in[0]
    order = sorted(names)
    bit = {name: 1 << k for k, name in enumerate(order)}
    apart = _interference(flow, bit)
    leader, members = {name: name for name in order}, dict(bit)

    def find(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    for a, b in _affinities(flow):
        if a in bit and b in bit and flow.regs[a] == flow.regs[b]:
            a, b = find(a), find(b)
            if a != b and not apart[a] & members[b]:
                leader[b] = a
                members[a] |= members.pop(b)
                apart[a] |= apart.pop(b)
    merged = {order[k]: a for a, bits in members.items() for k in numbers(bits) if order[k] != a}
    if merged:
        _rename(flow, merged)
        flow.live_in = liveness(flow)
    return bool(merged)


def _of_addresses(flow: Flow) -> set[str]:
    """Registers that addresses are made of."""
    made: dict[str, list[str]] = {}
    found: set[str] = set()
    for instr in flow.instructions():
        for name in destinations(instr):
            made.setdefault(name, []).extend(sources(instr))
        found.update(r.name for r in registers(a for a in instr.args if isinstance(a, Mem)))
    work = list(found)
    while work:
        new = set(made.get(work.pop(), ())) - found
        found |= new
        work += new
    return found


def _overlaps(instr: Instr) -> bool:
    """Whether an instruction has read all its operands before it writes: a register may be both."""
    return instr.op.facts.pure or instr.op.base == "mma"


def _interference(flow: Flow, bit: dict[str, int]) -> dict[str, int]:
    """For each register those that a thread needs while it is written: it cannot be the same as these."""
    apart = dict.fromkeys(bit, 0)

    def bits(found: Iterable[str]) -> int:
        result = 0
        for name in found:
            result |= bit.get(name, 0)
        return result

    def write(written: list[str], live: int, same: dict[str, str]) -> None:
        for name in written:
            if name in bit:
                apart[name] |= live & ~bit.get(same.get(name, ""), 0)

    for block in flow.blocks:
        live = 0
        for t in block.targets:
            after, copies = bits(flow.live_in[t]), block.copies.get(t, ())
            write([name for name, _ in copies], after, dict(copies))  # a copy is as good as what it was made of
            live |= after & ~bits([name for name, _ in copies]) | bits([source for _, source in copies])
        for instr in reversed(block.instrs):
            written, read = destinations(instr), bits(sources(instr))
            into = bits(written)
            moved = instr.op.base == "mov" and isinstance(instr.args[0], Reg) and isinstance(instr.args[1], Reg)
            held = live | into | (0 if _overlaps(instr) else read)
            write(written, held, {written[0]: instr.args[1].name} if moved else {})
            live = live & ~into | read
    for name, mine in bit.items():
        apart[name] &= ~mine
    order = list(bit)
    for name, mine in bit.items():
        for k in numbers(apart[name]):
            apart[order[k]] |= mine
    return apart


def _affinities(flow: Flow) -> Iterator[tuple[str, str]]:
    """Pairs of registers that had better be one: copies, then results with what they are computed from."""
    for block in flow.blocks:
        for copies in block.copies.values():
            yield from copies
    for block in flow.blocks:
        for instr in block.instrs:
            if not _overlaps(instr) or not destinations(instr):
                continue
            into, last = instr.args[0], instr.args[-1]
            if isinstance(into, Vec) and isinstance(last, Vec):  # sums of a product of matrices
                for a, b in zip(into.items, last.items, strict=False):
                    if isinstance(a, Reg) and isinstance(b, Reg):
                        yield a.name, b.name
            elif isinstance(into, Reg):
                for name in reversed(sources(instr)):
                    yield into.name, name


def _rename(flow: Flow, names: dict[str, str]) -> None:
    for block in flow.blocks:
        kept = []
        for instr in block.instrs:
            if not names.keys().isdisjoint([*destinations(instr), *sources(instr)]):
                instr = Instr(instr.op, [replaced(a, names) for a in instr.args], None, False, instr.loc)
                if instr.op.base == "mov" and instr.args[0] == instr.args[1]:
                    continue
            kept.append(instr)
        block.instrs = kept
        if block.pred is not None:
            block.pred = Reg(names.get(block.pred.name, block.pred.name))
        for t, copies in block.copies.items():
            pairs = ((names.get(a, a), names.get(b, b)) for a, b in copies)
            block.copies[t] = [(a, b) for a, b in pairs if a != b]
