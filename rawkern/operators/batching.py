"""vmap of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

if TYPE_CHECKING:
    from rawkern.operators.operator import Operator

__all__ = ["batched", "refuse_batches", "run_batched"]


def refuse_batches(op: Operator, info: Any, dims: Sequence[Any], args: Sequence[Any]) -> NoReturn:
    """The rule of operators that are not elementwise."""
    decl = op.declaration
    raise NotImplementedError(
        f"{decl.qualified} has no rule for vmap; declare it elementwise=True if it is, or define one with "
        f"@{decl.name}.vmap"
    )


def run_batched(op: Operator, info: Any, dims: Sequence[Any], args: Sequence[Any]) -> Any:
    """The rule of elementwise operators: the batch is one more dimension, in front."""
    decl = op.declaration
    for p, dim in zip(decl.params, dims, strict=True):
        if p.mutated and (dim is None or (isinstance(dim, (list, tuple)) and None in dim)):
            raise RuntimeError(
                f"{decl.qualified}: vmap cannot change {p.name} in place, which is not batched, with batched values; "
                "pass it batched"
            )
    moved = batched([p.is_tensor for p in decl.params], info.batch_size, dims, args)
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    for i, p in enumerate(decl.params):
        if p.mutated:
            for k, t in enumerate(moved[i] if p.kind == "list" else [moved[i]]):
                if not t.is_contiguous():
                    copy = t.contiguous()
                    copies.append((t, copy))
                    if p.kind == "list":
                        moved[i][k] = copy
                    else:
                        moved[i] = copy
    keyword = {p.name: a for p, a in zip(decl.params, moved, strict=True) if p.keyword_only}
    result = op.overload(*moved[: len(moved) - len(keyword)], **keyword)
    for t, copy in copies:
        t.copy_(copy)
    return result, _out_dims(result)


def _out_dims(result: Any) -> Any:
    if result is None:
        return None
    return 0 if isinstance(result, torch.Tensor) else tuple(0 for _ in result)


def batched(is_tensor: Sequence[bool], size: int, dims: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Arguments with the batch in front.

    Where all tensors have one shape without it, those that are not batched are repeated. Otherwise the operator
    broadcasts, so dimensions of size 1 after the batch keep the others in their places.
    """
    ranks: list[torch.Size] = []

    def look(t: torch.Tensor, dim: int | None) -> None:
        shape = list(t.shape)
        if dim is not None:
            del shape[dim]
        ranks.append(torch.Size(shape))

    _each(is_tensor, dims, args, look)
    same = all(shape == ranks[0] for shape in ranks)
    most = max((len(shape) for shape in ranks), default=0)

    def move(t: torch.Tensor, dim: int | None) -> torch.Tensor:
        if dim is None:
            return t.expand(size, *t.shape).contiguous() if same else t
        t = t.movedim(dim, 0)
        t = t.reshape(size, *[1] * (most + 1 - t.dim()), *t.shape[1:]) if t.dim() <= most else t
        return t

    return _each(is_tensor, dims, args, move)


def _each(is_tensor: Sequence[bool], dims: Sequence[Any], args: Sequence[Any], call: Callable[..., Any]) -> list[Any]:
    found = []
    for here, dim, value in zip(is_tensor, dims, args, strict=True):
        if not here or value is None:
            found.append(value)
        elif isinstance(value, (list, tuple)):
            each = dim if isinstance(dim, (list, tuple)) else [dim] * len(value)
            found.append([call(t, d) for t, d in zip(value, each, strict=True)])
        else:
            found.append(call(value, dim))
    return found
