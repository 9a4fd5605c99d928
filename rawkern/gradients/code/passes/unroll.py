"""How often threads go through a row, as a number of the template.

The compiler then writes such loops out, so all their loads can be on their way at once, and what several of them read
or compute alike stays in registers. Only the last time a thread has to ask whether it is still in the row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rawkern.base import gpus
from rawkern.gradients import types
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Binary, Index, Literal, Name, Node, Unary
from rawkern.gradients.code.names import Names
from rawkern.gradients.code.tree import Assign, Barrier, Declare, For, If, Jump, Note, Run, Statement, While
from rawkern.gradients.index import scev
from rawkern.gradients.index.affine import LANE, Poly, poly, settled
from rawkern.gradients.index.threads import grouped
from rawkern.gradients.ir import Kernel, Loop, Value

MOST = 64  # times; more need too many registers
REGISTERS = 160  # for what is read once and kept: a thread has 255
LINES = 64  # of all such loops: more is too much code, written out
_TOGETHER = ("__sync", "__shfl", "block_", "warp_")  # how functions begin that threads call together
WRITTEN = 2048  # of them, written out


@dataclass(frozen=True)
class Row:
    """Loops that all threads run from their number to a length, a step of all of them at a time."""

    name: str  # of the template's number: how often; 0: as often as it has to be
    length: Poly
    step: int
    most: int
    kept: int  # registers, for each time


def rows(kernel: Kernel, statements: list[Statement], names: Names) -> tuple[tuple[Row, ...], list[Statement]]:
    """The rows that a kernel's threads go through, and the statements with their loops as they may be written out.

    None where there are none, or it does not pay.
    """
    keys: dict[Loop, tuple[Node, int]] = {}
    lengths: dict[tuple[Node, int], Poly] = {}
    inner: dict[tuple[Node, int], list[Statement]] = {}
    for s in tree.every(statements):
        loop = s.loop if isinstance(s, For) and _steps(s) else None
        row = None if loop is None else row_of(loop, kernel)
        if loop is not None and row is not None:
            key = keys[loop] = expr.written(row[0]), row[1]
            lengths[key] = row[0]
            inner.setdefault(key, []).extend(tree.bodies(s)[0])
    lines = sum(map(tree.length, inner.values()))
    if not inner or lines > LINES:
        return (), statements
    written_out = [s for body in inner.values() for s in body]
    if any(isinstance(s, For | While | Barrier) for s in tree.every(written_out)):
        return (), statements
    if any(name.startswith(_TOGETHER) for name in tree.called(written_out)):
        return (), statements
    found = {}
    for key, body in inner.items():
        kept = _registers(kernel, body)
        most = min(MOST, REGISTERS // max(kept, 1), WRITTEN // lines)
        found[key] = Row(names.fresh("steps"), lengths[key], key[1], most, kept)
    return tuple(found.values()), _written_out(statements, {loop: found[key] for loop, key in keys.items()})


def _steps(s: For) -> bool:
    """Whether a loop's variable grows by more than 1."""
    return isinstance(s.step, Assign) and s.step.sign == "+=" and s.step.value != Literal("1")


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


def assumption(kernel: Kernel) -> Statement:
    """What the compiler has to know of a block to see how often its threads go through a row."""
    threads = kernel.block[0]
    within = expr.infix(expr.special("threadIdx.x"), "<", threads)
    return Run(expr.call("__builtin_assume", expr.both(expr.infix(expr.special("blockDim.x"), "==", threads), within)))


def _registers(kernel: Kernel, body: Sequence[Statement]) -> int:
    """How many registers hold what a thread reads of memory at a time: of arrays, and of sums of its block."""
    inner = list(tree.every(body))
    read = {
        name for s in inner for e in tree.expressions(s) if e is not getattr(s, "target", None) for name in _read(e)
    }
    kinds = [kind for n, kind, pointer in kernel.params for each in (n, f"grad_{n}") if pointer and each in read]
    declares = {s.type for s in inner if isinstance(s, Declare)}
    together = max((types.count(types.VECTORS[n]) for n in declares & types.VECTORS.keys()), default=1)
    adds = any(isinstance(s, Assign) and s.sign == "+=" and isinstance(s.target, Index) for s in inner)
    return sum(max(types.size(kind) // 4, together) for kind in kinds) + adds


def _read(e: Node) -> set[str]:
    """The variables that are read, not those of which only an address is taken, for an atomic addition."""
    taken = Counter(expr.base(each.of) for each in expr.nodes(e) if isinstance(each, Unary) and each.sign == "&")
    return {name for name, times in Counter(expr.names(e)).items() if times > taken[name]}


def row_of(loop: Loop, kernel: Kernel) -> tuple[Poly, int] | None:
    """The length that a loop goes to from a thread's number in steps of all of them, and the step; None of others."""
    found = scev.bounds(loop)
    if found is None or found[2] or not settled(found[1]):
        return None
    start, by = map(poly, scev.induction(loop)[found[0].phi])
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


def _written_out(statements: list[Statement], rows: Mapping[Loop, Row]) -> list[Statement]:
    """Statements with these loops as loops that the compiler can write out."""
    out: list[Statement] = []
    for s in statements:
        s = tree.with_bodies(s, lambda body: _written_out(body, rows))
        row = rows.get(s.loop) if isinstance(s, For) and _steps(s) else None
        if row is not None and isinstance(s, For) and isinstance(s.step, Assign):
            c, times = s.step.target, Name(row.name)
            out.append(Note("#pragma unroll"))
            over = expr.both(expr.infix(c, ">=", (times - 1) * row.step), _no(s.condition))
            condition = expr.where(times, expr.infix(c, "<", times * row.step), s.condition)
            s = replace(s, condition=condition, body=[If(over, [Jump("continue")], inline=True), *s.body])
        out.append(s)
    return out


def _no(condition: Node) -> Node:
    """The opposite of a comparison."""
    if isinstance(condition, Binary) and condition.sign == "<":
        return Binary(">=", condition.left, condition.right)
    return Unary("!", condition)
