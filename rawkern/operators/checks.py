"""What the arguments and results of an operator must be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from rawkern.arguments.memory import reject_layout
from rawkern.base import torch_private as private
from rawkern.operators.declaration import Declaration


def named(decl: Declaration, args: Sequence[Any]) -> Iterator[tuple[str, bool, torch.Tensor]]:
    """Yield the tensors among the arguments: name, whether it is written to, and the tensor."""
    for p, value in zip(decl.params, args, strict=True):
        if p.kind == "list":
            for i, t in enumerate(value):
                yield f"{p.name}[{i}]", p.mutated, t
        elif p.is_tensor and value is not None:
            yield p.name, p.mutated, value


def one_device(decl: Declaration, args: Sequence[Any]) -> None:
    """Raise unless all tensors are on one device; a 0-d CPU tensor is a number and may be there with any."""
    if decl.plain_tensors is not None:  # the usual case, quickly
        places = {args[i].device for i in decl.plain_tensors}
        if len(places) == 1:
            return
    first: tuple[str, torch.device] | None = None
    for name, _, t in named(decl, args):
        if t.dim() == 0 and t.device.type == "cpu":
            continue
        if first is None:
            first = name, t.device
        elif t.device != first[1]:
            raise ValueError(
                f"{decl.qualified}: {first[0]} is on {first[1]}, {name} is on {t.device}; pass tensors on one device"
            )


def reject_layouts(decl: Declaration, args: Sequence[Any]) -> None:
    """Raise for a tensor whose elements are not strided memory: sparse, nested, or another library's own.

    The arguments may be wrong in other ways yet.
    """
    for p, value in zip(decl.params, args, strict=True):
        if isinstance(value, torch.Tensor):
            reject_layout(decl.qualified, p.name, value)
        elif p.kind == "list" and isinstance(value, (list, tuple)):
            for i, t in enumerate(value):
                if isinstance(t, torch.Tensor):
                    reject_layout(decl.qualified, f"{p.name}[{i}]", t)


def unboxed(decl: Declaration, result: Any) -> Any:
    """The one tensor that a function returns in a tuple, if that is how it is declared."""
    if not decl.boxed:
        return result
    if type(result) is not tuple or len(result) != 1:
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
        raise TypeError(f"{decl.qualified} returned {got}; it is declared to return a tuple of 1 tensor")
    return result[0]


def verify(decl: Declaration, result: Any, args: Sequence[Any]) -> None:
    """Raise unless the function's result is what its type hints say, in memory of its own."""
    wanted = len(decl.returned)
    if wanted == 0:
        if result is not None:
            raise TypeError(f"{decl.qualified} returned a {type(result).__name__}; it is declared to return None")
        return
    many = result if wanted > 1 else (result,)
    if not isinstance(many, tuple) or len(many) != wanted:
        got = f"a tuple of {len(many)}" if isinstance(many, tuple) else f"a {type(many).__name__}"
        raise TypeError(f"{decl.qualified} returned {got}; it is declared to return a tuple of {wanted} tensors")
    for name, t in zip(decl.returned, many, strict=True):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{decl.qualified} returned a {type(t).__name__} for {name}, which is declared a tensor")
    no_aliases(decl, result, args)


def no_aliases(decl: Declaration, result: Any, args: Sequence[Any]) -> None:
    """Raise if results share memory with the arguments or each other, of which torch's compilers know nothing."""
    if result is None:
        return
    if decl.plain_tensors is not None and isinstance(result, torch.Tensor):  # the usual case, quickly
        shared = [i for i in decl.plain_tensors if private.same_memory(result, args[i])]
        if not shared:
            return
    given = [(name, t) for name, _, t in named(decl, args)]
    results = list(zip(decl.returned, result if isinstance(result, tuple) else (result,), strict=True))
    fix = "return a new tensor, or name what it changes in mutates_args and return None"
    for i, (name, t) in enumerate(results):
        for others, what_to_do in ((given, fix), (results[:i], "return tensors with memory of their own")):
            for other, memory in others:
                if private.same_memory(t, memory):
                    raise ValueError(f"{decl.qualified} returned memory of {other} as {name}; {what_to_do}")


def changed(decl: Declaration, args: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors that the operator writes to."""
    return [t for _, mutated, t in named(decl, args) if mutated]


def reject_changes(decl: Declaration, args: Sequence[Any]) -> None:
    """Raise for changes that autograd does not allow; it says so itself only after the data is overwritten."""
    for name, mutated, t in named(decl, args):
        if not mutated:
            continue
        if not decl.in_place and t.requires_grad:
            raise RuntimeError(
                f"{decl.qualified}: {name} requires grad and is changed besides the outputs, unseen by autograd; "
                "use torch.no_grad() or pass a detached tensor"
            )
        base = t if t.is_leaf else t._base
        if base is not None and base.is_leaf and base.requires_grad:
            leaf = "a leaf" if t.is_leaf else "a view of a leaf"
            raise RuntimeError(
                f"{decl.qualified}: {name} is {leaf} that requires grad and cannot be changed in place; "
                "use torch.no_grad() or pass a copy"
            )
