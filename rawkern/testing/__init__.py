"""What tests of kernels need: `check_kernel`, and the pytest plugin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Found at their first use: the plugin is loaded in every test run, also of programs that have nothing to do with torch.
_HOME = {
    "CHECKS": "kernel",
    "Failure": "reporting",
    "KernelCheckError": "reporting",
    "KernelReport": "reporting",
    "check_kernel": "kernel",
}
__all__ = ["CHECKS", "Failure", "KernelCheckError", "KernelReport", "check_kernel"]

if TYPE_CHECKING:
    from rawkern.testing.kernel import CHECKS, check_kernel
    from rawkern.testing.reporting import Failure, KernelCheckError, KernelReport


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'rawkern.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rawkern.testing.{home}"), name)
    globals()[name] = value
    return value
