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
from dataclasses import dataclass
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.analysis.gather import places
from rawkern.gradients.backward.conditions import DEFINED, Conditions, Unknown, parts
from rawkern.gradients.ir import Kernel
from rawkern.gradients.layout import Group, rendered

BYTES = 16  # of one array, that a thread reads or writes
MOST = 4  # elements
LINES, READS = 60, 24  # of a thread: more has enough on its way, or needs too many registers
_DECLARES = re.compile(r"(?:const )?(?!return\b|else\b)[A-Za-z_]\w*(?: [A-Za-z_]\w*)* (\w+(?:, \w+)*)(?: = .*)?;")
TOGETHER = re.compile(r"__sync|__shfl|__ballot|__any|__all|__activemask|\b(warp_\w+|block_\w+|lane|take|curand\w*)\(")


@dataclass(frozen=True)
class Several:
    """The lines, and names of what they need: how many elements a thread has, and the forward's blocks."""

    lines: list[Any]
    each: str
    blocks: str
    most: int
    aligned: bool  # whether pointers are said to be multiples of 16 bytes if a thread has more than one


def several(kernel: Kernel, lines: list[Any], sizes: Set[str], fresh: Callable[[str], str]) -> Several | None:
    """Let a thread have several elements along x; None where threads have to do with one another, or it does not pay.

    `sizes`: names of integers that the backward is given beside the kernel's own.
    """
    code, whole = "\n".join(rendered(lines)), places(kernel)
    apart = not kernel.shared and not TOGETHER.search(code) and "x" in whole and kernel.grid[0] != 1
    if not apart or kernel.block[0] < 16:
        return None
    body = Conditions(kernel, whole, sizes)
    most = min(MOST, BYTES // _largest(kernel, code)) // (1 if len(whole) == 1 else 2)
    try:
        free = _freed(lines, body)
        free = _joined(free, Counter(name for line in rendered(free, 0) for name in _declared(line.strip())))
    except _Unfit:
        return None
    inner = rendered(free)
    reads = sum(len(re.findall(r"\w\[", line)) for line in inner)
    if most < 2 or "x" not in body.place or len(inner) > LINES or reads > READS or "atomic" in "".join(inner):
        return None
    each, k, blocks = (fresh(n) for n in ("each", "k", "blocks_x"))
    here, threads = body.place["x"], kernel.block[0]
    others = [a for a in whole if a in body.place and a != "x"]
    kept = [line for line in lines if _place(line) not in body.place.values()]
    free = [line for line in free if _place(line) not in body.place.values()]
    if re.search(r"(threadIdx|blockIdx)\.x", "\n".join(rendered([*kept, *free]))):
        return None
    kind = body.kinds[here]
    wide = f"({kind})" if "long" in kind or kind == "size_t" else ""
    before = [f"const {body.kinds[body.place[a]]} {body.place[a]} = {body.spelled[body.place[a]]};" for a in others]
    ends = {name: (fresh(f"first_{name}"), fresh(f"last_{name}")) for name in body.place.values()}
    first, last = ends[here]
    before += [
        f"const {kind} {first} = {wide}blockIdx.x * ({threads} * {each});",
        f"const {kind} {last} = {wide}(blockIdx.x + 1) * ({threads} * {each}) - 1;",
    ]
    asked = body.asked(ends)
    for a in others:
        for end, text in zip(ends[body.place[a]], body.ends(a), strict=True):
            if re.search(rf"\b{end}\b", " ".join(asked)):
                before.append(f"const {body.kinds[body.place[a]]} {end} = {text};")
    tests = [f"(blockIdx.x + 1) * {each} <= {blocks}", *asked]
    loop = f"for (int {k} = 0; {k} < {each}; ++{k}) {{"
    behind = f"const {kind} {here} = {first} + threadIdx.x + {k} * {threads};"
    beside = f"const {kind} {here} = {first} + threadIdx.x * {each} + {k};" if sizes or not others else behind
    stop = f"if (blockIdx.x * {each} + {k} >= {blocks}) break;"
    found = [
        *before,
        Group(
            f"if ({' && '.join(tests)}) {{",
            ["#pragma unroll", Group(loop, [beside, *free])],
            [Group(loop, [stop, behind, *_continued(kept)])],
        ),
    ]
    return Several(_with_blocks(found, blocks), each, blocks, most, aligned=not others)


class _Unfit(Exception):
    """Something that several elements a thread do not go with."""


def _freed(lines: Sequence[Any], body: Conditions) -> list[Any]:
    """The lines without the conditions that hold for all of a block."""
    found: list[Any] = []
    for line in lines:
        if isinstance(line, Group):
            found += _group(line, body)
            continue
        if exits := re.fullmatch(r"if \((.*)\) return;", line):
            if not body.fails(exits[1]):
                raise _Unfit
            continue
        _indices(line, body)
        defined = DEFINED.fullmatch(line)
        if any(n in body.spelled and (not defined or body.spelled[n] != defined[3]) for n in _declared(line)):
            raise _Unfit  # what was said of that name is not so here
        if defined:
            body.define(*defined.groups())
        found.append(line)
    return found


def _group(group: Group, body: Conditions) -> list[Any]:
    if group.head == "{":
        return [Group("{", _freed(group.body, body))]
    head = re.fullmatch(r"if \((.*)\) \{", group.head)
    if head is None:
        raise _Unfit
    rare = "gridDim" in group.head and "atomic" in "\n".join(rendered(group.body))
    if not group.other and body.fails(head[1], only_known=not rare):
        return []
    left = [] if group.other else [part for part in parts(head[1], "&&") if not body.hold(part)]
    if group.other:
        left = [head[1]]
    _indices(group.head, body)
    inner, other = _freed(group.body, body), _freed(group.other, body)
    return [Group(f"if ({' && '.join(left)}) {{", inner, other)] if left else [Group("{", inner)]


def _joined(lines: list[Any], declared: Counter[str]) -> list[Any]:
    """Lines without braces around what is asked no more, where their names are no others' as well."""
    found: list[Any] = []
    for line in lines:
        if not isinstance(line, Group):
            found.append(line)
            continue
        inner = _joined(line.body, declared)
        names = [name for each in inner if isinstance(each, str) for name in _declared(each)]
        if line.head == "{" and all(declared[name] == 1 for name in names):
            found += inner
        else:
            found.append(Group(line.head, inner, _joined(line.other, declared)))
    return found


def _declared(line: str) -> list[str]:
    """The variables that a line declares."""
    m = _DECLARES.fullmatch(line)
    return re.findall(r"\w+", m[1]) if m else []


def _indices(line: str, body: Conditions) -> None:
    """Elements have to lie beside one another where threads do, or be the same for all."""
    here = "at x"
    for index in _indexed(line):
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


def _place(line: Any) -> str:
    defined = DEFINED.fullmatch(line) if isinstance(line, str) else None
    return defined[2] if defined else ""


def _continued(lines: list[Any]) -> list[Any]:
    """The end of a thread's work is that of one of its elements."""
    return [
        Group(line.head, _continued(line.body), _continued(line.other)) if isinstance(line, Group)
        else re.sub(r"\) return;$", ") continue;", line)
        for line in lines
    ]  # fmt: skip


def _with_blocks(lines: list[Any], blocks: str) -> list[Any]:
    """The forward's blocks for those of the grid."""
    return [
        Group(line.head.replace("gridDim.x", blocks), _with_blocks(line.body, blocks), _with_blocks(line.other, blocks))
        if isinstance(line, Group)
        else line.replace("gridDim.x", blocks)
        for line in lines
    ]


def _bytes(kind: types.Type) -> int:
    return sum(types.size(scalar) for scalar in types.scalars(kind))
