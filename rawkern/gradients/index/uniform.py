"""What is the same for all threads of a block, and where they are all together."""

from __future__ import annotations

from rawkern.gradients.index.answers import kept
from rawkern.gradients.ir import Block, Exit, If, Kernel, Value, made_of


@kept
def uniform(value: Value) -> bool:
    """Whether an integer is the same for all threads of a block, in each iteration of the loops around."""

    def ask(v: Value) -> bool | tuple[Value, ...]:
        if v.op == "special":
            return not v.attr.startswith("threadIdx")
        if v.op == "reduce":  # over the block
            return not v.attr.startswith("warp_")
        if v.op == "result" and isinstance(v.attr, If):
            return v.attr.condition, *next((a, b) for r, a, b in v.attr.results if r is v)
        if v.op == "load" and v.attr.array.const and not v.attr.array.shared:
            return v.args
        least = v.op == "call" and v.attr in ("min", "max")  # of integers
        return (least or v.op in ("cast", "unary", "binary", "select")) and v.args

    return made_of(value, ask)


@kept
def together(kernel: Kernel, block: Block) -> bool:
    """Whether all threads of a block of threads come to a place, equally often: under what is the same for all."""
    if any(isinstance(i, Exit) for i in kernel.body.items):
        return False
    while block.parent is not None:
        if not uniform(block.parent.condition):
            return False
        block = block.parent.block
    return True
