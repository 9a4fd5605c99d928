"""Python programs in processes of their own, forked from one that has imported torch: two to four seconds less for each.

``[*python(), "-c", CODE, ...]`` is a command like ``[sys.executable, "-c", CODE, ...]``, and takes a file or ``-m`` as
well. It runs a small client of a server, which forks the program with the client's files, environment and folder. The
client ends as the program does, passes SIGINT and SIGTERM on, and takes the program along where it is killed.

Not for a program whose interpreter has options, or that is about what is imported, or about its parent or its group.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

_servers: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}  # by the process that has started one


def python() -> list[str]:
    """What a command begins with in place of ``sys.executable``; the server is started where there is none."""
    if os.getpid() not in _servers:
        _servers[os.getpid()] = _started()
    return [sys.executable, "-I", "-S", __file__, "run", _servers[os.getpid()][0]]


def _started() -> tuple[str, subprocess.Popen[bytes]]:
    import atexit
    import shutil
    import subprocess
    import tempfile

    folder = tempfile.mkdtemp(prefix="rawkern-tests-")
    path, owner = os.path.join(folder, "socket"), os.getpid()
    # It ends with its input, however this process ends; a terminal's signals are for this process.
    server = subprocess.Popen(
        [sys.executable, __file__, "serve", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    assert server.stdout is not None and server.stdout.readline() == b"ready\n"

    def end() -> None:
        if os.getpid() == owner:
            server.communicate()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return path, server


def programs(folder: Path) -> dict[str, str]:
    """The commands of this environment and tree, as an environment in which a shell finds them."""
    import shlex

    folder.mkdir()
    pytest = "-m pytest -p no:cacheprovider -p no:hypothesispytest -p rawkern.testing.plugin"  # a third of the time
    for name, call in {"python": "", "pytest": pytest, "rawkern": "-m rawkern"}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(python())} {call} "$@"\n')
        (folder / name).chmod(0o700)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path, python_path = (os.environ.get(name, "") for name in ("PATH", "PYTHONPATH"))
    return {"PATH": f"{folder}{os.pathsep}{path}", "PYTHONPATH": f"{root}{os.pathsep}{python_path}"}


# The client --------------------------------------------------------------------------------------------------------


def run(path: str, arguments: list[str]) -> None:
    """Have the server run a program, and end as it does."""
    files = [file for file in (0, 1, 2) if _is_open(file)]
    server = socket.socket(socket.AF_UNIX)
    server.connect(path)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: server.sendall(bytes([number])))
    request = json.dumps([files, arguments, dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(server, [len(request).to_bytes(8, "little")], files)
    server.sendall(request)
    status = int(server.makefile().readline() or 1)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _is_open(file: int) -> bool:
    try:
        os.fstat(file)
    except OSError:
        return False
    return True


# The server --------------------------------------------------------------------------------------------------------


def serve(path: str) -> None:
    """Until the input ends, fork a process for each client, which forks the program."""
    import torch._dynamo  # noqa: F401

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    gc.freeze()  # no process looks for garbage in what all have
    print("ready", flush=True)
    while listener in select.select([sys.stdin, listener], [], [])[0]:
        client, _ = listener.accept()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # those that have ended
                pass
        if os.fork():
            client.close()
            continue
        listener.close()
        size, files, _, _ = socket.recv_fds(client, 8, 3)
        request = json.loads(_received(client, int.from_bytes(size, "little")))
        if not (program := os.fork()):
            client.close()
            become(files, *request)
        for file in files:
            os.close(file)
        keep(program, client)
    with contextlib.suppress(ChildProcessError):
        while os.wait():
            pass
    os._exit(0)


def _received(client: socket.socket, size: int) -> bytes:
    text = b""
    while len(text) < size:
        text += client.recv(size - len(text))
    return text


def keep(program: int, client: socket.socket) -> None:
    """Give a program the signals that its client sends, and the client its status. It ends with its client."""

    def wait() -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        with contextlib.suppress(OSError):
            client.sendall(f"{status}\n".encode())
        os._exit(0)

    waiting = threading.Thread(target=wait)
    waiting.start()
    with contextlib.suppress(ProcessLookupError):
        while number := client.recv(1):
            os.kill(program, number[0])
        os.kill(program, signal.SIGKILL)
    waiting.join()


def become(
    files: list[int], numbers: list[int], arguments: list[str], environment: dict[str, str], folder: str
) -> NoReturn:
    """Run a program in this process, as Python does with these arguments, and end."""
    for number in {0, 1, 2} - set(numbers):
        os.close(number)
        setattr(sys, ("stdin", "stdout", "stderr")[number], None)
    for file, number in zip(files, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if "OMP_NUM_THREADS" in environment:
        import torch

        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    status, interrupted = 0, False
    try:
        execute(arguments, [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        frames = error.__traceback__
        while frames and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        status, interrupted = 1, isinstance(error, KeyboardInterrupt)
    # As Python ends, but that what is imported, which takes half a second, stays.
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError):
            stream.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


def execute(arguments: list[str], paths: list[str]) -> None:
    """Run a program as the main module."""
    match arguments:
        case ["-c", code, *rest]:
            sys.argv, sys.path[:1] = ["-c", *rest], ["", *paths]
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(code, "<string>", "exec"), vars(main))
        case ["-m", module, *rest]:
            sys.argv, sys.path[:1] = ["-m", *rest], [os.getcwd(), *paths]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [file, *rest]:
            sys.argv, sys.path[:1] = [file, *rest], [os.path.dirname(os.path.abspath(file)), *paths]
            runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
    what, path, *arguments = sys.argv[1:]
    if what == "run":
        run(path, arguments)
    import atexit
    import contextlib
    import gc
    import runpy
    import select
    import threading
    import types

    serve(path)
