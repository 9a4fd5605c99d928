"""Estimates of GPU time beside recorded times, and beside a plain roofline; the tables of docs/estimates.md.

Families are left out of the fit one after the other: each figure is that of a model which has not seen the family. New
kernels are estimated first and measured then.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

import rawkern
from benchmarks.estimate_kernels import rows as new_rows
from benchmarks.harness import RESULTS
from rawkern.base import torch_private as private
from rawkern.base.timing import gpu_seconds
from rawkern.estimation.cards import CARDS, Card, Constants
from rawkern.estimation.estimate import SPREAD, needs_of_launch
from rawkern.estimation.model import Needs, roofline, time_of

RECORDED, NEW = RESULTS / "estimates-recorded.json", RESULTS / "estimates-new.json"
DOCS, DETAILS = RESULTS.parent.parent / "docs" / "estimates.md", RESULTS / "estimates.md"
MARKS = {name: (f"<!-- {name} -->\n", f"<!-- /{name} -->\n") for name in ("new", "table")}
#: Constants that small kernels told (`rawkern calibrate`, and loops like it): rows tell them too little.
FIXED = ("l2_latency", "scattered", "scattered_writes", "hot", "step")
SHARES = ("dram_share", "issue", "l1")  # at most 1
#: Where fits begin, and stay near where rows tell nothing: round numbers, those that are published where there are any.
START = Constants(
    l2_latency=280, dram_latency=500, dram_share=0.9, l2_sectors=1.0, partial=4.0, block_latency=500, warp_latency=10,
    block_interval=0.5, l2_lines=0.5, scattered=1.35, scattered_writes=1.95, hot=1.755, step=0.732, issue=0.95,
    l1=0.95, barrier=30, power=2.0, launch=2.0,
)  # fmt: skip
TITLES = {"left_out": "family left out", "estimated": "estimate", "roofline": "roofline"}
#: Families whose variants do the same with the same data; the words before the first space name the problem.
TUNED = ("copy", "transpose", "sum", "matmul", "softmax", "n-body", "stencil", "scan", "convolution", "sparse product")
COLUMNS = tuple(TITLES)
#: What a first version of the model estimated, for results/estimates.md.
FIRST = (
    "24 of the recorded rows, those on an H100 alone, were new to a first version of the model, which estimated "
    "them before any was measured. Its median error was 15.5%, the 90th percentile 66.5%, and 23 of 27 pairs were "
    "in order (the roofline: 70.4%, 94.1%, 17); 34 of the 48 times were between `low` and `high`. The worst were a "
    "histogram of 256 bins in memory (4,328 us, estimated 167), a permuted scatter (1,025 us, 344) and a count at "
    "one address (416 us, 926). The model has since been changed with these rows in view, so they are part of the "
    "table."
)
COLD, WARM = "cold", "warm"
Row = dict[str, Any]
Cell = tuple[str, str]  # GPU, and cold or warm


def arguments(row: Row, device: str = "cpu") -> list[Any]:
    """Tensors and numbers of a row's texts, always the same ones.

    Of N elements: ``f:N`` uniform float32, ``d:N`` float64, ``h:N`` float16; ``i:N:M`` int32 below M, ``u:N:M`` uint32,
    ``s:N:M`` sorted int32; ``l:N`` int64 zeros; ``p:N`` a permutation, ``c:N`` one cycle through all. ``n:V`` and
    ``x:V`` are numbers.
    """
    draw = torch.Generator().manual_seed(0)
    floats = {"f": torch.float32, "d": torch.float64, "h": torch.float16}
    found: list[Any] = []
    for kind, *numbers in (text.split(":") for text in row["args"]):
        if kind in ("n", "x"):
            found.append(int(numbers[0]) if kind == "n" else float(numbers[0]))
            continue
        n, *most = map(int, numbers)
        if kind in floats:
            made = torch.rand(n, generator=draw, dtype=floats[kind])
        elif kind in ("i", "u", "s"):
            made = torch.randint(most[0], (n,), dtype=torch.int32, generator=draw)
            made = made.sort().values if kind == "s" else made.view(torch.uint32) if kind == "u" else made
        elif kind == "l":
            made = torch.zeros(n, dtype=torch.int64)
        else:
            order = torch.randperm(n, generator=draw)
            made = order if kind == "p" else torch.empty_like(order).index_copy_(0, order, order.roll(-1))
            made = made.to(torch.int32)
        found.append(made.to(device))
    return found


def launcher_of(row: Row) -> Any:
    grid, block = (tuple(size) if isinstance(size, list) else size for size in (row["grid"], row["block"]))
    return rawkern.RawKernel(row["source"], row["kernel"])[grid, block, row.get("shared", 0)]


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


def fitted(data: Sequence[tuple[Row, Needs]], rounds: int = 5) -> Constants:
    """Constants by steps along each axis."""
    best, constants = loss(START, data), START
    steps = {name: 0.2 for name in asdict(START) if name not in FIXED}
    for _ in range(rounds):
        for name, step in steps.items():
            for factor in (1 + step, 1 / (1 + step)):
                value = getattr(constants, name) * factor
                tried = replace(constants, **{name: min(value, 1.0) if name in SHARES else value})
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
        every = {"us": {gpu: {COLD: 0.0, WARM: 0.0} for gpu in ("h100", "h200")}}
        kept = {"family": row["family"], "variant": row["variant"], "us": {}}
        kept["estimated"] = _table(every, lambda cell, n=needs: seconds(n, cell, Constants()))
        kept["roofline"] = _table(every, lambda cell, n=needs: roofline(n, CARDS[cell[0]]))
        print(f"{row['family']}, {row['variant']}: {kept['estimated']['h100']}", flush=True)
        found.append(kept)
    return found


def measured(row: Row) -> dict[str, float]:
    """Microseconds of a row on the current GPU: medians of 10, after a kernel that waits; cold: caches overwritten."""
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


def _measure(into: Path) -> None:
    name = torch.cuda.get_device_name()
    gpu = next((known for known in ("h100", "h200") if known in name.lower()), None)
    if gpu is None:
        raise SystemExit(f"--measure is for an H100 or H200, of which estimates were kept; this is {name}")
    kept = json.loads(NEW.read_text())
    launches = {(row["family"], row["variant"]): row for row in new_rows()}
    for row in kept["rows"]:
        row["us"][gpu] = measured(launches[row["family"], row["variant"]])
        print(f"{row['family']}, {row['variant']}: {row['us'][gpu]}, estimated {row['estimated'][gpu]}", flush=True)
        (into / NEW.name).write_text(json.dumps(kept, indent=1) + "\n")  # what came so far, should a later one fail
    text = f"{new_text(kept['rows'])}\n{table([row for row in kept['rows'] if row['us']], COLUMNS[1:])}\n"
    (into / "estimates-new.md").write_text(text)
    print(text)


# Text ---------------------------------------------------------------------------------------------------------


def summary(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Figures of all rows, a line for each column."""
    lines = ["| | error: median | 90 % | pairs in order |", "| --- | --- | --- | --- |"]
    for name in columns:
        f = figures(rows, column(name))
        lines.append(f"| {TITLES[name]} | {f['median']:.1%} | {f['p90']:.1%} | {f['right']} of {f['pairs']} |")
    return "\n".join(lines)


def report(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Figures by family, and of all."""
    groups = [
        (family, [r for r in rows if r["family"] == family]) for family in dict.fromkeys(r["family"] for r in rows)
    ]
    heads = [f"{TITLES[name]}: median | 90 % | pairs in order" for name in columns]
    lines = [f"| family | {' | '.join(heads)} |", f"| --- {'| --- ' * 3 * len(columns)}|"]
    for family, some in (*groups, ("**all**", rows)):
        parts = []
        for name in columns:
            f = figures(some, column(name))
            parts.append(f"{f['median']:.1%} | {f['p90']:.1%} | {f['right']} of {f['pairs']}")
        lines.append(f"| {family} | {' | '.join(parts)} |")
    return "\n".join(lines)


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Every row on every GPU: what was measured, and beside it the columns."""
    lines = [f"| family, variant | GPU, L2 | measured us | {' | '.join(TITLES[name] for name in columns)} |"]
    lines.append(f"| {'--- | ' * (3 + len(columns))}".rstrip())
    for row in rows:
        for gpu, state in cells(row):
            took = row["us"][gpu][state]
            every = [row[name][gpu][state] for name in columns]
            shown = " | ".join(f"{us:,.4g} ({us / took - 1:+.0%})" for us in every)
            lines.append(f"| {row['family']}, {row['variant']} | {gpu.upper()}, {state} | {took:,} | {shown} |")
    return "\n".join(lines)


def inside(rows: Sequence[Row], name: str) -> tuple[int, int]:
    """How many measured times lie between `low` and `high` of a column, and of how many."""
    ratios = [row["us"][g][s] / row[name][g][s] for row in rows for g, s in cells(row)]
    return sum(1 / SPREAD <= ratio <= SPREAD for ratio in ratios), len(ratios)


def choices(rows: Sequence[Row], name: str) -> dict[str, float]:
    """By family: how much longer than the best variant of a problem the one takes that a column finds fastest, at most.

    By a cold L2, as `autotune` has it. Variants of one problem begin alike: ``"4096 naive"``, ``"4096 tile 32 ..."``.
    """
    problems: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        for gpu in row["us"] if row["family"] in TUNED else ():
            problems.setdefault((row["family"], row["variant"].split()[0].rstrip(","), gpu), []).append(row)
    worst: dict[str, float] = {}
    for (family, _, gpu), some in problems.items():
        if len(some) > 1:
            chosen, best = (min(some, key=lambda row: row[key][gpu][COLD]) for key in (name, "us"))
            longer = chosen["us"][gpu][COLD] / best["us"][gpu][COLD] - 1
            worst[family] = max(worst.get(family, 0.0), longer)
    return worst


def recorded_text(rows: Sequence[Row]) -> str:
    """Figures of the recorded rows, for the page."""
    held, all_of = inside(rows, "left_out")
    took = choices(rows, "left_out")
    said = (
        f"`low` and `high` hold {held} of the {all_of} times, each estimated with its family left out. Of the variants "
        f"of one problem, the one with the lowest such estimate takes at most 10% longer than the best in "
        f"{sum(longer <= 0.1 for longer in took.values())} of {len(took)} families: "
        f"{', '.join(f'{family} {longer:.0%}' for family, longer in took.items())}."
    )
    return f"{summary(rows, COLUMNS)}\n\n{said}\n"


def new_text(rows: Sequence[Row]) -> str:
    """Figures of the new kernels, for the page."""
    done = [row for row in rows if row["us"]]
    families = len({row["family"] for row in rows})
    said = f"{len(rows)} kernels of {families} families, {len(done) if len(done) < len(rows) else 'all'} measured."
    if not done:
        return f"{said}\n"
    held, all_of = inside(done, "estimated")
    parts = [f"{said} `low` and `high` hold {held} of the {all_of} times.", summary(done, COLUMNS[1:])]
    return "\n\n".join(parts) + "\n"


def details(recorded: Sequence[Row], new: Sequence[Row]) -> str:
    """The text of results/estimates.md: figures by family; every row on every GPU, measured and estimated."""
    parts = ["# Estimates and measured times"]
    parts.append("Microseconds, with the difference from the measured time; docs/estimates.md explains the columns.")
    parts += ["## Recorded rows", report(recorded, COLUMNS), FIRST, table(recorded, COLUMNS), "## New kernels"]
    if done := [row for row in new if row["us"]]:
        parts += [report(done, COLUMNS[1:]), table(done, COLUMNS[1:])]
    if waiting := [row for row in new if not row["us"]]:
        lines = [
            "| estimated, not measured yet | H100, cold | warm | H200, cold | warm |",
            f"| {'--- | ' * 5}".rstrip(),
        ]
        for row in waiting:
            shown = " | ".join(f"{us:,.4g}" for times in row["estimated"].values() for us in times.values())
            lines.append(f"| {row['family']}, {row['variant']} | {shown} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def rendered(page: str, texts: dict[str, str]) -> str:
    """The text of docs/estimates.md with its tables, which stand between marks."""
    for name, text in texts.items():
        begin, end = MARKS[name]
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        assert found, f"docs/estimates.md has no place for {name}"
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


def kept_texts() -> tuple[dict[str, str], str]:
    """The tables of what is kept: those of the page, and all rows."""
    new, recorded = (json.loads(path.read_text())["rows"] for path in (NEW, RECORDED))
    return {"new": new_text(new), "table": recorded_text(recorded)}, details(recorded, new)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimates", description=__doc__)
    parser.add_argument("--fit", action="store_true", help="print constants fitted on all rows, and write nothing")
    parser.add_argument("--predict", action="store_true", help="estimate the new kernels and keep that")
    parser.add_argument("--measure", action="store_true", help="on a GPU: measure the new kernels and keep that beside")
    parser.add_argument("--into", type=Path, default=RESULTS, metavar="DIR", help="where --measure writes")
    parser.add_argument("--page", action="store_true", help="write the tables from what is kept")
    options = parser.parse_args()
    if options.measure:
        _measure(options.into)
        return
    if options.predict:
        NEW.write_text(json.dumps({"rows": predicted()}, indent=1) + "\n")
    elif not options.page:
        kept = json.loads(RECORDED.read_text())
        if options.fit:
            print(fitted([(row, needs_of_row(row)) for row in kept["rows"]]))
            return
        kept["rows"] = evaluated(kept["rows"])
        RECORDED.write_text(json.dumps(kept, indent=1) + "\n")
        print(report(kept["rows"], COLUMNS))
    texts, every = kept_texts()
    DOCS.write_text(rendered(DOCS.read_text(), texts))
    DETAILS.write_text(every)


if __name__ == "__main__":
    main()
