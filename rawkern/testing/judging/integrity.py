"""Whether functions that a candidate is measured with still are what they were: torch's, timers, rawkern's own."""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any

#: By holder and name, a function or class with its code.
Snapshot = dict[tuple[str, str], tuple[Any, Any]]

_MODULES = (
    "builtins", "time", "timeit", "gc", "os", "json", "socket", "struct", "torch", "torch.cuda", "torch.nn.functional",
    "torch.testing", "torch.utils.benchmark", "torch.linalg", "torch.random", "torch.cuda.random", "torch.cuda.streams",
    "torch.utils.deterministic", "numpy",
)  # fmt: skip
_CLASSES = ("Tensor", "cuda.Event", "cuda.Stream", "Generator")


def snapshot() -> Snapshot:
    """What stands now in the modules and classes that measuring uses."""
    found: Snapshot = {}
    for label, holder in _holders():
        for name, value in list(vars(holder).items()):
            if callable(value) or isinstance(value, (staticmethod, classmethod, property)):
                found[label, name] = value, _code(value)
    return found


def changed(before: Snapshot) -> list[str]:
    """Names of what has been replaced since, or given other code."""
    holders = dict(_holders())
    missing = object()
    found = []
    for (label, name), (value, code) in before.items():
        now = vars(holders[label]).get(name, missing) if label in holders else missing
        if now is not value or _code(now) is not code:
            found.append(f"{label}.{name}")
    return found


def _holders() -> list[tuple[str, Any]]:
    import torch

    names = [*_MODULES, *(name for name in list(sys.modules) if name.split(".")[0] == "rawkern")]
    found: list[tuple[str, Any]] = [(n, m) for n in names if isinstance(m := sys.modules.get(n), ModuleType)]
    for name in _CLASSES:
        holder: Any = torch
        for part in name.split("."):
            holder = getattr(holder, part)
        found.append((f"torch.{name}", holder))
    return found


def _code(value: Any) -> Any:
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    return value.__code__ if isinstance(value, FunctionType) else None
