"""How often threads go through a row, as a number of the template.

The compiler then writes such loops out, so all their loads can be on their way at once, and what several of them read
or compute alike stays in registers. Only the last time a thread has to ask whether it is still in the row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rawkern.base import gpus
from rawkern.gradients import types
from rawkern.gradients.analysis import loops
from rawkern.gradients.analysis.ownership import LANE, Poly, grouped, induction, poly, settled
from rawkern.gradients.ir import Kernel, Loop, Value
from rawkern.gradients.layout import Group, Names, operand, rendered, written

MOST = 64  # times; more need too many registers
REGISTERS = 160  # for what is read once and kept: a thread has 255
LINES = 64  # of all such loops: more is too much code, written out
WRITTEN = 2048  # of them, written out
_HEAD = re.compile(r"for \(([^;]*); ([^;]+); ((\w+) \+= [^;]+)\) \{")


@dataclass(frozen=True)
class Row:
    """Loops that all threads run from their number to a length, a step of all of them at a time."""

    name: str  # of the template's number: how often; 0: as often as it has to be
    length: Poly
    step: int
    most: int
    kept: int  # registers, for each time

    @property
    def comment(self) -> str:
        """What a launch is to know."""
        times = f"{operand(written(self.length), '+', '/')} / {self.step}"
        return f"// {self.name}: {times} rounded up, or 0; how often a thread goes through a row."


def rows(kernel: Kernel, lines: list[Any], names: Names) -> tuple[tuple[Row, ...], list[Any]]:
    """The rows that a kernel's threads go through, and the lines with their loops as they may be written out.

    None where there are none, or it does not pay.
    """
    known = {head: row for head, loop in names.loops.items() if (row := _row(loop, kernel)) is not None}
    keys = {head: (written(length), step) for head, (length, step) in known.items() if _HEAD.fullmatch(head)}
    lengths = {keys[head]: length for head, (length, _) in known.items() if head in keys}
    bodies: dict[tuple[str, int], list[str]] = {}
    for g in _groups(lines):
        if g.head in keys:
            bodies.setdefault(keys[g.head], []).extend(rendered(g.body, 0))
    inner = [line for body in bodies.values() for line in body]
    if not bodies or len(inner) > LINES:
        return (), lines
    if re.search(r"\b(for|while) \(|__sync|__shfl|\b(block|warp)_\w+\(", "\n".join(inner)):
        return (), lines
    found = {}
    for key, body in bodies.items():
        kept = _registers(kernel, body)
        most = min(MOST, REGISTERS // max(kept, 1), WRITTEN // len(inner))
        found[key] = Row(names.fresh("steps"), lengths[key], key[1], most, kept)
    return tuple(found.values()), _written_out(lines, {head: found[key] for head, key in keys.items() if key in found})


def resident(
    threads: int, rows: Sequence[Row] = (), times: Sequence[int] = (), gpu: gpus.Specification | None = None
) -> int:
    """How many blocks a processor of a GPU is to have registers for, with threads that go so often through rows.

    Of a thread 32 registers are for anything, and one for each number that it keeps, of more than four times.
    """
    if gpu is None or not any(times):
        return min(1024 // threads, 16)  # no fewer registers than without that number
    kept = sum(row.kept * max(n - 4, 0) for row, n in zip(rows, times, strict=True))
    return max(min(gpu.warps * 32 // threads, gpus.REGISTERS // (threads * (32 + kept)), gpu.blocks), 1)


def assumption(kernel: Kernel) -> str:
    """What the compiler has to know of a block to see how often its threads go through a row."""
    threads = kernel.block[0]
    return f"__builtin_assume(blockDim.x == {threads} && threadIdx.x < {threads});"


def _registers(kernel: Kernel, body: Sequence[str]) -> int:
    """How many registers hold what a thread reads of memory at a time: of arrays, and of sums of its block."""
    text = "\n".join(re.sub(r"^(if \(\w+\) |else )?\w+\[[^=]*\] [-+]?= ", "", line) for line in body)
    read = set(re.findall(r"(?<!&)\b\w+", text))  # &: of atomicAdd
    kinds = [kind for n, kind, pointer in kernel.params for each in (n, f"grad_{n}") if pointer and each in read]
    together = max((types.count(kind) for n, kind in types.VECTORS.items() if re.search(rf"\b{n}\b", text)), default=1)
    return sum(max(types.size(kind) // 4, together) for kind in kinds) + any("] += " in line for line in body)


def _row(loop: Loop, kernel: Kernel) -> tuple[Poly, int] | None:
    """The length that a loop goes to from a thread's number in steps of all of them, and the step."""
    found = loops.bounds(loop)
    if found is None or found[2] or not settled(found[1]):
        return None
    start, by = map(poly, induction(loop)[found[0].phi])
    step = _step(start, ("threadIdx.x",), kernel.block[0]) or _step(grouped(start, kernel.group), (LANE,), kernel.group)
    length = poly(found[1])
    kinds = {n: kind for n, kind, pointer in kernel.params if not pointer}
    used = [kinds.get(n, "float") for n in _parameters(length)]
    whole = all(isinstance(kind, str) and not types.is_float(kind) and types.bits(kind) >= 32 for kind in used)
    return (length, step) if step and by == {(): step} and used and whole else None


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


def _written_out(lines: list[Any], heads: Mapping[str, Row]) -> list[Any]:
    """Lines with the loops that have these heads as loops that the compiler can write out."""
    out: list[Any] = []
    for line in lines:
        if isinstance(line, Group):
            head, body = line.head, _written_out(line.body, heads)
            row, parts = heads.get(head), _HEAD.fullmatch(head)
            if row and parts:
                start, condition, step, c = parts.groups()
                out.append("#pragma unroll")
                head = f"for ({start}; {row.name} ? {c} < {row.name} * {row.step} : {condition}; {step}) {{"
                body = [f"if ({c} >= ({row.name} - 1) * {row.step} && {_no(condition)}) continue;", *body]
            line = Group(head, body, _written_out(line.other, heads))
        out.append(line)
    return out


def _no(condition: str) -> str:
    """The opposite of a comparison."""
    parts = re.fullmatch(r"(\w+) < (.*)", condition)
    return f"{parts[1]} >= {parts[2]}" if parts else f"!({condition})"
