"""Which reads of a shared array may be made between the same two barriers, and whether they then meet in an element.

A token says which barrier a thread passed last, and of which loops it has begun an iteration since, or left them. Two
reads that can have tokens of the same barrier can be made in one phase by two threads. All threads of a block go round
a loop equally often if every way round has a barrier: so if both have begun iterations of the same loops since, they
are in the same iteration, and one does not leave a loop in which the other begins an iteration.
"""

from __future__ import annotations

from typing import Any

from rawkern.gradients.index import scev
from rawkern.gradients.index.disjoint import disjoint
from rawkern.gradients.index.injective import injective
from rawkern.gradients.index.uniform import uniform
from rawkern.gradients.ir import Barrier, Block, If, Kernel, Loop, Value

Token = tuple[Any, frozenset[tuple[Loop, bool]]]  # a loop with True: begun an iteration; False: left


class Phases:
    """The reads of a kernel's shared arrays by phase."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.tokens: dict[Value, set[Token]] = {}
        self.free: set[Loop] = set()  # loops with a way round without a barrier
        self._flow(kernel.body, {(None, frozenset())})

    def apart(self, a: Value, others: list[Value]) -> bool:
        """Whether no other thread reads, by any of these, what a thread reads in the same phase."""
        met = [b for b in others if self._in_one_phase(a, b)]
        if injective(self.kernel, (a, *met), within_block=True) is not None:
            return True  # each thread has its own few elements, as in s[t + 16] and s[t + 32]
        return all(disjoint(self.kernel, a, b, self._same if self._alike(a, b) else None) for b in met)

    # Control flow -------------------------------------------------------------------------------------------------

    def _flow(self, block: Block, tokens: set[Token]) -> set[Token]:
        for item in block.items:
            if isinstance(item, Barrier) and item.text == "__syncthreads()":
                tokens = {(item, frozenset())}
            elif isinstance(item, Value) and item.op == "load" and item.attr.array.shared:
                self.tokens.setdefault(item, set()).update(tokens)
            elif isinstance(item, If):
                tokens = self._flow(item.then, tokens) | self._flow(item.other, tokens)
            elif isinstance(item, Loop):
                tokens = self._loop(item, tokens)
        return tokens

    def _loop(self, item: Loop, tokens: set[Token]) -> set[Token]:
        here: Token = (item, frozenset())
        if any(at is item for at, _ in self._flow(item.body, {here})):
            self.free.add(item)
        head, before, end = set(tokens), set(), set()
        while head != before:
            before = set(head)
            end = self._flow(item.body, {(at, done | {(item, True)}) for at, done in head})
            head |= end
        for read in self.tokens.values():
            read -= {t for t in read if t[0] is item}
        return {(at, done | {(item, False)}) for at, done in (end if scev.iterations(item) else head)}

    # Pairs --------------------------------------------------------------------------------------------------------

    def _in_one_phase(self, a: Value, b: Value) -> list[tuple[frozenset[Any], frozenset[Any]]]:
        """What two threads may have done since the same barrier when they come to two reads; empty if they don't."""
        pairs = [(p[1], q[1]) for p in self.tokens[a] for q in self.tokens[b] if p[0] is q[0]]
        return [(p, q) for p, q in pairs if not self._parted(p, q) and not self._parted(q, p)]

    def _alike(self, a: Value, b: Value) -> bool:
        """Whether two threads that come to two reads in one phase are in the same iterations of the loops around."""
        both = set(scev.loops_around(a.block)) & set(scev.loops_around(b.block))
        return all(self._begun(p, both) == self._begun(q, both) for p, q in self._in_one_phase(a, b))

    @staticmethod
    def _begun(done: frozenset[Any], within: set[Loop]) -> set[Loop]:
        return {loop for loop, begun in done if begun and loop in within}

    def _parted(self, p: frozenset[Any], q: frozenset[Any]) -> bool:
        """Whether one began an iteration of a loop where the other left it."""
        return any(
            begun and loop not in self.free and (loop, False) not in p and (loop, False) in q and (loop, True) not in q
            for loop, begun in p
        )

    def _same(self, v: Value) -> bool:
        """Whether a value is the same for all threads of a phase."""
        return uniform(v) and not self._varies(v.block)

    def _varies(self, block: Block) -> bool:
        return any(loop in self.free for loop in scev.loops_around(block))
