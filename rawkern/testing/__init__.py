"""Tools for testing kernels: `check_kernel`, `judge` for untrusted kernels, and the pytest plugin."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__all__ = [
    "CHECKS", "Check", "Failure", "KernelCheckError", "KernelReport", "Tampering", "Verdict", "Worker", "check_kernel",
    "judge",
]  # fmt: skip

if TYPE_CHECKING:
    from rawkern.testing.judging.judge import judge
    from rawkern.testing.judging.verdict import Check, Tampering, Verdict
    from rawkern.testing.judging.worker import Worker
    from rawkern.testing.kernel import CHECKS, check_kernel
    from rawkern.testing.reporting import Failure, KernelCheckError, KernelReport

_HOME = {"judge": "judging.judge", "Worker": "judging.worker"} | dict.fromkeys(
    ("Check", "Tampering", "Verdict"), "judging.verdict"
)


def __getattr__(name: str) -> Any:
    """Import a name at its first use: pytest loads the plugin in every test run, even without torch."""
    if name not in __all__:
        raise AttributeError(
            f"module 'rawkern.testing' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    home = importlib.import_module(f"rawkern.testing.{_HOME.get(name, 'kernel')}")
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return __all__
