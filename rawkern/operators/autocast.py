"""What an operator does in a region of torch.autocast."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rawkern.base import torch_private as private
from rawkern.operators.declaration import Declaration


def check_autocast(decl: Declaration) -> None:
    """Raise for an invalid rule."""
    for device, rule in _rules(decl).items():
        if device not in _KEYS:
            raise ValueError(f"{decl.qualified}: autocast names the device {device!r}; choose 'cpu' or 'cuda'")
        if not (rule in ("lower", "widest") or (isinstance(rule, torch.dtype) and rule.is_floating_point)):
            raise ValueError(
                f"{decl.qualified}: autocast is {rule!r}; pass a floating-point dtype, 'lower' or 'widest'"
            )
    if decl.autocast is not None and decl.mutated:
        raise ValueError(f"{decl.qualified}: arguments that are changed in place cannot be cast; remove autocast")


def register_autocast(decl: Declaration, library: torch.library.Library, name: str, overload: Any) -> None:
    """Register the rules for the CPU and CUDA."""
    for device, rule in _rules(decl).items():
        call = functools.partial(_cast_and_call, decl, overload, rule, device, _KEYS[device])
        library.impl(name, call, _KEYS[device])


_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def _rules(decl: Declaration) -> dict[str, Any]:
    """The rule of each device."""
    if isinstance(decl.autocast, Mapping):
        return dict(decl.autocast)
    return {} if decl.autocast is None else dict.fromkeys(_KEYS, decl.autocast)


def _cast_and_call(
    decl: Declaration, overload: Any, rule: Any, device: str, key: str, *args: Any, **kwargs: Any
) -> Any:
    full = decl.arrange(*args, **kwargs)
    items = [t for t in decl.flat(full) if t is not None and _castable(t, device)]
    if items:
        dtype = _wanted(rule, device, items)
        full = tuple(_cast(a, dtype, device) if p.is_tensor else a for p, a in zip(decl.params, full, strict=True))
    with private.without_key(key):
        return decl.call(overload, full)


def _castable(t: torch.Tensor, device: str) -> bool:
    """Like torch's own operators: float64 is not cast."""
    return t.is_floating_point() and t.dtype is not torch.float64 and t.device.type == device


def _wanted(rule: Any, device: str, items: Sequence[torch.Tensor]) -> torch.dtype:
    if rule == "lower":
        return torch.get_autocast_dtype(device)
    if rule == "widest":
        return functools.reduce(torch.promote_types, (t.dtype for t in items))
    return rule


def _cast(value: Any, dtype: torch.dtype, device: str) -> Any:
    if isinstance(value, (list, tuple)):
        return [_cast(t, dtype, device) for t in value]
    return value.to(dtype) if value is not None and _castable(value, device) else value
