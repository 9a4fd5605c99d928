"""How DTensor shards elementwise operators."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from rawkern.operators.declaration import Declaration

Sharding = tuple[list[Any], list[Any]]  # placements of outputs and inputs, along one dimension of the mesh


def register_shardings(decl: Declaration, overloads: Sequence[Any], backward: Any) -> bool:
    """Tell DTensor about an elementwise operator and its backward, if any, as soon as a program has imported it.

    Returns whether there is nothing left to do.
    """
    if not decl.elementwise or decl.has_lists or decl.mutated:
        return True
    if "torch.distributed.tensor" not in sys.modules or not torch.distributed.is_available():
        return False
    from torch.distributed.tensor.experimental import register_sharding

    outputs = len(decl.returned)
    for overload in dict.fromkeys(overloads):
        register_sharding(overload)(lambda *args, **kwargs: _forward(outputs, args))
    if backward is not None:
        register_sharding(backward)(lambda *args: _backward(args))
    return True


def _forward(outputs: int, args: Sequence[Any]) -> list[Sharding]:
    """All inputs sharded along one dimension of the result; those that are repeated along it are whole everywhere."""
    from torch.distributed.tensor import Replicate, Shard

    shape = torch.broadcast_shapes(*(a.shape for a in args if _is_tensor(a)))
    found: list[Sharding] = [_whole(outputs, args)]
    for dim in range(len(shape)):
        inputs: list[Any] = []
        for a in args:
            own = dim - len(shape) + len(a.shape) if _is_tensor(a) else -1
            repeated = own < 0 or a.shape[own] != shape[dim]
            inputs.append(None if not _is_tensor(a) else Replicate() if repeated else Shard(own))
        found.append(([Shard(dim)] * outputs, inputs))
    return found


def _backward(args: Sequence[Any]) -> list[Sharding]:
    """As forward where all inputs have one shape; the gradient of a repeated input is a sum over all shards."""
    from torch.distributed.tensor import Replicate, Shard

    needs, sizes, ranks, _ = args[-4:]
    given = [a for a in args if _is_tensor(a)]
    found = [_whole(len(needs), args)]
    shapes, at = {tuple(a.shape) for a in given}, 0
    for rank in ranks:
        if rank >= 0:
            shapes.add(tuple(sizes[at : at + rank]))
            at += rank
    if len(shapes) == 1:
        for dim in range(len(given[0].shape)):
            outputs = [Shard(dim) if need else Replicate() for need in needs]
            found.append((outputs, [Shard(dim) if _is_tensor(a) else None for a in args]))
    return found


def _whole(outputs: int, args: Sequence[Any]) -> Sharding:
    from torch.distributed.tensor import Replicate

    return [Replicate()] * outputs, [Replicate() if _is_tensor(a) else None for a in args]


def _is_tensor(a: Any) -> bool:
    return hasattr(a, "placements")
