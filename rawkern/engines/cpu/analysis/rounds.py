"""Kernels whose blocks can run in rounds: all warps run a part of the kernel, from a barrier to the next, in a loop.

All threads of such a block come to the same barriers in the same order, whatever the data are. A warp then needs no
stack of its own to wait on: what it holds at a barrier lies beside what the others hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rawkern.engines.cpu.analysis.divergence import Analysis
from rawkern.engines.cpu.analysis.graph import Block, Flow, closure, numbers
from rawkern.engines.cpu.analysis.row_loops import row_loops
from rawkern.engines.cpu.analysis.uniformity import constant
from rawkern.engines.cpu.ptx.data import Function, Instr, Special
from rawkern.engines.cpu.ptx.operands import destinations, sources

MOST_INSTRUCTIONS = 256  # of a kernel: larger ones get few passes, before their parts become part of loops
_SAME = ("%ctaid", "%nctaid", "%ntid")  # special registers that are the same in the whole block
#: What may wait for other threads than by a barrier of the block, or has a warp's state elsewhere.
_OTHER_WAITS = ("mbarrier", "wgmma", "mapa", "call", "griddepcontrol")


@dataclass(frozen=True)
class Rounds:
    """A kernel in parts: one from its start, and one from each barrier, with which the blocks `barriers` end.

    In the loops with the headers `rows` warps take turns (`row_loops`).
    """

    flow: Flow
    barriers: tuple[int, ...]
    rows: tuple[int, ...]
    uniform: frozenset[str]  # registers that hold one value for the whole block

    def part(self, barrier: int) -> int:
        """The number of the part that begins after the barrier of a block; that from the start is 0."""
        return self.barriers.index(barrier) + 1

    def begin(self, part: int) -> int:
        """The block that a part begins with."""
        return self.flow.blocks[self.barriers[part - 1]].targets[0] if part else 0

    def following(self, part: int) -> list[int]:
        """The parts that may follow a part; the end is none."""
        return sorted(self.part(b) for b in self._blocks(part) if b in self.barriers)

    def turns(self, part: int) -> list[int]:
        """The loops of a part in which warps take turns: their numbers, from 1 on in all of the kernel."""
        blocks = self._blocks(part)
        return [k for k, header in enumerate(self.rows, 1) if header in blocks]

    def _blocks(self, part: int) -> set[int]:
        """The blocks that a part may come to, with those that end it."""

        def targets(b: int) -> list[int]:
            return [] if b in self.barriers else self.flow.blocks[b].targets

        return closure([self.begin(part)], targets)


def find_rounds(function: Function, flow: Flow, analysis: Analysis) -> Rounds | None:
    """How the blocks of a kernel without functions can run in rounds; None if they cannot, or would be slower."""
    barriers = tuple(i for i, block in enumerate(flow.blocks) if block.kind == "barrier")
    if (
        not barriers
        or analysis.free_running
        or analysis.spin_headers
        or flow.tuples
        or any(var.space != "shared" for var in function.local_vars.values())  # memory of a call
        or sum(len(block.instrs) for block in flow.blocks) > MOST_INSTRUCTIONS
        or not all(_is_plain(instr, analysis) for instr in flow.instructions())
        or any(analysis.concurrent[i] for i in barriers)
    ):
        return None
    following = _post_dominators(flow)
    if following is None:
        return None
    uniform, apart = _uniform(flow, following)
    return None if apart.intersection(barriers) else Rounds(flow, barriers, tuple(row_loops(flow)), uniform)


def _is_plain(instr: Instr, analysis: Analysis) -> bool:
    """Whether an instruction waits for no other threads, or is the barrier of all threads of the block."""
    op = instr.op
    if op.collective == "block":
        named = op.has("red") or op.has("arrive") or len(instr.args) != 1 or op.name == "barrier.cluster"
        return not named and constant(instr.args[0], analysis.constants) == 0
    bulk = op.base == "cp" and op.has("bulk")
    return not (op.base in _OTHER_WAITS or bulk or op.name in ("st.async", "red.async", "cp.async.mbarrier"))


def _post_dominators(flow: Flow) -> list[int] | None:
    """For each block those that all its threads come to later, as bits; None if some may never come to the end."""
    ends = [i for i, block in enumerate(flow.blocks) if block.kind == "ret"]
    reached = flow.all_reachable()
    if not all(i in ends or any(reached[i] >> end & 1 for end in ends) for i in range(len(flow.blocks))):
        return None
    every = (1 << len(flow.blocks)) - 1
    found, before = [every] * len(flow.blocks), None
    while found != before:
        before = list(found)
        for i in reversed(range(len(found))):
            common = 0 if i in ends else every
            for t in flow.blocks[i].targets:
                common &= found[t]
            found[i] = common | 1 << i
    return [bits & ~(1 << i) for i, bits in enumerate(found)]


def _uniform(flow: Flow, following: list[int]) -> tuple[frozenset[str], set[int]]:
    """Registers that are the same in all threads of the block, and blocks that not all of them may run."""
    varying, apart = set(flow.live_in[0]), set()  # what is read before it is written may hold anything
    parted: set[int] = set()  # blocks that threads may leave for different targets
    before = None
    while before != (before := (len(varying), len(apart), len(parted))):
        for i, block in enumerate(flow.blocks):
            varying.update(list(_changing(block, varying, i in apart, i in apart or i in parted)))
            if i not in parted and block.pred is not None and block.pred.name in varying:
                parted.add(i)
                apart |= _until(flow, i, following[i])
    names = {name for instr in flow.instructions() for name in destinations(instr)}
    return frozenset(names - varying), apart


def _until(flow: Flow, i: int, bits: int) -> set[int]:
    """Blocks between a branch and where all its threads are together again."""
    stops = set(numbers(bits))

    def targets(b: int) -> set[int]:
        return set(flow.blocks[b].targets) - stops

    return closure(targets(i), targets)


def _changing(block: Block, varying: set[str], apart: bool, parted: bool) -> Iterator[str]:
    """Registers that a block writes, or an edge out of it, and that may then differ between threads.

    `apart`: some threads may come by more often than others, or not at all; `parted`: they may leave apart.
    """
    for instr in block.instrs:
        if apart or not _is_same(instr, varying.isdisjoint):
            yield from destinations(instr)
    for copies in block.copies.values():
        for name, source in copies:
            if parted or source in varying:
                yield name


def _is_same(instr: Instr, known: Callable[[list[str]], bool]) -> bool:
    """Whether an instruction does the same in all threads, if its operands are `known` to be the same."""
    op = instr.op
    loads = op.base == "ld" and (op.space in ("param", "const") or op.has("nc"))
    own = (isinstance(a, Special) and not a.name.startswith(_SAME) for a in instr.args)
    return (op.facts.pure or loads) and known(sources(instr)) and not any(own)
