"""NVRTC in a separate process: some inline assembly crashes it, which ends the process.

A helper is started when it is first needed, and goes on to the next source, as starting one takes about as long as a
small compilation. It is detached, so that no process waits for it, and ends with the pipe that it reads from, or
when nothing has come for a while.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import signal
import sys
from typing import IO, Any

from rawkern.compile.libnvrtc import Compiled, Nvrtc, NvrtcError

PATIENCE = 10.0  # seconds that a helper waits for the next source
MOST = 4  # helpers kept that have nothing to do
# The package without its `__init__`, which takes longer than all else.
_START = """import sys, types
package = sys.modules["rawkern"] = types.ModuleType("rawkern")
package.__path__ = [sys.argv[1]]
from rawkern.compile.helper import serve
serve(sys.argv[2])"""


class Crashed(Exception):
    """The process ended while it compiled."""


class _Helper:
    """A process that compiles one source after the other; OSError or EOFError where it cannot be started."""

    def __init__(self, library: str) -> None:
        import subprocess

        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self.library, self.owner = library, os.getpid()
        command = [sys.executable, "-I", "-S", "-c", _START, package, library]
        # A session of its own: Ctrl-C in a terminal is for this process alone.
        started = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        assert started.stdin is not None and started.stdout is not None
        self._to, self._from = started.stdin, started.stdout
        try:
            started.wait()  # for the process that has started the helper
            self._pid: int = _received(self._from)
        except BaseException:
            started.kill()
            self.close()
            raise

    def ask(self, request: tuple[Any, ...]) -> Any:
        """What it answers; an interrupt ends it. EOFError or OSError where it has ended."""
        try:
            _send(self._to, request)
            return _received(self._from)
        except BaseException as error:
            if not isinstance(error, (EOFError, OSError)):  # Ctrl-C: it still compiles
                with contextlib.suppress(OSError):
                    os.kill(self._pid, signal.SIGKILL)
            self.close()
            raise

    def close(self) -> None:
        for file in (self._to, self._from):
            with contextlib.suppress(OSError):
                file.close()


_idle: list[_Helper] = []


def compiled(library: str, options: list[str], *program: Any) -> Compiled | None:
    """What `Nvrtc.compiled` gives for a library; None where there cannot be another process.

    Raises
    ------
    Crashed
        If the process has ended meanwhile.
    """
    if not os.path.basename(sys.executable or "").startswith("python"):
        return None
    answer: Any = None
    while answer is None:
        try:
            helper = _idle.pop()
            kept = helper.library == library and helper.owner == os.getpid()
        except IndexError:
            helper, kept = None, False
        if helper is not None and not kept:
            helper.close()
            continue
        try:
            helper = helper or _Helper(library)
            here = os.getcwd()
        except (OSError, EOFError):
            return None
        try:
            answer = helper.ask((here, options, *program))
        except (OSError, EOFError):
            if not kept:
                raise Crashed from None
            continue
        if answer is None:  # it was about to end
            helper.close()
        elif len(_idle) < MOST:
            _idle.append(helper)
        else:
            helper.close()
    what, value = answer
    if what == "compiled":
        return value
    if what == "rejected":
        raise NvrtcError(value)
    return None


def serve(library: str) -> None:
    """Compile what comes in, until nothing does; runs in the helper."""
    if os.fork():
        os._exit(0)
    to, from_ = sys.stdout.buffer, sys.stdin.buffer
    _send(to, os.getpid())
    nvrtc = Nvrtc(library)
    while select.select([from_], [], [], PATIENCE)[0]:
        try:
            here, *rest = _received(from_)
        except EOFError:
            return
        try:
            os.chdir(here)
            answer = "compiled", nvrtc.compiled(*rest)
        except NvrtcError as error:
            answer = "rejected", str(error)
        except Exception as error:
            answer = "failed", repr(error)
        _send(to, answer)
    _send(to, None)


def _send(file: IO[Any], value: Any) -> None:
    marshal.dump(value, file)
    file.flush()


def _received(file: IO[Any]) -> Any:
    try:
        return marshal.load(file)
    except (ValueError, TypeError):  # part of it
        raise EOFError from None
