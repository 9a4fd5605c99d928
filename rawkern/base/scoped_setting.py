"""Settings of the whole process that contexts change for their duration, as `with rawkern.check():` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from rawkern.base.forking import Lock
from rawkern.base.scopes import Scope

T = TypeVar("T")


class ScopedSetting(Generic[T]):
    """A value from the environment, or from the context that began last and has not ended.

    Attributes
    ----------
    followers : list of callables
        Called with the value when it may have changed, perhaps more than once.
    """

    def __init__(self, first: T) -> None:
        self._lock = Lock()  # the values change and followers are called as one step
        self._values: tuple[tuple[object, T], ...] = ((None, first),)  # with their tokens; replaced as a whole
        self.followers: list[Callable[[T], None]] = []

    @property
    def current(self) -> T:
        """The value that holds now."""
        return self._values[-1][1]

    @property
    def all(self) -> tuple[T, ...]:
        """All values that were pushed and not popped, the first one first."""
        return tuple(value for _, value in self._values)

    @property
    def depth(self) -> int:
        """The number of values: that of the environment, and one for each context."""
        return len(self._values)

    def push(self, token: object, value: T) -> None:
        """Set a value until `pop` is called with the same token."""
        with self._lock:
            self._values = (*self._values, (token, value))
            self._tell()

    def pop(self, token: object) -> None:
        """Remove a token's value, if there is one; other threads may have pushed values since."""
        with self._lock:
            self._values = tuple(each for each in self._values if each[0] is not token)
            self._tell()

    def scoped(self, value: T) -> Scope:
        """Return a context that sets a value for its duration."""
        return SettingScope((self, value))

    def _tell(self) -> None:
        for follower in self.followers:
            follower(self.current)


class SettingScope(Scope):
    """A context that sets values of settings for its duration."""

    def __init__(self, *settings: tuple[ScopedSetting[Any], Any]) -> None:
        super().__init__()
        self._settings = settings

    def _begin(self, token: list[Any]) -> None:
        for setting, value in self._settings:
            setting.push(token, value)

    def _end(self, token: list[Any]) -> None:
        for setting, _ in self._settings:
            setting.pop(token)
