"""Many calls of `judge` in a row with one worker: the time of each, and what they leave behind."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.harness import Report, Table
from rawkern.base import cache
from rawkern.testing import Verdict, Worker, judge

WARM = 30  # calls before memory and files are counted
SECONDS = 2.0  # of those that do not end
KERNEL = """
extern "C" __global__ void square(int n, const float* x, float* y) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i]{change};  // {number}
}}
"""
FUNCTION = '''
import torch
import rawkern

kernel = rawkern.RawKernel(r"""{kernel}""")


def square(x):
    y = torch.empty_like(x)
    {first}
    kernel.forall(x.numel())(x.numel(), x, y)
    return y
'''
#: By name: what is changed in the kernel (None: a function around it), what is first in the function, what fails.
KINDS: dict[str, tuple[str, str | None, set[str]]] = {
    "a kernel": ("", None, set()),
    "a wrong kernel": (" + 1e-3f", None, {"right", "sizes", "special"}),
    "does not compile": (" +", None, {"compiles"}),
    "a function": ("", "pass", set()),
    "a crash": ("", "import ctypes; ctypes.string_at(0)", {"runs"}),
    "an exit, and processes left": (
        "",
        "import os, subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True); os.abort()",
        {"runs"},
    ),
    "files, and threads that go on": (
        "",
        "import threading, time; open('big', 'wb').write(bytes(1 << 24)); "
        "threading.Thread(target=time.sleep, args=(1000,)).start()",
        set(),
    ),
}
RARE = {"does not end": ("", "import time; time.sleep(1000)", {"runs"})}  # once in 50: each takes its limit


def order(count: int) -> Iterator[tuple[str, tuple[str, str | None, set[str]]]]:
    """Which candidates are judged, one after the other."""
    common, rare = list(KINDS.items()), list(RARE.items())
    for number in range(count):
        yield rare[number // 50 % len(rare)] if number % 50 == 49 else common[number % len(common)]


def judged(worker: Worker, number: int, change: str, first: str | None, limit: float) -> Verdict:
    kernel = KERNEL.format(change=change, number=number)  # no two are the same
    x = torch.randn(1000)
    if first is None:
        arguments = (1000, x, torch.empty(1000))
        return judge(kernel, lambda n, x: x * x, arguments, outputs=(2,), device="cpu", seconds=limit, worker=worker)
    source = FUNCTION.format(kernel=kernel, first=first)
    return judge(source, torch.square, (x,), device="cpu", seconds=limit, worker=worker)


def children(process: int) -> int:
    found = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        found += int(stat.rpartition(")")[2].split()[1]) == process
    return found


def resident(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def state(worker: int) -> dict[str, int]:
    """What could be left behind."""
    shared = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    folders = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("rawkern-")]
    return {
        "processes of the program": children(os.getpid()),
        "processes of the worker": children(worker),
        "open files of the program": len(os.listdir("/proc/self/fd")),
        "open files of the worker": len(os.listdir(f"/proc/{worker}/fd")),
        "files in the temporary folder": len(folders),
        "files in shared memory": len(shared),
        "entries of the cache": cache.info().entries,
        "memory of the program, MB": resident(os.getpid()) // 10**6,
        "memory of the worker, MB": resident(worker) // 10**6,
    }


def main(options: argparse.Namespace) -> None:
    times: dict[str, list[float]] = defaultdict(list)
    report = Report("judging", "Calls of judge in a row")
    with tempfile.TemporaryDirectory() as folder, Worker() as worker:
        tempfile.tempdir = folder
        os.environ["RAWKERN_CACHE_DIR"] = os.path.join(folder, "cache")
        pid = worker.pid
        assert pid is not None
        before = {}
        for number, (name, (change, first, fails)) in enumerate(order(WARM + options.count)):
            if number == WARM:
                before = state(pid)
            verdict = judged(worker, number, change, first, SECONDS if name in RARE else 60.0)
            if set(verdict.failed) != fails:
                raise SystemExit(f"{name} is judged otherwise than it should be: {verdict}")
            if number >= WARM:
                times[name].append(verdict.seconds)
            if options.count >= 200 and number % 100 == 99:
                print(number + 1, state(pid), flush=True)
        after = state(pid)
        if worker.pid != pid:
            raise SystemExit("the worker was restarted")
    left = Table("What is left", ("", f"after {WARM}", f"after {WARM + options.count}"))
    left.rows = [(name, str(before[name]), str(after[name])) for name in before]
    took = Table("Time of a call of judge", ("candidate", "calls", "median", "90 % take at most"))
    for name, each in times.items():
        ninth = statistics.quantiles(each, n=10)[-1] if len(each) > 1 else each[0]
        took.rows.append((name, str(len(each)), f"{statistics.median(each) * 1e3:.0f} ms", f"{ninth * 1e3:.0f} ms"))
    mean = statistics.mean(second for each in times.values() for second in each)
    report.notes.append(
        f"{options.count} calls of judge, one after the other, with one worker: all kinds in turn, no two "
        f"the same, {mean * 1e3:.0f} ms each; one in 50 does not end and takes its limit, {SECONDS:g} s. On the CPU."
    )
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    report.notes.append(f"Load of the machine at the end: {busy:.1f} for each core; above 1 times are longer for it.")
    report.add(took, times)
    report.add(left, {"before": before, "after": after})
    if options.keep:
        report.write()
    counted = [name for name in before if "memory" not in name]
    if grown := [name for name in counted if after[name] > before[name]]:
        raise SystemExit(f"left behind: {', '.join(grown)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/judging.json and .md")
    main(parser.parse_args())
