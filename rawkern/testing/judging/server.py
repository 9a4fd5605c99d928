"""The process that candidates are forked from: it has everything imported, and runs none of their code itself."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from typing import Any

import torch

from rawkern.checked.launches import check
from rawkern.kernel import RawKernel
from rawkern.testing.guards import filled_allocations
from rawkern.testing.judging import candidate, wire

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER = 1, 38, 36
_CAPABILITY_VERSION = 0x20080522
_LOOKS = 0.02  # seconds between two looks at the memory that a candidate uses
_SELDOM = 25  # looks from one at all its processes to the next
_LONGEST = 10.0  # seconds that it may take to end what a candidate has started
_FILES = 1 << 28  # bytes of a file that a candidate writes
_OPEN = 1024  # files that it has open
OUTPUT = "output.txt"


def main(control: int) -> None:
    """Fork candidates as the control socket asks for, until it is closed."""
    os.set_inheritable(control, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the judge's own affair
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a candidate starts comes here when that has ended
    warm_up()
    asked = socket.socket(fileno=control)
    wire.send(asked, {"ready": os.getpid()})
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            _serve(asked)
    _end_children()
    os._exit(0)


def _serve(asked: socket.socket) -> None:
    """Start one candidate, and end it when that is asked for."""
    limits, _ = wire.receive(asked, 0)
    asked.setblocking(True)
    _, handles, _, _ = socket.recv_fds(asked, 1, 1)
    me, child = os.getpid(), os.fork()
    if not child:
        _become_candidate(limits, handles[0], me)
    os.close(handles[0])
    wire.send(asked, {"started": child})
    over = _watched(asked, child, limits["memory"])
    try:
        request, _ = wire.receive(asked, 0)
    except EOFError:  # the judge has ended, however that was
        _end(child, 0.0)
        shutil.rmtree(limits["folder"], ignore_errors=True)
        raise
    wire.send(asked, {**_end(child, request["wait"]), "over": over})


def _watched(asked: socket.socket, child: int, memory: int) -> bool:
    """Wait for the next request; end the candidate if its processes use more memory, and say so."""
    base, over, count = _resident(os.getpid()), False, 0
    while not select.select([asked], [], [], _LOOKS)[0]:
        # All of /proc is looked through seldom: that takes milliseconds.
        count += 1
        group = [child] if count % _SELDOM else _descendants()
        if not over and sum(max(0, _resident(each) - base) for each in group) > memory:
            over = True
            for each in group:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
    return over


def _resident(process: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{process}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
    return 0


def _end(child: int, wait: float) -> dict[str, Any]:
    """End a candidate and all that it has started; says how it ended, if it does so by itself in that time."""
    end = time.monotonic() + wait
    while not (gone := os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and time.monotonic() < end:
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # it may have left its group
        os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    return {
        "status": os.waitstatus_to_exitcode(status) if gone is not None else None,
        "memory": used.ru_maxrss * 1024,
        "left": _end_children(),
    }


def _end_children() -> int:
    """End all children, and those that come here as their parents end; returns how many there were."""
    count, end = 0, time.monotonic() + _LONGEST
    while children := [process for process, parent in _parents().items() if parent == os.getpid()]:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
                count += 1
        if time.monotonic() > end:
            raise RuntimeError("a candidate starts processes faster than they can be ended")
    return count


def _parents() -> dict[int, int]:
    """The parent of each process there is."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    return found


def _descendants() -> list[int]:
    """All that runs because of this process; what has lost its parent is a child of this one."""
    parents, found = _parents(), [os.getpid()]
    for each in found:
        found += [process for process, parent in parents.items() if parent == each]
    return found[1:]


# The candidate's process ------------------------------------------------------------------------------------------


def _become_candidate(limits: dict[str, Any], handle: int, parent: int) -> None:
    """In the forked child: give up what a candidate must not have, then serve its judge."""
    status = 1
    try:
        os.setsid()
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended before this was asked for
            os._exit(1)
        folder = limits["folder"]
        _redirect(os.path.join(folder, OUTPUT), handle)
        _settle(folder)
        _limit(limits)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _drop_capabilities(libc)
        candidate.serve(socket.socket(fileno=3), limits)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status & 0xFF)


def _redirect(path: str, handle: int) -> None:
    """Leave only nothing to read, a file for what is printed, and the judge's socket, as 3."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    printed = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    high = 500  # above the handles that these take the place of
    for i, each in enumerate((nothing, printed, printed, handle)):
        os.dup2(each, high + i, inheritable=False)
    for i in range(4):
        os.dup2(high + i, i, inheritable=i < 3)
    os.closerange(4, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _settle(folder: str) -> None:
    """Have the folder for all that is written: it is removed afterwards."""
    os.chdir(folder)
    os.environ.update(
        HOME=folder,
        TMPDIR=folder,
        XDG_CACHE_HOME=os.path.join(folder, "cache"),
        RAWKERN_CACHE_DIR=os.path.join(folder, "cache", "rawkern"),
    )
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _limit(limits: dict[str, Any]) -> None:
    """Set limits that the process cannot raise again; of its memory, `_watched` is the limit.

    Address space says little of that: the CPU engine and CUDA reserve much more than they use.
    """
    processor = int(limits["seconds"] * (os.cpu_count() or 1)) + 1
    for each, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, processor),
        (resource.RLIMIT_FSIZE, _FILES),
        (resource.RLIMIT_NOFILE, _OPEN),
    ):
        hard = resource.getrlimit(each)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(each, (most, most))


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Root's rights to raise limits, and to read other processes' memory."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    libc.capset(header, (ctypes.c_uint32 * 6)())


def warm_up() -> None:
    """Import and compile once what candidates use: without threads, which a fork would not have, and without a GPU.

    Where the driver has started, no forked process can use it.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rawkern-judge-") as folder:
        before = os.environ.get("RAWKERN_CACHE_DIR")
        os.environ["RAWKERN_CACHE_DIR"] = folder
        kernel = RawKernel("__global__ void warm(const float* x, float* y) { *y = *x; }")
        x = torch.ones(1)
        kernel[1, 1](x, torch.empty(1))
        with check(), filled_allocations():  # which imports more of torch, too
            kernel[1, 1](x, torch.empty(1))
        if before is None:
            del os.environ["RAWKERN_CACHE_DIR"]
        else:
            os.environ["RAWKERN_CACHE_DIR"] = before
    candidate.prepare(threads)
    gc.collect()
    gc.freeze()  # what is there already is not copied for being looked at
