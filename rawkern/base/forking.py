"""Locks and calls of compilers that other threads hold while the process forks: the child must not wait for them.

A forked child has only the thread that forked. A lock that another one held stays locked for ever, in Python as inside
LLVM and NVRTC. The first kind is recreated in the child; with the second the fork waits until no thread is in there.
"""

from __future__ import annotations

import _thread
import functools
import os
import sys
import threading
import weakref
from typing import Any

from rawkern.base.scopes import Scope

WAIT_SECONDS = 30.0  # a fork waits no longer than this for threads that compile

_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock(_thread.RLock):  # type: ignore[misc]  # CPython lets it be subclassed
    """A lock that its thread may take again; free in a forked child if another thread of the parent held it.

    Taken and given back by no code in Python, in which an interrupt could leave it locked for ever.
    """

    def __init__(self) -> None:
        _locks.add(self)

    def renew(self) -> None:
        """Free the lock in a forked child, unless its only thread holds it."""
        if not self._is_owned():  # type: ignore[attr-defined]
            self._at_fork_reinit()  # type: ignore[attr-defined]


_inside: dict[int, int] = {}  # the threads of all calls of compilers, by their tokens
if sys.version_info >= (3, 12):
    cached_property = functools.cached_property
else:

    class cached_property(functools.cached_property):
        """The same without a lock, which one thread would hold for all instances while it computes one."""

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """The value of an instance, computed at the first time; by two threads at once perhaps twice."""
            if instance is None:
                return self
            known = instance.__dict__
            if self.attrname not in known:
                known[self.attrname] = self.func(instance)
            return known[self.attrname]


_forks = 0  # forks that wait
_mutex = threading.RLock()  # entered itself: a condition's own methods are Python's
_change = threading.Condition(_mutex)


class compiling(Scope):
    """While this is entered, the process forks only from this thread, or after `WAIT_SECONDS`."""

    def _begin(self, token: list[Any]) -> None:
        me = threading.get_ident()
        with _mutex:
            # Threads that compile one thing after the other would keep a fork waiting.
            _change.wait_for(lambda: not _forks or me in _inside.values(), WAIT_SECONDS)
            _inside[id(token)] = me

    def _end(self, token: list[Any]) -> None:
        with _mutex:
            _inside.pop(id(token), None)
            _change.notify_all()


def _before() -> None:
    global _forks
    _change.acquire()
    _forks += 1
    _change.wait_for(lambda: all(thread == threading.get_ident() for thread in _inside.values()), WAIT_SECONDS)


def _after_in_parent() -> None:
    global _forks
    _forks -= 1
    _change.notify_all()
    _change.release()


def _after_in_child() -> None:
    global _change, _forks, _mutex
    _forks = 0
    _mutex = threading.RLock()
    _change = threading.Condition(_mutex)
    for token, thread in list(_inside.items()):
        if thread != threading.get_ident():
            del _inside[token]
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
