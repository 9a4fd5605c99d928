"""What a thread reads of an output that it has set itself in a loop before: the value that was set, computed again.

The two loops have to run alike (equal start, step and condition), the read and the store to mean the same element in
equal iterations, under the same conditions, and each element to be set by one thread in one iteration. Then the value
that iteration k reads is what iteration k has set. What is added to an element is matched in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rawkern.gradients.analysis.digits import signature
from rawkern.gradients.analysis.ownership import induction, loops_around
from rawkern.gradients.ir import Block, If, Kernel, Loop, Store, Value, inside, walk
from rawkern.gradients.reading.lower import count
from rawkern.gradients.reading.repeats import substitute

PURE = ("cast", "unary", "binary", "select", "call")


def forwarded(kernel: Kernel, assume: bool) -> Kernel:
    """The kernel with such reads replaced, where the values can be computed again; it is changed in place.

    With `assume`, it may be right for some launches.
    """
    items, assumed = list(walk(kernel.body)), kernel.assumed if assume else None
    stores = [i for i in items if isinstance(i, Store) and not i.place.array.shared]
    written = {s.place.array for s in stores}
    changed = False
    for item in items:
        if isinstance(item, Value) and item.op == "load" and item.attr.array in written:
            found = _set_before(kernel, stores, item, item.attr, item.args, item.block, item.order, assumed)
            if found is None:
                continue
            copied = _Copy(found, item, written).of(found.store.value)
            if copied is not None:
                item.block.items[:] = [i for i in item.block.items if i is not item]
                substitute(items, {item: copied})
                changed = True
        elif isinstance(item, Store) and item.adds == "plain" and not item.begun:
            found = _set_before(kernel, stores, item, item.place, item.index, item.block, item.order, assumed)
            item.begun = found is not None
    if changed:
        count(kernel.body)
    return kernel


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
    if not own or len(index) != 1:
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
    later = [loop for loop in around if loop is not second and inside(loop.block, second.body)]
    for s in stores:  # others may not come in between, and those after it have to mean the element of the iteration
        if s is store or s is item or s.place != place:
            continue
        here = inside(s.block, second.body)
        if here and not _same(s.index[0], index[0], {}):
            return None
        added = s.adds and (here or (s.begun and isinstance(item, Store)))
        if store.order < s.order < order and not added:
            return None
        if isinstance(item, Value) and (s.adds or any(inside(s.block, loop.body) for loop in later)):
            return None
    mapped = _Match(store, first, second, phis)
    if not _same(store.index[0], index[0], phis) or not _within(store.block, first, block, second, phis):
        return None
    known = signature(kernel, store.index[0], store.block, store.order, loops=before, assumed=assumed)
    return mapped if known is not None else None


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


@dataclass
class _Copy:
    """A value of the first loop, computed again where the second one reads it."""

    match: _Match
    at: Value
    written: set
    known: dict[Value, Value | None] = field(default_factory=dict)

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
        again = value.op == "load" and not value.attr.array.shared and value.attr.array not in self.written
        if not again and value.op not in (*PURE, "const", "special", "param"):
            return None
        args = [self.of(a) for a in value.args]
        if None in args:
            return None
        made = Value(
            self.at.line, self.at.block, type=value.type, op=value.op, args=tuple(a for a in args if a is not None),
            attr=value.attr, name=value.name, const=value.const,
        )  # fmt: skip
        items = self.at.block.items
        items.insert(next(k for k, i in enumerate(items) if i is self.at), made)
        return made
