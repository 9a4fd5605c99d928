"""A length of rows as a number of the template, where all threads go through a row equally often.

The compiler then writes such loops out, so all their loads can be on their way at once, and what several of them read
or compute alike stays in registers. The text itself stays as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.analysis import loops
from rawkern.gradients.analysis.ownership import LANE, Poly, grouped, induction, poly, settled
from rawkern.gradients.ir import Kernel, Loop, Value
from rawkern.gradients.layout import Group, Names, rendered, written

MOST = 16  # iterations; more need too many registers
LINES = 64  # of all such loops: more is too much code, written out


@dataclass(frozen=True)
class Fixed:
    """A parameter that is a number of the template if each of these lengths is a multiple of the step behind it."""

    parameter: str
    name: str  # in the template; 0: the parameter is as it is given
    kind: str
    rows: tuple[tuple[Poly, int], ...]
    before: tuple[str, ...]  # lines that the body begins with

    @property
    def comments(self) -> list[str]:
        """What a launch is to know."""
        given = " and ".join(f"{written(length)} a multiple of {step}" for length, step in self.rows)
        return [f"// {self.name}: {self.parameter} if that makes {given}, up to {MOST} times that; else 0."]


def fixed(kernel: Kernel, lines: list[Any], names: Names) -> tuple[Fixed | None, list[Any]]:
    """The parameter that decides how often loops over rows run, and the lines with those written out.

    None where there are none, or it does not pay.
    """
    known = {head: row for head, loop in names.loops.items() if (row := _row(loop, kernel)) is not None}
    bodies = [(known[g.head][0], g) for g in _groups(lines) if g.head in known]
    if not bodies:
        return None, lines
    parameter = Counter(n for n, _ in bodies).most_common(1)[0][0]
    heads = {head: row for head, (n, row) in known.items() if n == parameter}
    inner = [line for n, g in bodies if n == parameter for line in rendered(g.body, 0)]
    if len(inner) > LINES or re.search(r"\b(for|while) \(|__sync|__shfl|\b(block|warp)_\w+\(", "\n".join(inner)):
        return None, lines
    kind = next(kind for n, kind, _ in kernel.params if n == parameter)
    name = names.fresh(f"fixed_{parameter}")
    threads = kernel.block[0]
    before = (
        f"__builtin_assume(blockDim.x == {threads} && threadIdx.x < {threads});",
        f"if ({name}) {parameter} = {name};",
    )
    rows = {(written(length), step): (length, step) for length, step in heads.values()}
    return Fixed(parameter, name, str(kind), tuple(rows.values()), before), _written_out(lines, set(heads))


def _row(loop: Loop, kernel: Kernel) -> tuple[str, tuple[Poly, int]] | None:
    """The parameter that decides how often a loop runs, if it goes from a thread's number in steps of all of them.

    With it the length of the row, and the step.
    """
    found = loops.bounds(loop)
    if found is None or found[2] or not settled(found[1]):
        return None
    start, by = map(poly, induction(loop)[found[0].phi])
    step = _step(start, ("threadIdx.x",), kernel.block[0]) or _step(grouped(start, kernel.group), (LANE,), kernel.group)
    length = poly(found[1])
    used = set(_parameters(length))
    if not step or by != {(): step} or len(used) != 1:
        return None
    name = used.pop()
    kind = next((kind for n, kind, pointer in kernel.params if n == name and not pointer), "float")
    whole = isinstance(kind, str) and not types.is_float(kind) and types.bits(kind) >= 32
    return (name, (length, step)) if whole else None


def _step(start: Poly, digit: tuple[str], threads: int) -> int:
    """How far threads that begin at a multiple of their number go together; 0 if they begin elsewhere."""
    return max(start[digit], 0) * threads if start.keys() == {digit} else 0


def _parameters(p: Poly) -> Iterator[str]:
    for s in (s for key in p for s in key):
        if isinstance(s, Value):
            for arg in s.args:
                yield from _parameters(poly(arg))
        else:
            yield str(s)


def _groups(lines: Sequence[Any]) -> Iterator[Group]:
    for line in lines:
        if isinstance(line, Group):
            yield line
            yield from _groups([*line.body, *line.other])


def _written_out(lines: list[Any], heads: set[str]) -> list[Any]:
    out: list[Any] = []
    for line in lines:
        if isinstance(line, Group):
            out += ["#pragma unroll"] if line.head in heads else []
            line = Group(line.head, *(_written_out(each, heads) for each in (line.body, line.other)))
        out.append(line)
    return out
