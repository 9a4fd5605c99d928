"""Frames of Python's stack: which are rawkern's, and where in the user's code a call comes from."""

from __future__ import annotations

import os
import sys
from types import FrameType

Place = tuple[str, int]  # a file of Python's, or what it calls a cell or an interactive line, and the line from 1
WHOLE = 0  # the line of what is all of a cell
_INTERNAL = ("rawkern", "torch", "importlib", "IPython")


def own(frame: FrameType) -> bool:
    """Whether a frame is of rawkern's own code."""
    return _package(frame) == "rawkern" or frame.f_code.co_filename.startswith("<rawkern ")


def internal(frame: FrameType) -> bool:
    """Whether a frame is of rawkern's own code, of torch's or IPython's, or of an import."""
    return _package(frame) in _INTERNAL or own(frame)


def _package(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name.partition(".")[0] if isinstance(name, str) else ""


def caller() -> Place | None:
    """Where the user's code is: the innermost frame that is not internal."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and internal(frame):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def spelled(place: Place) -> str:
    """``train.py:12``, from the current directory if the file lies below it; a notebook's cell is ``Cell In[3]:12``.

    What is all of a cell is ``Cell In[3]``.
    """
    file, line = place
    return (_cell(file) or _nearby(file)) + (f":{line}" if line != WHOLE else "")


def _cell(file: str) -> str:
    """What IPython calls a cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    try:
        return " ".join(shell.compile.format_code_name(file) or ()) if shell is not None else ""
    except AttributeError:  # another shell
        return ""


def _nearby(file: str) -> str:
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:  # the current directory is gone
        return file
    return file.removeprefix(here)
