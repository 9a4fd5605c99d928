"""Detects replaced functions among those that measure a candidate: torch's, timers, rawkern's."""

from __future__ import annotations

import inspect
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
    """The current functions in the modules and classes that are used for measuring."""
    found: Snapshot = {}
    for label, holder in _holders():
        for name in dir(holder) if isinstance(holder, type) else list(vars(holder)):
            value = _found(holder, name)
            if callable(value) or isinstance(value, (staticmethod, classmethod, property)):
                found[label, name] = value, _code(value)
    return found


def changed(before: Snapshot) -> list[str]:
    """Names of functions that were replaced since, or whose code changed."""
    holders = dict(_holders())
    found = []
    for (label, name), (value, code) in before.items():
        now = _found(holders[label], name) if label in holders else None
        if now is not value or _code(now) is not code:
            found.append(f"{label}.{name}")
    return found


def _found(holder: Any, name: str) -> Any:
    """The attributes of a module, or of a class including inherited ones."""
    return inspect.getattr_static(holder, name, None) if isinstance(holder, type) else vars(holder).get(name)


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
