"""The exceptions rawkern raises for its own reasons; bad arguments raise TypeError, ValueError and OverflowError."""

from __future__ import annotations

from typing import Any


class RawkernError(Exception):
    """Base of every error that is rawkern's own."""


class CompileError(RawkernError, RuntimeError):
    """CUDA source that does not compile.

    Attributes
    ----------
    file : str or None
        The file the compiler complains about; for a source string, its file and line of Python,
        ``train.py:12``.
    line, column : int or None
        Where in that file or string, counted from 1. NVRTC reports no column for some errors.
    excerpt : str
        The lines around the error with a caret under the offending place; empty where there is none.
    log : str
        The compiler's complete output.
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
    """A launch that cannot run, or that failed while it ran.

    Attributes
    ----------
    most_blocks : int or None
        Where a cooperative grid is too large, how many blocks of the kernel the device holds at a time.
    """

    most_blocks: int | None = None


class LaunchTimeoutError(LaunchError):
    """A launch on the CPU exceeded `rawkern.time_limit`; the message says where its warps are."""


class CheckError(LaunchError):
    """A checked launch found defects; the type is the first one's, see `rawkern.check`.

    Attributes
    ----------
    reports : tuple of Report
        All of them, in the order in which they were found.
    """

    def __init__(self, message: str, reports: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.reports = reports

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.reports)


class OutOfBoundsError(CheckError):
    """A thread reads or writes outside the memory that belongs to its pointer."""


class MisalignedError(CheckError):
    """A thread uses an address that is not a multiple of the access size."""


class FreedMemoryError(CheckError):
    """A thread uses memory after ``free``, or frees what is not allocated."""


class ReadOnlyError(CheckError):
    """A write to read-only memory: a const parameter's tensor, ``__constant__`` memory, kernel parameters."""


class UninitializedReadError(CheckError):
    """A thread reads uninitialized memory: a shared or local variable before its first write."""


class RaceError(CheckError):
    """Two threads use the same memory, one writes, and nothing orders them."""


class BarrierError(CheckError):
    """Threads of a block do not reach the same barrier."""


class WarpSyncError(CheckError):
    """A warp instruction's mask does not name the lanes that execute it, or a lane reads from one that does not."""


class UnsupportedError(RawkernError, NotImplementedError):
    """Something valid that rawkern does not support, such as an instruction on the CPU engine."""


class MissingDependencyError(RawkernError, ImportError):
    """An optional dependency that is not installed; the message gives the pip line."""


class NotDifferentiable(RawkernError):
    """An expression or kernel whose derivative cannot be derived; the message says why and what to do."""
