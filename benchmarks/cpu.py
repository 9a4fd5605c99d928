"""The CPU engine beside what people use without it: torch's operators, torch eager, NumPy, C with the same loops."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks import cpu_rows as rows
from benchmarks.harness import Report, Table, Timing, cells, compare


@dataclass(frozen=True)
class Row:
    """A comparison: the ratio that is allowed holds for one contender's time by the rival's, with 2 threads each."""

    name: str
    make: Callable[[], rows.Contenders]  # the rival is the first
    contender: str
    goal: float
    rounds: int = 25  # at most; less where a rival takes seconds


ROWS = (
    Row("square 2^16", lambda: rows.square(1 << 16), "square", 1.15),
    Row("square 2^24", lambda: rows.square(1 << 24), "square", 1.03),
    Row("fused 2^20", lambda: rows.fused(1 << 20), "fused", 0.7),
    Row("sum 2^24", lambda: rows.reduction(1 << 24), "sum, grid-stride loop", 1.2),
    Row("softmax 4096 x 1024", lambda: rows.softmax(4096, 1024), "softmax", 1.4),
    Row("matmul 512, 32 x 32 tiles", lambda: rows.matmul(512, 32), "matmul<32>", 1.5),
    Row("matmul 512, 16 x 16 tiles", lambda: rows.matmul(512, 16), "matmul<16>", 3),
    Row("binomial, 512 of 256 steps", lambda: rows.binomial(512, 256), "binomial<256, 256>", 5),
    Row("binomial, 64 of 2048 steps", lambda: rows.binomial(64, 2048), "binomial_registers<2048, 128>", 2),
    Row("n-body 4096", lambda: rows.n_body(4096), "bodies", 0.01, 7),
    Row("mandelbrot 640 x 480", lambda: rows.mandelbrot(640, 480), "mandelbrot", 0.01, 7),
    Row("histogram 2^22", lambda: rows.histogram(1 << 22), "histogram", 3),
    Row("one element", rows.one_element, "k[1, 32](n, x, y)", 10),
)


def measured(report: Report, chosen: list[Row], threads: int, rounds: int, patience: float) -> None:
    """Take and add the table of one number of threads."""
    torch.set_num_threads(threads)
    found: dict[str, dict[str, Timing]] = {}
    table = Table(f"{threads} thread{'s' * (threads > 1)}", ("", "contender", "median", "quartiles", "ratio", "goal"))
    for row in chosen:
        contenders = row.make()
        report.settle(patience)
        rival = next(iter(contenders))
        found[row.name] = compare(contenders, baseline=rival, rounds=min(rounds, row.rounds), patience=patience)
        for name, timing in found[row.name].items():
            table.rows.append((row.name, name, *cells(timing), f"{row.goal:g}" if name == row.contender else ""))
    report.add(table, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, nargs="*", default=None, help="1 and 2 by default")
    parser.add_argument("--only", nargs="*", default=[""], metavar="WORD", help="rows named so; results are not kept")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds to wait for idle cores, for each row")
    options = parser.parse_args()
    chosen = [row for row in ROWS if any(word in row.name for word in options.only)]
    if not chosen:
        parser.error(f"no row is named {options.only}; there are: {'; '.join(row.name for row in ROWS)}")
    report = Report("cpu", "The CPU engine beside torch, NumPy and C")
    report.notes.append(
        "float32. Contenders take turns; the ratio is the median over the rounds of a contender's time by the rival's "
        "(the first of a row) in the same round, both with the same number of threads; NumPy's has one. A goal is the "
        "ratio that is allowed with 2 threads. `y.copy_(x)` is what the memory allows."
    )
    cores = len(os.sched_getaffinity(0))
    for threads in options.threads or [t for t in (1, 2) if t <= cores]:
        measured(report, chosen, threads, options.rounds, options.patience)
    if len(chosen) == len(ROWS):
        report.write()


if __name__ == "__main__":
    main()
