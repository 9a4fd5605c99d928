"""CUDA's own functions that are more than a number of numbers: barriers, atomics, loads and stores, vectors."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients import types
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.handlers import cuda_functions
from rawkern.gradients.reading.memory import assign, barrier, read, repack, write
from rawkern.gradients.reading.order import apart
from rawkern.gradients.reading.places import Var, aggregate
from rawkern.gradients.reading.pointers import cell, written_through
from rawkern.gradients.reading.values import convert, math
from rawkern.gradients.rules import BOTH

LOADS = ("__ldg", "__ldca", "__ldcs", "__ldcg", "__ldlu", "__ldcv")
STORES = ("__stwb", "__stcg", "__stcs", "__stwt")
VECTORS = {f"make_{name}": kind for name, kind in types.VECTORS.items()}
VECTORS["make_bfloat162"] = types.VECTORS["nv_bfloat162"]


@cuda_functions("__syncthreads", "__syncwarp", arguments=0)
def synchronize(ctx: Context, node: Any, name: str, arguments: list[Any]) -> None:
    barrier(ctx, node, f"{name}()")


@cuda_functions("__threadfence", "__threadfence_block", arguments=0)
def fence(ctx: Context, node: Any, name: str, arguments: list[Any]) -> None:
    ctx.stored = {}


@cuda_functions("assert", "printf")
def shown(ctx: Context, node: Any, name: str, arguments: list[Any]) -> None:
    """What a gradient does not see."""
    for each in arguments:
        if each.type not in ("string_literal", "concatenated_string"):
            ctx.scalar(each)


@cuda_functions("atomicAdd", "gpuAtomicAdd", "gpuAtomicAddNoReturn", arguments=2)
def atomic_add(ctx: Context, node: Any, name: str, arguments: list[Any]) -> None:
    place = cell(ctx, node, ctx.expression(arguments[0]), ())
    write(ctx, node, place, convert(ctx, node, ctx.scalar(arguments[1]), place.type), "atomic")


@cuda_functions(*LOADS, arguments=1)
def load_through(ctx: Context, node: Any, name: str, arguments: list[Any]) -> Any:
    return read(ctx, node, cell(ctx, node, ctx.expression(arguments[0]), ()))


@cuda_functions(*STORES, arguments=2)
def store_through(ctx: Context, node: Any, name: str, arguments: list[Any]) -> None:
    assign(ctx, node, cell(ctx, node, ctx.expression(arguments[0]), ()), ctx.expression(arguments[1]))


@cuda_functions(*BOTH, arguments=3)
def sine_and_cosine(ctx: Context, node: Any, name: str, arguments: list[Any]) -> None:
    value = ctx.scalar(arguments[0])
    for of, each in zip(BOTH[name], arguments[1:], strict=True):
        assign(ctx, node, written_through(ctx, each), math(ctx, node, of, [value]))


@cuda_functions("memcpy", arguments=3)
def copy(ctx: Context, node: Any, name: str, arguments: list[Any]) -> None:
    """Copies a whole object of the kernel's own to another."""
    target, source = (_object(ctx, each) for each in arguments[:2])
    size = ctx.scalar(arguments[2]).const
    if isinstance(target, Var) and isinstance(source, Var) and target.fields and source.fields:
        for one, other in ((target, source), (source, target)):
            bytes_alone = types.packed(one.type, other.leaves()[0].type)
            if bytes_alone is not None:
                repack(one, bytes_alone)
        a, b = target.leaves(), source.leaves()
        if [v.type for v in a] == [v.type for v in b] and size == sum(types.size(v.type) for v in a if v.type):
            for leaf, value in zip(a, b, strict=True):
                assign(ctx, node, leaf, read(ctx, node, value))
            return
    raise ctx.refuse(node, text_of(node), "copy element by element")


def _object(ctx: Context, node: Any) -> Any:
    """What is copied to or from: a variable, by its address."""
    if node.type == "pointer_expression" and text_of(node.child_by_field_name("operator")) == "&":
        return ctx.place(node.child_by_field_name("argument"))
    return ctx.expression(node)


@cuda_functions(*VECTORS)
def make_vector(ctx: Context, node: Any, name: str, arguments: list[Any]) -> Var:
    kind = VECTORS[name]
    values = apart(ctx, node, arguments, ctx.scalar)
    if len(values) != len(kind.fields):
        raise ctx.refuse(node, f"{name} takes {len(kind.fields)} numbers", "give them all")
    left = iter(values)
    return aggregate(kind.name, kind, lambda _, inner: convert(ctx, node, next(left), inner))
