"""Interrupts at each line of some files in turn, as Ctrl-C may come there."""

from __future__ import annotations

import dis
import linecache
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import rawkern
from rawkern.base import forking

SOURCES = Path(rawkern.__file__).parent


#: What the end of a ``with`` block begins with, where nothing or a value is kept on the stack.
_ENDS = ("LOAD_CONST", "SWAP", "POP_TOP")


def is_safe(frame: FrameType) -> bool:
    """Whether Python looks for no signals before what comes next: the end of a ``with`` block, or a ``try:``.

    A trace may raise there all the same: what is to end the context, or the one around the ``try``, is not called then.
    """
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return line == "try:" or (line.startswith("with ") and name in _ENDS)


def is_deletion(frame: FrameType | None) -> bool:
    """Whether a frame is of `__del__`, or called by one: what is raised there Python tells of and drops."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def interrupts(files: Sequence[str], run: Callable[[], Any], times: int = 1) -> Iterator[KeyboardInterrupt]:
    """Run a function again and again, each time with a KeyboardInterrupt at a line of the files that had none yet.

    Files are named from the folder of rawkern on, or in whole.
    A line that runs several times has it at so many of them. Yields each interrupt while it is alive with all its
    frames, as the one that a prompt keeps; ends after the first run that has come to its end.
    """
    paths = {str(SOURCES / file): file for file in files}
    done: set[tuple[str, int, int]] = set()
    raised = False
    seen: Counter[tuple[str, int]] = Counter()

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal raised
        if event == "line" and not is_safe(frame):
            place = paths[frame.f_code.co_filename], frame.f_lineno
            seen[place] += 1
            if seen[place] <= times and (*place, seen[place]) not in done:
                done.add((*place, seen[place]))
                raised = True
                sys.settrace(None)
                raise KeyboardInterrupt("{}:{}".format(*place))
        return line

    def call(frame: FrameType, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename in paths and not is_deletion(frame) else None

    while True:
        raised = False
        seen.clear()
        try:
            sys.settrace(call)
            try:
                run()
            finally:
                sys.settrace(None)
        except KeyboardInterrupt as error:
            assert raised
            held = [lock for lock in forking._locks if lock._is_owned()]  # type: ignore[attr-defined]
            assert not held, f"a lock is held after an interrupt at {error}"
            yield error
        else:
            assert not raised, f"an interrupt was lost: {max(done)}"
            missing = set(files).difference(file for file, *_ in done)
            assert not missing, f"no line was run of {sorted(missing)}"
            return
