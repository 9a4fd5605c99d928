"""Interrupts at each line of some files in turn, as Ctrl-C may come there."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import rawkern

SOURCES = Path(rawkern.__file__).parent


def interrupts(files: Sequence[str], run: Callable[[], Any], times: int = 1) -> Iterator[KeyboardInterrupt]:
    """Run a function again and again, each time with a KeyboardInterrupt at a line of the files that had none yet.

    A line that runs several times has it at so many of them. Yields each interrupt while it is alive with all its
    frames, as the one that a prompt keeps; ends after the first run that has come to its end.
    """
    paths = {str(SOURCES / file): file for file in files}
    done: set[tuple[str, int, int]] = set()
    raised = False
    seen: Counter[tuple[str, int]] = Counter()

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal raised
        if event == "line":
            place = paths[frame.f_code.co_filename], frame.f_lineno
            seen[place] += 1
            if seen[place] <= times and (*place, seen[place]) not in done:
                done.add((*place, seen[place]))
                raised = True
                sys.settrace(None)
                raise KeyboardInterrupt("{}:{}".format(*place))
        return line

    def call(frame: FrameType, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename in paths else None

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
            yield error
        else:
            assert not raised, f"an interrupt was lost: {max(done)}"
            assert {file for file, *_ in done} == set(files), "none of the lines of some files were run"
            return
