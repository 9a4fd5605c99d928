"""What it costs that launches on the CPU stay inside their memory: the level "bounds" by "off", in turns."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import rawkern
from benchmarks import compile, cpu
from benchmarks.harness import Report, Table
from rawkern.compile.nvrtc import run_nvrtc
from rawkern.compile.source import CPU_ARCH, from_path
from rawkern.engines.cpu.checker.bounds import Bounds
from rawkern.engines.cpu.emit.instrument import Instrument
from rawkern.engines.cpu.runtime.jit import Translation

BATCH = 0.02  # seconds that a contender is called for in a round
GOALS = (
    "Goals: a geometric mean of 1.12, square at 2^24 at most 1.03, no row over 1.35; compiling at most 1.2 times as "
    "long."
)


def timed(run: Callable[[], object], calls: int, level: str) -> float:
    """Seconds of a call, at a level."""
    with rawkern.check(level=level):  # type: ignore[arg-type]
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - start) / calls


def launches(rounds: int) -> tuple[Table, list[float]]:
    table, ratios = Table("Launches", ("", "kernel", "off", "bounds", "ratio")), []
    for row in cpu.ROWS:
        contenders = row.make()
        rival, *_ = contenders
        for name, run in contenders.items():
            if name == rival or name.startswith(("torch", "y.copy_")):
                continue
            for level in ("off", "bounds"):
                timed(run, 3, level)  # compiles, and makes launches native
            calls = max(1, int(BATCH / timed(run, 1, "off")))
            pairs = [(timed(run, calls, "off"), timed(run, calls, "bounds")) for _ in range(rounds)]
            off, bounds = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratios.append(statistics.median(b / a for a, b in pairs))
            table.rows.append((row.name, name, f"{off * 1e6:.4g} us", f"{bounds * 1e6:.4g} us", f"{ratios[-1]:.2f}"))
    return table, ratios


def compilations(rounds: int) -> tuple[Table, list[float]]:
    """From the source's text to machine code, as a launch of a new kernel has it: NVRTC's part is the same for both."""
    table, ratios = Table("Source to machine code", ("kernel", "NVRTC", "off", "bounds", "ratio")), []
    for name, shape in compile.KERNELS.items():
        if name == "large":
            continue
        source, pairs = from_path(compile.FOLDER / f"{name}.cu"), []
        for _ in range(rounds):
            start = time.perf_counter()
            ptx = run_nvrtc(source, CPU_ARCH).ptx
            nvrtc, pair = time.perf_counter() - start, []
            translation = Translation(ptx)
            entry = next(f.name for f in translation.parsed().functions.values() if f.entry)
            layout = translation.globals()
            for instrument in (Instrument, Bounds):
                start = time.perf_counter()
                translation.compile(entry, layout, shape, instrument)
                pair.append(time.perf_counter() - start)
            pairs.append((nvrtc, nvrtc + pair[0], nvrtc + pair[1]))
        nvrtc, off, bounds = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios.append(statistics.median(b / a for _, a, b in pairs))
        cells = (f"{seconds * 1e3:.3g} ms" for seconds in (nvrtc, off, bounds))
        table.rows.append((name, *cells, f"{ratios[-1]:.2f}"))
    return table, ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    report = Report("levels", "Launches that stay inside their memory")
    report.notes.append(f"Medians of rounds in which both levels take turns; {options.threads} thread(s). {GOALS}")
    for table, ratios in (launches(options.rounds), compilations(5)):
        mean = statistics.geometric_mean(ratios)
        table.rows.append(("geometric mean", *[""] * (len(table.columns) - 2), f"{mean:.2f}"))
        report.add(table, {"mean": mean, "most": max(ratios), "ratios": ratios})
    report.write()


if __name__ == "__main__":
    main()
