"""Several elements a thread, for backwards whose threads have nothing to do with one another.

A thread that reads and writes a few bytes leaves a GPU's memory waiting: too few bytes are on their way. So a block
does the work of several blocks of the forward. Where no condition fails for any thread of those, none is asked, so
that all loads can be on their way at once; in other blocks each is asked. A thread's elements are a block apart, but
those of a single axis, where no condition is asked, lie beside one another: pointers are then said to be multiples of
16 bytes, so the compiler reads and writes several elements at once. So do those of stencils, whose threads read the
same elements for several of theirs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

from rawkern.gradients import types
from rawkern.gradients.analysis.gather import places
from rawkern.gradients.code.passes.conditions import INTEGERS, Conditions, Unknown, parts
from rawkern.gradients.code.tree import (
    Assign,
    Barrier,
    Declare,
    For,
    If,
    Jump,
    Note,
    Scope,
    Statement,
    While,
    continued,
    declared,
    deep,
    every,
    expressions,
    rendered,
    text,
    with_bodies,
)
from rawkern.gradients.ir import Kernel

BYTES = 16  # of one array, that a thread reads or writes
MOST = 4  # elements
LINES, READS = 60, 24  # of a thread: more has enough on its way, or needs too many registers
TOGETHER = re.compile(r"__sync|__shfl|__ballot|__any|__all|__activemask|\b(warp_\w+|block_\w+|lane|take|curand\w*)\(")


@dataclass(frozen=True)
class Several:
    """The lines, and names of what they need: how many elements a thread has, and the forward's blocks."""

    lines: list[Statement]
    each: str
    blocks: str
    most: int
    aligned: bool  # whether pointers are said to be multiples of 16 bytes if a thread has more than one


def several(kernel: Kernel, lines: list[Statement], sizes: Set[str], fresh: Callable[[str], str]) -> Several | None:
    """Let a thread have several elements along x; None where threads have to do with one another, or it does not pay.

    `sizes`: names of integers that the backward is given beside the kernel's own.
    """
    code, whole = text(lines), places(kernel)
    waits = any(isinstance(s, Barrier) for s in every(lines))
    apart = not kernel.shared and not waits and not TOGETHER.search(code) and "x" in whole and kernel.grid[0] != 1
    if not apart or kernel.block[0] < 16:
        return None
    body = Conditions(kernel, whole, sizes)
    most = min(MOST, BYTES // _largest(kernel, code)) // (1 if len(whole) == 1 else 2)
    try:
        free = _freed(lines, body)
        free = _joined(free, Counter(name for s in every(free) for name in declared(s)))
    except _Unfit:
        return None
    inner = text(free)
    reads = len(re.findall(r"\w\[", inner))
    if most < 2 or "x" not in body.place or len(rendered(free)) > LINES or reads > READS or "atomic" in inner:
        return None
    each, k, blocks = (fresh(n) for n in ("each", "k", "blocks_x"))
    here, threads = body.place["x"], kernel.block[0]
    others = [a for a in whole if a in body.place and a != "x"]
    kept = [s for s in lines if _integer(s) not in body.place.values()]
    free = [s for s in free if _integer(s) not in body.place.values()]
    if re.search(r"(threadIdx|blockIdx)\.x", text([*kept, *free])):
        return None
    kind = body.kinds[here]
    wide = f"({kind})" if "long" in kind or kind == "size_t" else ""
    before = [Declare(body.kinds[n], n, body.spelled[n], const=True) for n in (body.place[a] for a in others)]
    ends = {name: (fresh(f"first_{name}"), fresh(f"last_{name}")) for name in body.place.values()}
    first, last = ends[here]
    before += [
        Declare(kind, first, f"{wide}blockIdx.x * ({threads} * {each})", const=True),
        Declare(kind, last, f"{wide}(blockIdx.x + 1) * ({threads} * {each}) - 1", const=True),
    ]
    asked = body.asked(ends)
    for a in others:
        for end, at in zip(ends[body.place[a]], body.ends(a), strict=True):
            if re.search(rf"\b{end}\b", " ".join(asked)):
                before.append(Declare(body.kinds[body.place[a]], end, at, const=True))
    tests = [f"(blockIdx.x + 1) * {each} <= {blocks}", *asked]
    loop = For(Declare("int", k, "0"), f"{k} < {each}", Assign(k, "1", "+="), [])
    behind = Declare(kind, here, f"{first} + threadIdx.x + {k} * {threads}", const=True)
    beside = replace(behind, value=f"{first} + threadIdx.x * {each} + {k}") if sizes or not others else behind
    stop = If(f"blockIdx.x * {each} + {k} >= {blocks}", [Jump("break")], inline=True)
    found = [
        *before,
        If(
            " && ".join(tests),
            [Note("#pragma unroll"), replace(loop, body=[beside, *free])],
            [replace(loop, body=[stop, behind, *continued(kept)])],
        ),
    ]
    found = deep(found, lambda text: text.replace("gridDim.x", blocks))
    return Several(found, each, blocks, most, aligned=not others)


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
        if any(n in body.spelled and (not name or body.spelled[n] != getattr(s, "value", "")) for n in declared(s)):
            raise _Unfit  # what was said of that name is not so here
        if name and isinstance(s, Declare):
            body.define(s.type, s.name, s.value)
        found.append(s)
    return found


def _branch(s: If, body: Conditions) -> list[Statement]:
    rare = "gridDim" in s.condition and "atomic" in text(s.body)
    if not s.other and body.fails(s.condition, only_known=not rare):
        return []
    left = [s.condition] if s.other else [part for part in parts(s.condition, "&&") if not body.hold(part)]
    inner, other = _freed(s.body, body), _freed(s.other, body)
    return [If(" && ".join(left), inner, other)] if left else [Scope(inner)]


def _joined(statements: list[Statement], times: Counter[str]) -> list[Statement]:
    """Statements without braces around what is asked no more, where their names are declared once."""
    found: list[Statement] = []
    for s in statements:
        s = with_bodies(s, lambda body: _joined(body, times))
        if isinstance(s, Scope) and all(times[name] == 1 for each in s.body for name in _own(each)):
            found += s.body
        else:
            found.append(s)
    return found


def _own(s: Statement) -> list[str]:
    """What a statement declares for those behind it."""
    return declared(s) if isinstance(s, Declare) else []


def _indices(s: Statement, body: Conditions) -> None:
    """Elements have to lie beside one another where threads do, or be the same for all."""
    here = "at x"
    inline = isinstance(s, If) and s.inline
    for index in _indexed(text([s]) if inline else "\n".join(expressions(s))):
        try:
            p = body.poly(index)
        except Unknown:
            continue
        if any(here in key and (key != (here,) or v != 1) for key, v in p.items()):
            raise _Unfit


def _indexed(line: str) -> Iterator[str]:
    """What stands between brackets."""
    for m in re.finditer(r"\w\[", line):
        depth, k = 1, m.end()
        while depth:
            depth += (line[k] == "[") - (line[k] == "]")
            k += 1
        yield line[m.end() : k - 1]


def _largest(kernel: Kernel, code: str) -> int:
    """Bytes of the largest element that is read or written."""
    used = [a for n, a in kernel.arrays.items() if re.search(rf"\b(grad_)?{n}\[", code)]
    return max((_bytes(a.type) for a in used), default=BYTES)


def _integer(s: Statement) -> str:
    """The name of an integer that a statement defines for good."""
    return s.name if isinstance(s, Declare) and s.const and INTEGERS.fullmatch(s.type) else ""


def _bytes(kind: types.Type) -> int:
    return sum(types.size(scalar) for scalar in types.scalars(kind))
