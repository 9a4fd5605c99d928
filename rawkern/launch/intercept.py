"""The way in for what wants to see launches before they are made: checks, tests' guards, profiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

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
_hooks: tuple[tuple[object, Hook], ...] = ()  # the last one gets a launch first; replaced as a whole
_lock = Lock()


def add(token: object, hook: Hook, *, last: bool = False) -> None:
    """Give every launch of the process to a hook, from now on, once for a token; with `last` other hooks are before."""
    global _hooks
    with _lock:
        others = tuple(each for each in _hooks if each[0] is not token)
        _hooks = ((token, hook), *others) if last else (*others, (token, hook))
        attend(add, True)


def remove(token: object) -> None:
    """Take back an `add`, if there was one with this token."""
    global _hooks
    with _lock:
        _hooks = tuple(each for each in _hooks if each[0] is not token)
        attend(add, bool(_hooks))


class intercepted(Scope):
    """Give launches to a hook for the time of the block."""

    def __init__(self, hook: Hook) -> None:
        super().__init__()
        self._hook = hook

    def _begin(self, token: list[Any]) -> None:
        add(token, self._hook)

    def _end(self, token: list[Any]) -> None:
        remove(token)


def added(token: object) -> bool:
    """Whether there is a hook with this token."""
    return any(each[0] is token for each in _hooks)


def active() -> bool:
    """Whether there is a hook."""
    return bool(_hooks)


def start(launcher: Launcher, args: tuple[Any, ...], kwargs: dict[str, Any], stream: Any) -> None:
    """Make a launch on its careful way, through the hooks."""
    Launch(launcher, args, kwargs, stream, tuple(hook for _, hook in _hooks)).proceed()
