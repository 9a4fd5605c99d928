"""What a thread reads of an output that it has set itself in a loop before: the value that was set, computed again.

The two loops have to run alike (equal start, step and condition), the read and the store to mean the same element in
equal iterations, under the same conditions, and each element to be set by one thread in one iteration. Then the value
that iteration k reads is what iteration k has set. What is added to an element is matched in the same way.

So it is with shared memory where a block keeps a row of which each thread has its part. What was stored of such a part
only for the thread itself is stored for nothing then, if a later loop that runs alike stores all of it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rawkern.gradients.index.injective import AtMost, Question, signature
from rawkern.gradients.index.scev import induction, loops_around
from rawkern.gradients.ir import (
    PURE,
    Access,
    Array,
    Barrier,
    Block,
    Carried,
    Exit,
    If,
    Kernel,
    Loop,
    Store,
    Value,
    computed_in,
    index_of,
    inside,
    operands,
    place_of,
    renumber,
    substitute,
    walk,
)


def forwarded(kernel: Kernel, assume: bool, shared: bool = False) -> Kernel:
    """The kernel with such reads replaced, where the values can be computed again; it is changed in place.

    With `assume`, it may be right for some launches; with `shared`, also reads of shared memory are replaced.
    """
    items, assumed = list(walk(kernel.body)), kernel.assumed if assume else None
    every = [i for i in items if isinstance(i, Store)]
    stores = [s for s in every if shared or not s.place.array.shared]
    followed, changed = {s.place.array for s in stores}, False
    for item in items:
        if getattr(item, "op", "") == "load" and item.attr.array in followed and item.tape is None:
            found = _set_before(kernel, stores, item, assumed)
            instead = _instead(item, found, items, every)
            if instead is not None:
                substitute(list(walk(kernel.body)), {item: instead})
                changed = True
        elif (
            isinstance(item, Store)
            and item.adds == "plain"
            and not item.reads_own_store
            and not item.place.array.shared
        ):
            item.reads_own_store = _set_before(kernel, stores, item, assumed) is not None
    if changed:
        renumber(kernel.body)
        _drop_spare(kernel, stores if shared else [])
    return kernel


def _instead(load: Value, match: _Match | None, items: list[Any], stores: Sequence[Store]) -> Value | None:
    """What takes the place of a read, which is gone then; None leaves it."""
    copied = None if match is None else _Copy.of_store(match, load, stores).instead(match.store.value)
    if copied is None and (copied := _just_set(items, load)) is not None:
        load.block.items.remove(load)
    return copied


def _drop_spare(kernel: Kernel, stores: list[Store]) -> None:
    """Take out stores to shared memory that are for nothing."""
    while (spare := next((s for s in stores if _stored_again(kernel, s)), None)) is not None:
        stores.remove(spare)
        spare.block.items[:] = [i for i in spare.block.items if i is not spare]


def _just_set(items: list[Any], load: Value) -> Value | None:
    """What a thread has set right before, in the same iteration, where it reads it."""
    own = [i for i in items if isinstance(i, Store) and i.place == load.attr and i.order < load.order]
    store, here = max(own, key=lambda s: s.order, default=None), load.block
    if store is None or store.adds or any(isinstance(i, Barrier) and store.order < i.order < load.order for i in items):
        return None
    while here is not store.block:
        if here.parent is None or isinstance(here.parent, Loop):
            return None
        here = here.parent.block
    same = _all_same(store.index, load.args, {}) and store.value.type == load.type
    return store.value if same else None


def _stored_again(kernel: Kernel, store: Store) -> bool:
    """Whether a thread stores again, in a later loop that runs alike, what it stores in shared memory, unread."""
    before, items = loops_around(store.block), list(walk(kernel.body))
    if not store.place.array.shared or store.adds or not before:
        return False
    if signature(Question(kernel, within_block=True), store, before) is None:
        return False
    later = [i for i in items if isinstance(i, Store) and i.place == store.place and i.order > before[0].last]
    return any(_replaces(s, store, before[0], items) for s in later if not s.adds)


def _replaces(s: Store, store: Store, first: Loop, items: Sequence[Any]) -> bool:
    """Whether a store in a later loop always sets what another has set in the first one, before that is read."""
    second = next(iter(loops_around(s.block)), None)
    if second is None or second.block is not first.block or (phis := _alike(first, second)) is None:
        return False
    if not _within(s.block, second, store.block, first, {b: a for a, b in phis.items()}):
        return False
    between = [i for i in items if first.order < i.order <= second.last]
    read = any(getattr(i, "op", "") == "load" and i.attr.array == store.place.array for i in between)
    return not read and not any(isinstance(i, Exit) for i in between) and _all_same(store.index, s.index, phis)


@dataclass
class _Match:
    """A store in a loop, and a place in another that runs alike."""

    store: Store
    first: Loop
    second: Loop
    phis: dict[Value, Value]  # of the first loop: those of the second


def _set_before(kernel: Kernel, stores: list[Store], item: Access, assumed: list[AtMost] | None) -> _Match | None:
    """The store whose value is in an element when a load or store of it is reached."""
    alike = [s for s in stores if s.place == place_of(item) and s is not item]
    store = max((s for s in alike if s.order < item.order and not s.adds), key=lambda s: s.order, default=None)
    match = None if store is None else _matched(store, item)
    if store is None or match is None:
        return None
    question = Question(kernel, store.place.array.shared, assumed=assumed)
    known = signature(question, store, loops_around(store.block))
    others = [s for s in alike if s is not store]
    if known is None or any(_comes_between(s, item, match) for s in others):
        return None
    return match if all(_of_iteration(s, match, question, known) for s in others) else None


def _of_iteration(s: Store, match: _Match, question: Question, known: Any) -> bool:
    """Whether another store, if it is in the two loops, means the iteration's element."""
    own = next((loop for loop in (match.second, match.first) if inside(s.block, loop.body)), None)
    if own is None:
        return True
    more = None if question.assumed is None else list(question.assumed)  # nothing else may be assumed for it
    loops = [own, *loops_around(match.store.block)[1:]]
    return signature(replace(question, assumed=more), s, loops) == known and more == question.assumed


def _matched(store: Store, item: Access) -> _Match | None:
    """A store and an access that means the same element in the same iteration of a loop that runs alike."""
    around, before = loops_around(item.block), loops_around(store.block)
    seconds = [loop for loop in around if before and loops_around(loop.block) == before[1:] and loop is not before[0]]
    if len(seconds) != 1 or not inside(seconds[0].block, before[0].block):
        return None
    first, second = before[0], seconds[0]
    phis = _alike(first, second)
    if phis is None or not _all_same(store.index, index_of(item), phis):
        return None
    return _Match(store, first, second, phis) if _within(store.block, first, item.block, second, phis) else None


def _comes_between(s: Store, item: Access, match: _Match) -> bool:
    """Whether another store may change what an access is to find."""
    added = s.adds and (inside(s.block, match.second.body) or (s.reads_own_store and isinstance(item, Store)))
    if match.store.order < s.order < item.order and not added:
        return True
    later = [loop for loop in loops_around(item.block) if loop is not match.second]
    again = any(inside(loop.block, match.second.body) and inside(s.block, loop.body) for loop in later)
    return isinstance(item, Value) and (bool(s.adds) or again)


def _alike(first: Loop, second: Loop) -> dict[Value, Value] | None:
    """The variables of two loops that run alike; None if that is not certain."""
    steps, others = induction(first), induction(second)
    phis: dict[Value, Value] = {}
    for phi, (start, step) in steps.items():
        fit = [p for p, (a, b) in others.items() if p.type == phi.type and _same(start, a, {}) and _same(step, b, {})]
        if len(fit) == 1:
            phis[phi] = fit[0]
    return phis if phis and _same(first.condition, second.condition, phis) else None


def _within(block: Block, first: Loop, other: Block, second: Loop, phis: dict[Value, Value]) -> bool:
    """Whether what reaches a block of the second loop has reached one of the first in the same iteration."""
    needed, given = _branches(block, first), _branches(other, second)
    return needed is not None and all(
        any(side == s and _same(condition, c, phis) for s, c in given or []) for side, condition in needed
    )


def _branches(block: Block, loop: Loop) -> list[tuple[bool, Value]] | None:
    """The sides of branches between a loop's body and a block in it; None if there is another loop between."""
    found = []
    while block is not loop.body:
        parent = block.parent
        if isinstance(parent, If):
            found.append((block is parent.then, parent.condition))
        elif not isinstance(parent, Loop):
            return None
        block = parent.block
    return found


def _same(a: Value, b: Value, phis: dict[Value, Value]) -> bool:
    """Whether two values are computed alike, one with the variables of the other's loop."""
    if a is b or (a in phis and phis[a] is b):
        return True
    if a.const is not None and a.const == b.const and a.type == b.type:
        return True
    if (a.op, a.type) != (b.op, b.type) or a.op not in PURE or a.attr != b.attr:
        return False
    return len(a.args) == len(b.args) and all(_same(x, y, phis) for x, y in zip(a.args, b.args, strict=True))


def _all_same(a: Sequence[Value], b: Sequence[Value], phis: dict[Value, Value]) -> bool:
    return len(a) == len(b) and all(_same(x, y, phis) for x, y in zip(a, b, strict=True))


@dataclass
class _Copy:
    """A value of the first loop, computed again where the second one reads it."""

    match: _Match
    at: Value
    written: set[Array]
    later: set[Array]  # shared arrays that may be set again when the second loop runs
    known: dict[Value, Value | None] = field(default_factory=dict)
    made: list[Any] = field(default_factory=list)

    @classmethod
    def of_store(cls, match: _Match, at: Value, stores: Sequence[Store]) -> _Copy:
        """A copy for a read at which a store's value is in the element; `stores`: all of the kernel."""
        begin = [match.first, *loops_around(match.first.block)][-1].order
        later = {s.place.array for s in stores if s.order > begin}  # in the first loop, or again with those around it
        return cls(match, at, {s.place.array for s in stores}, later)

    def instead(self, value: Value) -> Value | None:
        """The copy, in the place of the read, with all that it is computed from; None leaves everything as it is."""
        found = self.of(value)
        if found is not None:
            items = self.at.block.items
            at = next(k for k, i in enumerate(items) if i is self.at)
            items[at : at + 1] = self.made
        return found

    def of(self, value: Value) -> Value | None:
        """The copy; None if the value depends on more than the iteration, or on memory that changes."""
        if value not in self.known:
            self.known[value] = self._made(value)
        return self.known[value]

    def _made(self, value: Value) -> Value | None:
        if value in self.match.phis:
            return self.match.phis[value]
        if not computed_in(value, self.match.first):
            return value
        if value.op == "result":
            return self.known.get(value) if self._repeated(value.attr) else None
        if not self._again(value):
            return None
        args = [self.of(a) for a in value.args]
        if None in args:
            return None
        made = self._like(value, self.at.block, tuple(a for a in args if a is not None))
        self.made.append(made)
        return made

    def _again(self, value: Value) -> bool:
        """Whether a value can be computed again from others."""
        array = value.attr.array if value.op == "load" else None
        unchanged = array is not None and array not in (self.later if array.shared else self.written)
        return unchanged or value.op in PURE

    def _like(self, value: Value, block: Block, args: tuple[Value, ...], attr: Any = None) -> Value:
        return replace(value, line=self.at.line, block=block, args=args, attr=value.attr if attr is None else attr)

    def _repeated(self, item: If | Loop) -> bool:
        """Make a loop or a branch again that only computes; whether that can be."""
        within = list(walk(item.body)) + list(walk(item.test)) if isinstance(item, Loop) else [
            *walk(item.then), *walk(item.other)]  # fmt: skip
        for each in within:
            if not isinstance(each, If | Loop) and not (
                isinstance(each, Value) and (each.op == "result" or self._again(each))
            ):
                return False
        blocks = [item.test, item.body] if isinstance(item, Loop) else [item.then, item.other]
        for v in {v for each in [item, *within] for v in operands(each)}:
            own = v.op == "phi" and (v.attr is item or v.attr in within)
            if not own and not any(inside(v.block, b) for b in blocks) and self.of(v) is None:
                return False
        self.made += self._copied(item, self.at.block)
        return True

    def _copied(self, item: Any, block: Block) -> list[Any]:
        """A copy of an item of which all that it needs is known."""
        if isinstance(item, Value):
            if item.op == "result":
                return []  # made with what it is of
            self.known[item] = made = self._like(item, block, tuple(self._of_copy(a) for a in item.args))
            return [made]
        if isinstance(item, If):
            branch = If(self.at.line, block)
            branch.then.parent = branch.other.parent = branch
            branch.condition = self._of_copy(item.condition)
            self._fill(branch.then, item.then)
            self._fill(branch.other, item.other)
            for result, a, b in item.results:
                self.known[result] = made = self._like(result, block, (), branch)
                branch.results.append((made, self._of_copy(a), self._of_copy(b)))
            return [branch, *(r for r, _, _ in branch.results)]
        loop = Loop(self.at.line, block, node=item.node)
        loop.test.parent = loop.body.parent = loop
        for c in item.carried:
            self.known[c.phi] = self._like(c.phi, loop.body, (), loop)
            self.known[c.result] = self._like(c.result, block, (), loop)
        self._fill(loop.test, item.test)
        self._fill(loop.body, item.body)
        loop.condition = self._of_copy(item.condition)
        loop.carried = [Carried(*map(self._of_copy, (c.phi, c.init, c.next, c.result))) for c in item.carried]
        return [loop, *(c.result for c in loop.carried)]

    def _fill(self, block: Block, like: Block) -> None:
        for each in like.items:
            block.items += self._copied(each, block)

    def _of_copy(self, value: Value) -> Value:
        found = self.of(value)
        assert found is not None
        return found
