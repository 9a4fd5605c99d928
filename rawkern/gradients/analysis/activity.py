"""Which values depend on what is differentiated by, and which arrays carry gradients."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.analysis import loops
from rawkern.gradients.index.affine import poly
from rawkern.gradients.index.scev import loops_around
from rawkern.gradients.ir import COLLECTIVE, Array, If, Kernel, Loop, Store, Value, walk
from rawkern.gradients.reading.syntax import Where


@dataclass
class Activity:
    """Values and arrays that depend on what is differentiated by; `outputs` are those of global memory."""

    kernel: Kernel
    wrt: tuple[str, ...]
    values: set[Value]
    arrays: set[Array]
    outputs: list[Array]

    @functools.cached_property
    def every(self) -> set[Value]:
        """The values that depend on anything that can have a gradient: what decides who gets that of a maximum."""
        items = list(walk(self.kernel.body))
        written = {i.place.array for i in items if isinstance(i, Store)}
        read = {a.name for a in self.kernel.arrays.values() if a not in written}
        return _followed(self.kernel, items, (*self.wrt, *read), None)[0]


def activity(kernel: Kernel, wrt: tuple[str, ...], only: set[Value] | None = None) -> Activity:
    """Follow the dependence through values, loops, branches and memory until nothing is added.

    With `only`, of all reads of global memory these alone depend on it.
    """
    items = list(walk(kernel.body))
    written = {i.place.array for i in items if isinstance(i, Store)}
    values, arrays = _followed(kernel, items, wrt, only)
    outputs = [a for a in kernel.arrays.values() if a in arrays and a in written]
    return Activity(kernel, wrt, values, arrays, outputs)


def _followed(
    kernel: Kernel, items: list[Any], wrt: tuple[str, ...], only: set[Value] | None
) -> tuple[set[Value], set[Array]]:
    values: set[Value] = set()
    arrays = {a for a in kernel.arrays.values() if a.name in wrt}
    arrays |= {
        kernel.arrays[of] for name, of in kernel.before.items() if name in wrt
    }  # where nothing is set, as before
    before = -1
    while before != len(values) + len(arrays):
        before = len(values) + len(arrays)
        for item in items:
            if isinstance(item, Value):
                if item not in values and _active(item, values, arrays, wrt, only):
                    values.add(item)
            elif isinstance(item, Store):
                if item.value in values:
                    arrays.add(item.place.array)
            elif isinstance(item, If | Loop):
                values |= _merged(item, values)
    return values, arrays


def _merged(item: If | Loop, values: set[Value]) -> set[Value]:
    """The floats that a branch or loop makes of active ones."""
    if isinstance(item, If):
        found = {r for r, a, b in item.results if a in values or b in values}
    else:
        found = {v for c in item.carried if c.init in values or c.next in values for v in (c.phi, c.result)}
    return {v for v in found if types.is_float(v.type)}


def _active(item: Value, values: set[Value], arrays: set[Array], wrt: tuple[str, ...], only: set[Value] | None) -> bool:
    if not types.is_float(item.type):
        return False
    if item.op == "param":
        return item.attr in wrt
    if item.op == "load":
        return item.attr.array in arrays and (only is None or item.attr.array.shared or item in only)
    if item.op in ("select", *COLLECTIVE):
        return any(a in values for a in item.args)
    if item.op == "call" and not isinstance(item.attr, str):
        return any(a in values for a, d in zip(item.args, item.attr[0].derivatives, strict=True) if d is not None)
    return item.op in ("binary", "unary", "cast") and any(a in values for a in item.args)


def reads_overwritten(kernel: Kernel, array: Array) -> bool:
    """Whether a kernel reads what it writes of an array: a backward could not read that again."""
    if array.name in kernel.taped:
        return False
    return bool(loops.stores(kernel.body, array) and loops.reads(kernel.body, array))


def check_memory(kernel: Kernel, wrt: tuple[str, ...], where: Where) -> None:
    """Reject global memory whose values the backward could not read again."""
    for array in kernel.arrays.values():
        written, read = loops.stores(kernel.body, array), loops.reads(kernel.body, array)
        if reads_overwritten(kernel, array):
            raise where.refuse(read[0].line, *_overwritten(array, read, written))
        if array.name not in kernel.taped:
            alone = [i for i in written if i.adds and not i.reads_own_store]
            if alone and not all(i.adds for i in written):
                both = f"{array.name} is both set and added to"
                raise where.refuse(written[0].line, both, "use two arrays, or only add")
        if written and array.name in wrt:
            way = f"name {array.name}_before" if f"{array.name}_before" in kernel.before else "leave it out"
            raise where.refuse(written[0].line, f"{array.name} is written, and so cannot be in wrt", way)


def _overwritten(array: Array, read: Sequence[Value], written: Sequence[Store]) -> tuple[str, str]:
    """Why the values that a kernel reads of what it writes cannot be read again, and what to do."""
    for r, s in ((r, s) for r in read for s in written if r.attr == s.place):
        for loop in loops_around(s.block):
            if loop in loops_around(r.block) and not any(loop in poly(i).symbols for i in s.index):
                return (
                    f"{array.name} is both read and written: iterations of a loop around it overwrite what others read",
                    f"make that loop the innermost one that uses {array.name}, keep the value in a local variable, "
                    "and store it after the loop",
                )
    return f"{array.name} is both read and written", "write to another array"
