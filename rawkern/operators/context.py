"""What the backward and the jvp of an operator get as ctx."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.operators.declaration import Declaration, Param


class Context:
    """The `ctx` of a backward or jvp.

    Attributes
    ----------
    saved_tensors : tuple
        What the operator saves, in the order of `save`; None for an optional tensor that was not given, a list for a
        list.
    needs_input_grad : tuple
        For each parameter of the operator whether its gradient is wanted (in a jvp, whether it has a tangent); a tuple
        for a list of tensors, False for a parameter that is not a tensor.
    shapes : tuple
        For each parameter its shape; a list for a list of tensors, None for a parameter that is not a tensor.

    Each parameter that is not a tensor is an attribute of its own name.
    """

    __slots__ = ("__dict__", "needs_input_grad", "saved_tensors", "shapes")

    saved_tensors: tuple[Any, ...]
    needs_input_grad: tuple[Any, ...]
    shapes: tuple[Any, ...]


def make_context(
    decl: Declaration, saved: Sequence[Any], values: Sequence[Any], needs: Any, shapes: Any, counts: Sequence[int]
) -> Context:
    """The ctx of flat saved tensors, needs and shapes."""
    ctx = Context()
    if decl.has_lists:
        saved = nest(saved, [decl.param(name) for name in decl.save], decl, counts)
        needs = [tuple(n) if isinstance(n, list) else n for n in nest(needs, decl.tensors, decl, counts)]
        shapes = nest(shapes, decl.tensors, decl, counts)
    ctx.saved_tensors = tuple(saved)
    if decl.values:
        ctx.__dict__.update(zip((p.name for p in decl.values), values, strict=True))
        each, every = iter(needs), iter(shapes)
        ctx.needs_input_grad = tuple(next(each) if p.is_tensor else False for p in decl.params)
        ctx.shapes = tuple(next(every) if p.is_tensor else None for p in decl.params)
    else:
        ctx.needs_input_grad, ctx.shapes = tuple(needs), tuple(shapes)
    return ctx


def nest(flat: Sequence[Any], params: Sequence[Param | None], decl: Declaration, counts: Sequence[int]) -> list[Any]:
    """Put the items of lists into lists; a param of None stands for one tensor."""
    lists = [p.name for p in decl.tensors if p.kind == "list"]
    length = dict(zip(lists, counts, strict=True))
    items = iter(flat)
    return [
        [next(items) for _ in range(length[p.name])] if p is not None and p.kind == "list" else next(items)
        for p in params
    ]
