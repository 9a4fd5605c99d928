"""Sums and maxima over a block or its warps, in whatever form a text has them: trees in shared memory, shuffles.

``s[t] = v; for (k = 128; k > 0; k >>= 1) { __syncthreads(); if (t < k) s[t] += s[t + k]; }`` leaves the sum over the
block in s[0]; shuffles, a place for each warp and shuffles again do as well. Whether a text does is found by running
it for every thread: a value, or a place of shared memory, has the set of threads whose v are combined in it, or is
unknown. Where each use by something else is of a value that has all threads, each once, in all threads that come to
the use, the values together are one: a reduction of v over the block, or over each warp. No thread may read or set
between two barriers what another sets, and what is read of the arrays has to be what the same reduction has set.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.index import affine
from rawkern.gradients.index.uniform import uniform
from rawkern.gradients.ir import (
    COLLECTIVE,
    Array,
    Barrier,
    Block,
    Carried,
    Exit,
    If,
    Kernel,
    Loop,
    Place,
    Store,
    Value,
    children,
    made_of,
    operands,
    place_of,
    renumber,
    substitute,
    walk,
)

MOST_STEPS = 64  # iterations of a loop that is run here
MOST = 200  # values of each thread
WARP = 32
_SIGNS = {"fmax": "max", "fmin": "min"}
_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "&&": lambda a, b: bool(a and b), "||": lambda a, b: bool(a or b),
}  # fmt: skip


class Unknown(Exception):
    """A number that is not known for a thread, or what cannot be run."""


class Over(Exception):
    """Something else is put where values of the reduction were."""


@dataclass
class Reduction:
    """One of them, that begins at an item of a block."""

    block: Block
    start: Any
    value: Value
    name: str  # such as block_sum
    chain: set[Any]  # the values and stores that make it up
    ends: list[Value]  # those that others use


def with_reductions(kernel: Kernel) -> Kernel:
    """The kernel with its reductions as values; it is changed in place."""
    if math.prod(kernel.block) % WARP or not any(_together(i) for i in walk(kernel.body)):
        return kernel
    found: list[Reduction] = []
    numbers: dict[tuple[Value, int | None], int | None] = {}
    for block in _blocks(kernel.body):
        _find(kernel, block, found, numbers)
    while found != (found := [r for r in found if all(_owned(kernel, a, found) for a in _arrays(r))]):
        pass
    made: dict[Value, Value] = {}
    for reduction in found:
        _put(kernel, reduction, made)
    accessed = {a.whole for i in walk(kernel.body) if (a := _array(i)) is not None}
    reduced = {a.whole for r in found for a in _arrays(r)}
    kernel.shared[:] = [a for a in kernel.shared if a in accessed or a not in reduced]
    renumber(kernel.body)
    return kernel


def _together(item: Any) -> bool:
    return isinstance(item, Barrier) or getattr(item, "op", "") in COLLECTIVE


def _blocks(block: Block) -> list[Block]:
    """A block and those in it in which threads do something together."""
    inner = [b for item in block.items for part in children(item) for b in _blocks(part)]
    return [block, *inner] if any(_together(i) for item in block.items for i in (item, *_within(item))) else inner


def _within(item: Any) -> list[Any]:
    return [each for part in children(item) for each in walk(part)]


def _array(item: Any) -> Array | None:
    """The shared array that an item reads or sets."""
    place = place_of(item)
    return place.array if place is not None and place.array.shared else None


def _arrays(reduction: Reduction) -> set[Array]:
    return {a for i in reduction.chain if (a := _array(i)) is not None}


def _owned(kernel: Kernel, array: Array, found: Sequence[Reduction]) -> bool:
    """Whether all that is done with an array belongs to reductions, one after another."""
    parts = [{i for i in r.chain if _array(i) == array} for r in found]
    parts = sorted((p for p in parts if p), key=lambda p: min(i.order for i in p))
    apart = all(max(i.order for i in a) < min(i.order for i in b) for a, b in itertools.pairwise(parts))
    return apart and {i for i in walk(kernel.body) if _array(i) == array} == {i for p in parts for i in p}


def _find(
    kernel: Kernel, block: Block, found: list[Reduction], numbers: dict[tuple[Value, int | None], int | None]
) -> None:
    """Put what begins in a block after the others. `numbers`: those that are known, of each thread."""
    passed = _passed_on(kernel)
    for k, item in enumerate(block.items):
        for value in _leaves(item, passed):
            if any(value in r.chain or item in r.chain for r in found) or value.type not in ("float", "double"):
                continue
            for scope in ("block", "warp"):
                if _all_come(kernel, block, item.order, scope):
                    run = _Run(kernel, block, value, scope, numbers)
                    run.go(block.items[k:])
                    reduction = run.reduction(item)
                    if reduction is not None and all(r.chain.isdisjoint(reduction.chain) for r in found):
                        found.append(reduction)
                        break


def _all_come(kernel: Kernel, block: Block, order: int, scope: str) -> bool:
    """Whether all threads of a block, or of a warp, come to a place together."""
    conditions = [i.condition for i in kernel.body.items if isinstance(i, Exit) and i.order < order]
    while block.parent is not None:
        conditions.append(block.parent.condition)
        block = block.parent.block
    return all(map(uniform, conditions)) or (scope == "warp" and all(_of_warps(kernel, c) for c in conditions))


def _of_warps(kernel: Kernel, value: Value) -> bool:
    """Whether an integer is the same for all threads of a warp."""

    def ask(v: Value) -> bool | tuple[Value, ...]:
        if v.op == "special":
            return v.attr[:-1] != "threadIdx." or (v.attr[-1] != "x" and kernel.block[0] % WARP == 0)
        part = affine.part_of_thread(v)
        others = part[2].symbols if part is not None and part[:2] == (affine.GROUP, WARP) else ("",)
        if all(s.startswith("blockIdx") for s in others):
            return kernel.block[1:] == (1, 1) or kernel.block[0] % WARP == 0
        return v.op in ("cast", "unary", "binary", "select") and v.args

    return made_of(value, ask)


def _passed_on(kernel: Kernel) -> set[Array]:
    """Shared arrays whose elements are added, compared or moved as they are; those of tiles mostly are not."""
    found = set()
    for item in walk(kernel.body):
        moves = not isinstance(item, Value) or item.op in ("shfl", "call", "select")
        if not moves and (item.op, item.attr) != ("binary", "+"):
            continue
        found |= {a for v in operands(item) if (a := _array(v)) is not None}
    return found


def _leaves(item: Any, passed: set[Array]) -> list[Value]:
    """What may be reduced from an item on."""
    if isinstance(item, Store) and item.place.array in passed and not item.adds:
        return [item.value]
    if isinstance(item, Value) and item.op == "shfl":
        return [item.args[0]]
    if isinstance(item, Loop) and any(getattr(i, "op", "") == "shfl" for i in _within(item)):
        return [c.init for c in item.carried if types.is_float(c.init.type)]
    return []


@dataclass
class _Run:
    """Runs a block's items for all threads, from where a value is there."""

    kernel: Kernel
    block: Block
    leaf: Value
    scope: str
    numbers: dict[tuple[Value, int | None], int | None]  # outside loops that run; None: not known
    sign: str | None = None
    chain: set[Any] = field(default_factory=set)
    values: dict[Value, list[int | None]] = field(default_factory=dict)  # of each thread: whose v are in it, as bits
    places: dict[Array, dict[int, int | None]] = field(default_factory=dict)
    noted: dict[Value, list[int | None]] = field(default_factory=dict)
    varied: set[Value] = field(default_factory=set)  # of which iterations have different ones
    # Which threads have read and set a place since the last barrier, and how many barriers their warp had had.
    readers: dict[tuple[Array, int], dict[int, int]] = field(default_factory=dict)
    writers: dict[tuple[Array, int], dict[int, int]] = field(default_factory=dict)
    warps: dict[int, int] = field(default_factory=dict)
    phis: dict[Value, int] = field(default_factory=dict)
    synced: bool = False
    count: int = 0
    failed: bool = False

    def __post_init__(self) -> None:
        x, y, z = self.kernel.block
        self.threads = [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
        every, warp = (1 << len(self.threads)) - 1, (1 << WARP) - 1
        block = self.scope == "block"
        self.all = [every if block else warp << n // WARP * WARP for n in range(len(self.threads))]
        self.values[self.leaf] = [1 << n for n in range(len(self.threads))]

    def go(self, items: Sequence[Any]) -> None:
        """Run items until one cannot be, or ends the reduction."""
        for item in items:
            try:
                self._items([item], list(range(len(self.threads))))
            except (Unknown, Over) as end:
                parts = [item, *_within(item)]
                touched = isinstance(end, Unknown) and any(_array(i) in self.places for i in parts)
                self.failed |= touched or not self.chain.isdisjoint(parts)
                return

    def reduction(self, start: Any) -> Reduction | None:
        """What was found; None if something else is done with values that do not have all threads."""
        ends: dict[Value, None] = {}
        self.phis.clear()  # those of a loop's last iteration say nothing of the others
        for item in walk(self.kernel.body):
            used = [v for v in self._used(item) if v in self.chain]
            if not used or item in self.chain:
                continue
            carried_on = item is self.block.parent and isinstance(item, Loop)  # to the next iteration
            reached = self._reached(self.block if carried_on else item.block)
            if reached is None or not self.varied.isdisjoint(used):
                return None
            if any(self.values[v][n] != self.all[n] for v in used for n in reached):
                return None
            ends |= dict.fromkeys(used)
        ordered = self.scope == "warp" or self.synced or len(self.threads) == WARP
        if self.failed or not ends or self.sign is None or not ordered:
            return None
        return Reduction(self.block, start, self.leaf, f"{self.scope}_{self.sign}", self.chain, list(ends))

    def _used(self, item: Any) -> list[Value]:
        """The values that an item uses, but for results in the chain."""
        if isinstance(item, If):
            return [item.condition, *(v for r, a, b in item.results if r not in self.chain for v in (a, b))]
        if isinstance(item, Loop):
            return [item.condition, *(v for c in item.carried if c.phi not in self.chain for v in (c.init, c.next))]
        return list(operands(item))

    def _reached(self, block: Block) -> list[int] | None:
        """The threads that may come to a block within that of the reduction."""
        conditions = []
        while block is not self.block:
            if block.parent is None:
                return None
            if isinstance(block.parent, If):
                conditions.append((block.parent.condition, block is block.parent.then))
            block = block.parent.block
        return [n for n in range(len(self.threads)) if all(self._may(c, n, side) for c, side in conditions)]

    def _may(self, condition: Value, n: int, side: bool) -> bool:
        try:
            return bool(self.number(condition, n)) == side
        except Unknown:
            return True

    # Items --------------------------------------------------------------------------------------------------------

    def _items(self, items: Sequence[Any], active: list[int]) -> None:
        for item in items:
            if isinstance(item, Value):
                self._value(item, active)
            elif isinstance(item, Store):
                self._store(item, active)
            elif isinstance(item, Barrier):
                if item.text == "__syncthreads()":
                    if len(active) != len(self.threads):
                        raise Unknown
                    self.readers, self.writers, self.synced = {}, {}, True
                for warp in {n // WARP for n in active}:
                    self.warps[warp] = self.warps.get(warp, 0) + 1
            elif isinstance(item, If):
                self._if(item, active)
            elif isinstance(item, Loop):
                self._loop(item, active)
            else:
                raise Unknown

    def _value(self, v: Value, active: list[int]) -> None:
        if v.op in ("phi", "result") or v.type not in ("float", "double"):
            return
        found: list[int | None] = [None] * len(self.threads)
        self.count += 1
        if self.count > MOST:
            raise Unknown
        if self._touched(v):
            for n in active:
                found[n] = self._of_thread(v, n, active)
        self._note(v, found)

    def _touched(self, v: Value) -> bool:
        """Whether a value may be of the reduction: made of such values, or read where some are."""
        return _array(v) in self.places if v.op == "load" else any(a in self.values for a in v.args)

    def _note(self, v: Value, found: list[int | None]) -> None:
        if self.noted.setdefault(v, found) != found:
            self.varied.add(v)
        self.values.pop(v, None)
        if any(found):
            self.chain.add(v)
            self.values[v] = found

    def _of_thread(self, v: Value, n: int, active: list[int]) -> int | None:
        try:
            return self._computed(v, n, active)
        except Unknown:
            return None

    def _computed(self, v: Value, n: int, active: list[int]) -> int | None:
        if v.op == "binary" and v.attr == "+":
            return self._combined("sum", v.args, n)
        if v.op == "call" and not isinstance(v.attr, str) and getattr(v.attr[0], "name", "") in _SIGNS:
            return self._combined(_SIGNS[v.attr[0].name], v.args, n)
        if v.op == "select" and any(a in self.values for a in v.args[1:]):
            return self._threads(v.args[1 if self.number(v.args[0], n) else 2], n)
        if v.op == "shfl" and v.args[0] in self.values:
            by, lane = self.number(v.args[1], n), n % WARP
            other = {"xor": lane ^ by, "down": lane + by, "up": lane - by, "idx": by}[v.attr]
            other = n - lane + other if 0 <= other < WARP else n
            return self._threads(v.args[0], other) if len(active) == len(self.threads) or other in active else None
        array = _array(v)
        if array in self.places and v.attr == Place(array) and len(v.args) == 1:
            return self._read(array, self.number(v.args[0], n), n)
        return None

    def _threads(self, v: Value, n: int) -> int | None:
        """Whose values are in one of a thread; 0 for one that adds nothing."""
        if v in self.values:
            return self.values[v][n]
        return 0 if self.sign is not None and _constant(v) == _NEUTRAL[self.sign] else None

    def _combined(self, sign: str, operands: Sequence[Value], n: int) -> int | None:
        a, b = operands
        if a not in self.values and b not in self.values:
            return None
        first, second = self._threads(a, n), self._threads(b, n)
        if first is None or second is None or self.sign not in (None, sign) or (sign == "sum" and first & second):
            return None
        self.sign = sign
        return first | second

    def _read(self, array: Array, at: int, n: int) -> int | None:
        met = self._meets(self.writers.get((array, at), {}), n)
        self.readers.setdefault((array, at), {})[n] = self.warps.get(n // WARP, 0)
        return None if met else self.places[array].get(at)

    def _meets(self, others: dict[int, int], n: int) -> bool:
        """Whether another thread has come to a place with nothing to order the two."""
        now = self.warps.get(n // WARP, 0)
        return any(m != n and (m // WARP != n // WARP or at == now) for m, at in others.items())

    def _store(self, item: Store, active: list[int]) -> None:
        array = item.place.array
        if self.scope == "warp" or not array.shared or (array not in self.places and item.value not in self.values):
            return
        if len(item.index) != 1 or item.place.fields or array.raw or item.adds == "atomic":
            raise Unknown
        if active and not item.adds and item.value not in self.values:
            raise Over
        places = self.places.setdefault(array, {})
        for n in active:
            at, found = self.number(item.index[0], n), self._threads(item.value, n)
            if item.adds:
                found = self._added(self._read(array, at, n), found)
            if self._meets(self.readers.get((array, at), {}), n) or self._meets(self.writers.get((array, at), {}), n):
                raise Unknown
            self.writers[array, at] = {n: self.warps.get(n // WARP, 0)}
            places[at] = found
        self.chain.add(item)

    def _added(self, a: int | None, b: int | None) -> int | None:
        """Whose values are in the sum of two; None if one is unknown, or has some of the other's."""
        known = a is not None and b is not None and not a & b and self.sign in (None, "sum")
        self.sign = self.sign or "sum"
        return a | b if known else None  # type: ignore[operator]

    def _if(self, item: If, active: list[int]) -> None:
        if not any(_array(i) in self.places or _together(i) or self._uses(i) for i in _within(item)):
            return
        sides: tuple[list[int], list[int]] = ([], [])
        try:
            for n in active:
                sides[not self.number(item.condition, n)].append(n)
        except Unknown:
            self._skim(item, active)
            return
        for block, threads in zip(children(item), sides, strict=True):
            self._items(block.items, threads)
        for r, a, b in item.results:
            found: list[int | None] = [None] * len(self.threads)
            for value, threads in zip((a, b), sides, strict=True):
                for n in threads:
                    found[n] = self._threads(value, n)
            self._note(r, found)

    def _uses(self, item: Any) -> bool:
        return any(a in self.values for a in operands(item))

    def _loop(self, loop: Loop, active: list[int]) -> None:
        floats = [c for c in loop.carried if types.is_float(c.phi.type)]
        starts = any(c.init in self.values for c in floats)
        if not starts and not any(_array(i) in self.places or _together(i) for i in _within(loop)):
            return
        numbers = [c for c in loop.carried if c not in floats]
        try:
            self.phis.update({c.phi: self.number(c.init, None) for c in numbers})
            self.number(loop.condition, None)
        except Unknown:
            self._skim(loop, active)
            return
        for c, last in self._iterations(loop, floats, numbers, active).items():
            self._note(c.result, last)
            if c.result in self.chain:
                self.chain.add(c.phi)
            elif c.phi in self.chain:  # what a loop makes of it is not known
                self.failed = True

    def _iterations(
        self, loop: Loop, floats: list[Carried], numbers: list[Carried], active: list[int]
    ) -> dict[Carried, list[int | None]]:
        """Run a loop to its end; whose values are in its variables then."""
        state = {c: self._everywhere(c.init) for c in floats}
        for _ in range(MOST_STEPS):
            for c, found in state.items():
                self._note(c.phi, found)
                if 0 in found:  # what begins a sum
                    self.values[c.phi] = found
            if not self.number(loop.condition, None):
                return state
            self._items(loop.body.items, active)
            state = {c: self._everywhere(c.next) for c in floats}
            self.phis.update({c.phi: self.number(c.next, None) for c in numbers})
        raise Unknown

    def _everywhere(self, v: Value) -> list[int | None]:
        return [self._threads(v, n) for n in range(len(self.threads))]

    def _skim(self, item: If | Loop, active: list[int]) -> None:
        """Run what may be reached, by any threads and any number of times, and only reads."""
        if any(_together(i) or (isinstance(i, Store) and i.place.array in self.places) for i in _within(item)):
            raise Unknown
        for c in item.carried if isinstance(item, Loop) else ():
            self.phis.pop(c.phi, None)
        for block in children(item):
            self._items(block.items, active)

    # Numbers ------------------------------------------------------------------------------------------------------

    def number(self, value: Value, n: int | None) -> int:
        """An integer, for a thread; for None what is the same for all."""
        if self.phis:
            return self._number(value, n)
        if (value, n) not in self.numbers:
            self.numbers[value, n] = None
            self.numbers[value, n] = self._number(value, n)
        found = self.numbers[value, n]
        if found is None:
            raise Unknown
        return found

    def _number(self, value: Value, n: int | None) -> int:
        if value.const is not None:
            return value.const
        if value in self.phis:
            return self.phis[value]
        if value.op == "special" and n is not None and value.attr.startswith("threadIdx."):
            return self.threads[n]["xyz".index(value.attr[-1])]
        if value.op == "cast" and not any(map(types.is_float, (value.type, value.args[0].type))):
            found = self.number(value.args[0], n)
        elif value.op == "unary" and value.attr == "!":
            found = int(not self.number(value.args[0], n))
        elif value.op == "binary" and value.attr in _INTEGERS:
            a, b = (self.number(x, n) for x in value.args)
            if min(a, b) < 0 or (value.attr in "/%" and b == 0):
                raise Unknown
            found = int(_INTEGERS[value.attr](a, b))
        else:
            raise Unknown
        if not 0 <= found < 1 << 31:  # C's types would differ
            raise Unknown
        return found


_NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf}


def _constant(v: Value) -> float | None:
    """A floating-point constant; the largest there are count as infinite."""
    if v.op == "cast" and v.args[0].const is not None:
        return float(v.args[0].const)
    if v.op == "unary" and v.attr == "-":
        found = _constant(v.args[0])
        return None if found is None else -found
    if v.op != "const":
        return None
    try:
        found = float(v.attr.rstrip("fFlL"))
    except ValueError:
        return None
    return math.copysign(math.inf, found) if abs(found) > 3.4e38 else found


# The change -----------------------------------------------------------------------------------------------------------


def _put(kernel: Kernel, reduction: Reduction, known: dict[Value, Value]) -> None:
    value, start = known.get(reduction.value, reduction.value), reduction.start
    name = next((v.name for v in reduction.ends if v.name), None)
    made = Value(
        start.line, reduction.block, type=value.type, op="reduce", args=(value,), attr=reduction.name, name=name
    )
    items = reduction.block.items
    items.insert(next(k for k, i in enumerate(items) if i is start), made)
    chain = reduction.chain
    for item in walk(kernel.body):
        if isinstance(item, If):
            item.results = [each for each in item.results if each[0] not in chain]
        elif isinstance(item, Loop):
            item.carried = [c for c in item.carried if c.phi not in chain]
    _drop(kernel.body, chain, {v for i in walk(kernel.body) if i not in chain for v in operands(i)})
    known |= dict.fromkeys(reduction.ends, made)
    substitute(list(walk(kernel.body)), dict.fromkeys(reduction.ends, made))


def _drop(block: Block, gone: set[Any], used: set[Value]) -> None:
    """Take items out, and branches and loops that have nothing left to do; their barriers stay, as one."""
    kept: list[Any] = []
    results: set[Value] = set()
    for item in block.items:
        if item in gone or item in results:
            continue
        if not gone.isdisjoint(_within(item)):
            for part in children(item):
                _drop(part, gone, used)
            rest = _within(item)
            left = {r for r, *_ in item.results} if isinstance(item, If) else {c.result for c in item.carried}
            if used.isdisjoint(left) and not any(isinstance(each, Store | Exit) for each in rest):
                synced = [each for each in rest if isinstance(each, Barrier)]
                kept += [Barrier(item.line, block, text=synced[0].text)] if synced else []
                results |= left
                continue
        kept.append(item)
    block.items[:] = kept
