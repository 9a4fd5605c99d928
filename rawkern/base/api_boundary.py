"""The boundary of the API: errors that rawkern raises on purpose leave it without rawkern's frames.

``RAWKERN_FULL_TRACEBACK=1`` keeps them. Other errors always keep them: those are bugs.
"""

from __future__ import annotations

import dis
import functools
import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from rawkern.base.frames import internal, own
from rawkern.errors import RawkernError

F = TypeVar("F", bound=Callable[..., Any])

_MEANT = "_rawkern_meant"  # an attribute of errors that have crossed the boundary
_RAISE = dis.opmap["RAISE_VARARGS"]


def api_boundary(function: F) -> F:
    """Let errors leave a public function, which no hot path calls, as `hide` makes them."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hide(error)
            raise

    # Code of its own, for what is told of functions by their code, as `untraced` does.
    made: Any = call
    made.__code__ = made.__code__.replace(co_name=function.__name__)
    return made


def hide(error: Exception) -> None:
    """Take rawkern's frames and torch's out of an error that rawkern has meant to raise; then ``raise`` it.

    A bare ``raise`` adds no frame, so that the user's line is the last one. Frames of the user's functions that rawkern
    calls stay, and so does a cause. What was being handled is not shown if all of it is rawkern's.
    """
    if not meant(error):
        return
    error.__dict__[_MEANT] = True
    kept = None
    for entry in reversed([*_entries(error)]):
        if not internal(entry.tb_frame):
            kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = kept
    context = error.__context__
    if context is not None and all(internal(entry.tb_frame) for entry in _entries(context)):
        error.__suppress_context__ = True


def meant(error: BaseException) -> bool:
    """Whether rawkern has raised an error on purpose, or it tells of a file: all others are defects, or the user's.

    With ``RAWKERN_FULL_TRACEBACK`` none is taken for one.
    """
    if os.environ.get("RAWKERN_FULL_TRACEBACK", "").strip() not in ("", "0"):
        return False
    if _MEANT in error.__dict__ or isinstance(error, (RawkernError, OSError)):
        return True
    *_, last = [None, *_entries(error)]
    if last is None or not internal(last.tb_frame) or type(error) is AssertionError:
        return False
    return own(last.tb_frame) and last.tb_frame.f_code.co_code[last.tb_lasti] == _RAISE


def _entries(error: BaseException) -> Iterator[TracebackType]:
    """The entries of an error's traceback, the outermost first."""
    entry = error.__traceback__
    while entry is not None:
        yield entry
        entry = entry.tb_next
