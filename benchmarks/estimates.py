"""Estimates of GPU time beside recorded times, and beside a plain roofline; the table of docs/estimates.md.

Families are left out of the fit one after the other: each figure is that of a model which has not seen the family.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from typing import Any

import torch

import rawkern
from benchmarks.estimate_kernels import rows as new_rows
from benchmarks.harness import RESULTS
from rawkern.base import torch_private as private
from rawkern.base.timing import gpu_seconds
from rawkern.estimation.cards import CARDS, Card, Constants
from rawkern.estimation.estimate import needs_of_launch
from rawkern.estimation.model import Needs, roofline, time_of

RECORDED, NEW = RESULTS / "estimates-recorded.json", RESULTS / "estimates-new.json"
DOCS, DETAILS = RESULTS.parent.parent / "docs" / "estimates.md", RESULTS / "estimates.md"
BEGIN, END = "<!-- table -->\n", "<!-- /table -->\n"
FIXED = ("hot", "step")  # constants that one family alone tells
#: Where fits begin, and stay near where rows tell nothing: round numbers, those that are published where there are any.
START = Constants(
    l2_latency=270, dram_latency=500, dram_share=0.9, l2_sectors=1.0, partial=4.0, block_latency=500, warp_latency=10,
    block_interval=0.5, l2_lines=0.5, scattered=1.4, hot=1.755, step=0.732, issue=0.95, l1=0.95, barrier=30, power=2.0,
    launch=2.0,
)  # fmt: skip
COLD, WARM = "cold", "warm"
Row = dict[str, Any]
Cell = tuple[str, str]  # GPU, and cold or warm


def arguments(row: Row, device: str = "cpu") -> list[Any]:
    """Of a row: ``f:N`` is N uniform float32, ``i:N:M`` int32 below M, ``p:N`` a permutation, ``n:V`` a number."""
    draw, found = torch.Generator().manual_seed(0), []
    for kind, *numbers in (text.split(":") for text in row["args"]):
        n, *most = map(int, numbers)
        if kind == "f":
            found.append(torch.rand(n, generator=draw).to(device))
        elif kind == "i":
            found.append(torch.randint(most[0], (n,), dtype=torch.int32, generator=draw).to(device))
        elif kind == "p":
            found.append(torch.randperm(n, generator=draw).to(torch.int32).to(device))
        else:
            found.append(n)
    return found


def launcher_of(row: Row) -> Any:
    grid, block = (tuple(size) if isinstance(size, list) else size for size in (row["grid"], row["block"]))
    return rawkern.RawKernel(row["source"], row["kernel"])[grid, block]


def needs_of_row(row: Row) -> Needs:
    return needs_of_launch(launcher_of(row), arguments(row), {}, CARDS["h100"])


# Fit and figures ----------------------------------------------------------------------------------------------


def cells(row: Row) -> Iterable[Cell]:
    return ((gpu, state) for gpu, times in row["us"].items() for state in times)


def seconds(needs: Needs, cell: Cell, constants: Constants) -> float:
    card: Card = replace(CARDS[cell[0]], constants=constants)
    return time_of(needs, card, cell[1] == COLD).seconds


def loss(constants: Constants, data: Sequence[tuple[Row, Needs]]) -> float:
    """The mean over families of errors, as logarithms, with a term that keeps constants near where they are."""
    by_family: dict[str, list[float]] = {}
    for row, needs in data:
        for cell in cells(row):
            error = math.log(seconds(needs, cell, constants) * 1e6 / row["us"][cell[0]][cell[1]])
            by_family.setdefault(row["family"], []).append(abs(error))
    parts = [statistics.fmean(e) + 0.5 * math.sqrt(statistics.fmean(x * x for x in e)) for e in by_family.values()]
    moved = sum(math.log(v / asdict(START)[k]) ** 2 for k, v in asdict(constants).items())
    return statistics.fmean(parts) + 0.01 * moved


def fitted(data: Sequence[tuple[Row, Needs]], rounds: int = 4) -> Constants:
    """Constants by steps along each axis."""
    best, constants = loss(START, data), START
    steps = {name: 0.2 for name in asdict(START) if name not in FIXED}
    for _ in range(rounds):
        for name, step in steps.items():
            for factor in (1 + step, 1 / (1 + step)):
                tried = replace(constants, **{name: getattr(constants, name) * factor})
                if (now := loss(tried, data)) < best - 1e-5:
                    constants, best = tried, now
                    break
            else:
                steps[name] = step / 2
    return constants


def figures(data: Sequence[Row], of: Callable[[Row, Cell], float]) -> dict[str, Any]:
    """Median and 90th percentile of errors, and how many pairs of variants that differ by 10 % are in order."""
    errors = sorted(abs(of(row, c) / row["us"][c[0]][c[1]] - 1) for row in data for c in cells(row))
    right = pairs = 0
    for one, other in combinations(data, 2):
        if one["family"] != other["family"]:
            continue
        for c in set(cells(one)) & set(cells(other)):
            measured = [row["us"][c[0]][c[1]] for row in (one, other)]
            if max(measured) > 1.1 * min(measured):
                pairs += 1
                right += (of(one, c) > of(other, c)) == (measured[0] > measured[1])
    last = errors[min(len(errors) - 1, math.ceil(0.9 * len(errors)) - 1)]
    return {"median": statistics.median(errors), "p90": last, "right": right, "pairs": pairs, "times": len(errors)}


def evaluated(rows: Sequence[Row]) -> list[Row]:
    """Rows with estimates, those of a model that left their family out, and the roofline's, in microseconds."""
    data = [(row, needs_of_row(row)) for row in rows]
    for family in dict.fromkeys(row["family"] for row in rows):
        apart = fitted([each for each in data if each[0]["family"] != family])
        for row, needs in data:
            if row["family"] == family:
                row["left_out"] = _table(row, lambda cell, n=needs, c=apart: seconds(n, cell, c))
    for row, needs in data:
        row["estimated"] = _table(row, lambda cell, n=needs: seconds(n, cell, Constants()))
        row["roofline"] = _table(row, lambda cell, n=needs: roofline(n, CARDS[cell[0]]))
    return [row for row, _ in data]


def _table(row: Row, of: Callable[[Cell], float]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for gpu, state in cells(row):
        found.setdefault(gpu, {})[state] = round(of((gpu, state)) * 1e6, 3)
    return found


def column(name: str) -> Callable[[Row, Cell], float]:
    """Reads one of the tables of a row."""
    return lambda row, cell: row[name][cell[0]][cell[1]]


# New kernels --------------------------------------------------------------------------------------------------


def predicted() -> list[Row]:
    """New kernels with estimates, made before anything of them is measured."""
    found = []
    for row in new_rows():
        needs = needs_of_row(row)
        row["us"] = {}
        every = {gpu: {COLD: 0.0, WARM: 0.0} for gpu in ("h100", "h200")}
        row["estimated"] = _table({"us": every}, lambda cell, n=needs: seconds(n, cell, Constants()))
        row["roofline"] = _table({"us": every}, lambda cell, n=needs: roofline(n, CARDS[cell[0]]))
        print(f"{row['family']}, {row['variant']}: {row['estimated']['h100']}", flush=True)
        found.append(row)
    return found


def measured(row: Row) -> dict[str, float]:
    """Microseconds of a row on the current GPU: medians of 10, behind a kernel that waits; cold: caches overwritten."""
    go, args = launcher_of(row), arguments(row, "cuda")
    other = torch.empty(1 << 27, device="cuda")
    for _ in range(3):
        go(*args)
    found = {}
    for state in (COLD, WARM):

        def before(state: str = state) -> None:
            private.sleep_on_gpu(500_000)
            if state == COLD:
                other.fill_(1.0)

        found[state] = round(statistics.median(gpu_seconds(lambda: go(*args), 10, before)) * 1e6, 2)
    return found


def _measure() -> None:
    name = torch.cuda.get_device_name()
    gpu = next((known for known in ("h100", "h200") if known in name.lower()), None)
    if gpu is None:
        raise SystemExit(f"--measure is for an H100 or H200, of which estimates were kept; this is {name}")
    kept = json.loads(NEW.read_text())
    for row in kept["rows"]:
        row["us"][gpu] = measured(row)
        print(f"{row['family']}, {row['variant']}: {row['us'][gpu]}, estimated {row['estimated'][gpu]}", flush=True)
    NEW.write_text(json.dumps(kept, indent=1) + "\n")
    print(report(kept["rows"], ("estimated", "roofline")))


# Text ---------------------------------------------------------------------------------------------------------


def report(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Figures by family, and of all."""
    groups = [
        (family, [r for r in rows if r["family"] == family]) for family in dict.fromkeys(r["family"] for r in rows)
    ]
    titles = {"left_out": "family left out", "estimated": "estimate", "roofline": "roofline"}
    heads = [f"{titles[name]}: median | 90 % | pairs in order" for name in columns]
    lines = [f"| family | {' | '.join(heads)} |", f"| --- {'| --- ' * 3 * len(columns)}|"]
    for family, some in (*groups, ("**all**", rows)):
        parts = []
        for name in columns:
            f = figures(some, column(name))
            parts.append(f"{f['median']:.1%} | {f['p90']:.1%} | {f['right']} of {f['pairs']}")
        lines.append(f"| {family} | {' | '.join(parts)} |")
    return "\n".join(lines)


def table(rows: Sequence[Row]) -> str:
    """The text of results/estimates.md: every row on every GPU, measured and estimated."""
    lines = [
        "# Estimates and measured times\n",
        "Microseconds, with the difference from the measured time; docs/estimates.md explains the columns.\n",
    ]
    lines += [
        "| family, variant | GPU, L2 | measured us | family left out | estimate | roofline |",
        f"| {'--- | ' * 6}".rstrip(),
    ]
    for row in rows:
        for gpu, state in cells(row):
            took = row["us"][gpu][state]
            own = [row[name][gpu][state] for name in ("left_out", "estimated", "roofline")]
            shown = " | ".join(f"{us:,.4g} ({us / took - 1:+.0%})" for us in own)
            lines.append(f"| {row['family']}, {row['variant']} | {gpu.upper()}, {state} | {took:,} | {shown} |")
    return "\n".join(lines) + "\n"


def rendered(page: str, rows: Sequence[Row]) -> str:
    """The text of docs/estimates.md with its table."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, "docs/estimates.md has no place for the table"
    return f"{before}{BEGIN}\n{report(rows, ('left_out', 'estimated', 'roofline'))}\n\n{end}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimates", description=__doc__)
    parser.add_argument("--fit", action="store_true", help="print constants fitted on all rows, and write nothing")
    parser.add_argument("--predict", action="store_true", help="estimate the new kernels and keep that")
    parser.add_argument("--measure", action="store_true", help="on a GPU: measure the new kernels and keep that beside")
    options = parser.parse_args()
    if options.predict:
        NEW.write_text(json.dumps({"rows": predicted()}, indent=1) + "\n")
        return
    if options.measure:
        _measure()
        return
    kept = json.loads(RECORDED.read_text())
    if options.fit:
        print(fitted([(row, needs_of_row(row)) for row in kept["rows"]]))
        return
    kept["rows"] = evaluated(kept["rows"])
    RECORDED.write_text(json.dumps(kept, indent=1) + "\n")
    DOCS.write_text(rendered(DOCS.read_text(), kept["rows"]))
    DETAILS.write_text(table(kept["rows"]))
    print(report(kept["rows"], ("left_out", "estimated", "roofline")))


if __name__ == "__main__":
    main()
