"""Several elements a thread, for backwards whose threads have nothing to do with one another.

A thread that reads and writes a few bytes leaves a GPU's memory waiting: too few bytes are on their way. So a block
does the work of several blocks of the forward. Where no condition fails for any thread of those, none is asked, so
that all loads can be on their way at once; in other blocks each is asked. A thread's elements are a block apart, but
those of a single axis, where no condition is asked, lie beside one another: pointers are then said to be multiples of
16 bytes, so the compiler reads and writes several elements at once. So do those of stencils, whose threads read the
same elements for several of theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from rawkern.gradients import types
from rawkern.gradients.analysis.gather import places
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Cast, Name
from rawkern.gradients.code.passes.conditions import INTEGERS, Conditions, Unknown, parts
from rawkern.gradients.code.tree import Barrier, Declare, For, If, Jump, Note, Scope, Statement, While
from rawkern.gradients.index.affine import Terms
from rawkern.gradients.ir import Kernel

BYTES = 16  # of one array, that a thread reads or writes
MOST = 4  # elements
LINES, READS = 60, 24  # of a thread: more has enough on its way, or needs too many registers
#: How functions begin that threads of a warp or block call together, or whose calls have an order.
TOGETHER = ("__sync", "__shfl", "__ballot", "__any", "__all", "__activemask", "warp_", "block_", "curand")


@dataclass(frozen=True)
class Coarsening:
    """The lines, and names of what they need: how many elements a thread has, and the forward's blocks."""

    lines: list[Statement]
    each: str
    blocks: str
    most: int
    aligned: bool  # whether pointers are said to be multiples of 16 bytes if a thread has more than one


def coarsened(
    kernel: Kernel, lines: list[Statement], sizes: Set[str], fresh: Callable[[str], str]
) -> Coarsening | None:
    """Let a thread have several elements along x; None where threads have to do with one another, or it does not pay.

    `sizes`: names of integers that the backward is given beside the kernel's own.
    """
    whole = places(kernel)
    if kernel.block[0] < 16 or not _apart(kernel, lines, whole):
        return None
    body = Conditions(kernel, whole, sizes)
    try:
        free = _freed(lines, body)
    except _Unfit:
        return None
    free = _joined(free, Counter(name for s in tree.every(free) for name in tree.declared(s)))
    most = min(MOST, BYTES // _largest(kernel, lines)) // (1 if len(whole) == 1 else 2)
    if most < 2 or "x" not in body.place or not _worthwhile(free):
        return None
    kept, free = ([s for s in part if _integer(s) not in body.place.values()] for part in (lines, free))
    if any(tree.mentions(s, f"{of}.x") for s in (*kept, *free) for of in ("threadIdx", "blockIdx")):
        return None
    others = [a for a in whole if a in body.place and a != "x"]
    each, k, blocks = (fresh(n) for n in ("each", "k", "blocks_x"))
    found = _coarsened(body, kept, free, others, bool(sizes), (each, k, blocks), fresh)
    found = tree.deep(found, lambda e: expr.substituted(e, {"gridDim.x": Name(blocks)}))
    return Coarsening(found, each, blocks, most, aligned=not others)


def _apart(kernel: Kernel, lines: Sequence[Statement], whole: Mapping[str, Terms]) -> bool:
    """Whether the threads of a launch along x have nothing to do with one another."""
    if (
        kernel.shared
        or "x" not in whole
        or kernel.grid[0] == 1
        or any(isinstance(s, Barrier) for s in tree.every(lines))
    ):
        return False
    return not any(name in ("lane", "take") or name.startswith(TOGETHER) for name in tree.called(lines))


def _worthwhile(lines: list[Statement]) -> bool:
    """Whether a thread has so little on its way that it may have more, and adds nothing atomically."""
    loads = sum(1 for e in tree.all_expressions(lines) for _ in expr.accesses(e))
    return (
        tree.length(lines) <= LINES and loads <= READS and not any(n.startswith("atomic") for n in tree.called(lines))
    )


def _coarsened(
    body: Conditions, kept: list[Statement], free: list[Statement], others: list[str], beside: bool,
    given: tuple[str, str, str], fresh: Callable[[str], str],
) -> list[Statement]:  # fmt: skip
    """The loop over a thread's elements: without conditions that hold for all of a block, and with them.

    `given`: how many elements, which of them, the forward's blocks; `beside`: whether the elements lie beside one
    another, though there are several axes.
    """
    each, k, blocks = map(Name, given)
    here, threads = body.place["x"], body.kernel.block[0]
    kind, block = body.kinds[here], expr.special("blockIdx.x")
    before = [tree.constant(body.kinds[n], n, body.defined[n]) for n in (body.place[a] for a in others)]
    ends = {name: (fresh(f"first_{name}"), fresh(f"last_{name}")) for name in body.place.values()}
    first, last = ends[here]
    start, end = (Cast(kind, e) if "long" in kind else e for e in (block, block + 1))
    before.append(tree.constant(kind, first, start * (threads * each)))
    before.append(tree.constant(kind, last, end * (threads * each) - 1))
    asked = body.asked(ends)
    for a in others:
        for name, at in zip(ends[body.place[a]], body.ends(a), strict=True):
            if any(name in expr.names(e) for e in asked):
                before.append(tree.constant(body.kinds[body.place[a]], name, at))
    thread = expr.special("threadIdx.x")
    apart = tree.constant(kind, here, Name(first) + thread + k * threads)
    together = tree.constant(kind, here, Name(first) + thread * each + k) if beside or not others else apart
    stop = If(expr.infix(block * each + k, ">=", blocks), [Jump("break")], inline=True)

    def loop(body: list[Statement]) -> Statement:
        return tree.counting(tree.variable("int", k.name, 0), each, 1, body)

    whole = expr.both(expr.infix((block + 1) * each, "<=", blocks), *asked)
    quick, careful = loop([together, *free]), loop([stop, apart, *tree.continued(kept)])
    return [*before, If(whole, [Note("#pragma unroll"), quick], [careful])]


class _Unfit(Exception):
    """Something that several elements a thread do not go with."""


def _freed(statements: Sequence[Statement], body: Conditions) -> list[Statement]:
    """The statements without the conditions that hold for all of a block."""
    found: list[Statement] = []
    for s in statements:
        if isinstance(s, If) and s.body == [Jump()]:
            if not body.fails(s.condition):
                raise _Unfit
            continue
        _indices(s, body)
        if isinstance(s, Scope):
            found.append(Scope(_freed(s.body, body)))
            continue
        if isinstance(s, If) and not s.inline:
            found += _branch(s, body)
            continue
        if isinstance(s, For | While):
            raise _Unfit
        name = _integer(s)
        if any(
            n in body.defined and (not name or body.defined[n] != getattr(s, "value", None)) for n in tree.declared(s)
        ):
            raise _Unfit  # what was said of that name is not so here
        if name and isinstance(s, Declare) and s.value is not None:
            body.define(s.type, s.name, s.value)
        found.append(s)
    return found


def _branch(s: If, body: Conditions) -> list[Statement]:
    grid = any(name.startswith("gridDim.") for name in expr.names(s.condition))
    rare = grid and any(name.startswith("atomic") for name in tree.called(s.body))
    if not s.other and body.fails(s.condition, only_known=not rare):
        return []
    left = [s.condition] if s.other else [part for part in parts(s.condition, "&&") if not body.hold(part)]
    inner, other = _freed(s.body, body), _freed(s.other, body)
    return [If(expr.both(*left), inner, other)] if left else [Scope(inner)]


def _joined(statements: list[Statement], times: Counter[str]) -> list[Statement]:
    """Statements without braces around what is asked no more, where their names are declared once."""
    found: list[Statement] = []
    for s in statements:
        s = tree.with_bodies(s, lambda body: _joined(body, times))
        if isinstance(s, Scope) and all(times[name] == 1 for each in s.body for name in _own(each)):
            found += s.body
        else:
            found.append(s)
    return found


def _own(s: Statement) -> list[str]:
    """What a statement declares for those after it."""
    return tree.declared(s) if isinstance(s, Declare) else []


def _indices(s: Statement, body: Conditions) -> None:
    """Elements have to lie beside one another where threads do, or be the same for all."""
    here = "at x"
    inline = isinstance(s, If) and s.inline
    for e in tree.all_expressions([s]) if inline else tree.expressions(s):
        for access in expr.accesses(e):
            try:
                p = body.poly(access.at)
            except Unknown:
                continue
            if any(here in key and (key != (here,) or v != 1) for key, v in p.items()):
                raise _Unfit


def _largest(kernel: Kernel, lines: Sequence[Statement]) -> int:
    """Bytes of the largest element that is read or written."""
    used = {e.of.name for each in tree.all_expressions(lines) for e in expr.accesses(each) if isinstance(e.of, Name)}
    kinds = [types.scalars(a.type) for n, a in kernel.arrays.items() if n in used or f"grad_{n}" in used]
    return max((sum(map(types.size, each)) for each in kinds), default=BYTES)


def _integer(s: Statement) -> str:
    """The name of an integer that a statement defines for good."""
    return s.name if isinstance(s, Declare) and s.const and s.type in INTEGERS else ""
