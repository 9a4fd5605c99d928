"""vmap of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from rawkern.base import torch_private as private
from rawkern.operators.declaration import Declaration


def reject_batches(decl: Declaration, overload: Any, info: Any, dims: Sequence[Any], args: Sequence[Any]) -> NoReturn:
    """The rule of operators that are not elementwise."""
    raise NotImplementedError(
        f"{decl.qualified} has no rule for vmap; declare it elementwise=True if it is, or define one with "
        f"@{decl.name}.vmap"
    )


def run_batched(decl: Declaration, overload: Any, info: Any, dims: Sequence[Any], args: Sequence[Any]) -> Any:
    """The rule of elementwise operators: the batch is one more dimension, in front."""
    _reject_unbatched(decl, dims)
    moved = batched(decl.strided, [p.is_tensor for p in decl.params], info.batch_size, dims, args)
    originals = _each(dims, args, lambda t, dim: t if dim is None else t.movedim(dim, 0))
    result = decl.call(overload, moved)
    for p, original, used in zip(decl.params, originals, moved, strict=True):
        if p.mutated:
            for to, now in zip(*(x if p.kind == "list" else [x] for x in (original, used)), strict=True):
                if not private.same_memory(to, now):
                    to.copy_(now.reshape(to.shape))
    return result, _out_dims(result)


def _reject_unbatched(decl: Declaration, dims: Sequence[Any]) -> None:
    for p, dim in zip(decl.params, dims, strict=True):
        if p.mutated and (dim is None or (isinstance(dim, (list, tuple)) and None in dim)):
            raise RuntimeError(
                f"{decl.qualified}: vmap cannot change {p.name} in place, which is not batched, with batched values; "
                "pass it batched"
            )


def each_in_place(decl: Declaration, overload: Any, size: int, dims: Sequence[Any], args: Sequence[Any]) -> None:
    """Call an operator that changes what it is given for each item of the batch."""
    _reject_unbatched(decl, dims)
    for i in range(size):
        decl.call(overload, _each(dims, args, lambda t, dim, i=i: t if dim is None else t.select(dim, i)))


def one_by_one(
    call: Callable[..., Any],
    size: int,
    dims: Sequence[Any],
    args: Sequence[Any],
    alone: Callable[[torch.Tensor], bool] = lambda t: False,
) -> list[torch.Tensor]:
    """What a call for each item of the batch returns, together; of what is `alone` one is enough."""
    given = [_each(dims, args, lambda t, dim, i=i: t if dim is None else t.select(dim, i)) for i in range(size)]
    if not size:  # one item of which there is no memory tells the shapes
        given = [_each(dims, args, lambda t, dim: torch.empty(_item(t, dim), dtype=t.dtype, device="meta"))]
    calls = [call(*each) for each in given]
    items = zip(*([c] if isinstance(c, torch.Tensor) else c for c in calls), strict=True)
    found = [parts[0] if alone(parts[0]) else torch.stack(parts) for parts in items]
    if size:
        return found
    devices: list[torch.device] = []
    _each(dims, args, lambda t, dim: devices.append(t.device))
    return [torch.empty(t.shape if alone(t) else (0, *t.shape[1:]), dtype=t.dtype, device=devices[0]) for t in found]


def in_front(t: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
    """A tensor with the batch as its first dimension; repeated, if it has none."""
    return t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)


def run_formerly_batched(name: str, rule: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Apply a rule for vmap where torch's former vmap calls: that of ``torch.autograd.grad(is_grads_batched=True)``."""
    size = 0

    def dim_of(t: Any) -> int | None:
        return 0 if isinstance(t, torch.Tensor) and private.formerly_batched(t) else None

    def whole(t: torch.Tensor, dim: int | None) -> torch.Tensor:
        nonlocal size
        if dim is None:
            return t
        t = private.with_former_batch(t)
        if private.formerly_batched(t):
            raise NotImplementedError(
                f"{name}: batched gradients of batched gradients are not supported; use torch.func"
            )
        size = len(t)
        return t

    dims = [[dim_of(t) for t in a] if isinstance(a, (list, tuple)) else dim_of(a) for a in args]
    given = _each(dims, args, whole)
    found, out = rule(SimpleNamespace(batch_size=size, randomness="error"), tuple(dims), *given, **kwargs)
    if found is None:
        return None
    if isinstance(found, torch.Tensor):
        return found if out is None else private.as_former_batch(found, out)
    many = [t if d is None else private.as_former_batch(t, d) for t, d in zip(found, out, strict=True)]
    return many if isinstance(found, list) else tuple(many)


def _out_dims(result: Any) -> Any:
    if result is None:
        return None
    return 0 if isinstance(result, torch.Tensor) else tuple(0 for _ in result)


def batched(strided: bool, is_tensor: Sequence[bool], size: int, dims: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Arguments with the batch in front.

    Where all tensors have one shape without it, those that are not batched are repeated. Otherwise the operator
    broadcasts, so dimensions of size 1 after the batch keep the others in their places. They are contiguous unless the
    operator takes any strides, `strided`.
    """
    here = [d if tensor else None for tensor, d in zip(is_tensor, dims, strict=True)]
    tensors = [a if tensor else None for tensor, a in zip(is_tensor, args, strict=True)]
    shapes = [s for s in without_batch(here, tensors) if s is not None]
    same = all(s == shapes[0] for s in shapes)
    most = max(len(s) for s in shapes)

    def move(t: torch.Tensor, dim: int | None) -> torch.Tensor:
        if dim is None:
            t = t.expand(size, *t.shape) if same else t
        else:
            t = t.movedim(dim, 0)
            t = t.reshape(size, *[1] * (most + 1 - t.dim()), *t.shape[1:]) if t.dim() <= most else t
        return t if strided else t.contiguous()

    moved = _each(here, tensors, move)
    return [m if tensor else a for tensor, m, a in zip(is_tensor, moved, args, strict=True)]


def without_batch(dims: Sequence[Any], args: Sequence[Any]) -> list[torch.Size | None]:
    """The shapes of one item of the batch, flat; None for a parameter that is not a tensor."""
    found: list[torch.Size | None] = []

    def look(t: torch.Tensor, dim: int | None) -> torch.Tensor:
        found.append(_item(t, dim))
        return t

    _each(dims, args, look)
    return found


def _item(t: torch.Tensor, dim: int | None) -> torch.Size:
    """The shape of one item of the batch."""
    return torch.Size([n for i, n in enumerate(t.shape) if dim is None or i != dim % t.dim()])


def _each(dims: Sequence[Any], args: Sequence[Any], call: Callable[..., Any]) -> list[Any]:
    """Call with each tensor and its batch dimension; other values are unchanged."""
    found: list[Any] = []
    for dim, value in zip(dims, args, strict=True):
        if isinstance(value, (list, tuple)):
            each = dim if isinstance(dim, (list, tuple)) else [dim] * len(value)
            found.append(_each(each, value, call))
        else:
            found.append(call(value, dim) if isinstance(value, torch.Tensor) else value)
    return found
