"""A row in shared memory: threads whose registers cannot hold what several loops read of an array read it there.

The block starts to copy the row before its first loop, so it is on its way while the block works on another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rawkern.gradients import types
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Binary, Call, Index, Literal, Name, Node, Ternary
from rawkern.gradients.code.names import Names
from rawkern.gradients.code.passes.unroll import row_of
from rawkern.gradients.code.tree import Assign, Barrier, Declare, For, Jump, Run, Statement
from rawkern.gradients.index.affine import Poly
from rawkern.gradients.ir import Kernel

ALIGNED = 16  # bytes of shared memory, for copies in bulk


@dataclass(frozen=True)
class StagedRow:
    """A row that the block can have in shared memory."""

    array: str  # the parameter
    start: Node  # its place in the array
    length: Poly
    type: str  # of its elements
    bytes: int  # of each
    first: int  # the statement before which it can be copied: the first loop over a row
    loops: tuple[int, ...]  # the statements that read it

    @property
    def registers(self) -> int:
        """What a thread needs to keep an element."""
        return max(self.bytes // 4, 1)


def stageable(kernel: Kernel, statements: Sequence[Statement], arrays: Mapping[str, str]) -> StagedRow | None:
    """The row that several loops read and the first one does not; None if there is none.

    `arrays`: those that the kernel does not write to, with the types of their elements.
    """
    if kernel.block[1:] != (1, 1):
        return None
    found: dict[tuple[str, Node, Node], list[int]] = {}
    lengths: dict[Node, Poly] = {}
    places, at_once = [], set[tuple[str, Node]]()
    changed = {s.target for s in tree.every(statements) if isinstance(s, Assign)}
    uniform = {n for n, _, pointer in kernel.params if not pointer and Name(n) not in changed} | {"blockIdx.x"}
    for k, s in enumerate(statements):
        if isinstance(s, Declare) and s.const and s.value is not None and not places and _uniform(s.value, uniform):
            uniform.add(s.name)
        row = row_of(s.loop, kernel) if isinstance(s, For) and s.loop is not None else None
        if row is None or row[1] != kernel.block[0] or not isinstance(s, For) or s.start is None:
            continue
        places.append(k)
        if any(isinstance(each, Jump) for each in tree.every(s.body)):
            continue  # after which an iteration may read nothing
        length = expr.written(row[0])
        lengths[length] = row[0]
        reads = {read for each in s.body for e in tree.expressions(each) for read in _reads(e, s.start.name)}
        at_once |= reads if len(places) == 1 else set()
        for array, start in reads - at_once:
            if array in arrays and _uniform(start, uniform):
                found.setdefault((array, start, length), []).append(k)
    together = any(_together(s) for s in statements[places[0] :]) if places else False
    several = {key: at for key, at in found.items() if len(at) > 1}
    if not several or not together:
        return None
    array, start, length = max(several, key=lambda key: several[key][0])
    kind, loops = arrays[array], several[array, start, length]
    return StagedRow(array, start, lengths[length], kind, types.size(kind), places[0], tuple(loops))


def staged(statements: Sequence[Statement], row: StagedRow, names: Names) -> tuple[Statement, list[Statement]]:
    """What declares the memory of a row, and the statements with those that copy it there and read it there."""
    memory = names.fresh(f"{row.array}_row")
    copies = expr.call("copy_row", memory, Name(row.array) + row.start, expr.written(row.length))
    out: list[Statement] = []
    for k, s in enumerate(statements):
        if k == row.first:
            out.append(Run(copies))
        if k == row.loops[0]:
            out.append(Run(expr.call("row_arrived")))
        if k in row.loops and isinstance(s, For) and s.start is not None:
            s = replace(s, body=_reading(s.body, row, s.start.name, memory))
        out.append(s)
    return Declare(f"extern __shared__ __align__({ALIGNED}) {row.type}", memory, extents=(None,)), out


def _reading(body: Sequence[Statement], row: StagedRow, variable: str, memory: str) -> list[Statement]:
    """Statements that read a row from shared memory."""

    def change(e: Node) -> Node | None:
        return Index(Name(memory), Name(variable)) if _read(e, variable) == (row.array, row.start) else None

    return tree.deep(body, lambda e: expr.mapped(e, change))


def _reads(e: Node, variable: str) -> set[tuple[str, Node]]:
    """The arrays that an expression reads in any case at a place plus a variable, with these places."""
    return {found for each in _always(e) if (found := _read(each, variable)) is not None}


def _read(e: Node, variable: str) -> tuple[str, Node] | None:
    """An array and a place in it, of an element that is read there plus a variable."""
    if isinstance(e, Index) and isinstance(e.of, Name) and isinstance(e.at, Binary) and e.at.sign == "+":
        if e.at.right == Name(variable):
            return e.of.name, e.at.left
        if e.at.left == Name(variable):
            return e.of.name, e.at.right
    return None


def _always(e: Node) -> Iterator[Node]:
    """The nodes of an expression that are computed whatever its values are."""
    yield e
    first = isinstance(e, Ternary) or (isinstance(e, Binary) and e.sign in ("&&", "||"))
    for each in expr.children(e)[: 1 if first else None]:
        yield from _always(each)


def _uniform(e: Node, names: set[str]) -> bool:
    """Whether an expression of integers is the same in all threads, and not less than what is added in it."""
    if isinstance(e, Binary):
        return e.sign in ("+", "*") and _uniform(e.left, names) and _uniform(e.right, names)
    return isinstance(e, Literal) or (isinstance(e, Name) and e.name in names)


def _together(s: Statement) -> bool:
    """Whether all threads of a block have to reach a statement."""
    calls = {e.function for top in tree.expressions(s) for e in expr.nodes(top) if isinstance(e, Call)}
    return isinstance(s, Barrier) or any(c.startswith(("block_", "__syncthreads")) for c in calls)
