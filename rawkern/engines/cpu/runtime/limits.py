"""How much kernels may take: of the device heap by malloc, of the stack by functions that call themselves, of time."""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any

from rawkern.base import environment
from rawkern.base.scoped_setting import ScopedSetting
from rawkern.errors import LaunchError

_LARGEST = {"malloc_heap_size": 16 << 30, "stack_size": 64 << 20}

#: The device heap as machine code reads it: the bytes that kernels hold, and the most that they may hold.
HEAP = (ctypes.c_uint64 * 2)(0, _LARGEST["malloc_heap_size"])
#: Nanoseconds after which Python gets its turn, as machine code reads it: for signals, printf and the limit of time.
SLICE = (ctypes.c_int64 * 1)()
_SLICE = 50_000_000
TIME_VARIABLE = "RAWKERN_TIME_LIMIT"
_stack = {"stack_size": 248 << 10}
#: Kernels with stacks whose size is a limit (`grid.Target`).
followers: weakref.WeakSet[Any] = weakref.WeakSet()


def seconds(value: Any, source: str) -> float:
    """A time limit; ValueError if it is not one, TypeError if it is not a number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        kind = TypeError if not isinstance(value, str) else ValueError
        raise kind(f"{source} is {value!r}; a time limit is a number of seconds") from None
    if not number > 0:
        raise ValueError(f"{source} is {value!r}; a time limit is more than 0 seconds, inf for none")
    return number


def _settle(limit: float) -> None:
    SLICE[0] = _SLICE if limit * 1e9 >= _SLICE else max(int(limit * 1e9), 1)


#: Seconds that a launch may take.
time = ScopedSetting(environment.read(TIME_VARIABLE, seconds, math.inf))
time.followers.append(_settle)
_settle(time.current)


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
    try:
        _resize()
    except BaseException:  # Ctrl-C
        _resize()
        raise


def _resize() -> None:
    for target in list(followers):
        target.resize_stacks()


def get(name: str) -> int:
    """Return a limit in bytes."""
    return HEAP[1] if name == "malloc_heap_size" else _stack[name]
