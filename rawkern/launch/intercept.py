"""The way in for what wants to see launches before they are made: checks, tests' guards, profiles."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

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
_hooks: tuple[Hook, ...] = ()  # the last one gets a launch first


def add(hook: Hook, *, last: bool = False) -> None:
    """Give every launch of the process to a hook, from now on; with `last` the other hooks get it before."""
    global _hooks
    _hooks = (hook, *_hooks) if last else (*_hooks, hook)
    attend(1)


def remove(hook: Hook) -> None:
    """Take back an `add`."""
    global _hooks
    at = len(_hooks) - 1 - _hooks[::-1].index(hook)
    _hooks = _hooks[:at] + _hooks[at + 1 :]
    attend(-1)


@contextlib.contextmanager
def intercepted(hook: Hook) -> Iterator[None]:
    """Give launches to a hook for the time of the block."""
    add(hook)
    try:
        yield
    finally:
        remove(hook)


def active() -> bool:
    """Whether there is a hook."""
    return bool(_hooks)


def start(launcher: Launcher, args: tuple[Any, ...], kwargs: dict[str, Any], stream: Any) -> None:
    """Make a launch on its careful way, through the hooks."""
    Launch(launcher, args, kwargs, stream, _hooks).proceed()
