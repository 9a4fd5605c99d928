"""What tests of kernels need: `check_kernel`, and the pytest plugin (`rawkern.testing.plugin`)."""

from __future__ import annotations

__all__: list[str] = []
