"""The CPU engine beside torch's own operators: square, a block reduction, the launch of one element."""

from __future__ import annotations

import argparse
import os

import torch

import rawkern
from benchmarks import sources
from benchmarks.harness import Report, Table, Timing, cells, compare

GOALS = {
    "square 2^24": ("square", "torch.mul(x, x, out=y)", "1.1"),
    "square 2^16": ("square", "torch.mul(x, x, out=y)", "2"),
    "sum 2^24": ("sum, float4, a stretch per block", "torch.sum(x)", "2"),
    "one element": ("k[1, 32](n, x, y)", "torch.mul(x, x, out=y)", "10"),
}


def square(n: int) -> tuple[dict, str]:
    """Contenders for y = x * x on n elements."""
    x = torch.randn(n)
    y, want = torch.full_like(x, float("nan")), x * x
    one, four = rawkern.RawKernel(sources.SQUARE), rawkern.RawKernel(sources.SQUARE4)
    run, run4 = one.forall(n), four.forall(n // 4)
    for launch in (run, run4):
        y.fill_(float("nan"))
        launch(n, x, y)
        if not torch.equal(y, want):
            raise SystemExit("square: wrong result")
    contenders = {
        "torch.mul(x, x, out=y)": lambda: torch.mul(x, x, out=y),
        "square": lambda: run(n, x, y),
        "square, float4": lambda: run4(n, x, y),
        "y.copy_(x)": lambda: y.copy_(x),
    }
    return contenders, "torch.mul(x, x, out=y)"


def reduction(n: int) -> tuple[dict, str]:
    """Contenders for the sum of n elements: each is two launches, of the blocks and of one block over their results."""
    x = torch.rand(n)
    want = x.double().sum().item()
    contenders: dict = {"torch.sum(x)": lambda: torch.sum(x)}
    for name, source, blocks in (
        ("sum, a stretch per block", sources.SUM, 256),
        ("sum, grid-stride loop", sources.SUM_STRIDED, 256),
        ("sum, float4, grid-stride loop", sources.SUM4, 256),
        ("sum, float4, a stretch per block", sources.SUM4_STRETCH, 256),
        ("sum, one element per thread", sources.SUM_BLOCKS, -(-n // 256)),
    ):
        kernel, last = rawkern.RawKernel(source), rawkern.RawKernel(sources.SUM)
        parts, out = torch.full((blocks,), float("nan")), torch.full((1,), float("nan"))
        first, second = kernel[blocks, 256], last[1, 256]

        def run(first=first, second=second, parts=parts, out=out, blocks=blocks) -> None:
            first(n, x, parts)
            second(blocks, parts, out)

        run()
        if not abs(out.item() / want - 1) < 1e-5:
            raise SystemExit(f"{name}: {out.item()}, not {want}")
        contenders[name] = run
    return contenders, "torch.sum(x)"


def one_element() -> tuple[dict, str]:
    """Contenders for a launch of one element with three arguments."""
    x, y = torch.randn(1), torch.full((1,), float("nan"))
    kernel = rawkern.RawKernel(sources.SQUARE)
    kernel[1, 32](1, x, y)
    if not torch.equal(y, x * x):
        raise SystemExit("one element: wrong result")
    settled = kernel[1, 32]
    contenders = {
        "torch.mul(x, x, out=y)": lambda: torch.mul(x, x, out=y),
        "k[1, 32](n, x, y)": lambda: kernel[1, 32](1, x, y),
        "k.forall(n)(n, x, y)": lambda: kernel.forall(1)(1, x, y),
        "launch = k[1, 32]; launch(n, x, y)": lambda: settled(1, x, y),
        "k((1,), (32,), (n, x, y))": lambda: kernel((1,), (32,), (1, x, y)),
    }
    return contenders, "torch.mul(x, x, out=y)"


def measured(report: Report, threads: int, rounds: int) -> dict[str, dict[str, Timing]]:
    torch.set_num_threads(threads)
    cases = {
        "square 2^24": lambda: square(1 << 24),
        "square 2^16": lambda: square(1 << 16),
        "sum 2^24": lambda: reduction(1 << 24),
        "one element": one_element,
    }
    found: dict[str, dict[str, Timing]] = {}
    table = Table(f"{threads} thread{'s' * (threads > 1)}", ("", "contender", "median", "quartiles", "ratio", "goal"))
    for case, make in cases.items():
        contenders, baseline = make()
        report.settle()
        found[case] = compare(contenders, baseline=baseline, rounds=rounds)
        goal_of, _, goal = GOALS[case]
        for name, timing in found[case].items():
            table.rows.append((case, name, *cells(timing), goal if name == goal_of else ""))
    report.add(table, found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, nargs="*", default=None, help="1 and 2 by default")
    options = parser.parse_args()
    report = Report("cpu", "The CPU engine beside torch")
    report.notes.append(
        "float32. Contenders take turns; the ratio is the median over the rounds of a contender's time by torch's in "
        "the same round, both with the same number of threads. A goal is the ratio that is allowed. `y.copy_(x)` is "
        "what the memory allows."
    )
    cores = len(os.sched_getaffinity(0))
    for threads in options.threads or [t for t in (1, 2) if t <= cores]:
        measured(report, threads, options.rounds)
    report.write()


if __name__ == "__main__":
    main()
