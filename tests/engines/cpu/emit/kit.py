"""What tests of emitted code share."""

from __future__ import annotations

import numpy as np
import torch

import rawkern

POISON = -77777


def launch(
    code: str, n: int, *arrays: torch.Tensor, device: str, block: int = 96, out: int | None = None
) -> np.ndarray:
    """Run a kernel ``(int n, arrays..., int* out)`` on n threads; returns `out`, poisoned first."""
    kernel = rawkern.RawKernel(code)
    result = torch.full((n if out is None else out,), POISON, dtype=torch.int32, device=device)
    kernel.forall(n, block=block)(n, *(a.to(device) for a in arrays), result)
    return result.cpu().numpy()


def ints(n: int, low: int = -1000, high: int = 1000, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(low, high, n).astype(np.int32))
