"""The command ``rawkern``. Each subcommand is a module here that imports torch and other large packages when it runs.

A command module has ``declare(commands)``, which adds its parser, and ``main(options)``, which returns the exit status:
0, or 1 if the command failed. A wrong command line or environment variable gives 2, Ctrl-C gives 130.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import rawkern
from rawkern.base.environment import EnvironmentVariableError
from rawkern.base.nearest import did_you_mean
from rawkern.cli import apart, bench, build, cache, calibrate, doctor, grad, judge, port, profile, run
from rawkern.cli.text import CommandError, paint
from rawkern.errors import RawkernError

_COMMANDS = (doctor, build, run, profile, calibrate, judge, bench, grad, port, cache)
_WRONG = 2  # an invalid command line or setting
_INTERRUPTED, _PIPE_CLOSED = 130, 141  # 128 + the number of the signal, as shells have it
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parsed(arguments)
    if arguments is None and options.main is run.main and apart.possible():
        return _status(apart.run(lambda: _finished(options)), options)
    return _finished(options)


def _finished(options: argparse.Namespace) -> int:
    try:
        status = options.main(options)
        if sys.stdout:  # None where it was closed
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`); buffered output must not raise again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except EnvironmentVariableError as error:
        return _failed(str(error), _WRONG)
    except (RawkernError, OSError, CommandError) as error:
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            return _failed(f"{error.filename}: {error.strerror}")
        return _failed(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "rawkern").partition(".")[0] == "rawkern":
            raise
        return _failed(f"{error}; `rawkern doctor` shows what is missing and how to install it")
    return status


def _status(of_child: int, options: argparse.Namespace) -> int:
    """The exit status for a child's status; prints a message if a signal ended the child."""
    if -of_child in _CRASHES:
        name, shown = signal.Signals(-of_child).name, "; --check shows where" if not options.check else ""
        return _failed(f"{options.kernel} ended its process ({name}): it accessed memory out of bounds{shown}")
    return of_child if of_child >= 0 else 128 - of_child


def _failed(message: str, status: int = 1) -> int:
    print(f"{paint('rawkern', 'red', sys.stderr)}: {message}", file=sys.stderr)
    return status


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; options may come between positional arguments, which argparse does not handle itself."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    end = rest.index("--") if "--" in rest else len(rest)  # after it nothing is an option
    unknown = [word for word in rest[:end] if word.startswith("-") and not re.match(r"-[\d.(]", word)]
    if rest and (not hasattr(options, "arguments") or unknown):
        known = list(options.parser._option_string_actions)
        meant = did_you_mean(unknown[0].partition("=")[0], known) if unknown else ""
        options.parser.error(f"unrecognized arguments: {' '.join(unknown or rest)}{meant}")
    if rest:
        options.arguments = [*options.arguments, *rest[:end], *rest[end + 1 :]]
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="rawkern", description=rawkern.__doc__)
    parser.add_argument("--version", action="version", version=f"rawkern {rawkern.__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=argparse.ArgumentParser
    )
    for command in _COMMANDS:
        command.declare(commands)
    for one in commands.choices.values():
        one.set_defaults(parser=one)
    return parser


class _Parser(argparse.ArgumentParser):
    """A parser that suggests the closest name for an unknown command."""

    def error(self, message: str) -> NoReturn:
        found = re.match(r"argument COMMAND: invalid choice: '([^']*)' \(choose from (.*)\)\Z", message)
        if found is not None:
            names = re.findall(r"[a-z]+", found[2])
            message = f"unknown command {found[1]!r}; choose from {', '.join(names)}{did_you_mean(found[1], names)}"
        super().error(message)
