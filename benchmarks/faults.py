"""What trouble around kernels costs: memory that stays, entries lost, processes that end, at the size of heavy use.

Each scene of `tests.stress.faults` runs in a process of its own and raises where a result is wrong, or anything is lost
or left behind; what is written down has been survived.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks.harness import Report, Table
from tests.stress import faults

SCENES: dict[Callable[[int], faults.Figures], tuple[int, str]] = {
    faults.kernels: (5000, "different kernels compiled and run; memory after the first 600 and at the end"),
    faults.launches: (1_000_000, "launches of ever new sizes and views, from new threads, operators among them"),
    faults.processes: (20, "processes that compile the same kernels at once"),
    faults.kills: (50, "kill -9 in the middle of a compilation"),
    faults.disks: (4, "a full, a read-only and an open cache directory"),
    faults.damage: (20, "all entries of the cache cut, flipped, exchanged"),
    faults.forks: (200, "forks while 16 threads launch"),
    faults.interrupts: (200, "Ctrl-C and limits of time while 16 threads launch"),
    faults.exits: (30, "the interpreter ends while threads run kernels"),
}


def survived(scene: Callable[[int], faults.Figures], count: int) -> tuple[faults.Figures, float]:
    """What a scene found, and its seconds."""
    start = time.perf_counter()
    asked = (sys.executable, "-m", "tests.stress.faults", f"{scene.__name__}={count}")
    printed = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(printed.splitlines()[-1]), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=float, default=1.0, help="of each count")
    parser.add_argument("--jobs", type=int, default=1, help="scenes at a time")
    options = parser.parse_args()
    report = Report("faults", "Trouble around kernels")
    report.notes.append(
        "Each in a process of its own with an empty cache. A wrong result, anything lost or left behind ends a scene "
        "with an error: none did."
    )
    table, numbers = Table("Scenes", ("scene", "what is done", "figures", "time")), {}
    counts = [max(int(count * options.part), 1) for count, _ in SCENES.values()]
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = pool.map(survived, SCENES, counts)
        for (scene, (_, what)), (found, seconds) in zip(SCENES.items(), outcomes, strict=True):
            figures = "; ".join(f"{name}: {value}" for name, value in found.items())
            table.rows.append((scene.__name__, what, figures, f"{seconds:.0f} s"))
            print(table.rows[-1], flush=True)
            numbers[scene.__name__] = found
    report.add(table, numbers)
    report.write()


if __name__ == "__main__":
    main()
