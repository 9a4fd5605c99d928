"""OS threads for a launch: those of torch's OpenMP runtime where it is loaded, else some started for the purpose."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic_ns

from rawkern.base.records import Filled
from rawkern.base.torch_private import openmp
from rawkern.engines.cpu.records import HELPERS

_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
_NEVER = (1 << 63) - 1
MOST_LOST = 50_000_000  # nanoseconds; what loses more was stopped, and says nothing of the next launch


class Helpers:
    """Whether launches call other threads to help; native launches read the record.

    On a busy machine those wait for a core, and a launch ends only when they have come as well, though others have done
    their part. After one that lost time so, launches do without them for a while, but for those that are long enough to
    gain all the same: for twice as long each time it happens again, up to twenty times what was lost.
    """

    def __init__(self) -> None:
        self.record = Filled(HELPERS)
        self._pause = 0

    def dismiss(self) -> None:
        """Call none from now on."""
        self.record.set(until=_NEVER, worth=inf)

    @property
    def dismissed(self) -> bool:
        return self.record["until"] == _NEVER

    def late(self, lost: int) -> None:
        """A launch took `lost` nanoseconds longer than one thread would have."""
        now, lost = monotonic_ns(), min(lost, MOST_LOST)
        again = now < self.record["until"] + self._pause  # else the machine was idle for as long as the pause had been
        self._pause = min(max(2 * self._pause * again, 4 * lost), 20 * lost)
        self.record.set(until=now + self._pause, worth=4 * lost)


helpers, no_helpers = Helpers(), Helpers()
no_helpers.dismiss()
os.register_at_fork(after_in_child=helpers.dismiss)  # the OpenMP runtime's are gone


def enter_all(enter: Callable, address: int, record: int, count: int) -> None:
    """Call ``enter(record)``, a function at `address`, on `count` threads at a time."""
    if count == 1:
        enter(record)
    elif (parallel := openmp()) and not helpers.dismissed:
        _PARALLEL(parallel)(address, record, count, 0)
    else:
        run_threads(enter, record, count)


def run_threads(enter: Callable, record: int, count: int) -> None:
    """Enter from `count` threads at a time, without OpenMP."""
    others = [threading.Thread(target=enter, args=(record,)) for _ in range(count - 1)]
    try:
        for t in others:
            t.start()
        enter(record)
    finally:
        _join(others)


def _join(threads: Sequence[threading.Thread]) -> None:
    """Wait for threads that have started, whatever signals do: they use stacks that the caller may give back."""
    try:
        for t in threads:
            if t.ident is not None:
                t.join()
    except BaseException:
        _join(threads)
        raise
