"""Makes docs/benchmarks.md, its pictures and the tables of `times` from the results in `results/`; needs no GPU.

The page's prose is kept; the text between ``<!-- NAME -->`` and ``<!-- /NAME -->`` is rebuilt from the
numbers, so that none is copied by hand. The pictures need matplotlib.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, scaled
from benchmarks.rivals import DLPACK, LOAD, TORCH
from benchmarks.times import DOCS, write_times

EDIT, COMPILE_KERNEL = f"{LOAD}, an edit of the CUDA source", "torch.cuda._compile_kernel"
OWN, OWN_TEXT = "rawkern: k[g, b](...)", "rawkern, a new source text"
DRIVER = "cuLaunchKernel through CuPy alone (nothing checked, nothing packed)"
# The picture of the site's front page: who, by the names of the results.
FRONT_EDITS = {
    "rawkern": OWN_TEXT,
    "cupy.RawKernel": "cupy.RawKernel, a new source text",
    "torch load_inline": EDIT,
}
FRONT_LAUNCHES = {
    "rawkern": OWN,
    "torch load_inline": LOAD,
    "Triton": "Triton",
    "torch.cuda._compile_kernel": COMPILE_KERNEL,
    "cupy.RawKernel, DLPack": DLPACK,
}
CONTENDERS = ("torch", "torch.compile", "Liger", "rawkern")
SHOWN = ("square", "mul", "softmax", "layer_norm", "cross_entropy")  # in the picture of bandwidth
DTYPES = ("bfloat16", "float32")
Rows = Sequence[Sequence[str]]


def results(name: str) -> dict[str, Any]:
    """A kept file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def part(name: str, prefix: str) -> dict[str, Any]:
    """The numbers of the table whose title begins so."""
    return next(numbers for title, numbers in results(name)["results"].items() if title.startswith(prefix))


def launches() -> dict[str, Any]:
    return part("launch-gpu", "Host time of one launch")


def edits() -> dict[str, Any]:
    return part("launch-gpu", "Edit to first result")


def operators(dtype: str) -> dict[str, Any]:
    return part("operators-gpu", dtype)


def nbody() -> dict[str, Any]:
    return part("operators-gpu", "n-body")


def seconds(timing: dict[str, Any]) -> str:
    return timing.get("error") or scaled(timing["median"])


def share(operator: dict[str, Any], direction: str, contender: str) -> float | None:
    """Part of a copy's rate that an operator reaches; None if the contender has no such time."""
    at = ("forward", "backward").index(direction)
    timing = operator.get(direction, {}).get(contender, {})
    limit = operator["limits"][at] if at < len(operator["limits"]) else 0
    return limit / timing["median"] if limit and "median" in timing else None


# Tables -------------------------------------------------------------------------------------------------------


def table(columns: Sequence[str], rows: Rows) -> str:
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    return "\n".join([*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)])


def machines() -> str:
    """Hardware and versions of each file."""
    keys = ("gpu", "cpu", "python", "torch", "cupy-cuda13x", "triton", "cuda-core", "apache-tvm-ffi", "liger-kernel")
    rows = []
    for name in ("launch-gpu", "operators-gpu", "sanitizer-gpu"):
        facts = results(name)["machine"]
        versions = ", ".join(f"{key} {facts[key]}" for key in keys[2:] if key in facts)
        rows.append((name, facts["date"], facts["rawkern"] or "-", f"{facts['gpu']}; {facts['cpu']}", versions))
    return table(("results", "date", "commit", "hardware", "versions"), rows)


def times_as_long(dtype: str, direction: str, rival: str) -> dict[str, float]:
    """What a rival takes for each operator that both have, by rawkern's time."""
    found = {}
    for name, numbers in operators(dtype).items():
        own, other = (numbers.get(direction, {}).get(who, {}).get("median") for who in ("rawkern", rival))
        if own and other and other > 1e-6:  # a sum's backward is a view in torch, which takes no time
            found[name] = other / own
    return found


def gains() -> str:
    """What a user has of it, in a few sentences."""
    launch, edit, forward, rival = launches(), edits(), nbody()["forward"], "torch.compile"
    own = {name: launch[name]["median"] / launch[OWN]["median"] for name in (LOAD, COMPILE_KERNEL, DLPACK)}
    after = {name: scaled(edit[name]["median"]) for name in (OWN_TEXT, "cupy.RawKernel, a new source text", EDIT)}
    found = [times_as_long("bfloat16", way, who) for who in ("torch", rival) for way in ("forward", "backward")]
    means = [f"{statistics.geometric_mean(ratios.values()):.2f}" for ratios in found]
    slow = [f"{name} ({ratio:.2f})" for name, ratio in sorted(found[2].items(), key=lambda at: at[1]) if ratio < 0.95]
    slower = (
        f"torch.compile's forward is faster for {', '.join(slow)}" if slow else "None of its forwards is 5 % faster"
    )
    bodies = forward[rival]["median"] / forward["rawkern"]["median"]
    square = results("simulators")["results"]["ns per element"]
    engine, triton = (
        next(sizes["1048576"]["median"] for name, sizes in square.items() if name.startswith(who))
        for who in ("rawkern", "Triton")
    )
    bounds = results("levels")["results"]["Launches"]["mean"]
    watched, _ = results("sanitizer-gpu")["results"].values()
    findings = sum(sum(tool["in rawkern's kernels"].values()) for tool in watched.values())
    return f"""\
- **Edit and run**: a changed kernel shows its result after {after[OWN_TEXT]}.
  `cupy.RawKernel` takes {[*after.values()][1]}, torch's `load_inline` {after[EDIT]}.
- **Launch**: {seconds(launch[OWN])} of host time, with every argument checked. `load_inline` takes
  {own[LOAD]:.2f} times as long, `torch.cuda._compile_kernel` {own[COMPILE_KERNEL]:.1f} times, CuPy with DLPack
  {own[DLPACK]:.1f} times.
- **Operators**: in bfloat16 torch takes {means[0]} times as long for a forward and {means[1]} times for a backward,
  torch.compile {means[2]} and {means[3]} times (geometric means over {len(found[0])} forwards and {len(found[1])}
  backwards). {slower}.
- **Your own loops**: forces between 10,000 bodies take torch.compile {bodies:.1f} times as long.
- **Without a GPU**: one thread of a CPU squares 2^20 floats in {scaled(engine)}, {triton / engine:,.0f} times faster
  than Triton's interpreter. Bounds checks, on by default there, cost kernels
  {100 * (bounds - 1):.0f}% (geometric mean).
- **Correct on a GPU**: {len(watched)} tools of compute-sanitizer reported {findings or "no"} findings in operators."""


def goals() -> str:
    launch, edit, forward = launches(), edits(), nbody()["forward"]
    own, driver = launch[OWN]["median"], launch[DRIVER]["median"]
    load, dlpack = launch[LOAD]["median"] / own, launch[DLPACK]["median"] / own
    again = edit[EDIT]["median"] / edit[OWN_TEXT]["median"]
    compiled = forward["torch.compile"]["median"] / forward["rawkern"]["median"]
    shares = {
        f"{name}, {d}": share(operators(d)[name], "forward", "rawkern") for name in ("square", "mul") for d in DTYPES
    }
    slowest = min(shares, key=lambda name: shares[name] or 0)
    square = part("launch-gpu", "square of")
    given, made = (square[name]["ratio"] for name in ("RawKernel, one float4 per thread", "rawkern.square(x)"))
    worst = shares[slowest] or 0
    rows = [
        (
            "a checked launch takes at most 4.5 us",
            f"{scaled(own)}; the driver's call alone {scaled(driver)}",
            own <= 4.5e-6,
        ),
        ("it takes less than load_inline's", f"load_inline takes {load:.2f} times as long", load > 1),
        ("at least 12 times faster than CuPy with DLPack", f"{dlpack:.1f} times", dlpack >= 12),
        (
            "an elementwise kernel takes no longer than copy_",
            f"2^28 floats: {given:.2f} of its time; rawkern.square, which makes its result, {made:.2f}",
            given <= 1,
        ),
        (
            "the operators square and mul no slower than a copy, within 2 %",
            f"slowest: {slowest}, {worst:.2f} of the copy's rate",
            round(worst, 2) >= 0.98,
        ),
        ("n-body at least 8 times faster than torch.compile", f"{compiled:.1f} times", compiled >= 8),
        ("edit to result at least 500 times faster than load_inline", f"{again:.0f} times", again >= 500),
    ]
    return table(("goal", "seen", ""), [(goal, seen, "met" if met else "missed") for goal, seen, met in rows])


def launch_table() -> str:
    times = launches()
    own = times[OWN]["median"]
    order = sorted(times, key=lambda name: times[name].get("median", float("inf")))
    shown = {
        n: n.replace("rawkern: ", "rawkern: `") + "`" if n.startswith("rawkern: ") else n for n in order
    }  # no links
    rows = [
        (shown[n], seconds(times[n]), f"{times[n]['median'] / own:.2f}" if "median" in times[n] else "") for n in order
    ]
    return table(("host time of one launch", "median", "by rawkern's"), rows)


def edit_table() -> str:
    times = edits()
    own = times[OWN_TEXT]["median"]
    order = sorted(times, key=lambda name: times[name].get("median", float("inf")))
    rows = [(n, seconds(times[n]), f"{times[n]['median'] / own:.2f}" if "median" in times[n] else "") for n in order]
    return table(("from an edit to the first result", "median", "by rawkern's"), rows)


def operator_table() -> str:
    """All operators in bfloat16: microseconds, and the share of a copy's rate."""
    rows = []
    for name, numbers in operators("bfloat16").items():
        directions = [d for d in ("forward", "backward") if d in numbers]
        cells = []
        for contender in CONTENDERS:
            found = [numbers[d].get(contender, {}) for d in directions]
            error = next((t["error"] for t in found if "error" in t), "")
            cells.append(error or " / ".join(f"{t['median'] * 1e6:.0f}" for t in found if "median" in t))
        shares = [share(numbers, d, "rawkern") for d in directions]
        rows.append((name, *cells, " / ".join("-" if s is None else f"{s:.2f}" for s in shares)))
    return table(("bfloat16", *CONTENDERS, "rawkern's share of a copy's rate"), rows)


def nbody_table() -> str:
    times = nbody()
    forward = times["forward"]
    rows = []
    for c in (c for c in CONTENDERS if "median" in forward.get(c, {})):
        ratio = forward[c]["median"] / forward["rawkern"]["median"]
        rows.append((c, *(f"{times[d][c]['median'] * 1e6:,.1f} us" for d in times), f"{ratio:.1f}"))
    return table(("n-body, N = 10,000", "forward", "backward", "forward by rawkern's"), rows)


def sanitizer_table() -> str:
    watched, planted = results("sanitizer-gpu")["results"].values()
    rows = []
    for tool, r in watched.items():
        ran = ", ".join(f"{n} {what}" for what, n in r["ran"].items()) or r["failure"]
        found = [sum(r[kind].values()) for kind in ("in rawkern's kernels", "in other kernels")]
        seen = "found" if planted[tool]["in rawkern's kernels"] else "not found"
        rows.append((tool, ran, *map(str, found), seen))
    return table(("tool", "ran", "findings in rawkern's kernels", "in torch's", "a planted mistake"), rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "gains": gains,
    "machines": machines,
    "goals": goals,
    "launches": launch_table,
    "edits": edit_table,
    "operators": operator_table,
    "nbody": nbody_table,
    "sanitizer": sanitizer_table,
}


def rendered(text: str) -> str:
    """The page with its blocks rebuilt.

    Raises
    ------
    ValueError
        A block of the page is unknown, or one is missing.
    """
    found = re.findall(r"^<!-- (?!/)(.+) -->\n(?:.*\n)*?<!-- /\1 -->$", text, re.M)
    if sorted(found) != sorted(BLOCKS):
        raise ValueError(f"the page has the blocks {sorted(found)}, it should have {sorted(BLOCKS)}")
    for name, make in BLOCKS.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{make()}\n\n{end}{rest.partition(end)[2]}"
    return text


# Pictures -----------------------------------------------------------------------------------------------------

COLORS = {"torch": "#9aa5b1", "torch.compile": "#627d98", "Liger": "#d9a441", "rawkern": "#c0392b"}


def bars(axes: Any, times: dict[str, float], unit: str) -> None:
    """Horizontal bars, the fastest on top, with their numbers; rawkern's in red."""
    order = sorted(times, key=times.__getitem__, reverse=True)
    own = [COLORS["rawkern" if "rawkern" in name else "torch"] for name in order]
    drawn = axes.barh(range(len(order)), [times[name] for name in order], color=own)
    axes.bar_label(
        drawn,
        [f"{t:.3g} {unit}" if t < 1000 else f"{t:,.0f} {unit}" for t in map(times.get, order)],
        padding=3,
        fontsize=8,
    )
    labels = [re.sub(r" \((C\+\+|nothing [^)]*)\)", "", name) for name in order]
    axes.set_yticks(range(len(order)), labels, fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(min(times.values()) / 2, max(times.values()) * 3)
    axes.spines[["top", "right"]].set_visible(False)


def grouped(axes: Any, dtype: str, direction: str) -> None:
    """Shares of a copy's rate, a group of bars for each operator."""
    found = operators(dtype)
    width = 0.8 / len(CONTENDERS)
    for k, contender in enumerate(CONTENDERS):
        shares = [share(found[name], direction, contender) for name in SHOWN]
        places = [i + (k - (len(CONTENDERS) - 1) / 2) * width for i in range(len(SHOWN))]
        axes.bar(places, [s or 0 for s in shares], width, label=contender, color=COLORS[contender])
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(SHOWN)), SHOWN, fontsize=8)
    axes.set_title(f"{direction}, {dtype}", fontsize=9)
    axes.set_ylim(0, 1.15)
    axes.spines[["top", "right"]].set_visible(False)


def draw(folder: Path) -> list[Path]:
    """Draw the pictures of the page."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "rawkern"  # the same file from the same numbers
    from matplotlib import pyplot as plt

    def save(figure: Any, name: str) -> Path:
        path = folder / f"benchmarks-{name}.svg"
        figure.savefig(path, metadata={"Date": None}, bbox_inches="tight", facecolor="white")
        plt.close(figure)
        return path

    def medians(times: dict[str, Any], scale: float) -> dict[str, float]:
        return {name: t["median"] * scale for name, t in times.items() if "median" in t}

    made = []
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 1.9), layout="constrained")
    bars(left, {who: edits()[name]["median"] for who, name in FRONT_EDITS.items()}, "s")
    left.set_title("From an edit of the CUDA source to its result", fontsize=9)
    bars(right, {who: launches()[name]["median"] * 1e6 for who, name in FRONT_LAUNCHES.items()}, "us")
    right.set_title("Host time of a launch", fontsize=9)
    made.append(save(figure, "front"))
    figure, axes = plt.subplots(figsize=(8, 4.6))
    bars(axes, medians({n: t for n, t in launches().items() if n == TORCH or "square" not in n}, 1e6), "us")
    axes.set_title("Host time of a launch, three tensors and an int, microseconds", fontsize=9)
    made.append(save(figure, "launches"))
    figure, axes = plt.subplots(figsize=(8, 2.8))
    bars(axes, medians(edits(), 1), "s")
    axes.set_title("From an edit to the first result, seconds", fontsize=9)
    made.append(save(figure, "edits"))
    figure, grid = plt.subplots(2, 2, figsize=(10, 6.5), sharey=True, layout="constrained")
    for row, direction in zip(grid, ("forward", "backward"), strict=True):
        for axes, dtype in zip(row, DTYPES, strict=True):
            grouped(axes, dtype, direction)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, ncols=len(CONTENDERS), loc="outside upper center", frameon=False)
    figure.supylabel("share of a copy's rate", fontsize=9)
    made.append(save(figure, "bandwidth"))
    figure, axes = plt.subplots(figsize=(7, 1.6))
    bars(axes, medians(nbody()["forward"], 1e6), "us")
    axes.set_title("Forces between 10,000 bodies, microseconds of GPU time", fontsize=9)
    made.append(save(figure, "nbody"))
    return made


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    page = DOCS / "benchmarks.md"
    page.write_text(rendered(page.read_text()))
    for path in (page, *draw(DOCS / "images")):
        print(f"written: {path.relative_to(DOCS.parent)}")
    write_times()


if __name__ == "__main__":
    main()
