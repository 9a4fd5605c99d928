"""What a launch did to a tensor, in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["Summary", "changed_elements", "shown", "summary", "to_numpy"]

_FIRST = 4


@dataclass(frozen=True)
class Summary:
    """A tensor after a launch."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    changed: int  # elements whose bits are not what they were before
    # Over the elements that are not NaN, in float64; None where there are none, and for complex numbers.
    low: float | int | None
    high: float | int | None
    mean: float | None
    nans: int
    first: tuple[Any, ...]  # the first few elements, in memory order


def summary(name: str, before: torch.Tensor, after: torch.Tensor) -> Summary:
    """Compare a tensor with its copy from before the launch."""
    values = to_numpy(after).reshape(-1)
    low = high = mean = None
    nans = int(np.isnan(values).sum()) if values.dtype.kind in "fc" else 0
    if values.dtype.kind != "c" and (there := values[~np.isnan(values)] if nans else values).size:
        low, high = there.min().item(), there.max().item()
        with np.errstate(all="ignore"):  # inf - inf
            mean = float(there.mean(dtype=np.float64))
    dtype = str(after.dtype).removeprefix("torch.")
    first = tuple(values[:_FIRST].tolist())
    return Summary(name, dtype, tuple(after.shape), changed_elements(before, after), low, high, mean, nans, first)


def changed_elements(before: torch.Tensor, after: torch.Tensor) -> int:
    """Count the elements that differ in a bit: NaN equals itself, and -0.0 is not 0.0."""
    if not after.numel():
        return 0
    size = after.element_size()
    pair = (t.reshape(-1).view(torch.uint8).reshape(-1, size) for t in (before, after))
    old, new = pair
    return int((old != new).any(dim=1).sum())


def to_numpy(t: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's values on the host; types that NumPy has not, such as bfloat16, in the next that holds them."""
    t = t.detach().cpu()
    if t.dtype == torch.complex32:
        t = t.to(torch.complex64)
    elif str(t.dtype).startswith("torch.float4"):  # two numbers a byte
        t = t.view(torch.uint8)
    elif t.dtype == torch.bfloat16 or (t.dtype.is_floating_point and t.dtype.itemsize == 1):
        t = t.float()
    return t.numpy()


def shown(value: Any) -> str:
    """A number in few characters."""
    if value is None:
        return "-"
    if isinstance(value, (float, complex)):
        return f"{value:.5g}"
    return str(value)
