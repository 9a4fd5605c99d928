"""Settings of the whole process that contexts ask for, as `with rawkern.check():` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from rawkern.base.forking import Lock
from rawkern.base.scopes import Scope

T = TypeVar("T")


class Asked(Generic[T]):
    """What the environment asks for, or the one of the contexts that began last and has not ended.

    Attributes
    ----------
    followers : list of callables
        Called with the value when it may have changed, perhaps more than once.
    """

    def __init__(self, first: T) -> None:
        self._lock = Lock()  # the values change, and are told, as one step
        self._values: tuple[tuple[object, T], ...] = ((None, first),)  # who asks, and for what; replaced as a whole
        self.followers: list[Callable[[T], None]] = []

    @property
    def current(self) -> T:
        """The value that holds now."""
        return self._values[-1][1]

    @property
    def all(self) -> tuple[T, ...]:
        """The values that are asked for, the first one's first."""
        return tuple(value for _, value in self._values)

    @property
    def depth(self) -> int:
        """How many ask: the environment, and contexts."""
        return len(self._values)

    def ask(self, token: object, value: T) -> None:
        """Have a value until it is given up by the same token."""
        with self._lock:
            self._values = (*self._values, (token, value))
            self._tell()

    def give_up(self, token: object) -> None:
        """Take back what was asked for by a token, if there is something; other threads may have asked since."""
        with self._lock:
            self._values = tuple(each for each in self._values if each[0] is not token)
            self._tell()

    def asked(self, value: T) -> Scope:
        """Have a value for the time of the block."""
        return Asking((self, value))

    def _tell(self) -> None:
        for follower in self.followers:
            follower(self.current)


class Asking(Scope):
    """A context that asks for values of settings."""

    def __init__(self, *asked: tuple[Asked[Any], Any]) -> None:
        super().__init__()
        self._asked = asked

    def _begin(self, token: list[Any]) -> None:
        for setting, value in self._asked:
            setting.ask(token, value)

    def _end(self, token: list[Any]) -> None:
        for setting, _ in self._asked:
            setting.give_up(token)
