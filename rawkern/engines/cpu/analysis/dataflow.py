"""What holds along the paths of a function: where they meet for certain, and which registers are still read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rawkern.engines.cpu.analysis.graph import Flow, closure, numbers
from rawkern.engines.cpu.ptx.data import TYPE_BYTES, Instr
from rawkern.engines.cpu.ptx.operands import destinations, sources


def post_dominators(flow: Flow) -> list[int | None]:
    """Immediate post-dominators in the graph of lanes that stay alive; bit n stands for the function's end."""
    n = len(flow.blocks)
    end = 1 << n
    every = (end << 1) - 1
    sets = [every] * n
    targets = [flow.lane_targets(i) for i in range(n)]
    ending = {i for i in range(n) if not targets[i]}
    leaving = [i for i in range(n) if any(flow.blocks[t].exit_only for t in flow.blocks[i].targets)]
    # lanes that stay in a loop which is left by returning alone all come to the last block that returns
    while rest := set(leaving) - _reaching(ending, targets):
        ending.add(max(rest))
    ending |= set(range(n)) - _reaching(ending, targets)
    changed = True
    while changed:
        changed = False
        for i in reversed(range(n)):
            common = every
            for t in targets[i]:
                common &= sets[t]
            if i in ending:
                common &= end
            new = common | 1 << i
            if new != sets[i]:
                sets[i], changed = new, True
    result: list[int | None] = []
    for i in range(n):
        strict, size = sets[i] & ~(1 << i) & ~end, sets[i].bit_count() - 1
        result.append(next((j for j in numbers(strict) if sets[j].bit_count() == size), None))
    return result


def _reaching(ends: set[int], targets: list[list[int]]) -> set[int]:
    """Blocks from which one of `ends` can be reached."""
    before: list[list[int]] = [[] for _ in targets]
    for i, following in enumerate(targets):
        for t in following:
            before[t].append(i)
    return closure(ends, lambda i: before[i])


def derived(instrs: Sequence[Instr], start: Iterable[str]) -> set[str]:
    """The registers in `start`, and those that instructions compute from such."""
    found, before = set(start), -1
    while len(found) > before:
        before = len(found)
        for i in instrs:
            if not found.isdisjoint(sources(i)):
                found.update(destinations(i))
    return found


def liveness(flow: Flow) -> list[frozenset[str]]:
    """Registers that are read after the start of each block, or on an edge out of it, before they are written."""
    number: dict[str, int] = {}
    names: list[str] = []

    def bit(name: str) -> int:
        if name not in number:
            number[name] = len(names)
            names.append(name)
        return 1 << number[name]

    use, define = [], []
    read: dict[tuple[int, int], tuple[int, int]] = {}  # by edge: what is copied, and where to
    for i, block in enumerate(flow.blocks):
        used: set[str] = set()
        defined: set[str] = set()
        for instr in block.instrs:
            used.update(name for name in sources(instr) if name not in defined)
            defined.update(destinations(instr))
        if block.pred is not None and block.pred.name not in defined:
            used.add(block.pred.name)
        use.append(sum(map(bit, used)))
        define.append(sum(map(bit, defined)))
        for t, copies in block.copies.items():
            read[i, t] = sum({bit(source) for _, source in copies}), sum({bit(to) for to, _ in copies})
    live = [0] * len(flow.blocks)
    work = list(range(len(flow.blocks)))
    queued = set(work)
    while work:
        i = work.pop()
        queued.discard(i)
        out = 0
        for t in flow.blocks[i].targets:
            copied, written = read.get((i, t), (0, 0))
            out |= live[t] & ~written | copied
        new = use[i] | (out & ~define[i])
        if new != live[i]:
            live[i] = new
            for p in flow.predecessors[i]:
                if p not in queued:
                    queued.add(p)
                    work.append(p)
    return [frozenset(names[k] for k in numbers(bits)) for bits in live]


def most_live(flow: Flow) -> int:
    """How many registers of 32 bits the values take that are held at once, at most; predicates take none."""
    words = {name: 0 if ty == "pred" else -(-TYPE_BYTES[ty] // 4) for name, ty in flow.regs.items()}
    most = 0
    for block in flow.blocks:
        live = {name for t in block.targets for name in flow.live_in[t]}
        live.update(source for pairs in block.copies.values() for _, source in pairs)
        held = sum(words[name] for name in live)
        most = max(most, held)
        for instr in reversed(block.instrs):
            written, read = destinations(instr), sources(instr)
            held -= sum(words[name] for name in live.intersection(written))
            live.difference_update(written)
            held += sum(words[name] for name in set(read) - live)
            live.update(read)
            most = max(most, held)
    return most
