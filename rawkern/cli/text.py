"""Output of commands: tables, numbers with units, progress; plain text unless it goes to a terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from rawkern.base.environment import EnvironmentVariableError

_COLORS = {"green": "32", "yellow": "33", "red": "31"}


class CommandError(Exception):
    """A command that cannot do what the user asked for; the message goes to stderr, without a traceback."""


def missing_file(path: str) -> CommandError:
    """The error for a file that does not exist."""
    return CommandError(f"the file {path} does not exist")


@contextlib.contextmanager
def user_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Turn exceptions that the user's input can cause into `CommandError`; others are bugs and keep their traceback."""
    try:
        yield
    except EnvironmentVariableError:
        raise
    except kinds as error:
        raise CommandError(str(error)) from error


def table(head: Sequence[object], rows: Sequence[Sequence[object]], left: Sequence[int] = (0,)) -> str:
    """Lay out rows under a header, two spaces apart; columns are right-aligned except those in ``left``."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = []
    for row in cells:
        padded = [cell.ljust(widths[i]) if i in left else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def amount(nbytes: float) -> str:
    """Bytes for people: ``"512 B"``, ``"1.5 kB"``, ``"80.0 GB"``; a kB is 1000 bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def duration(seconds: float) -> str:
    """A time for people, with three significant digits: ``"3.25 us"``, ``"41.0 ms"``, ``"1.20 s"``."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        value = seconds * factor
        if value >= 1 or unit == "us":
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    raise AssertionError


def plural(count: int, word: str) -> str:
    """``"1 kernel"``, ``"2 kernels"``; a word in y takes ies."""
    if count == 1:
        return f"1 {word}"
    return f"{count} {word[:-1]}ies" if word.endswith("y") else f"{count} {word}s"


def paint(text: str, color: str, stream: TextIO | None = None) -> str:
    """Color a text if it goes to a terminal and ``NO_COLOR`` is not set."""
    stream = stream if stream is not None else sys.stdout
    if not _understands_escapes(stream) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLORS[color]}m{text}\x1b[0m"


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """On a terminal, show what is being done while it runs."""
    shown = _understands_escapes(sys.stderr)
    if shown:
        room = shutil.get_terminal_size().columns - 5  # a line that wraps could not be erased
        print(f"\r\x1b[K{text[:room]} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _understands_escapes(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """The type of an option of argparse that takes a whole number, from ``low`` to ``high``."""
    limits = f"{low} or more" if high is None else f"{low} to {high}"

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number; pass {limits}") from None
        if number < low or (high is not None and number > high):
            raise argparse.ArgumentTypeError(f"{number} is out of range; pass {limits}")
        return number

    return read
