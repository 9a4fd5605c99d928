"""Prefetched tiles, undone: ``s[1 - k % 2][t] = x[(k + 1) * 64 + t]`` in the iteration before the one that reads them.

A loop that is software-pipelined stores the tile of iteration 0 before it, and in each iteration that of the next one,
into the other half of a double buffer: an array of two tiles, or one of twice as many numbers, of which an index, an
offset or pointers that are swapped select a half. This pass moves the store to the start of the iteration that reads
the tile, and leaves one half of the buffer in use: then each iteration writes what it reads, which is the tile rule.

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
from rawkern.gradients.index.guards import guards
from rawkern.gradients.index.ranges import Ranges, extents
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
from rawkern.gradients.ir.folding import folded

FOLLOWED = ("+", "-", "*", "/", "<<", "&", "|", "^", "==", "!=")  # operators on the number of a half
COMPARE = {"<": "<", "<=": "<=", ">": "<", ">=": "<="}  # without > and >=, by exchanging the operands
Rows = tuple[int, int]  # a number in even and odd iterations


def unpipelined(kernel: Kernel) -> Kernel:
    """The kernel whose loops store the tiles that they read; it is changed in place."""
    arrays = [a for a in kernel.shared if not a.private and (a.sizes[:1] == (2,) or len(a.sizes) == 1)]
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
    places: Mapping[Access, _Place]


@dataclass(frozen=True)
class _Place:
    """Where an access is in a double buffer: in which half, and at which of its indices."""

    half: Rows
    index: tuple[Value, ...]


def _prefetched(kernel: Kernel, loop: Loop, accesses: Sequence[Access]) -> _Found | None:
    """What a loop does with a double buffer; None if the condition fails."""
    inner, before, loads, others = _parts(loop, accesses)
    if others or not inner or not loads or len(inner) != len(before):
        return None
    form = _Form(loop, symbol(loop), frozenset(i.place.array for i in walk(kernel.body) if isinstance(i, Store)))
    places = _places(kernel, form, accesses)
    if places is None or not _alternate(places, inner, before, loads):
        return None
    if not _all_come(kernel, loop, before) or not _all_meet(loop, form):
        return None
    alike = all(_same_store(s, b, form, places) for s, b in zip(inner, before, strict=True))
    return _Found(inner, before, loads, form, places) if alike else None


def _parts(loop: Loop, accesses: Sequence[Access]) -> tuple[list[Store], list[Store], list[Value], list[Access]]:
    """The stores in a loop, those before it, the loads in it, and whatever else there is."""
    own = [a for a in accesses if inside(a.block, loop.body)]
    sets = [a for a in accesses if isinstance(a, Store) and not a.adds]
    inner, before = [s for s in sets if s in own], [s for s in sets if s not in own and s.order < loop.order]
    loads = [a for a in own if isinstance(a, Value)]
    found = {*inner, *before, *loads}
    return inner, before, loads, [a for a in accesses if a not in found]


def _all_come(kernel: Kernel, loop: Loop, before: Sequence[Store]) -> bool:
    """Whether the threads that store before a loop also come to it."""
    return not any(isinstance(i, Exit) and before[0].order < i.order < loop.order for i in kernel.body.items)


def _all_meet(loop: Loop, form: _Form) -> bool:
    """Whether iterations have a barrier, at which there are all threads that go on."""
    ifs = [i for i in loop.body.items if isinstance(i, If) and form.goes_on(i.condition)]
    return any(_is_barrier(i) for block in (loop.body, *(i.then for i in ifs)) for i in block.items)


def _is_barrier(item: Any) -> bool:
    return isinstance(item, Barrier) and item.text == "__syncthreads()"


# The half of a buffer, by the iteration ------------------------------------------------------------------------------


def _places(kernel: Kernel, form: _Form, accesses: Sequence[Access]) -> dict[Access, _Place] | None:
    """Where accesses to a double buffer are; None if that of any is not certain."""
    halves, found = _Halves(form), dict[Access, _Place]()
    for access in accesses:
        index = index_of(access)
        half = halves.of(index[0]) if len(index) > 1 else None
        place = _in_line(kernel, halves, access) if len(index) == 1 else half and _Place(half, index[1:])
        if place is None:
            return None
        found[access] = place
    return found


def _in_line(kernel: Kernel, halves: _Halves, access: Access) -> _Place | None:
    """Where an access is in a buffer of one dimension: an offset of whole halves, and what is below the size of one."""
    array = access.place.array if isinstance(access, Store) else access.attr.array
    size, odd = divmod(array.sizes[0], 2)
    half, sums = [0, 0], list[Value]()
    for term, sign in _terms(index_of(access)[0]):
        rows = halves.of(term)
        if rows is not None and size and not any(n % size for n in rows):
            half = [a + (n // size if sign == "+" else -(n // size)) for a, n in zip(half, rows, strict=True)]
        elif sums or sign == "-":
            sums = sums or [Value(access.line, access.block, attr="0", const=0)]
            sums.append(Value(access.line, access.block, type=term.type, op="binary", args=(sums[-1], term), attr=sign))
        else:
            sums.append(term)
    sums = sums or [Value(access.line, access.block, attr="0", const=0)]
    low, high = Ranges(extents(kernel), guards(access).above).of(poly(sums[-1]))
    return _Place((half[0], half[1]), tuple(sums)) if not odd and low >= 0 and high < size else None


def _terms(v: Value, sign: str = "+") -> list[tuple[Value, str]]:
    """What an integer is the sum of, with the sign of each."""
    v = plain(v)
    if v.op != "binary" or v.attr not in ("+", "-"):
        return [(v, sign)]
    second = sign if v.attr == "+" else "-" if sign == "+" else "+"
    return _terms(v.args[0], sign) + _terms(v.args[1], second)


def _alternate(
    places: Mapping[Access, _Place], inner: Sequence[Store], before: Sequence[Store], loads: Sequence[Access]
) -> bool:
    """Whether iterations store to the half that the next one reads, and read the other one."""
    read, stored, first = ({places[a].half for a in each} for each in (loads, inner, before))
    even, odd = next(iter(read))
    return {even, odd} == {0, 1} and read == {(even, odd)} and stored == {(odd, even)} and first == {(even, even)}


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
            return (line[0] % 2, sum(line) % 2) if v.attr == "&" or min(line) >= 0 else None
        return self._operation(v)

    def _operation(self, v: Value) -> Rows | None:
        """What an operation makes of its operands."""
        args = [self.of(a) for a in v.args]
        if v.op not in ("binary", "unary", "select", "cast") or None in args:
            return None
        even, odd = (_computed(v, [a[k] for a in args if a is not None]) for k in (0, 1))
        return None if even is None or odd is None else (even, odd)

    def _carried(self, phi: Value) -> Rows | None:
        """A variable that is one number and another in turn."""
        carried = [c for c in self.loop.carried if c.init.const is not None and not types.is_float(c.phi.type)]
        first = _Halves(self.form, {c.phi: (c.init.const or 0, c.init.const or 0) for c in carried})
        after = {c: first.of(c.next) for c in carried}
        rows = {c: (c.init.const or 0, found[0]) for c, found in after.items() if found is not None}
        while rows:  # which may follow one another, as pointers that are swapped do
            both = _Halves(self.form, {c.phi: each for c, each in rows.items()})
            right = {c: each for c, each in rows.items() if both.of(c.next) == each[::-1]}
            if len(right) == len(rows):
                break
            rows = right
        return next((each for c, each in rows.items() if c.phi is phi), None)

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
        return None if v.type.startswith("unsigned") else _divided(a, v.attr, b)


def _divided(a: Rows, sign: str, b: Rows) -> Rows | None:
    """The start and step of a quotient, or of a number shifted to the right; None if it does not grow evenly."""
    by = (b[0] if sign == "/" else 1 << max(b[0], 0)) if b[1] == 0 and 0 <= b[0] < 31 else 0
    return (a[0] // by, a[1] // by) if by > 0 and a[1] % by == 0 and min(a) >= 0 else None


def _computed(v: Value, args: Sequence[int]) -> int | None:
    """An operation on small numbers."""
    if v.op == "cast":
        return int(bool(args[0])) if v.type == "bool" else args[0]
    if v.op == "select":
        return args[1] if args[0] else args[2]
    if min(args) < 0:
        return None
    if v.op == "unary":
        return {"!": int(not args[0]), "-": -args[0]}.get(v.attr)
    return folded(v.attr, args[0], args[1], "int") if v.attr in FOLLOWED else None


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


def _same_store(store: Store, before: Store, form: _Form, places: Mapping[Access, _Place]) -> bool:
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
        return [form.of(i) for i in _indices(places[s], s)], form.around(s, outer, always=True)

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
            _Copy(found.form, loop.body, moved).store(store, found.places[store])
            for each in (store, before):
                each.block.items[:] = [i for i in each.block.items if i is not each]
        for load in found.loads:
            place = found.places[load]
            if len(load.args) == 1:
                at = next(k for k, item in enumerate(load.block.items) if item is load)
                load.block.items[at:at] = place.index[1:]
            load.args = tuple(_in_first_half(load, place))
    last = max(load.order for found in all_found for load in found.loads)
    apart = any(_is_barrier(i) and i.order > last for i in loop.body.items)
    before_them = [] if apart else [Barrier(loop.line, loop.body)]
    loop.body.items[:0] = [*before_them, *moved, Barrier(loop.line, loop.body)]


def _in_first_half(access: Access, place: _Place) -> list[Value]:
    """The indices of the same element of the first half."""
    zero = Value(access.line, access.block, attr="0", const=0)
    return [*([zero] if len(index_of(access)) > 1 else []), *_indices(place, access)]


def _indices(place: _Place, access: Access) -> Sequence[Value]:
    """The indices in a half; of a buffer of one dimension the last of the sums that make one."""
    return place.index if len(index_of(access)) > 1 else place.index[-1:]


class _Copy:
    """What a store of an iteration stores in the one before, at the start of the iteration."""

    def __init__(self, form: _Form, block: Block, items: list[Any]) -> None:
        self.form, self.loop, self.block, self.items = form, form.loop, block, items
        self.known: dict[Value, Value] = {}

    def store(self, store: Store, place: _Place, path: Sequence[tuple[Any, Block]] | None = None) -> None:
        """Store as another does, with the branches and loops of `path` around it."""
        path = _path(store, self.loop.body) if path is None else path
        around = self.block, self.items, dict(self.known)
        if not path:
            index = tuple(map(self.of, _in_first_half(store, place)))
            self.items.append(Store(store.line, self.block, place=store.place, index=index, value=self.of(store.value)))
            return
        (parent, side), inner = path[0], path[1:]
        if isinstance(parent, Loop):
            self._loop(parent, lambda: self.store(store, place, inner))
        elif side is parent.then and self.form.goes_on(parent.condition):
            self.store(store, place, inner)
        else:
            branch = If(store.line, self.block, condition=self.of(parent.condition))
            branch.then.parent = branch.other.parent = branch
            self.items.append(branch)
            self._enter(branch.then if side is parent.then else branch.other)
            self.store(store, place, inner)
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
