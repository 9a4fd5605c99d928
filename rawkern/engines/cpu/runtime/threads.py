"""OS threads for a launch: those of torch's OpenMP runtime where it is loaded, else some started for the purpose."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable
from functools import cache

_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
#: Whether no other threads can help: after a fork, where the OpenMP runtime's are gone. Native launches read it.
alone = ctypes.c_int64(0)


def _mark_fork() -> None:
    alone.value = 1


os.register_at_fork(after_in_child=_mark_fork)


@cache
def openmp() -> int:
    """Address of ``GOMP_parallel`` of the OpenMP runtime that is loaded already (torch's); 0 where there is none."""
    try:
        with open("/proc/self/maps") as maps:
            names = dict.fromkeys(re.findall(r"(/\S*lib(?:gomp|iomp5|omp)[^/\s]*\.so\S*)", maps.read()))
    except OSError:
        return 0
    for name in names:
        try:
            return ctypes.cast(ctypes.CDLL(name).GOMP_parallel, ctypes.c_void_p).value or 0
        except (OSError, AttributeError):
            continue
    return 0


def enter_all(enter: Callable, address: int, record: int, count: int) -> None:
    """Call ``enter(record)``, a function at `address`, on `count` threads at a time."""
    if count == 1:
        enter(record)
    elif openmp() and not alone.value:
        _PARALLEL(openmp())(address, record, count, 0)
    else:
        run_threads(enter, record, count)


def run_threads(enter: Callable, record: int, count: int) -> None:
    """Enter from `count` threads at a time, without OpenMP."""
    others = [threading.Thread(target=enter, args=(record,)) for _ in range(count - 1)]
    for t in others:
        t.start()
    enter(record)
    for t in others:
        t.join()
