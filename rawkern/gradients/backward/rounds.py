"""Loops over a row in strides of the block, which all threads run equally often where its length is a multiple.

How often is then a number of the template: the compiler writes such loops out, so all their loads can be on their way
at once, and what several of them read or compute alike stays in registers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rawkern.gradients.analysis import loops
from rawkern.gradients.analysis.ownership import Poly, induction, poly, settled
from rawkern.gradients.ir import Kernel, Loop
from rawkern.gradients.layout import Group, Names, rendered, written

MOST = 16  # rounds; more need too many registers
LINES = 64  # of all such loops: more is too much code, written out


@dataclass(frozen=True)
class Rounds:
    """The lines, the name of the number, and how many elements a row has, of which a round takes `stride`."""

    lines: list[Any]
    name: str
    length: Poly
    stride: int


def counted(kernel: Kernel, lines: list[Any], names: Names) -> Rounds | None:
    """Loops of which the template can say how often they run; None where there are none, or it does not pay."""
    stride = kernel.block[0]
    known = {head: p for head, loop in names.loops.items() if (p := _length(loop, stride)) is not None}
    found = Counter(frozenset(known[g.head].items()) for g in _groups(lines) if g.head in known)
    if not found:
        return None
    length = dict(found.most_common(1)[0][0])
    heads = {head for head, p in known.items() if p == length}
    inner = [line for g in _groups(lines) if g.head in heads for line in rendered(g.body, 0)]
    if len(inner) > LINES or re.search(r"\b(for|while) \(|__sync|__shfl|\b(block|warp)_\w+\(", "\n".join(inner)):
        return None
    name, k = names.fresh("rounds"), names.fresh("done")
    return Rounds(_written_out(lines, heads, name, k), name, length, stride)


def comments(rounds: Rounds | None) -> list[str]:
    """What a launch is to know."""
    if rounds is None:
        return []
    length = written(rounds.length)
    return [f"// {rounds.name}: {length} / {rounds.stride} if that is a whole number up to {MOST}, else 0."]


def _length(loop: Loop, stride: int) -> Poly | None:
    """Up to where a loop goes, from the thread's number in strides of the block."""
    found = loops.bounds(loop)
    if found is None or found[2] or not settled(found[1]):
        return None
    start, by = induction(loop)[found[0].phi]
    return poly(found[1]) if poly(start) == {("threadIdx.x",): 1} and poly(by) == {(): stride} else None


def _groups(lines: Sequence[Any]) -> Iterator[Group]:
    for line in lines:
        if isinstance(line, Group):
            yield line
            yield from _groups([*line.body, *line.other])


def _written_out(lines: list[Any], heads: set[str], name: str, k: str) -> list[Any]:
    out: list[Any] = []
    for line in lines:
        if not isinstance(line, Group):
            out.append(line)
            continue
        head = re.fullmatch(r"for \((\w[\w ]* = [^;]*); ([^;]*); ([^;]*)\) \{", line.head)
        if head is None or line.head not in heads:
            out.append(Group(line.head, *(_written_out(each, heads, name, k) for each in (line.body, line.other))))
            continue
        start, goes_on, step = head.groups()
        out.append(f"#pragma unroll ({name} ? {name} : 4)")
        out.append(Group(f"for ({start}, {k} = 0; {name} ? {k} < {name} : {goes_on}; {step}, ++{k}) {{", line.body))
    return out
