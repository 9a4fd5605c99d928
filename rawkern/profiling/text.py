"""Reports as text: a table of the launches, the costly lines with their counts, and the findings."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from rawkern.profiling.costs import work
from rawkern.profiling.counted import NO_LINE

MOST_LINES = 8
WIDTH = 60
HEADS = ("work", "warps", "lanes", "sectors", "of ideal", "wavefronts", "of ideal", "line")


def page(data: dict[str, Any]) -> str:
    """The whole report."""
    if not data["launches"]:
        return "no launch was profiled"
    parts = [_launch(launch, count) for launch, count in grouped(data["launches"])]
    found = data["findings"]
    if found:
        parts.append("\n".join(["What to do, costliest first:", *(_finding(k, f) for k, f in enumerate(found, 1))]))
    else:
        parts.append("No inefficiencies were found.")
    return "\n\n".join(parts)


def grouped(launches: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Merge launches that did the same, with their number; the one with the median time is kept if they were timed.

    First launches of a source are ignored if there are others.
    """
    found: list[list[dict[str, Any]]] = []
    for launch in launches:
        same = ("kernel", "grid", "block", "counters", "device")
        group = next((group for group in found if all(group[0][key] == launch[key] for key in same)), None)
        if group is None:
            found.append([launch])
        else:
            group.append(launch)
    return [(_typical(group), len(group)) for group in found]


def _typical(group: list[dict[str, Any]]) -> dict[str, Any]:
    timed = [launch for launch in group if "milliseconds" in launch]
    warm = [launch for launch in timed if not launch["timing"]["first"]] or timed
    return sorted(warm, key=lambda launch: launch["milliseconds"])[(len(warm) - 1) // 2] if warm else group[0]


def headline(launch: dict[str, Any], count: int) -> str:
    """A launch in one line."""
    shape = f"grid {dims(launch['grid'])}, block {dims(launch['block'])}"
    return f"{launch['kernel']}: {shape}{f', {count} launches' if count > 1 else ''}"


def summary(launch: dict[str, Any]) -> list[str]:
    """What the launch did, as sentences."""
    c = launch["counters"]
    said = []
    if "sampled_blocks" in launch:
        x, y, z = launch["grid"]
        said.append(
            f"{launch['sampled_blocks']:,} of {x * y * z:,} blocks were counted; all counts are for these blocks"
        )
    said += [
        f"{c['smsp__inst_executed.sum']:,} PTX instructions of warps, "
        f"{c['smsp__thread_inst_executed_per_inst_executed.ratio']:.1f} of 32 lanes active"
    ]
    distinct = sum(launch["distinct_sectors"].values())
    sectors, ideal = (c[f"memory_l2_theoretical_sectors_global{end}"] for end in ("", "_ideal"))
    if sectors:
        said.append(f"global memory: {sectors:,} sectors (ideal {ideal:,}), {distinct:,} distinct")
    waves, best = (c[f"memory_l1_wavefronts_shared{end}"] for end in ("", "_ideal"))
    if waves:
        said.append(f"shared memory: {waves:,} wavefronts (ideal {best:,})")
    if "occupancy" in launch:
        o = launch["occupancy"]
        said.append(
            f"occupancy on {launch['gpu'].upper()}: {o['share']:.0%}, limited by {' and '.join(o['limits'])} "
            f"({o['registers']} registers, {o['shared']:,} bytes of shared memory)"
        )
    if "bounds" in launch:
        bounds = {name: seconds for name, seconds in launch["bounds"].items() if seconds}
        listed = ", ".join(f"{name} {seconds * 1e6:.3g} us" for name, seconds in bounds.items())
        said.append(f"lower bound on {launch['gpu'].upper()}: {listed}")
    if "estimate" in launch:
        said.append(f"estimated on {estimate(launch['estimate'])}")
    elif "no_estimate" in launch:
        said.append(f"no estimate: {launch['no_estimate']}")
    if "milliseconds" in launch:
        said.append(_time(launch))
    return said


def estimate(found: Mapping[str, Any]) -> str:
    """The result of `Estimate.as_dict` in one line."""
    note = "" if found["measured"] else "; not measured here"
    return (
        f"{found['device'].upper()}: {found['us']:.3g} us ({found['low']:.3g} to {found['high']:.3g}), limited by "
        f"{found['limited_by']}{note}"
    )


def _time(launch: dict[str, Any]) -> str:
    """The measured time, compared with the largest bound and the copy rate."""
    timing, seconds = launch["timing"], launch["milliseconds"] * 1e-3
    said = f"took {seconds * 1e6:.3g} us on {launch['device']}"
    largest = max(launch.get("bounds", {}).items(), key=lambda bound: bound[1], default=("", 0.0))
    if largest[1]:
        said += f", {seconds / largest[1]:.3g} times the bound by {largest[0]}"
    if "share_of_copy_rate" in timing:
        said += f", {timing['share_of_copy_rate']:.0%} of a copy's {timing['copy_rate'] / 1e9:,.0f} GB/s"
    notes = ["the first launch of its source, with cold caches"] * timing["first"]
    notes += ["includes host time: the GPU was waiting for the launch"] * timing["late"]
    return f"{said} ({'; '.join(notes)})" if notes else said


def _launch(launch: dict[str, Any], count: int) -> str:
    lines = [headline(launch, count), *(f"  {each}" for each in summary(launch)), ""]
    total = work(launch["counters"]) or 1.0
    costly = sorted(launch["lines"], key=lambda line: work(launch["lines"][line]), reverse=True)[:MOST_LINES]
    rows = [HEADS, *(_row(launch, line, total) for line in launch["lines"] if line in costly)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(HEADS) - 1)]
    lines += ["  ".join([*(c.rjust(w) for c, w in zip(row, widths, strict=False)), row[-1]]).rstrip() for row in rows]
    return "\n".join(lines)


def cells(counters: Mapping[str, float]) -> tuple[str, ...]:
    """Warps, lanes, sectors and wavefronts of a line, with how many times the ideal they are."""
    warps = counters.get("smsp__inst_executed.sum", 0)
    ratio = counters.get("smsp__thread_inst_executed_per_inst_executed.ratio", 0)
    found = [f"{warps:,}", f"{ratio:.1f}"]
    for name in ("memory_l2_theoretical_sectors_global", "memory_l1_wavefronts_shared"):
        value, ideal = counters.get(name, 0), counters.get(f"{name}_ideal", 0)
        found += [f"{value:,}", f"{value / ideal:.3g}x" if ideal else ""] if value else ["", ""]
    return tuple(found)


def text_of(launch: dict[str, Any], line: int | str) -> str:
    """The text of a line, or a description for counts without a line."""
    return "(generated or hoisted by the compiler)" if line == NO_LINE else launch["source"].get(line, "")


def _row(launch: dict[str, Any], line: int | str, total: float) -> tuple[str, ...]:
    counters = launch["lines"][line]
    text = text_of(launch, line).strip()
    shown = text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."
    return (f"{work(counters) / total:.0%}", *cells(counters), f"{line}: {shown}")


def _finding(number: int, finding: dict[str, Any]) -> str:
    return f"{number}. {place(finding)}: {finding['message']}.\n   {finding['remedy']}."


def place(finding: dict[str, Any]) -> str:
    """A finding's kernel, with the line if it has one."""
    line = finding["line"]
    return finding["kernel"] + (f", line {line}" if isinstance(line, int) and line else f", {line}" if line else "")


def dims(size: list[int]) -> str:
    """Grid or block without the ones at its end."""
    kept = size[: max((k for k, n in enumerate(size, 1) if n > 1), default=1)]
    return " x ".join(map(str, kept))


def rows(data: dict[str, Any]) -> str:
    """A report as CSV: a row for each counter of each launch, and of each of its lines."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(("launch", "kernel", "line", "counter", "value"))
    for k, launch in enumerate(data["launches"]):
        writer.writerows((k, launch["kernel"], "", name, value) for name, value in launch["counters"].items())
        for line, counters in launch["lines"].items():
            writer.writerows((k, launch["kernel"], line, name, value) for name, value in counters.items())
    return out.getvalue()
