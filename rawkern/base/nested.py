"""Values in lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def mapped(function: Callable[[str, Any], Any], value: Any, name: str = "") -> Any:
    """Put ``function(name, leaf)`` in the place of all that stands in lists, tuples and dicts: ``x``, ``x[1].y``."""
    if isinstance(value, Mapping):
        return {key: mapped(function, item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        make = getattr(type(value), "_make", type(value))  # a namedtuple's
        return make([mapped(function, item, f"{name}[{i}]") for i, item in enumerate(value)])
    return function(name, value)


class Holder:
    """What is passed for a tensor that it has."""

    __slots__ = ("tensor",)
    tensor: torch.Tensor


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All torch tensors in arguments, their lists, dicts and holders, in order."""
    found: list[torch.Tensor] = []

    def look(_: str, leaf: Any) -> Any:
        held = leaf.tensor if isinstance(leaf, Holder) else leaf
        if isinstance(held, torch.Tensor):
            found.append(held)
        return leaf

    mapped(look, value)
    return found
