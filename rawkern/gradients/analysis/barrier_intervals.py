"""Which reads of a shared array may be made between the same two barriers, and whether they then meet in an element.

A token says which barrier a thread passed last, and of which loops it has begun an iteration since, or left them. Two
reads that can have tokens of the same barrier can be made in one phase by two threads. All threads of a block go round
a loop equally often if every way round has a barrier: so if both have begun iterations of the same loops since, they
are in the same iteration, and one does not leave a loop in which the other begins an iteration.
"""

from __future__ import annotations

from typing import Any

from rawkern.gradients.analysis import access_groups, affine, injectivity, loops
from rawkern.gradients.analysis.affine import Poly, add, poly
from rawkern.gradients.analysis.guards import Facts, facts
from rawkern.gradients.analysis.uniform import uniform
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
        if all(len(r.args) == 1 for r in (a, *met)) and self._told_apart((a, *met)):
            return True
        return all(self._apart(a, b) for b in met)

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
        return {(at, done | {(item, False)}) for at, done in (end if loops.iterations(item) else head)}

    # Pairs --------------------------------------------------------------------------------------------------------

    def _in_one_phase(self, a: Value, b: Value) -> list[tuple[frozenset[Any], frozenset[Any]]]:
        """What two threads may have done since the same barrier when they come to two reads; empty if they don't."""
        pairs = [(p[1], q[1]) for p in self.tokens[a] for q in self.tokens[b] if p[0] is q[0]]
        return [(p, q) for p, q in pairs if not self._parted(p, q) and not self._parted(q, p)]

    def _apart(self, a: Value, b: Value) -> bool:
        both = set(affine.loops_around(a.block)) & set(affine.loops_around(b.block))
        alike = all(self._begun(p, both) == self._begun(q, both) for p, q in self._in_one_phase(a, b))
        if len(a.args) != len(b.args) or len(a.args) != 1:
            return False
        first, second = (self._signature(r, alike) for r in (a, b))
        if (first is not None and first == second) or self._told_apart((a, b)):
            return True
        return alike and (self._below(a, b) or self._below(b, a))

    def _told_apart(self, reads: tuple[Value, ...]) -> bool:
        """Whether each thread has its own few elements, as in s[t + 16] and s[t + 32]."""
        return access_groups.which(self.kernel, reads, within_block=True) is not None

    @staticmethod
    def _begun(done: frozenset[Any], within: set[Loop]) -> set[Loop]:
        return {loop for loop, begun in done if begun and loop in within}

    def _parted(self, p: frozenset[Any], q: frozenset[Any]) -> bool:
        """Whether one began an iteration of a loop where the other left it."""
        return any(
            begun and loop not in self.free and (loop, False) not in p and (loop, False) in q and (loop, True) not in q
            for loop, begun in p
        )

    def _signature(self, r: Value, alike: bool) -> Any:
        same = self._same(poly(r.args[0])) if alike else set()
        return injectivity.signature(self.kernel, r.args[0], r.block, r.order, within_block=True, same=same)

    def _same(self, p: Poly) -> set[Value]:
        """The values in a polynomial that are the same for all threads of a phase."""
        return {s for key in p for s in key if isinstance(s, Value) and uniform(s) and not self._varies(s.block)}

    def _varies(self, block: Block) -> bool:
        return any(loop in self.free for loop in affine.loops_around(block))

    def _below(self, a: Value, b: Value) -> bool:
        """Whether every index of `a` is less than each of `b`, by a bound that all threads share."""
        low, high = poly(a.args[0]), poly(b.args[0])
        extents = affine.threads(self.kernel, True)
        bound: Poly = {}
        for key, value in high.items():
            if len(key) == 1 and key[0] in extents and value > 0:
                continue
            bound[key] = value
        values = {s for p in (low, bound) for key in p for s in key if isinstance(s, Value)}
        if any(isinstance(s, Loop) or s in extents for key in bound for s in key):
            return False
        if values - self._same(low) - self._same(bound):
            return False
        most: Poly = {}
        for key, value in low.items():
            if len(key) == 1 and key[0] in extents and value > 0:
                most = add(most, {(): value * ((extents[key[0]] or 0) - 1)})
            else:
                most = add(most, {key: value})
        known = facts(a.block, a.order)
        return injectivity.fits(most, None, bound, Facts([], {})) or injectivity.fits(low, None, bound, known)
