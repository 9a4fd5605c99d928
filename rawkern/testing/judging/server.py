"""The process that candidates are forked from: it imports everything, and runs none of their code itself."""

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
_LOOKS = 0.02  # seconds between checks of a candidate's memory
_SELDOM = 25  # checks between two scans of all its processes
_LONGEST = 10.0  # seconds for ending the processes that a candidate started
_FILES = 1 << 28  # maximum bytes of a file that a candidate writes
_OPEN = 1024  # maximum number of open files
OUTPUT = "output.txt"


def main(control: int) -> None:
    """Fork candidates on request of the control socket, until it is closed."""
    os.set_inheritable(control, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the judge handles it
    ctypes.CDLL(None).prctl(
        _PR_SET_CHILD_SUBREAPER, 1
    )  # orphaned processes of a candidate become children of this process
    warm_up()
    asked = socket.socket(fileno=control)
    wire.send(asked, {"ready": os.getpid()})
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            _serve(asked)
    _end_children()
    os._exit(0)


def _serve(asked: socket.socket) -> None:
    """Start one candidate, and end it on request."""
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
    except EOFError:  # the judge has ended for whatever reason
        _end(child, 0.0)
        shutil.rmtree(limits["folder"], ignore_errors=True)
        raise
    wire.send(asked, {**_end(child, request["wait"]), "over": over})


def _watched(asked: socket.socket, child: int, memory: int) -> bool:
    """Wait for the next request; end the candidate and report it if its processes exceed the memory limit."""
    base, over, count = _resident(os.getpid()), False, 0
    while not select.select([asked], [], [], _LOOKS)[0]:
        # A scan of /proc takes milliseconds, so it is rare.
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
    """End a candidate and all processes that it started; returns its status if it exits by itself in time."""
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
    """End all children, including orphans adopted meanwhile; returns their number."""
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
    """The parent of each process on the system."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    return found


def _descendants() -> list[int]:
    """All descendants of this process; orphans are its children."""
    parents, found = _parents(), [os.getpid()]
    for each in found:
        found += [process for process, parent in parents.items() if parent == each]
    return found[1:]


# The candidate's process ------------------------------------------------------------------------------------------


def _become_candidate(limits: dict[str, Any], handle: int, parent: int) -> None:
    """In the forked child: drop what a candidate must not have, then serve its judge."""
    status = 1
    try:
        os.setsid()
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before prctl took effect
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
    """Keep only an empty stdin, a file for output, and the judge's socket as descriptor 3."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    printed = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    high = 500  # above the descriptors that are replaced
    for i, each in enumerate((nothing, printed, printed, handle)):
        os.dup2(each, high + i, inheritable=False)
    for i in range(4):
        os.dup2(high + i, i, inheritable=i < 3)
    os.closerange(4, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _settle(folder: str) -> None:
    """Use the folder for all files that are written; it is removed afterwards."""
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
    """Set limits that the process cannot raise again; `_watched` limits its memory.

    A limit of address space would not work: the CPU engine and CUDA reserve much more than they use.
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
    """Drop root's privileges to raise limits and to read other processes' memory."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    libc.capset(header, (ctypes.c_uint32 * 6)())


def _launch(name: str) -> None:
    """Launch a kernel of a name, and launch it checked."""
    kernel = RawKernel(f"__global__ void {name}(const float* x, float* y) {{ *y = *x; }}")
    x = torch.ones(1)
    kernel[1, 1](x, torch.empty(1))
    with check(), filled_allocations():
        kernel[1, 1](x, torch.empty(1))


def warm_up() -> None:
    """Import and compile what candidates use: without threads, which a fork would lose, and without a GPU.

    Once the driver is initialized, forked processes cannot use it.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    _launch("shared")  # from the disk cache: what all kernels share takes a second to compile
    with tempfile.TemporaryDirectory(prefix="rawkern-judge-") as folder:
        before = os.environ.get("RAWKERN_CACHE_DIR")
        os.environ["RAWKERN_CACHE_DIR"] = folder
        _launch("compiled")  # so that the compilers are there
        if before is None:
            del os.environ["RAWKERN_CACHE_DIR"]
        else:
            os.environ["RAWKERN_CACHE_DIR"] = before
    candidate.prepare(threads)
    gc.collect()
    gc.freeze()  # so that garbage collection does not copy pages shared with the parent
