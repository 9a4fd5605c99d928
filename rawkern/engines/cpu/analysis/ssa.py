"""Registers split by meaning: a name for each write, and another for the value with which a loop ends.

PTX writes one register in many places. Where the paths of two writes meet, the edges into that block copy either value
into a new register; where a value leaves the loop that makes it, the edges out of the loop do. What is known about a
value then holds as far as it goes: a loop's counter stays the same in all lanes that still run, though lanes leave with
different counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rawkern.engines.cpu.analysis.dataflow import liveness
from rawkern.engines.cpu.analysis.graph import Block, Flow
from rawkern.engines.cpu.ptx.data import Instr, Reg
from rawkern.engines.cpu.ptx.operands import destinations, replaced, sources

Edge = tuple[int, int]


def split_registers(flow: Flow, whole: frozenset[str] = frozenset()) -> Flow:
    """The same flow with split registers; the blocks are copies, the function's instructions stay as they are.

    The registers `whole` keep their names.
    """
    writes = Counter(name for instr in flow.instructions() for name in destinations(instr))
    kept = whole.union(name for names in flow.tuples for name in names)  # each stays where it lies
    many = {name for name, count in writes.items() if count > 1} - kept
    result = Flow(
        [Block(list(b.instrs), b.kind, b.targets, b.pred, b.negated, ending=b.ending) for b in flow.blocks],
        flow.loops, [], flow.predecessors, flow.ipdom, dict(flow.regs), flow.tuples,
    )  # fmt: skip
    if many:
        _rename_writes(flow, result, many)
    result.live_in = liveness(result)
    if _rename_exits(result, kept):
        result.live_in = liveness(result)
    return result


def origin(name: str) -> str:
    """What a register is called in PTX."""
    return name.split("!")[0]


def _fresh(flow: Flow, name: str, count: dict[str, int]) -> str:
    """A new register like `name`."""
    first = origin(name)
    count[first] = count.get(first, 0) + 1
    new = f"{first}!{count[first]}"
    flow.regs[new] = flow.regs[name]
    return new


# -- writes ---------------------------------------------------------------------------------------------------------
def _rename_writes(flow: Flow, result: Flow, many: set[str]) -> None:
    count: dict[str, int] = {}
    after: list[dict[str, str]] = [{} for _ in flow.blocks]  # the name of each register at the end of a block
    before: list[dict[str, str]] = [{} for _ in flow.blocks]  # and at its start
    for i, block in enumerate(result.blocks):
        for k, instr in enumerate(block.instrs):
            written = {name for name in destinations(instr) if name in many}
            if written:
                names = {name: _fresh(result, name, count) for name in written}
                after[i] |= names
                block.instrs[k] = _with_destination(instr, names)
    live = [sorted(many & names) for names in flow.live_in]
    merges = _find_values(flow, live, before, after, lambda name: _fresh(result, name, count))
    for i, block in enumerate(result.blocks):
        now = before[i]
        for k, (instr, original) in enumerate(zip(block.instrs, flow.blocks[i].instrs, strict=True)):
            if any(name in now for name in sources(instr)):
                block.instrs[k] = _with_sources(instr, now)
            for old, new in zip(destinations(original), destinations(instr), strict=True):
                if old != new:
                    now = {**now, old: new}
        if block.pred is not None:
            block.pred = Reg(now.get(block.pred.name, block.pred.name))
    for t, name in merges:
        for p in flow.predecessors[t]:
            value = after[p].get(name) or before[p].get(name)
            if value is not None:  # else nothing was written on the way
                result.blocks[p].copies.setdefault(t, []).append((before[t][name], value))


def _find_values(
    flow: Flow, live: list[list[str]], before: list[dict[str, str]], after: list[dict[str, str]], fresh: Callable
) -> dict[tuple[int, str], None]:
    """Fill `before`; returns where paths meet with different values of a register, which get a name by `fresh`."""
    merges: dict[tuple[int, str], None] = {}
    work = set(range(len(flow.blocks)))
    while work:
        turn, work = sorted(work), set()
        for t in turn:
            changed = False
            for name in live[t]:
                if (t, name) in merges:
                    continue
                values: set = {after[p].get(name) or before[p].get(name) for p in flow.predecessors[t]} - {None}
                if len(values) > 1:
                    merges[t, name] = None
                    values = {fresh(name)}
                if values and before[t].get(name) not in values:
                    before[t][name] = values.pop()
                    changed = True
            if changed:
                work |= set(flow.blocks[t].targets)
    return merges


def _with_destination(instr: Instr, names: dict[str, str]) -> Instr:
    return Instr(instr.op, [replaced(instr.args[0], names), *instr.args[1:]], None, False, instr.loc)


def _with_sources(instr: Instr, names: dict[str, str]) -> Instr:
    keep = 1 if destinations(instr) else 0
    args = [*instr.args[:keep], *(replaced(a, names) for a in instr.args[keep:])]
    return Instr(instr.op, args, None, False, instr.loc)


# -- loops ----------------------------------------------------------------------------------------------------------
def _rename_exits(flow: Flow, kept: frozenset[str]) -> bool:
    """Give what loops leave behind names of its own, from the innermost loop outwards; returns whether any did.

    Not what is `kept` under its name.
    """
    if not flow.loops:
        return False
    count: dict[str, int] = {}
    for name in flow.regs:
        first, _, number = name.partition("!")
        count[first] = max(count.get(first, 0), int(number or 0))
    live = [set(names) for names in flow.live_in]
    made: dict[str, set[Edge]] = {}  # where a register is written: on edges, or in blocks, as edges from and to them
    uses: dict[str, set[int]] = {}  # blocks that read it, or on whose outgoing edges it is read
    for i, block in enumerate(flow.blocks):
        for instr in block.instrs:
            for name in destinations(instr):
                made.setdefault(name, set()).add((i, i))
            for name in sources(instr):
                uses.setdefault(name, set()).add(i)
        if block.pred is not None:
            uses.setdefault(block.pred.name, set()).add(i)
        for t, copies in block.copies.items():
            for name, value in copies:
                made.setdefault(name, set()).add((i, t))
                uses.setdefault(value, set()).add(i)
    renamed = False
    for _, members in sorted(flow.loops, key=lambda loop: len(loop[1])):
        exits = [(i, t) for i in members for t in flow.blocks[i].targets if t not in members]
        leaving = {name for _, t in exits for name in live[t] if _inside(made.get(name, set()), members)}
        for name in sorted(leaving - kept):
            _leave(flow, name, _fresh(flow, name, count), members, exits, live, made, uses)
            renamed = True
    return renamed


def _inside(edges: set[Edge], members: frozenset[int]) -> set[Edge]:
    """Those of a loop. What is only written on its way in is not made there: others may go past the loop with it."""
    return {(i, t) for i, t in edges if i in members and t in members}


def _leave(
    flow: Flow,
    name: str,
    new: str,
    members: frozenset[int],
    exits: list[Edge],
    live: list[set[str]],
    made: dict[str, set[Edge]],
    uses: dict[str, set[int]],
) -> None:
    """Outside of the loop of `members`, which makes `name`, it is called `new`; the edges out of the loop copy it."""
    outside = uses.get(name, set()) - members
    for i in outside:
        block = flow.blocks[i]
        block.instrs = [_with_sources(x, {name: new}) if name in sources(x) else x for x in block.instrs]
        if block.pred is not None and block.pred.name == name:
            block.pred = Reg(new)
        for t, copies in block.copies.items():
            block.copies[t] = [(d, new if s == name else s) for d, s in copies]
    for i, t in exits:
        if name not in live[t]:
            continue
        copies = flow.blocks[i].copies.setdefault(t, [])
        for k, (d, s) in enumerate(copies):
            if d == name:  # an inner loop's exit leaves this loop as well
                copies[k] = (new, s)
                break
        else:
            copies.append((new, name))
            uses.setdefault(name, set()).add(i)
    made[new] = {(i, t) for i, t in exits if name in live[t]}
    made[name] = _inside(made[name], members)
    uses[new], uses[name] = outside, uses.get(name, set()) & members
    for i, names in enumerate(live):
        if i not in members and name in names:
            names.discard(name)
            names.add(new)
