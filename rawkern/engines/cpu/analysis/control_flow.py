"""Control flow of one PTX function: blocks in running order, loops, liveness and divergence regions.

Blocks are numbered in the order in which waiting lanes are served (lowest first): topological, with the
blocks of a loop next to each other. A lane that leaves the common path then waits for the others at the
point where the paths join again, and not later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rawkern.engines.cpu.analysis.dataflow import liveness, post_dominators
from rawkern.engines.cpu.analysis.graph import Block, Flow
from rawkern.engines.cpu.analysis.order import running_order
from rawkern.engines.cpu.analysis.tuples import sum_tuples
from rawkern.engines.cpu.ptx.data import Function, Imm, Instr, Label, Reg
from rawkern.engines.cpu.ptx.decode import Op, decode
from rawkern.errors import UnsupportedError


def build(function: Function, collectives: bool = False) -> Flow:
    """Split a function into ordered blocks and analyze them.

    `collectives`: instructions at which lanes of a warp wait for each other get blocks of their own.
    """
    blocks = _split(function, collectives)
    _separate_barriers(blocks)
    blocks = _ordered(_single_latches(blocks))[0]
    blocks, loops = _ordered(blocks)
    flow = Flow(blocks, loops, regs=function.regs)
    flow.tuples = sum_tuples(flow.instructions(), flow.regs)
    flow.predecessors = [[] for _ in blocks]
    for i, block in enumerate(blocks):
        for t in dict.fromkeys(block.targets):
            flow.predecessors[t].append(i)
    flow.ipdom = post_dominators(flow)
    flow.live_in = liveness(flow)
    return flow


def _split(function: Function, collectives: bool) -> list[Block]:
    """Cut at labels, branches and barriers; a predicated instruction becomes a branch around it."""
    labels: dict[str, int] = {}
    blocks: list[Block] = []
    pending: list[tuple[Block, list[str | int]]] = []  # targets by label or block number, resolved at the end
    current: list[Instr] = []

    def kind_of(op: Op) -> str | None:
        if op.collective == "block":
            return "barrier"
        return "collective" if collectives and op.collective == "mask" else None

    def close(
        kind: str, targets: list[str | int], pred: Reg | None = None, negated=False, ending: Instr | None = None
    ) -> None:
        nonlocal current
        block = Block(current, kind, [], pred, negated, ending=ending)
        blocks.append(block)
        pending.append((block, targets))
        current = []

    for item in _gathered(function.body) if collectives else function.body:
        if isinstance(item, Label):
            if current or not blocks:  # no branch goes to the first block, so a loop never starts there
                close("jump", [len(blocks) + 1])
            labels[item.name] = len(blocks)
            continue
        op, here = item.op, len(blocks)
        root = op.base
        if root == "bra":
            target = item.args[0].name
            if item.guard is None:
                close("jump", [target], ending=item)
            else:
                close("cond", [target, here + 1], item.guard, item.negated, item)
            continue
        if item.guard is not None:
            close("cond", [here + 1, here + 2], item.guard, item.negated, item)
        if root == "brx":
            table = function.tables.get(item.args[1].name)
            if table is None:
                raise function.unsupported(item, "its targets are not declared in the function")
            close("switch", list(table), item.args[0], ending=item)
        elif root in ("ret", "exit"):
            if root == "exit" and not function.entry:  # others became part of their callers
                raise function.unsupported(item, "in a device function that calls itself")
            close("ret", [], ending=item if item.guard is None else None)
        elif item.guard is not None:
            current = [Instr(op, item.args, None, False, item.loc)]
            close(kind_of(op) or "jump", [here + 2])
        else:
            kind = kind_of(op)
            if kind == "collective" and current:
                close("jump", [here + 1])
            current.append(item)
            if kind is not None:
                close(kind, [len(blocks) + 1])
            elif root == "trap":
                close("ret", [])
    close("ret", [])
    for block, targets in pending:
        block.targets = [_number(t, labels) for t in targets]
    return blocks


def _gathered(body: list[Instr | Label]) -> Iterator[Instr | Label]:
    """The same with a barrier of the warp before instructions for which all lanes must be there."""
    together = False
    for item in body:
        if isinstance(item, Label) or item.guard is not None or item.op.collective == "block" or item.op.facts.leaves:
            together = False
        if isinstance(item, Instr) and item.op.collective == "warp" and not together:
            yield Instr(decode("bar.warp.sync"), [Imm(0xFFFFFFFF, "i")], item.guard, item.negated, item.loc)
            together = item.guard is None
        yield item


def _separate_barriers(blocks: list[Block]) -> None:
    """Let a barrier or meeting be the only way to the block after it, so that nothing is copied on the way."""
    entered = Counter(t for block in blocks for t in block.targets)
    for block in list(blocks):
        if block.kind in ("barrier", "collective") and entered[block.targets[0]] > 1:
            blocks.append(Block([], "jump", list(block.targets)))
            block.targets = [len(blocks) - 1]


def _number(target: str | int, labels: dict[str, int]) -> int:
    if isinstance(target, int):
        return target
    if target not in labels:
        raise UnsupportedError(f"PTX branch to an unknown label {target}")
    return labels[target]


def _single_latches(blocks: list[Block]) -> list[Block]:
    """Give each loop one block that jumps back, so that lanes that `continue` wait for the others there."""
    ordered, loops = _ordered(blocks)
    for header, members in loops:
        latches = [m for m in members if header in ordered[m].targets]
        if len(latches) > 1:
            latch = len(ordered)
            ordered.append(Block([], "jump", [header]))
            for m in latches:
                ordered[m].targets = [latch if t == header else t for t in ordered[m].targets]
    return ordered


def _ordered(blocks: list[Block]) -> tuple[list[Block], list[tuple[int, frozenset[int]]]]:
    """Renumber the reachable blocks in running order; returns them and their loops."""
    order, loops = running_order([block.targets for block in blocks])
    number = {old: new for new, old in enumerate(order)}
    result = [blocks[i] for i in order]
    for block in result:
        block.targets = [number[t] for t in block.targets]
    return result, [(number[h], frozenset(number[m] for m in members)) for h, members in loops]
