"""Summarizes what a launch did to a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_FIRST = 4


def summary(name: str, before: torch.Tensor, after: torch.Tensor) -> dict[str, Any]:
    """Compare a tensor with its copy from before the launch; ``rawkern run --json`` prints the result unchanged.

    ``changed`` counts elements whose bits changed. ``low``, ``high`` and ``mean`` are those of the elements
    that are not NaN, in float64; None where there are none, and for complex numbers. ``first`` are the first few
    elements, in memory order.
    """
    values = to_numpy(after).reshape(-1)
    low = high = mean = None
    nans = int(np.isnan(values).sum()) if values.dtype.kind in "fc" else 0
    if values.dtype.kind != "c" and (there := values[~np.isnan(values)] if nans else values).size:
        low, high = there.min().item(), there.max().item()
        with np.errstate(all="ignore"):  # inf - inf
            mean = float(there.mean(dtype=np.float64))
    dtype = str(after.dtype).removeprefix("torch.")
    first = tuple(values[:_FIRST].tolist())
    return {
        "name": name, "dtype": dtype, "shape": tuple(after.shape), "changed": changed_elements(before, after),
        "low": low, "high": high, "mean": mean, "nans": nans, "first": first,
    }  # fmt: skip


def changed_elements(before: torch.Tensor, after: torch.Tensor) -> int:
    """Count the elements whose bits differ: NaN equals itself, and -0.0 differs from 0.0."""
    if not after.numel():
        return 0
    size = after.element_size()
    pair = (t.reshape(-1).view(torch.uint8).reshape(-1, size) for t in (before, after))
    old, new = pair
    return int((old != new).any(dim=1).sum())


def to_numpy(t: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's values on the host; types that NumPy lacks, such as bfloat16, in a wider one that holds them."""
    t = t.detach().cpu()
    if t.dtype == torch.complex32:
        t = t.to(torch.complex64)
    elif str(t.dtype).startswith("torch.float4"):  # two numbers per byte
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
