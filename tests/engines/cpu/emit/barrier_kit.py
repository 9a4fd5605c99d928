"""What the tests of barriers share."""

from __future__ import annotations

import torch


def poison(n: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.full((n,), float("nan") if dtype.is_floating_point else -77777, dtype=dtype, device=device)
