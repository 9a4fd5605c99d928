"""The exceptions rawkern raises for its own reasons; bad arguments raise TypeError, ValueError and OverflowError."""

from __future__ import annotations

from typing import Any

__all__ = ["CompileError", "LaunchError", "MissingDependencyError", "RawkernError", "UnsupportedError"]


class RawkernError(Exception):
    """Base of every error that is rawkern's own."""


class CompileError(RawkernError):
    """CUDA source that does not compile.

    Attributes
    ----------
    file : str or None
        The file the compiler complains about: the user's path, or the program's name for a source string.
    line, column : int or None
        Where in that file, counted from 1. NVRTC reports no column for some errors.
    excerpt : str
        The lines around the error with a caret under the offending place; empty where there is none.
    log : str
        All that the compiler said.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        excerpt: str = "",
        log: str = "",
    ) -> None:
        super().__init__(message)
        self.file = file
        self.line = line
        self.column = column
        self.excerpt = excerpt
        self.log = log

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process borders (multiprocessing, pytest-xdist) by pickling; keyword attributes must survive.
        return (_restore, (type(self), self.args, self.__dict__))


def _restore(cls: type[CompileError], args: tuple[Any, ...], state: dict[str, Any]) -> CompileError:
    error = cls(*args)
    error.__dict__.update(state)
    return error


class LaunchError(RawkernError, RuntimeError):
    """A launch that cannot run, or that failed while it ran."""


class UnsupportedError(RawkernError, NotImplementedError):
    """Something valid that rawkern cannot do here, such as an instruction the CPU engine does not know."""


class MissingDependencyError(RawkernError, ImportError):
    """An optional dependency that is not installed; the message gives the pip line."""
