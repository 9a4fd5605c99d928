"""The autograd function of an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from rawkern import _torch_private as private
from rawkern import binder, tensors
from rawkern.operators.declaration import Declaration

if TYPE_CHECKING:
    from rawkern.operators.operator import Operator

__all__ = ["make_function", "quiet"]


def quiet() -> bool:
    """Whether nothing but autograd watches torch's calls on this thread."""
    return not (
        torch.compiler.is_dynamo_compiling()
        or private.dispatch_modes()
        or private.function_modes()
        or private.transforms()
        or private.jit_tracing()
        or forward_ad._current_level >= 0
    )


def make_function(op: Operator) -> Any:
    """The autograd function: ``apply(run, *values, *tensors)``, with ``run(*args)`` below autograd.

    With lists of tensors it is ``apply(run, counts, *values, *tensors)`` with the lists' items among the tensors. It
    returns what the operator does and, if that works in place, the changed arguments first.
    """
    decl = op.declaration
    offset = 1 + decl.has_lists + len(decl.values)
    members: dict[str, Any] = {
        "forward": staticmethod(_forward(decl)),
        "backward": staticmethod(_backward(op, offset)),
        "jvp": staticmethod(_jvp(op, offset)),
    }
    # torch's Function is for functions that are differentiated at all levels of functorch at once. An operator's
    # Autograd key sees one at a time, as torch's own operators do.
    return type(decl.name, (private.SingleLevelFunction,), members)


def _forward(decl: Declaration) -> Callable[..., Any]:
    places = {p.name: f"p{i}" for i, p in enumerate(decl.params)}
    hidden = [f"r{i}" for i in range(len(decl.returned) - len(decl.hidden), len(decl.returned))]
    names = dict(places)
    names |= {name: f"r{i}" for i, name in enumerate(decl.returned)}
    values = "".join(f"{places[p.name]}, " for p in decl.values)
    if decl.has_lists:
        lines = [f"def forward(ctx, run, counts, {values}*flat):", "    items, lengths = iter(flat), iter(counts)"]
        for p in decl.tensors:
            take = "[next(items) for _ in range(next(lengths))]" if p.kind == "list" else "next(items)"
            lines.append(f"    {places[p.name]} = {take}")
    else:
        lines = [f"def forward(ctx, run, {values}{''.join(f'{places[p.name]}, ' for p in decl.tensors)}):"]
    returned = ", ".join(f"r{i}" for i in range(len(decl.returned)))
    call = ", ".join(places.values())
    lines.append(f"    {f'{returned} = ' if returned else ''}run({call})")
    starred = {p.name: "*" if p.kind == "list" else "" for p in decl.params}
    saved = "".join(f"{starred.get(name, '')}{names[name]}, " for name in decl.save)
    about = f"({values}), {_each(decl, places, 'shape')}, {_each(decl, places, 'dtype')}"
    lines += [
        f"    ctx.save_for_backward({saved})",
        "    ctx.set_materialize_grads(False)",
        f"    ctx.about = {about}, {'counts' if decl.has_lists else '()'}",
        "    if run.watched:",
        f"        ctx.run, run.saved = run, ({saved})",
    ]
    results = [f"{starred[p.name]}{places[p.name]}" for p in decl.mutated] if decl.in_place else []
    if results:
        lines.append(f"    ctx.mark_dirty({', '.join(results)})")
    results += [f"r{i}" for i in range(len(decl.returned))]
    if hidden:
        lines.append(f"    ctx.mark_non_differentiable({', '.join(hidden)})")
    many = len(results) > 1 or results[0].startswith("*")
    lines.append(f"    return {', '.join(results)}{',' if many else ''}")
    text = "\n".join(lines) + "\n"
    return binder.run(text, f"<rawkern autograd {decl.qualified}>", {})["forward"]


def _each(decl: Declaration, places: dict[str, str], what: str) -> str:
    """A tuple of an attribute of all tensors, flat."""
    parts = []
    for p in decl.tensors:
        name = places[p.name]
        if p.kind == "list":
            parts.append(f"*[t.{what} for t in {name}], ")
        else:
            parts.append(f"{name}.{what}, " if p.kind == "tensor" else f"None if {name} is None else {name}.{what}, ")
    return f"({''.join(parts)})"


def _backward(op: Operator, offset: int) -> Callable[..., Any]:
    decl = op.declaration
    visible = len(decl.outputs)
    nothing = (None,) * offset

    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        saved = ctx.saved_tensors
        needs = ctx.needs_input_grad[offset:]
        values, shapes, dtypes, counts = ctx.about
        grads = grads[:visible]
        if all(grad is None for grad in grads):
            return nothing + (None,) * len(needs)
        if op.reverse is None:
            raise NotImplementedError(f"{decl.qualified} has no backward; define one with @{decl.name}.backward")
        if not torch.is_grad_enabled() and quiet() and _plain(grads) and _plain(saved):
            level = tensors.state.level
            tensors.state.level = tensors.IMPLEMENTATION
            try:
                found = op.reverse.compute(grads, saved, values, needs, shapes, counts)
            finally:
                tensors.state.level = level
        else:
            found = op.reverse.call(grads, saved, values, needs, shapes, counts)
        for i, grad in enumerate(found):
            if grad is not None and (grad.shape != shapes[i] or grad.dtype is not dtypes[i]):
                op.reverse.refuse(i, grad, shapes[i], dtypes[i], counts)
        return nothing + found

    return backward


def _plain(tensors: Sequence[torch.Tensor | None]) -> bool:
    return all(t is None or (type(t) in private.PLAIN and not private.is_functorch(t)) for t in tensors)


def _jvp(op: Operator, offset: int) -> Callable[..., Any]:
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        return op.forward_mode(ctx.run, ctx.about, tangents[offset:])

    return jvp
