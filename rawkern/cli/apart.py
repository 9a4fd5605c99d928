"""A command in a child process: if a kernel kills its process, the parent can still report it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_INTERRUPTED = 130


def possible() -> bool:
    """Whether this process may fork: on Linux, while no other thread runs and torch has not started its own."""
    return sys.platform == "linux" and threading.active_count() == 1 and "torch" not in sys.modules


def run(work: Callable[[], int]) -> int:
    """Do the work in a child process, which exits with the status that the work returns.

    Returns that status; if a signal ended the child, minus the signal's number.
    """
    child = os.fork()
    if not child:
        _finish(work)
    while True:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except KeyboardInterrupt:
            os.kill(
                child, signal.SIGINT
            )  # a terminal sends Ctrl-C to both processes; other senders signal only this one


def _finish(work: Callable[[], int]) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    try:
        status = work()
    except KeyboardInterrupt:  # Ctrl-C again during the cleanup
        status = _INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise SystemExit(status)
