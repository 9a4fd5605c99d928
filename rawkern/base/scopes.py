"""Contexts that no interrupt leaves open: Ctrl-C may raise where any function begins, `__exit__` among them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any


class Scope(contextlib.ContextDecorator):
    """A context, also as a decorator; it may be entered again, in itself and by several threads.

    What ends it is a generator that stands inside of its ``try`` already, and is resumed by C code alone: there is no
    line of Python before it in which an interrupt could do away with the end. One that comes while it runs has it run
    again. So what a subclass does to end is right if it is done twice, and after any part of the beginning.
    """

    __slots__ = ("__next__", "_open")

    def __init__(self) -> None:
        self._open: list[Generator[None, None, None]] = []
        ends: Iterator[None] = map(next, iter(self._open.pop, None))
        self.__next__: Callable[[], None] = ends.__next__

    def _begin(self, token: list[Any]) -> None:
        """Begin, with a new list that tells this time from others and has room for what the end needs."""
        raise NotImplementedError

    def _end(self, token: list[Any]) -> None:
        """End what has begun with that list, however much of it has."""
        raise NotImplementedError

    def _hold(self) -> Generator[None, None, None]:
        token: list[Any] = []
        try:
            try:
                self._begin(token)
                yield
            finally:
                self._end(token)
        except BaseException:
            self._end(token)
            raise
        yield  # whatever resumes it does not need to know that it has ended

    def _entered(self) -> Any:
        """What entering returns."""
        return self

    def __enter__(self) -> Any:
        held = self._hold()
        try:
            next(held)
            self._open.append(held)
            return self._entered()
        except BaseException:
            if held in self._open:
                self._open.remove(held)
            held.close()
            raise

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
        ) -> None: ...


def _method_of(function: Any) -> Any:
    """A function of C's that binds as those of Python do."""
    make = ctypes.pythonapi.PyInstanceMethod_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.py_object,)
    return make(function)


# It takes the scope alone and leaves the other arguments, as functions of C's may.
_NEXT = ctypes.PYFUNCTYPE(ctypes.py_object, *[ctypes.py_object] * 4)(("PyIter_Next", ctypes.pythonapi))
Scope.__exit__ = _method_of(_NEXT)  # type: ignore[method-assign]


class _Uncollected(Scope):
    """Python does not look for garbage while objects are made of which none is that: modules, or lowered code.

    Many of them would have it look through all objects there are, which takes 0.1 s once torch is imported.
    """

    __slots__ = ()

    def _begin(self, token: list[Any]) -> None:
        if gc.isenabled():
            token.append(True)
            gc.disable()

    def _end(self, token: list[Any]) -> None:
        if token:
            gc.enable()


uncollected = _Uncollected()
