"""Kernels in which threads only share out rows: the same with another number of threads in each block.

A row is a loop ``for (c = threadIdx.x; c < n; c += threads)``, whose iterations may have any thread. What a thread has
of them all goes into sums and maxima over the block, or to elements that an iteration has alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.analysis import loops
from rawkern.gradients.analysis.extrema import maximum
from rawkern.gradients.index import scev
from rawkern.gradients.index.affine import Poly, constant, poly, symbol
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
    Store,
    Value,
    children,
    operands,
    place_of,
    walk,
)

_THREAD = "threadIdx.x"
_REDUCED = {">": "block_max", "<": "block_min"}


class _Depends(Exception):
    """What a kernel computes may depend on how many threads there are."""


def resized(kernel: Kernel, threads: int) -> Kernel | None:
    """The kernel for blocks of so many threads, a multiple of a warp; None where it may depend on their number.

    It is changed in place, and has no values that nothing uses.
    """
    before = kernel.block[0]
    if kernel.block[1:] != (1, 1) or kernel.before or kernel.taped:
        return None
    found = _Shared(kernel)
    try:
        found.check()
    except _Depends:
        return None
    for row in found.rows:
        by = replace(row.by, op="const", args=(), name=None)
        _set(by, row.each * threads)
        row.step.args = tuple(by if a is row.by else a for a in row.step.args)
    for value in {v for item in walk(kernel.body) for v in operands(item)}:
        if value.op == "special" and value.attr == "blockDim.x":
            value.op = "const"
            _set(value, before)
    kernel.block, kernel.group = (threads, 1, 1), 0
    return kernel


def _set(value: Value, number: int) -> None:
    """Make a constant another number."""
    value.const, value.attr = number, f"{number}u" if value.type.startswith("unsigned") else str(number)


@dataclass(frozen=True)
class _Row:
    """A loop that shares out a row: the addition that goes on to a thread's next iteration, and by what."""

    step: Value
    by: Value
    each: int  # how far threads next to each other begin apart


@dataclass
class _Shared:
    """Looks for all that threads do but to share out rows."""

    kernel: Kernel
    rows: list[_Row] = field(default_factory=list)
    uses: Counter[Value] = field(default_factory=Counter)
    users: dict[Value, list[Any]] = field(default_factory=dict)
    partial: set[Value] = field(default_factory=set)  # what a thread has of a row's sum or maximum
    loaded: set[Array] = field(default_factory=set)
    stored: set[Array] = field(default_factory=set)
    added: set[Array] = field(default_factory=set)  # to, atomically

    def check(self) -> None:
        """Find the rows; `_Depends` if there is none, or more than rows."""
        for item in walk(self.kernel.body):
            place = place_of(item)
            if place is not None:
                _require(not (place.array.shared or place.array.private))
                self._access(item, place.array)
            for v in operands(item):
                self.users.setdefault(v, []).append(item)
        self.uses = loops.totals(self.kernel)
        self._visit(self.kernel.body)
        apart = self.loaded.isdisjoint(self.stored | self.added) and self.stored.isdisjoint(self.added)
        _require(bool(self.rows) and apart)

    def _access(self, item: Any, array: Array) -> None:
        if not isinstance(item, Store):
            self.loaded.add(array)
        elif item.adds == "atomic":
            self.added.add(array)
        else:
            _require(array not in self.stored)  # else an iteration might set what another one sets, too
            self.stored.add(array)

    # Outside of rows ----------------------------------------------------------------------------------------------

    def _visit(self, block: Block, first: bool = False) -> None:
        """What all threads do alike; `first`: what the first thread does alone."""
        for item in block.items:
            if isinstance(item, Store):
                _require(first or not item.adds)
                self._alike(*operands(item))
            elif isinstance(item, If):
                self._branch(item, first)
            elif isinstance(item, Loop):
                self._loop(item, first)
            elif isinstance(item, Exit):
                self._alike(item.condition)
            elif isinstance(item, Value):
                self._value(item, first)

    def _value(self, v: Value, first: bool) -> None:
        if v.op == "reduce":
            _require(not first and v.attr.startswith("block_") and self.partial.issuperset(v.args))
        elif v.op not in ("phi", "result") and not _of_thread(v) and not _is_first(v):
            _require(v.op != "shfl")
            self._alike(*v.args)

    def _alike(self, *values: Value) -> None:
        _require(self.partial.isdisjoint(values) and not any(_of_thread(v) or _is_first(v) for v in values))

    def _branch(self, branch: If, first: bool) -> None:
        alone = _is_first(branch.condition)
        if alone:
            _require(not branch.results and not branch.other.items)
        else:
            self._alike(branch.condition)
        for part in children(branch):
            self._visit(part, first or alone)
        self._alike(*(v for _, a, b in branch.results for v in (a, b)))

    def _loop(self, loop: Loop, first: bool) -> None:
        row = self._row(loop)
        if row is not None:
            _require(not first)
            self.rows.append(row)
            return
        for part in children(loop):
            self._visit(part, first)
        self._alike(*operands(loop))

    # Rows ---------------------------------------------------------------------------------------------------------

    def _row(self, loop: Loop) -> _Row | None:
        """The row that a loop shares out; None if it is another loop."""
        bound = scev.bounds(loop)
        if bound is None:
            return None
        variable, high, _ = bound
        start, by = scev.induction(loop)[variable.phi]
        each = poly(start)[(_THREAD,)] if _of_thread(start) else 0
        if each < 1 or poly(by) != constant(each * self.kernel.block[0]):
            return None
        self._alike(high)
        step = self._step(loop, variable)
        _require(by in step.args)
        for c in loop.carried:
            if c is not variable:
                self._accumulates(loop, c)
        for part in children(loop):
            self._inside(part, loop)
        return _Row(step, by, each)

    def _step(self, loop: Loop, variable: Carried) -> Value:
        """The addition that makes the variable's next value, for which alone it is used."""
        _require(variable.result not in self.users)
        value, user = variable.next, loop
        while value.op == "cast":
            _require(self.users[value] == [user])
            value, user = value.args[0], value
        _require(self.users[value] == [user] and (value.op, value.attr) == ("binary", "+"))
        return value

    def _accumulates(self, loop: Loop, c: Carried) -> None:
        """A variable that a row changes has to be a sum or a maximum, of which the block's is taken."""
        _require(types.is_float(c.phi.type) and self.users.get(c.phi) == [c.next] and self.users[c.next] == [loop])
        added = c.next.op == "binary" and (c.next.attr == "+" or (c.next.attr == "-" and c.next.args[0] is c.phi))
        extremum = maximum(c, self.uses)
        reduction = "block_sum" if added else _REDUCED.get(extremum[1] if extremum else "")
        _require(_is_zero(c.init) or not added)
        self._alike(c.init)
        users = self.users.get(c.result, [])
        _require(all(isinstance(u, Value) and (u.op, u.attr) == ("reduce", reduction) for u in users))
        self.partial.add(c.result)

    def _inside(self, block: Block, row: Loop, deep: bool = False) -> None:
        """What an iteration of a row does; `deep`: of a loop in it."""
        for item in block.items:
            _require(not isinstance(item, Barrier | Exit) and getattr(item, "op", "") not in COLLECTIVE)
            self._alike(*operands(item))
            if isinstance(item, Store) and item.adds != "atomic":
                _require(not deep and any(self._moves(i, row) for i in item.index))
            for part in children(item):
                self._inside(part, row, deep or isinstance(item, Loop))

    def _moves(self, index: Value, row: Loop) -> bool:
        """Whether an index differs between a row's iterations."""
        p = Poly(poly(index))
        by, of_row = p.pop((_THREAD,), 0), p.pop((row,), 0)
        rest = p.symbols
        fixed = all(not isinstance(s, Value) or scev.invariant(s, row) for s in rest)
        return by > 0 and of_row == by * self.kernel.block[0] and fixed and not {_THREAD, row} & rest.keys()


def _require(condition: bool) -> None:
    if not condition:
        raise _Depends


def _of_thread(v: Value) -> bool:
    """Whether a value is a thread's number, or a multiple of it."""
    return not types.is_float(v.type) and poly(v).keys() == {(_THREAD,)}


def _is_first(v: Value) -> bool:
    """Whether a value tells the first thread from the others."""
    sides = [poly(a) for a in v.args] if (v.op, v.attr) == ("binary", "==") else []
    return symbol(_THREAD) in sides and constant(0) in sides


def _is_zero(v: Value) -> bool:
    try:
        return v.op == "const" and float(str(v.attr).rstrip("fF")) == 0
    except ValueError:
        return False
