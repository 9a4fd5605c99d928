"""The command ``rawkern``; each of its commands is a module here, which imports torch and the like when it runs.

A command module has ``declare(commands)``, which adds its parser, and ``main(options)``, which returns the exit status:
0, or 1 where what was asked for failed. A wrong command line ends with 2, Ctrl-C with 130.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import rawkern
from rawkern.cli import bench, build, cache, doctor, run
from rawkern.cli.text import Refused, paint
from rawkern.errors import RawkernError

__all__ = ["main"]

_COMMANDS = (doctor, build, run, bench, cache)
_INTERRUPTED, _PIPE_CLOSED = 130, 141  # 128 + the number of the signal, as shells have it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parsed(arguments)
    try:
        status = options.main(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has gone (`| head`); what is still buffered must not raise again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except (RawkernError, OSError, Refused) as error:
        return _failed(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "rawkern").partition(".")[0] == "rawkern":
            raise
        return _failed(f"{error}; `rawkern doctor` says what is missing and how to install it")
    return status


def _failed(message: str) -> int:
    print(f"{paint('rawkern', 'red', sys.stderr)}: {message}", file=sys.stderr)
    return 1


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; a list of words may be interrupted by options, which argparse does not see to itself."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(options, "arguments") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.arguments = [*options.arguments, *rest]
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rawkern", description=rawkern.__doc__)
    parser.add_argument("--version", action="version", version=f"rawkern {rawkern.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.declare(commands)
    return parser
