"""How much kernels may take: of the device heap by malloc, of a thread's stack by functions that call themselves."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from rawkern.errors import LaunchError

_LARGEST = {"malloc_heap_size": 16 << 30, "stack_size": 64 << 20}

#: The device heap as machine code reads it: the bytes that kernels hold, and the most that they may hold.
HEAP = (ctypes.c_uint64 * 2)(0, _LARGEST["malloc_heap_size"])
_stack = {"stack_size": 248 << 10}
#: Kernels with stacks whose size is a limit (`grid.Target`).
followers: weakref.WeakSet[Any] = weakref.WeakSet()


def put(name: str, value: int) -> None:
    """Set a limit in bytes; ValueError if it is more than there is room for, LaunchError while a launch needs it."""
    if value > _LARGEST[name]:
        raise ValueError(f"{name} is {value} bytes, the largest on the CPU is {_LARGEST[name]}; set it to that or less")
    if name == "malloc_heap_size":
        HEAP[1] = value
        return
    running = next((target.name for target in followers if target.busy), None)
    if running is not None:
        raise LaunchError(f"{name} cannot be set while {running} runs, whose stacks have that size; set it before")
    _stack[name] = value
    for target in list(followers):
        target.resize_stacks()


def get(name: str) -> int:
    """Return a limit in bytes."""
    return HEAP[1] if name == "malloc_heap_size" else _stack[name]
