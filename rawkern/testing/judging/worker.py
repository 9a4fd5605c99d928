"""The judge's side of the worker process, which forks candidates one after the other."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from rawkern.base import cache
from rawkern.base.nested import mapped
from rawkern.errors import LaunchError
from rawkern.testing.judging import wire

_STARTS = 120.0  # seconds for importing torch on a busy machine
_ENDS = 30.0  # seconds for the worker to end a candidate's processes
_BY_ITSELF = 1.0  # seconds for a process to exit after its socket is closed
_OUTPUT = 4000  # characters of output that are kept
_EMPTY = {"error": None, "entry": "", "signature": "", "launches": {}, "notes": [], "changed": [], "times": []}
# Variables that libraries need; others may be secrets.
_ENVIRONMENT = (
    "PATH", "TMP", "LD_", "LANG", "LC_", "TZ", "CUDA", "NVIDIA", "NVRTC", "CUPY", "OMP_", "MKL_", "OPENBLAS", "TORCH",
    "PYTORCH", "TRITON", "RAWKERN", "CC", "CXX", "CONDA", "VIRTUAL_ENV",
)  # fmt: skip
_PROGRAM = """
import sys
sys.path += {places!r}
from rawkern.testing.judging import server
server.main({handle})
"""


class Worker:
    """A process that candidates are forked from, which saves each call of `judge` the seconds of importing torch.

    It imports what candidates need and runs none of their code itself. It has no access to references or to the calling
    program, and only the environment variables that libraries need. Use it in a ``with`` block and pass it to
    `judge`; threads that share one take turns. At the end of the block all of its processes and files are
    removed.

    Raises
    ------
    LaunchError
        The process cannot be started.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def __enter__(self) -> Worker:
        self._started()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process's id; None if it is not running."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the process and all processes that it started."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            try:
                self._process.wait(_ENDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._control = self._process = None

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._stop()

    def _started(self) -> socket.socket:
        """The socket to the process, which is started if needed."""
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        self._stop()
        mine, theirs = socket.socketpair()
        # Isolated: the worker must not import from the program's folder, which has the references.
        places = list(dict.fromkeys(str(Path(sys.modules[m].__file__ or "").parents[1]) for m in ("rawkern", "torch")))
        program = _PROGRAM.format(places=places, handle=theirs.fileno())
        environment = {name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)}
        environment["RAWKERN_CACHE_DIR"] = str(cache.configured())  # as this program's folder and home tell
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", program],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd="/",
                env=environment,
            )  # fmt: skip
        self._control = mine
        try:
            wire.receive(mine, 0, monotonic() + _STARTS)
        except (EOFError, wire.Late, wire.Broken):
            self._kill()
            raise LaunchError(
                "the process that candidates are forked from did not start; see its output above"
            ) from None
        return mine

    @contextlib.contextmanager
    def candidate(self, limits: dict[str, Any]) -> Iterator[Candidate]:
        """Start a candidate's process with its own folder; remove both at the end of the block."""
        with self._lock:
            folder = tempfile.mkdtemp(prefix="rawkern-judge-")
            try:
                control, mine = self._forked(limits, folder)
                found = Candidate(mine, folder, limits)
                try:
                    yield found
                finally:
                    found.ended = self._end(control, found)
                    found.printed = _tail(os.path.join(folder, "output.txt"))
                    mine.close()
            finally:
                remove(folder)

    def _forked(self, limits: dict[str, Any], folder: str) -> tuple[socket.socket, socket.socket]:
        """Fork a candidate's process; returns the worker's socket and one to that process."""
        control = self._started()
        mine, theirs = socket.socketpair()
        try:
            with theirs:
                wire.send(control, {**limits, "folder": folder})
                socket.send_fds(control, [b"."], [theirs.fileno()])
            wire.receive(control, 0, monotonic() + _ENDS)
        except BaseException as error:  # including Ctrl-C: it is unknown what the process has read
            mine.close()
            self._kill()
            if isinstance(error, Exception):
                raise LaunchError("the process that candidates are forked from does not answer") from error
            raise
        return control, mine

    def _end(self, control: socket.socket, candidate: Candidate) -> dict[str, Any]:
        try:
            wire.send(control, {"wait": _BY_ITSELF if candidate.gone else 0.0})
            return wire.receive(control, 0, monotonic() + _BY_ITSELF + _ENDS)[0]
        except (OSError, EOFError, wire.Late, wire.Broken):
            self._kill()
            return {"status": None, "memory": 0, "left": 0, "lost": True}


class Candidate:
    """A candidate's process, seen from the judge.

    Attributes
    ----------
    gone : bool
        Whether it closed its socket or sent an invalid message.
    ended, printed
        How it ended, and the end of its output.
    """

    def __init__(self, to: socket.socket, folder: str, limits: dict[str, Any]) -> None:
        self.folder, self.gone = folder, False
        self.ended: dict[str, Any] = {}
        self.printed = ""
        self._to, self._most = to, limits["memory"]
        self._until = monotonic() + limits["seconds"]

    def ask(self, request: dict[str, Any], tensors: Sequence[torch.Tensor] = ()) -> tuple[dict[str, Any], list[Any]]:
        """Send a request and wait for the answer.

        EOFError if the process has ended, `Late` if its time is up, `Broken` for an invalid answer.
        """
        number = secrets.randbits(60)  # an answer sent before the request cannot contain it
        try:
            said = {**request, "number": number, "left": self._until - monotonic()}
            wire.send(self._to, said, tensors, self._until)
            head, found = wire.receive(self._to, self._most, self._until)
        except (BrokenPipeError, ConnectionResetError, EOFError):
            self.gone = True
            raise EOFError from None
        folder = self.folder + os.sep  # meaningless after it is removed
        if head.pop("number", None) != number or not _sound(head):
            raise wire.Broken("it does not have the form of an answer")

        def text(_: Any, value: Any) -> Any:  # without lone surrogates, which cannot be printed
            return (
                value.replace(folder, "").encode(errors="backslashreplace").decode()
                if isinstance(value, str)
                else value
            )

        return mapped(text, {**_EMPTY, **head}), found


def _sound(head: dict[str, Any]) -> bool:
    """Whether an answer has the right form: it comes from the candidate's process."""

    def error(e: Any) -> bool:
        return e is None or (
            isinstance(e, dict) and isinstance(e.get("kind"), str) and isinstance(e.get("text"), str)
            and isinstance(e.get("findings"), list)
            and all(isinstance(f, dict) and {*f} == {"error", "message", "file", "line"} for f in e["findings"])
        )  # fmt: skip

    def texts(values: Any, kind: type | tuple[type, ...] = str) -> bool:
        return isinstance(values, list) and all(isinstance(v, kind) for v in values)

    fields = {
        "error": error,
        "entry": lambda v: isinstance(v, str),
        "signature": lambda v: isinstance(v, str),
        "launches": lambda v: isinstance(v, dict) and all(type(n) is int for n in v.values()),
        "notes": lambda v: isinstance(v, list) and all(texts(note) and len(note) == 2 for note in v),
        "changed": texts,
        "times": lambda v: texts(v, float),
    }
    return all(name in fields and fields[name](value) for name, value in head.items() if name != "tensors")


def _tail(path: str) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _OUTPUT))
        return file.read().decode(errors="replace").strip()
    return ""


def remove(folder: str) -> None:
    """Remove a candidate's folder, including parts whose permissions were removed."""
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.isdir(folder):
        os.chmod(folder, 0o700)
        for path, names, _ in os.walk(folder):
            for name in names:
                if not os.path.islink(inner := os.path.join(path, name)):
                    os.chmod(inner, 0o700)
        shutil.rmtree(folder, ignore_errors=True)
