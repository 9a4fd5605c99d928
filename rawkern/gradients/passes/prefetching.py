"""Prefetched tiles, undone: ``s[1 - k % 2][t] = x[(k + 1) * 64 + t]`` in the iteration before the one that reads them.

A loop that is software-pipelined stores the tile of iteration 0 before it, and in each iteration that of the next one,
into the other half of a double buffer. This pass moves the store to the start of the iteration that reads the tile, and
leaves one half of the buffer in use: then each iteration writes what it reads, which is the tile rule.

The iteration number j takes the place of the loop's variables: an induction variable is ``start + step * j``. With S(j)
for what an iteration stores, the condition is that the store before the loop is S(-1), that iteration j stores S(j)
wherever there is an iteration j + 1, that S(j) goes to the same elements of a half for every j, and that iteration j
stores to half h(j + 1) and reads half h(j) with h(j) != h(j + 1). So iteration j reads what S(j - 1) has stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.index.affine import Poly, constant, poly, symbol
from rawkern.gradients.index.scev import induction, plain
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
    place_of,
    renumber,
    walk,
)

COMPARE = {"<": "<", "<=": "<=", ">": "<", ">=": "<="}  # without > and >=, by exchanging the operands
Rows = tuple[int, int]  # a number in even and odd iterations


def unpipelined(kernel: Kernel) -> Kernel:
    """The kernel whose loops store the tiles that they read; it is changed in place."""
    arrays = [a for a in kernel.shared if len(a.sizes) > 1 and a.sizes[0] == 2 and not a.private]
    moved: dict[Loop, list[_Found]] = {}
    for array in arrays:
        accesses: list[Access] = [i for i in walk(kernel.body) if (p := place_of(i)) is not None and p.array == array]
        for loop in [i for i in walk(kernel.body) if isinstance(i, Loop)]:
            found = _prefetched(kernel, loop, accesses)
            if found is not None:
                moved.setdefault(loop, []).append(found)
    for loop, all_found in moved.items():
        _move(loop, all_found)
    if moved:
        renumber(kernel.body)
    return kernel


@dataclass(frozen=True)
class _Found:
    """The stores of a loop for its next iteration, those before it, and the reads."""

    inner: list[Store]
    before: list[Store]
    loads: list[Value]
    form: _Form


def _prefetched(kernel: Kernel, loop: Loop, accesses: Sequence[Access]) -> _Found | None:
    """What a loop does with a double buffer; None if the condition fails."""
    own = [a for a in accesses if inside(a.block, loop.body)]
    inner = [a for a in own if isinstance(a, Store)]
    before = [a for a in accesses if isinstance(a, Store) and a not in own and a.order < loop.order]
    loads = [a for a in own if isinstance(a, Value)]
    if not inner or not loads or len(own) + len(before) != len(accesses) or len(inner) != len(before):
        return None
    exits = any(isinstance(i, Exit) and before[0].order < i.order < loop.order for i in kernel.body.items)
    if exits or any(s.adds for s in (*inner, *before)):
        return None
    form = _Form(loop, symbol(loop), frozenset(i.place.array for i in walk(kernel.body) if isinstance(i, Store)))
    ifs = [i for i in loop.body.items if isinstance(i, If) and form.goes_on(i.condition)]
    met = any(_is_barrier(i) for block in (loop.body, *(i.then for i in ifs)) for i in block.items)
    alike = met and all(_same_store(s, b, form) for s, b in zip(inner, before, strict=True))
    return _Found(inner, before, loads, form) if alike and _alternate(form, inner, before, loads) else None


def _is_barrier(item: Any) -> bool:
    return isinstance(item, Barrier) and item.text == "__syncthreads()"


# The half of a buffer, by the iteration ------------------------------------------------------------------------------


def _alternate(form: _Form, inner: Sequence[Store], before: Sequence[Store], loads: Sequence[Access]) -> bool:
    """Whether iterations store to the half that the next one reads, and read the other one."""
    halves = _Halves(form)
    read = {halves.of(index_of(r)[0]) for r in loads}
    stored = {halves.of(s.index[0]) for s in inner}
    first = {s.index[0].const for s in before}
    even, odd = next(iter(read)) or (0, 0)
    return {even, odd} == {0, 1} and read == {(even, odd)} and stored == {(odd, even)} and first == {even}


class _Halves:
    """Integers that alternate from one iteration of a loop to the next."""

    def __init__(self, form: _Form, assumed: Mapping[Value, Rows] | None = None) -> None:
        self.form, self.loop, self.assumed = form, form.loop, assumed

    def of(self, v: Value) -> Rows | None:
        """What a value is in even and in odd iterations; None where it is not certain."""
        v = plain(v)
        if v.const is not None:
            return v.const, v.const
        if v.op == "phi":
            return self._carried(v) if self.assumed is None else self.assumed.get(v)
        if v.op == "result" and isinstance(v.attr, If) and self.form.goes_on(v.attr.condition):
            return self.of(next(a for r, a, _ in v.attr.results if r is v))  # for the next iteration, if there is one
        if v.op == "binary" and (v.attr, v.args[1].const) in (("&", 1), ("%", 2)) and (line := self._line(v.args[0])):
            start, step = line
            return (start % 2, (start + step) % 2) if v.attr == "&" or min(line) >= 0 else None
        args = [self.of(a) for a in v.args]
        if v.op not in ("binary", "unary", "select", "cast") or None in args:
            return None
        even, odd = (_computed(v, [a[k] for a in args if a is not None]) for k in (0, 1))
        return None if even is None or odd is None else (even, odd)

    def _carried(self, phi: Value) -> Rows | None:
        """A variable that is one number and another in turn."""
        c = next((c for c in self.loop.carried if c.phi is phi), None)
        if c is None or c.init.const is None or types.is_float(phi.type):
            return None
        first = c.init.const
        after = _Halves(self.form, {phi: (first, first)}).of(c.next)
        rows = (first, first if after is None else after[0])
        return rows if _Halves(self.form, {phi: rows}).of(c.next) == rows[::-1] else None

    def _line(self, v: Value) -> tuple[int, int] | None:
        """The start and step of a number that grows evenly."""
        v = plain(v)
        if v.const is not None:
            return v.const, 0
        if v.op == "phi" and v.attr is self.loop and v in induction(v.attr):
            start, step = (each.const for each in induction(v.attr)[v])
            return None if start is None or step is None else (start, step)
        if v.op != "binary" or v.attr not in ("+", "-", "/", ">>"):
            return None
        a, b = map(self._line, v.args)
        if a is None or b is None:
            return None
        if v.attr in ("+", "-"):
            sign = 1 if v.attr == "+" else -1
            return a[0] + sign * b[0], a[1] + sign * b[1]
        by = (b[0] if v.attr == "/" else 1 << max(b[0], 0)) if b[1] == 0 and 0 <= b[0] < 31 else 0
        whole = by > 0 and a[1] % by == 0 and min(a) >= 0 and not v.type.startswith("unsigned")
        return (a[0] // by, a[1] // by) if whole else None


def _computed(v: Value, args: Sequence[int]) -> int | None:
    """An operation on small numbers."""
    if v.op == "cast":
        return int(bool(args[0])) if v.type == "bool" else args[0]
    if v.op == "select":
        return args[1] if args[0] else args[2]
    operations: dict[tuple[str, str], Callable[..., int]] = {
        ("binary", "+"): lambda a, b: a + b, ("binary", "-"): lambda a, b: a - b, ("binary", "*"): lambda a, b: a * b,
        ("binary", "^"): lambda a, b: a ^ b, ("binary", "&"): lambda a, b: a & b, ("binary", "|"): lambda a, b: a | b,
        ("binary", "=="): lambda a, b: int(a == b), ("binary", "!="): lambda a, b: int(a != b),
        ("unary", "!"): lambda a: int(not a), ("unary", "-"): lambda a: -a,
    }  # fmt: skip
    operation = operations.get((v.op, v.attr))
    return None if operation is None or min(args) < 0 else operation(*args)


# What is stored, by the iteration -------------------------------------------------------------------------------------


class _Unknown(Exception):
    """A value is not followed."""


@dataclass(frozen=True)
class _Form:
    """What values are computed from, in an iteration `at` of a loop: equal forms mean equal values."""

    loop: Loop
    at: Poly  # the number of the iteration
    written: frozenset[Array]
    inner: tuple[Loop, ...] = ()  # loops around the store in an iteration

    def of(self, v: Value) -> Any:
        if not types.is_float(v.type) and v.type != "bool":
            return self.integer(v).frozen
        if v.op == "result" and isinstance(branch := v.attr, If):
            then, other = next((a, b) for r, a, b in branch.results if r is v)
            if computed_in(v, self.loop) and self.goes_on(branch.condition):
                return self.of(then)
            return "if", self.of(branch.condition), self.of(then), self.of(other)
        if v.op == "load" and v.attr.array not in self.written:
            return ("load", v.attr, *(self.integer(a).frozen for a in v.args))
        if v.op in PURE:
            return (v.op, v.type, v.attr, *((a.type, self.of(a)) for a in v.args))
        return self._outer(v)

    def integer(self, v: Value) -> Poly:
        return poly(v).replaced(self._symbol)

    def _symbol(self, s: Any) -> Poly:
        if s is self.loop:
            return self.at
        if isinstance(s, Loop):
            return symbol(("inner", self.inner.index(s)) if s in self.inner else s)
        if not isinstance(s, Value):
            return symbol(s)
        if s.op in ("cast", "unary", "binary", "select") or (s.op == "call" and isinstance(s.attr, str)):
            return symbol((s.op, s.type, s.attr, *((a.type, self.of(a)) for a in s.args)))
        if s.op == "load" and s.attr.array not in self.written:
            return symbol(("load", s.attr, *(self.integer(a).frozen for a in s.args)))
        return symbol(self._outer(s))

    def _outer(self, v: Value) -> Value:
        if computed_in(v, self.loop) or any(computed_in(v, each) for each in self.inner):
            raise _Unknown
        return v

    def goes_on(self, condition: Value) -> bool:
        """Whether a condition is that for another iteration of the loop."""
        try:
            here = _compared(replace(self, at=symbol(self.loop)), condition)
            there = _compared(replace(self, at=symbol(self.loop) + 1), self.loop.condition)
        except _Unknown:
            return False
        return here is not None and here == there

    def around(self, store: Store, outer: Block, *, always: bool = False) -> list[Any]:
        """What decides whether and how often a store runs, without `goes_on` if that is `always` so."""
        found = []
        for parent, block in _path(store, outer):
            if isinstance(parent, Loop):
                if set(induction(parent)) != {c.phi for c in parent.carried}:
                    raise _Unknown
                found.append(("loop", self.of(parent.condition)))
            elif not (always and block is parent.then and self.goes_on(parent.condition)):
                found.append((block is parent.then, self.of(parent.condition)))
        return found


def _path(store: Store, outer: Block) -> list[tuple[Any, Block]]:
    """Branches and loops around a store within a block, with the side it is on, the outermost first."""
    found, block = [], store.block
    while block is not outer:
        found.insert(0, (block.parent, block))
        block = block.parent.block
    return found


def _compared(form: _Form, v: Value) -> Any:
    """A comparison of integers, as a key."""
    if v.op != "binary" or v.attr not in COMPARE:
        return None
    low, high = v.args if v.attr in ("<", "<=") else v.args[::-1]
    if types.is_float(low.type):
        return None
    if low.type == high.type == "int":
        return COMPARE[v.attr], (form.integer(high) - form.integer(low)).frozen
    return COMPARE[v.attr], low.type, high.type, form.integer(low).frozen, form.integer(high).frozen


def _same_store(store: Store, before: Store, form: _Form) -> bool:
    """Whether a store before a loop is that of iteration -1, and all go to the same elements of a half."""
    loop = form.loop
    if store.place != before.place or store.value.type != before.value.type or not inside(before.block, loop.block):
        return False
    paths = (store, loop.body), (before, loop.block)
    loops = [tuple(p for p, _ in _path(*path) if isinstance(p, Loop)) for path in paths]
    here = replace(form, inner=loops[0])
    there, first = replace(here, at=here.at + 1), replace(here, at=constant(-1))
    given = replace(form, inner=loops[1])

    def elements(form: _Form, s: Store, outer: Block) -> Any:
        return [form.of(i) for i in s.index[1:]], form.around(s, outer, always=True)

    try:
        return (
            elements(here, store, loop.body) == elements(there, store, loop.body)
            and elements(first, store, loop.body) == elements(given, before, loop.block)
            and first.of(store.value) == given.of(before.value)
        )
    except _Unknown:
        return False


# The stores where their tiles are read --------------------------------------------------------------------------------


def _move(loop: Loop, all_found: Sequence[_Found]) -> None:
    """Store at the start of an iteration what it reads, in one half of each buffer."""
    moved: list[Any] = []
    for found in all_found:
        for store, before in zip(found.inner, found.before, strict=True):
            _Copy(found.form, loop.body, moved).store(store)
            for each in (store, before):
                each.block.items[:] = [i for i in each.block.items if i is not each]
        for load in found.loads:
            load.args = (_zero(load), *load.args[1:])
    last = max(load.order for found in all_found for load in found.loads)
    apart = any(_is_barrier(i) and i.order > last for i in loop.body.items)
    before_them = [] if apart else [Barrier(loop.line, loop.body)]
    loop.body.items[:0] = [*before_them, *moved, Barrier(loop.line, loop.body)]


def _zero(load: Value) -> Value:
    return Value(load.line, load.block, type="int", op="const", attr="0", const=0)


class _Copy:
    """What a store of an iteration stores in the one before, at the start of the iteration."""

    def __init__(self, form: _Form, block: Block, items: list[Any]) -> None:
        self.form, self.loop, self.block, self.items = form, form.loop, block, items
        self.known: dict[Value, Value] = {}

    def store(self, store: Store, path: Sequence[tuple[Any, Block]] | None = None) -> None:
        """Store as another does, with the branches and loops of `path` around it."""
        path = _path(store, self.loop.body) if path is None else path
        around = self.block, self.items, dict(self.known)
        if not path:
            index = (self._number(0, store.index[0]), *map(self.of, store.index[1:]))
            self.items.append(Store(store.line, self.block, place=store.place, index=index, value=self.of(store.value)))
            return
        (parent, side), inner = path[0], path[1:]
        if isinstance(parent, Loop):
            self._loop(parent, lambda: self.store(store, inner))
        elif side is parent.then and self.form.goes_on(parent.condition):
            self.store(store, inner)
        else:
            branch = If(store.line, self.block, condition=self.of(parent.condition))
            branch.then.parent = branch.other.parent = branch
            self.items.append(branch)
            self._enter(branch.then if side is parent.then else branch.other)
            self.store(store, inner)
        self.block, self.items, self.known = around

    def _enter(self, block: Block) -> None:
        self.block, self.items = block, block.items

    def _loop(self, loop: Loop, body: Callable[[], None]) -> None:
        made, outer, items = Loop(loop.line, self.block, node=loop.node), self.block, self.items
        made.test.parent = made.body.parent = made
        inits = [self.of(c.init) for c in loop.carried]
        phis = [replace(c.phi, block=made.body, attr=made) for c in loop.carried]
        self.known.update(zip((c.phi for c in loop.carried), phis, strict=True))
        self._enter(made.test)
        made.condition = self.of(loop.condition)
        self._enter(made.body)
        body()
        after = [self.of(c.next) for c in loop.carried]
        results = [replace(c.result, block=outer, attr=made) for c in loop.carried]
        made.carried = [Carried(*each) for each in zip(phis, inits, after, results, strict=True)]
        items += [made, *results]

    def of(self, v: Value) -> Value:
        """The value in the iteration before."""
        if not computed_in(v, self.loop):
            return v
        if v not in self.known:
            self.known[v] = self._made(v)
        return self.known[v]

    def _number(self, n: int, like: Value) -> Value:
        return Value(like.line, self.block, type="int", op="const", attr=str(n), const=n)

    def _add(self, v: Value, **changes: Any) -> Value:
        self.items.append(replace(v, line=self.loop.line, block=self.block, **changes))
        return self.items[-1]

    def _made(self, v: Value) -> Value:
        if v.op == "phi":
            step = induction(self.loop)[v][1]
            return self._add(v, op="binary", attr="-", args=(v, self._cast(v.type, step)), name=None)
        if v.op == "result":
            then, other = next((a, b) for r, a, b in v.attr.results if r is v)
            return self.of(then) if self.form.goes_on(v.attr.condition) else self._chosen(v, then, other)
        return self._next(v) or self._add(v, args=tuple(map(self.of, v.args)))

    def _next(self, v: Value) -> Value | None:
        """The loop's variable, for what it is in the next iteration."""
        steps = induction(self.loop)
        args = [plain(a) for a in v.args] if v.op == "binary" and v.attr == "+" else []
        phi = next((a for a in args if a in steps), None)
        if phi is None or args[1 - args.index(phi)].const != steps[phi][1].const or steps[phi][1].const is None:
            return None
        return self._cast(v.type, phi)

    def _cast(self, kind: str, v: Value) -> Value:
        v = v if v.op == "phi" and v.attr is self.loop else self.of(v)
        return v if v.type == kind else self._add(v, type=kind, op="cast", args=(v,), attr=None, name=None)

    def _chosen(self, v: Value, then: Value, other: Value) -> Value:
        branch = If(v.line, self.block, condition=self.of(v.attr.condition))
        branch.then.parent = branch.other.parent = branch
        items, block, known, sides = self.items, self.block, self.known, []
        for inner, side in ((branch.then, then), (branch.other, other)):
            self._enter(inner)
            self.known = dict(known)
            sides.append(self.of(side))
        self.block, self.items, self.known = block, items, known
        self.items.append(branch)
        result = self._add(v, args=(), attr=branch)
        branch.results.append((result, sides[0], sides[1]))
        return result
