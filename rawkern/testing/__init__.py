"""What tests of kernels need: `check_kernel`, and the pytest plugin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["CHECKS", "Failure", "KernelCheckError", "KernelReport", "check_kernel"]

if TYPE_CHECKING:
    from rawkern.testing.kernel import CHECKS, check_kernel
    from rawkern.testing.reporting import Failure, KernelCheckError, KernelReport


def __getattr__(name: str) -> Any:
    """Find a name at its first use: the plugin is loaded in every test run, also of programs without torch."""
    if name not in __all__:
        raise AttributeError(f"module 'rawkern.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module("rawkern.testing.kernel"), name)
    return value


def __dir__() -> list[str]:
    return __all__
