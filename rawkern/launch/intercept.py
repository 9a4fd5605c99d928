"""The way in for what wants to see launches before they are made: checks, tests' guards, profiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any, NamedTuple, Protocol

from rawkern.base.forking import Lock
from rawkern.base.scopes import Scope
from rawkern.base.table import attend


class Launcher(Protocol):
    """What makes a launch; `rawkern.launch.launcher.Launcher` is one."""

    @property
    def plan(self) -> Any: ...

    @property
    def n(self) -> int: ...

    def make(self, args: tuple[Any, ...], kwargs: dict[str, Any], stream: Any = None) -> None: ...


@dataclass(frozen=True)
class Launch:
    """One launch on its way: its launcher, arguments, and the stream that was named, if one was."""

    launcher: Launcher
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    stream: Any
    hooks: tuple[Hook, ...] = ()

    def proceed(self, *, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None) -> None:
        """Let the next hook have it, or make the launch; with other arguments where they are given."""
        args, kwargs = self.args if args is None else args, self.kwargs if kwargs is None else kwargs
        if self.hooks:
            self.hooks[-1](replace(self, args=args, kwargs=kwargs, hooks=self.hooks[:-1]))
        else:
            self.launcher.make(args, kwargs, self.stream)


Hook = Callable[[Launch], None]


class _Hooked(NamedTuple):
    token: object
    hook: Hook
    thread: int | None  # the one whose launches it sees; None for those of the whole process


# The last one gets a launch first. Both are replaced as a whole.
_hooks: tuple[_Hooked, ...] = ()
_suspended: tuple[tuple[object, int], ...] = ()  # threads whose own hooks see nothing for a time
_lock = Lock()


def add(token: object, hook: Hook, *, last: bool = False, thread: int | None = None) -> None:
    """Give launches to a hook, from now on, once for a token; with `last` other hooks are before.

    It gets those of the whole process, or of one thread.
    """
    global _hooks
    with _lock:
        others = tuple(each for each in _hooks if each.token is not token)
        new = _Hooked(token, hook, thread)
        _hooks = (new, *others) if last else (*others, new)
        attend(add, active())


def remove(token: object) -> None:
    """Take back an `add`, if there was one with this token."""
    global _hooks
    with _lock:
        _hooks = tuple(each for each in _hooks if each.token is not token)
        attend(add, active())


class intercepted(Scope):
    """Give launches to a hook for the time of the block; with `own_thread` only those of the thread that begins it."""

    def __init__(self, hook: Hook, *, own_thread: bool = False) -> None:
        super().__init__()
        self._hook, self._own = hook, own_thread

    def _begin(self, token: list[Any]) -> None:
        add(token, self._hook, thread=get_ident() if self._own else None)

    def _end(self, token: list[Any]) -> None:
        remove(token)


class suspended(Scope):
    """Keep launches of this thread from hooks that see only those of this thread, for the time of the block."""

    def _begin(self, token: list[Any]) -> None:
        global _suspended
        with _lock:
            _suspended = (*_suspended, (token, get_ident()))
            attend(add, active())

    def _end(self, token: list[Any]) -> None:
        global _suspended
        with _lock:
            _suspended = tuple(each for each in _suspended if each[0] is not token)
            attend(add, active())


def added(token: object) -> bool:
    """Whether there is a hook with this token."""
    return any(each.token is token for each in _hooks)


def active() -> bool:
    """Whether there is a hook that may see a launch."""
    return bool(_seeing())


def active_everywhere() -> bool:
    """Whether there is a hook that sees the launches of the whole process."""
    return any(each.thread is None for each in _hooks)


def _seeing() -> tuple[_Hooked, ...]:
    if not _suspended:
        return _hooks
    threads = {thread for _, thread in _suspended}
    return tuple(each for each in _hooks if each.thread not in threads)


def start(launcher: Launcher, args: tuple[Any, ...], kwargs: dict[str, Any], stream: Any) -> None:
    """Make a launch on its slow path, through the hooks."""
    mine = (None, get_ident())
    Launch(launcher, args, kwargs, stream, tuple(h.hook for h in _seeing() if h.thread in mine)).proceed()
