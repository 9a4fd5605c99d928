"""Tensors over the memory of a storage."""

from __future__ import annotations

from typing import Any

import torch


def tensor_over(storage: torch.UntypedStorage, dtype: torch.dtype = torch.uint8, *layout: Any) -> torch.Tensor:
    """A tensor over a storage: all of it, or by `layout`, which is offset, shape and strides, as elements count."""
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, *layout)
