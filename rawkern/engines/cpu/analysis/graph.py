"""The control flow of one PTX function as plain data: blocks in running order, loops, and what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rawkern.engines.cpu.ptx.data import Instr, Reg
from rawkern.engines.cpu.ptx.decode import decode

T = TypeVar("T")


@dataclass
class Block:
    """Straight-line code and how it ends.

    ``kind``: ``jump`` to ``targets[0]``; ``cond``: ``targets[0]`` where ``pred`` holds, else ``targets[1]``;
    ``switch``: ``targets[pred]``; ``barrier``: the last instruction is a barrier of the block, then ``targets[0]``;
    ``collective``: the only instruction is a collective one of the warp; ``ret``. ``copies``: for a target, the
    registers (to, from) that lanes copy on their way there, all at once (`ssa`). ``ending``: the branch or
    return that PTX has there, its registers by their first names; or the instruction that some lanes skip (`guards`).
    """

    instrs: list[Instr]
    kind: str
    targets: list[int]
    pred: Reg | None = None
    negated: bool = False
    copies: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    ending: Instr | None = None

    @property
    def exit_only(self) -> bool:
        return self.kind == "ret" and not self.instrs

    @property
    def guards(self) -> bool:
        """Whether lanes diverge over one instruction only, which is in the next block."""
        return self.kind == "cond" and self.ending is not None and self.ending.op.base not in ("bra", "ret", "exit")


@dataclass
class Flow:
    blocks: list[Block]
    loops: list[tuple[int, frozenset[int]]] = field(default_factory=list)  # (header, members), outermost first
    live_in: list[frozenset[str]] = field(default_factory=list)
    predecessors: list[list[int]] = field(default_factory=list)
    ipdom: list[int | None] = field(default_factory=list)  # None: only the function's end is common
    regs: dict[str, str] = field(default_factory=dict)  # type of each register
    tuples: list[tuple[str, ...]] = field(default_factory=list)  # registers that are contiguous in memory (`tuples`)

    def instructions(self) -> list[Instr]:
        return instructions(self.blocks)

    def reachable(self, index: int) -> set[int]:
        """Blocks that lanes can come to from a block."""
        return closure(self.blocks[index].targets, lambda b: self.blocks[b].targets)

    def all_reachable(self) -> list[int]:
        """The same for every block, as bits."""
        found, before = [0] * len(self.blocks), None
        while found != before:  # as often as loops are nested
            before = list(found)
            for i in reversed(range(len(found))):
                for t in self.blocks[i].targets:
                    found[i] |= 1 << t | found[t]
        return found

    def lane_targets(self, index: int) -> list[int]:
        """Successors at which lanes continue; lanes do not wait at blocks that only return."""
        return [t for t in self.blocks[index].targets if not self.blocks[t].exit_only]


def instructions(blocks: Sequence[Block]) -> list[Instr]:
    """All instructions, and what edges copy as moves."""
    found = [instr for block in blocks for instr in block.instrs]
    copies = (pair for block in blocks for pairs in block.copies.values() for pair in pairs)
    return found + [Instr(decode("mov"), [Reg(name), Reg(source)]) for name, source in copies]


def closure(start: Iterable[T], following: Callable[[T], Iterable[T]]) -> set[T]:
    """`start` and all that follows from there, step by step."""
    found = set(start)
    work = list(found)
    while work:
        new = set(following(work.pop())) - found
        found |= new
        work += new
    return found


def numbers(bits: int) -> Iterator[int]:
    """The bits that are set, lowest first."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
