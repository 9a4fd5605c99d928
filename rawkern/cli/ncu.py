"""Nsight Compute next to a profile: its command line, and its output."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from typing import Any

from rawkern.cli.text import CommandError, table

#: Parts of its error messages, and what to do.
_HINTS = {
    "ERR_NVGPUCTRPERM": "the driver lets only administrators read counters; see "
    "https://developer.nvidia.com/ERR_NVGPUCTRPERM, or ask whoever runs the machine",
    "No kernels were profiled": "the program launched no kernel on a GPU; add --device cuda",
}


def program() -> str:
    """The path of ``ncu``; CommandError if it is not installed."""
    path = shutil.which("ncu")
    if path is None:
        raise CommandError("--ncu needs Nsight Compute's command ncu on PATH, which comes with the CUDA toolkit")
    return path


def run(arguments: Sequence[str], names: Sequence[str], kernels: Collection[str]) -> list[dict[str, Any]]:
    """Run ``python ARGUMENTS`` under Nsight Compute for counters by name; CommandError if it counts nothing.

    Only the named kernels are counted, and none of torch's.
    """
    metrics = ",".join(name for name in names if "__" in name)
    wanted = "|".join(sorted({re.escape(_plain(kernel).rpartition("::")[2]) for kernel in kernels}))
    command = [program(), "--csv", "--page", "raw", "--print-units", "base", "--kernel-name", f"regex:{wanted}"]
    command += [
        "--section",
        "SourceCounters",
        "--metrics",
        metrics,
    ]  # those without __ in their names are the section's
    done = subprocess.run([*command, sys.executable, *arguments], capture_output=True, text=True)
    found = parsed(done.stdout)
    if not found:
        said = f"{done.stdout}\n{done.stderr}"
        why = next((why for word, why in _HINTS.items() if word in said), "")
        last = [line for line in said.splitlines() if line.strip()][-1:] or ["nothing"]
        raise CommandError(f"ncu counted nothing: {why or last[0]}")
    return found


def parsed(text: str) -> list[dict[str, Any]]:
    """The launches in what ``ncu --csv --page raw`` prints: kernel, grid, block and counters of each."""
    lines = text.splitlines()
    start = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    reader = csv.DictReader(io.StringIO("\n".join(lines[start:])))
    found = []
    for row in reader:
        if not row["ID"]:  # the row of units
            continue
        numbers = {name: _number(value) for name, value in row.items() if _counts(name)}
        counters = {name: number for name, number in numbers.items() if number is not None}
        found.append(
            {
                "kernel": _plain(row["Kernel Name"]), "grid": _size(row["Grid Size"]),
                "block": _size(row["Block Size"]), "counters": counters,
            }
        )  # fmt: skip
    return found


def beside(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> str:
    """A table of both counts for launches with the same kernel, grid and block, in order."""
    rows = []
    left = list(theirs)
    for launch in ours:
        same = (_plain(launch["kernel"]), launch["grid"], launch["block"])
        match = next((t for t in left if (t["kernel"], t["grid"], t["block"]) == same), None)
        if match is None:
            continue
        left.remove(match)
        for name, value in match["counters"].items():
            counted = launch["counters"].get(name)
            if counted is None or (not value and not counted):
                continue
            differs = "" if counted == value else f"{counted / value - 1:+.1%}" if value else "more"
            rows.append((launch["kernel"], name, f"{counted:,.10g}", f"{value:,.10g}", differs))
    if not rows:
        raise CommandError("ncu counted other launches: none has the same kernel, grid and block")
    return table(("kernel", "counter", "counted", "ncu", "differs"), rows, left=(0, 1))


def _plain(kernel: str) -> str:
    """A kernel's name without its return type, template arguments and parameters."""
    return re.sub(r"[<(].*", "", kernel.removeprefix("void "), flags=re.S)


def _counts(name: str) -> bool:
    """Whether a column is one of counters."""
    return "__" in name or name.startswith("memory_l")


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def _size(text: str) -> list[int]:
    return [int(part) for part in text.strip("()").split(",")]
