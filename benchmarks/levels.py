"""What it costs that launches on the CPU stay inside their memory: the level "bounds" by "off", in turns."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import rawkern
from benchmarks import cpu, cpu_rows
from benchmarks.harness import Report, Table
from rawkern.compile.programs import CPU_ARCH, Program, compile_program
from rawkern.compile.source import from_path
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
    table, ratios = Table("PTX to machine code", ("kernel", "off", "bounds", "ratio")), []
    program: Program = compile_program(from_path(cpu_rows.FOLDER / "kernels.cu"), CPU_ARCH)
    translation = Translation(program.ptx)
    layout = translation.globals()
    for entry in program.entries:
        pairs = []
        for _ in range(rounds):
            pair = []
            for instrument in (Instrument, Bounds):
                start = time.perf_counter()
                translation.compile(entry.symbol, layout, "line", instrument)
                pair.append(time.perf_counter() - start)
            pairs.append(pair)
        off, bounds = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios.append(statistics.median(b / a for a, b in pairs))
        table.rows.append((entry.name, f"{off * 1e3:.3g} ms", f"{bounds * 1e3:.3g} ms", f"{ratios[-1]:.2f}"))
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
