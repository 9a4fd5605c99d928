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

from rawkern.gradients.analysis.affine import induction, loops_around
from rawkern.gradients.analysis.injectivity import signatures
from rawkern.gradients.ir import (
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
    inside,
    operands,
    renumber,
    substitute,
    walk,
)

PURE = ("cast", "unary", "binary", "select", "call")


def forwarded(kernel: Kernel, assume: bool, shared: bool = False) -> Kernel:
    """The kernel with such reads replaced, where the values can be computed again; it is changed in place.

    With `assume`, it may be right for some launches; with `shared`, also reads of shared memory are replaced.
    """
    items, assumed = list(walk(kernel.body)), kernel.assumed if assume else None
    every = [i for i in items if isinstance(i, Store)]
    written, stores = {s.place.array for s in every}, [s for s in every if shared or not s.place.array.shared]
    followed = {s.place.array for s in stores}
    changed = False
    for item in items:
        if isinstance(item, Value) and item.op == "load" and item.attr.array in followed:
            found = _set_before(kernel, stores, item, item.attr, item.args, item.block, item.order, assumed)
            copied = (
                None
                if found is None
                else _Copy(found, item, written, _set_later(found, every)).instead(found.store.value)
            )
            if copied is None and (copied := _just_set(items, item)) is not None:
                item.block.items.remove(item)
            if copied is not None:
                substitute(list(walk(kernel.body)), {item: copied})
                changed = True
        elif isinstance(item, Store) and item.adds == "plain" and not (item.reads_own_store or item.place.array.shared):
            found = _set_before(kernel, stores, item, item.place, item.index, item.block, item.order, assumed)
            item.reads_own_store = found is not None
    if changed:
        renumber(kernel.body)
        while shared and (spare := next((s for s in stores if _stored_again(kernel, s)), None)) is not None:
            stores.remove(spare)
            spare.block.items[:] = [i for i in spare.block.items if i is not spare]
    return kernel


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
    before, array = loops_around(store.block), store.place.array
    items = list(walk(kernel.body))
    if not array.shared or store.adds or not before:
        return False
    if signatures(kernel, store.index, store.block, store.order, within_block=True, loops=before) is None:
        return False
    first = before[0]
    for s in items:
        if not isinstance(s, Store) or s.place != store.place or s.order <= first.last or s.adds:
            continue
        second = next(iter(loops_around(s.block)), None)
        if second is None or second.block is not first.block or (phis := _alike(first, second)) is None:
            continue
        always = _within(s.block, second, store.block, first, {b: a for a, b in phis.items()})
        between = [i for i in items if first.order < i.order <= second.last]
        unread = not any(isinstance(i, Value) and i.op == "load" and i.attr.array == array for i in between)
        if (
            always
            and unread
            and _all_same(store.index, s.index, phis)
            and not any(isinstance(i, Exit) for i in between)
        ):
            return True
    return False


def _set_later(match: _Match, stores: list[Store]) -> set[Array]:
    """The arrays that are set after the first of two loops has begun, or again with the loops around them."""
    begin = [match.first, *loops_around(match.first.block)][-1].order
    return {s.place.array for s in stores if s.order > begin}


@dataclass
class _Match:
    """A store in a loop, and a place in another that runs alike."""

    store: Store
    first: Loop
    second: Loop
    phis: dict[Value, Value]  # of the first loop: those of the second


def _set_before(
    kernel: Kernel, stores: list[Store], item: Value | Store, place, index: tuple[Value, ...], block: Block, order: int,
    assumed: list[Any] | None,
) -> _Match | None:  # fmt: skip
    """The store whose value is in an element when a place of the kernel is reached."""
    own = [s for s in stores if s.place == place and s.order < order and s is not item and not s.adds]
    if not own:
        return None
    store = max(own, key=lambda s: s.order)
    around, before = loops_around(block), loops_around(store.block)
    seconds = [loop for loop in around if before and loops_around(loop.block) == before[1:] and loop is not before[0]]
    if len(seconds) != 1 or not inside(seconds[0].block, before[0].block):
        return None
    first, second = before[0], seconds[0]
    phis = _alike(first, second)
    if phis is None:
        return None
    mapped = _Match(store, first, second, phis)
    if not _all_same(store.index, index, phis) or not _within(store.block, first, block, second, phis):
        return None
    within = place.array.shared
    known = signatures(
        kernel, store.index, store.block, store.order, within_block=within, loops=before, assumed=assumed
    )
    if known is None:
        return None
    later = [loop for loop in around if loop is not second and inside(loop.block, second.body)]
    for s in stores:  # others may not come in between; in the two loops, they have to mean the iteration's element
        if s is store or s is item or s.place != place:
            continue
        here = inside(s.block, second.body)
        if here or inside(s.block, first.body):
            own_loops = [second if here else first, *before[1:]]
            more = None if assumed is None else list(assumed)  # nothing else may be assumed for the others
            again = signatures(kernel, s.index, s.block, s.order, within_block=within, loops=own_loops, assumed=more)
            if again != known or more != assumed:
                return None
        added = s.adds and (here or (s.reads_own_store and isinstance(item, Store)))
        if store.order < s.order < order and not added:
            return None
        if isinstance(item, Value) and (s.adds or any(inside(s.block, loop.body) for loop in later)):
            return None
    return mapped


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
    if (a.op, a.type) != (b.op, b.type) or a.op not in (*PURE, "const", "special", "param") or a.attr != b.attr:
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
        if not (inside(value.block, self.match.first.body) or inside(value.block, self.match.first.test)):
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
        return unchanged or value.op in (*PURE, "const", "special", "param")

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
