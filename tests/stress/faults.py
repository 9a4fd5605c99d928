"""What is lost when things go wrong around kernels: ``python -m tests.stress.faults NAME=COUNT``.

Each function makes trouble `count` times, with an empty cache, and returns figures; it raises if a result was wrong, or
anything was lost or left behind. `test_faults` runs them small, ``python -m benchmarks.faults`` at the size that its
kept result tells.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import rawkern
from rawkern.base import cache
from tests import forked

from .chains import in_threads

ROOT = Path(__file__).parents[2]
N = 256
SOURCE = r"""
extern "C" __global__ void k(int n, float a, const float* x, float* y) {
    __shared__ float s[1024];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    s[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    for (int turn = 0; turn < %d; ++turn) a += 1;
    if (i < n) y[i] = a * s[threadIdx.x] + %d;
}"""
SPIN = 'extern "C" __global__ void spin(volatile int* x) { x[1] = 1; while (x[0] == 0) { } }'
Figures = dict[str, int | float | str]


class Lost(AssertionError):
    """Something was wrong, lost, or left behind."""


def insist(holds: object, what: str) -> None:
    if not holds:
        raise Lost(what)


# What the process holds ----------------------------------------------------------------------------------------


def held() -> dict[str, float]:
    """MiB of memory, mappings, open files and threads of this process.

    Pages of files are left out: the system maps those of libraries, and takes them back, as it likes.
    """
    gc.collect()
    with open("/proc/self/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    memory = (resident - shared) * os.sysconf("SC_PAGE_SIZE") / 2**20
    with open("/proc/self/maps") as file:
        maps = sum(1 for _ in file)
    return {
        "MiB": memory,
        "mappings": maps,
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def growth(before: dict[str, float], most: float) -> Figures:
    """What has come since, at most so many MiB; the other things stay, but for a few."""
    now = held()
    grown = {name: now[name] - value for name, value in before.items()}
    insist(grown["MiB"] <= most, f"memory has grown by {grown['MiB']:.1f} MiB, {most:g} are allowed")
    insist(grown["mappings"] <= 16 and grown["files"] <= 0 and grown["threads"] <= 1, f"left behind: {grown}")
    return {f"{name} more": round(value, 2) for name, value in grown.items()} | {"MiB in all": round(now["MiB"])}


# Kernels that are right ----------------------------------------------------------------------------------------


def kernel(which: int, turns: int = 3) -> rawkern.RawKernel:
    return rawkern.RawKernel(SOURCE % (turns, which), name="k")


def right(k: rawkern.RawKernel, which: int, n: int = N, turns: int = 3) -> None:
    """Launch one of these kernels on new tensors, and look at the result."""
    x, y = torch.arange(float(n)), torch.full((n,), -1.0)
    k[-(-n // 64), 64](n, 2.0, x, y)
    insist(torch.equal(y, (2.0 + turns) * x + which), f"kernel {which} on {n} elements is wrong")


LOST_TO_LLVM = 0.0015  # MiB a compilation, see `rawkern.base.llvm.optimize`


def kernels(count: int) -> Figures:
    """Kernels that are all different are compiled, run and forgotten."""
    warm = min(count // 2, 600)  # programs are kept in memory, 512 of them
    for which in range(warm):
        right(kernel(which), which)
    before = held()
    for which in range(warm, count):
        right(kernel(which), which)
    kept = max(min(512 - warm, count - warm), 0)
    return {"kernels": count} | growth(before, 8 + 0.03 * kept + LOST_TO_LLVM * (count - warm))


def launches(count: int) -> Figures:
    """Launches of ever new sizes and views, natively and with keywords, operators among them, from new threads."""
    k, choose, x = kernel(1), random.Random(0), torch.randn(1 << 16)
    launcher = k.forall(100)
    small = torch.zeros(100)

    def part(size: int) -> None:
        for i in range(size):
            n = choose.randrange(1, 60_000)
            view, y = x[choose.randrange(100) :][:n], torch.empty(n)
            k[-(-n // 64), 64](n, 1.0, view, y)
            launcher(100, 0.0, small, small)
            if i % 16 == 0:
                k.forall(n)(n=n, a=1.0, x=view, y=y)
                rawkern.square(view)
                insist(torch.equal(y, 4.0 * view + 1), f"{n} elements")

    torch.set_num_threads(1)
    in_threads(1, lambda _: part(max(count // 20, 500)))
    before = held()
    for done in range(0, count // 2, 2500):
        size = min(2500, count // 2 - done)
        in_threads(1, lambda _, size=size: part(size))
    return {"launches": count} | growth(before, 12)


# Processes -----------------------------------------------------------------------------------------------------


def started_by(*scenes: str, forks: bool = True) -> list[str]:
    """The command that runs some of these functions, each given as ``name=count``; in a new interpreter or a forked one."""
    python = forked.python() if forks else [sys.executable]
    return [*python, "-m", "tests.stress.faults", *scenes, "--here"]


def started(*scenes: str, forks: bool = True) -> subprocess.Popen:
    """Another process that runs them."""
    return subprocess.Popen(started_by(*scenes, forks=forks), stdout=subprocess.PIPE, text=True, cwd=ROOT)


def _ends_well(process: subprocess.Popen) -> Figures:
    try:
        out, _ = process.communicate()
    finally:
        process.kill()
    insist(process.returncode == 0, f"a process ended with {process.returncode}: {out[-2000:]}")
    return json.loads(out.splitlines()[-1])


def some(count: int) -> Figures:
    """A few kernels, one after the other."""
    for which in range(count):
        right(kernel(which), which)
    return {"kernels": count}


def _cached() -> list[str]:
    """Keys of the entries, all of which must be whole."""
    keys = sorted(entry.key for entry in cache.entries())
    for key in keys:
        insist(cache.get(key) is not None, f"the entry {key} is not whole")
    return keys


def _unfinished() -> int:
    return sum(1 for _ in cache.directory().glob("*/.tmp-*"))


def processes(count: int) -> Figures:
    """Processes that compile the same kernels at once, in an empty cache."""
    for process in [started("some=2") for _ in range(count)]:
        _ends_well(process)
    together = _cached()
    cache.clear()
    _ends_well(started("some=2"))
    insist(_cached() == together, "other entries than those of one process")
    return {"processes": count, "entries": len(together), "unfinished files": _unfinished()}


def kills(count: int) -> Figures:
    """Processes ended by SIGKILL while they compile; the next ones find whole entries, or none."""
    choose, midway = random.Random(1), 0
    for _ in range(count):
        process = started("forever=1")
        insist(process.stdout is not None and process.stdout.readline() == "begins\n", "it did not begin")
        time.sleep(choose.uniform(0, 1))
        process.kill()
        process.communicate()
        midway += process.returncode == -signal.SIGKILL
    entries, unfinished = len(_cached()), _unfinished()
    _ends_well(started("some=2"))
    cache.clear()
    insist(not list(cache.directory().glob("*/*")), "clearing leaves files of killed processes")
    return {"killed": midway, "whole entries left": entries, "unfinished files left, then cleared": unfinished}


def forever(_: int) -> Figures:
    """Compiles, until the process is killed."""
    print("begins", flush=True)
    for which in range(random.randrange(1 << 20), 1 << 30):
        right(kernel(which, which % 7), which, turns=which % 7)
    return {}


# The disk ------------------------------------------------------------------------------------------------------


def _mounted(options: str, folder: Path, name: str, count: int) -> Figures:
    """Run one of these functions with a cache on a file system of its own, where the system lets us have one."""
    script = f'mount -t tmpfs -o {options} none "$0" && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", script, str(folder), *started_by(f"{name}={count}", forks=False)]
    environment = os.environ | {"RAWKERN_CACHE_DIR": str(folder)}
    return _ends_well(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT))


def can_mount() -> bool:
    """Whether this process may mount file systems in a name space of its own."""
    try:
        return subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def disks(count: int) -> Figures:
    """Full and read-only disks for the cache cost time alone; another user's directory raises."""
    found: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        if can_mount():
            for name, options in (("full", "size=16k,mode=700"), ("read-only", "ro,mode=700")):
                _mounted(options, Path(folder), "some", count)
                found[f"kernels with a {name} disk"] = count
        os.chmod(folder, 0o777)
        process = subprocess.run(
            started_by("some=1"), capture_output=True, text=True, check=False, cwd=ROOT,
            env=os.environ | {"RAWKERN_CACHE_DIR": folder},
        )  # fmt: skip
        insist(process.returncode and "RawkernError: others can write to the cache directory" in process.stderr,
               f"a directory that others can write to was taken: {process.stderr[-500:]}")  # fmt: skip
    return found | {"told of a directory that others can write to": "RawkernError"}


def damage(count: int) -> Figures:
    """Entries of the cache are cut, flipped and exchanged; what runs next is right, and they are rebuilt."""
    choose, done = random.Random(2), 0
    _ends_well(started("some=2"))
    for turn in range(count):
        paths = [entry.path for entry in cache.entries()]
        choose.shuffle(paths)
        contents = [path.read_bytes() for path in paths]
        for k, path in enumerate(paths):
            content = bytearray(contents[k])
            if (how := (turn + k) % 3) == 0:
                content = content[: choose.randrange(len(content))]
            elif how == 1:
                content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
            else:
                content = bytearray(contents[k - 1])
            path.write_bytes(content)
            done += 1
        _ends_well(started("some=2"))
        _cached()
    return {"entries damaged": done}


# Threads, forks, signals ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _busy(count: int, *expected: type[Exception]) -> Iterator[Callable[[], None]]:
    """Threads that launch all the time; gives what raises if one of them has failed, but as expected."""
    stop, errors = threading.Event(), list[BaseException]()

    def work(which: int) -> None:
        try:
            k = kernel(which % 4)
            while not stop.is_set():
                with contextlib.suppress(*expected):
                    right(k, which % 4, 64 * (1 + which))
        except BaseException as error:
            errors.append(error)

    def look() -> None:
        if errors:
            raise errors[0]

    threads = [threading.Thread(target=work, args=(which,)) for which in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield look
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        look()


def forks(count: int) -> Figures:
    """Forks while 16 threads launch; each child launches, and compiles now and then."""
    some(4)
    with _busy(16) as look:
        for turn in range(count):
            child = os.fork()
            if child == 0:
                status = 1
                with contextlib.suppress(BaseException):
                    right(kernel(turn % 4), turn % 4)
                    if turn % 10 == 0:
                        right(kernel(1000 + turn), 1000 + turn)
                    status = 0
                os._exit(status)
            insist(os.waitpid(child, 0)[1] == 0, f"child {turn} failed")
            look()
    return {"forks": count, "threads that launch": 16}


def interrupts(count: int) -> Figures:
    """Ctrl-C and limits of time in launches of the main thread while 16 others launch; the next launch is right."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    spin, x, told = rawkern.RawKernel(SPIN), torch.zeros(2, dtype=torch.int32), 0

    def interrupt() -> None:
        while not x[1]:  # until the launch runs
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    some(4)
    with contextlib.suppress(rawkern.LaunchTimeoutError), rawkern.time_limit(0.01):
        spin[4, 64](x)
    # A limit holds for the launches of all threads, and those of others reach it, too, where cores are scarce.
    with _busy(16, rawkern.LaunchTimeoutError) as look:
        for turn in range(count):
            x.zero_()
            try:
                if turn % 2:
                    threading.Thread(target=interrupt).start()
                    spin[4, 64](x)
                else:
                    with rawkern.time_limit(0.02):
                        spin[4, 64](x)
            except (rawkern.LaunchTimeoutError, KeyboardInterrupt) as error:
                text = "".join([str(error), *getattr(error, "__notes__", ())])
                told += "spin: the launch" in text and "in a loop that waits for other threads" in text
            right(kernel(turn % 4), turn % 4)
            look()
    insist(told == count, f"{count - told} of {count} did not say where the warps were")
    return {"interrupts": count // 2, "limits of time": count - count // 2, "threads that launch": 16}


def exits(count: int) -> Figures:
    """The interpreter ends while threads run kernels, some that never end."""
    for turn in range(count):
        process = started(f"ending={turn}", forks=False)
        out, _ = process.communicate(timeout=60)
        insist(process.returncode == 0 and out == "ends\n", f"the end was {process.returncode}: {out!r}")
    return {"exits": count}


def ending(turn: int) -> Figures:
    """Leaves threads at work and ends.

    They are in native launches: a thread that is in a call of torch's own ends the process here, by std::terminate.
    """
    spin, x = rawkern.RawKernel(SPIN), torch.zeros(2, dtype=torch.int32)

    def launch(launcher: Callable[..., None], n: int) -> None:
        given, y = torch.arange(float(n)), torch.empty(n)
        while True:
            launcher(n, 2.0, given, y)

    launchers = [(kernel(which)[-(-n // 64), 64], n) for which, n in enumerate((64, 1_000_000))]
    for launcher, n in launchers:
        for _ in range(4):
            launcher(n, 2.0, torch.arange(float(n)), torch.empty(n))
        threading.Thread(target=launch, args=(launcher, n), daemon=True).start()
    if turn % 2 == 0:
        threading.Thread(target=lambda: spin[2, 64](x), daemon=True).start()
    time.sleep(0.3 + 0.01 * (turn % 5))
    print("ends", flush=True)
    sys.exit(0)


#: Those that are about this process, and those that start others.
WITHIN: tuple[Callable[[int], Figures], ...] = (kernels, launches, forks, interrupts, some, forever, ending)
AROUND: tuple[Callable[[int], Figures], ...] = (processes, kills, disks, damage, exits)


def run(scenes: dict[Callable[[int], Figures], int]) -> Figures:
    """Run scenes with an empty cache, those within a process in one of their own; what they find lost is raised."""
    found: Figures = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAWKERN_CACHE_DIR", os.path.join(folder, "cache"))
        within = [f"{scene.__name__}={count}" for scene, count in scenes.items() if scene in WITHIN]
        if within:
            found |= _ends_well(started(*within, forks=False))
        for scene, count in scenes.items():
            if scene in AROUND:
                found |= scene(count)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenes", nargs="+", metavar="NAME=COUNT")
    parser.add_argument("--here", action="store_true", help="in this process, with its cache")
    given, found = parser.parse_args(), Figures()
    by_name = {scene.__name__: scene for scene in (*WITHIN, *AROUND)}
    scenes = {by_name[name]: int(count) for name, _, count in (text.partition("=") for text in given.scenes)}
    if not given.here:
        found = run(scenes)
    for scene, count in scenes.items() if given.here else ():
        found |= scene(count)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
