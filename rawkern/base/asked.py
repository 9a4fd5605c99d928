"""Settings of the whole process that contexts ask for, as `with rawkern.check():` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from rawkern.base.forking import Lock

T = TypeVar("T")


class Asked(Generic[T]):
    """What the environment asks for, or the one of the contexts that began last and has not ended.

    Attributes
    ----------
    followers : list of callables
        Called with the value when it may have changed.
    """

    def __init__(self, first: T) -> None:
        self._lock = Lock()  # a value's place is looked for and removed, and then told, as one step
        self._values = [first]
        self.followers: list[Callable[[T], None]] = []

    @property
    def current(self) -> T:
        """The value that holds now."""
        return self._values[-1]

    @property
    def depth(self) -> int:
        """How many ask: the environment, and contexts."""
        return len(self._values)

    def ask(self, value: T) -> None:
        """Have a value until it is given up."""
        with self._lock:
            self._values.append(value)
            self._tell()

    def give_up(self, value: T) -> None:
        """Take back an `ask`; other threads may have asked since."""
        with self._lock:
            del self._values[len(self._values) - 1 - self._values[::-1].index(value)]
            self._tell()

    @contextmanager
    def asked(self, value: T) -> Iterator[None]:
        """Have a value for the time of the block."""
        self.ask(value)
        try:
            yield
        finally:
            self.give_up(value)

    def _tell(self) -> None:
        for follower in self.followers:
            follower(self.current)
