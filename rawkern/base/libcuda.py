"""NVIDIA's driver, for calls that CuPy does not have."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def libcuda() -> ctypes.CDLL:
    """The driver's library; OSError where there is none."""
    return ctypes.CDLL("libcuda.so.1")
