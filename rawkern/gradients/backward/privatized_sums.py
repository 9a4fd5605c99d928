"""Gradients that every block adds to, summed up by each block first, as far as shared memory has room.

All blocks read the same elements of an array whose indices do not depend on the block, or are remainders: a row's
weights, a filter, a number, a channel's bias. Their additions to its gradient would wait for one another. So the
backward's blocks, fewer than the forward's, do the work of several of those one after another, add to sums of their
own in shared memory, and in the end these to the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rawkern.gradients import ir, types
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Cast, Given, Literal, Name, Node
from rawkern.gradients.code.names import Names, summed_spelling
from rawkern.gradients.code.tree import BARRIER, Assign, If, Run, Statement
from rawkern.gradients.index.injective import Question, injective, signature
from rawkern.gradients.index.uniform import uniform
from rawkern.gradients.ir import Exit, Kernel, Value, made_of, walk


@dataclass(frozen=True)
class BlockSum:
    """The sums for an array or a number: names in the text, the type of the elements and of the numbers in them."""

    of: str
    name: str
    flag: str  # a template parameter: whether there are sums
    count: Node  # how many numbers the gradient has
    kind: str
    inner: str  # the type of its numbers
    fields: int
    own: bool  # whether an element is added to by one thread of a block alone

    @property
    def alignment(self) -> int:
        """Bytes that the place of an element is a multiple of."""
        return types.size(self.inner) * (1 if self.fields == 3 else self.fields)

    def numbers(self, array: str) -> Node:
        """An array as one of numbers."""
        return Name(array) if self.fields == 1 else Cast(f"{self.inner}*", Name(array), bits=True)

    def adding(self, place: Node, index: Given, path: Sequence[str], line: Callable[[Node], Statement]) -> If:
        """Adds, as `line` does it, to the sum of an element if there are sums, else to its place in the gradient."""
        return If(Name(self.flag), [line(expr.element(self.name, [index], path))], [line(place)], inline=True)


def block_sum(kernel: Kernel, name: str, kind: types.Type, reads: Sequence[Value], names: Names) -> BlockSum | None:
    """Sums for an array with these reads, or for a number with none; None where blocks do not add to the same elements.

    A block of threads can do the work of several if none of its threads ends one while others go on to a barrier.
    """
    exits = [i for i in walk(kernel.body) if isinstance(i, Exit)]
    apart = _meets(kernel) and not all(uniform(e.condition) for e in exits)
    if kernel.grid == (1, 1, 1) or apart or not all(len(r.args) == 1 and _alike(r.args[0]) for r in reads):
        return None
    vector = kind if isinstance(kind, types.Aggregate) else None
    if vector is not None and kind not in types.VECTORS.values():
        return None
    inner = vector.fields[0][1] if vector else kind
    flag, count = names.fresh(f"sums_{name}"), Name(names.fresh(f"size_{name}")) if reads else Literal("1")
    return BlockSum(
        name, names.fresh(f"sum_{name}"), flag, count, summed_spelling(kind, names), summed_spelling(inner, names),
        len(vector.fields) if vector else 1, bool(reads) and _one_thread(kernel, reads),
    )  # fmt: skip


def _meets(kernel: Kernel) -> bool:
    """Whether the threads of a block have to do with one another."""
    reduced = any(getattr(i, "op", "") == "reduce" and i.attr.startswith("block_") for i in walk(kernel.body))
    return reduced or bool(kernel.shared) or any(isinstance(i, ir.Barrier) for i in walk(kernel.body))


def _alike(value: Value, remainders: bool = True) -> bool:
    """Whether what a thread computes by this is the same in every block, or a remainder, of which there are few."""

    def ask(v: Value) -> bool | tuple[Value, ...]:
        if v.op == "special":
            return not v.attr.startswith("blockIdx")
        if v.op == "load" and v.attr.array.shared:
            return False
        if v.op == "binary" and v.attr == "%" and remainders:
            return v.args[1:]
        return v.op in ("cast", "unary", "binary", "select", "load") and v.args

    return made_of(value, ask)


def _one_thread(kernel: Kernel, reads: Sequence[Value]) -> bool:
    """Whether of each block the same thread alone reads an element, in all of these reads."""
    found = {signature(Question(kernel, within_block=True), r) for r in reads}
    if len(found) == 1 and None not in found:
        return "blockIdx" not in repr(found)
    every = all(_alike(r.args[0], remainders=False) for r in reads)
    return every and injective(kernel, reads, within_block=True) is not None


def looped(kernel: Kernel, sums: Sequence[BlockSum], memory: str, body: list[Statement], thread: Node,
           fresh: Callable[[str], str]) -> tuple[list[Statement], dict[str, str]]:  # fmt: skip
    """A backward's statements with sums, and parameters by axes of the grid: how many blocks the forward had there.

    `memory`: the name of where the sums are; `body`: lines for each block of the forward.
    """
    threads = math.prod(kernel.block)
    axes = [a for a, extent in zip("xyz", kernel.grid, strict=True) if extent != 1]
    blocks, here = ({a: fresh(f"{hint}_{a}") for a in axes} for hint in ("blocks", "block"))
    lines: list[Statement] = []
    at: Node = Name(memory)
    for s in sums:
        lines.append(tree.variable(f"{s.kind}*", s.name, Cast(f"{s.kind}*", at, bits=True)))
        at = s.numbers(s.name) + expr.where(Name(s.flag), s.count, 0)
    lines += [_each(s, thread, threads, Assign(s.numbers(s.name)["i"], expr.number(0.0, s.inner))) for s in sums]
    lines.append(BARRIER)
    if len(axes) == 1:
        counter, kind, total, inner = here[axes[0]], "unsigned int", Name(blocks[axes[0]]), list[Statement]()
    else:
        counter, kind, total = fresh("block"), "long long", expr.chained("*", [Literal("1LL"), *blocks.values()])
        inner: list[Statement] = []
        rest: Node = Name(counter)
        for a in axes:
            inner.append(tree.constant("unsigned int", here[a], rest if a == axes[-1] else rest % blocks[a]))
            rest = rest / blocks[a]
    if _meets(kernel):
        inner.append(BARRIER)  # what is left of the block before is read no more
    new: dict[str, Node] = {}
    for a in "xyz":
        new[f"blockIdx.{a}"] = Name(here[a]) if a in here else Literal("0u")
        new[f"gridDim.{a}"] = Name(blocks[a]) if a in blocks else Literal("1u")
    work = tree.continued(tree.deep(body, lambda e: expr.substituted(e, new)))
    start = tree.variable(kind, counter, expr.special("blockIdx.x"))
    lines += [tree.counting(start, total, expr.special("gridDim.x"), [*inner, *work]), BARRIER]
    lines += [_each(s, thread, threads, _given(s)) for s in sums]
    return lines, blocks


def _each(s: BlockSum, thread: Node, threads: int, does: Statement) -> Statement:
    """For all numbers of the sums, shared out among the threads."""
    each = tree.counting(tree.variable("int", "i", thread), s.count, threads, [does], inline=True)
    return If(Name(s.flag), [each], inline=True)


def _given(s: BlockSum) -> Statement:
    own = s.numbers(s.name)["i"]
    adds = Run(expr.call("atomicAdd", s.numbers(f"grad_{s.of}") + "i", own))
    return If(expr.infix(own, "!=", expr.number(0.0, s.inner)), [adds], inline=True)
