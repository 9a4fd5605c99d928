"""Trees over the threads of a block in shared memory: the sum or maximum of what each thread has put there.

``s[t] = v; for (k = 128; k > 0; k >>= 1) { __syncthreads(); if (t < k) s[t] += s[t + k]; }`` leaves the sum over the
block in s[0]. Whether a text does is found by running it for every thread, whatever its form: a place has the set of
threads whose values are combined in it. Where that is all of them in s[0], each once, where no thread reads or sets
between two barriers what another sets, and where of the array only s[0] is read until all threads set it anew, the tree
is a value: a reduction of v over the block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.analysis import ownership
from rawkern.gradients.ir import Array, Barrier, Block, Exit, If, Kernel, Loop, Store, Value, children, operands, walk
from rawkern.gradients.reading.lower import count
from rawkern.gradients.reading.repeats import substitute

MOST_STEPS = 64  # iterations of a loop that is run here
_SIGNS = {"fmax": "max", "fmin": "min"}
_INTEGERS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "&": lambda a, b: a & b,
    "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "&&": lambda a, b: bool(a and b),
    "||": lambda a, b: bool(a or b), "/": lambda a, b: a // b, "%": lambda a, b: a % b,
}  # fmt: skip


class NoTree(Exception):
    """What is run is something else."""


@dataclass
class Tree:
    """One tree: the store that begins it, the item after it, and where its result is read."""

    start: Store
    sign: str
    after: int  # in the items of the store's block
    steps: list[Any]  # its accesses
    reads: list[Value]


def with_reductions(kernel: Kernel) -> Kernel:
    """The kernel with its trees as values; it is changed in place."""
    threads = math.prod(kernel.block)
    for array in [a for a in kernel.shared if a.type in ("float", "double") and not a.raw] if threads % 32 == 0 else ():
        try:
            trees = _trees(kernel, array)
        except NoTree:
            continue
        for tree in reversed(trees):
            _put(kernel, tree)
        kernel.shared.remove(array)
        count(kernel.body)
    return kernel


def _touches(item: Any, array: Array) -> bool:
    return (isinstance(item, Store) and item.place.array == array) or (
        isinstance(item, Value) and item.op == "load" and item.attr.array == array
    )


def _accesses(item: Any, array: Array) -> list[Any]:
    found = [item, *(each for block in children(item) for each in walk(block))]
    return [each for each in found if _touches(each, array)]


def _trees(kernel: Kernel, array: Array) -> list[Tree]:
    """The trees that all of the accesses to an array are made of."""
    rank = _rank(kernel)
    items = [i for i in walk(kernel.body) if _touches(i, array)]
    if not items or not isinstance(items[0], Store) or any(len(i.index) != 1 for i in items if isinstance(i, Store)):
        raise NoTree
    block = items[0].block
    starts = [
        k
        for k, i in enumerate(block.items)
        if isinstance(i, Store) and i.place.array == array and not i.adds and ownership.poly(i.index[0]) == rank
    ]
    if not starts:
        raise NoTree
    found = []
    for start, end in zip(starts, [*starts[1:], len(block.items)], strict=True):
        found.append(_tree(kernel, block, start, end, array))
    if len(items) != sum(1 + len(t.steps) + len(t.reads) for t in found):
        raise NoTree
    return found


def _tree(kernel: Kernel, block: Block, start: int, end: int, array: Array) -> Tree:
    run = _Run(kernel, array)
    last, steps, reads = start, [], []
    for k in range(start + 1, end):
        item = block.items[k]
        seen = _accesses(item, array)
        if isinstance(item, Exit):
            raise NoTree
        if not reads and (isinstance(item, Barrier) or any(isinstance(i, Store) for i in seen)):
            run.item(item, {})
            if seen:
                last = k
            steps += seen
        elif any(isinstance(i, Store) or i.args[0].const != 0 for i in seen):
            raise NoTree
        else:
            reads += seen
    if run.sign is None or run.places.get(0) != run.all:
        raise NoTree
    store = block.items[start]
    return Tree(store, run.sign, last + 1, steps, reads)


def _rank(kernel: Kernel) -> ownership.Poly:
    """The number of a thread in its block."""
    found: ownership.Poly = {}
    before = 1
    for axis, extent in zip("xyz", kernel.block, strict=True):
        if extent > 1:
            found[(f"threadIdx.{axis}",)] = before
        before *= extent
    return found


@dataclass
class _Run:
    """Runs a text for all threads of a block; `places` has the threads whose values are in each, as bits."""

    kernel: Kernel
    array: Array
    sign: str | None = None
    places: dict[int, int] = field(default_factory=dict)
    readers: dict[int, set[int]] = field(default_factory=dict)  # since the last barrier
    writers: dict[int, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        x, y, z = self.kernel.block
        self.threads = [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
        self.places = {n: 1 << n for n in range(len(self.threads))}
        self.writers = {n: {n} for n in range(len(self.threads))}
        self.all = (1 << len(self.threads)) - 1

    def item(self, item: Any, phis: dict[Value, int]) -> None:
        if isinstance(item, Barrier):
            if item.text == "__syncthreads()":
                self.readers, self.writers = {}, {}
        elif isinstance(item, Loop):
            self._loop(item, dict(phis))
        elif isinstance(item, If) and _accesses(item, self.array):
            if item.other.items and any(_accesses(i, self.array) for i in item.other.items):
                raise NoTree
            if any(isinstance(i, Barrier) for i in walk(item.then)):
                raise NoTree
            for n, thread in enumerate(self.threads):
                if self.number(item.condition, thread, phis):
                    self._steps(item.then, n, phis)
        elif _touches(item, self.array):
            raise NoTree

    def _loop(self, loop: Loop, phis: dict[Value, int]) -> None:
        for c in loop.carried:
            if not types.is_float(c.phi.type):
                phis[c.phi] = self.number(c.init, None, phis)
        for _ in range(MOST_STEPS):
            if not self.number(loop.condition, None, phis):
                return
            for item in loop.body.items:
                self.item(item, phis)
            changed = {c.phi: self.number(c.next, None, phis) for c in loop.carried if not types.is_float(c.phi.type)}
            phis.update(changed)
        raise NoTree

    def _steps(self, block: Block, n: int, phis: dict[Value, int]) -> None:
        """What one thread does."""
        for item in block.items:
            if isinstance(item, Store) and item.place.array == self.array:
                at = self.number(item.index[0], self.threads[n], phis)
                found = self._combined(item.value, n, phis)
                if item.adds == "plain":
                    found = self._together("sum", self._read(at, n), found)
                elif item.adds:
                    raise NoTree
                others = (self.readers.get(at, set()) | self.writers.get(at, set())) - {n}
                if others or at not in self.places:
                    raise NoTree
                self.writers[at] = {n}
                self.places[at] = found
            elif isinstance(item, If | Loop) and _accesses(item, self.array):
                raise NoTree

    def _read(self, at: int, n: int) -> int:
        if self.writers.get(at, {n}) != {n} or at not in self.places:
            raise NoTree
        self.readers.setdefault(at, set()).add(n)
        return self.places[at]

    def _combined(self, value: Value, n: int, phis: dict[Value, int]) -> int:
        """The threads whose values make up a value."""
        if value.op == "load" and value.attr.array == self.array and not value.attr.fields:
            return self._read(self.number(value.args[0], self.threads[n], phis), n)
        if value.op == "binary" and value.attr == "+":
            sign = "sum"
        elif value.op == "call" and not isinstance(value.attr, str) and value.attr[0].name in _SIGNS:
            sign = _SIGNS[value.attr[0].name]
        else:
            raise NoTree
        first, second = (self._combined(a, n, phis) for a in value.args)
        return self._together(sign, first, second)

    def _together(self, sign: str, first: int, second: int) -> int:
        if first & second or self.sign not in (None, sign):
            raise NoTree
        self.sign = sign
        return first | second

    def number(self, value: Value, thread: tuple[int, int, int] | None, phis: dict[Value, int]) -> int:
        """An integer, for a thread; for None what is the same for all."""
        if value.const is not None:
            return value.const
        if value in phis:
            return phis[value]
        if value.op == "special" and thread is not None and value.attr.startswith("threadIdx."):
            return thread["xyz".index(value.attr[-1])]
        if value.op == "cast" and not any(map(types.is_float, (value.type, value.args[0].type))):
            found = self.number(value.args[0], thread, phis)
        elif value.op == "binary" and value.attr in _INTEGERS:
            a, b = (self.number(x, thread, phis) for x in value.args)
            if value.attr in "/%<<>>" and (min(a, b) < 0 or (value.attr in "/%" and b == 0)):
                raise NoTree
            found = int(_INTEGERS[value.attr](a, b))
        else:
            raise NoTree
        if not 0 <= found < 1 << 31:  # C's types would differ
            raise NoTree
        return found


def _put(kernel: Kernel, tree: Tree) -> None:
    block, name = tree.start.block, next((r.name for r in tree.reads if r.name), None)
    kind, value = str(tree.start.place.type), tree.start.value
    made = Value(tree.start.line, block, type=kind, op="reduce", args=(value,), attr=tree.sign, name=name)
    block.items.insert(tree.after, made)
    substitute(list(walk(kernel.body)), dict.fromkeys(tree.reads, made))
    gone = {tree.start, *tree.steps, *tree.reads}
    used = {v for item in walk(kernel.body) if item not in gone for v in operands(item)}
    _drop(kernel.body, gone, used)


def _drop(block: Block, gone: set[Any], used: set[Value]) -> None:
    """Take items out, and branches and loops that have nothing left to do; their barriers stay, as one."""
    kept: list[Any] = []
    for item in block.items:
        if item in gone:
            continue
        parts = children(item)
        if not gone.isdisjoint(each for part in parts for each in walk(part)):
            for part in parts:
                _drop(part, gone, used)
            rest = [each for part in parts for each in walk(part)]
            results = _results(item)
            if used.isdisjoint(results) and not any(isinstance(each, Store | Exit) for each in rest):
                synced = [each for each in rest if isinstance(each, Barrier)]
                kept += [Barrier(item.line, block, text=synced[0].text)] if synced else []
                gone |= results
                continue
        kept.append(item)
    block.items[:] = kept


def _results(item: If | Loop) -> set[Value]:
    return {r for r, *_ in item.results} if isinstance(item, If) else {c.result for c in item.carried}
